"""Trackers: numbers go where the recipe says, and a missing package is named."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inwit.errors import InwitError
from inwit.recipe import load_recipe
from inwit.tracking import TRACKERS, check_trackers, open_trackers
from inwit.train import train
from tests.conftest import RECIPES, ROOT, Silent, lines, run

MODULES = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb", "trackio": "trackio"}


class Recorder:
    """Stands in for a tracking service: remembers every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def init(self, **settings: Any) -> Recorder:
        self.calls.append(("init", settings))
        return self

    def log(self, values: dict[str, float], step: int) -> None:
        self.calls.append(("log", {"step": step, **values}))

    def finish(self) -> None:
        self.calls.append(("finish", {}))


@pytest.fixture(params=["wandb", "trackio"])
def service(request, monkeypatch) -> tuple[str, Recorder]:
    recorder = Recorder()
    monkeypatch.setitem(sys.modules, request.param, recorder)
    return request.param, recorder


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_package_is_named_with_its_extra(name, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, MODULES[name], None)
    for attempt in (lambda: check_trackers([name]), lambda: open_trackers([name], tmp_path, {})):
        with pytest.raises(InwitError) as error:
            attempt()
        assert error.value.fix == f"Run: pip install 'inwit[{name}]'"
    assert list(tmp_path.iterdir()) == []


def test_the_extras_exist():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(TRACKERS) <= set(project["optional-dependencies"])


def test_no_tracker_is_no_trouble(tmp_path):
    check_trackers([])
    assert open_trackers([], tmp_path, {}) == []


def test_a_service_gets_the_recipe_the_numbers_and_an_end(service, tmp_path):
    name, recorder = service
    [tracker] = open_trackers([name], tmp_path / "my-run", {"seed": 3})
    tracker.log(1, {"loss": 0.5})
    tracker.log(2, {"loss": 0.25, "lr": 1e-3})
    tracker.close()
    (_, settings), *calls = recorder.calls
    assert (settings["project"], settings["name"]) == ("inwit", "my-run")
    assert settings["config"] == {"seed": 3}
    assert calls == [
        ("log", {"step": 1, "loss": 0.5}),
        ("log", {"step": 2, "loss": 0.25, "lr": 1e-3}),
        ("finish", {}),
    ]


def test_a_run_tracks_every_number_of_every_step(service, model, tmp_path):
    name, recorder = service
    run("debug-icrl", tmp_path / "run", f"model.path={model}", f"tracking=['{name}']")
    assert [what for what, _ in recorder.calls].count("finish") == 1
    assert recorder.calls[0][1]["config"]["method"]["name"] == "icrl"
    logged = [values for what, values in recorder.calls if what == "log"]
    steps = [values for values in logged if "loss" in values]
    for line, values in zip(lines(tmp_path / "run", kind="train"), steps, strict=True):
        numbers = {k: v for k, v in line.items() if isinstance(v, int | float)}
        assert values == pytest.approx(numbers)
        assert all(isinstance(v, int | float) for v in values.values())  # what is absent is absent
    dev = [v for v in logged if "dev/a1" in v]
    found = lines(tmp_path / "run", kind="eval", split="dev")
    for line, values in zip(found, dev, strict=True):
        known = {k: m["value"] for k, m in line["measures"].items() if m["value"] is not None}
        assert values == {"step": line["step"], **{f"dev/{k}": v for k, v in known.items()}}
        assert {"dev/a1", "dev/a2", "dev/delta"} <= set(values)


def test_a_run_that_breaks_off_closes_its_trackers(service, model, tmp_path):
    name, recorder = service
    settings = [f"model.path={model}", f"tracking=['{name}']", "train.min_effective_share=1.0"]
    with pytest.raises(InwitError):
        run("debug-icrl", tmp_path / "run", *settings)
    assert recorder.calls[-1] == ("finish", {})
    assert sum("loss" in values for _, values in recorder.calls) >= 1


def read_back(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_tensorboard_can_read_what_was_written(model, tmp_path):
    pytest.importorskip("tensorboard")
    recipe = load_recipe(
        RECIPES / "debug-grpo.toml",
        [f"model.path={model}", "tracking=['tensorboard']", "train.steps=3", "eval.every=3"],
    )
    train(recipe, tmp_path / "run", Silent())
    found = read_back(tmp_path / "run" / "tensorboard")
    steps = lines(tmp_path / "run", kind="train")
    for key in ("loss", "entropy", "reward/first", "total/sampled_tokens", "seconds/sample"):
        expected = [(line["step"], pytest.approx(line[key], rel=1e-5)) for line in steps]
        assert found[key] == expected, key
    dev = lines(tmp_path / "run", kind="eval", split="dev")
    assert found["dev/a1"] == [
        (line["step"], pytest.approx(line["measures"]["a1"]["value"])) for line in dev
    ]
    assert "weight_mean" not in found  # grpo has none


def test_tensorboard_writes_into_the_runs_folder(monkeypatch, tmp_path):
    """With its writer replaced, where the package is not installed."""
    written: list[tuple[object, ...]] = []
    writer = SimpleNamespace(
        add_scalar=lambda *a: written.append(a), close=lambda: written.append(("closed",))
    )

    def make(folder: str) -> SimpleNamespace:
        written.append((folder,))
        return writer

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=make))
    [tracker] = open_trackers(["tensorboard"], tmp_path, {})
    tracker.log(7, {"loss": 0.5, "lr": 0.1})
    tracker.close()
    assert written == [
        (str(tmp_path / "tensorboard"),),
        ("loss", 0.5, 7),
        ("lr", 0.1, 7),
        ("closed",),
    ]
