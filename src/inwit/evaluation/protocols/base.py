"""What a protocol is: how one question is asked, and what is measured over all of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from inwit.envs import AnswerEnv, Env, Result, Task
from inwit.errors import InwitError
from inwit.evaluation.measures import (
    Found,
    Measured,
    costs,
    no_room,
    paired,
    too_few,
    total_tokens,
)
from inwit.evaluation.records import Record, Trial
from inwit.playing import Stage, fitting
from inwit.roles.prompt import ROLE_OF
from inwit.rows import Attempt, Condition, Critique, Episode, Grade, Role, Sees


class ProtocolSettings(BaseModel):
    """Settings of a protocol, written in the recipe's `[eval.options]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TurnSettings(ProtocolSettings):
    """Settings of a protocol in which attempts follow on each other."""

    turns: int = Field(2, ge=2, description="attempts, the first included")


class Protocol(ABC):
    """One way of asking. `ask` may await; `measures` is pure, over records.

    Attributes:
        prompts: the prompts that it uses, whose conditions are shown with every result.
    """

    Settings: ClassVar[type[ProtocolSettings]] = ProtocolSettings
    summary: ClassVar[str] = ""
    prompts: ClassVar[tuple[str, ...]] = ("solver",)

    def __init__(self, name: str, settings: ProtocolSettings) -> None:
        self.name = name
        self.settings = settings

    def check(self, env: Env, tasks: Sequence[Task]) -> None:
        """Raise InwitError where these tasks cannot be asked in this way."""
        del env, tasks

    def shown(self, conditions: Mapping[str, Condition]) -> dict[str, list[str]]:
        """What each of its prompts shows; who is shown a critique is shown what the critic saw."""
        mine = {name: conditions[name] for name in self.prompts}
        heard = [c for name, c in mine.items() if ROLE_OF[name] is Role.CRITIC]
        return {
            name: sorted(c.union(*heard) if Sees.CRITIQUE in c else c) for name, c in mine.items()
        }

    @abstractmethod
    async def ask(self, task: Task, stage: Stage) -> tuple[Trial, ...]:
        """Ask one question."""

    @abstractmethod
    def measures(self, records: Sequence[Record]) -> Found:
        """Pure: what the records say."""

    def measured(self, records: Sequence[Record]) -> Measured:
        """Everything that is reported of the records, which are not to be empty."""
        found = self.measures(records)
        samples = max(r.sample for r in records) + 1
        n = len({r.task for r in records})
        return Measured(
            protocol=self.name,
            n=n,
            samples=samples,
            measures=found.measures | costs(records),
            sampled_tokens=total_tokens(records),
            errors=sum(a.grade is Grade.ERROR for r in records for a in r.answers),
            p=found.p,
            table=found.table,
            notes=(*found.notes, *no_room(records), *too_few(found.measures, n)),
        )


class Following(Protocol):
    """A protocol of attempts that follow on each other: accuracy by turn, and transitions."""

    Settings: ClassVar[type[ProtocolSettings]] = TurnSettings
    settings: TurnSettings

    def measures(self, records: Sequence[Record]) -> Found:
        return paired(records, self.settings.turns)


class Criticised(Following):
    """A protocol in which something is said about an attempt before the next one.

    Attributes:
        critic: the prompt under which it is said.
        about: the grades of attempts that it is said about; after others, the protocol ends.
    """

    critic: ClassVar[str] = "critic"
    about: ClassVar[frozenset[Grade]] = frozenset({Grade.WRONG})

    @abstractmethod
    async def following(
        self, task: Task, stage: Stage, before: Attempt, said: Sequence[Critique], turn: int
    ) -> Attempt:
        """The attempt after `before`, which the last of `said` is about."""

    async def ask(self, task: Task, stage: Stage) -> tuple[Trial, ...]:
        attempts = await stage.first_attempts(task, 1)
        said: list[Critique] = []
        stuck = False
        for turn in range(1, self.settings.turns):
            before = attempts[-1]
            if before.grade not in self.about:
                break
            critique = await fitting(stage.criticise(task, before, turn - 1, 0, prompt=self.critic))
            said += [critique] if critique else []
            attempt = (
                await fitting(self.following(task, stage, before, said, turn)) if critique else None
            )
            if stuck := attempt is None:
                break
            attempts.append(attempt)
        return (Trial.of(Episode("", task.id, tuple(attempts), tuple(said)), no_room=stuck),)


def wrong_answers(env: Env, tasks: Sequence[Task]) -> None:
    """Raise InwitError where a task comes without a wrong answer, or with one that is right."""
    missing = [t.id for t in tasks if env.wrong_answer(t) is None]
    if missing:
        raise InwitError(
            f"{len(missing)} of {len(tasks)} tasks have no wrong answer to show, the first being "
            f"{missing[0]}.",
            "Name the column that holds one (for questions: env.wrong), or another protocol.",
        )
    if not isinstance(env, AnswerEnv):
        return
    for task in tasks:
        result = env.grade(task, env.wrong_answer(task) or "")
        if not isinstance(result, Result):  # grading takes a while: inwit check-data does it
            result.close()
            return
        if result.grade is Grade.RIGHT:
            raise InwitError(
                f"The wrong answer of task {task.id} is graded right.", "Mend it, or drop the task."
            )
