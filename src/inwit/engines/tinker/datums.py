"""Rows as the protocol wants them, and its answers as values of rows. Pure.

A datum is what the model reads and, for each place, the token that should follow: the row's ids
without the last, and without the first. Values of completion tokens so begin at the place of the
prompt's last token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tinker
import torch
from torch import Tensor

from inwit.engines.batch import Batch
from inwit.objectives import Objective, reconditioning_weights
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


def old_logprobs(batch: Batch, scored: dict[int, Floats]) -> Tensor:
    """[B, T], before the update: as scored, or as sampled where sampler and learner agree."""
    return batch.per_token({id(row): scored.get(id(row), row.logprobs) for row in batch.rows})


def ratios(batch: Batch, old: Tensor, objective: Objective) -> Tensor:
    """The re-conditioning weights w_t, [B, T]; 1 for rows trained under their own prompt."""
    found = reconditioning_weights(old, batch.sampled, batch.mask, objective.weighting)
    return torch.where(batch.reconditioned, found, 1.0)


def values(tensor: Tensor, rows: Sequence[Row]) -> list[list[float]]:
    """[B, T] as a list for each row, of its completion's length."""
    return [
        found[: len(row.completion_ids)] for found, row in zip(tensor.tolist(), rows, strict=True)
    ]
