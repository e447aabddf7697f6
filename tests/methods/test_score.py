"""SCoRe: the credit of its stages by hand, its ablations, and stage I on a real model."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from inwit.engines import OptimizerSettings
from inwit.engines.torch import TorchEngine
from inwit.envs import Split
from inwit.methods.crediting import solver_row, turn_key
from inwit.methods.score import SCoRe, SCoReSettings, StageOne, StageTwo
from inwit.objectives import loss_of, row_scales, token_terms
from inwit.playing import Stage
from inwit.rows import Attempt, Behaviour, Episode, Row, Sees
from tests.methods.worlds import attempt_of, by_place, shop, shop_stage, warm_engine

RIGHT, WRONG = "right", "wrong"


def score(**settings: Any) -> SCoRe:
    return SCoRe(SCoReSettings(**({"stage_one_steps": 5} | settings)))


def one(**settings: Any) -> StageOne:
    return StageOne(score(**settings).settings)


def two(**settings: Any) -> StageTwo:
    return StageTwo(score(**settings).settings)


def tried(sample: int, *grades: str, gap: float = 0.0, query: str = "q") -> Episode:
    """Attempts in one conversation; the reference thinks each token `gap` nats less likely."""
    attempts: list[Attempt] = []
    shown = (1, 2, 3)
    for k, grade in enumerate(grades):
        ids = (10 + k, 20 + sample)
        made = attempt_of(grade, shown, ids, index=k)
        logprobs = made.turns[0].completion.logprobs
        attempts.append(dataclasses.replace(made, reference=tuple(x - gap for x in logprobs)))
        shown = (*shown, *ids, 4)
    return Episode(f"0/{query}/{sample}", query, tuple(attempts))


def advantages(rows: Sequence[Row]) -> dict[tuple[str, int], tuple[float, ...]]:
    return {
        (e.split("/")[-1], turn): row.advantages for (e, _, turn), row in by_place(rows).items()
    }


# ---------------------------------------------------------------------- credit by hand


GROUP = [("0", WRONG, RIGHT), ("1", RIGHT, RIGHT), ("2", RIGHT, WRONG), ("3", WRONG, WRONG)]


def group(gap: float = 0.0) -> list[Episode]:
    return [tried(int(i), *grades, gap=gap) for i, *grades in GROUP]


def test_stage_two_by_hand():
    """The table of section 5.2: alpha 10 makes 11, 1, -10, 0 of the four pairs; their mean is 1/2.

    Leave one out of 4: (r - 1/2) 4/3. First turn: 0, 1, 1, 0 alone, whatever the second brought.
    """
    found = advantages(two(beta1=0).credit(group()))
    wanted = {"0": (-2 / 3, 14.0), "1": (2 / 3, 2 / 3), "2": (2 / 3, -14.0), "3": (-2 / 3, -2 / 3)}
    for sample, turns in wanted.items():
        for turn, a in enumerate(turns):
            assert found[sample, turn] == pytest.approx((a, a), abs=1e-12), (sample, turn)


def test_stage_one_by_hand():
    """First turns earn nothing; second ones r2 = 1, 1, 0, 0, so +-2/3."""
    found = advantages(one(beta1=0, beta2=0).credit(group()))
    for sample, a in {"0": 2 / 3, "1": 2 / 3, "2": -2 / 3, "3": -2 / 3}.items():
        assert found[sample, 0] == (0.0, 0.0)
        assert found[sample, 1] == pytest.approx((a, a), abs=1e-12)


def test_the_kl_is_a_token_reward_and_strong_on_the_first_turn_of_stage_one():
    """log pi - log ref = 0.5 on every token: -beta/2 each, beta2 for turn 1 of stage I only."""
    plain, held = one(beta1=0, beta2=0), one(beta1=0.1, beta2=3.0)
    before, after = advantages(plain.credit(group())), advantages(held.credit(group(gap=0.5)))
    for (sample, turn), a in after.items():
        lost = 1.5 if turn == 0 else 0.05
        assert a == pytest.approx([x - lost for x in before[sample, turn]], abs=1e-9)
    base = advantages(two(beta1=0).credit(group()))
    for place, a in advantages(two(beta1=0.1, beta2=3.0).credit(group(gap=0.5))).items():
        assert a == pytest.approx([x - 0.05 for x in base[place]], abs=1e-9)


def test_each_token_answers_for_its_own_divergence_alone():
    episode = tried(0, WRONG, WRONG)
    first = dataclasses.replace(
        episode.attempts[0], reference=(-1.1, -0.2)
    )  # sampled at -.10, -.20
    episode = dataclasses.replace(episode, attempts=(first, episode.attempts[1]))
    rows = two(beta1=1.0).credit([episode, tried(1, WRONG, WRONG)])
    assert advantages(rows)["0", 0] == pytest.approx((-1.0, 0.0), abs=1e-9)


def test_three_turns_follow_the_same_rule_turn_by_turn():
    """0, 1, 0 against 0, 0, 0: turn 2 has 11 to 0, turn 3 has -10 to 0."""
    rows = two(turns=3, beta1=0).credit([tried(0, WRONG, RIGHT, WRONG), tried(1, *[WRONG] * 3)])
    found = advantages(rows)
    assert [found["0", t][0] for t in range(3)] == pytest.approx([0.0, 11.0, -10.0])
    assert [found["1", t][0] for t in range(3)] == pytest.approx([0.0, -11.0, 10.0])


def test_rows_are_trained_where_they_were_sampled_and_grouped_by_turn():
    rows = two().credit(group())
    assert {row.turn for row in rows} == {0, 1} and len(rows) == 8
    for row in rows:
        assert not row.reconditioned and row.behaviour is Behaviour.POLICY
        assert row.group.state == f"turn {row.turn + 1}"


def test_what_was_not_graded_is_left_out_and_so_is_what_compares_with_it():
    """An error in turn 1 takes turn 2 with it; one in turn 2 leaves turn 1."""
    rows = two(beta1=0).credit(
        [tried(0, "error", RIGHT), tried(1, RIGHT, "error"), tried(2, WRONG, RIGHT)]
    )
    assert set(advantages(rows)) == {("1", 0), ("2", 0), ("2", 1)}
    assert advantages(rows)["2", 1] == (0.0, 0.0), "alone in its turn, it has no baseline"


# ---------------------------------------------------------------------- turn 1 is its own affair


GRADES = st.sampled_from([RIGHT, WRONG])


def gradient(rows: Sequence[Row], turn: int) -> Tensor:
    """d loss / d log-prob at the tokens of a turn, in the whole batch."""
    logp = torch.tensor([row.logprobs for row in rows], requires_grad=True)
    objective = score().objective(1.0)
    terms = token_terms(
        objective,
        logp,
        logp.detach(),
        torch.tensor([row.advantages for row in rows]),
        torch.ones_like(logp),
        torch.tensor([row.mask for row in rows]),
    )
    loss_of(terms, torch.tensor(row_scales(rows, objective.aggregation)), 0.0).backward()
    assert logp.grad is not None
    return logp.grad[[i for i, row in enumerate(rows) if row.turn == turn]]


@given(
    st.lists(st.tuples(GRADES, GRADES, GRADES), min_size=2, max_size=6),
    st.floats(0, 50),
    st.floats(0, 50),
)
def test_the_first_turn_s_gradient_knows_neither_alpha_nor_the_second_outcome(grades, alpha, other):
    """Bit for bit: LESSONS 4, reward per turn is explicit, never a sum over retries."""
    one_ = [tried(i, first, a, gap=0.3) for i, (first, a, _) in enumerate(grades)]
    another = [tried(i, first, b, gap=0.3) for i, (first, _, b) in enumerate(grades)]
    mine = gradient(two(alpha=alpha).credit(one_), 0)
    assert torch.equal(mine, gradient(two(alpha=other).credit(another), 0))


def test_with_the_classic_mistake_it_does():
    mistake = two(bonus="all_turns", beta1=0)
    mine, other = (
        [tried(0, WRONG, RIGHT), tried(1, RIGHT, RIGHT)],
        [tried(0, WRONG, WRONG), tried(1, RIGHT, RIGHT)],
    )
    assert not torch.equal(gradient(mistake.credit(mine), 0), gradient(mistake.credit(other), 0))


def test_the_classic_mistake_leaves_out_whole_episodes_that_broke():
    """An error is never a reward: not even as a zero in a sum over turns."""
    rows = two(bonus="all_turns", beta1=0).credit(
        [tried(0, RIGHT, "error"), tried(1, WRONG, RIGHT)]
    )
    assert set(advantages(rows)) == {("1", 0), ("1", 1)}
    assert two(bonus="all_turns").measures([tried(0, RIGHT, "error")]) == {"reward/shaped": None}


def test_the_classic_mistake_pays_for_failing_first():
    """Wrong then right earns 0 + 11 on all tokens, right twice 1 + 1: first turns learn to fail."""
    pair = [tried(0, WRONG, RIGHT), tried(1, RIGHT, RIGHT)]
    wrong_way = advantages(two(bonus="all_turns", beta1=0).credit(pair))
    assert wrong_way["0", 0] == pytest.approx((9.0, 9.0)) and wrong_way["0", 1] == wrong_way["0", 0]
    assert advantages(two(beta1=0).credit(pair))["0", 0] == pytest.approx((-1.0, -1.0))


# ---------------------------------------------------------------------- stages and switches


def test_the_stages_and_what_each_is_called():
    whole = score(stage_one_steps=7, stage_two_rate=0.3).stages
    assert [(type(s), s.title, s.lasts, s.rate) for s in whole] == [
        (StageOne, "stage I", 7, 1.0),
        (StageTwo, "stage II", None, 0.3),
    ]
    for part in ("stage_one", "multi_turn_training"):
        assert [type(s) for s in score(without=part).stages] == [StageTwo]


def test_without_reward_shaping_the_second_turn_earns_its_outcome():
    found = advantages(two(without="reward_shaping", beta1=0).credit(group()))
    assert [found[i, 1][0] for i in "0123"] == pytest.approx([2 / 3, 2 / 3, -2 / 3, -2 / 3])


def test_the_shaped_reward_is_logged_beside_accuracy():
    """LESSONS 4: 11, 1, -10, 0, of mean 1/2; in stage I nothing is shaped."""
    assert two().measures(group()) == {"reward/shaped": pytest.approx(0.5)}
    assert two(without="reward_shaping").measures(group()) == {"reward/shaped": pytest.approx(0.5)}
    assert one().measures(group()) == {}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"without": "on_policy", "base_share": 0.5}, "base_share"),
        ({"without": "stage_one", "bonus": "all_turns"}, "choose one"),
        ({"turns": 1}, "greater than or equal to 2"),
        ({"group_size": 1}, "greater than or equal to 2"),
        ({"without": "kl"}, "multi_turn_training"),
        ({"base_share": 1.0}, "less than 1"),
        ({"base_share": 0.05}, "lends 0 of 8"),
        ({"base_share": 0.9}, "lends 7 of 8"),
    ],
)
def test_nonsense_is_refused(settings, reason):
    with pytest.raises(ValidationError, match=reason):
        score(**settings)


# ---------------------------------------------------------------------- episodes of a real model


def played(method: SCoRe, engine: TorchEngine, step: int = 0) -> list[Episode]:
    stage = stage_with(engine, step)
    return asyncio.run(method.collect(shop().tasks(Split.TRAIN)[:3], stage))


def stage_with(engine: TorchEngine, step: int = 0) -> Stage:
    found = shop_stage(engine, scene=("train", step))
    return dataclasses.replace(found, reference=engine.reference())


def test_a_second_attempt_goes_on_the_conversation_and_says_nothing_of_correctness():
    engine = warm_engine(keep_reference=True)
    again = engine.tokenizer.encode("Again: Work:", add_special_tokens=False)
    for episode in played(score(group_size=4), engine):
        first, second = episode.attempts
        shown = first.turns[0].prompt_ids + first.turns[0].completion.ids
        assert second.prompt_ids[: len(shown)] == shown
        assert list(second.prompt_ids[-2:]) == again
        assert second.turns[0].sees == {Sees.QUESTION, Sees.ATTEMPT}


def test_every_attempt_of_the_policy_s_has_the_reference_s_log_probs():
    """At the start the two are one policy."""
    for episode in played(score(group_size=4), warm_engine(keep_reference=True)):
        for attempt in episode.attempts:
            sampled = attempt.turns[0].completion.logprobs
            assert attempt.reference == pytest.approx(sampled, abs=1e-4)


def test_some_first_attempts_may_be_the_reference_s_and_are_not_trained():
    method = score(group_size=4, base_share=0.5)
    episodes = played(method, warm_engine(keep_reference=True))
    lent = [e for e in episodes if e.first.turns[0].behaviour is Behaviour.REFERENCE]
    assert len(lent) == 6 and len(episodes) == 12
    places = by_place(two(group_size=4, base_share=0.5).credit(episodes))
    for episode in lent:
        assert (episode.id, "solver", 0) not in places
        assert (episode.id, "solver", 1) in places


def test_off_policy_first_attempts_are_the_same_at_every_step():
    method = score(group_size=4, without="on_policy")
    engine = warm_engine(keep_reference=True)
    early, late = played(method, engine, 0), played(method, engine, 9)
    assert [e.first.text for e in early] == [e.first.text for e in late]
    assert [e.attempts[1].turns for e in early] != [e.attempts[1].turns for e in late]
    assert {row.turn for row in two(without="on_policy").credit(early)} == {1}


def test_without_multi_turn_training_there_is_one_attempt():
    episodes = played(score(without="multi_turn_training"), warm_engine(keep_reference=True))
    assert {len(e.attempts) for e in episodes} == {1}


# ---------------------------------------------------------------------- stage I does what it is for

KL_LIMIT = 0.03
"""Nats a token that turn 1 may have moved after stage I."""


def divergences(engine: TorchEngine, episodes: Sequence[Episode]) -> list[float]:
    """Mean KL(policy || reference) a token by turn, estimated on these episodes' tokens (k3)."""
    found = []
    for turn in (0, 1):
        rows = [
            solver_row(e, e.attempts[turn], 0.0, turn_key(e, e.attempts[turn])) for e in episodes
        ]
        new, old = (asyncio.run(p.logprobs(rows)) for p in (engine, engine.reference()))
        log_r = torch.tensor(
            [b - a for x, y in zip(new, old, strict=True) for a, b in zip(x, y, strict=True)]
        )
        found.append(float((log_r.exp() - 1 - log_r).mean()))
    return found


