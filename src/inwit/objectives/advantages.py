"""Advantages: how good a sample was beside the others of its group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

Baseline = Callable[[Tensor], Tensor]


def group_normalised(rewards: Tensor, delta: float) -> Tensor:
    """(r - mean) / (std + delta) within one group: ICRL Eq. 5, GRPO section 2.2.

    Args:
        rewards: [G], the rewards of one query and one role.
        delta: added to the *unbiased* standard deviation, in units of reward. A tiny delta turns a
            mere difference of length into a full advantage where nothing else differs.

    Returns:
        [G]; zeros for a group of one or of equal rewards (no baseline, no signal).
    """
    if rewards.numel() < 2 or bool((rewards == rewards[0]).all()):
        return torch.zeros_like(rewards)
    return (rewards - rewards.mean()) / (rewards.std(correction=1) + delta)


def leave_one_out(rewards: Tensor) -> Tensor:
    """r_i minus the mean of the others: RLOO (Ahmadian et al. 2024, arXiv 2402.14740, Eq. 5).

    Args:
        rewards: [G]. Returns [G]; zeros for a group of one.
    """
    n = rewards.numel()
    if n < 2 or bool((rewards == rewards[0]).all()):
        return torch.zeros_like(rewards)
    return (rewards - rewards.mean()) * (n / (n - 1))


def by_group(
    rewards: Sequence[float], keys: Sequence[Hashable], baseline: Callable[[Hashable], Baseline]
) -> list[float]:
    """Apply to every group its baseline; the order of the samples changes nothing but the order.

    Args:
        rewards: one per sample.
        keys: one per sample; equal keys share a group.
        baseline: from a key to the function of that group's rewards.
    """
    members: dict[Hashable, list[int]] = defaultdict(list)
    for i, key in enumerate(keys):
        members[key].append(i)
    advantages = [0.0] * len(rewards)
    for key, indices in members.items():
        group = torch.tensor([rewards[i] for i in indices], dtype=torch.float64)
        for i, a in zip(indices, baseline(key)(group).tolist(), strict=True):
            advantages[i] = a
    return advantages
