"""What a method is: how an episode unfolds (`collect`), and who is credited for it (`credit`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from inwit.envs import Task
from inwit.objectives import Objective, Weighting
from inwit.objectives.losses import Aggregation
from inwit.playing import Stage
from inwit.roles import CONDITIONS
from inwit.rows import Condition, Episode, Row


class MethodSettings(BaseModel):
    """Settings of a method, written in the recipe's `[method]` beside `name`."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PolicyGradientSettings(MethodSettings):
    """What every method shares that learns from groups of samples with a clipped ratio."""

    group_size: int = Field(8, ge=1, description="first attempts at each query")
    delta_solver: float = Field(1e-6, ge=0, description="added to the std of a solver group")
    loss: Literal["clip", "gspo"] = "clip"
    clip_low: float = Field(0.2, gt=0, lt=1, description="the ratio's floor is 1 - clip_low")
    clip_high: float = Field(0.28, gt=0, description="the ratio's ceiling is 1 + clip_high")
    aggregation: Aggregation = Field("token", description="what the loss is a mean over")
    kl: float = Field(0.0, ge=0, description="coefficient of KL(policy || reference)")

    def objective(self, temperature: float, weighting: Weighting | None = None) -> Objective:
        """The clipped objective with these settings; the weighting is of re-conditioned rows."""
        return Objective(
            loss=self.loss,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            aggregation=self.aggregation,
            weighting=weighting or Weighting(),
            kl=self.kl,
            temperature=temperature,
        )


class ReinforceSettings(MethodSettings):
    """What every method shares that learns by REINFORCE with a leave-one-out baseline (RLOO)."""

    group_size: int = Field(8, ge=2, description="samples of each query; they share a baseline")
    aggregation: Aggregation = Field("token", description="what the loss is a mean over")

    def objective(self, temperature: float) -> Objective:
        """A * rho, whose gradient on the policy that sampled is A * grad log pi."""
        return Objective(loss="importance", aggregation=self.aggregation, temperature=temperature)


@dataclass(frozen=True, slots=True)
class ExternalCritic:
    """Another model: a path or hub name, or its name at an OpenAI-compatible endpoint."""

    model: str
    url: str | None = None


class Method(ABC):
    """An algorithm: two functions, one file, one recipe section.

    `collect` may await; it decides what is sampled, graded and criticised. `credit` is pure: from
    episodes to rows, with nothing but the data to go by. Whatever the optimizer is to do is said in
    rows and in the objective; no engine knows a method's name.
    """

    Settings: ClassVar[type[MethodSettings]] = MethodSettings
    summary: ClassVar[str] = ""

    def __init__(self, settings: MethodSettings) -> None:
        self.settings = settings

    @property
    def stages(self) -> Sequence[Method]:
        """What a run goes through, in order; each stage has credit and objective of its own."""
        return (self,)

    @property
    def title(self) -> str:
        """What this stage is called in the log; empty where there is only one."""
        return ""

    @property
    def lasts(self) -> int | None:
        """Steps after which the next stage begins; None is until it is begun by hand."""
        return None

    @property
    def rate(self) -> float:
        """Factor on the learning rate."""
        return 1.0

    def measures(self, episodes: Sequence[Episode]) -> Mapping[str, float | None]:
        """Pure: what this method alone has to log about a step."""
        del episodes
        return {}

    @property
    def needs_reference(self) -> bool:
        """Whether the engine must keep the policy as it was at the start."""
        return False

    @property
    def frozen_critic(self) -> bool:
        """Whether the critic is the policy as it was at the start."""
        return False

    @property
    def external_critic(self) -> ExternalCritic | None:
        """Who criticises, if it is another model than the policy."""
        return None

    @property
    def needs_demonstrations(self) -> bool:
        """Whether the environment must make demonstrations."""
        return False

    @property
    def conditions(self) -> Mapping[str, Condition]:
        """The prompts by name, and what each may show."""
        return CONDITIONS

    @abstractmethod
    def objective(self, temperature: float) -> Objective:
        """What the engine minimises over this method's rows."""

    @abstractmethod
    async def collect(self, tasks: Sequence[Task], stage: Stage) -> list[Episode]:
        """Play one step's episodes."""

    @abstractmethod
    def credit(self, episodes: Sequence[Episode]) -> list[Row]:
        """Pure: one row for everything that is to be learned from, advantages filled in."""
