"""What the coordinator and its workers say to each other: JSON, one object a line.

A worker is told its job, answers with what it is about to do (`Ready`), and then makes one step
each time it is asked for one (`Step`). This file imports neither inwit nor TRL nor torch: both
sides run it, each in its own virtual environment.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

LEARNING_RATE = 1e-6
BETAS = (0.9, 0.95)
EPS = 1e-8
MAX_GRAD_NORM = 1.0
CLIP = (0.2, 0.28)
DELTA = 1e-4
"""Added to a group's standard deviation of rewards: TRL's own constant, used by both sides."""


@dataclass(frozen=True, slots=True)
class Job:
    """The work of one case, the same for everyone who does it.

    Attributes:
        folder: the model, as saved by transformers.
        texts: the prompts; each side tokenises them itself.
        prompt_tokens, completion_tokens: of every prompt and of every completion.
        steps: how many steps will be asked for, the warm-up among them.
        options: of one worker, such as TRL's batch size.
    """

    folder: str
    texts: tuple[str, ...]
    group: int
    prompt_tokens: int
    completion_tokens: int
    threads: int
    steps: int
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def completions(self) -> int:
        """Completions sampled in a step."""
        return len(self.texts) * self.group

    @classmethod
    def read(cls, fields: dict[str, Any]) -> Job:
        return cls(**{**fields, "texts": tuple(fields["texts"])})


@dataclass(frozen=True, slots=True)
class Ready:
    """What a worker found when it had loaded everything.

    Attributes:
        prompts: a digest of the prompts' token ids, by which the coordinator knows that both sides
            read the same.
        versions: of the packages that matter, by name.
    """

    prompts: str
    versions: dict[str, str]


@dataclass(frozen=True, slots=True)
class Step:
    """One step: seconds and tokens by phase, and the process's peak of resident memory (MiB).

    Attributes:
        sampled: completion tokens sampled.
        trained: completion tokens that a gradient was computed for.
    """

    sampling: float
    training: float
    sampled: int
    trained: int
    peak_mb: float
    extra: dict[str, float] = field(default_factory=dict)

    @property
    def total(self) -> float:
        return self.sampling + self.training


def digest(prompts: list[list[int]]) -> str:
    """A short name for a list of prompts, by their token ids."""
    return hashlib.blake2b(json.dumps(prompts).encode(), digest_size=8).hexdigest()


def reward(ids: list[int] | tuple[int, ...]) -> float:
    """A number in [0, 1) that differs between completions, so that every row has an advantage.

    It depends on every token and costs next to nothing beside sampling one.
    """
    mixed = 0
    for token in ids:
        mixed = (mixed * 31 + token) % 1_000_003
    return mixed / 1_000_003


def check_prompts(prompts: list[list[int]], job: Job) -> None:
    """Refuse prompts that a tokenizer made shorter, longer or equal."""
    lengths = {len(ids) for ids in prompts}
    if lengths != {job.prompt_tokens}:
        raise ValueError(f"prompts of {sorted(lengths)} tokens, not {job.prompt_tokens}")
    if len({tuple(ids) for ids in prompts}) != len(prompts):
        raise ValueError("two of the prompts are equal")


def peak_mb() -> float:
    """The most memory that this process ever held, in MiB (Linux's VmHWM)."""
    status = Path("/proc/self/status")
    if status.exists() and (found := re.search(r"VmHWM:\s+(\d+) kB", status.read_text())):
        return int(found[1]) / 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)  # bytes on a Mac


class Line:
    """A worker's end of the line. Whatever else is printed goes to stderr instead of into it."""

    def __init__(self) -> None:
        self._in: TextIO = sys.stdin
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def job(self) -> Job:
        return Job.read(json.loads(self._in.readline()))

    def say(self, message: Ready | Step) -> None:
        print(json.dumps(asdict(message)), file=self._out, flush=True)

    def requests(self) -> Iterator[None]:
        """One item for each step that is asked for; ends where the coordinator hangs up."""
        for line in self._in:
            if line.strip() != "step":
                raise ValueError(f"expected 'step', got {line!r}")
            yield
