"""The torch sampler: the distribution, the running batch, and what happens when a pass fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor
from transformers import PreTrainedModel

from inwit.engines import OptimizerSettings, Sampling
from inwit.engines.torch import LoraSettings, TorchEngine, TorchPolicy, TorchSettings
from inwit.engines.torch import cache as cache_module
from inwit.engines.torch.backbone import Backbone
from inwit.engines.torch.packing import Layout, Past
from inwit.engines.torch.sampler import Sampler
from inwit.errors import InwitError
from inwit.objectives import Objective
from inwit.rows import Completion, Ids, Stop
from tests.engines.models import VOCABULARY, loaded, model_of, plain_logits, plain_logprobs
from tests.helpers import row_of, some_ids

STOPS = (1, 6, 11, 16, 21)
Request = tuple[Ids, int, Sampling]


class Watched(Backbone):
    """Records the shape of every pass, and fails at the ones it is told to."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.shapes: list[tuple[int, int]] = []
        self.scored: list[int] = []
        self.prompts = 0
        self.fail_hidden: set[int] = set()
        self.fail_logits: set[int] = set()
        super().__init__(model)
        self.forget()

    def forget(self) -> None:
        self.shapes.clear()
        self.scored.clear()
        self.prompts = 0

    def layout(self, sequences: Sequence[Ids], past: Past | None = None) -> Layout:
        self.prompts += len(sequences)
        return super().layout(sequences, past)

    def hidden(self, ids: Tensor, *more: Any, **named: Any) -> Tensor:
        self.shapes.append((ids.shape[0], ids.shape[1]))
        if len(self.shapes) in self.fail_hidden:
            raise RuntimeError("no room for a pass")
        return super().hidden(ids, *more, **named)

    def logits(self, hidden: Tensor) -> Tensor:
        self.scored.append(hidden.shape[0])
        if len(self.scored) in self.fail_logits:
            raise RuntimeError("no room for logits")
        return super().logits(hidden)


def sampler(
    family: str = "qwen3", capacity: int = 16, prefill_tokens: int = 8192
) -> tuple[Sampler, Watched]:
    backbone = Watched(model_of(family).requires_grad_(False))
    return Sampler(backbone, capacity, prefill_tokens), backbone


def run(made: Sampler, *requests: Request) -> list[list[Completion]]:
    async def go() -> list[list[Completion]]:
        return await asyncio.wait_for(
            asyncio.gather(*(made.sample(*request) for request in requests)), timeout=60
        )

    return asyncio.run(go())


def ids_of(found: Sequence[Completion]) -> list[Ids]:
    return [c.ids for c in found]


# ---------------------------------------------------------------------- the distribution


def assert_drawn_from(tokens: Sequence[int], probabilities: Tensor) -> None:
    """Chi-square at 1e-3, cells of fewer than 5 expected pooled; seeds are fixed, so no luck."""
    n = len(tokens)
    observed = torch.bincount(torch.tensor(tokens), minlength=VOCABULARY).double()
    expected = probabilities.double() / probabilities.double().sum() * n
    rare = expected < 5
    cells = [(observed[~rare], expected[~rare])]
    if bool(rare.any()) and float(expected[rare].sum()) > 1:
        cells.append((observed[rare].sum()[None], expected[rare].sum()[None]))
    o, e = (torch.cat(part) for part in zip(*cells, strict=True))
    e = e * (o.sum() / e.sum())
    assert len(o) > 8, "the distribution must be wide enough for the test to say something"
    assert chisquare(o.numpy(), e.numpy()).pvalue > 1e-3


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_first_tokens_follow_the_softmax(temperature: float) -> None:
    """LESSONS 15: what is sampled is softmax(logits / temperature), and nothing narrower."""
    made, backbone = sampler(capacity=512)
    prompt = some_ids(6, seed=3)
    (found,) = run(made, (prompt, 4000, Sampling(1, (), temperature, seed=5)))
    exact = torch.softmax(plain_logits(backbone.model, prompt)[-1] / temperature, -1)
    assert_drawn_from([c.ids[0] for c in found], exact)


def test_later_tokens_follow_the_softmax_given_the_first() -> None:
    """Decoding draws from the conditional, and its draws owe nothing to the draws before."""
    made, backbone = sampler(capacity=512)
    prompt = some_ids(6, seed=3)
    (found,) = run(made, (prompt, 6000, Sampling(2, (), 1.0, seed=6)))
    firsts = torch.bincount(torch.tensor([c.ids[0] for c in found]))
    for first in firsts.argsort(descending=True)[:2].tolist():
        seconds = [c.ids[1] for c in found if c.ids[0] == first]
        exact = torch.softmax(plain_logits(backbone.model, (*prompt, first))[-1], -1)
        assert_drawn_from(seconds, exact)


