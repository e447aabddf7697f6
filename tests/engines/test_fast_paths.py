"""Every fast path against the plain one: the same numbers, less work, a name to leave it out."""

from __future__ import annotations

import asyncio
import json
import platform
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM
from transformers.cache_utils import Cache

from inwit.engines import OptimizerSettings, Sampling
from inwit.engines.torch import LoraSettings, TorchEngine, TorchSettings
from inwit.engines.torch.backbone import Backbone
from inwit.engines.torch.choice import Head, plain_logprobs
from inwit.engines.torch.drawing import BLOCK, blocked_draw, plain_draw
from inwit.engines.torch.engine import FastPath
from inwit.engines.torch.learner import score
from inwit.engines.torch.packing import WORTH, Layout, batches, pack
from inwit.engines.torch.products import PackedWeights
from inwit.engines.torch.retaining import RETAINED
from inwit.engines.torch.sampler import Sampler
from inwit.objectives import Objective
from inwit.rows import Completion, Ids, Row
from tests.engines.models import FAMILIES, VOCABULARY, loaded, model_of, stepping
from tests.helpers import make_row, some_ids

CPU = torch.device("cpu")
PACKING = [family for family in FAMILIES if family != "gemma2"]
"""gemma2 caps its attention logits, which only its own attention does."""

ids = st.lists(st.integers(2, 5), min_size=1, max_size=12).map(tuple)
sequence_lists = st.lists(ids, min_size=1, max_size=12)


def conversations(seed: int = 0, groups: int = 3) -> list[Ids]:
    """Groups of completions of one prompt, second turns after some, and one said twice."""
    draw = random.Random(seed)
    found: list[Ids] = []
    for g in range(groups):
        prompt = some_ids(draw.randint(3, 25), seed=100 * seed + g)
        first = [prompt + some_ids(draw.randint(1, 20), seed=50 * g + i) for i in range(4)]
        second = [x + some_ids(draw.randint(5, 9), seed=70 + i) for i, x in enumerate(first[:2])]
        found += [*first, *second, first[0]]
    draw.shuffle(found)
    return found


