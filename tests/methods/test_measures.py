"""What every step logs, from episodes and rows written by hand."""

from __future__ import annotations

import dataclasses

import pytest

from inwit.methods import measures
from inwit.rows import Behaviour, Episode, GroupKey, Role, Stop
from tests.helpers import make_row
from tests.methods.worlds import attempt_of, critique_of, episode_of, turn_of


def a_step() -> list[Episode]:
    """Five samples: right; mended; not mended; spoilt; and one that broke."""
    return [
        episode_of(0, "right"),
        episode_of(1, "wrong", "right", sizes=(2,)),
        episode_of(2, "wrong", "wrong", sizes=(4,)),
        episode_of(3, "right", "wrong", sizes=(0,)),
        episode_of(4, "error"),
    ]


def test_a_step_by_hand():
    """LESSONS 4: both transitions stand beside the reward that the critic is shaped by.

    LESSONS 9: `survivors` is the share that later rounds' numbers are about.
    LESSONS 23: errors are counted, and are in no other number.
    """
    found = measures.of_episodes(a_step())
    assert found == {
        "reward/first": 0.5,
        "reward/revision": pytest.approx(1 / 3),
        "success/first": 0.5,
        "success/first/base": None,
        "success/revision": pytest.approx(1 / 3),
        "critic/gain": 0.0,
        "critic/wrong_to_right": pytest.approx(1 / 3),
        "critic/right_to_wrong": pytest.approx(1 / 3),
        "critic/tokens": 3.0,
        "critic/size": 2.0,
        "critic/count": 3,
        "critic/truncated": 0.0,
        "again/delta": None,
        "again/wrong_to_right": None,
        "again/right_to_wrong": None,
        "again/edited": None,
        "survivors": pytest.approx(3 / 5),
        "truncated": 0.0,
        "errors": 1,
        "error_share": 1 / 8,
        "turns": 1.0,
        "tokens/attempt": 2.0,
        "tokens/sampled": 8 * 2 + 3 * 3,
    }


def conversation(sample: int, *said: tuple[str, str]) -> Episode:
    """Attempts in one conversation, without a critique: (grade, answer) of each."""
    attempts = [
        dataclasses.replace(
            attempt_of(grade, (1, 2, 3, *(9,) * k), (10 + k,), index=k), answer=answer
        )
        for k, (grade, answer) in enumerate(said)
    ]
    return Episode(f"0/q/{sample}", "q", tuple(attempts))


def test_second_thoughts_by_hand():
    """LESSONS 4: both transitions stand beside delta, and how often anything was changed at all.

    LESSONS 23: a conversation in which grading broke is in none of them; nor is one that ended
    before its second attempt, nor one in which a critic spoke.
    """
    found = measures.of_episodes(
        [
            conversation(0, ("wrong", "a"), ("right", "b")),
            conversation(1, ("right", "b"), ("wrong", "a")),
            conversation(2, ("wrong", "a"), ("wrong", "c")),
            conversation(3, ("right", "b"), ("right", "b")),
            conversation(4, ("wrong", "a"), ("right", "b")),
            conversation(5, ("error", "a"), ("right", "b")),
            conversation(6, ("wrong", "a"), ("error", "b")),
            conversation(7, ("wrong", "a")),
            episode_of(8, "wrong", "right"),
        ]
    )
    assert found["again/delta"] == pytest.approx(1 / 5)
    assert found["again/wrong_to_right"] == pytest.approx(2 / 5)
    assert found["again/right_to_wrong"] == pytest.approx(1 / 5)
    assert found["again/edited"] == pytest.approx(4 / 5)
    assert found["critic/gain"] == 1.0  # of the one that was criticised
    assert found["errors"] == 2


def test_second_thoughts_go_from_the_first_attempt_to_the_last():
    one = conversation(0, ("wrong", "a"), ("right", "b"), ("wrong", "a"))
    other = conversation(1, ("wrong", "a"), ("wrong", "a"), ("right", "b"))
    broken = conversation(2, ("wrong", "a"), ("error", "b"), ("right", "b"))
    found = measures.of_episodes([one, other, broken])
    assert found["again/delta"] == found["again/edited"] == 0.5
    assert found["again/wrong_to_right"] == 0.5
    assert found["again/right_to_wrong"] == 0.0


def test_a_critique_whose_tokens_nobody_counted_is_no_critique_of_none():
    """An endpoint may give no counts: then its critiques have no length, not the length 0."""
    attempts = (attempt_of("wrong"), attempt_of("right", (9, 1, 2, 3), index=1, critique=0))
    unknown = critique_of(ids=(), size=3.0, behaviour=Behaviour.EXTERNAL)
    found = measures.of_episodes([Episode("0/q/0", "q", attempts, (unknown,))])
    assert found["critic/tokens"] is None
    assert (found["critic/count"], found["critic/size"]) == (1, 3.0)


def test_gain_is_the_difference_of_the_transitions():
    found = measures.of_episodes([*a_step(), episode_of(5, "wrong", "right")])
    assert found["critic/gain"] == pytest.approx(
        found["critic/wrong_to_right"] - found["critic/right_to_wrong"]
    )


