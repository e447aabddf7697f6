"""The sandbox: what a hostile program tries, and that none of it gets out, hangs, or is passed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections import Counter, OrderedDict, deque
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inwit.envs.code import Job, Kind, Limits, Outcome, Sandbox
from inwit.envs.code.harness.wire import decode, encode
from inwit.envs.code.sandbox import check
from inwit.errors import InwitError

DISK = 7
MARK = f'"FSIZE": {DISK * 2**20}'
"""In the command line of every process of this file's sandboxes, and of no other."""


@pytest.fixture(scope="module")
def box() -> Sandbox:
    limits = Limits(cpu=1, wall=20, memory=300, disk=DISK)
    try:
        return Sandbox(limits=limits)
    except InwitError as error:
        pytest.skip(f"no sandbox on this machine: {error.what}")


def run(box: Sandbox, program: str, *tests: str, names: tuple[str, ...] = ("f",)) -> Outcome:
    return box.run_now(Job((program,), tests or ("assert f(1) == 2",), names))


def value(box: Sandbox, program: str) -> str:
    """What `f()` gives, as text."""
    found = run(box, program, "raise RuntimeError(f())")
    assert found.kind is Kind.FAILED, found
    return found.why.removeprefix("RuntimeError: ")


def left_behind() -> list[str]:
    """Command lines of processes that belong to this file's sandboxes."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if MARK in line:
                found.append(line)
    return found


def assert_nothing_is_left() -> None:
    for _ in range(100):  # the kernel takes a moment to end a namespace
        if not left_behind():
            return
        time.sleep(0.05)
    assert left_behind() == []


# ---------------------------------------------------------------------- honest programs


def test_a_right_program_passes_and_a_wrong_one_is_told_where_it_failed(box):
    assert run(box, "def f(x):\n    return x + 1").kind is Kind.PASSED
    wrong = run(box, "def f(x): return x", "assert f(1) == 1", "assert f(1) == 2")
    assert (wrong.kind, wrong.test, wrong.why) == (Kind.FAILED, "assert f(1) == 2", "f(1) gave 1")


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("def f(x): return math.floor(x)", "NameError: name 'math' is not defined"),
        ("def f(x) return x", "SyntaxError: expected ':' (<program>, line 1)"),
        ("def g(x): return x", "NameError: name 'f' is not defined"),
        ("def f(): return 2", "TypeError: f() takes 0 positional arguments but 1 was given"),
        ("f = 2", "TypeError: 'int' object is not callable"),
        ("def f(x): return input()", "EOFError: EOF when reading a line"),
        ("class E(Exception): pass\ndef f(x): raise E('no')", "E: no"),
        ("def f(x): return f(x)", "RecursionError: maximum recursion depth exceeded"),
        ("x = '\ud800'", "UnicodeEncodeError: 'utf-8' codec can't encode character"),
        ("x = '\0'", "SyntaxError: source code string cannot contain null bytes"),
    ],
)
def test_a_programs_own_fault_is_named(program, why, box):
    found = run(box, program)
    assert found.kind is Kind.FAILED
    assert why.split(":")[0] in found.why and found.why.split("(")[0][:40] == why.split("(")[0][:40]


def test_the_failing_line_of_a_long_test_is_found(box):
    test = "def check(c):\n    for x in (1, 2):\n        assert c(x) == 1, 'off'\ncheck(f)"
    found = run(box, "def f(x): return x", test)
    assert (found.test, found.why) == ("assert c(x) == 1, 'off'", "f(2) gave 2")


def test_a_guarded_main_is_not_run_and_prints_go_nowhere(box):
    program = (
        "def f(x):\n    print('x' * 10**6)\n    return 2\nif __name__ == '__main__': f(input())"
    )
    assert run(box, program).kind is Kind.PASSED


def test_tests_may_use_the_programs_classes_functions_and_iterators(box):
    program = """
class Node:
    def __init__(self, value): self.value, self.left = value, None
    def __eq__(self, other): return self.value == other.value
    def __len__(self): return 5
    def __getitem__(self, i): return i * 2
def f(node): return node.left.value
def count(n):
    yield from range(n)
