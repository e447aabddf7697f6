"""parallel: 2K independent attempts and a majority vote (self-consistency; SCoRe, section 6.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from inwit.envs import Task
from inwit.evaluation.measures import Found, accuracy, rate
from inwit.evaluation.protocols.base import Protocol, ProtocolSettings
from inwit.evaluation.protocols.voting import won
from inwit.evaluation.records import Record, Trial
from inwit.playing import Stage
from inwit.rows import Episode


class VoteSettings(ProtocolSettings):
    k: int = Field(4, ge=1, description="K: parallel makes 2K attempts, sequential K revised ones")


class Parallel(Protocol):
    Settings: ClassVar[type[ProtocolSettings]] = VoteSettings
    summary: ClassVar = "2K independent attempts and a majority vote"
    settings: VoteSettings

    async def ask(self, task: Task, stage: Stage) -> tuple[Trial, ...]:
        attempts = await stage.first_attempts(task, 2 * self.settings.k)
        return tuple(Trial.of(Episode("", task.id, (a,)), "parallel") for a in attempts)

    def measures(self, records: Sequence[Record]) -> Found:
        return Found(
            {
                "a1": accuracy(records, lambda r: r.answers),
                "vote": rate(records, lambda r: won(r.answers)),
            }
        )
