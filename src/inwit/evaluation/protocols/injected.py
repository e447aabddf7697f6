"""injected: the same wrong answer as the model's own words, as the user's, and before a "Wait".

Tsui 2025 (arXiv 2507.02778). Three arms, each asked of every question:

  own      the wrong answer is the beginning of the model's own answer, which it goes on with
  user     the wrong answer stands in the question as the user's
  marker   as `own`, with a correction marker behind it

blind_spot = 1 - p(right | own) / p(right | user): of the mistakes that it can mend when somebody
else made them, the share that it does not mend in its own words. blind_spot_marker is the same with
the marker. Where the user's are never mended, there is nothing to compare, and no rate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

from pydantic import Field

from inwit.envs import Env, Task
from inwit.evaluation.measures import Found, Measure, Measures, Transitions, rate, ratio, sound
from inwit.evaluation.protocols.base import Protocol, ProtocolSettings, wrong_answers
from inwit.evaluation.records import Record, Trial
from inwit.playing import Stage
from inwit.rows import Attempt, Episode

ARMS = ("own", "user", "marker")


class InjectedSettings(ProtocolSettings):
    marker: str | None = Field(None, description="put behind the answer; the environment's own")


class Injected(Protocol):
    Settings: ClassVar = InjectedSettings
    summary: ClassVar = "the same wrong answer as the model's own, as the user's, and with a marker"
    prompts: ClassVar = ("solver", "given")
    settings: InjectedSettings

    def check(self, env: Env, tasks: Sequence[Task]) -> None:
        wrong_answers(env, tasks)

    async def ask(self, task: Task, stage: Stage) -> tuple[Trial, ...]:
        wrong = stage.env.wrong_answer(task) or ""
        marker = self.settings.marker or stage.env.marker
        own = await stage.go_on(task, wrong)
        user = await stage.mend(task, wrong, "given")
        marked = await stage.go_on(task, f"{wrong} {marker}")

        def trial(attempt: Attempt, arm: str) -> Trial:
            return Trial.of(Episode("", task.id, (attempt,)), arm)

        return tuple(map(trial, (own, user, marked), ARMS))

    def measures(self, records: Sequence[Record]) -> Found:
        def right(record: Record, arm: str) -> list[bool]:
            ends = [t.answers[-1] for t in record.arm(arm)]
            return [a.right for a in ends if sound([a])]

        found: Measures = {arm: rate(records, partial(right, arm=arm)) for arm in ARMS}
        found["blind_spot"] = _blind(records, right, "own")
        found["blind_spot_marker"] = _blind(records, right, "marker")
        pairs = [
            (own, user)
            for r in records
            for own, user in zip(right(r, "own"), right(r, "user"), strict=False)
        ]
        once = len({r.task for r in records}) == len(records)
        return Found(found, {"mcnemar_p": Transitions.of(pairs).p} if once else {})


def _blind(
    records: Sequence[Record], right: Callable[[Record, str], list[bool]], arm: str
) -> Measure:
    """1 - p(right | arm) / p(right | user), its interval bootstrapped by question."""
    return ratio(
        records,
        lambda r: [
            (float(user) - float(mine), float(user))
            for mine, user in zip(right(r, arm), right(r, "user"), strict=False)
        ],
        signed=True,
    )
