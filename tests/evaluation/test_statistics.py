"""Intervals against other people's code, by hand, and at the edges."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.proportion import proportion_confint

from inwit.evaluation.statistics import (
    Interval,
    cluster_bootstrap,
    mcnemar_exact,
    mean_interval,
    needed_for,
    newcombe_paired,
    wilson,
)

Z = 1.959963984540054


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
    z2 = Z**2
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


tables = st.one_of(
    st.tuples(*[st.integers(0, 6)] * 4),
    st.tuples(*[st.integers(0, 2000)] * 4),
    # answers that mostly differ, whose correlation is negative
    st.tuples(st.integers(0, 5), st.integers(0, 300), st.integers(0, 300), st.integers(0, 5)),
).filter(any)


def paper_method_10(e, f, g, h, alpha):
    """The paper's own letters: e both, f first only, g second only, h neither; first - second."""
    n = e + f + g + h
    l2, u2 = proportion_confint(e + f, n, alpha=alpha, method="wilson")
    l3, u3 = proportion_confint(e + g, n, alpha=alpha, method="wilson")
    dl2, du2 = (e + f) / n - l2, u2 - (e + f) / n
    dl3, du3 = (e + g) / n - l3, u3 - (e + g) / n
    a = (e + f) * (g + h) * (e + g) * (f + h)
    b = Fraction(e * h - f * g)
    if b > Fraction(n, 2):
        c = b - Fraction(n, 2)
    elif b >= 0:
        c = Fraction(0)
    else:
        c = b
    phi = float(c) / a**0.5 if a else 0.0
    theta = (f - g) / n
    delta = (dl2**2 - 2 * phi * dl2 * du3 + du3**2) ** 0.5
    epsilon = (du2**2 - 2 * phi * du2 * dl3 + dl3**2) ** 0.5
    return theta, theta - delta, theta + epsilon


@given(tables, st.sampled_from([0.8, 0.95, 0.99]))
def test_newcombe_is_the_paper_s_method_10(table, confidence):
    theta, low, high = paper_method_10(*table, alpha=1 - confidence)
    found = newcombe_paired(*table, confidence)
    assert found.value == pytest.approx(-theta, abs=1e-12)
    assert found.low == pytest.approx(-high, abs=1e-9)
    assert found.high == pytest.approx(-low, abs=1e-9)


@pytest.mark.parametrize(
    ("table", "low", "high"),
    [
        # Newcombe 1998, table III
        ((36, 2, 12, 0), 0.0569, 0.3404),
        ((20, 2, 12, 16), 0.0562, 0.3292),
        ((18, 2, 12, 18), 0.0562, 0.3290),
        ((36, 0, 14, 0), 0.1528, 0.4167),
        ((35, 0, 14, 1), 0.1461, 0.4175),
        ((18, 0, 14, 18), 0.1441, 0.3963),
        ((2, 1, 97, 0), 0.8721, 0.9854),
    ],
)
def test_newcombe_has_the_published_bounds(table, low, high):
    found = newcombe_paired(*table)
    assert (round(found.low, 4), round(found.high, 4)) == (low, high)


def test_newcombe_by_hand_where_no_pair_differs():
    """5 both, 5 neither: phi = (25 - 10 / 2) / 25 = 0.8, so w * sqrt(2 - 2 * 0.8) to either side.

    w, half of Wilson's interval for 5 of 10, is 1.959964 / 1.384146 * sqrt(0.025 + 3.841459 / 400)
    = 0.263406.
    """
    found = newcombe_paired(5, 0, 0, 5)
    assert found.value == 0
    assert found.high == pytest.approx(0.263406 * 0.4**0.5, abs=1e-6)
    assert found.low == -found.high


@pytest.mark.parametrize("n", [1, 3, 500])
def test_newcombe_at_the_edge_is_exact(n):
    """Every answer mended: both Wilson intervals reach z^2 / (n + z^2) inwards, with phi 0."""
    found = newcombe_paired(0, 0, n, 0)
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(1 - 2**0.5 * Z**2 / (n + Z**2))


@given(tables)
def test_newcombe_mirrors_when_first_and_second_change_places(table):
    both, only_first, only_second, neither = table
    found = newcombe_paired(both, only_first, only_second, neither)
    swapped = newcombe_paired(both, only_second, only_first, neither)
    assert swapped.value == -found.value
    assert swapped.low == pytest.approx(-found.high, abs=1e-12)
    assert swapped.high == pytest.approx(-found.low, abs=1e-12)


