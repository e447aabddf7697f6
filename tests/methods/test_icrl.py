"""ICRL against its paper: credit by hand, the objective on plain logits, how episodes unfold."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor
from transformers import PreTrainedModel

from inwit.casting import Cast
from inwit.engines import OptimizerSettings
from inwit.engines.torch import TorchEngine, load_model
from inwit.envs import Split
from inwit.errors import GroupError, InwitError
from inwit.methods import measures
from inwit.methods.grpo import GRPO, GRPOSettings
from inwit.methods.icrl import ICRL, ICRLSettings
from inwit.objectives import Weighting
from inwit.playing import Stage
from inwit.recipe import parse_recipe
from inwit.rows import (
    Behaviour,
    Episode,
    Grade,
    GroupKey,
    Ids,
    Role,
    Row,
    Sees,
    context_id,
)
from tests.engines.models import plain_logprobs
from tests.methods.worlds import (
    CPU,
    NOTED,
    SHOP,
    attempt_of,
    by_place,
    critique_of,
    episode_of,
    maze,
    maze_ids,
    maze_model,
    maze_stage,
    maze_text,
    scripted,
    shop,
    shop_stage,
    stage_of,
    turn_of,
    warm_engine,
)

SMOOTH = OptimizerSettings(lr=0.05, eps=1.0, max_grad_norm=1e9)
"""No clipping of gradients, and an eps that keeps a rounding from becoming a whole step."""


def icrl(**settings: Any) -> ICRL:
    return ICRL(ICRLSettings(**({"group_size": 3} | settings)))


def collect(method: ICRL, stage: Stage, n: int = 2, split: Split = Split.TRAIN) -> list[Episode]:
    return asyncio.run(method.collect(stage.env.tasks(split)[:n], stage))


# ---------------------------------------------------------------------- credit by hand

PROMPT = (1, 2, 3)
CRITIC_PROMPTS = ((7, 1, 2, 3, 11), (7, 1, 2, 3, 12))
NOTES = ((20, 21, 22, 23), (24, 25))
NOTED_PROMPTS = ((*NOTES[0], 1, 2, 3), (*NOTES[1], 1, 2, 3))


def three_tries() -> list[Episode]:
    """One right, two wrong; both of these criticised, the first of them mended in two turns."""
    shown = (*NOTED_PROMPTS[0], 30, 31, 40)
    mended = (
        turn_of(NOTED_PROMPTS[0], (30, 31), sees=NOTED),
        turn_of(shown, (32,), sees=NOTED),
    )
    return [
        Episode("0/q/0", "q", (attempt_of("right", ids=(10, 11)),)),
        Episode(
            "0/q/1",
            "q",
            (
                attempt_of("wrong", ids=(12,)),
                attempt_of("right", turns=mended, index=1, critique=0),
            ),
            (critique_of(prompt=CRITIC_PROMPTS[0], ids=NOTES[0], size=4.0),),
        ),
        Episode(
            "0/q/2",
            "q",
            (
                attempt_of("wrong", ids=(13, 14, 15)),
                attempt_of("wrong", NOTED_PROMPTS[1], (33, 34), index=1, critique=0),
            ),
            (critique_of(prompt=CRITIC_PROMPTS[1], ids=NOTES[1], size=2.0),),
        ),
    ]


def test_credit_by_hand():
    """Eq. 3 with lambda_c = 0.05 and Eq. 5 with delta 0.5 (solver) and 0.1 (critic), in numbers.

    Critic: 1 - 0 - 0.05 * 4 = 0.8 and 0 - 0 - 0.05 * 2 = -0.1; mean 0.35, unbiased std 0.636396.
    Solver: first attempts 1, 0, 0 and revisions 1, 0; mean 0.4, unbiased std 0.547723.
    LESSONS 1: a revision keeps the log-probs of the prompt that sampled it, and names both prompts.
    LESSONS 2: every row names the policy that sampled it.
    LESSONS 5: every row carries what its prompt showed.
    """
    right, wrong = 0.6 / 1.047723, -0.4 / 1.047723
    useful, useless = 0.45 / 0.736396, -0.45 / 0.736396
    method = icrl(length_penalty=0.05, delta_solver=0.5, delta_critic=0.1)
    rows = by_place(method.credit(three_tries()))

    def expect(place: tuple[str, str, int], prompt: Ids, ids: Ids, advantage: float) -> Row:
        """The common part of a row; `-0.30` is the log-prob of token 30 (`turn_of`)."""
        row, role = rows.pop(place), place[1]
        assert (row.prompt_ids, row.completion_ids) == (prompt, ids)
        assert (row.role, row.group) == (Role(role), GroupKey("q", role))
        assert row.advantages == pytest.approx((advantage,) * len(ids), abs=1e-6)
        assert row.weights == (1.0,) * len(ids)
        assert row.trained_context == context_id(prompt)
        assert row.behaviour is Behaviour.POLICY
        return row

    for place, ids, logprobs, advantage in [
        (("0/q/0", "solver", 0), (10, 11), (-0.10, -0.11), right),
        (("0/q/1", "solver", 0), (12,), (-0.12,), wrong),
        (("0/q/2", "solver", 0), (13, 14, 15), (-0.13, -0.14, -0.15), wrong),
    ]:
        row = expect(place, PROMPT, ids, advantage)
        assert (row.mask, row.logprobs) == ((True,) * len(ids), logprobs)
        assert not row.reconditioned
        assert row.sees == {Sees.QUESTION}

    for k, logprobs, advantage in [
        (0, (-0.20, -0.21, -0.22, -0.23), useful),
        (1, (-0.24, -0.25), useless),
    ]:
        row = expect((f"0/q/{k + 1}", "critic", 0), CRITIC_PROMPTS[k], NOTES[k], advantage)
        assert (row.mask, row.logprobs) == ((True,) * len(NOTES[k]), logprobs)
        assert not row.reconditioned
        assert row.sees == {Sees.QUESTION, Sees.ATTEMPT, Sees.OUTCOME}

    mended = expect(("0/q/1", "solver", 1), PROMPT, (30, 31, 40, 32), right)
    assert mended.mask == (True, True, False, True)
    assert mended.logprobs == (-0.30, -0.31, 0.0, -0.32)
    still_wrong = expect(("0/q/2", "solver", 1), PROMPT, (33, 34), wrong)
    assert still_wrong.mask == (True, True)
    assert still_wrong.logprobs == (-0.33, -0.34)
    for row, shown in zip((mended, still_wrong), NOTED_PROMPTS, strict=True):
        assert row.reconditioned and row.sampled_context == context_id(shown)
        assert row.sees == {Sees.QUESTION, Sees.CRITIQUE, Sees.ATTEMPT, Sees.OUTCOME}
    assert rows == {}


def test_a_critique_is_paid_for_the_difference_it_made():
    """Eq. 3 in all four cases, each less 0.1 * 3: spoilt -1, kept 0, mended 1, not mended 0.

    Mean -0.3, unbiased std sqrt(2 / 3) = 0.816497, delta 0.3.
    """
    method = icrl(length_penalty=0.1, delta_critic=0.3, critique_when="always")
    courses = {
        ("right", "wrong"): -1 / 1.116497,
        ("right", "right"): 0.0,
        ("wrong", "right"): 1 / 1.116497,
        ("wrong", "wrong"): 0.0,
    }
    episodes = [episode_of(i, *course, sizes=(3,)) for i, course in enumerate(courses)]
    rows = by_place(method.credit(episodes))
    for i, advantage in enumerate(courses.values()):
        row = rows[f"0/q/{i}", "critic", 0]
        assert row.advantages == pytest.approx((advantage,) * 3, abs=1e-6)


def test_the_critic_is_paid_for_success_and_the_solver_by_the_environment():
    """Eq. 3 has the indicator s; another scale of rewards reaches the solver only."""
    half = attempt_of("wrong", reward=0.5)
    mended = attempt_of("right", (9, *PROMPT), index=1, critique=0, reward=3.0)
    not_mended = attempt_of("wrong", (8, *PROMPT), index=1, critique=0, reward=0.5)
    episodes = [
        Episode("0/q/0", "q", (half, mended), (critique_of(size=0),)),
        Episode("0/q/1", "q", (half, not_mended), (critique_of(size=0),)),
    ]
    rows = by_place(icrl(delta_solver=1.0, delta_critic=1.0).credit(episodes))
    # critic 1 and 0: std 0.707107; solver 0.5, 3, 0.5, 0.5: mean 1.125, std 1.25
    assert rows["0/q/0", "critic", 0].advantages[0] == pytest.approx(0.5 / 1.707107, abs=1e-6)
    assert rows["0/q/0", "solver", 1].advantages[0] == pytest.approx(1.875 / 2.25)
    assert rows["0/q/1", "solver", 1].advantages[0] == pytest.approx(-0.625 / 2.25)


def test_the_default_delta_keeps_a_difference_of_length_small():
    """All critiques failed, one is a token longer: delta 0.1 whispers it, a tiny one shouts it."""
    episodes = [
        episode_of(0, "wrong", "wrong", sizes=(4,)),
        episode_of(1, "wrong", "wrong", sizes=(5,)),
    ]
    quiet = by_place(icrl().credit(episodes))["0/q/0", "critic", 0].advantages[0]
    loud = by_place(icrl(delta_critic=1e-12).credit(episodes))["0/q/0", "critic", 0].advantages[0]
    assert quiet == pytest.approx(0.00005 / (0.1 + 0.0000707107), rel=1e-4)
    assert loud == pytest.approx(0.707107, abs=1e-5)


def test_default_settings_are_the_settled_ones():
    s = ICRLSettings()
    assert (s.w_max, s.rounds, s.critiques_per_query, s.critique_when) == (2.0, 2, 2, "failure")
    assert (s.length_penalty, s.delta_solver, s.delta_critic) == (1e-4, 1e-6, 0.1)
    assert (s.clip_low, s.clip_high, s.aggregation, s.kl) == (0.2, 0.28, "token", 0.0)
    assert ICRL(s).objective(0.7).weighting == Weighting("ratio", 2.0)
    assert ICRL(s).objective(0.7).temperature == 0.7


def test_pooled_groups_share_one_group():
    """The ablation: 1, 0, 1, 0, 0 of the solver and 0.8, -0.1 of the critic, under one baseline."""
    method = icrl(length_penalty=0.05, delta_solver=0.5, delta_critic=9.0, groups="pooled")
    rows = by_place(method.credit(three_tries()))
    assert {row.group for row in rows.values()} == {GroupKey("q", "pooled")}
    rewards = {
        ("0/q/0", "solver", 0): 1,
        ("0/q/1", "solver", 0): 0,
        ("0/q/1", "solver", 1): 1,
        ("0/q/2", "solver", 0): 0,
        ("0/q/2", "solver", 1): 0,
        ("0/q/1", "critic", 0): 0.8,
        ("0/q/2", "critic", 0): -0.1,
    }
    mean, std = 2.7 / 7, 0.517779  # the variance is (2.65 - 7 * 0.385714^2) / 6 = 0.268095
    for place, reward in rewards.items():
        advantage = (reward - mean) / (std + 0.5)
        assert rows[place].advantages[0] == pytest.approx(advantage, abs=1e-6), place


def test_retries_are_not_added_up():
    """LESSONS 4: each attempt is credited its own reward; nothing is paid for trying again."""
    once = [episode_of(0, "right"), episode_of(1, "wrong")]
    again = [episode_of(0, "right"), episode_of(1, "wrong", "wrong", "right", sizes=(0, 0))]
    method = icrl(rounds=3, delta_solver=0.5)
    assert by_place(method.credit(once))["0/q/1", "solver", 0].advantages[0] < 0
    rows = by_place(method.credit(again))
    # rewards 1 | 0, 0, 1: mean 0.5, std 0.577350
    for place, reward in {("0/q/0", 0): 1, ("0/q/1", 0): 0, ("0/q/1", 1): 0}.items():
        advantage = (reward - 0.5) / 1.077350
        row = rows[place[0], "solver", place[1]]
        assert row.advantages == pytest.approx((advantage,) * 2, abs=1e-6)
    assert rows["0/q/1", "solver", 2].advantages[0] == rows["0/q/0", "solver", 0].advantages[0]
    # the second critique is paid for what it brought about after the first revision, 1 - 0, the
    # first one for nothing
    gains = [rows["0/q/1", "critic", k].advantages[0] for k in (0, 1)]
    assert gains == pytest.approx([-0.5 / 0.807107, 0.5 / 0.807107], abs=1e-6)


def test_in_later_rounds_eq_3_uses_the_attempt_that_was_criticised():
    """right -> wrong -> right: the first critique lost one, the second won one. Rows know which."""
    method = icrl(rounds=3, critique_when="always", length_penalty=0, delta_critic=1.0)
    rows = by_place(method.credit([episode_of(0, "right", "wrong", "right")]))
    solver, critic = {("solver", k) for k in range(3)}, {("critic", k) for k in range(2)}
    assert {place[1:] for place in rows} == solver | critic
    # rewards -1 and 1: std 1.414214
    for k, reward in enumerate((-1, 1)):
        advantage = rows["0/q/0", "critic", k].advantages[0]
        assert advantage == pytest.approx(reward / 2.414214, abs=1e-6)
    assert all(rows["0/q/0", "solver", k].prompt_ids == PROMPT for k in range(3))
    assert [rows["0/q/0", "solver", k].reconditioned for k in range(3)] == [False, True, True]


# ---------------------------------------------------------------------- groups and errors


def test_attempts_under_other_prompts_do_not_share_a_group():
    """LESSONS 8: two episodes that call themselves the same query, but ask something else."""
    with pytest.raises(GroupError, match="q/solver holds rows trained under 2 prompts"):
        icrl().credit([episode_of(0, "right"), episode_of(1, "wrong", prompt=(1, 2, 4))])


def test_a_lone_critique_has_no_baseline_and_is_counted():
    """LESSONS 8: a group of one gives zero advantage, which the measures count.

    LESSONS 9: the critic's group exists for failures only; its size is logged with the survivors.
    """
    episodes = [episode_of(0, "right"), episode_of(1, "wrong", "right"), episode_of(2, "right")]
    rows = icrl().credit(episodes)
    assert by_place(rows)["0/q/1", "critic", 0].advantages == (0.0, 0.0, 0.0)
    found = measures.of_rows(rows) | measures.of_episodes(episodes)
    assert found["zero_advantage/critic"] == 1.0
    assert found["zero_advantage/solver"] == 0.0
    assert (found["group_size/solver"], found["group_size/critic"]) == (4, 1)
    assert found["survivors"] == pytest.approx(1 / 3)


def test_equal_rewards_teach_nothing_and_are_counted():
    """LESSONS 8: also a group whose rewards are all equal gives zero, with no delta to hide it."""
    rows = icrl(delta_solver=0.0).credit([episode_of(0, "wrong"), episode_of(1, "wrong")])
    assert [row.advantages for row in rows] == [(0.0, 0.0)] * 2
    assert measures.of_rows(rows)["zero_advantage/solver"] == 1.0


def test_an_error_takes_its_critique_with_it():
    """LESSONS 23: what could not be graded is dropped and counted; it is never a reward of zero."""
    sound = [
        episode_of(0, "right"),
        episode_of(1, "wrong", "right", sizes=(1,)),
        episode_of(2, "wrong", "wrong", sizes=(2,)),
    ]
    broken = [
        episode_of(3, "error"),
        episode_of(4, "wrong", "error", sizes=(1,)),
    ]
    method = icrl(length_penalty=0.1)
    rows = by_place(method.credit([*sound, *broken]))
    assert {place for place in rows if place[0] == "0/q/4"} == {("0/q/4", "solver", 0)}
    assert not any(place[0] == "0/q/3" for place in rows)
    # solver 1, 0, 0, 1, 0 and the broken revision's first attempt, 0: mean 1/3, std 0.516398
    advantage = rows["0/q/4", "solver", 0].advantages[0]
    assert advantage == pytest.approx(-(1 / 3) / 0.516398, abs=1e-5)
    # critic 0.9 and -0.2, as if the third critique had not been
    assert rows["0/q/1", "critic", 0].advantages[0] == pytest.approx(0.55 / 0.877817, abs=1e-5)
    found = measures.of_episodes([*sound, *broken])
    assert (found["errors"], found["error_share"]) == (2, 2 / 8)
    assert found["critic/gain"] == 0.5
    assert found["reward/revision"] == 0.5


def test_a_broken_environment_costs_rows_and_nothing_else():
    """LESSONS 22, 24: through a whole step, with a scripted player who breaks things.

    The third first attempt breaks the maze, and so does the revision of the second.
    """

    def say(shown: str, sample: int) -> str:
        if "critic" in shown:
            return "hall01" if "trap01" in shown else "hall02"
        if "note hall01" in shown:
            return "break"
        if "note hall02" in shown:
            return "key01"
        return ("trap02", "trap01", "break", "key00")[sample]

    env = maze()
    method = icrl(group_size=4)
    episodes = collect(method, stage_of(env, scripted(say)), n=1)
    grades = [[str(a.grade) for a in e.attempts] for e in episodes]
    assert grades == [["wrong", "right"], ["wrong", "error"], ["error"], ["right"]]
    assert episodes[2].first.feedback == "RuntimeError: the floor gave way"
    assert episodes[2].critiques == ()
    assert all(play.closed == 1 for play in env.plays) and len(env.plays) == 6
    rows = by_place(method.credit(episodes))
    assert sorted(f"{place[0][-1]} {place[1]} {place[2]}" for place in rows) == [
        "0 critic 0",
        "0 solver 0",
        "0 solver 1",
        "1 solver 0",
        "3 solver 0",
    ]
    assert measures.of_episodes(episodes)["errors"] == 2


# ---------------------------------------------------------------------- credit is a function


@st.composite
def some_episodes(draw: st.DrawFn) -> list[Episode]:
    """Two queries of up to four samples, each of them any course of up to three attempts."""
    grade = st.sampled_from(["right", "wrong", "wrong", "error"])
    out = []
    for query in ("a", "b"):
        for sample in range(draw(st.integers(1, 4))):
            grades = [draw(grade)]
            while len(grades) < 3 and grades[-1] == "wrong" and draw(st.booleans()):
                grades.append(draw(grade))
            sizes = draw(st.lists(st.integers(0, 5), min_size=2, max_size=2))
            prompt = (1, 2, 3) if query == "a" else (1, 2, 4)
            out.append(episode_of(sample, *grades, query=query, prompt=prompt, sizes=sizes))
    return out


@given(some_episodes(), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_credit_does_not_depend_on_the_order_of_episodes(episodes, random):
    method = icrl(length_penalty=0.01)
    rows = by_place(method.credit(episodes))
    random.shuffle(episodes)
    again = by_place(method.credit(episodes))
    assert rows.keys() == again.keys()
    for place, row in rows.items():
        assert again[place].advantages == pytest.approx(row.advantages, rel=1e-9, abs=1e-12)
        assert dataclasses.replace(again[place], advantages=row.advantages) == row


@given(some_episodes())
@settings(max_examples=60, deadline=None)
def test_queries_credited_together_are_queries_credited_apart(episodes):
    method = icrl(length_penalty=0.01)
    together = by_place(method.credit(episodes))
    apart = [
        row
        for query in ("a", "b")
        for row in method.credit([e for e in episodes if e.query == query])
    ]
    assert by_place(apart) == together


@given(some_episodes())
@settings(max_examples=30, deadline=None)
def test_advantages_of_a_group_sum_to_zero_and_rise_with_reward(episodes):
    groups: dict[GroupKey, list[float]] = defaultdict(list)
    for row in icrl().credit(episodes):
        groups[row.group].append(row.advantages[0])
    assert all(math.isclose(sum(a), 0.0, abs_tol=1e-6) for a in groups.values())


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


# ---------------------------------------------------------------------- collect, on a real model


@pytest.fixture(scope="module")
def engine() -> TorchEngine:
    """The shop's model, which is right now and then. Nobody updates it."""
    return warm_engine()


