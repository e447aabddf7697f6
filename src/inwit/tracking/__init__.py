"""Where numbers go besides `metrics.jsonl`: TensorBoard, Weights & Biases, trackio."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

from inwit.errors import InwitError


class Tracker(Protocol):
    """Takes one step's numbers; `None` means that there was nothing to measure."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


class TensorBoard:
    needs: ClassVar[tuple[str, str]] = ("torch.utils.tensorboard", "tensorboard")

    def __init__(self, folder: Path, recipe: Mapping[str, Any]) -> None:
        del recipe
        self._writer = _import(*self.needs).SummaryWriter(str(folder / "tensorboard"))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WandB:
    needs: ClassVar[tuple[str, str]] = ("wandb", "wandb")

    def __init__(self, folder: Path, recipe: Mapping[str, Any]) -> None:
        self._run = _import(*self.needs).init(
            project="inwit", name=folder.name, dir=str(folder), config=dict(recipe)
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class Trackio:
    needs: ClassVar[tuple[str, str]] = ("trackio", "trackio")

    def __init__(self, folder: Path, recipe: Mapping[str, Any]) -> None:
        self._trackio = _import(*self.needs)
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


def check_trackers(names: Sequence[str]) -> None:
    """Raises InwitError where a tracker's package is missing."""
    for name in names:
        _import(*TRACKERS[name].needs)


def open_trackers(names: Sequence[str], folder: Path, recipe: Mapping[str, Any]) -> list[Tracker]:
    """The trackers a recipe asks for."""
    return [TRACKERS[name](folder, recipe) for name in names]


def numbers(line: Mapping[str, Any]) -> dict[str, float]:
    """What a tracker takes of a line of the log."""
    return {k: v for k, v in line.items() if isinstance(v, (int, float)) and k != "step"}
