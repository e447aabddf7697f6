"""A preallocated key-value cache with one slot a sequence, each filled to its own length."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

GRAIN = 16
"""Columns are allocated in multiples of this many tokens."""


def rounded(columns: int) -> int:
    """The columns that are allocated where so many are needed."""
    return -(-columns // GRAIN) * GRAIN


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

    def reserve(self, like: DynamicCache, slots: int, columns: int, used: int) -> None:
        """Make room for `slots` sequences of `columns` tokens; the first `used` slots stay.

        What is too small in one way is allocated anew in both: the slots of many short sequences
        times the columns of one long one would be far more than either needs.
        """
        columns = rounded(columns)
        if self.layers:
            keys = self.layers[0].keys
            assert keys is not None
            if slots <= keys.shape[0] and columns <= keys.shape[2]:
                return
        before, self.layers, self.cache = self.layers, [], Cache(layers=[])
        for prefilled in like.layers:
            layer = SlotLayer(prefilled.keys, prefilled.values, slots, columns)
            if used:  # they fit; one layer at a time is held twice
                old = before.pop(0)
                assert old.keys is not None and old.values is not None
                width = min(columns, old.keys.shape[2])
                layer.keys[:used, :, :width] = old.keys[:used, :, :width]
                layer.values[:used, :, :width] = old.values[:used, :, :width]
            self.layers.append(layer)
        self.cache = Cache(layers=list(self.layers))

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

    def tokens(self, slots: Tensor, columns: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Each layer's keys and values at n places, copies of [n, heads, head size]."""
        found = []
        for layer in self.layers:
            assert layer.keys is not None and layer.values is not None
            found.append((layer.keys[slots, :, columns], layer.values[slots, :, columns]))
        return found

    @property
    def bytes_per_token(self) -> int:
        """Of all layers' keys and values together."""
        tensors = [x for layer in self.layers for x in (layer.keys, layer.values)]
        return sum(x.shape[1] * x.shape[3] * x.element_size() for x in tensors if x is not None)

    def move(self, sources: Tensor, targets: Tensor, width: int) -> None:
        """Move whole sequences of up to `width` tokens to other slots."""
        for layer in self.layers:
            for buffer in (layer.keys, layer.values):
                buffer[targets, :, :width] = buffer[sources, :, :width]

    def point(self, rows: Tensor, lengths: Tensor, width: int) -> None:
        """Say where the next pass writes its token for each of the first n slots."""
        for layer in self.layers:
            layer.where, layer.width = (rows, lengths), width
