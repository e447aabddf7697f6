"""Training: what a run leaves behind, that a seed decides it, the order of the data, the stops."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from inwit.casting import Cast
from inwit.envs import Split
from inwit.errors import InwitError
from inwit.recipe import load_recipe
from inwit.train import Trainer, train
from tests.conftest import RECIPES, Silent, assert_same_run, files, lines, run, timeless

ENV_FILE = '''
from inwit.envs import Result
from inwit.envs.checkout import Checkout

class Right(Checkout):
    """Everything is right."""
    def grade(self, task, answer):
        return Result.of(True)

class Wrong(Checkout):
    """Nothing is."""
    def grade(self, task, answer):
        return Result.of(False)

class Broken(Checkout):
    """The grader breaks on every answer."""
    def grade(self, task, answer):
        return Result.of(1 / 0 > 1)

class Shaky(Checkout):
    """The grader breaks on every fifth task of those to train on, whatever is answered."""
    def grade(self, task, answer):
        if task.id.startswith("train") and int(task.id.partition("-")[2]) % 5 == 0:
            raise OSError("the grader went away")
        return super().grade(task, answer)
'''


@pytest.fixture(scope="module")
def envs(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("envs") / "shops.py"
    file.write_text(ENV_FILE, encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def icrl(model, tmp_path_factory) -> Path:
    """A debug run of ICRL: 8 steps of 4 queries."""
    out = tmp_path_factory.mktemp("icrl") / "run"
    run("debug-icrl", out, f"model.path={model}")
    return out


@pytest.fixture(scope="module")
def grpo(model, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("grpo") / "run"
    run("debug-grpo", out, f"model.path={model}")
    return out


def summary(folder: Path) -> dict[str, object]:
    return json.loads((folder / "summary.json").read_text("utf-8"))


def trainer(model: str, *settings: str, recipe: str = "debug-grpo") -> Trainer:
    loaded = load_recipe(RECIPES / f"{recipe}.toml", [f"model.path={model}", *settings])
    return Trainer(loaded, Silent())


# ---------------------------------------------------------------------- what is left behind


@pytest.mark.parametrize("name", ["grpo", "icrl"])
def test_a_run_leaves_these_files(name, request):
    folder = request.getfixturevalue(name)
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "recipe.toml",
        "versions.json",
        "metrics.jsonl",
        "episodes.jsonl",
        "checkpoints",
        "model",
        "summary.json",
    }
    assert [c.name for c in sorted((folder / "checkpoints").iterdir())] == [
        "step-000006",
        "step-000008",
    ]
    written = json.loads((folder / "versions.json").read_text("utf-8"))
    assert written["seed"] == 0
    assert written["torch"] == torch.__version__


def test_the_recipe_in_the_folder_repeats_the_run(icrl, tmp_path):
    """It is resolved: nothing of it is in another file, and every default is written down."""
    text = (icrl / "recipe.toml").read_text("utf-8")
    assert "extends" not in text
    assert "max_error_share" in text
    train(load_recipe(icrl / "recipe.toml"), tmp_path / "again", Silent())
    assert_same_run(tmp_path / "again", icrl)


EVERY_METHOD = {
    "kind", "step", "stage", "reward/first", "success/first", "survivors", "truncated", "errors",
    "error_share", "turns", "tokens/attempt", "tokens/sampled", "rows", "rows_trained",
    "zero_advantage/solver", "group_size/solver", "loss", "grad_norm", "lr", "entropy",
    "clip_share", "kl", "parity", "tokens", "optimizer_steps", "alarms",
    "seconds/sample", "seconds/credit", "seconds/train",
    "total/sampled_tokens", "total/trained_tokens", "total/cpu_seconds",
}  # fmt: skip
CORRECTIONS = {
    "reward/revision", "success/revision", "critic/gain", "critic/wrong_to_right",
    "critic/right_to_wrong", "critic/tokens", "critic/size", "critic/count",
    "rows/reconditioned", "zero_advantage/critic", "group_size/critic",
    "weight_mean", "weight_truncated", "effective_share",
}  # fmt: skip


def test_every_step_logs_every_measure(icrl, grpo):
    """LESSONS 1 and 9: weights, truncation, effective sample size, group sizes, survivors."""
    for folder in (icrl, grpo):
        steps = lines(folder, kind="train")
        assert [line["step"] for line in steps] == list(range(1, 9))
        for line in steps:
            assert set(line) >= EVERY_METHOD | CORRECTIONS
            for key in EVERY_METHOD - {"kind", "stage", "alarms", "parity"}:
                assert isinstance(line[key], int | float), key
    for line in lines(icrl, kind="train"):
        if line["critic/count"]:
            for key in CORRECTIONS - {"weight_mean", "weight_truncated", "effective_share"}:
                assert isinstance(line[key], int | float), key
    for line in lines(grpo, kind="train"):
        assert line["critic/count"] == line["rows/reconditioned"] == 0
        assert line["reward/revision"] is line["critic/gain"] is line["weight_mean"] is None


def test_measures_are_what_the_episodes_say(icrl):
    by_step: dict[int, list[dict]] = {}
    for episode in lines(icrl, "episodes.jsonl"):
        by_step.setdefault(episode["step"], []).append(episode)
    total = 0
    for line in lines(icrl, kind="train"):
        played = by_step[line["step"]]
        assert len(played) == 4 * 4
        firsts = [e["attempts"][0] for e in played]
        revised = [e["attempts"][1] for e in played if len(e["attempts"]) > 1]
        critiques = [c for e in played for c in e["critiques"]]
        assert line["reward/first"] == pytest.approx(sum(a["reward"] for a in firsts) / 16)
        assert line["survivors"] == pytest.approx(len(revised) / 16)
        assert line["critic/count"] == len(critiques) == len(revised)
        turns = [t for a in firsts + revised for t in a["turns"]] + [c["turn"] for c in critiques]
        sampled = sum(len(t["completion_ids"]) for t in turns)
        assert line["tokens/sampled"] == sampled
        total += sampled
        assert line["total/sampled_tokens"] == total
        ends = [a["turns"][-1]["stop"] == "length" for a in firsts + revised]
        assert line["truncated"] == pytest.approx(sum(ends) / len(ends))
        if revised:
            gain = sum(a["reward"] for a in revised) / len(revised)  # only failures were criticised
            assert line["critic/gain"] == pytest.approx(gain)
            mean = sum(len(c["turn"]["completion_ids"]) for c in critiques) / len(critiques)
            assert line["critic/tokens"] == pytest.approx(mean)
    assert summary(icrl)["sampled_tokens"] == total


def test_episodes_show_critiques_revisions_and_the_weights_they_were_trained_with(icrl):
    episodes = lines(icrl, "episodes.jsonl")
    weighted = []
    for episode in episodes:
        for attempt in episode["attempts"]:
            ids = attempt["turns"][0]["completion_ids"]
            assert len(attempt["turns"][0]["logprobs"]) == len(ids)
            if attempt["index"] == 0:
                assert "weights" not in attempt
                continue
            critique = episode["critiques"][attempt["critique"]]
            assert critique["text"] in attempt["turns"][0]["prompt"]
            assert "critique" in attempt["turns"][0]["sees"]
            assert "outcome" in critique["turn"]["sees"]
            # a revision is trained if its group's rewards differ, and then each token has a weight
            assert ("weights" in attempt) == (attempt["advantage"] != 0)
            if "weights" in attempt:
                assert len(attempt["weights"]) == len(ids)
                assert all(0 <= w <= 2.0 for w in attempt["weights"])
                weighted.append((episode["step"], attempt["weights"]))
    assert len(weighted) >= 5
    for line in lines(icrl, kind="train"):
        tokens = [w for step, ws in weighted for w in ws if step == line["step"]]
        if not tokens:
            assert line["weight_mean"] is None
            continue
        mean = sum(tokens) / len(tokens)
        assert line["weight_mean"] == pytest.approx(mean, abs=1e-3)
        assert line["weight_truncated"] == pytest.approx(sum(w == 2 for w in tokens) / len(tokens))
        effective = sum(tokens) ** 2 / sum(w * w for w in tokens) / len(tokens)
        assert line["effective_share"] == pytest.approx(effective, abs=1e-3)


def test_episodes_are_written_as_often_as_asked(model, tmp_path):
    for every, steps in ((2, {2, 4}), (0, set())):
        out = tmp_path / str(every)
        run(
            "debug-grpo",
            out,
            f"model.path={model}",
            "train.steps=4",
            f"train.episodes_every={every}",
        )
        found = lines(out, "episodes.jsonl") if (out / "episodes.jsonl").exists() else []
        assert {episode["step"] for episode in found} == steps


def test_sampler_and_learner_agree_before_the_first_update(icrl, grpo):
    """LESSONS 15: at step 0 no log-prob of the learner is 1e-4 from the sampler's."""
    for folder in (icrl, grpo):
        found = summary(folder)
        assert 0 <= found["step0_parity"] < 1e-4
        assert found["step0_parity"] <= found["worst_parity"] < 1e-4
        first = next(s for s in lines(folder, kind="train") if s["parity"] is not None)
        assert first["parity"] == found["step0_parity"]


