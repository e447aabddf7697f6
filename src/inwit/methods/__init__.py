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
        "multi_turn_rl": "inwit.methods.multi_turn_rl:MultiTurnRL",
        "pair_sft": "inwit.methods.pair_sft:PairSFT",
        "rloo": "inwit.methods.rloo:RLOO",
        "score": "inwit.methods.score:SCoRe",
        "sft": "inwit.methods.sft:SFT",
        "star": "inwit.methods.star:STaR",
    },
)
known_methods = METHODS.known
method_class = METHODS.find

__all__ = ["METHODS", "Method", "MethodSettings", "known_methods", "method_class"]
