"""How ICRL's episodes unfold: rounds, other critics, controls, settings."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from inwit.casting import Cast
from inwit.engines import OptimizerSettings
from inwit.engines.torch import TorchEngine, load_model
from inwit.envs import Split
from inwit.errors import InwitError
from inwit.methods import measures
from inwit.methods.grpo import GRPO, GRPOSettings
from inwit.methods.icrl import ICRL, ICRLSettings
from inwit.recipe import parse_recipe
from inwit.rows import (
    Behaviour,
    Episode,
    Grade,
    Role,
    Sees,
)
from tests.engines.models import plain_logprobs
from tests.methods.worlds import (
    NOTED,
    SHOP,
    by_place,
    collect,
    episode_of,
    icrl,
    maze,
    maze_ids,
    maze_text,
    scripted,
    shop,
    shop_stage,
    stage_of,
    warm_engine,
)

# ---------------------------------------------------------------------- collect, on a real model


@pytest.fixture(scope="module")
def engine() -> TorchEngine:
    """The shop's model, which is right now and then. Nobody updates it."""
    return warm_engine()


def test_failures_are_criticised_and_nothing_else(engine):
    episodes = collect(icrl(group_size=6, critiques_per_query="all"), shop_stage(engine), n=4)
    assert len(episodes) == 24
    assert {e.first.grade for e in episodes} == {Grade.RIGHT, Grade.WRONG}
    for e in episodes:
        failed = e.first.grade is Grade.WRONG
        assert len(e.critiques) == len(e.revisions) == failed
        if failed:
            assert (e.critiques[0].of, e.attempts[1].index, e.attempts[1].critique) == (0, 1, 0)
    assert len({e.id for e in episodes}) == 24
    assert episodes[7].id == "train/0/train-1/1"


def test_always_also_criticises_successes(engine):
    method = icrl(group_size=6, critiques_per_query="all", critique_when="always")
    episodes = collect(method, shop_stage(engine), n=4)
    assert any(e.first.success for e in episodes)
    assert all(len(e.critiques) == len(e.revisions) == 1 for e in episodes)


@pytest.mark.parametrize("most", [1, 2, "all"])
def test_at_most_so_many_failures_of_a_query_are_criticised(engine, most):
    # one critique a query teaches a critic nothing, and is refused where one is to learn
    method = icrl(group_size=6, critiques_per_query=most, groups="pooled" if most == 1 else "role")
    episodes = collect(method, shop_stage(engine), n=4)
    failed = Counter(e.query for e in episodes if not e.first.success)
    asked = Counter(e.query for e in episodes if e.critiques)
    assert max(failed.values()) > 2
    assert asked == {q: n if most == "all" else min(n, most) for q, n in failed.items()}


def test_which_failures_are_criticised_is_drawn_from_the_seed():
    """Not the first ones, not always the same ones, and everyone has a turn."""
    method = icrl(group_size=6, critiques_per_query=2)

    def chosen(scene: int, seed: int = 0) -> tuple[int, ...]:
        stage = stage_of(maze(), scripted(lambda *_: "trap00"), seed=seed, scene=("train", scene))
        episodes = collect(method, stage, n=1)
        return tuple(i for i, e in enumerate(episodes) if e.critiques)

    drawn = [chosen(scene) for scene in range(30)]
    assert all(len(pair) == 2 for pair in drawn)
    assert len(set(drawn)) > 8
    assert {i for pair in drawn for i in pair} == set(range(6))
    assert drawn[:5] == [chosen(scene) for scene in range(5)]
    assert drawn[:5] != [chosen(scene, seed=1) for scene in range(5)]


def test_a_revision_is_shown_the_note_and_trained_without_it(engine):
    """LESSONS 14: what the reviser sees is decided, and it is the note and the question."""
    method = icrl(group_size=6, critiques_per_query="all")
    episodes = collect(method, shop_stage(engine), n=4)
    decode = engine.tokenizer.decode
    rows = by_place(method.credit(episodes))
    questions = {task.id: task.question for task in shop().tasks(Split.TRAIN)}
    revised = [e for e in episodes if e.revisions]
    assert revised
    for e in revised:
        first, said, revision = e.corrections[0]
        question = questions[e.query]
        shown = f"Q: {question} Work: {first.text} . Check:"
        assert decode(said.turn.prompt_ids) == " ".join(shown.split())
        noted = f"Note: {said.text} . Q: {question} Work:"
        assert decode(revision.prompt_ids) == " ".join(noted.split())
        row = rows[e.id, "solver", 1]
        assert decode(row.prompt_ids) == f"Q: {question} Work:"
        assert row.completion_ids == revision.turns[0].completion.ids
        assert row.logprobs == revision.turns[0].completion.logprobs
        assert row.sees == NOTED
        assert said.size == sum(word != "ok" for word in said.text.split())


