"""The grader: equal answers told from others, with workers for what needs a parser."""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future
from functools import cache
from threading import Lock
from typing import Self

from inwit.envs.math.grading import Allowed, same_at_sight
from inwit.envs.math.texts import LONGEST, balanced, plain, tidy, wordy
from inwit.envs.math.workers import Outcome, Pool

REMEMBERED = 100_000
"""Verdicts that are kept, so that equal answers of a group are graded once."""

EXACTLY = Allowed()

Asked = tuple[str, str, Allowed]


class GradingFailed(RuntimeError):
    """The grader broke: no verdict, which is not the same as a wrong answer."""


class Grader:
    """Whether answers equal golds. Usable alone, from any thread, plainly or with `await`.

    An answer that cannot be read within the deadline or the memory is wrong.

    Args:
        seconds: processor time that one grading may take.
        memory: bytes that a worker may take.
        workers: how many processes; as many as processors, if not told.
    """

    def __init__(
        self, seconds: float = 5.0, memory: int = 2**30, workers: int | None = None
    ) -> None:
        self._pool = Pool("inwit.envs.math.grading:run", seconds, memory, workers)
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._known: OrderedDict[Asked, Future[Outcome]] = OrderedDict()
        self._lock = Lock()

    @classmethod
    @cache
    def shared(cls, seconds: float = 5.0, workers: int | None = None) -> Self:
        """The process's own, so that environments do not each start workers."""
        return cls(seconds, workers=workers)

    def grade(self, gold: str, answer: str, allowed: Allowed = EXACTLY) -> bool:
        """Whether a final answer equals the gold. Raises GradingFailed where the grader broke."""
        at_sight = same_at_sight(gold, answer, allowed)
        return (
            at_sight if at_sight is not None else _right(self._ask(gold, answer, allowed).result())
        )

    async def agrade(self, gold: str, answer: str, allowed: Allowed = EXACTLY) -> bool:
        """As `grade`, without holding up the event loop."""
        at_sight = same_at_sight(gold, answer, allowed)
        if at_sight is not None:
            return at_sight
        return _right(await asyncio.wrap_future(self._ask(gold, answer, allowed)))

    def unreadable(self, golds: Iterable[str]) -> dict[str, str]:
        """Those that no answer could be compared with, and why."""
        found = {gold: why for gold in golds if (why := _flaw(gold))}
        read = [g for g in golds if g not in found and plain(tidy(g)) is None and not wordy(g)]
        asked = {gold: self._pool.submit([gold]) for gold in read}
        for gold, future in asked.items():
            outcome = future.result()
            if outcome.kind != "done":
                found[gold] = outcome.why or "it cannot be read in the time and memory allowed"
        return found

    def close(self) -> None:
        """End the workers. A later grading starts new ones."""
        self._pool.close()

    def _ask(self, gold: str, answer: str, allowed: Allowed) -> Future[Outcome]:
        asked = gold, answer, allowed
        if self._process != os.getpid():  # forked: what is under way is the parent's
            self._begin()
        with self._lock:
            known = self._known.get(asked)
            if known is not None and not (known.done() and known.result().kind == "broken"):
                self._known.move_to_end(asked)
                return known
            job = [gold, answer, allowed.relative, allowed.absolute]
            future = self._known[asked] = self._pool.submit(job)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
            return future


def _flaw(gold: str) -> str:
    if not tidy(gold):
        return "the gold is empty"
    if len(gold) > LONGEST:
        return f"the gold has more than {LONGEST} characters"
    return "" if balanced(gold) else "the gold's brackets do not match"


def _right(outcome: Outcome) -> bool:
    if outcome.kind == "broken":
        raise GradingFailed(outcome.why)
    return outcome.kind == "done" and bool(outcome.value)
