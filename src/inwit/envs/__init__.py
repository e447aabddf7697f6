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
from inwit.envs.records import BadRecord, BrokenData, FileEnv, FileSettings, Record
from inwit.registry import Registry

ENVS = Registry(
    kind="environment",
    group="inwit.envs",
    base=Env,  # type: ignore[type-abstract]
    built_in={
        "checkout": "inwit.envs.checkout:Checkout",
        "code": "inwit.envs.code:Code",
        "lock": "inwit.envs.lock:Lock",
        "math": "inwit.envs.math:Math",
        "questions": "inwit.envs.questions:Questions",
        "reasoning_gym": "inwit.envs.gym:ReasoningGym",
        "search_qa": "inwit.envs.search:SearchQA",
    },
)
known_envs = ENVS.known
env_class = ENVS.find

__all__ = [
    "ENVS",
    "AnswerEnv",
    "BadRecord",
    "BrokenData",
    "Demonstration",
    "Env",
    "EnvSettings",
    "FileEnv",
    "FileSettings",
    "Play",
    "Record",
    "Result",
    "Split",
    "Step",
    "Task",
    "env_class",
    "known_envs",
]
