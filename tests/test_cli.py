"""The command line: help that helps, results on standard output, errors without a traceback."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from inwit import cli
from inwit.console import Live
from inwit.errors import InwitError
from inwit.methods.base import ExternalCritic
from inwit.recipe import load_recipe, parse_recipe
from tests.conftest import RECIPES, ROOT, lines, run


@dataclass
class Said:
    """What a command exited with and said; lines are as wide as it takes."""

    code: object
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as JSON, which it must be and nothing else."""
        assert self.code == 0, self.err
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The message of a refused command."""
        assert self.code == 2, self.out + self.err
        assert self.out == ""
        assert "Traceback" not in self.err
        assert self.err.startswith("error ")
        return self.err


@pytest.fixture
def inwit(capsys, monkeypatch) -> Callable[..., Said]:
    """Run a command in this process, as `python -m inwit` would."""
    for console in (cli.out, cli.err):
        monkeypatch.setattr(console, "width", 400)
    monkeypatch.setenv("COLUMNS", "120")

    def call(*arguments: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["inwit", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        said = capsys.readouterr()
        return Said(end.value.code or 0, said.out, said.err)

    return call


@pytest.fixture(scope="module")
def trained(model, tmp_path_factory) -> Path:
    """A finished debug run of ICRL."""
    out = tmp_path_factory.mktemp("trained") / "icrl"
    run("debug-icrl", out, f"model.path={model}")
    return out


def bare(text: str) -> str:
    """Without the frames and colours of the help."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯─]", " ", text).split())


# ---------------------------------------------------------------------- help

OPTIONS = {
    "train": ["RECIPE", "--out", "--set", "--resume", "--json"],
    "eval": ["SOURCE", "--env", "--model", "--protocol", "--split", "--tasks", "--set", "--json"],
    "sample": ["SOURCE", "--env", "--model", "--n", "--split", "--set", "--json"],
    "compare": ["STUDY", "--out", "--seed", "--jobs", "--set", "--json"],
    "methods": ["--json"],
    "envs": ["--json"],
}


def test_every_command_is_listed(inwit):
    for arguments in ([], ["--help"]):
        said = inwit(*arguments)
        text = bare(said.out + said.err)
        assert all(f" {command} " in text for command in OPTIONS)
        assert "find and fix their own mistakes" in text


@pytest.mark.parametrize("command", OPTIONS)
def test_help_says_what_it_does_and_names_its_options(command, inwit):
    said = inwit(command, "--help")
    assert said.code == 0
    text = bare(said.out)
    assert re.search(rf"Usage: .*\binwit {command} ", text)
    for option in OPTIONS[command]:
        assert option.lower() in text.lower(), option
    if command not in ("methods", "envs"):  # those need no example
        assert re.search(rf"inwit {command} (recipes|runs)/", text)
    for example in re.findall(r"(recipes/[\w/-]+\.toml)", text):
        assert (ROOT / example).is_file()


def test_every_option_has_a_help_text(inwit):
    """A line of the help that names an option and ends there explains nothing."""
    for command in OPTIONS:
        for line in inwit(command, "--help").out.splitlines():
            words = bare(line).split()
            if words and words[0].startswith("--"):
                assert len(words) >= 4, line


def test_an_unknown_command_or_option_is_refused(inwit):
    for arguments in (["trian"], ["train", "--recipe", "x"], ["eval"], ["sample", "x", "--n", "0"]):
        said = inwit(*arguments)
        assert said.code == 2
        assert "Traceback" not in said.err
        assert "inwit" in bare(said.err)


# ---------------------------------------------------------------------- train


def test_train_says_where_everything_is(inwit, model, tmp_path):
    out = tmp_path / "run"
    said = inwit(
        "train", RECIPES / "debug-grpo.toml", "--out", out,
        "--set", f"model.path={model}", "--set", "train.steps=2", "--set", "seed=5",
    )  # fmt: skip
    assert said.code == 0, said.err
    assert "2 steps, " in said.out
    assert f"model: {out / 'model'}" in said.out
    assert f"log: {out / 'metrics.jsonl'}" in said.out
    assert len(lines(out, kind="train")) == 2
    assert "run: step 1 of 2" in said.err  # progress does not mix with results
    assert "step 1 of" not in said.out
    assert "seed = 5\n" in (out / "recipe.toml").read_text("utf-8")


