"""Losses: hand-computed tokens, what must change nothing, and gradients at the edges."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from inwit.objectives import (
    Objective,
    Weighting,
    loss_of,
    reconditioning_weights,
    row_scales,
    token_terms,
)
from inwit.objectives.losses import Aggregation, LossKind, TokenTerms, kl_to_reference
from inwit.objectives.ratios import WeightKind
from inwit.rows import Row
from tests.helpers import make_row

LOSSES: tuple[LossKind, ...] = ("clip", "gspo", "importance", "cross_entropy")
KINDS: tuple[WeightKind, ...] = ("ratio", "none", "shaped", "sequence")
AGGREGATIONS: tuple[Aggregation, ...] = ("token", "row", "episode")


# By hand: three tokens. `rho` gives the ratios; the policy before the update has log-prob -1.


def by_hand(
    objective: Objective,
    rho: Sequence[float],
    advantages: Sequence[float],
    weights: Sequence[float] = (1.0, 1.0, 1.0),
    mask: Sequence[bool] = (True, True, True),
) -> tuple[TokenTerms, Tensor, list[float]]:
    """(terms, loss as a mean over the trained tokens, gradient with respect to the log-probs)."""
    old = torch.full((1, 3), -1.0, dtype=torch.float64)
    logp = (old + torch.tensor([rho], dtype=torch.float64).log()).requires_grad_()
    terms = token_terms(
        objective,
        logp,
        old,
        torch.tensor([advantages], dtype=torch.float64),
        torch.tensor([weights], dtype=torch.float64),
        torch.tensor([mask]),
    )
    row = make_row(mask=mask)
    scales = torch.tensor(row_scales([row], "token"), dtype=torch.float64)
    loss = loss_of(terms, scales, objective.kl)
    (gradient,) = torch.autograd.grad(loss, logp)
    return terms, loss.detach(), gradient[0].tolist()


@dataclass(frozen=True)
class Clip:
    """What three ratios under one advantage come to."""

    rho: tuple[float, float, float]
    advantage: float
    surrogate: tuple[float, float, float]
    clipped: tuple[bool, bool, bool]
    loss: float
    gradient: tuple[float, float, float]


CLIPS = {
    "A > 0: only a ratio above 1.28 is clipped": Clip(
        rho=(1.5, 0.5, 1.1),
        advantage=2.0,
        surrogate=(2.56, 1.0, 2.2),
        clipped=(True, False, False),
        loss=-1.92,
        gradient=(0.0, -0.3333333333, -0.7333333333),
    ),
    "A < 0: only a ratio below 0.8 is clipped": Clip(
        rho=(1.5, 0.5, 1.1),
        advantage=-2.0,
        surrogate=(-3.0, -1.6, -2.2),
        clipped=(False, True, False),
        loss=2.2666666667,
        gradient=(1.0, 0.0, 0.7333333333),
    ),
    "A > 0: 1.25 is within the upper 0.28": Clip(
        rho=(1.25, 0.78, 1.0),
        advantage=3.0,
        surrogate=(3.75, 2.34, 3.0),
        clipped=(False, False, False),
        loss=-3.03,
        gradient=(-1.25, -0.78, -1.0),
    ),
    "A < 0: 0.78 is outside the lower 0.2": Clip(
        rho=(1.25, 0.78, 1.0),
        advantage=-3.0,
        surrogate=(-3.75, -2.4, -3.0),
        clipped=(False, True, False),
        loss=3.05,
        gradient=(1.25, 0.0, 1.0),
    ),
    "A = 0": Clip(
        rho=(1.5, 0.5, 1.1),
        advantage=0.0,
        surrogate=(0.0, 0.0, 0.0),
        clipped=(False, False, False),
        loss=0.0,
        gradient=(0.0, 0.0, 0.0),
    ),
}


@pytest.mark.parametrize("case", CLIPS.values(), ids=CLIPS)
def test_the_clipped_surrogate(case: Clip) -> None:
    """ICRL Eq. 2 with the asymmetric clip 0.2 / 0.28, clipping active and not, for both signs."""
    terms, loss, gradient = by_hand(Objective(), case.rho, (case.advantage,) * 3)
    assert terms.surrogate[0].tolist() == pytest.approx(case.surrogate, abs=1e-9)
    assert tuple(terms.clipped[0].tolist()) == case.clipped
    assert float(loss) == pytest.approx(case.loss, abs=1e-9)
    assert gradient == pytest.approx(case.gradient, abs=1e-9)


def test_the_weighted_surrogate_of_icrl() -> None:
    """ICRL Eq. 6: the weight multiplies the clipped minimum; it does not move the clip."""
    terms, loss, gradient = by_hand(
        Objective(), (1.5, 0.5, 1.1), (2.0, -2.0, 2.0), weights=(0.5, 2.0, 0.25)
    )
    assert terms.surrogate[0].tolist() == pytest.approx([1.28, -3.2, 0.55], abs=1e-9)
    assert float(loss) == pytest.approx(0.4566666667, abs=1e-9)
    assert gradient == pytest.approx([0.0, 0.0, -0.1833333333], abs=1e-9)


def test_a_masked_token_counts_neither_above_nor_below_the_line() -> None:
    """LESSONS 11: an observation adds nothing to the loss, its gradient or the token count."""
    terms, loss, gradient = by_hand(
        Objective(), (1.1, 5.0, 0.9), (2.0, 2.0, 2.0), mask=(True, False, True)
    )
    assert terms.surrogate[0].tolist() == pytest.approx([2.2, 0.0, 1.8], abs=1e-9)
    assert terms.clipped[0].tolist() == [False, False, False]
    assert float(loss) == pytest.approx(-2.0, abs=1e-9)
    assert gradient == pytest.approx([-1.1, 0.0, -0.9], abs=1e-9)


@pytest.mark.parametrize(
    ("rho", "advantage", "surrogate", "slope"),
    [
        # the geometric mean of the ratios is 1.1, 1.3, 0.7: their products 1.331, 2.197, 0.343
        pytest.param((2.0, 1.331, 0.5), 2.0, 2.2, -0.7333333333, id="within"),
        pytest.param((2.0, 2.197, 0.5), 2.0, 2.56, 0.0, id="too likely, A > 0: clipped"),
        pytest.param((2.0, 2.197, 0.5), -2.0, -2.6, 0.8666666667, id="too likely, A < 0: free"),
        pytest.param((2.0, 0.343, 0.5), -2.0, -1.6, 0.0, id="too unlikely, A < 0: clipped"),
        pytest.param((2.0, 0.343, 0.5), 2.0, 1.4, -0.4666666667, id="too unlikely, A > 0: free"),
    ],
)
def test_gspo(rho: tuple[float, ...], advantage: float, surrogate: float, slope: float) -> None:
    """One length-normalised ratio a row, clipped as a whole: each token has the same gradient."""
    terms, loss, gradient = by_hand(Objective("gspo"), rho, (advantage,) * 3)
    assert terms.surrogate[0].tolist() == pytest.approx([surrogate] * 3, abs=1e-9)
    assert float(loss) == pytest.approx(-surrogate, abs=1e-9)
    assert gradient == pytest.approx([slope] * 3, abs=1e-9)


def test_gspo_takes_its_mean_over_trained_tokens_only() -> None:
    """LESSONS 11: the sequence's ratio is of its sampled tokens: sqrt(2 x 0.605) = 1.1 here."""
    terms, loss, gradient = by_hand(
        Objective("gspo"), (2.0, 50.0, 0.605), (2.0,) * 3, mask=(True, False, True)
    )
    assert terms.surrogate[0].tolist() == pytest.approx([2.2, 0.0, 2.2], abs=1e-9)
    assert float(loss) == pytest.approx(-2.2, abs=1e-9)
    assert gradient == pytest.approx([-1.1, 0.0, -1.1], abs=1e-9)


