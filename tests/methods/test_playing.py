"""Playing roles: turns, limits, observations, faults, conditions; and a third party's parts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from inwit.casting import Cast
from inwit.engines import Sampling
from inwit.engines.openai import Reply
from inwit.engines.torch import TorchEngine
from inwit.envs import Env, EnvSettings, Play, Result, Split, Step, Task, env_class, known_envs
from inwit.errors import ForbiddenField, InwitError, TooLong
from inwit.methods import known_methods, method_class
from inwit.playing import OBSERVATION_SHOWN, SamplingSettings, Stage, fitting
from inwit.recipe import parse_recipe
from inwit.roles import CONDITIONS, Prompt
from inwit.rows import (
    Attempt,
    Behaviour,
    Critique,
    Grade,
    Ids,
    Role,
    Sees,
    Stop,
    attempt_tokens,
)
from inwit.speaking import Actor, Correspondent
from tests.methods.worlds import (
    CPU,
    MAZE_PROMPTS,
    NOTED,
    Maze,
    Say,
    Scripted,
    maze,
    maze_ids,
    maze_model,
    maze_renderer,
    maze_stage,
    maze_text,
    scripted,
    stage_of,
)


def first_task(env: Env) -> Task:
    return env.tasks(Split.TRAIN)[0]


def play(stage: Stage, n: int = 1, task: Task | None = None) -> list[Attempt]:
    return asyncio.run(stage.first_attempts(task or first_task(stage.env), n))


def asked(actor: Actor) -> list[tuple[Ids, int, Sampling]]:
    """Every request that an actor of the maze was sent."""
    assert isinstance(actor.policy, Scripted)
    return actor.policy.asked


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
                    await stage.refine(task, attempts[i], critique, 1, i)
                    await stage.again(task, attempts[i], 1, i)
                    await stage.again(task, attempts[i], 2, i)
                    await stage.criticise(task, attempts[i], 0, i, "feedback")
                    for prompt in ("repair", "given"):
                        await stage.mend(task, "trap07", prompt, i)
                    for wrong in ("hall06", "hall07"):
                        await stage.go_on(task, wrong, i)
                await stage.first_attempts(task, 2, name="others")

        asyncio.run(both())
        policy = actor.policy
        assert isinstance(policy, Scripted)
        return [spec.seed for _, _, spec in policy.asked]

    once = seeds()
    firsts, critiques, later = 2 * (1 + 2 * 2), 2 + 2, 2 * (1 + 1 + 2 + 2 + 2)
    assert len(once) == 2 * (firsts + critiques + later * 3)
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


# ---------------------------------------------------------------------- second thoughts


def waits_then(first: str, second: str) -> Say:
    """Takes two turns for the first attempt and one for the second."""

    def say(shown: str, sample: int) -> str:
        if "again" in shown:
            return second
        return first if "dark" in shown else "hall05"

    return say


def test_a_second_attempt_goes_on_in_the_same_conversation():
    """LESSONS 13: after every id of the first, observations included, and the instruction.

    It is a play of its own: graded for itself, with all its turns before it.
    """
    env = maze(turns=2)
    stage = stage_of(env, scripted(waits_then("trap00", "key00")))
    [first] = play(stage)
    second = asyncio.run(stage.again(first_task(env), first, 1, 0))
    last = first.turns[-1]
    assert second.prompt_ids[: len(last.prompt_ids)] == last.prompt_ids
    assert maze_text(second.prompt_ids) == (
        "<system> solver <end> <user> leave hall00 <end> <assistant> hall05 <end>"
        " <user> dark here <end> <assistant> trap00 <end> <user> again <end> <assistant>"
    )
    assert (first.grade, second.grade) == (Grade.WRONG, Grade.RIGHT)
    assert (second.index, second.critique, second.text) == (1, None, "key00")
    assert second.turns[0].sees == CONDITIONS["again"] == {Sees.QUESTION, Sees.ATTEMPT}
    assert second.turns[0].behaviour is Behaviour.POLICY
    assert [p.actions for p in env.plays] == [["hall05", "trap00"], ["key00"]]
    assert [p.closed for p in env.plays] == [1, 1]


def test_a_second_attempt_may_take_turns_and_a_third_follows_on_it():
    """LESSONS 13: the whole conversation is one chain of ids."""
    env = maze(turns=2)
    stage = stage_of(env, scripted(lambda s, _: "key00" if s.count("again") == 2 else "hall05"))
    task = first_task(env)

    async def three() -> list[Attempt]:
        attempts = await stage.first_attempts(task, 1)
        for turn in (1, 2):
            attempts.append(await stage.again(task, attempts[-1], turn, 0))
        return attempts

    attempts = asyncio.run(three())
    assert [len(a.turns) for a in attempts] == [2, 2, 1]
    turns = [turn for a in attempts for turn in a.turns]
    for before, after in pairwise(turns):
        shown = before.prompt_ids + before.completion.ids
        assert after.prompt_ids[: len(shown)] == shown
    assert [a.index for a in attempts] == [0, 1, 2]
    assert [a.grade for a in attempts] == [Grade.WRONG, Grade.WRONG, Grade.RIGHT]
    assert attempts[1].text == "hall05\n[dark here]\nhall05\n[dark here]"


def test_a_first_attempt_that_was_cut_off_is_closed_before_the_instruction():
    """LESSONS 12, 13: as between the turns of one attempt."""
    stage = stage_of(maze(turns=1), scripted(lambda *_: "hall05 hall06"), max_tokens=1)
    [first] = play(stage)
    second = asyncio.run(stage.again(first_task(stage.env), first, 1, 0))
    assert first.turns[-1].completion.stop is Stop.LENGTH
    shown = first.turns[-1].prompt_ids + first.turns[-1].completion.ids
    assert second.prompt_ids[: len(shown)] == shown
    tail = maze_text(second.prompt_ids[len(shown) :])
    assert tail == "<end> <user> again <end> <assistant>"


@given(st.sampled_from(["hall05", "trap01", "key03", "hall01 key00"]), st.integers(0, 3))
@settings(max_examples=12, deadline=None)
def test_what_a_second_attempt_is_asked_does_not_depend_on_the_first_s_grade(word, which):
    """LESSONS 5, 6: were it otherwise, the instruction would be an oracle."""
    stage = stage_of(maze(turns=1), scripted(lambda *_: word))
    task = stage.env.tasks(Split.TRAIN)[which]

    async def both() -> tuple[Attempt, list[Attempt]]:
        [first] = await stage.first_attempts(task, 1)
        graded = [replace(first, grade=g, feedback=f"It is {g}: {task.reference}") for g in Grade]
        return first, [await stage.again(task, one, 1, 0) for one in graded]

    first, seconds = asyncio.run(both())
    assert len({second.prompt_ids for second in seconds}) == 1
    added = seconds[0].prompt_ids[len(first.prompt_ids) + len(first.turns[0].completion.ids) :]
    assert maze_text(added) == "<user> again <end> <assistant>"


@pytest.mark.parametrize("field", ["outcome", "feedback", "reference", "critique"])
def test_an_instruction_that_would_tell_the_outcome_is_refused_where_it_is_given(field):
    """LESSONS 5: also where nobody looked at the prompts when they were loaded."""
    prompts = {**MAZE_PROMPTS, "again": Prompt("again", (("user", f"again {{{field}}}"),))}
    actor = scripted(lambda *_: "key00")
    stage = stage_of(maze(), actor, prompts=prompts)
    [first] = play(stage)
    with pytest.raises(ForbiddenField, match=f"asks for '{field}'"):
        asyncio.run(stage.again(first_task(stage.env), first, 1, 0))
    assert len(asked(actor)) == 1  # nothing was sampled


def test_an_instruction_may_quote_question_and_attempt():
    told = Prompt("again", (("user", "again {question} try {attempt}"),))
    prompts = {**MAZE_PROMPTS, "again": told}
    stage = stage_of(maze(turns=1), scripted(lambda *_: "hall07"), prompts=prompts)
    [first] = play(stage)
    second = asyncio.run(stage.again(first_task(stage.env), first, 1, 0))
    assert maze_text(second.prompt_ids).endswith(
        "<user> again leave hall00 try hall07 [ dark here ] <end> <assistant>"
    )


def test_after_a_revision_a_second_attempt_knows_what_the_revision_knew():
    """LESSONS 5: what stands in the conversation cannot be unseen."""
    stage = stage_of(maze(turns=1), scripted(lambda s, _: "hall01" if "critic" in s else "hall05"))
    task = first_task(stage.env)
    [first] = play(stage)
    revision = asyncio.run(stage.revise(task, criticise(stage, first), 1, 0))
    second = asyncio.run(stage.again(task, revision, 2, 0))
    assert second.turns[0].sees == NOTED | {Sees.ATTEMPT} == revision.turns[0].sees
    assert "note hall01" in maze_text(second.prompt_ids)


def test_a_refinement_is_shown_the_attempt_and_knows_what_its_critic_knew():
    """LESSONS 5: Self-Refine's critic does not know the outcome, so neither does the refinement."""
    env = maze(turns=2)
    stage = stage_of(env, scripted(lambda s, _: "hall01" if "critic" in s else "hall05"))
    task = first_task(env)
    [first] = play(stage)
    for prompt in ("feedback", "critic"):
        critique = asyncio.run(stage.criticise(task, first, 0, 0, prompt))
        assert critique.turn.sees == CONDITIONS[prompt]
        refined = asyncio.run(stage.refine(task, first, critique, 1, 0))
        assert maze_text(refined.prompt_ids) == (
            "<system> solver <end> <user> leave hall00 try hall05 [ dark here ] hall05"
            " [ dark here ] note hall01 <end> <assistant>"
        )
        assert refined.turns[0].sees == CONDITIONS["refine"] | CONDITIONS[prompt]
        assert (Sees.OUTCOME in refined.turns[0].sees) == (prompt == "critic")
        assert (refined.index, refined.critique) == (1, 0)
        assert refined.turns[0].role is Role.SOLVER
        assert all(turn.sees == refined.turns[0].sees for turn in refined.turns)


