"""Methods of several stages: a run changes stage by steps or by hand, killed or not."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from inwit.errors import InwitError
from inwit.recipe import load_recipe
from inwit.runs import RunFolder
from inwit.train import advance, train
from tests.conftest import (
    KILLED,
    RECIPES,
    Change,
    Opening,
    Silent,
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
    timeless,
)

ONE, TWO = "stage I", "stage II"
RECIPE = "debug-grpo"
STEPS = 8


@pytest.fixture(scope="module")
def thinking(tmp_path_factory) -> str:
    """A debug model that was also shown second answers."""
    out = tmp_path_factory.mktemp("thinking") / "run"
    shares = ["env.share_solver=0.35", "env.share_revision=0.15", "env.share_again=0.35"]
    run("debug-warm", out, *shares, "env.slip=[0.1, 0.32]")
    return str(out / "model")


def score(model: str, stage_one: int, *settings: str, **method: object) -> list[str]:
    """Settings that turn a debug recipe into one of SCoRe; checkpoints at every second step."""
    chosen: dict[str, object] = {"group_size": 4, "stage_one_steps": stage_one, "beta2": 1.0}
    table = ", ".join(f"{k} = {json.dumps(v)}" for k, v in (chosen | method).items())
    return [
        f"model.path={model}",
        f"method={{name = 'score', {table}}}",
        "eval.protocol=intrinsic",
        f"train.steps={STEPS}",
        "eval.every=3",
        *settings,
    ]


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text("utf-8"))


def stages(folder: Path) -> list[str]:
    """The stage of every step."""
    return [line["stage"] for line in lines(folder, kind="train")]


def assert_learned(folder: Path) -> None:
    """A run in which nothing was learned, in either stage, would compare nothing."""
    for stage in set(stages(folder)):
        mine = lines(folder, kind="train", stage=stage)
        assert any(line["rows_trained"] > 0 and line["grad_norm"] > 0 for line in mine)


class Advancing(Silent):
    """Asks for the next stage, as somebody at another terminal would, after these steps."""

    def __init__(self, out: Path, *after: int) -> None:
        super().__init__()
        self.out, self.after, self.told = out, after, []

    def _ask(self, step: int) -> None:
        if step in self.after:
            self.told.append(advance(self.out))

    def step(self, done: int, total: int, line: Mapping[str, Any]) -> None:
        super().step(done, total, line)
        self._ask(done)

    def evaluated(self, line: Mapping[str, Any]) -> None:
        super().evaluated(line)
        if line["step"] == 0:
            self._ask(0)


def run_advancing(out: Path, settings: list[str], *after: int) -> Advancing:
    """A run whose next stage is asked for after these steps, while it goes."""
    progress = Advancing(out, *after)
    train(load_recipe(RECIPES / f"{RECIPE}.toml", settings), out, progress)
    return progress


def advancing_until(
    out: Path, settings: list[str], after: int, doomed: Callable[..., bool]
) -> None:
    """The same, in a process of its own, to be killed as soon as `doomed(event, *args)` holds."""

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if doomed(event, *arguments):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.stderr = sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
    sys.addaudithook(hook)
    run_advancing(out, settings, after)


# ---------------------------------------------------------------------- by steps


@pytest.fixture(scope="module")
def whole(thinking, tmp_path_factory) -> Callable[[int], Path]:
    """Whole runs by the steps of their stage I, each made once."""
    made: dict[int, Path] = {}

    def of(stage_one: int) -> Path:
        if stage_one not in made:
            out = tmp_path_factory.mktemp("whole") / "run"
            run(RECIPE, out, *score(thinking, stage_one))
            made[stage_one] = out
        return made[stage_one]

    return of


def test_a_stage_lasts_as_many_steps_as_the_recipe_says(whole):
    out = whole(4)
    assert stages(out) == [ONE] * 4 + [TWO] * 4
    assert_learned(out)
    found = summary(out)
    assert (found["stage"], found["stages"]) == (TWO, [0, 4])
    assert found["last_step"]["stage"] == TWO
    assert not (out / "stages.json").exists()  # nobody asked by hand


def test_what_a_stage_has_come_to_is_measured_at_its_end(whole):
    """Once, and before the first step of the next stage."""
    dev = [(e["step"], e["stage"]) for e in lines(whole(4), kind="eval", split="dev")]
    assert dev == [(0, ONE), (3, ONE), (4, ONE), (6, TWO)]
    dev = [(e["step"], e["stage"]) for e in lines(whole(3), kind="eval", split="dev")]
    assert dev == [(0, ONE), (3, ONE), (6, TWO)]
    in_order = [(e["kind"], e["step"]) for e in lines(whole(4)) if e.get("split") != "test"]
    assert in_order.index(("eval", 4)) == in_order.index(("train", 5)) - 1


def test_without_evaluations_a_stage_ends_unmeasured(thinking, tmp_path):
    settings = score(
        thinking, 2, "eval.every=0", "eval.test_at_tokens=[]", "train={steps = 3, queries = 4}"
    )
    run(RECIPE, tmp_path / "run", *settings)
    assert stages(tmp_path / "run") == [ONE, ONE, TWO]
    assert lines(tmp_path / "run", kind="eval") == []


def test_each_stage_logs_what_is_its_own(whole):
    for line in lines(whole(4), kind="train"):
        assert (line.get("reward/shaped") is not None) == (line["stage"] == TWO)
        for key in ("again/delta", "again/edited", "success/first", "success/revision"):
            assert isinstance(line[key], float)


def test_the_learning_rate_is_the_stages(thinking, tmp_path):
    settings = score(thinking, 2, "train.steps=4", "optimizer.lr=0.001", stage_two_rate=0.25)
    run(RECIPE, tmp_path / "run", *settings)
    rates = [line["lr"] for line in lines(tmp_path / "run", kind="train")]
    assert rates == pytest.approx([1e-3, 1e-3, 2.5e-4, 2.5e-4])


def test_the_first_stage_is_the_same_however_long_it_lasts(whole):
    """What comes later decides nothing that comes before."""
    short, long = (timeless(lines(whole(n), kind="train")) for n in (3, 4))
    assert short[:3] == long[:3]
    assert short[3] != long[3]


@pytest.mark.parametrize("stage_one", [3, 9])
def test_a_run_may_end_in_its_first_stage(stage_one, thinking, tmp_path):
    run(RECIPE, tmp_path / "run", *score(thinking, stage_one, "train.steps=3"))
    assert stages(tmp_path / "run") == [ONE] * 3
    found = summary(tmp_path / "run")
    assert (found["stage"], found["stages"], found["stopped_by"]) == (ONE, [0], "steps")


@pytest.mark.parametrize("part", ["stage_one", "multi_turn_training"])
def test_without_its_first_stage_it_begins_in_the_second(part, thinking, tmp_path):
    out = tmp_path / "run"
    run(RECIPE, out, *score(thinking, 2, "train.steps=3", without=part))
    assert stages(out) == [TWO] * 3
    assert summary(out)["stages"] == [0]
    (out / "summary.json").unlink()
    with pytest.raises(InwitError, match="is in its last stage"):
        advance(out)


# ---------------------------------------------------------------------- killed, by steps


@pytest.mark.parametrize("stage_one", [3, 4, 5])
@pytest.mark.parametrize("logged", [3, 5, 6, 7, 8, 9])
def test_a_run_killed_around_a_change_of_stage_goes_on_bit_for_bit(
    stage_one, logged, whole, thinking, tmp_path
):
    """LESSONS 3, 25: which stage a run is in, and since when, comes back with the weights.

    N steps are k steps, kill -9, resume and N - k steps, whether k lies before the change of stage,
    on it, or after it; whether a checkpoint and an evaluation lie on it or not.
    """
    out = tmp_path / "run"
    killed(RECIPE, out, score(thinking, stage_one), "metrics.jsonl", logged + 1)
    go_on(out)
    assert_same_run(out, whole(stage_one))
    assert stages(out) == [ONE] * stage_one + [TWO] * (STEPS - stage_one)


@pytest.fixture(scope="module")
def changes(thinking, tmp_path_factory) -> int:
    """How many changes there are to the files of a run."""
    home = tmp_path_factory.mktemp("changes")
    process = in_process(count_changes, RECIPE, home / "run", score(thinking, 4), home / "count")
    process.join()
    assert process.exitcode == 0
    return int((home / "count").read_text("utf-8"))


@pytest.mark.parametrize("seed", range(4))
def test_killed_at_any_moment_it_changes_stage_where_it_would_have(
    seed, changes, whole, thinking, tmp_path
):
    """LESSONS 25: twice, at moments that have nothing to do with stages."""
    r, out, settings = random.Random(seed), tmp_path / "run", score(thinking, 4)
    for moment in (r.randint(10, changes), r.randint(5, changes // 2)):
        process = in_process(run_until, RECIPE, out, settings, Change(out, moment))
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == KILLED
    if not (out / "summary.json").exists():
        go_on(out)
    assert_same_run(out, whole(4))


# ---------------------------------------------------------------------- by hand


@pytest.fixture(scope="module")
def advanced(thinking, tmp_path_factory) -> dict[int, Path]:
    """Whole runs, whose stage II was asked for after step 2 and after step 3."""
    home = tmp_path_factory.mktemp("advanced")
    for after in (2, 3):
        run_advancing(home / str(after), score(thinking, 7), after)
        assert_learned(home / str(after))
    return {after: home / str(after) for after in (2, 3)}


def test_a_stage_is_ended_by_hand_while_the_run_goes(thinking, whole, tmp_path):
    out = tmp_path / "run"
    progress = run_advancing(out, score(thinking, 7), 4)
    assert progress.told == [TWO]
    assert stages(out) == [ONE] * 4 + [TWO] * 4
    assert summary(out)["stages"] == [0, 4]
    assert RunFolder(out).stages_asked() == {1: 4}
    # nothing else tells it from a run whose recipe says so
    assert timeless(lines(out)) == timeless(lines(whole(4)))
    assert files(out / "model") == files(whole(4) / "model")


def test_a_stage_is_ended_before_the_first_step(thinking, tmp_path):
    out = tmp_path / "run"
    run_advancing(out, score(thinking, 7, "train.steps=3"), 0)
    assert stages(out) == [TWO] * 3
    assert summary(out)["stages"] == [0, 0]
    assert [e["step"] for e in lines(out, kind="eval", split="dev")] == [0, 3]


def test_asking_twice_asks_once(thinking, tmp_path):
    out = tmp_path / "run"
    settings = score(thinking, 7, "train.steps=4")
    killed(RECIPE, out, settings, "metrics.jsonl", 4)
    assert newest(out) == 2
    assert advance(out) == advance(out) == TWO
    assert RunFolder(out).stages_asked() == {1: None}
    go_on(out)
    assert summary(out)["stages"] == [0, 2]
    assert RunFolder(out).stages_asked() == {1: 2}


def test_a_stage_is_ended_while_the_run_is_stopped(advanced, thinking, tmp_path):
    """It then begins at the step that the run goes on with: that of its newest checkpoint."""
    out = tmp_path / "run"
    killed(RECIPE, out, score(thinking, 7), "metrics.jsonl", 5)
    assert newest(out) == 2
    assert lines(out)[-1]["step"] == 3  # which is taken back, and done again in another stage
    assert advance(out) == TWO
    go_on(out)
    assert stages(out) == [ONE] * 2 + [TWO] * 6
    assert_same_run(out, advanced[2])


@pytest.mark.parametrize("after", [2, 3])
@pytest.mark.parametrize("opened", [6, 7, 8, 9])
def test_a_stage_ended_by_hand_ends_there_again(after, opened, advanced, thinking, tmp_path):
    """LESSONS 25: killed after it and resumed from before it, a run changes stage at that step."""
    settings, out = score(thinking, 7), tmp_path / "run"
    doomed = Opening("metrics.jsonl", opened + 1)
    process = in_process(advancing_until, out, settings, after, doomed)
    process.join()
    assert process.exitcode == KILLED
    go_on(out)
    assert stages(out) == [ONE] * after + [TWO] * (STEPS - after)
    assert_same_run(out, advanced[after])


def test_what_was_asked_and_not_begun_begins_when_the_run_goes_on(thinking, tmp_path):
    """Killed between the question and the step: nothing of it is lost."""
    out = tmp_path / "run"
    begins = Opening("stages.json.partial", 2)  # where it would be written down when it began
    process = in_process(advancing_until, out, score(thinking, 7), 3, begins)
    process.join()
    assert process.exitcode == KILLED
    assert RunFolder(out).stages_asked() == {1: None}
    go_on(out)
    assert stages(out) == [ONE] * 2 + [TWO] * 6


# ---------------------------------------------------------------------- what is refused


def test_there_is_nothing_to_advance_to(thinking, whole, tmp_path):
    with pytest.raises(InwitError, match="is finished"):
        advance(whole(4))
    out = tmp_path / "run"
    killed(RECIPE, out, score(thinking, 2, "train.steps=5"), "metrics.jsonl", 7)
    assert stages(out)[-1] == TWO
    before = files(out)
    with pytest.raises(InwitError, match="is in its last stage"):
        advance(out)
    assert files(out) == before
    with pytest.raises(InwitError, match="not a run folder"):
        advance(tmp_path)


def test_a_method_of_one_stage_is_in_its_last(model, tmp_path):
    out = tmp_path / "run"
    killed(RECIPE, out, [f"model.path={model}", "train.steps=3"], "metrics.jsonl", 3)
    with pytest.raises(InwitError, match="is in its last stage"):
        advance(out)
