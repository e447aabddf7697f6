"""What every engine must do, whatever it is made of (`inwit.engines.base.Engine`).

A new implementation is added to `ENGINES`: a name, and a function that builds an engine of the tiny
model of one family. Nothing here may look inside an engine.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from inwit.engines import Engine, OptimizerSettings, Policy, Sampling, UpdateStats
from inwit.engines.torch import LoraSettings, TorchEngine, TorchSettings
from inwit.errors import InwitError
from inwit.objectives import Objective
from inwit.rows import Completion, Floats, Ids, Row, Stop
from tests.engines.models import FAMILIES, PAD, POSITIONS, loaded, plain_logprobs
from tests.helpers import row_of, some_ids

STOPS = (1, 6, 11, 16, 21)
PROMPTS = tuple(some_ids(n, seed=1) for n in (1, 3, 7, 12, 19, 30))
PROBE = [
    row_of(some_ids(n, seed=2), Completion(some_ids(9, seed=n), (0.0,) * 9, Stop.LENGTH))
    for n in (2, 5, 14)
]
"""Rows whose log-probs tell two policies apart."""

SMOOTH = OptimizerSettings(lr=0.5, eps=1.0, max_grad_norm=1e6)
"""With a large eps AdamW's first step is about lr x gradient, so that a difference of rounding in a
gradient near zero is not blown up to a full step, and no clipping hides a wrong scale."""

STRONG = OptimizerSettings(lr=0.005)
FAINT = OptimizerSettings(lr=1e-12)


class Make(Protocol):
    """Builds the engine under test, always with the same initial policy."""

    def __call__(
        self, *, max_batch: int = 16, keep_reference: bool = False, seed: int = 0
    ) -> Engine: ...


def torch_engine(family: str, lora: LoraSettings | None) -> Make:
    def make(*, max_batch: int = 16, keep_reference: bool = False, seed: int = 0) -> Engine:
        settings = TorchSettings(device="cpu", max_batch=max_batch, tokens_at_once=200, lora=lora)
        return TorchEngine(loaded(family, seed), settings, keep_reference=keep_reference)

    return make


def tinker_engine(*, max_batch: int = 16, keep_reference: bool = False, seed: int = 0) -> Engine:
    from tests.engines.tinker_server import engine_at, serving, tiny_model

    return engine_at(serving(tiny_model()).url, tiny_model(), seed=seed)


ENGINES: dict[str, Make] = {
    f"torch-{family}-{kind}": torch_engine(family, lora)
    for family in FAMILIES
    for kind, lora in (("full", None), ("lora", LoraSettings(rank=4, alpha=8)))
}
ENGINES["tinker-qwen3-lora"] = tinker_engine
TINKER = pytest.param("tinker-qwen3-lora", marks=pytest.mark.tinker)
FOUR = ("torch-qwen3-full", "torch-llama-lora", "torch-gemma2-full", "torch-gemma3-lora")
SOME = FOUR[:2]
"""Where the family, or the family and what is trained together, can hardly matter."""


@contextmanager
def making(name: str) -> Iterator[Make]:
    """Makes engines of a name, and closes them in the end."""
    made: list[Engine] = []

    def make(*, max_batch: int = 16, keep_reference: bool = False, seed: int = 0) -> Engine:
        one = ENGINES[name](max_batch=max_batch, keep_reference=keep_reference, seed=seed)
        made.append(one)
        return one

    try:
        yield make
    finally:
        for one in made:
            one.close()


@pytest.fixture(params=[*(n for n in ENGINES if n.startswith("torch")), TINKER])
def engine(request: pytest.FixtureRequest) -> Iterator[Make]:
    with making(request.param) as make:
        yield make


@pytest.fixture(params=[*FOUR, TINKER])
def one_of_four(request: pytest.FixtureRequest) -> Iterator[Make]:
    with making(request.param) as make:
        yield make


@pytest.fixture(params=[*SOME, TINKER])
def some_engine(request: pytest.FixtureRequest) -> Iterator[Make]:
    with making(request.param) as make:
        yield make


# ---------------------------------------------------------------------- what the tests do with them


def sample(policy: Policy, *requests: tuple[Ids, int, Sampling]) -> list[list[Completion]]:
    """All requests at once."""

    async def go() -> list[list[Completion]]:
        return await asyncio.gather(*(policy.sample(*request) for request in requests))

    return asyncio.run(go())


def logprobs(policy: Policy, rows: Sequence[Row], temperature: float = 1.0) -> list[Floats]:
    return asyncio.run(policy.logprobs(rows, temperature))


def update(
    engine: Engine,
    rows: Sequence[Row],
    optimizer: OptimizerSettings = SMOOTH,
    objective: Objective | None = None,
) -> UpdateStats:
    return asyncio.run(engine.update(rows, objective or Objective(), optimizer, 10))


def play(
    engine: Engine, n: int = 3, seed: int = 0, temperature: float = 1.0, tokens: int = 10
) -> list[Row]:
    """On-policy rows over all prompts, with random advantages."""
    limits = [tokens - i % 4 for i in range(len(PROMPTS))]
    found = sample(
        engine,
        *(
            (prompt, n, Sampling(limit, STOPS, temperature, seed))
            for prompt, limit in zip(PROMPTS, limits, strict=True)
        ),
    )
    draw = random.Random(seed)
    return [
        row_of(prompt, c, draw.choice((-1.0, 0.5, 1.0)), episode=f"{prompt}/{i}")
        for prompt, completions in zip(PROMPTS, found, strict=True)
        for i, c in enumerate(completions)
    ]


def warmth(engine: Policy, wanted: float) -> float:
    """The temperature wanted; 1 where the engine knows log-probs at no other, and says so."""
    try:
        logprobs(engine, PROBE[:1], wanted)
    except InwitError as error:
        assert "temperature" in str(error)
        return 1.0
    return wanted


def exported(engine: Engine, folder: Path) -> PreTrainedModel:
    folder.mkdir()
    engine.export(folder)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def gap(a: Sequence[Floats], b: Sequence[Floats]) -> float:
    """The largest difference between two lists of log-probs."""
    return max(abs(x - y) for u, v in zip(a, b, strict=True) for x, y in zip(u, v, strict=True))


def assert_parity(engine: Engine, plain: PreTrainedModel, temperature: float, seed: int) -> None:
    """Sampler, scorer and the plain model agree about what was just sampled."""
    rows = play(engine, n=3, seed=seed, temperature=temperature, tokens=13)
    assert len({len(r.completion_ids) for r in rows}) > 2, "sequences must leave at different times"
    sampled = [row.logprobs for row in rows]
    oracle = [plain_logprobs(plain, r.prompt_ids, r.completion_ids, temperature) for r in rows]
    assert gap(sampled, oracle) < 1e-4
    assert gap(logprobs(engine, rows, temperature), oracle) < 1e-4


# ---------------------------------------------------------------------- sampling and scoring


def test_sampler_and_scorer_agree_before_training(engine: Make, tmp_path: Path) -> None:
    """LESSONS 15: at step 0, log-probs of sampler and learner agree, at any temperature.

    Prompts of different lengths are sampled together, and more samples than fit at once.
    """
    made = engine(max_batch=4)
    plain = exported(made, tmp_path / "model")
    for temperature in (0.7, 1.3):
        assert_parity(made, plain, warmth(made, temperature), seed=3)


def test_sampler_and_scorer_agree_after_training(engine: Make, tmp_path: Path) -> None:
    """LESSONS 21: after an update the sampler uses the new weights, adapters included."""
    made = engine(max_batch=4)
    before = logprobs(made, PROBE)
    for seed in (4, 5):
        update(made, play(made, seed=seed), STRONG)
    assert gap(logprobs(made, PROBE), before) > 0.05
    temperature = warmth(made, 0.8)
    assert_parity(made, exported(made, tmp_path / "model"), temperature, seed=6)


def test_the_temperature_reaches_sampler_and_scorer(some_engine: Make) -> None:
    """LESSONS 15: log-probs are those of softmax(logits / temperature), in both."""
    made = some_engine()
    if warmth(made, 0.5) == 1:
        return  # said so
    rows = play(made, temperature=0.5)
    cold, warm = logprobs(made, rows, 0.5), logprobs(made, rows, 1.0)
    assert gap([r.logprobs for r in rows], cold) < 1e-4
    assert gap(cold, warm) > 0.1


def test_temperature_zero_is_argmax(one_of_four: Make, tmp_path: Path) -> None:
    """As transformers' own generate(do_sample=False); the log-probs are those at temperature 1."""
    made = one_of_four()
    plain = exported(made, tmp_path / "model")
    found = sample(made, *((p, 2, Sampling(12, STOPS, 0.0)) for p in PROMPTS))
    for prompt, (one, two) in zip(PROMPTS, found, strict=True):
        wanted = plain.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            max_new_tokens=12,
            eos_token_id=list(STOPS),
            pad_token_id=PAD,
        )
        assert one.ids == two.ids == tuple(wanted[0, len(prompt) :].tolist())
        assert gap([one.logprobs], [plain_logprobs(plain, prompt, one.ids)]) < 1e-4


