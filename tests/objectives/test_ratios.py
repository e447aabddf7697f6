"""Weights of re-conditioned rows: ICRL Eq. 4 and its ablations, by hand and at the edges."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inwit.objectives import Weighting, effective_sample_share, reconditioning_weights
from inwit.objectives.ratios import LOG_RATIO_LIMIT, WeightKind, log_ratio

relaxed = settings(deadline=None, max_examples=50)
KINDS: tuple[WeightKind, ...] = ("ratio", "none", "shaped", "sequence")


def logs(*probabilities: float) -> Tensor:
    return torch.tensor([probabilities], dtype=torch.float64).log()


def everywhere(values: Tensor) -> Tensor:
    return torch.ones_like(values, dtype=torch.bool)


# p(y_t | training prompt) and p(y_t | sampling prompt) of three tokens: ratios 1.5, 0.25, 6
TRAINED, SAMPLED = logs(0.3, 0.2, 0.6), logs(0.2, 0.8, 0.1)


@pytest.mark.parametrize(
    ("weighting", "expected"),
    [
        (Weighting(), (1.5, 0.25, 2.0)),
        (Weighting("ratio", cap=1.2), (1.2, 0.25, 1.2)),
        (Weighting("ratio", cap=None), (1.5, 0.25, 6.0)),
        (Weighting("none"), (1.0, 1.0, 1.0)),
        (Weighting("none", cap=0.5), (1.0, 1.0, 1.0)),
        (Weighting("shaped"), (0.75, 0.6666666667, 0.8571428571)),
        (Weighting("shaped", gamma=0.2), (0.6, 0.5, 0.75)),
        (Weighting("shaped", cap=0.7), (0.7, 0.6666666667, 0.7)),
        (Weighting("sequence", cap=None), (2.25, 2.25, 2.25)),
        (Weighting("sequence"), (2.0, 2.0, 2.0)),
    ],
    ids=repr,
)
def test_three_tokens_by_hand(weighting: Weighting, expected: tuple[float, ...]) -> None:
    got = reconditioning_weights(TRAINED, SAMPLED, everywhere(TRAINED), weighting)
    assert got[0].tolist() == pytest.approx(expected, abs=1e-9)


def test_the_papers_defaults() -> None:
    assert (Weighting().kind, Weighting().cap) == ("ratio", 2.0)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("ratio", (1.5, 1.0, 6.0)),
        ("none", (1.0, 1.0, 1.0)),
        ("shaped", (0.75, 1.0, 0.8571428571)),
        ("sequence", (9.0, 1.0, 9.0)),
    ],
)
def test_the_middle_token_masked_out(kind: WeightKind, expected: tuple[float, ...]) -> None:
    """LESSONS 11: an observation between two sampled spans neither gets nor changes a weight."""
    mask = torch.tensor([[True, False, True]])
    got = reconditioning_weights(TRAINED, SAMPLED, mask, Weighting(kind, cap=None))
    assert got[0].tolist() == pytest.approx(expected, abs=1e-9)


def test_sequence_weights_are_of_each_row_alone() -> None:
    trained = torch.cat((logs(0.5, 0.5), logs(0.1, 0.4)))
    sampled = torch.cat((logs(0.25, 0.5), logs(0.4, 0.2)))
    got = reconditioning_weights(trained, sampled, everywhere(trained), Weighting("sequence"))
    assert got.flatten().tolist() == pytest.approx([2.0, 2.0, 0.5, 0.5], abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_carry_no_gradient(kind: WeightKind) -> None:
    """The weight of Eq. 4 is a constant of the update, even if the log-probs are the live ones."""
    live = TRAINED.clone().requires_grad_()
    got = reconditioning_weights(live, SAMPLED, everywhere(live), Weighting(kind))
    assert not got.requires_grad


@pytest.mark.parametrize("kind", KINDS)
@relaxed
@given(
    tokens=st.lists(
        st.tuples(
            st.sampled_from([0.0, -1e-8, -0.5, -30.0, -1e4]),
            st.sampled_from([0.0, -1e-8, -0.5, -30.0, -1e4]),
            st.booleans(),
        ),
        max_size=6,
    ),
    cap=st.sampled_from([0.5, 1.0, 2.0, None]),
)
def test_weights_are_finite_bounded_and_1_where_masked_out(
    kind: WeightKind, tokens: list[tuple[float, float, bool]], cap: float | None
) -> None:
    """LESSONS 17: log-ratios are masked and clamped before exp, so nothing overflows in fp32."""
    trained = torch.tensor([[t for t, _, _ in tokens]])
    sampled = torch.tensor([[s for _, s, _ in tokens]])
    mask = torch.tensor([[m for _, _, m in tokens]], dtype=torch.bool)
    got = reconditioning_weights(trained, sampled, mask, Weighting(kind, cap=cap))
    assert bool(got.isfinite().all())
    assert bool((got >= 0).all())
    assert bool((got[~mask] == 1).all())
    if cap is not None and kind != "none":
        assert bool((got[mask] <= cap).all())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rubbish", [-math.inf, math.inf, math.nan])
def test_what_stands_under_the_mask_is_never_read(kind: WeightKind, rubbish: float) -> None:
    """LESSONS 17: padding may hold anything."""
    mask = torch.tensor([[True, False, True]])
    weighting = Weighting(kind)
    expected = reconditioning_weights(TRAINED, SAMPLED, mask, weighting)
    trained = torch.where(mask, TRAINED, rubbish)
    sampled = torch.where(mask, SAMPLED, rubbish)
    assert torch.equal(reconditioning_weights(trained, sampled, mask, weighting), expected)


@relaxed
@given(
    trained=st.lists(st.floats(-8, 0), min_size=1, max_size=6),
    shift=st.floats(0, 3, allow_subnormal=False),
)
def test_equal_contexts_give_weight_1_and_what_leans_on_the_critique_less(
    trained: list[float], shift: float
) -> None:
    under_query = torch.tensor([trained], dtype=torch.float64)
    mask = everywhere(under_query)
    for kind in ("ratio", "sequence"):
        weighting = Weighting(kind, cap=None)
        same = reconditioning_weights(under_query, under_query, mask, weighting)
        assert torch.equal(same, torch.ones_like(same))
        rarer = reconditioning_weights(under_query, under_query + shift, mask, weighting)
        assert bool((rarer <= 1).all())


def test_log_ratio_by_hand_and_its_clamp() -> None:
    new = torch.tensor([[-1.0, -1.0, -1e4, -0.5]], dtype=torch.float64)
    old = torch.tensor([[-1.5, -9.0, -1.0, -1e4]], dtype=torch.float64)
    mask = torch.tensor([[True, False, True, True]])
    assert log_ratio(new, old, mask).tolist() == [[0.5, 0.0, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT]]


def test_log_ratio_gradient_is_1_where_trained_and_0_elsewhere() -> None:
    """LESSONS 17: the gradient, not only the value, survives infinities under the mask."""
    new = torch.tensor([[-1.0, -math.inf, math.nan, -2.0]], requires_grad=True)
    old = torch.tensor([[-1.5, -math.inf, -1.0, -2.0]])
    mask = torch.tensor([[True, False, False, True]])
    (gradient,) = torch.autograd.grad(log_ratio(new, old, mask).exp().sum(), new)
    assert gradient[0].tolist() == pytest.approx([math.exp(0.5), 0.0, 0.0, 1.0])


@pytest.mark.parametrize(
    ("weights", "share"),
    [
        ((1.0, 1.0, 1.0, 1.0), 1.0),
        ((3.0, 3.0), 1.0),
        ((1.0, 0.0, 0.0, 0.0), 0.25),
        # (1.5 + 0.25 + 2)^2 / (3 x 6.3125)
        ((1.5, 0.25, 2.0), 0.7425742574),
        ((0.0, 0.0), 0.0),
        ((), 0.0),
    ],
)
def test_effective_sample_share_by_hand(weights: tuple[float, ...], share: float) -> None:
    assert effective_sample_share(torch.tensor(weights)) == pytest.approx(share, abs=1e-6)