def adder(n): return lambda x: x + n
def each(function, xs): return [function(x) for x in xs]
def put(xs, table, x): xs.append(x); table[x] = [x]
"""
    names = ("Node", "f", "count", "adder", "each", "put")
    found = run(
        box,
        program,
        "root = Node(1)\nroot.left = Node(7)\nassert f(root) == 7",
        "assert Node(3) == Node(3) and Node(3) != Node(4) and len(root) == 5 and root[4] == 8",
        "assert list(count(3)) == [0, 1, 2] and next(count(1)) == 0",
        "assert adder(2)(3) == 5",
        "assert each(lambda x: x * 10, (1, 2)) == [10, 20] and each(str, [1]) == ['1']",
        "assert each(adder(1), iter([1])) == [2]",
        "xs, table = [1], {}\nput(xs, table, 2)\nassert xs == [1, 2] and table == {2: [2]}",
        "try:\n    each(lambda x: 1 / x, [0])\n    assert 0\nexcept ZeroDivisionError: pass",
        names=names,
    )
    assert found.kind is Kind.PASSED, found


def test_a_test_that_cannot_be_run_is_the_tasks_error(box):
    odd = "class Odd: pass\nassert f(Odd()) == 2"
    for tests in (("assert f(1) = 2",), (odd,)):
        assert run(box, "def f(x): return 2", *tests).kind is Kind.ERROR
    job = Job(("def f(x): return 2",), ("assert f(1) == 2",), ("f",), imports="import no_such")
    assert box.run_now(job).kind is Kind.ERROR


def test_grades_do_not_depend_on_the_order_of_sets(box):
    program = "def f(): return list({str(i) for i in range(50)})"
    assert value(box, program) == value(box, program)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.integers(), inner),
    max_leaves=15,
)


@given(plain)
@settings(max_examples=200, deadline=None)
def test_plain_values_cross_as_they_are(given_value):
    back = decode(encode(given_value, pytest.fail), pytest.fail)
    assert back == given_value and type(back) is type(given_value)


@pytest.mark.parametrize(
    "each",
    [
        10**4000,
        -(2**63),
        1 + 2j,
        range(3, 9, 2),
        {1, 2},
        frozenset({"a"}),
        bytearray(b"\0"),
        Decimal("1.10"),
        Fraction(1, 3),
        date(2020, 2, 29),
        datetime(2020, 1, 1, 5),
        timedelta(1, 2, 3),
        OrderedDict([(2, 1), (1, 2)]),
        Counter("aab"),
        deque([1, 2]),
        int,
    ],
)
def test_other_values_of_the_standard_library_cross_too(each):
    back = decode(encode(each, pytest.fail), pytest.fail)
    assert back == each and type(back) is type(each)


# ---------------------------------------------------------------------- too much of something


@pytest.mark.parametrize(
    "body",
    [
        "while True: pass",
        "return sum(range(10**18))",
        "return 9**9**9",
        "while True: print('x' * 999)",
    ],
    ids=["loop", "loop in C", "power", "endless output"],
)
def test_what_does_not_end_is_ended(body, box):
    """LESSONS 22: its processes are killed as a group, and what became of it has a type."""
    found = run(box, f"def f(x):\n    {body}")
    assert found.kind is Kind.TIMEOUT
    assert "processor time" in found.why
    assert_nothing_is_left()


def test_waiting_is_ended_by_the_wall_clock(box):
    short = Sandbox(limits=Limits(cpu=5, wall=1.5, disk=DISK))
    assert run(short, "import time\ndef f(x): time.sleep(600)").kind is Kind.TIMEOUT
    ignoring = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    assert run(box, ignoring).kind in (Kind.CRASH, Kind.TIMEOUT)
    assert_nothing_is_left()


@pytest.mark.parametrize(
    "body",
    ["return bytearray(10 * 2**30)", "return [0] * 10**10", "return 'x' * 10**11"],
)
def test_ten_gigabytes_are_not_had(body, box):
    assert run(box, f"def f(x):\n    {body}").kind is Kind.MEMORY


def test_a_crash_of_the_interpreter_is_a_crash(box):
    assert run(box, "import ctypes\nctypes.string_at(0)").kind is Kind.CRASH
    deep = "import sys\nsys.setrecursionlimit(10**9)\ndef f(x): return repr(f(x))"
    assert run(box, deep).kind not in (Kind.PASSED, Kind.ERROR)


def test_a_huge_answer_is_no_answer(box):
    assert run(box, "def f(x): return 'x' * (20 * 2**20)").kind is Kind.FAILED


def test_a_fork_bomb_starts_nothing(box):
    """Children end at once: this must do no harm where the sandbox is broken."""
    program = """