def test_failures_are_criticised_and_nothing_else(engine):
    episodes = collect(icrl(group_size=6, critiques_per_query="all"), shop_stage(engine), n=4)
    assert len(episodes) == 24
    assert {e.first.grade for e in episodes} == {Grade.RIGHT, Grade.WRONG}
    for e in episodes:
        failed = e.first.grade is Grade.WRONG
        assert len(e.critiques) == len(e.revisions) == failed
        if failed:
            assert (e.critiques[0].of, e.attempts[1].index, e.attempts[1].critique) == (0, 1, 0)
    assert len({e.id for e in episodes}) == 24
    assert episodes[7].id == "train/0/train-1/1"


def test_always_also_criticises_successes(engine):
    method = icrl(group_size=6, critiques_per_query="all", critique_when="always")
    episodes = collect(method, shop_stage(engine), n=4)
    assert any(e.first.success for e in episodes)
    assert all(len(e.critiques) == len(e.revisions) == 1 for e in episodes)


@pytest.mark.parametrize("most", [1, 2, "all"])
def test_at_most_so_many_failures_of_a_query_are_criticised(engine, most):
    episodes = collect(icrl(group_size=6, critiques_per_query=most), shop_stage(engine), n=4)
    failed = Counter(e.query for e in episodes if not e.first.success)
    asked = Counter(e.query for e in episodes if e.critiques)
    assert max(failed.values()) > 2
    assert asked == {q: n if most == "all" else min(n, most) for q, n in failed.items()}


