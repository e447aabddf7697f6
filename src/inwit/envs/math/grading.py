"""Whether two final answers are equal: what a worker runs. It may take for ever, or all memory.

Lists, tuples, intervals, sets and unions are taken apart here, so that brackets and order count;
single expressions go to math-verify, whose alarms are off: the caller has a deadline.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from inwit.envs.math.texts import (
    LONGEST,
    SIX_DIGITS,
    balanced,
    plain,
    same_number,
    squeezed,
    tidy,
    words,
    wordy,
)

OPENING, CLOSING = "([{", ")]}"
NAMED = re.compile(
    r"(?P<name>[A-Za-z](?:[_^]\{?[^{}=<>]*\}?)?'?(?:\([A-Za-z,]+\))?|\\[A-Za-z]+\s*[A-Za-z]?"
    r"|(?:\\angle|\\triangle)\s*[A-Z ]+[_{}0-9]*|[A-Za-z]_\{[^=]*\}|m\\angle\s*[A-Z]+"
    r"|[A-Z]{2,3}(?==[^=]*\d))"
    r"=(?P<value>[^=<>]+)"
)
ELEMENT = re.compile(r"[A-Za-z](?:_\{[^{}]*\})?\s*\\in(?![A-Za-z])\s*(?P<set>.+)")
BASE = re.compile(r"(?P<digits>-?[0-9A-Za-z.]+)_\{(?P<base>\d+)\}")
CHOICE = re.compile(r"\(?([A-Z])\)?")
SINE_OF_T = re.compile(r"(\\(?:sin|cos|tan|cot|sec|csc|ln|log)(?:\^\{?\d\}?)?)\s*t(?![A-Za-z])")
"""math-verify's grammar does not read `\\sin t`, as it does `\\sin x`."""

APPROXIMATELY = re.compile(r"\\(?:approx|simeq)(?![A-Za-z])|≈")
EXACT = 1e-10
"""Relative difference of two exact numbers, evaluated, beyond which they are not equal."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """How far a number may be off: relative to gold, or by itself; None is no tolerance."""

    relative: float = 0.0
    absolute: float | None = None


def same(gold: str, answer: str, allowed: Allowed) -> bool:
    """Whether an answer equals the gold. It may run for ever: use it in a worker."""
    quick = same_at_sight(gold, answer, allowed)
    if quick is not None:
        return quick
    gold, *_ = sides(gold)
    given = sides(answer)
    answer = given[-1] if "." in gold else given[0]
    return _same(_apart(gold), _apart(answer), allowed)


def sides(answer: str) -> list[str]:
    """What stands around signs for `nearly equal`, or between signs of equality after a number:
    the exact value comes first."""
    first, *others = answer.split("=")
    chain = bool(others) and plain(tidy(first)) is not None
    parts = [first, *others] if chain else APPROXIMATELY.split(answer)
    return [part for part in parts if part.strip(" ${}\\")] or [answer]


def same_at_sight(gold: str, answer: str, allowed: Allowed) -> bool | None:
    """What can be said without a parser; None where one is needed. Linear in the texts."""
    if gold.strip() == answer.strip():
        return True
    if not answer.strip() or max(len(gold), len(answer)) > LONGEST or not balanced(answer):
        return False
    a, b = tidy(gold), tidy(answer)
    if squeezed(a) == squeezed(b):
        return True
    number, given = plain(a), plain(b)
    if number is not None and given is not None:
        return same_number(number, given, allowed.relative, allowed.absolute)
    return None


# ---------------------------------------------------------------------- shapes


@dataclass(frozen=True, slots=True)
class Shape:
    """An answer taken apart. `kind`: brackets of a sequence, `,` a bare list, `u` a union, or
    nothing for a single expression, which is `text`, tidied; `raw` is as it was written."""

    kind: str
    text: str
    raw: str
    parts: tuple[Shape, ...] = ()


@lru_cache(maxsize=20_000)
def _apart(answer: str) -> Shape:
    return _shape(tidy(answer), answer)


def _shape(text: str, raw: str) -> Shape:
    if (found := ELEMENT.fullmatch(text)) is not None:
        return _shape(found["set"].strip(), raw)
    number = plain(text)
    if number is None and len(bare := split(text, ",;")) > 1:
        return Shape(",", text, raw, tuple(_each(bare)))
    united = split(text.replace(r"\cup", "\0"), "\0")
    if len(united) > 1:
        return Shape("u", text, raw, tuple(_shape(part, part) for part in united))
    inner = _bracketed(text)
    if inner is not None:
        kind, body = inner
        items = split(body, ",;") if body else []
        if len(items) > 1 or kind == "{}":
            return Shape(kind, text, raw, tuple(_each(items)))
        if kind == "()" and items and (len(items[0]) < 2 or plain(items[0]) is not None):
            return _shape(items[0], raw)
    parts = _plus_minus(text)
    if len(parts) > 1:
        return Shape(",", text, raw, tuple(_shape(part, part) for part in parts))
    return Shape("", text, raw)


def _each(items: Sequence[str]) -> list[Shape]:
    """Shapes of a list's items; one with a plus-minus stands for two."""
    return [_shape(part, part) for item in items for part in _plus_minus(item)]


