"""The key-value cache of decoding: preallocated, a slot a sequence, each filled to its own length.

What sequences sampled from one prompt have in common is held once (see `cascade`): their slots hold
what was sampled. Without that, a slot holds its prompt, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

from inwit.engines.batch import padded
from inwit.engines.torch.cascade import Cascade
from inwit.rows import Ids

GRAIN = 16
"""Columns are allocated in multiples of this many tokens."""


def rounded(columns: int) -> int:
    """The columns that are allocated where so many are needed."""
    return -(-columns // GRAIN) * GRAIN


def doubled(n: int) -> int:
    """The smallest power of two that is not less than n >= 1."""
    return 1 << (n - 1).bit_length()


def closing(staying: Tensor) -> tuple[int, Tensor, Tensor]:
    """How those that stay [n] close up: (their number, who moves, to which holes)."""
    left = int(staying.sum())
    return left, left + staying[left:].nonzero()[:, 0], (~staying[:left]).nonzero()[:, 0]


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A prompt's places in a prefill, the cache that holds them, the logits after its end."""

    cache: DynamicCache
    places: Sequence[int]
    logits: Tensor


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


class Demand:
    """What samples may come to need of a cache, in tokens."""

    def __init__(self, cascade: bool) -> None:
        self.samples = 0
        self.columns = 0
        self._cascade = cascade
        self._prompts: set[Ids] = set()
        self._longest = 0

    def add(self, prompt: Ids, more: int) -> None:
        """One sample of a prompt, of at most `more` tokens."""
        self.samples += 1
        self.columns = max(self.columns, more if self._cascade else len(prompt) + more)
        if self._cascade:
            self._prompts.add(prompt)
            self._longest = max(self._longest, len(prompt))

    @property
    def of_prompts(self) -> int:
        return len(self._prompts) * rounded(self._longest)

    @property
    def tokens(self) -> int:
        return self.samples * rounded(self.columns) + self.of_prompts

    def slots(self, most: int, tokens: int) -> int:
        """Slots to allocate: doubling, so that small runs stay small, up to what may be used."""
        room = (tokens - self.of_prompts) // rounded(self.columns)
        return max(self.samples, min(max(8, doubled(self.samples)), most, room))


class Buffers:
    """The layers of slots 0..n-1, and the same for transformers."""

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

    def fill(self, prompts: Sequence[Prefilled], slots: Tensor) -> None:
        """Copy n prompts into slots [n], one each.

        A prompt shorter than the longest brings padding with it; its own tokens overwrite that, and
        until then nothing looks at it.
        """
        for cache in {id(p.cache): p.cache for p in prompts}.values():
            mine = [i for i, p in enumerate(prompts) if p.cache is cache]
            places = padded([prompts[i].places for i in mine], slots.device)
            self._copy(cache, places, slots[mine])

    def _copy(self, cache: DynamicCache, places: Tensor, slots: Tensor) -> None:
        width = places.shape[1]
        for prefilled, layer in zip(cache.layers, self.layers, strict=True):
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

    def views(self, n: int, columns: int) -> list[tuple[Tensor, Tensor]]:
        """Each layer's keys and values of the first n slots, [n, heads, columns, size] each."""
        found = []
        for layer in self.layers:
            assert layer.keys is not None and layer.values is not None
            found.append((layer.keys[:n, :, :columns], layer.values[:n, :, :columns]))
        return found

    @property
    def room(self) -> int:
        """Tokens that memory is held for."""
        keys = self.layers[0].keys if self.layers else None
        return 0 if keys is None else keys.shape[0] * keys.shape[2]

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