@given(tables)
def test_newcombe_holds_its_difference_and_stays_in_range(table):
    found = newcombe_paired(*table)
    assert -1.0 <= found.low <= found.value <= found.high <= 1.0
    assert found.low < found.high


@pytest.mark.parametrize(
    ("shares", "n"),
    [
        ((0.5, 0.08, 0.14, 0.28), 80),
        ((0.3, 0.2, 0.3, 0.2), 60),
        ((0.1, 0.4, 0.4, 0.1), 60),
        ((0.88, 0.05, 0.03, 0.04), 200),
        ((0.586, 0.014, 0.058, 0.342), 500),
    ],
)
def test_newcombe_covers_the_true_difference_as_often_as_it_says(shares, n):
    drawn, times = np.unique(
        np.random.default_rng(0).multinomial(n, shares, size=3000), axis=0, return_counts=True
    )
    true = shares[2] - shares[1]
    found = [newcombe_paired(*map(int, table)) for table in drawn]
    covered = np.array([each.low <= true <= each.high for each in found])
    assert 0.94 < np.average(covered, weights=times) < 0.97


def test_the_worked_example():
    """500 questions, 300 right at first; of those 7 spoiled, and 29 of the other 200 mended."""
    found = newcombe_paired(293, 7, 29, 171)
    assert found.value == 0.044
    assert (round(found.low, 4), round(found.high, 4)) == (0.0205, 0.0675)
    assert mcnemar_exact(7, 29) == pytest.approx(3.1255e-4, abs=1e-8)


@pytest.mark.parametrize("table", [(0, 0, 0, 0), (-1, 2, 2, 2), (5, -1, 2, 2), (5, 2, 2, -1)])
def test_what_are_no_pairs_is_refused(table):
    with pytest.raises(ValueError, match="are no pairs"):
        newcombe_paired(*table)


@given(st.integers(0, 400), st.integers(0, 400))
def test_mcnemar_is_statsmodels_and_scipy_s(only_first, only_second):
    found = mcnemar_exact(only_first, only_second)
    theirs = mcnemar([[3, only_first], [only_second, 8]], exact=True).pvalue
    assert found == pytest.approx(theirs, abs=1e-9)
    if only_first + only_second:
        binomial = stats.binomtest(only_first, only_first + only_second).pvalue
        assert found == pytest.approx(binomial, abs=1e-9)


@pytest.mark.parametrize(
    ("only_first", "only_second", "p"),
    [(0, 0, 1.0), (4, 4, 1.0), (1, 5, 14 / 64), (5, 1, 14 / 64), (0, 6, 2 / 64), (0, 1, 1.0)],
)
def test_mcnemar_by_hand(only_first, only_second, p):
    """1 and 5: twice the chance of at most one head in six, (1 + 6) / 64."""
    assert mcnemar_exact(only_first, only_second) == pytest.approx(p, abs=1e-12)


@pytest.mark.parametrize("counts", [(-1, 2), (2, -1)])
def test_mcnemar_refuses_what_is_no_count(counts):
    with pytest.raises(ValueError, match="not both counts"):
        mcnemar_exact(*counts)


def some_clusters(seed=0, n=40):
    """Questions with one to five samples, and rates that differ from question to question."""
    rng = random.Random(seed)
    clusters = []
    for _ in range(n):
        rate = rng.random()
        clusters.append(
            [(rng.random() < rate, rng.choice([1, 2])) for _ in range(rng.randint(1, 5))]
        )
    return clusters


def looped(clusters, draws):
    """One draw at a time."""
    rng = random.Random(1)
    ratios = []
    for _ in range(draws):
        samples = [
            sample for cluster in rng.choices(clusters, k=len(clusters)) for sample in cluster
        ]
        ratios.append(sum(top for top, _ in samples) / sum(bottom for _, bottom in samples))
    ratios.sort()
    return ratios[round(0.025 * draws)], ratios[round(0.975 * draws)]


def scipy_s(clusters, draws):
    tops, bottoms = zip(
        *[[sum(part) for part in zip(*c, strict=True)] for c in clusters], strict=True
    )
    found = stats.bootstrap(
        (tops, bottoms),
        lambda top, bottom, axis: np.sum(top, axis=axis) / np.sum(bottom, axis=axis),
        paired=True,
        n_resamples=draws,
        method="percentile",
        random_state=np.random.default_rng(1),
    )
    return found.confidence_interval


