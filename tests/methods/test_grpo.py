"""GRPO, and the rules of groups and rows that every method shares."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import statistics
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from inwit.engines import OptimizerSettings
from inwit.engines.torch import TorchEngine
from inwit.envs import Split
from inwit.errors import GroupError
from inwit.methods import measures
from inwit.methods.crediting import check_groups, kl_credited, solver_row, turn_key
from inwit.methods.grpo import GRPO, GRPOSettings
from inwit.rows import (
    Behaviour,
    Completion,
    Episode,
    Grade,
    GroupKey,
    Role,
    Row,
    Sees,
    Stop,
    context_id,
)
from tests.helpers import make_row
from tests.methods.worlds import (
    CPU,
    attempt_of,
    episode_of,
    maze,
    maze_model,
    maze_stage,
    scripted,
    shop,
    shop_stage,
    stage_of,
    turn_of,
    warm_engine,
)


def grpo(**settings: Any) -> GRPO:
    return GRPO(GRPOSettings(**settings))


def scored(*rewards: float, query: str = "q") -> list[Episode]:
    return [
        Episode(f"0/{query}/{i}", query, (attempt_of("right" if r > 0 else "wrong", reward=r),))
        for i, r in enumerate(rewards)
    ]


# ---------------------------------------------------------------------- credit


def test_credit_by_hand():
    """Rewards 1, 0, 0, 3: mean 1, squares 0 + 1 + 1 + 4 = 6, unbiased std sqrt(2); delta 0.1.

    LESSONS 2: every row names the policy that sampled it.
    LESSONS 5: every row carries the condition of its prompt.
    """
    rows = grpo(delta_solver=0.1).credit(scored(1, 0, 0, 3))
    wanted = [0.0, -1 / 1.514214, -1 / 1.514214, 2 / 1.514214]
    assert [row.advantages for row in rows] == [pytest.approx((a, a), abs=1e-6) for a in wanted]
    for i, row in enumerate(rows):
        assert (row.prompt_ids, row.completion_ids) == ((1, 2, 3), (10, 11))
        assert (row.mask, row.weights) == ((True, True), (1.0, 1.0))
        assert row.logprobs == pytest.approx((-0.10, -0.11))
        assert row.sampled_context == row.trained_context == context_id((1, 2, 3))
        assert (row.role, row.group) == (Role.SOLVER, GroupKey("q", "solver"))
        assert (row.episode, row.turn) == (f"0/q/{i}", 0)
        assert (row.sees, row.behaviour) == ({Sees.QUESTION}, Behaviour.POLICY)


def test_several_turns_are_one_row_with_the_observations_masked_out():
    """LESSONS 7, 11, 12: the mask is made of who sampled, has the completion's length, and does
    not mind that an observation repeats the policy's own tokens, its stop token among them."""
    turns = (
        turn_of((1, 2), (5, 9)),
        turn_of((1, 2, 5, 9, 5, 9), (9,)),
        turn_of((1, 2, 5, 9, 5, 9, 9, 6), (5, 5)),
    )
    many = Episode("0/q/0", "q", (attempt_of("right", turns=turns),))
    other = Episode("0/q/1", "q", (attempt_of("wrong", (1, 2), (6,)),))
    row, _ = grpo().credit([many, other])
    assert row.prompt_ids == (1, 2)
    assert row.completion_ids == (5, 9, 5, 9, 9, 6, 5, 5)
    assert row.mask == (True, True, False, False, True, False, True, True)
    assert row.logprobs == pytest.approx((-0.05, -0.09, 0, 0, -0.09, 0, -0.05, -0.05))
    assert set(row.advantages) == {row.advantages[0]} and row.advantages[0] > 0


def test_an_error_is_not_a_reward():
    """LESSONS 23: 1, 0 and an error are credited as 1 and 0, and the error is counted."""
    episodes = [*scored(1, 0), episode_of(7, "error")]
    rows = grpo().credit(episodes)
    assert [row.episode for row in rows] == ["0/q/0", "0/q/1"]
    assert [row.advantages[0] for row in rows] == pytest.approx([0.707106, -0.707106], abs=1e-5)
    found = measures.of_episodes(episodes)
    assert (found["errors"], found["reward/first"], found["success/first"]) == (1, 0.5, 0.5)


