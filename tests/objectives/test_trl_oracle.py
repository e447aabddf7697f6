"""TRL's own loss code as oracle: the same loss and the same gradient from the same log-probs.

`GRPOTrainer._compute_loss` itself is run, not a copy of it. Where TRL and this package mean
different things, the comparison says so:

- TRL's mean over rows counts rows without trained tokens; here they count nowhere.
- TRL multiplies its KL estimate by the policy's ratio unless `use_bias_correction_kl` is off.
- TRL does not clamp log-ratios; the ones here are far below the clamp.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from inwit.objectives import Objective, loss_of, row_scales, token_terms
from inwit.objectives.losses import Aggregation, LossKind
from tests.helpers import make_row

trl = pytest.importorskip("trl")
accelerate = pytest.importorskip("accelerate")
pytestmark = pytest.mark.filterwarnings("ignore:.gradient_checkpointing. is deprecated")

TrlLoss = Literal["dapo", "bnpo", "grpo"]
ROWS, WIDTH = 4, 7


class LossOnly(trl.GRPOTrainer):
    """TRL's trainer with only the state that its loss reads, and log-probs handed in."""

    def __init__(self, args: Any) -> None:
        self.args = args
        self.model = torch.nn.Identity()
        self.accelerator = accelerate.Accelerator(cpu=True)
        self.loss_type = args.loss_type
        self.importance_sampling_level = args.importance_sampling_level
        self.beta = args.beta
        self.epsilon_low, self.epsilon_high = args.epsilon, args.epsilon_high
        self.max_completion_length = args.max_completion_length
        self.use_vllm = args.use_vllm
        self.off_policy_mask_threshold = args.off_policy_mask_threshold
        self.top_entropy_quantile = args.top_entropy_quantile
        self.current_gradient_accumulation_steps = args.gradient_accumulation_steps
        self.aux_loss_enabled = self._entropy_bonus_enabled = False
        self._metrics = {mode: defaultdict(list) for mode in ("train", "eval")}

    def _get_per_token_logps_and_entropies(
        self, model: Any, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor, None]:
        logp: Tensor = model
        return logp, torch.zeros_like(logp), None


@dataclass
class Batch:
    """[B, T] each: `present` is off at padding, `sampled` is off at the output of tools."""

    logp: Tensor
    old: Tensor
    reference: Tensor
    advantages: Tensor
    present: Tensor
    sampled: Tensor

    @property
    def mask(self) -> Tensor:
        return self.present & self.sampled

    def rows(self, of: slice) -> Batch:
        return Batch(**{name: value[of] for name, value in vars(self).items()})


def batch_of(seed: int, per_token: bool = False) -> Batch:
    """Ratios from about 0.4 to 2.5, so that a third of them is clipped; no row is all masked."""
    g = torch.Generator().manual_seed(seed)

    def normal(scale: float) -> Tensor:
        return scale * torch.randn(ROWS, WIDTH, generator=g, dtype=torch.float64)

    old = -normal(1.0).abs() - 1
    lengths = torch.randint(1, WIDTH + 1, (ROWS, 1), generator=g)
    sampled = torch.rand(ROWS, WIDTH, generator=g) < 0.7
    sampled[:, 0] = True
    advantages = normal(1.0)
    return Batch(
        logp=old + normal(0.35),
        old=old,
        reference=old + normal(0.5),
        advantages=advantages if per_token else advantages[:, :1].expand(ROWS, WIDTH),
        present=torch.arange(WIDTH) < lengths,
        sampled=sampled,
    )


def trl_loss(
    batch: Batch,
    loss_type: TrlLoss,
    level: Literal["token", "sequence"],
    beta: float,
    per_token: bool = False,
    on_policy: bool = False,
    steps: int = 1,
) -> tuple[Tensor, Tensor]:
    """TRL's loss and its gradient, summed over `steps` micro-batches of equal numbers of rows."""
    args = trl.GRPOConfig(
        output_dir="unused",
        report_to="none",
        use_cpu=True,
        bf16=False,
        loss_type=loss_type,
        importance_sampling_level=level,
        epsilon=0.2,
        epsilon_high=0.28,
        beta=beta,
        use_bias_correction_kl=False,
        gradient_accumulation_steps=steps,
    )
    trainer = LossOnly(args)
    total, size = torch.zeros(()), ROWS // steps
    gradients: list[Tensor] = []
    for start in range(0, ROWS, size):
        part = batch.rows(slice(start, start + size))
        logp = part.logp.clone().requires_grad_()
        ids = torch.zeros(size, WIDTH, dtype=torch.long)
        inputs = {
            "prompt_ids": ids,
            "prompt_mask": torch.ones_like(ids),
            "completion_ids": ids,
            "completion_mask": part.present.long(),
            "tool_mask": part.sampled.long(),
            "advantages": part.advantages if per_token else part.advantages[:, 0],
            "old_per_token_logps": None if on_policy else part.old,
            "ref_per_token_logps": part.reference,
            "num_items_in_batch": batch.mask.sum(),
        }
        loss = trainer.compute_loss(logp, inputs)
        gradients += torch.autograd.grad(loss, logp)
        total = total + loss.detach()
    return total, torch.cat(gradients)