def test_sampled_log_probs_are_those_of_the_prompts_that_were_shown(engine):
    """LESSONS 1, 13: the stored log-probs are the model's own, under exactly the stored ids."""
    episodes = collect(icrl(group_size=2, critiques_per_query="all"), shop_stage(engine), n=2)
    turns = [t for e in episodes for a in e.attempts for t in a.turns]
    turns += [c.turn for e in episodes for c in e.critiques]
    model = warm_engine()._policy.backbone.model
    for turn in turns:
        wanted = plain_logprobs(model, turn.prompt_ids, turn.completion.ids)
        assert turn.completion.logprobs == pytest.approx(wanted, abs=1e-4)


def test_the_same_seed_plays_the_same_episodes_bit_for_bit():
    """Twice on one engine, once on another one; and other seeds and steps play others."""
    method, engine = icrl(group_size=4), warm_engine()
    once = collect(method, shop_stage(engine, seed=5), n=3)
    assert collect(method, shop_stage(engine, seed=5), n=3) == once
    assert collect(method, shop_stage(warm_engine(), seed=5), n=3) == once

    def said(episodes: Sequence[Episode]) -> list[Any]:
        return [[t.completion.ids for a in e.attempts for t in a.turns] for e in episodes]

    assert said(collect(method, shop_stage(engine, seed=6), n=3)) != said(once)
    assert said(collect(method, shop_stage(engine, seed=5, scene=("train", 1)), n=3)) != said(once)


# ---------------------------------------------------------------------- rounds


def in_rounds(shown: str, sample: int) -> str:
    """Wrong at first; sample 0 is mended by the second critique, sample 1 by the first one."""
    if "critic" in shown:
        return {"trap00": "hall10", "trap01": "hall11", "trap02": "hall12"}[
            next(word for word in shown.split() if word.startswith("trap"))
        ]
    if "note" in shown:
        note = next(word for word in shown.split() if word.startswith("hall1"))
        return {"hall10": "trap02", "hall11": "key00", "hall12": "key02"}[note]
    return ("trap00", "trap01", "key01")[sample]


def test_with_three_rounds_only_the_latest_critique_is_shown():
    method = icrl(rounds=3, critiques_per_query="all", length_penalty=0, delta_critic=0.5)
    stage = stage_of(maze(), scripted(in_rounds))
    episodes = collect(method, stage, n=1)
    words = [[a.text for a in e.attempts] for e in episodes]
    assert words == [["trap00", "trap02", "key02"], ["trap01", "key00"], ["key01"]]
    critiques = [[(c.index, c.of, c.text) for c in e.critiques] for e in episodes]
    assert critiques == [[(0, 0, "hall10"), (1, 1, "hall12")], [(0, 0, "hall11")], []]
    last = episodes[0].attempts[2]
    assert (last.index, last.critique) == (2, 1)
    shown = "<system> solver <end> <user> leave hall00 note hall12 <end> <assistant>"
    assert maze_text(last.prompt_ids) == shown
    about = maze_text(episodes[0].critiques[1].turn.prompt_ids)
    assert "trap02" in about and "trap00" not in about
    rows = by_place(method.credit(episodes))
    # critics: 0 - 0, 1 - 0 and 1 - 0; mean 2/3, std 0.577350
    paid = {place: row.advantages[0] for place, row in rows.items() if place[1] == "critic"}
    useful, useless = (1 / 3) / 1.077350, -(2 / 3) / 1.077350
    assert paid == pytest.approx(
        {
            ("train/0/train-0/0", "critic", 0): useless,
            ("train/0/train-0/0", "critic", 1): useful,
            ("train/0/train-0/1", "critic", 0): useful,
        },
        abs=1e-6,
    )
    assert {row.prompt_ids for row in rows.values() if row.role is Role.SOLVER} == {
        episodes[0].first.prompt_ids
    }


def test_the_limit_on_critiques_holds_in_every_round():
    method = icrl(group_size=5, rounds=3, critiques_per_query=3)
    episodes = collect(method, stage_of(maze(), scripted(lambda *_: "trap00")), n=2)
    for query in ("train-0", "train-1"):
        sizes = sorted(len(e.attempts) for e in episodes if e.query == query)
        assert sizes == [1, 1, 3, 3, 3]


