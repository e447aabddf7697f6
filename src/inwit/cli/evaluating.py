"""`inwit eval`, `stats` and `sample`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from inwit.cli.common import (
    Env,
    Json,
    Model,
    Set,
    app,
    err,
    out,
    print_json,
    recipe_of,
    say,
    split_of,
    tell,
)
from inwit.errors import InwitError

Source = Annotated[
    str,
    typer.Argument(
        help="A run's folder, a recipe, a model, or the address of an OpenAI-compatible endpoint."
    ),
]
Questions = Annotated[
    Path | None,
    typer.Option(help="A JSONL of questions, one {question, answer} a line: all are asked."),
]
Way = Annotated[
    str | None, typer.Option(help="How they are asked; `inwit protocols` lists the ways.")
]
Turns = Annotated[int | None, typer.Option(min=2, help="Attempts, the first included.")]
K = Annotated[int | None, typer.Option("--k", help="K of parallel and sequential.")]
Marker = Annotated[str | None, typer.Option(help="Correction marker of injected.")]
Samples = Annotated[int, typer.Option(min=1, help="Times that each question is asked.")]
SplitName = Annotated[str, typer.Option(help="dev or test.")]
Number = Annotated[int | None, typer.Option(min=1, help="How many tasks; all if not given.")]
Critic = Annotated[
    str | None, typer.Option(help="Who criticises: a model, or an endpoint's address.")
]
CriticModel = Annotated[str | None, typer.Option(help="The critic's name at its endpoint.")]
Temperature = Annotated[float | None, typer.Option(min=0, help="0 is greedy.")]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="Most tokens of an answer.")]
Budget = Annotated[
    int | None, typer.Option(min=1, help="Tokens, prompts included, to spend at an endpoint.")
]
Folder = Annotated[
    Path | None, typer.Option("--out", help="The folder; runs/eval/... if not given.")
]


@app.command()
def eval(
    source: Source,
    model: Model = None,
    env: Env = None,
    questions: Questions = None,
    protocol: Way = None,
    turns: Turns = None,
    k: K = None,
    marker: Marker = None,
    samples: Samples = 1,
    split: SplitName = "dev",
    tasks: Number = None,
    critic: Critic = None,
    critic_model: CriticModel = None,
    temperature: Temperature = None,
    max_tokens: MaxTokens = None,
    budget: Budget = None,
    set_: Set = None,
    save: Folder = None,
    json_: Json = False,
) -> None:
    """Measure whether a model corrects itself: accuracy by turn, what it mends and what it spoils.

    The same command goes on where it was stopped; what was answered is not asked again. A key for
    an endpoint is read from INWIT_API_KEY or OPENAI_API_KEY.

    [bold]inwit eval runs/demo/seed-0/icrl --split test --protocol critique[/]

    [bold]inwit eval http://localhost:8000/v1 --questions mine.jsonl --protocol intrinsic[/]
    """
    options = {"turns": turns, "k": k, "marker": marker}
    sets = _settings(protocol, options, temperature, max_tokens, budget)
    if questions is not None:
        if env is not None:
            raise InwitError("--questions and --env exclude each other.", "Give one of them.")
        env, split = "questions", "test"
        sets += [f"env.file={_text(questions)}", "env.dev=0.0", "env.test=1.0"]
    if budget is not None and not source.startswith(("http://", "https://")):
        raise InwitError(f"--budget is for endpoints, and '{source}' is none.", "Leave it out.")
    recipe = recipe_of(source, env, model, [*sets, *(set_ or [])], usual="intrinsic")
    other = _other(critic, critic_model) if critic else None
    summary, folder = _evaluate(recipe, other, split_of(split), tasks, samples, save)
    if json_:
        print_json(summary)
    else:
        _show(summary, folder)
    if summary["unanswered"]:
        why = "; ".join(summary["unanswered_why"])
        tell(f"{summary['unanswered']} questions are unanswered: {why}")
        tell("What was answered is kept: the same command asks the rest again.")
        raise typer.Exit(1)


def _evaluate(
    recipe: Any,
    other: tuple[str, str | None] | None,
    split: Any,
    tasks: int | None,
    samples: int,
    save: Path | None,
) -> tuple[dict[str, Any], Path]:
    from inwit.casting import Cast
    from inwit.console import Asked
    from inwit.evaluate import evaluate
    from inwit.methods.base import ExternalCritic

    with err.status("Loading the model…"):
        cast = Cast.of(recipe, other and ExternalCritic(*other))
    with Asked(err, recipe.eval.protocol) as asked:
        return evaluate(cast, split, tasks=tasks, samples=samples, out=save, tell=asked.tell)


def _settings(
    protocol: str | None,
    options: Mapping[str, object],
    temperature: float | None,
    max_tokens: int | None,
    budget: int | None,
) -> list[str]:
    import tomli_w

    given = {key: value for key, value in options.items() if value is not None}
    sets = []
    if protocol is not None:
        sets.append(f"eval.protocol='{protocol}'")
    if protocol is not None or given:
        inline = tomli_w.dumps(given).strip().replace("\n", ", ")
        sets.append(f"eval.options={{{inline}}}")
    plain = {
        "eval.temperature": temperature,
        "sampling.max_tokens": max_tokens,
        "engine.budget": budget,
    }
    return sets + [f"{key}={value}" for key, value in plain.items() if value is not None]


def _text(value: object) -> str:
    """Any text as TOML writes it."""
    import tomli_w

    return tomli_w.dumps({"text": str(value)}).strip().partition(" = ")[2]


def _other(critic: str, model: str | None) -> tuple[str, str | None]:
    """(model, address) of another critic."""
    if critic.startswith(("http://", "https://")):
        return model or "", critic
    return critic, None


def _show(summary: dict[str, Any], folder: Path) -> None:
    from inwit.evaluation.tables import HEAD, facts, rows, title

    table = Table(*HEAD, title=title(summary))
    for row in rows(summary["measures"]):
        table.add_row(*row)
    out.print(table)
    for name, p in summary["p"].items():
        out.print(f"{name}: {p:.3g}", highlight=False)
    for fact in (*facts(summary), *summary["notes"]):
        out.print(fact, markup=False, highlight=False)
    out.print(f"answers, summary.json, table.md: {folder}", highlight=False)


@app.command()
def stats(
    files: Annotated[
        list[Path] | None, typer.Argument(help="summary.json of evaluations, to be pooled.")
    ] = None,
    n: Annotated[int | None, typer.Option("--n", min=1, help="Questions.")] = None,
    first: Annotated[int | None, typer.Option(min=0, help="Right at first.")] = None,
    mended: Annotated[int | None, typer.Option(min=0, help="Wrong at first, right after.")] = None,
    spoiled: Annotated[int | None, typer.Option(min=0, help="Right at first, wrong after.")] = None,
    json_: Json = False,
) -> None:
    """Work out intervals and tests from the counts of a paper, or pool several evaluations.

    [bold]inwit stats --n 500 --first 300 --mended 29 --spoiled 7[/]

    [bold]inwit stats runs/eval/a/summary.json runs/eval/b/summary.json[/]
    """
    from inwit.evaluation.pooling import of_counts, pooled, statistics_of

    counts = (n, first, mended, spoiled)
    if files and any(c is not None for c in counts):
        raise InwitError("Files and counts exclude each other.", "Give one or the other.")
    if files:
        table = pooled(files)
    elif None in counts:
        raise InwitError("Counts need --n, --first, --mended and --spoiled.", "Give all four.")
    else:
        table = of_counts(*(int(c or 0) for c in counts))
    found = statistics_of(table)
    if json_:
        return print_json(found)
    from inwit.evaluation.tables import HEAD, LABELS, rows

    shown = Table(*HEAD)
    for row in rows({name: m for name, m in found.items() if name in LABELS}):
        shown.add_row(*row)
    out.print(shown)
    out.print(f"McNemar, exact, two-sided: p = {found['mcnemar_p']:.3g}", highlight=False)
    for note in found["notes"]:
        out.print(note, highlight=False)


@app.command()
def sample(
    source: Source,
    env: Env = None,
    model: Model = None,
    n: Annotated[int, typer.Option("--n", min=1, help="How many tasks.")] = 3,
    split: Annotated[str, typer.Option(help="train, dev or test.")] = "dev",
    protocol: Annotated[str, typer.Option(help="How they are asked.")] = "critique",
    set_: Set = None,
    json_: Json = False,
) -> None:
    """Show a model at work: its attempts, and what was said between them.

    [bold]inwit sample runs/demo/seed-0/icrl --n 5[/]
    """
    from inwit.casting import Cast
    from inwit.evaluation.running import ask_all

    wanted = [f"eval.protocol='{protocol}'", "eval.options={}"]
    recipe = recipe_of(source, env, model, [*wanted, *(set_ or [])])
    with err.status("Loading the model…"):
        cast = Cast.of(recipe)
    chosen = list(recipe.env.tasks(split_of(split)))[:n]
    with err.status("Sampling…"):
        asked = ask_all(recipe.protocol, chosen, cast.stage("sample", split))
        records, faults = asyncio.run(asked)
    if faults.unanswered:
        raise InwitError(next(iter(faults.unanswered.values())))
    shown = [
        {
            "task": task.id,
            "question": task.question,
            "reference": task.reference,
            "attempts": [{"text": a.said.text, "grade": a.grade} for a in trial.answers],
            "critiques": [c.text for c in trial.critiques],
        }
        for task, record in zip(chosen, records, strict=True)
        for trial in record.trials
    ]
    if json_:
        return print_json(shown)
    for item in shown:
        out.rule(item["task"])
        out.print(item["question"], markup=False, highlight=False)
        for i, attempt in enumerate(item["attempts"]):
            say(f"attempt {i + 1}", attempt["text"], str(attempt["grade"]))
            if i < len(item["critiques"]):
                say("critique", item["critiques"][i], "")
        say("reference", item["reference"], "")
