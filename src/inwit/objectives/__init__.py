"""Advantages, ratios, losses: pure functions on tensors, nothing else."""

from inwit.objectives.advantages import by_group, group_normalised, leave_one_out
from inwit.objectives.losses import Objective, loss_of, row_scales, token_terms
from inwit.objectives.ratios import Weighting, effective_sample_share, reconditioning_weights

__all__ = [
    "Objective",
    "Weighting",
    "by_group",
    "effective_sample_share",
    "group_normalised",
    "leave_one_out",
    "loss_of",
    "reconditioning_weights",
    "row_scales",
    "token_terms",
]
