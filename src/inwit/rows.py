"""The plain data that everything passes on: turns, attempts, critiques, episodes, rows.

All of it is frozen, holds token ids as tuples of ints, and knows nothing of torch, models or files.
Rows are the only thing that an engine learns from (docs/reference/contracts.md).
"""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass, field
from enum import StrEnum

Ids = tuple[int, ...]
Floats = tuple[float, ...]


class Role(StrEnum):
    """The system prompt that the one shared policy plays under."""

    SOLVER = "solver"
    CRITIC = "critic"


class Sees(StrEnum):
    """What a prompt may show. A condition is a set of these.

    `CRITIQUE` is what a critic said; whatever that critic was allowed to see travels with it, so
    the condition of a revision holds the critic's condition too.
    """

    QUESTION = "question"
    ATTEMPT = "attempt"
    OUTCOME = "outcome"
    FEEDBACK = "feedback"
    REFERENCE = "reference"
    CRITIQUE = "critique"


Condition = frozenset[Sees]


class Grade(StrEnum):
    """Three-valued: an error is the grader's or the environment's, and is never a reward."""

    RIGHT = "right"
    WRONG = "wrong"
    ERROR = "error"


class Stop(StrEnum):
    """Why a generation ended: a stop token, or the token limit (truncated)."""

    TOKEN = "token"
    LENGTH = "length"


class Behaviour(StrEnum):
    """Which policy sampled a row's tokens. Never left to be guessed."""

    POLICY = "policy"
    REFERENCE = "reference"
    EXTERNAL = "external"
    DEMONSTRATION = "demonstration"


def context_id(prompt_ids: Ids) -> str:
    """A short name for 'what the policy was shown': equal ids, equal name (64-bit BLAKE2)."""
    return hashlib.blake2b(array("q", prompt_ids).tobytes(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Completion:
    """What an engine sampled: token ids and their log-probs (nats, at the sampling temperature)."""

    ids: Ids
    logprobs: Floats
    stop: Stop

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.logprobs):
            raise ValueError(f"{len(self.ids)} token ids but {len(self.logprobs)} log-probs")


@dataclass(frozen=True, slots=True)
class Turn:
    """One generation: the exact ids that the policy was shown, and what it sampled.

    A model behind an endpoint shows no ids: its turns have messages and text instead.

    Attributes:
        text: what was said, without special tokens.
        messages: what an endpoint was shown, as (speaker, text).
        counted: (prompt, sampled) tokens by the endpoint's own count; None where it gave none.
        seconds: from question to answer, others being answered meanwhile. Not part of equality.
    """

    role: Role
    prompt_ids: Ids
    completion: Completion
    sees: Condition
    behaviour: Behaviour = Behaviour.POLICY
    text: str = ""
    messages: tuple[tuple[str, str], ...] = ()
    counted: tuple[int, int] | None = None
    seconds: float = field(default=0.0, compare=False)

    @property
    def prompt_tokens(self) -> int:
        return self.counted[0] if self.counted else len(self.prompt_ids)

    @property
    def sampled_tokens(self) -> int:
        return self.counted[1] if self.counted else len(self.completion.ids)


@dataclass(frozen=True, slots=True)
class Attempt:
    """All turns of one try at a query, with its grade and reward.

    Each turn's prompt extends the ids of the one before (token-in/token-out); a break is refused.

    Attributes:
        index: place in the episode; 0 is the first attempt, k the k-th revision.
        critique: index of the critique it was made after; None for a first attempt.
        text: the attempt as a critic reads it, observations included.
        feedback: what the environment said about it (for an error: what broke).
        answer: what it comes down to; attempts with equal answers did not differ.
        verdict: whether it says that the attempt before it was wrong; None where it says neither.
        reference: log-probs (nats) of its ids as `attempt_tokens` lays them out, under the policy
            as it was at the start; empty where no method asked for them.
    """

    index: int
    turns: tuple[Turn, ...]
    grade: Grade
    reward: float
    text: str
    critique: int | None = None
    feedback: str = ""
    answer: str = ""
    verdict: bool | None = None
    reference: Floats = ()

    def __post_init__(self) -> None:
        for before, after in zip(self.turns, self.turns[1:], strict=False):
            shown = before.prompt_ids + before.completion.ids
            if after.prompt_ids[: len(shown)] != shown:
                raise ValueError("a turn's prompt does not extend the ids of the turn before it")

    @property
    def success(self) -> bool:
        return self.grade is Grade.RIGHT

    @property
    def prompt_ids(self) -> Ids:
        """What its first turn was shown."""
        return self.turns[0].prompt_ids

    @property
    def truncated(self) -> bool:
        return self.turns[-1].completion.stop is Stop.LENGTH

    @property
    def sampled_tokens(self) -> int:
        return sum(t.sampled_tokens for t in self.turns)


@dataclass(frozen=True, slots=True)
class Critique:
    """A critic's turn about the attempt with index `of`.

    Attributes:
        size: L_c of ICRL Eq. 3: its length in tokens, unless the environment counts otherwise.
    """

    index: int
    of: int
    turn: Turn
    text: str
    size: float


@dataclass(frozen=True, slots=True)
class Episode:
    """Everything that happened for one sample of one query: a graph of attempts and critiques.

    Attributes:
        id: unique within a run, `<step>/<query id>/<sample>`.
        query: the query's id.
        attempts: the first attempt, then the revisions in the order they were made.
        demonstrations: turns given from outside, for supervised learning; nobody sampled them.
    """

    id: str
    query: str
    attempts: tuple[Attempt, ...] = ()
    critiques: tuple[Critique, ...] = ()
    demonstrations: tuple[Turn, ...] = ()

    @property
    def first(self) -> Attempt:
        return self.attempts[0]

    @property
    def revisions(self) -> tuple[Attempt, ...]:
        return self.attempts[1:]

    @property
    def corrections(self) -> tuple[tuple[Attempt, Critique, Attempt], ...]:
        """(attempt, the critique about it, the revision made after it), in order."""
        made = {a.critique: a for a in self.attempts if a.critique is not None}
        return tuple(
            (self.attempts[c.of], c, made[c.index]) for c in self.critiques if c.index in made
        )

    @property
    def sampled_tokens(self) -> int:
        critic = sum(
            c.turn.sampled_tokens
            for c in self.critiques
            if c.turn.behaviour is not Behaviour.EXTERNAL
        )
        return critic + sum(a.sampled_tokens for a in self.attempts)


@dataclass(frozen=True, slots=True)
class GroupKey:
    """Who shares a baseline: the same query, the same role, the same information state."""

    query: str
    role: str
    state: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in (self.query, self.role, self.state) if part)