def test_a_request_depends_on_nobody_else(engine: Make) -> None:
    """Same seed, same ids: alone, in company, at another capacity, and the second time."""
    sampling = Sampling(12, STOPS, 1.0, seed=11)
    others = [(p, 2, Sampling(4 + i, STOPS, 1.4, seed=i)) for i, p in enumerate(PROMPTS)]
    mine = (PROMPTS[2], 4, sampling)
    small, large = engine(max_batch=3), engine(max_batch=64)
    (alone,) = sample(small, mine)
    wanted = [c.ids for c in alone]
    assert len(set(wanted)) > 1, "n samples must not be n copies"
    for made, requests in (
        (small, [mine]),
        (small, [*others[:3], mine, *others[3:]]),
        (large, [mine]),
        (large, [mine, *others]),
    ):
        found = sample(made, *requests)[requests.index(mine)]
        assert [c.ids for c in found] == wanted
        assert gap([c.logprobs for c in found], [c.logprobs for c in alone]) < 1e-4


def test_another_seed_gives_other_samples(some_engine: Make) -> None:
    made = some_engine()
    found = [sample(made, (PROMPTS[1], 4, Sampling(8, (), 1.0, seed=seed)))[0] for seed in range(4)]
    assert len({tuple(c.ids for c in completions) for completions in found}) == 4


