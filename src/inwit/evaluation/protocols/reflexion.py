"""reflexion: a failed attempt is reflected on with the environment's feedback; then a fresh try.

Shinn et al. 2023 (arXiv 2303.11366): the model is told that it failed and what the environment
says, writes a reflection, and tries again with its last reflections in view. It stops on success,
so right answers cannot be spoiled; not to be ranked beside `intrinsic`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from inwit.envs import Task
from inwit.evaluation.protocols.base import Criticised
from inwit.playing import Stage
from inwit.rows import Attempt, Critique

REMEMBERED = 3
"""Reflections that are kept in view (section 3 of the paper: one to three)."""


class Reflexion(Criticised):
    summary: ClassVar = "failures are reflected on with the environment's feedback, and retried"
    prompts: ClassVar = ("solver", "reflection", "revision")
    critic: ClassVar = "reflection"

    async def following(
        self, task: Task, stage: Stage, before: Attempt, said: Sequence[Critique], turn: int
    ) -> Attempt:
        del before
        memory = "\n".join(c.text for c in said[-REMEMBERED:])
        return await stage.revise(task, replace(said[-1], text=memory), turn, 0)