def test_the_summary_says_what_happened(icrl):
    found = summary(icrl)
    steps = lines(icrl, kind="train")
    assert (found["method"], found["env"], found["seed"]) == ("icrl", "checkout", 0)
    assert (found["step"], found["stopped_by"], found["target"]) == (8, "steps", None)
    assert found["trained_tokens"] == sum(s["tokens"] for s in steps)
    assert found["dev"] == lines(icrl, kind="eval", split="dev")[-1]
    assert found["last_step"] == steps[-1]
    assert found["dropped"] == 0
    assert (found["stage"], found["stages"]) == ("", [0])  # there is one stage only
    assert all(line["stage"] == "" for line in lines(icrl))
    assert found["wall_seconds"] > 0
    for phase in ("sample", "credit", "train"):
        spent = sum(s[f"seconds/{phase}"] for s in steps)
        assert found["cpu_seconds"][phase] == pytest.approx(spent)
    spent = steps[-1]["total/cpu_seconds"]
    assert spent == pytest.approx(
        sum(found["cpu_seconds"][p] for p in ("sample", "credit", "train"))
    )


def test_dev_is_asked_at_its_steps_and_test_at_its_tokens(icrl, grpo):
    for folder, protocol in ((icrl, "critique"), (grpo, "direct")):
        assert [e["step"] for e in lines(folder, kind="eval", split="dev")] == [0, 4, 8]
        [test] = lines(folder, kind="eval", split="test")
        at = {s["step"]: s["total/sampled_tokens"] for s in lines(folder, kind="train")}
        assert at[test["step"]] >= 200 > at[test["step"] - 1]
        assert test["sampled_tokens"] == at[test["step"]]
        assert summary(folder)["test"] == {"200": test}
        for line in lines(folder, kind="eval"):
            assert line["protocol"] == protocol
            assert (line["n"], line["samples"]) == (24, 1)
            first = line["measures"]["a1"]
            assert first["n"] == 24
            assert first["value"] == first["count"] / 24
            low, high = first["ci"]
            assert low <= first["value"] <= high
            assert ("repair_rate" in line["measures"]) == (protocol == "critique")
            if protocol == "critique":
                repaired = line["measures"]["repair_rate"]
                assert repaired["n"] == 24 - first["count"]  # all failures, criticised or not
                assert line["table"]["only_first"] == 0  # right answers are not asked again
                assert repaired["count"] == line["table"]["only_second"]


