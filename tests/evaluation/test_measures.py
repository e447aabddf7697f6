"""Measures: pure functions of records, by hand, by identities, and against other people's code."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.proportion import proportion_confint

from inwit.envs import Split
from inwit.envs.lock import Lock, LockSettings
from inwit.evaluation.measures import (
    Found,
    Measure,
    Transitions,
    costs,
    mean,
    paired,
    rate,
    ratio,
    round_up,
    too_few,
    total_tokens,
)
from inwit.evaluation.records import Record, Trial
from inwit.evaluation.statistics import newcombe_paired, wilson
from inwit.rows import Episode
from tests.evaluation.fakes import answered, measured, recorded, said, table_of
from tests.methods.worlds import attempt_of

GRADES = ("right", "wrong", "error")


@st.composite
def followed(draw: st.DrawFn, samples: int = 1, turns: int = 2) -> list[Record]:
    """Records of several questions, each with trials of 1 to `turns` answers."""
    found = []
    for task in range(draw(st.integers(1, 12))):
        for sample in range(samples):
            grades = draw(st.lists(st.sampled_from(GRADES), min_size=1, max_size=turns))
            found.append(recorded(f"t{task}", *grades, sample=sample))
    return found


def wilson_of(count: int, n: int) -> tuple[float, float]:
    return tuple(map(float, proportion_confint(count, n, method="wilson")))  # type: ignore[return-value]


def newcombe_of(pairs: Sequence[tuple[bool, bool]]) -> tuple[float, float]:
    """Method 10 of Newcombe 1998, from the answers themselves and statsmodels' Wilson."""
    first, second = np.array(pairs, float).T
    n = len(pairs)
    p, q = first.mean(), second.mean()
    (l1, u1), (l2, u2) = wilson_of(int(first.sum()), n), wilson_of(int(second.sum()), n)
    spread = n * n * first.std() * second.std()
    product = n * n * np.mean((first - p) * (second - q))  # n times the covariance: ad - bc
    phi = 0.0
    if spread > 0:
        phi = (max(product - n / 2, 0) if product > 0 else product) / spread
    low = math.sqrt((q - l2) ** 2 - 2 * phi * (q - l2) * (u1 - p) + (u1 - p) ** 2)
    high = math.sqrt((u2 - q) ** 2 - 2 * phi * (u2 - q) * (p - l1) + (p - l1) ** 2)
    return float(q - p - low), float(q - p + high)


def graded(records: Sequence[Record], last: int = 1) -> list[tuple[bool, bool]]:
    """(right at first, right at the end) wherever both were graded."""
    found = []
    for record in records:
        grades = [str(a.grade) for a in record.trial.answers]
        ends = (grades[0], grades[min(last, len(grades) - 1)])
        if "error" not in ends:
            found.append((ends[0] == "right", ends[1] == "right"))
    return found


# ---------------------------------------------------------------------- one sample a question


def test_ten_questions_by_hand() -> None:
    """4 stay right, 1 is spoiled, 2 are mended, 3 stay wrong.

    McNemar: 3 pairs differ, 1 against 2: p = 2 * (1 + 3) / 8 = 1.
    """
    found = paired(table_of(4, 1, 2, 3), 2)
    counts = {name: (m.count, m.n, m.value) for name, m in found.measures.items()}
    assert counts == {
        "a1": (5, 10, 0.5),
        "a2": (6, 10, 0.6),
        "delta": (1, 10, pytest.approx(0.1)),
        "wrong_to_right": (2, 10, 0.2),
        "right_to_wrong": (1, 10, 0.1),
        "repair_rate": (2, 5, 0.4),
        "critique_score": (2, 5, 0.4),
        "confidence": (4, 5, 0.8),
        "edit_rate": (3, 10, 0.3),
    }
    assert found.table == Transitions(4, 1, 2, 3)
    assert found.p == {"mcnemar_p": 1.0}
    assert found.measures["repair_rate"].ci == pytest.approx(wilson_of(2, 5), abs=1e-9)


def test_the_exact_p_by_hand() -> None:
    """1 spoiled against 7 mended: 2 * (1 + 8) / 256."""
    assert paired(table_of(0, 1, 7, 0), 2).p["mcnemar_p"] == pytest.approx(18 / 256)


