"""critique: where an attempt fails, a critic reads it and the solver tries again.

The critic is called on failures only, so this is *not* intrinsic self-correction: it knows the
outcome, and right answers cannot be spoiled. The critic is the model itself, as it is or as it was
at the start, or another one (`--critic`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from inwit.envs import Task
from inwit.evaluation.protocols.base import Criticised
from inwit.playing import Stage
from inwit.rows import Attempt, Critique


class CritiqueFailures(Criticised):
    summary: ClassVar = "a critic reads failures, and the solver tries again"
    prompts: ClassVar = ("solver", "critic", "revision")

    async def following(
        self, task: Task, stage: Stage, before: Attempt, said: Sequence[Critique], turn: int
    ) -> Attempt:
        del before
        return await stage.revise(task, said[-1], turn, 0)