def test_train_prints_the_summary_as_json(inwit, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = ["--set", f"model.path={model}", "--set", "train.steps=1"]
    summary = inwit("train", RECIPES / "debug-grpo.toml", *settings, "--json").json
    assert (summary["method"], summary["step"], summary["stopped_by"]) == ("grpo", 1, "steps")
    # the folder's name is the recipe's, where none is given
    written = tmp_path / "runs" / "debug-grpo" / "summary.json"
    assert json.loads(written.read_text("utf-8")) == summary


def test_train_needs_a_recipe_or_a_run(inwit, trained, tmp_path):
    for arguments in ([], [RECIPES / "debug-grpo.toml", "--resume", trained]):
        assert "Give a recipe to begin a run, or --resume" in inwit("train", *arguments).error
    assert "--set does not go" in inwit("train", "--resume", trained, "--set", "seed=3").error
    assert "is finished" in inwit("train", "--resume", trained).error
    assert "not a run folder" in inwit("train", "--resume", tmp_path).error


def test_train_refuses_what_cannot_begin(inwit, model, trained, tmp_path):
    recipe, out = RECIPES / "debug-grpo.toml", ["--out", tmp_path / "run"]

    def refused(*settings: str) -> str:
        return inwit("train", recipe, *out, *(s for t in settings for s in ("--set", t))).error

    assert "There is no recipe 'none.toml'" in inwit("train", "none.toml", *out).error
    assert "Did you mean 'grpo'?" in refused("method.name=gprpo")
    assert "Did you mean 'checkout'?" in refused("env.name=chekout")
    assert "unknown key 'train.stps'" in refused(f"model.path={model}", "train.stps=3")
    assert "section.key=value" in refused("train.steps")
    assert "no model directory '/no/such/model'" in refused("model.path=/no/such/model")
    (tmp_path / "broken.toml").write_text("[model\n", encoding="utf-8")
    assert "is not TOML" in inwit("train", tmp_path / "broken.toml", *out).error
    assert not (tmp_path / "run").exists()
    assert "is not empty" in inwit("train", trained / "recipe.toml", "--out", trained).error


def test_the_model_of_the_debug_recipes_is_made_by_the_debug_warm_start(
    inwit, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    message = inwit("train", RECIPES / "debug-icrl.toml").error
    assert "There is no model directory 'runs/checkout/debug-warm/model'" in message
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------- eval


def test_eval_of_a_run_measures_its_model(inwit, trained):
    found = inwit("eval", trained, "--json").json
    assert found["model"] == str(trained / "model")
    assert (found["protocol"], found["split"]) == ("direct", "dev")
    assert found["first"]["n"] == 24
    assert found["first"]["ci"][0] <= found["first"]["value"] <= found["first"]["ci"][1]
    assert found["revision"] is None
    assert found["sees"] == {"solver": ["question"]}
    assert inwit("eval", trained, "--json").json == found


def test_eval_by_critique_says_what_was_shown(inwit, trained, tmp_path):
    """LESSONS 5: the information condition stands beside the numbers."""
    save = tmp_path / "result.json"
    arguments = ["--protocol", "critique", "--split", "test", "--tasks", "10"]
    found = inwit("eval", trained, *arguments, "--json", "--out", save).json
    assert found["first"]["n"] == 10
    assert found["revision"]["n"] == 10 - found["first"]["right"]
    assert "outcome" in found["sees"]["critic"]
    assert found["sees"]["revision"] == ["critique", "question"]
    assert json.loads(save.read_text("utf-8")) == found

    said = inwit("eval", trained, *arguments)
    text = bare(said.out)
    assert f"{found['first']['value']:.1%}" in text
    assert f"{found['revision']['value']:.1%}" in text
    assert "95% interval" in text
    assert "critic: attempt, outcome, question" in text


def test_eval_of_another_model_or_a_bare_one(inwit, trained, model):
    own = inwit("eval", trained, "--model", model, "--json").json
    assert own["model"] == model
    short = [
        "--set", "env={name = 'checkout', basket = 1, train = 40, dev = 24, test = 24}",
        "--set", "sampling.max_tokens=2", "--json",
    ]  # fmt: skip
    alone = inwit("eval", model, "--env", "checkout", *short).json
    assert alone["first"] == own["first"]
    random = inwit("eval", "embedded:checkout", "--env", "checkout", *short).json
    assert random["model"] == "embedded:checkout"
    assert random["first"]["n"] == 24


def test_eval_of_a_recipe(inwit, model):
    settings = ["--set", f"model.path={model}", "--set", "eval.temperature=0"]
    found = inwit("eval", RECIPES / "debug-grpo.toml", *settings, "--json").json
    assert found["first"]["n"] == 24
    assert found["model"] == model


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--protocol", "zzz"], "No protocol is called 'zzz'. Known: critique, direct."),
        (["--protocol", "critque"], "Did you mean 'critique'?"),
        (["--split", "tset"], "No split is called 'tset'. Did you mean 'test'?"),
        (["--model", "/no/such/model"], "no model directory"),
        (["--set", "sampling.top_p=0.9"], "refused"),
    ],
)
def test_eval_refuses_what_it_does_not_know(arguments, says, inwit, trained):
    assert says in bare(inwit("eval", trained, *arguments).error)