def test_which_failures_are_criticised_is_drawn_from_the_seed():
    """Not the first ones, not always the same ones, and everyone has a turn."""
    method = icrl(group_size=6, critiques_per_query=2)

    def chosen(scene: int, seed: int = 0) -> tuple[int, ...]:
        stage = stage_of(maze(), scripted(lambda *_: "trap00"), seed=seed, scene=("train", scene))
        episodes = collect(method, stage, n=1)
        return tuple(i for i, e in enumerate(episodes) if e.critiques)

    drawn = [chosen(scene) for scene in range(30)]
    assert all(len(pair) == 2 for pair in drawn)
    assert len(set(drawn)) > 8
    assert {i for pair in drawn for i in pair} == set(range(6))
    assert drawn[:5] == [chosen(scene) for scene in range(5)]
    assert drawn[:5] != [chosen(scene, seed=1) for scene in range(5)]


def test_a_revision_is_shown_the_note_and_trained_without_it(engine):
    """LESSONS 14: what the reviser sees is decided, and it is the note and the question."""
    method = icrl(group_size=6, critiques_per_query="all")
    episodes = collect(method, shop_stage(engine), n=4)
    decode = engine.tokenizer.decode
    rows = by_place(method.credit(episodes))
    questions = {task.id: task.question for task in shop().tasks(Split.TRAIN)}
    revised = [e for e in episodes if e.revisions]
    assert revised
    for e in revised:
        first, said, revision = e.corrections[0]
        question = questions[e.query]
        shown = f"Q: {question} Work: {first.text} . Check:"
        assert decode(said.turn.prompt_ids) == " ".join(shown.split())
        noted = f"Note: {said.text} . Q: {question} Work:"
        assert decode(revision.prompt_ids) == " ".join(noted.split())
        row = rows[e.id, "solver", 1]
        assert decode(row.prompt_ids) == f"Q: {question} Work:"
        assert row.completion_ids == revision.turns[0].completion.ids
        assert row.logprobs == revision.turns[0].completion.logprobs
        assert row.sees == NOTED
        assert said.size == sum(word != "ok" for word in said.text.split())


