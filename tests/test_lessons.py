"""Every rule of the field's lessons that touches what exists here has a test that names it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TOUCHED = {
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    10,
    11,
    12,
    13,
    14,
    15,
    16,
    17,
    18,
    19,
    20,
    21,
    22,
    23,
    24,
    25,
    27,
}
"""Not 26: several ranks are not ours."""


def rules_named(path: Path) -> set[int]:
    """Rules named in the docstrings of a file's tests, as `LESSONS 7, 11: …`."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            for rules in re.findall(r"LESSONS ([\d, and]+)", ast.get_docstring(node) or ""):
                found |= {int(n) for n in re.findall(r"\d+", rules)}
    return found


def test_each_rule_has_a_test() -> None:
    named: set[int] = set()
    for path in Path(__file__).parent.rglob("test_*.py"):
        named |= rules_named(path)
    assert sorted(TOUCHED - named) == []
