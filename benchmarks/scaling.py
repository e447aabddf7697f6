"""What a step of ICRL costs beside one of GRPO, and what a token costs as steps grow.

    make bench-scaling                       # both: minutes on two cores
    python -m benchmarks.scaling icrl        # seconds a sampled token, the two methods in turns
    python -m benchmarks.scaling flat        # steps of 1,000 to 100,000 sampled tokens

`icrl` plays whole training steps (episodes, credit, update) of both methods, with as many queries
as make the steps equal in sampled tokens: on the embedded shop, from a warm start in which attempts
fail and succeed, and with turns of 64 tokens that are right by chance (`chance.py`). `flat` samples
and trains ever more prompts with the 3.2M model, each size in a process of its own, 64 sequences at
once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import wire
from benchmarks.models import model_folder
from benchmarks.models import prompts as texts
from benchmarks.workers import ROOT, environment
from inwit.methods import measures

OUT = ROOT / "benchmarks" / "results"
WARM = ROOT / "benchmarks" / ".cache" / "shop-warm"
SLIP = "env.slip=[0.25, 0.4]"
"""A warm start that is right now and then, so that groups have something to learn."""

GROUP = {"grpo": 10, "icrl": 8}
"""Both groups of ten: ten attempts, or eight, two of them criticised and revised, whose revisions
join the attempts' group. ICRL samples 12 turns a query, and has 5 queries where GRPO has 6."""


@dataclass(frozen=True)
class Workload:
    """What both methods play: a recipe by method, what both set in it, and queries a step."""

    recipes: str
    settings: Callable[[], Sequence[str]]
    queries: Mapping[str, int]


WORKLOADS = {
    "shop": Workload(
        "recipes/checkout/{}.toml",
        lambda: [f"model.path={warm_start()}", SLIP],
        {"grpo": 153, "icrl": 128},
    ),
    "turns-of-64": Workload(
        "benchmarks/chance.toml",
        lambda: [f"model.path={model_folder('3.2M')}"],
        {"grpo": 12, "icrl": 10},
    ),
}
"""The shop's turns are 7 tokens, far less than what is read before them; real ones are longer."""

SIZES = {8: 20, 80: 5, 800: 2}
"""Prompts of a step, and how many such steps are timed after one to warm up."""

progress = Console(stderr=True, highlight=False)


# ---------------------------------------------------------------------- ICRL beside GRPO


def warm_start() -> Path:
    """Where the warm start's model is; trained at its first use, in about a minute."""
    if not (WARM / "summary.json").is_file():
        progress.print("training the warm start …")
        command = [sys.executable, "-m", "inwit", "train", "recipes/checkout/warm.toml"]
        subprocess.run(
            [*command, "--out", str(WARM), "--set", SLIP, "--set", "eval.every=0"],
            cwd=ROOT,
            env=environment(1),
            check=True,
            stdout=subprocess.DEVNULL,
        )
    return WARM / "model"


class Played:
    """A method's training steps, one at a time."""

    def __init__(self, workload: Workload, name: str) -> None:
        from inwit.recipe import load_recipe
        from inwit.train import Trainer

        settings = [*workload.settings(), f"method.name={name}"]
        settings.append(f"method.group_size={GROUP[name]}")
        settings.append(f"train.queries={workload.queries[name]}")
        recipe = load_recipe(ROOT / workload.recipes.format(name), settings)
        self._trainer = Trainer(recipe, progress=None)  # type: ignore[arg-type]
        self._recipe = recipe

    async def step(self, number: int) -> tuple[float, int, float]:
        """(seconds, sampled tokens, share of the rows that were trained) of one step."""
        trainer, method = self._trainer, self._recipe.method
        tasks = trainer._tasks(number)
        start = time.perf_counter()
        episodes = await method.collect(tasks, trainer.cast.stage("train", number))
        rows = method.credit(episodes)
        objective = method.objective(self._recipe.sampling.temperature)
        stats = await trainer.engine.update(rows, objective, self._recipe.optimizer, 1)
        seconds = time.perf_counter() - start
        sampled = int(measures.of_episodes(episodes)["tokens/sampled"] or 0)
        return seconds, sampled, stats.rows_trained / max(stats.rows, 1)


