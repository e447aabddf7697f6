"""reflexion: a failed attempt is reflected on with the environment's feedback; then a fresh try.

Shinn et al. 2023 (arXiv 2303.11366): the model is told that it failed and what the environment
says, writes a reflection, and tries again with its last reflections in view. It stops on success,
so right answers cannot be spoiled; not to be ranked beside `intrinsic`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from inwit.envs import Task
from inwit.evaluation.protocols.base import Following
from inwit.evaluation.records import Trial
from inwit.playing import Stage, fitting
from inwit.rows import Critique, Episode, Grade

REMEMBERED = 3
"""Reflections that are kept in view (section 3 of the paper: one to three)."""


class Reflexion(Following):
    summary: ClassVar = "failures are reflected on with the environment's feedback, and retried"
    prompts: ClassVar = ("solver", "reflection", "revision")

    async def ask(self, task: Task, stage: Stage) -> tuple[Trial, ...]:
        attempts = await stage.first_attempts(task, 1)
        reflections: list[Critique] = []
        for turn in range(1, self.settings.turns):
            last = attempts[-1]
            if last.grade is not Grade.WRONG:
                break
            said = await fitting(stage.criticise(task, last, turn - 1, 0, prompt="reflection"))
            if said is None:
                break
            memory = [c.text for c in (*reflections, said)[-REMEMBERED:]]
            remembered = replace(said, text="\n".join(memory))
            retry = await fitting(stage.revise(task, remembered, turn, 0))
            if retry is None:
                break
            reflections.append(said)
            attempts.append(retry)
        return (Trial.of(Episode("", task.id, tuple(attempts), tuple(reflections))),)
