"""Resuming: a run that was killed and went on is the run that nobody killed, bit for bit."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from inwit.envs.checkout.shop import Shop
from inwit.errors import InwitError
from tests.conftest import (
    KILLED,
    RECIPES,
    Change,
    assert_same_run,
    count_changes,
    files,
    go_on,
    in_process,
    killed,
    lines,
    newest,
    run,
    run_until,
)


def inwit(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "inwit", *map(str, arguments)]


def last_step(out: Path) -> int:
    """The newest step in the log, whose last line may be half written."""
    try:
        text = (out / "metrics.jsonl").read_text("utf-8")
    except FileNotFoundError:
        return 0
    return max((json.loads(line)["step"] for line in text.split("\n")[:-1]), default=0)


def kill_once(process: subprocess.Popen[bytes], out: Path, checkpoint: int, step: int) -> None:
    """SIGKILL as soon as the run has a checkpoint and has gone on from it."""
    deadline = time.monotonic() + 240
    while newest(out) < checkpoint or last_step(out) < step:
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    assert process.wait() == KILLED


# ---------------------------------------------------------------------- kill -9, in the middle


def test_a_killed_run_that_goes_on_is_the_run_that_nobody_killed(model, tmp_path):
    """LESSONS 25: N steps are k steps, kill -9, resume and N - k steps, bitwise on the CPU.

    Weights, optimizer, random generators and the place in the data all come back: the final model,
    every measure and every episode are equal. No query is asked twice in one time through the data,
    and none is left out. The checkpoint lies on the end of an epoch, where others train nothing.
    """
    settings = [f"model.path={model}", "train.steps=40", "train.checkpoint_every=10"]
    run("debug-icrl", tmp_path / "whole", *settings)

    out = tmp_path / "run"
    sets = [part for setting in settings for part in ("--set", setting)]
    command = inwit("train", RECIPES / "debug-icrl.toml", "--out", out, *sets)
    with (tmp_path / "log").open("wb") as log:
        kill_once(subprocess.Popen(command, stdout=log, stderr=log), out, checkpoint=10, step=13)
    assert not (out / "summary.json").exists()
    assert not (out / "model").exists()
    begun = newest(out)
    assert 10 <= begun < 40
    before = [line for line in lines_left(out) if line["step"] <= begun]

    command = inwit("train", "--resume", out, "--json")
    resumed = subprocess.run(command, capture_output=True, text=True)
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout) == json.loads((out / "summary.json").read_text("utf-8"))
    assert_same_run(out, tmp_path / "whole")
    # what was done was not done again: the old lines are there, with the times they took
    assert lines(out)[: len(before)] == before

    queries = [
        (line["step"], line["query"])
        for line in lines(out, "episodes.jsonl")
        if line["id"].endswith("/0")
    ]
    assert len(queries) == 40 * 4
    for epoch in range(4):  # 40 tasks, 4 a step
        mine = Counter(query for step, query in queries if (step - 1) // 10 == epoch)
        assert len(mine) == 40
        assert set(mine.values()) == {1}


def lines_left(out: Path) -> list[dict[str, object]]:
    text = (out / "metrics.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.split("\n")[:-1]]


KINDS = {
    "sft": ("debug-warm", ["train.steps=12", "train.checkpoint_every=5", "eval.every=4"]),
    "grpo": ("debug-grpo", ["optimizer.minibatches=2", "optimizer.epochs=2", "method.kl=0.1"]),
    "icrl": ("debug-icrl", ["optimizer.schedule=cosine", "optimizer.warmup=5"]),
    "lora": ("debug-icrl", ["engine.lora.rank=4", "optimizer.lr=3e-3"]),
    "frozen critic": ("debug-icrl", ["method.critic=frozen", "method.kl=0.05"]),
    "rloo": ("debug-grpo", ["method={name = 'rloo', group_size = 8, kl = 0.1}"]),
    "multi-turn": (
        "debug-grpo",
        ["method={name = 'multi_turn_rl', group_size = 8, kl = 0.1}", "eval.protocol=intrinsic"],
    ),
    "lora, frozen critic": ("debug-icrl", ["engine.lora.rank=4", "method.critic=frozen"]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_goes_on_bit_for_bit(kind, model, tmp_path):
    """LESSONS 25: optimizer, schedule, adapter and reference come back with the weights."""
    recipe, settings = KINDS[kind]
    if kind != "sft":
        settings = [f"model.path={model}", "train.steps=6", *settings]
    run(recipe, tmp_path / "whole", *settings)
    assert_learned(tmp_path / "whole", kind)
    # two steps after a checkpoint: one is in the log, the other was computed and is not
    checkpoint = 10 if kind == "sft" else 4
    logged = [line for line in lines(tmp_path / "whole") if line["step"] <= checkpoint + 1]
    killed(recipe, tmp_path / "run", settings, "metrics.jsonl", len(logged) + 1)
    assert newest(tmp_path / "run") == checkpoint
    assert last_step(tmp_path / "run") == checkpoint + 1
    go_on(tmp_path / "run")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def assert_learned(folder: Path, kind: str) -> None:
    """A run in which nothing was learned would compare nothing."""
    steps = lines(folder, kind="train")
    assert sum(line["rows_trained"] > 0 for line in steps) > len(steps) / 2
    assert any(line["grad_norm"] > 0 for line in steps[-2:])
    if kind not in ("sft", "grpo", "rloo", "multi-turn"):
        assert any(line["weight_mean"] is not None for line in steps)


def test_killed_before_the_first_checkpoint_it_begins_again(model, tmp_path):
    settings = [f"model.path={model}", "train.steps=3", "train.checkpoint_every=0"]
    run("debug-icrl", tmp_path / "whole", *settings)
    killed("debug-icrl", tmp_path / "run", settings, "metrics.jsonl", 4)
    assert newest(tmp_path / "run") == 0
    assert last_step(tmp_path / "run") == 2
    go_on(tmp_path / "run")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


# ---------------------------------------------------------------------- kill -9, anywhere

SHORT = [
    "train.steps=3",
    "train.queries=2",
    "train.checkpoint_every=1",
    "train.keep_checkpoints=1",
    "eval.tasks=4",
    "eval.test_tasks=4",
    "eval.every=2",
    "eval.test_at_tokens=[10]",
]


@pytest.fixture(scope="module")
def short(model, tmp_path_factory) -> tuple[Path, list[str], int]:
    """A short run; its settings; how many changes to its files there are to be killed before."""
    home = tmp_path_factory.mktemp("short")
    settings = [f"model.path={model}", *SHORT]
    process = in_process(count_changes, "debug-icrl", home / "run", settings, home / "count")
    process.join()
    assert process.exitcode == 0
    return home / "run", settings, int((home / "count").read_text("utf-8"))


def assert_survives(short: tuple[Path, list[str], int], out: Path, *moments: int) -> None:
    """Kill a run before each of its changes in turn, going on in between; the end is the same."""
    whole, settings, _ = short
    for moment in moments:
        process = in_process(run_until, "debug-icrl", out, settings, Change(out, moment))
        process.join()
        if process.exitcode == 0:  # the rest of the run had fewer changes than that
            break
        assert process.exitcode == KILLED
        assert_nothing_looks_whole(out, whole)
    if not (out / "recipe.toml").exists():
        run("debug-icrl", out, *settings)
    elif not (out / "summary.json").exists():
        go_on(out)
    assert_same_run(out, whole)
    assert files(out).keys() == files(whole).keys()


def assert_nothing_looks_whole(out: Path, whole: Path) -> None:
    """After a kill there is no file that is there and is not what it should be."""
    if (out / "recipe.toml").exists():
        assert (out / "recipe.toml").read_bytes() == (whole / "recipe.toml").read_bytes()
        assert (out / "versions.json").read_bytes() == (whole / "versions.json").read_bytes()
    for checkpoint in (out / "checkpoints").glob("step-*"):
        if checkpoint.name == f"step-{newest(out):06d}":  # an older one is being deleted, perhaps
            names = {"model.safetensors", "optimizer.pt", "random.pt", "engine.json"}
            assert set(files(checkpoint)) == names | {"counters.json"}
            json.loads((checkpoint / "counters.json").read_text("utf-8"))
    if (out / "model").exists():
        assert files(out / "model") == files(whole / "model")
    if (out / "summary.json").exists():
        assert (out / "model").exists()


def test_there_are_many_moments_to_be_killed_in(short):
    whole, _, moments = short
    assert moments > 50
    assert len(lines(whole, kind="train")) == 3
    assert {line["split"] for line in lines(whole, kind="eval")} == {"dev", "test"}


@pytest.mark.parametrize("seed", range(4))
def test_a_kill_at_any_moment_loses_nothing(seed, short, tmp_path):
    """LESSONS 25: killed at two random moments and resumed twice, the run ends as if it had not."""
    r = random.Random(seed)
    assert_survives(short, tmp_path / "run", r.randint(1, short[2]), r.randint(1, short[2] // 2))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_kill_at_every_moment_loses_nothing(short, tmp_path):
    """LESSONS 25: before each single change to the run's files."""
    for moment in range(1, short[2] + 1):
        assert_survives(short, tmp_path / "run", moment)
        shutil.rmtree(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_kill_at_a_random_time_loses_nothing(model, tmp_path):
    """LESSONS 25: by the clock, so also in the middle of a write."""
    settings = [f"model.path={model}", *SHORT, "train.steps=8"]
    start = time.monotonic()
    whole, out = tmp_path / "whole", tmp_path / "run"
    process = in_process(run_until, "debug-icrl", whole, settings, Change(whole, 0))
    process.join()
    assert process.exitcode == 0
    longest = time.monotonic() - start
    r, ended = random.Random(0), Counter[str]()
    for _ in range(25):
        process = in_process(run_until, "debug-icrl", out, settings, Change(out, 0))
        process.join(r.uniform(0, longest))
        process.kill()
        process.join()
        if (out / "summary.json").exists():
            ended["finished"] += 1
            assert_same_run(out, whole)
            shutil.rmtree(out)
        elif (out / "recipe.toml").exists():
            ended["killed"] += 1
            assert_nothing_looks_whole(out, whole)
    assert ended["killed"] >= 3
    if (out / "recipe.toml").exists():
        go_on(out)
        assert_same_run(out, whole)


# ---------------------------------------------------------------------- broken checkpoints


@pytest.fixture(scope="module")
def stopped(model, tmp_path_factory) -> tuple[Path, Path]:
    """A run killed at step 5 of 8, with checkpoints of steps 2 and 4; and the same one, whole."""
    home = tmp_path_factory.mktemp("stopped")
    settings = [f"model.path={model}"]
    run("debug-icrl", home / "whole", *settings)
    killed("debug-icrl", home / "run", settings, "metrics.jsonl", 8)
    assert newest(home / "run") == 4
    return home / "run", home / "whole"


@pytest.fixture
def copy(stopped, tmp_path) -> Path:
    return Path(shutil.copytree(stopped[0], tmp_path / "run"))


def test_a_checkpoint_half_written_is_ignored(copy, stopped):
    partial = copy / "checkpoints" / ".partial"
    partial.mkdir(exist_ok=True)
    (partial / "model.safetensors").write_bytes(b"\x00" * 100)
    (partial / "counters.json").write_text('{"step": 99', encoding="utf-8")
    go_on(copy)
    assert_same_run(copy, stopped[1])
    assert not partial.exists()


def test_a_last_line_half_written_is_ignored(copy, stopped):
    for name in ("metrics.jsonl", "episodes.jsonl"):
        with (copy / name).open("ab") as file:
            file.write('{"step": 5, "text": "ü'.encode()[:-1])
    go_on(copy)
    assert_same_run(copy, stopped[1])


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("model.safetensors", shorten),
        ("model.safetensors", flip),
        ("model.safetensors", Path.unlink),
        ("optimizer.pt", flip),
        ("optimizer.pt", Path.unlink),
        ("random.pt", flip),
        ("engine.json", shorten),
        ("engine.json", Path.unlink),
        ("counters.json", shorten),
        ("counters.json", Path.unlink),
    ],
)
def test_a_broken_checkpoint_is_named_and_nothing_is_lost(name, harm, copy):
    broken = copy / "checkpoints" / "step-000004"
    harm(broken / name)
    before = files(copy)
    with pytest.raises(InwitError, match=r"The checkpoint .*step-000004 cannot be loaded"):
        go_on(copy)
    assert files(copy) == before


