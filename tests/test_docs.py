"""What the documentation shows is true: its code runs, its names exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from inwit.envs import AnswerEnv, Split, env_class
from inwit.methods import known_methods, method_class
from inwit.recipe import ENGINES, SECTIONS
from inwit.rows import Grade

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def test_the_how_tos_environment_is_one(tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/new-environment.md").read_text(encoding="utf-8")
    code, _ = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(code.splitlines()) <= 40
    file = tmp_path / "reversal.py"
    file.write_text(code, encoding="utf-8")
    kind = env_class(f"{file}:Reversal")
    env = kind(kind.Settings(words=4))  # type: ignore[call-arg]
    assert isinstance(env, AnswerEnv)
    questions = {split: {t.question for t in env.tasks(split)} for split in Split}
    assert not questions[Split.TRAIN] & (questions[Split.DEV] | questions[Split.TEST])
    task = env.tasks(Split.TRAIN)[0]
    assert env.grade(task, task.reference).grade is Grade.RIGHT
    assert env.grade(task, "w1 w2").grade is Grade.WRONG


def test_the_how_tos_environment_out_of_a_file_can_be_checked(tmp_path: Path, inwit) -> None:
    page = (ROOT / "docs/how-to/new-environment.md").read_text(encoding="utf-8")
    _, code = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    file, data = tmp_path / "capitals.py", tmp_path / "capitals.jsonl"
    file.write_text(code, encoding="utf-8")
    lines = ['{"country": "France", "capital": "Paris"}', '{"country": "Peru", "capital": "Lima"}']
    data.write_text("\n".join(lines), encoding="utf-8")
    assert inwit("check-data", f"{file}:Capitals", data).code == 0
    data.write_text("\n".join([*lines, '{"country": "Chad", "capital": "?"}']), encoding="utf-8")
    said = inwit("check-data", f"{file}:Capitals", data, "--json")
    assert said.code == 1
    assert '"unreadable": 1' in said.out


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_files_named_in_the_docs_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"\b(?:recipes|src|scripts|benchmarks)/[\w./-]+\.(?:toml|py|sh)", text):
        assert (ROOT / name).is_file(), f"{page.name}: {name}"


def test_the_reference_lists_every_key_of_a_recipe() -> None:
    page = (ROOT / "docs/reference/recipes.md").read_text(encoding="utf-8")
    for name, kind in SECTIONS.items():
        [line] = [x for x in page.splitlines() if x.startswith(f"| `[{name}]`")]
        keys = set(kind.model_fields) - {"name", "lora"}
        assert keys <= set(re.findall(r"`(\w+)`", line)), name


def test_the_reference_lists_every_key_of_every_engine() -> None:
    page = (ROOT / "docs/reference/recipes.md").read_text(encoding="utf-8")
    text = " ".join(x for x in page.splitlines() if x.startswith("| `[engine]`"))
    named = set(re.findall(r"`(\w+)`", text))
    for name, kind in ENGINES.items():
        assert set(kind.model_fields) - {"name", "lora"} <= named, name


@pytest.mark.parametrize("method", ["icrl", "score"])
def test_the_reference_names_real_switches(method: str) -> None:
    page = (ROOT / "docs/reference/recipes.md").read_text(encoding="utf-8")
    title = {"icrl": "ICRL", "score": "SCoRe"}[method]
    switches = page.partition(f"## {title}'s switches")[2].partition("\n## ")[0]
    table = "\n".join(line for line in switches.splitlines() if line.startswith("|"))
    named = set(re.findall(r"`(\w+)(?: = [^`]+)?`", table)) - {"INWIT_API_KEY"}
    assert len(named) >= 8
    assert named - set(method_class(method).Settings.model_fields) - set(known_methods()) == set()
    for values in re.findall(r"`(\w+ = \"\w+\")`", table):
        key, value = values.replace('"', "").split(" = ")
        kind = method_class(method).Settings.model_fields[key].annotation
        assert not get_args(kind) or value in str(get_args(kind)), values


def test_methods_named_beside_the_switches_exist() -> None:
    page = (ROOT / "docs/reference/recipes.md").read_text(encoding="utf-8")
    [text] = re.findall(r"^Beside it: .*?\n\n", page, flags=re.DOTALL | re.MULTILINE)
    known = {"right_to_right", *known_methods()}
    assert set(re.findall(r"`(\w+)`", text)) <= known
