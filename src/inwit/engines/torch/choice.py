"""Log-probs of chosen tokens, without a copy of the logits for each operation on them.

A vocabulary of 49,152 makes 200 kB of logits a token; softmax, entropy and their gradients, written
plainly, read and write several times that. Here logits are written into memory that is used again,
worked on a few rows at a time while they are in the processor's cache, and turned into their own
gradient in place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from inwit.engines.torch.products import add_product

AT_ONCE = 1 << 19
"""Logits worked on together, about what a core's cache holds."""


def plain_logprobs(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """(log-probs of `targets`, entropies), [N] each, of the rows of [N, V], in nats."""
    total = torch.logsumexp(logits, -1)
    logp = logits.gather(-1, targets[:, None])[:, 0] - total
    with torch.no_grad():
        entropy = total - (torch.softmax(logits, -1) * logits).sum(-1)
    return logp, entropy


class Head:
    """Log-probs straight from hidden states, for a head that is one product of matrices.

    Args:
        weight: [V, d].
        adds: add the weight's gradient to its `grad`, instead of giving it to autograd to do so.
    """

    def __init__(self, weight: Tensor, adds: bool = False) -> None:
        self.weight = weight
        self.adds = adds
        self._memory = weight.new_empty(0)

    def logprobs(
        self, states: Tensor, targets: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        """As `plain_logprobs` of states [N, d] @ weight^T / temperature.

        The gradient is to be asked for once, and before the next call, which takes the same memory;
        torch notices that saved logits were overwritten, and raises RuntimeError.
        """
        found: tuple[Tensor, Tensor] = _Head.apply(  # type: ignore[no-untyped-call]
            states, self.weight, targets, temperature, self
        )
        return found

    def take(self, rows: int) -> Tensor:
        """Memory for the logits of so many rows."""
        if len(self._memory) < rows:
            self._memory = self.weight.new_empty(rows, len(self.weight))
        return self._memory[:rows]


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, targets: Tensor, temperature: float, head: Head
    ) -> tuple[Tensor, Tensor]:
        logits = torch.mm(states, weight.t(), out=head.take(len(states)))
        if temperature != 1:
            logits /= temperature
        total, entropy = _totals(logits)
        ctx.save_for_backward(states, weight, targets, total, logits)
        ctx.mark_non_differentiable(entropy)
        ctx.temperature, ctx.head = temperature, head
        return logits.gather(-1, targets[:, None])[:, 0] - total, entropy

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """d log p(target) / d logits = ([is the target] - softmax) / temperature."""
        states, weight, targets, total, logits = ctx.saved_tensors
        grad = grad / ctx.temperature
        step = _rows(logits)
        for rows, of, scale in zip(
            torch.split(logits, step),
            torch.split(total, step),
            torch.split(grad, step),
            strict=True,
        ):
            rows.sub_(of[:, None]).exp_().mul_(-scale[:, None])
        logits.scatter_add_(-1, targets[:, None], grad[:, None])
        by_states = logits @ weight if ctx.needs_input_grad[0] else None
        by_weight = None
        if ctx.needs_input_grad[1]:
            if ctx.head.adds:
                add_product(ctx.head.weight, logits, states)
            else:  # this way round: the other takes half as long again
                by_weight = (states.t() @ logits).t()
        return by_states, by_weight, None, None, None


def _totals(logits: Tensor) -> tuple[Tensor, Tensor]:
    """(log of the sum of exp, entropy), [N] each."""
    totals, entropies = [], []
    for rows in torch.split(logits, _rows(logits)):
        peak = rows.amax(-1, keepdim=True)
        mass = (rows - peak).exp_()
        sums = mass.sum(-1)
        total = sums.log().add_(peak[:, 0])
        totals.append(total)
        entropies.append(total - mass.mul_(rows).sum(-1) / sums)
    return torch.cat(totals), torch.cat(entropies)


def _rows(logits: Tensor) -> int:
    return max(1, AT_ONCE // logits.shape[-1])
