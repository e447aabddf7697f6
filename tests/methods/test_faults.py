"""Whose fault it is: an environment's is graded `error`, anybody else's stops the run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from inwit.casting import Cast
from inwit.envs import Play, Result, Split, Step, Task
from inwit.errors import InwitError
from inwit.evaluation.protocols import protocol
from inwit.evaluation.running import ask_all
from inwit.methods.icrl import ICRLSettings, Session, shuffled
from inwit.playing import Guarded
from inwit.recipe import Recipe, parse_recipe
from inwit.rows import Completion, Critique, Grade, Role, Stop, Turn
from inwit.train import Trainer


class Shaky(Play):
    """Breaks where it is told to."""

    def __init__(self, where: str) -> None:
        self.where, self.closed = where, False

    async def step(self, action: str) -> Step:
        if self.where == "step":
            raise OSError("the server is gone")
        return Step(result=Result.of(True))

    async def out_of_turns(self) -> Result:
        raise OSError("the server is gone")

    async def close(self) -> None:
        self.closed = True
        if self.where == "close":
            raise OSError("the server is gone")


class House:
    """An environment of one play."""

    def __init__(self, play: Shaky) -> None:
        self.play = play

    def open(self, task: Task) -> Play:
        return self.play

    def answer_of(self, task: Task, text: str) -> str:
        if self.play.where == "answer_of":
            raise OSError("the server is gone")
        return f"{task.id}: {text}"

    def verdict(self, text: str) -> bool | None:
        if self.play.where == "verdict":
            raise OSError("the server is gone")
        return True


@pytest.mark.parametrize("where", ["step", "close", "out_of_turns", "answer_of", "verdict"])
def test_what_breaks_in_the_environment_is_an_error(where: str) -> None:
    """LESSONS 24: an environment's failure drops the row, wherever in the play it happens."""

    async def go() -> Result | None:
        play = Shaky(where)
        guarded = Guarded(House(play), Task("t", "?"))  # type: ignore[arg-type]
        step = await guarded.step("x")
        ended = await guarded.out_of_turns() if where == "out_of_turns" else step.result
        answer, verdict, broken = guarded.read("x", later=True)
        unread = where in ("answer_of", "verdict")
        assert (answer, verdict) == (("x", None) if unread else ("t: x", True))
        assert unread or guarded.read("x", later=False)[1] is None, "nothing came before it"
        fault = await guarded.close()
        assert play.closed
        return fault or broken or ended

    result = asyncio.run(go())
    assert result is not None and result.grade is Grade.ERROR
    assert result.feedback == "OSError: the server is gone"


def cast(**sampling: int) -> Cast:
    data = {
        "model": {"path": "embedded:checkout"},
        "env": {"name": "checkout", "train": 4, "dev": 2, "test": 2},
        "method": {"name": "grpo", "group_size": 2},
        "sampling": {"max_tokens": 7, "critic_max_tokens": 7, **sampling},
        "train": {"steps": 1},
    }
    return Cast.of(parse_recipe(data, "test"))


def test_an_engines_fault_is_nobodys_grade(monkeypatch: pytest.MonkeyPatch) -> None:
    """LESSONS 23: a sampler that breaks stops the run; it does not become a column of errors."""
    players = cast()

    async def broken(*_: object) -> list[Completion]:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(players.engine._policy, "sample", broken)
    task = players.recipe.env.tasks(Split.DEV)[0]
    with pytest.raises(RuntimeError, match="out of memory"):
        asyncio.run(players.stage("s").first_attempts(task, 2))


def test_a_first_prompt_beyond_the_context_is_refused() -> None:
    players = cast(max_context=10)
    task = players.recipe.env.tasks(Split.DEV)[0]
    with pytest.raises(InwitError, match=f"solver prompt of task {task.id} has 8 tokens"):
        asyncio.run(players.stage("s").first_attempts(task, 2))


def test_the_models_own_positions_bound_the_context() -> None:
    players = cast()
    assert players.stage("s").sampling.max_context == players.engine.longest == 128


# ---------------------------------------------------------------------- the shuffled control


