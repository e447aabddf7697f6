"""What the commands share: the application, options, and printing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

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
out = Console(emoji=False, width=None if sys.stdout.isatty() else 120)  # a file has no width
err = Console(stderr=True, emoji=False)

Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a key of the recipe: section.key=value. Repeatable."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")]
Env = Annotated[str | None, typer.Option("--env", help="Environment, where SOURCE is a model.")]
Model = Annotated[
    str | None,
    typer.Option("--model", help="Another model than the source's own; its name at an endpoint."),
]


def recipe_of(
    source: str, env: str | None, model: str | None, overrides: list[str], usual: str = "direct"
) -> Any:
    """The recipe of a run's folder, of a recipe file, or one made up for a model or an endpoint.

    Args:
        usual: the protocol of a recipe that is made up.
    """
    from inwit.recipe import load_recipe, override, parse_recipe

    path = Path(source)
    other = [f'env={{name="{env}"}}'] if env else []
    sets = [*other, *overrides, *([f"model.path={model}"] if model else [])]
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
        raise InwitError(
            f"'{source}' is taken for a model.",
            "Say what it is asked: --questions FILE, or --env NAME.",
        )
    data: dict[str, Any] = {
        "model": {"path": source},
        "env": {"name": env},
        "method": {"name": "grpo"},
        "eval": {"protocol": usual},
        "train": {"steps": 1},
    }
    if source.startswith(("http://", "https://")):
        data |= {"model": {"path": ""}, "engine": {"name": "openai", "url": source}}
    for text in sets:
        override(data, text)
    return parse_recipe(data, source)


def split_of(name: str) -> Any:
    """The split called `name`."""
    from inwit.envs import Split
    from inwit.errors import nearest

    if name not in set(Split):
        raise InwitError(f"No split is called '{name}'.", nearest(name, set(Split)))
    return Split(name)


def tell(message: str) -> None:
    err.print(message, markup=False, highlight=False, soft_wrap=True)


def say(name: str, text: str, note: str) -> None:
    out.print(f"[bold]{name}[/] {note}", highlight=False)
    out.print(text, markup=False, highlight=False)


def list_all(found: dict[str, Any], summaries: dict[str, str], json_: bool) -> None:
    """What can be named, with every setting."""
    if json_:
        return print_json(
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


def print_json(value: object) -> None:
    from inwit.files import plain

    sys.stdout.write(json.dumps(plain(value), indent=2, ensure_ascii=False) + "\n")
