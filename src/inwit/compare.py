"""Compare methods from one warm start at equal sampled tokens: a study file, one folder, one table.

    [study]    budget = sampled tokens of the comparison, target = accuracy to be reached
    [warm]     recipe = the warm start (optional: without it, each recipe's own model)
    [methods]  name = recipe, for each method
    [asked]    name = protocol, for each way in which the warm start itself is asked on test
    [set]      "section.key" = value, for the recipe of every method

Each run is a process of its own, so that nothing but the seed decides it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from inwit.errors import InwitError
from inwit.evaluation.protocols import protocol
from inwit.evaluation.statistics import Interval, mean_interval
from inwit.files import read_jsonl, write_json
from inwit.recipe import load_recipe
from inwit.report.curves import plot_curves
from inwit.runs import RunFolder

WARM = "warm"
TAIL = 12
COSTS = ("sampled_tokens", "trained_tokens", "cpu_seconds")


class StudySettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    budget: int = Field(ge=1, description="sampled tokens at which the methods are compared")
    cpu_seconds: float | None = Field(None, gt=0, description="the same, in CPU-seconds, on dev")
    target: float | None = Field(None, gt=0, le=1, description="accuracy whose cost is reported")


class Study(BaseModel):
    """A study file. Recipe paths are relative to it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    study: StudySettings
    warm: str | None = None
    methods: dict[str, str]
    asked: dict[str, str] = Field(default_factory=dict)
    set: dict[str, Any] = Field(default_factory=dict)

    @property
    def settings(self) -> tuple[str, ...]:
        """`[set]` as the command line has it."""
        return tuple(
            f"{key}={tomli_w.dumps({'x': value}).partition('=')[2].strip()}"
            for key, value in self.set.items()
        )

    @classmethod
    def read(cls, path: Path, settings: Sequence[str] = ()) -> Study:
        """Raises InwitError where the file, or a recipe that it names, is broken.

        Args:
            settings: `section.key=value` for each recipe.
        """
        try:
            study = cls.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError as error:
            raise InwitError(f"There is no study '{path}'.", "Check the path.") from error
        except IsADirectoryError as error:
            raise InwitError(f"'{path}' is a folder.", "Give the study's TOML file.") from error
        except (tomllib.TOMLDecodeError, ValidationError) as error:
            raise InwitError(f"{path}: {error}", "See recipes/checkout/demo.toml.") from error
        if study.warm:
            load_recipe(path.parent / study.warm, settings)
        for recipe in study.methods.values():
            loaded = load_recipe(path.parent / recipe, (*study.settings, *settings))
            if study.study.budget not in loaded.eval.test_at_tokens:
                raise InwitError(
                    f"{path.parent / recipe} does not ask test at the study's budget of "
                    f"{study.study.budget:,} sampled tokens.",
                    "Put that number into its eval.test_at_tokens.",
                )
            if study.study.cpu_seconds is not None and not loaded.eval.every:
                raise InwitError(
                    f"{path.parent / recipe} never asks dev, which study.cpu_seconds compares.",
                    "Set its eval.every.",
                )
        for name in study.asked.values():
            protocol(name)
        if twice := sorted(set(study.asked) & {*study.methods, WARM}):
            raise InwitError(f"{path}: two rows are called '{twice[0]}'.", "Rename one.")
        if study.asked and not study.warm:
            raise InwitError(f"{path}: [asked] is about a warm start.", "Name one: warm = ….")
        return study


@dataclass(frozen=True)
class Job:
    """One training run of a study."""

    name: str
    recipe: Path
    out: Path
    settings: tuple[str, ...]
    from_warm: bool = False

    def check(self) -> None:
        """Raise InwitError where the folder holds a run of another recipe than this job's."""
        file = self.out / "recipe.toml"
        if not file.is_file():
            return
        wanted = load_recipe(self.recipe, self.settings).as_dict()
        there = load_recipe(file).as_dict()
        if self.from_warm:  # the study's folder may have been moved since
            wanted["model"]["path"] = there["model"]["path"]
        for section in wanted:
            if there.get(section) != wanted[section]:
                raise InwitError(
                    f"'{self.out}' holds a run of another recipe: its [{section}] differs.",
                    "Give another --out, or remove that folder.",
                )

    def command(self) -> list[str]:
        sets = [part for setting in self.settings for part in ("--set", setting)]
        if (self.out / "recipe.toml").is_file():
            return [sys.executable, "-m", "inwit", "train", "--resume", str(self.out)]
        arguments = [str(self.recipe), "--out", str(self.out), *sets]
        return [sys.executable, "-m", "inwit", "train", *arguments]


@dataclass(frozen=True)
class Asking(Job):
    """An evaluation of the warm start on test; `recipe` is the warm start's folder."""

    protocol: str = "direct"

    def check(self) -> None:
        """Nothing here: the evaluation's folder knows what was asked."""

    def command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "inwit", "eval", str(self.recipe), "--split", "test"),
            *("--protocol", self.protocol, "--out", str(self.out), "--json"),
        ]


