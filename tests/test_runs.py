"""Run folders: refused where they are taken, whole after a kill, readable by anyone."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inwit.errors import InwitError
from inwit.files import append_jsonl, cut_torn_line, plain, read_jsonl, write_json
from inwit.rows import (
    Attempt,
    Behaviour,
    Completion,
    Critique,
    Episode,
    Grade,
    Role,
    Sees,
    Stop,
    Turn,
)
from inwit.runs import PHASES, Counters, RunFolder, episode_record, versions
from tests.conftest import files


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", "seed = 3\n", 3)


# ---------------------------------------------------------------------- a new folder


def test_a_new_run_has_its_recipe_and_its_versions(folder):
    assert (folder.path / "recipe.toml").read_text("utf-8") == "seed = 3\n"
    written = json.loads((folder.path / "versions.json").read_text("utf-8"))
    assert written == versions() | {"seed": 3}
    assert {"python", "platform", "inwit", "torch", "transformers", "seed"} <= set(written)
    assert not folder.finished
    assert folder.checkpoints() == []
    assert folder.metrics() == []
    assert RunFolder.open(folder.path).path == folder.path


def test_parents_are_made_and_an_empty_folder_is_taken(tmp_path):
    assert RunFolder.create(tmp_path / "a" / "b" / "run", "", 0).path.is_dir()
    (tmp_path / "empty").mkdir()
    RunFolder.create(tmp_path / "empty", "", 0)


def test_a_folder_with_anything_in_it_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("four years", encoding="utf-8")
    before = files(tmp_path)
    for refuse in (RunFolder.check_free, lambda path: RunFolder.create(path, "seed = 1", 1)):
        with pytest.raises(InwitError, match="is not empty") as error:
            refuse(tmp_path)
        assert "--resume" in error.value.fix
    assert files(tmp_path) == before


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "run").write_text("x", encoding="utf-8")
    with pytest.raises(InwitError, match="is a file"):
        RunFolder.create(tmp_path / "run", "", 0)


def test_a_start_that_was_cut_short_can_be_made_again(tmp_path):
    """Killed before recipe.toml was there, it is not a run yet, and stands in nobody's way."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "versions.json").write_text("{}", encoding="utf-8")
    (tmp_path / "run" / ".recipe.toml.partial").write_text("se", encoding="utf-8")
    with pytest.raises(InwitError, match="not a run folder"):
        RunFolder.open(tmp_path / "run")
    folder = RunFolder.create(tmp_path / "run", "seed = 3\n", 3)
    assert (folder.path / "recipe.toml").read_text("utf-8") == "seed = 3\n"
    assert json.loads((folder.path / "versions.json").read_text("utf-8"))["seed"] == 3


def test_the_recipe_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    def fail(self: Path, target: Path) -> None:
        if target.name == "recipe.toml":
            raise OSError("killed")
        self.rename(target)

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="killed"):
        RunFolder.create(tmp_path / "run", "seed = 3\n", 3)
    assert not (tmp_path / "run" / "recipe.toml").exists()


def test_only_a_run_is_opened(tmp_path):
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(InwitError, match=r"no recipe\.toml"):
            RunFolder.open(path)


# ---------------------------------------------------------------------- JSON


@dataclass
class Point:
    x: float
    seen: frozenset[str]


def test_plain_is_what_json_can_hold():
    value = {1: Point(math.nan, frozenset("ba")), "l": (math.inf, -math.inf, 0.5, None, True)}
    assert plain(value) == {
        "1": {"x": None, "seen": ["a", "b"]},
        "l": [None, None, 0.5, None, True],
    }
    assert json.loads(json.dumps(plain(value), allow_nan=False)) == plain(value)


def test_json_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"ü": 1})
    assert path.read_text("utf-8").endswith("}\n")
    assert "ü" in path.read_text("utf-8")
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text("utf-8")) == {"ü": 1}
    assert files(tmp_path).keys() == {"a.json"}


# ---------------------------------------------------------------------- lines


def test_lines_are_added_at_the_end(folder):
    folder.append("metrics.jsonl", [{"step": 1, "x": math.nan}])
    folder.append("metrics.jsonl", [{"step": 2}, {"step": 3}])
    assert folder.metrics() == [{"step": 1, "x": None}, {"step": 2}, {"step": 3}]


