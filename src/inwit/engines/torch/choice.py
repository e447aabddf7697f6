"""Log-probs of chosen tokens from logits, without a copy of the logits for each operation on them.

A vocabulary of 49,152 makes 200 kB of logits a token; softmax, entropy and their gradients, written
plainly, read and write several times that. Here rows are worked on a few at a time, while they are
in the processor's cache, and the gradient is made in the place of the logits themselves.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

AT_ONCE = 1 << 19
"""Logits worked on together, about what a core's cache holds."""


def plain_logprobs(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """(log-probs of `targets`, entropies), [N] each, of the rows of [N, V], in nats."""
    total = torch.logsumexp(logits, -1)
    logp = logits.gather(-1, targets[:, None])[:, 0] - total
    with torch.no_grad():
        entropy = total - (torch.softmax(logits, -1) * logits).sum(-1)
    return logp, entropy


def logprobs_in_place(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """As `plain_logprobs`; the gradient overwrites the logits, which nobody else may need."""
    found: tuple[Tensor, Tensor] = _Chosen.apply(logits, targets)  # type: ignore[no-untyped-call]
    return found


class _Chosen(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        totals, entropies = [], []
        for rows in torch.split(logits, _rows(logits)):
            peak = rows.amax(-1, keepdim=True)
            mass = (rows - peak).exp_()
            sums = mass.sum(-1)
            total = sums.log().add_(peak[:, 0])
            totals.append(total)
            entropies.append(total - mass.mul_(rows).sum(-1) / sums)
        total, entropy = torch.cat(totals), torch.cat(entropies)
        ctx.save_for_backward(logits, targets, total)
        ctx.mark_non_differentiable(entropy)
        return logits.gather(-1, targets[:, None])[:, 0] - total, entropy

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None]:
        """d log p(target) / d logits = [is the target] - softmax."""
        logits, targets, total = ctx.saved_tensors
        step = _rows(logits)
        for rows, of, scale in zip(
            torch.split(logits, step),
            torch.split(total, step),
            torch.split(grad, step),
            strict=True,
        ):
            rows.sub_(of[:, None]).exp_().mul_(-scale[:, None])
        logits.scatter_add_(-1, targets[:, None], grad[:, None])
        return logits, None


def _rows(logits: Tensor) -> int:
    return max(1, AT_ONCE // logits.shape[-1])
