"""What a recipe says of the tinker engine. The key is in the environment, and nowhere else."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

KEY = "TINKER_API_KEY"


class TinkerSettings(BaseModel):
    """Settings of the tinker engine, written in the recipe's `[engine]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Literal["tinker"] = "tinker"
    url: str | None = Field(
        None, description="the server's root, such as http://localhost:8000; none: the hosted one"
    )
    base_model: str | None = Field(
        None, description="what the server calls the model; model.path, if it is not given"
    )
    rank: int = Field(32, ge=1, description="of the LoRA adapter that is trained")
    max_batch: int = Field(256, ge=1, description="tasks that an evaluation asks at once")
    patience: float = Field(
        600.0, gt=0, description="seconds to wait for an answer, and for a server that is away"
    )
    pipelined: bool = Field(
        False,
        description="send a step before its gradient is answered; for servers that keep the order "
        "of requests, as the hosted one does and SkyRL 0.3 may not",
    )
    export: Literal["merged", "adapter"] = Field(
        "merged", description="the final model: merged into the base's weights, or the adapter"
    )

    @field_validator("url")
    @classmethod
    def _is_a_root(cls, url: str | None) -> str | None:
        if url is None:
            return None
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url is {url!r}, which is no address: write http://host:port")
        if parts.username or parts.password or parts.query:
            raise ValueError(f"url holds more than an address: a key belongs into ${KEY}")
        return url.rstrip("/")
