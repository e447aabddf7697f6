"""The command line: help that helps, results on standard output, errors without a traceback."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from scipy.stats import binomtest
from statsmodels.stats.proportion import proportion_confint

from inwit import cli
from inwit.cli import common
from inwit.console import Live
from inwit.errors import InwitError
from inwit.methods.base import ExternalCritic
from inwit.recipe import load_recipe, parse_recipe
from inwit.train import train
from tests.conftest import RECIPES, ROOT, Silent, killed, lines, run


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
    "advance": ["RUN", "--json"],
    "compare": ["STUDY", "--out", "--seed", "--jobs", "--set", "--json"],
    "eval": [
        "SOURCE", "--env", "--model", "--questions", "--protocol", "--turns", "--k", "--marker",
        "--samples", "--split", "--tasks", "--critic", "--critic-model", "--temperature",
        "--max-tokens", "--budget", "--set", "--out", "--json",
    ],
    "stats": ["FILES", "--n", "--first", "--mended", "--spoiled", "--json"],
    "check-data": [
        "ENV", "FILE", "--question", "--answer", "--solution", "--against", "--first", "--set",
        "--json",
    ],
    "sample": ["SOURCE", "--env", "--model", "--n", "--split", "--protocol", "--set", "--json"],
    "methods": ["--json"],
    "envs": ["--json"],
    "protocols": ["--json"],
}  # fmt: skip
LISTS = ("methods", "envs", "protocols")


def test_every_command_is_known_here():
    assert {c.callback.__name__.replace("_", "-") for c in common.app.registered_commands} == set(
        OPTIONS
    )


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
    if command not in LISTS:  # those need no example
        assert re.search(rf"inwit {command} (recipes/|runs/|http://|--n |math )", text)
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
    for arguments in (
        ["trian"],
        ["train", "--recipe", "x"],
        ["eval"],
        ["eval", "x", "--samples", "0"],
        ["eval", "x", "--turns", "1"],
        ["eval", "x", "--temperature", "-1"],
        ["advance"],
        ["sample", "x", "--n", "0"],
    ):
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


# ---------------------------------------------------------------------- advance


def test_advance_says_what_begins(inwit, model, tmp_path):
    out = tmp_path / "run"
    method = "method={name = 'score', group_size = 2, stage_one_steps = 9}"
    settings = [f"model.path={model}", method, "train.steps=4", "train.queries=2"]
    killed("debug-grpo", out, settings, "metrics.jsonl", 4)
    assert inwit("advance", out, "--json").json == {"run": str(out), "stage": "stage II"}
    said = inwit("advance", out)
    assert said.code == 0
    assert said.out == f"stage II begins at the next step of {out}\n"
    assert inwit("train", "--resume", out, "--json").json["stage"] == "stage II"
    assert lines(out, kind="train")[-1]["stage"] == "stage II"
    assert "is finished" in inwit("advance", out).error
    assert "not a run folder" in inwit("advance", tmp_path).error


def test_a_run_in_its_last_stage_is_not_advanced(inwit, model, tmp_path):
    out = tmp_path / "run"
    killed("debug-grpo", out, [f"model.path={model}", "train.steps=3"], "metrics.jsonl", 3)
    assert "is in its last stage" in inwit("advance", out).error


# ---------------------------------------------------------------------- eval


def settled(summary: dict[str, Any]) -> dict[str, Any]:
    """A summary without how long it took."""
    return {k: v for k, v in summary.items() if k != "seconds"}


def counted(summary: dict[str, Any], name: str) -> tuple[float, int]:
    """The counts that a measure was made from."""
    measure = summary["measures"][name]
    return measure["count"], measure["n"]


def test_eval_of_a_run_measures_its_model(inwit, trained):
    found = inwit("eval", trained, "--protocol", "direct", "--json").json
    assert found["model"] == str(trained / "model")
    assert (found["protocol"], found["split"]) == ("direct", "dev")
    assert (found["n"], found["samples"], found["unanswered"]) == (24, 1, 0)
    first = found["measures"]["a1"]
    assert first["n"] == 24
    assert first["ci"][0] <= first["value"] <= first["ci"][1]
    assert "a2" not in found["measures"]
    assert found["table"] is None
    assert found["sees"] == {"solver": ["question"]}
    again = inwit("eval", trained, "--protocol", "direct", "--json").json
    assert settled(again) == settled(found)
    # without --protocol, its questions are asked as the run's own evaluations were
    assert inwit("eval", trained, "--json").json["protocol"] == "critique"


def test_eval_by_critique_says_what_was_shown(inwit, trained, tmp_path):
    """LESSONS 5: the information condition stands beside the numbers."""
    save = tmp_path / "result"
    arguments = ["--protocol", "critique", "--split", "test", "--tasks", "10"]
    found = inwit("eval", trained, *arguments, "--json", "--out", save).json
    right, n = counted(found, "a1")
    assert n == 10
    assert counted(found, "repair_rate")[1] == 10 - right
    assert counted(found, "right_to_wrong") == (0, 10)
    assert found["sees"]["critic"] == ["attempt", "outcome", "question"]
    heard = ["attempt", "critique", "outcome", "question"]
    assert found["sees"]["revision"] == heard, "it is told by one who saw the outcome"
    assert json.loads((save / "summary.json").read_text("utf-8")) == found

    said = inwit("eval", trained, *arguments, "--out", save)
    assert said.code == 0
    text = bare(said.out)
    for measure in ("a1", "a2", "repair_rate"):
        assert f"{found['measures'][measure]['value']:.1%}" in text
    assert "95% interval" in text
    assert "critic: attempt, outcome, question" in text
    assert str(save) in said.out
    table = (save / "table.md").read_text("utf-8")
    assert "critic: attempt, outcome, question" in table
    assert f"{found['measures']['a1']['value']:.1%}" in table


def test_eval_writes_a_folder_and_goes_on_in_it(inwit, trained, tmp_path):
    """What was answered is not asked again; another evaluation has another folder."""
    home = Path("runs/eval")
    arguments = ["--protocol", "intrinsic", "--json"]
    few = inwit("eval", trained, *arguments, "--tasks", "5").json
    [folder] = home.iterdir()
    assert {p.name for p in folder.iterdir()} == {
        "evaluation.json", "answers.jsonl", "summary.json", "table.md",
    }  # fmt: skip
    before = (folder / "answers.jsonl").read_bytes()
    assert few["n"] == before.count(b"\n") == 5
    all_ = inwit("eval", trained, *arguments).json
    assert list(home.iterdir()) == [folder]
    assert all_["n"] == 24
    after = (folder / "answers.jsonl").read_bytes()
    assert after.startswith(before)
    assert after.count(b"\n") == 24

    inwit("eval", trained, *arguments, "--turns", "3")
    inwit("eval", trained, *arguments, "--temperature", "0")
    inwit("eval", trained, *arguments, "--split", "test")
    assert len(list(home.iterdir())) == 4

    out = tmp_path / "mine"
    elsewhere = inwit("eval", trained, *arguments, "--out", out).json
    assert settled(elsewhere)["table"] == all_["table"]
    for key, other in (("split", ["--split", "test"]), ("options", ["--turns", "3"])):
        message = inwit("eval", trained, *arguments, "--out", out, *other).error
        assert f"holds another evaluation: its {key} differs" in message
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").touch()
    assert "holds something else" in inwit("eval", trained, "--out", tmp_path / "full").error
    message = inwit("eval", trained, "--out", tmp_path / "full" / "letter.txt").error
    assert "is a file" in message


def test_options_of_a_protocol(inwit, trained):
    found = inwit("eval", trained, "--protocol", "intrinsic", "--turns", "3", "--json").json
    assert {"a1", "a2", "a3", "delta", "edit_rate"} <= set(found["measures"])
    assert sum(found["table"].values()) == 24
    found = inwit("eval", trained, "--protocol", "parallel", "--k", "2", "--json").json
    assert counted(found, "a1")[1] == 4 * 24
    assert counted(found, "vote")[1] == 24
    for arguments in (
        ["--protocol", "direct", "--turns", "3"],
        ["--protocol", "intrinsic", "--k", "3"],
    ):
        assert "does not take" in inwit("eval", trained, *arguments).error
    several = ["--protocol", "direct", "--samples", "3", "--json"]
    found = inwit("eval", trained, *several).json
    assert (found["n"], found["samples"]) == (24, 3)
    assert counted(found, "a1")[1] == 72


def test_options_given_alone_are_of_the_runs_own_protocol(inwit, trained):
    found = inwit("eval", trained, "--turns", "3", "--tasks", "8", "--json").json
    assert found["protocol"] == "critique"
    assert "a3" in found["measures"]


def test_greedy_and_short(inwit, trained):
    short = ["--protocol", "direct", "--max-tokens", "1", "--temperature", "0", "--json"]
    found = inwit("eval", trained, *short).json
    assert found["temperature"] == 0
    assert found["sampled_tokens"] == 24
    assert found["measures"]["tokens/turn_1"]["value"] == 1


def test_questions_of_ones_own_are_all_asked(inwit, trained, tmp_path):
    """Every question of the file: nothing of it is held back for training."""
    items = lines(trained, "episodes.jsonl")
    shown = {e["query"]: e["attempts"][0]["turns"][0]["prompt"] for e in items}
    words = [p.removeprefix("Q: ").removesuffix(" Work:").strip() for p in shown.values()][:9]
    file = tmp_path / "mine.jsonl"
    text = "".join(json.dumps({"question": w, "answer": "1"}) + "\n" for w in words)
    file.write_text(text, encoding="utf-8")
    model = trained / "model"
    prompts = ROOT / "src/inwit/envs/checkout/prompts"  # the model knows no other words
    sets = ["--max-tokens", "2", "--set", f"prompts={prompts}", "--json"]
    found = inwit("eval", model, "--questions", file, *sets).json
    assert (found["n"], found["env"], found["split"]) == (9, "questions", "test")
    assert found["protocol"] == "intrinsic"  # what is asked of a bare model
    message = inwit("eval", model, "--questions", file, "--env", "checkout").error
    assert "exclude each other" in message
    assert "no task file" in inwit("eval", model, "--questions", tmp_path / "none.jsonl").error


def test_eval_of_another_model_or_a_bare_one(inwit, trained, model):
    direct = ["--protocol", "direct"]
    own = inwit("eval", trained, *direct, "--model", model, "--json").json
    assert own["model"] == model
    short = [
        "--set", "env={name = 'checkout', basket = 1, train = 40, dev = 24, test = 24}",
        "--set", "sampling.max_tokens=2", "--json",
    ]  # fmt: skip
    alone = inwit("eval", model, "--env", "checkout", *direct, *short).json
    assert alone["measures"]["a1"] == own["measures"]["a1"]
    thought = inwit("eval", model, "--env", "checkout", *short).json
    assert thought["protocol"] == "intrinsic"
    assert thought["measures"]["a1"] == own["measures"]["a1"]  # the same first attempts
    assert thought["sees"]["again"] == ["attempt", "question"]
    random = inwit("eval", "embedded:checkout", "--env", "checkout", *direct, *short).json
    assert random["model"] == "embedded:checkout"
    assert counted(random, "a1")[1] == 24


def test_eval_of_a_recipe(inwit, model):
    settings = ["--set", f"model.path={model}", "--set", "eval.temperature=0"]
    found = inwit("eval", RECIPES / "debug-grpo.toml", *settings, "--json").json
    assert counted(found, "a1")[1] == 24
    assert (found["model"], found["protocol"], found["temperature"]) == (model, "direct", 0)


def test_eval_with_another_critic(inwit, trained, model):
    arguments = ["--protocol", "critique", "--json"]
    own = inwit("eval", trained, *arguments).json
    other = inwit("eval", trained, *arguments, "--critic", model).json
    assert own["critic"] == "own"
    assert other["critic"].startswith(f"{model} ")  # and a digest of its weights
    assert own["measures"]["a1"] == other["measures"]["a1"]
    assert len(list(Path("runs/eval").iterdir())) == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--protocol", "zzz"], "no protocol is called 'zzz'. Known: critique, direct, injected,"),
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


# ---------------------------------------------------------------------- stats

COUNTS = ["--n", "500", "--first", "300", "--mended", "29", "--spoiled", "7"]
STATISTICS = {
    "a1": 60.0, "a2": 64.4, "delta": 4.4, "wrong_to_right": 5.8, "right_to_wrong": 1.4,
    "repair_rate": 14.5,
}  # fmt: skip


def test_stats_of_a_papers_counts(inwit):
    """LESSONS 18: intervals and an exact test beside rates that a paper gives without them."""
    found = inwit("stats", *COUNTS, "--json").json
    for name, percent in STATISTICS.items():
        value, (low, high) = found[name]["value"], found[name]["ci"]
        assert round(100 * value, 1) == percent
        assert low < value < high
    assert found["mcnemar_p"] == pytest.approx(binomtest(7, 36).pvalue)
    assert (found["n"], found["notes"]) == (500, [])
    assert found["table"] == {"both": 293, "only_first": 7, "only_second": 29, "neither": 171}
    for name, count, n in (("a1", 300, 500), ("a2", 322, 500), ("repair_rate", 29, 200)):
        low, high = proportion_confint(count, n, method="wilson")
        assert found[name]["ci"] == pytest.approx([low, high])
        assert (found[name]["count"], found[name]["n"]) == (count, n)
    assert found["confidence"]["value"] == 293 / 300


def test_stats_are_printed_for_reading(inwit):
    said = inwit("stats", *COUNTS)
    assert said.code == 0
    text = bare(said.out)
    for shown in ("60.0%", "64.4%", "+4.4%", "5.8%", "1.4%", "14.5%", "29 / 200", "95% interval"):
        assert shown in text
    p = inwit("stats", *COUNTS, "--json").json["mcnemar_p"]
    assert f"p = {p:.3g}" in text


def test_stats_say_where_n_is_too_small(inwit):
    """LESSONS 18: a difference that this many questions cannot separate from none is no result."""
    few = ["--n", "50", "--first", "30", "--mended", "3", "--spoiled", "2"]
    [note] = inwit("stats", *few, "--json").json["notes"]
    assert "N = 50 cannot separate a delta of 2.0 points from 0" in note
    assert note in inwit("stats", *few).out
    none = inwit("stats", "--n", "9", "--first", "4", "--mended", "0", "--spoiled", "0", "--json")
    assert none.json["mcnemar_p"] == 1
    assert "holds 0" in none.json["notes"][0]


def test_stats_of_counts_where_nothing_could_be_mended(inwit):
    found = inwit("stats", "--n", "9", "--first", "9", "--mended", "0", "--spoiled", "1", "--json")
    assert found.json["repair_rate"] == {"value": None, "ci": None, "n": 0, "count": 0}
    said = inwit("stats", "--n", "9", "--first", "9", "--mended", "0", "--spoiled", "1")
    assert said.code == 0


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ((500, 501, 0, 0), "501 of 500 cannot be right at first"),
        ((500, 300, 201, 7), "201 cannot be mended: 200 were wrong at first"),
        ((500, 300, 29, 301), "301 of 300 cannot be spoiled"),
    ],
)
def test_counts_that_contradict_each_other_are_refused(counts, says, inwit):
    names = ("--n", "--first", "--mended", "--spoiled")
    arguments = [x for pair in zip(names, counts, strict=True) for x in pair]
    for more in ([], ["--json"]):
        assert says in inwit("stats", *arguments, *more).error


def test_stats_need_all_counts_or_files(inwit, tmp_path):
    for i in range(0, len(COUNTS), 2):
        message = inwit("stats", *COUNTS[:i], *COUNTS[i + 2 :]).error
        assert "Give all four" in message
    assert "Give all four" in inwit("stats").error
    assert "exclude each other" in inwit("stats", tmp_path / "a.json", "--n", "9").error
    for negative in ("--first", "--mended", "--spoiled"):
        assert inwit("stats", *COUNTS, negative, "-1").code == 2


@pytest.fixture(scope="module")
def asked(trained, tmp_path_factory) -> dict[str, Path]:
    """Summaries of evaluations that can be pooled, and of some that cannot."""
    home = tmp_path_factory.mktemp("asked")
    ways = {
        "dev": ["--protocol", "intrinsic", "--split", "dev", "--tasks", "20"],
        "test": ["--protocol", "intrinsic", "--split", "test"],
        "critique": ["--protocol", "critique"],
        "direct": ["--protocol", "direct"],
        "twice": ["--protocol", "intrinsic", "--samples", "2"],
    }
    for name, way in ways.items():
        command = ["inwit", "eval", str(trained), *way, "--out", str(home / name), "--json"]
        with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as end:
            patch.setattr(sys, "argv", command)
            cli.main()
        assert not end.value.code
    return {name: home / name / "summary.json" for name in ways}


def test_pooled_summaries_are_the_statistics_of_the_sum(inwit, asked):
    tables = [json.loads(asked[k].read_text("utf-8"))["table"] for k in ("dev", "test")]
    total = {k: tables[0][k] + tables[1][k] for k in tables[0]}
    assert tables[0] != tables[1]
    found = inwit("stats", asked["dev"], asked["test"], "--json").json
    assert found["table"] == total
    assert found["n"] == 44 == sum(total.values())
    counts = [
        "--n", 44, "--first", total["both"] + total["only_first"],
        "--mended", total["only_second"], "--spoiled", total["only_first"],
    ]  # fmt: skip
    assert found == inwit("stats", *counts, "--json").json
    assert found["a1"]["count"] == total["both"] + total["only_first"]
    alone = inwit("stats", asked["dev"], "--json").json
    own = json.loads(asked["dev"].read_text("utf-8"))
    assert alone["a1"] == own["measures"]["a1"]
    assert alone["delta"] == own["measures"]["delta"]
    assert alone["mcnemar_p"] == own["p"]["mcnemar_p"]


def test_what_was_asked_otherwise_is_not_pooled(inwit, asked, tmp_path):
    """LESSONS 5: results of different information conditions are never added up."""
    dev = asked["dev"]
    assert "differ in 'protocol'" in inwit("stats", dev, asked["critique"]).error
    other = json.loads(asked["test"].read_text("utf-8"))
    other["sees"]["again"].append("outcome")
    told = tmp_path / "told.json"
    told.write_text(json.dumps(other), encoding="utf-8")
    assert "differ in 'sees'" in inwit("stats", dev, told).error
    for name in ("direct", "twice"):
        assert "has no table of transitions" in inwit("stats", asked[name], dev).error
    assert "is not an evaluation's summary.json" in inwit("stats", tmp_path / "none.json").error
    (tmp_path / "list.json").write_text("[1]", encoding="utf-8")
    assert "is not an evaluation's summary" in inwit("stats", tmp_path / "list.json").error


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


def test_compare_of_corrections_has_their_columns(inwit, model, tmp_path):
    """Where methods are asked twice, both answers are shown, with what lies between them."""
    file, out = tmp_path / "study.toml", tmp_path / "out"
    protocols = {"grpo": "direct", "rloo": "intrinsic", "multi_turn_rl": "intrinsic"}
    for name, protocol in protocols.items():
        (tmp_path / f"{name}.toml").write_text(
            f'extends = "{RECIPES}/debug-grpo.toml"\n[model]\npath = "{model}"\n[method]\n'
            f'name = "{name}"\n[train]\nsteps = 8\n[eval]\nprotocol = "{protocol}"\n',
            encoding="utf-8",
        )
        recipe = load_recipe(tmp_path / f"{name}.toml", ["seed=0"])
        train(recipe, out / "seed-0" / name, Silent())
    methods = "".join(f'{name} = "{name}.toml"\n' for name in protocols)
    file.write_text(f"[study]\nbudget = 200\n[methods]\n{methods}", encoding="utf-8")
    found = inwit("compare", file, "--out", out, "--json").json["methods"]
    said = inwit("compare", file, "--out", out)
    assert said.code == 0, said.err
    rows = {row.split()[0]: row for row in map(bare, said.out.splitlines()) if row}
    assert {"A1", "A2", "delta", "tokens"} <= set(rows["┃"].replace("┃", " ").split())
    for name, protocol in protocols.items():
        measured, row = found[name], rows[name]
        assert measured["protocol"] == protocol
        assert f"{100 * measured['a1']['value']:.1f}" in row
        if protocol == "direct":  # it was asked once: there is nothing between
            assert "a2" not in measured
            continue
        for key in ("a2", "delta", "edit_rate"):
            assert f"{100 * measured[key]['value']:.1f}" in row
        low, high = measured["delta"]["ci"]
        assert f"[{100 * low:+.1f}, {100 * high:+.1f}]" in row


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
        ("methods", {"grpo", "icrl", "sft", "score"}, ("score", "stage_one_steps")),
        ("envs", {"checkout", "lock", "questions", "reasoning_gym"}, ("questions", "file")),
        ("protocols", {"direct", "intrinsic", "critique", "injected"}, ("injected", "marker")),
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


def test_every_option_of_a_protocol_says_what_it_means(inwit):
    for name, described in inwit("protocols", "--json").json.items():
        for key, option in described["settings"]["properties"].items():
            assert option.get("description"), (name, key)


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
FIRST = {"value": 0.5, "ci": [0.4, 0.6], "n": 100, "count": 50}
NONE = {"value": None, "ci": None, "n": 0, "count": 0}
DEV = {"split": "dev", "step": 4, "measures": {"a1": FIRST}}


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
    shown.evaluated({"split": "dev", "step": 0, "measures": {"a1": NONE, "a2": NONE}})
    shown.step(2, 9, dict.fromkeys(STEP) | {"loss": 2.0})
    assert "dev" not in shown._dev


def test_second_answers_are_told_beside_the_first():
    shown, file = live()
    second = FIRST | {"value": 0.625}
    shown.evaluated(DEV | {"split": "test", "measures": {"a1": FIRST, "a2": second}})
    shown.step(1, 9, {"loss": 1.0, "again/delta": 0.125})
    shown.evaluated(DEV | {"split": "test", "measures": {"a1": FIRST, "a2": NONE}})
    told = "test 50.0% [40.0%, 60.0%] N=100"
    assert file.getvalue().splitlines() == [
        f"my-run: at step 4, {told} then 62.5%",
        f"my-run: step 1 of 9  delta +12.5% loss 1.000 {told} then 62.5%",
        f"my-run: at step 4, {told}",
    ]


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
    recipe = common.recipe_of(str(tmp_path), None, None, [])
    assert recipe.model.path == str(tmp_path / "model")
    assert recipe.method.external_critic == ExternalCritic("embedded:checkout")