def test_without_the_broken_checkpoint_it_goes_on_from_the_one_before(copy, stopped):
    shorten(copy / "checkpoints" / "step-000004" / "model.safetensors")
    shutil.rmtree(copy / "checkpoints" / "step-000004")
    go_on(copy)
    assert_same_run(copy, stopped[1])


def test_another_start_than_the_run_began_from_is_refused(copy, model, tmp_path):
    """LESSONS 25: a checkpoint goes with the model that it is compared with."""
    other = tmp_path / "other"
    run("debug-warm", other, "train.steps=1", "eval.every=0")
    recipe = copy / "recipe.toml"
    text = recipe.read_text("utf-8")
    assert model in text
    recipe.write_text(text.replace(model, str(other / "model")), encoding="utf-8")
    with pytest.raises(InwitError, match="began from other weights"):
        go_on(copy)


# ---------------------------------------------------------------------- what is refused


def test_a_finished_run_is_not_resumed(stopped, tmp_path):
    done = Path(shutil.copytree(stopped[1], tmp_path / "done"))
    before = files(done)
    with pytest.raises(InwitError, match="is finished"):
        go_on(done)
    assert files(done) == before


def test_a_folder_that_is_no_run_is_not_resumed(tmp_path):
    with pytest.raises(InwitError, match="not a run folder"):
        go_on(tmp_path)
    assert files(tmp_path) == {}


