"""sequential: K attempts each revised once and a vote, against 2K parallel ones (SCoRe, 6.2).

Both arms are asked of every question, and compared twice: at equal generations (2K each), and at
equal sampled tokens, where parallel has as many attempts as fit into what the K pairs took. A
second attempt also reads the first, which neither counts; prompt tokens stand beside the result.
Where an endpoint counts no tokens, there is no comparison at equal tokens.

  vote_finals     the vote of the K second attempts
  vote_all        the vote of all 2K attempts of the K pairs
  vote_parallel   the vote of 2K independent attempts
  vote_parallel_equal_tokens
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from inwit.envs import Task
from inwit.evaluation.measures import Found, Measure, Measures, Transitions, rate, ratio
from inwit.evaluation.protocols.base import Protocol, ProtocolSettings
from inwit.evaluation.protocols.parallel import VoteSettings
from inwit.evaluation.protocols.voting import won
from inwit.evaluation.records import Answer, Record, Trial
from inwit.playing import Stage, fitting
from inwit.rows import Attempt, Episode

MOST = 4
"""Parallel is given up to this many times 2K attempts to use up the tokens of the pairs."""


class Sequential(Protocol):
    Settings: ClassVar[type[ProtocolSettings]] = VoteSettings
    summary: ClassVar = "K attempts each revised once and a vote, against 2K parallel ones"
    prompts: ClassVar = ("solver", "again")
    settings: VoteSettings

    async def ask(self, task: Task, stage: Stage) -> tuple[Trial, ...]:
        k = self.settings.k
        firsts = await stage.first_attempts(task, k, name="sequential")
        pairs = []
        for i, first in enumerate(firsts):
            second = await fitting(stage.again(task, first, 1, i))
            made = (first,) if second is None else (first, second)
            episode = Episode("", task.id, made)
            pairs.append(Trial.of(episode, "sequential", no_room=second is None))
        budget = sum(t.tokens or 0 for t in pairs)
        alone: list[Attempt] = []
        while len(alone) < 2 * k * MOST and (
            len(alone) < 2 * k or sum(a.sampled_tokens for a in alone) < budget
        ):
            alone += await stage.first_attempts(task, 2 * k, name=("parallel", len(alone)))
        parallel = [Trial.of(Episode("", task.id, (a,)), "parallel") for a in alone]
        return (*pairs, *parallel)

    def measures(self, records: Sequence[Record]) -> Found:
        k = self.settings.k

        def parallel(record: Record) -> list[Answer]:
            return [t.answers[0] for t in record.arm("parallel")]

        def pairs(record: Record) -> list[Trial]:
            return record.arm("sequential")

        def finals(record: Record) -> list[bool]:
            return won([t.answers[-1] for t in pairs(record)])

        def equal(record: Record) -> list[bool]:
            if record.tokens is None:
                return []
            budget = sum(t.tokens or 0 for t in pairs(record))
            return won(_within(parallel(record), budget))

        def spare(record: Record) -> bool:
            paired, alone = (
                sum(t.tokens or 0 for t in record.arm(arm)) for arm in ("sequential", "parallel")
            )
            return alone < paired

        def generations(record: Record) -> list[bool]:
            return won(parallel(record)[: 2 * k])

        found: Measures = {
            "vote_finals": rate(records, finals),
            "vote_all": rate(records, lambda r: won([a for t in pairs(r) for a in t.answers])),
            "vote_parallel": rate(records, generations),
            "vote_parallel_equal_tokens": rate(records, equal),
            "finals_over_parallel": _gain(records, generations, finals),
            "finals_over_parallel_equal_tokens": _gain(records, equal, finals),
        }
        capped = sum(spare(record) for record in records)
        note = (
            f"for {capped} questions {MOST} times 2K independent attempts left tokens unused: "
            "there 'equal tokens' are fewer."
        )
        return Found(found, notes=(note,) if capped else ())


def _within(answers: Sequence[Answer], budget: int) -> list[Answer]:
    """The first answers that fit into a budget of sampled tokens; at least one."""
    chosen: list[Answer] = []
    spent = 0
    for answer in answers:
        spent += answer.said.tokens or 0
        if chosen and spent > budget:
            break
        chosen.append(answer)
    return chosen


def _gain(
    records: Sequence[Record],
    before: Callable[[Record], list[bool]],
    after: Callable[[Record], list[bool]],
) -> Measure:
    """The difference of two votes on the same questions, paired."""
    pairs = [(r, b, a) for r in records for b, a in zip(before(r), after(r), strict=False)]
    if len({r.task for r, _, _ in pairs}) == len(pairs):
        return Transitions.of((b, a) for _, b, a in pairs).measures()["delta"]
    return ratio(
        records,
        lambda r: [(float(a) - float(b), 1.0) for b, a in zip(before(r), after(r), strict=False)],
        signed=True,
    )
