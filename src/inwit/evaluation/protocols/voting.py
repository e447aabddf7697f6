"""Majority votes over answers, for `parallel` and `sequential`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from inwit.evaluation.measures import sound
from inwit.evaluation.records import Answer


def elected(answers: Sequence[Answer]) -> Answer | None:
    """The answer that most gave; of equally frequent ones, the first. None where there is none.

    Answers that broke the grader have no vote.
    """
    valid = [a for a in answers if sound([a])]
    if not valid:
        return None
    votes = Counter(a.answer for a in valid)
    most = max(votes.values())
    return next(a for a in valid if votes[a.answer] == most)


def won(answers: Sequence[Answer]) -> list[bool]:
    """Whether the vote is right: one flag, or none where nobody voted."""
    winner = elected(answers)
    return [] if winner is None else [winner.right]
