"""critique: where an attempt fails, a critic reads it and the solver tries again.

The critic is called on failures only, so this is *not* intrinsic self-correction: it knows the
outcome, and right answers cannot be spoiled. The critic is the model itself, as it is or as it was
at the start, or another one (`--critic`).
"""

from __future__ import annotations

from typing import ClassVar

from inwit.envs import Task
from inwit.evaluation.protocols.base import Following
from inwit.evaluation.records import Trial
from inwit.playing import Stage, fitting
from inwit.rows import Critique, Episode, Grade


class CritiqueFailures(Following):
    summary: ClassVar = "a critic reads failures, and the solver tries again"
    prompts: ClassVar = ("solver", "critic", "revision")

    async def ask(self, task: Task, stage: Stage) -> tuple[Trial, ...]:
        attempts = await stage.first_attempts(task, 1)
        critiques: list[Critique] = []
        for turn in range(1, self.settings.turns):
            if attempts[-1].grade is not Grade.WRONG:
                break
            said = await fitting(stage.criticise(task, attempts[-1], turn - 1, 0))
            revision = await fitting(stage.revise(task, said, turn, 0)) if said else None
            if said is None or revision is None:  # no room for it: a failure that stays one
                break
            critiques.append(said)
            attempts.append(revision)
        return (Trial.of(Episode("", task.id, tuple(attempts), tuple(critiques))),)