def test_feedback_on_a_right_attempt_is_asked_as_on_a_wrong_one():
    """LESSONS 5: a critic that is not to know the outcome reads the same text either way."""
    stage = stage_of(maze(), scripted(lambda s, _: "hall01" if "critic" in s else "trap00"))
    [first] = play(stage)
    task = first_task(stage.env)
    shown = {
        asyncio.run(
            stage.criticise(task, replace(first, grade=g, feedback=g), 0, 0, "feedback")
        ).turn.prompt_ids
        for g in Grade
    }
    assert [maze_text(ids) for ids in shown] == [
        "<system> critic <end> <user> leave hall00 try trap00 <end> <assistant>"
    ]


# ---------------------------------------------------------------------- somebody's wrong answer


@pytest.mark.parametrize(
    ("prompt", "shown"),
    [
        ("repair", "leave hall00 try trap07 The try was graded wrong."),
        ("given", "leave hall00 mine trap07"),
    ],
)
def test_a_wrong_answer_is_shown_as_the_prompt_says(prompt, shown):
    """LESSONS 5: `repair` says that it is wrong, `given` does not."""
    env = maze()
    stage = stage_of(env, scripted(lambda *_: "key00"))
    mended = asyncio.run(stage.mend(first_task(env), "trap07", prompt))
    assert maze_text(mended.prompt_ids) == (
        f"<system> solver <end> <user> {shown} <end> <assistant>"
    )
    assert mended.turns[0].sees == CONDITIONS[prompt]
    assert (mended.grade, mended.index, mended.critique) == (Grade.RIGHT, 0, None)
    assert env.plays[0].actions == ["key00"]  # what was shown is no part of what is graded


