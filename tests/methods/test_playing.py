"""Playing roles: turns, limits, observations, faults, conditions; and a third party's parts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from inwit.casting import Cast
from inwit.engines.torch import TorchEngine
from inwit.envs import Env, EnvSettings, Play, Result, Split, Step, Task, env_class, known_envs
from inwit.errors import ForbiddenField, InwitError
from inwit.methods import known_methods, method_class
from inwit.playing import OBSERVATION_SHOWN, SamplingSettings, Stage
from inwit.recipe import parse_recipe
from inwit.roles import CONDITIONS, Prompt
from inwit.rows import Attempt, Behaviour, Critique, Grade, Role, Sees, Stop, attempt_tokens
from tests.methods.worlds import (
    CPU,
    MAZE_PROMPTS,
    NOTED,
    Maze,
    Scripted,
    maze,
    maze_ids,
    maze_model,
    maze_stage,
    maze_text,
    scripted,
    stage_of,
)


def first_task(env: Env) -> Task:
    return env.tasks(Split.TRAIN)[0]


def play(stage: Stage, n: int = 1, task: Task | None = None) -> list[Attempt]:
    return asyncio.run(stage.first_attempts(task or first_task(stage.env), n))


def criticise(stage: Stage, attempt: Attempt) -> Critique:
    return asyncio.run(stage.criticise(first_task(stage.env), attempt, 0, 0))


def patient(shown: str, sample: int) -> str:
    """Waits for two observations and then takes the key."""
    return {0: "hall05", 1: "hall06 hall07", 2: "key00"}[shown.count("<assistant>") - 1]


# ---------------------------------------------------------------------- turns


def test_each_turn_s_prompt_extends_what_came_before():
    """LESSONS 13: what was sampled is never encoded again; only what was added is.

    LESSONS 14: the template is rendered once, and closes and opens turns as the model knows it.
    """
    [attempt] = play(stage_of(maze(), scripted(patient)))
    assert [maze_text(turn.prompt_ids) for turn in attempt.turns] == [
        "<system> solver <end> <user> leave hall00 <end> <assistant>",
        "<system> solver <end> <user> leave hall00 <end> <assistant> hall05 <end>"
        " <user> dark here <end> <assistant>",
        "<system> solver <end> <user> leave hall00 <end> <assistant> hall05 <end>"
        " <user> dark here <end> <assistant> hall06 hall07 <end>"
        " <user> dark here <end> <assistant>",
    ]
    for before, after in zip(attempt.turns, attempt.turns[1:], strict=False):
        shown = before.prompt_ids + before.completion.ids
        assert after.prompt_ids[: len(shown)] == shown
    assert (attempt.grade, attempt.reward, attempt.feedback) == (Grade.RIGHT, 1.0, "out")
    assert attempt.text == "hall05\n[dark here]\nhall06 hall07\n[dark here]\nkey00"
    assert attempt.sampled_tokens == 2 + 3 + 2
    for turn in attempt.turns:
        assert (turn.role, turn.sees) == (Role.SOLVER, {Sees.QUESTION})
        assert turn.behaviour is Behaviour.POLICY


def test_a_truncated_turn_is_closed_for_the_policy_and_masked_out():
    """LESSONS 12, 13: the end of turn that the environment writes is not the policy's."""
    stage = stage_of(maze(), scripted(lambda *_: "hall05 hall06 hall07"), max_tokens=2)
    [attempt] = play(stage)
    assert [turn.completion.stop for turn in attempt.turns] == [Stop.LENGTH] * 3
    ids, mask, logprobs = attempt_tokens(attempt)
    step = "hall05 hall06 <end> <user> dark here <end> <assistant>"
    assert maze_text(ids) == f"{step} {step} hall05 hall06"
    assert mask == ((True, True, *(False,) * 6) * 2) + (True, True)
    assert all((x == 0.0) != mine for x, mine in zip(logprobs, mask, strict=True))
    assert attempt.truncated