def test_lines_after_a_step_are_taken_back(folder):
    for name in ("metrics.jsonl", "episodes.jsonl"):
        folder.append(name, [{"step": step, "n": n} for step in range(5) for n in range(2)])
    folder.truncate(2)
    for name in ("metrics.jsonl", "episodes.jsonl"):
        assert [line["step"] for line in read_jsonl(folder.path / name)] == [0, 0, 1, 1, 2, 2]
    folder.truncate(-1)
    assert folder.metrics() == []


def test_an_evaluation_that_the_checkpoint_does_not_know_is_taken_back(tmp_path):
    """It was made after the checkpoint, of the same step: the run makes it again."""
    folder = RunFolder(tmp_path)
    dev, test = ({"kind": "eval", "split": split} for split in ("dev", "test"))
    steps = [{"kind": "train", "step": step} for step in (1, 2, 3)]
    known = [dev | {"step": 0}, steps[0], dev | {"step": 1}, steps[1], test | {"step": 2}]
    folder.append("metrics.jsonl", [*known, dev | {"step": 2}, steps[2]])
    folder.truncate(2)
    assert folder.metrics() == [*known, dev | {"step": 2}]
    folder.truncate(2, evaluated=1)
    assert folder.metrics() == known


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 400))
def test_a_line_cut_anywhere_is_left_out(tmp_path_factory, cut):
    """A kill can cut the file at any byte, within a character even."""
    folder = RunFolder.create(tmp_path_factory.mktemp("cut") / "run", "", 0)
    folder.append(
        "episodes.jsonl", [{"step": s, "text": "Übergröße 数学" * 3} for s in range(1, 5)]
    )
    path = folder.path / "episodes.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    left = sum(end <= cut for end in ends)
    assert [line["step"] for line in read_jsonl(path)] == list(range(1, left + 1))
    folder.truncate(2)
    assert [line["step"] for line in read_jsonl(path)] == list(range(1, min(left, 2) + 1))
    folder.append("episodes.jsonl", [{"step": 3}])  # what follows begins on a line of its own
    assert read_jsonl(path)[-1] == {"step": 3}


# ---------------------------------------------------------------------- checkpoints


def write_one(text: str):
    return lambda folder: (folder / "state").write_text(text, encoding="utf-8")


def test_the_newest_checkpoints_are_kept(folder):
    for step in (5, 10, 15, 20):
        folder.checkpoint(step, write_one(str(step)), keep=2)
    assert [c.name for c in folder.checkpoints()] == ["step-000015", "step-000020"]
    assert (folder.checkpoints()[-1] / "state").read_text("utf-8") == "20"


def test_a_checkpoint_half_written_is_none(folder):
    folder.checkpoint(5, write_one("5"), keep=2)

    def fail(partial: Path) -> None:
        write_one("half")(partial)
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        folder.checkpoint(10, fail, keep=1)
    assert [c.name for c in folder.checkpoints()] == ["step-000005"]
    folder.checkpoint(10, write_one("10"), keep=1)
    assert [c.name for c in folder.checkpoints()] == ["step-000010"]
    assert files(folder.checkpoints()[0]) == {"state": b"10"}


def test_a_whole_checkpoint_is_not_written_again(folder):
    """Replacing it would leave a moment in which a kill finds none."""
    folder.checkpoint(5, write_one("5"), keep=1)
    folder.checkpoint(3, write_one("left over by a kill"), keep=2)
    folder.checkpoint(5, write_one("another"), keep=1)
    assert [c.name for c in folder.checkpoints()] == ["step-000005"]
    assert (folder.checkpoints()[0] / "state").read_text("utf-8") == "5"


def test_a_published_folder_is_whole(folder):
    def fail(partial: Path) -> None:
        write_one("half")(partial)
        raise OSError

    with pytest.raises(OSError):
        folder.publish("model", fail)
    assert not (folder.path / "model").exists()
    folder.publish("model", write_one("a"))
    folder.publish("model", write_one("b"))
    assert files(folder.path / "model") == {"state": b"b"}


# ---------------------------------------------------------------------- episodes


