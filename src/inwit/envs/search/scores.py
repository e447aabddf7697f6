"""Exact match and F1 of short answers, as SQuAD and HotpotQA score them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from inwit.envs.answers import normalised

VERDICTS = frozenset({"yes", "no", "noanswer"})
"""Right as a whole or not at all (HotpotQA's official script): `no way` is not half of `no`."""


def exact_match(given: str, golds: Iterable[str]) -> bool:
    """Whether the answer is one of the right ones, normalised. What has no words matches none."""
    answer = normalised(given)
    return bool(answer) and any(answer == normalised(gold) for gold in golds)


def f1(given: str, golds: Iterable[str]) -> float:
    """Harmonic mean of precision and recall over normalised words; the best of all right ones."""
    answer = normalised(given)
    return max((_overlap(answer, normalised(gold)) for gold in golds), default=0.0)


def _overlap(answer: str, gold: str) -> float:
    if answer != gold and not VERDICTS.isdisjoint({answer, gold}):
        return 0.0
    said, right = answer.split(), gold.split()
    shared = (Counter(said) & Counter(right)).total()
    return 2 * shared / (len(said) + len(right)) if shared else 0.0