def test_a_real_policy_s_tokens_stay_what_they_are():
    """LESSONS 7, 11, 13: special tokens that a policy utters would not survive a round through
    text; in the rows they are there, trained, and nothing of the environment is."""
    engine = TorchEngine(maze_model(), CPU)
    attempts = play(maze_stage(maze(), engine), n=24)
    uttered = {t for a in attempts for turn in a.turns for t in turn.completion.ids}
    assert uttered & set(maze_ids("<user> <assistant> <system> <pad>"))
    several = [a for a in attempts if len(a.turns) > 1]
    assert several
    for a in several:
        ids, mask, logprobs = attempt_tokens(a)
        assert len(ids) == len(mask) == len(logprobs)
        assert sum(mask) == a.sampled_tokens
        mine = [i for i, m in zip(ids, mask, strict=True) if m]
        assert mine == [i for turn in a.turns for i in turn.completion.ids]
        theirs = maze_text([i for i, m in zip(ids, mask, strict=True) if not m])
        closing = [" <end>" * (t.completion.stop is Stop.LENGTH) for t in a.turns[:-1]]
        assert theirs == "".join(f"{end} <user> dark here <end> <assistant>" for end in closing)[1:]


def test_the_turn_limit_ends_an_attempt_with_the_environment_s_word():
    env = maze(turns=2)
    [attempt] = play(stage_of(env, scripted(lambda *_: "hall05")))
    assert len(attempt.turns) == 2
    assert (attempt.grade, attempt.reward) == (Grade.WRONG, 0.0)
    assert attempt.feedback == "The turn limit was reached."
    assert env.plays[0].actions == ["hall05", "hall05"]
    assert env.plays[0].closed == 1


def test_what_the_turn_limit_is_worth_is_up_to_the_environment():
    class Kind(Maze):
        def open(self, task: Task) -> Play:
            inner = super().open(task)

            async def worth() -> Result:
                return Result(Grade.RIGHT, 0.5, "far enough")

            inner.out_of_turns = worth  # type: ignore[method-assign]
            return inner

    env = Kind()
    [attempt] = play(stage_of(env, scripted(lambda *_: "hall05")))
    assert (attempt.grade, attempt.reward, attempt.feedback) == (Grade.RIGHT, 0.5, "far enough")
    assert env.plays[0].closed == 1


@pytest.mark.parametrize(("limit", "turns"), [(19, 1), (20, 2), (27, 2), (28, 3), (99, 3)])
def test_an_attempt_that_would_outgrow_its_context_ends(limit, turns):
    """The second prompt has 16 tokens, the third 24, and four more are to be sampled."""
    stage = stage_of(maze(), scripted(lambda *_: "hall05 hall06"), max_context=limit)
    [attempt] = play(stage)
    assert [len(turn.prompt_ids) for turn in attempt.turns] == [8, 16, 24][:turns]
    assert len(attempt.turns) == turns
    assert attempt.feedback == "The turn limit was reached."


def test_the_first_answer_to_a_question_needs_no_second_request():
    """A group's prompt is asked once for all its samples; later turns go their own ways."""
    actor = scripted(lambda shown, i: f"hall0{i}" if "dark" not in shown else "key00")
    attempts = play(stage_of(maze(), actor), n=3)
    policy = actor.policy
    assert isinstance(policy, Scripted)
    assert [n for _, n, _ in policy.asked] == [3, 1, 1, 1]
    seeds = {spec.seed for _, _, spec in policy.asked}
    assert len(seeds) == 4
    assert [a.turns[0].completion.ids[0] for a in attempts] == [
        maze_ids(f"hall0{i}")[0] for i in range(3)
    ]


def test_every_request_has_a_seed_of_its_own():
    """By run, step, task, role, sample and turn; and nothing else decides it."""

    def seeds(**where: Any) -> list[int]:
        actor = scripted(lambda shown, _: "hall01" if "critic" in shown else "hall05")
        stage = stage_of(maze(), actor, **where)

        async def both() -> None:
            for task in stage.env.tasks(Split.TRAIN)[:2]:
                attempts = await stage.first_attempts(task, 2)
                said = [await stage.criticise(task, a, 0, i) for i, a in enumerate(attempts)]
                for i, critique in enumerate(said):
                    await stage.revise(task, critique, 1, i)

        asyncio.run(both())
        policy = actor.policy
        assert isinstance(policy, Scripted)
        return [spec.seed for _, _, spec in policy.asked]

    once = seeds()
    assert len(once) == 2 * (1 + 2 * 2 + 2 + 2 * 3)
    assert len(set(once)) == len(once)
    assert seeds() == once
    for other in ({"seed": 1}, {"scene": ("train", 1)}, {"scene": ("evaluate", 0)}):
        assert not set(once) & set(seeds(**other))