def rows_of(sequences: Sequence[Ids]) -> list[Row]:
    rows = []
    for i, sequence in enumerate(sequences):
        n = max(1, len(sequence) // 2)
        rows.append(
            make_row(
                sequence[-n:],
                prompt=sequence[:-n] or (3,),
                logprobs=(-1.0,) * n,
                advantages=(1.0 - i % 3,) * n,
                episode=f"e{i}",
            )
        )
    return rows


# ---------------------------------------------------------------------- the layout


@given(sequence_lists, st.booleans())
def test_a_pack_holds_every_token_at_its_place(sequences: list[Ids], share: bool) -> None:
    layout = pack(sequences, CPU, share=share)
    for places, sequence in zip(layout.places, sequences, strict=True):
        assert tuple(layout.ids[0][places].tolist()) == sequence
        assert layout.positions[0][places].tolist() == list(range(len(sequence)))
    assert layout.order is not None
    assert len(set(layout.order.tolist())) == layout.ids.numel()


@given(sequence_lists)
def test_what_is_shared_is_there_once(sequences: list[Ids]) -> None:
    """A token is laid out twice only where fewer than `WORTH` tokens before it are common."""
    n = pack(sequences, CPU).ids.numel()
    prefixes = {s[: i + 1] for s in sequences for i in range(len(s))}
    assert len(prefixes) <= n <= len(prefixes) + (WORTH - 1) * len(sequences)
    assert pack(sequences, CPU, share=False).ids.numel() == sum(map(len, sequences))


def test_rows_of_a_common_template_attend_in_groups_of_like_shape() -> None:
    """The first row of each group looks back at the template alone, the others at a prompt."""
    template = some_ids(30, seed=1)
    rows = []
    for q in range(4):
        prompt = template + some_ids(170, seed=10 + q)
        rows += [(*prompt, 10 + i, *some_ids(40, seed=9 * q + i)) for i in range(4)]
    layout = pack(rows, CPU)
    assert layout.ids.numel() == pytest.approx(30 + 4 * 170 + 16 * 41, abs=8)
    padded = sum(span.queries.numel() for span in layout.spans)
    assert padded <= 1.25 * layout.ids.numel()


def test_a_group_of_eight_reads_its_prompt_once() -> None:
    prompt = some_ids(40)
    group = [(*prompt, 10 + i, *some_ids(9, seed=i)) for i in range(8)]
    layout = pack(group, CPU)
    assert layout.ids.numel() == 40 + 8 * 10
    assert sorted(s.queries.shape for s in layout.spans) == [(1, 50), (7, 10)]


@given(sequence_lists, st.integers(1, 60), st.booleans(), st.booleans())
def test_passes_hold_every_sequence_once_within_the_budget(
    sequences: list[Ids], budget: int, packed: bool, share: bool
) -> None:
    """LESSONS 18, 20: the budget counts what is computed, padding included."""
    found = batches(sequences, budget, packed=packed, share=share)
    assert sorted(i for batch in found for i in batch) == list(range(len(sequences)))
    for batch in found:
        some = [sequences[i] for i in batch]
        if packed:
            tokens = pack(some, CPU, share=share).ids.numel()
        else:
            tokens = len(some) * max(map(len, some))
        assert tokens <= budget or len(some) == 1


# ---------------------------------------------------------------------- states and log-probs


@pytest.mark.parametrize("family", PACKING)
@pytest.mark.parametrize("share", [True, False])
def test_a_pack_has_the_states_of_each_sequence_alone(family: str, share: bool) -> None:
    """Windowed layers, grouped heads, second turns, duplicates: the same hidden states to 1e-5."""
    backbone = Backbone(model_of(family), without=() if share else ["sharing"])
    assert backbone.packs
    sequences = conversations()
    with torch.no_grad():
        layout = backbone.layout(sequences)
        states = backbone.states(layout)
        for places, sequence in zip(layout.places, sequences, strict=True):
            line = torch.tensor([sequence])
            alone = backbone.hidden(line, torch.arange(len(sequence))[None])[0]
            torch.testing.assert_close(states[list(places)], alone, atol=1e-5, rtol=1e-5)


def test_a_window_that_only_a_mask_knows_is_padded() -> None:
    """Qwen2-MoE's layers do not tell attention their window: packed, they would look beyond it."""
    config = Qwen2MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=16,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_experts=2,
        num_experts_per_tok=1,
        use_sliding_window=True,
        sliding_window=16,
        max_window_layers=0,
    )
    model = Qwen2MoeForCausalLM(config).eval()
    assert not Backbone(model).packs
    assert model.config._attn_implementation == "sdpa"


def test_a_model_with_attention_of_its_own_is_padded() -> None:
    backbone = Backbone(model_of("gemma2"))
    assert not backbone.packs
    assert backbone.layout([(1, 2, 3), (4,)]).ids.shape == (2, 3)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 200), st.sampled_from(PACKING))
def test_scores_are_the_plain_paths(seed: int, budget: int, family: str) -> None:
    model = model_of(family)
    rows = rows_of(conversations(seed, groups=2))
    plain = score(Backbone(model, without=get_args(FastPath)), rows, 0.8, 10_000)
    fast = score(Backbone(model), rows, 0.8, budget)
    for a, b in zip(fast, plain, strict=True):
        assert a == pytest.approx(b, abs=1e-5)


@pytest.mark.parametrize("family", ["qwen3", "gemma3"])
@pytest.mark.parametrize("without", [(), *((path,) for path in get_args(FastPath)[:4])])
@pytest.mark.parametrize("lora", [None, LoraSettings(rank=3, alpha=6)])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_are_the_plain_paths(
    family: str, without: tuple[FastPath, ...], lora: LoraSettings | None, checkpointing: bool
) -> None:
    """Issue 4: to 1e-5 of the largest, for every path left out alone and for none."""
    found = []
    for leaving in (without, get_args(FastPath)):
        start = loaded(family)
        engine = TorchEngine(
            start,
            TorchSettings(
                device="cpu", without=leaving, lora=lora, gradient_checkpointing=checkpointing
            ),
        )
        plan = OptimizerSettings(lr=0.1, eps=1.0, max_grad_norm=1e9)
        rows = rows_of(conversations())
        with stepping(start.model) as gradients:
            stats = asyncio.run(engine.update(rows, Objective(temperature=0.9), plan, 1))
        found.append((gradients, stats))
    (fast, one), (plain, two) = found
    assert fast.keys() == plain.keys()
    for name, gradient in plain.items():
        scale = float(gradient.abs().max())
        assert float((fast[name] - gradient).abs().max()) <= 1e-5 * max(scale, 1e-3), name
    assert one.entropy == pytest.approx(two.entropy, rel=1e-5)
    assert one.tokens == two.tokens


