"""Tasks of the package reasoning-gym whose questions have one right answer.

The package's own scorers are not used: some evaluate the answer as code, in this process, without a
deadline. So datasets that take other answers than their reference are refused.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from inwit.envs.answers import same_answer, short_answer
from inwit.envs.base import AnswerEnv, EnvSettings, Result, Split, Task
from inwit.errors import InwitError, nearest
from inwit.seeding import derive

ONE_NUMBER = {"products", "chain_sum", "decimal_chain_sum", "gsm_symbolic"}
"""Datasets with a scorer of their own that does no more than compare two numbers."""


class ReasoningGymSettings(EnvSettings):
    dataset: str = Field(description="its name in reasoning-gym, such as products")
    config: dict[str, Any] = Field(default_factory=dict, description="passed to the dataset")
    size: int = Field(2000, ge=1, description="questions generated; repeated ones are dropped")
    seed: int = Field(0, description="of the questions")
    dev: int = Field(50, ge=0, description="distinct questions held out for tuning")
    test: int = Field(50, ge=0, description="distinct questions held out for the end")


class ReasoningGym(AnswerEnv):
    """Generated questions of a reasoning-gym dataset, right if the answer is the reference."""

    Settings = ReasoningGymSettings
    settings: ReasoningGymSettings

    def __init__(self, settings: ReasoningGymSettings) -> None:
        super().__init__(settings)
        self._data = _create(settings)
        self._splits = self._divide()

    def _divide(self) -> dict[Split, list[Task]]:
        """Distinct questions, ordered by a hash of their text: the split is the text's own."""
        s = self.settings
        distinct = {entry["question"]: (i, entry) for i, entry in enumerate(self._data)}
        order = sorted(distinct, key=lambda question: derive(s.seed, question))
        if len(order) <= s.dev + s.test:
            raise InwitError(
                f"reasoning-gym's {s.dataset} gave {len(order)} distinct questions, and "
                f"{s.dev + s.test} are to be held out.",
                "Raise env.size, widen env.config, or hold out fewer.",
            )
        tasks = [
            Task(f"{s.dataset}-{distinct[q][0]}", q, str(distinct[q][1]["answer"]), distinct[q][1])
            for q in order
        ]
        held = s.test + s.dev
        return {
            Split.TEST: tasks[: s.test],
            Split.DEV: tasks[s.test : held],
            Split.TRAIN: tasks[held:],
        }

    def tasks(self, split: Split) -> Sequence[Task]:
        return self._splits[split]

    def grade(self, task: Task, answer: str) -> Result:
        return Result.of(same_answer(answer, task.reference))

    def answer_of(self, task: Task, text: str) -> str:
        return short_answer(text, task.reference)


def _create(settings: ReasoningGymSettings) -> Any:
    if importlib.util.find_spec("reasoning_gym") is None:
        raise InwitError(
            "The environment reasoning_gym needs the package reasoning-gym.",
            "Run: pip install 'inwit[gym]'",
        )
    import reasoning_gym
    from reasoning_gym.dataset import ProceduralDataset
    from reasoning_gym.factory import DATASETS

    if settings.dataset not in DATASETS:
        raise InwitError(
            f"reasoning-gym has no dataset '{settings.dataset}'.",
            nearest(settings.dataset, DATASETS),
        )
    own = DATASETS[settings.dataset][0].score_answer is not ProceduralDataset.score_answer
    if own and settings.dataset not in ONE_NUMBER:
        raise InwitError(
            f"reasoning-gym's {settings.dataset} may take other answers than its reference, and "
            "its scorer is not safe to run on a model's output.",
            "Use a dataset with one right answer, such as products, chain_sum, gcd or lcm.",
        )
    try:
        return reasoning_gym.create_dataset(
            settings.dataset, seed=settings.seed, size=settings.size, **settings.config
        )
    except (AssertionError, TypeError, ValueError) as error:
        raise InwitError(
            f"reasoning-gym's {settings.dataset} refuses env.config: {error}",
            "See its configuration class.",
        ) from error
