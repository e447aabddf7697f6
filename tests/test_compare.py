"""Comparing methods: a study from beginning to end, what it reports, and how it goes on."""

from __future__ import annotations

import json
import math
import shutil
import struct
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tomli_w
from matplotlib.axes import Axes

import inwit.compare.studies
from inwit.compare import Study, compare
from inwit.compare.studies import Job
from inwit.errors import InwitError
from inwit.evaluation.statistics import Interval, mean_interval, wilson
from inwit.files import write_json
from inwit.recipe import load_recipe
from inwit.report.curves import plot_curves
from tests.conftest import RECIPES, ROOT, files, go_on, lines, run, timeless

STUDY = RECIPES / "debug.toml"
LOCK = ROOT / "recipes" / "lock" / "debug.toml"


def silent(message: str) -> None:
    del message


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> tuple[Path, dict[str, Any], list[str]]:
    """The debug study with one seed, in processes of its own: its folder, summary and messages."""
    out = tmp_path_factory.mktemp("study") / "out"
    told: list[str] = []
    return out, compare(STUDY, out, [0], [], jobs=2, tell=told.append), told


@pytest.fixture
def copy(study, tmp_path) -> Path:
    """The finished study elsewhere: its warm start is found where it was."""
    return Path(shutil.copytree(study[0], tmp_path / "out"))


class InProcess:
    """Stands in for subprocess.Popen: runs `inwit train …` here, and remembers what it ran."""

    ran: list[list[str]]

    def __init__(self, command: list[str], **_: object) -> None:
        assert command[:4] == [sys.executable, "-m", "inwit", "train"]
        self.ran.append(command[4:])
        match command[4:]:
            case ["--resume", out]:
                go_on(Path(out))
            case [recipe, "--out", out, *sets]:
                assert Path(recipe).parent.resolve() == RECIPES
                run(Path(recipe).stem, Path(out), *sets[1::2])
        self.returncode = 0

    def poll(self) -> int:
        return self.returncode


@pytest.fixture
def in_process(monkeypatch) -> list[list[str]]:
    ran: list[list[str]] = []
    monkeypatch.setattr(InProcess, "ran", ran, raising=False)
    monkeypatch.setattr(inwit.compare.studies, "subprocess", SimpleNamespace(Popen=InProcess))
    return ran


# ---------------------------------------------------------------------- one seed


DOCUMENTED = {"accuracy", "n", "ci", "sampled_tokens", "trained_tokens", "cpu_seconds", "to_80"}
CRITIC = {"revision_success", "mean_weight", "critique_tokens"}
FURTHER = {"revision_n", "revision_ci", "critic_gain"}
COMMON = {"right", "protocol", "sees", "a1", "truncated", "errors"}
PAIRED = {
    "a2", "delta", "wrong_to_right", "right_to_wrong", "repair_rate", "critique_score",
    "confidence", "edit_rate", "truncated_critiques",
}  # fmt: skip


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def test_the_summary_has_its_form(study):
    out, returned, _ = study
    summary = json.loads((out / "summary.json").read_text("utf-8"))
    assert json.loads(json.dumps(returned)) == summary
    assert set(summary) == {"methods", "step0_parity", "seed", "budget", "target"}
    assert list(summary["methods"]) == ["grpo", "icrl"]
    assert (summary["seed"], summary["budget"], summary["target"]) == (0, 200, 0.8)
    assert 0 <= summary["step0_parity"] < 1e-4
    grpo, icrl = summary["methods"].values()
    assert set(grpo) == DOCUMENTED | COMMON
    assert set(icrl) == DOCUMENTED | CRITIC | FURTHER | COMMON | PAIRED
    for method in (grpo, icrl):
        for key in set(method) - {"ci", "revision_ci", "to_80", "protocol", "sees"}:
            number = method[key]["n"] if isinstance(method[key], dict) else method[key]
            assert is_number(number), key
        low, high = method["ci"]
        assert 0 <= low <= method["accuracy"] <= high <= 1
        interval = wilson(method["right"], method["n"])
        assert method["accuracy"] == method["right"] / method["n"] == interval.value
        assert (low, high) == pytest.approx((interval.low, interval.high))
        assert method["n"] == 24
        assert method["sampled_tokens"] >= 200
        assert method["to_80"] is None  # a debug run never gets there
    low, high = icrl["revision_ci"]
    assert low <= icrl["revision_success"] <= high
    assert (grpo["protocol"], icrl["protocol"]) == ("direct", "critique")
    assert grpo["sees"] == {"solver": ["question"]}
    assert icrl["sees"]["revision"] == ["attempt", "critique", "outcome", "question"]
    repaired = icrl["repair_rate"]  # over all failures
    assert repaired["n"] == icrl["revision_n"] == icrl["n"] - icrl["right"]
    assert icrl["critic_gain"] == icrl["revision_success"] == repaired["value"]
    for method in (grpo, icrl):
        assert method["a1"]["value"] == method["accuracy"]
    assert 0 < icrl["mean_weight"] <= 2