def test_stop_ids_end_and_are_included(one_of_four: Make) -> None:
    """Stop.TOKEN exactly where the last id is a stop id; stop ids occur nowhere else."""
    found = sample(one_of_four(), *((p, 6, Sampling(9, STOPS, 1.5, seed=1)) for p in PROMPTS))
    completions = [c for some in found for c in some]
    for c in completions:
        assert 1 <= len(c.ids) <= 9
        assert not set(c.ids[:-1]) & set(STOPS)
        assert (c.stop is Stop.TOKEN) == (c.ids[-1] in STOPS)
        assert c.stop is Stop.TOKEN or len(c.ids) == 9
    assert {c.stop for c in completions} == {Stop.TOKEN, Stop.LENGTH}


def test_each_request_keeps_its_own_limit_and_stop_ids(some_engine: Make) -> None:
    """Without stop ids all run to the limit; a stop id of one request is none of another's."""
    everything = tuple(range(72))
    short, long, single = sample(
        some_engine(),
        (PROMPTS[3], 3, Sampling(2, (), 1.0)),
        (PROMPTS[4], 4, Sampling(17, (), 1.0)),
        (PROMPTS[5], 3, Sampling(17, everything, 1.0)),
    )
    assert [len(c.ids) for c in short] == [2] * 3
    assert [len(c.ids) for c in long] == [17] * 4
    assert [(len(c.ids), c.stop) for c in single] == [(1, Stop.TOKEN)] * 3
    assert {c.stop for c in short + long} == {Stop.LENGTH}


def test_a_stop_id_on_the_last_token_allowed_is_a_stop(some_engine: Make) -> None:
    """LESSONS 12: truncation is told from the end by what happened, not by the token."""
    (found,) = sample(some_engine(), (PROMPTS[0], 2, Sampling(1, tuple(range(72)), 1.0)))
    assert [c.stop for c in found] == [Stop.TOKEN] * 2


