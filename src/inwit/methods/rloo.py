"""RLOO: REINFORCE on single answers, each against the mean of the query's others.

Paper: Ahmadian et al. 2024 (arXiv 2402.14740), Eq. 5. Credit: A_i = r_i - mean of the other r_j;
with `kl`, each token also gets -kl (log pi_old - log ref). Objective: A times the gradient of
log pi, a mean over tokens. An attempt whose grading broke is dropped and counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from inwit.envs import Task
from inwit.methods.attempting import with_reference, with_second_thoughts
from inwit.methods.base import Method, ReinforceSettings
from inwit.methods.crediting import check_groups, kl_credited, solver_row, turn_key
from inwit.objectives import Objective, by_group, leave_one_out
from inwit.playing import Stage
from inwit.rows import Episode, Grade, Row


class RLOOSettings(ReinforceSettings):
    kl: float = Field(0.0, ge=0, description="KL(policy || reference), as a token reward")


class RLOO(Method):
    Settings: ClassVar[type[RLOOSettings]] = RLOOSettings
    summary: ClassVar[str] = "single answers, each against the mean of the query's others"
    settings: RLOOSettings

    @property
    def turns(self) -> int:
        """Attempts in an episode."""
        return 1

    @property
    def needs_reference(self) -> bool:
        return self.settings.kl > 0

    def objective(self, temperature: float) -> Objective:
        return self.settings.objective(temperature)

    async def collect(self, tasks: Sequence[Task], stage: Stage) -> list[Episode]:
        async def episodes(task: Task) -> list[Episode]:
            firsts = await stage.first_attempts(task, self.settings.group_size)
            return await with_second_thoughts(task, stage, firsts, self.turns)

        played = [e for es in await asyncio.gather(*map(episodes, tasks)) for e in es]
        return await with_reference(played, stage) if self.needs_reference else played

    def credit(self, episodes: Sequence[Episode]) -> list[Row]:
        """Every attempt of an episode is credited with the last one's reward."""
        graded = [e for e in episodes if e.attempts[-1].grade is not Grade.ERROR]
        turns = [(e, a) for e in graded for a in e.attempts]
        keys = [turn_key(e, a) for e, a in turns]
        rewards = [e.attempts[-1].reward for e, _ in turns]
        advantages = by_group(rewards, keys, lambda _: leave_one_out)
        rows = [
            solver_row(e, a, kl_credited(a, advantage, self.settings.kl), key)
            for (e, a), advantage, key in zip(turns, advantages, keys, strict=True)
        ]
        check_groups(rows)
        return rows
