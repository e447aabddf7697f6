"""Environments, by name: built in, from an installed package, or from a file of the user's."""

from __future__ import annotations

import importlib
import importlib.util
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from inwit.envs.base import (
    AnswerEnv,
    Demonstration,
    Env,
    EnvSettings,
    Play,
    Result,
    Split,
    Step,
    Task,
)
from inwit.errors import InwitError, nearest

BUILT_IN = {
    "checkout": "inwit.envs.checkout:Checkout",
    "questions": "inwit.envs.questions:Questions",
    "reasoning_gym": "inwit.envs.gym:ReasoningGym",
}


def known_envs() -> dict[str, str]:
    """Name -> where it is, of every environment that can be named in a recipe."""
    return BUILT_IN | {e.name: e.value for e in entry_points(group="inwit.envs")}


def env_class(name: str) -> type[Env]:
    """The environment called `name`, or `path/to/file.py:Class`; InwitError if there is none."""
    where = name if ".py:" in name else known_envs().get(name)
    if where is None:
        raise InwitError(f"No environment is called '{name}'.", nearest(name, known_envs()))
    module_name, _, attribute = where.rpartition(":")
    module = _module(module_name)
    found = getattr(module, attribute, None)
    if not (isinstance(found, type) and issubclass(found, Env)):
        raise InwitError(f"'{where}' is not an environment.", "It must derive from inwit.envs.Env.")
    return found


def _module(name: str) -> ModuleType:
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = Path(name)
    if not path.is_file():
        raise InwitError(f"There is no file '{name}'.", "Give the path of the environment's file.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


__all__ = [
    "AnswerEnv",
    "Demonstration",
    "Env",
    "EnvSettings",
    "Play",
    "Result",
    "Split",
    "Step",
    "Task",
    "env_class",
    "known_envs",
]