def test_requests_of_neighbouring_seeds_are_independent() -> None:
    made, backbone = sampler(capacity=512)
    prompt = some_ids(6, seed=3)
    found = run(made, *((prompt, 1, Sampling(1, (), 1.0, seed=s)) for s in range(2000)))
    exact = torch.softmax(plain_logits(backbone.model, prompt)[-1], -1)
    assert_drawn_from([c[0].ids[0] for c in found], exact)


def test_samples_come_in_order() -> None:
    """The i-th sample is the i-th, however many are asked for and whoever finishes first."""
    made, _ = sampler(capacity=3)
    prompt = some_ids(4)
    (many,) = run(made, (prompt, 9, Sampling(12, STOPS, 1.2, seed=2)))
    (few,) = run(made, (prompt, 4, Sampling(12, STOPS, 1.2, seed=2)))
    assert len({len(c.ids) for c in many}) > 2
    assert ids_of(many[:4]) == ids_of(few)


# ---------------------------------------------------------------------- the running batch


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_episodes_join_and_leave_the_running_batch(family: str) -> None:
    """LESSONS 15, 16: turns of other lengths come while others run, and the cache grows meanwhile.

    Slots go from 8 to 32 and columns from 64 to 128 under sequences in flight.
    """
    made, backbone = sampler(family, capacity=32)
    seen: list[tuple[Ids, Completion]] = []

    async def turns(prompt: Ids, seed: int) -> None:
        found = await made.sample(prompt, 1 + seed % 3, Sampling(3 + 4 * seed, STOPS, 0.9, seed))
        seen.extend((prompt, c) for c in found)
        longer = [(prompt + c.ids + some_ids(2 + 9 * seed, seed), c) for c in found]
        more = await asyncio.gather(
            *(made.sample(p, 3, Sampling(24, STOPS, 0.9, seed + 7)) for p, _ in longer)
        )
        seen.extend((p, c) for (p, _), some in zip(longer, more, strict=True) for c in some)

    async def go() -> None:
        await asyncio.gather(*(turns(some_ids(3 + s, seed=s), s) for s in range(5)))

    asyncio.run(asyncio.wait_for(go(), 60))
    own = made._cache._own.layers[0].keys
    assert own is not None
    assert own.shape[0] > 8
    assert own.shape[2] > cache_module.GRAIN
    assert len({rows for rows, width in backbone.shapes if width == 1}) > 4
    for prompt, completion in seen:
        oracle = plain_logprobs(backbone.model, prompt, completion.ids, 0.9)
        assert completion.logprobs == pytest.approx(oracle, abs=1e-4)
    assert not made.busy


@pytest.mark.parametrize("capacity", [1, 2, 7, 64])
def test_capacity_changes_no_sample(capacity: int) -> None:
    requests = [
        (some_ids(2 + 5 * i, seed=i), 3, Sampling(6 + i, STOPS, 1.0, seed=i)) for i in range(4)
    ]
    wanted = [ids_of(found) for found in run(sampler(capacity=5)[0], *requests)]
    made, backbone = sampler(capacity=capacity)
    assert [ids_of(found) for found in run(made, *requests)] == wanted
    assert max(rows for rows, width in backbone.shapes if width == 1) <= capacity


@pytest.mark.parametrize("capacity", [2, 64])
def test_a_prompt_is_computed_once(capacity: int) -> None:
    """n samples of one prompt, and requests that share it, cost one prefill together."""
    made, backbone = sampler(capacity=capacity)
    one, two, three = (some_ids(n, seed=n) for n in (5, 9, 14))
    sampling = Sampling(5, STOPS)
    run(made, (one, 7, sampling), (two, 1, sampling), (three, 6, sampling), (one, 3, sampling))
    assert backbone.prompts == 3
    assert not made._prefilled, "prompts are let go once nobody waits for them"