def test_the_summary_says_what_the_runs_logged(study):
    out, summary, _ = study
    parities = []
    for name, method in summary["methods"].items():
        folder = out / "seed-0" / name
        [test] = lines(folder, kind="eval", split="test")
        assert method["accuracy"] == test["measures"]["a1"]["value"]
        for key in ("sampled_tokens", "trained_tokens", "cpu_seconds"):
            assert method[key] == test[key]
        steps = [s for s in lines(folder, kind="train") if s["step"] <= test["step"]]
        weights = [s["weight_mean"] for s in steps if s["weight_mean"] is not None]
        assert method.get("mean_weight") == (
            pytest.approx(sum(weights) / len(weights)) if weights else None
        )
        run_summary = json.loads((folder / "summary.json").read_text("utf-8"))
        parities.append(run_summary["step0_parity"])
    assert summary["step0_parity"] == max(parities)


def test_every_method_starts_from_the_same_warm_start_and_seed(study):
    out, _, told = study
    home = out / "seed-0"
    assert {path.name for path in home.iterdir()} == {
        "warm", "grpo", "icrl", "warm.log", "grpo.log", "icrl.log",
    }  # fmt: skip
    for name in ("grpo", "icrl"):
        recipe = (home / name / "recipe.toml").read_text("utf-8")
        assert f'path = "{home / "warm" / "model"}"' in recipe
        assert "seed = 0\n" in recipe
    firsts = [lines(home / name, kind="eval")[0]["measures"]["a1"] for name in ("grpo", "icrl")]
    assert firsts[0] == firsts[1]  # one model, asked the same
    assert {"warm 0: done", "grpo 0: done", "icrl 0: done"} <= set(told)
    assert told.index("warm 0: done") < min(told.index("grpo 0: done"), told.index("icrl 0: done"))


