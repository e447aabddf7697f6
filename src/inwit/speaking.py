"""Speakers: whoever can be shown a prompt and answers. What is shown is plain data.

A policy is shown token ids and answers in token ids; a model behind an endpoint is shown messages
and answers in text. Everything above this file treats both alike.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, replace
from typing import Protocol

from inwit.engines import Policy, Sampling
from inwit.engines.openai import ChatEndpoint
from inwit.roles import Prompt, Renderer, View
from inwit.rows import Behaviour, Completion, Condition, Ids, Role, Stop, Turn


@dataclass(frozen=True, slots=True)
class Draw:
    """How one turn is drawn: temperature and seed."""

    temperature: float
    seed: int


@dataclass(frozen=True, slots=True)
class Shown:
    """What a speaker is shown: ids or messages, and the condition that they were made under.

    Attributes:
        unfinished: the last message is the speaker's own, to be gone on with.
    """

    role: Role
    sees: Condition
    prompt_ids: Ids = ()
    messages: tuple[tuple[str, str], ...] = ()
    unfinished: bool = False


class Speaker(Protocol):
    """Whoever can be asked, and answers in turns."""

    def open(self, prompt: Prompt, view: View, sees: Condition) -> Shown:
        """A conversation's beginning. Raises ForbiddenField where it shows what it may not."""
        ...

    def follow(self, turn: Turn, text: str, sees: Condition) -> Shown:
        """The conversation up to a turn, and what the other side then says."""
        ...

    def begin(self, shown: Shown, text: str) -> Shown:
        """The answer's beginning put into the speaker's mouth."""
        ...

    async def say(self, shown: Shown, n: int, max_tokens: int, draw: Draw) -> list[Turn]:
        """n answers to what is shown."""
        ...

    def joined(self, begun: str, turn: Turn) -> str:
        """What an answer says, together with the beginning that it went on with."""
        ...

    def length(self, text: str) -> int:
        """About how many tokens a text has."""
        ...


@dataclass(frozen=True, slots=True)
class Actor:
    """A policy with the tokenizer that speaks to it, and whose tokens its samples are."""

    policy: Policy
    renderer: Renderer
    behaviour: Behaviour = Behaviour.POLICY

    def open(self, prompt: Prompt, view: View, sees: Condition) -> Shown:
        return Shown(prompt.role, sees, self.renderer.prompt_ids(prompt, view))

    def follow(self, turn: Turn, text: str, sees: Condition) -> Shown:
        tail = self.renderer.continuation_ids(turn.completion, text)
        return Shown(turn.role, sees, turn.prompt_ids + turn.completion.ids + tail)

    def begin(self, shown: Shown, text: str) -> Shown:
        return replace(shown, prompt_ids=shown.prompt_ids + self.renderer.text_ids(text))

    async def say(self, shown: Shown, n: int, max_tokens: int, draw: Draw) -> list[Turn]:
        spec = Sampling(max_tokens, self.renderer.stop_ids, draw.temperature, draw.seed)
        asked = time.monotonic()
        completions = await self.policy.sample(shown.prompt_ids, n, spec)
        seconds = time.monotonic() - asked
        return [
            Turn(
                shown.role,
                shown.prompt_ids,
                completion,
                shown.sees,
                self.behaviour,
                text=self.renderer.text(completion.ids),
                seconds=seconds,
            )
            for completion in completions
        ]

    def joined(self, begun: str, turn: Turn) -> str:
        return self.renderer.text(self.renderer.text_ids(begun) + turn.completion.ids)

    def demonstrated(self, shown: Shown, answer: str) -> Turn:
        """A turn that says `answer`, stop token included; nobody sampled it."""
        ids = self.renderer.completion_ids(answer)
        unknown = Completion(ids, (math.nan,) * len(ids), Stop.TOKEN)
        return Turn(
            shown.role, shown.prompt_ids, unknown, shown.sees, Behaviour.DEMONSTRATION, text=answer
        )

    def length(self, text: str) -> int:
        return self.renderer.length(text)


@dataclass(frozen=True, slots=True)
class Correspondent:
    """A model behind a chat endpoint. It shows no token ids, so its turns have none."""

    endpoint: ChatEndpoint

    def open(self, prompt: Prompt, view: View, sees: Condition) -> Shown:
        return Shown(prompt.role, sees, messages=tuple(prompt.filled(view)))

    def follow(self, turn: Turn, text: str, sees: Condition) -> Shown:
        said, shown = turn.text, turn.messages
        if shown[-1][0] == "assistant":  # it went on with a beginning that was given
            said, shown = self.joined(shown[-1][1], turn), shown[:-1]
        return Shown(turn.role, sees, messages=(*shown, ("assistant", said), ("user", text)))

    def begin(self, shown: Shown, text: str) -> Shown:
        return replace(shown, messages=(*shown.messages, ("assistant", text)), unfinished=True)

    async def say(self, shown: Shown, n: int, max_tokens: int, draw: Draw) -> list[Turn]:
        async def one(i: int) -> Turn:
            asked = time.monotonic()
            reply = await self.endpoint.chat(
                shown.messages,
                max_tokens=max_tokens,
                temperature=draw.temperature,
                seed=draw.seed + i,
                continue_last=shown.unfinished,
            )
            known = reply.tokens is not None and reply.prompt_tokens is not None
            return Turn(
                shown.role,
                (),
                Completion((), (), reply.stop),
                shown.sees,
                Behaviour.EXTERNAL,
                text=reply.text if shown.unfinished else reply.text.strip(),
                messages=shown.messages,
                counted=(reply.prompt_tokens or 0, reply.tokens or 0) if known else None,
                seconds=time.monotonic() - asked,
            )

        return await asyncio.gather(*(one(i) for i in range(n)))

    def joined(self, begun: str, turn: Turn) -> str:
        return f"{begun}{turn.text}".strip()

    def length(self, text: str) -> int:
        return len(text.split())