def test_prefill_keeps_to_its_budget() -> None:
    """Prompts share a pass of bounded size; a longer one gets its own."""
    requests = [
        (some_ids(n, seed=n), 1, Sampling(3, (), 1.0, seed=n)) for n in (30, 4, 5, 25, 6, 8, 70)
    ]
    free, _ = sampler()
    made, backbone = sampler(prefill_tokens=60)
    assert [ids_of(f) for f in run(made, *requests)] == [ids_of(f) for f in run(free, *requests)]
    prefills = [shape for shape in backbone.shapes if shape[1] > 1]
    assert backbone.prompts == 7
    assert all(rows * width <= 60 or width == 70 for rows, width in prefills)
    assert len(prefills) < 7


def test_logits_are_computed_where_a_token_is_drawn() -> None:
    """LESSONS 20: one row of logits for each sampled token, none for the rest of a prompt."""
    made, backbone = sampler()
    (found,) = run(made, (some_ids(40), 3, Sampling(6, (), 1.0)))
    assert [len(c.ids) for c in found] == [6] * 3
    assert sum(backbone.scored) == 1 + 3 * 5


def test_greedy_and_random_requests_share_a_batch() -> None:
    made, backbone = sampler()
    prompt = some_ids(5)
    greedy, warm = run(
        made, (prompt, 2, Sampling(8, (), 0.0)), (prompt, 2, Sampling(8, (), 1.0, seed=4))
    )
    ids = prompt
    for token in greedy[0].ids:
        assert token == int(plain_logits(backbone.model, ids)[-1].argmax())
        ids += (token,)
    assert greedy[0] == greedy[1]
    assert greedy[0].logprobs == pytest.approx(
        plain_logprobs(backbone.model, prompt, greedy[0].ids), abs=1e-4
    )
    (alone,) = run(made, (prompt, 2, Sampling(8, (), 1.0, seed=4)))
    assert ids_of(warm) == ids_of(alone)


def test_others_get_their_turns_while_a_long_sample_runs() -> None:
    """An environment that waits for a reply must not wait for the end of a completion."""
    made, backbone = sampler()
    passes: list[int] = []

    async def environment() -> None:
        while True:
            passes.append(len(backbone.shapes))
            await asyncio.sleep(0)

    async def go() -> list[Completion]:
        other = asyncio.create_task(environment())
        found = await made.sample(some_ids(5), 1, Sampling(140, (), 1.0))
        other.cancel()
        return found

    assert len(asyncio.run(go())[0].ids) == 140
    assert any(0 < done < 100 for done in passes)


def test_one_sampler_serves_one_event_loop_after_another() -> None:
    made, _ = sampler()
    request = (some_ids(5), 3, Sampling(6, STOPS, 1.0, seed=1))
    assert ids_of(run(made, request)[0]) == ids_of(run(made, request)[0])


# ---------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize(
    ("part", "at"),
    [("hidden", 1), ("hidden", 2), ("hidden", 5), ("logits", 1), ("logits", 2), ("logits", 4)],
)
def test_a_failing_pass_reaches_everyone_and_ends_nothing(part: str, at: int) -> None:
    """In a prefill or in decoding: every caller gets the error, and the sampler goes on."""
    made, backbone = sampler(capacity=2)
    requests = [(some_ids(4 + i, seed=i), 2, Sampling(9, (), 1.0, seed=i)) for i in range(3)]
    wanted = run(made, *requests)
    backbone.forget()
    getattr(backbone, f"fail_{part}").add(at)

    async def go() -> list[list[Completion] | BaseException]:
        return await asyncio.wait_for(
            asyncio.gather(*(made.sample(*r) for r in requests), return_exceptions=True), 20
        )

    found = asyncio.run(go())
    assert [type(error) for error in found] == [RuntimeError] * 3
    assert not made.busy
    assert [ids_of(some) for some in run(made, *requests)] == [ids_of(some) for some in wanted]


def test_a_failing_pass_leaves_who_is_done_alone() -> None:
    made, backbone = sampler()
    short = (some_ids(4), 1, Sampling(1, (), 1.0))
    long = (some_ids(5), 1, Sampling(20, (), 1.0))
    backbone.fail_hidden.add(5)

    async def go() -> list[list[Completion] | BaseException]:
        return await asyncio.wait_for(
            asyncio.gather(made.sample(*short), made.sample(*long), return_exceptions=True), 20
        )

    first, second = asyncio.run(go())
    assert isinstance(first, list)
    assert len(first) == 1
    assert isinstance(second, RuntimeError)