# ---------------------------------------------------------------------- what the critic reads


def test_the_critic_reads_the_whole_attempt():
    """LESSONS 14: every action and every observation, in order, and how it was graded."""
    stage = stage_of(maze(), scripted(lambda s, _: "hall01" if "critic" in s else "hall05"))
    [attempt] = play(stage)
    critique = criticise(stage, attempt)
    assert maze_text(critique.turn.prompt_ids) == (
        "<system> critic <end> <user> leave hall00 try hall05 [ dark here ] hall05 [ dark here ]"
        " hall05 [ dark here ] The try was graded wrong. <end> <assistant>"
    )
    assert (critique.index, critique.of, critique.text) == (0, 0, "hall01")
    assert (critique.turn.role, critique.turn.sees) == (Role.CRITIC, CONDITIONS["critic"])
    assert critique.size == len(critique.turn.completion.ids) == 2


def test_a_long_observation_is_cut_for_the_critic_and_for_nobody_else():
    """800 characters of `dark ` are 160 words; the solver saw all 300."""
    stage = stage_of(
        maze(observation="dark " * 300),
        scripted(lambda s, _: "hall01" if "critic" in s else patient(s, 0)),
    )
    [attempt] = play(stage)
    assert OBSERVATION_SHOWN == 800
    dark = maze_ids("dark")[0]
    assert [turn.prompt_ids.count(dark) for turn in attempt.turns] == [0, 300, 600]
    shown = maze_text(criticise(stage, attempt).turn.prompt_ids)
    cut = " ".join(["[", *["dark"] * 160, "]"])
    assert f"try hall05 {cut} hall06 hall07 {cut} key00" in shown
    assert shown.count("dark") == 320


def test_outcomes_are_told_as_they_were():
    stage = stage_of(maze(), scripted(lambda s, i: "hall01" if "critic" in s else "key00"))
    [attempt] = play(stage)
    assert "The try was graded right. <end>" in maze_text(criticise(stage, attempt).turn.prompt_ids)


def test_a_revision_knows_what_its_critic_knew():
    """LESSONS 5: the critic's condition travels with its words into the revision's."""
    informed = CONDITIONS["critic"] | {Sees.REFERENCE}
    actor = scripted(lambda s, _: "hall01" if "critic" in s else "trap00")
    for critic, wanted in ((CONDITIONS["critic"], NOTED), (informed, NOTED | {Sees.REFERENCE})):
        stage = stage_of(maze(), actor, conditions={**CONDITIONS, "critic": critic})
        [attempt] = play(stage)
        critique = criticise(stage, attempt)
        revision = asyncio.run(stage.revise(first_task(stage.env), critique, 1, 0))
        assert critique.turn.sees == critic
        assert revision.turns[0].sees == wanted
        assert (revision.index, revision.critique) == (1, 0)
        assert maze_text(revision.prompt_ids) == (
            "<system> solver <end> <user> leave hall00 note hall01 <end> <assistant>"
        )


LEAKY = {
    **MAZE_PROMPTS,
    "critic": Prompt(
        "critic", (("system", "critic"), ("user", "{question} {attempt} {reference}"))
    ),
}


def test_the_gold_answer_is_shown_where_the_condition_says_so_and_nowhere_else():
    """LESSONS 6: a prompt that asks for what it may not show is an error, not a leak."""
    actor = scripted(lambda s, _: "hall01" if "critic" in s else "trap00")
    stage = stage_of(maze(), actor, prompts=LEAKY)
    [attempt] = play(stage)
    with pytest.raises(ForbiddenField, match="reference"):
        criticise(stage, attempt)
    informed = {**CONDITIONS, "critic": CONDITIONS["critic"] | {Sees.REFERENCE}}
    critique = criticise(replace(stage, conditions=informed), attempt)
    assert "key00" in maze_text(critique.turn.prompt_ids)


