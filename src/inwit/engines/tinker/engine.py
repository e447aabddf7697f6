"""The tinker engine: rows become datums, a server samples and learns, nothing is computed here.

A step's losses are the server's own (`ppo`, `importance_sampling`, `cross_entropy`) with advantages
per token, into which weights and means are folded. What the protocol has no loss for (GSPO, a KL
term) is computed here from the log-probs: the server is handed its gradient, as the advantages of
an importance ratio that is 1 at the log-probs it has just told.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tinker
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from inwit.engines.base import EngineLost, OptimizerSettings, Sampling, UpdateStats
from inwit.engines.batch import CPU, Batch, Tally, minibatches, padded
from inwit.engines.tinker.adapter import fetch
from inwit.engines.tinker.connection import Connection, grad_norm
from inwit.engines.tinker.datums import (
    Reduction,
    Work,
    datum,
    hands_over,
    logprobs_of,
    needs_scoring,
)
from inwit.engines.tinker.settings import TinkerSettings
from inwit.errors import InwitError
from inwit.objectives import Objective, loss_of, row_scales, token_terms
from inwit.rows import Completion, Floats, Ids, Row, Stop

logger = logging.getLogger("inwit")

SEEDS = (1 << 31) - (1 << 16)
"""Servers count seeds in 31 bits, and number a request's samples upwards from its seed."""


class TinkerPolicy:
    """Sampling and scoring by one of the server's samplers."""

    def __init__(self, connection: Connection, longest: int) -> None:
        self.connection = connection
        self.longest = longest

    @property
    def sampler(self) -> tinker.SamplingClient:
        return self.connection.base

    async def sample(self, prompt_ids: Ids, n: int, sampling: Sampling) -> list[Completion]:
        """See `Policy.sample`; the log-probs are those at temperature 1."""
        if len(prompt_ids) + sampling.max_tokens > self.longest:
            raise InwitError(
                f"A prompt of {len(prompt_ids)} tokens and {sampling.max_tokens} to sample exceed "
                f"the model's {self.longest} positions.",
                "Shorten the question, or lower max_tokens.",
            )
        if n == 0:
            return []
        wanted = tinker.SamplingParams(
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            seed=sampling.seed % SEEDS,
            stop=list(sampling.stop_ids) or None,
        )
        prompt = tinker.ModelInput.from_ints(list(prompt_ids))
        answer = await self.connection.answer(self.sampler.sample_async(prompt, n, wanted))
        return [_completion(sequence, sampling) for sequence in answer.sequences]

    async def logprobs(self, rows: Sequence[Row], temperature: float = 1.0) -> list[Floats]:
        _only_one(temperature)
        asked = [
            self.sampler.compute_logprobs_async(
                tinker.ModelInput.from_ints(list(row.prompt_ids + row.completion_ids))
            )
            for row in rows
        ]
        found = await self.connection.answer(asyncio.gather(*asked))
        return [logprobs_of(row, each) for row, each in zip(rows, found, strict=True)]


@dataclass(frozen=True, slots=True)
class Sent:
    """A step on its way: what it is made of, and what the server will say of it.

    `once`: this pass's log-probs are those before the update.
    """

    work: Work
    scales: Tensor
    once: bool
    anchor: Tensor | None
    passed: Any
    taken: Any


