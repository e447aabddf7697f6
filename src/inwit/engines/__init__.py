"""Engines: what samples, scores and learns. All of them keep the contract in `base`."""

from inwit.engines.base import (
    Engine,
    EngineLost,
    OptimizerSettings,
    Policy,
    Sampling,
    UpdateStats,
)

__all__ = ["Engine", "EngineLost", "OptimizerSettings", "Policy", "Sampling", "UpdateStats"]
