"""The learner: from rows to one optimizer step, in micro-batches that change nothing.

Rows are cut into micro-batches by a budget of tokens, and what they have in common is computed
once (`packing`). Logits are computed for trained tokens only, and beyond a limit in chunks. Where a
batch makes one optimizer step, the log-probs before the update and the re-conditioning weights are
those of the training pass itself, detached.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.utils.checkpoint import checkpoint

from inwit.engines.base import OptimizerSettings, UpdateStats
from inwit.engines.batch import Batch, Tally, minibatches
from inwit.engines.torch.backbone import Backbone
from inwit.engines.torch.packing import Layout
from inwit.errors import InwitError
from inwit.objectives import (
    Objective,
    loss_of,
    reconditioning_weights,
    row_scales,
    token_terms,
)
from inwit.rows import Floats, Ids, Row

LOGITS_AT_ONCE = 1 << 26
"""Most logits held at once: chunks beyond it are computed again for the gradient."""


@dataclass(frozen=True, slots=True)
class MicroBatch(Batch):
    """B rows in one pass.

    `where` [N] holds the places in `layout` of the states that predict the N trained tokens
    `targets` [N], which are the True entries of `mask` in row-major order.
    """

    layout: Layout
    where: Tensor
    targets: Tensor

    @classmethod
    def of(cls, rows: Sequence[Row], backbone: Backbone) -> MicroBatch:
        device = backbone.device
        layout = backbone.layout([_read(row) for row in rows])
        where: list[int] = []
        targets: list[int] = []
        for row, places in zip(rows, layout.places, strict=True):
            before = len(places) - len(row.completion_ids)  # a state predicts the token behind it
            where += (p for p, m in zip(places[before:], row.mask, strict=True) if m)
            targets += (t for t, m in zip(row.completion_ids, row.mask, strict=True) if m)
        return cls(
            **cls.columns(rows, device),
            layout=layout,
            where=torch.tensor(where, dtype=torch.long, device=device),
            targets=torch.tensor(targets, dtype=torch.long, device=device),
        )


def _read(row: Row) -> Ids:
    """What a pass reads of a row: the last token predicts nothing."""
    ids = row.prompt_ids + row.completion_ids
    return ids[:-1] if row.completion_ids else ids


def token_logprobs(
    backbone: Backbone, batch: MicroBatch, temperature: float
) -> tuple[Tensor, Tensor]:
    """(log-probs, entropies) of the trained tokens, [B, T] each, nats; 0 where masked out.

    The log-probs carry the gradient; the entropies do not.
    """
    states = backbone.states(batch.layout)[batch.where]

    def head(states: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return backbone.logprobs(states, targets, temperature)

    size = max(1, LOGITS_AT_ONCE // backbone.vocabulary)
    chunks = list(zip(torch.split(states, size), torch.split(batch.targets, size), strict=True))
    again = len(chunks) > 1 and torch.is_grad_enabled()
    parts = [checkpoint(head, *c, use_reentrant=False) if again else head(*c) for c in chunks]
    logp = torch.cat([part[0] for part in parts])
    entropy = torch.cat([part[1] for part in parts])
    blank = torch.zeros(batch.mask.shape, device=logp.device)
    return blank.masked_scatter(batch.mask, logp), blank.masked_scatter(batch.mask, entropy)


def micro_batches(backbone: Backbone, rows: Sequence[Row], budget: int) -> list[list[int]]:
    """Indices of rows for passes of at most `budget` tokens each (or of one row)."""
    return backbone.batches([_read(row) for row in rows], budget)


@torch.no_grad()
def score(backbone: Backbone, rows: Sequence[Row], temperature: float, budget: int) -> list[Floats]:
    """Log-probs of every row's completion under its training prompt; 0 where masked out."""
    found: dict[int, Floats] = {}
    for indices in micro_batches(backbone, rows, budget):
        batch = MicroBatch.of([rows[i] for i in indices], backbone)
        logp, _ = token_logprobs(backbone, batch, temperature)
        for i, values in zip(indices, logp.tolist(), strict=True):
            found[i] = tuple(values[: len(rows[i].completion_ids)])
    return [found[i] for i in range(len(rows))]


