"""Intervals for rates and for their differences. Counts in, numbers in [0, 1] out.

A difference is the second less the first, in [-1, 1].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True, slots=True)
class Interval:
    """A number with the bounds of its confidence interval."""

    value: float
    low: float
    high: float


def wilson(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """Wilson's score interval for a rate (Wilson 1927).

    Raises:
        ValueError: n < 1, or successes outside 0..n.
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"{successes} of {n} is not a rate")
    z = float(stats.norm.ppf(0.5 + confidence / 2))
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    # at 0 and n the bound is exactly 0 and 1; rounding must not say otherwise
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == n else centre + half
    return Interval(p, low, high)


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Student's t interval for the mean of a few independent values, such as one per seed.

    Raises:
        ValueError: fewer than two values.
    """
    n = len(values)
    if n < 2:
        raise ValueError("an interval needs at least two values")
    mean = sum(values) / n
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1))
    half = float(stats.t.ppf(0.5 + confidence / 2, n - 1)) * deviation / math.sqrt(n)
    return Interval(mean, mean - half, mean + half)


def newcombe_paired(
    both: int, only_first: int, only_second: int, neither: int, confidence: float = 0.95
) -> Interval:
    """The second rate less the first, of the same questions (Newcombe 1998, method 10).

    Raises:
        ValueError: a negative count, or no pairs at all.
    """
    n = both + only_first + only_second + neither
    if n < 1 or min(both, only_first, only_second, neither) < 0:
        raise ValueError(f"{both}, {only_first}, {only_second}, {neither} are no pairs")
    first = wilson(both + only_first, n, confidence)
    second = wilson(both + only_second, n, confidence)
    phi = _corrected_phi(both, only_first, only_second, neither)

    def joined(a: float, b: float) -> float:
        return math.sqrt(a * a - 2 * phi * a * b + b * b)

    value = (only_second - only_first) / n
    low = value - joined(second.value - second.low, first.high - first.value)
    high = value + joined(second.high - second.value, first.value - first.low)
    return Interval(value, low, high)


def _corrected_phi(both: int, only_first: int, only_second: int, neither: int) -> float:
    """The correlation of two answers, a positive one drawn towards 0 by n / 2."""
    marginals = (
        (both + only_first)
        * (only_second + neither)
        * (both + only_second)
        * (only_first + neither)
    )
    if marginals == 0:
        return 0.0
    half = (both + only_first + only_second + neither) / 2
    covariance = both * neither - only_first * only_second
    corrected = covariance if covariance < 0 else max(covariance - half, 0.0)
    return corrected / math.sqrt(marginals)


def mcnemar_exact(only_first: int, only_second: int) -> float:
    """Two-sided exact p-value for equal rates (McNemar 1947); 1 where no pair differs.

    Raises:
        ValueError: a negative count.
    """
    if min(only_first, only_second) < 0:
        raise ValueError(f"{only_first} and {only_second} are not both counts")
    fewer = min(only_first, only_second)
    tail = float(stats.binom.cdf(fewer, only_first + only_second, 0.5))
    return min(1.0, 2 * tail)


def cluster_bootstrap(
    clusters: Sequence[Sequence[tuple[float, float]]],
    *,
    seed: int = 0,
    draws: int = 10_000,
    confidence: float = 0.95,
) -> Interval:
    """Sum of numerators over sum of denominators, resampling whole clusters (Field & Welsh 2007).

    A cluster is one question, with a (numerator, denominator) for each of its samples. The bounds
    are percentiles of the draws; a draw whose denominator is 0 is left out.

    Raises:
        ValueError: fewer than two clusters, no denominator above 0 in all, or none in any draw.
    """
    if len(clusters) < 2:
        raise ValueError("resampling needs at least two clusters")
    # fsum, so that the order of the clusters cannot change the value
    numerator = math.fsum(top for cluster in clusters for top, _ in cluster)
    denominator = math.fsum(bottom for cluster in clusters for _, bottom in cluster)
    if denominator <= 0:
        raise ValueError(f"a total denominator of {denominator} makes no ratio")
    sums = np.array([np.sum(np.reshape(cluster, (-1, 2)), axis=0) for cluster in clusters])
    rng = np.random.default_rng(seed)
    rows = max(1, 1_000_000 // len(sums))  # bounds the memory of one step
    steps = [min(rows, draws - start) for start in range(0, draws, rows)]
    drawn = [sums[rng.integers(len(sums), size=(step, len(sums)))].sum(axis=1) for step in steps]
    tops, bottoms = np.concatenate([np.empty((0, 2)), *drawn]).T
    if not np.any(bottoms > 0):
        raise ValueError(f"none of {draws} draws has a denominator above 0")
    ratios = tops[bottoms > 0] / bottoms[bottoms > 0]
    low, high = np.quantile(ratios, [0.5 - confidence / 2, 0.5 + confidence / 2])
    return Interval(numerator / denominator, float(low), float(high))


def needed_for(
    delta: float, discordant: float, *, power: float = 0.8, confidence: float = 0.95
) -> int:
    """Pairs for McNemar's test to find a difference delta (Connor 1987, without correction).

    discordant is the share of pairs in which just one of the two is right. The exact test needs
    some more, up to a tenth where a hundred pairs or more are asked for.

    Raises:
        ValueError: not 0 < |delta| <= discordant <= 1, or not 0 < 1 - confidence < power < 1.
    """
    if not 0 < abs(delta) <= discordant <= 1:
        raise ValueError(f"no difference of {delta} among {discordant} discordant pairs")
    if not 0 < 1 - confidence < power < 1:
        raise ValueError(f"no test has power {power} at confidence {confidence}")
    level = float(stats.norm.ppf(0.5 + confidence / 2)) * math.sqrt(discordant)
    reach = float(stats.norm.ppf(power)) * math.sqrt(discordant - delta * delta)
    return math.ceil(((level + reach) / delta) ** 2)
