"""What tests of whole runs share: a briefly warm-started debug model, and runs from it.

The heavy imports are inside the functions: most tests of other modules need none of this.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("timeless", deadline=None)  # how long a test takes is no finding
settings.load_profile("timeless")

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "recipes" / "checkout"
TIMES = ("cpu_seconds", "wall_seconds", "total/cpu_seconds")
KILLED = -signal.SIGKILL
CHANGES = {"os.mkdir", "os.remove", "os.rename", "os.rmdir"}


class Silent:
    """Progress that shows nothing and remembers what it was told."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int]] = []
        self.evaluations: list[Mapping[str, Any]] = []
        self.alarms: list[tuple[str, str]] = []

    def step(self, done: int, total: int, line: Mapping[str, Any]) -> None:
        self.steps.append((done, total))

    def evaluated(self, line: Mapping[str, Any]) -> None:
        self.evaluations.append(line)

    def alarm(self, kind: str, message: str) -> None:
        self.alarms.append((kind, message))


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of debug-warm.toml."""
    out = tmp_path_factory.mktemp("warm") / "run"
    run("debug-warm", out)
    return out


@pytest.fixture(scope="session")
def model(warm: Path) -> str:
    """The directory of the debug model: it speaks all three roles, and is right now and then."""
    return str(warm / "model")


def run(recipe: str, out: Path, *settings: str) -> dict[str, Any]:
    """Run one of recipes/checkout in this process; give back its summary."""
    from transformers.utils.logging import disable_progress_bar

    from inwit.recipe import load_recipe
    from inwit.train import train

    disable_progress_bar()  # its lock outlives a killed process
    return train(load_recipe(RECIPES / f"{recipe}.toml", settings), out, Silent())


def go_on(out: Path) -> dict[str, Any]:
    """Resume a run in this process."""
    from transformers.utils.logging import disable_progress_bar

    from inwit.train import resume

    disable_progress_bar()

    return resume(out, Silent())


# ---------------------------------------------------------------------- commands


@dataclass
class Said:
    """What a command exited with and said; lines are as wide as it takes."""

    code: object
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as JSON, which it must be and nothing else."""
        assert self.code == 0, self.err
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The message of a refused command."""
        assert self.code == 2, self.out + self.err
        assert self.out == ""
        assert "Traceback" not in self.err
        assert self.err.startswith("error ")
        return self.err


@pytest.fixture
def inwit(capsys, monkeypatch, tmp_path_factory) -> Callable[..., Said]:
    """Run a command in this process, as `python -m inwit` would, in an empty folder."""
    from inwit import cli
    from inwit.cli import common

    for console in (common.out, common.err):
        monkeypatch.setattr(console, "width", 400)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))

    def call(*arguments: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["inwit", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        said = capsys.readouterr()
        return Said(end.value.code or 0, said.out, said.err)

    return call


# ---------------------------------------------------------------------- reading what a run left


def lines(folder: Path, name: str = "metrics.jsonl", **wanted: object) -> list[dict[str, Any]]:
    """The lines of a .jsonl file, those only that have the wanted values."""
    found = [json.loads(text) for text in (folder / name).read_text("utf-8").splitlines()]
    return [line for line in found if all(line.get(k) == v for k, v in wanted.items())]


def timeless(value: Any) -> Any:
    """Without the seconds that things took: nothing else may differ between equal runs."""
    if isinstance(value, dict):
        return {
            k: timeless(v)
            for k, v in value.items()
            if k not in TIMES and not k.startswith("seconds/")
        }
    if isinstance(value, list):
        return [timeless(v) for v in value]
    return value


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its name there."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def assert_same_run(folder: Path, whole: Path) -> None:
    """Both ended alike, bit for bit: final weights, every measure but times, every episode."""
    assert files(folder / "model") == files(whole / "model")
    assert timeless(lines(folder)) == timeless(lines(whole))
    assert lines(folder, "episodes.jsonl") == lines(whole, "episodes.jsonl")
    a, b = (json.loads((f / "summary.json").read_text("utf-8")) for f in (folder, whole))
    assert timeless(a) == timeless(b)


# ---------------------------------------------------------------------- processes to be killed


@cache
def _processes() -> ForkServerContext:
    """Processes that have the imports behind them when they start, and share nothing with us."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["inwit.train", "peft", "safetensors.torch"])
    return context


def in_process(work: Callable[..., object], *arguments: object) -> BaseProcess:
    """Start a process of its own, which may be killed."""
    process = _processes().Process(target=work, args=arguments)
    process.start()
    return process


def run_until(recipe: str, out: Path, settings: list[str], doomed: Callable[..., bool]) -> None:
    """Run a recipe, or go on with it, and die by SIGKILL as soon as `doomed(event, *args)` holds.

    The events are Python's audit events, each raised before what it names happens.
    """

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if doomed(event, *arguments):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.stderr = sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
    sys.addaudithook(hook)
    if (out / "recipe.toml").is_file():
        go_on(out)
    else:
        run(recipe, out, *settings)


def killed(recipe: str, out: Path, settings: list[str], name: str, nth: int) -> None:
    """A run killed when it opens a file of this name for the n-th time."""
    process = in_process(run_until, recipe, out, settings, Opening(name, nth))
    process.join()
    assert process.exitcode == KILLED
    assert not (out / "summary.json").exists()


def newest(out: Path) -> int:
    """The step of the newest whole checkpoint; 0 where there is none."""
    found = [int(path.name.removeprefix("step-")) for path in (out / "checkpoints").glob("step-*")]
    return max(found, default=0)


def count_changes(recipe: str, out: Path, settings: list[str], report: Path) -> None:
    """Run a recipe, and report how many moments `Change` finds in it."""
    change = Change(out, 0)
    run_until(recipe, out, settings, change)
    report.write_text(str(change.seen), encoding="utf-8")


class Opening:
    """Whether a file of this name is opened for the n-th time."""

    def __init__(self, name: str, nth: int) -> None:
        self.name, self.left = name, nth

    def __call__(self, event: str, *arguments: object) -> bool:
        if event != "open" or not str(arguments[0]).endswith(self.name):
            return False
        self.left -= 1
        return self.left == 0


class Change:
    """Whether this is the n-th thing done to the files of a folder; never, if n is 0."""

    def __init__(self, folder: Path, nth: int) -> None:
        self.folder, self.nth, self.seen = str(folder), nth, 0

    def __call__(self, event: str, *arguments: object) -> bool:
        if event not in CHANGES and not (event == "open" and self._inside(arguments[0])):
            return False
        self.seen += 1
        return self.seen == self.nth

    def _inside(self, path: object) -> bool:
        return str(path).startswith(self.folder)
