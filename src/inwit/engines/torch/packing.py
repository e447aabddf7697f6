"""Sequences packed into one pass: no padding, and what they have in common computed once.

Sorted, each sequence shares most with the one before it. It brings only its own tokens, and its
attention looks back at theirs: `pack` lays all new tokens out in one row, and *spans* say which of
them ask, and which they may look at. Everything but attention runs over the row as it is. A group's
prompt is so computed once for all its completions, a first turn once for itself and as the context
of the second, and gradients add up where they belong, for it is one computation.

`pad` is the plain layout, a batch filled up on the right: for models whose attention is not
transformers' own, and to compare with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from inwit.engines.batch import padded
from inwit.engines.torch.cascade import Cascade, cascaded
from inwit.rows import Ids

ATTENTION = "inwit"
"""The name under which transformers knows `attend`."""

WORTH = 4
"""Fewer common tokens are computed again: attention without a look back is faster."""

ALIKE, SLACK = 1.25, 4
"""Stretches attend together while the longest has at most 1.25 times the shortest's tokens + 4."""

LOOK_BACK = 32
"""So many tokens looked back at take the memory of one that is computed: their keys and values are
copied for each stretch."""


@dataclass(frozen=True, slots=True)
class Spans:
    """S stretches of new tokens that attend in one call, padded on the right.

    Attributes:
        queries: [S, Q] places of the new tokens, from 0.
        keys: [S, K] places of all that the last of them sees, itself included; those of the past
            come first.
        known: [S] how many of these come before the first new token; None where there are none.
    """

    queries: Tensor
    keys: Tensor
    known: Tensor | None

    def mask(self, window: int | None) -> Tensor | None:
        """[S, 1, Q, K], True where a query sees a key; None where plain causal attention is it."""
        width = self.keys.shape[1]
        if self.known is None and (window is None or window >= width):
            return None
        key = torch.arange(width, device=self.keys.device)
        query = torch.arange(self.queries.shape[1], device=self.keys.device)[:, None]
        known = torch.zeros_like(self.keys[:, 0]) if self.known is None else self.known
        at = (query + known[:, None, None]).clamp(max=width - 1)  # padding sees something, too
        seen = key <= at
        if window is not None:
            seen = seen & (key > at - window)
        return seen[:, None]