def test_a_shared_prompt_is_read_once_by_a_training_pass() -> None:
    """The learner's one pass holds fewer tokens than its rows; leaving `sharing` out, as many."""
    prompt = some_ids(30)
    rows = [
        make_row((10 + i, 5, 6), prompt=prompt, advantages=(1.0,) * 3, episode=str(i))
        for i in range(6)
    ]
    sizes = {}
    for without in ((), ("sharing",)):
        backbone = Backbone(model_of("llama"), without=without)
        read: list[int] = []
        inner = backbone.hidden
        backbone.hidden = lambda ids, *a, inner=inner, read=read, **k: (  # type: ignore[method-assign]
            read.append(ids.numel()) or inner(ids, *a, **k)
        )
        score(backbone, rows, 1.0, 10_000)
        sizes[without] = sum(read)
    assert sizes == {(): 30 + 6 * 2, ("sharing",): 6 * 32}


# ---------------------------------------------------------------------- choosing and drawing


@given(st.integers(1, 40), st.integers(2, 700), st.sampled_from([1.0, 0.7]), st.integers(0, 99))
def test_log_probs_in_place_have_the_plain_values_and_gradients(
    n: int, v: int, temperature: float, seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    states, weight = torch.randn(n, 6, generator=g), torch.randn(v, 6, generator=g)
    targets, scales = torch.randint(v, (n,), generator=g), torch.randn(n, generator=g)
    found = []
    for fast in (False, True):
        x, w = states.clone().requires_grad_(), weight.clone().requires_grad_()
        if fast:
            logp, entropy = Head(w).logprobs(x, targets, temperature)
        else:
            logp, entropy = plain_logprobs(x @ w.t() / temperature, targets)
        assert not entropy.requires_grad
        (logp * scales).sum().backward()
        found.append((logp.detach(), entropy, x.grad, w.grad))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_many_logits_are_worked_on_a_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inwit.engines.torch.choice.AT_ONCE", 64)
    test_log_probs_in_place_have_the_plain_values_and_gradients()


def test_logits_that_were_overwritten_have_no_gradient() -> None:
    """One memory for all calls: a gradient that comes too late is refused, not wrong."""
    weight = torch.randn(9, 4).requires_grad_()
    head, targets = Head(weight), torch.tensor([1, 2])
    first, _ = head.logprobs(torch.randn(2, 4), targets, 1.0)
    second, _ = head.logprobs(torch.randn(2, 4), targets, 1.0)
    second.sum().backward()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        first.sum().backward()
    third, _ = head.logprobs(torch.randn(2, 4), targets, 1.0)
    third.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        third.sum().backward()


@pytest.mark.parametrize("family", ["qwen3", "gemma2"])
def test_a_head_that_is_more_than_a_product_is_left_plain(family: str) -> None:
    assert (Backbone(model_of(family))._in_place is None) == (family == "gemma2")
    assert Backbone(model_of(family), without=["in_place"])._in_place is None


@given(st.integers(2, 3 * BLOCK), st.integers(0, 99), st.sampled_from([0.0, 0.7, 1.0]))
def test_blocks_draw_what_the_running_sum_draws(v: int, seed: int, temperature: float) -> None:
    """The same token at the same level, but where the level is within rounding of a boundary."""
    g = torch.Generator().manual_seed(seed)
    logits, levels = 3 * torch.randn(50, v, generator=g), torch.rand(50, generator=g)
    heat = torch.full((50,), temperature)
    heat[:5] = 1.0
    token, logp = plain_draw(logits.clone(), levels, heat)
    other, logq = blocked_draw(logits.clone(), levels, heat)
    same = token == other
    torch.testing.assert_close(logp[same], logq[same], atol=1e-5, rtol=1e-5)
    odd = (~same).nonzero()[:, 0].tolist()
    for b in odd:
        p = torch.softmax(logits[b].double() / heat[b].double(), -1).cumsum(-1)
        low, high = sorted((int(token[b]), int(other[b])))
        assert abs(float(p[low:high].max()) - float(levels[b])) < 1e-5
    assert len(odd) < 3


@pytest.mark.parametrize("draw", [plain_draw, blocked_draw])
def test_no_level_draws_a_token_without_probability(draw: object) -> None:
    """At the highest level below 1, at 0, and with a tail that cannot be drawn."""
    logits = torch.zeros(3, 2 * BLOCK + 7)
    logits[:, 300:] = -torch.inf
    logits[2, :10] = -torch.inf
    levels = torch.tensor([1 - 2**-24, 0.999999, 0.0])
    token, logp = draw(logits.clone(), levels, torch.ones(3))  # type: ignore[operator]
    assert token.tolist()[0] == 299
    assert token.tolist()[2] == 10
    assert torch.isfinite(logp).all()


@pytest.mark.parametrize("draw", [plain_draw, blocked_draw])
def test_no_level_at_the_edge_of_a_block_does_either(draw: object) -> None:
    """Blocks that begin with what cannot be drawn, and levels right where they begin."""
    logits = torch.randn(1, 9 * BLOCK, generator=torch.Generator().manual_seed(1))
    logits.view(-1, BLOCK)[:, :3] = -torch.inf
    edges = torch.softmax(logits[0], -1).view(-1, BLOCK).sum(-1).cumsum(-1)[:-1]
    steps = torch.arange(-200, 201) * 2**-24
    levels = (edges[:, None] + steps).flatten().clamp(0, 1 - 2**-24)
    rows = logits.expand(len(levels), -1).clone()
    _, logp = draw(rows, levels, torch.ones(len(levels)))  # type: ignore[operator]
    assert torch.isfinite(logp).all()


def test_blocks_draw_from_the_distribution() -> None:
    """Levels spread evenly over [0, 1) give each token its share of them."""
    logits = torch.randn(1, 5 * BLOCK, generator=torch.Generator().manual_seed(3))
    n = 200_000
    levels = (torch.arange(n) + 0.5) / n
    counts = torch.zeros(5 * BLOCK)
    for part in levels.split(20_000):
        rows = logits.expand(len(part), -1).clone()
        token, _ = blocked_draw(rows, part, torch.ones(len(part)))
        counts += torch.bincount(token, minlength=5 * BLOCK)
    torch.testing.assert_close(counts / n, torch.softmax(logits[0], -1), atol=2 / n + 2e-6, rtol=0)


def test_samples_are_the_same_without_any_fast_path() -> None:
    """Whatever is left out, a request's seed gives the same tokens, and parity holds."""
    found = []
    for without in ((), get_args(FastPath)):
        engine = TorchEngine(loaded("llama"), TorchSettings(device="cpu", without=without))
        prompts = [some_ids(n, seed=n) for n in (5, 9, 9, 30)]

        async def go(engine: TorchEngine = engine, prompts: list[Ids] = prompts) -> object:
            return await asyncio.gather(
                *(engine.sample(p, 3, Sampling(9, (), 1.0, seed=i)) for i, p in enumerate(prompts))
            )

        found.append(asyncio.run(go()))
    fast, plain = found
    for one, two in zip(fast, plain, strict=True):  # type: ignore[call-overload]
        assert [c.ids for c in one] == [c.ids for c in two]
        for a, b in zip(one, two, strict=True):
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5)