def test_given_may_not_say_that_the_answer_is_wrong():
    """LESSONS 5: or sycophancy would be measured on those who were warned."""
    told = Prompt("given", (("user", "{question} mine {attempt} {outcome}"),))
    stage = stage_of(maze(), scripted(lambda *_: "key00"), prompts={**MAZE_PROMPTS, "given": told})
    with pytest.raises(ForbiddenField, match="asks for 'outcome'"):
        asyncio.run(stage.mend(first_task(stage.env), "trap07", "given"))


def test_going_on_from_words_put_into_the_mouth_is_graded_with_them():
    """The words are the prompt's, not the policy's: they are shown, graded, and not trained on."""
    env = maze()
    actor = scripted(lambda *_: "hall09")
    went_on = asyncio.run(stage_of(env, actor).go_on(first_task(env), "trap07 mine"))
    assert maze_text(went_on.prompt_ids) == (
        "<system> solver <end> <user> leave hall00 <end> <assistant> trap07 mine"
    )
    assert env.plays[0].actions == ["trap07 mine hall09"]
    assert went_on.text == went_on.answer == "trap07 mine hall09"
    assert (went_on.grade, went_on.feedback) == (Grade.WRONG, "caught")
    ids, mask, _ = attempt_tokens(went_on)
    assert maze_text(ids) == "hall09 <end>" and mask == (True, True)
    assert (went_on.sampled_tokens, went_on.turns[0].text) == (2, "hall09")
    assert went_on.turns[0].sees == CONDITIONS["solver"]


