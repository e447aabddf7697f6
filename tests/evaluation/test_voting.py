"""Votes: of independent answers, and of revised ones at equal generations and equal tokens."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inwit.envs import Split
from inwit.evaluation.protocols import protocol
from inwit.evaluation.protocols.sequential import MOST
from inwit.evaluation.protocols.voting import elected, won
from inwit.evaluation.records import Answer, Record, Trial
from tests.evaluation.fakes import (
    KINDS,
    Script,
    answered,
    measured,
    quiz,
    speaker,
    stage_for,
)

R, W, E = "right", "wrong", "error"

# ---------------------------------------------------------------------- one vote


def ballot(*votes: str) -> list[Answer]:
    """`7r` is the answer 7, graded right; `8w` wrong; `8e` broke the grader."""
    grades = {"r": R, "w": W, "e": E}
    return [answered(grades[v[-1]], v[:-1]) for v in votes]


@pytest.mark.parametrize(
    ("votes", "winner"),
    [
        (["7r", "8w", "8w"], "8"),
        (["8w", "7r", "7r"], "7"),
        (["8w", "7r"], "8"),  # a tie: the first
        (["9w", "8w", "7r", "7r", "8w"], "8"),  # a tie of two, and one that lost
        (["8e", "8e", "7r"], "7"),  # errors have no vote
        (["7e", "8w", "7r", "7r"], "7"),
        (["7r"], "7"),
    ],
)
def test_who_is_elected(votes: list[str], winner: str) -> None:
    found = elected(ballot(*votes))
    assert found is not None and found.answer == winner
    assert won(ballot(*votes)) == [winner == "7"]


def test_nobody_is_elected_where_nobody_voted() -> None:
    assert elected([]) is None and elected(ballot("7e", "8e")) is None
    assert won(ballot("7e")) == []


@given(st.lists(st.tuples(st.sampled_from("123"), st.sampled_from("rwe")), max_size=9))
def test_an_election_by_any_other_count(votes: list[tuple[str, str]]) -> None:
    valid = [answer for answer, grade in votes if grade != "e"]
    found = elected(ballot(*("".join(v) for v in votes)))
    if not valid:
        assert found is None
        return
    assert found is not None
    [(first, most), *others] = Counter(valid).most_common()  # of equals, the first met
    assert found.answer == first
    assert all(n <= most for _, n in others)


# ---------------------------------------------------------------------- who is asked


@pytest.mark.parametrize("kind", KINDS)
def test_parallel_asks_2k_times_from_the_question_alone(kind: str) -> None:
    script = Script(solver=["7 right", "8 wrong", "7 right", "9 wrong", "8 wrong", "8 wrong"])
    env = quiz()
    trials = asyncio.run(
        protocol("parallel", {"k": 3}).ask(
            env.tasks(Split.TEST)[0], stage_for(env, speaker(kind, script))
        )
    )
    assert [t.answers[0].answer for t in trials] == [
        *("7 right", "8 wrong", "7 right"),
        *("9 wrong", "8 wrong", "8 wrong"),
    ]
    assert all(len(t.answers) == 1 for t in trials)
    assert len(set(script.asked)) == 1, "all are shown the same"
    m = measured("parallel", [Record("t0", 0, trials)], k=3).measures
    assert m["vote"].count == 0 and m["vote"].n == 1
    assert (m["a1"].count, m["a1"].n) == (2, 6)


@pytest.mark.parametrize("kind", KINDS)
def test_sequential_asks_both_arms(kind: str) -> None:
    """K first answers and a second one to each, in its own conversation; then 2K alone."""
    script = Script(
        solver=["a wrong", "b right", *["c wrong"] * 40],
        again=["yes a wrong", "no d wrong"],
    )
    env = quiz()
    trials = asyncio.run(
        protocol("sequential", {"k": 2}).ask(
            env.tasks(Split.TEST)[0], stage_for(env, speaker(kind, script))
        )
    )
    assert script.names[:4] == ["solver", "solver", "again", "again"]
    assert set(script.names[4:]) == {"solver"} and len(script.names) >= 8
    shown = [text for name, text in script.asked if name == "again"]
    assert ["a wrong" in text for text in shown] == [True, False]
    assert ["b right" in text for text in shown] == [False, True]
    pairs = [[a.said.text for a in t.answers] for t in trials if t.arm == "sequential"]
    assert pairs == [["a wrong", "yes a wrong"], ["b right", "no d wrong"]]
    alone = [t for t in trials if t.arm == "parallel"]
    assert len(alone) % 4 == 0
    spent = sum(t.tokens or 0 for t in alone)
    budget = sum(t.tokens or 0 for t in trials if t.arm == "sequential")
    assert spent >= budget
    assert spent - sum(t.tokens or 0 for t in alone[-4:]) < budget or len(alone) == 4


def test_independent_answers_are_no_copies_of_the_first_ones() -> None:
    """Each arm has its own random choices, and so has each batch of the second."""
    script = Script(solver="long long long right", again="long " * 30 + "right")
    env = quiz()
    solver = speaker("actor", script)
    asyncio.run(
        protocol("sequential", {"k": 1}).ask(env.tasks(Split.TEST)[0], stage_for(env, solver))
    )
    seeds = [sampling.seed for _, _, sampling in solver.policy.asked]  # type: ignore[attr-defined]
    assert len(seeds) == len(set(seeds)) == 2 + MOST


@pytest.mark.parametrize(("again", "batches"), [("right", 1), ("x " * 40 + "right", MOST)])
def test_independent_answers_use_up_the_tokens_of_the_pairs_within_reason(again, batches) -> None:
    script = Script(solver="right", again=again)
    env = quiz()
    trials = asyncio.run(
        protocol("sequential", {"k": 2}).ask(
            env.tasks(Split.TEST)[0], stage_for(env, speaker("correspondent", script))
        )
    )
    assert sum(t.arm == "parallel" for t in trials) == 4 * batches


@pytest.mark.parametrize("name", ["parallel", "sequential"])
def test_where_no_tokens_are_counted_nothing_is_equal(name: str) -> None:
    """An endpoint without counts: 2K answers, and no comparison at equal tokens."""
    script = Script(solver="a right", again="b wrong")
    env = quiz(2)
    stage = stage_for(env, speaker("correspondent", script, counts=False))
    records = [
        Record(t.id, 0, asyncio.run(protocol(name, {"k": 2}).ask(t, stage)))
        for t in env.tasks(Split.TEST)
    ]
    assert [len(r.arm("parallel")) for r in records] == [4, 4]
    found = measured(name, records, k=2)
    assert found.sampled_tokens is None
    if name == "sequential":
        m = found.measures
        assert (m["vote_parallel"].count, m["vote_parallel"].n) == (2, 2)
        assert m["vote_parallel_equal_tokens"].value is None
        assert m["finals_over_parallel_equal_tokens"].value is None
        assert m["finals_over_parallel"].value == -1.0


# ---------------------------------------------------------------------- what is counted

Vote = tuple[str, int]


def contest(
    name: str, pairs: Sequence[tuple[str, str]], alone: Sequence[str], tokens: int = 1
) -> Record:
    """Pairs of one token an answer, and independent answers of `tokens` each."""
    trials = [Trial(tuple(ballot(*pair)), (), "sequential") for pair in pairs]
    trials = [
        Trial(tuple(answered(str(a.grade), a.answer, 1) for a in t.answers), (), t.arm)
        for t in trials
    ]
    trials += [
        Trial((answered(str(a.grade), a.answer, tokens),), (), "parallel") for a in ballot(*alone)
    ]
    return Record(name, 0, tuple(trials))


def test_votes_by_hand() -> None:
    """K = 2, answers of one token: 4 tokens, 4 generations; the fifth answer is beyond both."""
    records = [
        # finals 7 7; all 8 7 9 7; parallel 8 8 7 7 -> 8, the first
        contest("a", [("8w", "7r"), ("9w", "7r")], ["8w", "8w", "7r", "7r", "7r"]),
        # finals 8 8; all 7 8 7 8 -> 7, the first; parallel 7
        contest("b", [("7r", "8w"), ("7r", "8w")], ["7r", "7r", "8w", "9w", "8w"]),
        # finals 7 8 -> 7; all 7 7 7 8; parallel 8
        contest("c", [("7r", "7r"), ("7r", "8w")], ["8w", "8w", "8w", "7r", "7r"]),
    ]
    m = measured("sequential", records, k=2).measures
    assert {k: v.count for k, v in m.items() if k.startswith("vote")} == {
        "vote_finals": 2,
        "vote_all": 3,
        "vote_parallel": 1,
        "vote_parallel_equal_tokens": 1,
    }
    gain = m["finals_over_parallel"]
    assert (gain.count, gain.n, gain.value) == (1, 3, pytest.approx(1 / 3))
    assert gain.ci is not None and gain.ci[0] < 0 < gain.ci[1]


def test_equal_tokens_and_equal_generations_differ() -> None:
    """Pairs took 4 tokens. Of answers of 2 tokens 2 fit; of one token as many as there are."""
    alone = ["8w", "8w", "7r", "7r", "7r", "7r", "7r", "7r"]
    pairs = [("7r", "7r"), ("7r", "7r")]
    dear = measured("sequential", [contest("a", pairs, alone, tokens=2)], k=2).measures
    assert (dear["vote_parallel"].count, dear["vote_parallel_equal_tokens"].count) == (0, 0)
    votes = ["7r", "7r", "8w", "8w", "8w"]
    dear = measured("sequential", [contest("a", pairs, votes, tokens=2)], k=2).measures
    assert (dear["vote_parallel"].count, dear["vote_parallel_equal_tokens"].count) == (1, 1)
    votes = ["7r", "8w", "8w", "8w"]
    dear = measured("sequential", [contest("a", pairs, votes, tokens=2)], k=2).measures
    assert (dear["vote_parallel"].count, dear["vote_parallel_equal_tokens"].count) == (0, 1)
    cheap = measured("sequential", [contest("a", pairs, alone, tokens=0)], k=2).measures
    assert (cheap["vote_parallel"].count, cheap["vote_parallel_equal_tokens"].count) == (0, 1)


def test_one_answer_is_heard_even_where_it_does_not_fit() -> None:
    record = contest("a", [("7r", "7r")], ["7r", "8w"], tokens=100)
    m = measured("sequential", [record], k=1).measures
    assert (m["vote_parallel_equal_tokens"].count, m["vote_parallel_equal_tokens"].n) == (1, 1)


def test_errors_have_no_vote_and_a_question_of_errors_is_left_out() -> None:
    """LESSONS 23: where one side has no vote at all, there is nothing to compare."""
    records = [
        contest("a", [("7r", "8e"), ("8w", "8e")], ["7r", "7r"]),
        contest("b", [("7r", "8e"), ("8w", "7r")], ["8w", "7e"]),
    ]
    m = measured("sequential", records, k=1).measures
    assert (m["vote_finals"].count, m["vote_finals"].n) == (1, 1)
    assert (m["vote_all"].count, m["vote_all"].n) == (2, 2)
    assert (m["vote_parallel"].count, m["vote_parallel"].n) == (1, 2)
    assert (m["finals_over_parallel"].count, m["finals_over_parallel"].n) == (1, 1)


def test_several_samples_are_compared_by_question() -> None:
    one = contest("a", [("7r", "7r")], ["8w"])
    two = contest("b", [("8w", "8w")], ["8w"])
    records = [Record(r.task, k, r.trials) for r in (one, two) for k in range(5)]
    gain = measured("sequential", records, k=1).measures["finals_over_parallel"]
    assert (gain.value, gain.n, gain.ci) == (0.5, 10, (0.0, 1.0))
