"""Drawing tokens from logits by inverting their distribution at given levels.

The same level gives the same token whatever else is in the batch, so a request's seed fixes its
samples. Over a large vocabulary the distribution is summed by blocks first: the running sum, which
a processor cannot do in parallel, then covers one block of each row.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 256
"""Tokens of a block."""


def plain_draw(logits: Tensor, levels: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """(tokens, their log-probs in nats at the temperature), [B] each.

    Args:
        logits: [B, V].
        levels: [B] in [0, 1); the token drawn is the first whose cumulative probability exceeds it.
        temperature: [B]; where it is 0, the likeliest token, and its log-prob at 1.
    """
    greedy = (temperature == 0)[:, None]
    logp = torch.log_softmax(logits / torch.where(greedy, 1.0, temperature[:, None]), -1)
    cumulative = logp.exp().cumsum_(-1)
    token = _first_above(cumulative, levels[:, None] * cumulative[:, -1:])
    if bool(greedy.any()):
        token = torch.where(greedy, logp.argmax(-1, keepdim=True), token)
    return token[:, 0], logp.gather(-1, token)[:, 0]


def blocked_draw(logits: Tensor, levels: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """As `plain_draw`, to rounding, for a large V; the logits are overwritten."""
    vocabulary = logits.shape[-1]
    greedy = temperature == 0
    if bool((temperature != 1).any()):
        logits /= torch.where(greedy, 1.0, temperature)[:, None]
    # not `max`, which finds the place too and takes five times as long
    peak = logits.amax(-1, keepdim=True)
    mass = logits.new_empty(len(logits), -(-vocabulary // BLOCK) * BLOCK)
    mass[:, vocabulary:] = 0
    torch.sub(logits, peak, out=mass[:, :vocabulary]).exp_()
    blocks = mass.view(len(logits), -1, BLOCK)
    sums = blocks.sum(-1)
    cumulative = sums.cumsum(-1)
    level = levels[:, None] * cumulative[:, -1:]
    block = _first_above(cumulative, level)
    # by what was summed up to the block before it, so that nothing is below 0 by rounding
    before = torch.where(block > 0, cumulative.gather(-1, (block - 1).clamp(min=0)), 0.0)
    within = blocks[torch.arange(len(logits), device=logits.device), block[:, 0]].cumsum(-1)
    token = block * BLOCK + _first_above(within, (level - before).clamp(min=0))
    if bool(greedy.any()):
        token = torch.where(greedy[:, None], logits.argmax(-1, keepdim=True), token)
    logp = logits.gather(-1, token) - peak - cumulative[:, -1:].log()
    return token[:, 0], logp[:, 0]


def _first_above(cumulative: Tensor, level: Tensor) -> Tensor:
    """The first place [B, 1] where a running sum exceeds a level; rounding never leads past it."""
    below_all = torch.nextafter(cumulative[:, -1:], torch.zeros_like(level))
    return torch.searchsorted(cumulative, torch.minimum(level, below_all), right=True)