# ---------------------------------------------------------------------- other critics


def recipe_of(**method: Any) -> Any:
    return parse_recipe(
        {
            "model": {"path": "embedded:checkout"},
            "env": {"name": "checkout", **SHOP},
            "method": {"name": "icrl", "group_size": 2, "critiques_per_query": "all", **method},
            "sampling": {"max_tokens": 3, "critic_max_tokens": 3},
            "engine": {"device": "cpu"},
            "train": {"steps": 1},
        },
        "test",
    )


def test_a_frozen_critic_speaks_as_the_policy_was():
    """LESSONS 2: after an update its tokens are the reference's and are named so; it learns none.

    They are sampled by us and count as such.
    """
    recipe = recipe_of(critic="frozen")
    cast = Cast.of(recipe)
    method = recipe.method
    before = collect(method, cast.stage("before"))
    update = cast.engine.update(
        method.credit(
            [episode_of(0, "right", prompt=(8, 9)), episode_of(1, "wrong", prompt=(8, 9))]
        ),
        method.objective(1.0),
        OptimizerSettings(lr=0.05),
        1,
    )
    asyncio.run(update)
    episodes = collect(method, cast.stage("train", 0))
    start = load_model("embedded:checkout", seed=0).model
    now = cast.engine._policy.backbone.model
    said = [c.turn for e in episodes for c in e.critiques]
    assert len(said) == 4 and all(turn.behaviour is Behaviour.REFERENCE for turn in said)
    for turn in said:
        ids = (turn.prompt_ids, turn.completion.ids)
        assert turn.completion.logprobs == pytest.approx(plain_logprobs(start, *ids), abs=1e-4)
        assert turn.completion.logprobs != pytest.approx(plain_logprobs(now, *ids), abs=1e-2)
    rows = method.credit(episodes)
    assert len(rows) == 8
    assert {row.role for row in rows} == {Role.SOLVER}
    assert {row.behaviour for row in rows} == {Behaviour.POLICY}
    for found in (before, episodes):
        tokens = sum(
            len(t.completion.ids)
            for e in found
            for t in [*(t for a in e.attempts for t in a.turns), *(c.turn for c in e.critiques)]
        )
        assert measures.of_episodes(found)["tokens/sampled"] == tokens


def test_an_external_critic_is_another_model_whose_tokens_are_not_ours(tmp_path: Path):
    """LESSONS 2: its behaviour policy has its name, and it learns nothing."""
    other = load_model("embedded:checkout", seed=9)
    other.model.save_pretrained(tmp_path)
    other.tokenizer.save_pretrained(tmp_path)
    recipe = recipe_of(critic="external", critic_model=str(tmp_path))
    cast = Cast.of(recipe)
    episodes = collect(recipe.method, cast.stage("train", 0))
    said = [c.turn for e in episodes for c in e.critiques]
    assert len(said) == 4
    for turn in said:
        assert turn.behaviour is Behaviour.EXTERNAL
        wanted = plain_logprobs(other.model, turn.prompt_ids, turn.completion.ids)
        assert turn.completion.logprobs == pytest.approx(wanted, abs=1e-4)
    ours = sum(a.sampled_tokens for e in episodes for a in e.attempts)
    assert sum(e.sampled_tokens for e in episodes) == ours
    assert measures.of_episodes(episodes)["tokens/sampled"] == ours
    assert measures.of_episodes(episodes)["critic/tokens"] > 0
    rows = recipe.method.credit(episodes)
    assert Counter((row.role, row.turn, row.behaviour) for row in rows) == {
        (Role.SOLVER, 0, Behaviour.POLICY): 4,
        (Role.SOLVER, 1, Behaviour.POLICY): 4,
    }


# ---------------------------------------------------------------------- controls


def failing(shown: str, sample: int) -> str:
    """Nobody gets out; the critic names the hall in question."""
    if "critic" not in shown:
        return "trap00"
    hall = next(word for word in shown.split() if word.startswith("hall"))
    return f"note {hall}"


def controlled(control: str, n: int = 3, seed: int = 0) -> tuple[ICRL, list[Episode]]:
    method = icrl(control=control)
    return method, collect(method, stage_of(maze(), scripted(failing), seed=seed), n=n)


def notes(episodes: Sequence[Episode]) -> list[tuple[str, str]]:
    """(the query's hall, what the revision was told), for each revision."""
    out = []
    for e in episodes:
        for revision in e.revisions:
            asked, _, told = maze_text(revision.prompt_ids).partition(" note ")
            out.append((asked.split()[-1], told.removesuffix(" <end> <assistant>")))
    return out


