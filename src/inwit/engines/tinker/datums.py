"""Rows as the protocol wants them, and its answers as values of rows. Pure.

A datum is what the model reads and, for each place, the token that should follow: the row's ids
without the last, and without the first. Values of completion tokens so begin at the place of the
prompt's last token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tinker
import torch
from torch import Tensor

from inwit.engines.batch import Batch
from inwit.objectives import Objective, loss_of, reconditioning_weights, token_terms
from inwit.rows import Floats, Row


@dataclass(frozen=True, slots=True)
class Reduction:
    """How a server adds up the tokens' losses, which the protocol leaves to it.

    Hosted servers, and SkyRL's on FSDP or Megatron, take the sum. SkyRL's on JAX takes the mean of
    a datum's, then the mean over the datums of an optimizer step.
    """

    means: bool

    def undone(self, row: Row, rows: int) -> float:
        """The factor on a row's advantages that makes a plain sum of it."""
        return float(row.trained_tokens * rows) if self.means else 1.0


def datum(row: Row, **values: Sequence[float]) -> tinker.Datum:
    """A row with values per completion token; 0 where it is masked out, whatever stands there."""
    ids = row.prompt_ids + row.completion_ids
    before = [0.0] * (len(row.prompt_ids) - 1)
    weights = [float(m) for m in row.mask]
    inputs: dict[str, Any] = {
        "target_tokens": list(ids[1:]),
        "weights": before + weights,
    }
    for name, per_token in values.items():
        inputs[name] = before + [
            float(v) if m else 0.0 for v, m in zip(per_token, row.mask, strict=True)
        ]
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(list(ids[:-1])),
        loss_fn_inputs=inputs,
    )


def logprobs_of(row: Row, found: Sequence[float | None]) -> Floats:
    """A completion's log-probs out of a server's answer, which may begin anywhere before it."""
    n = len(row.completion_ids)
    last = list(found)[len(found) - n :]
    return tuple(float(v or 0.0) if m else 0.0 for v, m in zip(last, row.mask, strict=True))


def needs_scoring(row: Row) -> bool:
    """Whether a row's log-probs under its training prompt are not those it was sampled with."""
    return not bool(Batch.columns([row])["on_policy"])


Loss = Literal["ppo", "importance_sampling", "cross_entropy"]
"""Losses that the protocol has."""

NAMES: Mapping[str, Loss] = {
    "clip": "ppo",
    "importance": "importance_sampling",
    "cross_entropy": "cross_entropy",
}


def hands_over(objective: Objective, reduction: Reduction) -> bool:
    """Whether a loss is worked out here and its gradient handed over.

    So are those that the protocol lacks; and a cross entropy, where the server divides it by its
    weights, which are to say what a token counts.
    """
    if objective.kl or objective.loss not in NAMES:
        return True
    return objective.loss == "cross_entropy" and reduction.means


@dataclass(frozen=True, slots=True)
class Work:
    """What a server is to do about a batch, as tensors [B, T].

    Attributes:
        sampled: the log-probs that ratios are taken to.
        credit: what each token's log-prob is to gain: advantage, weights and mean folded into one.
        old: log-probs before the update.
        ratio: the re-conditioning weights; 1 for rows trained under their own prompt.
    """

    batch: Batch
    loss: Loss
    sampled: Tensor
    credit: Tensor
    old: Tensor
    ratio: Tensor

    @classmethod
    def of(
        cls,
        batch: Batch,
        objective: Objective,
        scales: Tensor,
        old: Tensor,
        now: Tensor | None = None,
        anchor: Tensor | None = None,
    ) -> Work:
        """
        Args:
            scales: [B], what a trained token of each row counts.
            now: [B, T], this moment's log-probs, where the gradient at them is to be handed over.
            anchor: [B, T], the reference's, for a KL term.
        """
        ratio = reconditioning_weights(old, batch.sampled, batch.mask, objective.weighting)
        ratio = torch.where(batch.reconditioned, ratio, 1.0)
        if now is not None:
            credit = -_gradient(objective, batch, now, old, ratio, scales, anchor)
            return cls(batch, "importance_sampling", now, credit, old, ratio)
        folded = batch.advantages * batch.weights * ratio * scales[:, None]
        credit = torch.where(batch.mask, folded, 0.0)
        return cls(batch, NAMES[objective.loss], old, credit, old, ratio)

    def datums(self, reduction: Reduction) -> list[tinker.Datum]:
        found = []
        rows = self.batch.rows
        for row, sampled, credit in zip(
            rows, self.sampled.tolist(), self.credit.tolist(), strict=True
        ):
            n, undone = len(row.completion_ids), reduction.undone(row, len(rows))
            worth = [undone * c for c in credit[:n]]
            if self.loss == "cross_entropy":
                found.append(datum(row, weights=worth))
            else:
                found.append(datum(row, logprobs=sampled[:n], advantages=worth))
        return found


def _gradient(
    objective: Objective,
    batch: Batch,
    now: Tensor,
    old: Tensor,
    ratio: Tensor,
    scales: Tensor,
    anchor: Tensor | None,
) -> Tensor:
    """Of the loss by each token's log-prob, [B, T], at the log-probs `now`."""
    logp = now.clone().requires_grad_(True)
    weights = batch.weights * ratio
    terms = token_terms(objective, logp, old, batch.advantages, weights, batch.mask, anchor)
    (gradient,) = torch.autograd.grad(loss_of(terms, scales, objective.kl), logp)
    return gradient
