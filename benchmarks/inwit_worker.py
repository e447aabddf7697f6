"""inwit doing a case's work, one step each time it is asked for one.

A step is what a training run does with the same engine: every prompt sampled at once, completions
decoded to text, advantages and rows made by the project's own functions, one update.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import time
from functools import partial

from benchmarks import wire
from inwit.engines import OptimizerSettings, Sampling
from inwit.engines.torch import TorchEngine, TorchSettings, load_model
from inwit.methods.crediting import check_groups, solver_row
from inwit.objectives import Objective, by_group, group_normalised
from inwit.rows import Attempt, Completion, Episode, Grade, GroupKey, Ids, Role, Row, Sees, Turn

OPTIMIZER = OptimizerSettings(
    lr=wire.LEARNING_RATE,
    betas=wire.BETAS,
    eps=wire.EPS,
    weight_decay=0.0,
    max_grad_norm=wire.MAX_GRAD_NORM,
)
OBJECTIVE = Objective(loss="clip", clip_low=wire.CLIP[0], clip_high=wire.CLIP[1])


def episode_of(engine: TorchEngine, query: str, i: int, prompt: Ids, made: Completion) -> Episode:
    """A graded attempt, as playing an environment would have made it."""
    text = engine.tokenizer.decode(made.ids, skip_special_tokens=True)
    turn = Turn(Role.SOLVER, prompt, made, frozenset({Sees.QUESTION}), text=text)
    attempt = Attempt(0, (turn,), Grade.WRONG, wire.reward(made.ids), text)
    return Episode(id=f"0/{query}/{i}", query=query, attempts=(attempt,))


async def sample(engine: TorchEngine, job: wire.Job, step: int) -> list[Row]:
    """Tokenise the prompts, sample every group at once, and credit it as GRPO does."""
    prompts = [tuple(ids) for ids in engine.tokenizer(list(job.texts))["input_ids"]]
    requests = [
        # no stop ids: every completion is as long as the case says
        engine.sample(
            prompt, job.group, Sampling(job.completion_tokens, (), 1.0, seed=1000 * step + q)
        )
        for q, prompt in enumerate(prompts)
    ]
    groups = await asyncio.gather(*requests)
    episodes = [
        episode_of(engine, str(q), i, prompt, made)
        for q, (prompt, group) in enumerate(zip(prompts, groups, strict=True))
        for i, made in enumerate(group)
    ]
    keys = [GroupKey(e.query, Role.SOLVER) for e in episodes]
    baseline = partial(group_normalised, delta=wire.DELTA)
    advantages = by_group([e.first.reward for e in episodes], keys, lambda _: baseline)
    rows = [
        solver_row(e, e.first, a, key) for e, a, key in zip(episodes, advantages, keys, strict=True)
    ]
    check_groups(rows)
    return rows


async def steps(engine: TorchEngine, job: wire.Job, line: wire.Line) -> None:
    for step, _ in enumerate(line.requests()):
        start = time.perf_counter()
        rows = await sample(engine, job, step)
        middle = time.perf_counter()
        stats = await engine.update(rows, OBJECTIVE, OPTIMIZER, job.steps)
        end = time.perf_counter()
        if stats.optimizer_steps != 1:
            raise ValueError(f"{stats.optimizer_steps} optimizer steps were made, not 1")
        trained = [row for row in rows if row.signal]
        if len(trained) != stats.rows_trained:
            raise ValueError(f"{stats.rows_trained} rows were trained, not {len(trained)}")
        line.say(
            wire.Step(
                sampling=middle - start,
                training=end - middle,
                sampled=sum(len(row.completion_ids) for row in rows),
                trained=sum(row.trained_tokens for row in trained),
                peak_mb=wire.peak_mb(),
                extra={} if stats.parity is None else {"parity": stats.parity},
            )
        )


def main() -> None:
    line = wire.Line()
    job = line.job()
    settings = TorchSettings(device="cpu", threads=job.threads, **job.options.get("settings", {}))
    engine = TorchEngine(load_model(job.folder), settings)
    ids = engine.tokenizer(list(job.texts))["input_ids"]
    wire.check_prompts(ids, job)
    versions = {
        name: importlib.metadata.version(name) for name in ("torch", "transformers", "inwit")
    }
    line.say(wire.Ready(wire.digest(ids), versions))
    asyncio.run(steps(engine, job, line))


if __name__ == "__main__":
    main()
