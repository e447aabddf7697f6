"""Information conditions: what a prompt may show, enforced where the prompt is built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from inwit.errors import ForbiddenField
from inwit.rows import Condition, Sees

SOLVER_SEES: Condition = frozenset({Sees.QUESTION})
REVISION_SEES: Condition = frozenset({Sees.QUESTION, Sees.CRITIQUE})
CRITIC_SEES: Condition = frozenset({Sees.QUESTION, Sees.ATTEMPT, Sees.OUTCOME})
"""A critic that is called on failures only knows the outcome, whether or not its prompt says so."""

CONDITIONS: dict[str, Condition] = {
    "solver": SOLVER_SEES,
    "revision": REVISION_SEES,
    "critic": CRITIC_SEES,
}
"""What each prompt may show, unless a method says otherwise."""


class View(Mapping[str, str]):
    """The fields of one prompt behind the condition that it is built under.

    Reading a field that the condition forbids raises `ForbiddenField`, whatever the prompt's text
    asks for; so a leak is an error where it would happen, not a property to be checked afterwards.
    """

    def __init__(self, condition: Condition, fields: Mapping[Sees, str]) -> None:
        self.condition = condition
        self._fields = dict(fields)

    def __getitem__(self, name: str) -> str:
        field = Sees(name)
        if field not in self.condition:
            allowed = ", ".join(sorted(self.condition))
            raise ForbiddenField(
                f"A prompt asks for '{name}', but its condition allows only: {allowed}.",
                "Take the field out of the prompt's text, or widen the condition in the recipe.",
            )
        return self._fields[field]

    def __iter__(self) -> Iterator[str]:
        return (str(field) for field in self._fields if field in self.condition)

    def __len__(self) -> int:
        return sum(field in self.condition for field in self._fields)
