"""An evaluation: a folder, all questions asked once, and what came out.

evaluation.json  what is asked of whom: an evaluation is gone on with only where all of it is equal
answers.jsonl    one record a question and sample, written as it is made
summary.json     every measure with counts and interval; `table.md` is the same for reading
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from inwit.casting import Cast
from inwit.engines.openai import OpenAISettings
from inwit.envs import Split, Task
from inwit.errors import InwitError
from inwit.evaluation.records import Record
from inwit.evaluation.running import Answers, Faults, ask_all, check
from inwit.evaluation.tables import markdown
from inwit.files import plain, write_json, write_whole
from inwit.playing import Stage
from inwit.roles import View
from inwit.rows import Role
from inwit.runs import versions

HOME = Path("runs/eval")
SHOWN = (
    *("model", "identity", "critic", "env", "split", "tasks"),
    *("options", "temperature", "sees"),
)
"""What a summary says of what was asked."""


def evaluate(
    cast: Cast,
    split: Split,
    *,
    tasks: int | None = None,
    samples: int = 1,
    out: Path | None = None,
    tell: Callable[[int, int], None] | None = None,
) -> tuple[dict[str, Any], Path]:
    """Ask what has not been asked yet, and measure. Returns the summary, and the folder.

    Args:
        tasks: how many of the split, from the first; all, if not given.
        out: the folder; if not given, one named after what is asked, so that the same command
            goes on where it was.
        tell: told (questions answered, of how many).

    Raises:
        InwitError: something is wrong before work starts, the folder holds another evaluation, or
            nothing at all could be answered.
    """
    every = list(cast.recipe.env.tasks(split))
    chosen = every[:tasks]
    if not chosen:
        raise InwitError(f"There are no {split} tasks.", "Choose another --split.")
    stage = cast.stage("eval", split, temperature=cast.recipe.eval.temperature)
    check(cast.recipe.protocol, chosen, stage)
    for task in chosen:
        stage.check_question(task)
    _check_prompts(cast, chosen[0])
    asked = _asked(cast, split, every, stage)
    folder = out or HOME / _name(cast, split, asked)
    with _held(folder, asked):
        answers = Answers(folder / "answers.jsonl")
        records, faults = _ask(cast, chosen, stage, answers, samples, tell)
        if not records:
            raise InwitError(
                f"No question could be answered: {_reason(faults)}", "The same command asks again."
            )
        summary = {
            **plain(cast.recipe.protocol.measured(records)),
            **{k: asked[k] for k in SHOWN},
            "seed": cast.recipe.seed,
            "unanswered": len(chosen) * samples - len(records),
            "stopped": faults.stopped,
            "unanswered_why": faults.reasons(len(chosen) * samples - len(records)),
            "versions": versions(),
        }
        write_json(folder / "summary.json", summary)
        write_whole(folder / "table.md", markdown(summary))
    return summary, folder


def _check_prompts(cast: Cast, task: Task) -> None:
    """Raise InwitError where a prompt cannot be shown, such as for words that a model lacks."""
    for name in cast.recipe.protocol.prompts:
        prompt, sees = cast.prompts[name], cast.conditions[name]
        speaker = cast.critic if prompt.role is Role.CRITIC else cast.solver
        view = View(sees, dict.fromkeys(sees, task.question))
        if name == "again":
            speaker.length(prompt.instruction(view))
        else:
            speaker.open(prompt, view, sees)


def _ask(
    cast: Cast,
    chosen: list[Task],
    stage: Stage,
    answers: Answers,
    samples: int,
    tell: Callable[[int, int], None] | None,
) -> tuple[list[Record], Faults]:
    """Ask what `answers` does not hold, telling how far it is."""
    total = len(chosen) * samples
    done = len(answers.of(chosen, samples))

    def count(_: Record) -> None:
        nonlocal done
        done += 1
        if tell:
            tell(done, total)

    settings = cast.recipe.engine
    limit = settings.at_once if isinstance(settings, OpenAISettings) else settings.max_batch
    asking = ask_all(
        cast.recipe.protocol,
        chosen,
        stage,
        answers=answers,
        samples=samples,
        at_once=limit,
        tell=count,
    )
    return asyncio.run(cast.closing(asking))


def _reason(faults: Faults) -> str:
    return faults.stopped or next(iter(faults.unanswered.values()), "none was asked.")


def _asked(cast: Cast, split: Split, tasks: list[Task], stage: Stage) -> dict[str, Any]:
    """All that decides an answer, as JSON has it."""
    recipe, protocol = cast.recipe, cast.recipe.protocol
    prompts = {name: cast.prompts[name].messages for name in protocol.prompts}
    wrong = recipe.env.wrong_answer
    found = {
        "protocol": recipe.eval.protocol,
        "options": protocol.settings.model_dump(mode="json"),
        "model": recipe.model.path or cast.identity,
        "identity": cast.identity,
        "critic": cast.critic_name,
        "env": recipe.env_name,
        "env_settings": recipe.env.settings.model_dump(mode="json"),
        "split": split,
        "template": recipe.model.template,
        "extra": recipe.engine.extra if isinstance(recipe.engine, OpenAISettings) else {},
        "tasks": _digest([(t.id, t.question, t.reference, wrong(t)) for t in tasks]),
        "sampling": stage.sampling.model_dump(mode="json"),
        "temperature": stage.sampling.temperature,
        "seed": recipe.seed,
        "prompts": _digest(prompts),
        "sees": protocol.shown(cast.conditions),
    }
    return json.loads(json.dumps(plain(found)))  # type: ignore[no-any-return]


def _digest(value: object) -> str:
    text = json.dumps(plain(value), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _name(cast: Cast, split: Split, asked: dict[str, Any]) -> str:
    recipe = cast.recipe
    model = re.sub(r"[^A-Za-z0-9.]+", "-", recipe.model.path or cast.identity).strip("-")[-40:]
    return f"{model}-{recipe.env_name}-{recipe.eval.protocol}-{split}-{_digest(asked)[:8]}"


@contextmanager
def _held(folder: Path, asked: dict[str, Any]) -> Iterator[None]:
    """The folder, held for this process. InwitError where it is another evaluation's."""
    file = folder / "evaluation.json"
    if folder.exists() and not folder.is_dir():
        raise InwitError(f"'{folder}' is a file.", "Give another --out.")
    if file.is_file():
        there = _read(file)
        for key, value in asked.items():
            if there.get(key) != value:
                raise InwitError(
                    f"'{folder}' holds another evaluation: its {key} differs.",
                    "Give another --out.",
                )
    elif folder.exists() and any(p.name != f".{file.name}.partial" for p in folder.iterdir()):
        raise InwitError(f"'{folder}' holds something else.", "Give another --out.")
    else:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(file, asked)
    with file.open() as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InwitError(
                f"Another process is writing to '{folder}'.", "Wait for it, or stop it."
            ) from error
        yield


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text("utf-8"))
    except ValueError:  # of another kind, or another encoding
        found = None
    if not isinstance(found, dict):
        raise InwitError(f"'{file.parent}' holds something else.", "Give another --out.")
    return found
