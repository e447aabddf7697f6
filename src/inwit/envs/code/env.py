"""Programs graded by tests: MBPP, HumanEval, and wrong programs for both, by their columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Literal

from pydantic import Field

from inwit.envs.base import AnswerEnv, Demonstration, Result, Split, Task
from inwit.envs.code import programs
from inwit.envs.code.sandbox import Job, Kind, Limits, Mode, Outcome, Sandbox
from inwit.envs.records import BadRecord, FileEnv, FileSettings, Record

PROMPT_IDS = range(1, 11)
OFFICIAL = {
    Split.TEST: range(11, 511),
    Split.DEV: range(511, 601),
    Split.TRAIN: range(601, 975),
}
"""MBPP's split, by task_id; its first ten are examples for few-shot prompts and in none."""

SAYS = {
    Kind.FAILED: "A test failed",
    Kind.TIMEOUT: "The program took too long",
    Kind.MEMORY: "The program took too much memory",
    Kind.CRASH: "The program died",
    Kind.NO_CODE: "There is no program in the answer",
}


class CodeSettings(FileSettings):
    shown: Literal["none", "example", "all"] = Field(
        "example", description="tests in the question: none but a signature, the first, or all"
    )
    wrong: str | None = Field(None, description="its column with a wrong program, to be mended")
    official: bool = Field(True, description="split by MBPP's task_id, where a task is MBPP's")
    sandbox: Mode = Field(
        "bubblewrap", description='"rlimits" is without isolation: for trusted programs only'
    )
    seconds: float = Field(8.0, gt=0, description="processor time of one program")
    deadline: float = Field(30.0, gt=0, description="seconds until a run is killed")
    memory: int = Field(512, ge=64, description="MB of one program")
    at_once: int = Field(0, ge=0, description="programs run at a time; 0: one for each processor")


class Code(FileEnv, AnswerEnv):
    """Programs graded by running tests in a sandbox. An answer is one fenced block of Python.

    Raises InwitError where the sandbox does not work.
    """

    Settings = CodeSettings
    settings: CodeSettings
    prompts = Path(__file__).parent / "prompts"
    runs_programs = True

    def __init__(self, settings: CodeSettings, tasks: Sequence[Task] | None = None) -> None:
        super().__init__(settings, tasks)
        limits = Limits(settings.seconds, settings.deadline, settings.memory)
        self.sandbox = Sandbox(settings.sandbox, limits, settings.at_once)

    # ------------------------------------------------------------------ tasks

    @classmethod
    def task(cls, record: Record, settings: CodeSettings) -> Task:
        has = {name for name, value in record.fields.items() if value not in (None, "", [])}
        try:
            if "test_list" in has:
                return _listed(record, settings, official=settings.official)
            if "entry_point" in has and has & {"test", "multipl_e_test"}:
                return _checked(record, settings)
        except programs.BROKEN as error:
            if isinstance(error, BadRecord):
                raise
            raise BadRecord(f"not Python ({error})", "Mend the program or its tests.") from error
        raise BadRecord(
            "no tests", "Columns: code and test_list (MBPP), or entry_point and test (HumanEval)."
        )

    @classmethod
    def split_of(cls, task: Task) -> Split | None:
        number = task.data.get("mbpp")
        return next((split for split, ids in OFFICIAL.items() if number in ids), None)

    def _divide(self, tasks: Sequence[Task]) -> dict[Split, list[Task]]:
        return super()._divide([t for t in tasks if t.data.get("mbpp") not in PROMPT_IDS])

    # ------------------------------------------------------------------ grading

    async def grade(self, task: Task, answer: str) -> Result:
        return result_of(await self.outcome(task, answer))

    async def outcome(self, task: Task, answer: str) -> Outcome:
        """What becomes of the program in an answer."""
        job = self.job(task, answer)
        return Outcome(Kind.NO_CODE) if job is None else await self.sandbox.run(job)

    def job(self, task: Task, answer: str) -> Job | None:
        """What is to be run; None where the answer holds no program."""
        d = task.data
        code = programs.code_in(answer, d["entry"], d.get("prompt", ""))
        if code is None:
            return None
        return Job((d["head"], code), d["tests"], d["names"], d["imports"], d["setup"])

    def answer_of(self, task: Task, text: str) -> str:
        code = programs.code_in(text, task.data["entry"], task.data.get("prompt", ""))
        return "" if code is None else programs.same_program(code)

    # ------------------------------------------------------------------ how answers are written

    def written(self, answer: str) -> str:
        return programs.fenced(answer)

    def wrong_answer(self, task: Task) -> str | None:
        wrong = super().wrong_answer(task)
        return None if wrong is None else self.written(wrong)

    def demonstrations(self, rng: Random, n: int) -> Sequence[Demonstration]:
        found = super().demonstrations(rng, n)
        return [replace(each, answer=self.written(each.answer)) for each in found]


