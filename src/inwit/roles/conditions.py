"""Information conditions: what a prompt may show, enforced where the prompt is built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from inwit.errors import ForbiddenField
from inwit.rows import Condition, Sees

CRITIC_SEES: Condition = frozenset({Sees.QUESTION, Sees.ATTEMPT, Sees.OUTCOME})
"""A critic that is called on failures only knows the outcome, whether or not its prompt says so."""

CONDITIONS: dict[str, Condition] = {
    "solver": frozenset({Sees.QUESTION}),
    "again": frozenset({Sees.QUESTION, Sees.ATTEMPT}),
    "revision": frozenset({Sees.QUESTION, Sees.CRITIQUE}),
    "refine": frozenset({Sees.QUESTION, Sees.ATTEMPT, Sees.CRITIQUE}),
    "repair": frozenset({Sees.QUESTION, Sees.ATTEMPT, Sees.OUTCOME}),
    "given": frozenset({Sees.QUESTION, Sees.ATTEMPT}),
    "critic": CRITIC_SEES,
    "feedback": frozenset({Sees.QUESTION, Sees.ATTEMPT}),
    "reflection": CRITIC_SEES | {Sees.FEEDBACK},
}
"""What each prompt may show, unless a method says otherwise.

`solver`      the question alone
`again`       the fixed instruction of a second attempt, in the same conversation: it says nothing
              of correctness
`revision`    a fresh attempt after a critique; `refine` one that also shows the attempt before it
`repair`      a wrong answer to be mended, and that it is wrong
`given`       an answer as the user's own
`critic`      called on failures; `feedback` on any attempt, not knowing its outcome (Self-Refine);
              `reflection` knows the environment's feedback, too (Reflexion)
"""


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
        if field not in self._fields:
            raise ForbiddenField(
                f"A prompt asks for '{name}', and there is none where it is shown.",
                f"Here there are only: {', '.join(sorted(self._fields))}.",
            )
        return self._fields[field]

    def __iter__(self) -> Iterator[str]:
        return (str(field) for field in self._fields if field in self.condition)

    def __len__(self) -> int:
        return sum(field in self.condition for field in self._fields)
