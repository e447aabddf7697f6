"""Finding and comparing short answers in text: numbers as numbers, words without fuss.

Pure, quick, and for answers that are a number or a few words. Mathematics proper needs a parser.
"""

from __future__ import annotations

import re
import string
from fractions import Fraction

MARKER = re.compile(r"answer\s*(?:is|:|=)\s*(.+)", re.IGNORECASE)
NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:\s*/\s*\d+)?|[-+]?\.\d+")


def final_answer(text: str) -> str:
    """What follows the last `Answer:` (or `answer is`) in its line; else the last line."""
    if found := MARKER.findall(text):
        return str(found[-1]).strip()
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


def as_number(text: str) -> Fraction | None:
    """The last number in the text; None if there is none. `1,200`, `-0.5` and `3/4` are numbers."""
    found = NUMBER.findall(text)
    if not found:
        return None
    try:
        return Fraction(re.sub(r"[,\s]", "", found[-1]))
    except ZeroDivisionError:
        return None


def normalised(text: str) -> str:
    """Lower case, without punctuation, articles and double spaces (the usual QA normalisation)."""
    bare = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def same_answer(given: str, gold: str) -> bool:
    """Whether `given` answers `gold`: an equal number where gold is one, else equal words."""
    answer = final_answer(given)
    wanted = NUMBER.fullmatch(gold.strip())
    if wanted:
        number = as_number(answer)
        return number is not None and number == as_number(gold)
    return bool(normalised(gold)) and normalised(answer) == normalised(gold)
