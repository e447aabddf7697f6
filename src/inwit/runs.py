"""Run folders: what a run leaves behind, written so that a kill at any moment loses nothing.

recipe.toml     the recipe, resolved: `inwit train` on it repeats the run
versions.json   of Python and of what matters, and the seed
metrics.jsonl   one line a step or evaluation
episodes.jsonl  one line an episode
checkpoints/    step-000050, …: everything to go on from
model/          the final Hugging Face directory
stages.json     stages that were begun by hand, if any
summary.json    written last: a folder without it is not a finished run
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from inwit.errors import InwitError
from inwit.files import append_jsonl, read_jsonl, write_json, write_whole
from inwit.rows import Episode, Floats, Ids, Role, Row

PHASES = ("sample", "credit", "train", "evaluate")
PACKAGES = ("inwit", "torch", "transformers", "peft", "tokenizers", "numpy")


@dataclass(slots=True)
class Counters:
    """Where a run stands. All of it is in every checkpoint."""

    step: int = 0
    sampled_tokens: int = 0
    trained_tokens: int = 0
    cpu_seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    wall_seconds: float = 0.0
    recoveries: int = 0
    step0_parity: float | None = None
    worst_parity: float | None = None
    dropped: int = 0
    dev: dict[str, Any] | None = None
    target: dict[str, Any] | None = None
    test: dict[str, Any] = field(default_factory=dict)
    stages: list[int] = field(default_factory=lambda: [0])
    """Steps at which the method's stages began."""

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