def test_the_words_begin_the_first_turn_only():
    """LESSONS 13: later turns go on from the ids of the first, with what was put there."""
    env = maze()
    stage = stage_of(env, scripted(lambda s, _: "key00" if "dark" in s else "hall09"))
    went_on = asyncio.run(stage.go_on(first_task(env), "hall07"))
    assert env.plays[0].actions == ["hall07 hall09", "key00"]
    assert went_on.text == "hall07 hall09\n[dark here]\nkey00"
    assert maze_text(went_on.turns[1].prompt_ids) == (
        "<system> solver <end> <user> leave hall00 <end> <assistant> hall07 hall09 <end>"
        " <user> dark here <end> <assistant>"
    )


def test_saying_nothing_more_leaves_the_words_as_they_are():
    env = maze(turns=1)
    went_on = asyncio.run(stage_of(env, scripted(lambda *_: "")).go_on(first_task(env), "key00"))
    assert (went_on.text, went_on.grade) == ("key00", Grade.RIGHT)


# ---------------------------------------------------------------------- who makes them


def test_first_attempts_can_be_somebody_else_s():
    """LESSONS 2: all their turns are by, and in the name of, whoever made them."""
    mine = scripted(lambda *_: "trap00")
    other = scripted(lambda s, _: "key00" if "dark" in s else "hall05", Behaviour.REFERENCE)
    stage = stage_of(maze(), mine)
    task = first_task(stage.env)
    attempts = asyncio.run(stage.first_attempts(task, 2, by=other))
    assert asked(mine) == []
    assert [n for _, n, _ in asked(other)] == [2, 1, 1]
    assert [a.grade for a in attempts] == [Grade.RIGHT, Grade.RIGHT]
    behaviours = {turn.behaviour for a in attempts for turn in a.turns}
    assert behaviours == {Behaviour.REFERENCE}
    second = asyncio.run(stage.again(task, attempts[0], 1, 0))
    assert second.turns[0].behaviour is Behaviour.POLICY  # the next one is the solver's own
    assert len(asked(mine)) == 1


def test_the_understudy_is_the_reference_in_the_solver_s_place():
    """LESSONS 2: it is shown what the solver is shown, and its samples say whose they are."""
    start = Scripted(maze_renderer(), lambda *_: "key00")
    stage = stage_of(maze(), scripted(lambda *_: "trap00"), reference=start)
    task = first_task(stage.env)
    [own] = play(stage)
    [lent] = asyncio.run(stage.first_attempts(task, 1, by=stage.understudy))
    assert (own.grade, lent.grade) == (Grade.WRONG, Grade.RIGHT)
    assert lent.prompt_ids == own.prompt_ids
    assert lent.turns[0].behaviour is Behaviour.REFERENCE
    assert start.asked and stage.understudy.renderer is stage.actor.renderer


def test_a_name_sets_first_attempts_of_one_step_apart():
    """Two groups of one query in one step are not drawn from the same seed."""
    actor = scripted(lambda *_: "key00")
    stage = stage_of(maze(), actor)
    task = first_task(stage.env)
    for name in ("", "base", "base"):
        asyncio.run(stage.first_attempts(task, 1, name=name))
    first, second, third = (spec.seed for _, _, spec in asked(actor))
    assert first != second == third


