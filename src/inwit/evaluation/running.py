"""Asking all questions: bounded, resumable, and with what could not be asked counted."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from inwit.engines.openai import BudgetSpent, EndpointError, Refused, Unanswered
from inwit.envs import Task
from inwit.errors import InwitError, TooLong
from inwit.evaluation.protocols import Protocol
from inwit.evaluation.records import Record
from inwit.files import append_jsonl, cut_torn_line
from inwit.playing import Stage

IN_A_ROW = 5
"""Questions in a row that an endpoint left unanswered before the rest is not asked any more."""


class Answers:
    """Records by question and sample, kept in memory and, where there is a file, in it."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._records: dict[tuple[str, int], Record] = {}
        if file is None or not file.is_file():
            return
        cut_torn_line(file)
        for number, line in enumerate(file.read_bytes().splitlines(), 1):
            try:
                record = Record.from_dict(json.loads(line))
            except (KeyError, TypeError, ValueError) as error:
                raise InwitError(
                    f"{file}, line {number}: not a record of an evaluation ({error}).",
                    "Remove that line: its question is then asked again.",
                ) from error
            self._records[record.task, record.sample] = record

    def __contains__(self, key: tuple[str, int]) -> bool:
        return key in self._records

    def add(self, record: Record) -> None:
        """Keep a record; once this returns, a kill does not lose it."""
        self._records[record.task, record.sample] = record
        if self._file:
            append_jsonl(self._file, [record.as_dict()])

    def of(self, tasks: Sequence[Task], samples: int) -> list[Record]:
        """The records of these tasks, in their order."""
        keys = ((task.id, sample) for sample in range(samples) for task in tasks)
        return [self._records[key] for key in keys if key in self._records]


@dataclass(slots=True)
class Faults:
    """What could not be asked, and why the asking stopped early, if it did."""

    unanswered: dict[tuple[str, int], str] = field(default_factory=dict)
    stopped: str = ""
    in_a_row: int = 0

    def reasons(self, missing: int) -> dict[str, int]:
        """Why questions are unanswered, and how many for each reason, `missing` in all."""
        found = dict(Counter(self.unanswered.values()))
        rest = missing - sum(found.values())
        return found | ({f"not asked any more: {self.stopped}": rest} if rest else {})

    def note(self, key: tuple[str, int], error: EndpointError) -> None:
        self.unanswered[key] = error.what
        self.in_a_row += 1
        if isinstance(error, BudgetSpent) or self.in_a_row >= IN_A_ROW:
            self.stopped = self.stopped or error.what


async def ask_all(
    protocol: Protocol,
    tasks: Sequence[Task],
    stage: Stage,
    *,
    answers: Answers | None = None,
    samples: int = 1,
    at_once: int | None = None,
    tell: Callable[[Record], None] | None = None,
) -> tuple[list[Record], Faults]:
    """Ask every task `samples` times, but for those that `answers` holds already.

    What concerns one question alone (a passing fault of an endpoint, a prompt that it refuses, no
    room) leaves that question unanswered and is counted; a lasting fault (a wrong key, no such
    model) is raised. What was answered is kept in every case.

    Args:
        at_once: questions under way at the same time; all, if not given.
        tell: told of every new record.

    Raises:
        InwitError: two tasks have the same id, or the protocol cannot ask these tasks.
    """
    kept = answers if answers is not None else Answers()
    check(protocol, tasks, stage)
    open_ = [(t, k) for k in range(samples) for t in tasks if (t.id, k) not in kept]
    gate = asyncio.Semaphore(at_once or max(len(open_), 1))
    faults = Faults()

    async def one(task: Task, sample: int) -> None:
        async with gate:
            if faults.stopped:
                return
            # each sample has random choices of its own
            scene = (*stage.scene, "sample", sample) if sample else stage.scene
            try:
                trials = await protocol.ask(task, replace(stage, scene=scene))
            except TooLong as error:
                faults.unanswered[task.id, sample] = error.what
                return
            except (Unanswered, Refused, BudgetSpent) as error:
                faults.note((task.id, sample), error)
                return
            faults.in_a_row = 0
            record = Record(task.id, sample, trials)
            kept.add(record)
            if tell:
                tell(record)

    asked = [asyncio.create_task(one(task, sample)) for task, sample in open_]
    try:
        await asyncio.gather(*asked)
    finally:  # after a lasting fault, the others are not waited for
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
    return kept.of(tasks, samples), faults


def check(protocol: Protocol, tasks: Sequence[Task], stage: Stage) -> None:
    """Raise InwitError where asking would fail or count a question twice."""
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise InwitError(f"Two tasks have the id '{task.id}'.", "Give each its own.")
        seen.add(task.id)
    protocol.check(stage.env, tasks)
