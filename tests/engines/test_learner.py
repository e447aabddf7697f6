"""The torch learner against a plain one: gradients, accumulation, and which passes it makes."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from inwit.engines import OptimizerSettings
from inwit.engines.torch import LoraSettings, TorchEngine, TorchSettings
from inwit.engines.torch import learner as learner_module
from inwit.engines.torch.backbone import Backbone
from inwit.engines.torch.learner import Learner, MicroBatch, micro_batches, score
from inwit.errors import InwitError
from inwit.objectives import Objective, Weighting
from inwit.rows import Behaviour, Row
from tests.engines.models import FAMILIES, VOCABULARY, gradients, loaded, model_of, stepping
from tests.helpers import make_row, some_ids

TEMPERATURE = 0.7
CRITIQUE = some_ids(5, seed=40)
SMOOTH = OptimizerSettings(lr=0.1, eps=1.0, max_grad_norm=1e9)
"""No clipping, and an eps that keeps a rounding of a small gradient from becoming a whole step."""


class Counted(Backbone):
    """Records the shape of every pass and the number of positions that got logits."""

    def __init__(self, model: PreTrainedModel, without: Sequence[str] = ()) -> None:
        self.shapes: list[tuple[int, int]] = []
        self.scored: list[int] = []
        super().__init__(model, without=without)
        self.shapes.clear()
        self.scored.clear()

    def hidden(self, ids: Tensor, *more: Any, **named: Any) -> Tensor:
        self.shapes.append((ids.shape[0], ids.shape[1]))
        return super().hidden(ids, *more, **named)

    def logprobs(
        self, states: Tensor, targets: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        self.scored.append(len(states))
        return super().logprobs(states, targets, temperature)


def learner(
    model: PreTrainedModel, tokens_at_once: int = 10_000, without: Sequence[str] = ()
) -> tuple[Learner, Counted]:
    backbone = Counted(model, without)
    return Learner(backbone, tokens_at_once), backbone


def shifted(row: Row, by: float) -> Row:
    return dataclasses.replace(row, logprobs=tuple(v + by for v in row.logprobs))


def batch_of(model: PreTrainedModel, seed: int = 0) -> list[Row]:
    """Rows of every kind, scored by `model`, in no particular order.

    On policy; re-conditioned; of several turns; without advantage; without anything to train; said
    by somebody else; with weights of the method's own. Two share an episode.
    """
    draw = random.Random(seed)
    rows = []
    for i in range(12):
        n = draw.choice((1, 3, 6, 11, 16))
        mask = [True] * n if i % 3 else [True, *(draw.random() < 0.6 for _ in range(n - 1))]
        advantages = [draw.choice((-1.5, -0.5, 0.5, 2.0)) for _ in range(n)]
        if i == 4:
            advantages = [0.0] * n
        if i == 7:
            mask = [False] * n
        prompt = some_ids(draw.choice((1, 4, 9, 15)), seed=100 * seed + i)
        rows.append(
            make_row(
                some_ids(n, seed=100 * seed + 50 + i),
                prompt=prompt,
                sampled_prompt=CRITIQUE + prompt if i in (2, 3, 9) else prompt,
                mask=mask,
                advantages=advantages,
                weights=[draw.choice((0.0, 0.5, 1.0)) for _ in range(n)] if i == 5 else (),
                episode=f"e{min(i, 8)}",
                behaviour=Behaviour.EXTERNAL if i == 6 else Behaviour.POLICY,
            )
        )
    asked = [
        dataclasses.replace(
            row, prompt_ids=CRITIQUE + row.prompt_ids if row.reconditioned else row.prompt_ids
        )
        for row in rows
    ]
    scores = score(Backbone(model), asked, TEMPERATURE, 10_000)
    scored = [
        # what stands at tokens that are not trained is nobody's business
        dataclasses.replace(
            row,
            logprobs=tuple(v if m else -50.0 for v, m in zip(values, row.mask, strict=True)),
            advantages=tuple(
                a if m else 7.0 for a, m in zip(row.advantages, row.mask, strict=True)
            ),
        )
        for row, values in zip(rows, scores, strict=True)
    ]
    # somebody else was less sure of it; its weight is 1 all the same, for no prompt was taken away
    scored[6] = shifted(scored[6], -0.4)
    return scored


# ---------------------------------------------------------------------- the plain learner


def plain_scores(model: PreTrainedModel, rows: Sequence[Row]) -> list[Tensor]:
    """Log-probs [T] of each row's completion, from one padded pass with an attention mask."""
    width = max(row.length for row in rows)
    ids = torch.full((len(rows), width), VOCABULARY - 1)
    seen = torch.zeros(len(rows), width, dtype=torch.long)
    for b, row in enumerate(rows):
        ids[b, : row.length] = torch.tensor(row.prompt_ids + row.completion_ids)
        seen[b, : row.length] = 1
    logits = model(input_ids=ids, attention_mask=seen, use_cache=False).logits.float()
    logp = torch.log_softmax(logits / TEMPERATURE, -1)
    out = []
    for b, row in enumerate(rows):
        start = len(row.prompt_ids)
        steps = logp[b, start - 1 : row.length - 1]
        out.append(steps.gather(-1, torch.tensor(row.completion_ids)[:, None])[:, 0])
    return out


