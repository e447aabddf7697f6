"""Statistics from counts alone: a paper's, or those of several evaluations together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inwit.errors import InwitError
from inwit.evaluation.measures import Transitions, too_few

ASKED_ALIKE = ("protocol", "options", "sees")
"""What must be equal for counts to be added up."""


def of_counts(n: int, first: int, mended: int, spoiled: int) -> Transitions:
    """The table of a paper that gives these four. Raises InwitError where they contradict."""
    if first > n:
        raise InwitError(f"{first} of {n} cannot be right at first.", "Check --first and --n.")
    if mended > n - first:
        raise InwitError(
            f"{mended} cannot be mended: {n - first} were wrong at first.", "Check --mended."
        )
    if spoiled > first:
        raise InwitError(f"{spoiled} of {first} cannot be spoiled.", "Check --spoiled.")
    return Transitions(first - spoiled, spoiled, mended, n - first - mended)


def pooled(files: Sequence[Path]) -> Transitions:
    """The sum of several evaluations' tables.

    Raises:
        InwitError: a file is none of ours, asked its questions several times, or asked otherwise
            than the first.
    """
    found = [_read(file) for file in files]
    for file, summary in zip(files, found, strict=True):
        for key in ASKED_ALIKE:
            if summary.get(key) != found[0].get(key):
                raise InwitError(
                    f"{file} and {files[0]} differ in '{key}': they measure different things.",
                    "Pool evaluations of one protocol and information condition.",
                )
    asked: dict[str, Path] = {}
    for file, summary in zip(files, found, strict=True):
        if (other := asked.setdefault(summary["tasks"], file)) is not file:
            raise InwitError(
                f"{file} and {other} asked the same questions: they are not independent.",
                "Pool evaluations on different questions.",
            )
    tables = [summary["table"] for summary in found]
    names = ("both", "only_first", "only_second", "neither")
    return Transitions(*(sum(table[name] for table in tables) for name in names))


def _read(file: Path) -> dict[str, Any]:
    try:
        summary = json.loads(file.read_text("utf-8"))
        table, _ = summary["table"], summary["tasks"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InwitError(
            f"{file} is not an evaluation's summary.json ({error}).", "Check it."
        ) from error
    if table is None:
        raise InwitError(
            f"{file} has no table of transitions: it asked once, or each question several times.",
            "Pool evaluations with two attempts and one sample a question.",
        )
    return dict(summary)


def statistics_of(table: Transitions) -> dict[str, Any]:
    """Every measure of a table by name, each with its interval, and McNemar's exact p."""
    measures = table.measures()
    as_dicts = {
        name: {"value": m.value, "ci": m.ci, "n": m.n, "count": m.count}
        for name, m in measures.items()
    }
    return {
        **as_dicts,
        "mcnemar_p": table.p,
        "n": table.n,
        "table": table,
        "notes": too_few(measures, table.n),
    }