def test_eval_of_a_model_needs_an_environment(inwit, model):
    for command in ("eval", "sample"):
        message = bare(inwit(command, model).error)
        assert "is taken for a model" in message
        assert "--env" in message
    assert "Did you mean 'checkout'?" in inwit("eval", model, "--env", "checkuot").error
    assert "'env.file' is missing" in inwit("eval", model, "--env", "questions").error


def test_eval_of_a_run_that_has_not_ended(inwit, trained, tmp_path):
    (tmp_path / "run").mkdir()
    shutil.copy(trained / "recipe.toml", tmp_path / "run")
    assert "has no model yet" in inwit("eval", tmp_path / "run").error


# ---------------------------------------------------------------------- sample


def test_sample_shows_attempts_critiques_and_revisions(inwit, trained):
    shown = inwit("sample", trained, "--n", "6", "--json").json
    assert [item["task"] for item in shown] == [f"dev-{i}" for i in range(6)]
    for item in shown:
        wrong = item["attempts"][0]["grade"] == "wrong"
        assert len(item["attempts"]) == 1 + wrong
        assert len(item["critiques"]) == wrong
        right = [a["text"] == item["reference"] for a in item["attempts"]]
        assert right == [a["grade"] == "right" for a in item["attempts"]]
    said = inwit("sample", trained, "--n", "6")
    for item in shown:
        assert item["task"] in said.out
        assert item["question"] in said.out
    assert said.out.count("reference") == 6
    assert said.out.count("critique") == sum(len(item["critiques"]) for item in shown)
    assert "No split is called 'none'" in inwit("sample", trained, "--split", "none").error


# ---------------------------------------------------------------------- compare


@pytest.fixture
def study(trained, model, tmp_path) -> tuple[Path, Path]:
    """A study all of whose runs are there already, and its folder."""
    for seed in (0, 1):
        home = tmp_path / "out" / f"seed-{seed}"
        shutil.copytree(trained, home / "icrl")
        run("debug-grpo", home / "grpo", f"model.path={model}", f"seed={seed}")
        for method in ("grpo", "icrl"):  # as the study would have run them
            recipe = load_recipe(RECIPES / f"debug-{method}.toml", [f"seed={seed}"])
            (home / method / "recipe.toml").write_text(recipe.as_toml(), encoding="utf-8")
    file = tmp_path / "study.toml"
    names = "".join(f'{m} = "{RECIPES}/debug-{m}.toml"\n' for m in ("grpo", "icrl"))
    file.write_text(f"[study]\nbudget = 200\ntarget = 0.8\n[methods]\n{names}", encoding="utf-8")
    return file, tmp_path / "out"


def test_compare_prints_a_table_or_json(inwit, study):
    file, out = study
    found = inwit("compare", file, "--out", out, "--json").json
    assert found == json.loads((out / "summary.json").read_text("utf-8"))
    said = inwit("compare", file, "--out", out)
    text = bare(said.out)
    assert "seed 0, at 200 sampled tokens" in text
    for method in ("grpo", "icrl"):
        assert f"{method} " in text
        assert f"{found['methods'][method]['accuracy']:.1%}" in text
    assert "not reached" in text
    assert str(out / "curves.png") in said.out

    said = inwit("compare", file, "--out", out, "--seed", "0", "--seed", "1", "--jobs", "2")
    assert "icrl - grpo: accuracy" in said.out
    assert "2 seeds" in said.out
    assert "seed 1, at 200 sampled tokens" in bare(said.out)


def test_compare_refuses_what_it_cannot_run(inwit, tmp_path):
    assert "There is no study" in inwit("compare", tmp_path / "none.toml").error
    assert "is a folder" in inwit("compare", tmp_path).error
    out = ["--out", tmp_path / "out"]
    message = inwit("compare", RECIPES / "debug.toml", *out, "--set", "train.stps=1").error
    assert "train.stps" in message
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------------- methods and envs


