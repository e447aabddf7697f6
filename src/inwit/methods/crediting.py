"""From attempts and critiques to rows: the part of credit assignment that every method shares."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from inwit.errors import GroupError
from inwit.rows import (
    Attempt,
    Critique,
    Episode,
    Floats,
    GroupKey,
    Ids,
    Role,
    Row,
    Turn,
    attempt_tokens,
    context_id,
)


def solver_row(
    episode: Episode,
    attempt: Attempt,
    advantage: float | Floats,
    group: GroupKey,
    prompt_ids: Ids | None = None,
) -> Row:
    """An attempt as a row, every token credited `advantage`, or each its own.

    It is trained under `prompt_ids`, or the prompt that it was sampled under if none is given.
    Where `prompt_ids` is not the prompt that the attempt was sampled under, the row is
    re-conditioned: the tokens stay, the prompt changes.
    """
    ids, mask, logprobs = attempt_tokens(attempt)
    turn = attempt.turns[0]
    prompt_ids = attempt.prompt_ids if prompt_ids is None else prompt_ids
    return Row(
        prompt_ids=prompt_ids,
        completion_ids=ids,
        mask=mask,
        logprobs=logprobs,
        advantages=(advantage,) * len(ids) if isinstance(advantage, float) else advantage,
        role=Role.SOLVER,
        group=group,
        episode=episode.id,
        turn=attempt.index,
        sampled_context=context_id(turn.prompt_ids),
        trained_context=context_id(prompt_ids),
        sees=turn.sees,
        behaviour=turn.behaviour,
    )


def critic_row(episode: Episode, critique: Critique, advantage: float, group: GroupKey) -> Row:
    """A critique as a row under its own prompt."""
    turn = critique.turn
    ids = turn.completion.ids
    context = context_id(turn.prompt_ids)
    return Row(
        prompt_ids=turn.prompt_ids,
        completion_ids=ids,
        mask=(True,) * len(ids),
        logprobs=turn.completion.logprobs,
        advantages=(advantage,) * len(ids),
        role=Role.CRITIC,
        group=group,
        episode=episode.id,
        turn=critique.of,
        sampled_context=context,
        trained_context=context,
        sees=turn.sees,
        behaviour=turn.behaviour,
    )


def demonstration_row(episode: Episode, turn: Turn, index: int = 0) -> Row:
    """A turn to be imitated: advantage 1 on every token, log-probs unknown (NaN).

    Args:
        index: of the attempt that it stands for.
    """
    ids = turn.completion.ids
    context = context_id(turn.prompt_ids)
    return Row(
        prompt_ids=turn.prompt_ids,
        completion_ids=ids,
        mask=(True,) * len(ids),
        logprobs=turn.completion.logprobs,
        advantages=(1.0,) * len(ids),
        role=turn.role,
        group=GroupKey(episode.query, turn.role),
        episode=episode.id,
        turn=index,
        sampled_context=context,
        trained_context=context,
        sees=turn.sees,
        behaviour=turn.behaviour,
    )


def turn_key(episode: Episode, attempt: Attempt) -> GroupKey:
    """Who shares a baseline where every turn has its own: the attempts of a query's k-th turn."""
    return GroupKey(episode.query, Role.SOLVER, f"turn {attempt.index + 1}")


def kl_credited(attempt: Attempt, advantage: float, beta: float) -> Floats:
    """advantage - beta (log pi_old - log ref) at every sampled token: the KL as a token reward.

    Each token answers for its own term alone (discount 0), so that what is added to the gradient is
    that of the sum over tokens of beta KL(pi(.|prefix) || ref(.|prefix)).

    Args:
        attempt: holds its reference's log-probs, unless beta is 0.
    """
    _, mask, logprobs = attempt_tokens(attempt)
    if beta == 0.0:
        return (advantage,) * len(mask)
    return tuple(
        advantage - beta * (new - ref) if sampled else 0.0
        for new, ref, sampled in zip(logprobs, attempt.reference, mask, strict=True)
    )


def check_groups(rows: Sequence[Row]) -> None:
    """Refuse a group that compares what cannot be compared (LESSONS 8).

    Rows of a group must be of one role; a solver's must also be trained under one prompt. (A
    critic's prompts differ, each showing another attempt at the group's one query; so do those of
    a later turn, whose group says so in its state and holds no other turn.) A group whose role is
    `pooled` is the ablation that does compare roles.

    Raises:
        GroupError: names the group and what differs.
    """
    groups: dict[GroupKey, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.group].append(row)
    for key, members in groups.items():
        if key.role == "pooled":
            continue
        roles = {row.role for row in members}
        if roles != {key.role}:
            raise GroupError(f"Group {key} holds rows of the roles {', '.join(sorted(roles))}.")
        turns = {row.turn for row in members}
        if key.state and len(turns) > 1:
            raise GroupError(f"Group {key} holds rows of {len(turns)} turns.")
        if key.state and turns != {0}:
            continue
        prompts = {row.trained_context for row in members}
        if key.role == Role.SOLVER and len(prompts) > 1:
            raise GroupError(f"Group {key} holds rows trained under {len(prompts)} prompts.")
