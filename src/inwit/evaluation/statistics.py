"""Intervals for rates and for their differences. Counts in, numbers in [0, 1] out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

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
