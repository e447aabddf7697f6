"""From records to measures: every rate with its counts and interval, over all N questions.

With one sample a question, rates have Wilson's interval and differences Newcombe's paired one. With
several, samples of a question resemble each other: intervals are then bootstrapped by question.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from inwit.errors import InwitError
from inwit.evaluation.records import Answer, Record, Said
from inwit.evaluation.statistics import (
    Interval,
    cluster_bootstrap,
    mcnemar_exact,
    mean_interval,
    needed_for,
    newcombe_paired,
    wilson,
)
from inwit.rows import Grade


@dataclass(frozen=True, slots=True)
class Measure:
    """A number with its interval, and the counts that it was made from.

    Attributes:
        count: numerator, for a rate; for a difference the net count.
        n: denominator: trials for rates over all questions, fewer for conditional ones.
    """

    value: float | None
    ci: tuple[float, float] | None
    n: int
    count: float | None = None

    @classmethod
    def of(cls, interval: Interval | None, n: int, count: float | None = None) -> Measure:
        if interval is None:
            return cls(None, None, n, count)
        return cls(interval.value, (interval.low, interval.high), n, count)


Measures = dict[str, Measure]


@dataclass(frozen=True, slots=True)
class Transitions:
    """How often two graded answers to the same question were right: the 2 x 2 table."""

    both: int
    only_first: int
    only_second: int
    neither: int

    @classmethod
    def of(cls, pairs: Iterable[tuple[bool, bool]]) -> Transitions:
        seen = list(pairs)
        return cls(*(seen.count(p) for p in _TABLE))

    @property
    def n(self) -> int:
        return self.both + self.only_first + self.only_second + self.neither

    def measures(self) -> Measures:
        """The measures of one sample a question; the conditional ones under their own names.

        a1, a2, delta, wrong_to_right, right_to_wrong are over all n (SCoRe, section 3);
        repair_rate = critique_score is over those wrong at first, confidence over those right at
        first (Yang et al. 2024).
        """
        b, f, s, w = self.both, self.only_first, self.only_second, self.neither
        paired = newcombe_paired(b, f, s, w) if self.n else None
        repaired = _rate(s, s + w)
        return {
            "a1": _rate(b + f, self.n),
            "a2": _rate(b + s, self.n),
            "delta": Measure.of(paired, self.n, s - f),
            "wrong_to_right": _rate(s, self.n),
            "right_to_wrong": _rate(f, self.n),
            "repair_rate": repaired,
            "critique_score": repaired,
            "confidence": _rate(b, b + f),
        }

    @property
    def p(self) -> float:
        """McNemar's exact, two-sided."""
        return mcnemar_exact(self.only_first, self.only_second)


@dataclass(frozen=True, slots=True)
class Found:
    """A protocol's measures, p-values by name, and the table of transitions if there is one."""

    measures: Measures
    p: dict[str, float] = field(default_factory=dict)
    table: Transitions | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Measured:
    """What a protocol found.

    Attributes:
        n: questions; samples: times that each was asked.
        sampled_tokens: over everything; None where an endpoint gave no counts.
        p: p-values by name.
        table: counts of (right at first, right at the end), where questions were asked once; what
            results are pooled by.
        notes: what a reader should know before believing the numbers.
    """

    protocol: str
    n: int
    samples: int
    measures: Measures
    sampled_tokens: int | None
    errors: int
    p: dict[str, float] = field(default_factory=dict)
    table: Transitions | None = None
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


_TABLE = ((True, True), (True, False), (False, True), (False, False))


def _rate(count: int, n: int) -> Measure:
    return Measure.of(wilson(count, n) if n else None, n, count)


# ---------------------------------------------------------------------- over records


Of = Callable[[Record], Iterable[tuple[float, float]]]
"""What a record adds to a measure: pairs of (numerator, denominator)."""

Pairs = Callable[[bool, bool], float]
"""A number for (right at first, right at the end)."""


def ratio(records: Sequence[Record], of: Of, *, signed: bool = False) -> Measure:
    """A ratio of sums, its interval bootstrapped by question.

    Where all questions are alike, a bootstrap knows no doubt: then the interval is that of one
    answer a question.

    Args:
        signed: it is a difference, which may be negative.
    """
    clusters: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for record in records:
        clusters[record.task].extend(of(record))
    above = sum(a for c in clusters.values() for a, _ in c)
    below = sum(b for c in clusters.values() for _, b in c)
    if below == 0 or len(clusters) < 2:
        return Measure(above / below if below else None, None, round(below), above)
    found = cluster_bootstrap(list(clusters.values()))
    if found.low == found.high:
        n = sum(any(b for _, b in c) for c in clusters.values())
        found = _of_one_each(found.value, n, signed)
    return Measure.of(found, round(below), above)


