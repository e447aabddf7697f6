"""Recipes: what is refused and how it is said, overlays, overrides, and reading back."""

from __future__ import annotations

import json
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inwit.engines.openai import OpenAISettings
from inwit.engines.tinker import TinkerSettings
from inwit.engines.torch import TorchSettings
from inwit.errors import InwitError
from inwit.evaluation.protocols import PROTOCOLS
from inwit.recipe import Recipe, load_recipe, override, parse_recipe
from inwit.rows import Sees
from tests.conftest import ROOT

SMALL = {"name": "checkout", "train": 4, "dev": 4, "test": 4}


def tables(**changes: Any) -> dict[str, Any]:
    """The least that a recipe needs; `changes` by section, None takes a section out."""
    data: dict[str, Any] = {
        "model": {"path": "embedded:checkout"},
        "env": SMALL,
        "method": {"name": "grpo"},
        "train": {"steps": 3},
    }
    return {k: v for k, v in (data | changes).items() if v is not None}


def refusal(**changes: Any) -> str:
    with pytest.raises(InwitError) as error:
        parse_recipe(tables(**changes), "my.toml")
    assert error.value.what.startswith("my.toml: ")
    return str(error.value)


def write(folder: Path, **texts: str) -> Path:
    """Recipe files by name; the path of the first one."""
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    return folder / f"{next(iter(texts))}.toml"


BASE = """\
seed = 3
[model]
path = "embedded:checkout"
[env]
name = "checkout"
train = 4
dev = 4
test = 4
[method]
name = "icrl"
length_penalty = 0.5
group_size = 6
[train]
steps = 3
queries = 2
"""


def assert_equal(a: Recipe, b: Recipe) -> None:
    for field in fields(Recipe):
        mine, yours = getattr(a, field.name), getattr(b, field.name)
        if field.name in ("env", "method", "protocol"):
            assert type(mine) is type(yours)
            mine, yours = mine.settings, yours.settings
        assert mine == yours, field.name


# ---------------------------------------------------------------------- reading


def test_what_is_not_said_has_its_default():
    recipe = parse_recipe(tables(), "my.toml")
    assert (recipe.seed, recipe.prompts, recipe.tracking) == (0, None, ())
    assert (recipe.env_name, recipe.method_name) == ("checkout", "grpo")
    assert recipe.train.queries == 16
    assert recipe.sampling.temperature == 1.0
    assert recipe.eval.every == 0
    assert recipe.engine.name == "torch"


@pytest.mark.parametrize("section", ["model", "env", "method", "train"])
def test_a_missing_section_is_named(section):
    assert f"[{section}] is missing" in refusal(**{section: None})


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"train": {"queries": 4}}, "train.steps"),
        ({"model": {"template": {}}}, "model.path"),
        ({"env": {"name": "questions"}}, "env.file"),
    ],
)
def test_a_missing_key_is_named(changes, key):
    assert f"'{key}' is missing" in refusal(**changes)


@pytest.mark.parametrize("section", ["env", "method"])
@pytest.mark.parametrize("table", [{}, {"name": 3}, "checkout"])
def test_env_and_method_need_a_name(section, table):
    assert f"[{section}] needs a name" in refusal(**{section: table})


@pytest.mark.parametrize(
    ("changes", "unknown", "meant"),
    [
        ({"optimiser": {"lr": 1.0}}, "section 'optimiser'", "'optimizer'"),
        ({"evaluation": {}}, "section 'evaluation'", "'eval'"),
        ({"sed": 3}, "section 'sed'", "'seed'"),
        ({"train": {"steps": 3, "querys": 2}}, "key 'train.querys'", "'queries'"),
        ({"model": {"path": "x", "pth": "y"}}, "key 'model.pth'", "'path'"),
        ({"method": {"name": "icrl", "wmax": 2}}, "key 'method.wmax'", "'w_max'"),
        ({"env": {**SMALL, "slips": [0.1, 0.2]}}, "key 'env.slips'", "'slip'"),
        ({"engine": {"lora": {"rnk": 3}}}, "key 'engine.lora.rnk'", "'rank'"),
        ({"optimizer": {"learning_rate": 1}}, "key 'optimizer.learning_rate'", "Known: "),
    ],
)
def test_an_unknown_section_or_key_is_named_with_its_nearest(changes, unknown, meant):
    message = refusal(**changes)
    assert f"unknown {unknown}" in message
    assert meant in message


