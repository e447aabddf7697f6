"""Begins one side: binds it to its limits, then imports what it needs."""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Mapping

from inwit.envs.code.harness.wire import Channel, Gone


def limit(limits: Mapping[str, int]) -> None:
    """Bind this process, and all that it starts, for good; keys are names of RLIMIT_…."""
    for name, most in limits.items():
        hard = most + 1 if name == "CPU" else most  # SIGXCPU first, which tells what it died of
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, hard))


def silence(*fds: int) -> None:
    """Let what is printed go nowhere, and what is read be at its end."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in fds:
        os.dup2(null, fd)
    os.close(null)


def main(limits: str, role: str, fd: str) -> None:
    sys.set_int_max_str_digits(0)
    limit(json.loads(limits))
    if role == "program":
        channel = Channel(os.dup(0))
        silence(0, 1, 2)
        channel.send(["ready"])
        from inwit.envs.code.harness.program import Program

        try:
            Program(channel).serve()
        except Gone:
            os._exit(0)  # the tests are done: threads and exit handlers are not waited for
    job = json.load(sys.stdin)
    report = os.dup(1)
    silence(0, 1, 2)
    from inwit.envs.code.harness.examine import examine

    try:
        found = examine(job, Channel(int(fd)))
    except MemoryError:  # even while it was told: what it took is free again here
        found = {"kind": "memory", "test": "", "why": "MemoryError"}
    with os.fdopen(report, "w", encoding="utf-8") as out:
        json.dump(found, out)
    os._exit(0)