def test_a_run_does_not_begin_in_another_ones_folder(copy, model):
    before = files(copy)
    with pytest.raises(InwitError, match="not empty"):
        run("debug-icrl", copy, f"model.path={model}")
    assert files(copy) == before


def without_template(model: str, folder: Path) -> str:
    shutil.copytree(model, folder)
    (folder / "chat_template.jinja").unlink()
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text("utf-8"))
    config.pop("chat_template", None)
    path.write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


def questions(folder: Path, text: str) -> list[str]:
    """Settings that turn a debug recipe into one about questions from a file."""
    file = folder / "tasks.jsonl"
    file.write_text(text, encoding="utf-8")
    return [f"env={{name = 'questions', file = '{file}', dev = 0.3, test = 0.3}}"]


SALE = json.dumps({"question": Shop.from_seed(7).items[0], "answer": "1"})
TASKS = "".join(
    json.dumps({"question": f"What is {i}?", "answer": str(i)}) + "\n" for i in range(9)
)

FAULTS = {
    "unknown key": (lambda m, t: [f"model.path={m}", "train.stps=3"], "train.stps"),
    "no model": (lambda m, t: [f"model.path={t}/none"], "no model directory"),
    "no tokenizer": (
        lambda m, t: [f"model.path={without_tokenizer(m, t / 'bare')}"],
        "tokenizer",
    ),
    "no chat template": (
        lambda m, t: [f"model.path={without_template(m, t / 'dumb')}"],
        "no chat template",
    ),
    "foreign words": (
        lambda m, t: [f"model.path={m}", *questions(t, TASKS)],
        "cannot write the question of task",
    ),
    "no task file": (
        lambda m, t: [f"model.path={m}", f"env={{name = 'questions', file = '{t}/none.jsonl'}}"],
        "no task file",
    ),
    "broken task file": (
        lambda m, t: [f"model.path={m}", *questions(t, TASKS + "not json\n")],
        "line 10: not JSON",
    ),
    "nothing to evaluate on": (
        lambda m, t: [f"model.path={m}", *questions(t, SALE)],
        "has no tasks",
    ),
    "no package to track with": (
        lambda m, t: [f"model.path={m}", "tracking=['trackio']"],
        "pip install 'inwit[trackio]'",
    ),
    "no such device": (
        lambda m, t: [f"model.path={m}", "engine.device=abacus"],
        "No device is called 'abacus'",
    ),
}


def without_tokenizer(model: str, folder: Path) -> str:
    shutil.copytree(model, folder, ignore=lambda *_: ["tokenizer.json", "tokenizer_config.json"])
    return str(folder)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_that_cannot_begin_leaves_nothing_behind(fault, model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "trackio", None)  # as where it is not installed
    settings, says = FAULTS[fault]
    with pytest.raises(InwitError) as error:
        run("debug-grpo", tmp_path / "out" / "run", *settings(model, tmp_path))
    assert says in str(error.value)
    assert not (tmp_path / "out").exists()
