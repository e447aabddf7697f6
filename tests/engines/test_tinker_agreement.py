"""The same rows on the torch engine and on SkyRL's server: the same log-probs, losses and steps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from inwit.engines import OptimizerSettings, Sampling
from inwit.engines.tinker.adapter import fetch
from inwit.engines.tinker.connection import Connection
from inwit.engines.tinker.datums import datum
from inwit.engines.tinker.engine import TinkerEngine
from inwit.engines.torch import LoraSettings, TorchEngine, TorchSettings, load_model
from inwit.engines.torch.learner import Learner
from inwit.objectives import Objective
from inwit.rows import Behaviour, Floats, Row
from tests.engines.faulty_line import Fault, Line
from tests.engines.tinker_server import RANK, engine_at, serving, tiny_model
from tests.helpers import make_row, row_of, some_ids

pytestmark = pytest.mark.tinker

ALPHA = 32
"""What SkyRL's server scales its adapters by; the protocol does not say."""

STEP = OptimizerSettings(lr=0.02, eps=1e-3, betas=(0.9, 0.95), weight_decay=0.01, max_grad_norm=1e6)


ROWS = [make_row(some_ids(7, seed=s), prompt=some_ids(4, seed=s)) for s in range(5)]


@contextmanager
def pair(tmp_path: Path) -> Iterator[tuple[TinkerEngine, TorchEngine]]:
    """Two engines with one adapter, fetched from the server."""
    remote = engine_at(serving(tiny_model()).url, tiny_model())
    fetch(remote.connection, str(tiny_model()), tmp_path, merged=False)
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    targets = tuple(sorted({name.split(".")[-3] for name in tensors}))
    lora = LoraSettings(rank=RANK, alpha=ALPHA, targets=targets)
    local = TorchEngine(load_model(str(tiny_model())), TorchSettings(device="cpu", lora=lora))
    own = local._trainable()
    named = {
        name.removeprefix("base_model.model.").replace(".weight", ".default.weight"): value
        for name, value in tensors.items()
    }
    assert named.keys() == own.keys()
    with torch.no_grad():
        for name, value in named.items():
            own[name].copy_(value)
    tie(local)
    try:
        yield remote, local
    finally:
        remote.close()


@pytest.fixture
def both(tmp_path: Path) -> Iterator[tuple[TinkerEngine, TorchEngine]]:
    with pair(tmp_path) as engines:
        yield engines


def tie(local: TorchEngine) -> None:
    """As SkyRL's models on JAX, which multiply once for q, k and v, and once for gate and up.

    Their adapters so have one A each; in what is exported it stands once for every module.
    """
    model = local._policy.backbone.model
    for layer in model.get_decoder().layers:
        attention, mlp = layer.self_attn, layer.mlp
        for first, *others in (
            (attention.q_proj, attention.k_proj, attention.v_proj),
            (mlp.gate_proj, mlp.up_proj),
        ):
            for other in others:
                assert torch.equal(first.lora_A["default"].weight, other.lora_A["default"].weight)
                other.lora_A["default"].weight = first.lora_A["default"].weight
    local._policy.sampler.release()
    local._learner = Learner(local._policy.backbone, 200)


def near(a: float | None, b: float | None) -> bool:
    return a is b or a == pytest.approx(b, rel=1e-3)


def rows_from(engine: TinkerEngine, seed: int) -> list[Row]:
    """Sampled by the server; groups of different lengths, and second tries without what helped."""

    async def go() -> list[Row]:
        rows = []
        for q, n in enumerate((3, 9, 17)):
            prompt, hint = some_ids(n, seed=seed + q), some_ids(5, seed=99)
            sampling = Sampling(6 + 3 * q, (1, 6), 1.0, seed=seed)
            for i, found in enumerate(await engine.sample(prompt, 4, sampling)):
                rows.append(row_of(prompt, found, (-1.0, 0.5, 1.5, -0.5)[i], episode=f"{q}/{i}"))
            for i, found in enumerate(await engine.sample(hint + prompt, 2, sampling)):
                revised = row_of(prompt, found, (1.0, -1.0)[i], sampled_prompt=hint + prompt)
                rows.append(replace(revised, episode=f"{q}/r{i}"))
        return rows

    return asyncio.run(go())


def gap(a: list[Floats], b: list[Floats]) -> float:
    return max(abs(x - y) for u, v in zip(a, b, strict=True) for x, y in zip(u, v, strict=True))


def test_log_probs_agree(both: tuple[TinkerEngine, TorchEngine]) -> None:
    """Issue 6: within 1e-3; in fp32 on both sides it is rounding. After a step still."""
    remote, local = both
    for seed in (1, 4):
        rows = rows_from(remote, seed)
        found, wanted = (asyncio.run(each.logprobs(rows)) for each in both)
        assert gap(found, wanted) < 1e-4
        own = [row for row in rows if not row.reconditioned]
        assert gap([row.logprobs for row in own], asyncio.run(local.logprobs(own))) < 1e-4
        anchors = [asyncio.run(each.reference().logprobs(rows)) for each in both]
        assert gap(*anchors) < 1e-4
        for each in both:
            asyncio.run(each.update(rows, Objective(), STEP, 9))
    assert gap(anchors[0], found) > 0.01


