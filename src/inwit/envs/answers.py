"""Finding and comparing short answers in text: numbers as numbers, words without fuss.

Pure, quick, and for answers that are a number or a few words. Mathematics proper needs a parser.
"""

from __future__ import annotations

import re
import string
from fractions import Fraction

MARKER = re.compile(r"answer\s*(?:is|:|=)\s*(.+)", re.IGNORECASE)
SIGN = r"(?:(?<!\w)[-+−])?"
"""Glued to a word or number before it (`10-12`, `U-235`), a dash is no sign."""
DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
NUMBER = re.compile(rf"{SIGN}{DIGITS}(?:\s*/\s*{DIGITS})?|{SIGN}\.\d+")
FORMULA = re.compile(r"[-+*/^=<>|&]\s|[+*/^=<>|]|\d[-!]|^-")
"""Signs whose loss would make another answer of it: operators, and a dash that may be minus."""


def final_answer(text: str) -> str:
    """What follows the last `Answer:` (or `answer is`) in its line; else the last line."""
    if found := MARKER.findall(text):
        return str(found[-1]).strip()
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


def as_number(text: str) -> Fraction | None:
    """The last number in the text; None if there is none. `1,200`, `-0.5` and `3/4` are numbers."""
    found = NUMBER.findall(text)
    return _value(found[-1]) if found else None


def _value(written: str) -> Fraction | None:
    above, _, below = re.sub(r"[,\s]", "", written).replace("−", "-").partition("/")
    try:
        return Fraction(above) / Fraction(below or 1)
    except (ValueError, ZeroDivisionError):  # thousands of digits, or nothing to divide by
        return None


def normalised(text: str) -> str:
    """Lower case, without punctuation, articles and double spaces (the usual QA normalisation)."""
    bare = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def same_answer(given: str, gold: str) -> bool:
    """Whether `given` answers `gold`: an equal number where gold is one, else equal words.

    Punctuation is left out of words only where it says nothing: $1.50 is not $150, and in a formula
    every sign counts.
    """
    answer = final_answer(given)
    number = as_number(gold) if NUMBER.fullmatch(gold.strip()) else None
    if number is not None:
        return as_number(answer) == number
    if FORMULA.search(gold):
        return _squeezed(answer) == _squeezed(gold)
    same_words = bool(normalised(gold)) and normalised(answer) == normalised(gold)
    return same_words and _numbers(answer) == _numbers(gold)


def short_answer(given: str, gold: str) -> str:
    """What `given` answers, written so that equal answers are equal texts.

    Gold decides only how: as a number where it is one, else as words.
    """
    answer = final_answer(given)
    if NUMBER.fullmatch(gold.strip()):
        number = as_number(answer)
        if number is not None:
            return str(number)
        return _squeezed(answer) if NUMBER.search(answer) else normalised(answer)
    if FORMULA.search(gold):
        return _squeezed(answer)
    return " ".join([normalised(answer), *map(str, _numbers(answer))])


def _squeezed(text: str) -> str:
    return "".join(text.lower().split()).rstrip(".")


def _numbers(text: str) -> list[Fraction | None]:
    return [_value(written) for written in NUMBER.findall(text)]