def png_size(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert data[12:16] == b"IHDR"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def test_the_curves_are_a_picture(study):
    """LESSONS 27: from a study file to learning curves, on a CPU and without any download."""
    path = study[0] / "curves.png"
    width, height = png_size(path)
    assert 800 <= width <= 3000
    assert 300 <= height <= 2000
    assert 10_000 < path.stat().st_size < 1_000_000


# ---------------------------------------------------------------------- going on


def test_a_finished_study_runs_nothing_again(copy, study, in_process):
    before = files(copy / "seed-0")
    (copy / "summary.json").unlink()
    (copy / "curves.png").unlink()
    summary = compare(STUDY, copy, [0], [], jobs=1, tell=silent)
    assert in_process == []
    assert files(copy / "seed-0") == before
    assert summary == study[1]
    assert json.loads((copy / "summary.json").read_text("utf-8")) == summary
    assert (copy / "curves.png").read_bytes() == (study[0] / "curves.png").read_bytes()


def test_a_study_that_was_stopped_goes_on_where_it_was(copy, study, in_process):
    """What is finished stays, what was begun is resumed, what is missing is begun."""
    home = copy / "seed-0"
    (home / "icrl" / "summary.json").unlink()
    shutil.rmtree(home / "icrl" / "model")
    shutil.rmtree(home / "icrl" / "checkpoints" / "step-000008")
    shutil.rmtree(home / "grpo")
    warm = files(home / "warm")
    summary = compare(STUDY, copy, [0], [], jobs=1, tell=silent)
    assert [arguments[0] for arguments in in_process] == [
        str(RECIPES / "debug-grpo.toml"),
        "--resume",
    ]
    assert files(home / "warm") == warm
    assert timeless(summary) == timeless(study[1])


def test_the_cost_to_the_target_is_reported(tmp_path, in_process):
    """`to_80` where 80% is the target: tokens and seconds at the evaluation that reached it."""
    settings = ["train.stop_at=0.02"]  # so that a debug run gets there
    summary = compare(STUDY, tmp_path, [0], settings, jobs=1, tell=silent)
    reached = [method["to_80"] for method in summary["methods"].values()]
    assert any(reached)
    for name, method in summary["methods"].items():
        cost = method["to_80"]
        if cost is None:
            continue
        assert set(cost) == {"sampled_tokens", "trained_tokens", "cpu_seconds"}
        dev = lines(tmp_path / "seed-0" / name, kind="eval", split="dev")
        [first, *_] = [line for line in dev if line["measures"]["a1"]["value"] >= 0.02]
        assert cost == {key: first[key] for key in cost}


def study_file(folder: Path, **changes: Any) -> Path:
    """The debug study with its recipes named by absolute paths, changed."""
    data: dict[str, Any] = {
        "warm": str(RECIPES / "debug-warm.toml"),
        "study": {"budget": 200, "target": 0.8},
        "methods": {name: str(RECIPES / f"debug-{name}.toml") for name in ("grpo", "icrl")},
    } | changes
    path = folder / "study.toml"
    path.write_text(tomli_w.dumps({k: v for k, v in data.items() if v is not None}), "utf-8")
    return path


def test_another_target_has_another_name(copy, tmp_path, in_process):
    path = study_file(tmp_path, study={"budget": 200, "target": 0.5})
    summary = compare(path, copy, [0], [], jobs=1, tell=silent)
    for method in summary["methods"].values():
        assert "to_80" not in method
        assert method["to_50"] is None


def test_equal_cpu_seconds_are_compared_on_dev(copy, tmp_path, in_process):
    """The last evaluation within the limit, with its own cost; what came later is not looked at."""
    homes = [copy / "seed-0" / name for name in ("grpo", "icrl")]
    seconds = [[e["cpu_seconds"] for e in lines(h, kind="eval", split="dev")] for h in homes]
    limit = min(s[1] for s in seconds)  # only one of the runs was at its second evaluation then
    path = study_file(tmp_path, study={"budget": 200, "target": 0.8, "cpu_seconds": limit})
    summary = compare(path, copy, [0], [], jobs=1, tell=silent)
    for home, method in zip(homes, summary["methods"].values(), strict=True):
        dev = lines(home, kind="eval", split="dev")
        last = [line for line in dev if line["cpu_seconds"] <= limit][-1]
        found = method["at_cpu_seconds"]
        first = last["measures"]["a1"]
        assert (found["accuracy"], found["n"], found["ci"]) == (
            first["value"],
            first["n"],
            first["ci"],
        )
        for cost in ("sampled_tokens", "trained_tokens", "cpu_seconds"):
            assert found[cost] == last[cost]
    with pytest.raises(InwitError, match="never asks dev"):
        Study.read(path, ["eval.every=0", "train={steps = 1}"])


def test_without_a_warm_start_each_recipe_has_its_own_model(model, tmp_path, in_process):
    path = study_file(tmp_path, warm=None)
    settings = [f"model.path={model}"]
    summary = compare(path, tmp_path / "out", [3], settings, jobs=1, tell=silent)
    assert summary["seed"] == 3
    assert {p.name for p in (tmp_path / "out" / "seed-3").iterdir() if p.is_dir()} == {
        "grpo",
        "icrl",
    }
    recipe = (tmp_path / "out" / "seed-3" / "icrl" / "recipe.toml").read_text("utf-8")
    assert model in recipe
    assert "seed = 3\n" in recipe


# ---------------------------------------------------------------------- [set] and [asked]


def test_a_study_sets_keys_of_its_methods_recipes(copy, tmp_path, in_process):
    """Of the methods', not of the warm start's; the command line has the last word."""
    changed = {"train.queries": 2, "optimizer.schedule": "cosine", "eval.test_at_tokens": [10, 200]}
    path = study_file(tmp_path, set=changed)
    shutil.rmtree(copy / "seed-0" / "grpo")
    shutil.rmtree(copy / "seed-0" / "icrl")
    warm = files(copy / "seed-0" / "warm")
    sets = ["train.max_error_share=0.5"]
    with pytest.raises(InwitError, match=r"warm' holds a run of another recipe"):
        compare(path, copy, [0], sets, jobs=1, tell=silent)
    compare(path, copy, [0], [], jobs=1, tell=silent)
    assert len(in_process) == 2
    assert files(copy / "seed-0" / "warm") == warm
    for name in ("grpo", "icrl"):
        recipe = load_recipe(copy / "seed-0" / name / "recipe.toml")
        assert recipe.train.queries == 2
        assert recipe.optimizer.schedule == "cosine"
        assert recipe.eval.test_at_tokens == (10, 200)
    with pytest.raises(InwitError, match=r"train\.stps"):
        Study.read(study_file(tmp_path, set={"train.stps": 3}))
    path = study_file(tmp_path, set={"eval.test_at_tokens": [300]})
    with pytest.raises(InwitError, match=r"does not ask test .* 200 sampled"):
        Study.read(path)
    assert Study.read(path, ["eval.test_at_tokens=[200]"]).study.budget == 200


def test_what_is_asked_of_a_warm_start_must_exist(tmp_path):
    with pytest.raises(InwitError, match="No protocol is called 'intrinsc'"):
        Study.read(study_file(tmp_path, asked={"base": "intrinsc"}))
    with pytest.raises(InwitError, match=r"\[asked\] is about a warm start"):
        Study.read(study_file(tmp_path, asked={"base": "intrinsic"}, warm=None))


@pytest.fixture(scope="module")
def lock(tmp_path_factory) -> tuple[Path, dict[str, Any]]:
    """The debug study of the lock, whose warm start is asked, too; its folder and summary."""
    out = tmp_path_factory.mktemp("lock") / "out"
    return out, compare(LOCK, out, [0], [], jobs=2, tell=silent)


def test_a_warm_start_is_asked_beside_what_was_made_of_it(lock):
    out, summary = lock
    assert list(summary["methods"]) == ["base", "self-refine", "multi-turn-rl", "score"]
    base, refined, plain, score = summary["methods"].values()
    assert [m["protocol"] for m in (base, refined)] == ["intrinsic", "self-refine"]
    for name, method in (("base", base), ("self-refine", refined)):
        assert (method["sampled_tokens"], method["trained_tokens"]) == (0, 0)
        found = json.loads((out / "seed-0" / name / "summary.json").read_text("utf-8"))
        assert found["model"] == str(out / "seed-0" / "warm" / "model")
        assert found["split"] == "test"
        assert method["a1"] == found["measures"]["a1"]
        assert method["accuracy"] == method["a1"]["value"]
    for method in (base, refined, plain, score):
        assert {"a1", "a2", "delta", "wrong_to_right", "right_to_wrong"} <= set(method)
        assert method["n"] == 24
    assert base["a1"] == refined["a1"]  # the same first answers


def test_each_part_of_a_warm_start_goes_on_from_the_one_before(lock):
    """And everything else begins from the last."""
    home = lock[0] / "seed-0"
    paths = {
        name: tomllib.loads((home / name / "recipe.toml").read_text("utf-8"))["model"]["path"]
        for name in ("debug-check", "warm", "score", "multi-turn-rl")
    }
    assert paths == {
        "debug-check": "embedded:lock",
        "warm": str(home / "debug-check" / "model"),
        "score": str(home / "warm" / "model"),
        "multi-turn-rl": str(home / "warm" / "model"),
    }


def test_parts_of_a_warm_start_have_names_of_their_own(tmp_path):
    start = str(RECIPES / "debug-warm.toml")
    assert Study.read(study_file(tmp_path, warm=[start, start])).warm_names == (
        "debug-warm",
        "warm",
    )
    with pytest.raises(InwitError, match="two runs are called 'debug-warm'"):
        Study.read(study_file(tmp_path, warm=[start] * 3))


def test_what_stage_one_came_to_is_in_the_summary(lock):
    out, summary = lock
    dev = lines(out / "seed-0" / "score", kind="eval", split="dev")
    last = [line for line in dev if line["stage"] == "stage I"][-1]
    found = summary["methods"]["score"]["after_stage_one"]
    assert last["step"] == 3
    assert found["n"] == 24
    for key in ("a1", "a2", "delta", "edit_rate"):
        assert found[key] == last["measures"][key]
    assert "after_stage_one" not in summary["methods"]["multi-turn-rl"]


def test_what_was_asked_is_not_asked_again(lock, in_process):
    out, summary = lock
    before = files(out / "seed-0")
    assert compare(LOCK, out, [0], [], jobs=1, tell=silent) == summary
    assert in_process == []
    assert files(out / "seed-0") == before


# ---------------------------------------------------------------------- several seeds


def assert_two_seeds(summary: dict[str, Any], out: Path) -> None:
    assert set(summary) == {"runs", "means", "differences", "budget", "target"}
    assert [one["seed"] for one in summary["runs"]] == [0, 1]
    for one in summary["runs"]:
        assert set(one) == {"methods", "step0_parity", "seed"}
        assert list(one["methods"]) == ["grpo", "icrl"]
    a, b = ([r["methods"][m]["accuracy"] for r in summary["runs"]] for m in ("grpo", "icrl"))
    expected = mean_interval([y - x for x, y in zip(a, b, strict=True)])
    assert summary["differences"]["icrl - grpo: accuracy"] == expected
    for method, values in (("grpo", a), ("icrl", b)):
        assert summary["means"][method]["a1"] == mean_interval(values)
    written = json.loads((out / "summary.json").read_text("utf-8"))
    assert written["differences"]["icrl - grpo: accuracy"]["value"] == expected.value
    assert png_size(out / "curves.png")[0] > 800


def test_several_seeds_give_paired_differences(copy, tmp_path, in_process):
    summary = compare(STUDY, copy, [0, 1], [], jobs=2, tell=silent)
    assert len(in_process) == 3  # the runs of seed 0 are there already
    assert_two_seeds(summary, copy)
    for name in ("grpo", "icrl"):
        one, other = (files(copy / f"seed-{s}" / name / "model") for s in (0, 1))
        assert one != other


@pytest.mark.slow
def test_two_seeds_from_beginning_to_end(tmp_path):
    summary = compare(STUDY, tmp_path, [0, 1], [], jobs=2, tell=silent)
    assert_two_seeds(summary, tmp_path)


def test_one_method_has_nothing_to_differ_from(copy, tmp_path, in_process):
    path = study_file(tmp_path, methods={"grpo": str(RECIPES / "debug-grpo.toml")})
    shutil.copytree(copy / "seed-0", copy / "seed-1")
    for file in (copy / "seed-1").rglob("recipe.toml"):
        file.write_text(file.read_text("utf-8").replace("seed = 0\n", "seed = 1\n", 1), "utf-8")
    summary = compare(path, copy, [0, 1], [], jobs=1, tell=silent)
    assert in_process == []
    assert summary["differences"] == {}
    assert [list(one["methods"]) for one in summary["runs"]] == [["grpo"], ["grpo"]]


# ---------------------------------------------------------------------- what goes wrong


def test_runs_of_other_settings_are_not_taken_for_this_studys(copy, in_process):
    """A finished run is kept only if the recipe, as it is now, would make it again."""
    with pytest.raises(InwitError, match=r"seed-0/warm' holds a run of another recipe: its \[opt"):
        compare(STUDY, copy, [0], ["optimizer.lr=0.5"], jobs=1, tell=silent)
    assert in_process == []


def fails(text: str, code: int) -> property:
    """A job whose process says this and exits with this."""
    program = f"import sys; print({text!r}); sys.exit({code})"
    return property(lambda job: lambda: [sys.executable, "-c", program])


def test_a_failing_run_gives_the_end_of_its_log(tmp_path, monkeypatch):
    text = "\n".join(f"line {i}" for i in range(50)) + "\nerror the cat sat on the keyboard"
    monkeypatch.setattr(Job, "command", fails(text, 2))
    with pytest.raises(InwitError) as error:
        compare(STUDY, tmp_path / "out", [0], [], jobs=2, tell=silent)
    assert "The run warm 0 failed" in error.value.what
    assert "the cat sat on the keyboard" in error.value.what
    assert "line 45" in error.value.what
    assert "line 3\n" not in error.value.what
    log = tmp_path / "out" / "seed-0" / "warm.log"
    assert str(log) in error.value.fix
    assert "line 3\n" in log.read_text("utf-8")
    assert not (tmp_path / "out" / "summary.json").exists()
    assert not (log.parent / "grpo.log").exists()  # nothing begins from a warm start that failed


@pytest.mark.slow
def test_a_run_that_breaks_off_says_why(tmp_path):
    path = study_file(tmp_path, warm=None)
    with pytest.raises(InwitError, match=r"The run grpo 0 failed") as error:
        compare(path, tmp_path / "out", [0], ["model.path=/no/such/model"], jobs=2, tell=silent)
    assert "no model directory" in " ".join(error.value.what.split())
    assert "Traceback" not in error.value.what


def test_a_run_that_never_reached_the_budget_is_named(copy):
    path = copy / "seed-0" / "icrl" / "summary.json"
    write_json(path, json.loads(path.read_text("utf-8")) | {"test": {}})
    with pytest.raises(InwitError, match=r"icrl holds no evaluation on test at 200"):
        compare(STUDY, copy, [0], [], jobs=1, tell=silent)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[study\n", "line 1"),
        ("[study]\nbudget = 0\n[methods]\n", "study.budget"),
        ("[study]\nbudgt = 3\n[methods]\n", "budgt"),
        ("[methods]\n", "study"),
        ('[study]\nbudget = 200\n[methods]\na = "gone.toml"\n', "There is no recipe"),
        ('[study]\nbudget = 200\n[methods]\na = "broken.toml"\n', "unknown section 'engin'"),
        ('warm = "gone.toml"\n[study]\nbudget = 200\n[methods]\n', "There is no recipe"),
    ],
)
def test_a_broken_study_is_refused_before_anything_runs(text, says, tmp_path):
    (tmp_path / "broken.toml").write_text("[engin]\n", encoding="utf-8")
    path = tmp_path / "study.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InwitError) as error:
        compare(path, tmp_path / "out", [0], [], jobs=1, tell=silent)
    assert says in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_missing_study_and_a_folder_are_told_apart(tmp_path):
    with pytest.raises(InwitError, match="There is no study"):
        Study.read(tmp_path / "none.toml")
    with pytest.raises(InwitError, match="is a folder"):
        Study.read(tmp_path)