@pytest.mark.parametrize("other", [looped, scipy_s])
def test_cluster_bootstrap_agrees_with_other_code(other):
    clusters = some_clusters()
    low, high = other(clusters, 10_000)
    found = cluster_bootstrap(clusters)
    samples = [sample for cluster in clusters for sample in cluster]
    assert found.value == pytest.approx(sum(a for a, _ in samples) / sum(b for _, b in samples))
    # a bound found from 10,000 draws has an error of some 0.7% of the width
    assert found.low == pytest.approx(low, abs=0.04 * (high - low))
    assert found.high == pytest.approx(high, abs=0.04 * (high - low))


def test_clusters_of_one_sample_have_the_binomial_error():
    found = cluster_bootstrap([[(i < 180, 1)] for i in range(600)])
    error = (0.3 * 0.7 / 600) ** 0.5
    assert found.value == 0.3
    assert found.low == pytest.approx(0.3 - Z * error, abs=0.1 * error)
    assert found.high == pytest.approx(0.3 + Z * error, abs=0.1 * error)


def test_equal_samples_of_a_question_count_as_one():
    """Four equal samples tell no more than one; taken as independent they would halve the width."""
    clusters = [[(i % 3 == 0, 1)] * 4 for i in range(300)]
    whole = cluster_bootstrap(clusters)
    apart = cluster_bootstrap([[sample] for cluster in clusters for sample in cluster])
    assert whole.value == apart.value == 1 / 3
    assert (whole.high - whole.low) / (apart.high - apart.low) == pytest.approx(2, rel=0.08)


def test_two_clusters_by_hand():
    """The draws are 0, 1/2, 1 with chances 1/4, 1/2, 1/4."""
    clusters = [[(0, 1)], [(1, 1)]]
    assert cluster_bootstrap(clusters) == Interval(0.5, 0.0, 1.0)
    assert cluster_bootstrap(clusters, confidence=0.4) == Interval(0.5, 0.5, 0.5)
    assert cluster_bootstrap(clusters, confidence=0.6) == Interval(0.5, 0.0, 1.0)


def test_a_draw_without_a_denominator_is_left_out():
    """A quarter of the draws are the empty question twice; the rest are all 3 / 4."""
    assert cluster_bootstrap([[(3, 4)], [(0, 0)]]) == Interval(0.75, 0.75, 0.75)
    assert cluster_bootstrap([[(1, 2), (2, 2)], []]) == Interval(0.75, 0.75, 0.75)


@given(st.permutations(range(12)))
def test_the_order_of_clusters_leaves_the_value_alone(order):
    clusters = [[(0.1 * i, 0.3 + 0.7 / (i + 1)), (1 / 3, 1.0)] for i in range(12)]
    shuffled = [clusters[i] for i in order]
    assert (
        cluster_bootstrap(shuffled, draws=20).value == cluster_bootstrap(clusters, draws=20).value
    )


def test_the_seed_fixes_the_interval():
    clusters = some_clusters()
    assert cluster_bootstrap(clusters, seed=3) == cluster_bootstrap(clusters, seed=3)
    assert cluster_bootstrap(clusters, seed=3) != cluster_bootstrap(clusters, seed=4)


def test_many_clusters_are_drawn_in_steps_as_they_would_be_at_once():
    """3,000 clusters are 333 draws to a step; all 1,000 draws at once give the same bounds."""
    tops = np.arange(3000) % 7 / 7
    drawn = np.random.default_rng(5).integers(3000, size=(1000, 3000))
    low, high = np.quantile(tops[drawn].mean(axis=1), [0.05, 0.95])
    found = cluster_bootstrap([[(float(t), 1)] for t in tops], seed=5, draws=1000, confidence=0.9)
    assert found.low == pytest.approx(low, abs=1e-12)
    assert found.high == pytest.approx(high, abs=1e-12)


@pytest.mark.parametrize(
    ("clusters", "draws", "message"),
    [
        ([], 10, "at least two clusters"),
        ([[(1, 1), (0, 1)]], 10, "at least two clusters"),
        ([[(0, 0)], [(1, 0)]], 10, "makes no ratio"),
        ([[], []], 10, "makes no ratio"),
        ([[(0, 1)], [(1, 1)]], 0, "none of 0 draws"),
    ],
)
def test_what_cannot_be_resampled_is_refused(clusters, draws, message):
    with pytest.raises(ValueError, match=message):
        cluster_bootstrap(clusters, draws=draws)


