"""Running what a model wrote: two sandboxes of bubblewrap's, one for the tests and one for it.

Each is a set of namespaces of its own (user, pid, network, mount, ipc, uts, cgroup) with a
read-only view of Python and nothing else, no capabilities, no environment, limits on resources
and a filter of system calls that lets no further process come into being. See harness/ for who
judges, and docs/how-to/code.md for what is and is not promised.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Literal

from inwit.envs.code import cage
from inwit.errors import InwitError

Mode = Literal["bubblewrap", "rlimits"]
GRACE = 2.0
"""Seconds that a killed process may take to be gone."""


class Kind(StrEnum):
    """How a run ended. Only `error` is not the program's doing."""

    PASSED = "passed"
    FAILED = "failed"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    CRASH = "crash"
    NO_CODE = "no code"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a program.

    Attributes:
        test: source of the assertion that was not passed, or what was being done.
        why: the exception, what the last call gave, or what broke.
        seconds: wall time.
    """

    kind: Kind
    test: str = ""
    why: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Job:
    """A program, and the tests that it is to pass.

    Attributes:
        program: texts that are run one after the other in one module.
        tests: statements, with assertions; run in one namespace, in order.
        names: what the tests take from the program. All else they have of their own.
        imports: run before the tests, in their process.
        setup: run before the tests, and may use the program's names.
    """

    program: tuple[str, ...]
    tests: tuple[str, ...]
    names: tuple[str, ...]
    imports: str = ""
    setup: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one process may use; a run has two.

    Attributes:
        cpu: seconds of processor time.
        wall: seconds until the whole run is killed.
        memory, disk: MB of address space, and of the private folder.
        processes: threads and processes, where the user is not root; files: open ones.
    """

    cpu: float = 8.0
    wall: float = 30.0
    memory: int = 512
    disk: int = 8
    processes: int = 16
    files: int = 32

    def as_rlimits(self) -> dict[str, int]:
        """By the name after RLIMIT_."""
        return {
            "CPU": math.ceil(self.cpu),
            "AS": self.memory * 2**20,
            "FSIZE": self.disk * 2**20,
            "NPROC": self.processes,
            "NOFILE": self.files,
            "CORE": 0,
        }


class Sandbox:
    """Runs programs against tests, `at_once` of them at a time.

    Raises InwitError where this machine lacks what the mode needs.
    """

    def __init__(
        self, mode: Mode = "bubblewrap", limits: Limits | None = None, at_once: int = 0
    ) -> None:
        self.mode, self.limits = mode, limits or Limits()
        check(mode)
        self._pool = ThreadPoolExecutor(at_once or os.cpu_count() or 1, "sandbox")

    async def run(self, job: Job) -> Outcome:
        """From any event loop; waits for a place."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self.run_now, job)

    def run_now(self, job: Job) -> Outcome:
        """At once, whatever else is running."""
        return _run(self.mode, self.limits, job)


@cache
def check(mode: Mode) -> None:
    """Try the sandbox once. Raises InwitError with what is missing, and what to install."""
    weaker = 'Or accept a weaker one by hand: sandbox = "rlimits" (docs/how-to/code.md).'
    if sys.platform != "linux":
        raise InwitError("Programs are run on Linux only: limits and namespaces are its.", "")
    if mode == "bubblewrap":
        cage.rules()
        if shutil.which("bwrap") is None:
            raise InwitError(
                "Programs are run inside bubblewrap, and there is no 'bwrap' here.",
                f"Install it: apt install bubblewrap, or dnf install bubblewrap. {weaker}",
            )
    tried = _run(mode, Limits(), Job(("def f(): return 1",), ("assert f() == 1",), ("f",)))
    if tried.kind is not Kind.PASSED:
        raise InwitError(
            f"The sandbox does not work here: {tried.kind}, {tried.why}",
            f"It needs bubblewrap 0.8 and unprivileged user namespaces. {weaker}",
        )


# ---------------------------------------------------------------------- a run


def _run(mode: Mode, limits: Limits, job: Job) -> Outcome:
    start = time.monotonic()
    private = (
        tempfile.TemporaryDirectory(prefix="inwit-") if mode == "rlimits" else nullcontext("/")
    )
    with private as folder:
        found = _pair(mode, limits, job, Path(folder))
    return Outcome(*found, seconds=time.monotonic() - start)


def _pair(mode: Mode, limits: Limits, job: Job, folder: Path) -> tuple[Kind, str, str]:
    started: list[subprocess.Popen[bytes]] = []
    wall = time.monotonic() + limits.wall
    try:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            started.append(_start(mode, limits, "program", folder, theirs))
            started.append(_start(mode, limits, "tests", folder, ours))
        program, tests = started
        text = json.dumps(asdict(job)).encode()
        try:
            out, err = tests.communicate(text, max(wall - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            return Kind.TIMEOUT, "", f"it was not done after {limits.wall:g} s"
        return _judged(limits, out, err, program, tests.returncode)
    except OSError as error:
        return Kind.ERROR, "", f"the sandbox did not start: {error}"
    finally:
        for process in started:
            _end(process)


def _judged(
    limits: Limits, out: bytes, err: bytes, program: subprocess.Popen[bytes], code: int
) -> tuple[Kind, str, str]:
    """The tests' report, read with what the program's process died of."""
    if not out:
        if _signal(code):  # what it was sent was too much for it, too
            return Kind.CRASH, "", f"the tests ended by signal {_signal(code)}"
        return Kind.ERROR, "", f"the tests did not run: {err[-300:].decode(errors='replace')}"
    said = json.loads(out)
    kind, test, why = said["kind"], said["test"], said["why"]
    if kind not in ("gone", "early"):
        return Kind(kind), test, why
    with suppress(subprocess.TimeoutExpired):
        program.wait(GRACE)
    by = _signal(program.returncode or 0)
    if kind == "early" and not by:
        assert program.stderr is not None
        left = program.stderr.read(2000) if program.returncode is not None else b""
        return Kind.ERROR, "", f"the program was not run: {left.decode(errors='replace')}"
    if by == signal.SIGXCPU:
        return Kind.TIMEOUT, test, f"it used {limits.cpu:g} s of processor time"
    return Kind.CRASH, test, f"{why}, by signal {by}" if by else why


def _signal(code: int) -> int:
    """The signal that a process, or one that bubblewrap waited for, died of; 0 for none."""
    return -code if code < 0 else max(code - 128, 0)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill it with its group. Its namespaces go with it, and whatever they hold."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(GRACE)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


def _start(
    mode: Mode, limits: Limits, role: str, folder: Path, side: socket.socket
) -> subprocess.Popen[bytes]:
    """One side: the program has the socket as its input, the tests have it besides."""
    tests = role == "tests"
    arguments = [json.dumps(limits.as_rlimits()), role, str(side.fileno())]
    with cage.readable(cage.rules() if mode == "bubblewrap" else b"") as rules:
        before = cage.bubblewrap(limits.disk * 2**20, rules) if mode == "bubblewrap" else []
        return subprocess.Popen(
            [*before, *cage.python(), "-c", cage.START, *arguments],
            stdin=subprocess.PIPE if tests else side.fileno(),
            stdout=subprocess.PIPE if tests else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=[rules, side.fileno()] if tests else [rules],
            cwd=folder,
            env=cage.environment(cage.harness()),
            start_new_session=True,
        )
