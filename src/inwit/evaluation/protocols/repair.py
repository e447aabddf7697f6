"""repair: a given wrong answer or program is to be mended, knowing that it is wrong.

The kind of task that MBPP-R is. The mistakes are somebody else's and fixed: a model may mend these
and still spoil its own answers, so this says nothing of `intrinsic` (SCoRe, table 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from inwit.envs import Env, Task
from inwit.evaluation.measures import Found, accuracy
from inwit.evaluation.protocols.base import Protocol, wrong_answers
from inwit.evaluation.records import Record, Trial
from inwit.playing import Stage
from inwit.rows import Episode


class Repair(Protocol):
    summary: ClassVar = "a given wrong answer is to be mended"
    prompts: ClassVar = ("repair",)

    def check(self, env: Env, tasks: Sequence[Task]) -> None:
        wrong_answers(env, tasks)

    async def ask(self, task: Task, stage: Stage) -> tuple[Trial, ...]:
        mended = await stage.mend(task, stage.env.wrong_answer(task) or "", "repair")
        return (Trial.of(Episode("", task.id, (mended,))),)

    def measures(self, records: Sequence[Record]) -> Found:
        return Found({"repaired": accuracy(records, lambda r: r.answers)})