def _of_one_each(value: float, n: int, signed: bool) -> Interval:
    """The interval that `value` would have from one answer to each of n questions."""
    count = min(round(abs(value) * n), n)
    if signed:
        lost, gained = (count, 0) if value < 0 else (0, count)
        found = newcombe_paired(0, lost, gained, n - count)
    else:
        found = wilson(count, n)
    return Interval(value, min(found.low, value), max(found.high, value))


def rate(records: Sequence[Record], of: Callable[[Record], Iterable[bool]]) -> Measure:
    """How often something is so: Wilson's interval, or by question where one has several."""
    found = [(record, [bool(x) for x in of(record)]) for record in records]
    once = len({r.task for r, _ in found}) == len(found) and all(len(x) < 2 for _, x in found)
    if once:
        flags = [x for _, xs in found for x in xs]
        return _rate(sum(flags), len(flags))
    return ratio(records, lambda r: [(float(x), 1.0) for x in of(r)])


def mean(records: Sequence[Record], of: Callable[[Record], Iterable[float | None]]) -> Measure:
    """A mean over questions of a cost, with Student's t interval. Unknown ones are left out."""
    by_task: dict[str, list[float]] = defaultdict(list)
    for record in records:
        by_task[record.task] += [float(x) for x in of(record) if x is not None]
    means = [sum(xs) / len(xs) for xs in by_task.values() if xs]
    if len(means) < 2:
        return Measure(means[0] if means else None, None, len(means))
    return Measure.of(mean_interval(means), len(means))


def sound(answers: Iterable[Answer]) -> bool:
    """Whether none of them broke the grader: only such are counted in rates."""
    return all(a.grade is not Grade.ERROR for a in answers)


def accuracy(records: Sequence[Record], of: Callable[[Record], Iterable[Answer]]) -> Measure:
    """How often answers are right, those that broke the grader left out."""
    return rate(records, lambda r: [a.right for a in of(r) if sound([a])])


def paired(records: Sequence[Record], turns: int) -> Found:
    """Measures of trials whose answers follow on each other, from the first to the last turn."""
    last = turns - 1

    def ends(record: Record) -> list[tuple[bool, bool]]:
        return [(a.right, b.right) for a, b in _ends(record, last)]

    def standing(turn: int) -> Measure:
        of = [0, turn, last]
        return rate(
            records,
            lambda r: [t.after(turn).right for t in r.trials if sound(t.after(k) for k in of)],
        )

    table = Transitions.of(pair for record in records for pair in ends(record))
    once = len({r.task for r in records}) == len(records)
    found = table.measures() if once else _clustered(records, ends)
    if turns > 2:  # delta goes to the last turn, and every turn has an accuracy
        found |= {f"a{turn + 1}": standing(turn) for turn in range(1, turns)}
    found["edit_rate"] = rate(records, lambda r: [a.answer != b.answer for a, b in _ends(r, last)])
    found |= _verdicts(records)
    return Found(found, {"mcnemar_p": table.p}, table) if once else Found(found)


def _ends(record: Record, last: int) -> list[tuple[Answer, Answer]]:
    """The first answer of each trial and the one that stands at the end, both graded."""
    pairs = [(t.after(0), t.after(last)) for t in record.trials]
    return [pair for pair in pairs if sound(pair)]


def _clustered(
    records: Sequence[Record], ends: Callable[[Record], list[tuple[bool, bool]]]
) -> Measures:
    """The measures of `Transitions`, where questions were asked several times."""

    def over(above: Pairs, below: Pairs, *, signed: bool = False) -> Measure:
        return ratio(
            records,
            lambda r: [(float(above(*e)), float(below(*e))) for e in ends(r)],
            signed=signed,
        )

    def every(*_: bool) -> float:
        return 1.0

    repaired = over(lambda a, b: b and not a, lambda a, _: not a)
    return {
        "a1": over(lambda a, _: a, every),
        "a2": over(lambda _, b: b, every),
        "delta": over(lambda a, b: b - a, every, signed=True),
        "wrong_to_right": over(lambda a, b: b and not a, every),
        "right_to_wrong": over(lambda a, b: a and not b, every),
        "repair_rate": repaired,
        "critique_score": repaired,
        "confidence": over(lambda a, b: a and b, lambda a, _: a),
    }


