"""Role prompts as text files.

A file holds messages, each opened by a line `@@ system`, `@@ user` or `@@ assistant`. `{question}`,
`{attempt}`, `{critique}`, `{outcome}`, `{feedback}` and `{reference}` are filled in; `{{` and `}}`
stand for braces. Braces around anything but lower-case letters are left alone, and so are those of
a backslash command, such as `\\boxed{answer}`. A prompt is looked up by name in the recipe's
folder, then the environment's, then here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from inwit.errors import InwitError, nearest
from inwit.rows import Condition, Role, Sees

BUILT_IN = Path(__file__).parent / "prompts"
SPEAKERS = ("system", "user", "assistant")
FIELD = re.compile(r"\\[A-Za-z]+(?:\{\w*\})+|\{\{|\}\}|\{([a-z]+)\}")
ROLE_OF = {
    "solver": Role.SOLVER,
    "again": Role.SOLVER,
    "revision": Role.SOLVER,
    "refine": Role.SOLVER,
    "repair": Role.SOLVER,
    "given": Role.SOLVER,
    "critic": Role.CRITIC,
    "feedback": Role.CRITIC,
    "reflection": Role.CRITIC,
}
"""Every prompt by name, and who speaks under it."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's messages as (speaker, text) with its fields still open."""

    name: str
    messages: tuple[tuple[str, str], ...]

    @property
    def role(self) -> Role:
        return ROLE_OF[self.name]

    @property
    def fields(self) -> frozenset[Sees]:
        texts = (text for _, text in self.messages)
        return frozenset(Sees(m[1]) for text in texts for m in FIELD.finditer(text) if m[1])

    def filled(self, view: Mapping[str, str]) -> list[tuple[str, str]]:
        """The messages as (speaker, text), for a model that is spoken to in text."""

        def fill(match: re.Match[str]) -> str:
            if match[1]:
                return view[match[1]]
            return match[0][0] if match[0] in ("{{", "}}") else match[0]

        return [(speaker, FIELD.sub(fill, text)) for speaker, text in self.messages]

    def instruction(self, view: Mapping[str, str]) -> str:
        """The text of a prompt that only goes on a conversation: one user message."""
        filled = self.filled(view)
        if [speaker for speaker, _ in filled] != ["user"]:
            raise InwitError(
                f"The prompt '{self.name}' goes on a conversation: it must be one user message.",
                "Write one '@@ user' message and nothing else.",
            )
        return filled[0][1]

    def check(self, condition: Condition) -> None:
        """Raise InwitError if the text asks for more than the condition allows."""
        if forbidden := self.fields - condition:
            raise InwitError(
                f"The prompt '{self.name}' shows {', '.join(sorted(forbidden))}, which its "
                f"condition ({', '.join(sorted(condition))}) forbids.",
                "Take the field out of the prompt's text, or widen the condition in the recipe.",
            )


def parse_prompt(name: str, text: str, where: str) -> Prompt:
    """Messages from a prompt's text; InwitError names the file and what is wrong with it."""
    messages: list[tuple[str, str]] = []
    before, *parts = re.split(r"^@@ *", text, flags=re.MULTILINE)
    if before.strip():
        raise InwitError(
            f"{where}: there is text before the first message.", "Open it with '@@ system'."
        )
    for part in parts:
        speaker, _, body = part.partition("\n")
        if speaker.strip() not in SPEAKERS:
            raise InwitError(
                f"{where}: no speaker is called '{speaker.strip()}'.",
                nearest(speaker.strip(), SPEAKERS),
            )
        messages.append((speaker.strip(), body.strip()))
    if not any(speaker == "user" for speaker, _ in messages):
        raise InwitError(f"{where}: the prompt has no '@@ user' message.", "Add one.")
    for _, body in messages:
        opened = 0
        for match in FIELD.finditer(body):
            opened += (match[0] == "{{") - (match[0] == "}}")
            if opened < 0:
                raise InwitError(
                    f"{where}: '}}}}' without a '{{{{' before it.",
                    "Double every brace to print, or part the two with a space.",
                )
            if match[1] and match[1] not in set(Sees):
                raise InwitError(
                    f"{where}: unknown field '{{{match[1]}}}'.",
                    nearest(match[1], set(Sees)) + " Double the braces to print them.",
                )
    return Prompt(name, tuple(messages))


def load_prompt(name: str, folders: Iterable[Path | None]) -> Prompt:
    """The prompt called `name` from the first folder that has it, the built-in one last."""
    if name not in ROLE_OF:
        raise InwitError(f"No prompt is called '{name}'.", nearest(name, ROLE_OF))
    for folder in (*folders, BUILT_IN):
        path = folder / f"{name}.txt" if folder else None
        if path and path.is_file():
            return parse_prompt(name, path.read_text(encoding="utf-8-sig"), str(path))
    raise InwitError(f"There is no prompt file for '{name}'.", "Reinstall inwit.")