def turn(role: Role, ids: tuple[int, ...], behaviour: Behaviour = Behaviour.POLICY) -> Turn:
    said = Completion(ids, (-0.12345678,) * len(ids), Stop.TOKEN)
    return Turn(role, (1, 2), said, frozenset({Sees.QUESTION, Sees.ATTEMPT}), behaviour)


def test_an_episode_is_written_with_all_that_was_said_and_trained():
    critique = Critique(0, 0, turn(Role.CRITIC, (5,), Behaviour.REFERENCE), "check it", 3.0)
    first = Attempt(0, (turn(Role.SOLVER, (3, 4)),), Grade.WRONG, 0.0, "no", feedback="off by one")
    revised = Attempt(1, (turn(Role.SOLVER, (6,)),), Grade.RIGHT, 1.0, "yes", critique=0)
    episode = Episode("7/q/0", "q", (first, revised), (critique,))
    trained = {
        (Role.SOLVER, 1): {"advantage": 0.7, "weights": [0.5]},
        (Role.CRITIC, 0): {"advantage": -0.2},
    }
    record = plain(episode_record(episode, 7, lambda ids: "/".join(map(str, ids)), trained))
    assert json.loads(json.dumps(record)) == record
    assert (record["step"], record["id"], record["query"]) == (7, "7/q/0", "q")
    assert [a["grade"] for a in record["attempts"]] == ["wrong", "right"]
    assert [a["text"] for a in record["attempts"]] == ["no", "yes"]
    assert record["attempts"][0]["feedback"] == "off by one"
    assert "advantage" not in record["attempts"][0]
    assert record["attempts"][1]["weights"] == [0.5]
    assert record["attempts"][1]["critique"] == 0
    [said] = record["critiques"]
    assert (said["text"], said["size"], said["of"], said["advantage"]) == ("check it", 3.0, 0, -0.2)
    assert said["turn"] == {
        "role": "critic",
        "sees": ["attempt", "question"],
        "behaviour": "reference",
        "prompt": "1/2",
        "prompt_ids": [1, 2],
        "completion_ids": [5],
        "logprobs": [-0.123457],
        "stop": "token",
    }


# ---------------------------------------------------------------------- stages


def test_stages_asked_for_by_hand_are_kept_with_the_steps_at_which_they_began(folder):
    assert folder.stages_asked() == {}
    folder.ask_stage(1)
    assert folder.stages_asked() == {1: None}
    folder.ask_stage(1, 40)
    folder.ask_stage(2)
    assert RunFolder(folder.path).stages_asked() == {1: 40, 2: None}


def test_training_costs_what_was_not_evaluation():
    seconds = dict(zip(PHASES, (1.0, 2.0, 4.0, 8.0), strict=True))
    counters = Counters(sampled_tokens=5, trained_tokens=3, cpu_seconds=seconds)
    assert PHASES[-1] == "evaluate" and counters.training_cpu == 7.0
    assert counters.cost == {"sampled_tokens": 5, "trained_tokens": 3, "cpu_seconds": 7.0}
    assert Counters().stages == [0] and Counters().stages is not Counters().stages


def test_a_torn_last_line_is_cut_off_and_whole_ones_stay(tmp_path):
    """So that what is added after a kill does not run into it."""
    path = tmp_path / "lines.jsonl"
    for before, after in {b"": b"", b'{"a": 1}\n': b'{"a": 1}\n', b'{"a"': b""}.items():
        path.write_bytes(before)
        cut_torn_line(path)
        assert path.read_bytes() == after
    append_jsonl(path, [{"a": 1}, {"a": "ä"}])
    with path.open("ab") as file:
        file.write('{"a": "€'.encode()[:-1])
    cut_torn_line(path)
    append_jsonl(path, [{"a": math.nan}])
    assert read_jsonl(path) == [{"a": 1}, {"a": "ä"}, {"a": None}]


def test_one_process_at_a_time_writes_to_a_run(tmp_path):
    folder = RunFolder.create(tmp_path / "run", "seed = 0\n", 0)
    other = RunFolder(folder.path)
    with folder.locked(), pytest.raises(InwitError, match="Another process"), other.locked():
        pass
    with folder.locked():
        pass
