"""Results as people read them: rows of a table, and Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LABELS = {
    "a1": "A1, first answers right",
    "a2": "A2, second answers right",
    "delta": "delta, last - first",
    "wrong_to_right": "wrong to right, of all",
    "right_to_wrong": "right to wrong, of all",
    "repair_rate": "repair rate = critique score, p(right after | wrong before)",
    "confidence": "confidence, p(right after | right before)",
    "edit_rate": "edit rate, answers changed",
    "says_no_if_right": "says no, first answer right",
    "says_no_if_wrong": "says no, first answer wrong",
    "repaired": "wrong answers mended",
    "own": "mended in the model's own words",
    "user": "mended as the user's",
    "marker": "mended in its own words, marker behind",
    "blind_spot": "blind-spot rate, 1 - own / user",
    "blind_spot_marker": "blind-spot rate with the marker",
    "vote": "majority vote right",
    "vote_finals": "vote of the second answers",
    "vote_all": "vote of all answers of the pairs",
    "vote_parallel": "vote of as many independent answers",
    "vote_parallel_equal_tokens": "vote of independent answers, equal tokens",
    "finals_over_parallel": "second answers - independent, equal generations",
    "finals_over_parallel_equal_tokens": "second answers - independent, equal tokens",
    "truncated": "answers cut off by the token limit",
    "truncated_critiques": "critiques cut off by the token limit",
    "errors": "answers that could not be graded",
}
DIFFERENCES = ("delta", "finals_over_parallel", "finals_over_parallel_equal_tokens")
SAME = ("critique_score",)
"""Measures that another row shows under both its names."""

Row = tuple[str, str, str, str]
HEAD: Row = ("measure", "value", "95% interval", "N")


def rows(measures: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """(what, value, interval, n) of each measure: rates in %, differences in points."""
    return [_row(name, m) for name, m in measures.items() if name not in SAME]


def _row(name: str, m: Mapping[str, Any]) -> Row:
    kind, slash, which = name.partition("/")
    cost = bool(slash)
    label = f"{kind.replace('_', ' ')}, {which.replace('_', ' ')}" if cost else _label(name)
    if m["value"] is None:
        return label, "-", "", str(m["n"])
    form = "{:.1f}" if cost else "{:+.1%}" if name in DIFFERENCES else "{:.1%}"
    if kind == "seconds":
        form = "{:.3g}"
    interval = "[{}, {}]".format(*(form.format(x) for x in m["ci"])) if m["ci"] else ""
    counted = m["count"] is not None and name not in DIFFERENCES and m["count"] == int(m["count"])
    n = f"{int(m['count'])} / {m['n']}" if counted else str(m["n"])
    return label, form.format(m["value"]), interval, n


def _label(name: str) -> str:
    if name in LABELS:
        return LABELS[name]
    turn = name.removeprefix("a")
    return f"A{turn}, answers right after turn {turn}" if turn.isdigit() else name.replace("_", " ")


def markdown(summary: Mapping[str, Any]) -> str:
    """An evaluation's `summary.json` as a page: what was asked, what was shown, what came out."""
    lines = [f"# {title(summary)}", ""]
    lines += [f"- {line}" for line in facts(summary)]
    lines += ["", *_table(HEAD, rows(summary["measures"])), ""]
    lines += [f"{name}: {p:.3g}" for name, p in summary["p"].items()]
    lines += [f"\n> {note}" for note in summary["notes"]]
    return "\n".join(lines).rstrip() + "\n"


def title(summary: Mapping[str, Any]) -> str:
    """The protocol, with its options, and the model."""
    options = {k: v for k, v in summary["options"].items() if v is not None}
    said = ", ".join(f"{k} {v}" for k, v in options.items())
    return f"{summary['protocol']}{f' ({said})' if said else ''}: {summary['model']}"


def facts(summary: Mapping[str, Any]) -> list[str]:
    """What a reader must know beside the numbers."""
    tokens = summary["sampled_tokens"]
    found = [
        f"{summary['env']}, {summary['split']}: {summary['n']} questions, "
        f"asked {summary['samples']} time(s) at temperature {summary['temperature']}",
        "shown: " + "; ".join(f"{k}: {', '.join(v)}" for k, v in summary["sees"].items()),
        f"sampled tokens: {'unknown' if tokens is None else f'{tokens:,}'}",
    ]
    if summary["critic"] != "own":
        found.append(f"critic: {summary['critic']}")
    found += [f"unanswered: {n} ({why})" for why, n in summary["unanswered_why"].items()]
    return found


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    rule = ["---", *["--:"] * (len(head) - 1)]
    bare = [[cell.replace("|", "\\|") for cell in cells] for cells in (head, rule, *body)]
    return ["| " + " | ".join(cells) + " |" for cells in bare]
