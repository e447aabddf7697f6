"""direct: one attempt from the question alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from inwit.envs import Task
from inwit.evaluation.measures import Found, accuracy
from inwit.evaluation.protocols.base import Protocol
from inwit.evaluation.records import Record, Trial
from inwit.playing import Stage
from inwit.rows import Episode


class Direct(Protocol):
    summary: ClassVar = "one attempt from the question alone"

    async def ask(self, task: Task, stage: Stage) -> tuple[Trial, ...]:
        [first] = await stage.first_attempts(task, 1)
        return (Trial.of(Episode("", task.id, (first,))),)

    def measures(self, records: Sequence[Record]) -> Found:
        return Found({"a1": accuracy(records, lambda r: r.answers)})
