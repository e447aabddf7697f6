"""Environments: tasks, plays and grades."""

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
from inwit.registry import Registry

ENVS = Registry(
    kind="environment",
    group="inwit.envs",
    base=Env,  # type: ignore[type-abstract]
    built_in={
        "checkout": "inwit.envs.checkout:Checkout",
        "lock": "inwit.envs.lock:Lock",
        "questions": "inwit.envs.questions:Questions",
        "reasoning_gym": "inwit.envs.gym:ReasoningGym",
    },
)
known_envs = ENVS.known
env_class = ENVS.find

__all__ = [
    "ENVS",
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
