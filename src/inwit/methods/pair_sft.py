"""Pair-SFT: imitate corrections that nobody made, put together from separate samples.

Welleck et al. 2023 (arXiv 2211.00053), as SCoRe's section 4 applies it: the *base* model answers
each query several times; a wrong answer and a right one to the same query become a conversation in
which the second attempt mends the first; fine-tune on the second attempt, once. `right_to_right`
also pairs right answers with right ones (D+_SFT), where the same answer stands in for another one
if there is none.

Every step samples from the reference, which stays as it was at the start: all steps together are
one pass over one data set of the base model's, never the policy's own. Decided where the paper is
silent: each wrong answer is paired with one right answer, drawn at random.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from inwit.envs import Task
from inwit.methods.base import Method, MethodSettings
from inwit.methods.crediting import demonstration_row
from inwit.objectives import Objective
from inwit.objectives.losses import Aggregation
from inwit.playing import Stage
from inwit.roles import View
from inwit.rows import Attempt, Episode, Grade, Row, Sees, Turn


class PairSFTSettings(MethodSettings):
    group_size: int = Field(8, ge=2, description="answers of the base model to each query")
    right_to_right: bool = Field(False, description="also pair right answers with right ones")
    aggregation: Aggregation = Field("token", description="what the loss is a mean over")


class PairSFT(Method):
    Settings: ClassVar = PairSFTSettings
    summary: ClassVar = "imitation of corrections put together from separate samples"
    settings: PairSFTSettings

    @property
    def needs_reference(self) -> bool:
        return True

    def objective(self, temperature: float) -> Objective:
        return Objective(
            loss="cross_entropy", aggregation=self.settings.aggregation, temperature=temperature
        )

    async def collect(self, tasks: Sequence[Task], stage: Stage) -> list[Episode]:
        answered = await asyncio.gather(
            *(
                stage.first_attempts(task, self.settings.group_size, by=stage.understudy)
                for task in tasks
            )
        )
        return [e for t, a in zip(tasks, answered, strict=True) for e in self._pairs(t, a, stage)]

    def _pairs(self, task: Task, answers: Sequence[Attempt], stage: Stage) -> list[Episode]:
        """An episode for each answer, with the correction that it is to be followed by, if any."""
        rng = stage.rng(task.id, "pairs")
        right = [a for a in answers if a.grade is Grade.RIGHT]
        episodes = []
        for sample, first in enumerate(answers):
            others = [a for a in right if a is not first]
            wanted: tuple[Turn, ...] = ()
            if first.grade is Grade.WRONG and right:
                wanted = (_correction(task, first, rng.choice(right), stage),)
            elif first.grade is Grade.RIGHT and self.settings.right_to_right:
                wanted = (_correction(task, first, rng.choice(others or [first]), stage),)
            name = stage.episode_id(task, sample)
            episodes.append(Episode(name, task.id, (first,), demonstrations=wanted))
        return episodes

    def credit(self, episodes: Sequence[Episode]) -> list[Row]:
        return [demonstration_row(e, turn, 1) for e in episodes for turn in e.demonstrations]


def _correction(task: Task, first: Attempt, right: Attempt, stage: Stage) -> Turn:
    """The second turn in which a right answer follows `first`."""
    sees = stage.conditions["again"]
    view = View(sees, {Sees.QUESTION: task.question, Sees.ATTEMPT: first.text})
    shown = stage.actor.follow(first.turns[-1], stage.prompts["again"].instruction(view), sees)
    return stage.actor.demonstrated(shown, stage.env.second_attempt(first.text, right.text))