def result_of(outcome: Outcome) -> Result:
    """Right where all tests passed; an error where the sandbox or the task's own text broke."""
    if outcome.kind is Kind.PASSED:
        return Result.of(True)
    if outcome.kind is Kind.ERROR:
        return Result.error("; ".join(part for part in (outcome.why, outcome.test) if part))
    lines = (f"{SAYS[outcome.kind]}:", outcome.test, outcome.why)
    return Result.of(False, "\n".join(line for line in lines if line))


# ---------------------------------------------------------------------- records


def _raw(record: Record, column: str) -> str:
    """As it stands: indentation counts."""
    value = record.fields[column]
    if not isinstance(value, str):
        raise BadRecord(f"the column '{column}' holds no text", "Write the program as text.")
    return value.replace("\r\n", "\n")


def _lines(record: Record, column: str) -> tuple[str, ...]:
    value = record.fields.get(column) or []
    lines = [value] if isinstance(value, str) else value
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise BadRecord(f"the column '{column}' holds no list of texts", "Write one test a text.")
    return tuple(programs.joined([line]) for line in lines)


def _programs(record: Record, settings: CodeSettings) -> dict[str, str]:
    """The wrong program, where there is one."""
    column = settings.wrong or "wrong_code"
    if settings.wrong or record.fields.get(column):
        return {"wrong": _raw(record, record.column(column))}
    return {}


def _listed(record: Record, settings: CodeSettings, official: bool) -> Task:
    """As MBPP has it: a text, a program, and a list of assertions."""
    tests, setup = _lines(record, "test_list"), _lines(record, "test_setup_code")
    data: dict[str, Any] = _programs(record, settings)
    solution = settings.solution or "code"
    if settings.solution or record.fields.get(solution):
        data["solution"] = _raw(record, record.column(solution))
    known = data.get("solution") or data.get("wrong") or ""
    own = programs.defined(data["solution"]) if "solution" in data else set()
    entry = str(record.fields.get("entry_point") or "")
    if not entry or f"{entry}(" not in tests[0]:  # where they differ, the tests decide
        entry = programs.entry_of(tests[0], own)
    if not entry:
        raise BadRecord("the first test calls nothing of the program's", "Name an entry_point.")
    names, imports = programs.needs([*setup, *tests], known, entry)
    imports = programs.joined([*_lines(record, "test_imports"), imports])
    number = record.fields.get("task_id")
    if official and isinstance(number, int):
        data["mbpp"] = number
    data |= {"tests": tests, "names": names, "imports": imports, "setup": "\n".join(setup)}
    data |= {"entry": entry, "head": ""}
    question = record.text(settings.question, "text", "prompt")
    if settings.shown == "none":
        question += f"\n\nDefine `{programs.signature_of(data.get('solution', ''), entry)}`."
    else:
        shown = tests if settings.shown == "all" else tests[:1]
        question += "\n\nIt must pass:\n" + programs.fenced("\n".join(shown))
    id = record.id if "id" in record.fields else f"mbpp/{record.id}"
    return Task(id, question, data.get("solution", ""), data)


def _checked(record: Record, settings: CodeSettings) -> Task:
    """As HumanEval has it: a function's beginning, its end, and a function that checks it."""
    entry, prompt = record.text("entry_point"), _raw(record, _asked(record, settings))
    if "test" in record.fields:
        test = f"{_raw(record, 'test')}\ncheck({entry})"
    else:  # the call is in it
        test = _raw(record, "multipl_e_test")
    programs.needs([test], prompt + "    pass\n", entry)  # raises where it cannot be parsed
    data: dict[str, Any] = _programs(record, settings)
    solution = settings.solution or "canonical_solution"
    if settings.solution or record.fields.get(solution):
        data["solution"] = prompt + _raw(record, record.column(solution))
    head = programs.head_of(prompt, entry)
    data |= {"tests": (test,), "names": (entry,), "imports": head, "setup": ""}
    data |= {"entry": entry, "head": head, "prompt": prompt}
    question = f"Complete this function:\n{programs.fenced(prompt)}"
    if settings.shown == "all":
        question += "\n\nIt must pass:\n" + programs.fenced(test)
    return Task(record.id, question, data.get("solution", ""), data)


def _asked(record: Record, settings: CodeSettings) -> str:
    return record.column(settings.question, "prompt")
