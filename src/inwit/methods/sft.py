"""SFT: imitate demonstrations. The same rows as every other method, another objective.

Credit: advantage 1 on every token of the answer, 0 on nothing; objective: the mean over tokens of
-log p. Nothing is sampled. Each demonstration is played under the prompt of its role, so that one
backbone learns to speak as solver, as critic and as reviser.

Decided here: the answer ends on the role's stop token, which is learned like any other; rows carry
no log-probs (NaN), for no policy of ours sampled them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from inwit.envs import Demonstration, Task
from inwit.methods.base import Method, MethodSettings
from inwit.methods.crediting import demonstration_row
from inwit.objectives import Objective
from inwit.objectives.losses import Aggregation
from inwit.playing import Stage
from inwit.roles import View
from inwit.rows import Episode, Row, Sees, Turn


class SFTSettings(MethodSettings):
    batch: int = Field(256, ge=1, description="demonstrations a step")
    aggregation: Aggregation = Field("token", description="what the loss is a mean over")


class SFT(Method):
    Settings: ClassVar = SFTSettings
    summary: ClassVar = "imitation of demonstrations, in every role"
    settings: SFTSettings

    @property
    def needs_demonstrations(self) -> bool:
        return True

    def objective(self, temperature: float) -> Objective:
        return Objective(
            loss="cross_entropy", aggregation=self.settings.aggregation, temperature=temperature
        )

    async def collect(self, tasks: Sequence[Task], stage: Stage) -> list[Episode]:
        del tasks  # demonstrations bring their own questions
        shown = stage.env.demonstrations(stage.rng("demonstrations"), self.settings.batch)
        return [
            Episode(
                id="/".join(map(str, (*stage.scene, "demonstration", i))),
                query=f"demonstration-{i}",
                demonstrations=(self._turn(demonstration, stage),),
            )
            for i, demonstration in enumerate(shown)
        ]

    def _turn(self, demonstration: Demonstration, stage: Stage) -> Turn:
        name, actor = demonstration.prompt, stage.actor
        sees = stage.conditions[name]
        view = View(sees, {Sees(key): text for key, text in demonstration.fields.items()})
        if name != "again":
            return actor.demonstrated(
                actor.open(stage.prompts[name], view, sees), demonstration.answer
            )
        opened = actor.open(stage.prompts["solver"], view, sees)  # a second turn: after the first
        first = actor.demonstrated(opened, view["attempt"])
        shown = actor.follow(first, stage.prompts["again"].instruction(view), sees)
        return actor.demonstrated(shown, demonstration.answer)

    def credit(self, episodes: Sequence[Episode]) -> list[Row]:
        return [demonstration_row(e, turn) for e in episodes for turn in e.demonstrations]