class SlotCache:
    """Slots 0..n-1 are in use, always: whoever leaves is replaced by the last one.

    Args:
        slots: how many there may be.
        cascade: hold a prompt once for all its samples; otherwise in the slot of each.
    """

    def __init__(self, slots: int, device: torch.device, cascade: bool) -> None:
        self._own = Buffers()
        self._prompts = Buffers() if cascade else None
        self._held: list[Ids] = []  # prompts, by their rows
        self._row = torch.zeros(slots, dtype=torch.long, device=device)  # of a slot's prompt
        self._begin = torch.zeros_like(self._row)  # tokens of a slot's sequence in that row
        self._lead: tuple[Tensor, Cascade] | None = None  # as `point` gives it, until it changes

    @property
    def room(self) -> int:
        """Tokens that memory is held for."""
        return self._own.room + (self._prompts.room if self._prompts else 0)

    @property
    def transformers(self) -> Cache:
        """The same as transformers' models take it."""
        return self._own.cache

    @property
    def bytes_per_token(self) -> int:
        return self._own.bytes_per_token

    def join(
        self,
        prompts: Sequence[Ids],
        found: Sequence[Prefilled],
        slots: Tensor,
        *,
        room: int,
        columns: int,
    ) -> None:
        """Let sequences go on from n prompts, in slots [n], the next that are free.

        Args:
            room, columns: slots to allocate, and columns of each.
        """
        self._lead = None
        like = found[0].cache
        self._own.reserve(like, room, columns, used=int(slots[0]))
        if self._prompts is None:
            self._own.fill(found, slots)
            return
        rows = {prompt: row for row, prompt in enumerate(self._held)}
        new = {p: f for p, f in zip(prompts, found, strict=True) if p not in rows}
        if new:
            fresh = torch.arange(len(rows), len(rows) + len(new), device=slots.device)
            rows |= dict(zip(new, fresh.tolist(), strict=True))
            longest = max(map(len, rows))
            self._prompts.reserve(like, len(rows), longest, used=len(self._held))
            self._prompts.fill(list(new.values()), fresh)
            self._held += new
        self._row[slots] = torch.tensor([rows[p] for p in prompts], device=slots.device)
        self._begin[slots] = torch.tensor([len(p) for p in prompts], device=slots.device)

    def point(self, lengths: Tensor) -> tuple[Tensor, Cascade | None]:
        """Say where the next pass writes its token for each of the first n slots.

        Args:
            lengths: [n], tokens of each sequence in the cache.

        Returns:
            Positions [1 or n, columns] of the tokens that attention may look at, the new ones
            included, and beyond any length where there is none; and how it looks at the prompts.
        """
        n = len(lengths)
        own = lengths - self._begin[:n]
        width = int(own.max()) + 1
        self._own.point(torch.arange(n, device=own.device), own, width)
        column = torch.arange(width, device=own.device)[None]
        if self._prompts is None:
            return column, None
        if self._lead is None:
            self._lead = self._lead_of(n, self._prompts)
        positions, cascade = self._lead
        return torch.cat([positions, self._begin[:n, None] + column], 1), cascade

    def _lead_of(self, n: int, prompts: Buffers) -> tuple[Tensor, Cascade]:
        """Positions [n, P] of each sequence's prompt in its row, and who goes on from which row."""
        begin = self._begin[:n, None]
        longest = int(begin.max())
        column = torch.arange(longest, device=begin.device)[None]
        positions = column.masked_fill(column >= begin, torch.iinfo(torch.long).max)
        views = prompts.views(len(self._held), longest)
        return positions, Cascade.of(views, self._row[:n])

    def leave(self, movers: Tensor, holes: Tensor, lengths: Tensor) -> None:
        """Close up: movers go where holes are.

        Args:
            lengths: [n], tokens of each sequence that stays, in its new slot.
        """
        self._lead = None
        n = len(lengths)
        for tensor in (self._row, self._begin):
            tensor[holes] = tensor[movers]
        if len(holes):
            self._own.move(movers, holes, int((lengths - self._begin[:n]).max()))
        if self._prompts is None:
            return
        used = torch.bincount(self._row[:n], minlength=len(self._held)) > 0
        left, sources, targets = closing(used)
        if left == len(self._held):
            return
        self._prompts.move(sources, targets, max(map(len, self._held)))
        rows = torch.arange(len(self._held), device=used.device)
        rows[sources] = targets
        self._row[:n] = rows[self._row[:n]]
        for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
            self._held[target] = self._held[source]
        del self._held[left:]

    def tokens(self, slots: Sequence[int], lengths: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Each layer's keys and values of whole sequences end to end, [tokens, heads, size] each.

        Args:
            lengths: tokens of each sequence.
        """
        begins = self._begin[slots].tolist()
        after = [length - begin for length, begin in zip(lengths, begins, strict=True)]
        own = self._own.tokens(*_places(slots, after))
        if self._prompts is None:
            return own
        lead = self._prompts.tokens(*_places(self._row[slots].tolist(), begins))
        whose, _ = _places([*range(len(slots))] * 2, begins + after)
        order = whose.argsort(stable=True).to(own[0][0].device)
        return [
            (torch.cat([k, keys])[order], torch.cat([v, values])[order])
            for (k, v), (keys, values) in zip(lead, own, strict=True)
        ]


def _places(rows: Sequence[int], lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """(row, column) of the first tokens of rows, so many of each."""
    row = [row for row, length in zip(rows, lengths, strict=True) for _ in range(length)]
    column = [column for length in lengths for column in range(length)]
    return torch.tensor(row, dtype=torch.long), torch.tensor(column, dtype=torch.long)