class Line:
    """A chat endpoint that says what it is told to, and gives counts where it is to."""

    def __init__(self, said: Callable[[str], str], counts: bool = True) -> None:
        self.said, self.counts = said, counts
        self.asked: list[tuple[tuple[tuple[str, str], ...], dict[str, Any]]] = []

    async def chat(self, messages: Sequence[tuple[str, str]], **how: Any) -> Reply:
        self.asked.append((tuple(messages), how))
        text = self.said(messages[-1][1])
        counts = (7, 3) if self.counts else (None, None)
        return Reply(f" {text}\n", *counts, Stop.TOKEN)


def at_the_end_of(line: Line) -> Correspondent:
    return Correspondent(line)  # type: ignore[arg-type]


def test_a_model_behind_an_endpoint_is_played_in_messages():
    """The same prompts and conditions; no ids, and its own counts instead."""
    line = Line(lambda text: "key00" if text == "again" else "trap00")
    stage = stage_of(maze(turns=1), at_the_end_of(line))
    task = first_task(stage.env)

    async def both() -> list[Attempt]:
        firsts = await stage.first_attempts(task, 2)
        return [*firsts, await stage.again(task, firsts[0], 1, 0)]

    *firsts, second = asyncio.run(both())
    opening = (("system", "solver"), ("user", "leave hall00"))
    conversation = (*opening, ("assistant", "trap00"), ("user", "again"))
    assert [shown for shown, _ in line.asked] == [opening, opening, conversation]
    assert len({how["seed"] for _, how in line.asked}) == 3
    assert {how["max_tokens"] for _, how in line.asked} == {4}
    assert [a.grade for a in (*firsts, second)] == [Grade.WRONG, Grade.WRONG, Grade.RIGHT]
    assert (second.text, second.turns[0].text) == ("key00", "key00")
    for attempt in (*firsts, second):
        assert attempt.turns[0].behaviour is Behaviour.EXTERNAL
        assert (attempt.prompt_ids, attempt.turns[0].completion.ids) == ((), ())
        assert (attempt.sampled_tokens, attempt.turns[0].prompt_tokens) == (3, 7)
    assert second.turns[0].sees == CONDITIONS["again"]


def test_an_endpoint_goes_on_from_a_message_of_its_own():
    line = Line(lambda _: "hall09")
    stage = stage_of(maze(turns=1), at_the_end_of(line))
    went_on = asyncio.run(stage.go_on(first_task(stage.env), "key00 mine"))
    [(shown, how)] = line.asked
    assert shown[-1] == ("assistant", "key00 mine") and how["continue_last"] is True
    assert (went_on.text, went_on.grade) == ("key00 mine hall09", Grade.RIGHT)
    play(stage)
    assert line.asked[-1][1]["continue_last"] is False


def test_what_an_endpoint_said_after_words_of_its_own_is_one_message_with_them():
    """Chat templates refuse two messages of one speaker in a row."""
    line = Line(lambda text: "key00" if text == "dark here" else "hall09")
    stage = stage_of(maze(turns=2), at_the_end_of(line))
    went_on = asyncio.run(stage.go_on(first_task(stage.env), "hall07"))
    assert went_on.grade is Grade.RIGHT
    speakers = [speaker for speaker, _ in line.asked[-1][0]]
    assert speakers == ["system", "user", "assistant", "user"]
    assert line.asked[-1][0][2] == ("assistant", "hall07 hall09")


@pytest.mark.parametrize(("counts", "size"), [(True, 3.0), (False, 2.0)])
def test_a_critique_without_a_count_is_measured_by_the_solver(counts, size):
    """`hall01 hall02` are two of the solver's tokens, whatever they were of the critic's."""
    line = Line(lambda _: "hall01 hall02", counts)
    stage = stage_of(maze(), scripted(lambda *_: "trap00"), at_the_end_of(line))
    [attempt] = play(stage)
    critique = criticise(stage, attempt)
    assert (critique.text, critique.size) == ("hall01 hall02", size)
    assert critique.turn.behaviour is Behaviour.EXTERNAL
    assert critique.turn.messages[-1] == (
        "user",
        "leave hall00 try trap00 The try was graded wrong.",
    )