@given(st.sampled_from(["hall05", "trap01", "key03", "hall00 hall01"]), st.integers(0, 3))
@settings(max_examples=12, deadline=None)
def test_no_prompt_of_the_usual_conditions_holds_the_gold_answer(word, which):
    """LESSONS 6: whatever is said, as long as nobody says it."""
    stage = stage_of(maze(), scripted(lambda s, _: "hall09" if "critic" in s else word))
    task = replace(stage.env.tasks(Split.TRAIN)[which], reference="key15")

    async def episode() -> list[Any]:
        [first] = await stage.first_attempts(task, 1)
        said = await stage.criticise(task, first, 0, 0)
        return [first, said, await stage.revise(task, said, 1, 0)]

    first, said, revision = asyncio.run(episode())
    turns = [*first.turns, said.turn, *revision.turns]
    assert all(maze_ids("key15")[0] not in turn.prompt_ids for turn in turns)


# ---------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("said", "feedback", "turns"),
    [
        (("break",), "RuntimeError: the floor gave way", 1),
        (("hall05", "break"), "RuntimeError: the floor gave way", 2),
        (("jam",), "the grader is jammed", 1),
    ],
)
def test_an_environment_that_breaks_grades_error(said, feedback, turns):
    """LESSONS 24: what broke is in the feedback, the play is closed once, the attempt stays."""
    env = maze()
    [attempt] = play(stage_of(env, scripted(lambda s, _: said[s.count("<assistant>") - 1])))
    assert (attempt.grade, attempt.feedback) == (Grade.ERROR, feedback)
    assert not attempt.success and len(attempt.turns) == turns
    assert env.plays[0].closed == 1


def test_a_door_that_does_not_open_grades_error():
    """LESSONS 24: also where the play could not even begin."""
    env = maze()
    locked = replace(first_task(env), data={"locked": True})
    [attempt] = play(stage_of(env, scripted(lambda *_: "key00")), task=locked)
    assert (attempt.grade, attempt.feedback) == (Grade.ERROR, "OSError: the door is locked")
    assert env.plays == []


def test_a_fault_in_one_attempt_leaves_the_others_alone():
    """LESSONS 22, 24: eight at once, three of which break; the rest are graded as ever."""
    env = maze()
    said = ["key00", "break", "trap00", "hall05", "jam", "key01", "trap01", "hall06"]
    later = {"hall05": "break", "hall06": "key02"}

    def say(shown: str, sample: int) -> str:
        return later[shown.split("<assistant>")[1].split()[0]] if "dark" in shown else said[sample]

    attempts = play(stage_of(env, scripted(say)), n=8)
    grades = "right error wrong error error right wrong right"
    assert " ".join(a.grade for a in attempts) == grades
    assert [p.closed for p in env.plays] == [1] * 8


def test_plays_go_on_side_by_side():
    """One that waits holds up nobody: the others' turns are taken meanwhile."""
    order: list[str] = []

    class Slow(Env):
        def tasks(self, split: Split) -> Sequence[Task]:
            return maze().tasks(split)

        def open(self, task: Task) -> Play:
            return Waiting()

    class Waiting(Play):
        async def step(self, action: str) -> Step:
            await asyncio.sleep(0.05 if action == "hall00" else 0.0)
            order.append(action)
            return Step(result=Result.of(True))

    stage = stage_of(Slow(EnvSettings()), scripted(lambda _, i: f"hall0{i}"))
    attempts = play(stage, n=3)
    assert order == ["hall01", "hall02", "hall00"]
    assert [a.text for a in attempts] == ["hall00", "hall01", "hall02"]


# ---------------------------------------------------------------------- settings


@pytest.mark.parametrize("name", ["top_p", "top_k"])
def test_truncated_sampling_is_refused_in_training(name):
    """LESSONS 15: a truncated distribution is not the one that ratios are taken of."""
    with pytest.raises(ValidationError, match=name):
        SamplingSettings(**{name: 0.9})


def test_greedy_training_is_refused():
    with pytest.raises(ValidationError, match="temperature"):
        SamplingSettings(temperature=0.0)


