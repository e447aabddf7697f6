"""STaR on corrections: imitate those of one's own second attempts that mended the first.

Zelikman et al. 2022 (arXiv 2203.14465), as SCoRe's section 4 applies it: sample two attempts in a
conversation, keep the conversations that went from wrong to right (D_STaR), fine-tune on the second
attempt; repeat with the policy that comes out. `right_to_right` also keeps those that were right
twice (D+_STaR).

A step is a round: let `train.queries` be large, and `optimizer.minibatches` and `epochs` say how
the round's traces are gone through. Decided where the paper is silent: a round starts from the last
one's policy, not from the base.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from inwit.envs import Task
from inwit.methods.attempting import with_second_thoughts
from inwit.methods.base import Method, MethodSettings
from inwit.methods.crediting import solver_row, turn_key
from inwit.objectives import Objective
from inwit.objectives.losses import Aggregation
from inwit.playing import Stage
from inwit.rows import Episode, Grade, Row


class STaRSettings(MethodSettings):
    group_size: int = Field(8, ge=1, description="samples of each query in a round")
    right_to_right: bool = Field(False, description="also imitate what was right twice")
    aggregation: Aggregation = Field("token", description="what the loss is a mean over")


class STaR(Method):
    Settings: ClassVar = STaRSettings
    summary: ClassVar = "imitation of one's own successful corrections, in rounds"
    settings: STaRSettings

    def objective(self, temperature: float) -> Objective:
        return Objective(
            loss="cross_entropy", aggregation=self.settings.aggregation, temperature=temperature
        )

    async def collect(self, tasks: Sequence[Task], stage: Stage) -> list[Episode]:
        async def episodes(task: Task) -> list[Episode]:
            firsts = await stage.first_attempts(task, self.settings.group_size)
            return await with_second_thoughts(task, stage, firsts, 2)

        return [e for es in await asyncio.gather(*map(episodes, tasks)) for e in es]

    def credit(self, episodes: Sequence[Episode]) -> list[Row]:
        """Second attempts worth imitating, advantage 1 on every token."""
        return [
            solver_row(e, e.attempts[1], 1.0, turn_key(e, e.attempts[1]))
            for e in episodes
            if len(e.attempts) == 2 and self._kept(e)
        ]

    def _kept(self, episode: Episode) -> bool:
        first, second = (a.grade for a in episode.attempts)
        wanted = {Grade.WRONG, Grade.RIGHT} if self.settings.right_to_right else {Grade.WRONG}
        return second is Grade.RIGHT and first in wanted