def test_the_final_model_is_anyones(icrl, model):
    """Loaded by transformers alone, it holds the weights of the last checkpoint."""
    final = AutoModelForCausalLM.from_pretrained(icrl / "model")
    tokenizer = AutoTokenizer.from_pretrained(icrl / "model")
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Q: x"}], tokenize=False, add_generation_prompt=True
    )
    assert text == "Q: x Work:"
    cast = Cast.of(load_recipe(icrl / "recipe.toml"))
    cast.engine.load(icrl / "checkpoints" / "step-000008")
    state = cast.engine._policy.backbone.model.state_dict()
    begun = AutoModelForCausalLM.from_pretrained(model).state_dict()
    assert final.state_dict().keys() == state.keys() == begun.keys()
    assert all(torch.equal(v, state[k]) for k, v in final.state_dict().items())
    assert any(not torch.equal(v, begun[k]) for k, v in final.state_dict().items())


def test_the_warm_start_learns_all_roles(warm):
    steps = lines(warm, kind="train")
    assert len(steps) == 40
    assert steps[-1]["loss"] < steps[0]["loss"] / 3
    assert summary(warm)["sampled_tokens"] == 0
    assert summary(warm)["step0_parity"] is None
    assert lines(warm, "episodes.jsonl") == []  # nothing was played