def _plus_minus(text: str) -> list[str]:
    if r"\pm" not in text:
        return [text]
    signs = (("+", "-"), ("-", "+"))
    both = [text.replace(r"\pm", upper).replace(r"\mp", lower) for upper, lower in signs]
    return [re.sub(r"(^|[=({])\+\s*", r"\1", each) for each in both]


def split(text: str, at: str) -> list[str]:
    """Parts between separators that stand outside all brackets, stripped, empty ones left out."""
    depth, start, parts = 0, 0, []
    for i, c in enumerate(text):
        if c in OPENING:
            depth += 1
        elif c in CLOSING:
            depth -= 1
        elif c in at and depth == 0 and not _thousands(text, i):
            parts.append(text[start:i])
            start = i + 1
    return [part for each in (*parts, text[start:]) if (part := each.strip().rstrip("\\").strip())]


def _thousands(text: str, comma: int) -> bool:
    """A comma within a number of an expression, such as 1,234\\pi, is none of a list."""
    around = text[max(0, comma - 4) : comma], text[comma + 1 : comma + 6]
    return (
        text[comma] == ","
        and re.search(r"(?:^|[^\d.,])[1-9]\d{0,2}$", around[0]) is not None
        and re.match(r"\d{3}(?:[^\d,.]|\.\d)", around[1]) is not None
        and re.fullmatch(r"[\d,\s\-]*", text) is None
    )


def _bracketed(text: str) -> tuple[str, str] | None:
    """The outer brackets and what is in them, where one pair encloses everything."""
    for opening, closing, kind in (
        (r"\{", r"\}", "{}"),
        (r"\langle", r"\rangle", "()"),
        ("(", ")", "()"),
        ("(", "]", "(]"),
        ("[", ")", "[)"),
        ("[", "]", "[]"),
    ):
        if text.startswith(opening) and text.endswith(closing):
            body = text[len(opening) : len(text) - len(closing)].strip()
            depth = 0
            for c in body:
                depth += (c in OPENING) - (c in CLOSING)
                if depth < 0:
                    return None
            return kind, body
    return None


# ---------------------------------------------------------------------- comparing

LISTS = (",", "{}")


def _same(gold: Shape, answer: Shape, allowed: Allowed) -> bool:
    if squeezed(gold.text) == squeezed(answer.text):
        return True
    if not gold.kind and not answer.kind:
        return _same_single(gold, answer, allowed)
    if not gold.kind or not answer.kind:
        one, other = (gold, answer) if gold.kind else (answer, gold)
        if one.kind in LISTS and len(one.parts) == 1:
            part = one.parts[0]
            pair = (part, other) if one is gold else (other, part)
            return _same(*pair, allowed)
        if one.kind == "," and wordy(gold.raw):
            return words(gold.raw) == words(answer.raw)
        named = NAMED.fullmatch(other.text)
        if named is not None and (inner := _shape(named["value"], named["value"])).kind:
            return _same(*((one, inner) if one is gold else (inner, one)), allowed)
        return _verified(gold.text, answer.text)
    if len(gold.parts) != len(answer.parts):
        return False
    kinds = {gold.kind, answer.kind}
    if kinds <= set(LISTS) or kinds == {"u"}:
        return _matched(gold.parts, answer.parts, allowed)
    if kinds in ({","}, {"()"}, {",", "()"}) or len(kinds) == 1:
        pairs = zip(gold.parts, answer.parts, strict=True)
        return all(_same(g, a, allowed) for g, a in pairs)
    return False


def _matched(gold: Sequence[Shape], answer: Sequence[Shape], allowed: Allowed) -> bool:
    """Whether each has a partner of its own among the others, in whatever order."""
    left = list(answer)
    for each in gold:
        partner = next((other for other in left if _same(each, other, allowed)), None)
        if partner is None:
            return False
        left.remove(partner)
    return True


