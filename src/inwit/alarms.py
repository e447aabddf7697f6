"""Alarms: what a person wants to be told while a run is going. Pure, over its metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inwit.errors import InwitError
from inwit.recipe import TrainSettings

WINDOW = 5
SILENCE = 0.25
PARITY = 1e-4
EFFECTIVE = 0.1
FALL = 0.05
"""Of first attempts' accuracy, from the first window of a stage to the last."""

EDITS = 0.01
"""Second answers that change less often than this, or than this do not, have collapsed."""

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
        "failing on purpose": _failing_on_purpose(history),
        "no correction": _never_changed(history),
        "only correction": _always_changed(history),
    }
    return {kind: message for kind, message in found.items() if message}


def _silent_critic(history: Sequence[Line]) -> str | None:
    sizes = _ends(history, "critic/size")
    if sizes is None or sizes[0] <= 0 or sizes[1] > SILENCE * sizes[0]:
        return None
    before, now = sizes
    success = history[-1].get("success/revision")
    return (
        f"the critic is falling silent: critiques shrank from {before:.1f} to {now:.1f}, revisions "
        f"succeed at {success:.1%}. Lower method.length_penalty or raise method.delta_critic."
        if success is not None
        else f"the critic is falling silent: critiques shrank from {before:.1f} to {now:.1f}."
    )


def _failing_on_purpose(history: Sequence[Line]) -> str | None:
    """LESSONS 4: bonuses for mending can be earned by breaking first."""
    shaped, first = _ends(history, "reward/shaped"), _ends(history, "success/first")
    if shaped is None or first is None:
        return None
    if not (first[1] < first[0] - FALL and shaped[1] > shaped[0]):
        return None
    return (
        f"first attempts fell from {first[0]:.1%} to {first[1]:.1%} while the shaped reward rose "
        f"from {shaped[0]:.2f} to {shaped[1]:.2f}: the policy may be failing on purpose. Credit "
        "the bonus to the later turn only, or lower method.alpha."
    )


def _never_changed(history: Sequence[Line]) -> str | None:
    edited, first = _ends(history, "again/edited"), _ends(history, "success/first")
    if edited is None or first is None or edited[1] >= EDITS or first[1] > 1 - EDITS:
        return None
    return (
        f"second answers repeat the first ({edited[1]:.1%} changed, {1 - first[1]:.1%} of the "
        "first are wrong): correction has collapsed. A longer stage I or a larger method.alpha "
        "may bring it back."
    )


def _always_changed(history: Sequence[Line]) -> str | None:
    edited, first = _ends(history, "again/edited"), _ends(history, "success/first")
    if edited is None or first is None or edited[1] <= 1 - EDITS or first[1] < EDITS:
        return None
    return (
        f"second answers always differ from the first ({edited[1]:.1%} changed, {first[1]:.1%} of "
        "the first are right): nothing is verified before it is changed."
    )


def _ends(history: Sequence[Line], key: str) -> tuple[float, float] | None:
    """Means over the first and the last window; None where there are not two."""
    values = [line[key] for line in history if line.get(key) is not None]
    if len(values) < 2 * WINDOW:
        return None
    return sum(values[:WINDOW]) / WINDOW, sum(values[-WINDOW:]) / WINDOW


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


def stop_at_limits(line: Mapping[str, Any], limits: TrainSettings) -> None:
    """Raise InwitError at what must not go on: too many errors, too little left of the weights."""
    errors = line["error_share"]
    if errors is not None and errors > limits.max_error_share:
        raise InwitError(
            f"{errors:.0%} of the attempts of step {line['step']} could not be graded.",
            "See `feedback` in episodes.jsonl; train.max_error_share sets the limit.",
        )
    effective = line["effective_share"]
    if effective is not None and effective < limits.min_effective_share:
        raise InwitError(
            f"The re-conditioning weights of step {line['step']} leave an effective sample "
            f"share of {effective:.2f}.",
            "Lower method.w_max; train.min_effective_share sets the limit.",
        )
