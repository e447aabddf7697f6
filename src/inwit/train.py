"""Training: queries, episodes, rows, an update, a line in the log; again.

recipe -> Env -> tasks -> Method.collect -> episodes -> Method.credit -> rows -> Engine.update
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from inwit.alarms import WINDOW, alarms, stop_at_limits
from inwit.casting import Cast
from inwit.engines import EngineLost, UpdateStats
from inwit.engines.torch import TorchSettings
from inwit.envs import Split
from inwit.errors import InwitError
from inwit.evaluation.running import ask_all, check
from inwit.files import write_json
from inwit.methods import Method, measures
from inwit.queries import Queries
from inwit.recipe import Recipe, load_recipe
from inwit.rows import Episode, Ids, Row
from inwit.runs import PHASES, Counters, RunFolder, episode_record, trained_with
from inwit.tracking import Tracker, check_trackers, numbers, open_trackers

RECOVERIES = 3
"""Times in a row that the engine may be lost before a step is done that was not done before."""


class Progress(Protocol):
    """Told what happens, as it happens."""

    def step(self, done: int, total: int, line: Mapping[str, Any]) -> None: ...
    def evaluated(self, line: Mapping[str, Any]) -> None: ...
    def alarm(self, kind: str, message: str) -> None: ...


class Trainer:
    """A run of a recipe. Building one checks everything that can be checked before work starts."""

    def __init__(self, recipe: Recipe, progress: Progress) -> None:
        self.recipe = recipe
        self.progress = progress
        self.counters = Counters()
        check_trackers(recipe.tracking)
        self.cast = Cast.of(recipe, learns=True)
        self.engine = self.cast.learner
        self.train_tasks = recipe.env.tasks(Split.TRAIN)
        if len(self.train_tasks) == 0:
            raise InwitError("The environment has no training tasks.", "Check its settings.")
        self.queries = Queries(self.train_tasks, recipe.train.queries, recipe.seed)
        self.held_out = {split: recipe.split(split) for split in (Split.DEV, Split.TEST)}
        asked = {Split.DEV: recipe.eval.every, Split.TEST: recipe.eval.test_at_tokens}
        for split, tasks in self.held_out.items():
            if asked[split] and not tasks:
                raise InwitError(
                    f"The recipe evaluates on {split}, which has no tasks.",
                    "Hold some out (see [env]), or do not evaluate (see [eval]).",
                )
        stage = self.cast.stage("check")
        for split, tasks in self.held_out.items():
            if asked[split]:
                check(recipe.protocol, tasks, stage)
        for task in chain(self.train_tasks, *self.held_out.values()):
            stage.check_question(task)
        settings = recipe.engine
        self.exact = isinstance(settings, TorchSettings) and settings.dtype == "float32"
        self._wall: dict[str, float] = {}  # of each phase, the last time
        self._history: list[Mapping[str, Any]] = []

    # ------------------------------------------------------------------ the run

    async def run(self, folder: RunFolder) -> dict[str, Any]:
        """Train to the end, from wherever the counters stand. Returns the summary."""
        recipe = self.recipe
        started = time.monotonic() - self.counters.wall_seconds
        trackers = open_trackers(recipe.tracking, folder.path, recipe.as_dict())
        try:
            reason = await self._to_the_end(folder, trackers, started)
        finally:
            for tracker in trackers:
                tracker.close()
        summary = self._summary(reason)
        write_json(folder.path / "summary.json", summary)
        return summary

    @property
    def method(self) -> Method:
        """The method at the stage that the run is in."""
        return self.recipe.method.stages[len(self.counters.stages) - 1]

    async def _to_the_end(
        self, folder: RunFolder, trackers: Sequence[Tracker], started: float
    ) -> str:
        """The loop and the model it leaves; where the engine is lost, from the last checkpoint."""
        furthest, times, recoveries = -1, 0, 0
        while True:
            try:
                if times:
                    await self.engine.recover()
                    self.resume(folder)
                    self.counters.recoveries = recoveries
                reason = await self._loop(folder, trackers, started)
                keep = self.recipe.train.keep_checkpoints
                folder.checkpoint(self.counters.step, self._save, keep)
                folder.publish("model", self.engine.export)
                return reason
            except EngineLost as error:
                times = times + 1 if self.counters.step <= furthest else 1
                furthest = max(furthest, self.counters.step)
                recoveries = self.counters.recoveries + 1
                if times > RECOVERIES:
                    raise
                self.progress.alarm("engine", f"{error.what} On from the last checkpoint.")

    async def _loop(self, folder: RunFolder, trackers: Sequence[Tracker], started: float) -> str:
        """Step, evaluate, checkpoint, until there is a reason to stop."""
        recipe, counters = self.recipe, self.counters
        if counters.step == 0:
            await self._evaluate_dev(folder, trackers)
        while (reason := self._stop_reason()) is None:
            await self._enter_stage(folder, trackers)
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

    async def _enter_stage(self, folder: RunFolder, trackers: Sequence[Tracker]) -> None:
        """Begin the method's next stage, if it is time, or somebody asked for it by hand."""
        counters = self.counters
        reached, began = len(counters.stages), counters.stages[-1]
        if reached == len(self.recipe.method.stages):
            return
        lasts, asked = self.method.lasts, folder.stages_asked()
        by_hand = reached in asked and (asked[reached] or 0) <= counters.step
        if not by_hand and (lasts is None or counters.step - began < lasts):
            return
        if counters.dev is None or counters.dev["step"] != counters.step:
            await self._evaluate_dev(folder, trackers)  # what the stage has come to
        if by_hand:  # a run that is killed and resumed is to change stage at the same step
            folder.ask_stage(reached, counters.step)
        counters.stages.append(counters.step)
        self._history.clear()  # alarms compare within a stage

    async def _step(self, folder: RunFolder, trackers: Sequence[Tracker]) -> None:
        """One turn of the loop: collect, credit, update, log."""
        recipe, counters, method = self.recipe, self.counters, self.method
        before = dict(counters.cpu_seconds)
        stage = self.cast.stage("train", counters.step)
        with self._clock("sample"):
            episodes = await method.collect(self.queries.of(counters.step), stage)
        with self._clock("credit"):
            rows = method.credit(episodes)
        with self._clock("train"):
            objective = method.objective(recipe.sampling.temperature)
            lr = recipe.optimizer.lr * method.rate
            optimizer = recipe.optimizer.model_copy(update={"lr": lr})
            stats = await self.engine.update(rows, objective, optimizer, recipe.train.steps)
        counters.step += 1
        line = self._measure(episodes, rows, stats, before)
        self._remember(line)
        raised = alarms(self._history, exact=self.exact)
        line["alarms"] = sorted(raised)
        self._write(folder, episodes, rows, stats, line)
        for tracker in trackers:
            tracker.log(counters.step, numbers(line))
        self.progress.step(counters.step, recipe.train.steps, line)
        for kind, message in raised.items():
            self.progress.alarm(kind, message)
        stop_at_limits(line, recipe.train)

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
            "stage": self.method.title,
            **found,
            **self.method.measures(episodes),
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
        decode = self.engine.tokenizer.decode

        def text(ids: Ids) -> str:
            return str(decode(list(ids)))

        trained = trained_with(rows, stats.weights, text)
        folder.append(
            "episodes.jsonl",
            (
                episode_record(e, self.counters.step, text, trained.get(e.id, {}))
                for e in episodes
                if e.attempts
            ),
        )

    def _remember(self, line: Mapping[str, Any]) -> None:
        """Keep the first lines and the last: what alarms compare."""
        self._history.append(line)
        if len(self._history) > 2 * WINDOW:
            del self._history[WINDOW]

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
            records, faults = await ask_all(recipe.protocol, self.held_out[split], stage)
            if faults.unanswered:
                why = next(iter(faults.unanswered.values()))
                raise InwitError(
                    f"{len(faults.unanswered)} {split} tasks could not be asked: {why}",
                    "The run goes on from its last checkpoint: inwit train --resume.",
                )
            measured = recipe.protocol.measured(records)
        line = {
            "kind": "eval",
            "step": counters.step,
            "stage": self.method.title,
            "split": split,
            "sees": recipe.protocol.shown(self.cast.conditions),
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
        found = {k: m["value"] for k, m in line["measures"].items() if m["value"] is not None}
        accuracy, target = found.get("a1"), self.recipe.train.stop_at
        for tracker in trackers:
            tracker.log(self.counters.step, {f"dev/{name}": x for name, x in found.items()})
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
        if not found:
            self.counters = Counters()
        else:
            self.engine.load(found[-1], self.recipe.optimizer)
            try:
                saved = json.loads((found[-1] / "counters.json").read_text("utf-8"))
                self.counters = Counters(**saved)
            except (OSError, ValueError, TypeError) as error:
                raise InwitError(
                    f"The checkpoint {found[-1]} cannot be loaded: {error}.",
                    "Delete it to resume from the one before.",
                ) from error
        dev = self.counters.dev
        folder.truncate(self.counters.step if found else -1, dev["step"] if dev else None)
        self._history.clear()
        for line in folder.metrics():
            if line["kind"] == "train" and line["step"] > self.counters.stages[-1]:
                self._remember(line)

    def _summary(self, reason: str) -> dict[str, Any]:
        last = self._history[-1] if self._history else {}
        return {
            "method": self.recipe.method_name,
            "env": self.recipe.env_name,
            "seed": self.recipe.seed,
            "stopped_by": reason,
            "stage": self.method.title,
            **asdict(self.counters),
            "last_step": dict(last),
        }


def train(recipe: Recipe, out: Path, progress: Progress) -> dict[str, Any]:
    """Run a recipe into a new folder. Nothing is written before everything was checked."""
    RunFolder.check_free(out)
    trainer = Trainer(recipe, progress)
    with closing(trainer.engine):
        folder = RunFolder.create(out, recipe.as_toml(), recipe.seed)
        with folder.locked():
            return asyncio.run(trainer.run(folder))


def advance(out: Path) -> str:
    """Ask for a run's next stage to begin at its next step; returns what that stage is called.

    Raises:
        InwitError: the run is finished, or was asked for its last stage already.
    """
    folder = RunFolder.open(out)
    if folder.finished:
        raise InwitError(f"The run '{out}' is finished.", "There is no step left to begin at.")
    stages = load_recipe(out / "recipe.toml").method.stages
    begun = [line["stage"] for line in folder.metrics() if line["kind"] == "train"][-1:]
    titles = [stage.title for stage in stages]
    following = titles.index(begun[0]) + 1 if begun else 1
    if following >= len(stages):
        raise InwitError(f"The run '{out}' is in its last stage.", "Let it go on.")
    folder.ask_stage(following)
    return titles[following]


def resume(out: Path, progress: Progress) -> dict[str, Any]:
    """Go on with a run that was stopped, as if it had not been."""
    folder = RunFolder.open(out)
    if folder.finished:
        raise InwitError(f"The run '{out}' is finished.", "Start another one with a new --out.")
    with folder.locked():
        trainer = Trainer(load_recipe(out / "recipe.toml"), progress)
        with closing(trainer.engine):
            trainer.resume(folder)
            return asyncio.run(trainer.run(folder))