def test_a_prompt_that_leaves_no_room_is_refused(some_engine: Make) -> None:
    made = some_engine()
    prompt = some_ids(POSITIONS - 4)
    with pytest.raises(InwitError, match=str(POSITIONS)):
        sample(made, (prompt, 1, Sampling(5, ())))
    (found,) = sample(made, (prompt, 1, Sampling(4, ())))
    assert len(found[0].ids) == 4


def test_no_samples_asked_for_are_no_samples(some_engine: Make) -> None:
    async def go() -> list[Completion]:
        return await asyncio.wait_for(
            some_engine().sample(PROMPTS[0], 0, Sampling(4, STOPS)), timeout=20
        )

    assert asyncio.run(go()) == []


def test_scores_do_not_depend_on_padding(engine: Make) -> None:
    """LESSONS 16: a row's log-probs are the same alone and beside longer rows, in any order."""
    made = engine()
    rows = [
        row_of(some_ids(p, seed=8), Completion(some_ids(c, seed=9), (0.0,) * c, Stop.LENGTH))
        for p, c in ((1, 4), (25, 2), (3, 30), (60, 1), (9, 9))
    ]
    together = logprobs(made, rows)
    assert gap([logprobs(made, [row])[0] for row in rows], together) < 1e-5
    assert gap(logprobs(made, rows[::-1])[::-1], together) < 1e-5


def test_masked_tokens_score_zero_and_still_are_read(one_of_four: Make) -> None:
    """LESSONS 11: the mask has the completion's length; what it hides conditions what follows."""
    made = one_of_four()
    row = PROBE[1]
    mask = (True, True, False, False, True, True, False, True, False)
    (whole,) = logprobs(made, [row])
    (masked,) = logprobs(made, [dataclasses.replace(row, mask=mask)])
    assert masked == pytest.approx([v if m else 0.0 for v, m in zip(whole, mask, strict=True)])
    assert all(v == 0.0 for v, m in zip(masked, mask, strict=True) if not m)
    nothing = dataclasses.replace(row, mask=(False,) * len(mask))
    assert logprobs(made, [nothing, row])[0] == (0.0,) * len(mask)


# ---------------------------------------------------------------------- learning


def test_advantages_raise_and_lower_their_tokens(one_of_four: Make) -> None:
    for advantage in (1.0, -1.0):
        made = one_of_four()
        row = play(made, n=1)[3]
        batch = [dataclasses.replace(row, advantages=(advantage,) * len(row.advantages))]
        (before,) = logprobs(made, batch)
        stats = update(made, batch, SMOOTH.model_copy(update={"lr": 0.05}))
        (after,) = logprobs(made, batch)
        assert advantage * (sum(after) - sum(before)) > 0.01
        assert (stats.rows, stats.rows_trained, stats.optimizer_steps) == (1, 1, 1)
        assert stats.grad_norm > 0
        assert stats.lr == 0.05


def test_statistics_of_an_on_policy_step(engine: Make) -> None:
    """LESSONS 15: the step reports its own parity; on policy nothing is clipped or re-weighted."""
    made = engine()
    temperature = warmth(made, 0.8)
    rows = play(made, temperature=temperature)
    stats = update(made, rows, objective=Objective(temperature=temperature))
    assert stats.parity is not None
    assert stats.parity < 1e-4
    assert (stats.weight_mean, stats.weight_truncated, stats.effective_share) == (None,) * 3
    assert stats.clip_share == 0
    assert stats.kl == 0
    assert 0 < stats.entropy < math.log(72)
    assert stats.tokens == sum(row.length for row in rows)
    # at ratio 1 the loss is minus the mean advantage over the batch's tokens
    total = sum(row.trained_tokens for row in rows)
    wanted = -sum(sum(row.advantages) for row in rows) / total
    assert stats.loss == pytest.approx(wanted, abs=1e-5)
    names = {field.name for field in dataclasses.fields(UpdateStats)}
    assert set(stats.numbers()) == names - {"weights"}


