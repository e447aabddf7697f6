"""The command line. It reads arguments, calls the library, and prints; nothing is decided here."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

# before transformers is imported: bars of its own would break the live line
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import typer
from rich.console import Console
from rich.table import Table

from inwit.errors import InwitError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Train language models to find and fix their own mistakes, and measure whether they do.",
    epilog="First steps: `make demo`, then docs/tutorial.md.",
)
out = Console()
err = Console(stderr=True)

Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a key of the recipe: section.key=value. Repeatable."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")]
Source = Annotated[
    str, typer.Argument(help="A run's folder, a recipe, or a model (then give --env).")
]
Env_ = Annotated[str | None, typer.Option("--env", help="Environment, where SOURCE is a model.")]
Model = Annotated[str | None, typer.Option("--model", help="Another model than the source's own.")]


@app.command()
def train(
    recipe: Annotated[Path | None, typer.Argument(help="The recipe, a TOML file.")] = None,
    out_: Annotated[
        Path | None,
        typer.Option("--out", help="The run's folder; runs/<recipe's name> if not given."),
    ] = None,
    set_: Set = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Go on with the run in this folder.")
    ] = None,
    json_: Json = False,
) -> None:
    """Train a model by a recipe, into a folder of its own.

    [bold]inwit train recipes/checkout/warm.toml --out runs/warm[/]
    """
    from inwit import train as training
    from inwit.console import Live
    from inwit.recipe import load_recipe

    if (recipe is None) == (resume is None):
        raise InwitError("Give a recipe to begin a run, or --resume and a run's folder.")
    if resume is not None:
        if set_:
            raise InwitError("--set does not go with --resume.", "A run keeps its recipe.")
        with Live(err, resume.name) as live:
            summary, folder = training.resume(resume, live), resume
    else:
        assert recipe is not None
        folder = out_ or Path("runs") / recipe.stem
        with Live(err, folder.name) as live:
            summary = training.train(load_recipe(recipe, set_ or []), folder, live)
    if json_:
        return _print_json(summary)
    out.print(
        f"{summary['step']} steps, {summary['sampled_tokens']:,} tokens sampled", highlight=False
    )
    out.print(f"model: {folder / 'model'}   log: {folder / 'metrics.jsonl'}", highlight=False)


@app.command()
def eval(
    source: Source,
    env: Env_ = None,
    model: Model = None,
    protocol: Annotated[str, typer.Option(help="direct or critique.")] = "direct",
    split: Annotated[str, typer.Option(help="dev or test.")] = "dev",
    tasks: Annotated[int | None, typer.Option(min=1, help="How many; all if not given.")] = None,
    set_: Set = None,
    save: Annotated[Path | None, typer.Option("--out", help="Also write the result there.")] = None,
    json_: Json = False,
) -> None:
    """Measure a model on held-out tasks: accuracy with its interval, and what critiques gain.

    [bold]inwit eval runs/demo/seed-0/icrl --split test --protocol critique[/]
    """
    from inwit.casting import Cast
    from inwit.envs import Split
    from inwit.errors import nearest
    from inwit.evaluation.protocols import PROTOCOLS
    from inwit.runs import write_json

    if protocol not in PROTOCOLS:
        raise InwitError(f"No protocol is called '{protocol}'.", nearest(protocol, PROTOCOLS))
    if split not in set(Split):
        raise InwitError(f"No split is called '{split}'.", nearest(split, set(Split)))
    recipe = _recipe_of(source, env, model, set_ or [])
    with err.status("Loading the model…"):
        cast = Cast.of(recipe)
    chosen = list(recipe.env.tasks(Split(split)))[:tasks]
    stage = cast.stage("eval", split, temperature=recipe.eval.temperature)
    with err.status(f"{protocol} on {len(chosen)} tasks…"):
        measured, _ = asyncio.run(PROTOCOLS[protocol](chosen, stage))
    result = measured.as_dict() | {
        "split": split,
        "model": recipe.model.path,
        "sees": {name: sorted(cast.conditions[name]) for name in _shown(protocol)},
    }
    if save:
        write_json(save, result)
    if json_:
        return _print_json(result)
    table = Table("measure", "value", "95% interval", "N", title=f"{recipe.model.path}, {split}")
    for name in ("first", "revision"):
        if (rate := result[name]) and rate["n"]:
            interval = "[{:.1%}, {:.1%}]".format(*rate["ci"])
            table.add_row(f"success, {name}", f"{rate['value']:.1%}", interval, str(rate["n"]))
    for name in ("critic_gain", "critique_tokens", "truncated", "sampled_tokens"):
        if result[name] is not None:
            table.add_row(name.replace("_", " "), f"{result[name]:,.4g}", "", "")
    out.print(table)
    out.print(
        "shown to the model: "
        + "; ".join(f"{k}: {', '.join(v)}" for k, v in result["sees"].items())
    )


@app.command()
def sample(
    source: Source,
    env: Env_ = None,
    model: Model = None,
    n: Annotated[int, typer.Option("--n", min=1, help="How many tasks.")] = 3,
    split: Annotated[str, typer.Option(help="train, dev or test.")] = "dev",
    set_: Set = None,
    json_: Json = False,
) -> None:
    """Show a model at work: attempt, and where it fails the critique and the revision.

    [bold]inwit sample runs/demo/seed-0/icrl --n 5[/]
    """
    from inwit.casting import Cast
    from inwit.envs import Split
    from inwit.errors import nearest
    from inwit.evaluation.protocols import critique

    if split not in set(Split):
        raise InwitError(f"No split is called '{split}'.", nearest(split, set(Split)))
    recipe = _recipe_of(source, env, model, set_ or [])
    with err.status("Loading the model…"):
        cast = Cast.of(recipe)
    chosen = list(recipe.env.tasks(Split(split)))[:n]
    with err.status("Sampling…"):
        _, episodes = asyncio.run(critique(chosen, cast.stage("sample", split)))
    shown = [
        {
            "task": task.id,
            "question": task.question,
            "reference": task.reference,
            "attempts": [{"text": a.text, "grade": a.grade} for a in episode.attempts],
            "critiques": [c.text for c in episode.critiques],
        }
        for task, episode in zip(chosen, episodes, strict=True)
    ]
    if json_:
        return _print_json(shown)
    for item in shown:
        out.rule(item["task"])
        out.print(item["question"], markup=False, highlight=False)
        for i, attempt in enumerate(item["attempts"]):
            name = "revision" if i else "attempt"
            _say(name, attempt["text"], str(attempt["grade"]))
            if i < len(item["critiques"]):
                _say("critique", item["critiques"][i], "")
        _say("reference", item["reference"], "")


@app.command()
def compare(
    study: Annotated[Path, typer.Argument(help="The study, a TOML file.")],
    out_: Annotated[Path, typer.Option("--out", help="Folder for all its runs.")] = Path(
        "runs/compare"
    ),
    seed: Annotated[
        list[int] | None, typer.Option(help="A seed; repeatable. 0 if not given.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time.")] = 1,
    set_: Set = None,
    json_: Json = False,
) -> None:
    """Train several methods from one warm start and compare them at equal sampled tokens.

    A study that was stopped goes on where it was.

    [bold]inwit compare recipes/checkout/demo.toml --seed 0 --seed 1 --seed 2 --jobs 2[/]
    """
    from inwit.compare import compare as run

    summary = run(study, out_, seed or [0], set_ or [], jobs=jobs, tell=_tell)
    if json_:
        return _print_json(json.loads((out_ / "summary.json").read_text("utf-8")))
    for one in summary.get("runs", [summary]):
        out.print(_comparison(one, summary["budget"], summary["target"]))
    for name, interval in summary.get("differences", {}).items():
        text = f"{name}: {interval.value:.4g} [{interval.low:.4g}, {interval.high:.4g}]"
        out.print(f"{text} (95%, {len(summary['runs'])} seeds)", highlight=False)
    out.print(f"summary: {out_ / 'summary.json'}   curves: {out_ / 'curves.png'}", highlight=False)


@app.command()
def methods(json_: Json = False) -> None:
    """List the methods that a recipe can name, and their settings."""
    from inwit.methods import known_methods, method_class

    found = {name: method_class(name) for name in sorted(known_methods())}
    _list(found, {name: m.summary for name, m in found.items()}, json_)


@app.command()
def envs(json_: Json = False) -> None:
    """List the environments that a recipe can name, and their settings."""
    from inwit.envs import env_class, known_envs

    found = {name: env_class(name) for name in sorted(known_envs())}
    _list(found, {name: (e.__doc__ or "").splitlines()[0] for name, e in found.items()}, json_)


# ---------------------------------------------------------------------- helpers


def _recipe_of(source: str, env: str | None, model: str | None, overrides: list[str]) -> Any:
    """The recipe of a run's folder, of a recipe file, or one made up for a bare model."""
    from inwit.recipe import load_recipe, override, parse_recipe

    path = Path(source)
    sets = [*overrides, *([f"model.path={model}"] if model else [])]
    if (path / "recipe.toml").is_file():
        own = path / "model"
        if not model and not own.is_dir():
            raise InwitError(
                f"The run '{source}' has no model yet.", "Wait for its end, or --model."
            )
        recipe = load_recipe(path / "recipe.toml", sets)
        if recipe.method.frozen_critic:  # the critic is what the run began from, not its end
            start = f"method.critic_model={recipe.model.path}"
            sets = ["method.critic=external", start, *sets]
        return load_recipe(path / "recipe.toml", [f"model.path={own}", *sets])
    if path.suffix == ".toml":
        return load_recipe(path, sets)
    if env is None:
        raise InwitError(f"'{source}' is taken for a model.", "Say which environment: --env NAME.")
    data: dict[str, Any] = {
        "model": {"path": source},
        "env": {"name": env},
        "method": {"name": "icrl"},
        "train": {"steps": 1},
    }
    for text in sets:
        override(data, text)
    return parse_recipe(data, source)


