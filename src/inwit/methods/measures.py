"""What every step logs, from its episodes and rows: pure, the same for every method."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from inwit.rows import Attempt, Behaviour, Episode, Grade, Role, Row, Stop

Measures = dict[str, float | int | None]


def mean(values: Iterable[float]) -> float | None:
    """None where there is nothing to take the mean of: an absent number is not a zero."""
    found = list(values)
    return sum(found) / len(found) if found else None


def share(flags: Iterable[bool]) -> float | None:
    return mean(float(flag) for flag in flags)


def of_episodes(episodes: Sequence[Episode]) -> Measures:
    """Rewards, corrections, lengths and faults of one step. Errors count only as errors.

    `success/first` is the policy's alone; `success/first/base` that of first attempts which its
    reference made. `again/...` is of second thoughts without a critique, from an episode's first
    attempt to its last. `critic_gain` is the mean of s(revision) - s(attempt) over critiques;
    `survivors` the share of sessions that got a critique, which later rounds' numbers are
    conditioned on (LESSONS 9).
    """
    played = [e for e in episodes if e.attempts]
    attempts = [a for e in played for a in e.attempts]
    sound = [a for a in attempts if a.grade is not Grade.ERROR]
    firsts = [a for a in sound if a.index == 0 and _own(a)]
    lent = [a for a in sound if a.index == 0 and not _own(a)]
    revisions = [a for a in sound if a.index > 0]
    corrections = [
        (before, critique, after)
        for e in played
        for before, critique, after in e.corrections
        if Grade.ERROR not in (before.grade, after.grade)
    ]
    critiques = [c for e in played for c in e.critiques]
    again = [
        (e.first, e.attempts[-1])
        for e in played
        if e.revisions and not e.critiques and Grade.ERROR not in {a.grade for a in e.attempts}
    ]
    return {
        "reward/first": mean(a.reward for a in firsts),
        "reward/revision": mean(a.reward for a in revisions),
        "success/first": share(a.success for a in firsts),
        "success/first/base": share(a.success for a in lent),
        "success/revision": share(a.success for a in revisions),
        "critic/gain": mean(float(b.success) - float(a.success) for a, _, b in corrections),
        "critic/wrong_to_right": share(not a.success and b.success for a, _, b in corrections),
        "critic/right_to_wrong": share(a.success and not b.success for a, _, b in corrections),
        "again/delta": mean(float(b.success) - float(a.success) for a, b in again),
        "again/wrong_to_right": share(not a.success and b.success for a, b in again),
        "again/right_to_wrong": share(a.success and not b.success for a, b in again),
        "again/edited": share(a.answer != b.answer for a, b in again),
        "critic/tokens": mean(c.turn.sampled_tokens for c in critiques if c.turn.sampled_tokens),
        "critic/size": mean(c.size for c in critiques),
        "critic/count": len(critiques),
        "critic/truncated": share(c.turn.completion.stop is Stop.LENGTH for c in critiques),
        "survivors": share(bool(e.critiques) for e in played),
        "truncated": share(a.truncated for a in attempts),
        "errors": len(attempts) - len(sound),
        "error_share": share(a.grade is Grade.ERROR for a in attempts),
        "turns": mean(len(a.turns) for a in attempts),
        "tokens/attempt": mean(a.sampled_tokens for a in attempts),
        "tokens/sampled": sum(e.sampled_tokens for e in episodes),
    }


def _own(attempt: Attempt) -> bool:
    """Whether the policy made it, and not its reference."""
    return attempt.turns[0].behaviour is Behaviour.POLICY


def of_rows(rows: Sequence[Row]) -> Measures:
    """How much of the batch teaches anything, by role, and how large the groups are."""
    found: Measures = {"rows": len(rows), "rows/reconditioned": sum(r.reconditioned for r in rows)}
    for role in Role:
        mine = [row for row in rows if row.role is role]
        keys = sorted(str(row.group) for row in mine)
        found[f"zero_advantage/{role}"] = share(not row.signal for row in mine)
        found[f"group_size/{role}"] = mean(len(list(group)) for _, group in groupby(keys))
    return found
