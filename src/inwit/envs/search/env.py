"""The environment `search_qa`: settings, loading, and a play of searches and an answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import Field

from inwit.envs.answers import normalised
from inwit.envs.base import Play, Result, Step, Task
from inwit.envs.records import BadRecord, FileEnv, FileSettings, Record
from inwit.envs.search.index import Index, Passage, read_corpus
from inwit.envs.search.scores import exact_match, f1
from inwit.errors import InwitError
from inwit.rows import Grade

ANSWERS = ("answer", "answers", "answer_aliases")
"""Columns that may hold right answers: all of them count."""

SEARCH, ANSWER, THINK, INFORMATION = "search", "answer", "think", "information"
OPENING = f"<{INFORMATION}>"

REMINDER = (
    "No action was found. Write one search block to look something up, or one answer block to end."
)
"""Holds no tag, so that no part of an attempt's text can be closed by it."""

NOTHING = "Nothing was found. Try other words."


# ---------------------------------------------------------------------- blocks


@dataclass(frozen=True, slots=True)
class Block:
    """What stands between a tag and its end, stripped. `start` is where its tag begins."""

    kind: str
    text: str
    start: int
    end: int


def first_action(text: str) -> Block | None:
    """The search or answer block that is closed first, as if generation had stopped there.

    A closed think block before it is thought, not done: what it mentions is passed over.
    """
    action = _first_closed(text, (SEARCH, ANSWER))
    thought = _first_closed(text, (THINK,))
    if action and thought and thought.start < action.start:
        return _first_closed(text, (SEARCH, ANSWER), thought.end)
    return action


def _first_closed(text: str, kinds: Sequence[str], after: int = 0) -> Block | None:
    """In time linear in the text, whatever is in it: replies can be long and hostile."""
    found = []
    for kind in kinds:
        opening, closing = f"<{kind}>", f"</{kind}>"
        first = text.find(opening, after)
        end = text.find(closing, first) if first >= 0 else -1
        if end >= 0:
            start = text.rfind(opening, first, end)  # one that was opened anew counts from there
            inside = text[start + len(opening) : end].strip()
            found.append(Block(kind, inside, start, end + len(closing)))
    return min(found, key=lambda block: block.end, default=None)


def information(passages: Iterable[Passage]) -> str:
    """Search results as the model is shown them."""
    docs = []
    for number, passage in enumerate(passages, 1):
        title = f"(Title: {_untagged(passage.title)})" if passage.title else ""
        docs.append(f"Doc {number}{title} {_untagged(passage.text)}")
    return f"{OPENING}{chr(10).join(docs) or NOTHING}</{INFORMATION}>"


def _untagged(text: str) -> str:
    """A passage cannot act, answer, or end its own block."""
    for kind in (SEARCH, ANSWER, THINK, INFORMATION):
        text = text.replace(f"<{kind}>", " ").replace(f"</{kind}>", " ")
    return text


# ---------------------------------------------------------------------- the environment


class SearchSettings(FileSettings):
    """Settings of `search_qa`."""

    corpus: tuple[Path, ...] = Field(
        (),
        description="JSON Lines of {title, text}, or of questions with paragraphs, to be searched; "
        "by default the paragraphs of the questions themselves",
    )
    k: int = Field(3, ge=1, description="passages that a search gives")
    max_turns: int = Field(5, ge=1, description="most generations in one attempt")
    reward: Literal["em", "f1"] = Field("em", description="exact match, or F1 over words")
    cache: Path | None = Field(None, description="folder of indexes; by default the user's cache")


class SearchQA(FileEnv):
    """Questions that are answered by searching a corpus; right on an exact match."""

    Settings = SearchSettings
    prompts = Path(__file__).parent / "prompts"
    settings: SearchSettings

    def __init__(self, settings: SearchSettings, tasks: Sequence[Task] | None = None) -> None:
        super().__init__(settings, tasks)
        self.max_turns = settings.max_turns
        if tasks is None:  # else only answers may be wanted, which are graded without a corpus
            _ = self.index

    @cached_property
    def index(self) -> Index:
        """Of the corpus. Raises InwitError where there is none."""
        s = self.settings
        if s.corpus:
            return Index(read_corpus(s.corpus), s.cache)
        files = (*s.files, *([s.test_file] if s.test_file else []))
        passages = read_corpus(files, questions=True)
        if not passages:
            names = ", ".join(f"'{file}'" for file in files)
            raise InwitError(
                f"The questions of {names} have no paragraphs to search.",
                "Name a corpus in env.corpus: JSON Lines of {title, text}.",
            )
        return Index(passages, s.cache)

    @classmethod
    def task(cls, record: Record, settings: SearchSettings) -> Task:
        question, answers = record.text(settings.question, "question"), _answers(record, settings)
        if not question:
            raise BadRecord("an empty question", "Fill it in, or drop the line.")
        data: dict[str, object] = {"answers": answers}
        if settings.solution:
            data["solution"] = record.text(settings.solution)
        return Task(record.id, question, answers[0], data)

    def open(self, task: Task) -> Play:
        return _Search(self, task)

    def grade(self, task: Task, answer: str) -> Result:
        """An answer without its tags. Right on an exact match, whatever the reward."""
        golds = task.data["answers"]
        right = exact_match(answer, golds)
        reward = f1(answer, golds) if self.settings.reward == "f1" else float(right)
        feedback = f"The answer is {'right' if right else 'wrong'}."
        return Result(Grade.RIGHT if right else Grade.WRONG, reward, feedback)

    def written(self, answer: str) -> str:
        return f"<{ANSWER}>{answer}</{ANSWER}>"

    def answer_of(self, task: Task, text: str) -> str:
        """The answer that ended the attempt, normalised; nothing where none did.

        An answer ends an attempt, so it stands after the last observation.
        """
        del task
        last = max(text.rfind(f"\n[{OPENING}"), text.rfind(f"\n[{REMINDER}"), 0)
        action = first_action(text[last:])
        return normalised(action.text) if action and action.kind == ANSWER else ""


def _answers(record: Record, settings: SearchSettings) -> tuple[str, ...]:
    """All right answers, the first one first. Raises BadRecord where there is none."""
    first = record.column(settings.answer, *ANSWERS)
    names = [first] if settings.answer else [name for name in ANSWERS if name in record.fields]
    found: dict[str, None] = {}
    for name in names:
        value = record.fields[name]
        for each in value if isinstance(value, list) else [] if value is None else [value]:
            if isinstance(each, bool) or not isinstance(each, (str, int, float)):
                raise BadRecord(
                    f"the column '{name}' holds {json.dumps(value)[:40]}", "Write text, or a list."
                )
            found[str(each).strip()] = None
    answers = tuple(answer for answer in found if normalised(answer))
    if not answers:
        raise BadRecord(
            f"the column '{first}' holds no word that could be matched",
            "Articles and punctuation are not compared. Drop the line.",
            "gold_unparsable",
        )
    return answers


class _Search(Play):
    def __init__(self, env: SearchQA, task: Task) -> None:
        self._env, self._task = env, task

    async def step(self, action: str) -> Step:
        block = first_action(action)
        if block is not None and block.kind == ANSWER:
            return Step(result=self._env.grade(self._task, block.text))
        if block is None or not block.text:
            return Step(REMINDER)
        return Step(information(self._env.index.search(block.text, self._env.settings.k)))