def test_importance_is_never_clipped() -> None:
    terms, loss, gradient = by_hand(Objective("importance"), (3.0, 0.25, 1.0), (2.0, -4.0, 1.0))
    assert terms.surrogate[0].tolist() == pytest.approx([6.0, -1.0, 1.0], abs=1e-9)
    assert not bool(terms.clipped.any())
    assert float(loss) == pytest.approx(-2.0, abs=1e-9)
    assert gradient == pytest.approx([-2.0, 0.3333333333, -0.3333333333], abs=1e-9)


def test_cross_entropy_ignores_the_old_policy() -> None:
    """-log p weighted by the advantage: log-probs -1 + log rho, here -1 + (0, log 2, log 0.5)."""
    terms, loss, gradient = by_hand(Objective("cross_entropy"), (1.0, 2.0, 0.5), (1.0, 1.0, 3.0))
    assert terms.surrogate[0].tolist() == pytest.approx(
        [-1.0, -0.3068528194, -5.0794415417], abs=1e-9
    )
    assert float(loss) == pytest.approx(2.1287647870, abs=1e-9)
    assert gradient == pytest.approx([-0.3333333333, -0.3333333333, -1.0], abs=1e-9)


def test_k3_by_hand() -> None:
    """r - 1 - log r with r = reference / policy = (2, 0.5, 1): 1 - ln 2, ln 2 - 0.5, 0."""
    reference = torch.tensor([[-1.0, -2.0, -3.0]], dtype=torch.float64)
    r = torch.tensor([[2.0, 0.5, 1.0]], dtype=torch.float64)
    logp = (reference - r.log()).requires_grad_()
    kl = kl_to_reference(logp, reference, torch.ones(1, 3, dtype=torch.bool))
    assert kl[0].tolist() == pytest.approx([0.3068528194, 0.1931471806, 0.0], abs=1e-9)
    (gradient,) = torch.autograd.grad(kl.sum(), logp)
    assert gradient[0].tolist() == pytest.approx([-1.0, 0.5, 0.0], abs=1e-9)


