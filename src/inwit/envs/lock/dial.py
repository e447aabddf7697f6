"""The dial: its operations, the locks made of them, and their splits. All from one seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from random import Random

from inwit.seeding import rng

DIAL = 10
OPERATIONS = (*(f"+{n}" for n in range(1, DIAL)), "x3", "x7", "x9")
"""Each maps the readings of the dial one to one onto themselves, so no two keys end alike."""


def turn(reading: int, operation: str) -> int:
    """What the dial reads after an operation."""
    n = int(operation[1:])
    return (reading + n if operation[0] == "+" else reading * n) % DIAL


def chain(key: int, operations: Sequence[str]) -> list[int]:
    """The key, then the reading after each operation."""
    readings = [key]
    for operation in operations:
        readings.append(turn(readings[-1], operation))
    return readings


Identity = tuple[frozenset[int], tuple[str, ...], int]


@dataclass(frozen=True)
class Problem:
    """Keys on offer, the operations that the lock performs, and the reading that opens it."""

    keys: tuple[int, ...]
    operations: tuple[str, ...]
    goal: int

    @classmethod
    def draw(cls, r: Random, keys: int, steps: int) -> Problem:
        offered = tuple(r.sample(range(DIAL), keys))
        operations = tuple(r.choices(OPERATIONS, k=steps))
        return cls(offered, operations, goal=chain(r.choice(offered), operations)[-1])

    def chain(self, key: int) -> list[int]:
        return chain(key, self.operations)

    def opens(self, key: int) -> bool:
        return self.chain(key)[-1] == self.goal

    @property
    def right_key(self) -> int:
        """The one key on offer that opens the lock."""
        return next(key for key in self.keys if self.opens(key))

    @property
    def wrong_keys(self) -> list[int]:
        """The other keys, in the order on offer."""
        return [key for key in self.keys if not self.opens(key)]

    @property
    def identity(self) -> Identity:
        """Equal where only the order of the keys differs."""
        return frozenset(self.keys), self.operations, self.goal

    def __str__(self) -> str:
        return f"Keys: {write(self.keys)} Lock: {' '.join(self.operations)} Goal: {self.goal}"


def write(readings: Sequence[int]) -> str:
    return " ".join(map(str, readings))


def count_problems(keys: int, steps: int) -> int:
    """How many locks there are: sets of keys, chains of operations, and which key opens."""
    return comb(DIAL, keys) * int(len(OPERATIONS) ** steps) * keys


@dataclass(frozen=True)
class Problems:
    """Problems by split; no two are equal up to the order of keys, within or across splits."""

    train: tuple[Problem, ...]
    dev: tuple[Problem, ...]
    test: tuple[Problem, ...]

    @classmethod
    def draw(cls, seed: int, sizes: tuple[int, int, int], keys: int, steps: int) -> Problems:
        r = rng(seed, "lock", "problems")
        found: dict[Identity, Problem] = {}
        while len(found) < sum(sizes):
            problem = Problem.draw(r, keys, steps)
            found.setdefault(problem.identity, problem)
        problems = tuple(found.values())
        train, dev, test = sizes
        return cls(
            test=problems[:test],
            dev=problems[test : test + dev],
            train=problems[test + dev : test + dev + train],
        )
