"""What SCoRe is measured against: RLOO, plain multi-turn RL, STaR, Pair-SFT."""

from __future__ import annotations

import asyncio
import dataclasses
import math

import pytest

from inwit.envs import Split
from inwit.envs.lock import Lock, LockSettings
from inwit.methods.multi_turn_rl import MultiTurnRL, MultiTurnRLSettings
from inwit.methods.pair_sft import PairSFT, PairSFTSettings
from inwit.methods.rloo import RLOO, RLOOSettings
from inwit.methods.star import STaR, STaRSettings
from inwit.rows import Behaviour, Episode, Grade
from tests.methods.test_score import RIGHT, WRONG, advantages, stage_with, tried
from tests.methods.worlds import attempt_of, shop, warm_engine

# ---------------------------------------------------------------------- reinforcement


def test_rloo_by_hand():
    """1, 0, 0: each against the mean of the other two. 1 - 0, 0 - 1/2, 0 - 1/2; an error is out."""
    grades = (RIGHT, WRONG, WRONG, "error")
    episodes = [Episode(f"0/q/{i}", "q", (attempt_of(g),)) for i, g in enumerate(grades)]
    found = advantages(RLOO(RLOOSettings()).credit(episodes))
    assert {k: v[0] for k, v in found.items()} == {
        ("0", 0): pytest.approx(1.0),
        ("1", 0): pytest.approx(-0.5),
        ("2", 0): pytest.approx(-0.5),
    }


def test_rloo_s_kl_is_a_token_reward():
    episodes = [tried(i, g, gap=0.5) for i, g in enumerate((RIGHT, WRONG))]
    found = advantages(RLOO(RLOOSettings(kl=0.2)).credit(episodes))
    assert found["0", 0] == pytest.approx((0.9, 0.9)) and found["1", 0] == pytest.approx(
        (-1.1, -1.1)
    )
    assert RLOO(RLOOSettings(kl=0.2)).needs_reference and not RLOO(RLOOSettings()).needs_reference


def test_plain_multi_turn_rl_credits_every_turn_with_the_last_outcome():
    """Wrong then right, and right then wrong: the last alone counts, and broken ones nowhere."""
    method = MultiTurnRL(MultiTurnRLSettings())
    episodes = [tried(0, WRONG, RIGHT), tried(1, RIGHT, WRONG), tried(2, RIGHT, "error")]
    found = advantages(method.credit(episodes))
    assert {k: v[0] for k, v in found.items()} == {
        ("0", 0): 1.0,
        ("0", 1): 1.0,
        ("1", 0): -1.0,
        ("1", 1): -1.0,
    }


@pytest.mark.parametrize(
    ("method", "turns"), [(RLOO(RLOOSettings()), 1), (MultiTurnRL(MultiTurnRLSettings(turns=3)), 3)]
)
def test_the_attempts_of_an_episode(method, turns):
    stage = stage_with(warm_engine(keep_reference=True))
    episodes = asyncio.run(method.collect(shop().tasks(Split.TRAIN)[:2], stage))
    assert len(episodes) == 16 and {len(e.attempts) for e in episodes} == {turns}


# ---------------------------------------------------------------------- STaR


@pytest.mark.parametrize(("plus", "kept"), [(False, {"0"}), (True, {"0", "1"})])
def test_star_imitates_corrections_that_worked(plus, kept):
    episodes = [
        tried(0, WRONG, RIGHT),
        tried(1, RIGHT, RIGHT),
        tried(2, RIGHT, WRONG),
        tried(3, WRONG, WRONG),
        tried(4, "error", RIGHT),
        tried(5, WRONG),
    ]
    method = STaR(STaRSettings(right_to_right=plus))
    found = advantages(method.credit(episodes))
    assert set(found) == {(k, 1) for k in kept}
    assert set(found.values()) == {(1.0, 1.0)}
    assert method.objective(1.0).loss == "cross_entropy"


# ---------------------------------------------------------------------- Pair-SFT


def pairs(plus: bool) -> list[Episode]:
    method = PairSFT(PairSFTSettings(group_size=8, right_to_right=plus))
    stage = stage_with(warm_engine(keep_reference=True))
    return asyncio.run(method.collect(shop().tasks(Split.TRAIN)[:12], stage))


@pytest.mark.parametrize("plus", [False, True])
def test_pairs_are_a_first_answer_of_the_base_and_a_right_one_to_the_same_query(plus):
    episodes = pairs(plus)
    tasks = {t.id: t for t in shop().tasks(Split.TRAIN)}
    mixed = {e.query for e in episodes if e.first.success}
    assert mixed and any(not e.first.success for e in episodes if e.query in mixed)
    for e in episodes:
        assert e.first.turns[0].behaviour is Behaviour.REFERENCE
        wanted = e.query in mixed and (plus or e.first.grade is Grade.WRONG)
        assert bool(e.demonstrations) is wanted
        for turn in e.demonstrations:
            assert shop().grade(tasks[e.query], turn.text).grade is Grade.RIGHT
            shown = e.first.turns[0].prompt_ids + e.first.turns[0].completion.ids
            assert turn.prompt_ids[: len(shown)] == shown


def test_pairs_are_rows_to_imitate_and_sampled_tokens_count():
    episodes = pairs(False)
    rows = PairSFT(PairSFTSettings()).credit(episodes)
    assert len(rows) == sum(len(e.demonstrations) for e in episodes) > 0
    for row in rows:
        assert row.behaviour is Behaviour.DEMONSTRATION and all(map(math.isnan, row.logprobs))
        assert set(row.advantages) == {1.0}
    assert sum(e.sampled_tokens for e in episodes) == sum(
        len(t.completion.ids) for e in episodes for t in e.first.turns
    )


def test_a_correction_is_written_as_the_environment_writes_second_attempts():
    lock = Lock(LockSettings(train=40, dev=4, test=4))
    task = lock.tasks(Split.TRAIN)[0]
    assert lock.second_attempt("1 2 3 4", task.reference) == f"no {task.reference}"
    assert lock.second_attempt(task.reference, task.reference) == f"yes {task.reference}"


def test_which_right_answer_is_taken_hangs_on_the_seed_alone():
    assert [e.demonstrations for e in pairs(False)] == [e.demonstrations for e in pairs(False)]


def test_episodes_compare_without_their_seconds():
    """Two runs of equal seed are equal whatever the clock said."""
    turn = attempt_of(RIGHT).turns[0]
    assert turn == dataclasses.replace(turn, seconds=3.0)
