"""Ratios between policies, token by token. Masks come before exp, and log-ratios are clamped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""Clamp on log-ratios, in nats: e^20 is far beyond every clip, and far below overflow in fp32."""

WeightKind = Literal["ratio", "none", "shaped", "sequence"]


@dataclass(frozen=True, slots=True)
class Weighting:
    """How the tokens of a re-conditioned row are weighted.

    Attributes:
        kind: `ratio` is ICRL Eq. 4, p(y_t | training prompt) / p(y_t | sampling prompt);
            `none` leaves 1; `shaped` is p / (p + gamma) with p under the training prompt
            (Critique-GRPO, arXiv 2506.03106); `sequence` is the ratio of the whole row's
            probabilities, the same for each of its tokens.
        cap: w_max, the largest weight; None is no cap.
        gamma: of `shaped`.
    """

    kind: WeightKind = "ratio"
    cap: float | None = 2.0
    gamma: float = 0.1


def log_ratio(new: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    """log(new / old), 0 where masked out, clamped; differentiable in `new`. All shapes [B, T]."""
    difference = torch.where(mask, new - old, torch.zeros_like(new))
    return difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def reconditioning_weights(
    trained: Tensor, sampled: Tensor, mask: Tensor, weighting: Weighting
) -> Tensor:
    """w_t of a revision's tokens, detached (ICRL Eq. 4).

    Args:
        trained: [B, T] log-probs of the tokens under the old policy and the *training* prompt.
        sampled: [B, T] log-probs under the policy and prompt that sampled them.
        mask: [B, T] bool, True at sampled tokens.

    Returns:
        [B, T] weights in [0, cap]; 1 where masked out.
    """
    trained = trained.detach()
    one = torch.ones_like(trained)
    match weighting.kind:
        case "none":
            return one
        case "shaped":
            p = torch.where(mask, trained, torch.zeros_like(trained)).exp()
            weights = p / (p + weighting.gamma)
        case "ratio":
            weights = log_ratio(trained, sampled, mask).exp()
        case "sequence":
            total = torch.where(mask, trained - sampled, 0.0).sum(-1, keepdim=True)
            weights = total.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp().expand_as(trained)
    if weighting.cap is not None:
        weights = weights.clamp(max=weighting.cap)
    return torch.where(mask, weights, one)


def effective_sample_share(weights: Tensor) -> float:
    """(sum w)^2 / (n sum w^2), in (0, 1]: what share of the samples is left (Kong 1992)."""
    n = weights.numel()
    square = float(weights.square().sum())
    return float(weights.sum()) ** 2 / (n * square) if n and square > 0 else 0.0
