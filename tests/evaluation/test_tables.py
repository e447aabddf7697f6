"""Results as people read them: each measure once, with its N and its interval beside it."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from inwit.envs import Split
from inwit.evaluation.measures import Measure
from inwit.evaluation.protocols import PROTOCOLS, protocol
from inwit.evaluation.running import ask_all
from inwit.evaluation.tables import HEAD, LABELS, SAME, facts, markdown, rows
from inwit.files import plain
from tests.evaluation.fakes import measured, quiz, speaker, stage_for, table_of

OPTIONS = {"intrinsic": {"turns": 4}, "sequential": {"k": 2}, "parallel": {"k": 2}}


def say(shown: str, sample: int) -> str:
    """Questions differ, so that nothing is always or never so; second answers have a verdict."""
    number = int(shown.split("question ")[1].split()[0])
    late = "once more" in shown or "note" in shown or "mine" in shown
    return f"{'no' if late else ''} {number} {'right' if number % 3 == 0 or late else 'wrong'}"


def summary_of(way: str, samples: int = 1, **rest: Any) -> dict[str, Any]:
    """As `summary.json` holds it."""
    env, found = quiz(7, wrong="8"), protocol(way, OPTIONS.get(way, {}))
    stage = stage_for(env, speaker("correspondent", say))
    asked = ask_all(found, env.tasks(Split.TEST), stage, samples=samples)
    records, _ = asyncio.run(asked)
    return completed(found.measured(records)) | rest


def completed(found: Any) -> dict[str, Any]:
    asked = {
        "model": "tiny",
        "env": "quiz",
        "split": "test",
        "temperature": 0.5,
        "sees": {"solver": ["question"], "again": ["attempt", "question"]},
        "unanswered": 0,
        "critic": "own",
        "options": {},
        "unanswered_why": {},
    }
    return dict(plain(found)) | asked


def cells(line: str) -> list[str]:
    """Of a Markdown table: a bar after a backslash is text."""
    parts = re.split(r"(?<!\\)\|", line.strip())[1:-1]
    return [part.strip().replace("\\|", "|") for part in parts]


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("way", sorted(PROTOCOLS.known()))
def test_every_measure_appears_once(way: str, samples: int) -> None:
    """Under a name of its own; N everywhere, and an interval wherever there is one."""
    summary = summary_of(way, samples)
    measures = {k: m for k, m in summary["measures"].items() if k not in SAME}
    found = rows(summary["measures"])
    assert len(found) == len(measures) == len({label for label, *_ in found})
    for (label, value, interval, n), (name, m) in zip(found, measures.items(), strict=True):
        assert str(m["n"]) == n.split(" / ")[-1], label
        assert (value == "-") == (m["value"] is None)
        assert (interval == "") == (m["ci"] is None)
        assert interval.count(",") == (0 if m["ci"] is None else 1)
        assert "/" in name or name in LABELS or name[1:].isdigit(), f"{name} has no label"
    table = [cells(line) for line in markdown(summary).splitlines() if line.startswith("|")]
    assert table[0] == list(HEAD) and set(table[1]) == {"---", "--:"}
    assert table[2:] == [list(row) for row in found]


def test_every_label_is_used_and_stands_alone() -> None:
    used = {name for way in PROTOCOLS.known() for name in summary_of(way)["measures"]}
    assert set(LABELS) <= used
    assert len(set(LABELS.values())) == len(LABELS)
    assert set(SAME) <= used
    assert "critique score" in LABELS["repair_rate"], "the other name is in the same row"


def test_rows_by_hand() -> None:
    """Rates in percent with their counts, differences in points with a sign, costs as they are."""
    found = {
        "a1": Measure(0.5, (0.25, 0.75), 10, 5),
        "a3": Measure(0.5, (0.25, 0.75), 10, 5.0),
        "delta": Measure(-0.05, (-0.1251, 0.0249), 40, -2),
        "repair_rate": Measure(None, None, 0, 0),
        "critique_score": Measure(None, None, 0, 0),
        "blind_spot": Measure(1.0, None, 3, 3.0),
        "tokens/turn_1/own": Measure(12.345, (10.0, 14.69), 8),
        "seconds/critiques": Measure(0.012345, (0.01, 0.0149), 8),
        "prompt_tokens/turn_2": Measure(None, None, 0),
    }
    assert rows(plain(found)) == [
        ("A1, first answers right", "50.0%", "[25.0%, 75.0%]", "5 / 10"),
        ("A3, answers right after turn 3", "50.0%", "[25.0%, 75.0%]", "5 / 10"),
        ("delta, last - first", "-5.0%", "[-12.5%, +2.5%]", "40"),
        (LABELS["repair_rate"], "-", "", "0"),
        (LABELS["blind_spot"], "100.0%", "", "3 / 3"),
        ("tokens, turn 1/own", "12.3", "[10.0, 14.7]", "8"),
        ("seconds, critiques", "0.0123", "[0.01, 0.0149]", "8"),
        ("prompt tokens, turn 2", "-", "", "0"),
    ]


def test_the_page_says_what_was_asked_and_shown() -> None:
    """LESSONS 5: conditions beside the numbers, and what to know before believing them."""
    summary = completed(measured("intrinsic", table_of(20, 2, 3, 15)))
    page = markdown(summary)
    assert page.startswith("# intrinsic: tiny\n")
    for fact in (
        "- quiz, test: 40 questions, asked 1 time(s) at temperature 0.5\n",
        "- shown: solver: question; again: attempt, question\n",
        "- sampled tokens: 240\n",
        "mcnemar_p: 1\n",
    ):
        assert page.count(fact) == 1, fact
    [note] = summary["notes"]
    assert page.count(f"> {note}") == 1 and "cannot separate" in note
    assert "unanswered" not in page
    assert page.endswith("\n") and not page.endswith("\n\n")


def test_what_was_not_answered_and_not_counted_is_said() -> None:
    base = completed(measured("direct", table_of(1, 1, 0, 0)))
    assert facts(base | {"sampled_tokens": None})[2:] == ["sampled tokens: unknown"]
    why = {"no answer in 6 tries": 2, "the budget is spent": 1}
    stopped = base | {"unanswered": 3, "unanswered_why": why, "sampled_tokens": 1234567}
    told = ["unanswered: 2 (no answer in 6 tries)", "unanswered: 1 (the budget is spent)"]
    assert facts(stopped)[2:] == ["sampled tokens: 1,234,567", *told]
    assert all(line in markdown(stopped) for line in told)


def test_the_options_and_another_critic_are_named() -> None:
    base = completed(measured("intrinsic", table_of(1, 1, 0, 0)))
    asked = base | {"options": {"turns": 3, "marker": None}, "critic": "http://x/v1 big"}
    assert markdown(asked).startswith("# intrinsic (turns 3): tiny\n")
    assert "- critic: http://x/v1 big\n" in markdown(asked)