# ---------------------------------------------------------------------- what decides a run


def test_the_same_seed_is_the_same_run(grpo, model, tmp_path):
    run("debug-grpo", tmp_path / "run", f"model.path={model}")
    assert_same_run(tmp_path / "run", grpo)


def test_another_seed_is_another_run(grpo, model, tmp_path):
    run("debug-grpo", tmp_path / "run", f"model.path={model}", "seed=1")
    assert timeless(lines(tmp_path / "run")) != timeless(lines(grpo))
    assert files(tmp_path / "run" / "model") != files(grpo / "model")
    mine, theirs = (
        {e["query"] for e in lines(f, "episodes.jsonl", step=1)} for f in (tmp_path / "run", grpo)
    )
    assert mine != theirs


def test_a_task_that_comes_again_is_answered_afresh(model, tmp_path):
    """Every step draws its own samples, and every episode of a run has a name of its own."""
    out = tmp_path / "run"
    run("debug-grpo", out, f"model.path={model}", "env.train=4")  # all four tasks in each step
    episodes = lines(out, "episodes.jsonl")
    names = [episode["id"] for episode in episodes]
    assert len(names) == len(set(names)) == 8 * 4 * 8
    answers: dict[str, list[list[str]]] = {}
    for step in range(1, 9):
        for query in {e["query"] for e in episodes}:
            mine = [e for e in episodes if (e["step"], e["query"]) == (step, query)]
            answers.setdefault(query, []).append([e["attempts"][0]["text"] for e in mine])
    for several in answers.values():
        assert len({tuple(texts) for texts in several}) >= 6


def test_evaluating_more_often_changes_nothing_that_is_learned(grpo, model, tmp_path):
    """Each scene has random choices of its own: what else is asked disturbs nobody."""
    run("debug-grpo", tmp_path / "run", f"model.path={model}", "eval.every=1", "eval.tasks=5")
    assert files(tmp_path / "run" / "model") == files(grpo / "model")


# ---------------------------------------------------------------------- the data


def test_train_dev_and_test_share_no_task(model):
    made = trainer(model)
    questions = {split: [t.question for t in made.recipe.env.tasks(split)] for split in Split}
    assert {s: len(q) for s, q in questions.items()} == {"train": 40, "dev": 24, "test": 24}
    everything = [q for some in questions.values() for q in some]
    assert len(set(everything)) == len(everything)
    assert made.train_tasks == made.recipe.env.tasks(Split.TRAIN)
    assert made.held_out[Split.DEV] == made.recipe.env.tasks(Split.DEV)


def test_held_out_sets_are_cut_as_the_recipe_says(model):
    made = trainer(model, "eval.tasks=3", "eval.test_tasks=5")
    assert made.held_out[Split.DEV] == made.recipe.env.tasks(Split.DEV)[:3]
    assert made.held_out[Split.TEST] == made.recipe.env.tasks(Split.TEST)[:5]


