"""ICRL: a solver and a critic on one backbone; what a critique brought about is learned without it.

Paper: Lin et al., "ICRL: learning to internalise self-critique with reinforcement learning"
(arXiv 2605.15224). Equation numbers below are the paper's.

How an episode unfolds (section 3.1): the solver attempts a query; a failed attempt is read by the
critic, which writes a critique c; the solver attempts the query again from the start, shown c.
With more `rounds`, a failed revision is criticised in turn, and only the latest critique is shown.

Credit:
  critic    r_c = s(revision) - s(attempt) - lambda_c L_c                              (Eq. 3)
  solver    r of the environment, for first attempts and revisions alike
  both      A = (r - mean) / (std + delta) within the query's group of the same role   (Eq. 5)
Rows: first attempts and critiques under their own prompts, w_t = 1. A revision was sampled from
pi(.|q, c) and is trained under q alone, its tokens weighted by
  w_t = min(pi_old(y_t | q, y_<t) / pi_old(y_t | q, c, y_<t), w_max), detached          (Eq. 4)
Objective: mean over tokens of w_t min(rho_t A, clip(rho_t, 1 - eps, 1 + eps) A), rho_t under the
prompt that the row is trained under                                                    (Eq. 6)

Decided where the paper is silent, or where it pays: of a query's failed attempts
`critiques_per_query` (2, drawn at random) are criticised, where the paper criticises all; delta is
set by role, since a tiny one blows a mere difference of length among failed critiques up to a full
advantage, and the critic falls silent; an attempt whose grading broke takes its critique with it;
a critique or revision whose prompt would not fit the model's context is not made.

Ablations, each a switch: `weight`, `w_max`, `groups = "pooled"`, `critic = "frozen"` or
`"external"`, `critiques_per_query`, `critique_when = "always"`, `rounds`. Controls for "was it the
critique, or just more correct samples?": `control = "shuffled"` shows each revision the critique
of another query, `"random"` random tokens; nobody trains the critic then.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import ClassVar, Literal

from pydantic import Field, field_serializer, model_validator

from inwit.envs import Task
from inwit.methods.base import ExternalCritic, Method, PolicyGradientSettings
from inwit.methods.crediting import check_groups, critic_row, solver_row
from inwit.objectives import Objective, Weighting, by_group, group_normalised
from inwit.objectives.advantages import Baseline
from inwit.objectives.ratios import WeightKind
from inwit.playing import Stage, fitting
from inwit.roles import CONDITIONS, CRITIC_SEES
from inwit.rows import Attempt, Condition, Critique, Episode, Grade, GroupKey, Role, Row, Sees


class ICRLSettings(PolicyGradientSettings):
    delta_critic: float = Field(0.1, ge=0, description="added to the std of a critic group")
    length_penalty: float = Field(1e-4, ge=0, description="lambda_c, for each unit of L_c")
    weight: WeightKind = Field("ratio", description="of a revision's tokens: ratio is Eq. 4")
    w_max: float | None = Field(2.0, gt=0, description="cap on the weight")
    gamma: float = Field(0.1, gt=0, description='of weight = "shaped": p / (p + gamma)')
    groups: Literal["role", "pooled"] = "role"
    critic: Literal["policy", "frozen", "external"] = "policy"
    critic_model: str | None = Field(
        None, description="the external critic: path, hub name, or its name at critic_url"
    )
    critic_url: str | None = Field(None, description="OpenAI-compatible endpoint of that critic")
    critic_sees: Condition = Field(CRITIC_SEES, description="the critic's information condition")
    critiques_per_query: int | Literal["all"] = 2
    critique_when: Literal["failure", "always"] = "failure"
    rounds: int = Field(2, description="attempts in an episode, the first included")
    control: Literal["none", "shuffled", "random"] = "none"

    @field_serializer("critic_sees", when_used="json")
    def _in_order(self, sees: Condition) -> list[str]:
        return sorted(sees)

    @model_validator(mode="after")
    def _sense(self) -> ICRLSettings:
        if self.rounds < 2:
            raise ValueError("rounds must be at least 2 (with 1 nothing is revised: use grpo)")
        if isinstance(self.critiques_per_query, int) and self.critiques_per_query < 1:
            raise ValueError("critiques_per_query must be at least 1, or 'all'")
        most = min(self.group_size, _number(self.critiques_per_query)) * (self.rounds - 1)
        learns = self.critic == "policy" and self.control == "none" and self.groups == "role"
        if learns and most < 2:
            raise ValueError(
                "with one critique a query the critic's group has no baseline, and the critic "
                "learns nothing: raise critiques_per_query and group_size, or freeze the critic"
            )
        if (self.critic == "external") != (self.critic_model is not None):
            raise ValueError("critic_model is to be set if, and only if, critic = 'external'")
        if self.critic_url is not None and self.critic_model is None:
            raise ValueError("critic_url needs critic_model: the model's name at the endpoint")
        if self.critique_when == "failure" and Sees.OUTCOME not in self.critic_sees:
            raise ValueError(
                "a critic that is called on failures only knows the outcome: add 'outcome' to "
                "critic_sees, or set critique_when = 'always'"
            )
        if Sees.CRITIQUE in self.critic_sees or Sees.ATTEMPT not in self.critic_sees:
            raise ValueError("critic_sees must hold 'attempt', and cannot hold 'critique'")
        return self


def _number(limit: int | Literal["all"]) -> float:
    return math.inf if limit == "all" else limit


@dataclass(slots=True)
class Session:
    """An episode while it is being played."""

    task: Task
    sample: int
    attempts: list[Attempt]
    critiques: list[Critique] = field(default_factory=list)


class ICRL(Method):
    Settings: ClassVar = ICRLSettings
    summary: ClassVar = "a critic on the same backbone; its corrections learned without critique"
    settings: ICRLSettings

    @property
    def needs_reference(self) -> bool:
        return self.settings.kl > 0 or self.frozen_critic

    @property
    def frozen_critic(self) -> bool:
        return self.settings.critic == "frozen"

    @property
    def external_critic(self) -> ExternalCritic | None:
        model = self.settings.critic_model
        return ExternalCritic(model, self.settings.critic_url) if model else None

    @property
    def conditions(self) -> Mapping[str, Condition]:
        return {**CONDITIONS, "critic": self.settings.critic_sees}

    def objective(self, temperature: float) -> Objective:
        """Eq. 6, with the weights of Eq. 4 on re-conditioned rows."""
        s = self.settings
        return s.objective(temperature, Weighting(s.weight, s.w_max, s.gamma))

    # ------------------------------------------------------------------ section 3.1: the episode

    async def collect(self, tasks: Sequence[Task], stage: Stage) -> list[Episode]:
        firsts = await asyncio.gather(
            *(stage.first_attempts(task, self.settings.group_size) for task in tasks)
        )
        queries = [
            [Session(task, i, [attempt]) for i, attempt in enumerate(attempts)]
            for task, attempts in zip(tasks, firsts, strict=True)
        ]
        for round_ in range(1, self.settings.rounds):
            chosen = [s for sessions in queries for s in self._choose(sessions, stage, round_)]
            critiques = await asyncio.gather(
                *(
                    fitting(stage.criticise(s.task, s.attempts[-1], round_ - 1, s.sample))
                    for s in chosen
                )
            )
            said = [(s, c) for s, c in zip(chosen, critiques, strict=True) if c is not None]
            shown = self._controlled(said, stage, round_)
            revisions = await asyncio.gather(
                *(fitting(stage.revise(s.task, c, round_, s.sample)) for s, c in shown)
            )
            made = {id(s): (c, r) for (s, c), r in zip(shown, revisions, strict=True)}
            for session, critique in said:
                critique, revision = made.get(id(session), (critique, None))
                session.critiques.append(critique)
                if revision is not None:
                    session.attempts.append(revision)
        return [
            Episode(
                stage.episode_id(s.task, s.sample), s.task.id, tuple(s.attempts), tuple(s.critiques)
            )
            for sessions in queries
            for s in sessions
        ]

    def _choose(self, sessions: Sequence[Session], stage: Stage, round_: int) -> list[Session]:
        """Which of a query's sessions get a critique in this round."""
        open_ = [s for s in sessions if len(s.attempts) == round_]
        wanted = {Grade.WRONG}
        if self.settings.critique_when == "always":
            wanted.add(Grade.RIGHT)
        candidates = [s for s in open_ if s.attempts[-1].grade in wanted]
        limit = self.settings.critiques_per_query
        if limit == "all" or len(candidates) <= limit:
            return candidates
        return stage.rng(sessions[0].task.id, "critiques", round_).sample(candidates, limit)

    def _controlled(
        self, said: Sequence[tuple[Session, Critique]], stage: Stage, round_: int
    ) -> list[tuple[Session, Critique]]:
        """What the revisions are shown: the critiques, or a control's stand-ins for them."""
        if self.settings.control == "none":
            return list(said)
        rng, renderer = stage.rng("control", round_), stage.actor.renderer
        if self.settings.control == "random":
            return [
                (s, replace(c, text=renderer.random_text(rng, renderer.length(c.text))))
                for s, c in said
            ]
        return shuffled(said, rng)

    # ------------------------------------------------------------------ sections 3.2 to 3.4: credit

    def credit(self, episodes: Sequence[Episode]) -> list[Row]:
        solvers = [(e, a) for e in episodes for a in e.attempts if a.grade is not Grade.ERROR]
        critics = self._credited_critiques(episodes)
        keys = [self._key(e, Role.SOLVER) for e, _ in solvers]
        keys += [self._key(e, Role.CRITIC) for e, *_ in critics]
        rewards = [a.reward for _, a in solvers] + [reward for *_, reward in critics]
        advantages = by_group(rewards, keys, self._baseline)

        rows = []
        n = len(solvers)
        for (episode, attempt), advantage, key in zip(
            solvers, advantages[:n], keys[:n], strict=True
        ):
            critique_free = episode.first.prompt_ids
            rows.append(solver_row(episode, attempt, advantage, key, critique_free))
        for (episode, critique, _), advantage, key in zip(
            critics, advantages[n:], keys[n:], strict=True
        ):
            rows.append(critic_row(episode, critique, advantage, key))
        check_groups(rows)
        return rows

    def _credited_critiques(
        self, episodes: Sequence[Episode]
    ) -> list[tuple[Episode, Critique, float]]:
        """(episode, critique, its reward by Eq. 3), where the critic is the policy itself."""
        if self.settings.critic != "policy" or self.settings.control != "none":
            return []
        penalty = self.settings.length_penalty
        return [
            (
                episode,
                critique,
                float(after.success) - float(before.success) - penalty * critique.size,
            )
            for episode in episodes
            for before, critique, after in episode.corrections
            if Grade.ERROR not in (before.grade, after.grade)
        ]

    def _key(self, episode: Episode, role: Role) -> GroupKey:
        return GroupKey(episode.query, "pooled" if self.settings.groups == "pooled" else role)

    def _baseline(self, key: object) -> Baseline:
        """Eq. 5; delta goes by role."""
        assert isinstance(key, GroupKey)
        s = self.settings
        delta = s.delta_critic if key.role == Role.CRITIC else s.delta_solver
        return partial(group_normalised, delta=delta)


def shuffled(
    said: Sequence[tuple[Session, Critique]], rng: Random
) -> list[tuple[Session, Critique]]:
    """Critiques moved to other queries, each used once; where one query has more than half of them,
    some are used again. A session for which there is no other query's critique is left out."""
    order = sorted(said, key=lambda pair: pair[0].task.id)
    sizes = Counter(session.task.id for session, _ in order)
    step = max(sizes.values(), default=0)
    moved = []
    for i, (session, critique) in enumerate(order):
        other, stand_in = order[(i + step) % len(order)]
        if other.task.id == session.task.id:
            others = [c for s, c in order if s.task.id != session.task.id]
            if not others:
                continue
            stand_in = rng.choice(others)
        moved.append((session, replace(critique, text=stand_in.text)))
    return moved