@given(followed(), st.integers(2, 3))
def test_identities_of_one_sample_a_question(records: list[Record], turns: int) -> None:
    """LESSONS 23: all of it over the same N, which holds no error."""
    found = paired(records, turns)
    m, n = found.measures, len(graded(records, turns - 1))
    after = m["a2" if turns == 2 else f"a{turns}"]
    over_all = (m["a1"], after, m["delta"], m["wrong_to_right"], m["right_to_wrong"])
    assert [x.n for x in over_all] == [n] * 5
    assert found.table is not None and found.table.n == n
    if n == 0:
        assert all(x.value is None and x.ci is None for x in over_all)
        return
    first, last, delta, gained, lost = (x.value for x in over_all)
    assert delta == pytest.approx(gained - lost, abs=1e-12)
    assert last == pytest.approx(first + delta, abs=1e-12)
    assert m["delta"].count == m["wrong_to_right"].count - m["right_to_wrong"].count
    assert after.count == m["a1"].count + m["delta"].count
    assert m["repair_rate"].n + m["confidence"].n == n
    assert m["repair_rate"].count == m["wrong_to_right"].count
    assert m["confidence"].count + m["right_to_wrong"].count == m["a1"].count
    assert m["repair_rate"] == m["critique_score"]
    assert all(x.ci[0] <= x.value <= x.ci[1] for x in m.values() if x.ci)


@given(followed())
def test_rates_are_statsmodels_rates(records: list[Record]) -> None:
    """Wilson's interval of every rate, Newcombe's of the difference, McNemar's exact test."""
    pairs = graded(records)
    found = paired(records, 2)
    wrong = [b for a, b in pairs if not a]
    right = [b for a, b in pairs if a]
    expected = {
        "a1": (len(right), len(pairs)),
        "a2": (sum(b for _, b in pairs), len(pairs)),
        "wrong_to_right": (sum(wrong), len(pairs)),
        "right_to_wrong": (len(right) - sum(right), len(pairs)),
        "repair_rate": (sum(wrong), len(wrong)),
        "confidence": (sum(right), len(right)),
        "edit_rate": (sum(a != b for a, b in pairs), len(pairs)),
    }
    for name, (count, n) in expected.items():
        m = found.measures[name]
        assert (m.count, m.n) == (count, n), name
        if n == 0:
            assert m == Measure(None, None, 0, 0)
        else:
            assert m.value == pytest.approx(count / n, abs=1e-9)
            assert m.ci == pytest.approx(wilson_of(count, n), abs=1e-9)
    if pairs:
        assert found.measures["delta"].ci == pytest.approx(newcombe_of(pairs), abs=1e-9)
        both = [[sum(p == (a, b) for p in pairs) for b in (True, False)] for a in (True, False)]
        theirs = mcnemar(both, exact=True).pvalue
        assert found.p["mcnemar_p"] == pytest.approx(min(theirs, 1.0), abs=1e-9)


@given(st.lists(st.lists(st.integers(0, 500), min_size=1, max_size=3), min_size=2, max_size=9))
def test_mean_costs_are_scipys(tokens: list[list[int]]) -> None:
    """A question's samples count as one: first their mean, then the mean over questions."""
    records = [
        Record(f"t{i}", k, (Trial((answered("right", tokens=n),)),))
        for i, of in enumerate(tokens)
        for k, n in enumerate(of)
    ]
    found = costs(records)["tokens/turn_1"]
    means = [float(np.mean(of)) for of in tokens]
    assert found.n == len(tokens)
    assert found.value == pytest.approx(float(np.mean(means)), abs=1e-9)
    if np.std(means) > 0:
        theirs = stats.ttest_1samp(means, 0.0).confidence_interval(0.95)
        assert found.ci == pytest.approx((theirs.low, theirs.high), rel=1e-9, abs=1e-9)


def test_every_turn_has_an_accuracy_and_delta_goes_to_the_last() -> None:
    """After an answer that was not made the one before it stands."""
    records = [
        recorded("a", "wrong", "right", "wrong"),
        recorded("b", "right"),
        recorded("c", "wrong", "wrong", "right"),
        recorded("d", "right", "wrong"),
    ]
    m = paired(records, 3).measures
    assert [m[f"a{k}"].count for k in (1, 2, 3)] == [2, 2, 2]
    assert (m["wrong_to_right"].count, m["right_to_wrong"].count) == (1, 1)
    assert "a3" not in paired(records, 2).measures
    assert "a4" not in m


# ---------------------------------------------------------------------- errors, unknown, verdicts


