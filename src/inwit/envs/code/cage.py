"""The command line of bubblewrap, and the filter of system calls."""

from __future__ import annotations

import os
import platform
import py_compile
import shutil
import struct
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from inwit.errors import InwitError

INSIDE = Path("/harness")
NOBODY = "65534"
SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache")
NAMESPACES = ("user", "pid", "net", "ipc", "uts", "cgroup")  # and mount, always
START = "import sys; from inwit.envs.code.harness.main import main; main(*sys.argv[1:])"


@cache
def harness() -> Path:
    """A folder with nothing but what runs inside, compiled; it is gone when this process ends."""
    folder = tempfile.TemporaryDirectory(prefix="inwit-harness-")
    _kept.append(folder)
    package = Path(folder.name, "inwit", "envs", "code", "harness")
    package.mkdir(parents=True)
    for file in (Path(__file__).parent / "harness").glob("*.py"):
        shutil.copy(file, package)
        py_compile.compile(str(package / file.name), dfile=file.name, doraise=True)
    return Path(folder.name)


_kept: list[tempfile.TemporaryDirectory[str]] = []


def python() -> list[str]:
    """The interpreter that this one is, without its packages."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    own = Path(sys.base_prefix, "bin", version)
    return [str(own if own.exists() else Path(sys.executable).resolve()), "-s", "-S", "-P"]


def environment(root: Path) -> dict[str, str]:
    """All that a program finds in its environment. Hashes are fixed: a grade does not vary."""
    return {"PYTHONPATH": str(root), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}


def bubblewrap(disk: int, rules: int) -> list[str]:
    """Everything before the command.

    Args:
        disk: bytes of the private folder.
        rules: descriptor that the filter is read from.
    """
    found = shutil.which("bwrap")
    if found is None:
        raise InwitError("There is no 'bwrap' here.", "Install bubblewrap.")
    cage = [found, "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    cage += [f"--unshare-{name}" for name in NAMESPACES]
    cage += ["--uid", NOBODY, "--gid", NOBODY, "--hostname", "sandbox"]
    for path in SYSTEM:
        if Path(path).is_symlink():
            cage += ["--symlink", str(Path(path).readlink()), path]
        elif Path(path).exists():
            cage += ["--ro-bind", path, path]
    if not Path(sys.base_prefix).is_relative_to("/usr"):
        cage += ["--ro-bind", sys.base_prefix, sys.base_prefix]
    cage += ["--ro-bind", str(harness()), str(INSIDE)]
    cage += ["--dev-bind", "/dev/null", "/dev/null", "--dev-bind", "/dev/urandom", "/dev/urandom"]
    cage += ["--size", str(disk), "--tmpfs", "/tmp", "--chdir", "/tmp", "--remount-ro", "/"]
    for name, value in environment(INSIDE).items():
        cage += ["--setenv", name, value]
    return [*cage, "--seccomp", str(rules), "--"]


# ---------------------------------------------------------------------- system calls

CALLS: Mapping[str, tuple[int, Mapping[str, int]]] = {
    "x86_64": (
        0xC000003E,
        {"clone": 56, "clone3": 435, "fork": 57, "vfork": 58, "socket": 41, "ptrace": 101}
        | {"kill": 62, "tkill": 200, "rt_sigqueueinfo": 129, "pidfd_send_signal": 424}
        | {"process_vm_readv": 310, "process_vm_writev": 311, "pidfd_getfd": 438}
        | {"unshare": 272, "setns": 308, "mount": 165, "shmget": 29, "msgget": 68, "semget": 64}
        | {"mq_open": 240, "add_key": 248, "request_key": 249, "keyctl": 250, "bpf": 321}
        | {"perf_event_open": 298, "io_uring_setup": 425, "userfaultfd": 323, "memfd_create": 319},
    ),
    "aarch64": (
        0xC00000B7,
        {"clone": 220, "clone3": 435, "socket": 198, "ptrace": 117}
        | {"kill": 129, "tkill": 130, "rt_sigqueueinfo": 138, "pidfd_send_signal": 424}
        | {"process_vm_readv": 270, "process_vm_writev": 271, "pidfd_getfd": 438}
        | {"unshare": 97, "setns": 268, "mount": 40, "shmget": 194, "msgget": 186, "semget": 190}
        | {"mq_open": 180, "add_key": 217, "request_key": 218, "keyctl": 219, "bpf": 280}
        | {"perf_event_open": 241, "io_uring_setup": 425, "userfaultfd": 282, "memfd_create": 279},
    ),
}
"""By machine: the kernel's name for it (linux/audit.h) and numbers of calls (asm/unistd.h)."""

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, MACHINE, FLAGS = 0, 4, 16
"""Offsets in struct seccomp_data: the call's number, the machine, and the first argument."""
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
EPERM, ENOSYS = 1, 38
THREAD = 0x00010000
X32 = 0x40000000
"""CLONE_THREAD, and the bit of x86-64's other way to call (asm/unistd.h)."""


@cache
def rules() -> bytes:
    """A program for the kernel (linux/filter.h) that refuses what a sandboxed program has no use
    for: new processes before all, since limits on their number do not bind root.

    Raises InwitError where the machine's calls are not known here.
    """
    machine = platform.machine()
    if machine not in CALLS:
        raise InwitError(
            f"The sandbox does not know the system calls of {machine}.",
            f"It knows those of {', '.join(CALLS)}; see docs/how-to/code.md for a weaker mode.",
        )
    audit, calls = CALLS[machine]
    steps = [(LOAD, 0, 0, MACHINE), (EQUAL, 1, 0, audit), (RETURN, 0, 0, KILL)]
    steps += [(LOAD, 0, 0, NUMBER), (AT_LEAST, 0, 1, X32), (RETURN, 0, 0, KILL)]
    for name, number in calls.items():
        if name == "clone3":  # its flags cannot be read here; libc falls back on clone
            steps += [(EQUAL, 0, 1, number), (RETURN, 0, 0, REFUSE | ENOSYS)]
        elif name != "clone":
            steps += [(EQUAL, 0, 1, number), (RETURN, 0, 0, REFUSE | EPERM)]
    steps += [(EQUAL, 0, 3, calls["clone"]), (LOAD, 0, 0, FLAGS)]
    steps += [(ANY_BIT, 1, 0, THREAD), (RETURN, 0, 0, REFUSE | EPERM), (RETURN, 0, 0, ALLOW)]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


@contextmanager
def readable(data: bytes) -> Iterator[int]:
    """A descriptor that gives these few bytes, then its end."""
    out, into = os.pipe()
    try:
        os.write(into, data)
        os.close(into)
        yield out
    finally:
        os.close(out)