@pytest.mark.parametrize(
    ("changes", "key", "value"),
    [
        ({"train": {"steps": "many"}}, "train.steps", "'many'"),
        ({"train": {"steps": 0}}, "train.steps", "0"),
        ({"train": {"steps": 2.5}}, "train.steps", "2.5"),
        ({"train": 5}, "train", "5"),
        ({"seed": "lucky"}, "seed", "'lucky'"),
        ({"sampling": {"temperature": 0}}, "sampling.temperature", "0"),
        ({"sampling": {"max_tokens": [1]}}, "sampling.max_tokens", "[1]"),
        ({"optimizer": {"lr": -1e-3}}, "optimizer.lr", "-0.001"),
        ({"optimizer": {"betas": [0.9, "x"]}}, "optimizer.betas.1", "'x'"),
        ({"engine": {"dtype": "float64"}}, "engine.dtype", "'float64'"),
        ({"engine": {"lora": {"rank": 0}}}, "engine.lora.rank", "0"),
        ({"engine": {"name": "jax"}}, "engine.name", "'jax'"),
        ({"tracking": ["mlflow"]}, "tracking.0", "'mlflow'"),
        ({"method": {"name": "icrl", "critic_sees": ["gold"]}}, "method.critic_sees", "'gold'"),
        ({"env": {**SMALL, "basket": 11}}, "env.basket", "11"),
    ],
)
def test_a_wrong_value_is_shown_with_its_key(changes, key, value):
    message = refusal(**changes)
    assert f"'{key}" in message
    assert f"is {value}: " in message


def test_all_mistakes_of_a_section_are_told_at_once():
    message = refusal(train={"steps": "many", "querys": 3})
    assert "'train.steps'" in message
    assert "'train.querys'" in message


@pytest.mark.parametrize("key", ["top_p", "top_k", "min_p"])
def test_truncated_sampling_is_refused_with_the_reason(key):
    """LESSONS 15: ratios are of the whole distribution; top-p and top-k are refused in training."""
    message = refusal(sampling={key: 0.9})
    assert f"'sampling.{key}' is refused" in message
    assert "truncated distribution" in message
    assert "ratios" in message
    assert "unknown" not in message


def test_greedy_is_for_evaluation_only():
    """LESSONS 15: training samples at the temperature that it scores at, never at 0."""
    assert parse_recipe(tables(eval={"temperature": 0}), "my.toml").eval.temperature == 0
    assert "sampling.temperature" in refusal(sampling={"temperature": 0.0})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"train": {"steps": 3, "stop_at": 0.5}}, "nothing is ever evaluated"),
        (
            {"train": {"steps": 3, "queries": 2}, "optimizer": {"minibatches": 3}},
            "optimizer.minibatches is 3, but a step has 2 queries",
        ),
        ({"prompts": "no/such/folder"}, "the prompts folder 'no/such/folder' does not exist"),
        ({"method": {"name": "grpo", "group_size": 1}}, "[method] group_size must be at least 2"),
        ({"method": {"name": "icrl", "rounds": 1}}, "rounds must be at least 2"),
        ({"method": {"name": "icrl", "critic": "external"}}, "critic_model"),
        ({"method": {"name": "icrl", "critic_sees": ["question", "attempt"]}}, "outcome"),
        ({"env": {**SMALL, "slip": [0.9, 0.1]}}, "[env] slip must be two rates"),
    ],
)
def test_combinations_that_mean_nothing_are_refused(changes, says):
    assert says in refusal(**changes)


def test_imitation_needs_an_environment_that_shows_how(tmp_path):
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"question": "q", "answer": "a"}\n', encoding="utf-8")
    message = refusal(method={"name": "sft"}, env={"name": "questions", "file": str(file)})
    assert "sft" in message
    assert "demonstrations" in message