def test_sampled_log_probs_are_those_of_the_prompts_that_were_shown(engine):
    """LESSONS 1, 13: the stored log-probs are the model's own, under exactly the stored ids."""
    episodes = collect(icrl(group_size=2, critiques_per_query="all"), shop_stage(engine), n=2)
    turns = [t for e in episodes for a in e.attempts for t in a.turns]
    turns += [c.turn for e in episodes for c in e.critiques]
    model = warm_engine()._policy.backbone.model
    for turn in turns:
        wanted = plain_logprobs(model, turn.prompt_ids, turn.completion.ids)
        assert turn.completion.logprobs == pytest.approx(wanted, abs=1e-4)


def test_the_same_seed_plays_the_same_episodes_bit_for_bit(engine):
    """Twice on one engine, once on another one; and other seeds and steps play others."""
    method = icrl(group_size=4)
    once = collect(method, shop_stage(engine, seed=5), n=3)
    assert collect(method, shop_stage(engine, seed=5), n=3) == once
    assert collect(method, shop_stage(warm_engine(), seed=5), n=3) == once

    def said(episodes: Sequence[Episode]) -> list[Any]:
        return [[t.completion.ids for a in e.attempts for t in a.turns] for e in episodes]

    assert said(collect(method, shop_stage(engine, seed=6), n=3)) != said(once)
    assert said(collect(method, shop_stage(engine, seed=5, scene=("train", 1)), n=3)) != said(once)


