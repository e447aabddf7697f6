"""What `inwit check-data` finds: each kind of fault by count and id, and none in good data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inwit.envs import Result, Task
from inwit.envs.checking import check_data, file_env
from inwit.envs.checkout import Checkout
from inwit.envs.questions import Questions
from inwit.errors import InwitError

GOOD = [{"id": f"t{i}", "q": f"What is {i}?", "a": i, "s": f"It is {i}."} for i in range(6)]
COLUMNS = ["--question", "q", "--answer", "a", "--solution", "s"]


def write(file: Path, *records: object) -> Path:
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return file


@pytest.fixture
def check(inwit, tmp_path):
    """`inwit check-data questions` of some records: (exit status, the JSON)."""

    def run(*records: object, more: tuple[str, ...] = ()):
        file = write(tmp_path / "tasks.jsonl", *records)
        done = inwit("check-data", "questions", str(file), *COLUMNS, *more, "--json")
        return done.code, json.loads(done.out)

    return run


def test_good_data_passes(check):
    status, found = check(*GOOD)
    assert status == 0
    assert found["off"] == found["offenders"] == []
    counts = ("n", "gold_right", "solution_right", "foreign_wrong")
    assert [found[name] for name in counts] == [6, 6, 6, 6]
    assert found["unreadable"] == found["gold_unparsable"] == found["errors"] == 0
    assert found["seconds"] > 0


def test_each_kind_of_fault_is_counted_and_named(check, tmp_path):
    other = write(tmp_path / "other.jsonl", {"q": "WHAT is 2?", "a": 2, "s": ""})
    status, found = check(
        *GOOD,
        {"id": "bad", "q": "no answer"},
        {"id": "twice", "q": "What is 1?", "a": "1.0", "s": "1"},
        {"id": "against", "q": "What is 3?", "a": 4, "s": "4"},
        {"id": "off", "q": "What is 9?", "a": 9, "s": "It is 8."},
        more=("--against", str(other)),
    )
    assert status == 1
    assert found["off"] == ["unreadable", "conflicting", "overlap", "solution"]
    assert (found["n"], found["unreadable"], found["duplicates"]) == (10, 1, 2)
    assert (found["conflicting"], found["overlap"]) == (1, 1)
    assert (found["solution_right"], found["solution_right_of"]) == (8, 9)
    named = {(o["check"], o["id"]) for o in found["offenders"]}
    assert named == {
        ("unreadable", "bad"),
        ("duplicates", "twice"),
        ("conflicting", "against"),
        ("overlap", "t2"),
        ("solution", "off"),
    }


def test_the_next_answer_is_not_foreign_where_it_is_the_same(check):
    _, found = check(*({"q": f"q{i}", "a": a, "s": str(a)} for i, a in enumerate((1, "1.0", 2))))
    assert (found["foreign_wrong"], found["foreign_wrong_of"]) == (2, 2)


class Lenient(Questions):
    """Takes whatever has a digit."""

    def grade(self, task: Task, answer: str) -> Result:
        if "7" in answer:
            raise RuntimeError("sevens break it")
        return Result.of(any(c.isdigit() for c in answer))


def test_a_grader_that_takes_everything_and_one_that_breaks_show(tmp_path):
    records = [{"question": f"q{i}", "answer": i} for i in range(8)]
    file = write(tmp_path / "tasks.jsonl", *records)
    report = check_data("lenient", Lenient, Lenient.Settings(file=file))
    assert report.off == ("errors", "gold", "foreign")
    assert report.errors == 2  # its own seven, and the one it is shown
    assert report.tried["foreign"].ok == 0
    assert report.tried["gold"].ok == 7
    assert any("sevens break it" in offender.why for offender in report.offenders)


def test_a_person_is_shown_shares_and_first_offenders(inwit, tmp_path):
    wrong = [{"q": f"q{i}", "a": i, "s": "x"} for i in range(5)]
    file = write(tmp_path / "tasks.jsonl", *wrong)
    done = inwit("check-data", "questions", str(file), *COLUMNS, "--first", "2")
    assert done.code == 1
    assert "reference solutions graded right" in done.out
    assert done.out.count("solution  ") == 2
    assert "off: solution" in done.out


def test_environments_without_a_file_have_none_to_check(inwit):
    with pytest.raises(InwitError, match="makes its own tasks"):
        file_env("checkout", Checkout)
    done = inwit("check-data", "checkout", "x.jsonl")
    assert done.code == 2
    assert "makes its own tasks" in done.err


def test_a_file_that_is_not_there_is_an_error(inwit):
    done = inwit("check-data", "questions", "nowhere.jsonl")
    assert done.code == 2
    assert "no task file 'nowhere.jsonl'" in done.err
