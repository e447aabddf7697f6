"""The contract of an engine: sample, score, update, save, load. No engine knows a method's name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from inwit.errors import InwitError
from inwit.objectives import Objective
from inwit.rows import Completion, Floats, Ids, Row


@dataclass(frozen=True, slots=True)
class Sampling:
    """One sampling specification for sampler and scorer.

    There is no top-p and no top-k: a truncated distribution is not the one that ratios are taken of
    (LESSONS 15).

    Attributes:
        max_tokens: most tokens sampled.
        stop_ids: ids that end a completion; the one met is part of it.
        temperature: of the softmax; 0 is greedy, for evaluation only (log-probs are then at 1).
        seed: fixes the samples of this request, whatever else is in the batch.
    """

    max_tokens: int
    stop_ids: Ids
    temperature: float = 1.0
    seed: int = 0


class OptimizerSettings(BaseModel):
    """AdamW and its schedule."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    lr: float = Field(1e-6, gt=0, description="peak learning rate")
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0, description="gradients are scaled down to this norm")
    warmup: int = Field(0, ge=0, description="steps of linear warm-up")
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    final: float = Field(0.0, ge=0, le=1, description="share of the peak at the end of a schedule")
    minibatches: int = Field(1, ge=1, description="optimizer steps a batch is split into")
    epochs: int = Field(1, ge=1, description="times a batch is gone through")

    def rate(self, step: int, total: int) -> float:
        """The learning rate of step `step` (from 0) of `total`."""

        if self.schedule == "constant":
            decay = 1.0
        else:
            done = min(step / max(total, 1), 1.0)
            shape = 1 - done if self.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
            decay = self.final + (1 - self.final) * shape
        return self.lr * decay * min(1.0, (step + 1) / max(self.warmup, 1))


@dataclass(frozen=True, slots=True)
class UpdateStats:
    """What one update saw. Means run over trained tokens; weights over re-conditioned ones.

    Attributes:
        parity: largest |log-prob of the learner - log-prob of the sampler| over tokens that were
            sampled by this policy under the prompt they are trained under, before the update;
            None where there are none.
        effective_share: effective sample size over the number of re-conditioned tokens.
        grad_norm: before it is scaled down, mean over the optimizer's steps; None where there were
            none, or the engine is not told.
        entropy: mean over trained tokens, in nats; an engine that sees only the log-probs of the
            tokens themselves takes minus these, which estimates it for what the policy sampled.
        tokens: of the rows that were trained, prompts included, each time they were trained; what
            rows have in common is counted for each, though it may be computed once.
        rows, rows_trained: rows given, and those that had any advantage.
        weights: per token, for each re-conditioned row that was trained, by its index in `rows`.
    """

    loss: float
    grad_norm: float | None
    lr: float
    entropy: float
    clip_share: float
    kl: float
    parity: float | None
    weight_mean: float | None
    weight_truncated: float | None
    effective_share: float | None
    tokens: int
    rows: int
    rows_trained: int
    optimizer_steps: int
    weights: Mapping[int, Floats] = field(default_factory=dict)

    def numbers(self) -> dict[str, float | int | None]:
        """All but the weights, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "weights"}


class EngineLost(InwitError):
    """The engine's state is gone, or nobody can tell what it is: go back to a checkpoint."""


class Policy(Protocol):
    """Something that can be sampled from and asked for log-probs."""

    async def sample(self, prompt_ids: Ids, n: int, sampling: Sampling) -> list[Completion]:
        """n completions of one prompt, with their log-probs at the sampling temperature."""
        ...

    async def logprobs(self, rows: Sequence[Row], temperature: float = 1.0) -> list[Floats]:
        """Log-probs (nats) of each row's completion under its *training* prompt; 0 if masked."""
        ...


class Engine(Policy, Protocol):
    """A policy that learns. One contract test suite runs against every implementation.

    Whatever is asked of an engine that works elsewhere may raise EngineLost.

    Attributes:
        tokenizer: the model's, of transformers' kind.
        start: what tells the policy at the start from others.
    """

    tokenizer: Any
    start: str

    @property
    def longest(self) -> int:
        """The most positions, prompt and completion together, that the model was made for."""
        ...

    async def update(
        self,
        rows: Sequence[Row],
        objective: Objective,
        optimizer: OptimizerSettings,
        total_steps: int,
    ) -> UpdateStats:
        """Learn from a global batch: one optimizer step for each minibatch of each epoch.

        Rows without any advantage are left out of the passes, but count in the objective's mean.
        """
        ...

    def reference(self) -> Policy:
        """The policy as it was before training. Raises InwitError where it was not kept."""
        ...

    def save(self, folder: Path) -> None:
        """Everything that training goes on from, into an existing empty folder."""
        ...

    def load(self, folder: Path, optimizer: OptimizerSettings | None = None) -> None:
        """Go on from what `save` wrote. Raises InwitError on a broken or foreign checkpoint."""
        ...

    async def recover(self) -> None:
        """After EngineLost: be the policy as it was at the start again, for `load` to follow."""
        ...

    def close(self) -> None:
        """Let go of what is held elsewhere."""
        ...

    def export(self, folder: Path) -> None:
        """The model and its tokenizer as a Hugging Face directory."""
        ...
