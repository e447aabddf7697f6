"""Asking all questions: what is kept, what is asked again, and what a fault does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inwit.engines.openai import BudgetSpent, EndpointError, Unanswered
from inwit.envs import Split, Task
from inwit.errors import InwitError
from inwit.evaluation.protocols import protocol
from inwit.evaluation.records import Record
from inwit.evaluation.running import IN_A_ROW, Answers, Faults, ask_all, check
from inwit.files import append_jsonl
from tests.evaluation.fakes import KINDS, Quiz, Script, quiz, recorded, speaker, stage_for

Say = Callable[[str, int], str]


def run(env: Quiz, say: Say, *, kind: str = "correspondent", way: str = "direct", **rest: Any):
    """(records, faults) of a quiz."""
    stage = stage_for(env, speaker(kind, say))
    return asyncio.run(ask_all(protocol(way), env.tasks(Split.TEST), stage, **rest))


def failing(*numbers: int, error: type[EndpointError] = Unanswered) -> tuple[Say, list[int]]:
    """Says that all is right but for the questions of these numbers; and a list of those asked."""
    asked: list[int] = []

    def say(shown: str, sample: int) -> str:
        number = int(shown.split("question ")[1].split()[0])
        asked.append(number)
        if number in numbers:
            raise error(f"no answer to {number}")
        return "right"

    return say, asked


# ---------------------------------------------------------------------- answers in a file


def test_answers_are_kept_as_they_come(tmp_path: Path) -> None:
    """Each is in the file before the next is asked: a kill loses none."""
    file = tmp_path / "answers.jsonl"
    seen: list[int] = []

    def say(shown: str, sample: int) -> str:
        seen.append(len(file.read_text().splitlines()) if file.exists() else 0)
        return "right"

    records, _ = run(quiz(4), say, answers=Answers(file), at_once=1)
    assert seen == [0, 1, 2, 3]
    assert Answers(file).of(quiz(4).tasks(Split.TEST), 1) == records


def test_what_was_answered_is_not_asked_again(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    run(quiz(3), lambda *_: "wrong", answers=Answers(file))
    before = file.read_bytes()
    say, asked = failing()
    records, _ = run(quiz(5), say, answers=Answers(file))
    assert sorted(asked) == [3, 4]
    assert [r.task for r in records] == ["t0", "t1", "t2", "t3", "t4"]
    assert [r.trial.answers[0].right for r in records] == [False] * 3 + [True] * 2
    assert file.read_bytes().startswith(before)


def test_records_of_other_tasks_and_samples_are_left_where_they_are(tmp_path: Path) -> None:
    answers = Answers(tmp_path / "a")
    every = [recorded(f"t{i}", "right", sample=k) for i in range(3) for k in range(2)]
    for record in every:
        answers.add(record)
    two = quiz(2).tasks(Split.TEST)
    assert [(r.task, r.sample) for r in answers.of(two, 1)] == [("t0", 0), ("t1", 0)]
    assert [(r.task, r.sample) for r in Answers(tmp_path / "a").of(two, 2)] == [
        *(("t0", 0), ("t1", 0), ("t0", 1), ("t1", 1))
    ]
    assert ("t2", 1) in answers and ("t2", 2) not in answers


@pytest.mark.parametrize("cut", [1, 2, 40])
def test_a_torn_last_line_is_cut_and_its_question_asked_again(tmp_path: Path, cut: int) -> None:
    file = tmp_path / "answers.jsonl"
    run(quiz(3), lambda *_: "right", answers=Answers(file), at_once=1)
    whole = file.read_bytes()
    file.write_bytes(whole[:-cut])
    say, asked = failing()
    records, _ = run(quiz(3), say, answers=Answers(file))
    assert asked == [2] and len(records) == 3
    assert [json.loads(line)["task"] for line in file.read_text().splitlines()] == [
        *("t0", "t1", "t2")
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{not json", "not a record"),
        (b"[]", "not a record"),
        (b'{"task": "t9"}', "not a record"),
        (b'{"task": "t9", "sample": 0, "trials": [{}]}', "not a record"),
        (b"\xff\xfe", "not a record"),
    ],
)
def test_a_broken_line_in_the_middle_is_named(tmp_path: Path, line: bytes, said: str) -> None:
    file = tmp_path / "answers.jsonl"
    append_jsonl(file, [recorded("t0", "right").as_dict()])
    good = file.read_bytes()
    file.write_bytes(good + line + b"\n" + good)
    with pytest.raises(InwitError, match=rf"(?s)answers\.jsonl, line 2: {said}.*asked again"):
        Answers(file)


def test_lines_that_only_look_like_several(tmp_path: Path) -> None:
    """Texts may hold any line end."""
    file = tmp_path / "answers.jsonl"
    ends = "a\u2028b\x0bc\x85d\ne\r\nf right"
    records, _ = run(quiz(2), lambda *_: ends, answers=Answers(file))
    assert Answers(file).of(quiz(2).tasks(Split.TEST), 1) == records
    assert records[0].trial.answers[0].said.text == ends


# ---------------------------------------------------------------------- who is asked


def test_two_tasks_with_one_id_are_refused_before_anything_is_asked() -> None:
    """Their answers could not be told apart."""
    env = Quiz(Task("a", "question 1"), Task("b", "question 2"), Task("a", "question 3"))
    say, asked = failing()
    with pytest.raises(InwitError, match="Two tasks have the id 'a'"):
        run(env, say)
    assert asked == []
    with pytest.raises(InwitError, match="Two tasks"):
        check(protocol("direct"), env.tasks(Split.TEST), stage_for(env, speaker("actor", say)))


@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_drawn_apart_and_the_first_as_if_alone(kind: str) -> None:
    """More samples change none of those that there are."""
    env = quiz(2)

    def seeds(samples: int) -> list[int]:
        solver = speaker(kind, lambda *_: "right")
        way = protocol("direct")
        stage = stage_for(env, solver)
        records, _ = asyncio.run(ask_all(way, env.tasks(Split.TEST), stage, samples=samples))
        assert [(r.task, r.sample) for r in records] == [
            (f"t{i}", k) for k in range(samples) for i in range(2)
        ]
        if kind == "actor":
            return [s.seed for _, _, s in solver.policy.asked]  # type: ignore[attr-defined]
        return [asked["seed"] for asked in solver.endpoint.asked]  # type: ignore[attr-defined]

    three = seeds(3)
    assert len(set(three)) == 6
    assert three[:2] == seeds(1)


@pytest.mark.parametrize("limit", [1, 3])
def test_no_more_than_so_many_at_once(limit: int) -> None:
    env = quiz(9)
    now, most = 0, 0

    class Busy:
        async def chat(self, messages: object, **_: object) -> Any:
            nonlocal now, most
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.001)
            now -= 1
            return await inner.chat(messages)  # type: ignore[arg-type]

    solver = speaker("correspondent", lambda *_: "right")
    inner = solver.endpoint  # type: ignore[attr-defined]
    object.__setattr__(solver, "endpoint", Busy())
    stage = stage_for(env, solver)
    way = protocol("intrinsic")
    records, _ = asyncio.run(ask_all(way, env.tasks(Split.TEST), stage, at_once=limit))
    assert len(records) == 9 and most == limit


def test_every_new_record_is_told() -> None:
    told: list[Record] = []
    kept = Answers()
    kept.add(recorded("t1", "right"))
    records, _ = run(quiz(3), lambda *_: "right", answers=kept, tell=told.append)
    assert {r.task for r in told} == {"t0", "t2"} and len(records) == 3


# ---------------------------------------------------------------------- faults


def test_a_passing_fault_costs_one_question() -> None:
    say, asked = failing(2, 4)
    records, faults = run(quiz(8), say, at_once=1)
    assert asked == list(range(8))
    assert [r.task for r in records] == ["t0", "t1", "t3", "t5", "t6", "t7"]
    assert faults.unanswered == {("t2", 0): "no answer to 2", ("t4", 0): "no answer to 4"}
    assert faults.stopped == ""


def test_half_an_answer_is_none() -> None:
    """A question whose second turn went unanswered is asked again from the start."""

    def say(shown: str, sample: int) -> str:
        if "once more" in shown and "question 1" in shown:
            raise Unanswered("gone")
        return "right"

    records, faults = run(quiz(3), say, way="intrinsic")
    assert [r.task for r in records] == ["t0", "t2"]
    assert list(faults.unanswered) == [("t1", 0)]


def test_five_in_a_row_end_it() -> None:
    say, asked = failing(*range(3, 20))
    records, faults = run(quiz(20), say, at_once=1)
    assert asked == list(range(3 + IN_A_ROW)) and IN_A_ROW == 5
    assert len(records) == 3 and len(faults.unanswered) == 5
    assert faults.stopped == "no answer to 7"


def test_four_in_a_row_and_an_answer_do_not() -> None:
    say, asked = failing(*(i for i in range(20) if i % 5))
    records, faults = run(quiz(20), say, at_once=1)
    assert len(asked) == 20 and len(records) == 4 and faults.stopped == ""


def test_a_spent_budget_ends_it_at_once() -> None:
    say, asked = failing(2, error=BudgetSpent)
    records, faults = run(quiz(9), say, at_once=1)
    assert asked == [0, 1, 2] and len(records) == 2
    assert faults.stopped == "no answer to 2"
    faults = Faults()
    faults.note(("a", 0), Unanswered("passing"))
    faults.note(("b", 0), BudgetSpent("spent"))
    faults.note(("c", 0), BudgetSpent("spent again"))
    assert faults.stopped == "spent"


def test_a_lasting_fault_is_raised_and_nothing_answered_is_lost(tmp_path: Path) -> None:
    """Nobody goes on asking behind it, but for the one whose turn had come."""
    file = tmp_path / "answers.jsonl"
    say, asked = failing(3, error=EndpointError)
    with pytest.raises(EndpointError, match="no answer to 3"):
        run(quiz(9), say, answers=Answers(file), at_once=1)
    assert asked in ([0, 1, 2, 3], [0, 1, 2, 3, 4])
    kept = [json.loads(line)["task"] for line in file.read_text().splitlines()]
    assert kept[:3] == ["t0", "t1", "t2"] and "t3" not in kept
    say, asked = failing()
    records, _ = run(quiz(9), say, answers=Answers(file), at_once=1)
    assert asked == [i for i in range(9) if f"t{i}" not in kept] and len(records) == 9


def test_a_fault_of_our_own_is_not_taken_for_the_endpoints() -> None:
    script = Script(solver="right")
    script.lines.clear()
    with pytest.raises(KeyError):
        run(quiz(2), script)
