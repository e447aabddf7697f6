"""Whether a file of tasks is fit to train on, found out before a night is spent on it.

Every right answer must be graded right, and every other task's answer wrong: a grader that takes
nothing, or anything, shows here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from inwit.envs.answers import same_answer
from inwit.envs.base import Result, Task
from inwit.envs.records import BrokenData, Fault, FileEnv, FileSettings, same_question
from inwit.errors import InwitError
from inwit.rows import Grade

FOREIGN = 0.995
"""Least share of other tasks' answers that must be graded wrong: two tasks may share an answer that
is written in two ways."""

AT_ONCE = 64
"""Gradings under way together; an environment may allow fewer."""

SHOWN = 160
"""Characters of a text that are shown of an offender."""


@dataclass(frozen=True, slots=True)
class Offender:
    """A task that failed a check, and what was graded or found."""

    check: str
    id: str
    why: str


@dataclass(frozen=True, slots=True)
class Tried:
    """How many texts a check graded, and how many came out as they should."""

    n: int = 0
    ok: int = 0
    errors: int = 0


@dataclass(slots=True)
class DataReport:
    """What `check_data` found. Offenders are all of them; `seconds` is wall time.

    Attributes:
        n: records, broken ones included.
        tried: by check. `gold`: right answers, graded right. `solution`: reference solutions or
            programs, graded right. `foreign`: the next task's answer, graded wrong. `wrong`: the
            given wrong answer or program, graded wrong.
        duplicates: tasks that ask what an earlier one asks; `conflicting`: with another answer,
            which two programs for one task may well be.
        overlap: tasks whose question is in the other file, too; None without one.
    """

    env: str
    file: str
    runs_programs: bool
    n: int = 0
    unreadable: int = 0
    gold_unparsable: int = 0
    tried: dict[str, Tried] = field(default_factory=dict)
    duplicates: int = 0
    conflicting: int = 0
    overlap: int | None = None
    seconds: float = 0.0
    offenders: list[Offender] = field(default_factory=list)

    @property
    def errors(self) -> int:
        return sum(tried.errors for tried in self.tried.values())

    @property
    def off(self) -> tuple[str, ...]:
        """What is not as it should be, by name; empty where the file is fit."""
        of = {name: getattr(self, name) for name in ("unreadable", "gold_unparsable", "errors")}
        of |= {"conflicting": self.conflicting, "overlap": self.overlap or 0}
        for name, tried in self.tried.items():
            least = FOREIGN * tried.n if name == "foreign" else tried.n
            of[name] = tried.ok < least
        return tuple(name for name, fault in of.items() if fault)

    def as_dict(self) -> dict[str, Any]:
        """For `--json`: counts by the names that DataReport's checks have outside."""
        named = PROGRAM_CHECKS if self.runs_programs else ANSWER_CHECKS
        found: dict[str, Any] = {"env": self.env, "file": self.file, "n": self.n}
        found |= {"unreadable": self.unreadable, "gold_unparsable": self.gold_unparsable}
        for check, name in named.items():
            tried = self.tried.get(check, Tried())
            found |= {name: tried.ok, f"{name}_of": tried.n}
        found |= {
            "errors": self.errors,
            "duplicates": self.duplicates,
            "conflicting": self.conflicting,
            "overlap": self.overlap,
            "off": list(self.off),
            "seconds": self.seconds,
            "offenders": [asdict(offender) for offender in self.offenders],
        }
        return found


ANSWER_CHECKS = {
    "gold": "gold_right",
    "solution": "solution_right",
    "foreign": "foreign_wrong",
    "wrong": "wrong_wrong",
}
PROGRAM_CHECKS = {"solution": "reference_passed", "wrong": "wrong_failed"}
"""What each check is called in a report."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A text to be graded for a task, and the grade it should get."""

    check: str
    task: Task
    text: str
    expected: Grade


def trials(env: FileEnv, tasks: Sequence[Task]) -> Iterator[Trial]:
    """All that is to be graded. Programs are run; only answers are compared with others'."""
    for task, other in zip(tasks, [*tasks[1:], *tasks[:1]], strict=True):
        if not env.runs_programs:
            yield Trial("gold", task, env.written(task.reference), Grade.RIGHT)
            if not _alike(task.reference, other.reference):
                yield Trial("foreign", task, env.written(other.reference), Grade.WRONG)
        if solution := task.data.get("solution"):
            text = env.written(solution) if env.runs_programs else str(solution)
            yield Trial("solution", task, text, Grade.RIGHT)
        if (wrong := env.wrong_answer(task)) is not None:
            yield Trial("wrong", task, wrong, Grade.WRONG)