class RunFolder:
    """One run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, recipe_toml: str, seed: int) -> RunFolder:
        """A new folder; the recipe, written last, makes it one. InwitError where it is taken."""
        cls.check_free(path)
        path.mkdir(parents=True, exist_ok=True)
        write_json(path / "versions.json", versions() | {"seed": seed})
        write_whole(path / "recipe.toml", recipe_toml)
        return cls(path)

    @staticmethod
    def check_free(path: Path) -> None:
        """InwitError where something is there already, but for a start that was cut short."""
        if path.exists() and not path.is_dir():
            raise InwitError(f"The run folder '{path}' is a file.", "Give another one (--out).")
        inside = {p.name for p in path.iterdir() if p.name[0] != "."} if path.exists() else set()
        if inside - {"versions.json"}:
            raise InwitError(
                f"The run folder '{path}' is not empty.",
                f"Go on with it (inwit train --resume {path}), or give another one (--out).",
            )

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing run's folder. Raises InwitError where it is none."""
        if not (path / "recipe.toml").is_file():
            raise InwitError(f"'{path}' is not a run folder: it has no recipe.toml.", "Check it.")
        return cls(path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process. Raises InwitError where another one holds it."""
        with (self.path / "recipe.toml").open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise InwitError(
                    f"Another process is writing to the run folder '{self.path}'.",
                    "Wait for it, or stop it.",
                ) from error
            yield

    @property
    def finished(self) -> bool:
        return (self.path / "summary.json").is_file()

    # ------------------------------------------------------------------ lines

    def append(self, name: str, values: Iterable[object]) -> None:
        """Add lines to a `.jsonl` file."""
        append_jsonl(self.path / name, values)

    def metrics(self) -> list[dict[str, Any]]:
        return read_jsonl(self.path / "metrics.jsonl")

    def truncate(self, step: int, evaluated: int | None = None) -> None:
        """Take back every line after `step`: the run goes on from that checkpoint.

        Args:
            evaluated: the step of the last evaluation on dev that the checkpoint knows of; one that
                came later is taken back, though it be of the checkpoint's own step.
        """
        last = {"dev": step if evaluated is None else evaluated}
        for name in ("metrics.jsonl", "episodes.jsonl"):
            path = self.path / name
            if not path.is_file():
                continue
            partial = path.with_name(f".{name}.partial")
            # a kill may have cut the last line short, within a character even
            with path.open("rb") as old, partial.open("wb") as new:
                whole = (line for line in old if line.endswith(b"\n"))
                new.writelines(line for line in whole if _within(line, step, last))
            partial.replace(path)

    # ------------------------------------------------------------------ stages by hand

    def stages_asked(self) -> dict[int, int | None]:
        """Stages (from 0) that somebody asked for, and the steps at which they then began."""
        path = self.path / "stages.json"
        if not path.is_file():
            return {}
        return {int(stage): step for stage, step in json.loads(path.read_text("utf-8")).items()}

    def ask_stage(self, stage: int, step: int | None = None) -> None:
        """Ask for a stage to begin: at the run's next step, or at the one given."""
        write_json(self.path / "stages.json", {**self.stages_asked(), stage: step})

    # ------------------------------------------------------------------ checkpoints

    def checkpoint(self, step: int, write: Callable[[Path], None], keep: int) -> None:
        """Write a checkpoint beside its place and rename it there; drop the oldest."""
        folder = self.path / "checkpoints"
        folder.mkdir(exist_ok=True)
        target, partial = folder / f"step-{step:06d}", folder / ".partial"
        if not target.is_dir():  # else it is whole, and of this very state
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            write(partial)
            for file in partial.iterdir():
                with file.open("rb") as handle:
                    os.fsync(handle.fileno())
            partial.rename(target)
        for old in self.checkpoints()[:-keep]:
            shutil.rmtree(old)

    def checkpoints(self) -> list[Path]:
        """Whole checkpoints, oldest first."""
        return sorted((self.path / "checkpoints").glob("step-*"))

    def publish(self, name: str, write: Callable[[Path], None]) -> Path:
        """Write a folder (such as the final model) beside its place and rename it there."""
        partial, target = self.path / f".{name}.partial", self.path / name
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        write(partial)
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
        return target


def _within(line: bytes, step: int, last: Mapping[str, int]) -> bool:
    """Whether a line is not after `step`, nor after the last one of its split."""
    try:
        found = json.loads(line)
        return int(found["step"]) <= last.get(found.get("split"), step)
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def versions() -> dict[str, Any]:
    found: dict[str, Any] = {name: version(name) for name in PACKAGES}
    return found | {"python": platform.python_version(), "platform": platform.platform()}


Trained = Mapping[tuple[str, int], Mapping[str, object]]
"""By (role, turn), what an episode's rows were trained with."""


def trained_with(
    rows: Sequence[Row], weights: Mapping[int, Floats], text: Callable[[Ids], str]
) -> dict[str, Trained]:
    """Episode -> what its rows were trained with: the advantage, or one a token where they differ,
    and of re-conditioned rows the weight of every token.

    Args:
        weights: by the row's place in `rows`.
    """
    found: dict[str, dict[tuple[str, int], dict[str, object]]] = {}
    for i, row in enumerate(rows):
        of = found.setdefault(row.episode, {}).setdefault((row.role, row.turn), {})
        levels = dict.fromkeys(row.advantages)
        each = [round(a, 6) for a in row.advantages]
        of["advantage"] = each if len(levels) > 1 else next(iter(levels), 0.0)
        if i in weights:
            of["weights"] = [round(w, 4) for w in weights[i]]
            of["tokens"] = [text((token,)) for token in row.completion_ids]
    return dict(found)


def episode_record(
    episode: Episode,
    step: int,
    text: Callable[[Ids], str],
    trained: Trained,
) -> dict[str, Any]:
    """An episode as one JSON object: what was shown and said, in ids and in words.

    Args:
        trained: what its rows were trained with.
    """

    def attempt(a: Any) -> dict[str, Any]:
        return {
            "index": a.index,
            "grade": a.grade,
            "reward": a.reward,
            "critique": a.critique,
            "text": a.text,
            "feedback": a.feedback,
            "turns": [turn(t) for t in a.turns],
            **trained.get((Role.SOLVER, a.index), {}),
        }

    def turn(t: Any) -> dict[str, Any]:
        return {
            "role": t.role,
            "sees": t.sees,
            "behaviour": t.behaviour,
            "prompt": text(t.prompt_ids),
            "prompt_ids": t.prompt_ids,
            "completion_ids": t.completion.ids,
            "logprobs": [round(x, 6) for x in t.completion.logprobs],
            "stop": t.completion.stop,
        }

    return {
        "step": step,
        "id": episode.id,
        "query": episode.query,
        "attempts": [attempt(a) for a in episode.attempts],
        "demonstrations": [turn(t) | {"text": t.text} for t in episode.demonstrations],
        "critiques": [
            {
                "index": c.index,
                "of": c.of,
                "text": c.text,
                "size": c.size,
                "turn": turn(c.turn),
                **trained.get((Role.CRITIC, c.of), {}),
            }
            for c in episode.critiques
        ],
    }
