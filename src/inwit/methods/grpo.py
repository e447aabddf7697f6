"""GRPO: a group of attempts at each query, each credited for how it did beside the others.

Paper: Shao et al. 2024 (arXiv 2402.03300); here as in section 2.2 of the ICRL paper.

Credit: A_i = (r_i - mean r) / (std r + delta) over the attempts at one query (unbiased std), the
same for every token of attempt i. Objective (Eq. 2): the mean over tokens of
min(rho_t A, clip(rho_t, 1 - clip_low, 1 + clip_high) A), rho_t = pi_theta / pi_old.

Decided where the paper is silent: an attempt whose grading broke is dropped and counted, never
scored 0; a group of one or of equal rewards has A = 0 and its rows never reach the learner, though
they count in the mean. `loss = "gspo"` clips one length-normalised ratio a row instead
(arXiv 2507.18071), with its own clip range.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from pydantic import model_validator

from inwit.envs import Task
from inwit.methods.base import Method, PolicyGradientSettings
from inwit.methods.crediting import check_groups, solver_row
from inwit.objectives import Objective, by_group, group_normalised
from inwit.playing import Stage
from inwit.rows import Episode, Grade, GroupKey, Role, Row


class GRPOSettings(PolicyGradientSettings):
    @model_validator(mode="after")
    def _sense(self) -> GRPOSettings:
        if self.group_size < 2:
            raise ValueError("group_size must be at least 2: a group of one has no baseline")
        return self


class GRPO(Method):
    Settings: ClassVar = GRPOSettings
    summary: ClassVar = "groups of attempts, each credited for how it did beside the others"
    settings: GRPOSettings

    @property
    def needs_reference(self) -> bool:
        return self.settings.kl > 0

    def objective(self, temperature: float) -> Objective:
        return self.settings.objective(temperature)

    async def collect(self, tasks: Sequence[Task], stage: Stage) -> list[Episode]:
        groups = await asyncio.gather(
            *(stage.first_attempts(task, self.settings.group_size) for task in tasks)
        )
        return [
            Episode(id=stage.episode_id(task, i), query=task.id, attempts=(attempt,))
            for task, attempts in zip(tasks, groups, strict=True)
            for i, attempt in enumerate(attempts)
        ]

    def credit(self, episodes: Sequence[Episode]) -> list[Row]:
        graded = [e for e in episodes if e.first.grade is not Grade.ERROR]
        keys = [GroupKey(e.query, Role.SOLVER) for e in graded]
        baseline = partial(group_normalised, delta=self.settings.delta_solver)
        advantages = by_group([e.first.reward for e in graded], keys, lambda _: baseline)
        rows = [
            solver_row(e, e.first, advantage, key)
            for e, advantage, key in zip(graded, advantages, keys, strict=True)
        ]
        check_groups(rows)
        return rows