def test_the_kl_term_of_the_loss_by_hand() -> None:
    """The two trained tokens have k3 summing to 0.5: loss 0.1 x 0.5 / 2, whatever the third's."""
    reference = torch.tensor([[-1.0, -2.0, 9.0]], dtype=torch.float64)
    r = torch.tensor([[2.0, 0.5, 40.0]], dtype=torch.float64)
    logp = (reference - r.log()).requires_grad_()
    mask = (True, True, False)
    objective = Objective(kl=0.1)
    nothing, one = torch.zeros_like(reference), torch.ones_like(reference)
    terms = token_terms(
        objective, logp, logp.detach(), nothing, one, torch.tensor([mask]), reference
    )
    scales = torch.tensor(row_scales([make_row(mask=mask)], "token"), dtype=torch.float64)
    loss = loss_of(terms, scales, objective.kl)
    (gradient,) = torch.autograd.grad(loss, logp)
    assert float(loss.detach()) == pytest.approx(0.025, abs=1e-9)
    assert gradient[0].tolist() == pytest.approx([-0.05, 0.025, 0.0], abs=1e-9)


def test_the_weights_leave_the_kl_alone() -> None:
    """ICRL Eq. 6 weights the surrogate; a KL to the reference is not part of it."""
    logp = torch.tensor([[-1.0, -2.0, -3.0]], dtype=torch.float64)
    mask, one = torch.ones(1, 3, dtype=torch.bool), torch.ones_like(logp)
    kl = [
        token_terms(Objective(kl=0.1), logp, logp, one, weights, mask, logp - 0.5).kl
        for weights in (one, 2 * one, 0 * one)
    ]
    assert torch.equal(kl[0], kl[1])
    assert torch.equal(kl[0], kl[2])
    assert bool((kl[0] > 0).all())


def test_a_kl_term_without_a_reference_is_refused() -> None:
    logp = torch.zeros(1, 3)
    with pytest.raises(ValueError, match="reference"):
        token_terms(Objective(kl=0.1), logp, logp, logp, logp, torch.ones(1, 3, dtype=torch.bool))


def test_row_scales_by_hand() -> None:
    """LESSONS 10: one declared aggregation. Trained tokens 3, 1, 2, 0; episodes a, a, b, c."""
    rows = [
        make_row((7, 8, 9), episode="a"),
        make_row((7, 8, 9), mask=(False, True, False), episode="a"),
        make_row((7, 8), episode="b"),
        make_row((7, 8), mask=(False, False), episode="c"),
    ]
    assert row_scales(rows, "token")[:3] == pytest.approx([1 / 6, 1 / 6, 1 / 6])
    assert row_scales(rows, "row")[:3] == pytest.approx([1 / 9, 1 / 3, 1 / 6])
    assert row_scales(rows, "episode")[:3] == pytest.approx([1 / 8, 1 / 8, 1 / 4])


