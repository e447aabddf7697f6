"""Methods: algorithms as `collect` and `credit`."""

from inwit.methods.base import Method, MethodSettings
from inwit.registry import Registry

METHODS = Registry(
    kind="method",
    group="inwit.methods",
    base=Method,  # type: ignore[type-abstract]
    built_in={
        "grpo": "inwit.methods.grpo:GRPO",
        "icrl": "inwit.methods.icrl:ICRL",
        "sft": "inwit.methods.sft:SFT",
    },
)
known_methods = METHODS.known
method_class = METHODS.find

__all__ = ["METHODS", "Method", "MethodSettings", "known_methods", "method_class"]