@pytest.mark.parametrize("n", [2, 3, 4])
def test_shuffled_shows_each_revision_a_critique_of_another_query(n):
    """LESSONS 2: the control for "any critique does it": the same critiques, none of them apt."""
    method, episodes = controlled("shuffled", n)
    told = notes(episodes)
    assert len(told) == 2 * n
    assert all(hall not in said for hall, said in told)
    own = sorted(said for _, said in notes(controlled("none", n)[1]))
    assert sorted(said for _, said in told) == own
    assert {row.role for row in method.credit(episodes)} == {Role.SOLVER}


def test_random_shows_each_revision_random_words_of_the_same_length():
    """LESSONS 2: the control for "any longer prompt does it"."""
    method, episodes = controlled("random")
    told = notes(episodes)
    assert len(told) == 6
    sizes = {len(c.turn.completion.ids) for e in episodes for c in e.critiques}
    assert sizes == {3}  # note, hall.., and the end, which is no word
    assert all(len(said.split()) == 2 for _, said in told)
    assert all(maze_ids(said) and "<unk>" not in said for _, said in told)
    assert notes(controlled("random")[1]) == told
    other = notes(controlled("random", seed=1)[1])
    assert len({said for _, said in [*told, *other]}) == 12
    assert {row.role for row in method.credit(episodes)} == {Role.SOLVER}


@pytest.mark.parametrize("control", ["shuffled", "random"])
def test_controls_cost_what_the_method_costs(control):
    """LESSONS 2: equal samples and equal sampled tokens, so that what differs is the critique.

    The third control, the solver alone with as many attempts as ICRL makes in all, is GRPO.
    """
    method, episodes = controlled(control)
    _, plain = controlled("none")
    for measure in ("tokens/sampled", "critic/count", "critic/tokens"):
        assert measures.of_episodes(episodes)[measure] == measures.of_episodes(plain)[measure]
    rows, solver = method.credit(episodes), icrl().credit(plain)
    assert len(rows) == sum(row.role is Role.SOLVER for row in solver)
    attempts = len(rows) // 3
    alone = GRPO(GRPOSettings(group_size=attempts))
    stage = stage_of(maze(), scripted(failing))
    found = asyncio.run(alone.collect(stage.env.tasks(Split.TRAIN)[:3], stage))
    assert len(found) == len(rows)


# ---------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rounds": 1}, "rounds must be at least 2.*use grpo"),
        ({"critiques_per_query": 0}, "critiques_per_query must be at least 1, or 'all'"),
        ({"critiques_per_query": -1}, "critiques_per_query must be at least 1, or 'all'"),
        ({"critic": "external"}, "critic_model is to be set if, and only if"),
        ({"critic_model": "some/model"}, "critic_model is to be set if, and only if"),
        ({"critic": "frozen", "critic_model": "some/model"}, "critic_model is to be set if"),
        ({"critic_sees": {"question", "attempt"}}, "add 'outcome'"),
        ({"critic_sees": {"question", "outcome"}}, "must hold 'attempt'"),
        (
            {"critic_sees": {"question", "attempt", "outcome", "critique"}},
            "cannot hold 'critique'",
        ),
        ({"critic_sees": {"question", "attempt", "answer"}}, "critic_sees"),
        ({"w_max": 0}, "w_max"),
        ({"length_penalty": -0.1}, "length_penalty"),
        ({"clip_low": 1.0}, "clip_low"),
        ({"weight": "clipped"}, "weight"),
        ({"crtic": "frozen"}, "crtic"),
    ],
)
def test_senseless_settings_are_refused(wrong, message):
    """LESSONS 2: no number stands for a mode; what makes no sense says so."""
    with pytest.raises(ValidationError, match=message):
        ICRLSettings(**wrong)


def test_the_refusal_reaches_whoever_wrote_the_recipe():
    with pytest.raises(InwitError, match=r"test: .*rounds must be at least 2"):
        recipe_of(rounds=1)


def test_a_critic_that_is_always_called_need_not_know_the_outcome():
    s = ICRLSettings(critique_when="always", critic_sees={"question", "attempt"})
    assert ICRL(s).conditions["critic"] == {Sees.QUESTION, Sees.ATTEMPT}


def test_who_needs_the_reference_says_so():
    assert not icrl().needs_reference
    assert icrl(critic="frozen").needs_reference
    assert icrl(kl=0.1).needs_reference
    assert icrl(critic="external", critic_model="x").external_critic
    assert not icrl().external_critic
