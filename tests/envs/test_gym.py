"""reasoning-gym's tasks: distinct questions, seeded splits, one right answer each."""

from __future__ import annotations

import asyncio
import importlib.util
import sys

import pytest

from inwit.envs import Split
from inwit.envs.gym import ReasoningGym, ReasoningGymSettings
from inwit.errors import InwitError
from inwit.rows import Grade

installed = pytest.mark.skipif(
    importlib.util.find_spec("reasoning_gym") is None, reason="needs reasoning-gym"
)
ONE_DIGIT = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def make(**changes: object) -> ReasoningGym:
    wanted = {"dataset": "products", "config": ONE_DIGIT, "size": 200, "dev": 10, "test": 12}
    return ReasoningGym(ReasoningGymSettings(**(wanted | changes)))


def grade(env: ReasoningGym, answer: str, split: Split = Split.TRAIN) -> Grade:
    step = asyncio.run(env.open(env.tasks(split)[0]).step(answer))
    assert step.result is not None
    return step.result.grade


@installed
def test_splits_are_disjoint_and_of_the_sizes_asked_for():
    env = make()
    questions = {split: [t.question for t in env.tasks(split)] for split in Split}
    assert len(questions["dev"]) == 10
    assert len(questions["test"]) == 12
    everything = [q for some in questions.values() for q in some]
    assert len(everything) == len(set(everything)) > 50
    ids = [t.id for split in Split for t in env.tasks(split)]
    assert len(ids) == len(set(ids))


@installed
def test_the_seed_decides_the_questions_and_the_split():
    a, b, other = make(), make(), make(seed=1)
    for split in Split:
        assert [t.question for t in a.tasks(split)] == [t.question for t in b.tasks(split)]
    assert {t.question for t in a.tasks("test")} != {t.question for t in other.tasks("test")}


@installed
def test_a_question_stays_held_out_where_more_are_generated():
    """The split is the text's own: a larger size does not move a test question into training."""
    small, large = make(size=60), make(size=70, test=14)
    tests = {t.question for t in small.tasks(Split.TEST)}
    moved = tests & {t.question for t in large.tasks(Split.TRAIN)}
    assert len(tests) == 12
    assert len(moved) <= 2  # at the border, where others came in


@installed
def test_answers_are_scored_right_and_wrong():
    env = make()
    for split in Split:
        for task in env.tasks(split)[:5]:
            gold = task.reference
            for text in (gold, f"Answer: {gold}", f"2 x 3\nThe answer is {gold}.", f"it is {gold}"):
                step = asyncio.run(env.open(task).step(text))
                assert (step.result.grade, step.result.reward) == (Grade.RIGHT, 1.0), text
            for text in (
                "",
                "no idea",
                f"Answer: {int(gold) + 1}",
                f"{gold}1",
                f"Answer: -{gold}1",
            ):
                step = asyncio.run(env.open(task).step(text))
                assert (step.result.grade, step.result.reward) == (Grade.WRONG, 0.0), text


@installed
def test_attempts_are_the_same_where_their_answers_are():
    """As they are graded: by the answer, however it was come by."""
    env = make()
    task = env.tasks(Split.TEST)[0]
    gold = task.reference
    said = [gold, f"Answer: {gold}", f"2 x 3\nThe answer is {gold}."]
    assert len({env.answer_of(task, text) for text in said}) == 1
    assert env.answer_of(task, f"Answer: {gold}1") != env.answer_of(task, gold)
    assert env.wrong_answer(task) is None and env.verdict(gold) is None


@installed
def test_an_unknown_dataset_is_told_its_nearest():
    with pytest.raises(InwitError, match=r"no dataset 'produkts'\.\n.*'products'"):
        make(dataset="produkts")


@installed
@pytest.mark.parametrize(
    "config", [{"max_terms": 1, "min_terms": 2}, {"no_such": 3}, {"size": 3}, {"seed": 3}]
)
def test_a_config_that_the_dataset_refuses_is_refused(config):
    with pytest.raises(InwitError, match=r"products refuses env\.config"):
        make(config=config)


@installed
def test_too_few_questions_to_hold_any_out_are_refused():
    with pytest.raises(
        InwitError, match=r"gave \d+ distinct questions, and 200 are to be held out"
    ):
        make(size=150, dev=100, test=100)


def test_the_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InwitError, match=r"pip install 'inwit\[gym\]'"):
        make()


@installed
@pytest.mark.parametrize("dataset", ["countdown", "simple_integration", "puzzle24"])
def test_datasets_whose_scorers_evaluate_answers_are_refused(dataset):
    """LESSONS 23: what could hang or run a model's output never gets to."""
    with pytest.raises(InwitError, match="not safe to run"):
        make(dataset=dataset, config={})


@installed
def test_an_answer_that_is_code_is_only_text(capsys):
    assert grade(make(), "Answer: print('run')") is Grade.WRONG
    assert "run" not in capsys.readouterr().out