def test_a_learning_rate_of_nothing_changes_nothing(some_engine: Make) -> None:
    """LESSONS 15: with lr about 0, step after step keeps parity and ratio 1."""
    made = some_engine()
    before = logprobs(made, PROBE)
    rows = play(made, seed=1)
    for step in range(3):
        stats = update(made, rows + play(made, n=1, seed=2 + step), FAINT)
        assert stats.parity is not None
        assert stats.parity < 1e-4
        assert stats.clip_share == 0
    # the same over several optimizer steps a batch, with a pass of its own for the old log-probs
    narrow = Objective(clip_low=1e-4, clip_high=1e-4)
    several = FAINT.model_copy(update={"minibatches": 2, "epochs": 2})
    stats = update(made, rows, several, narrow)
    assert stats.optimizer_steps == 4
    assert stats.clip_share == 0
    assert gap(logprobs(made, PROBE), before) < 1e-5


def test_a_batch_without_advantages_takes_no_step(some_engine: Make) -> None:
    """Nothing to learn from: no pass, no step, not even of the optimizer's momentum."""
    made = some_engine()
    update(made, play(made))
    before = logprobs(made, PROBE)
    rows = [dataclasses.replace(r, advantages=(0.0,) * len(r.mask)) for r in play(made, seed=1)]
    stats = update(made, rows)
    assert (stats.optimizer_steps, stats.rows_trained, stats.tokens) == (0, 0, 0)
    assert stats.rows == len(rows)
    assert stats.parity is None
    assert logprobs(made, PROBE) == before
    assert update(made, []).optimizer_steps == 0
    assert logprobs(made, PROBE) == before


def test_masked_positions_carry_nothing(some_engine: Make) -> None:
    """LESSONS 11: what stands at observation tokens, NaN included, changes no update.

    Rows of several turns: the policy's tokens, the environment's, the policy's again.
    """
    one, two, base = some_engine(), some_engine(), some_engine()
    rows = play(base, n=2, tokens=12)
    draw = random.Random(0)
    clean, dirty = [], []
    for row in rows:
        mask = [draw.random() < 0.6 for _ in row.mask]
        mask[0] = True

        def hide(values: Sequence[float], bad: float, mask: Sequence[bool] = mask) -> Floats:
            return tuple(v if m else bad for v, m in zip(values, mask, strict=True))

        clean.append(
            dataclasses.replace(
                row,
                mask=tuple(mask),
                logprobs=hide(row.logprobs, 0.0),
                advantages=hide(row.advantages, 0.0),
            )
        )
        dirty.append(
            dataclasses.replace(
                row,
                mask=tuple(mask),
                logprobs=hide(row.logprobs, draw.choice((-700.0, 5.0, math.nan))),
                advantages=hide(row.advantages, draw.choice((1e6, -3.0, math.nan))),
                weights=hide(row.weights, draw.choice((0.0, 9.0, math.nan))),
            )
        )
    assert any(not m for row in clean for m in row.mask)
    a, b = update(one, clean), update(two, dirty)
    assert gap(logprobs(one, PROBE), logprobs(two, PROBE)) < 1e-6
    assert gap(logprobs(one, PROBE), logprobs(base, PROBE)) > 1e-3
    assert a == b


def test_tokens_after_the_last_trained_one_do_not_matter(some_engine: Make) -> None:
    """LESSONS 11: an observation is never a target, and under causal attention no cause either."""
    one, two, three = some_engine(), some_engine(), some_engine()
    row = max(play(one, tokens=12), key=lambda row: len(row.mask))
    n = len(row.completion_ids)
    assert n > 6
    mask = (True,) * (n - 4) + (False,) * 4
    other = tuple((i + 17) % 72 for i in row.completion_ids)
    tail = dataclasses.replace(
        row, mask=mask, completion_ids=row.completion_ids[: n - 4] + other[n - 4 :]
    )
    middle = dataclasses.replace(
        row,
        mask=(True, False, *mask[2:]),
        completion_ids=(row.completion_ids[0], other[1], *row.completion_ids[2:]),
    )
    update(one, [dataclasses.replace(row, mask=mask)])
    update(two, [tail])
    update(three, [middle])
    assert gap(logprobs(one, PROBE), logprobs(two, PROBE)) < 1e-6
    assert gap(logprobs(one, PROBE), logprobs(three, PROBE)) > 1e-4


