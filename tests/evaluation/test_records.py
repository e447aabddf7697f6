"""Records: what is kept of an answer, written down and read back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inwit.evaluation.records import Answer, Record, Said, Trial
from inwit.files import plain
from inwit.rows import Completion, Critique, Episode, Grade, Role, Sees, Stop, Turn
from tests.evaluation.fakes import answered, recorded, said
from tests.methods.worlds import CRITIC, QUESTION, attempt_of, turn_of

counts = st.none() | st.integers(0, 10**6)
saids = st.builds(
    Said,
    text=st.text(max_size=8),
    tokens=counts,
    prompt_tokens=counts,
    seconds=st.floats(0, 1e6),
    truncated=st.booleans(),
    sees=st.lists(st.sampled_from(sorted(Sees)).map(str), unique=True).map(tuple),
)
answers = st.builds(
    Answer,
    grade=st.sampled_from(Grade),
    answer=st.text(max_size=8),
    said=saids,
    verdict=st.none() | st.booleans(),
    feedback=st.text(max_size=8),
)
trials = st.builds(
    Trial,
    answers=st.lists(answers, min_size=1, max_size=3).map(tuple),
    critiques=st.lists(saids, max_size=2).map(tuple),
    arm=st.sampled_from(["", "own", "parallel"]),
)
records = st.builds(
    Record,
    task=st.text(min_size=1, max_size=8),
    sample=st.integers(0, 9),
    trials=st.lists(trials, min_size=1, max_size=3).map(tuple),
)


def endpoint_turn(counted: tuple[int, int] | None, stop: Stop = Stop.TOKEN) -> Turn:
    return Turn(Role.SOLVER, (), Completion((), (), stop), QUESTION, text="so", counted=counted)


# ---------------------------------------------------------------------- written down


@given(records)
def test_a_record_reads_back_as_itself(record: Record) -> None:
    """Grades and tuples included, through the file's own JSON."""
    written = json.dumps(plain(record.as_dict()), ensure_ascii=False)
    assert Record.from_dict(json.loads(written)) == record
    assert "\n" not in written


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: d.pop("task"),
        lambda d: d.pop("trials"),
        lambda d: d.update(trials=[7]),
        lambda d: d["trials"][0].pop("arm"),
        lambda d: d["trials"][0]["answers"][0].update(grade="fine"),
        lambda d: d["trials"][0]["answers"][0].update(mood="glad"),
        lambda d: d["trials"][0]["answers"][0].pop("said"),
        lambda d: d["trials"][0]["answers"][0]["said"].pop("tokens"),
        lambda d: d["trials"][0]["answers"][0]["said"].pop("sees"),
    ],
)
def test_what_is_no_record_is_refused(spoil: Any) -> None:
    data = json.loads(json.dumps(recorded("t", "right").as_dict()))
    assert Record.from_dict(data)
    spoil(data)
    with pytest.raises((KeyError, TypeError, ValueError)):
        Record.from_dict(data)


# ---------------------------------------------------------------------- what is kept


def test_what_turns_cost_is_added_up() -> None:
    """Tokens of an attempt of several turns are the sum; where it was cut off, the last one's."""
    first = replace(turn_of((1, 2), (3, 4, 5), stop=Stop.LENGTH), seconds=0.25)
    last = replace(turn_of((1, 2, 3, 4, 5, 6), (7,)), seconds=0.5)
    found = Said.of([first, last], "both")
    assert found == Said("both", 4, 8, 0.75, False, ("question",))
    assert Said.of([last, first], "").truncated
    assert Said.of([turn_of((1,), (2,), sees=CRITIC)], "").sees == (
        "attempt",
        "outcome",
        "question",
    )


@pytest.mark.parametrize(
    ("turns", "tokens", "prompt"),
    [
        ([endpoint_turn((9, 4))], 4, 9),
        ([endpoint_turn((0, 0))], 0, 0),
        ([endpoint_turn(None)], None, None),
        ([endpoint_turn((9, 4)), endpoint_turn(None)], None, None),
    ],
)
def test_what_an_endpoint_did_not_count_is_unknown(turns, tokens, prompt) -> None:
    """Not 0: a zero would pass for a cheap answer."""
    found = Said.of(turns, "so")
    assert (found.tokens, found.prompt_tokens) == (tokens, prompt)


@given(st.lists(counts, min_size=1, max_size=4), st.lists(counts, max_size=3))
def test_a_total_with_an_unknown_part_is_unknown(said_of: Any, noted: Any) -> None:
    trial = Trial(
        tuple(answered("wrong", tokens=n) for n in said_of), tuple(said(n) for n in noted)
    )
    every = [*said_of, *noted]
    total = None if None in every else sum(every)
    assert trial.tokens == total
    twice = Record("t", 0, (trial, trial)).tokens
    assert twice == (None if total is None else 2 * total)


def test_after_a_turn_that_was_not_made_the_last_answer_stands() -> None:
    [first, second] = (answered("wrong", "a"), answered("right", "b"))
    trial = Trial((first, second))
    assert [trial.after(k) for k in range(4)] == [first, second, second, second]
    assert Trial((first,)).after(1) is first


def test_a_trial_of_an_episode() -> None:
    """Grades, answers, verdicts, critiques, and what broke: of others feedback is not kept."""
    said_no = replace(attempt_of("right", index=1), answer="is right", verdict=True)
    broke = replace(attempt_of("error", index=2), feedback="the floor gave way")
    first = replace(attempt_of("wrong", feedback="gold is 7"), answer="wrong")
    note = Critique(0, 0, turn_of((7,), (8, 9), Role.CRITIC, CRITIC), "a note", 2.0)
    trial = Trial.of(Episode("", "t", (first, said_no, broke), (note,)), "own")
    assert [str(a.grade) for a in trial.answers] == ["wrong", "right", "error"]
    assert [a.right for a in trial.answers] == [False, True, False]
    assert [a.answer for a in trial.answers[:2]] == ["wrong", "is right"]
    assert [a.verdict for a in trial.answers] == [None, True, None]
    assert [a.feedback for a in trial.answers] == ["", "", "the floor gave way"]
    assert [c.text for c in trial.critiques] == ["a note"]
    assert (trial.arm, trial.tokens) == ("own", 2 * 3 + 2)


def test_a_records_arms() -> None:
    own, user = (recorded("t", grade, arm=arm) for grade, arm in (("wrong", "own"), ("right", "u")))
    record = Record("t", 0, own.trials + user.trials)
    assert record.arm("u") == [user.trial] and record.arm("nobody") == []
    assert [str(a.grade) for a in record.answers] == ["wrong", "right"]
    assert record.trial == own.trial