@pytest.mark.parametrize("rewards", [(1.0,), (1.0, 1.0), (0.0, 0.0, 0.0), (0.3,) * 7])
def test_a_group_without_a_difference_teaches_nothing(rewards):
    """LESSONS 8: a group of one, or of equal rewards, yields zero and is counted.

    LESSONS 17: no standard deviation of one sample, no division by zero.
    """
    rows = grpo(delta_solver=0.0).credit(scored(*rewards))
    assert [row.advantages for row in rows] == [(0.0, 0.0)] * len(rewards)
    assert measures.of_rows(rows)["zero_advantage/solver"] == 1.0


def test_rows_without_advantage_never_reach_the_learner():
    """LESSONS 19: a group of equal rewards gets no gradient, from the KL term neither."""
    loaded = maze_model()
    engine = TorchEngine(loaded, CPU, keep_reference=True)
    before = [p.clone() for p in loaded.model.parameters()]
    method = grpo(kl=0.5)
    rows = method.credit([*scored(1, 1), *scored(0, 0, query="r")])
    stats = asyncio.run(engine.update(rows, method.objective(1.0), OptimizerSettings(lr=0.1), 1))
    assert (stats.rows, stats.rows_trained, stats.tokens) == (4, 0, 0)
    assert all(torch.equal(a, b) for a, b in zip(before, loaded.model.parameters(), strict=True))


def test_a_revision_does_not_change_what_its_first_attempt_is_worth():
    """LESSONS 4: a reward belongs to an attempt; GRPO credits the first one and sums nothing."""
    rows = grpo().credit([episode_of(0, "wrong", "right"), episode_of(1, "right")])
    assert [row.turn for row in rows] == [0, 0]
    assert [row.advantages[0] for row in rows] == pytest.approx([-0.707106, 0.707106], abs=1e-5)


@given(
    st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=8),
    st.randoms(use_true_random=False),
)
@settings(max_examples=50, deadline=None)
def test_credit_is_the_formula_whatever_the_order(rewards, random):
    delta = 0.01
    std = statistics.stdev(rewards)
    mean = statistics.fmean(rewards)
    wanted = {f"0/q/{i}": (r - mean) / (std + delta) if std else 0.0 for i, r in enumerate(rewards)}
    episodes = scored(*rewards) + scored(1, 0, query="other")
    random.shuffle(episodes)
    rows = {row.episode: row for row in grpo(delta_solver=delta).credit(episodes)}
    assert len(rows) == len(episodes)
    for place, advantage in wanted.items():
        assert rows[place].advantages[0] == pytest.approx(advantage, abs=1e-9)
    assert rows["0/other/0"].advantages[0] == pytest.approx(0.5 / (math.sqrt(0.5) + delta))


# ---------------------------------------------------------------------- groups


def test_a_group_of_two_roles_is_refused():
    """LESSONS 8: what a critic earns is no baseline for a solver."""
    critic = make_row(role=Role.CRITIC)
    mixed = [make_row(), dataclasses.replace(critic, group=GroupKey("q", "solver"))]
    with pytest.raises(GroupError, match="q/solver holds rows of the roles critic, solver"):
        check_groups(mixed)


def test_a_group_under_another_role_s_name_is_refused():
    """LESSONS 8: the key says which role the rows are of."""
    row = dataclasses.replace(make_row(), group=GroupKey("q", "critic"))
    with pytest.raises(GroupError, match="q/critic holds rows of the roles solver"):
        check_groups([row])


def test_a_group_of_two_prompts_is_refused():
    """LESSONS 8: a solver's group is of one question, whatever it calls itself."""
    rows = [make_row(prompt=(1, 2)), make_row(prompt=(1, 2, 3))]
    with pytest.raises(GroupError, match="q/solver holds rows trained under 2 prompts"):
        check_groups(rows)
    with pytest.raises(GroupError, match="2 prompts"):
        grpo().credit([episode_of(0, "right"), episode_of(1, "wrong", prompt=(4,))])


