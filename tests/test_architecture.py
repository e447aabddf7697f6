"""The map that docs and design draw, read off the source: layers, sizes, and who knows whom."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import inwit
from inwit.methods import METHODS

SOURCE = Path(inwit.__file__).parent
LAYERS: tuple[tuple[str, ...], ...] = (
    ("rows", "errors", "seeding", "files"),
    ("objectives", "roles", "registry"),
    ("engines", "envs"),
    ("speaking",),
    ("playing",),
    ("methods", "evaluation", "report", "tracking"),
    ("recipe",),
    ("casting", "runs", "alarms", "queries"),
    ("train", "evaluate", "compare", "console"),
    ("cli",),
    ("__main__",),
)
"""From low to high. A part imports from lower layers and from itself, never from beside it."""

HEIGHT = {part: height for height, parts in enumerate(LAYERS) for part in parts}
EXCEPTION = ("engines.torch.loading", ("envs.checkout", "envs.lock"))
"""Embedded models belong to their environments; the engine fetches them when asked for."""

LONGEST_FILE = 400
LONGEST_FUNCTION = 60


def files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def name_of(file: Path) -> str:
    """`engines.torch.loading`, relative to the package; empty for the package itself."""
    parts = file.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(file) for file in files()}
PARTS = {name.split(".")[0] for name in MODULES} - {""}


def imports(file: Path) -> Iterator[tuple[str, bool]]:
    """(imported module of ours, relative to the package; whether inside a function)."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    inside = {
        node
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative imports hide where they lead"
            found = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in found:
            if name.split(".")[0] != "inwit":
                continue
            ours = name.removeprefix("inwit").removeprefix(".")
            while ours not in MODULES:  # an attribute of a module
                ours = ours.rpartition(".")[0]
            yield ours, node in inside


def outside(file: Path) -> set[str]:
    """Top-level names of everything imported that is not ours."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found - {"inwit"}


# ---------------------------------------------------------------------- imports


def test_every_part_has_its_place():
    assert set(HEIGHT) == PARTS


def test_the_reader_of_imports_sees_them():
    """Were it blind, the tests below would pass on anything."""
    looked_at = ("playing", "casting", "cli/training", "cli/evaluating")
    seen = {name: list(imports(SOURCE / f"{name}.py")) for name in looked_at}
    assert {("rows", False), ("seeding", False), ("engines", False)} <= set(seen["playing"])
    assert ("engines.torch", False) in seen["casting"]
    assert {("train", True), ("recipe", True), ("errors", False)} <= set(seen["cli/training"])
    assert ("casting", True) in seen["cli/evaluating"]
    assert "torch" in outside(SOURCE / "objectives" / "losses.py")


@pytest.mark.parametrize("file", files(), ids=name_of)
def test_imports_run_downwards_only(file):
    """Also those inside functions: an import that waits is an import."""
    name = name_of(file)
    part = name.split(".")[0]
    for imported, inner in imports(file):
        other = imported.split(".")[0]
        if not other or other == part:
            continue
        if imported.startswith(EXCEPTION[1]) and name == EXCEPTION[0] and inner:
            continue
        assert part, f"the package itself imports {imported}"
        assert HEIGHT[other] < HEIGHT[part], f"{name} imports {imported}"


def test_rows_and_what_lies_beside_them_import_nothing_of_ours():
    for part in LAYERS[0]:
        assert list(imports(SOURCE / f"{part}.py")) == [], part


def test_rows_are_plain_data():
    """Rows, errors and seeds know nothing of torch, models or files: the standard library only.

    `files` is what knows of files, and of nothing else.
    """
    heavy = {"torch", "numpy", "transformers", "pydantic"}
    for part in LAYERS[0]:
        allowed = {"pathlib", "json"} if part == "files" else set()
        found = outside(SOURCE / f"{part}.py")
        assert not found & ((heavy | {"pathlib", "json"}) - allowed), part
        assert found <= sys.stdlib_module_names, part


def test_objectives_are_functions_on_tensors_and_nothing_else():
    for file in (SOURCE / "objectives").glob("*.py"):
        ours = {imported.split(".")[0] for imported, _ in imports(file)}
        assert ours <= {"objectives", "rows"}, file.name
        theirs = outside(file) - {"__future__", "collections", "dataclasses", "typing"}
        assert theirs <= {"torch"}, file.name


# ---------------------------------------------------------------------- who knows whom


@pytest.mark.parametrize("file", sorted((SOURCE / "engines").rglob("*.py")), ids=name_of)
def test_no_engine_knows_a_method_s_name(file):
    """Whatever a method wants of an engine it says in rows and in an objective.

    `score` is what an engine does with rows; the method of that name is looked for as it is
    written, and as a string.
    """
    text = file.read_text(encoding="utf-8")
    names = {*METHODS.built_in, "grpo", "icrl", "sft", "rloo", "star"}
    words = "|".join(sorted(names - {"score"}))
    assert not re.search(rf"\b({words})\b", text, re.IGNORECASE)
    assert "SCoRe" not in text
    strings = {
        node.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert not {*names, "score"} & {string.lower() for string in strings}


def test_no_method_knows_an_engine_or_an_environment():
    """Methods speak to the stage; which engine samples and what is played, they are not told."""
    for file in (SOURCE / "methods").glob("*.py"):
        for imported, _ in imports(file):
            assert not imported.startswith("engines"), f"{file.name} imports {imported}"
            assert imported.split(".")[0] != "envs" or imported == "envs", file.name


# ---------------------------------------------------------------------- sizes


@pytest.mark.parametrize("file", files(), ids=name_of)
def test_no_file_is_too_long_to_be_read(file):
    assert len(file.read_text(encoding="utf-8").splitlines()) <= LONGEST_FILE


@pytest.mark.parametrize("file", files(), ids=name_of)
def test_no_function_is_too_long_to_be_seen_at_once(file):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            length = node.end_lineno - node.lineno + 1
            assert length <= LONGEST_FUNCTION, f"{node.name} has {length} lines"
