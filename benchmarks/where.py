"""Where the time of an inwit step goes, by phase: products, attention, optimizer, the rest.

    python -m benchmarks.where --case smollm2 --case 3.2M

One step of a case under torch's profiler, after one to warm up; on one thread, so that the times of
operations add up to the time that passed. The profiler itself makes small operations dearer, and
what is outside torch with them. Written to benchmarks/results/profile.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from benchmarks import wire
from benchmarks.cases import Case, chosen
from benchmarks.inwit_worker import OBJECTIVE, OPTIMIZER, sample
from benchmarks.speed import OUT, job_of
from inwit.engines.torch import TorchEngine, TorchSettings, load_model

KINDS = {
    "products": ("aten::mm", "aten::addmm", "aten::bmm"),
    "attention": (
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    ),
    "optimizer": ("aten::_fused_adamw_", "aten::linalg_vector_norm", "aten::_foreach_norm"),
}
NAMED = 6
"""Operations of the rest that are shown by name."""


def shares(prof: profile, passed: float) -> dict[str, Any]:
    """Each kind's share of the seconds that passed, and the dearest operations of the rest."""
    kind_of = {op: kind for kind, ops in KINDS.items() for op in ops}
    found: dict[str, float] = defaultdict(float)
    rest: dict[str, float] = {}
    for event in prof.key_averages():
        seconds = event.self_cpu_time_total / 1e6
        kind = kind_of.get(event.key, "other operations")
        found[kind] += seconds
        if kind == "other operations":
            rest[event.key.removeprefix("aten::")] = seconds
    found["outside torch"] = max(0.0, passed - sum(found.values()))
    dearest = sorted(rest.items(), key=lambda item: -item[1])[:NAMED]
    return {
        "seconds": passed,
        "shares": {kind: seconds / passed for kind, seconds in found.items()},
        "of the rest": {name: seconds / passed for name, seconds in dearest},
    }


def timed(work: Callable[[], Coroutine[Any, Any, Any]]) -> tuple[Any, dict[str, Any]]:
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as prof:
        start = time.perf_counter()
        result = asyncio.run(work())
        passed = time.perf_counter() - start
    return result, shares(prof, passed)


def where(case: Case) -> dict[str, Any]:
    job = job_of(case, 2)
    engine = TorchEngine(load_model(job.folder), TorchSettings(device="cpu", threads=1))
    for step in range(2):
        rows, sampling = timed(lambda step=step: sample(engine, job, step))
        _, training = timed(lambda rows=rows: engine.update(rows, OBJECTIVE, OPTIMIZER, 2))
    return {
        "case": case.name,
        "threads": 1,
        "sampling": sampling,
        "training": training,
        "peak_mb": wire.peak_mb(),
        "work": {k: v for k, v in asdict(case).items() if k not in ("name", "trl_rows", "threads")},
    }


def table(found: list[dict[str, Any]]) -> Table:
    made = Table("case", "phase", "seconds", "kind", "share", "dearest of the rest")
    for each in found:
        for phase in ("sampling", "training"):
            part = each[phase]
            named = ", ".join(f"{name} {share:.1%}" for name, share in part["of the rest"].items())
            for i, (kind, share) in enumerate(part["shares"].items()):
                first = (each["case"], phase, f"{part['seconds']:.2f}") if i == 0 else ("", "", "")
                note = named if kind == "other operations" else ""
                made.add_row(*first, kind, f"{share:.1%}", note)
    return made


def main() -> int:
    cli = argparse.ArgumentParser(
        prog="python -m benchmarks.where",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cli.add_argument("--case", action="append", help="a case of benchmarks.speed; repeatable")
    args = cli.parse_args()
    try:
        cases = chosen(args.case or ["tiny", "3.2M", "smollm2"], quick=False)
    except ValueError as error:
        cli.error(str(error))
    found = [where(case) for case in cases]
    OUT.parent.mkdir(exist_ok=True)
    (OUT.parent / "profile.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    Console(width=140).print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