def said_of(sizes: Sequence[int]) -> list[tuple[Session, Critique]]:
    """One critique a session, its text naming the query that it is about."""
    turn = Turn(Role.CRITIC, (1,), Completion((), (), Stop.TOKEN), frozenset())
    return [
        (Session(Task(f"q{q}", "?"), i, []), Critique(0, 0, turn, f"q{q} {i}", 1.0))
        for q, size in enumerate(sizes)
        for i in range(size)
    ]


@given(st.lists(st.integers(1, 5), min_size=2, max_size=6))
def test_a_shuffled_critique_is_always_another_querys(sizes: list[int]) -> None:
    """LESSONS 2: a control that slips some of its own critiques in is partly the treatment."""
    said = said_of(sizes)
    moved = shuffled(said, Random(0))
    assert len(moved) == len(said)
    assert all(not c.text.startswith(f"{s.task.id} ") for s, c in moved)
    if 2 * max(sizes) <= sum(sizes):
        assert sorted(c.text for _, c in moved) == sorted(c.text for _, c in said)


def test_alone_a_query_gets_no_stand_in() -> None:
    assert shuffled(said_of([3]), Random(0)) == []
    assert shuffled([], Random(0)) == []


def test_a_critique_that_nobody_is_shown_still_cost_its_tokens() -> None:
    """Alone in its step, a query has no other's critique to be shown: no revision, but the bill."""
    data = {"name": "icrl", "group_size": 2, "control": "shuffled"}
    players = Cast.of(recipe_of(method=data))
    [task, *_] = players.recipe.env.tasks(Split.DEV)
    episodes = asyncio.run(players.recipe.method.collect([task], players.stage("s")))
    assert [len(e.critiques) for e in episodes] == [1, 1]
    assert all(e.revisions == () and e.corrections == () for e in episodes)
    for episode in episodes:
        [said] = episode.critiques
        critic = len(said.turn.completion.ids)
        assert episode.sampled_tokens == episode.first.sampled_tokens + critic > critic


# ---------------------------------------------------------------------- prompts without room


def recipe_of(method: dict[str, object] | None = None, **sampling: int) -> Recipe:
    data = {
        "model": {"path": "embedded:checkout"},
        "env": {"name": "checkout", "train": 4, "dev": 2, "test": 2},
        "method": method or {"name": "icrl", "group_size": 2},
        "sampling": {"max_tokens": 7, "critic_max_tokens": 7, **sampling},
        "train": {"steps": 1},
    }
    return parse_recipe(data, "test")


def test_a_critique_that_does_not_fit_is_left_out() -> None:
    """A question of 8 tokens fits 20 with its answer; a critic's prompt of 16 does not."""
    players = Cast.of(recipe_of(max_context=20))
    tasks = players.recipe.env.tasks(Split.DEV)
    episodes = asyncio.run(players.recipe.method.collect(tasks, players.stage("s")))
    assert len(episodes) == 4
    assert all(e.critiques == () and e.revisions == () for e in episodes)
    asked = protocol("critique")
    records, faults = asyncio.run(ask_all(asked, tasks, players.stage("e")))
    assert not faults.unanswered and not faults.stopped
    assert all(len(r.trial.answers) == 1 and r.trial.critiques == () for r in records)
    measured = asked.measured(records)
    assert measured.n == measured.measures["a1"].n == measured.measures["a2"].n == 2
    assert (measured.measures["delta"].count, measured.measures["edit_rate"].count) == (0, 0)
    assert not {"tokens/turn_2", "tokens/critiques"} & set(measured.measures)


def test_questions_that_do_not_fit_are_refused_before_work_starts() -> None:
    with pytest.raises(InwitError, match="solver prompt of task train-0 has 8 tokens"):
        Trainer(recipe_of(max_context=14), Quiet())


class Quiet:
    def step(self, *_: object) -> None: ...
    def evaluated(self, *_: object) -> None: ...
    def alarm(self, *_: object) -> None: ...


def test_one_critique_a_query_teaches_a_critic_nothing() -> None:
    """LESSONS 8: a group of one has no baseline; where all would be, that is said at once."""
    for settings in ({"critiques_per_query": 1}, {"group_size": 1}):
        with pytest.raises(ValidationError, match="has no baseline"):
            ICRLSettings(**settings)
        ICRLSettings(**settings, critic="frozen")