import os, subprocess, sys, ctypes
libc = ctypes.CDLL(None)
def child(pid):
    if pid == 0:
        os._exit(0)
    return pid
def f():
    made = 0
    for _ in range(100):
        for way in (lambda: child(os.fork()),
                    lambda: subprocess.Popen([sys.executable, '-c', 'pass']),
                    lambda: os.posix_spawn(sys.executable, [sys.executable, '-c', ''], {})):
            try:
                way()
                made += 1
            except OSError:
                pass
        made += child(libc.fork()) > 0
    return made
"""
    assert value(box, program) == "0"
    assert_nothing_is_left()


def test_a_thousand_threads_are_not_had_for_long(box):
    program = """
import threading, time
def f():
    try:
        for _ in range(100_000):
            threading.Thread(target=time.sleep, args=(600,)).start()
    except (RuntimeError, MemoryError):
        return 'refused'
"""
    found = run(box, program, "assert f() == 'refused'")
    assert found.kind in (Kind.PASSED, Kind.MEMORY, Kind.CRASH, Kind.TIMEOUT, Kind.FAILED)
    assert_nothing_is_left()


def test_a_daemon_is_not_left_behind(box):
    program = """
import os, time
def f(x):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(5)
    return 2
"""
    assert run(box, program).kind is Kind.FAILED
    threaded = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\n"
    assert run(box, threaded + "def f(x): return 2").kind is Kind.PASSED
    assert_nothing_is_left()


def test_the_private_folder_is_small_and_gone_afterwards(box):
    program = """
import os
def f():
    written = 0
    try:
        for i in range(100_000):
            with open(f'/tmp/{i}', 'wb') as file:
                written += file.write(b'x' * 65536)
    except OSError:
        pass
    return written
"""
    assert 0 < int(value(box, program)) <= DISK * 2**20
    one = "def f():\n    try: open('big', 'wb').write(b'x' * (100 * 2**20))\n"
    assert value(box, one + "    except OSError: return 'refused'") == "refused"
    assert value(box, "import os\ndef f(): return os.listdir('/tmp')") == "[]"


# ---------------------------------------------------------------------- getting out


def test_nothing_outside_can_be_written(box):
    program = """
import os, sys
def f():
    done = []
    for folder in ('/', '/usr', '/root', '/etc', '/lib', '/dev', '/harness', '/home', sys.prefix):
        for act in (lambda: open(folder + '/inwit-was-here', 'w'), lambda: os.mkdir(folder + '/x')):
            try:
                act()
                done.append(folder)
            except OSError:
                pass
    return done
"""
    assert value(box, program) == "[]"
    assert not Path("/usr/inwit-was-here").exists()


def test_nothing_of_the_users_can_be_read(box, tmp_path, monkeypatch):
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    monkeypatch.setenv("INWIT_SECRET", "s3cret")
    paths = [str(secret), __file__, str(Path.home() / ".bashrc"), "/etc/passwd", "/etc/shadow"]
    paths += [f"/proc/{p}/environ" for p in (1, "self", os.getpid())] + ["/sys", "/run", "/var"]
    program = f"""
import os
def f(): return [p for p in {paths!r} if os.path.exists(p)], sorted(os.environ), os.getuid() > 0
"""
    found = value(box, program)
    assert found.startswith("([], [") and found.endswith("True)")
    assert "SECRET" not in found and "TOKEN" not in found and "HOME" not in found


def test_no_socket_is_opened(box):
    program = """
import socket
def f():
    made = []
    for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK):
        try:
            socket.socket(family)
            made.append(family)
        except OSError:
            pass
    try:
        socket.create_connection(('1.1.1.1', 53), 1)
        made.append('net')
    except OSError:
        pass
    return made
"""
    assert value(box, program) == "[]"


def test_no_other_process_is_reached(box):
    """The only one that is shot at is ours to lose: a broken sandbox must not cost more."""
    with subprocess.Popen(["sleep", "600"]) as victim:
        program = f"""
