"""The side that judges: runs the tests, and says what became of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inwit.envs.code.harness.remote import Examiner, Remote, Uncrossable
from inwit.envs.code.harness.wire import SHOWN, Channel, Gone, Nonsense, ProgramError, text_of


def examine(job: Mapping[str, Any], channel: Channel) -> dict[str, str]:
    """What became of the tests: `kind`, the `test` that was not passed, and `why`.

    `early` is a program's process that never began, and `gone` one that ended.
    """
    try:
        channel.receive()  # it is ready
    except Gone as gone:
        return _said("early", "", str(gone))
    examiner, place = Examiner(channel), ["", "loading the program"]
    try:
        for text in job["program"]:
            examiner.ask("load", text)
        found = _run_tests(job, examiner, place)
    except Exception as error:
        found = _fault(error, job, examiner, place)
    except Gone as gone:
        found = _said(_how(gone), place[1], str(gone))
    except (Uncrossable, _Faulty) as error:
        found = _said("error", place[1], str(error))
    except SystemExit:
        found = _said("failed", place[1], "the tests were left early")
    if examiner.gone and found["kind"] == "passed":  # a test may have caught everything
        return _said(_how(examiner.gone), "", str(examiner.gone))
    return found


def _how(gone: Gone) -> str:
    return "crash" if isinstance(gone, Nonsense) else "gone"


class _Faulty(BaseException):
    """The task's own text cannot be run."""


def _run_tests(job: Mapping[str, Any], examiner: Examiner, place: list[str]) -> dict[str, str]:
    space: dict[str, Any] = {"__name__": "tests"}
    texts = {"<imports>": job["imports"], "<setup>": job["setup"]}
    texts |= {f"<test {i}>": test for i, test in enumerate(job["tests"])}
    try:
        codes = {name: compile(text, name, "exec") for name, text in texts.items()}
        place[1] = "imports of the tests"
        exec(codes.pop("<imports>"), space)
    except Exception as error:
        raise _Faulty(f"{type(error).__name__}: {text_of(error)}") from error
    for name in job["names"]:
        try:
            value = examiner.ask("get", name)
        except KeyError:
            continue  # a test that needs it says so
        named = isinstance(value, Remote)
        space[name] = Remote(examiner, value._handle, name) if named else value
    for name, code in codes.items():
        place[:] = name, texts[name].strip()[:SHOWN]
        examiner.last = None
        exec(code, space)
    return _said("passed", "", "")


def _said(kind: str, test: str, why: str) -> dict[str, str]:
    return {"kind": kind, "test": test[:SHOWN], "why": why[: 3 * SHOWN]}


def _fault(
    error: Exception, job: Mapping[str, Any], examiner: Examiner, place: list[str]
) -> dict[str, str]:
    kind = "memory" if isinstance(error, MemoryError) else "failed"
    name, test = place
    if name.startswith("<test"):
        test = _statement(error, name, job["tests"][int(name[6:-1])]) or test
    name = "" if isinstance(error, ProgramError) else type(error).__name__
    why = ": ".join(part for part in (name, text_of(error)) if part)
    if isinstance(error, AssertionError) and examiner.last:
        called, args, value = examiner.last
        why = f"{called}({', '.join(map(_shown, args))}) gave {_shown(value)}"
    return _said(kind, test, why)


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        text = f"a {type(value).__name__}"
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def _statement(error: Exception, name: str, test: str) -> str:
    """The innermost statement of the test that was under way."""
    import ast  # slow to import, and needed for what fails only

    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == name:
            line = trace.tb_lineno
        trace = trace.tb_next
    over = [
        node
        for node in ast.walk(ast.parse(test))
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    least = min(over, key=lambda node: (node.end_lineno or 0) - node.lineno, default=None)
    return (least and ast.get_source_segment(test, least)) or ""