def test_errors_are_outside_of_n_and_counted() -> None:
    """LESSONS 23: an error is neither right nor wrong."""
    records = [
        recorded("a", "right", "right"),
        recorded("b", "wrong", "error"),
        recorded("c", "error", "right"),
        recorded("d", "error"),
    ]
    found = measured("intrinsic", records)
    assert (found.n, found.errors) == (4, 3)
    m = found.measures
    assert (m["a1"].count, m["a1"].n) == (1, 1)
    assert m["delta"].n == m["edit_rate"].n == m["confidence"].n == 1
    assert m["repair_rate"] == Measure(None, None, 0, 0)
    assert (m["errors"].count, m["errors"].n) == (3, 7)


def test_an_error_in_the_middle_leaves_the_ends_alone() -> None:
    records = [recorded("a", "wrong", "error", "right"), recorded("b", "right", "right", "right")]
    m = paired(records, 3).measures
    assert (m["delta"].n, m["wrong_to_right"].count) == (2, 1)
    assert (m["a2"].n, m["a2"].count) == (1, 1)


def test_only_errors_measure_nothing() -> None:
    for name in ("direct", "intrinsic", "repair", "parallel"):
        records = [recorded(f"t{i}", "error", arm="parallel") for i in range(3)]
        found = measured(name, records)
        assert found.errors == 3
        rates = [m for k, m in found.measures.items() if k in ("a1", "a2", "repaired", "vote")]
        assert rates and all(m.value is None and m.n == 0 for m in rates)


def test_unknown_tokens_are_none_and_not_zero() -> None:
    known, unknown = answered("right", tokens=5), answered("right", tokens=None)
    records = [Record("a", 0, (Trial((known,)),)), Record("b", 0, (Trial((unknown,)),))]
    assert total_tokens(records) is None
    assert total_tokens(records[:1]) == 5
    partly = costs(records)
    assert partly["tokens/turn_1"] == Measure(5.0, None, 1)
    assert partly["seconds/turn_1"].n == 2
    none = measured("direct", records[1:])
    assert none.sampled_tokens is None
    assert none.measures["tokens/turn_1"] == none.measures["prompt_tokens/turn_1"]
    assert none.measures["tokens/turn_1"] == Measure(None, None, 0)


def test_critiques_and_cut_answers_are_counted() -> None:
    cut = answered("wrong", truncated=True)
    records = [
        Record("a", 0, (Trial((cut, answered("right", tokens=7)), (said(4), said(6))),)),
        Record("b", 0, (Trial((answered("right"),)),)),
    ]
    m = costs(records)
    assert m["tokens/critiques"] == Measure(10.0, None, 1), "both, of the one question"
    assert (m["truncated_critiques"].count, m["truncated_critiques"].n) == (0, 2)
    assert m["tokens/turn_2"] == Measure(7.0, None, 1)
    assert (m["truncated"].count, m["truncated"].n) == (1, 3)
    assert total_tokens(records) == 3 + 7 + 4 + 6 + 3
    assert "tokens/critiques" not in costs(records[1:])


def test_costs_are_told_apart_by_arm() -> None:
    trials = [(3, "own"), (9, "user")]
    record = Record("a", 0, tuple(Trial((answered("right", tokens=n),), (), a) for n, a in trials))
    m = costs([record])
    assert (m["tokens/turn_1/own"].value, m["tokens/turn_1/user"].value) == (3, 9)
    assert "tokens/turn_1" not in m


def test_verdicts_of_the_lock() -> None:
    """Whether a second answer says that the first was wrong, by whether it was.

    Says nothing: neither. First answers that broke the grader were neither right nor wrong.
    """
    env = Lock(LockSettings(train=4, dev=4, test=4))
    task = env.tasks(Split.DEV)[0]
    gold, other = task.reference, task.data["wrong"]

    def record(name: str, first: str, second: str, broke: bool = False) -> Record:
        grades = [str(env.grade(task, text).grade) for text in (first, second)]
        attempts = [
            replace(
                attempt_of("error" if broke and not i else grades[i], index=i),
                text=text,
                answer=env.answer_of(task, text),
                verdict=env.verdict(text) if i else None,
            )
            for i, text in enumerate((first, second))
        ]
        return Record(name, 0, (Trial.of(Episode("", name, tuple(attempts))),))

    records = [
        record("a", gold, f"yes {gold}"),
        record("b", gold, f"no {other}"),
        record("c", other, f"no {gold}"),
        record("d", other, f"no {other}"),
        record("e", other, f"yes {other}"),
        record("f", other, gold),
        record("g", gold, f"no {gold}", broke=True),
    ]
    m = measured("intrinsic", records).measures
    assert (m["says_no_if_right"].count, m["says_no_if_right"].n) == (1, 2)
    assert (m["says_no_if_wrong"].count, m["says_no_if_wrong"].n) == (2, 3)
    assert (m["edit_rate"].count, m["edit_rate"].n) == (3, 6)  # b, c and f
    assert "says_no_if_wrong" not in measured("intrinsic", table_of(1, 1, 1, 1)).measures