import ctypes, os, signal
libc = ctypes.CDLL(None)
def f():
    done = []
    own = [(pid, 0) for pid in (1, os.getpid(), os.getppid())]
    for pid, number in [({victim.pid}, signal.SIGKILL), *own]:
        try:
            os.kill(pid, number)
            done.append(pid)
        except OSError:
            pass
    traced = [libc.ptrace(16, pid, 0, 0) for pid in (1, os.getppid(), {victim.pid})]
    own = [libc.unshare(0x10000000), libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)]
    return done, {{*traced, *own}}, os.getpid() < 10
"""
        found = value(box, program)
        assert found == "([], {-1}, True)"
        assert victim.poll() is None
        victim.kill()


# ---------------------------------------------------------------------- faking a pass

FRAME = "m = json.dumps({}).encode(); m = len(m).to_bytes(4, 'big') + m\n"
FLOOD = (
    "import os, json\n"
    + FRAME
    + "for fd in range(64):\n    try: os.write(fd, m * 20)\n"
    + ("    except OSError: pass\ndef f(x): return 1")
)
FAKES = {
    "os._exit when loaded": "import os\nos._exit(0)",
    "os._exit when called": "import os\ndef f(x): os._exit(0)",
    "sys.exit when loaded": "import sys\nsys.exit(0)",
    "sys.exit when called": "import sys\ndef f(x): sys.exit(0)",
    "quit": "def f(x): raise SystemExit",
    "at exit": "import atexit, os\natexit.register(lambda: os._exit(0))\ndef f(x): exit()",
    "StopIteration": "def f(x): raise StopIteration",
    "GeneratorExit": "def f(x): raise GeneratorExit",
    "AssertionError patched": "import builtins\nbuiltins.AssertionError = None\ndef f(x): return 1",
    "exit patched": "import builtins, os, sys\nos._exit = sys.exit = builtins.exit = print\n"
    "def f(x): return 1",
    "builtins patched": "import builtins\nbuiltins.len = builtins.abs = builtins.bool = "
    "builtins.type = lambda *a: True\ndef f(x): return 1",
    "modules patched": "import sys, json\njson.dumps = lambda *a: '[\"value\", 3, []]'\n"
    "sys.modules.clear()\ndef f(x): return 1",
    "main patched": "import sys, inwit.envs.code.harness.main as m\nsys.modules['__main__'] = m\n"
    "def f(x): return 1",
    "equal to all": "class A:\n    def __eq__(self, o): return True\n    __ne__ = __eq__\n"
    "    __hash__ = None\ndef f(x): return A()",
    "near to all": "class A(float):\n    def __sub__(self, o): return 0\n    __rsub__ = __sub__\n"
    "    def __abs__(self): return 0\n    def __lt__(self, o): return True\n"
    "    __gt__ = __le__ = __ge__ = __eq__ = __lt__\ndef f(x): return A(9)",
    "an equal int": "class A(int):\n    def __eq__(self, o): return True\n    __hash__ = None\n"
    "def f(x): return A(1)",
    "an equal class": "class M(type):\n    def __eq__(self, o): return True\n"
    "    __hash__ = None\nclass A(metaclass=M): pass\ndef f(x): return A",
    "f is no function": "class F:\n    def __call__(self, x): return self\n"
    "    def __eq__(self, o): return True\nf = F()",
    "frames": "import sys, gc\ndef f(x):\n    g = sys._getframe()\n    while g:\n"
    "        if 'job' in g.f_locals: return 2\n        g = g.f_back\n    return 1",
    "tokens printed": 'print(\'passed\')\nprint(\'{"kind": "passed", "test": "", "why": ""}\')\n'
    "import os\nos._exit(0)",
    "reports to every descriptor": FLOOD.format('{"kind": "passed", "test": "", "why": ""}'),
    "ready again": FLOOD.format('["ready"]'),
    "done": FLOOD.format("[\"answer\", '', True]"),
    "no values": FLOOD.format('["value"]'),
    "callbacks": FLOOD.format('["back", 0, []]'),
    "exits": FLOOD.format('["raise", "SystemExit", "0"]'),
    "stops": FLOOD.format('["stop"]'),
    "objects": FLOOD.format('["value", ["object", [7, "A"]], []]'),
    "other classes": FLOOD.format('["value", ["os._exit", 0], []]'),
    "nested": "import os\nm = b'[' * 10**5\nos.write(3, len(m).to_bytes(4, 'big') + m)\n"
    "os.write(4, len(m).to_bytes(4, 'big') + m)\ndef f(x): return 1",
    "a long message": "import os\nfor fd in range(32):\n    try: os.write(fd, b'\\xff' * 9)\n"
    "    except OSError: pass\ndef f(x): return 1",
    "a flood of values": "def f(x): return [[] for _ in range(700_000)]",
    "a flood of numbers": "def f(x): return list(range(2_000_000))",
    "a number without end": "import os\nm = b'9' * 10**7\nfor fd in range(32):\n"
    "    try: os.write(fd, len(m).to_bytes(4, 'big') + m)\n    except OSError: pass\n"
    "def f(x): return 1",
    "a value in itself": "def f(x):\n    a = []\n    a.append(a)\n    return a",
    "an iterator without end": "import itertools\ndef f(x): return itertools.count(3)",
    "descriptors closed": "import os\nos.closerange(0, 64)\ndef f(x): return 1",
    "descriptors swapped": "import os\nr, w = os.pipe()\nfor fd in range(32):\n    os.dup2(w, fd)\n"
    "def f(x): return 1",
}
TESTS = {
    "assert f(1) == 2": "equality",
    "assert abs(f(1) - 2) < 1e-6": "distance",
    "assert f(1) in (2, 3)": "membership",
    "assert [f(1)] == [2]": "a list",
    "def check(c):\n    assert all(map(lambda x: c(x) == 2, [1, 1]))\ncheck(f)": "check",
}


@pytest.mark.parametrize("name", FAKES)
def test_no_trick_is_graded_as_passed(name, box):
    found = run(box, FAKES[name])
    assert found.kind in (Kind.FAILED, Kind.CRASH, Kind.TIMEOUT, Kind.MEMORY), found


@pytest.mark.parametrize("test", TESTS, ids=TESTS.get)
@pytest.mark.parametrize(
    "name", ["equal to all", "near to all", "an equal class", "StopIteration", "an equal int"]
)
def test_no_kind_of_test_is_passed_by_an_object_that_agrees_with_all(name, test, box):
    assert run(box, FAKES[name], test).kind is Kind.FAILED


def test_a_program_that_is_gone_cannot_be_forgiven_by_a_test(box):
    bare = "try:\n    f(1)\nexcept:\n    pass"
    assert run(box, "import os\ndef f(x): os._exit(0)", bare).kind is Kind.CRASH
    assert run(box, "def f(x): raise ValueError", bare).kind is Kind.PASSED


# ---------------------------------------------------------------------- many at once, and without


def test_only_so_many_run_at_once_from_one_event_loop_after_the_other():
    slow = Job(
        ("import time\ndef f():\n    time.sleep(0.4)\n    return 2",), ("assert f() == 2",), ("f",)
    )
    try:
        single = Sandbox(at_once=1)
    except InwitError as error:
        pytest.skip(f"no sandbox on this machine: {error.what}")

    async def three() -> list[Outcome]:
        return await asyncio.gather(*(single.run(slow) for _ in range(3)))

    for _ in range(2):
        start = time.monotonic()
        assert [each.kind for each in asyncio.run(three())] == [Kind.PASSED] * 3
        assert time.monotonic() - start >= 1.2


def test_without_bubblewrap_nothing_is_run_and_the_remedy_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InwitError, match="no 'bwrap'") as caught:
        check.__wrapped__("bubblewrap")
    assert "apt install bubblewrap" in caught.value.fix and "rlimits" in caught.value.fix


def test_where_namespaces_are_refused_nothing_is_run(tmp_path, monkeypatch):
    refusing = tmp_path / "bwrap"
    refusing.write_text(
        "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n"
    )
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InwitError, match="No permissions to create new namespace") as caught:
        check.__wrapped__("bubblewrap")
    assert "user namespaces" in caught.value.fix


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        ("def f(x): return 2", Kind.PASSED),
        ("def f(x): return 1", Kind.FAILED),
        ("import os\nos._exit(0)", Kind.CRASH),
        ("while True: pass", Kind.TIMEOUT),
        ("x = [0] * 10**10", Kind.MEMORY),
    ],
)
def test_the_weaker_mode_still_judges_and_limits(program, kind):
    weak = Sandbox("rlimits", Limits(cpu=1, wall=20, memory=300))
    assert run(weak, program).kind is kind
