"""Errors that a person can act on: what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InwitError(Exception):
    """A fault in the user's input or set-up. The command line prints it without a traceback.

    Args:
        what: what is wrong and where, one sentence.
        fix: what to do about it, one sentence; shown on its own line.
    """

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(f"{what}\n  {fix}" if fix else what)
        self.what = what
        self.fix = fix


class ForbiddenField(InwitError):
    """A prompt asked for something that its information condition does not allow it to show."""


class TooLong(InwitError):
    """A prompt leaves no room to answer within the context."""


class GroupError(InwitError):
    """Rewards of different queries or roles were about to share one baseline."""


def nearest(word: str, known: Iterable[str]) -> str:
    """`did you mean …?` for a mistyped name, or the list of known names where none is close."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f"Did you mean '{close[0]}'?" if close else f"Known: {', '.join(names)}."