@dataclass(frozen=True, slots=True)
class Past:
    """What of each sequence is in the cache already: its places there, and how many there are."""

    places: tuple[Sequence[int], ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the tokens of several sequences are in one pass of [B, W].

    Attributes:
        ids, positions: [B, W]; a pack has B = 1.
        places: for each sequence, in the order given, the places of its tokens in B x W, behind
            those of the past.
        spans: how a pack's tokens attend; a padded batch has none.
        order: [W] where each token's result is in the results of the spans, end to end.
        past: tokens that are in the cache already.
        windows: the attention windows that layers asked for, once a pass was made; None is none.
    """

    ids: Tensor
    positions: Tensor
    places: tuple[Sequence[int], ...]
    spans: tuple[Spans, ...] = ()
    order: Tensor | None = None
    past: int = 0
    windows: set[int | None] = field(default_factory=set)


def pad(sequences: Sequence[Ids], device: torch.device) -> Layout:
    """One sequence a line, filled up on the right: under causal attention that touches nothing."""
    width = max(map(len, sequences))
    ids = torch.tensor([[*ids, *[0] * (width - len(ids))] for ids in sequences], device=device)
    places = tuple(range(b * width, b * width + len(x)) for b, x in enumerate(sequences))
    return Layout(ids, torch.arange(width, device=device).expand_as(ids), places)


def common(a: Ids, b: Ids) -> int:
    """Tokens that two sequences begin with alike."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def new_tokens(before: Ids, sequence: Ids, share: bool) -> int:
    """How many tokens a sequence brings that the one sorted before it does not have."""
    known = common(before, sequence) if share else 0
    return len(sequence) - (known if known >= WORTH else 0)


def batches(sequences: Sequence[Ids], budget: int, *, packed: bool, share: bool) -> list[list[int]]:
    """Indices of sequences in passes of at most `budget` tokens, padding included (or of one).

    What is packed goes in the order in which it shares most, what is padded by length. Tokens that
    a sequence shares with the one before it count by what attention copies of them.
    """
    if packed:
        order = sorted(range(len(sequences)), key=lambda i: (sequences[i], i))
    else:
        order = sorted(range(len(sequences)), key=lambda i: (len(sequences[i]), i))
    found: list[list[int]] = []
    tokens = 0
    for i in order:
        n = len(sequences[i])
        if found and packed:
            new = new_tokens(sequences[found[-1][-1]], sequences[i], share)
            more = tokens + new + (n - new) // LOOK_BACK
        else:
            more = (len(found[-1]) + 1) * n if found else n
        if found and more <= budget:
            found[-1].append(i)
            tokens = more
        else:
            found.append([i])
            tokens = n
    return found


def pack(
    sequences: Sequence[Ids],
    device: torch.device,
    *,
    share: bool = True,
    past: Past | None = None,
) -> Layout:
    """Lay sequences out in one row.

    Args:
        sequences: token ids, each at least one.
        share: compute what sequences have in common once; otherwise each on its own.
        past: beginnings of sequences that are in the cache already, never a whole sequence.
    """
    begin = past.tokens if past else 0
    ids: list[int] = []
    positions: list[int] = []
    places: dict[int, list[int]] = {}
    stretches: list[Stretch] = []
    before: Ids = ()
    path: list[int] = []
    for i in sorted(range(len(sequences)), key=lambda i: sequences[i]):
        sequence = sequences[i]
        known = len(sequence) - new_tokens(before, sequence, share)
        if past and len(past.places[i]) > known:
            path = list(past.places[i])
            known = len(path)
        new = begin + len(ids)
        path = path[:known] + list(range(new, new + len(sequence) - known))
        if known < len(sequence):
            stretches.append((known, path))
        ids += sequence[known:]
        positions += range(known, len(sequence))
        places[i], before = path, sequence
    groups = _alike(stretches)
    spans = tuple(_span(group, begin, device) for group in groups)
    return Layout(
        ids=torch.tensor([ids], device=device),
        positions=torch.tensor([positions], device=device),
        places=tuple(places[i] for i in range(len(sequences))),
        spans=spans,
        order=_order(groups, spans, begin, len(ids)).to(device),
        past=begin,
    )


Stretch = tuple[int, list[int]]
"""(tokens known before, the places of these and of the new ones behind them)."""


def _alike(stretches: Sequence[Stretch]) -> list[list[Stretch]]:
    """Stretches of like length together, those that look back apart from those that do not."""

    def shape(stretch: Stretch) -> tuple[bool, int, int]:
        known, path = stretch
        return known > 0, len(path) - known, len(path)

    def near(a: int, b: int) -> bool:
        return max(a, b) <= ALIKE * min(a, b) + SLACK

    groups: list[list[Stretch]] = []
    for stretch in sorted(stretches, key=shape):
        back, queries, keys = shape(stretch)
        first = shape(groups[-1][0]) if groups else None
        if first and first[0] == back and near(first[1], queries) and near(first[2], keys):
            groups[-1].append(stretch)
        else:
            groups.append([stretch])
    return groups


def _span(group: Sequence[Stretch], begin: int, device: torch.device) -> Spans:
    known = [k for k, _ in group]
    return Spans(
        queries=padded([[p - begin for p in path[k:]] for k, path in group], device),
        keys=padded([path for _, path in group], device),
        known=torch.tensor(known, device=device) if known[0] else None,
    )


def _order(
    groups: Sequence[Sequence[Stretch]], spans: Sequence[Spans], begin: int, n: int
) -> Tensor:
    """Where each of n tokens is in the results of the spans, end to end."""
    order = [0] * n
    start = 0
    for group, span in zip(groups, spans, strict=True):
        for known, path in group:
            for k, place in enumerate(path[known:]):
                order[place - begin] = start + k
            start += span.queries.shape[1]
    return torch.tensor(order)


OTHERWISE = ("softcap", "s_aux", "position_bias")
"""Arguments of transformers' attention that change its result, and that a pack leaves out."""


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    packed: Layout | None = None,
    cascade: Cascade | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **other: object,
) -> tuple[Tensor, None]:
    """Attention within a pack: [1, heads, N, size] -> [1, N, heads, size].

    In a pack the spans say who sees whom, and `attention_mask` nothing. Raises TypeError where a
    layer wants what a pack does not do. A pass that decodes may have a cascade; one with neither is
    left to transformers.
    """
    if cascade is not None:
        assert attention_mask is not None
        layer = cast(int, module.layer_idx)
        found = cascaded(query, key, value, attention_mask, scaling, cascade, layer)
        return found, None
    if packed is None:
        plain: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask,
            scaling=scaling, sliding_window=sliding_window, **other,
        )  # fmt: skip
        return plain
    if wanted := [name for name in OTHERWISE if other.get(name) is not None]:
        raise TypeError(f"attention with {wanted[0]} cannot be packed")
    packed.windows.add(sliding_window)
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    results = []
    assert packed.order is not None
    for span in packed.spans:
        keys, values = _at(k, span.keys), _at(v, span.keys)
        grouped = q.shape[1] != k.shape[1]
        mask = span.mask(sliding_window)
        if grouped and mask is not None and q.is_cuda:  # CUDA's kernels take one or the other
            keys, values = (
                x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (keys, values)
            )
            grouped = False
        found = scaled_dot_product_attention(
            _at(q, span.queries), keys, values,
            attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=grouped,
        )  # fmt: skip
        results.append(found.transpose(1, 2).flatten(0, 1))
    return torch.cat(results).index_select(0, packed.order)[None], None


def _at(tokens: Tensor, places: Tensor) -> Tensor:
    """[N, heads, size] at [S, L] -> [S, heads, L, size]."""
    found = tokens.index_select(0, places.flatten())
    return found.view(*places.shape, *tokens.shape[1:]).transpose(1, 2)


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
