"""Training: queries, episodes, rows, an update, a line in the log; again.

recipe -> Env -> tasks -> Method.collect -> episodes -> Method.credit -> rows -> Engine.update
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from inwit import seeding
from inwit.alarms import WINDOW, alarms
from inwit.casting import Cast
from inwit.engines import UpdateStats
from inwit.envs import Split, Task
from inwit.errors import InwitError
from inwit.evaluation.protocols import PROTOCOLS
from inwit.methods import measures
from inwit.recipe import Recipe, load_recipe
from inwit.rows import Episode, Row
from inwit.runs import RunFolder, episode_record, write_json
from inwit.tracking import Tracker, check_trackers, open_trackers

PHASES = ("sample", "credit", "train", "evaluate")


class Progress(Protocol):
    """Told what happens, as it happens."""

    def step(self, done: int, total: int, line: Mapping[str, Any]) -> None: ...
    def evaluated(self, line: Mapping[str, Any]) -> None: ...
    def alarm(self, kind: str, message: str) -> None: ...


@dataclass(slots=True)
class Counters:
    """Where a run stands. All of it is in every checkpoint."""

    step: int = 0
    sampled_tokens: int = 0
    trained_tokens: int = 0
    cpu_seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    wall_seconds: float = 0.0
    step0_parity: float | None = None
    worst_parity: float | None = None
    dropped: int = 0
    dev: dict[str, Any] | None = None
    target: dict[str, Any] | None = None
    test: dict[str, Any] = field(default_factory=dict)

    @property
    def training_cpu(self) -> float:
        """CPU-seconds without evaluation."""
        return sum(seconds for phase, seconds in self.cpu_seconds.items() if phase != "evaluate")

    @property
    def cost(self) -> dict[str, float]:
        return {
            "sampled_tokens": self.sampled_tokens,
            "trained_tokens": self.trained_tokens,
            "cpu_seconds": round(self.training_cpu, 2),
        }


class Trainer:
    """A run of a recipe. Building one checks everything that can be checked before work starts."""

    def __init__(self, recipe: Recipe, progress: Progress) -> None:
        self.recipe = recipe
        self.progress = progress
        self.counters = Counters()
        check_trackers(recipe.tracking)
        self.cast = Cast.of(recipe)
        self.engine = self.cast.engine
        self.train_tasks = recipe.env.tasks(Split.TRAIN)
        if len(self.train_tasks) == 0:
            raise InwitError("The environment has no training tasks.", "Check its settings.")
        self.held_out = {split: recipe.split(split) for split in (Split.DEV, Split.TEST)}
        asked = {Split.DEV: recipe.eval.every, Split.TEST: recipe.eval.test_at_tokens}
        for split, tasks in self.held_out.items():
            if asked[split] and not tasks:
                raise InwitError(
                    f"The recipe evaluates on {split}, which has no tasks.",
                    "Hold some out (see [env]), or do not evaluate (see [eval]).",
                )
        stage = self.cast.stage("check")
        for task in chain(self.train_tasks, *self.held_out.values()):
            stage.check_question(task)
        self._wall: dict[str, float] = {}  # of each phase, the last time
        self._order: tuple[int, list[int]] = (-1, [])
        self._history: list[Mapping[str, Any]] = []

    # ------------------------------------------------------------------ the run

    async def run(self, folder: RunFolder) -> dict[str, Any]:
        """Train to the end, from wherever the counters stand. Returns the summary."""
        recipe, counters = self.recipe, self.counters
        started = time.monotonic() - counters.wall_seconds
        trackers = open_trackers(recipe.tracking, folder.path, recipe.as_dict())
        try:
            reason = await self._loop(folder, trackers, started)
        finally:
            for tracker in trackers:
                tracker.close()
        folder.checkpoint(counters.step, self._save, recipe.train.keep_checkpoints)
        folder.publish("model", self.engine.export)
        summary = self._summary(reason)
        write_json(folder.path / "summary.json", summary)
        return summary

    async def _loop(self, folder: RunFolder, trackers: Sequence[Tracker], started: float) -> str:
        """Step, evaluate, checkpoint, until there is a reason to stop."""
        recipe, counters = self.recipe, self.counters
        if counters.step == 0:
            await self._evaluate_dev(folder, trackers)
        while (reason := self._stop_reason()) is None:
            await self._step(folder, trackers)
            counters.wall_seconds = time.monotonic() - started
            if recipe.eval.every and counters.step % recipe.eval.every == 0:
                await self._evaluate_dev(folder, trackers)
            await self._evaluate_test(folder)
            counters.wall_seconds = time.monotonic() - started
            every = recipe.train.checkpoint_every
            if every and counters.step % every == 0:
                folder.checkpoint(counters.step, self._save, recipe.train.keep_checkpoints)
        return reason

    async def _step(self, folder: RunFolder, trackers: Sequence[Tracker]) -> None:
        """One turn of the loop: collect, credit, update, log."""
        recipe, counters = self.recipe, self.counters
        before = dict(counters.cpu_seconds)
        stage = self.cast.stage("train", counters.step)
        with self._clock("sample"):
            episodes = await recipe.method.collect(self._tasks(counters.step), stage)
        with self._clock("credit"):
            rows = recipe.method.credit(episodes)
        with self._clock("train"):
            objective = recipe.method.objective(recipe.sampling.temperature)
            stats = await self.engine.update(rows, objective, recipe.optimizer, recipe.train.steps)
        counters.step += 1
        line = self._measure(episodes, rows, stats, before)
        self._remember(line)
        raised = alarms(self._history, exact=recipe.engine.dtype == "float32")
        line["alarms"] = sorted(raised)
        self._write(folder, episodes, rows, stats, line)
        for tracker in trackers:
            tracker.log(counters.step, _numbers(line))
        self.progress.step(counters.step, recipe.train.steps, line)
        for kind, message in raised.items():
            self.progress.alarm(kind, message)
        self._check(line)

    def _measure(
        self,
        episodes: Sequence[Episode],
        rows: Sequence[Row],
        stats: UpdateStats,
        before: Mapping[str, float],
    ) -> dict[str, Any]:
        counters = self.counters
        found = measures.of_episodes(episodes)
        counters.sampled_tokens += int(found["tokens/sampled"] or 0)
        counters.trained_tokens += stats.tokens
        counters.dropped += int(found["errors"] or 0)
        if stats.parity is not None:
            if counters.step0_parity is None:
                counters.step0_parity = stats.parity
            counters.worst_parity = max(stats.parity, counters.worst_parity or 0.0)
        spent = {f"seconds/{p}": counters.cpu_seconds[p] - before[p] for p in PHASES[:3]}
        spent |= {f"seconds/{p}/wall": self._wall[p] for p in PHASES[:3]}
        return {
            "kind": "train",
            "step": counters.step,
            **found,
            **measures.of_rows(rows),
            **stats.numbers(),
            **spent,
            "total/sampled_tokens": counters.sampled_tokens,
            "total/trained_tokens": counters.trained_tokens,
            "total/cpu_seconds": counters.training_cpu,
        }

    def _write(
        self,
        folder: RunFolder,
        episodes: Sequence[Episode],
        rows: Sequence[Row],
        stats: UpdateStats,
        line: Mapping[str, Any],
    ) -> None:
        folder.append("metrics.jsonl", [line])
        every = self.recipe.train.episodes_every
        if not every or self.counters.step % every:
            return
        text = self.cast.solver.renderer.tokenizer.decode
        trained: dict[str, dict[tuple[str, int], dict[str, object]]] = {}
        for i, row in enumerate(rows):
            of = trained.setdefault(row.episode, {}).setdefault((row.role, row.turn), {})
            of["advantage"] = max(row.advantages, key=abs, default=0.0)
            if i in stats.weights:
                of["weights"] = [round(w, 4) for w in stats.weights[i]]
                of["tokens"] = [text([token]) for token in row.completion_ids]
        folder.append(
            "episodes.jsonl",
            (
                episode_record(
                    e, self.counters.step, lambda ids: str(text(list(ids))), trained.get(e.id, {})
                )
                for e in episodes
                if e.attempts
            ),
        )

    def _remember(self, line: Mapping[str, Any]) -> None:
        """Keep the first lines and the last: what alarms compare."""
        self._history.append(line)
        if len(self._history) > 2 * WINDOW:
            del self._history[WINDOW]

    def _check(self, line: Mapping[str, Any]) -> None:
        """Stop at what must not go on."""
        limits = self.recipe.train
        errors = line["error_share"]
        if errors is not None and errors > limits.max_error_share:
            raise InwitError(
                f"{errors:.0%} of the attempts of step {line['step']} could not be graded.",
                "See `feedback` in episodes.jsonl; train.max_error_share sets the limit.",
            )
        effective = line["effective_share"]
        if effective is not None and effective < limits.min_effective_share:
            raise InwitError(
                f"The re-conditioning weights of step {line['step']} leave an effective sample "
                f"share of {effective:.2f}.",
                "Lower method.w_max; train.min_effective_share sets the limit.",
            )

    def _stop_reason(self) -> str | None:
        train, counters = self.recipe.train, self.counters
        if counters.step >= train.steps:
            return "steps"
        if train.sampled_tokens and counters.sampled_tokens >= train.sampled_tokens:
            return "sampled_tokens"
        marks = self.recipe.eval.test_at_tokens
        if counters.target and all(str(mark) in counters.test for mark in marks):
            return "stop_at"
        return None

    def _tasks(self, step: int) -> list[Task]:
        """The step's queries: a fresh shuffle of the training tasks each time through.

        A task that two times through put into one step is asked once: its samples would be equal.
        """
        n, size = self.recipe.train.queries, len(self.train_tasks)
        chosen: dict[int, Task] = {}
        for position in range(step * n, (step + 1) * n):
            epoch, place = divmod(position, size)
            if self._order[0] != epoch:
                order = list(range(size))
                seeding.rng(self.recipe.seed, "order", epoch).shuffle(order)
                self._order = (epoch, order)
            index = self._order[1][place]
            chosen[index] = self.train_tasks[index]
        return list(chosen.values())

    @contextmanager
    def _clock(self, phase: str) -> Iterator[None]:
        cpu, wall = time.process_time(), time.monotonic()
        try:
            yield
        finally:
            self.counters.cpu_seconds[phase] += time.process_time() - cpu
            self._wall[phase] = time.monotonic() - wall

    # ------------------------------------------------------------------ evaluation

    async def _evaluate(self, split: Split, folder: RunFolder) -> dict[str, Any]:
        recipe, counters = self.recipe, self.counters
        stage = self.cast.stage(
            "evaluate", split, counters.step, temperature=recipe.eval.temperature
        )
        with self._clock("evaluate"):
            measured, _ = await PROTOCOLS[recipe.eval.protocol](self.held_out[split], stage)
        line = {
            "kind": "eval",
            "step": counters.step,
            "split": split,
            **measured.as_dict(),
            **counters.cost,
        }
        folder.append("metrics.jsonl", [line])
        self.progress.evaluated(line)
        return line

    async def _evaluate_dev(self, folder: RunFolder, trackers: Sequence[Tracker]) -> None:
        if not self.recipe.eval.every:
            return
        line = self.counters.dev = await self._evaluate(Split.DEV, folder)
        accuracy, target = line["first"]["value"], self.recipe.train.stop_at
        for tracker in trackers:
            if accuracy is not None:
                tracker.log(self.counters.step, {"dev/accuracy": accuracy})
        if target is not None and accuracy is not None and accuracy >= target:
            self.counters.target = self.counters.target or self.counters.cost

    async def _evaluate_test(self, folder: RunFolder) -> None:
        for mark in self.recipe.eval.test_at_tokens:
            if self.counters.sampled_tokens >= mark and str(mark) not in self.counters.test:
                self.counters.test[str(mark)] = await self._evaluate(Split.TEST, folder)

    # ------------------------------------------------------------------ saving

    def _save(self, folder: Path) -> None:
        self.engine.save(folder)
        write_json(folder / "counters.json", self.counters)

    def resume(self, folder: RunFolder) -> None:
        """Take up a run where its newest whole checkpoint left it."""
        found = folder.checkpoints()
        if found:
            self.engine.load(found[-1], self.recipe.optimizer)
            try:
                saved = json.loads((found[-1] / "counters.json").read_text("utf-8"))
                self.counters = Counters(**saved)
            except (OSError, ValueError, TypeError) as error:
                raise InwitError(
                    f"The checkpoint {found[-1]} cannot be loaded: {error}.",
                    "Delete it to resume from the one before.",
                ) from error
        folder.truncate(self.counters.step if found else -1)
        self._history.clear()
        for line in folder.metrics():
            if line["kind"] == "train":
                self._remember(line)

    def _summary(self, reason: str) -> dict[str, Any]:
        last = self._history[-1] if self._history else {}
        return {
            "method": self.recipe.method_name,
            "env": self.recipe.env_name,
            "seed": self.recipe.seed,
            "stopped_by": reason,
            **asdict(self.counters),
            "last_step": dict(last),
        }


def _numbers(line: Mapping[str, Any]) -> dict[str, float]:
    return {k: v for k, v in line.items() if isinstance(v, (int, float)) and k != "step"}


def train(recipe: Recipe, out: Path, progress: Progress) -> dict[str, Any]:
    """Run a recipe into a new folder. Nothing is written before everything was checked."""
    RunFolder.check_free(out)
    trainer = Trainer(recipe, progress)
    folder = RunFolder.create(out, recipe.as_toml(), recipe.seed)
    with folder.locked():
        return asyncio.run(trainer.run(folder))


def resume(out: Path, progress: Progress) -> dict[str, Any]:
    """Go on with a run that was stopped, as if it had not been."""
    folder = RunFolder.open(out)
    if folder.finished:
        raise InwitError(f"The run '{out}' is finished.", "Start another one with a new --out.")
    with folder.locked():
        trainer = Trainer(load_recipe(out / "recipe.toml"), progress)
        trainer.resume(folder)
        return asyncio.run(trainer.run(folder))