OBJECTIVES = {
    "clip by token": Objective(),
    "clip by row": Objective(aggregation="row"),
    "clip by episode": Objective(aggregation="episode"),
    "importance": Objective("importance"),
    "gspo": Objective("gspo"),
    "kl": Objective(kl=0.2),
    "cross entropy": Objective("cross_entropy"),
    "cross entropy by row": Objective("cross_entropy", aggregation="row"),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_steps_agree(name: str, both: tuple[TinkerEngine, TorchEngine]) -> None:
    """Loss, statistics, gradient's norm, and what steps do to log-probs: within 1% of the effect.

    Two steps, for the first has no gradient for the adapter's one half, and no past.
    """
    remote, local = both
    objective = OBJECTIVES[name]
    probe = rows_from(remote, 3)
    for seed in (2, 5):
        rows = rows_from(remote, seed)
        if objective.loss == "cross_entropy":
            rows = [
                replace(row, advantages=(1.0,) * len(row.mask), behaviour=Behaviour.DEMONSTRATION)
                for row in rows
                if not row.reconditioned
            ]
        before = asyncio.run(local.logprobs(probe))
        one, two = (asyncio.run(each.update(rows, objective, STEP, 9)) for each in both)
        assert one.loss == pytest.approx(two.loss, abs=1e-4)
        assert one.kl == pytest.approx(two.kl, abs=1e-4)
        assert one.clip_share == two.clip_share == 0
        assert near(one.weight_mean, two.weight_mean)
        assert near(one.effective_share, two.effective_share)
        assert (one.tokens, one.rows_trained) == (two.tokens, two.rows_trained)
        assert near(one.grad_norm, two.grad_norm)
        after, wanted = (asyncio.run(each.logprobs(probe)) for each in both)
        moved = gap(wanted, before)
        assert moved > 0.02
        assert gap(after, wanted) < 0.01 * moved


def test_several_steps_a_batch_agree(both: tuple[TinkerEngine, TorchEngine]) -> None:
    """Minibatches and epochs: the ratio leaves 1, the clip bites, on both sides alike."""
    remote, local = both
    several = STEP.model_copy(update={"minibatches": 2, "epochs": 2})
    for objective in (Objective(clip_low=0.05, clip_high=0.05), Objective("gspo", 0.01, 0.01)):
        rows, probe = rows_from(remote, 6), rows_from(remote, 3)
        before = asyncio.run(local.logprobs(probe))
        one, two = (asyncio.run(each.update(rows, objective, several, 9)) for each in both)
        assert one.optimizer_steps == two.optimizer_steps == 4
        assert one.clip_share == pytest.approx(two.clip_share, abs=0.02)
        assert one.clip_share > 0
        after, wanted = (asyncio.run(each.logprobs(probe)) for each in both)
        assert gap(after, wanted) < 0.02 * gap(wanted, before)


@pytest.mark.parametrize("tidy", [True, False])
def test_gradients_that_were_left_behind_are_not_taken(
    tidy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An adapter went away between its gradient and its step; the next one has its place."""
    gone = engine_at(serving(tiny_model()).url, tiny_model())
    data = [datum(row, logprobs=row.logprobs, advantages=(9.0,) * len(row.mask)) for row in ROWS]
    gone.connection.now(gone.connection.training.forward_backward(data, "importance_sampling"))
    gone.close()
    if not tidy:
        monkeypatch.setattr(Connection, "_tidy", lambda self: setattr(self, "means", True))
    with pair(tmp_path) as (remote, local):
        rows = rows_from(remote, 2)
        one, two = (asyncio.run(e.update(rows, Objective(), STEP, 9)) for e in (remote, local))
        assert near(one.grad_norm, two.grad_norm) is tidy


def test_steps_are_sent_before_the_last_is_answered() -> None:
    """Pipelined: all of a batch's requests are on their way before the first answer is there."""
    with Line(
        serving(tiny_model()).url,
        lambda path, n: Fault(late=1.0) if path == "retrieve_future" else None,
    ).open() as line:
        engine = engine_at(line.url, tiny_model(), pipelined=True)
        rows = rows_from(engine, 2)
        scored = line.seen["forward"]
        begin = len(line.events)
        plan = STEP.model_copy(update={"minibatches": 3})
        assert asyncio.run(engine.update(rows, Objective(), plan, 9)).optimizer_steps == 3
        engine.close()
    assert line.seen["forward"] == scored + 1
    events = line.events[begin:]
    first = events.index(("seen", "forward_backward"))
    answer = events.index(("answered", "retrieve_future"), first)
    sent = events[first:answer]
    assert sent.count(("seen", "forward_backward")) == sent.count(("seen", "optim_step")) == 3


def test_samples_are_asked_for_all_at_once() -> None:
    with Line(
        serving(tiny_model()).url,
        lambda path, n: Fault(late=1.0) if path == "retrieve_future" else None,
    ).open() as line:
        engine = engine_at(line.url, tiny_model())
        begin = len(line.events)
        rows_of_eight = [some_ids(4, seed=s) for s in range(8)]

        async def go() -> None:
            await asyncio.gather(*(engine.sample(p, 2, Sampling(4, ())) for p in rows_of_eight))

        asyncio.run(go())
        engine.close()
    events = line.events[begin:]
    before = events[: events.index(("answered", "retrieve_future"))]
    assert before.count(("seen", "asample")) == 8