# ---------------------------------------------------------------------- rounds


def in_rounds(shown: str, sample: int) -> str:
    """Wrong at first; sample 0 is mended by the second critique, sample 1 by the first one."""
    if "critic" in shown:
        return {"trap00": "hall10", "trap01": "hall11", "trap02": "hall12"}[
            next(word for word in shown.split() if word.startswith("trap"))
        ]
    if "note" in shown:
        note = next(word for word in shown.split() if word.startswith("hall1"))
        return {"hall10": "trap02", "hall11": "key00", "hall12": "key02"}[note]
    return ("trap00", "trap01", "key01")[sample]


def test_with_three_rounds_only_the_latest_critique_is_shown():
    method = icrl(rounds=3, critiques_per_query="all", length_penalty=0, delta_critic=0.5)
    stage = stage_of(maze(), scripted(in_rounds))
    episodes = collect(method, stage, n=1)
    words = [[a.text for a in e.attempts] for e in episodes]
    assert words == [["trap00", "trap02", "key02"], ["trap01", "key00"], ["key01"]]
    critiques = [[(c.index, c.of, c.text) for c in e.critiques] for e in episodes]
    assert critiques == [[(0, 0, "hall10"), (1, 1, "hall12")], [(0, 0, "hall11")], []]
    last = episodes[0].attempts[2]
    assert (last.index, last.critique) == (2, 1)
    shown = "<system> solver <end> <user> leave hall00 note hall12 <end> <assistant>"
    assert maze_text(last.prompt_ids) == shown
    about = maze_text(episodes[0].critiques[1].turn.prompt_ids)
    assert "trap02" in about and "trap00" not in about
    rows = by_place(method.credit(episodes))
    # critics: 0 - 0, 1 - 0 and 1 - 0; mean 2/3, std 0.577350
    paid = {place: row.advantages[0] for place, row in rows.items() if place[1] == "critic"}
    useful, useless = (1 / 3) / 1.077350, -(2 / 3) / 1.077350
    assert paid == pytest.approx(
        {
            ("train/0/train-0/0", "critic", 0): useless,
            ("train/0/train-0/0", "critic", 1): useful,
            ("train/0/train-0/1", "critic", 0): useful,
        },
        abs=1e-6,
    )
    assert {row.prompt_ids for row in rows.values() if row.role is Role.SOLVER} == {
        episodes[0].first.prompt_ids
    }