# ---------------------------------------------------------------------- retaining


class Reading(Backbone):
    """Counts the tokens of each pass that is no decoding."""

    read: int = 0

    def states(self, layout: Layout, cache: Cache | None = None) -> Tensor:
        self.read += layout.ids.numel()
        return super().states(layout, cache)


def dialogue(sampler: Sampler, prompts: list[Ids], turns: int = 3) -> list[list[Completion]]:
    """Each prompt answered, its answer followed by three tokens more, answered again, and so on."""

    async def one(i: int, prompt: Ids) -> list[Completion]:
        said = []
        for turn in range(turns):
            sampling = Sampling(4 + i, (7,), 1.0, seed=10 * i + turn)
            (made,) = await sampler.sample(prompt, 1, sampling)
            said.append(made)
            prompt = prompt + made.ids + some_ids(3, seed=turn)
        return said

    async def go() -> list[list[Completion]]:
        return await asyncio.gather(*(one(i, p) for i, p in enumerate(prompts)))

    return asyncio.run(go())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("capacity", [2, 16])
def test_a_turn_that_goes_on_is_sampled_as_if_read_anew(family: str, capacity: int) -> None:
    """The same tokens, and log-probs to 1e-5, though only what is new was computed."""
    prompts = [some_ids(n, seed=n) for n in (6, 11, 12, 25)]
    backbones = [Reading(model_of(family)) for _ in range(2)]
    for each in backbones:
        each.read = 0
    fast = dialogue(Sampler(backbones[0], capacity), prompts)
    plain = dialogue(Sampler(backbones[1], capacity, without=["retaining"]), prompts)
    for a, b in zip(fast, plain, strict=True):
        assert [x.ids for x in a] == [x.ids for x in b]
        for x, y in zip(a, b, strict=True):
            assert x.logprobs == pytest.approx(y.logprobs, abs=1e-5)
    first = sum(map(len, prompts))
    later = len(prompts) * 2 * 4  # a turn's last token and three more
    if family in PACKING:
        assert backbones[0].read == first + later
        assert backbones[1].read > backbones[0].read
    else:
        assert backbones[0].read == backbones[1].read


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Oldest first; what was dropped is computed again."""
    prompts = [some_ids(n, seed=n) for n in (6, 11, 30)]
    wanted = dialogue(Sampler(Backbone(model_of("llama"))), prompts)
    for held in (0, 3000, 20_000):
        for limit in ("RETAINED", "UNPROVEN"):
            monkeypatch.setattr(f"inwit.engines.torch.retaining.{limit}", held)
        sampler = Sampler(Backbone(model_of("llama")))
        found = dialogue(sampler, prompts)
        assert [[c.ids for c in said] for said in found] == [
            [c.ids for c in said] for said in wanted
        ]
        assert sampler._retained is not None
        assert sampler._retained.size <= held


def test_little_is_kept_until_a_prompt_goes_on_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Single turns, however many, hold no memory for second ones; these get it from the next on."""
    prompts = [some_ids(n, seed=n) for n in (6, 11, 30, 31)]
    monkeypatch.setattr("inwit.engines.torch.retaining.UNPROVEN", 20_000)
    sampler = Sampler(Backbone(model_of("llama")))
    retained = sampler._retained
    assert retained is not None

    async def single_turns() -> None:
        await asyncio.gather(*[sampler.sample(p, 1, Sampling(4, (), 1.0)) for p in prompts])

    asyncio.run(single_turns())
    assert 0 < retained.size <= retained.most == 20_000
    dialogue(sampler, prompts)
    assert retained.most == RETAINED
    assert retained.size > 20_000


