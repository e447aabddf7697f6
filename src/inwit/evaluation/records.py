"""What was answered: plain data, one record a question and sample, written as it is made.

Every measure is a pure function of records, so that an evaluation can be stopped, gone on with,
measured again and pooled without asking anybody twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from inwit.rows import Attempt, Critique, Episode, Grade, Stop, Turn


@dataclass(frozen=True, slots=True)
class Said:
    """What one or more turns cost. `tokens` and `prompt_tokens` are None where unknown."""

    text: str
    tokens: int | None
    prompt_tokens: int | None
    seconds: float
    truncated: bool
    sees: tuple[str, ...]

    @classmethod
    def of(cls, turns: Sequence[Turn], text: str) -> Said:
        known = all(t.counted or t.prompt_ids for t in turns)
        return cls(
            text=text,
            tokens=sum(t.sampled_tokens for t in turns) if known else None,
            prompt_tokens=sum(t.prompt_tokens for t in turns) if known else None,
            seconds=sum(t.seconds for t in turns),
            truncated=turns[-1].completion.stop is Stop.LENGTH,
            sees=tuple(sorted(turns[-1].sees)),
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """An attempt: its grade, what it comes down to, and what it says of the one before it."""

    grade: Grade
    answer: str
    said: Said
    verdict: bool | None = None
    feedback: str = ""

    @classmethod
    def of(cls, attempt: Attempt) -> Answer:
        return cls(
            grade=attempt.grade,
            answer=attempt.answer,
            said=Said.of(attempt.turns, attempt.text),
            verdict=attempt.verdict,
            feedback=attempt.feedback if attempt.grade is Grade.ERROR else "",
        )

    @property
    def right(self) -> bool:
        return self.grade is Grade.RIGHT


@dataclass(frozen=True, slots=True)
class Trial:
    """Attempts that follow on each other, with the critiques between them.

    Attributes:
        arm: which of a protocol's ways of asking this was; empty where there is one.
        no_room: another attempt was due, and the conversation left no room for it: the last answer
            stands.
    """

    answers: tuple[Answer, ...]
    critiques: tuple[Said, ...] = ()
    arm: str = ""
    no_room: bool = False

    @classmethod
    def of(cls, episode: Episode, arm: str = "", *, no_room: bool = False) -> Trial:
        def critique(c: Critique) -> Said:
            return Said.of([c.turn], c.text)

        return cls(
            tuple(Answer.of(a) for a in episode.attempts),
            tuple(critique(c) for c in episode.critiques),
            arm,
            no_room,
        )

    def after(self, turn: int) -> Answer:
        """The answer that stands after a turn: where none was made in it, the one before it."""
        return self.answers[min(turn, len(self.answers) - 1)]

    @property
    def tokens(self) -> int | None:
        """Tokens sampled, critiques included."""
        return _sum([a.said.tokens for a in self.answers] + [c.tokens for c in self.critiques])


@dataclass(frozen=True, slots=True)
class Record:
    """All that was asked about one question, once."""

    task: str
    sample: int
    trials: tuple[Trial, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Record:
        """Raises KeyError, TypeError or ValueError where the data is no record."""
        return cls(data["task"], data["sample"], tuple(_trial(t) for t in data["trials"]))

    @property
    def trial(self) -> Trial:
        """The only trial of a protocol that makes one."""
        return self.trials[0]

    @property
    def answers(self) -> list[Answer]:
        """Every answer of every trial."""
        return [a for t in self.trials for a in t.answers]

    def arm(self, name: str) -> list[Trial]:
        return [t for t in self.trials if t.arm == name]

    @property
    def tokens(self) -> int | None:
        return _sum([t.tokens for t in self.trials])


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [c for c in counts if c is not None]
    return sum(known) if len(known) == len(counts) else None


def _said(data: Mapping[str, Any]) -> Said:
    return Said(**{**data, "sees": tuple(data["sees"])})


def _trial(data: Mapping[str, Any]) -> Trial:
    answers = tuple(
        Answer(**{**a, "grade": Grade(a["grade"]), "said": _said(a["said"])})
        for a in data["answers"]
    )
    critiques = tuple(_said(c) for c in data["critiques"])
    return Trial(answers, critiques, data["arm"], data["no_room"])