def test_the_limit_on_critiques_holds_in_every_round():
    method = icrl(group_size=5, rounds=3, critiques_per_query=3)
    episodes = collect(method, stage_of(maze(), scripted(lambda *_: "trap00")), n=2)
    for query in ("train-0", "train-1"):
        sizes = sorted(len(e.attempts) for e in episodes if e.query == query)
        assert sizes == [1, 1, 3, 3, 3]


# ---------------------------------------------------------------------- other critics


def recipe_of(**method: Any) -> Any:
    return parse_recipe(
        {
            "model": {"path": "embedded:checkout"},
            "env": {"name": "checkout", **SHOP},
            "method": {"name": "icrl", "group_size": 2, "critiques_per_query": "all", **method},
            "sampling": {"max_tokens": 3, "critic_max_tokens": 3},
            "engine": {"device": "cpu"},
            "train": {"steps": 1},
        },
        "test",
    )


def test_a_frozen_critic_speaks_as_the_policy_was():
    """LESSONS 2: after an update its tokens are the reference's and are named so; it learns none.

    They are sampled by us and count as such.
    """
    recipe = recipe_of(critic="frozen")
    cast = Cast.of(recipe)
    method = recipe.method
    before = collect(method, cast.stage("before"))
    update = cast.engine.update(
        method.credit(
            [episode_of(0, "right", prompt=(8, 9)), episode_of(1, "wrong", prompt=(8, 9))]
        ),
        method.objective(1.0),
        OptimizerSettings(lr=0.05),
        1,
    )
    asyncio.run(update)
    episodes = collect(method, cast.stage("train", 0))
    start = load_model("embedded:checkout", seed=0).model
    now = cast.engine._policy.backbone.model
    said = [c.turn for e in episodes for c in e.critiques]
    assert len(said) == 4 and all(turn.behaviour is Behaviour.REFERENCE for turn in said)
    for turn in said:
        ids = (turn.prompt_ids, turn.completion.ids)
        assert turn.completion.logprobs == pytest.approx(plain_logprobs(start, *ids), abs=1e-4)
        assert turn.completion.logprobs != pytest.approx(plain_logprobs(now, *ids), abs=1e-2)
    rows = method.credit(episodes)
    assert len(rows) == 8
    assert {row.role for row in rows} == {Role.SOLVER}
    assert {row.behaviour for row in rows} == {Behaviour.POLICY}
    for found in (before, episodes):
        tokens = sum(
            len(t.completion.ids)
            for e in found
            for t in [*(t for a in e.attempts for t in a.turns), *(c.turn for c in e.critiques)]
        )
        assert measures.of_episodes(found)["tokens/sampled"] == tokens