@pytest.mark.parametrize(
    ("command", "names", "setting"),
    [
        ("methods", {"grpo", "icrl", "sft"}, ("icrl", "w_max")),
        ("envs", {"checkout", "questions", "reasoning_gym"}, ("questions", "file")),
    ],
)
def test_what_a_recipe_can_name_is_listed_with_its_settings(command, names, setting, inwit):
    found = inwit(command, "--json").json
    assert set(found) >= names
    name, key = setting
    assert key in found[name]["settings"]["properties"]
    text = bare(inwit(command).out)
    for name, described in found.items():
        assert described["summary"]
        assert f"{name}: {described['summary']}" in text
        for key in described["settings"]["properties"]:
            assert f" {key} " in text
    assert "required" in text if command == "envs" else True


# ---------------------------------------------------------------------- the entry point


def test_a_real_process_exits_with_2_and_no_traceback(tmp_path):
    command = [sys.executable, "-m", "inwit", "eval", "x", "--env", "no-such-env"]
    failed = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert failed.returncode == 2
    assert failed.stdout == ""
    assert failed.stderr.startswith("error No environment is called 'no-such-env'.")
    assert "Known: checkout" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_brackets_in_messages_are_shown_and_not_read_as_markup(capsys):
    def fail() -> None:
        raise InwitError("The section [bold] is [red]bad[/red].", "See [env].")

    with pytest.raises(SystemExit) as end:
        cli.main(fail)
    assert end.value.code == 2
    assert "[bold] is [red]bad[/red]" in capsys.readouterr().err


def test_an_interrupt_ends_quietly(capsys):
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as end:
        cli.main(stop)
    assert end.value.code == 130
    assert capsys.readouterr().err == "stopped\n"


def test_a_fault_of_ours_keeps_its_traceback():
    def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cli.main(broken)


# ---------------------------------------------------------------------- while something runs

STEP = {"success/first": 0.25, "success/revision": 0.5, "weight_mean": 0.9, "loss": 0.123,
        "total/sampled_tokens": 12345}  # fmt: skip
DEV = {"split": "dev", "step": 4, "first": {"value": 0.5, "ci": [0.4, 0.6], "n": 100}}


def live(**settings: Any) -> tuple[Live, io.StringIO]:
    file = io.StringIO()
    return Live(Console(file=file, width=200, **settings), "my-run"), file


def test_where_there_is_no_terminal_progress_is_plain_lines():
    shown, file = live()
    with shown:
        shown.evaluated(DEV)
        for step in range(1, 5):
            shown.step(step, 9, STEP)
    text = file.getvalue()
    assert text.splitlines() == [  # and not more often than every ten seconds
        "my-run: step 1 of 9  first 25.0% revised 50.0% w 0.90 loss 0.123 tokens 12,345 "
        "dev 50.0% [40.0%, 60.0%] N=100"
    ]


def test_what_was_not_measured_is_not_shown():
    shown, file = live()
    shown.step(1, 9, dict.fromkeys(STEP) | {"loss": 1.0})
    assert file.getvalue() == "my-run: step 1 of 9  loss 1.000\n"
    shown.evaluated({"split": "dev", "step": 0, "first": {"value": None, "ci": None, "n": 0}})


def test_test_is_told_where_it_is_asked():
    shown, file = live()
    shown.evaluated(DEV | {"split": "test"})
    assert file.getvalue() == "my-run: at step 4, test 50.0% [40.0%, 60.0%] N=100\n"


def test_each_kind_of_alarm_is_told_once():
    shown, file = live()
    for _ in range(3):
        shown.alarm("silent critic", "the critic is falling silent, revisions succeed at 5.0%")
        shown.alarm("parity", "they differ")
    assert file.getvalue().splitlines() == [
        "warning my-run: the critic is falling silent, revisions succeed at 5.0%",
        "warning my-run: they differ",
    ]


def test_a_terminal_shows_a_live_line():
    shown, file = live(force_terminal=True)
    with shown:
        shown.evaluated(DEV)
        shown.step(3, 9, STEP)
        shown._bar.refresh()
    text = file.getvalue()
    assert "my-run" in text
    assert "3/9" in text
    assert "dev 50.0%" in text


# ---------------------------------------------------------------------- a frozen critic


def test_a_frozen_critic_stays_what_the_run_began_from(tmp_path):
    """Its run's model is the trained one; who criticises is the one before."""
    data = {
        "model": {"path": "embedded:checkout"},
        "env": {"name": "checkout"},
        "method": {"name": "icrl", "critic": "frozen"},
        "train": {"steps": 1},
    }
    (tmp_path / "recipe.toml").write_text(parse_recipe(data, "x").as_toml(), encoding="utf-8")
    (tmp_path / "model").mkdir()
    recipe = cli._recipe_of(str(tmp_path), None, None, [])
    assert recipe.model.path == str(tmp_path / "model")
    assert recipe.method.external_critic == ExternalCritic("embedded:checkout")
