"""ICRL's update against Eq. 4 and 6, written anew on plain logits."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from inwit.engines import OptimizerSettings
from inwit.engines.torch import TorchEngine
from inwit.methods.grpo import GRPO, GRPOSettings
from inwit.methods.icrl import ICRL, ICRLSettings
from inwit.rows import (
    Episode,
    Grade,
    Ids,
    Role,
    Row,
)
from tests.engines.models import plain_logprobs
from tests.methods.worlds import (
    CPU,
    collect,
    episode_of,
    icrl,
    maze,
    maze_model,
    maze_stage,
)

SMOOTH = OptimizerSettings(lr=0.05, eps=1.0, max_grad_norm=1e9)
"""No clipping of gradients, and an eps that keeps a rounding from becoming a whole step."""


# ---------------------------------------------------------------------- the objective, from Eq. 4


def plain_logp(model: PreTrainedModel, prompt: Ids, ids: Ids) -> Tensor:
    """[T] log-probs of `ids` after `prompt`, with their gradient: the model's own forward."""
    logits = model(torch.tensor([prompt + ids]), use_cache=False).logits[0]
    logp = torch.log_softmax(logits, -1)[len(prompt) - 1 : -1]
    return logp.gather(-1, torch.tensor(ids)[:, None])[:, 0]


def laid_out(attempt: Any) -> tuple[Ids, list[bool]]:
    """An attempt's ids after its first prompt, and which of them its policy sampled."""
    last = attempt.turns[-1]
    everything = last.prompt_ids + last.completion.ids
    start = len(attempt.turns[0].prompt_ids)
    sampled = [False] * len(everything)
    for turn in attempt.turns:
        n = len(turn.prompt_ids)
        sampled[n : n + len(turn.completion.ids)] = [True] * len(turn.completion.ids)
    return everything[start:], sampled[start:]


def paper_loss(
    model: PreTrainedModel, old: PreTrainedModel, episodes: Sequence[Episode], s: ICRLSettings
) -> Tensor:
    """Minus J of Eq. 6, straight from episodes: rows, engine and objectives have no part in it."""
    # query and role -> (reward, prompt trained under, prompt sampled under, ids, sampled or not)
    groups: dict[tuple[str, str], list[tuple[float, Ids, Ids, Ids, list[bool]]]] = defaultdict(list)
    for e in episodes:
        question = e.attempts[0].turns[0].prompt_ids
        for a in e.attempts:
            if a.grade is not Grade.ERROR:
                groups[e.query, "solver"].append(
                    (a.reward, question, a.turns[0].prompt_ids, *laid_out(a))
                )
        for k, c in enumerate(e.critiques):
            before, after = e.attempts[k], e.attempts[k + 1]
            if Grade.ERROR in (before.grade, after.grade):
                continue
            said = c.turn.completion.ids
            reward = (after.grade is Grade.RIGHT) - (before.grade is Grade.RIGHT)
            paid = reward - s.length_penalty * len(said)
            prompt = c.turn.prompt_ids
            groups[e.query, "critic"].append((paid, prompt, prompt, said, [True] * len(said)))
    total, tokens = torch.zeros(()), 0
    for (_, role), members in groups.items():
        rewards = [member[0] for member in members]
        mean = statistics.fmean(rewards)
        std = statistics.stdev(rewards) if len(rewards) > 1 else 0.0
        delta = s.delta_critic if role == "critic" else s.delta_solver
        for reward, prompt, shown, ids, sampled in members:
            advantage = (reward - mean) / (std + delta) if std else 0.0
            logp = plain_logp(model, prompt, ids)
            with torch.no_grad():
                before = plain_logp(old, prompt, ids)
                weights = (before - plain_logp(old, shown, ids)).exp().clamp(max=s.w_max)
            for t in range(len(ids)):
                if not sampled[t]:
                    continue
                rho = (logp[t] - before[t]).exp()
                held = rho.clamp(1 - s.clip_low, 1 + s.clip_high)
                w = weights[t] if shown != prompt else 1.0
                total = total + w * torch.minimum(rho * advantage, held * advantage)
                tokens += 1
    return -total / tokens


def telling_step(method: ICRL, engine: TorchEngine, turns: int) -> list[Episode]:
    """The first step of the maze whose rows hold all that Eq. 6 and the rules tell apart.

    All three kinds of rows with an advantage, an attempt that broke and, where there are several
    turns, a revision with observations in it.
    """
    wanted = {(Role.SOLVER, False), (Role.SOLVER, True), (Role.CRITIC, False)}
    for step in range(100):
        stage = maze_stage(maze(turns=turns), engine, scene=("train", step))
        episodes = collect(method, stage)
        live = [row for row in method.credit(episodes) if row.signal]
        broken = any(a.grade is Grade.ERROR for e in episodes for a in e.attempts)
        gaps = any(False in row.mask for row in live if row.reconditioned)
        kinds = {(row.role, row.reconditioned) for row in live}
        if kinds == wanted and broken and gaps == (turns > 1):
            return episodes
    raise AssertionError("no step tells everything apart")