def plain_scales(rows: Sequence[Row], aggregation: str) -> list[float]:
    """By the words of `row_scales`: the mean over tokens, or over rows' or episodes' means."""
    if aggregation == "token":
        return [1 / sum(sum(row.mask) for row in rows)] * len(rows)
    units: dict[str, int] = defaultdict(int)
    names = [row.episode if aggregation == "episode" else str(i) for i, row in enumerate(rows)]
    for name, row in zip(names, rows, strict=True):
        units[name] += sum(row.mask)
    count = sum(1 for n in units.values() if n)
    return [1 / (count * max(units[name], 1)) for name in names]


def plain_loss(
    model: PreTrainedModel,
    rows: Sequence[Row],
    objective: Objective,
    old: Sequence[Tensor] | None = None,
    reference: PreTrainedModel | None = None,
) -> Tensor:
    """ICRL Eq. 6 token by token, in the order of the rows, without any of the learner's thrift."""
    logps = plain_scores(model, rows)
    olds = [logp.detach() for logp in logps] if old is None else old
    anchors: Sequence[Tensor | None] = [None] * len(rows)
    if reference is not None:
        with torch.no_grad():
            anchors = plain_scores(reference, rows)
    total = torch.zeros(())
    scales = plain_scales(rows, objective.aggregation)
    for row, logp, before, anchor, scale in zip(rows, logps, olds, anchors, scales, strict=True):
        if not row.signal:
            continue
        for t in range(len(row.mask)):
            if not row.mask[t]:
                continue
            weight = row.weights[t]
            if row.reconditioned:
                assert objective.weighting.cap is not None
                ratio = math.exp(float(before[t]) - row.logprobs[t])
                weight *= min(ratio, objective.weighting.cap)
            rho, a = (logp[t] - before[t]).exp(), row.advantages[t]
            kept = rho.clamp(1 - objective.clip_low, 1 + objective.clip_high)
            term = weight * torch.minimum(rho * a, kept * a)
            if anchor is not None:
                gap = anchor[t] - logp[t]
                term = term - objective.kl * (gap.exp() - 1 - gap)
            total = total - scale * term
    return total


def weights_of(model: torch.nn.Module) -> dict[str, Tensor]:
    return {n: p.detach().clone() for n, p in model.named_parameters()}


def assert_near(a: dict[str, Tensor], b: dict[str, Tensor], atol: float) -> None:
    assert a.keys() == b.keys()
    for name in a:
        worst = float((a[name] - b[name]).abs().max())
        assert worst <= atol, f"{name} differs by {worst}"