class TinkerEngine(TinkerPolicy):
    """See `Engine`. A LoRA adapter of the server's base model learns; the reference is the base.

    Args:
        tokenizer: the base model's.
        source: where the base model's own files are, for the merged export.
        longest: the most positions that the model was made for.
        seed: of the adapter's random start.

    Raises:
        InwitError: there is no such server, it lacks the model, or there is no key for it.
    """

    def __init__(
        self,
        settings: TinkerSettings,
        tokenizer: PreTrainedTokenizerBase,
        source: str,
        longest: int,
        seed: int = 0,
    ) -> None:
        self.settings = settings
        self.tokenizer = tokenizer
        self.source = source
        here = Path(source)  # a server on this machine has a folder by its whole path
        base = settings.base_model or str(here.resolve() if here.is_dir() else source)
        self.start = f"tinker {base} rank {settings.rank} seed {seed % SEEDS}"
        self.updates = 0
        super().__init__(Connection(settings, base, seed % SEEDS), longest)

    @property
    def sampler(self) -> tinker.SamplingClient:
        return self.connection.sampling

    def reference(self) -> TinkerPolicy:
        return TinkerPolicy(self.connection, self.longest)

    async def logprobs(self, rows: Sequence[Row], temperature: float = 1.0) -> list[Floats]:
        """By the learner, as `update` sees them."""
        _only_one(temperature)
        if not rows:
            return []
        passed = self.connection.training.forward([datum(row) for row in rows], "cross_entropy")
        return _read(rows, await self.connection.answer(passed.result_async()))

    # ------------------------------------------------------------------ learning

    async def update(
        self,
        rows: Sequence[Row],
        objective: Objective,
        optimizer: OptimizerSettings,
        total_steps: int,
    ) -> UpdateStats:
        _only_one(objective.temperature)
        adam = _adam(optimizer, optimizer.rate(self.updates, total_steps))
        live = [row for row in rows if row.signal]
        once = optimizer.epochs == optimizer.minibatches == 1
        asked = [row for row in live if needs_scoring(row) or not once]
        scored = {
            id(row): found for row, found in zip(asked, await self.logprobs(asked), strict=True)
        }
        steps: list[Sent] = []
        for epoch in range(optimizer.epochs):
            parts = minibatches(rows, optimizer.minibatches, f"{self.updates}/{epoch}")
            for part in filter(lambda part: any(row.signal for row in part), parts):
                steps.append(await self._send(part, objective, adam, scored, once))
        tally = Tally()
        for sent in steps:
            await self._take(sent, objective, tally)
        self.updates += 1
        if steps:
            await asyncio.to_thread(self.connection.refreshed)
        passes = optimizer.epochs * optimizer.minibatches
        cap = objective.weighting.cap
        return tally.stats(adam.learning_rate, cap, rows, len(live), passes)

    async def _send(
        self,
        rows: Sequence[Row],
        objective: Objective,
        adam: tinker.AdamParams,
        scored: dict[int, Floats],
        once: bool,
    ) -> Sent:
        """Send a step, both its requests; where they are pipelined, wait for neither."""
        scales = row_scales(rows, objective.aggregation)
        some = [(row, scale) for row, scale in zip(rows, scales, strict=True) if row.signal]
        live = [row for row, _ in some]
        scale = torch.tensor([scale for _, scale in some])
        batch = Batch(**Batch.columns(live))
        now = anchor = None
        if objective.kl:
            anchor = _per_token(await self.reference().logprobs(live))
        reduction = Reduction(self.connection.means)
        if hands_over(objective, reduction):
            now = _per_token(await self.logprobs(live))
        known = _per_token([scored.get(id(row), row.logprobs) for row in live])
        old = now if once and now is not None else known
        work = Work.of(batch, objective, scale, old, now, anchor)
        clip = {
            "clip_low_threshold": 1 - objective.clip_low,
            "clip_high_threshold": 1 + objective.clip_high,
        }
        training = self.connection.training
        passed = training.forward_backward(
            work.datums(reduction), work.loss, clip if work.loss == "ppo" else None
        )
        if not self.settings.pipelined:
            await self.connection.answer(passed.result_async())
        taken = training.optim_step(adam)
        if not self.settings.pipelined:
            await self.connection.answer(taken.result_async())
        return Sent(work, scale, once, anchor, passed, taken)

    async def _take(self, sent: Sent, objective: Objective, tally: Tally) -> None:
        """Wait for a step's two answers, and count what they say."""
        batch, ratio = sent.work.batch, sent.work.ratio
        output = await self.connection.answer(sent.passed.result_async())
        step = await self.connection.answer(sent.taken.result_async())
        logp = _per_token(_read(batch.rows, output))
        old = sent.work.old
        weights = batch.weights * ratio
        terms = token_terms(
            objective, logp, old, batch.advantages, weights, batch.mask, sent.anchor
        )
        loss = float(loss_of(terms, sent.scales, objective.kl))
        before = logp if sent.once else old
        tally.add(batch, terms, loss, float(-logp[batch.mask].sum()), before, ratio)
        tally.steps += 1
        norm = grad_norm(step.metrics)
        if norm is None:
            return
        if not math.isfinite(norm):
            raise InwitError(
                f"The gradient's norm is {norm} at update {self.updates}.",
                "Lower the learning rate, and resume from the last checkpoint.",
            )
        if norm == 0 and bool(sent.work.credit.any()):
            raise EngineLost(
                "The Tinker server took a step without its gradient.", "It mixes up their order."
            )
        tally.norms.append(norm)

    # ------------------------------------------------------------------ saving

    def save(self, folder: Path) -> None:
        """The server keeps the weights and the optimizer's state; the folder keeps their name."""
        name = f"update-{self.updates}-{uuid.uuid4().hex[:8]}"
        saved = self.connection.now(self.connection.training.save_state(name))
        state = {"start": self.start, "updates": self.updates, "path": saved.path}
        (folder / "engine.json").write_text(json.dumps(state, indent=2), encoding="utf-8")

    def load(self, folder: Path, optimizer: OptimizerSettings | None = None) -> None:
        del optimizer  # the server has it
        try:
            state = json.loads((folder / "engine.json").read_text("utf-8"))
            start, updates, path = state["start"], int(state["updates"]), str(state["path"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InwitError(
                f"The checkpoint {folder} cannot be loaded: {error}.", "Resume from an earlier one."
            ) from error
        if start != self.start:
            raise InwitError(
                f"The checkpoint {folder} is of '{start}', the recipe's engine '{self.start}'.",
                "Resume with the engine that the run was begun with.",
            )
        connection = self.connection
        connection.now(connection.training.load_state_with_optimizer(path))
        connection.refreshed()
        self.updates = updates

    async def recover(self) -> None:
        """A new session, with the policy as it was at the start; see `Engine.recover`."""
        await asyncio.to_thread(self.connection.reopen)
        self.updates = 0

    def close(self) -> None:
        self.connection.close()

    def export(self, folder: Path) -> None:
        fetch(self.connection, self.source, folder, merged=self.settings.export == "merged")
        self.tokenizer.save_pretrained(folder)


def _adam(optimizer: OptimizerSettings, rate: float) -> tinker.AdamParams:
    return tinker.AdamParams(
        learning_rate=rate,
        beta1=optimizer.betas[0],
        beta2=optimizer.betas[1],
        eps=optimizer.eps,
        weight_decay=optimizer.weight_decay,
        grad_clip_norm=optimizer.max_grad_norm,
    )


def _per_token(found: Sequence[Floats]) -> Tensor:
    """[B, T] of what was found of B rows, in their order."""
    return padded(found, CPU, torch.float32)


def _read(rows: Sequence[Row], output: tinker.ForwardBackwardOutput) -> list[Floats]:
    """Each row's log-probs out of a pass over the rows."""
    return [
        logprobs_of(row, list(each["logprobs"].data))
        for row, each in zip(rows, output.loss_fn_outputs, strict=True)
    ]


def _completion(sequence: tinker.SampledSequence, sampling: Sampling) -> Completion:
    ids = tuple(int(i) for i in sequence.tokens)
    stopped = bool(ids) and ids[-1] in sampling.stop_ids
    logprobs = tuple(float(x) for x in sequence.logprobs or ())
    return Completion(ids, logprobs, Stop.TOKEN if stopped else Stop.LENGTH)


def _only_one(temperature: float) -> None:
    if temperature != 1.0:
        raise InwitError(
            f"The Tinker protocol tells log-probs at temperature 1, not at {temperature:g}.",
            "Set sampling.temperature to 1.",
        )
