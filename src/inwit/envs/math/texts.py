"""Answers as text: where an attempt states one, how it looks without cosmetics, plain numbers.

Pure, and linear in the text, so that it may run in the caller's process on whatever a policy wrote.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

LONGEST = 2_000
"""Characters of a final answer that are read; a longer one is only compared as it stands."""

TOKENS = re.compile(
    r"\\(?:boxed|fbox|framebox)\s*\{|\\(?:boxed|fbox|framebox)(?![A-Za-z])|\\.|[{}]"
)
BARE = re.compile(r"\s*(\\[A-Za-z]+|[^\s{}$.,;]+)")
MARKER = re.compile(r"(?:answer\s*(?:is|:|=)|####)[ \t:*]*+(?=\S)", re.IGNORECASE)
SEGMENT = re.compile(r"\$+([^$]+)\$+|\\\((.+?)\\\)|\\\[(.+?)\\\]")

WRAPPERS = r"\\(?:text(?:bf|it|rm|tt|sf|normal)?|mbox|hbox|mathrm|mathbf|rm|operatorname)\s*"
SIGNS = {
    "−": "-", "–": "-", "×": r"\times ", "÷": "/", "π": r"\pi ", "∞": r"\infty ", "∪": r"\cup ",
    "≤": r"\leq ", "≥": r"\geq ", "≠": r"\neq ", "±": r"\pm ", "·": r"\cdot ", "∈": r"\in ",
    "°": r"^\circ", "\u00a0": " ", "\u2009": " ", "\u202f": " ", "½": r"\frac{1}{2}",
    "≈": r"\approx ", "√": r"\sqrt ", "²": "^2", "³": "^3", "’": "'", "€": "", "£": "",
    "\\$": "", "$": "",
}  # fmt: skip
SPACING = re.compile(
    r"\\(?:left|right|[bB]ig{1,2}[lrm]?|displaystyle|textstyle|limits|phantom\{[^{}]*\})(?![A-Za-z])"
    r"|(?<!\\)\\[!,;:()\[\]\s]|\\q?quad(?![A-Za-z])|~|\*\*"
)
REWRITES = tuple(
    (re.compile(pattern), new)
    for pattern, new in (
        (r"\{,\}", ","),
        (rf"^{WRAPPERS}\{{([^{{}}]*)\}}$", r"\1"),
        (r"(?<=\{)[bB](?=matrix\})", "p"),
        (r"(?<![A-Za-z\\])(?:infinity|infty)(?![A-Za-z])", r"\\infty"),
        (r"\\varnothing(?![A-Za-z])|^\\\{\s*\\\}$", r"\\emptyset"),
        (r"^(?:\\(?:mathbb|Bbb)\s*\{?\s*R\s*\}?|ℝ|all real numbers)$", r"(-\\infty,\\infty)"),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\frac\s*([0-9a-zA-Z])\s*([0-9a-zA-Z])", r"\\frac{\1}{\2}"),
        (r"\\frac\s*([0-9a-zA-Z])\s*\{", r"\\frac{\1}{"),
        (r"(\\frac\s*\{[^{}]*\})\s*([0-9a-zA-Z])", r"\1{\2}"),
        (r"\\sqrt\s*([0-9a-zA-Z])", r"\\sqrt{\1}"),
        (r"\\(le|ge|ne)(?![A-Za-z])", r"\\\1q"),
        (r"\\(le|ge)qslant(?![A-Za-z])", r"\\\1q"),
        (r"\\l(?:brace|vert)(?![A-Za-z])", r"\\{"),
        (r"\\rbrace(?![A-Za-z])", r"\\}"),
        (r"\\frac\s*(\\pi)\s*([0-9a-zA-Z])", r"\\frac{\1}{\2}"),
        (r"^\s*\\(?:approx|simeq)(?![A-Za-z])", ""),
        (r"\^\s*\{?\s*\\circ\s*\}?|\\degree(?![A-Za-z])|(?<=\d)\s*degrees?(?![a-z])", ""),
        (r"\\%|(?<=\d)\s*percent\b", "%"),
        (r"\^\s*\{\s*([0-9a-zA-Z])\s*\}", r"^\1"),
        (r"_\s*\{\s*([0-9a-zA-Z]+)\s*\}", r"_{\1}"),
        (r"_\s*([0-9a-zA-Z])", r"_{\1}"),
        (rf"(?:{WRAPPERS}\{{\s*(?:and|or)\s*\}}|(?<![A-Za-z])(?:and|or)(?![A-Za-z]))", ","),
        (r",(?:\s*,)+", ","),
        (r"(\d)\s+(\d+)\s*/\s*(\d+)", r"\1\\frac{\2}{\3}"),
        (rf"{WRAPPERS}\{{\s*\(?([-+]?[\d.,]+)\)?\s*\}}", r"\1"),
        (r"(?<=\d)[eE]([-+]?\d{1,4})(?![\d.])", r"\\times10^{\1}"),
        (r"(?<=\d)\.(?=/)", ""),
    )
)
UNIT = re.compile(
    rf"(?<=[\d}})%i])\s*+(?:(?:{WRAPPERS}\{{[^{{}}]*\}}|\\mu|\\AA|\\Omega|/|\\cdot)\s*+"
    r"(?:\^\s*\{?-?\d\}?)?\s*+)++\.?$"
    r"|(?<=\d)\s++[A-Za-z]{2}[A-Za-z ./]*+(?:\^\s*\{?-?\d\}?)?$"
    r"|(?<=\d)\s*+(?:[cmk]m|k[gm]/[hs]|k?g|mph|nm|eV|kJ|Hz)(?:\^\s*\{?\d\}?)?\.?$"
)
"""Quantifiers give nothing back: what only looks like a unit costs no more than its length."""

SIX_DIGITS = 5e-6
"""Relative difference that rounding to six digits makes at most."""

DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)"
DECIMAL = rf"(?:{DIGITS}(?:\.\d*)?|\.\d+)"
PLAIN = re.compile(
    rf"(?P<sign>[-+]?)(?:(?P<whole>\d+)?\\frac\{{(?P<a>-?{DECIMAL})\}}\{{(?P<b>-?{DECIMAL})\}}"
    rf"|\(?(?P<n>-?{DECIMAL})\)?(?:/\(?(?P<d>{DECIMAL})\)?)?"
    r"(?:(?:\\times|\\cdot|\*)\s*10\^\{?(?P<e>[-+]?\d{1,4})\}?)?"
    r"|10\^\{?(?P<power>[-+]?\d{1,3})\}?)"
    r"(?P<percent>%?)"
)
REPEATING = re.compile(r"(?<![\d,])(\d{0,50})\.(\d{0,50})\\(?:overline|bar)\s*\{?(\d{1,50})\}?")
FUNCTIONS = frozenset(
    {"sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh"}
    | {"tanh", "log", "exp", "sqrt", "max", "min", "lim", "gcd", "lcm", "mod", "det", "infty"}
)
"""Names that are mathematics without a backslash, too."""


# ---------------------------------------------------------------------- finding


def last_box(text: str) -> str | None:
    """What is in the last \\boxed, without boxes within it; None where none is closed."""
    stack: list[int | None] = []
    found: list[tuple[int, int]] = []
    for token in TOKENS.finditer(text):
        written = token.group()
        if written == "{":
            stack.append(None)
        elif written == "}":
            start = stack.pop() if stack else None
            if start is not None:
                while found and found[-1][0] > start:
                    found.pop()
                found.append((start, token.start()))
        elif written.endswith("{") and len(written) > 2:
            stack.append(token.end())
        elif len(written) > 2 and (bare := BARE.match(text, token.end())):
            found.append(bare.span(1))
    if not found:
        return None
    start, end = found[-1]
    return re.sub(r"\\(?:boxed|fbox|framebox)(?![A-Za-z])\s*", "", text[start:end]).strip()


def final_answer(text: str) -> str:
    """The one answer that an attempt states: its last box; else what follows the last `####`,
    `Answer:` or `answer is` in its line; else its last line."""
    box = last_box(text)
    if box is not None:
        return box
    at = 0
    for found in MARKER.finditer(text):
        at = found.end()
    lines = (text[at:] if at else text.strip()).splitlines() or [""]
    line = (lines[0] if at else lines[-1]).strip()
    inside = [next(filter(None, groups)) for groups in SEGMENT.findall(line[:LONGEST])]
    return inside[0].strip() if len(inside) == 1 else line.strip("* ")


def states_answer(text: str) -> bool:
    """Whether a text marks its answer, by a box or as GSM8K does."""
    return last_box(text) is not None or "####" in text


# ---------------------------------------------------------------------- tidying


def tidy(answer: str) -> str:
    """The answer without cosmetics: delimiters, spacing, money signs, degrees and units."""
    text = answer[: LONGEST + 1]
    for sign, new in SIGNS.items():
        text = text.replace(sign, new)
    text = SPACING.sub(" ", re.sub(r"(?<!\\)\\!", "", text)).strip().strip(".,;: ")
    for pattern, new in REWRITES:
        text = pattern.sub(new, text)
    text = REPEATING.sub(_repeating, text)
    text = UNIT.sub("", text).strip().strip(".,; ")
    while re.fullmatch(r"\{[^{}]*\}", text):
        text = text[1:-1].strip()
    text = re.sub(r"(?<=\d) (?=\d{3}(?!\d))", "", text)
    text = re.sub(r"(\\[A-Za-z]+)\s+(?=[A-Za-z])|(?<=\d)\s+(?=\d)", r"\1 ", text)
    return re.sub(r"(?<!\\[A-Za-z])(?<![A-Za-z0-9])\s+|\s+(?![A-Za-z0-9])", "", text)


def _repeating(found: re.Match[str]) -> str:
    before, after, again = found.groups()
    nines, shift = 10 ** len(again) - 1, 10 ** len(after)
    above = int((before + after) or 0) * nines + int(again)
    return f"\\frac{{{above}}}{{{nines * shift}}}"


def squeezed(text: str) -> str:
    """Without spaces that say nothing."""
    return re.sub(r"(\\[A-Za-z]+)\s+(?=[A-Za-z])|(?<=\d)\s+(?=\d)|\s+", _space, text)


def _space(found: re.Match[str]) -> str:
    return f"{found.group(1)} " if found.group(1) else ""


def words(answer: str) -> str:
    """The answer as words: no case, no wrappers, no punctuation but what stands in a number."""
    text = re.sub(rf"{WRAPPERS}(?=\{{)|\\[!,;: ]|[{{}}$\\]", "", answer).lower()
    text = re.sub(r"(?<!\d)[.,](?!\d)|(?<=\d)[.,](?!\d)|(?<!\d)[.,](?=\d)|[()\"'*~]", "", text)
    return "".join(text.split())


def wordy(answer: str) -> bool:
    """Whether the answer is words rather than mathematics."""
    bare = UNIT.sub("", re.sub(r"\\(?:begin|end)\s*\{\w+\}", "", answer))
    if re.search(rf"{WRAPPERS}\{{[^{{}}]*[A-Za-z]", bare):
        return True
    found = re.findall(r"(?<![\\A-Za-z])[A-Za-z]{3,}", bare)
    return any(word not in FUNCTIONS for word in found)


def balanced(answer: str) -> bool:
    """Whether all braces and brackets close; a bracket may close a parenthesis (intervals)."""
    bare = answer.replace(r"\{", "(").replace(r"\}", ")")
    for opening, closing in (("{", "}"), ("([", ")]")):
        depth = 0
        for c in bare:
            depth += (c in opening) - (c in closing)
            if depth < 0:
                return False
        if depth:
            return False
    return True


# ---------------------------------------------------------------------- numbers


@dataclass(frozen=True, slots=True)
class Plain:
    """A number that needs no parser. `exact` where it was written without a decimal point."""

    value: Fraction
    exact: bool
    percent: bool


def plain(tidied: str) -> Plain | None:
    """The number that a tidied answer is; None where it is more, or nothing, or too long."""
    if len(tidied) > 400 or (found := PLAIN.fullmatch(squeezed(tidied))) is None:
        return None
    part = found.groupdict()
    exact = "." not in tidied and not part["e"]
    try:
        if part["a"]:
            value = Fraction(int(part["whole"] or 0)) + _number(part["a"]) / _number(part["b"])
        elif part["power"]:
            value = Fraction(10) ** int(part["power"])
        else:
            value = _number(part["n"]) / _number(part["d"] or "1")
            value *= Fraction(10) ** int(part["e"] or 0)
    except ZeroDivisionError:
        return None
    return Plain(-value if part["sign"] == "-" else value, exact, bool(part["percent"]))


def _number(text: str) -> Fraction:
    return Fraction(text.replace(",", "").rstrip("."))


def same_number(
    gold: Plain, answer: Plain, relative: float = 0.0, absolute: float | None = None
) -> bool:
    """Equal within what is allowed, or to six digits where a decimal stands for a fraction that
    has no end as a decimal.

    50% is 50 and a half, where the other is no percentage.
    """
    pairs = [(gold.value, answer.value)]
    if gold.percent is not answer.percent:
        pairs.append(
            (gold.value / 100, answer.value) if gold.percent else (gold.value, answer.value / 100)
        )
    share = relative
    if not (gold.exact and answer.exact):
        ends = _terminates(gold.value) and _terminates(answer.value)
        share = max(share, 1e-9 if ends else SIX_DIGITS)
    return any(
        g == a or abs(g - a) <= max(Fraction(share) * abs(g), Fraction(absolute or 0))
        for g, a in pairs
    )


def _terminates(value: Fraction) -> bool:
    """Whether a decimal can write it: its denominator has no factors but 2 and 5."""
    return pow(10, value.denominator.bit_length(), value.denominator) == 0


def short(answer: str) -> str:
    """Equal for answers that are equal as numbers or as words, or but for cosmetics."""
    if len(answer) > LONGEST:
        return answer.strip()
    tidied = tidy(answer)
    if (number := plain(tidied)) is not None:
        return f"{number.value}{'%' * number.percent}"
    return words(answer) if wordy(answer) else squeezed(tidied)