# ---------------------------------------------------------------------- several samples


def sampled(patterns: Sequence[str], samples: int) -> list[Record]:
    """Each question answered alike in all its samples: `01` is wrong at first, right after."""
    word = {"0": "wrong", "1": "right"}
    return [
        recorded(f"t{i}", *(word[c] for c in pattern), sample=k)
        for k in range(samples)
        for i, pattern in enumerate(patterns)
    ]


def test_samples_that_agree_are_no_more_questions() -> None:
    """12 samples of 10 questions that always answer alike: N of them is near 10, not 120."""
    patterns = ["11"] * 4 + ["10"] + ["01"] * 2 + ["00"] * 3
    once, often = (paired(sampled(patterns, n), 2).measures for n in (1, 12))
    for name, m in often.items():
        assert m.value == pytest.approx(once[name].value), name
        assert m.n == 12 * once[name].n

    def width(m: Measure) -> float:
        assert m.ci is not None
        return m.ci[1] - m.ci[0]

    pretending = wilson_of(60, 120)
    assert width(often["a1"]) > 2 * (pretending[1] - pretending[0])
    assert 0.5 * width(once["a1"]) < width(often["a1"]) < 1.5 * width(once["a1"])
    assert width(often["delta"]) > 0.5 * width(once["delta"])
    assert paired(sampled(patterns, 12), 2) == Found(often), "no table, no p-value: not independent"


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6))
def test_the_bootstrap_is_near_a_cluster_robust_error(seed: int) -> None:
    """statsmodels' sandwich over 60 questions of 4 samples, which the percentiles approach."""
    r = np.random.default_rng(seed)
    flags = [r.random(4) < share for share in r.beta(2, 2, 60)]
    records = [
        recorded(f"t{i}", "right" if flag else "wrong", sample=k)
        for i, of in enumerate(flags)
        for k, flag in enumerate(of)
    ]
    found = measured("direct", records).measures["a1"]
    y = np.concatenate(flags).astype(float)
    groups = np.repeat(np.arange(60), 4)
    fit = sm.OLS(y, np.ones_like(y)).fit(
        cov_type="cluster", cov_kwds={"groups": groups, "use_correction": False}
    )
    assert found.value == pytest.approx(y.mean(), abs=1e-9)
    assert found.ci[1] - found.ci[0] == pytest.approx(2 * 1.96 * fit.bse[0], rel=0.06)


@settings(max_examples=30, deadline=None)
@given(followed(samples=2))
def test_identities_of_several_samples(records: list[Record]) -> None:
    m = paired(records, 2).measures
    pairs = graded(records)
    assert [m[k].n for k in ("a1", "a2", "delta", "wrong_to_right")] == [len(pairs)] * 4
    assert m["a1"].count == sum(a for a, _ in pairs)
    assert m["wrong_to_right"].count == sum(b and not a for a, b in pairs)
    assert m["repair_rate"].n + m["confidence"].n == len(pairs)
    if pairs:
        gained, lost = m["wrong_to_right"].value, m["right_to_wrong"].value
        assert m["delta"].value == pytest.approx(gained - lost)
        assert m["a2"].value == pytest.approx(m["a1"].value + m["delta"].value)


def test_one_question_has_no_interval() -> None:
    """Whatever the number of its samples: nothing is known of other questions."""
    found = measured("intrinsic", sampled(["01"], 5))
    assert (found.n, found.samples) == (1, 5)
    assert found.measures["delta"] == Measure(1.0, None, 5, 5.0)
    assert found.notes == ()


def test_ratios_of_nothing() -> None:
    records = sampled(["01", "00"], 2)
    assert ratio(records, lambda r: []) == Measure(None, None, 0, 0)
    assert rate([], lambda r: [True]) == Measure(None, None, 0, 0)
    assert mean(records, lambda r: [None]) == Measure(None, None, 0)


# ---------------------------------------------------------------------- too few