@pytest.mark.parametrize(
    ("changes", "meant"),
    [
        ({"method": {"name": "gpro"}}, "No method is called 'gpro'.\n  Did you mean 'grpo'?"),
        ({"method": {"name": "zzz"}}, "Known: "),
        ({"env": {"name": "chekout"}}, "Did you mean 'checkout'?"),
    ],
)
def test_an_unknown_method_or_environment_is_told_its_nearest(changes, meant):
    with pytest.raises(InwitError) as error:
        parse_recipe(tables(**changes), "my.toml")
    assert meant in str(error.value)


# ---------------------------------------------------------------------- engines and protocols


def test_an_engine_is_chosen_by_name():
    assert isinstance(parse_recipe(tables(), "my.toml").engine, TorchSettings)
    url = "http://localhost:8000/v1"
    recipe = parse_recipe(tables(engine={"name": "openai", "url": url, "budget": 9}), "my.toml")
    assert isinstance(recipe.engine, OpenAISettings)
    assert (recipe.engine.url, recipe.engine.budget) == (url, 9)
    again = parse_recipe(tomllib.loads(recipe.as_toml()), "again")
    assert_equal(again, recipe)


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        ({"name": "tourch"}, "Did you mean 'torch'?"),
        ({"name": 3}, "'engine.name' is 3"),
        ({"name": "openai"}, "'engine.url' is missing"),
        ({"name": "openai", "url": "http://x/v1", "lora": {}}, "unknown key 'engine.lora'"),
        ({"url": "http://x/v1"}, "unknown key 'engine.url'"),
        ("torch", "'engine' is 'torch'"),
    ],
)
def test_each_engine_has_settings_of_its_own(engine, says):
    assert says in refusal(engine=engine)


@pytest.mark.parametrize("name", PROTOCOLS.known())
def test_every_protocol_can_be_named_and_reads_back(name):
    recipe = parse_recipe(tables(eval={"protocol": name}), "my.toml")
    assert type(recipe.protocol) is PROTOCOLS.find(name)
    assert recipe.protocol.name == name
    assert_equal(parse_recipe(tomllib.loads(recipe.as_toml()), "again"), recipe)


def test_a_protocol_gets_its_options():
    data = tables(eval={"protocol": "intrinsic", "options": {"turns": 4}})
    recipe = parse_recipe(data, "my.toml")
    assert recipe.protocol.settings.model_dump() == {"turns": 4}
    assert parse_recipe(tables(), "my.toml").protocol.name == "direct"
    again = parse_recipe(tomllib.loads(recipe.as_toml()), "again")
    assert_equal(again, recipe)


@pytest.mark.parametrize(
    ("settings", "says", "meant"),
    [
        ({"protocol": "debate"}, "[eval] no protocol is called 'debate'.", "'direct'"),
        ({"protocol": "zzz"}, "[eval] no protocol is called 'zzz'.", "Known: critique, direct, "),
        ({"protocol": "intrinsc"}, "[eval] no protocol is called", "Did you mean 'intrinsic'?"),
        ({"options": {"turns": 2}}, "'direct' does not take turns = 2", "Its options: none."),
        (
            {"protocol": "intrinsic", "options": {"turns": 1}},
            "'intrinsic' does not take turns = 1",
            "Its options: turns.",
        ),
        (
            {"protocol": "parallel", "options": {"turns": 2}},
            "'parallel' does not take turns = 2",
            "Its options: k.",
        ),
        ({"options": 3}, "'eval.options' is 3", ""),
        ({"option": {}}, "unknown key 'eval.option'", "'options'"),
    ],
)
def test_a_protocol_or_an_option_that_does_not_exist_is_refused(settings, says, meant):
    message = refusal(eval=settings)
    assert says in message
    assert meant in message


