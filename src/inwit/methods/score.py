"""SCoRe: a policy learns to correct its own answers, in two stages, from nothing but outcomes.

Paper: Kumar et al., "Training Language Models to Self-Correct via Reinforcement Learning" (ICLR
2025, arXiv 2409.12917). Sections below are the paper's.

How an episode unfolds: an attempt; a fixed instruction that says nothing of correctness (`again`);
another attempt in the same conversation. With more `turns`, again and again.

Credit, turn by turn, r_t being the outcome of the t-th attempt (1 or 0):
  stage I  (5.1)   turn 1:  0               KL to the reference at beta2, to keep its answers
                   turn t:  r_t             KL at beta1
  stage II (5.2)   turn 1:  r_1             KL at beta1
                   turn t:  r_t + alpha (r_t - r_{t-1}), on turn t's tokens *only* (A.4, figure 9)
No turn is credited with what comes after it (discount 0). Baseline: the leave-one-out mean of the
query's samples of the same turn (RLOO). KL: a token reward -beta (log pi_old - log ref).
Objective: REINFORCE, each token's advantage times the gradient of its log-prob.

Decided where the paper is silent: the reference is the policy as the run began, in both stages; an
attempt whose grading broke, and the next one, whose bonus compares with it, are left out; samples
of a later turn share a baseline though each saw its own first attempt; the optimizer's moments go
on from stage I to stage II, with the learning rate times `stage_two_rate`.

Switches. `base_share`: share of first attempts made by the reference, to widen the states that are
corrected; they are not trained on. `without` leaves out one part, as table 4 does:
`multi_turn_training` (one attempt, r_1), `stage_one`, `reward_shaping` (alpha 0), `on_policy`
(first attempts fixed, by the reference, and not trained). `bonus = "all_turns"` is the classic
mistake: the sum of all turns' rewards, bonus included, on every token, which pays for failing first
on purpose.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from inwit.envs import Task
from inwit.methods.attempting import with_reference, with_second_thoughts
from inwit.methods.base import Method, ReinforceSettings
from inwit.methods.crediting import check_groups, kl_credited, solver_row, turn_key
from inwit.methods.measures import mean
from inwit.objectives import Objective, by_group, leave_one_out
from inwit.playing import Stage
from inwit.rows import Attempt, Behaviour, Episode, Grade, Row

Part = Literal["nothing", "multi_turn_training", "stage_one", "reward_shaping", "on_policy"]


class SCoReSettings(ReinforceSettings):
    turns: int = Field(2, ge=2, description="attempts in an episode")
    alpha: float = Field(10.0, ge=0, description="bonus for progress, in stage II")
    beta1: float = Field(0.01, ge=0, description="KL of every turn")
    beta2: float = Field(0.1, ge=0, description="KL of the first turn in stage I")
    stage_one_steps: int = Field(
        ge=1, description="steps of stage I; `inwit advance` ends it early"
    )
    stage_two_rate: float = Field(1.0, gt=0, description="factor on the learning rate in stage II")
    base_share: float = Field(0.0, ge=0, lt=1, description="first attempts made by the reference")
    without: Part = Field("nothing", description="the part left out, as in table 4")
    bonus: Literal["later_turns", "all_turns"] = Field(
        "later_turns", description="all_turns is the classic mistake, as an ablation"
    )

    @model_validator(mode="after")
    def _sense(self) -> SCoReSettings:
        if self.without == "on_policy" and self.base_share:
            raise ValueError("without = 'on_policy' makes all first attempts fixed: no base_share")
        lent = round(self.base_share * self.group_size)
        if self.base_share and not 1 <= lent <= self.group_size - 2:
            raise ValueError(
                f"base_share lends {lent} of {self.group_size} first attempts: at least 1 is to be "
                "lent, and 2 of the policy's own are to share a baseline"
            )
        if self.without != "nothing" and self.bonus == "all_turns":
            raise ValueError("bonus = 'all_turns' and without are two ablations: choose one")
        return self


class SCoRe(Method):
    Settings: ClassVar = SCoReSettings
    summary: ClassVar = "two-stage reinforcement learning of intrinsic self-correction"
    settings: SCoReSettings

    @property
    def stages(self) -> Sequence[Method]:
        one, two = StageOne(self.settings), StageTwo(self.settings)
        alone = self.settings.without in ("stage_one", "multi_turn_training")
        return (two,) if alone else (one, two)

    @property
    def needs_reference(self) -> bool:
        return True

    def objective(self, temperature: float) -> Objective:
        return self.settings.objective(temperature)

    # ------------------------------------------------------------------ the episode

    async def collect(self, tasks: Sequence[Task], stage: Stage) -> list[Episode]:
        played = await asyncio.gather(*(self._episodes(task, stage) for task in tasks))
        return await with_reference([e for episodes in played for e in episodes], stage)

    async def _episodes(self, task: Task, stage: Stage) -> list[Episode]:
        s = self.settings
        if s.without == "on_policy":
            fixed = replace(stage, scene=("fixed",))  # the same whenever the query comes
            firsts = await fixed.first_attempts(task, s.group_size, by=stage.understudy)
        else:
            lent = round(s.base_share * s.group_size)
            firsts = await stage.first_attempts(task, s.group_size - lent)
            if lent:
                firsts += await stage.first_attempts(task, lent, by=stage.understudy, name="base")
        turns = 1 if s.without == "multi_turn_training" else s.turns
        return await with_second_thoughts(task, stage, firsts, turns)

    # ------------------------------------------------------------------ credit

    def rewards(self, episode: Episode) -> list[float]:
        """What each turn is credited with, before baseline and KL."""
        raise NotImplementedError("a stage's own")

    def compared(self, episode: Episode, attempt: Attempt) -> Sequence[Attempt]:
        """The attempts whose grades an attempt's reward is made of."""
        return episode.attempts[max(attempt.index - 1, 0) : attempt.index + 1]

    def beta(self, attempt: Attempt) -> float:
        """The KL coefficient of an attempt's tokens."""
        del attempt
        return self.settings.beta1

    def _graded(self, episode: Episode, attempt: Attempt) -> bool:
        return all(a.grade is not Grade.ERROR for a in self.compared(episode, attempt))

    def credit(self, episodes: Sequence[Episode]) -> list[Row]:
        turns = [
            (episode, attempt, reward)
            for episode in episodes
            for attempt, reward in zip(episode.attempts, self.rewards(episode), strict=True)
            if attempt.turns[0].behaviour is Behaviour.POLICY and self._graded(episode, attempt)
        ]
        keys = [turn_key(episode, attempt) for episode, attempt, _ in turns]
        advantages = by_group([reward for *_, reward in turns], keys, lambda _: leave_one_out)
        rows = [
            solver_row(episode, a, kl_credited(a, advantage, self.beta(a)), key)
            for (episode, a, _), advantage, key in zip(turns, advantages, keys, strict=True)
        ]
        check_groups(rows)
        return rows