def _shown(protocol: str) -> tuple[str, ...]:
    return ("solver",) if protocol == "direct" else ("solver", "critic", "revision")


def _say(name: str, text: str, note: str) -> None:
    out.print(f"[bold]{name}[/] {note}", highlight=False)
    out.print(text, markup=False, highlight=False)


def _tell(message: str) -> None:
    err.print(message, markup=False, highlight=False, soft_wrap=True)


def _comparison(run: dict[str, Any], budget: int, target: float | None) -> Table:
    from inwit.compare import target_key

    reach = f"to {target:.0%}" if target else "to target"
    heads = ("method", "accuracy, 95%", "N", "CPU-s", reach, "CPU-s ", "gain", "w")
    table = Table(*heads, title=f"seed {run['seed']}, at {budget:,} sampled tokens")
    for name, m in run["methods"].items():
        cost = m[target_key(target)]
        gain, weight = m.get("critic_gain"), m.get("mean_weight")
        table.add_row(
            name,
            f"{m['accuracy']:.1%} [{100 * m['ci'][0]:.1f}, {100 * m['ci'][1]:.1f}]",
            str(m["n"]),
            f"{m['cpu_seconds']:.0f}",
            f"{cost['sampled_tokens']:,}" if cost else "not reached",
            f"{cost['cpu_seconds']:.0f}" if cost else "",
            f"{gain:+.1%}" if gain is not None else "",
            f"{weight:.2f}" if weight is not None else "",
        )
    return table


