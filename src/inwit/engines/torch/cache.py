"""A preallocated key-value cache with one slot a sequence, each filled to its own length."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

GRAIN = 64
"""Columns are allocated in multiples of this many tokens."""


class SlotLayer(CacheLayerMixin):
    """One layer's keys and values, [slots, heads, columns, head size]."""

    def __init__(self, like_keys: Tensor, like_values: Tensor, slots: int, columns: int) -> None:
        super().__init__()
        self.keys = _buffer(like_keys, slots, columns)
        self.values = _buffer(like_values, slots, columns)
        self.is_initialized = True
        self.where: tuple[Tensor, Tensor] | None = None
        self.width = 0

    def lazy_initialization(self, *_: object) -> None:
        raise RuntimeError("slot layers are allocated before they are used")

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Write one token a sequence at its own length; give back what attention may look at."""
        assert self.keys is not None and self.values is not None and self.where is not None
        rows, columns = self.where
        self.keys[rows, :, columns] = key_states[:, :, 0]
        self.values[rows, :, columns] = value_states[:, :, 0]
        n = key_states.shape[0]
        return self.keys[:n, :, : self.width], self.values[:n, :, : self.width]

    def get_mask_sizes(self, _: int) -> tuple[int, int]:
        return self.width, 0

    def get_seq_length(self) -> int:
        return self.width - 1

    def get_max_length(self) -> int:
        assert self.keys is not None
        return int(self.keys.shape[2])


def _buffer(like: Tensor, slots: int, columns: int) -> Tensor:
    _, heads, _, size = like.shape
    return torch.zeros(slots, heads, columns, size, dtype=like.dtype, device=like.device)


class SlotCache:
    """Slots 0..n-1 are in use, always: whoever leaves is replaced by the last one."""

    def __init__(self) -> None:
        self.layers: list[SlotLayer] = []
        self.cache = Cache(layers=[])

    def reserve(self, like: DynamicCache, slots: int, columns: int) -> None:
        """Make room for `slots` sequences of `columns` tokens; what is there stays."""
        columns = -(-columns // GRAIN) * GRAIN
        if self.layers:
            old_slots, columns_now = self._shape()
            if slots <= old_slots and columns <= columns_now:
                return
            slots, columns = max(slots, old_slots), max(columns, columns_now)
        old = self.layers
        self.layers = [SlotLayer(x.keys, x.values, slots, columns) for x in like.layers]
        for before, after in zip(old, self.layers, strict=False):
            n, c = before.keys.shape[0], before.keys.shape[2]
            after.keys[:n, :, :c] = before.keys
            after.values[:n, :, :c] = before.values
        self.cache = Cache(layers=list(self.layers))

    def _shape(self) -> tuple[int, int]:
        keys = self.layers[0].keys
        assert keys is not None
        return keys.shape[0], keys.shape[2]

    def fill(self, like: DynamicCache, places: Tensor, slots: Tensor) -> None:
        """Copy n prompts, at `places` [n, length] of a pass, into slots [n], one each.

        A prompt shorter than the longest brings padding with it; its own tokens overwrite that, and
        until then nothing looks at it.
        """
        width = places.shape[1]
        for prefilled, layer in zip(like.layers, self.layers, strict=True):
            for source, target in ((prefilled.keys, layer.keys), (prefilled.values, layer.values)):
                tokens = source.transpose(1, 2).flatten(0, 1)[places]  # [n, length, heads, size]
                target[slots, :, :width] = tokens.transpose(1, 2)

    def lines(self, slots: Tensor, width: int) -> list[tuple[Tensor, Tensor]]:
        """Each layer's keys and values of some slots, copies of [n, heads, width, head size]."""
        found = []
        for layer in self.layers:
            assert layer.keys is not None and layer.values is not None
            found.append((layer.keys[slots, :, :width], layer.values[slots, :, :width]))
        return found

    def move(self, sources: Tensor, targets: Tensor, width: int) -> None:
        """Move whole sequences of up to `width` tokens to other slots."""
        for layer in self.layers:
            for buffer in (layer.keys, layer.values):
                buffer[targets, :, :width] = buffer[sources, :, :width]

    def point(self, rows: Tensor, lengths: Tensor, width: int) -> None:
        """Say where the next pass writes its token for each of the first n slots."""
        for layer in self.layers:
            layer.where, layer.width = (rows, lengths), width
