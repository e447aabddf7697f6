"""self-refine: feedback from the model itself on every attempt, not knowing whether it is right.

Madaan et al. 2023 (arXiv 2303.17651): feedback on the last attempt, then an attempt that is shown
both. No outcome, no reference: the information condition of `intrinsic`, with words in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from inwit.envs import Task
from inwit.evaluation.protocols.base import Criticised
from inwit.playing import Stage
from inwit.rows import Attempt, Critique, Grade


class SelfRefine(Criticised):
    summary: ClassVar = "feedback from the model itself on every attempt, outcome unknown"
    prompts: ClassVar = ("solver", "feedback", "refine")
    critic: ClassVar = "feedback"
    about: ClassVar = frozenset({Grade.WRONG, Grade.RIGHT})

    async def following(
        self, task: Task, stage: Stage, before: Attempt, said: Sequence[Critique], turn: int
    ) -> Attempt:
        return await stage.refine(task, before, said[-1], turn, 0)