def test_rows_without_advantage_count_in_the_mean() -> None:
    """The mean runs over everything that was sampled, not over what happened to carry a signal."""
    rows = [make_row(), make_row(advantages=0.0)]
    assert row_scales(rows, "token") == pytest.approx([1 / 6, 1 / 6])
    assert row_scales(rows, "row") == pytest.approx([1 / 6, 1 / 6])


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_scales_of_batches_without_tokens_are_finite(aggregation: Aggregation) -> None:
    """LESSONS 17: an all-masked batch divides by 1, not by zero."""
    rows = [make_row(mask=(False, False, False)), make_row(())]
    assert all(math.isfinite(scale) for scale in row_scales(rows, aggregation))
    assert row_scales([], aggregation) == []


# Properties: a batch of rows with what the engine would know about each of their tokens


@dataclass(frozen=True)
class Sample:
    """A row and its tokens' log-probs under the policy being trained, before, and the reference."""

    row: Row
    logp: tuple[float, ...]
    old: tuple[float, ...]
    reference: tuple[float, ...]


def loss_and_gradient(
    samples: Sequence[Sample],
    objective: Objective,
    scales: Sequence[float] | None = None,
    width: int = 0,
    dtype: torch.dtype = torch.float64,
) -> tuple[float, list[list[float]]]:
    """The loss of one padded batch, and for every row the gradient of its tokens' log-probs.

    Args:
        scales: from the global batch where `samples` are only a part of it.
        width: pad to at least this; what is put there is rubbish on purpose.
    """
    rows = [sample.row for sample in samples]
    width = max([width, *(len(row.completion_ids) for row in rows)])

    def padded(values: Sequence[Sequence[float]], rubbish: float) -> Tensor:
        filled = [[*line, *[rubbish] * (width - len(line))] for line in values]
        return torch.tensor(filled, dtype=dtype).reshape(len(rows), width)

    logp = padded([s.logp for s in samples], -77.0).requires_grad_()
    old = padded([s.old for s in samples], -3.0)
    mask = padded([row.mask for row in rows], 0.0).bool()
    sampled = padded([row.logprobs for row in rows], 0.0)
    ratio = reconditioning_weights(old, sampled, mask, objective.weighting)
    again = torch.tensor([row.reconditioned for row in rows], dtype=torch.bool)[:, None]
    weights = padded([row.weights for row in rows], 5.0) * torch.where(again, ratio, 1.0)
    terms = token_terms(
        objective,
        logp,
        old,
        padded([row.advantages for row in rows], 123.0),
        weights,
        mask,
        padded([s.reference for s in samples], -0.1) if objective.kl else None,
    )
    scales = row_scales(rows, objective.aggregation) if scales is None else scales
    loss = loss_of(terms, torch.tensor(scales, dtype=dtype), objective.kl)
    (gradient,) = torch.autograd.grad(loss, logp)
    assert not bool(gradient[~mask].any()), "a token that is not trained has a gradient"
    lines = [gradient[b, : len(row.completion_ids)].tolist() for b, row in enumerate(rows)]
    return float(loss.detach()), lines


def assert_same(
    got: tuple[float, Sequence[Sequence[float]]], expected: tuple[float, Sequence[Sequence[float]]]
) -> None:
    assert got[0] == pytest.approx(expected[0], rel=1e-9, abs=1e-12)
    for line, wanted in zip(got[1], expected[1], strict=True):
        assert line == pytest.approx(wanted, rel=1e-9, abs=1e-12)


def numbers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_subnormal=False)