def after_stage_one(beta2: float) -> list[float]:
    """(turn 1, turn 2): how far 30 steps of stage I moved the policy from the reference."""
    engine = warm_engine(keep_reference=True)
    stage_one = one(group_size=8, beta2=beta2)
    optimizer = OptimizerSettings(lr=1e-3)

    async def learn() -> None:
        tasks = shop().tasks(Split.TRAIN)
        for step in range(30):
            some = [tasks[(step * 8 + i) % len(tasks)] for i in range(8)]
            episodes = await stage_one.collect(some, stage_with(engine, step))
            rows = stage_one.credit(episodes)
            await engine.update(rows, stage_one.objective(1.0), optimizer, 30)

    asyncio.run(learn())
    return divergences(engine, played(score(group_size=16), engine, 99))


def test_stage_one_moves_the_second_turn_and_leaves_the_first_near_the_reference():
    """LESSONS 3: turn 1 within 0.03 nats a token of the reference, turn 2 far from it.

    Without the KL of turn 1, what turn 2 learns carries turn 1 along.
    """
    first, second = after_stage_one(beta2=3.0)
    assert first < KL_LIMIT and second > max(3 * KL_LIMIT, 10 * first)
    assert after_stage_one(beta2=0.0)[0] > 3 * KL_LIMIT