def power_of(rejects, n, delta, discordant):
    """The chance of rejecting, summed over every count of discordant pairs and every split."""
    power = 0.0
    for k in range(n + 1):
        chance = stats.binom.pmf(k, n, discordant)
        if chance > 1e-7:
            second = np.arange(k + 1)
            split = stats.binom.pmf(second, k, (1 + delta / discordant) / 2)
            power += chance * split[rejects(k - second, second)].sum()
    return power


def chi_squared(only_first, only_second):
    return (only_second - only_first) ** 2 > Z**2 * (only_first + only_second)


def exact(only_first, only_second):
    return (
        2 * stats.binom.cdf(np.minimum(only_first, only_second), only_first + only_second, 0.5)
        <= 0.05
    )


PLANS = [(0.02, 0.097), (0.05, 0.097), (-0.1, 0.3), (0.2, 0.5), (0.1, 0.15)]


@pytest.mark.parametrize(("delta", "discordant"), PLANS)
def test_the_pairs_needed_give_the_power_asked_for(delta, discordant):
    n = needed_for(delta, discordant)
    assert 0.795 < power_of(chi_squared, n, delta, discordant) < 0.845
    assert power_of(chi_squared, round(0.85 * n), delta, discordant) < 0.795
    more = needed_for(delta, discordant, power=0.9)
    assert 0.895 < power_of(chi_squared, more, delta, discordant) < 0.94


@pytest.mark.parametrize(("delta", "discordant"), [plan for plan in PLANS if plan[0] != 0.2])
def test_the_exact_test_needs_at_most_a_tenth_more(delta, discordant):
    n = needed_for(delta, discordant)
    assert power_of(exact, n, delta, discordant) < 0.8
    assert power_of(exact, math.ceil(1.1 * n), delta, discordant) > 0.8


@pytest.mark.parametrize(
    ("delta", "discordant", "options", "pairs"),
    [
        # (1.959964 sqrt(0.3) + 0.841621 sqrt(0.29))^2 / 0.01 = (1.073516 + 0.453225)^2 / 0.01
        (0.1, 0.3, {}, 234),
        (-0.1, 0.3, {}, 234),
        (0.02, 0.097, {}, 1901),
        # nothing but mending: 1.959964^2
        (1, 1, {}, 4),
        # (2.575829 sqrt(0.3) + 1.281552 sqrt(0.29))^2 / 0.01 = (1.410840 + 0.690131)^2 / 0.01
        (0.1, 0.3, {"power": 0.9, "confidence": 0.99}, 442),
    ],
)
def test_the_pairs_needed_by_hand(delta, discordant, options, pairs):
    assert needed_for(delta, discordant, **options) == pairs


@given(st.floats(0.005, 0.1), st.floats(1.2, 3), st.floats(0.3, 0.6))
def test_a_greater_difference_needs_fewer_pairs(delta, factor, discordant):
    n = needed_for(delta, discordant)
    assert needed_for(delta * factor, discordant) < n
    assert needed_for(delta, discordant * 1.2) > n
    assert needed_for(delta, discordant, power=0.9) > n
    assert needed_for(delta, discordant, confidence=0.99) > n


@pytest.mark.parametrize(
    ("delta", "discordant", "options", "message"),
    [
        (0, 0.1, {}, "no difference of"),
        (0, 0, {}, "no difference of"),
        (0.2, 0.1, {}, "no difference of"),
        (-0.2, 0.1, {}, "no difference of"),
        (0.2, 1.1, {}, "no difference of"),
        (math.nan, 0.1, {}, "no difference of"),
        (0.1, 0.2, {"power": 1.0}, "no test has power"),
        (0.1, 0.2, {"power": 0.05}, "no test has power"),
        (0.1, 0.2, {"confidence": 1.0}, "no test has power"),
        (0.1, 0.2, {"confidence": 0.0}, "no test has power"),
    ],
)
def test_what_no_number_of_pairs_can_find_is_refused(delta, discordant, options, message):
    with pytest.raises(ValueError, match=message):
        needed_for(delta, discordant, **options)