def test_what_may_be_compared_is_let_through():
    """LESSONS 8: a critic reads different attempts at one query; re-conditioned rows count by what
    they are trained under; other states and queries are other groups; `pooled` says what it is."""
    pooled = GroupKey("q", "pooled")
    check_groups(
        [
            make_row(),
            make_row(sampled_prompt=(9, 1, 2)),
            make_row(prompt=(5,), state="second"),
            make_row(prompt=(6,), query="r"),
            make_row(role=Role.CRITIC, prompt=(7,)),
            make_row(role=Role.CRITIC, prompt=(8,)),
            dataclasses.replace(make_row(), group=pooled),
            dataclasses.replace(make_row(prompt=(8,), role=Role.CRITIC), group=pooled),
        ]
    )


def test_a_group_of_a_later_turn_may_differ_in_its_prompts_and_in_nothing_else():
    """LESSONS 8: each sample of a second turn saw its own first attempt; its state says so."""

    def second(sample: int, turn: int = 1) -> Row:
        return make_row(prompt=(1, sample), state="turn 2", turn=turn)

    check_groups([second(0), second(1)])
    with pytest.raises(GroupError, match="q/solver/turn 2 holds rows of 2 turns"):
        check_groups([second(0), second(1, turn=2)])
    with pytest.raises(GroupError, match="rows of 2 turns"):
        check_groups([second(0), second(0, turn=0)])
    with pytest.raises(GroupError, match="q/solver/turn 1 holds rows trained under 2 prompts"):
        check_groups([make_row(prompt=(1, i), state="turn 1") for i in range(2)])
    with pytest.raises(GroupError, match="trained under 2 prompts"):  # nothing says so
        check_groups([make_row(prompt=(1, i), turn=1) for i in range(2)])
    other = dataclasses.replace(second(0), role=Role.CRITIC)
    with pytest.raises(GroupError, match="rows of the roles critic, solver"):
        check_groups([second(0), other])


# ---------------------------------------------------------------------- rows


def test_a_row_is_trained_where_it_was_sampled_unless_told_otherwise():
    """LESSONS 1: re-conditioning is a choice that is made, not a default."""
    episode = episode_of(0, "wrong", "right")
    revision, key = episode.attempts[1], GroupKey("q", "solver")
    own = solver_row(episode, revision, 0.5, key)
    assert own.prompt_ids == revision.prompt_ids and not own.reconditioned
    assert own.advantages == (0.5,) * len(own.completion_ids)
    other = solver_row(episode, revision, 0.5, key, episode.first.prompt_ids)
    assert other.prompt_ids == episode.first.prompt_ids and other.reconditioned
    each = tuple(float(i) for i in range(len(own.completion_ids)))
    assert solver_row(episode, revision, each, key).advantages == each


def test_every_turn_has_a_baseline_of_its_own():
    """LESSONS 8: by query and place in the episode."""
    one, other = episode_of(0, "wrong", "right"), episode_of(1, "right", query="r")
    keys = [turn_key(one, a) for a in one.attempts] + [turn_key(other, other.first)]
    assert [str(k) for k in keys] == ["q/solver/turn 1", "q/solver/turn 2", "r/solver/turn 1"]
    assert turn_key(episode_of(5, "error"), one.first) == keys[0]


@given(st.lists(st.tuples(st.floats(-9, 0), st.floats(-9, 0)), min_size=1, max_size=6))
def test_the_kl_is_a_reward_of_the_very_token_that_it_is_of(pairs):
    """LESSONS 11: and of none that the environment wrote, whatever stands there."""
    ours, theirs = zip(*pairs, strict=True)
    ids = tuple(range(10, 10 + len(pairs)))
    first = turn_of((1,), ids)
    first = dataclasses.replace(first, completion=Completion(ids, ours, Stop.TOKEN))
    last = turn_of((1, *ids, 90, 91), (7,))
    attempt = dataclasses.replace(
        attempt_of("right", turns=(first, last)), reference=(*theirs, -50.0, -60.0, -0.07)
    )
    found = kl_credited(attempt, 2.0, 0.5)
    expected = [2.0 - 0.5 * (a - b) for a, b in pairs]
    assert found == pytest.approx((*expected, 0.0, 0.0, 2.0))
    assert kl_credited(attempt, 2.0, 0.0)[: len(pairs)] == (2.0,) * len(pairs)
    unknown = dataclasses.replace(attempt, reference=())
    with pytest.raises(ValueError, match="zip"):
        kl_credited(unknown, 2.0, 0.5)


