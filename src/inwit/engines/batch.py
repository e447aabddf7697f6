"""Rows as tensors, and what an update saw of them: what every engine that learns has in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor

from inwit.engines.base import UpdateStats
from inwit.objectives import effective_sample_share
from inwit.objectives.losses import TokenTerms
from inwit.rows import Behaviour, Floats, Row

CPU = torch.device("cpu")


def padded(
    lists: Sequence[Sequence[float]], device: torch.device, dtype: torch.dtype = torch.long
) -> Tensor:
    """[S, longest], filled up with 0: among places, one whose results nobody looks at."""
    width = max(map(len, lists))
    lines = [[*x, *[0] * (width - len(x))] for x in lists]
    return torch.tensor(lines, dtype=dtype, device=device)


@dataclass(frozen=True, slots=True)
class Batch:
    """B rows with everything per completion token padded to [B, T].

    `reconditioned` and `on_policy` are [B, 1].
    """

    rows: tuple[Row, ...]
    mask: Tensor
    sampled: Tensor
    advantages: Tensor
    weights: Tensor
    reconditioned: Tensor
    on_policy: Tensor

    @staticmethod
    def columns(rows: Sequence[Row], device: torch.device = CPU) -> dict[str, Any]:
        """The fields above, by name."""
        again = [row.reconditioned for row in rows]
        own = [not r.reconditioned and r.behaviour is Behaviour.POLICY for r in rows]
        return {
            "rows": tuple(rows),
            "mask": padded([row.mask for row in rows], device, torch.bool),
            "sampled": padded([row.logprobs for row in rows], device, torch.float32),
            "advantages": padded([row.advantages for row in rows], device, torch.float32),
            "weights": padded([row.weights for row in rows], device, torch.float32),
            "reconditioned": torch.tensor(again, device=device)[:, None],
            "on_policy": torch.tensor(own, device=device)[:, None],
        }

    def per_token(self, values: dict[int, Floats]) -> Tensor:
        """[B, T] of what is known of each row, by the row's id."""
        found = padded([values[id(row)] for row in self.rows], CPU, torch.float32)
        return found.to(self.mask.device)


def minibatches(rows: Sequence[Row], n: int, seed: str) -> list[list[Row]]:
    """The rows in n parts, drawn by the seed; each part keeps their order."""
    if n == 1:
        return [list(rows)]
    order = list(range(len(rows)))
    Random(seed).shuffle(order)
    return [[rows[i] for i in sorted(order[k::n])] for k in range(n)]


@dataclass(slots=True)
class Tally:
    """Sums over the trained tokens of an update, from which its statistics are made."""

    loss: float = 0.0
    entropy: float = 0.0
    clipped: float = 0.0
    kl: float = 0.0
    trained: int = 0
    read: int = 0
    parity: float | None = None
    weights: list[Tensor] = field(default_factory=list)
    row_weights: dict[int, Floats] = field(default_factory=dict)
    norms: list[float] = field(default_factory=list)
    steps: int = 0

    def add(
        self,
        batch: Batch,
        terms: TokenTerms,
        loss: float,
        entropy: float,
        old: Tensor,
        ratio: Tensor,
    ) -> None:
        """Count a pass.

        Args:
            entropy: summed over the trained tokens.
            old: [B, T], log-probs before the update.
            ratio: [B, T], the re-conditioning weights; 1 for rows that are not re-conditioned.
        """
        self.loss += loss
        self.entropy += entropy
        self.clipped += float(terms.clipped.detach().sum())
        self.kl += float(terms.kl.detach().sum())
        self.trained += int(batch.mask.sum())
        self.read += sum(row.length for row in batch.rows)
        if bool((again := batch.reconditioned & batch.mask).any()):
            self.weights.append(ratio[again].cpu())
            for row, weights in zip(batch.rows, ratio.tolist(), strict=True):
                if row.reconditioned:
                    self.row_weights[id(row)] = tuple(weights[: len(row.completion_ids)])
        if bool((own := batch.on_policy & batch.mask).any()):
            gap = float((old - batch.sampled)[own].abs().max())
            self.parity = max(gap, self.parity or 0.0)

    def stats(
        self, rate: float, cap: float | None, rows: Sequence[Row], live: int, passes: int
    ) -> UpdateStats:
        n = max(self.trained, 1)
        weights = torch.cat(self.weights) if self.weights else torch.zeros(0)
        some = weights.numel() > 0
        return UpdateStats(
            loss=self.loss / max(passes, 1),
            grad_norm=sum(self.norms) / len(self.norms) if self.norms else None,
            lr=rate,
            entropy=self.entropy / n,
            clip_share=self.clipped / n,
            kl=self.kl / n,
            parity=self.parity,
            weight_mean=float(weights.mean()) if some else None,
            weight_truncated=(
                (float((weights >= cap).float().mean()) if cap is not None else 0.0)
                if some
                else None
            ),
            effective_share=effective_sample_share(weights) if some else None,
            tokens=self.read,
            rows=len(rows),
            rows_trained=live,
            optimizer_steps=self.steps,
            weights={
                k: self.row_weights[id(row)]
                for k, row in enumerate(rows)
                if id(row) in self.row_weights
            },
        )
