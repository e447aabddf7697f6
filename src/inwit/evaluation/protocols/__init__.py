"""Protocols: what is asked of a model when it is measured, one file each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from inwit.errors import InwitError
from inwit.evaluation.protocols.base import Protocol, ProtocolSettings
from inwit.registry import Registry

PROTOCOLS = Registry(
    kind="protocol",
    group="inwit.protocols",
    base=Protocol,  # type: ignore[type-abstract]
    built_in={
        "direct": "inwit.evaluation.protocols.direct:Direct",
        "intrinsic": "inwit.evaluation.protocols.intrinsic:Intrinsic",
        "critique": "inwit.evaluation.protocols.critique:CritiqueFailures",
        "self-refine": "inwit.evaluation.protocols.self_refine:SelfRefine",
        "reflexion": "inwit.evaluation.protocols.reflexion:Reflexion",
        "repair": "inwit.evaluation.protocols.repair:Repair",
        "injected": "inwit.evaluation.protocols.injected:Injected",
        "parallel": "inwit.evaluation.protocols.parallel:Parallel",
        "sequential": "inwit.evaluation.protocols.sequential:Sequential",
    },
)


def protocol(name: str, options: Mapping[str, Any] | None = None) -> Protocol:
    """The protocol called `name`. Raises InwitError where it or an option does not exist."""
    kind = PROTOCOLS.find(name)
    try:
        return kind(name, kind.Settings.model_validate(options or {}))
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(map(str, problem["loc"]))
        known = ", ".join(kind.Settings.model_fields) or "none"
        raise InwitError(
            f"The protocol '{name}' does not take {key} = {problem['input']!r}: {problem['msg']}.",
            f"Its options: {known}.",
        ) from error


__all__ = ["PROTOCOLS", "Protocol", "ProtocolSettings", "protocol"]