@pytest.mark.parametrize(
    ("method", "says"),
    [
        ({"name": "score"}, "'method.stage_one_steps' is missing"),
        ({"name": "score", "stage_one_steps": 0}, "'method.stage_one_steps' is 0"),
        ({"name": "score", "stage_one_steps": 2, "group_size": 1}, "'method.group_size' is 1"),
        ({"name": "score", "stage_one_steps": 2, "without": "stage_two"}, "'method.without' is"),
        (
            {"name": "score", "stage_one_steps": 2, "without": "on_policy", "base_share": 0.5},
            "makes all first attempts fixed",
        ),
        (
            {"name": "score", "stage_one_steps": 2, "without": "stage_one", "bonus": "all_turns"},
            "are two ablations: choose one",
        ),
    ],
)
def test_settings_of_score_that_mean_nothing_are_refused(method, says):
    assert says in refusal(method=method)


# ---------------------------------------------------------------------- files


def test_broken_toml_names_file_and_line(tmp_path):
    path = write(tmp_path, broken='seed = 1\n[model]\npath = "x\n')
    with pytest.raises(InwitError, match=r"broken\.toml is not TOML.*line 3"):
        load_recipe(path)


def test_what_is_no_text_is_not_a_recipe(tmp_path):
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe\x00seed")
    with pytest.raises(InwitError, match=r"binary\.toml is not TOML"):
        load_recipe(path)


def test_a_missing_recipe_and_a_folder_are_told_apart(tmp_path):
    with pytest.raises(InwitError, match=r"There is no recipe '.*none\.toml'"):
        load_recipe(tmp_path / "none.toml")
    with pytest.raises(InwitError, match="is a folder"):
        load_recipe(tmp_path)


def test_an_error_names_the_recipe(tmp_path):
    path = write(tmp_path, mine=BASE + "[engine]\nmax_bach = 3\n")
    with pytest.raises(InwitError) as error:
        load_recipe(path)
    assert str(path) in error.value.what
    assert "max_batch" in error.value.fix


# ---------------------------------------------------------------------- extends


def test_an_overlay_changes_what_it_says_and_keeps_the_rest(tmp_path):
    path = write(
        tmp_path, top='extends = "base.toml"\n[train]\nsteps = 9\n[method]\ngroup_size = 4\n'
    )
    write(tmp_path, base=BASE)
    recipe = load_recipe(path)
    assert (recipe.train.steps, recipe.train.queries, recipe.seed) == (9, 2, 3)
    found = recipe.method.settings.model_dump()
    assert (found["group_size"], found["length_penalty"]) == (4, 0.5)


def test_overlays_go_through_several_files_and_folders(tmp_path):
    (tmp_path / "below").mkdir()
    write(tmp_path / "below", base=BASE)
    write(tmp_path, middle='extends = "below/base.toml"\nseed = 4\n[engine.lora]\nrank = 2\n')
    path = write(tmp_path, top='extends = "middle.toml"\n[engine.lora]\nalpha = 5\n')
    recipe = load_recipe(path)
    assert recipe.seed == 4
    assert recipe.train.queries == 2
    assert recipe.engine.lora is not None
    assert (recipe.engine.lora.rank, recipe.engine.lora.alpha) == (2, 5)


def test_another_method_or_environment_inherits_no_settings(tmp_path):
    write(tmp_path, base=BASE)
    path = write(tmp_path, top='extends = "base.toml"\n[method]\nname = "grpo"\n')
    found = load_recipe(path).method.settings.model_dump()
    assert "length_penalty" not in found
    assert found["group_size"] == 8  # grpo's default, not the 6 of the icrl below

    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"question": "q", "answer": "a"}\n', encoding="utf-8")
    path = write(
        tmp_path, other=f'extends = "base.toml"\n[env]\nname = "questions"\nfile = "{tasks}"\n'
    )
    assert load_recipe(path).env.settings.model_dump()["dev"] == 0.1


def test_the_same_method_named_again_keeps_its_settings(tmp_path):
    write(tmp_path, base=BASE)
    path = write(tmp_path, top='extends = "base.toml"\n[method]\nname = "icrl"\nw_max = 3.0\n')
    found = load_recipe(path).method.settings.model_dump()
    assert (found["length_penalty"], found["w_max"]) == (0.5, 3.0)