@st.composite
def sampled_rows(draw: st.DrawFn) -> Sample:
    token = st.tuples(
        st.booleans(), numbers(-4, 0), numbers(-2, 2), numbers(0, 2), *[numbers(-4, 0)] * 3
    )
    tokens = draw(st.lists(token, max_size=4))
    columns = list(zip(*tokens, strict=True)) if tokens else [()] * 7
    row = make_row(
        range(len(tokens)),
        sampled_prompt=draw(st.sampled_from([(1, 2), (1, 2, 3)])),
        mask=columns[0],
        logprobs=columns[1],
        advantages=columns[2],
        weights=columns[3],
        episode=draw(st.sampled_from(["a", "b", "c"])),
    )
    return Sample(row, *columns[4:])


batches = st.lists(sampled_rows(), min_size=1, max_size=5)
objectives = st.builds(
    Objective,
    loss=st.sampled_from(LOSSES),
    aggregation=st.sampled_from(AGGREGATIONS),
    weighting=st.builds(
        Weighting,
        kind=st.sampled_from(KINDS),
        cap=st.sampled_from([2.0, None]),
    ),
    kl=st.sampled_from([0.0, 0.1]),
)
relaxed = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])


@relaxed
@given(samples=batches, objective=objectives, extra=st.integers(1, 5))
def test_the_width_of_the_padding_changes_nothing(
    samples: list[Sample], objective: Objective, extra: int
) -> None:
    """LESSONS 18: nor does what stands in it."""
    width = max(len(sample.row.completion_ids) for sample in samples) + extra
    assert_same(
        loss_and_gradient(samples, objective, width=width), loss_and_gradient(samples, objective)
    )


@relaxed
@given(samples=batches, objective=objectives, cut=st.integers(0, 5))
def test_micro_batches_sum_to_the_whole_batch(
    samples: list[Sample], objective: Objective, cut: int
) -> None:
    """LESSONS 18: gradient accumulation changes neither the loss nor the gradient."""
    scales = row_scales([sample.row for sample in samples], objective.aggregation)
    parts = [
        loss_and_gradient(samples[of], objective, scales[of])
        for of in (slice(0, cut), slice(cut, None))
        if samples[of]
    ]
    alone = [loss_and_gradient([s], objective, [c]) for s, c in zip(samples, scales, strict=True)]
    whole = loss_and_gradient(samples, objective)
    for split in (parts, alone):
        gradients = [line for _, lines in split for line in lines]
        assert_same((sum(loss for loss, _ in split), gradients), whole)


@relaxed
@given(
    samples=batches,
    objective=objectives,
    copies=st.integers(1, 3),
    place=st.integers(0, 5),
    episode=st.sampled_from(["a", "dummy"]),
    length=st.integers(0, 6),
)
def test_dummy_rows_change_nothing(
    samples: list[Sample],
    objective: Objective,
    copies: int,
    place: int,
    episode: str,
    length: int,
) -> None:
    """LESSONS 10: adding a row without trained tokens, or doubling it, is not a weight."""
    row = make_row(range(length), mask=(False,) * length, advantages=9.0, episode=episode)
    dummy = Sample(row, (-5.0,) * length, (-0.5,) * length, (-3.0,) * length)
    place = min(place, len(samples))
    loss, gradient = loss_and_gradient(
        samples[:place] + [dummy] * copies + samples[place:], objective
    )
    assert gradient[place : place + copies] == [[0.0] * length] * copies
    del gradient[place : place + copies]
    assert_same((loss, gradient), loss_and_gradient(samples, objective))


@relaxed
@given(samples=batches, objective=objectives, seed=st.integers(0, 2**16))
def test_the_order_of_the_rows_changes_nothing(
    samples: list[Sample], objective: Objective, seed: int
) -> None:
    order = list(range(len(samples)))
    random.Random(seed).shuffle(order)
    loss, gradient = loss_and_gradient(samples, objective)
    shuffled = loss_and_gradient([samples[i] for i in order], objective)
    assert_same(shuffled, (loss, [gradient[i] for i in order]))


@relaxed
@given(samples=batches, objective=objectives)
def test_without_weights_the_loss_of_icrl_is_that_of_grpo(
    samples: list[Sample], objective: Objective
) -> None:
    """w_t = 1 makes Eq. 6 Eq. 2: no reweighting and no re-conditioned rows are the same batch."""
    plain = [replace(s, row=replace(s.row, sampled_context=s.row.trained_context)) for s in samples]
    unweighted = replace(objective, weighting=Weighting("none"))
    got = loss_and_gradient(samples, unweighted)
    assert got == loss_and_gradient(plain, unweighted)
    # and whatever the weighting, rows that were not re-conditioned are not weighted
    assert got == loss_and_gradient(plain, objective)