def compare(
    path: Path,
    out: Path,
    seeds: Sequence[int],
    settings: Sequence[str],
    *,
    jobs: int,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Run a study, or what is left of it, and write `summary.json` and `curves.png` into `out`.

    Raises:
        InwitError: the study is broken, or a run failed; what finished is kept.
    """
    study = Study.read(path, settings)
    out.mkdir(parents=True, exist_ok=True)
    stages = _stages(study, path, out, seeds, settings)
    for job in (job for stage in stages for job in stage):
        job.check()
    for stage in stages:
        _run_all([job for job in stage if not RunFolder(job.out).finished], jobs, tell)
    folders = {m: [out / f"seed-{s}" / m for s in seeds] for m in study.methods}
    _draw({m: [_dev(f) for f in found] for m, found in folders.items()}, out, study.study)
    runs = [_summary(study, {m: f[i] for m, f in folders.items()}, s) for i, s in enumerate(seeds)]
    for run in runs:
        asked = {name: _asked(out / f"seed-{run['seed']}" / name) for name in study.asked}
        run["methods"] = asked | run["methods"]
    several = {
        "runs": runs,
        "means": _means(runs),
        "differences": _differences(runs, list(study.methods), target_key(study.study.target)),
    }
    summary: dict[str, Any] = runs[0] if len(runs) == 1 else several
    summary |= {"budget": study.study.budget, "target": study.study.target}
    write_json(out / "summary.json", summary)
    return summary


def _stages(
    study: Study, path: Path, out: Path, seeds: Sequence[int], settings: Sequence[str]
) -> list[list[Job]]:
    """The warm starts, then everything that begins from them."""
    warm: list[Job] = []
    rest: list[Job] = []
    for seed in seeds:
        home = out / f"seed-{seed}"
        shared = (*settings, f"seed={seed}")
        if study.warm:
            warm.append(Job(f"{WARM} {seed}", path.parent / study.warm, home / WARM, shared))
            shared = (*shared, f"model.path={home / WARM / 'model'}")
        for name, protocol_ in study.asked.items():
            warmed = home / WARM
            rest.append(Asking(f"{name} {seed}", warmed, home / name, (), protocol=protocol_))
        shared = (*study.settings, *shared)
        for method, recipe in study.methods.items():
            name, file = f"{method} {seed}", path.parent / recipe
            rest.append(Job(name, file, home / method, shared, from_warm=bool(study.warm)))
    return [warm, rest]


def _run_all(jobs: Sequence[Job], at_once: int, tell: Callable[[str], None]) -> None:
    """Run processes, at most `at_once` together, telling now and then how far they are."""

    def run(job: Job) -> None:
        job.out.parent.mkdir(parents=True, exist_ok=True)
        log = job.out.with_suffix(".log")
        with log.open("w", encoding="utf-8") as file:
            process = subprocess.Popen(job.command(), stdout=file, stderr=file)
            told = time.monotonic()
            while process.poll() is None:
                time.sleep(0.2)
                if time.monotonic() - told > 10:
                    told = time.monotonic()
                    tell(f"{job.name}: {_last_line(log)}")
        if process.returncode:
            lines = log.read_text(encoding="utf-8").splitlines()[-TAIL:]
            raise InwitError(f"The run {job.name} failed:\n" + "\n".join(lines), f"See {log}.")
        tell(f"{job.name}: done")

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(run, jobs))


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8").strip().splitlines()
    return lines[-1].partition(": ")[2] or lines[-1] if lines else "starting"


# ---------------------------------------------------------------------- what came out


def _draw(
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


def _asked(folder: Path) -> dict[str, Any]:
    """What an evaluation of the warm start found; nothing was sampled to train it."""
    found = json.loads((folder / "summary.json").read_text("utf-8"))
    first = found["measures"]["a1"]
    return _measures(found) | {
        "protocol": found["protocol"],
        "accuracy": first["value"],
        "right": first["count"],
        "n": first["n"],
        "ci": first["ci"],
        **dict.fromkeys(COSTS, 0),
    }


def _dev(folder: Path) -> list[Mapping[str, Any]]:
    lines = read_jsonl(folder / "metrics.jsonl")
    return [line for line in lines if line["kind"] == "eval" and line["split"] == "dev"]


def _summary(study: Study, folders: Mapping[str, Path], seed: int) -> dict[str, Any]:
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
            **_measures(test),
        }
        staged = [line for line in _dev(folder) if line["stage"] == "stage I"]
        if staged:
            found["after_stage_one"] = {"n": staged[-1]["n"], **_measures(staged[-1])}
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
            last = [p for p in _dev(folder) if p["cpu_seconds"] <= limit][-1]
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


def _means(runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Interval]]:
    """method -> measure -> its mean over the seeds, with Student's t interval."""
    if len(runs) < 2:
        return {}
    found: dict[str, dict[str, Interval]] = {}
    for method in runs[0]["methods"]:
        mine = [run["methods"][method] for run in runs]
        tables = {method: mine}
        if all("after_stage_one" in m for m in mine):
            tables[f"{method}, after stage I"] = [m["after_stage_one"] for m in mine]
        for name, rows in tables.items():
            found[name] = {
                key: mean_interval(values)
                for key in rows[0]
                if isinstance(rows[0][key], dict)
                and len(
                    values := [v for r in rows if (v := (r[key] or {}).get("value")) is not None]
                )
                > 1
            }
    return found


def _differences(
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
