"""Worker processes and the talk with them: start, ask for a step, notice when one is dead."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import tempfile
import threading
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from benchmarks.wire import Job, Ready, Step

ROOT = Path(__file__).parent.parent
TAIL = 15
"""Lines of a failed worker's output that are shown."""


PATIENCE = 20.0
"""Seconds that a worker has to end by itself."""


class WorkerFailed(RuntimeError):
    """A worker died, or took longer than its deadline. Says what it last wrote."""


def environment(threads: int) -> dict[str, str]:
    """The environment of a worker with `threads` threads.

    How OpenMP waits is left at its default: its threads spin for a moment between two products and
    then sleep, so that a worker that waits its turn takes no time from the one that works. Told not
    to spin at all (OMP_WAIT_POLICY=PASSIVE), both sides lose time at every small product.
    """
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(ROOT),
    }


class Worker:
    """One worker process, used as a context: it does not outlive it.

    Args:
        name: for messages.
        python: the interpreter, which decides the virtual environment.
        module: what it runs.
        deadline: seconds that loading, or one step, may take.
    """

    def __init__(self, name: str, python: Path, module: str, job: Job, deadline: float) -> None:
        self.name = name
        self._deadline = deadline
        self._errors = tempfile.TemporaryFile(  # noqa: SIM115 (closed by `_end`)
            "w+", encoding="utf-8", errors="replace"
        )
        self._process = subprocess.Popen(
            [str(python), "-m", module],
            cwd=ROOT,
            env=environment(job.threads),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        assert self._process.stdout is not None
        threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()
        self._say(json.dumps(asdict(job)))
        self.ready = Ready(**self._answer("load"))

    def step(self) -> Step:
        self._say("step")
        return Step(**self._answer("make a step"))

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        if kind is None:  # hang up, so that it can tidy up after itself
            self._process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(PATIENCE)
        self._end()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._errors.close()

    def _read(self, output: IO[str]) -> None:
        for line in output:
            self._lines.put(line)
        self._lines.put("")

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            print(line, file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise self._failure("died") from None

    def _answer(self, what: str) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=self._deadline)
        except queue.Empty:
            raise self._failure(f"took more than {self._deadline:.0f} s to {what}") from None
        if not line:
            raise self._failure(f"died when it was to {what}")
        return dict(json.loads(line))

    def _failure(self, what: str) -> WorkerFailed:
        self._process.kill()
        self._process.wait()
        self._errors.seek(0)
        tail = self._errors.read().splitlines()[-TAIL:]
        self._end()
        return WorkerFailed("\n".join((f"The {self.name} worker {what}. Its last words:", *tail)))