def test_solver_and_critic_have_limits_of_their_own():
    """LESSONS 15: and both are drawn at the one temperature, up to the tokenizer's stop tokens."""
    actor = scripted(lambda s, _: "hall01" if "critic" in s else "trap00")
    stage = stage_of(maze(), actor, max_tokens=3, critic_max_tokens=5, temperature=0.7)
    [attempt] = play(stage)
    criticise(stage, attempt)
    policy = actor.policy
    assert isinstance(policy, Scripted)
    specs = [spec for _, _, spec in policy.asked]
    assert [spec.max_tokens for spec in specs] == [3, 5]
    assert {spec.temperature for spec in specs} == {0.7}
    assert {spec.stop_ids for spec in specs} == {(1,)}


# ---------------------------------------------------------------------- third parties

PACKAGE = '''
from typing import ClassVar

from inwit.envs import AnswerEnv, EnvSettings, Result, Split, Task
from inwit.envs.checkout import Checkout
from inwit.methods import Method
from inwit.methods.grpo import GRPO, GRPOSettings


class CountSettings(EnvSettings):
    words: int = 2


class Count(AnswerEnv):
    """Right if the answer has so many words."""

    Settings = CountSettings
    prompts = Checkout.prompts

    def tasks(self, split):
        return [Task(f"{split}-{i}", f"{i} 7") for i in range(3)]

    def grade(self, task, answer):
        return Result.of(len(answer.split()) == self.settings.words)


class BestSettings(GRPOSettings):
    keep: int = 2


class Best(GRPO):
    """GRPO on the first `keep` samples of each group."""

    Settings: ClassVar = BestSettings
    summary: ClassVar = "a third party's"

    def credit(self, episodes):
        return super().credit([e for e in episodes if int(e.id[-1]) < self.settings.keep])


NOT_A_METHOD = object()
'''

ENTRY_POINTS = """\
[inwit.envs]
count = thirdparty:Count
odd_env = thirdparty:NOT_A_METHOD

[inwit.methods]
best = thirdparty:Best
odd_method = thirdparty:NOT_A_METHOD
"""


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed distribution, as pip would leave it."""
    info = tmp_path / "thirdparty-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thirdparty\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (tmp_path / "thirdparty.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)


def test_a_third_party_s_method_learns_in_a_third_party_s_environment(third_party):
    """By the names of their entry points, in a recipe, without a fork."""
    recipe = parse_recipe(
        {
            "model": {"path": "embedded:checkout"},
            "env": {"name": "count", "words": 1},
            "method": {"name": "best", "group_size": 6, "keep": 4},
            "sampling": {"max_tokens": 2},
            "engine": {"device": "cpu"},
            "train": {"steps": 1},
        },
        "test",
    )
    cast, method = Cast.of(recipe), recipe.method
    tasks = recipe.env.tasks(Split.TRAIN)
    episodes = asyncio.run(method.collect(tasks, cast.stage("train", 0)))
    rows = method.credit(episodes)
    assert (len(episodes), len(rows)) == (18, 12)
    assert {type(method).__name__, type(recipe.env).__name__} == {"Best", "Count"}
    stats = asyncio.run(
        cast.engine.update(rows, method.objective(1.0), recipe.optimizer, recipe.train.steps)
    )
    assert stats.rows == 12
    assert recipe.as_dict()["method"]["keep"] == 4
    assert recipe.as_dict()["env"]["words"] == 1


def test_third_parties_stand_beside_the_built_in_ones(third_party):
    assert {"grpo", "icrl", "sft", "best"} <= set(known_methods())
    assert {"checkout", "questions", "count"} <= set(known_envs())
    assert env_class("count").__name__ == "Count"
    assert method_class("best").__name__ == "Best"


def test_what_is_installed_under_a_name_must_be_what_the_name_promises(third_party):
    with pytest.raises(InwitError, match=r"is not .*method.*\n.*derive from inwit\.methods"):
        method_class("odd_method")
    with pytest.raises(InwitError, match=r"is not .*env.*\n.*derive from inwit\.envs"):
        env_class("odd_env")


def test_an_unknown_name_is_answered_with_the_nearest_one(third_party):
    with pytest.raises(InwitError, match=r"No method is called 'icrk'.*\n.*mean 'icrl'"):
        method_class("icrk")
    with pytest.raises(InwitError, match=r"No environment is called 'coumt'.*\n.*mean 'count'"):
        env_class("coumt")
