"""Questions from a file: every fault is named with its line, and no question crosses a split."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from inwit.envs import Split
from inwit.envs.questions import Questions, QuestionsSettings
from inwit.errors import InwitError
from inwit.rows import Grade


def write(folder: Path, *records: object, end: str = "\n") -> Path:
    file = folder / "tasks.jsonl"
    text = "".join(json.dumps(record, ensure_ascii=False) + end for record in records)
    file.write_text(text, encoding="utf-8", newline="")
    return file


def numbered(n: int) -> list[dict[str, object]]:
    return [{"id": f"t{i}", "question": f"What is {i}?", "answer": i} for i in range(n)]


def make(file: Path, **changes: object) -> Questions:
    return Questions(QuestionsSettings(file=file, **changes))


def everything(env: Questions) -> list[str]:
    return [task.id for split in Split for task in env.tasks(split)]


# ---------------------------------------------------------------------- reading


def test_each_line_is_a_task(tmp_path):
    env = make(write(tmp_path, *numbered(10)), dev=0.2, test=0.3)
    assert {split: len(env.tasks(split)) for split in Split} == {"train": 5, "dev": 2, "test": 3}
    assert sorted(everything(env)) == sorted(f"t{i}" for i in range(10))
    for split in Split:
        for task in env.tasks(split):
            assert task.question == f"What is {task.reference}?"


def test_columns_can_have_other_names(tmp_path):
    file = write(tmp_path, {"prompt": "a?", "gold": "b", "question": "no", "answer": "no"})
    [task] = make(file, question="prompt", answer="gold").tasks(Split.TRAIN)
    assert (task.question, task.reference) == ("a?", "b")


def test_without_an_id_the_line_is_the_id(tmp_path):
    file = write(tmp_path, {"question": "a", "answer": 1}, {"question": "b", "answer": 2.5})
    tasks = make(file, dev=0, test=0).tasks(Split.TRAIN)
    assert {task.id: task.reference for task in tasks} == {"1": "1", "2": "2.5"}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n", "\n   \n"])
def test_line_ends_and_empty_lines_do_not_matter(end, tmp_path):
    assert len(everything(make(write(tmp_path, *numbered(6), end=end)))) == 6


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x1c"])
def test_only_a_line_feed_ends_a_line(separator, tmp_path):
    """JSON may hold the other characters that Python takes for line ends."""
    file = write(tmp_path, {"question": f"a{separator}b", "answer": "c"})
    [task] = make(file).tasks(Split.TRAIN)
    assert task.question == f"a{separator}b"


def test_long_questions_can_be_left_out(tmp_path):
    file = write(tmp_path, {"question": "short", "answer": 1}, {"question": "l" * 99, "answer": 2})
    [task] = make(file, max_characters=20).tasks(Split.TRAIN)
    assert task.question == "short"


# ---------------------------------------------------------------------- broken files

GOOD = '{"question": "a", "answer": "b"}'


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("not json", "not JSON"),
        ('{"question": "a", "answer": "b"', "not JSON"),
        ("{'question': 'a'}", "not JSON"),
        (GOOD + GOOD, "not JSON"),
        ('["a", "b"]', "not a JSON object"),
        ('"a"', "not a JSON object"),
        ("3", "not a JSON object"),
        ("null", "not a JSON object"),
        ('{"answer": "b"}', "no column 'question'"),
        ('{"question": "a"}', "no column 'answer'"),
        ('{"question": "a", "anwser": "b"}', "Did you mean 'anwser'?"),
        ('{"question": "", "answer": "b"}', "an empty question or answer"),
        ('{"question": "a", "answer": "  "}', "an empty question or answer"),
        ('{"question": "a", "answer": null}', "'answer' holds null"),
        ('{"question": "a", "answer": ["b"]}', "'answer' holds"),
        ('{"question": {"text": "a"}, "answer": "b"}', "'question' holds"),
        ('{"id": "1", "question": "z", "answer": "b"}', "the id '1' occurs twice"),
    ],
)
def test_a_broken_line_is_named(line, says, tmp_path):
    """LESSONS 23: what cannot be a gold answer is found when it is read, not when it grades."""
    file = tmp_path / "tasks.jsonl"
    file.write_text(f"{GOOD}\n\n{line}\n{GOOD}\n", encoding="utf-8")
    with pytest.raises(InwitError) as error:
        make(file)
    assert f"{file}, line 3: " in error.value.what
    assert says in str(error.value)


@pytest.mark.parametrize("text", ["", "\n\n", "  \n"])
def test_an_empty_file_is_refused(text, tmp_path):
    file = tmp_path / "tasks.jsonl"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InwitError, match=r"tasks\.jsonl' holds no tasks"):
        make(file)


def test_a_file_whose_questions_are_all_too_long_is_refused(tmp_path):
    with pytest.raises(InwitError, match="holds no tasks"):
        make(write(tmp_path, *numbered(3)), max_characters=3)


def test_a_binary_file_a_folder_and_no_file_are_told_apart(tmp_path):
    file = tmp_path / "tasks.jsonl"
    with pytest.raises(InwitError, match=r"There is no task file '.*tasks\.jsonl'"):
        make(file)
    file.write_bytes(b"\x89PNG\r\n\x1a\n\xff\xfe\x00\x01")
    with pytest.raises(InwitError, match=r"tasks\.jsonl' cannot be read"):
        make(file)
    with pytest.raises(InwitError, match="cannot be read"):
        make(tmp_path)


# ---------------------------------------------------------------------- splits


@given(st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=40), st.integers(0, 5))
@settings(deadline=None, max_examples=50)
def test_equal_questions_never_cross_splits(tmp_path_factory, names, seed):
    """Train and held-out tasks are disjoint by what they ask, however it is spaced or cased."""
    r = Random(seed)
    records = [
        {
            "id": str(i),
            "question": f"What  is {r.choice((n, n.upper()))}?{' ' * (i % 3)}",
            "answer": i,
        }
        for i, n in enumerate(names)
    ]
    env = make(write(tmp_path_factory.mktemp("q"), *records), seed=seed, dev=0.3, test=0.3)
    assert sorted(everything(env)) == sorted(str(i) for i in range(len(names)))
    asked = {s: {" ".join(t.question.lower().split()) for t in env.tasks(s)} for s in Split}
    assert not asked["train"] & asked["dev"]
    assert not asked["train"] & asked["test"]
    assert not asked["dev"] & asked["test"]


def test_the_seed_decides_the_split_and_nothing_else_does(tmp_path):
    file = write(tmp_path, *numbered(40))
    a, b, other = (make(file, seed=seed) for seed in (0, 0, 1))
    assert everything(a) == everything(b)
    assert {t.id for t in a.tasks(Split.TEST)} != {t.id for t in other.tasks(Split.TEST)}
    assert [len(a.tasks(s)) for s in Split] == [len(other.tasks(s)) for s in Split] == [32, 4, 4]


@pytest.mark.parametrize("changes", [{"dev": 1.0}, {"test": -0.1}, {"max_characters": 0}])
def test_senseless_settings_are_refused(changes, tmp_path):
    with pytest.raises(ValidationError):
        make(write(tmp_path, *numbered(3)), **changes)


# ---------------------------------------------------------------------- grading and showing how


@pytest.mark.parametrize(
    ("answer", "grade"),
    [
        ("Answer: 7", Grade.RIGHT),
        ("I think 7.", Grade.RIGHT),
        ("8", Grade.WRONG),
        ("", Grade.WRONG),
    ],
)
def test_answers_are_graded_against_the_files(answer, grade, tmp_path):
    env = make(write(tmp_path, {"question": "3 + 4", "answer": 7}))
    [task] = env.tasks(Split.TRAIN)
    step = asyncio.run(env.open(task).step(answer))
    assert step.result is not None
    assert step.result.grade is grade
    assert step.result.reward == float(grade is Grade.RIGHT)


def test_demonstrations_come_from_training_tasks_only(tmp_path):
    records = [r | {"how": f"because {r['id']}"} for r in numbered(20)]
    file = write(tmp_path, *records)
    assert not make(file).makes_demonstrations
    env = make(file, solution="how", dev=0.4, test=0.4)
    assert env.makes_demonstrations
    shown = env.demonstrations(Random(0), 50)
    assert len(shown) == 50
    allowed = {(t.question, f"because {t.id}") for t in env.tasks(Split.TRAIN)}
    assert {(d.fields["question"], d.answer) for d in shown} <= allowed
    assert {d.prompt for d in shown} == {"solver"}


def test_a_missing_solution_is_named(tmp_path):
    file = write(tmp_path, {"question": "a", "answer": "b", "solution": "c"})
    with pytest.raises(InwitError, match=r"line 1: no column 'how'"):
        make(file, solution="how")


# ---------------------------------------------------------------------- wrong answers, and votes


def test_a_column_may_hold_a_wrong_answer(tmp_path):
    file = write(tmp_path, {"question": "3 + 4", "answer": 7, "slip": 8})
    [task] = make(file, wrong="slip", dev=0, test=0).tasks(Split.TRAIN)
    env = make(file, wrong="slip", solution="answer", dev=0, test=0)
    assert env.wrong_answer(task) == "8"
    assert env.tasks(Split.TRAIN)[0].data == {"wrong": "8", "solution": "7"}
    assert env.makes_demonstrations
    without = make(file, dev=0, test=0)
    assert without.wrong_answer(without.tasks(Split.TRAIN)[0]) is None
    assert not make(file, wrong="slip").makes_demonstrations


def test_a_missing_wrong_answer_is_named(tmp_path):
    file = write(tmp_path, {"question": "a", "answer": "b", "slip": "c"})
    with pytest.raises(InwitError, match=r"line 1: no column 'slop'") as caught:
        make(file, wrong="slop")
    assert "Did you mean 'slip'?" in caught.value.fix


def test_a_file_may_be_for_tests_alone(tmp_path):
    env = make(write(tmp_path, *numbered(10)), dev=0, test=1)
    assert [len(env.tasks(split)) for split in (Split.DEV, Split.TEST)] == [0, 10]
    assert env.tasks(Split.TRAIN) == []


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Answer: 7", "I first thought of 8.\nAnswer: 7.0", True),
        ("Answer: 7", "Answer: 8", False),
        ("no idea", "No idea.", True),
    ],
)
def test_attempts_are_the_same_where_their_answers_are(one, other, same, tmp_path):
    env = make(write(tmp_path, {"question": "3 + 4", "answer": 7}))
    [task] = env.tasks(Split.TRAIN)
    assert (env.answer_of(task, one) == env.answer_of(task, other)) is same
