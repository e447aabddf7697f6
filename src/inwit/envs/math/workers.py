"""Worker processes that may be killed: a job costs its deadline and its memory, and nothing else.

Jobs and values are JSON over pipes. Limits are the kernel's (timers and an address space, set by a
worker for itself), so that neither a loop in C nor the parent's death gets around them, and no
thread of the caller's sees a signal. The deadline counts processor time: a busy machine changes no
verdict.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import queue
import resource
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal

PATIENCE = 10.0
"""Wall-clock seconds a job may take per second of processor time allowed, however busy it is."""

STARTING = 120.0
"""Wall-clock seconds within which a worker must have started."""

BATCH = 16
"""Most jobs that are written to a worker at once."""

PR_SET_PDEATHSIG = 1
"""Of prctl(2): be killed with the thread that started this process, which lives as long as it."""

Kind = Literal["done", "late", "memory", "broken"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job: its value; or that it ran out of time or memory; or what broke."""

    kind: Kind
    value: Any = None
    why: str = ""


class Pool:
    """Processes that call one function of an importable module with JSON values.

    Usable from any thread, and after a fork (a child starts workers of its own). Workers are
    started when first needed, afresh rather than by fork, and end with the parent.

    Args:
        target: `package.module:function`.
        seconds: processor time that one job may take.
        memory: address space of a worker, in bytes.
        workers: how many processes; as many as processors that this process may use, if not told.
    """

    def __init__(
        self, target: str, seconds: float = 5.0, memory: int = 2**30, workers: int | None = None
    ) -> None:
        self.target, self.seconds, self.memory = target, seconds, memory
        self.workers = workers or len(os.sched_getaffinity(0))
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[tuple[str, Future[Outcome]] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def submit(self, job: Any) -> Future[Outcome]:
        """Have a job done. The future holds an Outcome, whatever happens."""
        if self._process != os.getpid():  # forked: threads and workers are the parent's
            self._begin()
        future: Future[Outcome] = Future()
        future.set_running_or_notify_cancel()  # others may wait for it, so nobody may cancel it
        with self._lock:
            self._jobs.put((json.dumps(job), future))
            if len(self._threads) < self.workers:
                thread = threading.Thread(target=self._work, args=(self._jobs,), daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def close(self) -> None:
        """End the workers when they have done what was submitted. A later job starts new ones."""
        with self._lock:
            threads, jobs = self._threads, self._jobs
            self._threads, self._jobs = [], queue.SimpleQueue()
        for _ in threads:
            jobs.put(None)
        for thread in threads:
            thread.join()

    def _work(self, jobs: queue.SimpleQueue[tuple[str, Future[Outcome]] | None]) -> None:
        worker: _Worker | None = None
        while (job := jobs.get()) is not None:
            batch = [job]
            share = min(BATCH, 1 + jobs.qsize() // self.workers)
            while len(batch) < share:
                try:
                    more = jobs.get_nowait()
                except queue.Empty:
                    break
                if more is None:  # another thread's notice
                    jobs.put(None)
                    break
                batch.append(more)
            worker = self._do(worker, batch)
        if worker is not None:
            worker.end()

    def _do(
        self, worker: _Worker | None, batch: Sequence[tuple[str, Future[Outcome]]]
    ) -> _Worker | None:
        """Do all jobs of a batch, on new workers where one dies. Returns the worker alive."""
        left = list(batch)
        while left:
            try:
                if worker is None or not worker.alive:  # one may have been killed while it waited
                    worker = _Worker(self)
                outcomes = worker.do([job for job, _ in left])
            except Exception as error:  # whatever it is: nobody is to wait for ever
                if worker is not None:
                    worker.end()
                worker, why = None, f"no worker could do it: {type(error).__name__}: {error}"
                outcomes = [Outcome("broken", why=why)]
            for (_, future), outcome in zip(left, outcomes, strict=False):
                future.set_result(outcome)
            left = left[len(outcomes) :]
        return worker


class _Worker:
    """One process. Used by one thread."""

    def __init__(self, pool: Pool) -> None:
        self._wall = pool.seconds * PATIENCE
        paths = os.pathsep.join(path for path in sys.path if path)
        told = json.dumps([pool.target, pool.seconds, self._wall, pool.memory])
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from {__name__} import serve; serve()", told],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            process_group=0,  # a terminal's Ctrl-C is meant for the parent
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        )
        self._read = b""
        self._started = False

    @property
    def alive(self) -> bool:
        """Whether it can take a job. What is left of one that cannot is cleared away."""
        if self._process.poll() is None:
            return True
        self.end()
        return False

    def do(self, jobs: Sequence[str]) -> list[Outcome]:
        """Outcomes of the first jobs: of all of them, or of those up to the one that killed it."""
        assert self._process.stdin is not None
        if not self._started:
            if (begun := self._line(STARTING)) != "":
                self.end()
                return [Outcome("broken", why=begun or "the worker did not start")]
            self._started = True
        with contextlib.suppress(BrokenPipeError):
            _write(self._process.stdin.fileno(), *jobs)
        outcomes: list[Outcome] = []
        while len(outcomes) < len(jobs):
            line = self._line(self._wall * 2)
            if line is None:
                outcomes.append(self._ended())
                break
            outcomes.append(Outcome(**json.loads(line)))
            if outcomes[-1].kind == "memory":  # it may have lost more than this job
                self.end()
                break
        return outcomes

    def _line(self, seconds: float) -> str | None:
        """The next line it writes; None where it ends, or writes none for so long."""
        assert self._process.stdout is not None
        poll = select.poll()
        poll.register(self._process.stdout, select.POLLIN)
        while b"\n" not in self._read:
            if not poll.poll(seconds * 1000):
                return None
            more = self._process.stdout.read(65536)
            if not more:
                return None
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        return line.decode()

    def _ended(self) -> Outcome:
        """What its end says about the job that it had. Kills it where it has not ended."""
        try:
            code = self._process.wait(1)
        except subprocess.TimeoutExpired:
            self.end()
            return Outcome("broken", why="the worker stopped answering")
        self.end()
        if code == -signal.SIGPROF:
            return Outcome("late")
        if code in (-signal.SIGKILL, -signal.SIGABRT):  # out of the machine's memory, or its own
            return Outcome("memory")
        if code == -signal.SIGALRM:
            return Outcome("broken", why="the machine was too busy to give it its time")
        return Outcome("broken", why=f"the worker ended with status {code}")

    def end(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.kill()
        self._process.wait()


# ---------------------------------------------------------------------- within a worker


def serve() -> None:
    """Be a worker: say that the target is there, then answer each line with an outcome's."""
    target, seconds, wall, memory = json.loads(sys.argv[1])
    replies = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints is no reply
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF, signal.SIGALRM})
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(AttributeError, OSError):  # Linux's; elsewhere its pipe ends it
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        module, _, name = target.partition(":")
        function = getattr(importlib.import_module(module), name)
    except Exception as error:
        _write(replies, f"{type(error).__name__}: {error}".replace("\n", " "))
        return
    _write(replies, "")
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, wall)
        answer = _outcome(function, line)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _write(replies, answer)


def _outcome(function: Any, line: str) -> str:
    try:
        return json.dumps({"kind": "done", "value": function(json.loads(line))})
    except (MemoryError, RecursionError):
        return json.dumps({"kind": "memory"})
    except Exception as error:
        return json.dumps({"kind": "broken", "why": f"{type(error).__name__}: {error}"[:500]})


def _write(to: int, *lines: str) -> None:
    left = "".join(f"{line}\n" for line in lines).encode()
    while left:
        left = left[os.write(to, left) :]
