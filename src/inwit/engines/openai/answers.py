"""Reading what an endpoint answered: a reply, a fault that may pass, a refusal, or nonsense."""

from __future__ import annotations

import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, Field, ValidationError, model_validator

from inwit.engines.openai.faults import EndpointError, Passing, Refused
from inwit.rows import Stop

KEYS = ("INWIT_API_KEY", "OPENAI_API_KEY")
"""Where a key is read from: the first that is set."""

T = TypeVar("T", bound=BaseModel)
PASSING = {408, 409, 425, 429}
"""Answers that may be others the next time, beside all of 500 and above."""

REFUSING = {400, 413, 422}
"""Answers that are about what was asked; the next question may be another matter."""

FINISHED = {"stop", "length", "eos", "eos_token", "stop_sequence", None}
BROKEN = {"abort", "error"}
"""What ends a generation: as it should, or because something failed. Anything else is a refusal."""

FIXES = {
    401: f"Set the endpoint's key in {KEYS[0]}.",
    403: f"Check what the key in {KEYS[0]} is allowed.",
    404: "Check the model's name, and the address: it ends on /v1 as a rule.",
}


@dataclass(frozen=True, slots=True)
class Reply:
    """What an endpoint answered. The counts are its own, None where it gives none."""

    text: str
    prompt_tokens: int | None
    tokens: int | None
    stop: Stop


class _Part(BaseModel):
    type: str
    text: str = ""


class _Message(BaseModel):
    content: str | list[_Part] | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None

    @model_validator(mode="after")
    def _says_something(self) -> _Choice:
        if self.message.content is None and self.finish_reason is None:
            raise ValueError("neither a text nor a reason why there is none")
        return self


class ChatAnswer(BaseModel):
    choices: list[_Choice] = Field(min_length=1)
    usage: Any = None

    def check(self) -> None:
        """Raise Passing where the generation failed, Refused where it was filtered away."""
        reason = self.choices[0].finish_reason
        if reason in BROKEN:
            raise Passing(f"the generation ended on {reason!r}")
        if reason not in FINISHED:
            raise Refused(
                f"The endpoint ended an answer on {reason!r}.", "It is counted as unanswered."
            )

    def reply(self) -> Reply:
        """A message without a text, such as a reasoning model's cut off, has an empty one."""
        choice = self.choices[0]
        content = choice.message.content or ""
        if isinstance(content, list):
            content = "".join(part.text for part in content if part.type == "text")
        stop = Stop.LENGTH if choice.finish_reason == "length" else Stop.TOKEN
        return Reply(content, self._count("prompt_tokens"), self._count("completion_tokens"), stop)

    def _count(self, name: str) -> int | None:
        count = self.usage.get(name) if isinstance(self.usage, dict) else None
        return count if type(count) is int and count >= 0 else None


class _Model(BaseModel):
    id: str


class ModelList(BaseModel):
    data: list[_Model]


def read(response: httpx.Response, shape: type[T], url: str, shown: str) -> T:
    """What was answered; `shown` is the part of it that errors may show."""
    status = response.status_code
    if status in PASSING or status >= 500:
        raise Passing(f"HTTP {status} {shown!r}", _retry_after(response))
    told = _told(response)
    if status in REFUSING or (status == 200 and told):
        raise Refused(
            f"The endpoint {url} refuses a request (HTTP {status}): {shown!r}.",
            "Check the prompt's length, the model's name, and settings such as `extra`.",
        )
    if status != 200:
        raise EndpointError(
            f"The endpoint {url} answered HTTP {status}: {shown!r}.",
            FIXES.get(status, "Check the address, the model's name, and settings such as `extra`."),
        )
    try:
        return shape.model_validate_json(response.content)
    except ValidationError as error:
        begun = response.content.lstrip()[:1] in (b"", b"{")
        if begun and error.errors()[0]["type"] == "json_invalid":
            raise Passing(f"its answer was cut off after {len(response.content)} bytes") from None
    raise EndpointError(
        f"The endpoint {url} did not answer as an OpenAI-compatible one: {shown!r}.",
        "Give the API's root, which ends on /v1 as a rule.",
    )


def _told(response: httpx.Response) -> bool:
    """Whether it is an error in JSON, as some endpoints send with status 200."""
    try:
        answer = response.json()
    except ValueError:
        return False
    return isinstance(answer, dict) and bool(answer.get("error")) and "choices" not in answer


def _retry_after(response: httpx.Response) -> float:
    """Seconds until a busy server wants to be asked again; 0 where it does not say."""
    wish = response.headers.get("Retry-After", "")
    if response.status_code not in (429, 503) or not wish:
        return 0.0
    try:
        return max(0.0, float(wish))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(wish).timestamp() - time.time())
    except ValueError:
        return 0.0