@pytest.mark.parametrize(
    "circle",
    [
        {"a": 'extends = "a.toml"'},
        {"a": 'extends = "b.toml"', "b": 'extends = "c.toml"', "c": 'extends = "a.toml"'},
    ],
)
def test_a_circle_is_refused(tmp_path, circle):
    with pytest.raises(InwitError, match="in a circle"):
        load_recipe(write(tmp_path, **circle))


def test_a_missing_parent_is_named(tmp_path):
    path = write(tmp_path, top='extends = "gone.toml"')
    with pytest.raises(InwitError, match=r"There is no recipe '.*gone\.toml'"):
        load_recipe(path)


def test_a_broken_parent_is_the_one_that_is_named(tmp_path):
    write(tmp_path, base="[model\n")
    with pytest.raises(InwitError, match=r"base\.toml is not TOML.*line 1"):
        load_recipe(write(tmp_path, top='extends = "base.toml"'))


# ---------------------------------------------------------------------- --set


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("seed=5", ("seed",), 5),
        ("optimizer.lr=3e-4", ("optimizer", "lr"), 3e-4),
        ("train.stop_at = 0.8", ("train", "stop_at"), 0.8),
        ("model.path=runs/a/model", ("model", "path"), "runs/a/model"),
        ('model.path="5"', ("model", "path"), "5"),
        ("model.path=a=b", ("model", "path"), "a=b"),
        ("model.path=it's here", ("model", "path"), "it's here"),
        ("model.path=", ("model", "path"), ""),
        ("tracking=['wandb', 'trackio']", ("tracking",), ["wandb", "trackio"]),
        ("eval.test_at_tokens=[170_000]", ("eval", "test_at_tokens"), [170000]),
        ("engine.gradient_checkpointing=true", ("engine", "gradient_checkpointing"), True),
        ("engine.lora.rank=4", ("engine", "lora", "rank"), 4),
        ("engine.lora={rank = 2}", ("engine", "lora"), {"rank": 2}),
        ("method.w_max=inf", ("method", "w_max"), float("inf")),
    ],
)
def test_an_override_is_read_as_toml_or_else_as_a_string(text, path, value):
    data: dict[str, Any] = {"optimizer": {"eps": 1.0}}
    override(data, text)
    assert data["optimizer"].get("eps") == 1.0
    found: Any = data
    for key in path:
        found = found[key]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", ["train.steps", "", "=3", " = 3"])
def test_an_override_needs_a_key_and_a_value(text):
    with pytest.raises(InwitError, match=r"key=value"):
        override({}, text)


def test_an_override_of_something_that_is_no_section_is_refused():
    with pytest.raises(InwitError, match="'seed' is not a section"):
        override({"seed": 3}, "seed.x=1")


def test_overrides_are_checked_like_the_file(tmp_path):
    path = write(tmp_path, mine=BASE)
    assert load_recipe(path, ["train.steps=7", "seed=9", "train.steps=8"]).train.steps == 8
    with pytest.raises(InwitError, match=r"'train\.stps'.*\n.*'steps'"):
        load_recipe(path, ["train.stps=7"])
    with pytest.raises(InwitError, match=r"'train\.steps' is 'x'"):
        load_recipe(path, ["train.steps=x"])
    with pytest.raises(InwitError, match=r"top_p.*refused"):
        load_recipe(path, ["sampling.top_p=0.9"])


@settings(deadline=None)
@given(st.text(max_size=30))
def test_any_override_is_taken_or_refused(text):
    data: dict[str, Any] = {"train": {"steps": 3}, "seed": 1}
    try:
        override(data, text)
    except InwitError:
        return
    key, _, _ = text.partition("=")
    assert key.strip()


# ---------------------------------------------------------------------- writing and reading back


def studies_and_recipes() -> tuple[list[Path], list[Path]]:
    studies, recipes = [], []
    for path in sorted((ROOT / "recipes").rglob("*.toml")):
        of_study = "study" in tomllib.loads(path.read_text("utf-8"))
        (studies if of_study else recipes).append(path)
    return studies, recipes


STUDIES, SHIPPED = studies_and_recipes()
# what others extend is no recipe of its own
WHOLE = [path for path in SHIPPED if path.stem != "base"]