class Learner:
    """Updates one backbone's trainable parameters with AdamW.

    Args:
        tokens_at_once: tokens in one forward and backward pass.
    """

    def __init__(self, backbone: Backbone, tokens_at_once: int) -> None:
        self._backbone = backbone
        self._tokens_at_once = tokens_at_once
        self.parameters = [p for p in backbone.model.parameters() if p.requires_grad]
        self.optimizer: torch.optim.AdamW | None = None
        self.updates = 0

    def prepare(self, settings: OptimizerSettings) -> torch.optim.AdamW:
        """The optimizer; made at its first use, so that a policy that never learns holds none."""
        if self.optimizer is None:
            self.optimizer = torch.optim.AdamW(
                self.parameters,
                lr=settings.lr,
                betas=settings.betas,
                eps=settings.eps,
                weight_decay=settings.weight_decay,
                fused=True,
            )
        return self.optimizer

    def update(
        self,
        rows: Sequence[Row],
        objective: Objective,
        settings: OptimizerSettings,
        total_steps: int,
        reference: Backbone | None,
    ) -> UpdateStats:
        """One pass of the recipe over a global batch; see `Engine.update`.

        Raises InwitError where a gradient is not finite; that step is then not taken.
        """
        optimizer = self.prepare(settings)
        rate = settings.rate(self.updates, total_steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        live = [row for row in rows if row.signal]
        tally = Tally()
        once = settings.epochs == settings.minibatches == 1
        old = None if once else self._score(live, objective)
        for epoch in range(settings.epochs):
            seed = f"{self.updates}/{epoch}"
            for part in minibatches(rows, settings.minibatches, seed):
                self._step(part, objective, settings, old, reference, tally)
        self.updates += 1
        passes = settings.epochs * settings.minibatches
        return tally.stats(rate, objective.weighting.cap, rows, len(live), passes)

    def _score(self, rows: Sequence[Row], objective: Objective) -> dict[int, Floats]:
        scores = score(self._backbone, rows, objective.temperature, self._tokens_at_once)
        return {id(row): logp for row, logp in zip(rows, scores, strict=True)}

    def _step(
        self,
        rows: Sequence[Row],
        objective: Objective,
        settings: OptimizerSettings,
        old: dict[int, Floats] | None,
        reference: Backbone | None,
        tally: Tally,
    ) -> None:
        assert self.optimizer is not None
        scales = row_scales(rows, objective.aggregation)
        live = [i for i, row in enumerate(rows) if row.signal]
        if not live:
            return
        self.optimizer.zero_grad(set_to_none=True)
        some = [rows[i] for i in live]
        for indices in micro_batches(self._backbone, some, self._tokens_at_once):
            batch = MicroBatch.of([some[i] for i in indices], self._backbone)
            scale = torch.tensor([scales[live[i]] for i in indices], device=batch.mask.device)
            with self._backbone.training():
                self._pass(batch, scale, objective, old, reference, tally)
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        total = get_total_norm(gradients)
        norm = float(total)
        if not math.isfinite(norm):
            self.optimizer.zero_grad(set_to_none=True)
            raise InwitError(
                f"The gradient's norm is {norm} at update {self.updates}.",
                "Lower the learning rate; the last checkpoint is untouched.",
            )
        if norm > settings.max_grad_norm:  # else scaling by 1 goes over all of them for nothing
            clip_grads_with_norm_(self.parameters, settings.max_grad_norm, total)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)  # sampling has another use for the memory
        tally.norms.append(norm)
        tally.steps += 1

    def _pass(
        self,
        batch: MicroBatch,
        scale: Tensor,
        objective: Objective,
        old_scores: dict[int, Floats] | None,
        reference: Backbone | None,
        tally: Tally,
    ) -> None:
        """Forward and backward over one micro-batch, adding to the gradient and to the tally."""
        logp, entropy = token_logprobs(self._backbone, batch, objective.temperature)
        old = logp.detach() if old_scores is None else batch.per_token(old_scores)
        ratio = reconditioning_weights(old, batch.sampled, batch.mask, objective.weighting)
        ratio = torch.where(batch.reconditioned, ratio, 1.0)
        anchor = None
        if objective.kl and reference is not None:
            with torch.no_grad():
                anchor, _ = token_logprobs(reference, batch, objective.temperature)
        terms = token_terms(
            objective, logp, old, batch.advantages, batch.weights * ratio, batch.mask, anchor
        )
        loss = loss_of(terms, scale, objective.kl)
        loss.backward()  # type: ignore[no-untyped-call]
        tally.add(batch, terms, float(loss.detach()), float(entropy.sum()), old, ratio)
