"""Decoding that reads a prompt once for all its samples: what reading it for each would give."""

from __future__ import annotations

import asyncio
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from inwit.engines import Sampling
from inwit.engines.torch.backbone import Backbone
from inwit.engines.torch.cascade import UNEVEN, Cascade, _even, cascaded
from inwit.engines.torch.sampler import Sampler
from inwit.rows import Completion, Ids
from tests.engines.models import FAMILIES, model_of
from tests.helpers import some_ids


@st.composite
def shared_prompts(draw: st.DrawFn) -> list[int]:
    """The row of each sequence's prompt; every row below the highest is some sequence's."""
    groups = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    rows = [row for row, size in enumerate(groups) for _ in range(size)]
    return draw(st.permutations(rows))


@settings(deadline=None)
@given(shared_prompts(), st.sampled_from([(6, 2), (3, 3), (4, 1)]), st.integers(0, 99))
def test_both_parts_are_attended_to_as_one(
    rows: list[int], heads: tuple[int, int], seed: int
) -> None:
    """Against PyTorch's attention over each sequence's prompt and its own tokens, end to end."""
    g = torch.Generator().manual_seed(seed)
    n, groups, size = len(rows), max(rows) + 1, 4
    asking, sharing = heads
    begin = torch.randint(1, 12, (groups,), generator=g)[rows]
    own = torch.randint(1, 7, (n,), generator=g)
    keys, values = torch.randn(2, groups, sharing, int(begin.max()), size, generator=g)
    key, value = torch.randn(2, n, sharing, int(own.max()), size, generator=g)
    query = torch.randn(n, asking, 1, size, generator=g)
    of_prompt = torch.arange(keys.shape[2]) < begin[:, None]
    seen = torch.cat([of_prompt, torch.arange(key.shape[2]) < own[:, None]], 1)
    cascade = Cascade.of([(keys, values)], torch.tensor(rows))
    found = cascaded(query, key, value, seen[:, None, None], 0.3, cascade, 0)
    for i, row in enumerate(rows):
        wanted = scaled_dot_product_attention(
            query[i],
            torch.cat([keys[row, :, : begin[i]], key[i, :, : own[i]]], 1),
            torch.cat([values[row, :, : begin[i]], value[i, :, : own[i]]], 1),
            scale=0.3,
            enable_gqa=True,
        )
        torch.testing.assert_close(found[i].transpose(0, 1), wanted, atol=1e-5, rtol=1e-5)


@given(st.lists(st.integers(1, 64), min_size=1, max_size=64))
def test_little_of_a_product_is_padding(sizes: list[int]) -> None:
    pieces = _even(sizes)
    assert [i for first, end in pieces for i in range(first, end)] == list(range(len(sizes)))
    for first, end in pieces:
        assert (end - first) * max(sizes[first:end]) <= UNEVEN * sum(sizes[first:end])


def test_groups_of_one_size_are_one_product() -> None:
    assert _even([8] * 8) == [(0, 8)]
    assert _even([1] * 31 + [33]) == [(0, 31), (31, 32)]


def two_turns(made: Sampler, seed: int = 0) -> list[list[Completion]]:
    """Groups of several sizes, one of them asked twice, each with second turns after some."""
    draw = random.Random(seed)

    async def turns(prompt: Ids, n: int, nth: int) -> list[list[Completion]]:
        first = await made.sample(prompt, n, Sampling(2 + 3 * nth, (1, 6), 0.9, seed=nth))
        further = [prompt + c.ids + some_ids(3, seed=nth) for c in first[:2]]
        second = (made.sample(p, 3, Sampling(9, (6,), 1.0, seed=9 + nth)) for p in further)
        return [first, *await asyncio.gather(*second)]

    async def go() -> list[list[Completion]]:
        prompts = [some_ids(draw.randint(2, 40), seed=s) for s in range(4)]
        asked = zip([*prompts, prompts[0]], (8, 1, 5, 2, 3), range(5), strict=True)
        return [c for found in await asyncio.gather(*(turns(*a) for a in asked)) for c in found]

    return asyncio.run(asyncio.wait_for(go(), 60))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("capacity", [1, 5, 64])
def test_a_cascade_changes_no_sample(family: str, capacity: int) -> None:
    """While prompts come and go; gemma2, whose attention is its own, does without."""
    fast = Sampler(Backbone(model_of(family)), capacity)
    plain = Sampler(Backbone(model_of(family)), capacity, without=["cascade"])
    assert (fast._cascade, plain._cascade) == (family != "gemma2", False)
    for seed in range(2):
        for a, b in zip(two_turns(fast, seed), two_turns(plain, seed), strict=True):
            assert [x.ids for x in a] == [x.ids for x in b]
            for x, y in zip(a, b, strict=True):
                assert x.logprobs == pytest.approx(y.logprobs, abs=1e-5)


def test_a_prompt_is_held_once_for_all_its_samples() -> None:
    async def room(made: Sampler) -> int:
        await made.sample(some_ids(100), 16, Sampling(10, ()))
        return made._cache.room

    held = {
        without: asyncio.run(room(Sampler(Backbone(model_of("llama")), without=without)))
        for without in ((), ("cascade",))
    }
    assert held == {(): 112 + 16 * 16, ("cascade",): 16 * 112}


def test_prompts_that_no_one_goes_on_from_make_room() -> None:
    """Nine prompts, two at a time: no more rows than there are prompts at once."""
    made = Sampler(Backbone(model_of("llama")), capacity=2)

    async def room() -> int:
        prompts = [some_ids(16, seed=i) for i in range(9)]
        await asyncio.gather(
            *(made.sample(p, 1, Sampling(3 + i, ())) for i, p in enumerate(prompts))
        )
        return made._cache.room

    assert asyncio.run(room()) == 2 * 16 + 2 * 16