SHAPES = {
    "gsm8k": lambda i: {"question": f"What is {i} + {i}?", "answer": f"{2 * i}"},
    "mbpp": lambda i: {
        "task_id": 600 + i,
        "text": f"Add {i}.",
        "code": f"def add(x): return x + {i}",
        "test_list": [f"assert add(0) == {i}"],
    },
    "hotpotqa": lambda i: {
        "question": f"Where is {i}?",
        "answer": f"at {i}",
        "paragraphs": [{"title": f"Place {i}", "sentences": [f"It is at {i}."]}],
    },
}
"""Records like those of the data that recipes name and this repository does not hold."""


def stand_ins(name: str, folder: Path) -> list[str]:
    """Settings that put small files in the place of a recipe's data; none for most recipes."""
    if name not in SHAPES:
        return []
    settings = []
    for key, start in (("file", 1), ("test_file", 50)):
        file = folder / f"{key}.jsonl"
        records = [json.dumps(SHAPES[name](i)) for i in range(start, start + 20)]
        file.write_text("\n".join(records), encoding="utf-8")
        settings.append(f"env.{key}={file}")
    if name == "hotpotqa":
        settings.append(f"env.cache={folder}")
    if name == "mbpp":  # bubblewrap may be missing here, and these programs are our own
        return [settings[0], "env.sandbox=rlimits"]
    return settings


@pytest.mark.parametrize("path", WHOLE, ids=lambda p: str(p.relative_to(ROOT / "recipes")))
def test_every_recipe_loads_and_reads_back_as_itself(path, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)  # paths in recipes are relative to where they are run
    recipe = load_recipe(path, stand_ins(path.stem, tmp_path))
    assert_equal(parse_recipe(tomllib.loads(recipe.as_toml()), "again"), recipe)


def test_every_experiment_has_a_variant_that_runs_in_seconds():
    real = {p for p in WHOLE + STUDIES if not p.stem.startswith("debug")}
    debug = {p for p in WHOLE + STUDIES if p.stem.startswith("debug")}
    for folder in {p.parent for p in real}:
        assert any(p.parent == folder for p in debug), folder


def test_unusual_settings_survive_writing_and_reading(tmp_path):
    prompts = tmp_path / "Aufträge"
    prompts.mkdir()
    recipe = parse_recipe(
        tables(
            seed=12345,
            prompts=str(prompts),
            tracking=["tensorboard", "wandb"],
            model={"path": 'a "b" \\ ü', "template": {"enable_thinking": False, "n": [1, 2]}},
            method={
                "name": "icrl",
                "w_max": float("inf"),
                "critiques_per_query": "all",
                "critic_sees": ["question", "attempt", "outcome", "reference"],
                "delta_critic": 1e-12,
            },
            engine={"lora": {"rank": 3, "targets": ["q_proj", "v_proj"]}, "max_batch": 7},
            optimizer={"betas": [0.1, 0.2], "schedule": "cosine", "lr": 1e-300},
            sampling={"max_context": 99},
            eval={
                "every": 2,
                "test_at_tokens": [10, 20],
                "tasks": 3,
                "protocol": "injected",
                "options": {"marker": 'Wait — "no"'},
            },
        ),
        "my.toml",
    )
    again = parse_recipe(tomllib.loads(recipe.as_toml()), "again")
    assert_equal(again, recipe)
    found = again.method.settings.model_dump()
    assert found["w_max"] == float("inf")
    assert found["critic_sees"] == set(Sees) - {Sees.CRITIQUE, Sees.FEEDBACK}
    assert again.eval.test_at_tokens == (10, 20)
    assert again.protocol.settings.model_dump() == {"marker": 'Wait — "no"'}


@settings(deadline=None, max_examples=40)
@given(
    st.floats(1e-12, 1e6),
    st.integers(0, 2**63 - 1),
    st.integers(1, 10**9),
    st.floats(0, 1),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
)
def test_any_value_survives_writing_and_reading(lr, seed, steps, share, path):
    data = tables(
        seed=seed,
        optimizer={"lr": lr},
        train={"steps": steps, "max_error_share": share},
        model={"path": path},
    )
    recipe = parse_recipe(data, "my.toml")
    again = parse_recipe(tomllib.loads(recipe.as_toml()), "again")
    assert_equal(again, recipe)