def _same_single(gold: Shape, answer: Shape, allowed: Allowed) -> bool:
    number, given = plain(gold.text), plain(answer.text)
    if number is not None and given is not None:
        return same_number(number, given, allowed.relative, allowed.absolute)
    if _same_name(gold, answer):
        return True
    of, given_of = NAMED.fullmatch(gold.text), NAMED.fullmatch(answer.text)
    if (of or given_of) and _same_names(of, given_of):
        pair = of["value"] if of else gold.text, given_of["value"] if given_of else answer.text
        return _same(_shape(pair[0], pair[0]), _shape(pair[1], pair[1]), allowed)
    based = BASE.fullmatch(squeezed(gold.text)), BASE.fullmatch(squeezed(answer.text))
    if based[0] or based[1]:
        return _same_base(gold.text, answer.text, based)
    if wordy(gold.raw) or wordy(answer.raw):
        return False
    return _verified(gold.text, answer.text, allowed)


def _same_names(gold: re.Match[str] | None, answer: re.Match[str] | None) -> bool:
    """Whether `name = value` is said of the same name, or one leaves the name out."""
    return not (gold and answer) or squeezed(gold["name"]) == squeezed(answer["name"])


def _same_name(gold: Shape, answer: Shape) -> bool:
    """Equal as words, or as the letter of a choice."""
    if wordy(gold.raw) and words(gold.raw) and words(gold.raw) == words(answer.raw):
        return True
    letters = [CHOICE.fullmatch(words(each.raw).upper()) for each in (gold, answer)]
    marked = wordy(gold.raw) or CHOICE.fullmatch(gold.text)
    return bool(marked and letters[0] and letters[1]) and words(gold.raw) == words(answer.raw)


def _same_base(gold: str, answer: str, based: Sequence[re.Match[str] | None]) -> bool:
    """Digits with a base: an answer may leave out the base that the gold names, not change it."""
    of = [
        found["digits"] if found else squeezed(t)
        for found, t in zip(based, (gold, answer), strict=True)
    ]
    bases = {found["base"] for found in based if found}
    return of[0] == of[1] and len(bases) == 1 and based[0] is not None


# ---------------------------------------------------------------------- math-verify


@lru_cache(maxsize=20_000)
def _parsed(text: str) -> tuple[Any, ...]:
    """What math-verify reads in an expression; empty where it reads nothing."""
    from math_verify import LatexExtractionConfig, parse

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    written = SINE_OF_T.sub(r"\1(t)", re.sub(r"(?<!\\)%", r"\\%", text))
    written = re.sub(r"(?<![A-Za-z\\])E_", r"\\Xi_", written)  # E alone is Euler's number
    found = parse(
        rf"\boxed{{{written}}}",
        extraction_config=[LatexExtractionConfig(boxed_match_priority=0)],
        fallback_mode="no_fallback",
        parsing_timeout=None,
    )
    return tuple(found)


def _verified(gold: str, answer: str, allowed: Allowed | None = None) -> bool:
    """Whether math-verify takes two expressions for equal. Raises what it raises."""
    from math_verify import verify

    golds, answers = _parsed(gold), _parsed(answer)
    if not golds or not answers:
        return False
    if (numeric := _same_value(golds[0], answers[0], allowed or Allowed())) is not None:
        return numeric
    return bool(
        verify(list(golds), list(answers), allow_set_relation_comp=True, timeout_seconds=None)
    )


def _same_value(gold: Any, answer: Any, allowed: Allowed) -> bool | None:
    """For two numbers: by value, to the digits that they have. None where that does not tell: one
    is no number, or both are exact, and close."""
    from sympy import Expr, Float  # type: ignore[import-untyped]

    if not (isinstance(gold, Expr) and isinstance(answer, Expr)):
        return None
    if not (gold.is_number and answer.is_number):
        return None
    rounded = gold.has(Float) or answer.has(Float) or allowed.relative or allowed.absolute
    share = max(allowed.relative, SIX_DIGITS if rounded else EXACT)
    try:
        g, a = gold.doit().evalf(20), answer.doit().evalf(20)
        off, least = abs(g - a), 1e-12 if g == 0 else 0.0
        if off > max(share * abs(g), allowed.absolute or 0.0, least):
            return False
    except TypeError:  # infinite, or no number after all
        return None
    return True if rounded else None


def readable(answer: str) -> bool:
    """Whether math-verify reads the answer, or every part of it. It may run for ever."""
    return _readable(_apart(answer))


def _readable(shape: Shape) -> bool:
    if shape.parts:
        return all(map(_readable, shape.parts))
    return plain(shape.text) is not None or bool(_parsed(shape.text))


def run(job: Sequence[Any]) -> bool:
    """A worker's job: (gold, answer, relative, absolute), or (gold,) to see that it is readable."""
    if len(job) == 1:
        return readable(job[0])
    gold, answer, relative, absolute = job
    return same(gold, answer, Allowed(relative, absolute))
