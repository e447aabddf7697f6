"""Losses: from log-probs, advantages and weights of a batch to one number to minimise.

Shapes: B rows by T completion tokens, right-padded; `mask` is True at the tokens that are trained.
Every loss is a *sum* of per-token terms times a per-row scale, and the scales are made once from
the whole batch (`row_scales`). So padding, dummy rows and another split into micro-batches change
nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from inwit.objectives.ratios import Weighting, log_ratio
from inwit.rows import Row

LossKind = Literal["clip", "gspo", "importance", "cross_entropy"]
Aggregation = Literal["token", "row", "episode"]


@dataclass(frozen=True, slots=True)
class Objective:
    """What an engine is to minimise. Names no method; every method is rows plus one of these.

    Attributes:
        loss: `clip` is GRPO's (ICRL Eq. 2 and 6); `gspo` clips one length-normalised ratio a row
            (arXiv 2507.18071); `importance` is the unclipped ratio; `cross_entropy` is -log p.
        clip_low, clip_high: the ratio is kept in [1 - clip_low, 1 + clip_high].
        aggregation: what the mean runs over: all tokens, rows, or episodes of the global batch.
        weighting: of re-conditioned rows.
        kl: coefficient of KL(policy || reference), per token, in the loss; 0 needs no reference.
        temperature: log-probs are of softmax(logits / temperature), in sampler and learner alike.
    """

    loss: LossKind = "clip"
    clip_low: float = 0.2
    clip_high: float = 0.28
    aggregation: Aggregation = "token"
    weighting: Weighting = field(default_factory=Weighting)
    kl: float = 0.0
    temperature: float = 1.0


def row_scales(rows: Sequence[Row], aggregation: Aggregation) -> list[float]:
    """What a trained token of each row counts, so that the sum over the batch is the named mean.

    `token`: 1 / (trained tokens of the batch). `row`: 1 / (rows x this row's trained tokens).
    `episode`: 1 / (episodes x this episode's trained tokens). Rows without trained tokens count
    nowhere. Rows without advantage do count: the mean runs over everything that was sampled.
    """
    tokens = [row.trained_tokens for row in rows]
    if aggregation == "token":
        return [1.0 / max(sum(tokens), 1)] * len(rows)
    units = [row.episode if aggregation == "episode" else str(i) for i, row in enumerate(rows)]
    sizes: dict[str, int] = defaultdict(int)
    for unit, n in zip(units, tokens, strict=True):
        sizes[unit] += n
    count = max(sum(n > 0 for n in sizes.values()), 1)
    return [1.0 / (count * max(sizes[unit], 1)) for unit in units]


def clipped(log_rho: Tensor, advantages: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """min(rho A, clip(rho, 1 - low, 1 + high) A), and where the clip counted. [B, T] each."""
    rho = log_rho.exp()
    kept = rho.clamp(1 - low, 1 + high)
    free, held = rho * advantages, kept * advantages
    return torch.minimum(free, held), held < free


def sequence_log_ratio(log_rho: Tensor, mask: Tensor) -> Tensor:
    """GSPO's log s_i = mean_t log rho_t, spread over the row's tokens. [B, T] -> [B, T]."""
    length = mask.sum(-1, keepdim=True).clamp(min=1)
    return (log_rho.sum(-1, keepdim=True) / length).expand_as(log_rho)


def kl_to_reference(logp: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
    """The never-negative estimate r - 1 - log r, r = ref / policy (Schulman 2020, k3). [B, T]."""
    log_r = log_ratio(reference, logp, mask)
    return log_r.exp() - 1 - log_r


@dataclass(frozen=True, slots=True)
class TokenTerms:
    """Per-token pieces of a loss, [B, T]: surrogate to maximise, KL, and what was clipped."""

    surrogate: Tensor
    kl: Tensor
    clipped: Tensor


def token_terms(
    objective: Objective,
    logp: Tensor,
    old: Tensor,
    advantages: Tensor,
    weights: Tensor,
    mask: Tensor,
    reference: Tensor | None = None,
) -> TokenTerms:
    """The terms of ICRL Eq. 6 for each token: w_t min(rho_t A, clip(rho_t) A), masked.

    Args:
        logp: [B, T] log-probs under the policy being trained; carries the gradient.
        old: [B, T] log-probs under the policy before the update, under the training prompt.
        weights: [B, T] non-negative; since w >= 0 they fold into the advantages exactly.
        reference: [B, T] log-probs under the reference; needed where `objective.kl` is not 0.
    """
    zero = torch.zeros_like(logp)
    advantages = torch.where(mask, advantages * weights, zero)
    never = torch.zeros_like(mask)
    if objective.loss == "cross_entropy":
        surrogate, hit = torch.where(mask, logp, zero) * advantages, never
    else:
        rho = log_ratio(logp, old, mask)
        if objective.loss == "gspo":
            rho = sequence_log_ratio(rho, mask)
        if objective.loss == "importance":
            surrogate, hit = rho.exp() * advantages, never
        else:
            surrogate, hit = clipped(rho, advantages, objective.clip_low, objective.clip_high)
    kl = zero
    if objective.kl:
        if reference is None:
            raise ValueError("this objective has a KL term and needs the reference's log-probs")
        kl = torch.where(mask, kl_to_reference(logp, reference, mask), zero)
    return TokenTerms(torch.where(mask, surrogate, zero), kl, hit & mask)


def loss_of(terms: TokenTerms, scales: Tensor, kl: float) -> Tensor:
    """Minus the scaled sum of the surrogate, plus the KL's. `scales` is [B], from `row_scales`."""
    return -((terms.surrogate - kl * terms.kl) * scales[:, None]).sum()
