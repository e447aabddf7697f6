"""Questions with short answers out of a JSONL file of the user's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

from pydantic import Field

from inwit.envs.answers import same_answer, short_answer
from inwit.envs.base import AnswerEnv, Demonstration, EnvSettings, Result, Split, Task
from inwit.errors import InwitError, nearest
from inwit.seeding import rng


class QuestionsSettings(EnvSettings):
    file: Path = Field(description="JSON Lines, one task a line")
    question: str = Field("question", description="its column with the question")
    answer: str = Field("answer", description="its column with the answer, a number or a few words")
    wrong: str | None = Field(None, description="its column with a wrong answer, to be mended")
    solution: str | None = Field(None, description="its column with an answer worth imitating")
    max_characters: int | None = Field(None, ge=1, description="longer questions are left out")
    dev: float = Field(0.1, ge=0, lt=1, description="share of the tasks held out for tuning")
    test: float = Field(0.1, ge=0, le=1, description="share held out for the end")
    seed: int = Field(0, description="of the split")


class Questions(AnswerEnv):
    """Questions with short answers out of a JSONL file, graded as numbers or words."""

    Settings = QuestionsSettings
    settings: QuestionsSettings

    def __init__(self, settings: QuestionsSettings) -> None:
        super().__init__(settings)
        self._splits = self._divide(read_tasks(settings))

    def _divide(self, tasks: list[Task]) -> dict[Split, list[Task]]:
        """By shuffled position; tasks that ask the same stay together, so no split leaks."""
        by_question: dict[str, list[Task]] = {}
        for task in tasks:
            by_question.setdefault(" ".join(task.question.split()).lower(), []).append(task)
        questions = list(by_question.values())
        r: Random = rng(self.settings.seed, "questions", "split")
        r.shuffle(questions)
        n = len(questions)
        test = round(n * self.settings.test)
        dev = test + round(n * self.settings.dev)
        parts = {
            Split.TEST: questions[:test],
            Split.DEV: questions[test:dev],
            Split.TRAIN: questions[dev:],
        }
        return {split: [t for group in groups for t in group] for split, groups in parts.items()}

    def tasks(self, split: Split) -> Sequence[Task]:
        return self._splits[split]

    @property
    def makes_demonstrations(self) -> bool:
        return self.settings.solution is not None

    def demonstrations(self, rng: Random, n: int) -> Sequence[Demonstration]:
        """Solutions of training tasks, in the solver's role."""
        tasks = rng.choices(self._splits[Split.TRAIN], k=n)
        return [
            Demonstration("solver", {"question": t.question}, t.data["solution"]) for t in tasks
        ]

    def grade(self, task: Task, answer: str) -> Result:
        return Result.of(same_answer(answer, task.reference))

    def answer_of(self, task: Task, text: str) -> str:
        return short_answer(text, task.reference)


def read_tasks(settings: QuestionsSettings) -> list[Task]:
    """Every line as a task. Raises InwitError with file and line where one is broken."""
    file = settings.file
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")  # JSON may hold other line ends
    except FileNotFoundError as error:
        raise InwitError(f"There is no task file '{file}'.", "Check env.file.") from error
    except (UnicodeDecodeError, OSError) as error:
        raise InwitError(f"The task file '{file}' cannot be read: {error}.", "Check it.") from error
    tasks, ids = [], set()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        task = _task(line, settings, f"{file}, line {number}", str(number))
        if task.id in ids:
            raise InwitError(f"{file}, line {number}: the id '{task.id}' occurs twice.", "Mend it.")
        ids.add(task.id)
        limit = settings.max_characters
        if limit is None or len(task.question) <= limit:
            tasks.append(task)
    if not tasks:
        raise InwitError(f"The task file '{file}' holds no tasks.", "Check it, and its columns.")
    return tasks


def _task(line: str, settings: QuestionsSettings, where: str, number: str) -> Task:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise InwitError(f"{where}: not JSON ({error.msg}).", "One JSON object a line.") from error
    if not isinstance(record, dict):
        raise InwitError(f"{where}: not a JSON object.", "One JSON object a line.")
    extra = {"solution": settings.solution, "wrong": settings.wrong}
    for column in filter(None, (settings.question, settings.answer, *extra.values())):
        if column not in record:
            raise InwitError(f"{where}: no column '{column}'.", nearest(column, record))
        if not isinstance(value := record[column], (str, int, float)):
            raise InwitError(
                f"{where}: the column '{column}' holds {json.dumps(value)[:40]}.",
                "Write text or a number.",
            )
    question, answer = (str(record[c]).strip() for c in (settings.question, settings.answer))
    if not question or not answer:
        raise InwitError(f"{where}: an empty question or answer.", "Fill it in, or drop the line.")
    data = {name: str(record[column]) for name, column in extra.items() if column}
    return Task(str(record.get("id", number)), question, answer, data)