def test_nobody_behind_an_endpoint_can_learn():
    stage = stage_of(maze(), at_the_end_of(Line(lambda _: "key00")))
    for who in ("actor", "understudy"):
        with pytest.raises(InwitError, match="cannot learn"):
            getattr(replace(stage, reference=Scripted(maze_renderer(), lambda *_: "")), who)


# ---------------------------------------------------------------------- what it comes down to


class Riddle(Maze):
    """What an attempt comes down to is its last word; of `mine` that cannot be told."""

    def answer_of(self, task: Task, text: str) -> str:
        if "mine" in text:
            raise ValueError(f"{task.id} is nobody's")
        return text.split()[-1]


def test_an_attempt_s_answer_is_the_environment_s_word_for_it():
    """By default the text without the way it was spaced; observations are part of the text."""
    usual = play(stage_of(maze(), scripted(patient)))
    assert [a.answer for a in usual] == ["hall05 [dark here] hall06 hall07 [dark here] key00"]
    own = play(stage_of(Riddle(), scripted(patient)))
    assert [(a.answer, a.text) for a in own] == [("key00", usual[0].text)]


def test_an_answer_that_cannot_be_made_out_is_an_error_and_not_a_reward():
    """LESSONS 23, 24: whatever the grade was, in that attempt alone, and the play is closed."""
    env = Riddle()
    said = ["key00", "key00 mine", "trap00 mine", "trap00"]
    attempts = play(stage_of(env, scripted(lambda _, i: said[i])), n=4)
    assert [a.grade for a in attempts] == [Grade.RIGHT, Grade.ERROR, Grade.ERROR, Grade.WRONG]
    assert [a.reward for a in attempts] == [1.0, 0.0, 0.0, 0.0]
    assert {a.feedback for a in attempts[1:3]} == {"ValueError: train-0 is nobody's"}
    assert attempts[1].answer == attempts[1].text == "key00 mine"
    assert [p.closed for p in env.plays] == [1] * 4


def test_a_broken_answer_of_a_later_attempt_is_its_own_affair():
    """LESSONS 24: also in second attempts, in mended ones, and in those that go on."""
    env = Riddle()
    stage = stage_of(env, scripted(lambda s, _: "key00 mine" if "again" in s else "key00"))
    task = first_task(env)
    [first] = play(stage)
    second = asyncio.run(stage.again(task, first, 1, 0))
    assert (first.grade, second.grade) == (Grade.RIGHT, Grade.ERROR)
    assert asyncio.run(stage.go_on(task, "mine")).grade is Grade.ERROR
    assert asyncio.run(stage.mend(task, "mine", "repair")).grade is Grade.RIGHT


# ---------------------------------------------------------------------- room


def test_what_does_not_fit_names_its_prompt():
    """A first attempt fits; what is longer than it does not, and nothing is sampled for it."""
    actor = scripted(lambda *_: "key00")
    stage = stage_of(maze(turns=1), actor, max_context=12)
    task = first_task(stage.env)
    [first] = play(stage)
    assert len(first.prompt_ids) == 8
    stage_with_room = replace(stage, sampling=SamplingSettings(max_tokens=4, critic_max_tokens=4))
    critique = criticise(stage_with_room, first)
    before = len(asked(actor))
    for prompt, attempt in {
        "again": lambda: stage.again(task, first, 1, 0),
        "refine": lambda: stage.refine(task, first, critique, 1, 0),
        "repair": lambda: stage.mend(task, "trap00", "repair"),
        "given": lambda: stage.mend(task, "trap00", "given"),
        "go on": lambda: stage.go_on(task, "trap00"),
        "feedback": lambda: stage.criticise(task, first, 0, 0, "feedback"),
    }.items():
        with pytest.raises(TooLong, match=f"The {prompt} prompt of task {task.id} has"):
            asyncio.run(attempt())
        assert asyncio.run(fitting(attempt())) is None
    assert len(asked(actor)) == before


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
    ours = {"grpo", "icrl", "multi_turn_rl", "pair_sft", "rloo", "score", "sft", "star"}
    assert {*ours, "best"} <= set(known_methods())
    assert {"checkout", "lock", "questions", "reasoning_gym", "count"} <= set(known_envs())
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
