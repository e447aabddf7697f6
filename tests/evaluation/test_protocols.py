"""Protocols: who is asked what, and what is counted."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import pytest
from statsmodels.stats.proportion import proportion_confint

from inwit.engines.torch import TorchEngine
from inwit.envs import Result, Split, Task
from inwit.envs.checkout import Checkout, CheckoutSettings
from inwit.evaluation.protocols import PROTOCOLS, Measured, Rate, critique, direct
from inwit.playing import Stage
from inwit.roles import CONDITIONS
from inwit.rows import Behaviour, Episode, Grade, Role, Sees
from tests.methods.worlds import (
    NOTED,
    SHOP,
    attempt_of,
    maze,
    maze_text,
    scripted,
    shop,
    shop_stage,
    stage_of,
    warm_engine,
)


@pytest.fixture(scope="module")
def engine() -> TorchEngine:
    return warm_engine()


@pytest.fixture(scope="module")
def tasks() -> Sequence[Task]:
    return shop().tasks(Split.DEV)


def run(protocol: Any, tasks: Sequence[Task], stage: Stage) -> tuple[Measured, list[Episode]]:
    found: tuple[Measured, list[Episode]] = asyncio.run(protocol(tasks, stage))
    return found


def tokens_of(episodes: Sequence[Episode]) -> int:
    turns = [t for e in episodes for a in e.attempts for t in a.turns]
    turns += [c.turn for e in episodes for c in e.critiques]
    return sum(len(turn.completion.ids) for turn in turns)


# ---------------------------------------------------------------------- on a real model


def test_direct_asks_each_question_once(engine, tasks):
    """LESSONS 5: and every answer says that it was given to the question alone."""
    measured, episodes = run(direct, tasks, shop_stage(engine, scene=("evaluate", "dev", 0)))
    assert [e.query for e in episodes] == [task.id for task in tasks]
    assert all(len(e.attempts) == 1 and not e.critiques for e in episodes)
    gold = {task.id: task.reference for task in tasks}
    right = sum(e.first.text == gold[e.query] for e in episodes)
    assert 0 < right < len(tasks)
    assert measured == Measured(
        protocol="direct",
        first=Rate(
            right / 16,
            right,
            16,
            pytest.approx(proportion_confint(right, 16, method="wilson"), abs=1e-9),
            0,
        ),
        sampled_tokens=tokens_of(episodes),
        truncated=sum(e.first.truncated for e in episodes) / 16,
    )
    assert all(t.sees == {Sees.QUESTION} for e in episodes for t in e.first.turns)
    assert all(t.role is Role.SOLVER for e in episodes for t in e.first.turns)


def test_critique_asks_again_where_the_first_answer_failed(engine, tasks):
    """LESSONS 5: every prompt of the protocol carries what it showed, outcome included."""
    measured, episodes = run(critique, tasks, shop_stage(engine, scene=("evaluate", "dev", 0)))
    gold = {task.id: task.reference for task in tasks}
    failed = [e for e in episodes if e.first.text != gold[e.query]]
    mended = [e for e in failed if e.attempts[1].text == gold[e.query]]
    assert failed and mended
    assert [e for e in episodes if e.revisions] == failed
    assert (measured.first.right, measured.first.n) == (16 - len(failed), 16)
    assert measured.revision is not None
    assert (measured.revision.right, measured.revision.n) == (len(mended), len(failed))
    assert measured.critic_gain == pytest.approx(len(mended) / len(failed))
    said = [c.turn for e in failed for c in e.critiques]
    lengths = [len(turn.completion.ids) for turn in said]
    assert measured.critique_tokens == pytest.approx(sum(lengths) / len(lengths))
    assert measured.sampled_tokens == tokens_of(episodes)
    decode = engine.tokenizer.decode
    for e in failed:
        first, note, revision = e.corrections[0]
        assert first.turns[0].sees == {Sees.QUESTION}
        assert note.turn.sees == CONDITIONS["critic"]
        assert revision.turns[0].sees == NOTED
        assert decode(revision.prompt_ids).startswith(f"Note: {note.text}".strip())
        assert decode(note.turn.prompt_ids).endswith("Check:")


def test_both_protocols_have_the_same_first_answers(engine, tasks):
    """The critic changes what comes after, never what is measured as critique-free."""
    stage = shop_stage(engine, scene=("evaluate", "dev", 0))
    one, alone = run(direct, tasks, stage)
    both, followed = run(critique, tasks, stage)
    assert one.first == both.first
    assert [e.first for e in alone] == [e.first for e in followed]
    assert run(critique, tasks, stage)[1] == followed


def test_a_greedy_evaluation_does_not_depend_on_the_seed(engine, tasks):
    def answers(seed: int, temperature: float) -> list[str]:
        stage = shop_stage(engine, seed=seed)
        spec = stage.sampling.model_copy(update={"temperature": temperature})
        return [
            e.first.text for e in run(direct, tasks, dataclasses.replace(stage, sampling=spec))[1]
        ]

    assert answers(0, 0.0) == answers(1, 0.0)
    assert answers(0, 1.0) != answers(1, 1.0)


def test_what_could_not_be_graded_is_outside_of_n(engine):
    """LESSONS 23: an error is neither right nor wrong, is counted, and is not criticised."""

    class Flaky(Checkout):
        def grade(self, task: Task, answer: str) -> Result:
            if int(task.id[-1]) % 2:
                raise TimeoutError("the scales are stuck")
            return super().grade(task, answer)

    env = Flaky(CheckoutSettings(**SHOP))
    tasks = env.tasks(Split.DEV)[:10]
    measured, episodes = run(critique, tasks, shop_stage(engine, env))
    assert (measured.first.n, measured.first.errors) == (5, 5)
    assert measured.first.value == measured.first.right / 5
    assert all(e.first.feedback == "TimeoutError: the scales are stuck" for e in episodes[1::2])
    assert all(len(e.attempts) == 1 for e in episodes[1::2])
    assert measured.sampled_tokens == tokens_of(episodes)


# ---------------------------------------------------------------------- counts, by script

# what each of the maze's questions is answered with at first, and after a critique
SCRIPT = {
    "hall08": ("trap00", "key00"),  # mended
    "hall09": ("trap01", "trap02"),  # not mended
    "hall10": ("key00", ""),  # right at once
    "hall11": ("trap03", "break"),  # the revision cannot be graded
}


def say(shown: str, sample: int) -> str:
    if "critic" in shown:
        return "here dark"
    hall = next(word for word in shown.split() if word in SCRIPT)
    return SCRIPT[hall]["note" in shown]


def scripted_run(**rest: Any) -> tuple[Measured, list[Episode]]:
    env = maze()
    stage = stage_of(env, scripted(say), **rest)
    return run(critique, env.tasks(Split.TEST), stage)


def test_the_gain_counts_what_the_critique_brought_about():
    """Of four questions one is right, one is mended, one is not, and one revision broke.

    LESSONS 4: the gain is over failures that were graded twice; nothing is added up over tries.
    """
    measured, episodes = scripted_run()
    assert [[str(a.grade) for a in e.attempts] for e in episodes] == [
        ["wrong", "right"],
        ["wrong", "wrong"],
        ["right"],
        ["wrong", "error"],
    ]
    assert (measured.first.right, measured.first.n, measured.first.errors) == (1, 4, 0)
    assert measured.revision is not None
    assert (measured.revision.right, measured.revision.n, measured.revision.errors) == (1, 2, 1)
    assert measured.critic_gain == 0.5
    assert measured.critique_tokens == 3.0
    assert measured.sampled_tokens == 7 * 2 + 3 * 3
    assert measured.truncated == 0.0


def test_an_external_critic_costs_none_of_our_tokens():
    env = maze()
    stage = stage_of(env, scripted(say), scripted(say, Behaviour.EXTERNAL))
    measured, episodes = run(critique, env.tasks(Split.TEST), stage)
    assert {c.turn.behaviour for e in episodes for c in e.critiques} == {Behaviour.EXTERNAL}
    assert measured.sampled_tokens == 7 * 2
    assert measured.critique_tokens == 3.0


def test_truncated_answers_are_reported():
    measured, _ = scripted_run(max_tokens=1, critic_max_tokens=2)
    assert measured.truncated == 1.0
    assert measured.critique_tokens == 2.0


def test_a_critique_is_shown_whole():
    _, episodes = scripted_run()
    shown = maze_text(episodes[0].attempts[1].prompt_ids)
    assert shown == "<system> solver <end> <user> leave hall08 note here dark <end> <assistant>"


def test_where_nothing_failed_there_is_no_gain():
    """An absent number is not a zero."""
    env = maze()
    stage = stage_of(env, scripted(lambda *_: "key00"))
    measured, _ = run(critique, env.tasks(Split.TEST), stage)
    assert measured.first.value == 1.0
    assert measured.revision is measured.critic_gain is measured.critique_tokens is None


def test_no_questions_measure_nothing():
    measured, episodes = run(critique, [], stage_of(maze(), scripted(say)))
    assert episodes == []
    assert measured.first == Rate(None, 0, 0, None, 0)
    assert (measured.sampled_tokens, measured.truncated) == (0, 0.0)


def test_only_errors_have_no_rate():
    """LESSONS 23: not one of 0%."""
    assert Rate.of([attempt_of("error"), attempt_of("error")]) == Rate(None, 0, 0, None, 2)


def test_a_rate_is_about_success_not_about_reward():
    graded = [("right", 0.2), ("right", 0.1), ("wrong", 0.9)]
    rate = Rate.of([attempt_of(grade, reward=reward) for grade, reward in graded])
    assert (rate.right, rate.n, rate.value) == (2, 3, 2 / 3)
    assert rate.ci == pytest.approx(proportion_confint(2, 3, method="wilson"), abs=1e-9)


def test_a_result_can_be_written_down():
    """Numbers come with their N, and the protocol with its name."""
    measured, _ = scripted_run()
    written = json.loads(json.dumps(measured.as_dict()))
    assert written["protocol"] == "critique"
    assert written["first"]["n"] == 4 and len(written["first"]["ci"]) == 2
    assert written["revision"]["errors"] == 1


def test_protocols_are_known_by_name():
    assert PROTOCOLS["direct"] is direct and PROTOCOLS["critique"] is critique
    assert Grade.ERROR not in {a.grade for e in scripted_run()[1] for a in e.attempts[:1]}
