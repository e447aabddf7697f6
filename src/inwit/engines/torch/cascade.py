"""Attention of decoding in two parts: the prompts, and what was sampled after them.

All samples of a prompt look at the same keys and values. Read for each sample anew, these are most
of what a token of a long prompt costs. Here a prompt is read once for all of its samples: their
queries ask it in one product, and one softmax goes over both parts of what each of them sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

UNEVEN = 2
"""A product of several prompts is padded to at most so many times the sequences that ask them."""


@dataclass(frozen=True, slots=True)
class Asking:
    """The sequences that go on from the prompts of rows first..end-1.

    Attributes:
        sequences: [(end - first) x g], those of each prompt; where it has fewer than g, any.
    """

    first: int
    end: int
    sequences: Tensor


@dataclass(frozen=True, slots=True)
class Cascade:
    """Which of n sequences goes on from which of G prompts.

    Attributes:
        prompts: each layer's keys and values, [G, heads, P, size] each, padded on the right.
        asking: products to make, in which every prompt is once.
        places: [n], where each sequence is in them all, end to end.
    """

    prompts: Sequence[tuple[Tensor, Tensor]]
    asking: Sequence[Asking]
    places: Tensor

    @classmethod
    def of(cls, prompts: Sequence[tuple[Tensor, Tensor]], rows: Tensor) -> Cascade:
        """For sequences whose prompts are in `rows` [n]; every prompt has one at least."""
        members: list[list[int]] = [[] for _ in range(int(rows.max()) + 1)]
        for sequence, row in enumerate(rows.tolist()):
            members[row].append(sequence)
        asking: list[Asking] = []
        places = [0] * len(rows)
        start = 0
        for first, end in _even([len(some) for some in members]):
            g = max(len(some) for some in members[first:end])
            of_all = [0] * ((end - first) * g)
            for i, some in enumerate(members[first:end]):
                of_all[i * g : i * g + len(some)] = some
                for nth, sequence in enumerate(some):
                    places[sequence] = start + i * g + nth
            asking.append(Asking(first, end, torch.tensor(of_all, device=rows.device)))
            start += len(of_all)
        return cls(prompts, asking, torch.tensor(places, device=rows.device))

    def product(self, x: Tensor, of_prompts: Tensor) -> Tensor:
        """x [n, heads, a, d] times its prompt's of [G, heads, d, e]: [n, heads, a, e]."""
        _, heads, a, d = x.shape
        found = []
        for some in self.asking:
            rows = some.end - some.first
            grouped = x.index_select(0, some.sequences).view(rows, -1, heads, a, d).transpose(1, 2)
            product = grouped.reshape(rows, heads, -1, d) @ of_prompts[some.first : some.end]
            found.append(product.view(rows, heads, -1, a, product.shape[-1]).transpose(1, 2))
        parts = [part.reshape(-1, heads, a, part.shape[-1]) for part in found]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).index_select(0, self.places)


def _even(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Cut neighbours of very different sizes apart: (first, end) of each piece."""
    pieces: list[tuple[int, int]] = []
    first = most = total = 0
    for i, size in enumerate(sizes):
        most, total = max(most, size), total + size
        if (i + 1 - first) * most > UNEVEN * total:
            pieces.append((first, i))
            first, most, total = i, size, size
    return [*pieces, (first, len(sizes))]


def cascaded(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seen: Tensor,
    scale: float | None,
    cascade: Cascade,
    layer: int,
) -> Tensor:
    """Attention of one token a sequence.

    Args:
        query: [n, query heads, 1, size].
        key, value: [n, heads, W, size], what each sequence has of its own.
        seen: [n, 1, 1, P + W], True where it may look: at its prompt's P columns, at its own W.
        scale: of the products of queries and keys; None is 1 / sqrt(size).

    Returns:
        [n, 1, query heads, size].
    """
    n, heads, _, size = query.shape
    keys, values = cascade.prompts[layer]
    # queries of the heads that share keys ask together
    asking = (query * (size**-0.5 if scale is None else scale)).view(n, key.shape[1], -1, size)
    scores = torch.cat([cascade.product(asking, keys.mT), asking @ key.mT], -1)
    scores.masked_fill_(~seen, -torch.inf)
    share = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
    at_prompt, at_own = share.tensor_split((keys.shape[2],), -1)
    found: Tensor = cascade.product(at_prompt, values) + at_own @ value
    return found.reshape(n, 1, heads, size)