def test_a_budget_that_no_run_asks_test_at_is_refused_before_anything_runs(tmp_path):
    path = study_file(tmp_path, study={"budget": 300})
    with pytest.raises(InwitError, match=r"debug-grpo\.toml does not ask test .* 300 sampled"):
        compare(path, tmp_path / "out", [0], [], jobs=1, tell=silent)
    assert not (tmp_path / "out").exists()
    assert Study.read(path, ["eval.test_at_tokens=[200, 300]"]).study.budget == 300


def test_a_setting_that_no_recipe_knows_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(InwitError, match=r"train\.stps"):
        compare(STUDY, tmp_path / "out", [0], ["train.stps=3"], jobs=1, tell=silent)
    assert not (tmp_path / "out").exists()


def test_a_run_that_was_begun_is_resumed(tmp_path):
    job = Job("a 0", Path("a.toml"), tmp_path / "a", ("seed=0", "x.y=1"))
    begin = [sys.executable, "-m", "inwit", "train", "a.toml", "--out", str(tmp_path / "a")]
    assert job.command() == [*begin, "--set", "seed=0", "--set", "x.y=1"]
    (tmp_path / "a").mkdir()
    assert job.command()[:-1] != [*begin[:4], "--resume"]
    (tmp_path / "a" / "recipe.toml").touch()
    assert job.command() == [*begin[:4], "--resume", str(tmp_path / "a")]


