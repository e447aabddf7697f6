"""Alarms: what a person wants to be told while a run is going. Pure, over its metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

WINDOW = 5
SILENCE = 0.25
PARITY = 1e-4
EFFECTIVE = 0.1

Line = Mapping[str, Any]


def alarms(history: Sequence[Line], *, exact: bool) -> dict[str, str]:
    """Kind -> message, about the newest step in `history` (training lines only, oldest first).

    Args:
        exact: whether sampler and learner compute in fp32, where their log-probs must agree.
    """
    found = {
        "silent critic": _silent_critic(history),
        "parity": _parity(history[-1]) if exact else None,
        "effective sample": _effective(history[-1]),
    }
    return {kind: message for kind, message in found.items() if message}


def _silent_critic(history: Sequence[Line]) -> str | None:
    sizes = [line["critic/size"] for line in history if line.get("critic/size") is not None]
    if len(sizes) < 2 * WINDOW:
        return None
    before, now = sum(sizes[:WINDOW]) / WINDOW, sum(sizes[-WINDOW:]) / WINDOW
    if before <= 0 or now > SILENCE * before:
        return None
    success = history[-1].get("success/revision")
    return (
        f"the critic is falling silent: critiques shrank from {before:.1f} to {now:.1f}, revisions "
        f"succeed at {success:.1%}. Lower method.length_penalty or raise method.delta_critic."
        if success is not None
        else f"the critic is falling silent: critiques shrank from {before:.1f} to {now:.1f}."
    )


def _effective(line: Line) -> str | None:
    share = line.get("effective_share")
    if share is None or share >= EFFECTIVE:
        return None
    return (
        f"re-conditioning weights leave {share:.0%} of the revisions' tokens in effect: critiques "
        "lead where the solver alone does not go. Lower method.w_max, or see weight_mean."
    )


def _parity(line: Line) -> str | None:
    gap = line.get("parity")
    if gap is None or gap <= PARITY:
        return None
    return f"sampler and learner differ by {gap:.2e} nats on a token; {PARITY:.0e} is the limit."
