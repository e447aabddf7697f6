"""Environments out of files: what is refused, what is held out, where records come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inwit.envs import AnswerEnv, BadRecord, BrokenData, FileEnv, Record, Result, Split, Task
from inwit.envs.questions import Questions
from inwit.errors import InwitError


def write(file: Path, *records: object) -> Path:
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return file


def numbered(start: int, stop: int) -> list[dict[str, object]]:
    return [{"id": f"t{i}", "question": f"What is {i}?", "answer": i} for i in range(start, stop)]


def ids(env: FileEnv, split: Split) -> set[str]:
    return {task.id for task in env.tasks(split)}


def test_all_faults_are_found_before_anything_is_refused(tmp_path):
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"question": "a", "answer": 1}\nno\n{"question": "b"}\n["c"]\n')
    with pytest.raises(BrokenData, match="2 more are broken; inwit check-data") as error:
        Questions.of(file=file)
    assert [fault.id for fault in error.value.faults] == ["2", "3", "4"]
    assert [task.question for task in error.value.tasks] == ["a"]


def test_a_line_nested_too_deeply_is_a_fault_like_others(tmp_path):
    file = tmp_path / "tasks.jsonl"
    file.write_text("[" * 200_000 + "\n")
    with pytest.raises(BrokenData, match=f"{file.name}, line 1: not JSON"):
        Questions.of(file=file)


def test_several_files_are_one(tmp_path):
    """SCoRe's training set is MATH's and most of its test set."""
    files = (
        write(tmp_path / "a.jsonl", *numbered(0, 3)),
        write(tmp_path / "b.jsonl", *numbered(3, 8)),
    )
    env = Questions.of(file=files, dev=0, test=0)
    assert ids(env, Split.TRAIN) == {f"t{i}" for i in range(8)}


def test_a_test_file_is_the_test_split_and_its_questions_are_in_no_other(tmp_path):
    train = write(tmp_path / "train.jsonl", *numbered(0, 20))
    test = write(
        tmp_path / "test.jsonl",
        {"id": "x", "question": " what  is 3? ", "answer": 3},
        {"id": "y", "question": "What is 99?", "answer": 99},
    )
    env = Questions.of(file=train, test_file=test, dev=0.25)
    assert ids(env, Split.TEST) == {"x", "y"}
    assert len(ids(env, Split.DEV)) == 5
    assert ids(env, Split.TRAIN) | ids(env, Split.DEV) == {f"t{i}" for i in range(20)} - {"t3"}


class ByNumber(FileEnv, AnswerEnv):
    """Data that says itself what is held out, and whose golds must be odd."""

    @classmethod
    def task(cls, record: Record, settings: object) -> Task:
        return Task(record.id, record.text(None, "question"), record.text(None, "answer", "gold"))

    @classmethod
    def check(cls, tasks, settings):
        bad = BadRecord("the gold is even", "Take an odd one.", "gold_unparsable")
        return {task.id: bad for task in tasks if int(task.reference) % 2 == 0}

    @classmethod
    def split_of(cls, task: Task) -> Split | None:
        return Split.TEST if int(task.reference) < 5 else Split.TRAIN

    def grade(self, task: Task, answer: str) -> Result:
        return Result.of(answer == task.reference)


def test_the_datas_own_rule_decides_the_split(tmp_path):
    odd = [{"id": i, "question": f"q{i}", "gold": i} for i in range(1, 12, 2)]
    env = ByNumber.of(file=write(tmp_path / "odd.jsonl", *odd))
    assert ids(env, Split.TEST) == {"1", "3"}
    assert ids(env, Split.TRAIN) == {"5", "7", "9", "11"}


def test_a_gold_that_cannot_be_graded_is_an_error_at_load(tmp_path):
    file = write(tmp_path / "g.jsonl", *({"question": f"q{i}", "answer": i} for i in (1, 2, 3)))
    with pytest.raises(BrokenData, match="line 2: the gold is even") as error:
        ByNumber.of(file=file)
    assert [(f.id, f.kind) for f in error.value.faults] == [("2", "gold_unparsable")]


@pytest.mark.parametrize(
    ("record", "id"),
    [
        ({"id": 7, "unique_id": "u"}, "7"),
        ({"unique_id": "u", "task_id": 3}, "u"),
        ({"id": None, "task_id": 0}, "0"),
        ({}, "4"),
    ],
)
def test_a_records_id_is_what_its_columns_call_it(record, id):
    assert Record("f, line 4", "f", 4, record).id == id


def test_the_usual_columns_are_found_and_a_named_one_must_be_there():
    record = Record("f, line 1", "f", 1, {"problem": None, "question": " a ", "n": [1]})
    assert record.text(None, "problem", "question") == "a"
    with pytest.raises(BadRecord, match="no column 'quest'"):
        record.text("quest")
    with pytest.raises(BadRecord, match=r"'n' holds \[1\]"):
        record.text("n")


def test_a_dataset_of_the_hub_is_read_row_by_row(tmp_path, monkeypatch):
    """A folder stands for the hub here: datasets reads both alike."""
    pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mine").mkdir()
    write(tmp_path / "mine" / "train.jsonl", *numbered(0, 4))
    write(tmp_path / "mine" / "test.jsonl", *numbered(4, 6))
    env = Questions.of(file="hf:mine", test_file="hf:mine@test", dev=0)
    assert ids(env, Split.TRAIN) == {"t0", "t1", "t2", "t3"}
    assert ids(env, Split.TEST) == {"t4", "t5"}


def test_a_dataset_that_is_not_there_is_said_so():
    pytest.importorskip("datasets")
    with pytest.raises(InwitError, match="'hf:no/such@train' cannot be read"):
        Questions.of(file="hf:no/such@train")
