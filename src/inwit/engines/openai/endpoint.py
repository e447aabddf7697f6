"""An OpenAI-compatible chat endpoint: text in, text out. It samples, and never learns.

The key is read from the environment only (`INWIT_API_KEY`, else `OPENAI_API_KEY`), is sent as a
header to the endpoint and nowhere else, and is masked in whatever the endpoint says about it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import httpx
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    field_validator,
)

from inwit.engines.openai.answers import KEYS, ChatAnswer, ModelList, Reply, read
from inwit.engines.openai.faults import BudgetSpent, EndpointError, Passing, Unanswered

LONGEST_PAUSE = 30.0
SHOWN = 200
"""Characters of an answer that an error shows."""

OURS = {
    *("model", "messages", "max_tokens", "max_completion_tokens", "temperature", "seed"),
    *("n", "stream", "logprobs", "top_logprobs"),
}
"""What a request says about these is not the settings' to change."""

T = TypeVar("T", bound=BaseModel)


def _address(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        raise ValueError("the url is malformed: write it like http://localhost:8000/v1") from None
    if parsed.userinfo or parsed.query or parsed.fragment:
        raise ValueError(
            "the url holds more than a host and a path, all of which would be written down with "
            f"the run: put the key into the environment, as {KEYS[0]}"
        )
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError(
            f"'{url}' is not the address of an endpoint: begin it with http:// or https://"
        )
    return url.rstrip("/")


Address = Annotated[str, AfterValidator(_address)]
"""The root of an API, such as `http://localhost:8000/v1`."""


class OpenAISettings(BaseModel):
    """Where a model answers, and how it is asked."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    name: Literal["openai"] = "openai"
    url: Address = Field(description="the API's root, such as http://localhost:8000/v1")
    at_once: int = Field(16, ge=1, description="most requests under way")
    timeout: float = Field(120.0, gt=0, description="seconds for one try of a request")
    tries: int = Field(6, ge=1, description="of a request that fails in passing")
    pause: float = Field(
        0.5, ge=0, description=f"seconds before the second try; doubled, up to {LONGEST_PAUSE:g}"
    )
    budget: int | None = Field(
        None, ge=0, description="tokens, prompts included, after which nothing more is asked"
    )
    limit: Literal["max_tokens", "max_completion_tokens"] = Field(
        "max_tokens", description="what the endpoint calls the most tokens of an answer"
    )
    seeded: bool = Field(True, description="send a seed; some endpoints refuse one")
    extra: dict[str, Any] = Field(
        {}, description="added to every request, such as chat_template_kwargs"
    )

    @field_validator("extra")
    @classmethod
    def _leaves_ours_alone(cls, extra: dict[str, Any]) -> dict[str, Any]:
        if clash := sorted(OURS & extra.keys()):
            raise ValueError(f"extra may not set {', '.join(clash)}: each request does")
        return extra


class ChatEndpoint:
    """Asks a model a bounded number of questions at once, again after passing faults.

    It may serve several event loops, each over connections of its own; `aclose` ends those of the
    loop that it is called in.

    Args:
        model: the name that the endpoint knows the model by.
        keys: environment variables, of which the first that is set holds the key.
    """

    def __init__(self, settings: OpenAISettings, model: str, keys: Sequence[str] = KEYS) -> None:
        self.settings = settings
        self._keys = keys
        self.model = model
        self._lines: dict[asyncio.AbstractEventLoop, _Line] = {}
        self._spent = 0
        self._reserved = 0

    @property
    def spent(self) -> int:
        """Tokens of all answered requests, prompts included, estimated where none were counted."""
        return self._spent

    async def chat(
        self,
        messages: Sequence[tuple[str, str]],
        *,
        max_tokens: int,
        temperature: float,
        seed: int,
        continue_last: bool = False,
    ) -> Reply:
        """One reply to (speaker, text) messages.

        Args:
            continue_last: the last message is an assistant's, unfinished, which the model goes on
                with. Not every endpoint can; one that says so raises EndpointError.

        Raises:
            BudgetSpent: the request does not fit into the budget.
            Refused: the endpoint will not answer this one.
            Unanswered: it failed in passing, through all tries.
            EndpointError: the endpoint refused, or is not an OpenAI-compatible one.
        """
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": speaker, "content": text} for speaker, text in messages],
            self.settings.limit: max_tokens,
            "temperature": temperature,
        }
        if self.settings.seeded:
            body["seed"] = seed % (1 << 31)
        if continue_last:
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        guess = sum(len(text) for _, text in messages) // 4
        async with self._line().gate:
            async with self._reservation(max_tokens + guess):
                answer = await self._ask(
                    "/chat/completions", ChatAnswer, body | self.settings.extra
                )
            reply = answer.reply()
            sampled = max_tokens if reply.tokens is None else reply.tokens
            self._spent += sampled + (guess if reply.prompt_tokens is None else reply.prompt_tokens)
        return reply

    async def models(self) -> list[str]:
        """The names of the models that answer here. Raises EndpointError where none are told."""
        async with self._line().gate:
            return [model.id for model in (await self._ask("/models", ModelList)).data]

    async def check(self, question: str = "ping") -> None:
        """Ask for one token, and hang up. Raises EndpointError where the endpoint is of no use."""
        try:
            await self.chat([("user", question)], max_tokens=1, temperature=1.0, seed=0)
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """End this event loop's connections. The next request opens new ones."""
        if line := self._lines.pop(asyncio.get_running_loop(), None):
            await line.client.aclose()

    def _line(self) -> _Line:
        loop = asyncio.get_running_loop()
        if loop not in self._lines:
            alive = {k: line for k, line in self._lines.items() if not k.is_closed()}
            self._lines = alive | {loop: _Line.of(self.settings.at_once)}
        return self._lines[loop]

    @asynccontextmanager
    async def _reservation(self, tokens: int) -> AsyncIterator[None]:
        """Set tokens aside; where they do not fit beside others', wait for what those cost."""
        budget, line = self.settings.budget, self._line()
        while budget is not None and self._spent + self._reserved + tokens > budget:
            if not self._reserved:
                raise BudgetSpent(
                    f"The budget of {budget} tokens does not cover {tokens} more: {self._spent} "
                    "are spent.",
                    "Raise the budget, or ask for less.",
                )
            line.settled.clear()
            await line.settled.wait()
        self._reserved += tokens
        try:
            yield
        finally:
            self._reserved -= tokens
            line.settled.set()

    async def _ask(self, path: str, shape: type[T], body: dict[str, Any] | None = None) -> T:
        """An answer of this shape, after as many tries as it takes and is allowed."""
        s = self.settings
        fault = Passing("")
        for attempt in range(s.tries):
            if attempt:
                backoff = min(s.pause * 2 ** (attempt - 1), LONGEST_PAUSE)
                await asyncio.sleep(max(backoff, min(fault.wait, s.timeout)))
            try:
                return await self._try(s.url + path, shape, body)
            except Passing as passing:
                fault = passing
        raise Unanswered(
            f"The endpoint {s.url + path} did not answer in {s.tries} tries: {fault}.",
            "Check that it runs and what load it allows.",
        )

    async def _try(self, url: str, shape: type[T], body: dict[str, Any] | None) -> T:
        key = _key(self._keys)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        method = "GET" if body is None else "POST"
        client = self._line().client
        try:
            async with asyncio.timeout(self.settings.timeout):
                response = await client.request(method, url, json=body, headers=headers)
        except TimeoutError:
            raise Passing(f"nothing within {self.settings.timeout:g} s") from None
        except (httpx.TransportError, httpx.DecodingError) as error:
            fault = f"{type(error).__name__} {error}".strip()
            raise Passing(_masked(fault, key)) from None
        answer = read(response, shape, url, _masked(response.text, key)[:SHOWN])
        if isinstance(answer, ChatAnswer):
            answer.check()
        return answer


@dataclass(frozen=True, slots=True)
class _Line:
    """What belongs to one event loop: connections, and the gate that bounds their number."""

    client: httpx.AsyncClient
    gate: asyncio.Semaphore
    settled: asyncio.Event  # set when a request's cost becomes known

    @classmethod
    def of(cls, at_once: int) -> _Line:
        limits = httpx.Limits(max_connections=at_once, max_keepalive_connections=at_once)
        return cls(
            httpx.AsyncClient(timeout=None, limits=limits),
            asyncio.Semaphore(at_once),
            asyncio.Event(),
        )


# ---------------------------------------------------------------------- the key


def _key(names: Sequence[str]) -> str | None:
    """The key, if there is one. Raises EndpointError, without it, where no header can hold it."""
    for name in names:
        if key := os.environ.get(name, "").strip():
            if not (key.isascii() and key.isprintable()):
                raise EndpointError(
                    f"The key in {name} has characters that no header can hold.", "Set it again."
                )
            return key
    return None


def _masked(text: str, key: str | None) -> str:
    return text.replace(key, "***") if key else text