@relaxed
@given(samples=batches, objective=objectives)
def test_equal_probabilities_under_both_prompts_make_icrl_grpo(
    samples: list[Sample], objective: Objective
) -> None:
    """A critique that moves no probability gives w_t = 1 by Eq. 4 itself."""
    objective = replace(objective, weighting=Weighting("ratio"))
    unmoved = [replace(s, row=replace(s.row, logprobs=s.old)) for s in samples]
    plain = [replace(s, row=replace(s.row, sampled_context=s.row.trained_context)) for s in samples]
    assert_same(loss_and_gradient(unmoved, objective), loss_and_gradient(plain, objective))


def test_a_reconditioned_row_is_weighted_and_another_is_not() -> None:
    """The probabilities of Eq. 4 by hand: ratios 1.5, 0.25 and 6, the last capped at 2."""
    old = tuple(math.log(p) for p in (0.3, 0.2, 0.6))
    sampled = tuple(math.log(p) for p in (0.2, 0.8, 0.1))
    plain = Sample(make_row(logprobs=sampled), old, old, old)
    again = Sample(make_row(logprobs=sampled, sampled_prompt=(1, 2, 3)), old, old, old)
    loss, gradient = loss_and_gradient([plain, again], Objective())
    assert loss == pytest.approx(-1.125)
    assert gradient[0] == pytest.approx([-0.1666666667] * 3)
    assert gradient[1] == pytest.approx([-0.25, -0.0416666667, -0.3333333333])


@relaxed
@given(sample=sampled_rows(), objective=objectives)
def test_weights_fold_into_advantages_exactly(sample: Sample, objective: Objective) -> None:
    """For w >= 0: w min(rho A, clip(rho) A) is the surrogate of the advantage w A.

    So an engine that takes one advantage a token needs no other channel for the weights.
    """
    row = sample.row
    folded = tuple(w * a for w, a in zip(row.weights, row.advantages, strict=True))
    ones = (1.0,) * len(folded)
    plain = replace(objective, weighting=Weighting("none"))
    assert_same(
        loss_and_gradient(
            [replace(sample, row=replace(row, advantages=folded, weights=ones))], plain
        ),
        loss_and_gradient([sample], plain),
    )
    logp, old, advantages, weights = (
        torch.tensor([values], dtype=torch.float64)
        for values in (sample.logp, sample.old, row.advantages, row.weights)
    )
    mask = torch.tensor([row.mask], dtype=torch.bool)
    bare = replace(objective, kl=0.0)
    outside = weights * token_terms(bare, logp, old, advantages, 1 + 0 * weights, mask).surrogate
    inside = token_terms(bare, logp, old, advantages, weights, mask).surrogate
    torch.testing.assert_close(inside, outside, rtol=1e-12, atol=1e-12)


@relaxed
@given(samples=batches, objective=objectives)
def test_before_the_first_update_the_loss_is_minus_the_weighted_mean_advantage(
    samples: list[Sample], objective: Objective
) -> None:
    """With pi = pi_old every ratio is 1: nothing is clipped, and d loss / d log p = -w A scale."""
    objective = replace(objective, loss="clip", weighting=Weighting("none"), kl=0.0)
    fresh = [replace(s, logp=s.old) for s in samples]
    scales = row_scales([s.row for s in fresh], objective.aggregation)
    expected = [
        [-m * w * a * scale for m, w, a in zip(r.mask, r.weights, r.advantages, strict=True)]
        for r, scale in zip((s.row for s in fresh), scales, strict=True)
    ]
    assert_same(
        loss_and_gradient(fresh, objective), (sum(sum(line) for line in expected), expected)
    )


# Degenerate batches, in the precision of training


