"""Advantages: hand-computed groups, and the properties that a baseline must keep."""

from __future__ import annotations

import random
from collections.abc import Hashable
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inwit.objectives import by_group, group_normalised, leave_one_out
from inwit.objectives.advantages import Baseline
from inwit.rows import GroupKey, Role

BASELINES: dict[str, Baseline] = {
    "group_normalised": lambda rewards: group_normalised(rewards, 1e-6),
    "leave_one_out": leave_one_out,
}
SOLVER_DELTA = 1e-6
CRITIC_DELTA = 0.1

relaxed = settings(deadline=None, max_examples=50)
rewards_of_a_group = st.lists(
    st.floats(-10, 10, allow_nan=False, allow_subnormal=False), min_size=2, max_size=8
)


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("rewards", "delta", "expected"),
    [
        # mean 2, unbiased std 1 (the biased one would be 0.816...)
        ((3.0, 1.0, 2.0), 0.0, (1.0, -1.0, 0.0)),
        ((3.0, 1.0, 2.0), 0.25, (0.8, -0.8, 0.0)),
        # mean 0.25, unbiased std 0.5
        ((1.0, 0.0, 0.0, 0.0), 0.0, (1.5, -0.5, -0.5, -0.5)),
        ((1.0, 0.0, 0.0, 0.0), 0.1, (1.25, -0.4166666667, -0.4166666667, -0.4166666667)),
        # mean 0.5, unbiased std 0.7071067812
        ((1.0, 0.0), 0.1, (0.6194967155, -0.6194967155)),
    ],
)
def test_group_normalised_by_hand(
    rewards: tuple[float, ...], delta: float, expected: tuple[float, ...]
) -> None:
    """ICRL Eq. 5 with the unbiased standard deviation and delta outside the root."""
    torch.testing.assert_close(
        group_normalised(vector(*rewards), delta), vector(*expected), atol=1e-9, rtol=0
    )


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ((3.0, 1.0, 2.0), (1.5, -1.5, 0.0)),
        ((1.0, 0.0, 0.0, 0.0), (1.0, -0.3333333333, -0.3333333333, -0.3333333333)),
        ((1.0, 0.0), (1.0, -1.0)),
    ],
)
def test_leave_one_out_by_hand(rewards: tuple[float, ...], expected: tuple[float, ...]) -> None:
    torch.testing.assert_close(
        leave_one_out(vector(*rewards)), vector(*expected), atol=1e-9, rtol=0
    )


@relaxed
@given(rewards=rewards_of_a_group)
def test_leave_one_out_is_the_reward_minus_the_mean_of_the_others(rewards: list[float]) -> None:
    got = leave_one_out(vector(*rewards)).tolist()
    for i, advantage in enumerate(got):
        others = rewards[:i] + rewards[i + 1 :]
        assert advantage == pytest.approx(rewards[i] - sum(others) / len(others), abs=1e-9)


@pytest.mark.parametrize("name", BASELINES)
@relaxed
@given(value=st.floats(-1e6, 1e6), size=st.integers(1, 9))
def test_no_difference_no_signal(name: str, value: float, size: int) -> None:
    """LESSONS 8 and 17: a group of one, or of equal rewards, yields exactly 0, never NaN."""
    for dtype in (torch.float32, torch.float64):
        rewards = torch.full((size,), value, dtype=dtype)
        assert BASELINES[name](rewards).tolist() == [0.0] * size


@pytest.mark.parametrize("name", BASELINES)
def test_empty_group_is_empty(name: str) -> None:
    assert BASELINES[name](vector()).tolist() == []


@pytest.mark.parametrize("name", BASELINES)
@relaxed
@given(rewards=rewards_of_a_group)
def test_advantages_of_a_group_are_finite_centred_and_in_the_order_of_rewards(
    name: str, rewards: list[float]
) -> None:
    got = BASELINES[name](vector(*rewards))
    assert bool(got.isfinite().all())
    assert abs(float(got.sum())) < 1e-7
    order = sorted(range(len(rewards)), key=rewards.__getitem__)
    assert all(got[i] <= got[j] for i, j in pairwise(order))


@relaxed
@given(rewards=rewards_of_a_group, shift=st.floats(-5, 5))
def test_a_shift_of_all_rewards_changes_nothing(rewards: list[float], shift: float) -> None:
    got = group_normalised(vector(*rewards), 0.1)
    shifted = group_normalised(vector(*rewards) + shift, 0.1)
    torch.testing.assert_close(shifted, got, atol=1e-9, rtol=0)


