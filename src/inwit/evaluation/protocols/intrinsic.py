"""intrinsic: second thoughts after a fixed instruction that says nothing of correctness.

The setting of SCoRe (arXiv 2409.12917, section 3): the model sees the question, its own answer and
the instruction; no verdict, no reference, no test's output. What the `again` prompt may show is
enforced where it is built, so a run that reveals more cannot be written.
"""

from __future__ import annotations

from typing import ClassVar

from inwit.envs import Task
from inwit.evaluation.protocols.base import Following
from inwit.evaluation.records import Trial
from inwit.playing import Stage, fitting
from inwit.rows import Episode


class Intrinsic(Following):
    summary: ClassVar = "an attempt, and another after an instruction that reveals nothing"
    prompts: ClassVar = ("solver", "again")

    async def ask(self, task: Task, stage: Stage) -> tuple[Trial, ...]:
        attempts = await stage.first_attempts(task, 1)
        for turn in range(1, self.settings.turns):
            second = await fitting(stage.again(task, attempts[-1], turn, 0))
            if second is None:
                break
            attempts.append(second)
        episode = Episode("", task.id, tuple(attempts))
        return (Trial.of(episode, no_room=len(attempts) < self.settings.turns),)
