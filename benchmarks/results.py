"""From the raw steps of a case to its record, and from records to a table."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from benchmarks.cases import Case
from benchmarks.wire import Step

PHASES = ("sampling", "training", "total")
SIDES = ("inwit", "trl")
FEWEST = 5
"""Steps that a median needs to be recorded."""

Record = dict[str, Any]


class UnequalWork(ValueError):
    """One side did less, or more, than the case asks for: its times mean nothing."""


def check_work(case: Case, side: str, steps: Sequence[Step]) -> None:
    """Refuse steps that did not sample and train exactly the case's tokens."""
    for number, step in enumerate(steps):
        for what, n in (("sampled", step.sampled), ("trained", step.trained)):
            if n != case.tokens:
                raise UnequalWork(
                    f"{side} {what} {n} tokens in step {number} of {case.name}, not {case.tokens}"
                )


def medians(steps: Sequence[Step]) -> dict[str, float]:
    """Seconds by phase. The total is the median of totals, not the sum of the phases' medians."""
    return {phase: median(getattr(step, phase) for step in steps) for phase in PHASES}


def _quotient(over: Mapping[str, float], under: Mapping[str, float]) -> dict[str, float]:
    return {phase: over[phase] / under[phase] for phase in PHASES}


def machine() -> dict[str, str | int]:
    """What a reader needs to know of this machine to compare his own with it."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        named = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = named[0].partition(":")[2].strip() if named else cpu
    return {"cpu": cpu, "cores": os.cpu_count() or 1, "system": platform.system()}


def record_of(
    case: Case,
    steps: Mapping[str, Sequence[Step]],
    versions: Mapping[str, Mapping[str, str]],
    load: float,
) -> Record:
    """One case's record, as `docs/performance.md` describes it.

    Args:
        steps: of `inwit`, `trl` and `limit`; the first of each is the warm-up and is left out.
        load: processes that were busy on this machine before the case began.

    Raises:
        UnequalWork: the sides did not do the same work.
    """
    for side in SIDES:
        check_work(case, side, steps[side])
    timed = {side: list(made[1:]) for side, made in steps.items()}
    seconds, trl, limit = (medians(timed[side]) for side in (*SIDES, "limit"))
    return {
        "name": case.name,
        "model": case.model,
        "prompts": case.prompts,
        "group": case.group,
        "prompt_tokens": case.prompt_tokens,
        "completion_tokens": case.completion_tokens,
        "threads": case.threads,
        "seconds": seconds,
        "trl_seconds": trl,
        "ratio_to_trl": _quotient(trl, seconds),
        "limit_seconds": limit,
        "share_of_limit": _quotient(limit, seconds),
        "peak_mb": max(step.peak_mb for step in steps["inwit"]),
        "trl_peak_mb": max(step.peak_mb for step in steps["trl"]),
        "tokens_per_second": {phase: case.tokens / seconds[phase] for phase in PHASES},
        "trl_tokens_per_second": {phase: case.tokens / trl[phase] for phase in PHASES},
        "limit_gflops": {
            name: median(step.extra[name] for step in timed["limit"])
            for name in timed["limit"][0].extra
        },
        "trl_rows_at_once": case.trl_rows,
        "steps": {side: [asdict(step) for step in made] for side, made in timed.items()},
        "warm_up": {side: asdict(made[0]) for side, made in steps.items()},
        "versions": {side: dict(found) for side, found in versions.items()},
        "machine": machine(),
        "load_before": round(load, 2),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def write(record: Record, path: Path) -> None:
    """Put a record into a file of records, in place of the one that had its name."""
    records = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    names = [old["name"] for old in records]
    if record["name"] in names:
        records[names.index(record["name"])] = record
    else:
        records.append(record)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(path)


def table(records: Sequence[Record]) -> Table:
    """A line for each phase of each case; memory and tokens a second beside the total."""
    made = Table(title="One step, median seconds")
    made.add_column("case")
    made.add_column("phase")
    for name in ("inwit", "TRL", "TRL / inwit", "limit", "of limit", "tokens/s", "peak MiB (TRL)"):
        made.add_column(name, justify="right")
    for record in records:
        for phase in PHASES:
            total = phase == "total"
            made.add_row(
                record["name"] if phase == PHASES[0] else "",
                phase,
                f"{record['seconds'][phase]:.3g}",
                f"{record['trl_seconds'][phase]:.3g}",
                f"{record['ratio_to_trl'][phase]:.2f}x",
                f"{record['limit_seconds'][phase]:.3g}",
                f"{record['share_of_limit'][phase]:.0%}",
                f"{record['tokens_per_second'][phase]:,.0f}",
                f"{record['peak_mb']:,.0f} ({record['trl_peak_mb']:,.0f})" if total else "",
                end_section=total,
            )
    return made