def test_what_was_not_there_is_not_zero():
    """A step without revisions has no revision reward, and an empty one has no rewards at all."""
    found = measures.of_episodes([episode_of(0, "wrong")])
    for name in ("reward/revision", "success/revision", "critic/gain", "critic/tokens"):
        assert found[name] is None
    assert (found["reward/first"], found["critic/count"], found["survivors"]) == (0.0, 0, 0.0)
    nothing = measures.of_episodes([])
    assert nothing["reward/first"] is None and nothing["error_share"] is None
    assert (nothing["errors"], nothing["tokens/sampled"]) == (0, 0)


def test_nothing_but_errors_leaves_no_reward():
    """LESSONS 23: were errors zeros, this step would look like one of failures."""
    found = measures.of_episodes([episode_of(0, "error"), episode_of(1, "wrong", "error")])
    assert found["reward/first"] == 0.0  # of the one that was graded
    assert found["reward/revision"] is None and found["critic/gain"] is None
    assert (found["errors"], found["error_share"]) == (2, pytest.approx(2 / 3))
    alone = measures.of_episodes([episode_of(0, "error")])
    assert alone["reward/first"] is None and alone["success/first"] is None


def test_a_reward_on_another_scale_is_averaged_and_success_is_not_it():
    """LESSONS 4: the reward is each attempt's own, averaged over attempts, summed over nothing."""
    first = attempt_of("wrong", reward=0.25)
    revision = attempt_of("right", (9, 1, 2, 3), index=1, critique=0, reward=2.0)
    found = measures.of_episodes([Episode("0/q/0", "q", (first, revision), (critique_of(),))])
    assert (found["reward/first"], found["reward/revision"]) == (0.25, 2.0)
    assert (found["success/first"], found["success/revision"]) == (0.0, 1.0)


def test_turns_and_truncation():
    turns = (turn_of((1,), (2, 3)), turn_of((1, 2, 3, 4), (5,), stop=Stop.LENGTH))
    cut = Episode("0/q/0", "q", (attempt_of("wrong", turns=turns),))
    found = measures.of_episodes([cut, episode_of(1, "right")])
    assert (found["turns"], found["truncated"], found["tokens/attempt"]) == (1.5, 0.5, 2.5)
    assert found["tokens/sampled"] == 5


@pytest.mark.parametrize(
    ("behaviour", "counted"),
    [(Behaviour.POLICY, True), (Behaviour.REFERENCE, True), (Behaviour.EXTERNAL, False)],
)
def test_an_external_critic_s_tokens_are_not_ours(behaviour, counted):
    """LESSONS 2: comparisons at equal sampled tokens count what was sampled here."""
    attempts = (attempt_of("wrong"), attempt_of("right", (9, 1, 2, 3), index=1, critique=0))
    critique = critique_of(ids=(20, 21, 22), behaviour=behaviour)
    found = measures.of_episodes([Episode("0/q/0", "q", attempts, (critique,))])
    assert found["tokens/sampled"] == 4 + 3 * counted
    assert found["critic/tokens"] == 3.0


def test_demonstrations_are_not_played():
    shown = Episode("0/d/0", "d", demonstrations=(turn_of((1,), (2,)),))
    found = measures.of_episodes([shown, episode_of(1, "wrong", "right")])
    assert (found["survivors"], found["tokens/sampled"]) == (1.0, 7)


def test_rows_by_role():
    """LESSONS 8, 9: how much of the batch teaches nothing, and how large the groups are."""
    solver = [make_row(advantages=a, query=q) for a, q in [(1, "q"), (-1, "q"), (0, "r"), (0, "s")]]
    critic = [
        make_row(role=Role.CRITIC, advantages=0),
        make_row(role=Role.CRITIC, advantages=(0.0, 0.5, 0.0)),
    ]
    again = make_row(sampled_prompt=(9, 9), query="q")
    found = measures.of_rows([*solver, again, *critic])
    assert found == {
        "rows": 7,
        "rows/reconditioned": 1,
        "zero_advantage/solver": pytest.approx(2 / 5),
        "zero_advantage/critic": 0.5,
        "group_size/solver": pytest.approx(5 / 3),
        "group_size/critic": 2.0,
    }


def test_a_row_whose_advantage_lies_on_an_observation_only_teaches_nothing():
    """LESSONS 11: what counts is what is trained."""
    masked = make_row(mask=(False, True, True), advantages=(5.0, 0.0, 0.0))
    assert measures.of_rows([masked])["zero_advantage/solver"] == 1.0


def test_groups_of_one_query_in_other_states_are_other_groups():
    rows = [make_row(), make_row(state="second"), make_row(state="second")]
    assert measures.of_rows(rows)["group_size/solver"] == 1.5


def test_a_pooled_group_is_counted_by_role():
    pooled = GroupKey("q", "pooled")
    rows = [
        dataclasses.replace(make_row(role=role), group=pooled)
        for role in (Role.SOLVER, Role.SOLVER, Role.CRITIC)
    ]
    found = measures.of_rows(rows)
    assert (found["group_size/solver"], found["group_size/critic"]) == (2.0, 1.0)


def test_no_rows_measure_nothing():
    found = measures.of_rows([])
    assert found["rows"] == 0
    assert found["zero_advantage/solver"] is None and found["group_size/critic"] is None
