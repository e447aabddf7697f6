"""ICRL's credit by hand, its groups, and credit as a function (Eq. 3 and 5)."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inwit.errors import GroupError
from inwit.methods import measures
from inwit.methods.icrl import ICRL, ICRLSettings
from inwit.objectives import Weighting
from inwit.rows import (
    Behaviour,
    Episode,
    GroupKey,
    Ids,
    Role,
    Row,
    Sees,
    context_id,
)
from tests.methods.worlds import (
    NOTED,
    attempt_of,
    by_place,
    collect,
    critique_of,
    episode_of,
    icrl,
    maze,
    scripted,
    stage_of,
    turn_of,
)

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