def test_at_most_so_many_runs_at_once(tmp_path, monkeypatch):
    running, most = 0, 0

    class Slow:
        returncode = 0

        def __init__(self, *_: object, **__: object) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            self.polls = 0

        def poll(self) -> int | None:
            nonlocal running
            self.polls += 1
            if self.polls < 3:
                return None
            running -= 1
            return 0

    monkeypatch.setattr(inwit.compare.studies, "subprocess", SimpleNamespace(Popen=Slow))
    jobs = [Job(f"j{i}", Path("r.toml"), tmp_path / f"j{i}", ()) for i in range(5)]
    told: list[str] = []
    inwit.compare.studies._run_all(jobs, 2, told.append)
    assert most == 2
    assert sorted(told) == [f"j{i}: done" for i in range(5)]


# ---------------------------------------------------------------------- the picture


def point(step: int, right: int | None, n: int = 10) -> dict[str, Any]:
    first = {"value": None, "ci": None, "n": 0}
    if right is not None:
        interval: Interval = wilson(right, n)
        first = {"value": interval.value, "ci": [interval.low, interval.high], "n": n}
    return {"measures": {"a1": first}, "sampled_tokens": 100 * step, "cpu_seconds": 1.5 * step}


@pytest.mark.parametrize(
    "runs",
    [
        {"a": [[point(0, 0), point(5, 10)]]},
        {f"m{i}": [[point(s, i) for s in range(3)] for _ in range(2)] for i in range(9)},
        {"a": [[]], "b": [[point(1, 3)]]},
        {"a": [[point(0, None), point(1, 3)]]},
        {"a": [[]]},
    ],
    ids=["two points", "nine methods", "one without", "errors only at first", "nothing"],
)
@pytest.mark.parametrize("target", [None, 0.8])
def test_any_curves_can_be_drawn(runs, target, tmp_path, monkeypatch):
    drawn: list[str] = []
    plot = Axes.plot

    def remember(self, *args: Any, **kwargs: Any) -> Any:
        drawn.append(str(kwargs.get("label")))
        return plot(self, *args, **kwargs)

    monkeypatch.setattr(Axes, "plot", remember)
    plot_curves(runs, tmp_path / "c.png", budget=500, target=target)
    assert png_size(tmp_path / "c.png")[0] > 800
    assert set(drawn) - {"None"} == set(runs)  # no method is left out
