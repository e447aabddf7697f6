"""Running a study: each run a process of its own, so that nothing but the seed decides it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inwit.compare.reading import WARM, Study
from inwit.compare.results import (
    dev_lines,
    differences,
    draw,
    means,
    of_start,
    summarise,
    target_key,
)
from inwit.errors import InwitError
from inwit.files import write_json
from inwit.recipe import load_recipe
from inwit.runs import RunFolder

TAIL = 12
TAIL = 12


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
        """Raise InwitError where the folder holds an evaluation by another protocol."""
        file = self.out / "evaluation.json"
        if file.is_file() and json.loads(file.read_text("utf-8"))["protocol"] != self.protocol:
            raise InwitError(
                f"'{self.out}' holds an evaluation by another protocol.",
                "Give another --out, or remove that folder.",
            )

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
    draw({m: [dev_lines(f) for f in found] for m, found in folders.items()}, out, study.study)
    runs = [summarise(study, {m: f[i] for m, f in folders.items()}, s) for i, s in enumerate(seeds)]
    for run in runs:
        start = {name: of_start(out / f"seed-{run['seed']}" / name) for name in study.asked}
        run["methods"] = start | run["methods"]
    several = {
        "runs": runs,
        "means": means(runs),
        "differences": differences(runs, list(study.methods), target_key(study.study.target)),
    }
    summary: dict[str, Any] = runs[0] if len(runs) == 1 else several
    summary |= {"budget": study.study.budget, "target": study.study.target}
    write_json(out / "summary.json", summary)
    return summary


def _stages(
    study: Study, path: Path, out: Path, seeds: Sequence[int], settings: Sequence[str]
) -> list[list[Job]]:
    """The warm starts, one after the other, then everything that begins from them."""
    warm: list[list[Job]] = [[] for _ in study.warm]
    rest: list[Job] = []
    for seed in seeds:
        home = out / f"seed-{seed}"
        shared: tuple[str, ...] = (*settings, f"seed={seed}")
        for i, (name, recipe) in enumerate(zip(study.warm_names, study.warm, strict=True)):
            job = Job(f"{name} {seed}", path.parent / recipe, home / name, shared, from_warm=i > 0)
            warm[i].append(job)
            shared = (*settings, f"seed={seed}", f"model.path={job.out / 'model'}")
        for name, protocol_ in study.asked.items():
            warmed = home / WARM
            rest.append(Asking(f"{name} {seed}", warmed, home / name, (), protocol=protocol_))
        shared = (*study.settings, *shared)
        for method, recipe in study.methods.items():
            name, file = f"{method} {seed}", path.parent / recipe
            rest.append(Job(name, file, home / method, shared, from_warm=bool(study.warm)))
    return [*warm, rest]


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
