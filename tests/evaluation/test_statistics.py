"""Intervals against other people's code, by hand, and at the edges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.proportion import proportion_confint

from inwit.evaluation.statistics import Interval, mean_interval, wilson


@st.composite
def counts(draw: st.DrawFn) -> tuple[int, int]:
    n = draw(st.integers(1, 5000))
    return draw(st.integers(0, n)), n


@given(counts(), st.sampled_from([0.8, 0.9, 0.95, 0.99]))
def test_wilson_is_statsmodels_wilson(case, confidence):
    successes, n = case
    low, high = proportion_confint(successes, n, alpha=1 - confidence, method="wilson")
    found = wilson(successes, n, confidence)
    assert found.value == successes / n
    assert found.low == pytest.approx(low, abs=1e-9)
    assert found.high == pytest.approx(high, abs=1e-9)


def test_wilson_by_hand():
    """8 of 10 at z = 1.959964: centre (0.8 + 0.192073) / 1.384146, half 0.226790 to either side.

    z^2 = 3.841459; half = 1.959964 / 1.384146 * sqrt(0.8 * 0.2 / 10 + 3.841459 / 400).
    """
    found = wilson(8, 10)
    assert found.value == 0.8
    assert found.low == pytest.approx(0.716740 - 0.226577, abs=1e-5)
    assert found.high == pytest.approx(0.716740 + 0.226577, abs=1e-5)


@pytest.mark.parametrize("n", [1, 2, 7, 512])
def test_wilson_at_the_edges_is_exact(n):
    """0 of n is bounded by z^2 / (n + z^2), and n of n by its mirror image."""
    z2 = 1.959963984540054**2
    none, every = wilson(0, n), wilson(n, n)
    assert (none.value, none.low) == (0.0, 0.0)
    assert none.high == pytest.approx(z2 / (n + z2))
    assert (every.value, every.high) == (1.0, 1.0)
    assert every.low == pytest.approx(n / (n + z2))


@given(counts())
def test_wilson_holds_its_rate_and_stays_in_the_unit_interval(case):
    found = wilson(*case)
    assert 0.0 <= found.low <= found.value <= found.high <= 1.0
    assert wilson(*case, confidence=0.99).low <= found.low
    mirrored = wilson(case[1] - case[0], case[1])
    assert mirrored.low == pytest.approx(1 - found.high, abs=1e-12)


@pytest.mark.parametrize(("successes", "n"), [(0, 0), (-1, 5), (6, 5), (0, -1), (1, 0)])
def test_what_is_not_a_rate_is_refused(successes, n):
    with pytest.raises(ValueError, match=f"{successes} of {n} is not a rate"):
        wilson(successes, n)


@given(
    st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=12).filter(
        lambda values: max(values) - min(values) > 1e-6
    ),
    st.sampled_from([0.9, 0.95, 0.99]),
)
def test_mean_interval_is_scipy_s_t_interval(values, confidence):
    low, high = stats.t.interval(
        confidence, len(values) - 1, loc=sum(values) / len(values), scale=stats.sem(values)
    )
    found = mean_interval(values, confidence)
    assert found.value == pytest.approx(sum(values) / len(values), abs=1e-9)
    assert found.low == pytest.approx(low, rel=1e-9, abs=1e-6)
    assert found.high == pytest.approx(high, rel=1e-9, abs=1e-6)


def test_mean_interval_by_hand():
    """0.4, 0.5, 0.6: std 0.1, t(2) = 4.302653, half 4.302653 * 0.1 / sqrt(3) = 0.248414."""
    found = mean_interval([0.4, 0.5, 0.6])
    assert found.value == pytest.approx(0.5)
    assert found.low == pytest.approx(0.251586, abs=1e-6)
    assert found.high == pytest.approx(0.748414, abs=1e-6)


def test_equal_values_have_no_width():
    assert mean_interval([0.25, 0.25, 0.25]) == Interval(0.25, 0.25, 0.25)


@pytest.mark.parametrize("values", [[], [0.5]])
def test_one_value_has_no_interval(values):
    with pytest.raises(ValueError, match="at least two values"):
        mean_interval(values)
