"""`inwit train`, `advance` and `compare`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from inwit.cli.common import Json, Set, app, err, out, print_json, tell
from inwit.errors import InwitError


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
        return print_json(summary)
    out.print(
        f"{summary['step']} steps, {summary['sampled_tokens']:,} tokens sampled", highlight=False
    )
    out.print(f"model: {folder / 'model'}   log: {folder / 'metrics.jsonl'}", highlight=False)


@app.command()
def advance(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    json_: Json = False,
) -> None:
    """Begin the next stage of a run by hand, at its next step, whether it is going or stopped.

    [bold]inwit advance runs/score[/]
    """
    from inwit.train import advance as ask

    title = ask(run)
    if json_:
        return print_json({"run": str(run), "stage": title})
    out.print(f"{title} begins at the next step of {run}", highlight=False)


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

    summary = run(study, out_, seed or [0], set_ or [], jobs=jobs, tell=tell)
    if json_:
        return print_json(json.loads((out_ / "summary.json").read_text("utf-8")))
    for one in summary.get("runs", [summary]):
        again = (m for m in one["methods"].values() if m["protocol"] != "critique")
        paired = any(m.get("a2") for m in again)
        show = _corrections if paired else _comparison
        out.print(show(one, summary["budget"], summary["target"]))
    if summary.get("means"):
        out.print(_means(summary))
    for name, interval in summary.get("differences", {}).items():
        text = f"{name}: {interval.value:.4g} [{interval.low:.4g}, {interval.high:.4g}]"
        out.print(f"{text} (95%, {len(summary['runs'])} seeds)", highlight=False)
    out.print(f"summary: {out_ / 'summary.json'}   curves: {out_ / 'curves.png'}", highlight=False)


def _comparison(run: dict[str, Any], budget: int, target: float | None) -> Table:
    from inwit.compare import target_key

    reach = f"to {target:.0%}" if target else "to target"
    heads = ("method", "accuracy, 95%", "N", "CPU-s", reach, "CPU-s ", "gain", "w")
    table = Table(*heads, title=f"seed {run['seed']}, at {budget:,} sampled tokens")
    for name, m in run["methods"].items():
        cost = m.get(target_key(target))
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


CORRECTIONS = {
    "a1": "A1",
    "a2": "A2",
    "delta": "delta",
    "wrong_to_right": "w>r",
    "right_to_wrong": "r>w",
    "edit_rate": "edited",
    "says_no_if_right": "no|r",
    "says_no_if_wrong": "no|w",
}
"""The columns of SCoRe's table 2, and what verification shows by."""


def _corrections(run: dict[str, Any], budget: int, target: float | None) -> Table:
    del target
    keys = [k for k in CORRECTIONS if any(m.get(k) for m in run["methods"].values())]
    n = max(m["n"] for m in run["methods"].values())
    title = f"seed {run['seed']}, at {budget:,} sampled tokens, N = {n}, %"
    heads = [CORRECTIONS[k] for k in keys]
    table = Table("method", *heads, "95% of delta", "tokens", "CPU-s", title=title)
    for name, m in run["methods"].items():
        cells = [_percent((m.get(k) or {}).get("value")) for k in keys]
        bounds = (m.get("delta") or {}).get("ci")  # none where it was asked once
        interval = "[{:+.1f}, {:+.1f}]".format(*(100 * x for x in bounds)) if bounds else ""
        tokens, seconds = f"{m['sampled_tokens'] / 1000:.0f}k", f"{m['cpu_seconds']:.0f}"
        table.add_row(name, *cells, interval, tokens, seconds)
    return table


def _means(summary: dict[str, Any]) -> Table:
    """Each method's measures: the mean over the seeds, and half of its interval's width."""
    keys = [k for k in CORRECTIONS if any(k in m for m in summary["means"].values())]
    title = f"mean over {len(summary['runs'])} seeds, %, 95%"
    table = Table("method", *(CORRECTIONS[k] for k in keys), title=title)
    for name, measures in summary["means"].items():
        found = [measures.get(k) for k in keys]
        cells = [f"{_percent(c.value)} ±{100 * (c.high - c.value):.1f}" if c else "" for c in found]
        table.add_row(name, *cells)
    return table


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"
