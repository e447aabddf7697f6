"""From attempts and critiques to rows: the part of credit assignment that every method shares."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from inwit.errors import GroupError
from inwit.rows import (
    Attempt,
    Critique,
    Episode,
    GroupKey,
    Ids,
    Role,
    Row,
    attempt_tokens,
    context_id,
)


def solver_row(
    episode: Episode, attempt: Attempt, advantage: float, group: GroupKey, prompt_ids: Ids
) -> Row:
    """An attempt as a row trained under `prompt_ids`, every sampled token credited `advantage`.

    Where `prompt_ids` is not the prompt that the attempt was sampled under, the row is
    re-conditioned: the tokens stay, the prompt changes.
    """
    ids, mask, logprobs = attempt_tokens(attempt)
    turn = attempt.turns[0]
    return Row(
        prompt_ids=prompt_ids,
        completion_ids=ids,
        mask=mask,
        logprobs=logprobs,
        advantages=(advantage,) * len(ids),
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


def check_groups(rows: Sequence[Row]) -> None:
    """Refuse a group that compares what cannot be compared (LESSONS 8).

    Rows of a group must be of one role; a solver's must also be trained under one prompt. (A
    critic's prompts differ, each showing another attempt at the group's one query.) A group whose
    role is `pooled` is the ablation that does compare roles.

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
        prompts = {row.trained_context for row in members}
        if key.role == Role.SOLVER and len(prompts) > 1:
            raise GroupError(f"Group {key} holds rows trained under {len(prompts)} prompts.")