def _verdicts(records: Sequence[Record]) -> Measures:
    """How often a second answer says that the first was wrong, by whether it was."""

    def said(record: Record, was_right: bool) -> list[bool]:
        spoken = [t.answers[:2] for t in record.trials if len(t.answers) > 1]
        graded = [(a, b) for a, b in spoken if sound([a])]
        return [b.verdict for a, b in graded if b.verdict is not None and a.right is was_right]

    if not any(said(r, True) + said(r, False) for r in records):
        return {}
    return {
        "says_no_if_right": rate(records, lambda r: said(r, True)),
        "says_no_if_wrong": rate(records, lambda r: said(r, False)),
    }


def costs(records: Sequence[Record]) -> Measures:
    """Tokens and seconds per question, by turn; truncated answers and critiques; errors.

    Seconds are from question to answer, others being answered meanwhile.
    """
    found: Measures = {}
    arms = sorted({t.arm for r in records for t in r.trials})
    for arm in arms:
        mine = f"/{arm}" if arm else ""
        longest = max(len(t.answers) for r in records for t in r.arm(arm))
        for turn in range(longest):
            found |= _cost(records, f"turn_{turn + 1}{mine}", _answers_in(arm, turn))
        if any(t.critiques for r in records for t in r.arm(arm)):
            found |= _cost(records, f"critiques{mine}", _critiques_in(arm))
    found["truncated"] = rate(records, lambda r: [a.said.truncated for a in r.answers])
    if any(t.critiques for r in records for t in r.trials):
        found["truncated_critiques"] = rate(
            records, lambda r: [c.truncated for t in r.trials for c in t.critiques]
        )
    found["errors"] = rate(records, lambda r: [a.grade is Grade.ERROR for a in r.answers])
    return found


def _answers_in(arm: str, turn: int) -> Callable[[Record], list[Said]]:
    return lambda r: [t.answers[turn].said for t in r.arm(arm) if turn < len(t.answers)]


def _critiques_in(arm: str) -> Callable[[Record], list[Said]]:
    return lambda r: [c for t in r.arm(arm) for c in t.critiques]


def _cost(records: Sequence[Record], name: str, of: Callable[[Record], list[Said]]) -> Measures:
    return {
        f"tokens/{name}": mean(records, lambda r: _together(s.tokens for s in of(r))),
        f"prompt_tokens/{name}": mean(records, lambda r: _together(s.prompt_tokens for s in of(r))),
        f"seconds/{name}": mean(records, lambda r: _together(s.seconds for s in of(r))),
    }


def _together(costs: Iterable[float | None]) -> list[float]:
    """What was asked of one question costs together; nothing where that is unknown, or no cost."""
    found = list(costs)
    known = [c for c in found if c is not None]
    return [sum(known)] if known and len(known) == len(found) else []


def no_room(records: Sequence[Record]) -> tuple[str, ...]:
    """Says how often another attempt was due and the conversation left no room for it."""
    cut = sum(t.no_room for r in records for t in r.trials)
    if not cut:
        return ()
    return (f"{cut} conversations left no room for another attempt: there the last answer stands.",)


def total_tokens(records: Sequence[Record]) -> int | None:
    counts = [r.tokens for r in records]
    known = [c for c in counts if c is not None]
    return sum(known) if len(known) == len(counts) else None


def too_few(measures: Measures, questions: int) -> tuple[str, ...]:
    """Says where N cannot tell a difference from none, and about what N could.

    Where questions were asked several times there is no such N: their samples are not independent.
    """
    delta, gained, lost = (measures.get(k) for k in ("delta", "wrong_to_right", "right_to_wrong"))
    if not (delta and gained and lost) or delta.value is None or delta.ci is None:
        return ()
    low, high = delta.ci
    if low > 0 or high < 0:
        return ()
    changed = (gained.value or 0.0) + (lost.value or 0.0)
    if delta.value == 0 or questions < delta.n:
        return (
            f"N = {questions}: the interval of delta reaches from {100 * low:+.1f} to "
            f"{100 * high:+.1f} points, and holds 0.",
        )
    try:
        needed = needed_for(delta.value, changed)
    except ValueError as error:
        raise InwitError(f"The counts contradict each other: {error}.") from error
    return (
        f"N = {delta.n} cannot separate a delta of {100 * abs(delta.value):.1f} points from 0: "
        f"about {round_up(needed):,} needed.",
    )


def round_up(n: int) -> int:
    """To two significant digits: a power calculation knows no more."""
    unit: int = 10 ** max(len(str(n)) - 2, 0)
    return -(-n // unit) * unit
