"""Small builders that several test modules share."""

from __future__ import annotations

import random
from collections.abc import Sequence

from inwit.rows import Behaviour, Completion, GroupKey, Ids, Role, Row, Sees, context_id


def make_row(
    completion: Sequence[int] = (7, 8, 9),
    *,
    prompt: Sequence[int] = (1, 2),
    sampled_prompt: Sequence[int] | None = None,
    mask: Sequence[bool] | None = None,
    logprobs: Sequence[float] | None = None,
    advantages: Sequence[float] | float = 1.0,
    weights: Sequence[float] = (),
    role: Role = Role.SOLVER,
    query: str = "q",
    state: str = "",
    episode: str = "0/q/0",
    turn: int = 0,
    sees: Sequence[Sees] = (Sees.QUESTION,),
    behaviour: Behaviour = Behaviour.POLICY,
) -> Row:
    """A row with sensible defaults: every token trained, log-probs -1, advantage 1.

    Args:
        sampled_prompt: what the tokens were sampled under; another than `prompt` makes the row a
            re-conditioned one.
        advantages: one number for all tokens, or one per token.
    """
    n = len(completion)
    if isinstance(advantages, int | float):
        advantages = (float(advantages),) * n
    return Row(
        prompt_ids=tuple(prompt),
        completion_ids=tuple(completion),
        mask=(True,) * n if mask is None else tuple(mask),
        logprobs=(-1.0,) * n if logprobs is None else tuple(logprobs),
        advantages=tuple(advantages),
        role=role,
        group=GroupKey(query, role, state),
        episode=episode,
        turn=turn,
        sampled_context=context_id(tuple(prompt if sampled_prompt is None else sampled_prompt)),
        trained_context=context_id(tuple(prompt)),
        sees=frozenset(sees),
        behaviour=behaviour,
        weights=tuple(weights),
    )


def row_of(
    prompt: Ids,
    completion: Completion,
    advantages: Sequence[float] | float = 1.0,
    *,
    sampled_prompt: Ids | None = None,
    episode: str = "0/q/0",
) -> Row:
    """What an engine sampled, as a row; see `make_row`."""
    return make_row(
        completion.ids,
        prompt=prompt,
        sampled_prompt=sampled_prompt,
        logprobs=completion.logprobs,
        advantages=advantages,
        episode=episode,
    )


def some_ids(n: int, seed: int = 0, low: int = 5, high: int = 72) -> Ids:
    """n token ids in [low, high), the same for the same seed."""
    source = random.Random(f"{seed}/{n}")
    return tuple(source.randrange(low, high) for _ in range(n))
