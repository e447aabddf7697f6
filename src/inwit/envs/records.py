"""Records out of JSON Lines files and Hugging Face datasets, and environments made of them.

A record is a dict; an environment makes a task of it or says why not. All faults of a file are
found before anything is refused, so that a user sees them at once (`inwit check-data`).
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Literal, Self

from pydantic import Field

from inwit.envs.base import Demonstration, Env, EnvSettings, Split, Task
from inwit.errors import InwitError, nearest
from inwit.seeding import rng

HUB = "hf:"
"""Begins the name of a Hugging Face dataset: `hf:owner/name`, `hf:owner/name/config@split`."""

IDS = ("id", "unique_id", "task_id", "_id")
"""Columns that may hold a record's id, in order."""

FaultKind = Literal["unreadable", "gold_unparsable"]


class BadRecord(ValueError):
    """A record that no task can be made of.

    Args:
        why: what is wrong with it, without saying where.
        fix: what to do about it.
    """

    def __init__(self, why: str, fix: str, kind: FaultKind = "unreadable") -> None:
        super().__init__(why)
        self.why, self.fix, self.kind = why, fix, kind


@dataclass(frozen=True, slots=True)
class Fault:
    """A record that was refused: `id` is the task's or the line's."""

    where: str
    id: str
    kind: FaultKind
    why: str
    fix: str


class BrokenData(InwitError):
    """Some records make no task. `tasks` are those of the others."""

    def __init__(self, faults: Sequence[Fault], tasks: Sequence[Task]) -> None:
        first, more = faults[0], len(faults) - 1
        also = f" {more} more are broken; inwit check-data lists them." if more else ""
        super().__init__(f"{first.where}: {first.why}.{also}", first.fix)
        self.faults, self.tasks = tuple(faults), tuple(tasks)


@dataclass(frozen=True, slots=True)
class Record:
    """One record, and where it stands. `number` counts lines, or rows of a dataset, from 1."""

    where: str
    source: str
    number: int
    fields: Mapping[str, Any]

    @property
    def id(self) -> str:
        """What a column calls it; else its number."""
        found = (self.fields[name] for name in IDS if self.fields.get(name) is not None)
        return str(next(found, self.number))

    def column(self, name: str | None, *usual: str) -> str:
        """The column asked for, or the first of the usual ones. Raises BadRecord without any."""
        if name is None:
            name = next((each for each in usual if self.fields.get(each) is not None), usual[0])
        if name not in self.fields:
            raise BadRecord(f"no column '{name}'", nearest(name, self.fields))
        return name

    def text(self, name: str | None, *usual: str) -> str:
        """A column's text or number as text, stripped. Raises BadRecord where it is neither."""
        column = self.column(name, *usual)
        value = self.fields[column]
        if not isinstance(value, (str, int, float)):
            raise BadRecord(
                f"the column '{column}' holds {json.dumps(value)[:40]}", "Write text or a number."
            )
        return str(value).strip()


def read_records(source: Path) -> Iterator[Record | Fault]:
    """The records of a file, one a line, or of a dataset of the hub; what is none is a fault.

    Raises InwitError where the source cannot be read at all.
    """
    if str(source).startswith(HUB):
        yield from _from_hub(str(source))
        return
    try:
        lines = source.read_text(encoding="utf-8-sig").split("\n")  # JSON may hold other line ends
    except FileNotFoundError as error:
        raise InwitError(f"There is no task file '{source}'.", "Check env.file.") from error
    except (UnicodeDecodeError, OSError) as error:
        raise InwitError(
            f"The task file '{source}' cannot be read: {error}.", "Check it."
        ) from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{source}, line {number}"
        try:
            fields = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            why = getattr(error, "msg", "nested too deeply")
            yield _unreadable(where, number, f"not JSON ({why})")
            continue
        if isinstance(fields, dict):
            yield Record(where, str(source), number, fields)
        else:
            yield _unreadable(where, number, "not a JSON object")


def _unreadable(where: str, number: int, why: str) -> Fault:
    return Fault(where, str(number), "unreadable", why, "One JSON object a line.")


def _from_hub(source: str) -> Iterator[Record]:
    name, _, split = source.removeprefix(HUB).partition("@")
    *owner, last = name.split("/")
    owner, config = ([*owner, last], None) if len(owner) < 2 else (owner, last)
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise InwitError(
            f"'{source}' is on the Hugging Face hub, and reading it needs the package datasets.",
            "Run: pip install 'inwit[hub]'",
        ) from error
    try:
        rows = load_dataset("/".join(owner), config, split=split or "train")
    except Exception as error:  # whatever the hub, the network or the dataset's own files raise
        raise InwitError(
            f"The dataset '{source}' cannot be read: {type(error).__name__}: {error}",
            "Write hf:owner/name/config@split, or give a JSON Lines file.",
        ) from error
    for number, fields in enumerate(rows, 1):
        yield Record(f"{source}, row {number}", source, number, fields)


