"""The tinker engine: sampling and learning at any server that speaks the Tinker protocol.

`engine` needs the package `tinker` (the extra of that name); the settings do not.
"""

from inwit.engines.tinker.settings import TinkerSettings

__all__ = ["TinkerSettings"]
