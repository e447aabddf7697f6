"""Episodes of several attempts in one conversation: what methods of self-correction share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from inwit.envs import Task
from inwit.methods.crediting import solver_row, turn_key
from inwit.playing import Stage, fitting
from inwit.rows import Attempt, Behaviour, Episode


async def with_second_thoughts(
    task: Task, stage: Stage, firsts: Sequence[Attempt], turns: int
) -> list[Episode]:
    """Each first attempt followed by others in the same conversation, `turns` in all.

    A conversation that leaves no room for the next attempt ends before it.
    """

    async def episode(sample: int, first: Attempt) -> Episode:
        attempts = [first]
        for turn in range(1, turns):
            following = await fitting(stage.again(task, attempts[-1], turn, sample))
            if following is None:
                break
            attempts.append(following)
        return Episode(stage.episode_id(task, sample), task.id, tuple(attempts))

    return list(await asyncio.gather(*(episode(i, first) for i, first in enumerate(firsts))))


async def with_reference(episodes: Sequence[Episode], stage: Stage) -> list[Episode]:
    """The same episodes, every attempt of the policy's with its reference's log-probs."""
    assert stage.reference is not None
    rows = [
        solver_row(e, a, 0.0, turn_key(e, a))
        for e in episodes
        for a in e.attempts
        if a.turns[0].behaviour is Behaviour.POLICY
    ]
    scores = iter(await stage.reference.logprobs(rows, stage.sampling.temperature))

    def scored(attempt: Attempt) -> Attempt:
        if attempt.turns[0].behaviour is not Behaviour.POLICY:
            return attempt
        return replace(attempt, reference=next(scores))

    return [replace(e, attempts=tuple(map(scored, e.attempts))) for e in episodes]