class StageOne(SCoRe):
    """Section 5.1: learn to correct, first answers staying what they were."""

    title = "stage I"

    @property
    def lasts(self) -> int:
        return self.settings.stage_one_steps

    def rewards(self, episode: Episode) -> list[float]:
        return [0.0] + [a.reward for a in episode.revisions]

    def beta(self, attempt: Attempt) -> float:
        return self.settings.beta2 if attempt.index == 0 else self.settings.beta1


class StageTwo(SCoRe):
    """Section 5.2: better answers in every turn, progress from turn to turn rewarded beside."""

    title = "stage II"

    @property
    def rate(self) -> float:
        return self.settings.stage_two_rate

    def rewards(self, episode: Episode) -> list[float]:
        s = self.settings
        alpha = 0.0 if s.without == "reward_shaping" else s.alpha
        r = [a.reward for a in episode.attempts]
        shaped = r[:1] + [now + alpha * (now - before) for before, now in pairwise(r)]
        return [sum(shaped)] * len(shaped) if s.bonus == "all_turns" else shaped

    def compared(self, episode: Episode, attempt: Attempt) -> Sequence[Attempt]:
        """With the classic mistake, every attempt's reward is made of all of them."""
        whole = self.settings.bonus == "all_turns"
        return episode.attempts if whole else super().compared(episode, attempt)

    def measures(self, episodes: Sequence[Episode]) -> Mapping[str, float | None]:
        """The reward of the last turn as it is shaped: beside it, A1 must not fall."""
        last = [self.rewards(e)[-1] for e in episodes if self._graded(e, e.attempts[-1])]
        return {"reward/shaped": mean(last)}