def test_an_external_critic_is_another_model_whose_tokens_are_not_ours(tmp_path: Path):
    """LESSONS 2: its behaviour policy has its name, and it learns nothing."""
    other = load_model("embedded:checkout", seed=9)
    other.model.save_pretrained(tmp_path)
    other.tokenizer.save_pretrained(tmp_path)
    recipe = recipe_of(critic="external", critic_model=str(tmp_path))
    cast = Cast.of(recipe)
    episodes = collect(recipe.method, cast.stage("train", 0))
    said = [c.turn for e in episodes for c in e.critiques]
    assert len(said) == 4
    for turn in said:
        assert turn.behaviour is Behaviour.EXTERNAL
        wanted = plain_logprobs(other.model, turn.prompt_ids, turn.completion.ids)
        assert turn.completion.logprobs == pytest.approx(wanted, abs=1e-4)
    ours = sum(a.sampled_tokens for e in episodes for a in e.attempts)
    assert sum(e.sampled_tokens for e in episodes) == ours
    assert measures.of_episodes(episodes)["tokens/sampled"] == ours
    assert measures.of_episodes(episodes)["critic/tokens"] > 0
    rows = recipe.method.credit(episodes)
    assert Counter((row.role, row.turn, row.behaviour) for row in rows) == {
        (Role.SOLVER, 0, Behaviour.POLICY): 4,
        (Role.SOLVER, 1, Behaviour.POLICY): 4,
    }


# ---------------------------------------------------------------------- controls


def failing(shown: str, sample: int) -> str:
    """Nobody gets out; the critic names the hall in question."""
    if "critic" not in shown:
        return "trap00"
    hall = next(word for word in shown.split() if word.startswith("hall"))
    return f"note {hall}"


def controlled(control: str, n: int = 3, seed: int = 0) -> tuple[ICRL, list[Episode]]:
    method = icrl(control=control)
    return method, collect(method, stage_of(maze(), scripted(failing), seed=seed), n=n)


