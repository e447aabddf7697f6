"""Keys and values of finished sequences, kept for prompts that go on from them.

A critic reads the attempt that was just sampled, a revision the critique, a second turn the first.
Where such a prompt begins with all the tokens of a sequence that is still known, only the rest is
computed. What is kept is dropped oldest first, and all of it when the policy changes.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from inwit.engines.torch.cache import SlotCache
from inwit.engines.torch.packing import WORTH, Past
from inwit.rows import Ids

RETAINED, UNPROVEN = 1 << 28, 1 << 23
"""Bytes of keys and values that are kept, at most; and until a prompt first goes on from some."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Sequences that finished together; each layer's keys and values [tokens, heads, size]."""

    sequences: tuple[Ids, ...]
    layers: tuple[tuple[Tensor, Tensor], ...]

    @property
    def size(self) -> int:
        return sum(x.numel() * x.element_size() for pair in self.layers for x in pair)


class Retained:
    """What the sampler remembers of sequences that left it; `size` and `most` are in bytes."""

    def __init__(self) -> None:
        self.size = 0
        self.most = UNPROVEN
        self._kept: deque[Kept] = deque()
        self._where: dict[Ids, tuple[Kept, int]] = {}
        self._lengths: Counter[int] = Counter()

    def keep(self, sequences: Sequence[Ids], slots: Sequence[int], cache: SlotCache) -> None:
        """Remember as many of these sequences, in these slots of the cache, as have room."""
        room = self.most // max(cache.bytes_per_token, 1)
        chosen: dict[Ids, int] = {}
        kept_slots: list[int] = []
        tokens = 0
        for sequence, slot in zip(sequences, slots, strict=True):
            if len(sequence) < WORTH or sequence in chosen or sequence in self._where:
                continue
            if tokens + len(sequence) > room:
                break
            chosen[sequence] = tokens
            kept_slots.append(slot)
            tokens += len(sequence)
        if not chosen:
            return
        kept = Kept(tuple(chosen), tuple(cache.tokens(kept_slots, [*map(len, chosen)])))
        self._kept.append(kept)
        self.size += kept.size
        self._where |= {ids: (kept, start) for ids, start in chosen.items()}
        self._lengths.update(map(len, chosen))
        while self.size > self.most:
            self._drop()

    def _drop(self) -> None:
        oldest = self._kept.popleft()
        self.size -= oldest.size
        for ids in oldest.sequences:
            del self._where[ids]
            self._lengths[len(ids)] -= 1

    def clear(self) -> None:
        while self._kept:
            self._drop()

    def past(self, prompts: Sequence[Ids]) -> tuple[DynamicCache, Past]:
        """A cache with copies of the longest known beginning of each prompt, and where it is."""
        lengths = sorted((n for n, count in self._lengths.items() if count), reverse=True)
        hits = [self._longest(prompt, lengths) for prompt in prompts]
        if any(hits):
            self.most = RETAINED
        places: list[Sequence[int]] = [range(0)] * len(prompts)
        tokens, parts = 0, []
        for kept in {id(hit[0]): hit[0] for hit in hits if hit}.values():
            wanted: list[int] = []
            for i, hit in enumerate(hits):
                if hit and hit[0] is kept:
                    _, start, n = hit
                    places[i] = range(tokens + len(wanted), tokens + len(wanted) + n)
                    wanted += range(start, start + n)
            tokens += len(wanted)
            parts.append([(k[wanted], v[wanted]) for k, v in kept.layers])
        cache = DynamicCache()
        for layer, pairs in enumerate(zip(*parts, strict=True)):
            keys, values = (torch.cat(x).transpose(0, 1)[None] for x in zip(*pairs, strict=True))
            cache.update(keys, values, layer)
        return cache, Past(tuple(places), tokens)

    def _longest(self, prompt: Ids, lengths: Sequence[int]) -> tuple[Kept, int, int] | None:
        for n in lengths:
            if n < len(prompt) and (hit := self._where.get(prompt[:n])):
                return (*hit, n)
        return None
