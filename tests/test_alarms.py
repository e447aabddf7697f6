"""Alarms: told when they should be, and not otherwise."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inwit.alarms import PARITY, SILENCE, WINDOW, alarms


def history(sizes: list[float | None], **last: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"critic/size": size} for size in sizes]
    found[-1] |= last
    return found


def test_nothing_is_said_of_a_healthy_run():
    assert alarms(history([4.0] * 20, parity=1e-6), exact=True) == {}


# ---------------------------------------------------------------------- the critic


def test_a_critic_that_falls_silent_is_told_with_what_its_revisions_do():
    line = {"success/revision": 0.125}
    found = alarms(history([8.0] * 5 + [3.0] * 4 + [1.0] * 5, **line), exact=True)
    assert set(found) == {"silent critic"}
    message = found["silent critic"]
    assert "shrank from 8.0 to 1.0" in message
    assert "revisions succeed at 12.5%" in message
    assert "length_penalty" in message


def test_without_revisions_the_message_stands_alone():
    found = alarms(history([8.0] * 5 + [1.0] * 5, **{"success/revision": None}), exact=True)
    assert "shrank from 8.0 to 1.0" in found["silent critic"]
    assert "succeed" not in found["silent critic"]


@pytest.mark.parametrize(
    "sizes",
    [
        [8.0] * 5 + [1.0] * 4,  # too few steps to compare
        [8.0] * 5 + [3.0] * 5,  # shorter, not silent
        [1.0] * 5 + [8.0] * 5,
        [0.0] * 10,  # was never heard
        [8.0] * 9 + [0.0],  # one quiet step
        [8.0] * 5 + [0.5] * 5 + [8.0] * 5,  # it was silent, and is not any more
        [None] * 30,
    ],
)
def test_no_false_alarm_about_the_critic(sizes):
    assert alarms(history(sizes), exact=True) == {}


def test_steps_without_a_critique_are_no_silence():
    """An absent number is not a zero: where nothing failed, nobody was criticised."""
    healthy = history([4.0] * 5 + [None] * 40 + [4.0] * 5)
    assert alarms(healthy, exact=True) == {}
    silent = history([4.0, None] * 5 + [None] * 20 + [0.5, None] * 5)
    assert set(alarms(silent, exact=True)) == {"silent critic"}


@given(st.floats(0.1, 100), st.floats(0, 1))
@settings(deadline=None)
def test_the_line_between_quiet_and_silent(before, share):
    now = before * share
    found = alarms(history([before] * WINDOW + [now] * WINDOW), exact=True)
    if share < SILENCE * 0.999:
        assert found
    if share > SILENCE * 1.001:
        assert not found


# ---------------------------------------------------------------------- parity


@pytest.mark.parametrize("gap", [None, 0.0, 1e-6, PARITY])
def test_a_small_gap_is_none(gap):
    assert alarms(history([1.0], parity=gap), exact=True) == {}


def test_sampler_and_learner_that_differ_are_told():
    """LESSONS 15: the bound on the difference of log-probs is watched at every step."""
    found = alarms(history([1.0], parity=3e-3), exact=True)
    assert set(found) == {"parity"}
    assert "3.00e-03 nats" in found["parity"]
    assert "1e-04" in found["parity"]


def test_parity_is_of_the_newest_step_and_of_exact_arithmetic_only():
    lines = [{"parity": 1.0}, {"parity": 0.0}]
    assert alarms(lines, exact=True) == {}
    assert alarms(lines[:1], exact=False) == {}


def test_two_alarms_at_once():
    found = alarms(history([8.0] * 5 + [1.0] * 5, parity=1.0), exact=True)
    assert set(found) == {"silent critic", "parity"}


def test_weights_that_leave_little_in_effect():
    """LESSONS 1: a collapse of the effective sample size is said while it happens."""
    assert "effective sample" in alarms([{"effective_share": 0.05}], exact=True)
    assert alarms([{"effective_share": 0.5}], exact=True) == {}
    assert alarms([{"effective_share": None}], exact=True) == {}
