"""Methods, by name: built in, or from an installed package that declares `inwit.methods`."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points

from inwit.errors import InwitError, nearest
from inwit.methods.base import Method, MethodSettings

BUILT_IN = {
    "grpo": "inwit.methods.grpo:GRPO",
    "icrl": "inwit.methods.icrl:ICRL",
    "sft": "inwit.methods.sft:SFT",
}


def known_methods() -> dict[str, str]:
    """Name -> where it is, of every method that can be named in a recipe."""
    return BUILT_IN | {e.name: e.value for e in entry_points(group="inwit.methods")}


def method_class(name: str) -> type[Method]:
    """The method called `name`. Raises InwitError if there is none."""
    where = known_methods().get(name)
    if where is None:
        raise InwitError(f"No method is called '{name}'.", nearest(name, known_methods()))
    module, _, attribute = where.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise InwitError(f"'{where}' is not a method.", "It must derive from inwit.methods.Method.")
    return found


__all__ = ["Method", "MethodSettings", "known_methods", "method_class"]