# ---------------------------------------------------------------------- packed weights

needs_mkl = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="torch without MKL")


@pytest.fixture
def packs_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a large model does over many passes, a tiny one is to do at its third."""
    monkeypatch.setattr("inwit.engines.torch.products.WORTH", 0)
    monkeypatch.setattr("inwit.engines.torch.products.STEADY", 3)


@needs_mkl
@torch.inference_mode()
def test_packed_products_are_the_plain_ones(packs_small: None) -> None:
    """For as many rows as was packed for and for fewer, with a bias and without."""
    layers = torch.nn.Sequential(torch.nn.Linear(12, 40), torch.nn.Linear(40, 7, bias=False))
    packed = PackedWeights(layers)
    inputs = {n: torch.randn(n, 1, 12) for n in (8, 7, 6, 5, 9)}
    plain = {n: layers(x) for n, x in inputs.items()}
    for passes, rows in enumerate((8, 8, 8, 8, 7, 6, 5, 8, 9, 5, 9, 9)):
        with packed.of(rows):
            torch.testing.assert_close(layers(inputs[rows]), plain[rows], atol=1e-5, rtol=1e-5)
        # from the third pass on for 8; from the third in a row that it does not fit, anew
        assert packed.rows == (0 if passes < 2 else 8 if passes < 10 else 9)
    assert "forward" not in vars(layers[0])
    packed.clear()
    assert packed.rows == 0


@needs_mkl
@pytest.mark.parametrize("lora", [None, LoraSettings(rank=3, alpha=6)])
def test_packed_weights_change_no_sample(packs_small: None, lora: LoraSettings | None) -> None:
    """While sequences leave, and after an update, which forgets what was packed."""
    plan = OptimizerSettings(lr=0.02)

    def play(without: tuple[FastPath, ...]) -> tuple[list[list[Completion]], list[int]]:
        settings = TorchSettings(device="cpu", without=without, lora=lora)
        engine = TorchEngine(loaded("llama"), settings)
        packed, found, rows = engine._policy.backbone._packed, [], []
        for round in range(2):
            sampling = [Sampling(6 + 5 * i, (1, 6), 1.0, seed=round) for i in range(4)]

            async def go(sampling: list[Sampling] = sampling) -> list[list[Completion]]:
                return await asyncio.gather(*[engine.sample(some_ids(9), 3, s) for s in sampling])

            found += asyncio.run(go())
            rows.append(packed.rows if packed else 0)
            asyncio.run(engine.update(rows_of(conversations()), Objective(), plan, 2))
            rows.append(packed.rows if packed else 0)
        return found, rows

    (fast, rows), (plain, none) = play(()), play(("packed_weights",))
    assert min(rows[0], rows[2]) > 0 and rows[1] == rows[3] == 0
    assert none == [0] * 4
    for some, others in zip(fast, plain, strict=True):
        for one, other in zip(some, others, strict=True):
            assert one.ids == other.ids
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


# ---------------------------------------------------------------------- memory


HELD = """
import json, resource, sys, torch
from inwit.engines.torch.process import hold_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