def inwit_loss(
    batch: Batch,
    loss: LossKind,
    aggregation: Aggregation,
    beta: float,
    on_policy: bool = False,
    weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    logp = batch.logp.clone().requires_grad_()
    objective = Objective(loss, 0.2, 0.28, aggregation, kl=beta)
    terms = token_terms(
        objective,
        logp,
        logp.detach() if on_policy else batch.old,
        batch.advantages,
        torch.ones_like(logp) if weights is None else weights,
        batch.mask,
        batch.reference,
    )
    rows = [make_row(range(WIDTH), mask=mask) for mask in batch.mask.tolist()]
    scales = torch.tensor(row_scales(rows, aggregation), dtype=torch.float64)
    value = loss_of(terms, scales, objective.kl)
    (gradient,) = torch.autograd.grad(value, logp)
    return value.detach(), gradient


def assert_same(got: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs.double(), rtol=1e-9, atol=1e-12)
    assert float(expected[1].abs().max()) > 1e-3, "the oracle has no gradient to compare with"


CASES = pytest.mark.parametrize(
    ("loss", "aggregation", "loss_type", "level"),
    [
        pytest.param("clip", "token", "dapo", "token", id="tokens of the global batch"),
        pytest.param("clip", "token", "bnpo", "token", id="tokens of the local batch"),
        pytest.param("clip", "row", "grpo", "token", id="rows"),
        pytest.param("gspo", "row", "grpo", "sequence", id="GSPO, rows"),
        pytest.param("gspo", "token", "dapo", "sequence", id="GSPO, tokens"),
    ],
)


def test_the_batches_compared_are_not_trivial() -> None:
    """LESSONS 11: a parity test needs a mask with holes, and a clip needs ratios on both sides."""
    batches = [batch_of(seed) for seed in range(8)]
    ratios = torch.cat([(b.logp - b.old).exp()[b.mask] for b in batches])
    signs = torch.cat([b.advantages[b.mask].sign() for b in batches])
    for sign in (-1, 1):
        assert int((ratios[signs == sign] < 0.8).sum()) > 10
        assert int((ratios[signs == sign] > 1.28).sum()) > 10
    assert sum(int((b.present & ~b.sampled).sum()) for b in batches) > 10
    assert sum(int((~b.present).sum()) for b in batches) > 10
    assert all(bool(b.mask.any(-1).all()) for b in batches)


@CASES
@pytest.mark.parametrize("beta", [0.0, 0.05])
@pytest.mark.parametrize("seed", range(8))
def test_loss_and_gradient_are_trls(
    loss: LossKind,
    aggregation: Aggregation,
    loss_type: TrlLoss,
    level: Literal["token", "sequence"],
    beta: float,
    seed: int,
) -> None:
    """LESSONS 11: with padding and tool tokens in the batch, off policy, with and without KL."""
    batch = batch_of(seed)
    assert_same(inwit_loss(batch, loss, aggregation, beta), trl_loss(batch, loss_type, level, beta))


@CASES
def test_on_policy_loss_and_gradient_are_trls(
    loss: LossKind,
    aggregation: Aggregation,
    loss_type: TrlLoss,
    level: Literal["token", "sequence"],
) -> None:
    """The first pass over a batch: without old log-probs TRL takes the new ones, detached."""
    batch = batch_of(99)
    assert_same(
        inwit_loss(batch, loss, aggregation, 0.05, on_policy=True),
        trl_loss(batch, loss_type, level, 0.05, on_policy=True),
    )


@CASES
@pytest.mark.parametrize("seed", range(4))
def test_weighted_rows_are_trls_rows_with_the_weights_in_the_advantages(
    loss: LossKind,
    aggregation: Aggregation,
    loss_type: TrlLoss,
    level: Literal["token", "sequence"],
    seed: int,
) -> None:
    """ICRL Eq. 6 on an engine that knows only per-token advantages, with KL (not weighted)."""
    batch = batch_of(seed, per_token=True)
    weights = 2 * torch.rand(
        ROWS, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    ours = inwit_loss(batch, loss, aggregation, 0.05, weights=weights)
    batch.advantages = batch.advantages * weights
    assert_same(ours, trl_loss(batch, loss_type, level, 0.05, per_token=True))


@pytest.mark.parametrize(
    ("loss", "aggregation", "loss_type", "level"),
    [
        pytest.param("clip", "token", "dapo", "token", id="tokens"),
        pytest.param("clip", "row", "grpo", "token", id="rows"),
        pytest.param("gspo", "row", "grpo", "sequence", id="GSPO, rows"),
    ],
)
@pytest.mark.parametrize("steps", [2, 4])
def test_one_pass_here_is_trls_accumulated_micro_batches(
    loss: LossKind,
    aggregation: Aggregation,
    loss_type: TrlLoss,
    level: Literal["token", "sequence"],
    steps: int,
) -> None:
    """LESSONS 18: accumulating gradients does not change the loss, by TRL's own bookkeeping."""
    batch = batch_of(7)
    assert_same(
        inwit_loss(batch, loss, aggregation, 0.05),
        trl_loss(batch, loss_type, level, 0.05, steps=steps),
    )