@dataclass(frozen=True, slots=True)
class Row:
    """The unit of training. Every per-token field is as long as `completion_ids`.

    Attributes:
        prompt_ids: the prompt that the row is *trained* under.
        completion_ids: sampled tokens and, in multi-turn attempts, the observations between them.
        mask: True where the policy sampled the token; made at sampling, never inferred from ids.
        logprobs: nats, under the policy and the prompt that *sampled* them (0 where masked out).
        advantages: one per token.
        weights: one per token; 1 unless the method sets it. The re-conditioning ratio of the
            objective is multiplied in by the engine.
        turn: index of the attempt (for a critique: of the attempt it is about).
        sampled_context, trained_context: `context_id` of the two prompts.
    """

    prompt_ids: Ids
    completion_ids: Ids
    mask: tuple[bool, ...]
    logprobs: Floats
    advantages: Floats
    role: Role
    group: GroupKey
    episode: str
    turn: int
    sampled_context: str
    trained_context: str
    sees: Condition
    behaviour: Behaviour = Behaviour.POLICY
    weights: Floats = field(default=())

    def __post_init__(self) -> None:
        n = len(self.completion_ids)
        if not self.weights:
            object.__setattr__(self, "weights", (1.0,) * n)
        for name in ("mask", "logprobs", "advantages", "weights"):
            if len(getattr(self, name)) != n:
                raise ValueError(f"{name} has {len(getattr(self, name))} entries for {n} tokens")
        if min(self.weights, default=0.0) < 0:
            raise ValueError("a weight is negative: it would not fold into its advantage")
        if not self.prompt_ids:
            raise ValueError("a row needs at least one prompt token to predict from")

    @property
    def reconditioned(self) -> bool:
        return self.sampled_context != self.trained_context

    @property
    def trained_tokens(self) -> int:
        """Tokens that carry a loss."""
        return sum(self.mask)

    @property
    def length(self) -> int:
        """Tokens that a forward pass over the row reads."""
        return len(self.prompt_ids) + len(self.completion_ids)

    @property
    def signal(self) -> bool:
        """Whether any trained token has a non-zero advantage."""
        return any(m and a != 0.0 for m, a in zip(self.mask, self.advantages, strict=True))


def attempt_tokens(attempt: Attempt) -> tuple[Ids, tuple[bool, ...], Floats]:
    """An attempt's turns laid end to end: (ids, mask, log-probs), observations between masked out.

    The ids follow the first turn's prompt; the mask is True exactly where the policy sampled.
    """
    ids: list[int] = []
    mask: list[bool] = []
    logprobs: list[float] = []
    start = len(attempt.turns[0].prompt_ids)
    for turn in attempt.turns:
        shown = turn.prompt_ids[start + len(ids) :]
        sampled = turn.completion
        ids += (*shown, *sampled.ids)
        mask += [False] * len(shown) + [True] * len(sampled.ids)
        logprobs += [0.0] * len(shown) + list(sampled.logprobs)
    return tuple(ids), tuple(mask), tuple(logprobs)