def sample_of(
    logp: Sequence[float],
    old: Sequence[float],
    reference: Sequence[float],
    mask: Sequence[bool] | None = None,
    advantages: Sequence[float] | float = 1.0,
    logprobs: Sequence[float] | None = None,
) -> Sample:
    row = make_row(
        range(len(logp)),
        sampled_prompt=(1, 2, 3),
        mask=mask,
        advantages=advantages,
        logprobs=logprobs,
    )
    return Sample(row, tuple(logp), tuple(old), tuple(reference))


BAD = (-math.inf, math.inf, math.nan)
DEGENERATE: dict[str, list[Sample]] = {
    "tokens of no probability": [sample_of([-1e4] * 3, [-1e4] * 3, [-1e4] * 3)],
    "tokens that lost all probability": [sample_of([-1e4] * 3, [-0.1] * 3, [-0.1] * 3)],
    "huge ratios, A > 0": [sample_of([-0.1] * 3, [-1e4] * 3, [-1e4] * 3)],
    "huge ratios, A < 0": [sample_of([-0.1] * 3, [-1e4] * 3, [-1e4] * 3, advantages=-1.0)],
    "huge ratios both ways": [
        sample_of([-0.1, -1e4, -1.0], [-1e4, -0.1, -1.0], [-1e4, -0.1, -1.0])
    ],
    "a sampler that gave no probability": [
        sample_of([-1.0] * 3, [-1.0] * 3, [-1.0] * 3, logprobs=[-1e4] * 3)
    ],
    "all rows masked": [
        sample_of([-1.0] * 3, [-2.0] * 3, [-3.0] * 3, mask=[False] * 3) for _ in range(2)
    ],
    "infinities and NaN under the mask": [
        sample_of(BAD, BAD, BAD, mask=[False] * 3, logprobs=BAD),
        sample_of([-1.0, *BAD[1:]], [-1.0, *BAD[1:]], [-1.0, *BAD[1:]], mask=[True, False, False]),
    ],
    "infinite and NaN advantages under the mask": [
        sample_of(
            [-1.0] * 3, [-2.0] * 3, [-3.0] * 3, [True, False, False], [1, -math.inf, math.nan]
        )
    ],
    "rows of one token": [sample_of([-1.0], [-1.5], [-1.0]), sample_of([-1e4], [-1.5], [-1.0])],
    "an empty completion among others": [sample_of([], [], []), sample_of([-1.0], [-1.5], [-1.0])],
    "only empty completions": [sample_of([], [], []), sample_of([], [], [])],
}


@pytest.mark.parametrize("case", DEGENERATE)
@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_of_degenerate_batches_are_finite(case: str, loss: LossKind) -> None:
    """LESSONS 17: mask before exp, clamp log-ratios, denominators >= 1; look at the gradients."""
    samples = DEGENERATE[case]
    for kind, aggregation in product(KINDS, AGGREGATIONS):
        weighting = Weighting(kind, cap=None)
        objective = Objective(loss, aggregation=aggregation, weighting=weighting, kl=0.1)
        value, gradient = loss_and_gradient(samples, objective, dtype=torch.float32)
        assert math.isfinite(value), objective
        assert all(math.isfinite(slope) for line in gradient for slope in line), objective
        if not any(sample.row.trained_tokens for sample in samples):
            assert value == 0.0, objective
            assert not any(slope for line in gradient for slope in line), objective


@relaxed
@given(
    tokens=st.lists(
        st.tuples(
            st.booleans(),
            st.sampled_from([-1.0, 0.0, 1.0]),
            *[st.sampled_from([0.0, -1e-7, -1.0, -19.0, -21.0, -88.0, -90.0, -1e4])] * 4,
        ),
        max_size=5,
    ),
    objective=objectives,
)
def test_gradients_are_finite_whatever_the_probabilities(
    tokens: list[tuple[bool, float, float, float, float, float]], objective: Objective
) -> None:
    """LESSONS 17: in fp32 e^-88 and e^88 are the last powers, and no combination passes them."""
    columns = list(zip(*tokens, strict=True)) if tokens else [()] * 6
    mask, advantages, logprobs, logp, old, reference = columns
    sample = sample_of(logp, old, reference, mask, advantages, logprobs)
    value, gradient = loss_and_gradient([sample], objective, dtype=torch.float32)
    assert math.isfinite(value)
    assert all(math.isfinite(slope) for slope in gradient[0])
