"""From names in a recipe to classes: built in, from an installed package, or from a file."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Generic, TypeVar

from inwit.errors import InwitError, nearest

T = TypeVar("T")


@dataclass(frozen=True)
class Registry(Generic[T]):
    """What can be named, and where it is.

    Attributes:
        kind: what its members are called in errors, such as `method`.
        group: the entry point group that installed packages declare theirs under.
        base: the class that every member derives from.
        built_in: name -> `module:Class`.
    """

    kind: str
    group: str
    base: type[T]
    built_in: Mapping[str, str]

    def known(self) -> dict[str, str]:
        """Name -> where it is, of everything that can be named."""
        installed = {e.name: e.value for e in entry_points(group=self.group)}
        return installed | dict(self.built_in)

    def find(self, name: str) -> type[T]:
        """The class called `name`, or `path/to/file.py:Class`; InwitError if there is none."""
        where = name if ".py:" in name else self.known().get(name)
        if where is None:
            raise InwitError(f"No {self.kind} is called '{name}'.", nearest(name, self.known()))
        module, _, attribute = where.rpartition(":")
        try:
            found = getattr(_module(module), attribute, None)
        except InwitError:
            raise
        except Exception as error:
            raise InwitError(
                f"The {self.kind} '{name}' cannot be imported from {module}: "
                f"{type(error).__name__}: {error}",
                "Mend that module, or install what it needs.",
            ) from error
        if not (isinstance(found, type) and issubclass(found, self.base)):
            raise InwitError(
                f"'{where}' is not an inwit {self.kind}.",
                f"It must derive from {self.base.__module__}.{self.base.__name__}.",
            )
        return found


def _module(name: str) -> ModuleType:
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = Path(name)
    if not path.is_file():
        raise InwitError(f"There is no file '{name}'.", "Check the path.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
