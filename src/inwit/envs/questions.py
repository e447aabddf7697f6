"""Questions with short answers out of a JSONL file of the user's."""

from __future__ import annotations

from pydantic import Field

from inwit.envs.answers import same_answer, short_answer
from inwit.envs.base import AnswerEnv, Result, Task
from inwit.envs.records import BadRecord, FileEnv, FileSettings, Record


class QuestionsSettings(FileSettings):
    question: str = Field("question", description="its column with the question")
    answer: str = Field("answer", description="its column with the answer, a number or a few words")
    wrong: str | None = Field(None, description="its column with a wrong answer, to be mended")


class Questions(FileEnv, AnswerEnv):
    """Questions with short answers out of a JSONL file, graded as numbers or words."""

    Settings = QuestionsSettings
    settings: QuestionsSettings

    @classmethod
    def task(cls, record: Record, settings: QuestionsSettings) -> Task:
        question, answer = record.text(settings.question), record.text(settings.answer)
        if not question or not answer:
            raise BadRecord("an empty question or answer", "Fill it in, or drop the line.")
        extra = {"solution": settings.solution, "wrong": settings.wrong}
        data = {name: record.text(column) for name, column in extra.items() if column}
        return Task(record.id, question, answer, data)

    def grade(self, task: Task, answer: str) -> Result:
        return Result.of(same_answer(answer, task.reference))

    def answer_of(self, task: Task, text: str) -> str:
        return short_answer(text, task.reference)
