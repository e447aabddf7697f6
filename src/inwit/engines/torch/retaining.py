"""Keys and values of finished sequences, kept for prompts that go on from them.

A critic reads the attempt that was just sampled, a revision the critique, a second turn the first.
Where such a prompt begins with all the tokens of a sequence that is still known, only the rest is
computed. What is kept is dropped oldest first, and all of it when the policy changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from inwit.engines.torch.packing import WORTH, Past
from inwit.rows import Ids

HELD = 1 << 28
"""Bytes of keys and values that are kept, at most."""

Layers = Sequence[tuple[Tensor, Tensor]]
"""Keys and values of each layer, [sequences, heads, length, size]."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Sequences that finished together, and each layer's [sequences x width, heads, size]."""

    sequences: tuple[Ids, ...]
    layers: tuple[tuple[Tensor, Tensor], ...]
    width: int

    @property
    def size(self) -> int:
        return sum(x.numel() * x.element_size() for pair in self.layers for x in pair)


class Retained:
    """What the sampler remembers of sequences that left it; `size` is in bytes."""

    def __init__(self) -> None:
        self._kept: deque[Kept] = deque()
        self.size = 0
        self._where: dict[Ids, tuple[Kept, int]] = {}

    def keep(self, sequences: Sequence[Ids], layers: Layers) -> None:
        """Remember sequences whose keys and values are the first of each line of `layers`."""
        width = layers[0][0].shape[2]
        kept = Kept(tuple(sequences), tuple((_flat(k), _flat(v)) for k, v in layers), width)
        self._kept.append(kept)
        self.size += kept.size
        self._where |= {ids: (kept, row) for row, ids in enumerate(sequences)}
        while self.size > HELD:
            self._drop()

    def _drop(self) -> None:
        oldest = self._kept.popleft()
        self.size -= oldest.size
        for ids in oldest.sequences:
            if ids in self._where and self._where[ids][0] is oldest:
                del self._where[ids]

    def clear(self) -> None:
        while self._kept:
            self._drop()

    def past(self, prompts: Sequence[Ids]) -> tuple[DynamicCache, Past]:
        """A cache with the longest known beginning of each prompt, and where it is in there."""
        lengths = sorted({len(ids) for ids in self._where if len(ids) >= WORTH}, reverse=True)
        hits = [self._longest(prompt, lengths) for prompt in prompts]
        places: list[Sequence[int]] = [range(0)] * len(prompts)
        tokens, parts = 0, []
        for kept in {id(hit[0]): hit[0] for hit in hits if hit}.values():
            wanted: list[int] = []
            for i, hit in enumerate(hits):
                if hit and hit[0] is kept:
                    _, row, n = hit
                    places[i] = range(tokens + len(wanted), tokens + len(wanted) + n)
                    wanted += range(row * kept.width, row * kept.width + n)
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


def _flat(states: Tensor) -> Tensor:
    """[sequences, heads, width, size] -> [sequences x width, heads, size], a copy."""
    return states.transpose(1, 2).flatten(0, 1).contiguous()
