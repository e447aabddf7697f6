"""Which training tasks a step asks."""

from __future__ import annotations

from collections.abc import Sequence

from inwit import seeding
from inwit.envs import Task


class Queries:
    """The tasks of each step: a fresh shuffle of all of them each time through.

    Args:
        n: tasks in a step.
    """

    def __init__(self, tasks: Sequence[Task], n: int, seed: int) -> None:
        self._tasks, self._n, self._seed = tasks, n, seed
        self._order: tuple[int, list[int]] = (-1, [])

    def of(self, step: int) -> list[Task]:
        """A step's tasks.

        One that two times through put into one step is asked once: its samples would be equal.
        """
        chosen: dict[int, Task] = {}
        for position in range(step * self._n, (step + 1) * self._n):
            epoch, place = divmod(position, len(self._tasks))
            if self._order[0] != epoch:
                order = list(range(len(self._tasks)))
                seeding.rng(self._seed, "order", epoch).shuffle(order)
                self._order = (epoch, order)
            index = self._order[1][place]
            chosen[index] = self._tasks[index]
        return list(chosen.values())