def test_a_mere_difference_of_length_does_not_silence_the_critic() -> None:
    """In an all-failed critic group only the length penalty differs: by 1e-3 here.

    A tiny delta blows that up to a full advantage, so that the critic learns to say nothing.
    """
    lengths_only = vector(-0.0100, -0.0103, -0.0107, -0.0110)
    assert float(group_normalised(lengths_only, CRITIC_DELTA).abs().max()) < 0.02
    blown_up = group_normalised(lengths_only, SOLVER_DELTA).abs()
    assert float(blown_up.max()) == pytest.approx(1.13, abs=0.03)

    pair = vector(-0.010, -0.011)
    # mean -0.0105, unbiased std 0.00070711: 0.0005 / 0.10070711 and 0.0005 / 0.00070811
    assert group_normalised(pair, CRITIC_DELTA).tolist() == pytest.approx(
        [0.00496489, -0.00496489], abs=1e-8
    )
    assert group_normalised(pair, SOLVER_DELTA).tolist() == pytest.approx(
        [0.706108, -0.706108], abs=1e-6
    )


@relaxed
@given(
    base=st.floats(-1, 1),
    spread=st.lists(st.floats(0, 1e-3, allow_subnormal=False), min_size=2, max_size=8),
)
def test_the_critics_delta_bounds_small_differences(base: float, spread: list[float]) -> None:
    rewards = base + vector(*spread)
    assert float(group_normalised(rewards, CRITIC_DELTA).abs().max()) < 0.02


def test_the_critics_delta_leaves_a_real_difference_a_signal() -> None:
    # mean 0.5, unbiased std 0.57735: 0.5 / 0.67735
    repaired = group_normalised(vector(1.0, 1.0, 0.0, 0.0), CRITIC_DELTA)
    assert repaired.tolist() == pytest.approx([0.738171, 0.738171, -0.738171, -0.738171], abs=1e-6)


def test_by_group_by_hand_with_a_baseline_per_role() -> None:
    """LESSONS 8: rows of another query, role or information state never share a baseline."""
    solver = GroupKey("q1", Role.SOLVER)
    critic = GroupKey("q1", Role.CRITIC)
    lonely = GroupKey("q1", Role.SOLVER, "after-critique")
    other = GroupKey("q2", Role.SOLVER)
    keys = [solver, critic, solver, other, critic, solver, lonely, other]
    rewards = [3.0, 1.0, 1.0, 7.0, 0.0, 2.0, 100.0, 7.0]

    def baseline(key: Hashable) -> Baseline:
        assert isinstance(key, GroupKey)
        delta = CRITIC_DELTA if key.role == Role.CRITIC else 0.25
        return lambda group: group_normalised(group, delta)

    got = by_group(rewards, keys, baseline)
    expected = [0.8, 0.6194967155, -0.8, 0.0, -0.6194967155, 0.0, 0.0, 0.0]
    assert got == pytest.approx(expected, abs=1e-9)
    assert got[3] == got[6] == got[7] == 0.0


def test_by_group_of_nothing_is_nothing() -> None:
    assert by_group([], [], lambda key: leave_one_out) == []


@pytest.mark.parametrize("name", BASELINES)
@relaxed
@given(
    samples=st.lists(
        st.tuples(st.floats(-3, 3, allow_subnormal=False), st.sampled_from("abc")),
        min_size=1,
        max_size=12,
    ),
    seed=st.integers(0, 2**16),
)
def test_by_group_is_invariant_under_permutation(
    name: str, samples: list[tuple[float, str]], seed: int
) -> None:
    """The order of the samples carries no meaning, nor does how the groups are interleaved."""
    order = list(range(len(samples)))
    random.Random(seed).shuffle(order)
    got = by_group(*_columns(samples), lambda key: BASELINES[name])
    shuffled = by_group(*_columns([samples[i] for i in order]), lambda key: BASELINES[name])
    assert shuffled == pytest.approx([got[i] for i in order], rel=1e-6, abs=1e-8)


@relaxed
@given(first=rewards_of_a_group, second=rewards_of_a_group)
def test_by_group_keeps_groups_apart(first: list[float], second: list[float]) -> None:
    """Another group in the batch changes nothing, whatever its rewards."""
    keys = ["a"] * len(first) + ["b"] * len(second)
    together = by_group(first + second, keys, lambda key: leave_one_out)
    assert together[: len(first)] == leave_one_out(vector(*first)).tolist()
    assert together[len(first) :] == leave_one_out(vector(*second)).tolist()


def _columns(samples: list[tuple[float, str]]) -> tuple[list[float], list[str]]:
    return [reward for reward, _ in samples], [key for _, key in samples]