class FileSettings(EnvSettings):
    """Where the tasks are, and which of them are held out."""

    file: Path | tuple[Path, ...] = Field(
        description="JSON Lines, one task a line; or hf:owner/name/config@split; or several"
    )
    test_file: Path | None = Field(None, description="the test split, if it has a file")
    question: str | None = Field(None, description="its column with the question")
    answer: str | None = Field(None, description="its column with the right answer")
    solution: str | None = Field(None, description="its column with an answer worth imitating")
    max_characters: int | None = Field(None, ge=1, description="longer questions are left out")
    dev: float = Field(0.1, ge=0, lt=1, description="share of the tasks held out for tuning")
    test: float = Field(0.1, ge=0, le=1, description="share held out, where there is no test_file")
    seed: int = Field(0, description="of the split")

    @property
    def files(self) -> tuple[Path, ...]:
        return self.file if isinstance(self.file, tuple) else (self.file,)


def same_question(question: str) -> str:
    """Questions that are equal by this are one: case and spaces say nothing."""
    return " ".join(question.split()).lower()


class FileEnv(Env):
    """An environment whose tasks are records: derive from it, and write `task` and `open`.

    Args:
        tasks: those of the file, where they were read already.

    Attributes:
        runs_programs: answers are programs that are graded by running them.
    """

    Settings: ClassVar[type[EnvSettings]] = FileSettings
    settings: FileSettings
    runs_programs: ClassVar[bool] = False

    def __init__(self, settings: FileSettings, tasks: Sequence[Task] | None = None) -> None:
        super().__init__(settings)
        if tasks is None:
            tasks = self.read(settings, settings.files)
        self._splits = self._divide(tasks)

    @classmethod
    @abstractmethod
    def task(cls, record: Record, settings: Any) -> Task:
        """The task that a record describes. Raises BadRecord."""

    @classmethod
    def check(cls, tasks: Sequence[Task], settings: Any) -> Mapping[str, BadRecord]:
        """What only shows when all tasks are looked at together, such as golds: faults by id."""
        del tasks, settings
        return {}

    @classmethod
    def split_of(cls, task: Task) -> Split | None:
        """The split that a task is in by the data's own rule; None where shares decide."""
        del task
        return None

    @classmethod
    def read(cls, settings: FileSettings, files: Iterable[Path]) -> list[Task]:
        """All tasks of some files. Raises BrokenData with every fault, and the tasks without."""
        tasks: dict[str, Task] = {}
        where: dict[str, str] = {}
        faults: list[Fault] = []
        for record in (each for file in files for each in read_records(file)):
            if isinstance(record, Fault):
                faults.append(record)
                continue
            try:
                task = cls.task(record, settings)
                if task.id in tasks:
                    raise BadRecord(f"the id '{task.id}' occurs twice", "Mend it.")
            except BadRecord as bad:
                faults.append(Fault(record.where, record.id, bad.kind, bad.why, bad.fix))
                continue
            limit = settings.max_characters
            if limit is None or len(task.question) <= limit:
                tasks[task.id], where[task.id] = task, record.where
        for id, found in cls.check(list(tasks.values()), settings).items():
            faults.append(Fault(where[id], id, found.kind, found.why, found.fix))
            del tasks[id]
        if faults:
            raise BrokenData(faults, list(tasks.values()))
        if not tasks:
            names = ", ".join(f"'{file}'" for file in files)
            raise InwitError(f"The task file {names} holds no tasks.", "Check it, and its columns.")
        return list(tasks.values())

    def _divide(self, tasks: Sequence[Task]) -> dict[Split, list[Task]]:
        """By the data's own rule, or by shuffled position; a question is in one split only.

        Questions of the test file are left out of the others.
        """
        s = self.settings
        own = self.read(s, [s.test_file]) if s.test_file else []
        taken = {same_question(task.question) for task in own}
        splits: dict[Split, list[Task]] = {split: [] for split in Split}
        splits[Split.TEST] += own
        shared: dict[str, list[Task]] = {}
        for task in tasks:
            split = self.split_of(task)
            if split is not None and not (own and split is Split.TEST):
                splits[split].append(task)
            elif split is None and (asked := same_question(task.question)) not in taken:
                shared.setdefault(asked, []).append(task)
        questions = list(shared.values())
        r: Random = rng(s.seed, "questions", "split")
        r.shuffle(questions)
        test = 0 if own else round(len(questions) * s.test)
        dev = test + round(len(questions) * s.dev)
        for split, part in (
            (Split.TEST, questions[:test]),
            (Split.DEV, questions[test:dev]),
            (Split.TRAIN, questions[dev:]),
        ):
            splits[split] += [task for group in part for task in group]
        return splits

    def tasks(self, split: Split) -> Sequence[Task]:
        return self._splits[split]

    @property
    def makes_demonstrations(self) -> bool:
        """Where every training task has a solution."""
        training = self._splits[Split.TRAIN]
        return bool(training) and all("solution" in task.data for task in training)

    def demonstrations(self, rng: Random, n: int) -> Sequence[Demonstration]:
        """Solutions of training tasks, in the solver's role."""
        tasks = rng.choices(self._splits[Split.TRAIN], k=n)
        return [
            Demonstration("solver", {"question": t.question}, t.data["solution"]) for t in tasks
        ]

    def written(self, answer: str) -> str:
        """A right answer as a policy is to write it, for `inwit check-data` to grade."""
        return answer

    @classmethod
    def of(cls, **settings: Any) -> Self:
        """For use alone: `Math.of(file="questions.jsonl")`. Raises as reading does."""
        return cls(cls.Settings(**settings))  # type: ignore[arg-type]
