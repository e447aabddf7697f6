"""Protocols: what is asked of a model when it is measured."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from inwit.envs import Task
from inwit.evaluation.statistics import wilson
from inwit.playing import Stage, fitting
from inwit.rows import Attempt, Episode, Grade


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate with its counts and Wilson interval; errors of the grader are outside of n."""

    value: float | None
    right: int
    n: int
    ci: tuple[float, float] | None
    errors: int

    @classmethod
    def of(cls, attempts: Sequence[Attempt]) -> Rate:
        sound = [a for a in attempts if a.grade is not Grade.ERROR]
        right, n = sum(a.success for a in sound), len(sound)
        errors = len(attempts) - n
        if n == 0:
            return cls(None, 0, 0, None, errors)
        interval = wilson(right, n)
        return cls(interval.value, right, n, (interval.low, interval.high), errors)


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of a protocol over all its questions."""

    protocol: str
    first: Rate
    sampled_tokens: int
    truncated: float
    revision: Rate | None = None
    critic_gain: float | None = None
    critique_tokens: float | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


async def direct(tasks: Sequence[Task], stage: Stage) -> tuple[Measured, list[Episode]]:
    """One attempt at each task from its question alone: critique-free accuracy."""
    attempts = [a for [a] in await asyncio.gather(*(stage.first_attempts(t, 1) for t in tasks))]
    episodes = [
        Episode(stage.episode_id(task, 0), task.id, (attempt,))
        for task, attempt in zip(tasks, attempts, strict=True)
    ]
    return _measure("direct", episodes), episodes


async def critique(tasks: Sequence[Task], stage: Stage) -> tuple[Measured, list[Episode]]:
    """An attempt at each task; where it fails, the critic's critique and a revision.

    The critic is called on failures only, so this is *not* intrinsic self-correction: it knows the
    outcome. The gain is the share of failures that the revision mends.
    """

    async def one(task: Task) -> Episode:
        [first] = await stage.first_attempts(task, 1)
        if first.grade is not Grade.WRONG:
            return Episode(stage.episode_id(task, 0), task.id, (first,))
        said = await fitting(stage.criticise(task, first, 0, 0))
        revision = await fitting(stage.revise(task, said, 1, 0)) if said else None
        if said is None or revision is None:  # no room for it: a failure that stays one
            return Episode(stage.episode_id(task, 0), task.id, (first,))
        return Episode(stage.episode_id(task, 0), task.id, (first, revision), (said,))

    episodes = list(await asyncio.gather(*(one(task) for task in tasks)))
    return _measure("critique", episodes), episodes


PROTOCOLS = {"direct": direct, "critique": critique}


def _measure(protocol: str, episodes: Sequence[Episode]) -> Measured:
    attempts = [a for e in episodes for a in e.attempts]
    corrections = [c for e in episodes for c in e.corrections]
    gains = [
        float(after.success) - float(before.success)
        for before, _, after in corrections
        if Grade.ERROR not in (before.grade, after.grade)
    ]
    counts = [len(said.turn.completion.ids) for _, said, _ in corrections]
    lengths = [n for n in counts if n]  # an endpoint's tokens are unknown
    return Measured(
        protocol=protocol,
        first=Rate.of([e.first for e in episodes]),
        sampled_tokens=sum(e.sampled_tokens for e in episodes),
        truncated=sum(a.truncated for a in attempts) / max(len(attempts), 1),
        revision=Rate.of([after for _, _, after in corrections]) if corrections else None,
        critic_gain=sum(gains) / len(gains) if gains else None,
        critique_tokens=sum(lengths) / len(lengths) if lengths else None,
    )