def test_a_table_that_is_too_small_says_so() -> None:
    """40 questions, 3 mended and 2 spoiled: 2.5 points, which some 1,600 questions could tell.

    By Connor: (1.96 sqrt(.125) + 0.8416 sqrt(.125 - .025^2))^2 / .025^2, near 1,570.
    """
    z, power, changed, delta = 1.959964, 0.841621, 5 / 40, 1 / 40
    level = z * math.sqrt(changed) + power * math.sqrt(changed - delta**2)
    needed = math.ceil((level / delta) ** 2)
    assert 1500 < needed < 1600
    assert measured("intrinsic", table_of(20, 2, 3, 15)).notes == (
        f"N = 40 cannot separate a delta of 2.5 points from 0: about {round_up(needed):,} needed.",
    )
    assert round_up(needed) == 1600


def test_a_loss_that_is_too_small_to_tell_is_told_as_much() -> None:
    [note] = measured("intrinsic", table_of(20, 3, 2, 15)).notes
    assert note.startswith("N = 40 cannot separate a delta of 2.5 points from 0: about 1,600")


@pytest.mark.parametrize("table", [(20, 0, 15, 5), (20, 15, 0, 5)])
def test_it_is_silent_where_the_interval_excludes_0(table) -> None:
    found = measured("intrinsic", table_of(*table))
    low, high = found.measures["delta"].ci
    assert low > 0 or high < 0
    assert found.notes == ()


def test_no_difference_at_all() -> None:
    found = measured("intrinsic", table_of(20, 2, 2, 16))
    low, high = (100 * x for x in found.measures["delta"].ci)
    assert found.notes == (
        f"N = 40: the interval of delta reaches from {low:+.1f} to {high:+.1f} points, and "
        "holds 0.",
    )


@given(st.tuples(*[st.integers(0, 60)] * 4).filter(any))
def test_every_table_is_noted_if_and_only_if_its_interval_holds_0(table) -> None:
    """And none breaks the note: a table's counts do not contradict each other."""
    measures = Transitions(*table).measures()
    low, high = measures["delta"].ci
    assert bool(too_few(measures, sum(table))) == (low <= 0 <= high)


@pytest.mark.parametrize(
    ("n", "up"), [(1, 1), (99, 99), (100, 100), (101, 110), (1570, 1600), (123_456, 130_000)]
)
def test_two_digits(n: int, up: int) -> None:
    assert round_up(n) == up


# ---------------------------------------------------------------------- the whole


@settings(max_examples=10)
@given(st.permutations(table_of(2, 1, 2, 3)))
def test_the_order_of_records_says_nothing(records: Any) -> None:
    assert measured("intrinsic", records) == measured("intrinsic", table_of(2, 1, 2, 3))


def test_what_is_measured_can_be_written_down() -> None:
    found = measured("intrinsic", table_of(4, 1, 2, 3)).as_dict()
    assert found["protocol"] == "intrinsic"
    assert found["table"] == {"both": 4, "only_first": 1, "only_second": 2, "neither": 3}
    assert (found["n"], found["samples"], found["sampled_tokens"]) == (10, 1, 60)
    by_n: dict[int, set[str]] = defaultdict(set)
    for name, m in found["measures"].items():
        by_n[m["n"]].add(name)
    assert by_n[5] == {"repair_rate", "critique_score", "confidence"}


@pytest.mark.parametrize(
    ("value", "signed", "wanted"),
    [
        (0.0, False, wilson(0, 8)),
        (1.0, False, wilson(8, 8)),
        (0.0, True, newcombe_paired(0, 0, 0, 8)),
        (1.0, True, newcombe_paired(0, 0, 8, 0)),
        (-1.0, True, newcombe_paired(0, 8, 0, 0)),
    ],
)
def test_where_all_questions_are_alike_there_is_doubt_nevertheless(value, signed, wanted):
    """Every draw of a bootstrap is then the same; eight questions are no certainty."""
    records = [recorded(f"q{i}", "right", sample=k) for i in range(8) for k in range(2)]
    found = ratio(records, lambda _: [(value, 1.0)], signed=signed)
    assert (found.value, found.n) == (value, 16)
    assert found.ci == pytest.approx((wanted.low, wanted.high), abs=1e-12)
    assert found.ci[1] - found.ci[0] > 0.1


def test_conversations_without_room_are_told() -> None:
    trials = (Trial((answered("right"),), no_room=True), Trial((answered("right"),) * 2))
    records = [Record(f"q{i}", 0, (t,)) for i, t in enumerate(trials)]
    [note] = [n for n in measured("intrinsic", records).notes if "room" in n]
    assert note.startswith("1 conversations left no room")