@pytest.mark.parametrize("aggregation", ["token", "row", "episode"])
def test_dummy_rows_and_order_change_nothing(some_engine: Make, aggregation: str) -> None:
    """LESSONS 10, 26: rows with nothing to train, and the order of rows, change no update."""
    objective = Objective(aggregation=aggregation)  # type: ignore[arg-type]
    one, two = some_engine(), some_engine()
    rows = play(one, n=2)
    # two rows share an episode, so that `row` and `episode` are not the same mean
    rows[1] = dataclasses.replace(rows[1], episode=rows[0].episode)
    n = len(rows[-1].mask)
    dummy = dataclasses.replace(rows[-1], mask=(False,) * n, episode="dummy", advantages=(5.0,) * n)
    update(one, rows, objective=objective)
    update(two, [dummy, *rows[::-1], dummy], objective=objective)
    assert gap(logprobs(one, PROBE), logprobs(two, PROBE)) < 1e-5


@pytest.mark.parametrize("aggregation", ["token", "row", "episode"])
def test_rows_without_advantage_only_count_in_the_mean(some_engine: Make, aggregation: str) -> None:
    """LESSONS 19: they are left out of the passes, but the mean runs over them, as documented."""
    objective = Objective(aggregation=aggregation)  # type: ignore[arg-type]
    one, two, base = some_engine(), some_engine(), some_engine()
    rows = play(base, n=2)
    live, idle = (
        rows[:7],
        [dataclasses.replace(r, advantages=(0.0,) * len(r.advantages)) for r in rows[7:]],
    )
    # each row is an episode of its own here, so `row` and `episode` dilute alike
    tokens = [sum(r.trained_tokens for r in some) for some in (live, rows)]
    share = tokens[0] / tokens[1] if aggregation == "token" else len(live) / len(rows)
    scaled = [
        dataclasses.replace(r, advantages=tuple(a * share for a in r.advantages)) for r in live
    ]
    stats = update(one, live + idle, objective=objective)
    update(two, scaled, objective=objective)
    assert stats.tokens == sum(row.length for row in live)
    assert (stats.rows, stats.rows_trained) == (len(rows), len(live))
    assert gap(logprobs(one, PROBE), logprobs(two, PROBE)) < 1e-5
    assert gap(logprobs(one, PROBE), logprobs(base, PROBE)) > 1e-3


def test_reconditioned_rows_are_weighted(one_of_four: Make) -> None:
    """Revisions, trained without the critique they were sampled after, get min(p / p', cap)."""
    made = one_of_four()
    critique = some_ids(6, seed=5)
    found = sample(made, *((critique + p, 3, Sampling(8, STOPS, seed=7)) for p in PROMPTS))
    again = [
        row_of(p, c, 1.0, sampled_prompt=critique + p)
        for p, some in zip(PROMPTS, found, strict=True)
        for c in some
    ]
    own = play(made, n=1)
    objective = Objective()
    cap = objective.weighting.cap
    assert cap is not None
    scores = logprobs(made, again)
    free = [
        math.exp(new - old)
        for row, values in zip(again, scores, strict=True)
        for new, old in zip(values, row.logprobs, strict=True)
    ]
    weights = [min(w, cap) for w in free]
    assert 0 < sum(w > cap for w in free) < len(free)
    stats = update(made, [*own, *again], objective=objective)
    assert stats.weight_mean == pytest.approx(sum(weights) / len(weights), rel=1e-4)
    assert stats.weight_truncated == pytest.approx(sum(w > cap for w in free) / len(free))
    square = sum(w * w for w in weights)
    assert stats.effective_share == pytest.approx(
        sum(weights) ** 2 / (len(weights) * square), rel=1e-4
    )
    # and every token's weight is handed out, by the row's place in the batch
    assert set(stats.weights) == set(range(len(own), len(own) + len(again)))
    handed = [w for k in sorted(stats.weights) for w in stats.weights[k]]
    assert handed == pytest.approx(weights, rel=1e-3)
    assert stats.parity is not None
    assert stats.parity < 1e-4, "re-conditioned rows have no parity to keep"


