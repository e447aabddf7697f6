"""What an environment is: tasks by split, and a single-use play that takes text actions.

A single-answer task is an environment of one turn: derive from `AnswerEnv` and write `tasks` and
`grade` (docs/how-to/new-environment.md).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from inwit.rows import Grade


class Split(StrEnum):
    """Train and the two held-out sets share no task. `test` is not looked at while tuning."""

    TRAIN = "train"
    DEV = "dev"
    TEST = "test"


@dataclass(frozen=True, slots=True)
class Task:
    """One query.

    Attributes:
        id: unique in its environment.
        question: what the solver is shown.
        reference: the gold answer as text; only a condition that holds `reference` may show it.
        data: whatever else grading needs.
    """

    id: str
    question: str
    reference: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Result:
    """A grade and its reward: 1 for right and 0 for wrong, unless there is another scale.

    Attributes:
        feedback: what the environment says about the attempt, for conditions that show it.
    """

    grade: Grade
    reward: float
    feedback: str = ""

    @classmethod
    def of(cls, right: bool, feedback: str = "") -> Result:
        return cls(Grade.RIGHT if right else Grade.WRONG, float(right), feedback)

    @classmethod
    def error(cls, reason: str) -> Result:
        """The environment broke. The attempt is dropped and counted; this is never a reward."""
        return cls(Grade.ERROR, 0.0, reason)


@dataclass(frozen=True, slots=True)
class Step:
    """An answer to an action: an observation, or the result that ends the attempt."""

    observation: str = ""
    result: Result | None = None


class Play(ABC):
    """One attempt at one task. Used once; there is no reset to forget."""

    @abstractmethod
    async def step(self, action: str) -> Step:
        """Take the policy's text; say what happened. An exception is a grade of `error`."""

    async def out_of_turns(self) -> Result:
        """The result where the turn limit ends the attempt."""
        return Result.of(False, "The turn limit was reached.")

    async def close(self) -> None:
        """Release what the play holds. Called once, whatever happened."""
        return


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A prompt by name, its fields, and what to answer: one example for supervised learning."""

    prompt: str
    fields: Mapping[str, str]
    answer: str


class EnvSettings(BaseModel):
    """Settings of an environment, written in the recipe's `[env]` beside `name`."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Env(ABC):
    """A family of tasks. `Settings` are read from the recipe; a bad value is refused there.

    Attributes:
        prompts: folder of prompt texts that go before the built-in ones, if any.
        max_turns: the most generations in one attempt.
        marker: a word after which a model may be expected to correct itself.
    """

    Settings: ClassVar[type[EnvSettings]] = EnvSettings
    prompts: ClassVar[Path | None] = None
    max_turns: int = 1
    marker: ClassVar[str] = "Wait"

    def __init__(self, settings: EnvSettings) -> None:
        self.settings = settings

    @abstractmethod
    def tasks(self, split: Split) -> Sequence[Task]:
        """The split's tasks, in a fixed order. Raises InwitError where the data is broken."""

    @abstractmethod
    def open(self, task: Task) -> Play:
        """Begin an attempt."""

    @property
    def makes_demonstrations(self) -> bool:
        """Whether `demonstrations` gives any."""
        return False

    def demonstrations(self, rng: Random, n: int) -> Sequence[Demonstration]:
        """n examples for supervised learning, if the environment can make them."""
        raise NotImplementedError(f"{type(self).__name__} makes no demonstrations")

    def answer_of(self, task: Task, text: str) -> str:
        """What an attempt's text comes down to: two attempts with equal answers did not differ.

        Votes are counted by it, and changes of mind.
        """
        del task
        return " ".join(text.split())

    def verdict(self, text: str) -> bool | None:
        """Whether a second attempt says that the first was wrong; None where it says neither."""
        del text
        return None

    def second_attempt(self, before: str, answer: str) -> str:
        """An answer as it would be written after an attempt `before`, to be imitated."""
        del before
        return answer

    def wrong_answer(self, task: Task) -> str | None:
        """A wrong answer to be shown to a model and mended; None where there is none."""
        wrong = task.data.get("wrong")
        return None if wrong is None else str(wrong)

    def critique_size(self, text: str, tokens: int) -> float:
        """L_c of ICRL Eq. 3: what the length penalty counts. Tokens, unless told otherwise."""
        del text
        return float(tokens)


class AnswerEnv(Env):
    """An environment of one turn: an answer, and a grade."""

    @abstractmethod
    def grade(self, task: Task, answer: str) -> Result | Coroutine[Any, Any, Result]:
        """Grade the policy's whole text. An exception counts as a grade of `error`.

        It may be `async`, where grading waits for another process.
        """

    async def graded(self, task: Task, answer: str) -> Result:
        """What `grade` says, waited for where need be."""
        found = self.grade(task, answer)
        return found if isinstance(found, Result) else await found

    def open(self, task: Task) -> Play:
        return _Answer(self, task)


class _Answer(Play):
    def __init__(self, env: AnswerEnv, task: Task) -> None:
        self._env, self._task = env, task

    async def step(self, action: str) -> Step:
        return Step(result=await self._env.graded(self._task, action))