@pytest.mark.parametrize("queries", [4, 8, 40])
def test_every_epoch_asks_every_task_once(queries, model):
    """LESSONS 25: nothing is repeated or left out, and each time through has another order."""
    made = trainer(model, f"train.queries={queries}")
    steps = 40 // queries
    epochs = []
    for epoch in range(3):
        asked = [
            t.id for s in range(epoch * steps, (epoch + 1) * steps) for t in made.queries.of(s)
        ]
        assert len(asked) == len(set(asked)) == 40
        epochs.append(asked)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


def test_the_order_is_the_steps_own(model):
    """LESSONS 25: a run that begins in the middle asks what it would have asked anyway."""
    made, resumed = trainer(model), trainer(model)
    order = [[t.id for t in made.queries.of(step)] for step in range(25)]
    for step in (13, 9, 24, 0):
        assert [t.id for t in resumed.queries.of(step)] == order[step]
    other = trainer(model, "seed=1")
    assert [t.id for t in other.queries.of(0)] != order[0]


@pytest.mark.parametrize("queries", [7, 16])
def test_an_epoch_may_end_within_a_step(queries, model):
    """Each task comes once in each epoch; one that two epochs put into one step is asked once."""
    made = trainer(model, f"train.queries={queries}")
    steps = [[t.id for t in made.queries.of(step)] for step in range(40)]
    asked = Counter(task for step in steps for task in step)
    assert all(len(set(step)) == len(step) for step in steps)
    assert sum(asked.values()) > 40 * queries * 0.95
    assert max(asked.values()) - min(asked.values()) <= 3
    # the steps that lie within an epoch are full
    whole = [
        step for i, step in enumerate(steps) if i * queries // 40 == ((i + 1) * queries - 1) // 40
    ]
    assert all(len(step) == queries for step in whole)


def test_fewer_tasks_than_queries_are_asked_once_a_step(model):
    made = trainer(model, "env.train=3", "train.queries=16")
    assert {t.id for t in made.queries.of(0)} == {"train-0", "train-1", "train-2"}
    assert len(made.queries.of(0)) == 3


# ---------------------------------------------------------------------- stops


def test_a_grader_that_errs_on_everything_stops_the_run(envs, model, tmp_path):
    """LESSONS 23: it aborts with the reason, and does not train on zeros."""
    out = tmp_path / "run"
    with pytest.raises(
        InwitError, match=r"100% of the attempts of step 1 could not be graded"
    ) as e:
        run("debug-grpo", out, f"model.path={model}", f"env.name={envs}:Broken")
    assert "max_error_share" in e.value.fix
    [line] = lines(out, kind="train")
    assert line["errors"] == 32
    assert line["reward/first"] is line["success/first"] is None  # not 0
    [dev] = lines(out, kind="eval")
    assert dev["measures"]["a1"] == {"value": None, "ci": None, "n": 0, "count": 0}
    assert dev["measures"]["errors"]["count"] == dev["errors"] == 24
    assert line["rows"] == line["rows_trained"] == line["optimizer_steps"] == 0
    feedback = {a["feedback"] for e in lines(out, "episodes.jsonl") for a in e["attempts"]}
    assert feedback == {"ZeroDivisionError: division by zero"}
    assert not (out / "summary.json").exists()
    assert not (out / "model").exists()


def test_errors_below_the_limit_are_dropped_and_counted(envs, model, tmp_path):
    """LESSONS 23 and 24: an error is no reward of zero, no row, and no secret."""
    out = tmp_path / "run"
    settings = [f"model.path={model}", f"env.name={envs}:Shaky", "train.max_error_share=0.8"]
    run("debug-icrl", out, *settings)
    errors = 0
    for line in lines(out, kind="train"):
        played = lines(out, "episodes.jsonl", step=line["step"])
        broken = [e for e in played if e["attempts"][0]["grade"] == "error"]
        assert len(broken) % 4 == 0
        assert line["errors"] == len(broken)
        assert all(len(e["attempts"]) == 1 and not e["critiques"] for e in broken)
        assert all("advantage" not in e["attempts"][0] for e in broken)
        sound = [e["attempts"][0]["reward"] for e in played if e not in broken]
        if sound:
            assert line["reward/first"] == pytest.approx(sum(sound) / len(sound))
        errors += line["errors"]
    assert errors > 0
    assert summary(out)["dropped"] == errors