def assert_moved(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert max(float((a[name] - b[name]).abs().max()) for name in a) > 1e-4


# ---------------------------------------------------------------------- gradients


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("budget", [1, 10_000])
def test_gradients_are_the_plain_ones(family: str, budget: int) -> None:
    """LESSONS 11, 16, 18: a non-trivial mask, padding and accumulation leave the plain gradient."""
    plain, ours = model_of(family), model_of(family)
    rows, objective = batch_of(plain), Objective(temperature=TEMPERATURE)
    loss = plain_loss(plain, rows, objective)
    loss.backward()
    made, _ = learner(ours, budget)
    with stepping(ours) as found:
        stats = made.update(rows, objective, SMOOTH, 1, None)
    assert_near(found, gradients(plain), 1e-5)
    assert max(float(g.abs().max()) for g in gradients(plain).values()) > 0.01
    assert stats.loss == pytest.approx(loss.item(), abs=1e-5)
    norm = math.sqrt(sum(float(g.square().sum()) for g in gradients(plain).values()))
    assert stats.grad_norm == pytest.approx(norm, rel=1e-4)


@pytest.mark.parametrize("aggregation", ["token", "row", "episode"])
@pytest.mark.parametrize("kl", [0.0, 0.3])
@pytest.mark.parametrize("lora", [None, LoraSettings(rank=3, alpha=6)])
def test_every_objective_has_the_plain_gradient(
    aggregation: str, kl: float, lora: LoraSettings | None
) -> None:
    """LESSONS 10: each aggregation, with a KL term and without, whole weights and adapters.

    The engine's adapters are moved first: at their start half of their gradients are zero, and the
    reference, being the policy without them, equals the policy.
    """
    objective = Objective(aggregation=aggregation, kl=kl, temperature=TEMPERATURE)  # type: ignore[arg-type]
    start = loaded("llama")
    engine = TorchEngine(
        start,
        TorchSettings(device="cpu", tokens_at_once=60, lora=lora),
        keep_reference=True,
    )
    generator, size = torch.Generator().manual_seed(3), 0.05 if lora else 0.01
    with torch.no_grad():
        for name, parameter in start.model.named_parameters():
            if parameter.requires_grad and (lora is None or "lora_B" in name):
                parameter.add_(torch.randn(parameter.shape, generator=generator) * size)
    rows = batch_of(start.model)
    plain_loss(start.model, rows, objective, reference=model_of("llama") if kl else None).backward()
    wanted = gradients(start.model)
    with stepping(start.model) as found:
        stats = asyncio.run(engine.update(rows, objective, SMOOTH, 1))
    assert_near(found, wanted, 1e-5)
    assert (stats.kl > 1e-3) is (kl > 0)
    assert all("lora_" in name for name in wanted) is (lora is not None)


def test_several_steps_a_batch_use_the_log_probs_from_before_it() -> None:
    """Two epochs against a plain loop with its own AdamW: old log-probs and weights stay fixed."""
    plain, ours = model_of("qwen3"), model_of("qwen3")
    rows = batch_of(plain)
    objective = Objective(temperature=TEMPERATURE, clip_low=0.05, clip_high=2.0)
    settings_ = OptimizerSettings(lr=0.02, eps=0.01, epochs=3, max_grad_norm=0.5, weight_decay=0.1)
    with torch.no_grad():
        old = plain_scores(plain, rows)
    optimizer = torch.optim.AdamW(
        plain.parameters(), lr=0.02, betas=settings_.betas, eps=0.01, weight_decay=0.1
    )
    for _ in range(3):
        optimizer.zero_grad()
        plain_loss(plain, rows, objective, old).backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        optimizer.step()
    made, backbone = learner(ours)
    before = weights_of(ours)
    stats = made.update(rows, objective, settings_, 1, None)
    assert stats.optimizer_steps == 3
    assert len(backbone.shapes) == 1 + 3
    assert stats.clip_share > 0
    assert_near(weights_of(ours), weights_of(plain), 1e-4)
    assert_moved(weights_of(ours), before)


@settings(max_examples=12, deadline=None)
@given(
    budget=st.integers(1, 400),
    order=st.permutations(range(12)),
    without=st.sets(st.sampled_from(["packing", "sharing"])),
)
def test_no_split_into_micro_batches_changes_the_update(
    budget: int, order: list[int], without: set[str]
) -> None:
    """LESSONS 18: accumulation changes nothing, to 1e-6; nor does the order of the rows."""
    whole, split = model_of("qwen3"), model_of("qwen3")
    rows, objective = batch_of(whole), Objective(temperature=TEMPERATURE)
    before = weights_of(whole)
    one = learner(whole)[0].update(rows, objective, SMOOTH, 1, None)
    made, backbone = learner(split, budget, sorted(without))
    other = made.update([rows[i] for i in order], objective, SMOOTH, 1, None)
    assert_near(weights_of(split), weights_of(whole), 1e-6)
    assert_moved(weights_of(whole), before)
    longest = max(row.length for row in rows)
    assert all(b * width <= max(budget, longest) for b, width in backbone.shapes)
    assert one.parity is not None and other.parity is not None
    assert max(one.parity, other.parity) < 1e-5  # nothing but roundings
    for name, value in dataclasses.replace(one, parity=other.parity).numbers().items():
        assert other.numbers()[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("held", [1, 3 * VOCABULARY])
def test_logits_in_chunks_give_the_same_gradients(
    held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LESSONS 20: logits of trained tokens only, by chunks that are computed twice."""
    whole, parts = model_of("llama"), model_of("llama")
    rows, objective = batch_of(whole), Objective(temperature=TEMPERATURE)
    made, backbone = learner(whole)
    with stepping(whole) as wanted:
        made.update(rows, objective, SMOOTH, 1, None)
    trained = sum(row.trained_tokens for row in rows if row.signal)
    assert backbone.scored == [trained]
    monkeypatch.setattr(learner_module, "LOGITS_AT_ONCE", held)
    made, backbone = learner(parts)
    with stepping(parts) as found:
        made.update(rows, objective, SMOOTH, 1, None)
    assert max(backbone.scored) == max(1, held // VOCABULARY)
    assert sum(backbone.scored) == 2 * trained
    assert_near(found, wanted, 1e-6)
    assert_near(weights_of(parts), weights_of(whole), 1e-6)


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=3)])
def test_gradient_checkpointing_gives_the_same_update(lora: LoraSettings | None) -> None:
    """LESSONS 20: layers are computed twice and held once; nothing else changes."""
    found = []
    for checkpointing in (False, True):
        start = loaded("gemma3")
        engine = TorchEngine(
            start,
            TorchSettings(device="cpu", gradient_checkpointing=checkpointing, lora=lora),
        )
        rows, before, calls = batch_of(start.model), weights_of(start.model), []
        mlp = start.model.get_decoder().layers[0].mlp
        handle = mlp.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        objective = Objective(temperature=TEMPERATURE)
        stats = asyncio.run(engine.update(rows, objective, SMOOTH, 1))
        handle.remove()
        assert len(calls) == 1 + checkpointing
        assert_moved(weights_of(start.model), before)
        found.append((weights_of(start.model), stats))
    (plain, one), (again, two) = found
    assert_near(again, plain, 1e-6)
    assert two.grad_norm == pytest.approx(one.grad_norm, rel=1e-5)


# ---------------------------------------------------------------------- which passes are made


@pytest.mark.parametrize("budget", [40, 10_000])
def test_one_step_a_batch_needs_one_pass_a_micro_batch(budget: int) -> None:
    """Old log-probs and re-conditioning weights are those of the training pass itself."""
    model = model_of("qwen3")
    rows = batch_of(model)
    assert any(row.reconditioned for row in rows)
    live = [row for row in rows if row.signal]
    made, backbone = learner(model, budget, ["packing"])
    stats = made.update(rows, Objective(temperature=TEMPERATURE), SMOOTH, 1, None)
    assert len(backbone.shapes) == len(micro_batches(backbone, live, budget))
    assert sum(b for b, _ in backbone.shapes) == len(live) < len(rows)
    assert stats.tokens == sum(row.length for row in live)


def test_several_steps_a_batch_score_it_once_before() -> None:
    """LESSONS 15: one pass for the old log-probs; later steps leave ratio 1 and may be clipped."""
    model = model_of("qwen3")
    rows = batch_of(model)
    live = sum(row.signal for row in rows)
    made, backbone = learner(model, without=["packing"])
    strong = OptimizerSettings(lr=0.05, minibatches=2, epochs=2)
    stats = made.update(rows, Objective(temperature=TEMPERATURE), strong, 1, None)
    assert len(backbone.shapes) == 1 + 2 * 2
    assert backbone.shapes[0][0] == live
    assert sum(b for b, _ in backbone.shapes[1:]) == 2 * live, "each row once an epoch"
    assert stats.optimizer_steps == 4
    assert stats.clip_share > 0.05


def test_minibatches_differ_from_epoch_to_epoch_and_from_batch_to_batch() -> None:
    model = model_of("qwen3")
    rows = [make_row(some_ids(3, seed=i), prompt=some_ids(2 + i)) for i in range(8)]
    made, backbone = learner(model, without=["packing"])
    widths = []
    for _ in range(2):
        backbone.shapes.clear()
        faint = OptimizerSettings(lr=1e-12, minibatches=4, epochs=2)
        made.update(rows, Objective(), faint, 1, None)
        widths.append(tuple(shape for shape in backbone.shapes if shape[0] == 2))
    (a, b), (c, d) = ((w[:4], w[4:]) for w in widths)
    assert len({a, b, c, d}) == 4


def test_the_schedule_runs_over_updates() -> None:
    """Warm-up, then a cosine to `final`; the rate in the statistics is the optimizer's."""
    made, _ = learner(model_of("qwen3"))
    rows = [make_row()]
    plan = OptimizerSettings(lr=0.01, warmup=2, schedule="cosine", final=0.1, epochs=2)
    rates = []
    for _ in range(6):
        rates.append(made.update(rows, Objective(), plan, 5, None).lr)
        assert made.optimizer is not None
        assert made.optimizer.param_groups[0]["lr"] == rates[-1]
    shape = [0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * k / 5)) for k in range(6)]
    assert rates == pytest.approx([0.01 * s * min(1, (k + 1) / 2) for k, s in enumerate(shape)])
    assert rates[5] == pytest.approx(0.001)


# ---------------------------------------------------------------------- statistics


@pytest.mark.parametrize("epochs", [1, 2])
def test_parity_is_of_what_this_policy_sampled_under_this_prompt(epochs: int) -> None:
    """LESSONS 15: re-conditioned rows, rows of others and masked tokens have no parity to keep."""
    model = model_of("qwen3")
    plan = OptimizerSettings(lr=1e-12, epochs=epochs)
    objective = Objective(temperature=TEMPERATURE)
    rows = [
        shifted(row, 3.0) if row.reconditioned or row.behaviour is not Behaviour.POLICY else row
        for row in batch_of(model)
    ]
    assert not all(rows[0].mask)
    stats = learner(model)[0].update(rows, objective, plan, 1, None)
    assert stats.parity is not None
    assert stats.parity < 1e-4
    off = [shifted(row, 0.25) if i == 8 else row for i, row in enumerate(rows)]
    stats = learner(model, 40)[0].update(off, objective, plan, 1, None)
    assert stats.parity == pytest.approx(0.25, abs=1e-4)
    others = [row for row in rows if row.reconditioned or row.behaviour is not Behaviour.POLICY]
    assert learner(model)[0].update(others, objective, plan, 1, None).parity is None


def test_parity_looks_at_every_minibatch() -> None:
    """LESSONS 15: with several steps a batch, the rows of the later ones are compared too."""
    model = model_of("qwen3")
    rows = [row for row in batch_of(model) if not row.reconditioned and row.signal]
    plan = OptimizerSettings(lr=0.01, minibatches=3, epochs=2)
    for i, row in enumerate(rows):
        if row.behaviour is Behaviour.POLICY:
            off = [*rows[:i], shifted(row, 0.25), *rows[i + 1 :]]
            made, _ = learner(model_of("qwen3"))
            stats = made.update(off, Objective(temperature=TEMPERATURE), plan, 1, None)
            assert stats.parity == pytest.approx(0.25, abs=1e-4)


@pytest.mark.parametrize(
    "weighting",
    [
        Weighting(),
        Weighting(cap=None),
        Weighting(cap=0.5),
        Weighting("none"),
        Weighting("shaped"),
        Weighting("sequence", cap=None),
    ],
)
def test_weights_in_the_statistics(weighting: Weighting) -> None:
    """LESSONS 1: mean weight, share truncated and effective sample size are reported."""
    model = model_of("gemma2")
    rows = batch_of(model)
    scores = score(Backbone(model), rows, TEMPERATURE, 10_000)
    weights: dict[int, list[float]] = {}
    for i, (row, values) in enumerate(zip(rows, scores, strict=True)):
        if not row.reconditioned:
            continue
        weights[i] = [1.0] * len(row.mask)
        whole = sum(
            new - old for new, old, m in zip(values, row.logprobs, row.mask, strict=True) if m
        )
        for t, (new, old, m) in enumerate(zip(values, row.logprobs, row.mask, strict=True)):
            w = {
                "ratio": math.exp(new - old),
                "none": 1.0,
                "sequence": math.exp(whole),
                "shaped": math.exp(new) / (math.exp(new) + weighting.gamma),
            }[weighting.kind]
            if m:
                weights[i][t] = w if weighting.cap is None else min(w, weighting.cap)
    flat = [w for i, ws in weights.items() for w, m in zip(ws, rows[i].mask, strict=True) if m]
    objective = Objective(temperature=TEMPERATURE, weighting=weighting)
    stats = learner(model, 40)[0].update(rows, objective, OptimizerSettings(lr=1e-12), 1, None)
    assert stats.weight_mean == pytest.approx(sum(flat) / len(flat), rel=1e-4)
    assert stats.effective_share == pytest.approx(
        sum(flat) ** 2 / (len(flat) * sum(w * w for w in flat)), rel=1e-4
    )
    cap = weighting.cap
    hit = sum(w >= cap for w in flat) / len(flat) if cap is not None else 0.0
    assert stats.weight_truncated == pytest.approx(hit)
    assert set(stats.weights) == set(weights)
    for i, wanted in weights.items():
        assert stats.weights[i] == pytest.approx(wanted, rel=1e-3)


def test_entropy_is_of_the_trained_positions() -> None:
    model = model_of("qwen3")
    rows = [row for row in batch_of(model) if row.signal]
    entropies = []
    for row in rows:
        with torch.no_grad():
            logits = model(torch.tensor([row.prompt_ids + row.completion_ids])).logits[0]
        logp = torch.log_softmax(logits / TEMPERATURE, -1)
        per_token = -(logp.exp() * logp).sum(-1)[len(row.prompt_ids) - 1 : -1]
        entropies += [float(h) for h, m in zip(per_token, row.mask, strict=True) if m]
    faint = OptimizerSettings(lr=1e-12)
    stats = learner(model)[0].update(rows, Objective(temperature=TEMPERATURE), faint, 1, None)
    assert stats.entropy == pytest.approx(sum(entropies) / len(entropies), rel=1e-4)


# ---------------------------------------------------------------------- what must not change


def test_a_kl_term_does_not_move_rows_without_advantage() -> None:
    """LESSONS 19: a row without advantage gets no gradient, not even of the KL."""
    start = loaded("qwen3")
    engine = TorchEngine(start, TorchSettings(device="cpu"), keep_reference=True)
    rows = batch_of(start.model)
    asyncio.run(engine.update(rows, Objective(), SMOOTH, 1))
    idle = [dataclasses.replace(row, advantages=(0.0,) * len(row.mask)) for row in rows]
    before = weights_of(start.model)
    stats = asyncio.run(engine.update(idle, Objective(kl=1.0), SMOOTH, 1))
    assert stats.optimizer_steps == 0
    assert_near(weights_of(start.model), before, 0.0)


@pytest.mark.parametrize("where", ["advantages", "logprobs", "weights"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(where: str, bad: float) -> None:
    """LESSONS 17: InwitError, the same weights, and an optimizer that has seen nothing of it."""
    model, fresh = model_of("qwen3"), model_of("qwen3")
    rows, objective = batch_of(model), Objective(temperature=TEMPERATURE)
    row = rows[2]
    assert row.reconditioned
    assert row.mask[0]
    if where == "logprobs":
        bad = math.nan  # an infinite one is clamped, and its weight capped
    broken = dataclasses.replace(row, **{where: (bad, *getattr(row, where)[1:])})
    made, _ = learner(model)
    before = weights_of(model)
    with pytest.raises(InwitError, match="gradient"):
        made.update([*rows, broken], objective, SMOOTH, 1, None)
    assert_near(weights_of(model), before, 0.0)
    made.update(rows, objective, SMOOTH, 1, None)
    learner(fresh)[0].update(rows, objective, SMOOTH, 1, None)
    assert_near(weights_of(model), weights_of(fresh), 0.0)


def test_what_is_not_trained_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """With adapters, every weight of the base is the very same after training."""
    start = loaded("gemma2")
    engine = TorchEngine(start, TorchSettings(device="cpu", lora=LoraSettings(rank=2)))
    before = weights_of(start.model)
    asyncio.run(engine.update(batch_of(start.model), Objective(), SMOOTH, 1))
    after = weights_of(start.model)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved
    assert all("lora_" in name for name in moved)
    assert {name for name in before if "lora_B" in name} <= moved


def test_a_row_that_appears_twice_counts_twice() -> None:
    """The same object in a batch again is another sample, in one step and in several."""
    for plan in (SMOOTH, SMOOTH.model_copy(update={"epochs": 2})):
        one, two = model_of("qwen3"), model_of("qwen3")
        rows = [row for row in batch_of(one) if row.signal]
        copy = dataclasses.replace(rows[0])
        assert copy is not rows[0]
        learner(one)[0].update([*rows, rows[0]], Objective(), plan, 1, None)
        learner(two)[0].update([*rows, copy], Objective(), plan, 1, None)
        assert_near(weights_of(one), weights_of(two), 1e-6)


def test_a_micro_batch_points_at_the_states_that_predict() -> None:
    """LESSONS 12, 16: positions come from lengths; a pad id inside a completion is a token."""
    rows = [
        make_row((0, 1, 0), prompt=(0, 0), mask=(True, False, True)),
        make_row((7,), prompt=(5, 6, 0, 0)),
    ]
    batch = MicroBatch.of(rows, Backbone(model_of("llama"), without=["packing"]))
    assert batch.layout.ids.tolist() == [[0, 0, 0, 1], [5, 6, 0, 0]]
    assert batch.where.tolist() == [1, 3, 7]
    assert batch.targets.tolist() == [0, 0, 7]
    assert batch.mask.tolist() == [[True, False, True], [True, False, False]]