# ---------------------------------------------------------------------- the reference


def test_the_reference_stays_where_it_was(one_of_four: Make) -> None:
    made = one_of_four(keep_reference=True)
    before = logprobs(made, PROBE)
    assert gap(logprobs(made.reference(), PROBE), before) < 1e-5
    sampling = Sampling(10, STOPS, seed=1)
    request = (PROMPTS[2], 4, sampling)
    drawn = sample(made.reference(), request)
    for seed in (1, 2):
        update(made, play(made, seed=seed), STRONG)
    assert gap(logprobs(made, PROBE), before) > 0.05
    assert gap(logprobs(made.reference(), PROBE), before) < 1e-5
    assert sample(made.reference(), request) == drawn
    assert sample(made, request) != drawn
    # asking the reference leaves the policy able to learn, and itself as it is
    after = logprobs(made, PROBE)
    update(made, play(made, seed=3), STRONG)
    assert gap(logprobs(made, PROBE), after) > 0.01


def mean_kl(engine: Engine, rows: Sequence[Row]) -> float:
    """Mean over tokens of r - 1 - log r, r = reference / policy."""
    own, anchor = logprobs(engine, rows), logprobs(engine.reference(), rows)
    logs = [r - p for u, v in zip(own, anchor, strict=True) for p, r in zip(u, v, strict=True)]
    return sum(math.exp(x) - 1 - x for x in logs) / len(logs)


def test_kl_to_the_reference(one_of_four: Make) -> None:
    """Nothing before training; afterwards positive, and the statistics tell how much."""
    made = one_of_four(keep_reference=True)
    objective = Objective(kl=0.1)
    rows = play(made, seed=1)
    assert abs(update(made, rows, STRONG, objective).kl) < 1e-6
    rows = play(made, seed=2)
    stats = update(made, rows, FAINT, objective)
    assert stats.kl > 1e-3
    assert mean_kl(made, rows) == pytest.approx(stats.kl, rel=1e-3)


def test_the_kl_term_holds_the_policy_back(some_engine: Make) -> None:
    """The same training with the term and without: with it, the policy stays nearer."""
    far = []
    for kl in (0.0, 1.0):
        made = some_engine(keep_reference=True)
        rows = play(made, seed=1)
        for _ in range(4):
            update(made, rows, OptimizerSettings(lr=0.005), Objective(kl=kl))
        far.append(mean_kl(made, rows))
    assert 0 < far[1] < 0.8 * far[0]


def test_a_reference_that_was_not_kept_is_an_error() -> None:
    made = ENGINES["torch-qwen3-full"](keep_reference=False)
    with pytest.raises(InwitError, match="reference"):
        made.reference()
    with pytest.raises(InwitError, match="reference"):
        update(made, play(made, n=1), objective=Objective(kl=0.1))


# ---------------------------------------------------------------------- saving


def test_a_checkpoint_goes_on(one_of_four: Make, tmp_path: Path) -> None:
    """LESSONS 25: save, load into a new engine, go on: as if nothing had happened."""
    one, two = one_of_four(keep_reference=True), one_of_four(keep_reference=True)
    start = logprobs(one, PROBE)
    update(one, play(one, seed=1), STRONG)
    one.save(tmp_path)
    two.load(tmp_path)
    assert gap(logprobs(two, PROBE), logprobs(one, PROBE)) < 1e-6
    assert gap(logprobs(two.reference(), PROBE), start) < 1e-5
    for made in (one, two):
        update(made, play(made, seed=2), STRONG)
    assert gap(logprobs(two, PROBE), logprobs(one, PROBE)) < 1e-5


def test_a_broken_or_foreign_checkpoint_is_refused(some_engine: Make, tmp_path: Path) -> None:
    made, foreign = some_engine(), some_engine(seed=1)
    before = logprobs(made, PROBE)
    with pytest.raises(InwitError):
        made.load(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InwitError):
        made.load(tmp_path / "empty")
    (tmp_path / "foreign").mkdir()
    foreign.save(tmp_path / "foreign")
    with pytest.raises(InwitError):
        made.load(tmp_path / "foreign")
    assert logprobs(made, PROBE) == before