def test_the_limit_on_errors_is_the_recipes(envs, model, tmp_path):
    """LESSONS 23: abort where the share of errors is high."""
    settings = [f"model.path={model}", f"env.name={envs}:Shaky"]
    with pytest.raises(InwitError, match="could not be graded"):
        run("debug-grpo", tmp_path / "run", *settings, "train.max_error_share=0.01")


def test_collapsing_weights_stop_the_run(model, tmp_path):
    """LESSONS 1: where the weights leave too small an effective sample, the run stops."""
    out = tmp_path / "run"
    with pytest.raises(InwitError, match="effective sample share of 0") as error:
        run("debug-icrl", out, f"model.path={model}", "train.min_effective_share=1.0")
    assert "min_effective_share" in error.value.fix
    assert lines(out, kind="train")[-1]["effective_share"] < 1
    assert not (out / "summary.json").exists()


def test_a_budget_of_sampled_tokens_ends_the_run(grpo, model, tmp_path):
    out = tmp_path / "run"
    run("debug-grpo", out, f"model.path={model}", "train.sampled_tokens=250")
    found = summary(out)
    assert found["stopped_by"] == "sampled_tokens"
    totals = [line["total/sampled_tokens"] for line in lines(out, kind="train")]
    assert totals[-2] < 250 <= totals[-1] == found["sampled_tokens"]
    theirs = [line["total/sampled_tokens"] for line in lines(grpo, kind="train")]
    assert totals == theirs[: len(totals)]


def test_the_run_ends_when_dev_is_good_enough(envs, model, tmp_path):
    out = tmp_path / "run"
    settings = [f"model.path={model}", f"env.name={envs}:Right", "eval.test_at_tokens=[]"]
    run("debug-grpo", out, *settings, "train.stop_at=1.0")
    found = summary(out)
    assert (found["stopped_by"], found["step"]) == ("stop_at", 0)  # it was before it began
    assert found["target"] == {"sampled_tokens": 0, "trained_tokens": 0, "cpu_seconds": 0.0}
    assert (out / "model").is_dir()


def test_a_good_run_still_goes_on_until_test_was_asked(envs, model, tmp_path):
    """A comparison at equal tokens needs its mark; the cost to the target stays the first one."""
    out = tmp_path / "run"
    settings = [f"model.path={model}", f"env.name={envs}:Right", "eval.test_at_tokens=[100, 200]"]
    run("debug-grpo", out, *settings, "train.stop_at=0.9")
    found = summary(out)
    assert found["stopped_by"] == "stop_at"
    assert found["sampled_tokens"] >= 200 > lines(out, kind="train")[-2]["total/sampled_tokens"]
    assert found["target"]["sampled_tokens"] == 0
    assert set(found["test"]) == {"100", "200"}
    assert found["test"]["100"]["step"] < found["test"]["200"]["step"] == found["step"]


def test_a_run_that_is_never_good_enough_uses_all_its_steps(envs, model, tmp_path):
    out = tmp_path / "run"
    settings = [f"model.path={model}", f"env.name={envs}:Wrong", "train.stop_at=0.01"]
    run("debug-grpo", out, *settings)
    found = summary(out)
    assert (found["stopped_by"], found["step"], found["target"]) == ("steps", 8, None)
    assert found["dev"]["measures"]["a1"]["value"] == 0
    assert all(line["rows_trained"] == 0 for line in lines(out, kind="train"))
    assert all(math.isfinite(line["loss"]) for line in lines(out, kind="train"))


def test_progress_is_told_as_it_happens(model, tmp_path):
    seen = Silent()
    recipe = load_recipe(
        RECIPES / "debug-grpo.toml", [f"model.path={model}", "train.steps=4", "eval.every=2"]
    )
    train(recipe, tmp_path / "run", seen)
    assert seen.steps == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert [e["step"] for e in seen.evaluations if e["split"] == "dev"] == [0, 2, 4]
    assert seen.alarms == []
