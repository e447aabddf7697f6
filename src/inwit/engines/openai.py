"""An OpenAI-compatible chat endpoint: text in, text out. It samples, and never learns.

The key is read from the environment only (`INWIT_API_KEY`, else `OPENAI_API_KEY`), and is sent to
the endpoint and nowhere else.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from inwit.errors import InwitError
from inwit.rows import Stop

KEYS = ("INWIT_API_KEY", "OPENAI_API_KEY")
RETRIED = {408, 409, 425, 429, 500, 502, 503, 504}


@dataclass(frozen=True, slots=True)
class Reply:
    """What an endpoint answered. `tokens` is its own count, None where it gives none."""

    text: str
    tokens: int | None
    stop: Stop


class ChatEndpoint:
    """Asks a chat endpoint, a bounded number of times at once, again after passing faults.

    Args:
        url: the API's root, such as `http://localhost:8000/v1`.
        model: the name that the endpoint knows the model by.
        at_once: most requests under way.
        timeout: seconds for one request.
        tries: of a request that fails in passing (refused, timed out, 429, 5xx).
        pause: seconds before the second try; doubled for each further one.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        at_once: int = 16,
        timeout: float = 120.0,
        tries: int = 6,
        pause: float = 0.5,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise InwitError(f"'{url}' is not the address of an endpoint.", "Begin it with http.")
        self._url = url.rstrip("/") + "/chat/completions"
        self.model = model
        self._gate = asyncio.Semaphore(at_once)  # binds to the loop that first waits for it
        self._timeout = timeout
        self._tries = tries
        self._pause = pause

    async def chat(
        self,
        messages: Sequence[tuple[str, str]],
        *,
        max_tokens: int,
        temperature: float,
        seed: int,
    ) -> Reply:
        """One reply to (speaker, text) messages.

        Raises:
            InwitError: the endpoint refused, stayed away through all tries, or did not answer as
                an OpenAI-compatible one does.
        """
        body = {
            "model": self.model,
            "messages": [{"role": speaker, "content": text} for speaker, text in messages],
            "max_tokens": max_tokens,
            "temperature": temperature,
            "seed": seed % (1 << 31),
        }
        key = next((os.environ[k] for k in KEYS if os.environ.get(k)), None)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with self._gate:
            return _read(await self._post(body, headers), self._url)

    async def check(self) -> None:
        """Ask for one token. Raises InwitError where the endpoint cannot be used."""
        await self.chat([("user", "ping")], max_tokens=1, temperature=1.0, seed=0)

    async def _post(self, body: dict[str, Any], headers: dict[str, str]) -> httpx.Response:
        fault = ""
        async with httpx.AsyncClient(timeout=self._timeout) as client:
            for attempt in range(self._tries):
                if attempt:
                    await asyncio.sleep(self._pause * 2 ** (attempt - 1))
                try:
                    response = await client.post(self._url, json=body, headers=headers)
                except httpx.TransportError as error:
                    fault = f"{type(error).__name__} {error}".strip()
                    continue
                if response.status_code not in RETRIED:
                    return response
                fault = f"HTTP {response.status_code}"
        raise InwitError(
            f"The endpoint {self._url} did not answer in {self._tries} tries: {fault}.",
            "Check that it runs and what load it allows.",
        )


def _read(response: httpx.Response, url: str) -> Reply:
    if response.status_code != 200:
        raise InwitError(
            f"The endpoint {url} answered HTTP {response.status_code}: {response.text[:200]!r}.",
            f"Check the address, the model's name, and the key in {KEYS[0]}.",
        )
    try:
        answer = response.json()
        choice = answer["choices"][0]
        text = choice["message"]["content"]
        if not isinstance(text, str):
            raise TypeError("its message has no text")
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise InwitError(
            f"The endpoint {url} did not answer as an OpenAI-compatible one: "
            f"{response.text[:200]!r}.",
            "Give the API's root, which ends on /v1 as a rule.",
        ) from error
    stop = Stop.LENGTH if choice.get("finish_reason") == "length" else Stop.TOKEN
    return Reply(text, (answer.get("usage") or {}).get("completion_tokens"), stop)