def _list(found: dict[str, Any], summaries: dict[str, str], json_: bool) -> None:
    if json_:
        return _print_json(
            {
                name: {"summary": summaries[name], "settings": kind.Settings.model_json_schema()}
                for name, kind in found.items()
            }
        )
    for name, kind in found.items():
        table = Table(
            "setting",
            "default",
            "meaning",
            title=f"{name}: {summaries[name]}",
            title_justify="left",
        )
        for key, field in kind.Settings.model_fields.items():
            default = (
                "required"
                if field.is_required()
                else repr(field.get_default(call_default_factory=True))
            )
            table.add_row(key, default, field.description or "")
        out.print(table)
    return None


def _print_json(value: object) -> None:
    from inwit.runs import plain

    sys.stdout.write(json.dumps(plain(value), indent=2, ensure_ascii=False) + "\n")


def main(run: Callable[[], Any] = app) -> None:
    """Entry point: errors of the user's are printed without a traceback, and exit with 2."""
    try:
        run()
    except InwitError as error:
        err.print(f"[bold red]error[/] {_escaped(error.what)}", highlight=False)
        if error.fix:
            err.print(f"      {_escaped(error.fix)}", highlight=False)
        sys.exit(2)
    except KeyboardInterrupt:
        err.print("stopped")
        sys.exit(130)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
