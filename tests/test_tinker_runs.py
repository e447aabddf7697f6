"""Whole runs through SkyRL's real server: they learn, and what goes wrong changes nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from inwit.errors import InwitError
from inwit.recipe import load_recipe
from inwit.train import train
from tests.conftest import RECIPES, Silent, lines, timeless
from tests.engines.faulty import Fault, Line, Plan
from tests.engines.tinker_server import RANK, Server, missing, serving

pytestmark = pytest.mark.tinker

QUICK = (
    "train.steps=5",
    "eval.every=3",
    "eval.tasks=8",
    "eval.test_at_tokens=[]",
    "train.checkpoint_every=2",
)


@pytest.fixture(scope="module")
def server(model: str) -> Server:
    return serving(Path(model))


def through(
    url: str, model: str, out: Path, *settings: str, recipe: str = "checkout/debug-icrl"
) -> tuple[dict[str, Any], Silent]:
    """A recipe, its engine lines replaced, and nothing else."""
    text = f"""
        extends = "{RECIPES.parent / recipe}.toml"
        [engine]
        name = "tinker"
        url = "{url}"
        rank = {RANK}
        patience = 60
    """
    path = out.with_suffix(".toml")
    path.write_text(text, encoding="utf-8")
    progress = Silent()
    loaded = load_recipe(path, [f"model.path={model}", *settings])
    return train(loaded, out, progress), progress


@pytest.fixture(scope="module")
def whole(server: Server, model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which nothing went wrong."""
    out = tmp_path_factory.mktemp("whole") / "run"
    summary, progress = through(server.url, model, out, *QUICK)
    assert summary["recoveries"] == 0
    assert not [kind for kind, _ in progress.alarms if kind == "engine"]
    return out


def assert_same(out: Path, whole: Path) -> None:
    """Every measure of every step, once each and in order, and every episode."""
    assert [line["step"] for line in lines(out, kind="train")] == [1, 2, 3, 4, 5]
    assert timeless(lines(out)) == timeless(lines(whole))
    assert lines(out, "episodes.jsonl") == lines(whole, "episodes.jsonl")


# ---------------------------------------------------------------------- what goes wrong


def nth(name: str, n: int, fault: Fault) -> Plan:
    return lambda path, count: fault if (path, count) == (name, n) else None


PASSING: dict[str, Plan] = {
    "too many requests": lambda path, n: (
        Fault(status=429) if path in ("forward_backward", "asample") and n in (4, 5) else None
    ),
    "slow answers": lambda path, n: Fault(late=2.0) if n % 7 == 0 else None,
    "a sample's answer lost": nth("asample", 9, Fault(lost=True)),
    "a result's answer lost": nth("retrieve_future", 30, Fault(lost=True)),
    "a result is an error": nth("retrieve_future", 31, Fault(status=500)),
}
"""What is waited out: the session goes on."""


@pytest.mark.parametrize("what", PASSING)
def test_what_passes_is_waited_out(
    what: str, server: Server, model: str, whole: Path, tmp_path: Path
) -> None:
    with Line(server.url, PASSING[what]).open() as line:
        summary, _ = through(line.url, model, tmp_path / "run", *QUICK)
    assert summary["recoveries"] == 0
    assert_same(tmp_path / "run", whole)


# of a run's forward_backward and optim_step, two and three are of setting up
LOSING: dict[str, tuple[str, Plan]] = {
    "gradient sent, answer lost": (
        "forward_backward",
        nth("forward_backward", 2 + 4, Fault(lost=True)),
    ),
    "gradient never sent": ("forward_backward", nth("forward_backward", 2 + 4, Fault(cut=True))),
    "step taken, answer lost": ("optim_step", nth("optim_step", 3 + 4, Fault(lost=True))),
    "an error, who knows when": ("optim_step", nth("optim_step", 3 + 3, Fault(status=500))),
}


@pytest.mark.parametrize("what", LOSING)
def test_nothing_is_trained_twice_or_skipped(
    what: str, server: Server, model: str, whole: Path, tmp_path: Path
) -> None:
    """Where nobody can tell whether a request was carried out, back to the last checkpoint."""
    name, plan = LOSING[what]
    with Line(server.url, plan).open() as line:
        summary, progress = through(line.url, model, tmp_path / "run", *QUICK)
    assert line.seen[name] > 5, "the request was sent once, and again in the new session"
    assert summary["recoveries"] == 1
    assert [kind for kind, _ in progress.alarms if kind == "engine"] == ["engine"]
    assert_same(tmp_path / "run", whole)


def in_between(
    out: Path, step: int, act: Callable[[], None]
) -> tuple[threading.Thread, list[BaseException]]:
    """Act as soon as a run has logged a step."""
    errors: list[BaseException] = []

    def watch() -> None:
        try:
            deadline = time.monotonic() + 200
            while time.monotonic() < deadline:
                if (out / "metrics.jsonl").exists() and len(lines(out, kind="train")) >= step:
                    return act()
                time.sleep(0.02)
            raise TimeoutError("the run did not get there")
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread, errors


def test_a_server_that_is_killed_and_started_again(model: str, whole: Path, tmp_path: Path) -> None:
    """Its adapters and sessions are gone, its checkpoints are not."""
    if why := missing():
        pytest.skip(why)
    own = Server(Path(model), tmp_path / "server")
    own.start()

    def fall() -> None:
        own.kill()
        time.sleep(3)
        own.start()

    try:
        watching, errors = in_between(tmp_path / "run", 3, fall)
        summary, _ = through(own.url, model, tmp_path / "run", *QUICK)
        watching.join()
    finally:
        own.kill()
    assert not errors
    assert summary["recoveries"] >= 1
    assert_same(tmp_path / "run", whole)


def test_a_session_that_expires(server: Server, model: str, whole: Path, tmp_path: Path) -> None:
    """The server takes the adapter away, as it does when a session is silent for too long."""

    def expire() -> None:
        runs = httpx.get(f"{server.url}/api/v1/training_runs?limit=1000").json()["training_runs"]
        for run in runs:
            info = {"model_id": run["training_run_id"]}
            state = httpx.post(f"{server.url}/api/v1/get_info", json=info).json()["status"]
            if state == "created":
                httpx.post(f"{server.url}/api/v1/unload_model", json=info).raise_for_status()

    watching, errors = in_between(tmp_path / "run", 2, expire)
    summary, _ = through(server.url, model, tmp_path / "run", *QUICK)
    watching.join()
    assert not errors
    assert summary["recoveries"] >= 1
    assert_same(tmp_path / "run", whole)


def test_a_server_that_stays_away_ends_the_run(server: Server, model: str, tmp_path: Path) -> None:
    with (
        Line(server.url, lambda path, n: Fault(cut=True)).open() as line,
        pytest.raises(InwitError, match="not there"),
    ):
        through(line.url, model, tmp_path / "run", *QUICK, "engine.patience=1")
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------------- learning


METHODS = (
    "checkout/debug-grpo",
    "checkout/debug-icrl",
    "checkout-again/debug-score",
    "checkout-again/debug-multi_turn_rl",
)


@pytest.mark.parametrize("recipe", METHODS)
def test_methods_run_unchanged(recipe: str, server: Server, model: str, tmp_path: Path) -> None:
    summary, _ = through(server.url, model, tmp_path / "run", "train.steps=2", recipe=recipe)
    assert summary["step"] == 2
    assert (tmp_path / "run" / "model" / "config.json").is_file()
