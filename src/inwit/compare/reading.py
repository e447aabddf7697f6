"""Study files: what is compared, from which start, at which cost.

[study]    budget = sampled tokens of the comparison, target = accuracy to be reached
warm       the warm start's recipe, or several that each go on from the model of the one before
           (without it, each recipe's own model)
[methods]  name = recipe, for each method
[asked]    name = protocol, for each way in which the warm start itself is asked on test
[set]      "section.key" = value, for the recipe of every method
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from inwit.errors import InwitError
from inwit.evaluation.protocols import protocol
from inwit.recipe import load_recipe

WARM = "warm"


class StudySettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    budget: int = Field(ge=1, description="sampled tokens at which the methods are compared")
    cpu_seconds: float | None = Field(None, gt=0, description="the same, in CPU-seconds, on dev")
    target: float | None = Field(None, gt=0, le=1, description="accuracy whose cost is reported")


def _several(names: Any) -> Any:
    return (names,) if isinstance(names, str) else names


class Study(BaseModel):
    """A study file. Recipe paths are relative to it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    study: StudySettings
    warm: Annotated[tuple[str, ...], BeforeValidator(_several)] = ()
    methods: dict[str, str]
    asked: dict[str, str] = Field(default_factory=dict)
    set: dict[str, Any] = Field(default_factory=dict)

    @property
    def settings(self) -> tuple[str, ...]:
        """`[set]` as the command line has it."""
        return tuple(
            f"{key}={tomli_w.dumps({'x': value}).partition('=')[2].strip()}"
            for key, value in self.set.items()
        )

    @property
    def warm_names(self) -> tuple[str, ...]:
        """The runs of the warm start: the last is the start itself, those before have their file's
        name."""
        return (*(Path(recipe).stem for recipe in self.warm[:-1]), *([WARM] if self.warm else []))

    @classmethod
    def read(cls, path: Path, settings: Sequence[str] = ()) -> Study:
        """Raises InwitError where the file, or a recipe that it names, is broken.

        Args:
            settings: `section.key=value` for each recipe.
        """
        try:
            study = cls.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError as error:
            raise InwitError(f"There is no study '{path}'.", "Check the path.") from error
        except IsADirectoryError as error:
            raise InwitError(f"'{path}' is a folder.", "Give the study's TOML file.") from error
        except (tomllib.TOMLDecodeError, ValidationError) as error:
            raise InwitError(f"{path}: {error}", "See recipes/checkout/demo.toml.") from error
        for recipe in study.warm:
            load_recipe(path.parent / recipe, settings)
        for recipe in study.methods.values():
            loaded = load_recipe(path.parent / recipe, (*study.settings, *settings))
            if study.study.budget not in loaded.eval.test_at_tokens:
                raise InwitError(
                    f"{path.parent / recipe} does not ask test at the study's budget of "
                    f"{study.study.budget:,} sampled tokens.",
                    "Put that number into its eval.test_at_tokens.",
                )
            if study.study.cpu_seconds is not None and not loaded.eval.every:
                raise InwitError(
                    f"{path.parent / recipe} never asks dev, which study.cpu_seconds compares.",
                    "Set its eval.every.",
                )
        for name in study.asked.values():
            protocol(name)
        names = [*study.methods, *study.asked, *study.warm_names]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise InwitError(f"{path}: two runs are called '{twice[0]}'.", "Rename one.")
        if study.asked and not study.warm:
            raise InwitError(f"{path}: [asked] is about a warm start.", "Name one: warm = ….")
        return study
