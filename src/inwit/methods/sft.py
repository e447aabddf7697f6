"""SFT: imitate demonstrations. The same rows as every other method, another objective.

Credit: advantage 1 on every token of the answer, 0 on nothing; objective: the mean over tokens of
-log p. Nothing is sampled. Each demonstration is played under the prompt of its role, so that one
backbone learns to speak as solver, as critic and as reviser.

Decided here: the answer ends on the role's stop token, which is learned like any other; rows carry
no log-probs (NaN), for no policy of ours sampled them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from inwit.envs import Demonstration, Task
from inwit.methods.base import Method, MethodSettings
from inwit.objectives import Objective
from inwit.objectives.losses import Aggregation
from inwit.playing import Stage
from inwit.roles import View
from inwit.rows import (
    Behaviour,
    Completion,
    Episode,
    GroupKey,
    Row,
    Sees,
    Stop,
    Turn,
    context_id,
)


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
        prompt = stage.prompts[demonstration.prompt]
        sees = stage.conditions[demonstration.prompt]
        view = View(sees, {Sees(name): text for name, text in demonstration.fields.items()})
        ids = stage.solver.renderer.completion_ids(demonstration.answer)
        unknown = Completion(ids, (math.nan,) * len(ids), Stop.TOKEN)
        prompt_ids = stage.solver.renderer.prompt_ids(prompt, view)
        return Turn(prompt.role, prompt_ids, unknown, sees, Behaviour.DEMONSTRATION)

    def credit(self, episodes: Sequence[Episode]) -> list[Row]:
        return [
            Row(
                prompt_ids=turn.prompt_ids,
                completion_ids=turn.completion.ids,
                mask=(True,) * len(turn.completion.ids),
                logprobs=turn.completion.logprobs,
                advantages=(1.0,) * len(turn.completion.ids),
                role=turn.role,
                group=GroupKey(episode.query, turn.role),
                episode=episode.id,
                turn=0,
                sampled_context=(context := context_id(turn.prompt_ids)),
                trained_context=context,
                sees=turn.sees,
                behaviour=turn.behaviour,
            )
            for episode in episodes
            for turn in episode.demonstrations
        ]
