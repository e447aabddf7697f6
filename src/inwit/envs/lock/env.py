"""The environment `lock`: tasks, grading, and the demonstrations of its warm start."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Annotated

from pydantic import Field, model_validator

from inwit.envs.base import AnswerEnv, Demonstration, EnvSettings, Result, Split, Task
from inwit.envs.lock.dial import DIAL, Problem, Problems, count_problems, turn, write

YES, NO = "yes", "no"
CHECKED_RIGHT, CHECKED_OTHER_KEY = 0.5, 0.2
"""What a critic is shown: the right answer, a true chain of a wrong key; the rest are guesses."""

Rate = Annotated[float, Field(ge=0, le=1)]


class LockSettings(EnvSettings):
    """Settings of `lock`; the second block describes the demonstrations of the warm start."""

    seed: int = Field(7, description="of the locks; the model is embedded:lock")
    keys: int = Field(2, ge=2, le=10, description="keys on offer, one of which opens the lock")
    steps: int = Field(3, ge=1, le=8, description="operations on the dial")
    train: int = Field(20_000, ge=1, description="training locks")
    dev: int = Field(512, ge=1, description="held-out locks for tuning and curves")
    test: int = Field(1024, ge=1, description="held-out locks that nobody tunes on")

    slip: Rate = Field(0.4, description="a reading of a first attempt is off by one")
    slip_again: Rate = Field(0.45, description="a reading of a redo is off by one")
    other_key: Rate = Field(
        0.7, description="a redo tries another key than the first attempt did; otherwise any"
    )
    says_no: tuple[Rate, Rate] = Field(
        (0.15, 0.15),
        description="a second attempt says no to a wrong first attempt, and to a right one",
    )
    share_solver: Rate = Field(0.4, description="first attempts")
    share_check: Rate = Field(0.2, description="checks of an attempt, answered by yes or no")
    share_redo: Rate = Field(0.2, description="redos after a given no")

    @model_validator(mode="after")
    def _possible(self) -> LockSettings:
        if self.share_solver + self.share_check + self.share_redo > 1 + 1e-9:
            raise ValueError(
                "share_solver + share_check + share_redo is over 1; the rest are second attempts"
            )
        asked, there_are = self.train + self.dev + self.test, count_problems(self.keys, self.steps)
        if asked > there_are:
            raise ValueError(
                f"{asked} locks are asked for, but there are only {there_are} of "
                f"{self.keys} keys and {self.steps} steps"
            )
        return self


class Lock(AnswerEnv):
    """A dial lock and the keys on offer; right if the key opens it and all readings are right."""

    Settings = LockSettings
    prompts = Path(__file__).parent / "prompts"
    marker = NO
    settings: LockSettings

    def __init__(self, settings: LockSettings) -> None:
        super().__init__(settings)
        s = settings
        self._problems = Problems.draw(s.seed, (s.train, s.dev, s.test), s.keys, s.steps)

    def tasks(self, split: Split) -> Sequence[Task]:
        problems: Sequence[Problem] = getattr(self._problems, split.value)
        return [
            Task(
                id=f"{split}-{i}",
                question=str(problem),
                reference=write(problem.chain(problem.right_key)),
                data={"wrong": write(problem.chain(problem.wrong_keys[0]))},
            )
            for i, problem in enumerate(problems)
        ]

    def grade(self, task: Task, answer: str) -> Result:
        """Only the reference has a key on offer, true readings, and the goal at their end."""
        return Result.of(self.answer_of(task, answer) == task.reference)

    def answer_of(self, task: Task, text: str) -> str:
        """The key and the readings, without the verdict that a second attempt opens with."""
        del task
        return _parted(text)[1]

    def verdict(self, text: str) -> bool | None:
        return {NO: True, YES: False}.get(_parted(text)[0])

    def second_attempt(self, before: str, answer: str) -> str:
        before, answer = _parted(before)[1], _parted(answer)[1]
        return f"{YES if answer == before else NO} {answer}"

    @property
    def makes_demonstrations(self) -> bool:
        return True

    def demonstrations(self, rng: Random, n: int) -> Sequence[Demonstration]:
        return [self._demonstration(rng) for _ in range(n)]

    def _demonstration(self, r: Random) -> Demonstration:
        s = self.settings
        problem = r.choice(self._problems.train)
        question, kind = str(problem), r.random()
        if kind < s.share_solver:
            answer = write(_guess(r, problem, s.slip))
            return Demonstration("solver", {"question": question}, answer)
        if kind < s.share_solver + s.share_check:
            checked = self._checked(r, problem)
            fields = {"question": question, "attempt": write(checked)}
            return Demonstration("critic", fields, YES if _is_right(problem, checked) else NO)
        attempt = _guess(r, problem, s.slip)
        fields = {"question": question, "attempt": write(attempt)}
        if kind < s.share_solver + s.share_check + s.share_redo:
            answer = write(self._redo(r, problem, attempt))
            return Demonstration("refine", {**fields, "critique": NO}, answer)
        no_to_wrong, no_to_right = s.says_no
        if r.random() < (no_to_right if _is_right(problem, attempt) else no_to_wrong):
            answer = f"{NO} {write(self._redo(r, problem, attempt))}"
        else:
            answer = f"{YES} {write(attempt)}"
        return Demonstration("again", fields, answer)

    def _checked(self, r: Random, problem: Problem) -> list[int]:
        """An attempt for a critic to check."""
        kind = r.random()
        if kind < CHECKED_RIGHT:
            return problem.chain(problem.right_key)
        if kind < CHECKED_RIGHT + CHECKED_OTHER_KEY:
            return problem.chain(r.choice(problem.wrong_keys))
        return _guess(r, problem, self.settings.slip)

    def _redo(self, r: Random, problem: Problem, attempt: Sequence[int]) -> list[int]:
        other = r.random() < self.settings.other_key
        return _guess(r, problem, self.settings.slip_again, avoid=attempt[0] if other else None)


def _guess(r: Random, problem: Problem, slip: float, avoid: int | None = None) -> list[int]:
    """An answer by someone who tries any key and misreads the dial: a slip is carried on."""
    readings = [r.choice([key for key in problem.keys if key != avoid])]
    for operation in problem.operations:
        reading = turn(readings[-1], operation)
        if r.random() < slip:
            reading = (reading + r.choice((-1, 1))) % DIAL
        readings.append(reading)
    return readings


def _is_right(problem: Problem, answer: Sequence[int]) -> bool:
    return answer == problem.chain(problem.right_key)


def _parted(text: str) -> tuple[str, str]:
    """(the verdict that a text opens with, or nothing; the answer behind its last verdict)."""
    words = text.split()
    verdicts = [i for i, word in enumerate(words) if word in (YES, NO)]
    answer = " ".join(words[verdicts[-1] + 1 :] if verdicts else words)
    return words[0] if verdicts[:1] == [0] else "", answer
