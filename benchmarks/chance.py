"""Answers that are right by chance: whole training steps of a model that has learned nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from benchmarks.models import model_folder, prompts
from inwit.envs import Env, EnvSettings, Play, Result, Split, Step, Task


class ChanceSettings(EnvSettings):
    """Questions of so many tokens, right at this rate, for the model called so here."""

    model: str = "3.2M"
    tasks: int = 256
    tokens: int = 60
    rate: float = 0.3


class Guess(Play):
    def __init__(self, rate: float) -> None:
        self._rate = rate

    async def step(self, action: str) -> Step:
        drawn = int.from_bytes(hashlib.sha256(action.encode()).digest()[:4]) / 2**32
        return Step(result=Result.of(drawn < self._rate))


class Chance(Env):
    """See `ChanceSettings`; the same answer is always graded alike."""

    Settings = ChanceSettings
    settings: ChanceSettings

    def __init__(self, settings: ChanceSettings) -> None:
        super().__init__(settings)
        texts = prompts(model_folder(settings.model), settings.tasks, settings.tokens)
        self._tasks = [Task(str(i), text) for i, text in enumerate(texts)]

    def tasks(self, split: Split) -> Sequence[Task]:
        return self._tasks[: len(self._tasks) if split is Split.TRAIN else 1]

    def open(self, task: Task) -> Play:  # noqa: ARG002
        return Guess(self.settings.rate)
