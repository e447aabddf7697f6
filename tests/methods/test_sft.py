"""SFT: demonstrations become rows that say that nobody sampled them."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from inwit.engines import OptimizerSettings
from inwit.engines.torch import TorchEngine, load_model
from inwit.envs import Env, Split
from inwit.envs.checkout import Checkout, CheckoutSettings
from inwit.envs.lock import Lock, LockSettings
from inwit.envs.lock import build_tokenizer as build_lock_tokenizer
from inwit.errors import InwitError
from inwit.methods import measures
from inwit.methods.sft import SFT, SFTSettings
from inwit.playing import Stage
from inwit.roles import CONDITIONS, Renderer, load_prompt
from inwit.rows import Behaviour, Episode, Ids, Role, Row, Sees
from inwit.speaking import Actor
from tests.engines.models import plain_logprobs
from tests.methods.worlds import (
    CPU,
    SHOP,
    maze,
    scripted,
    shop,
    shop_prompts,
    shop_stage,
    stage_of,
)


def embedded() -> TorchEngine:
    return TorchEngine(load_model("embedded:checkout", seed=2), CPU)


def sft(batch: int = 40) -> SFT:
    return SFT(SFTSettings(batch=batch))


class Silent:
    """A policy that nobody may ask."""

    async def sample(self, *_: Any) -> Any:
        raise AssertionError("sampled")

    async def logprobs(self, *_: Any) -> Any:
        raise AssertionError("scored")


@pytest.fixture(scope="module")
def stage() -> Stage:
    renderer = Renderer(load_model("embedded:checkout").tokenizer)
    return stage_of(shop(), Actor(Silent(), renderer), prompts=shop_prompts())


@pytest.fixture(scope="module")
def episodes(stage: Stage) -> list[Episode]:
    return asyncio.run(sft().collect([], stage))


@pytest.fixture(scope="module")
def rows(episodes: list[Episode]) -> list[Row]:
    return sft().credit(episodes)


def test_nothing_is_sampled(episodes):
    """The policy of this stage fails whoever asks it; and the measures agree."""
    assert len(episodes) == 40
    assert all(not e.attempts and not e.critiques for e in episodes)
    found = measures.of_episodes(episodes)
    assert (found["tokens/sampled"], found["errors"]) == (0, 0)
    assert found["reward/first"] is None and found["survivors"] is None


def test_rows_are_demonstrations(rows):
    """LESSONS 2: the behaviour policy is named, and no log-prob is made up for it.

    LESSONS 1: nothing here is re-conditioned.
    """
    assert len(rows) == 40
    for row in rows:
        n = len(row.completion_ids)
        assert row.behaviour is Behaviour.DEMONSTRATION
        assert row.advantages == row.weights == (1.0,) * n
        assert row.mask == (True,) * n
        assert all(math.isnan(x) for x in row.logprobs) and len(row.logprobs) == n
        assert not row.reconditioned and row.turn == 0
    assert len({row.episode for row in rows}) == len({row.group for row in rows}) == 40


def test_all_three_roles_are_shown(rows, stage):
    """Under their own prompts and conditions, each answer ending on the stop token (LESSONS 12)."""
    decode = stage.solver.renderer.tokenizer.decode
    kinds: set[str] = set()
    for row in rows:
        shown, answer = decode(row.prompt_ids), decode(row.completion_ids)
        assert answer.endswith(" .") and answer.count(".") == 1
        if shown.endswith("Check:"):
            kinds.add("critic")
            assert (row.role, row.sees) == (Role.CRITIC, CONDITIONS["critic"])
            assert shown.startswith("Q: ")
        elif shown.startswith("Note: "):
            kinds.add("revision")
            assert (row.role, row.sees) == (Role.SOLVER, {Sees.QUESTION, Sees.CRITIQUE})
        else:
            kinds.add("solver")
            assert (row.role, row.sees) == (Role.SOLVER, {Sees.QUESTION})
            assert shown.startswith("Q: ") and shown.endswith("Work:")
    assert kinds == {"critic", "revision", "solver"}


def in_pieces(actor: Actor, question: str, attempt: str, instruction: str) -> Ids:
    """A conversation up to its second attempt, for tokenizers of one word a token."""
    text = f"Q: {question} Work: {attempt} . {instruction} Work:"
    return tuple(actor.renderer.tokenizer.encode(text, add_special_tokens=False))


def test_a_second_attempt_is_shown_in_its_conversation():
    """LESSONS 13: after the first attempt with its stop token, which is shown and not imitated.

    LESSONS 12: the second one ends on the stop token, which is.
    """
    env = Checkout(CheckoutSettings(**SHOP, share_solver=0.0, share_revision=0.0, share_again=1.0))
    actor = Actor(Silent(), Renderer(load_model("embedded:checkout").tokenizer))
    stage = stage_of(env, actor, prompts=shop_prompts())
    shown = env.demonstrations(stage.rng("demonstrations"), 40)
    rows = sft().credit(asyncio.run(sft().collect([], stage)))
    assert len(rows) == len(shown) == 40
    for row, d in zip(rows, shown, strict=True):
        assert d.prompt == "again"
        assert row.prompt_ids == in_pieces(
            actor, d.fields["question"], d.fields["attempt"], "Again:"
        )
        assert row.completion_ids == actor.renderer.completion_ids(d.answer)
        assert row.mask == (True,) * len(row.completion_ids)
        assert (row.role, row.sees) == (Role.SOLVER, CONDITIONS["again"])
        assert row.behaviour is Behaviour.DEMONSTRATION and not row.reconditioned


def test_every_kind_of_demonstration_of_every_environment_is_shown_under_its_own_condition():
    """LESSONS 5: `lock` shows first attempts, checks, redos and second attempts."""
    env: Env = Lock(LockSettings(train=40, dev=4, test=4))
    prompts = {name: load_prompt(name, [env.prompts]) for name in CONDITIONS}
    actor = Actor(Silent(), Renderer(build_lock_tokenizer()))
    stage = stage_of(env, actor, prompts=prompts)
    shown = env.demonstrations(stage.rng("demonstrations"), 80)
    rows = sft(80).credit(asyncio.run(sft(80).collect([], stage)))
    assert {d.prompt for d in shown} == {"solver", "critic", "refine", "again"}
    for row, d in zip(rows, shown, strict=True):
        assert row.role == (Role.CRITIC if d.prompt == "critic" else Role.SOLVER)
        assert row.sees == CONDITIONS[d.prompt]
        assert row.completion_ids == actor.renderer.completion_ids(d.answer)


def test_whoever_shows_no_tokens_cannot_imitate(stage):
    """A model behind an endpoint has none to learn; that is said, not stumbled over."""

    class Endpoint:
        pass

    other = stage_of(shop(), Endpoint(), prompts=shop_prompts())  # type: ignore[arg-type]
    with pytest.raises(InwitError, match="cannot learn") as caught:
        asyncio.run(sft().collect([], other))
    assert "torch engine" in caught.value.fix


def test_demonstrations_are_about_training_baskets_only(rows, stage):
    trained = {task.question for task in shop().tasks(Split.TRAIN)}
    held = {task.question for s in (Split.DEV, Split.TEST) for task in shop().tasks(s)}
    shown = {word for row in rows for word in stage.solver.renderer.text(row.prompt_ids).split()}
    assert shown & trained and not shown & held


def test_every_step_shows_others_and_the_same_ones_again_on_the_same_seed(stage, rows):
    def of(seed: int, step: int) -> list[Any]:
        scene = ("train", step)
        other = stage_of(shop(), stage.solver, prompts=shop_prompts(), seed=seed, scene=scene)
        found = sft().credit(asyncio.run(sft().collect([], other)))
        return [(row.prompt_ids, row.completion_ids) for row in found]

    first = [(row.prompt_ids, row.completion_ids) for row in rows]
    assert of(0, 0) == first
    assert of(0, 1) != first != of(1, 0)


def test_the_loss_is_the_mean_of_minus_log_p_and_falls():
    engine, method = embedded(), sft()
    stage = shop_stage(engine)
    rows = method.credit(asyncio.run(method.collect([], stage)))
    model = load_model("embedded:checkout", seed=2).model
    before = [x for row in rows for x in plain_logprobs(model, row.prompt_ids, row.completion_ids)]

    async def learn() -> list[float]:
        losses = []
        for _ in range(6):
            stats = await engine.update(rows, method.objective(1.0), OptimizerSettings(lr=3e-3), 6)
            assert (stats.rows_trained, stats.parity) == (40, None)
            losses.append(stats.loss)
        return losses

    losses = asyncio.run(learn())
    assert losses[0] == pytest.approx(-sum(before) / len(before), rel=1e-4)
    assert losses[-1] < 0.7 * losses[0]
    assert all(math.isfinite(loss) for loss in losses)


def test_an_environment_without_demonstrations_says_so():
    stage = stage_of(maze(), scripted(lambda *_: "key00"))
    with pytest.raises(NotImplementedError, match="Maze makes no demonstrations"):
        asyncio.run(sft().collect([], stage))


def test_there_must_be_something_to_show():
    with pytest.raises(ValueError, match="batch"):
        SFTSettings(batch=0)
