"""What a person sees while something runs: a live line on a terminal, plain lines in a file."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

PLAIN_EVERY = 10.0
"""Seconds between plain progress lines where there is no terminal."""


class Live:
    """Progress of a run, on standard error: standard output is for results."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[state]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(title, total=None, state="")
        self._last = 0.0
        self._dev = ""
        self._said: set[str] = set()

    def __enter__(self) -> Live:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def step(self, done: int, total: int, line: Mapping[str, Any]) -> None:
        state = " ".join(filter(None, [_state(line), self._dev]))
        self._bar.update(self._task, completed=done, total=total, state=state)
        if not self._console.is_terminal and time.monotonic() - self._last > PLAIN_EVERY:
            self._last = time.monotonic()
            self._say(f"{self._title}: step {done} of {total}  {state}")

    def evaluated(self, line: Mapping[str, Any]) -> None:
        found = line["measures"]
        first, second = found["a1"], found.get("a2")
        if first["ci"] is None:
            return
        low, high = first["ci"]
        self._dev = f"{line['split']} {first['value']:.1%} [{low:.1%}, {high:.1%}] N={first['n']}"
        if second and second["value"] is not None:
            self._dev += f" then {second['value']:.1%}"
        if line["split"] == "test":
            self._say(f"{self._title}: at step {line['step']}, {self._dev}")

    def alarm(self, kind: str, message: str) -> None:
        if kind not in self._said:  # once a run; every step's are in metrics.jsonl
            self._said.add(kind)
            self._say(f"[yellow]warning[/] {self._title}: {message}")

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)


class Asked:
    """Progress of an evaluation or a check: how many questions are answered, or graded."""

    def __init__(self, console: Console, title: str, done: str = "answered") -> None:
        self._console = console
        self._title = title
        self._done = done
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(title, total=None)
        self._last = time.monotonic()

    def __enter__(self) -> Asked:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def tell(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total)
        if not self._console.is_terminal and time.monotonic() - self._last > PLAIN_EVERY:
            self._last = time.monotonic()
            self._console.print(f"{self._title}: {done} of {total} {self._done}", highlight=False)


def _state(line: Mapping[str, Any]) -> str:
    parts = [
        ("first", line.get("success/first"), "{:.1%}"),
        ("delta", line.get("again/delta"), "{:+.1%}"),
        ("revised", line.get("success/revision"), "{:.1%}"),
        ("w", line.get("weight_mean"), "{:.2f}"),
        ("loss", line.get("loss"), "{:.3f}"),
        ("tokens", line.get("total/sampled_tokens"), "{:,}"),
    ]
    return " ".join(f"{name} {form.format(v)}" for name, v, form in parts if v is not None)
