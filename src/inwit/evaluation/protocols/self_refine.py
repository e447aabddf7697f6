"""self-refine: feedback from the model itself on every attempt, not knowing whether it is right.

Madaan et al. 2023 (arXiv 2303.17651): feedback on the last attempt, then an attempt that is shown
both. No outcome, no reference: the information condition of `intrinsic`, with words in between.
"""

from __future__ import annotations

from typing import ClassVar

from inwit.envs import Task
from inwit.evaluation.protocols.base import Following
from inwit.evaluation.records import Trial
from inwit.playing import Stage, fitting
from inwit.rows import Critique, Episode, Grade


class SelfRefine(Following):
    summary: ClassVar = "feedback from the model itself on every attempt, outcome unknown"
    prompts: ClassVar = ("solver", "feedback", "refine")

    async def ask(self, task: Task, stage: Stage) -> tuple[Trial, ...]:
        attempts = await stage.first_attempts(task, 1)
        critiques: list[Critique] = []
        for turn in range(1, self.settings.turns):
            last = attempts[-1]
            if last.grade is Grade.ERROR:
                break
            said = await fitting(stage.criticise(task, last, turn - 1, 0, prompt="feedback"))
            refined = await fitting(stage.refine(task, last, said, turn, 0)) if said else None
            if said is None or refined is None:
                break
            critiques.append(said)
            attempts.append(refined)
        return (Trial.of(Episode("", task.id, tuple(attempts), tuple(critiques))),)