def _alike(a: str, b: str) -> bool:
    return same_answer(a, b) or same_answer(b, a)


async def graded(env: FileEnv, trial: Trial) -> Result:
    """The result of a play whose only action is this text; an error where that breaks."""
    try:
        play = env.open(trial.task)
        try:
            step = await play.step(trial.text)
            return step.result or Result.error("a whole answer did not end the attempt")
        finally:
            await play.close()
    except Exception as error:
        return Result.error(f"{type(error).__name__}: {error}")


def check_data(
    name: str,
    kind: type[FileEnv],
    settings: FileSettings,
    against: Path | None = None,
    tell: Callable[[int, int], None] | None = None,
) -> DataReport:
    """Read a file through an environment's own loader, and grade what is known about it.

    Args:
        against: another file, whose questions should not be in this one.
        tell: told of (gradings made, of how many).

    Raises InwitError where the file cannot be read at all.
    """
    start = time.monotonic()
    file = ", ".join(map(str, settings.files))
    report = DataReport(name, file, kind.runs_programs)
    tasks, faults = _read(kind, settings, settings.files)
    report.n = len(tasks) + len(faults)
    for fault in faults:
        report.offenders.append(Offender(fault.kind, fault.id, f"{fault.where}: {fault.why}"))
    report.unreadable = sum(fault.kind == "unreadable" for fault in faults)
    report.gold_unparsable = len(faults) - report.unreadable
    _duplicates(report, tasks)
    if against is not None:
        others, _ = _read(kind, settings, [against])
        asked = {same_question(task.question) for task in others}
        both = [task for task in tasks if same_question(task.question) in asked]
        report.overlap = len(both)
        report.offenders += [Offender("overlap", t.id, t.question[:SHOWN]) for t in both]
    if tasks:
        env = kind(settings, tasks)
        asyncio.run(_grade(report, env, list(trials(env, tasks)), tell or _silent))
    report.seconds = time.monotonic() - start
    return report


def _silent(done: int, total: int) -> None:
    del done, total


def _read(
    kind: type[FileEnv], settings: FileSettings, files: Sequence[Path]
) -> tuple[list[Task], Sequence[Fault]]:
    try:
        return kind.read(settings, files), ()
    except BrokenData as broken:
        return list(broken.tasks), broken.faults


def _duplicates(report: DataReport, tasks: Sequence[Task]) -> None:
    first: dict[str, Task] = {}
    for task in tasks:
        before = first.setdefault(same_question(task.question), task)
        if before is task:
            continue
        report.duplicates += 1
        same = report.runs_programs or _alike(before.reference, task.reference)
        report.conflicting += not same
        what = "asks the same as" if same else "asks the same, with another answer, as"
        check = "duplicates" if same else "conflicting"
        report.offenders.append(Offender(check, task.id, f"{what} {before.id}"))


async def _grade(
    report: DataReport, env: FileEnv, planned: Sequence[Trial], tell: Callable[[int, int], None]
) -> None:
    gate, done = asyncio.Semaphore(AT_ONCE), 0

    async def one(trial: Trial) -> Result:
        nonlocal done
        async with gate:
            result = await graded(env, trial)
        done += 1
        tell(done, len(planned))
        return result

    results = await asyncio.gather(*map(one, planned))
    for trial, result in zip(planned, results, strict=True):
        so_far = report.tried.get(trial.check, Tried())
        ok, broke = result.grade is trial.expected, result.grade is Grade.ERROR
        report.tried[trial.check] = Tried(so_far.n + 1, so_far.ok + ok, so_far.errors + broke)
        if not ok:
            why = f"graded {result.grade}: {trial.text[-SHOWN:]}"
            if result.feedback:
                why += f" ({result.feedback[:SHOWN]})"
            report.offenders.append(Offender(trial.check, trial.task.id, why))


def file_env(name: str, kind: type[Any]) -> type[FileEnv]:
    """The environment, if its tasks come from a file. Raises InwitError where they do not."""
    if not issubclass(kind, FileEnv):
        raise InwitError(
            f"The environment '{name}' makes its own tasks; there is no file to check.",
            "Name one that reads a file, such as questions, math, code or search_qa.",
        )
    return kind
