"""What came out of a study: from its runs' files to one summary."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from inwit.compare.reading import Study, StudySettings
from inwit.errors import InwitError
from inwit.evaluation.statistics import Interval, mean_interval
from inwit.files import read_jsonl
from inwit.report.curves import plot_curves

COSTS = ("sampled_tokens", "trained_tokens", "cpu_seconds")


def draw(
    curves: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]], out: Path, study: StudySettings
) -> None:
    again = all(
        "a2" in line["measures"] for lines in curves.values() for run in lines for line in run
    )
    measure = "a2" if again else "a1"
    plot_curves(
        curves, out / "curves.png", measure=measure, budget=study.budget, target=study.target
    )


def _measures(line: Mapping[str, Any]) -> dict[str, Any]:
    """An evaluation's measures but for costs by turn."""
    return {k: m for k, m in line["measures"].items() if "/" not in k}


def of_start(folder: Path) -> dict[str, Any]:
    """What an evaluation of the warm start found; nothing was sampled to train it."""
    found = json.loads((folder / "summary.json").read_text("utf-8"))
    first = found["measures"]["a1"]
    return _measures(found) | {
        "protocol": found["protocol"],
        "sees": found["sees"],
        "accuracy": first["value"],
        "right": first["count"],
        "n": first["n"],
        "ci": first["ci"],
        **dict.fromkeys(COSTS, 0),
    }


def dev_lines(folder: Path) -> list[Mapping[str, Any]]:
    lines = read_jsonl(folder / "metrics.jsonl")
    return [line for line in lines if line["kind"] == "eval" and line["split"] == "dev"]


def summarise(study: Study, folders: Mapping[str, Path], seed: int) -> dict[str, Any]:
    methods, parity = {}, []
    for method, folder in folders.items():
        run = json.loads((folder / "summary.json").read_text("utf-8"))
        test = run["test"].get(str(study.study.budget))
        if test is None:
            raise InwitError(
                f"{folder} holds no evaluation on test at {study.study.budget:,} sampled tokens.",
                "Give its recipe that budget in eval.test_at_tokens, and enough steps.",
            )
        measures, steps = test["measures"], _training(folder, test["step"])
        first = measures["a1"]
        found = {
            "accuracy": first["value"],
            "right": first["count"],
            "n": first["n"],
            "ci": first["ci"],
            **{k: test[k] for k in COSTS},
            target_key(study.study.target): run["target"],
            "protocol": test["protocol"],
            "sees": test["sees"],
            **_measures(test),
        }
        if len(stages := run["stages"]) > 1:  # what dev said when the first one ended
            last = [line for line in dev_lines(folder) if line["step"] <= stages[1]][-1]
            found["after_stage_one"] = {"split": "dev", "n": last["n"], **_measures(last)}
        if test["protocol"] == "critique":
            revision, critiques = measures["repair_rate"], measures.get("tokens/critiques")
            found |= {
                "revision_success": revision["value"],
                "revision_n": revision["n"],
                "revision_ci": revision["ci"],
                "critic_gain": revision["value"],
                "critique_tokens": critiques["value"] if critiques else None,
            }
        if (limit := study.study.cpu_seconds) is not None:
            last = [p for p in dev_lines(folder) if p["cpu_seconds"] <= limit][-1]
            at = last["measures"]["a1"]
            found["at_cpu_seconds"] = {k: last[k] for k in COSTS} | {
                "accuracy": at["value"],
                "n": at["n"],
                "ci": at["ci"],
            }
        if weights := [s["weight_mean"] for s in steps if s.get("weight_mean") is not None]:
            found["mean_weight"] = sum(weights) / len(weights)
        methods[method] = found
        parity.append(run["step0_parity"])
    known = [p for p in parity if p is not None]
    return {"methods": methods, "step0_parity": max(known, default=None), "seed": seed}


def _training(folder: Path, until: int) -> list[dict[str, Any]]:
    lines = read_jsonl(folder / "metrics.jsonl")
    return [line for line in lines if line["kind"] == "train" and line["step"] <= until]


def target_key(target: float | None) -> str:
    """Where a summary says what a target cost: `to_80` for a target of 0.8."""
    return f"to_{round(100 * target)}" if target else "to_target"


def means(runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Interval]]:
    """method -> measure -> its mean over the seeds, with Student's t interval."""
    if len(runs) < 2:
        return {}
    found: dict[str, dict[str, Interval]] = {}
    for method in runs[0]["methods"]:
        mine = [run["methods"][method] for run in runs]
        tables = {method: mine}
        if all("after_stage_one" in m for m in mine):
            n = mine[0]["after_stage_one"]["n"]
            name = f"{method}, after its first stage (dev, N = {n})"
            tables[name] = [m["after_stage_one"] for m in mine]
        found |= {name: _mean_row(rows) for name, rows in tables.items()}
    return found


def _mean_row(rows: Sequence[Mapping[str, Any]]) -> dict[str, Interval]:
    """Each measure's mean over the runs that have it, where two or more do."""
    found = {}
    for key in dict.fromkeys(key for row in rows for key in row):
        measured = [row[key] for row in rows if isinstance(row.get(key), dict)]
        values = [m["value"] for m in measured if m.get("value") is not None]
        if len(values) > 1:
            found[key] = mean_interval(values)
    return found


def differences(
    runs: Sequence[Mapping[str, Any]], names: Sequence[str], target: str
) -> dict[str, Interval]:
    """Last method minus first, paired by seed, with Student's t interval over the seeds."""
    if len(names) < 2:
        return {}
    first, last = names[0], names[-1]

    def paired(of: Callable[[Mapping[str, Any]], float | None]) -> Interval | None:
        pairs = [(of(r["methods"][first]), of(r["methods"][last])) for r in runs]
        known = [b - a for a, b in pairs if a is not None and b is not None]
        return mean_interval(known) if len(known) > 1 else None

    def inside(table: str, key: str) -> Interval | None:
        return paired(lambda m: (m.get(table) or {}).get(key))

    found = {
        "accuracy": paired(lambda m: m["accuracy"]),
        **{
            key: inside(key, "value") for key in ("a2", "delta", "wrong_to_right", "right_to_wrong")
        },
        "accuracy at equal CPU-seconds": inside("at_cpu_seconds", "accuracy"),
        **{f"{target} {cost}": inside(target, cost) for cost in COSTS},
    }
    return {f"{last} - {first}: {k}": v for k, v in found.items() if v is not None}