def test_a_caller_who_leaves_disturbs_nobody() -> None:
    made, _ = sampler(capacity=2)
    stay = (some_ids(4), 3, Sampling(9, (), 1.0, seed=1))
    (wanted,) = run(made, stay)

    async def go() -> list[Completion]:
        leaver = asyncio.create_task(made.sample(some_ids(7), 3, Sampling(9, (), 1.0)))
        stayer = asyncio.create_task(made.sample(*stay))
        await asyncio.sleep(0)
        leaver.cancel()
        return await asyncio.wait_for(stayer, 20)

    assert ids_of(asyncio.run(go())) == ids_of(wanted)
    assert not made.busy


def test_no_room_is_said_before_anything_is_computed() -> None:
    made, backbone = sampler()
    with pytest.raises(InwitError, match=r"150 tokens and 20 to sample exceed .* 160 positions"):
        run(made, (some_ids(150), 1, Sampling(20, ())))
    assert backbone.shapes == []
    assert not made.busy


def test_an_update_under_way_sampling_is_refused() -> None:
    """No sequence may begin under one policy and end under another."""
    engine = TorchEngine(loaded(), TorchSettings(device="cpu"))
    prompt = some_ids(4)
    completion = Completion((7, 8), (-1.0, -1.0), Stop.LENGTH)

    async def go() -> list[Completion]:
        task = asyncio.create_task(engine.sample(prompt, 2, Sampling(5, ())))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="sampling"):
            await engine.update([row_of(prompt, completion)], Objective(), OptimizerSettings(), 1)
        return await task

    assert len(asyncio.run(go())) == 2


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=2)])
def test_gradient_checkpointing_leaves_the_cache_alone(lora: LoraSettings | None) -> None:
    """LESSONS 15: training mode, which checkpointing needs, samples from the same distribution."""
    made = TorchEngine(
        loaded("gemma3"), TorchSettings(device="cpu", gradient_checkpointing=True, lora=lora)
    )
    request = (some_ids(12), 3, Sampling(12, STOPS, 1.0, seed=3))
    found = asyncio.run(made.sample(*request))
    plain, _ = sampler("gemma3")
    (wanted,) = run(plain, request)
    assert ids_of(found) == ids_of(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def test_a_frozen_policy_cannot_learn() -> None:
    """An external critic is only asked: nothing of it requires a gradient."""
    policy = TorchPolicy.frozen(loaded("llama"), TorchSettings(device="cpu"))
    assert not any(p.requires_grad for p in policy.backbone.model.parameters())
    prompt = some_ids(6)
    found = asyncio.run(policy.sample(prompt, 2, Sampling(5, STOPS)))
    scores = asyncio.run(policy.logprobs([row_of(prompt, c) for c in found]))
    for completion, score in zip(found, scores, strict=True):
        assert completion.logprobs == pytest.approx(score, abs=1e-4)


# ---------------------------------------------------------------------- the cache's memory


@pytest.mark.parametrize("tokens", [1, 64, 48])
def test_the_cache_holds_no_more_tokens_than_it_may(tokens):
    """Sequences wait for room, one always goes on, and the samples are the same as ever."""
    requests = [(some_ids(4 + i, seed=i), 3, Sampling(6, STOPS, 1.0, seed=i)) for i in range(4)]
    free, _ = sampler()
    backbone = Watched(model_of("qwen3").requires_grad_(False))
    tight = Sampler(backbone, 16, cache_tokens=tokens)
    assert [ids_of(c) for c in run(tight, *requests)] == [ids_of(c) for c in run(free, *requests)]
    most = max(rows for rows, width in backbone.shapes if width == 1)
    assert most <= max(1, tokens // 10)  # the shortest may come to need 10 tokens
    assert (most > 1) == (tokens > 1)


def test_short_sequences_before_a_long_one_do_not_multiply_the_cache():
    """Sixteen slots for the short, 144 columns for the long: never both at once."""
    made = Sampler(Backbone(model_of("qwen3")), 16, cache_tokens=512)
    short = [(some_ids(5, seed=i), 1, Sampling(6, (), 1.0, seed=i)) for i in range(16)]
    long = (some_ids(100), 1, Sampling(40, (), 1.0))
    held = []
    for requests in (short, [long], short, [*short, long, *short]):
        run(made, *requests)
        held.append(made._cache.room)
    assert all(tokens <= 512 for tokens in held), held


def test_released_memory_is_allocated_anew():
    made, _ = sampler()
    request = (some_ids(5, seed=1), 2, Sampling(6, STOPS, 1.0, seed=1))
    before = run(made, request)
    assert made._cache.room > 0
    made.release()
    assert made._cache.room == 0
    assert [ids_of(c) for c in run(made, request)] == [ids_of(c) for c in before]