# ---------------------------------------------------------------------- collect


def test_collect_plays_a_group_for_every_query():
    engine = warm_engine()
    stage = shop_stage(engine)
    tasks = shop().tasks(Split.TRAIN)[:3]
    episodes = asyncio.run(grpo(group_size=5).collect(tasks, stage))
    assert [e.id for e in episodes] == [
        f"train/0/{task.id}/{i}" for task in tasks for i in range(5)
    ]
    assert Counter(e.query for e in episodes) == {task.id: 5 for task in tasks}
    assert all(len(e.attempts) == 1 and not e.critiques for e in episodes)
    for e in episodes:
        gold = next(task.reference for task in tasks if task.id == e.query)
        assert e.first.grade is (Grade.RIGHT if e.first.text == gold else Grade.WRONG)
        assert e.first.reward == float(e.first.success)
    assert len({(t.completion.ids) for e in episodes for t in e.first.turns}) > 3
    assert asyncio.run(grpo(group_size=5).collect(tasks, stage)) == episodes


def test_a_few_updates_raise_the_reward():
    """The loop learns: from the same start, the maze is left more often than before."""
    engine = TorchEngine(maze_model(), CPU)
    method, env = grpo(group_size=12), maze(turns=1)
    optimizer = OptimizerSettings(lr=3e-3)
    tasks = env.tasks(Split.TRAIN)

    async def learn() -> list[float]:
        rewards = []
        for step in range(10):
            stage = maze_stage(env, engine, scene=("train", step), max_tokens=2)
            episodes = await method.collect(tasks, stage)
            rewards.append(measures.of_episodes(episodes)["reward/first"])
            await engine.update(method.credit(episodes), method.objective(1.0), optimizer, 10)
        return rewards

    rewards = asyncio.run(learn())
    assert statistics.fmean(rewards[-3:]) > statistics.fmean(rewards[:3]) + 0.2


def test_a_broken_attempt_costs_one_row():
    """LESSONS 24: the environment's failure drops the row, is counted, and the rest goes on."""
    said = ("key00", "break", "trap01", "jam")
    stage = stage_of(maze(), scripted(lambda _, i: said[i]))
    episodes = asyncio.run(grpo(group_size=4).collect(stage.env.tasks(Split.TRAIN)[:1], stage))
    rows: list[Row] = grpo().credit(episodes)
    assert [row.episode[-1] for row in rows] == ["0", "2"]
    assert measures.of_episodes(episodes)["errors"] == 2
    assert [e.first.feedback for e in episodes[1::2]] == [
        "RuntimeError: the floor gave way",
        "the grader is jammed",
    ]


# ---------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"group_size": 1}, "group_size must be at least 2: a group of one has no baseline"),
        ({"group_size": -1}, "group_size"),
        ({"delta_solver": -1e-6}, "delta_solver"),
        ({"loss": "importance"}, "loss"),
        ({"clip_high": 0}, "clip_high"),
        ({"kl": -1}, "kl"),
        ({"critiques_per_query": 2}, "critiques_per_query"),
    ],
)
def test_senseless_settings_are_refused(wrong, message):
    """LESSONS 2: no sentinels; a number out of range is an error, not a mode."""
    with pytest.raises(ValidationError, match=message):
        GRPOSettings(**wrong)


def test_the_objective_says_what_the_settings_say():
    method = grpo(loss="gspo", clip_low=0.1, clip_high=0.4, aggregation="row", kl=0.2)
    objective = method.objective(0.6)
    assert (objective.loss, objective.clip_low, objective.clip_high) == ("gspo", 0.1, 0.4)
    assert (objective.aggregation, objective.kl, objective.temperature) == ("row", 0.2, 0.6)
    assert method.needs_reference and not grpo().needs_reference