def icrl(steps: int) -> dict[str, Any]:
    return {name: side_by_side(workload, steps) for name, workload in WORKLOADS.items()}


def side_by_side(workload: Workload, steps: int) -> dict[str, Any]:
    methods = {name: Played(workload, name) for name in GROUP}
    found: dict[str, list[tuple[float, int, float]]] = {name: [] for name in methods}

    async def go() -> None:
        for number in range(steps + 1):
            for name, method in methods.items():
                found[name].append(await method.step(number))
                progress.print(f"  {name} {found[name][-1][0]:.2f} s", end="")
            progress.print()

    asyncio.run(go())
    summary: dict[str, Any] = {"threads": 1, "steps": steps}
    for name, each in found.items():
        timed = each[1:]
        summary[name] = {
            "seconds_per_1000_tokens": 1000 * statistics.median(s / n for s, n, _ in timed),
            "sampled_tokens": statistics.median(n for _, n, _ in timed),
            "rows_trained": statistics.median(share for _, _, share in timed),
            "seconds": [s for s, _, _ in timed],
        }
    ratios = [
        (i[0] / i[1]) / (g[0] / g[1])
        for g, i in zip(found["grpo"][1:], found["icrl"][1:], strict=True)
    ]
    summary["icrl_to_grpo"] = statistics.median(ratios)
    return summary


# ---------------------------------------------------------------------- ever larger steps


@dataclass(frozen=True)
class Size:
    """Medians of steps with this many prompts: seconds a 1,000 sampled tokens, peak in MiB."""

    prompts: int
    sampled_tokens: int
    sampling: float
    training: float
    peak_mb: float


def one_size(prompts: int) -> Size:
    from benchmarks.inwit_worker import OBJECTIVE, OPTIMIZER, sample
    from inwit.engines.torch import TorchEngine, TorchSettings, load_model

    folder = model_folder("3.2M")
    job = wire.Job(str(folder), texts(folder, prompts, 60), 8, 60, 16, 2, SIZES[prompts] + 1)
    settings = TorchSettings(device="cpu", threads=job.threads, max_batch=64)
    engine = TorchEngine(load_model(str(folder)), settings)
    tokens = job.completions * job.completion_tokens
    times: list[tuple[float, float]] = []

    async def go() -> None:
        for step in range(job.steps):
            start = time.perf_counter()
            rows = await sample(engine, job, step)
            middle = time.perf_counter()
            await engine.update(rows, OBJECTIVE, OPTIMIZER, job.steps)
            times.append((middle - start, time.perf_counter() - middle))

    asyncio.run(go())
    sampling, training = (
        1000 * statistics.median(t) / tokens for t in zip(*times[1:], strict=True)
    )
    return Size(prompts, tokens, sampling, training, wire.peak_mb())


def flat() -> dict[str, Any]:
    sizes = []
    for prompts in SIZES:
        command = [sys.executable, "-m", "benchmarks.scaling", "flat", "--prompts", str(prompts)]
        done = subprocess.run(
            command, cwd=ROOT, env=environment(2), check=True, capture_output=True, text=True
        )
        sizes.append(json.loads(done.stdout.splitlines()[-1]))
        progress.print(sizes[-1])
    each = [size["sampling"] + size["training"] for size in sizes]
    peaks = [size["peak_mb"] for size in sizes]
    return {
        "threads": 2,
        "sizes": sizes,
        "dearest_to_cheapest": max(each) / min(each),
        "largest_to_smallest_peak": max(peaks) / min(peaks),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    cli = argparse.ArgumentParser(
        prog="python -m benchmarks.scaling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cli.add_argument("what", choices=("icrl", "flat", "all"))
    cli.add_argument("--steps", type=int, default=11, help="timed steps of icrl (default: 11)")
    cli.add_argument("--prompts", type=int, choices=SIZES, help="one size of flat, as JSON")
    args = cli.parse_args(arguments)
    if args.prompts:
        print(json.dumps(vars(one_size(args.prompts))))
        return 0
    OUT.mkdir(exist_ok=True)
    for name, measure in (("icrl", lambda: icrl(args.steps)), ("flat", flat)):
        if args.what in (name, "all"):
            found = measure()
            (OUT / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")
            print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