@pytest.mark.parametrize(("turns", "epochs"), [(1, 1), (3, 2)], ids=["answers", "turns, clipped"])
def test_an_update_follows_equations_4_to_6(turns, epochs):
    """The weights after an update are those of a plain AdamW on the paper's formula.

    With two epochs the second one's ratios are off 1, so that the clip counts.
    LESSONS 7, 11: with several turns, the observations between them have no part in it.
    """
    method = icrl(group_size=4, critiques_per_query="all", length_penalty=0.01, w_max=1.5)
    optimizer = SMOOTH.model_copy(update={"epochs": epochs, "lr": 1.5 if epochs > 1 else 0.05})
    loaded = maze_model()
    old, mine = maze_model().model, maze_model().model
    engine = TorchEngine(loaded, CPU)
    episodes = telling_step(method, engine, turns)
    rows = method.credit(episodes)
    stats = asyncio.run(engine.update(rows, method.objective(1.0), optimizer, 1))
    assert 0 < stats.weight_truncated < 1
    assert (stats.clip_share > 0) == (epochs > 1)

    plain = torch.optim.AdamW(
        mine.parameters(), optimizer.lr, optimizer.betas, eps=1.0, weight_decay=0.0
    )
    losses = []
    for _ in range(epochs):
        plain.zero_grad()
        loss = paper_loss(mine, old, episodes, method.settings)
        loss.backward()
        plain.step()
        losses.append(loss.item())
    assert stats.loss == pytest.approx(statistics.fmean(losses), abs=1e-5)
    start = dict(old.named_parameters())
    for (name, got), wanted in zip(loaded.model.named_parameters(), mine.parameters(), strict=True):
        step = (wanted - start[name]).detach()
        assert step.abs().max() > 0, name
        gap = (got - wanted).detach().norm() / step.norm()
        assert gap < 2e-3, (name, float(gap))


def test_a_revision_of_several_turns_is_weighted_wherever_it_was_sampled():
    """Eq. 4 over all turns: each sampled token by the ratio under the two prompts, capped.

    LESSONS 1: weights are detached, truncated, and their share and effective size are reported.
    LESSONS 7, 11: the observations between the turns have weight 1, no log-prob and no gradient.
    """
    method = icrl(group_size=5, critiques_per_query="all", w_max=1.5)
    loaded, frozen = maze_model(seed=3), maze_model(seed=3).model
    engine = TorchEngine(loaded, CPU)
    episodes = telling_step(method, engine, turns=3)
    rows = method.credit(episodes)
    stats = asyncio.run(engine.update(rows, method.objective(1.0), SMOOTH, 1))
    trained = {i for i, row in enumerate(rows) if row.reconditioned and row.signal}
    assert stats.weights.keys() == trained
    assert any(len(revision_of(rows[i], episodes).turns) > 1 for i in trained)
    every: list[float] = []
    for i in trained:
        row, revision = rows[i], revision_of(rows[i], episodes)
        first = next(e for e in episodes if e.id == row.episode).first
        assert row.prompt_ids == first.prompt_ids != revision.prompt_ids
        ids, sampled = laid_out(revision)
        free = plain_logprobs(frozen, first.prompt_ids, ids)
        noted = plain_logprobs(frozen, revision.prompt_ids, ids)
        wanted = [
            min(math.exp(a - b), 1.5) if mine else 1.0
            for a, b, mine in zip(free, noted, sampled, strict=True)
        ]
        assert stats.weights[i] == pytest.approx(wanted, rel=1e-3)
        assert row.mask == tuple(sampled)
        every += [w for w, mine in zip(wanted, sampled, strict=True) if mine]
    assert stats.weight_mean == pytest.approx(statistics.fmean(every), rel=1e-4)
    assert stats.weight_truncated == pytest.approx(sum(w == 1.5 for w in every) / len(every))
    size = sum(every) ** 2 / (len(every) * sum(w * w for w in every))
    assert stats.effective_share == pytest.approx(size, rel=1e-4)


def revision_of(row: Row, episodes: Sequence[Episode]) -> Any:
    return next(e for e in episodes if e.id == row.episode).attempts[row.turn]


def test_without_weights_the_solver_learns_as_under_grpo():
    """w_t = 1: ICRL's update on its solver rows is GRPO's on the same rows, bit for bit."""
    method = icrl(group_size=4, critiques_per_query="all", weight="none")
    episodes = telling_step(method, TorchEngine(maze_model(), CPU), turns=3)
    rows = [r for r in method.credit(episodes) if r.role is Role.SOLVER]
    as_grpo = [dataclasses.replace(r, sampled_context=r.trained_context) for r in rows]
    grpo = GRPO(GRPOSettings()).objective(1.0)

    def learned(rows: list[Row], objective: Any) -> list[Tensor]:
        loaded = maze_model()
        asyncio.run(TorchEngine(loaded, CPU).update(rows, objective, SMOOTH, 1))
        return [p.detach() for p in loaded.model.parameters()]

    mine, theirs = learned(rows, method.objective(1.0)), learned(as_grpo, grpo)
    weighted = learned(rows, icrl().objective(1.0))
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(mine, weighted, strict=True))


def test_without_critiques_credit_is_grpo_s():
    episodes = [episode_of(0, "right"), episode_of(1, "wrong"), episode_of(2, "error")]
    assert icrl().credit(episodes) == GRPO(GRPOSettings()).credit(episodes)