# ---------------------------------------------------------------------- a user's environment

ENV_FILE = '''
from pydantic import Field
from inwit.envs import AnswerEnv, EnvSettings, Result, Task

class Settings(EnvSettings):
    n: int = Field(2, ge=1)

class Sums(AnswerEnv):
    """Sums."""
    Settings = Settings
    def tasks(self, split):
        return [Task(f"{split}-{i}", f"{i} + 1", str(i + 1)) for i in range(self.settings.n)]
    def grade(self, task, answer):
        return Result.of(answer.strip() == task.reference)

class Other:
    pass
'''


def test_an_environment_comes_from_a_file_of_the_users(tmp_path):
    file = tmp_path / "sums.py"
    file.write_text(ENV_FILE, encoding="utf-8")
    recipe = parse_recipe(tables(env={"name": f"{file}:Sums", "n": 3}), "my.toml")
    assert [t.question for t in recipe.env.tasks("dev")] == ["0 + 1", "1 + 1", "2 + 1"]
    again = parse_recipe(tomllib.loads(recipe.as_toml()), "again")
    assert again.env.settings.model_dump() == {"n": 3}
    message = refusal(env={"name": f"{file}:Sums", "m": 3})
    assert "'env.m'" in message


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("{}/sums.py:Other", "is not an inwit environment"),
        ("{}/sums.py:Missing", "is not an inwit environment"),
        ("{}/none.py:Sums", "There is no file"),
    ],
)
def test_a_file_that_holds_no_such_environment_is_refused(tmp_path, name, says):
    (tmp_path / "sums.py").write_text(ENV_FILE, encoding="utf-8")
    with pytest.raises(InwitError, match=says):
        parse_recipe(tables(env={"name": name.format(tmp_path)}), "my.toml")


def test_coarse_weights_are_refused_for_full_fine_tuning():
    """In bfloat16 a step of a usual learning rate rounds to nothing, silently."""
    with pytest.raises(InwitError, match="bfloat16 weights are too coarse"):
        parse_recipe(tables(engine={"dtype": "bfloat16"}), "my.toml")
    parse_recipe(tables(engine={"dtype": "bfloat16", "lora": {"rank": 2}}), "my.toml")


def test_what_the_tinker_protocol_cannot_do_is_refused():
    """The method is named, and the reason; evaluations may be as warm as they like."""
    said = refusal(engine={"name": "tinker"}, sampling={"temperature": 0.7})
    assert "grpo is to sample at temperature 0.7" in said
    assert "log-probs at 1 only" in said
    made = parse_recipe(tables(engine={"name": "tinker"}, eval={"temperature": 0.2}), "my.toml")
    assert isinstance(made.engine, TinkerSettings)
    assert parse_recipe(tomllib.loads(made.as_toml()), "again").as_dict() == made.as_dict()


def test_another_engine_shares_no_settings_with_the_one_below(tmp_path):
    write(tmp_path, base=BASE + "[engine]\nthreads = 2\n")
    path = write(tmp_path, top='extends = "base.toml"\n[engine]\nname = "tinker"\nrank = 4\n')
    assert load_recipe(path).engine == TinkerSettings(rank=4)
    path = write(tmp_path, top='extends = "base.toml"\n[engine]\nmax_batch = 7\n')
    assert load_recipe(path).engine == TorchSettings(threads=2, max_batch=7)


def test_every_recipe_that_names_a_server_is_read():
    recipe = load_recipe(ROOT / "recipes" / "checkout" / "icrl-tinker.toml")
    plain = load_recipe(ROOT / "recipes" / "checkout" / "icrl.toml")
    assert isinstance(recipe.engine, TinkerSettings)
    assert {k: v for k, v in recipe.as_dict().items() if k != "engine"} == {
        k: v for k, v in plain.as_dict().items() if k != "engine"
    }