def notes(episodes: Sequence[Episode]) -> list[tuple[str, str]]:
    """(the query's hall, what the revision was told), for each revision."""
    out = []
    for e in episodes:
        for revision in e.revisions:
            asked, _, told = maze_text(revision.prompt_ids).partition(" note ")
            out.append((asked.split()[-1], told.removesuffix(" <end> <assistant>")))
    return out


@pytest.mark.parametrize("n", [2, 3, 4])
def test_shuffled_shows_each_revision_a_critique_of_another_query(n):
    """LESSONS 2: the control for "any critique does it": the same critiques, none of them apt."""
    method, episodes = controlled("shuffled", n)
    told = notes(episodes)
    assert len(told) == 2 * n
    assert all(hall not in said for hall, said in told)
    own = sorted(said for _, said in notes(controlled("none", n)[1]))
    assert sorted(said for _, said in told) == own
    assert {row.role for row in method.credit(episodes)} == {Role.SOLVER}


def test_random_shows_each_revision_random_words_of_the_same_length():
    """LESSONS 2: the control for "any longer prompt does it"."""
    method, episodes = controlled("random")
    told = notes(episodes)
    assert len(told) == 6
    sizes = {len(c.turn.completion.ids) for e in episodes for c in e.critiques}
    assert sizes == {3}  # note, hall.., and the end, which is no word
    assert all(len(said.split()) == 2 for _, said in told)
    assert all(maze_ids(said) and "<unk>" not in said for _, said in told)
    assert notes(controlled("random")[1]) == told
    other = notes(controlled("random", seed=1)[1])
    assert len({said for _, said in [*told, *other]}) == 12
    assert {row.role for row in method.credit(episodes)} == {Role.SOLVER}


@pytest.mark.parametrize("control", ["shuffled", "random"])
def test_controls_cost_what_the_method_costs(control):
    """LESSONS 2: equal samples and equal sampled tokens, so that what differs is the critique.

    The third control, the solver alone with as many attempts as ICRL makes in all, is GRPO.
    """
    method, episodes = controlled(control)
    _, plain = controlled("none")
    for measure in ("tokens/sampled", "critic/count", "critic/tokens"):
        assert measures.of_episodes(episodes)[measure] == measures.of_episodes(plain)[measure]
    rows, solver = method.credit(episodes), icrl().credit(plain)
    assert len(rows) == sum(row.role is Role.SOLVER for row in solver)
    attempts = len(rows) // 3
    alone = GRPO(GRPOSettings(group_size=attempts))
    stage = stage_of(maze(), scripted(failing))
    found = asyncio.run(alone.collect(stage.env.tasks(Split.TRAIN)[:3], stage))
    assert len(found) == len(rows)


# ---------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rounds": 1}, "rounds must be at least 2.*use grpo"),
        ({"critiques_per_query": 0}, "critiques_per_query must be at least 1, or 'all'"),
        ({"critiques_per_query": -1}, "critiques_per_query must be at least 1, or 'all'"),
        ({"critic": "external"}, "critic_model is to be set if, and only if"),
        ({"critic_model": "some/model"}, "critic_model is to be set if, and only if"),
        ({"critic": "frozen", "critic_model": "some/model"}, "critic_model is to be set if"),
        ({"critic_sees": {"question", "attempt"}}, "add 'outcome'"),
        ({"critic_sees": {"question", "outcome"}}, "must hold 'attempt'"),
        (
            {"critic_sees": {"question", "attempt", "outcome", "critique"}},
            "cannot hold 'critique'",
        ),
        ({"critic_sees": {"question", "attempt", "answer"}}, "critic_sees"),
        ({"w_max": 0}, "w_max"),
        ({"length_penalty": -0.1}, "length_penalty"),
        ({"clip_low": 1.0}, "clip_low"),
        ({"weight": "clipped"}, "weight"),
        ({"crtic": "frozen"}, "crtic"),
    ],
)
def test_senseless_settings_are_refused(wrong, message):
    """LESSONS 2: no number stands for a mode; what makes no sense says so."""
    with pytest.raises(ValidationError, match=message):
        ICRLSettings(**wrong)


def test_the_refusal_reaches_whoever_wrote_the_recipe():
    with pytest.raises(InwitError, match=r"test: .*rounds must be at least 2"):
        recipe_of(rounds=1)


def test_a_critic_that_is_always_called_need_not_know_the_outcome():
    s = ICRLSettings(critique_when="always", critic_sees={"question", "attempt"})
    assert ICRL(s).conditions["critic"] == {Sees.QUESTION, Sees.ATTEMPT}


def test_who_needs_the_reference_says_so():
    assert not icrl().needs_reference
    assert icrl(critic="frozen").needs_reference
    assert icrl(kl=0.1).needs_reference
    assert icrl(critic="external", critic_model="x").external_critic
    assert not icrl().external_critic
