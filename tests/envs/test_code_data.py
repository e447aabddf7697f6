"""The files of MBPP, HumanEval and wrong programs: references pass, wrong programs do not."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from inwit.envs import Split, Task
from inwit.envs.code import Code, Kind, Outcome
from inwit.errors import InwitError

DATA = Path(os.environ.get("INWIT_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))
MBPP = "mbpp/mbpp_974.jsonl"
SANITIZED = "mbpp/mbpp_sanitized_test_257.jsonl"
HUMANEVAL = "humaneval/humaneval_164.jsonl"
WRONG = "repair/wrong_programs_mbpp_humaneval.jsonl"
SIZES = {MBPP: 974, SANITIZED: 257, HUMANEVAL: 164, WRONG: 170}

FAULTY: frozenset[str] = frozenset()
"""Tasks whose own reference does not pass its tests: there are none in these files."""

SAMPLED = 20
"""One task of so many is run where not all are."""


def load(name: str) -> tuple[Code, Sequence[Task]]:
    file = DATA / name
    if not file.exists():
        pytest.skip(f"no {name} under INWIT_DATA or ../shared/data")
    try:
        env = Code.of(file=file)
    except InwitError as error:
        pytest.skip(f"no sandbox on this machine: {error.what}")
    return env, Code.read(env.settings, env.settings.files)


def outcomes(env: Code, tasks: Sequence[Task], answers: Sequence[str]) -> Sequence[Outcome]:
    async def run() -> list[Outcome]:
        pairs = zip(tasks, answers, strict=True)
        return await asyncio.gather(*(env.outcome(task, answer) for task, answer in pairs))

    return asyncio.run(run())


def assert_references_pass(name: str, step: int) -> None:
    env, tasks = load(name)
    assert len(tasks) == SIZES[name]
    tasks = tasks[::step]
    found = outcomes(env, tasks, [env.written(task.data["solution"]) for task in tasks])
    failed = {t.id: o for t, o in zip(tasks, found, strict=True) if o.kind is not Kind.PASSED}
    assert set(failed) == FAULTY & {task.id for task in tasks}, failed


def assert_wrong_programs_fail_and_right_ones_pass(step: int) -> None:
    """Each for the reason that its author recorded; a reference of the same task passes."""
    env, tasks = load(WRONG)
    assert len(tasks) == SIZES[WRONG]
    rows = [json.loads(line) for line in (DATA / WRONG).read_text(encoding="utf-8").splitlines()]
    recorded = {row["id"]: row["error"].partition(":")[0] for row in rows}
    right = {t.id: t.data["solution"] for name in (MBPP, HUMANEVAL) for t in load(name)[1]}
    of = {row["id"]: right.get(f"mbpp/{row['task_id']}") or right[row["task_id"]] for row in rows}
    tasks = tasks[::step]
    found = outcomes(env, tasks, [env.wrong_answer(task) or "" for task in tasks])
    for task, outcome in zip(tasks, found, strict=True):
        assert outcome.kind is Kind.FAILED, (task.id, outcome)
        asserted = " gave " in outcome.why or outcome.why.startswith("AssertionError")
        why = "AssertionError" if asserted else outcome.why.partition(":")[0]
        assert why == recorded[task.id], (task.id, outcome)
    mended = outcomes(env, tasks, [env.written(of[task.id]) for task in tasks])
    assert [each for each in mended if each.kind is not Kind.PASSED] == []


@pytest.mark.parametrize("name", [MBPP, SANITIZED, HUMANEVAL])
def test_a_sample_of_the_references_pass_their_own_tests(name):
    assert_references_pass(name, SAMPLED)


@pytest.mark.slow
@pytest.mark.parametrize("name", [MBPP, SANITIZED, HUMANEVAL])
def test_all_references_pass_their_own_tests(name):
    assert_references_pass(name, 1)


def test_a_sample_of_the_wrong_programs_fail_and_their_tasks_can_be_solved():
    assert_wrong_programs_fail_and_right_ones_pass(SAMPLED)


@pytest.mark.slow
def test_all_wrong_programs_fail_and_their_tasks_can_be_solved():
    assert_wrong_programs_fail_and_right_ones_pass(1)


def test_mbpp_has_its_official_split():
    env, _ = load(MBPP)
    assert {split: len(env.tasks(split)) for split in Split} == {
        Split.TRAIN: 374,
        Split.DEV: 90,
        Split.TEST: 500,
    }


def test_no_solution_is_shown_in_a_question():
    for name in SIZES:
        _, tasks = load(name)
        for task in tasks:
            assert task.data.get("solution", "\0").strip() not in task.question, task.id


def test_tests_take_nothing_of_a_program_but_what_it_is_asked_for():
    """Two of the recorded entry points are spelt otherwise than in their tests."""
    more = {}
    for name in SIZES:
        _, tasks = load(name)
        more |= {t.id: set(t.data["names"]) for t in tasks if len(t.data["names"]) > 1}
    assert more == {
        "mbpp/367": {"Node", "is_tree_balanced"},
        "mbpp/601": {"Pair", "max_chain_length"},
        "mbpp/927": {"Node", "max_height"},
    }
