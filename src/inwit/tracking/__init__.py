"""Where numbers go besides `metrics.jsonl`: TensorBoard, Weights & Biases, trackio."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from inwit.errors import InwitError


class Tracker(Protocol):
    """Takes one step's numbers; `None` means that there was nothing to measure."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


class TensorBoard:
    def __init__(self, folder: Path, recipe: Mapping[str, Any]) -> None:
        del recipe
        self._writer = _import("torch.utils.tensorboard", "tensorboard").SummaryWriter(
            str(folder / "tensorboard")
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WandB:
    def __init__(self, folder: Path, recipe: Mapping[str, Any]) -> None:
        self._run = _import("wandb", "wandb").init(
            project="inwit", name=folder.name, dir=str(folder), config=dict(recipe)
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class Trackio:
    def __init__(self, folder: Path, recipe: Mapping[str, Any]) -> None:
        self._trackio = _import("trackio", "trackio")
        self._trackio.init(project="inwit", name=folder.name, config=dict(recipe))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._trackio.log(dict(values), step=step)

    def close(self) -> None:
        self._trackio.finish()


TRACKERS: dict[str, type[TensorBoard | WandB | Trackio]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "trackio": Trackio,
}


def _import(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InwitError(
            f"Tracking to {extra} needs its package.", f"Run: pip install 'inwit[{extra}]'"
        ) from error


def open_trackers(names: Sequence[str], folder: Path, recipe: Mapping[str, Any]) -> list[Tracker]:
    """The trackers a recipe asks for. Raises InwitError where a package is missing."""
    return [TRACKERS[name](folder, recipe) for name in names]