if sys.argv[1] == "held" and not hold_memory():
    sys.exit("the allocator is not glibc's")
passes = []
for _ in range(12):
    before = faults()
    torch.ones(20_000_000)  # 80 MB, some 20,000 pages
    passes.append(faults() - before)
print(json.dumps(passes))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's allocator is told")
def test_freed_memory_is_kept_for_the_next_pass() -> None:
    """Without that the system hands out, and clears, every page of a large tensor anew.

    The usual pass is asked for: a small block that comes to lie right behind a large one keeps it
    from being taken again (alignment asks for a little more than its own size), so that an early
    pass or two may still need new pages.
    """
    held, plain = (
        statistics.median(json.loads(subprocess.check_output([sys.executable, "-c", HELD, how])))
        for how in ("held", "plain")
    )
    assert held < 10
    assert plain > held + 30  # huge pages make them as few as forty


def test_nothing_is_kept_when_the_policy_changes(tmp_path: Path) -> None:
    """After an update and after a load, a prompt that goes on is read under the new weights."""
    engine = TorchEngine(loaded("qwen3"), TorchSettings(device="cpu"))
    sampler = engine._policy.sampler
    assert sampler._retained is not None
    engine.save(tmp_path)
    prompt = some_ids(9)

    async def go() -> None:
        (made,) = await engine.sample(prompt, 1, Sampling(5, (), 1.0))
        assert sampler._retained.size > 0
        row = make_row(made.ids, prompt=prompt, advantages=(1.0,) * 5, logprobs=made.logprobs)
        await engine.update([row], Objective(), OptimizerSettings(lr=0.5), 1)
        assert sampler._retained.size == 0
        further = prompt + made.ids + (8, 9)
        (after,) = await engine.sample(further, 1, Sampling(5, (), 1.0))
        row = make_row(after.ids, prompt=further)
        (scored,) = await engine.logprobs([row])
        assert after.logprobs == pytest.approx(scored, abs=1e-5)
        engine.load(tmp_path)
        assert sampler._retained.size == 0

    asyncio.run(go())
