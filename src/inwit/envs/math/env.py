"""The environment `math`: problems with answers in \\boxed{}, graded as mathematics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import Field

from inwit.envs.base import AnswerEnv, Result, Task
from inwit.envs.math.grader import Grader
from inwit.envs.math.grading import Allowed
from inwit.envs.math.texts import final_answer, last_box, short, states_answer
from inwit.envs.records import BadRecord, FileEnv, FileSettings, Record

QUESTIONS = ("problem", "question")
ANSWERS = ("answer", "final_answer", "answers")
SOLUTION = "solution"
MARK = "####"

MENDED = {
    "For any integer $n>1$, the number of prime numbers greater than $n!+1$": "0",
    "You are given a sequence of $58$ terms; each term has the form $P+n$": "0",
}
"""Two problems of MATH whose box is empty in the data, by how they begin: their solutions say that
there are no primes."""


class MathSettings(FileSettings):
    """Columns that are not named are found: problem or question; answer, final_answer or answers,
    else the last box of the solution; solution."""

    wrong: str | None = Field(None, description="its column with a wrong answer, to be mended")
    tolerance: float = Field(
        0.0, ge=0, lt=1, description="how far a number may be off, as a share of the right one"
    )
    seconds: float = Field(
        5.0, gt=0, description="processor time that an answer may take to grade; then it is wrong"
    )
    workers: int | None = Field(
        None, ge=1, description="processes that grade; as many as processors, if not told"
    )


class Math(FileEnv, AnswerEnv):
    """Problems out of a file, whose final answers are compared as mathematics (math-verify)."""

    Settings = MathSettings
    settings: MathSettings
    prompts = Path(__file__).parent / "prompts"

    @classmethod
    def task(cls, record: Record, settings: MathSettings) -> Task:
        question = record.text(settings.question, *QUESTIONS)
        context = record.fields.get("context")
        if settings.question is None and isinstance(context, str) and context.strip():
            question = f"{context.strip()}\n\n{question}"
        solution = _solution(record, settings)
        gold = _gold(record, settings, solution)
        reasons, marked, final = gold.rpartition(MARK)
        if marked:  # GSM8K as its authors and the hub have it: the answer ends a solution
            gold, solution = final.strip(), solution or f"{reasons}{MARK}{final}"
        mended = next((new for begins, new in MENDED.items() if question.startswith(begins)), gold)
        if not gold and mended:
            gold, solution = mended, solution and solution.replace("{}", f"{{{mended}}}")
        if not question:
            raise BadRecord("an empty question", "Fill it in, or drop the line.")
        data: dict[str, Any] = {}
        if solution:
            ending = "" if states_answer(solution) else f"\n\nThe answer is $\\boxed{{{gold}}}$."
            data["solution"] = solution + ending
        if settings.wrong:
            data["wrong"] = record.text(settings.wrong)
        if (error := record.fields.get("error")) is not None:
            data["error"] = _tolerance(error)
        return Task(record.id, question, gold, data)

    @classmethod
    def check(cls, tasks: Sequence[Task], settings: MathSettings) -> Mapping[str, BadRecord]:
        grader = Grader.shared(settings.seconds, settings.workers)
        flaws = grader.unreadable(task.reference for task in tasks)
        return {
            task.id: BadRecord(
                f"the answer '{task.reference[:60]}' cannot be read: {flaws[task.reference]}",
                "Mend it, or drop the line.",
                "gold_unparsable",
            )
            for task in tasks
            if task.reference in flaws
        }

    @cached_property
    def grader(self) -> Grader:
        return Grader.shared(self.settings.seconds, self.settings.workers)

    async def grade(self, task: Task, answer: str) -> Result:
        """Right where the one answer that an attempt states equals the gold. Raises GradingFailed,
        which makes an error of it."""
        allowed = Allowed(self.settings.tolerance, task.data.get("error"))
        return Result.of(await self.grader.agrade(task.reference, final_answer(answer), allowed))

    def answer_of(self, task: Task, text: str) -> str:
        """The final answer; equal for numbers, words and formulas that differ by writing alone."""
        del task
        return short(final_answer(text))

    def written(self, answer: str) -> str:
        return f"\\boxed{{{answer}}}"


def _solution(record: Record, settings: MathSettings) -> str:
    """The solution's text, or the first of several; empty where there is none."""
    column = settings.solution or SOLUTION
    value = record.fields.get(column)
    if isinstance(value, list) and value and all(isinstance(each, str) for each in value):
        return str(value[0]).strip()
    if settings.solution is None and (value is None or value == []):
        return ""
    return record.text(column)


def _gold(record: Record, settings: MathSettings, solution: str) -> str:
    """The right answer; several make a list. Raises BadRecord where there is none."""
    known = (name for name in ANSWERS if record.fields.get(name) is not None)
    column = settings.answer or next(known, None)
    if column is None:
        boxed = last_box(solution)
        return record.text(None, *ANSWERS) if boxed is None else boxed  # the former raises
    value = record.fields.get(column)
    if isinstance(value, list) and value:
        return ", ".join(str(each).strip() for each in value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return record.text(column)


def _tolerance(error: Any) -> float:
    try:
        return float(error)
    except (TypeError, ValueError) as bad:
        raise BadRecord(
            f"the column 'error' holds '{error}'", "Write how far a number may be off."
        ) from bad
