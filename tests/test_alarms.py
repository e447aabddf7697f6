"""Alarms: told when they should be, and not otherwise."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inwit.alarms import EDITS, FALL, PARITY, SILENCE, WINDOW, alarms


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


# ---------------------------------------------------------------------- second answers


def lines_of(n: int = WINDOW, **columns: tuple[float | None, float | None]) -> list[dict[str, Any]]:
    """n steps with the first value of each column, and then n with the second."""
    names = {
        "shaped": "reward/shaped",
        "first": "success/first",
        "edited": "again/edited",
        "delta": "again/delta",
    }
    return [{names[k]: v[i] for k, v in columns.items()} for i in (0, 1) for _ in range(n)]


def raised(history: list[dict[str, Any]]) -> set[str]:
    return set(alarms(history, exact=True))


def test_failing_first_on_purpose_is_told():
    """LESSONS 4: the shaped reward rises while first attempts fall: the bonus is being farmed."""
    found = alarms(lines_of(first=(0.5, 0.2), shaped=(0.1, 2.5)), exact=True)
    assert set(found) == {"failing on purpose"}
    message = found["failing on purpose"]
    assert "fell from 50.0% to 20.0%" in message
    assert "rose from 0.10 to 2.50" in message
    assert "later turn only" in message
    assert "method.alpha" in message


@pytest.mark.parametrize(
    "columns",
    [
        {"first": (0.5, 0.2), "shaped": (1.0, 0.5)},  # both fall: it is unlearning, not farming
        {"first": (0.5, 0.2), "shaped": (1.0, 1.0)},
        {"first": (0.2, 0.5), "shaped": (0.1, 2.5)},  # both rise: as it should be
        {"first": (0.5, 0.5), "shaped": (0.1, 2.5)},
        {"first": (0.5, 0.5 - FALL / 2), "shaped": (0.1, 2.5)},  # a wobble
        {"first": (0.5, 0.2)},  # a method without a shaped reward
        {"first": (0.5, 0.2), "shaped": (None, None)},
        {"first": (None, None), "shaped": (0.1, 2.5)},
        {"shaped": (0.1, 2.5)},
    ],
)
def test_no_false_alarm_about_failing_on_purpose(columns):
    """LESSONS 4: nothing is said where first attempts hold, or nothing is gained by failing."""
    assert raised(lines_of(**columns)) == set()


def test_failing_on_purpose_needs_two_whole_windows():
    """LESSONS 4: a noisy step, or a stage just begun, accuses nobody."""
    history = lines_of(first=(0.5, 0.2), shaped=(0.1, 2.5))
    assert raised(history[1:]) == raised(history[:-1]) == set()
    assert raised(history) == {"failing on purpose"}
    calm = lines_of(first=(0.5, 0.5), shaped=(0.1, 0.1))
    calm[-1] |= {"success/first": 0.3, "reward/shaped": 5.0}
    assert raised(calm) == set()
    recovered = [*history, *lines_of(first=(0.5, 0.5), shaped=(2.5, 2.5))]
    assert raised(recovered) == set()


@given(st.floats(0, 1), st.floats(0, 1), st.floats(-11, 11), st.floats(-11, 11))
@settings(deadline=None)
def test_the_line_between_falling_and_wobbling(before, now, poor, rich):
    """LESSONS 4: told if and only if first attempts fell and the shaped reward rose."""
    history = lines_of(first=(before, now), shaped=(poor, rich))
    told = "failing on purpose" in raised(history)
    if before - now > FALL + 1e-6 and rich > poor + 1e-6:
        assert told
    if before - now < FALL - 1e-6 or rich < poor - 1e-6:
        assert not told


def test_second_answers_that_only_repeat_are_told():
    found = alarms(lines_of(edited=(0.4, 0.0), first=(0.3, 0.3)), exact=True)
    assert set(found) == {"no correction"}
    message = found["no correction"]
    assert "0.0% changed" in message
    assert "70.0% of the first are wrong" in message
    assert "stage I" in message


def test_second_answers_that_always_change_are_told():
    found = alarms(lines_of(edited=(0.4, 1.0), first=(0.3, 0.3)), exact=True)
    assert set(found) == {"only correction"}
    message = found["only correction"]
    assert "100.0% changed" in message
    assert "30.0% of the first are right" in message


@pytest.mark.parametrize(
    "columns",
    [
        {"edited": (0.4, 0.4), "first": (0.3, 0.3)},
        {"edited": (0.0, 0.4), "first": (0.3, 0.3)},  # it began so, and learned better
        {"edited": (1.0, 0.4), "first": (0.3, 0.3)},
        {"edited": (0.4, 2 * EDITS), "first": (0.3, 0.3)},  # seldom is not never
        {"edited": (0.4, 1 - 2 * EDITS), "first": (0.3, 0.3)},
        {"edited": (0.4, 0.0), "first": (0.9, 1.0)},  # there is nothing left to correct
        {"edited": (0.4, 1.0), "first": (0.1, 0.0)},  # everything needs changing
        {"edited": (None, None), "first": (0.3, 0.3)},  # nobody is asked again
        {"edited": (0.0, 0.0), "first": (None, None)},
        {"edited": (1.0, 1.0)},
        {"first": (0.3, 0.3)},
    ],
)
def test_no_false_alarm_about_second_answers(columns):
    assert raised(lines_of(**columns)) == set()


def test_second_answers_are_judged_over_windows():
    for edited, kind in ((0.0, "no correction"), (1.0, "only correction")):
        history = lines_of(edited=(0.4, edited), first=(0.3, 0.3))
        assert raised(history) == {kind}
        assert raised(history[:-1]) == raised(history[1:]) == set()
        assert raised([*history[:-1], history[0]]) == set()  # one step that is otherwise


def test_what_is_wrong_with_second_answers_is_told_together():
    history = lines_of(edited=(0.5, 1.0), first=(0.5, 0.2), shaped=(0.0, 2.0))
    assert raised(history) == {"failing on purpose", "only correction"}
