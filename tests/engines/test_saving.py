"""Checkpoints of the torch engine, and the Hugging Face directories it exports."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from inwit.engines import OptimizerSettings, Sampling, UpdateStats
from inwit.engines.torch import LoraSettings, TorchEngine, TorchSettings, load_model
from inwit.errors import InwitError
from inwit.objectives import Objective
from inwit.rows import Row
from tests.engines.models import loaded, model_of, plain_logits, tokenizer
from tests.helpers import row_of, some_ids

STOPS = (1, 6, 11, 16)
LORA = LoraSettings(rank=3, alpha=6)
KINDS = {"full": None, "lora": LORA}
PLAN = OptimizerSettings(
    lr=0.01, warmup=2, schedule="cosine", weight_decay=0.01, minibatches=2, epochs=2
)
TOTAL = 6


def build(family: str = "qwen3", kind: str = "full", seed: int = 0) -> TorchEngine:
    settings = TorchSettings(device="cpu", max_batch=8, tokens_at_once=120, lora=KINDS[kind])
    return TorchEngine(loaded(family, seed), settings, keep_reference=True)


def play(engine: TorchEngine, step: int) -> list[Row]:
    """A batch that depends on everything the engine is: its samples and their rewards."""

    async def go() -> list[Row]:
        prompts = [some_ids(3 + 2 * i, seed=10 * step + i) for i in range(3)]
        found = await asyncio.gather(
            *(engine.sample(p, 4, Sampling(8, STOPS, 1.0, seed=step)) for p in prompts)
        )
        return [
            row_of(p, c, (-1.0, 1.0)[sum(c.ids) % 2], episode=f"{step}/{p}/{i}")
            for p, some in zip(prompts, found, strict=True)
            for i, c in enumerate(some)
        ]

    return asyncio.run(go())


def train(engine: TorchEngine, steps: range) -> list[UpdateStats]:
    objective = Objective(kl=0.05)
    return [
        asyncio.run(engine.update(play(engine, step), objective, PLAN, TOTAL)) for step in steps
    ]


def state_of(engine: TorchEngine) -> dict[str, torch.Tensor]:
    """Every number that training goes on from: weights and moments."""
    found = {f"weight {n}": p.detach().clone() for n, p in engine._trainable().items()}
    assert engine._learner.optimizer is not None
    for index, moments in engine._learner.optimizer.state_dict()["state"].items():
        found |= {f"{name} {index}": value.clone() for name, value in moments.items()}
    return found


def assert_identical(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), f"{name} differs"


# ---------------------------------------------------------------------- going on


@pytest.mark.parametrize(
    ("family", "kind"), [("qwen3", "full"), ("llama", "lora"), ("gemma2", "full")]
)
def test_training_resumes_bit_for_bit(family: str, kind: str, tmp_path: Path) -> None:
    """LESSONS 25: 5 updates are 3 updates, a checkpoint, a new engine, and 2 updates; bitwise.

    Weights, AdamW's moments, the place in the schedule, the order of minibatches, the reference.
    """
    straight = build(family, kind)
    wanted = train(straight, range(5))
    first = build(family, kind)
    train(first, range(3))
    first.save(tmp_path)
    second = build(family, kind)
    second.load(tmp_path)
    assert_identical(state_of(second), state_of(first))
    assert train(second, range(3, 5)) == wanted[3:]
    assert_identical(state_of(second), state_of(straight))
    assert play(second, 9) == play(straight, 9)
    assert len({stats.lr for stats in wanted}) > 2
    assert wanted[-1].kl > 0


def test_saving_changes_nothing(tmp_path: Path) -> None:
    """LESSONS 25: a run that writes checkpoints is the run that does not."""
    straight, saving = build(kind="lora"), build(kind="lora")
    train(straight, range(3))
    for step in range(3):
        train(saving, range(step, step + 1))
        folder = tmp_path / str(step)
        folder.mkdir()
        saving.save(folder)
    assert_identical(state_of(saving), state_of(straight))


def test_the_settings_of_the_optimizer_come_from_the_checkpoint(tmp_path: Path) -> None:
    """A new engine is told nothing of the optimizer before its first update."""
    first = build()
    train(first, range(1))
    first.save(tmp_path)
    second = build()
    second.load(tmp_path)
    assert second._learner.optimizer is not None
    (group,) = second._learner.optimizer.param_groups
    assert (group["betas"], group["eps"], group["weight_decay"]) == (PLAN.betas, PLAN.eps, 0.01)


def test_a_checkpoint_from_before_the_first_update(tmp_path: Path) -> None:
    """LESSONS 25: going back to it forgets what was learned since, momentum included."""
    straight, other = build(), build()
    wanted = train(straight, range(2))
    other.save(tmp_path)
    train(other, range(3, 5))
    other.load(tmp_path)
    assert train(other, range(2)) == wanted
    assert_identical(state_of(other), state_of(straight))


def test_torch_random_state_is_part_of_a_checkpoint(tmp_path: Path) -> None:
    """LESSONS 25: whatever draws from torch's own generator goes on, too."""
    engine = build()
    torch.manual_seed(5)
    engine.save(tmp_path)
    wanted = torch.rand(3)
    torch.manual_seed(6)
    engine.load(tmp_path)
    assert torch.equal(torch.rand(3), wanted)


# ---------------------------------------------------------------------- broken checkpoints


def truncate(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def reseal(folder: Path) -> None:
    """Make the recorded sums agree with what is there, as if it had been written so."""
    state = json.loads((folder / "engine.json").read_text("utf-8"))
    state["sha256"] = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in state["sha256"]
    }
    (folder / "engine.json").write_text(json.dumps(state), encoding="utf-8")


def rewrite(text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "engine.json").write_text(text, encoding="utf-8")


def without(key: str) -> Callable[[Path], object]:
    def act(folder: Path) -> None:
        state = json.loads((folder / "engine.json").read_text("utf-8"))
        del state[key]
        (folder / "engine.json").write_text(json.dumps(state), encoding="utf-8")

    return act


def truncated_and_sealed(folder: Path) -> None:
    truncate(folder / "model.safetensors")
    reseal(folder)


BREAKS: dict[str, tuple[Callable[[Path], object], str]] = {
    "weights cut short": (lambda f: truncate(f / "model.safetensors"), "model.safetensors is not"),
    "weights cut short, sums made to fit": (truncated_and_sealed, "cannot be loaded"),
    "moments cut short": (lambda f: truncate(f / "optimizer.pt"), "optimizer.pt is not"),
    "random state emptied": (lambda f: (f / "random.pt").write_bytes(b""), "random.pt is not"),
    "weights gone": (lambda f: (f / "model.safetensors").unlink(), "model.safetensors"),
    "moments gone": (lambda f: (f / "optimizer.pt").unlink(), "optimizer.pt"),
    "state gone": (lambda f: (f / "engine.json").unlink(), "engine.json"),
    "state garbled": (rewrite('{"updates": 3, "sta'), "JSONDecodeError"),
    "state empty": (rewrite(""), "cannot be loaded"),
    "state a list": (rewrite("[]"), "cannot be loaded"),
    "state without content": (rewrite("{}"), "sha256"),
    "sums not a table": (rewrite('{"sha256": 3}'), "cannot be loaded"),
    "no sums": (rewrite('{"sha256": {}}'), "model.safetensors"),
    "no count of updates": (without("updates"), "updates"),
    "no start": (without("start"), "start"),
}


@pytest.fixture(scope="module", params=KINDS)
def sound(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TorchEngine, Path]:
    """An engine that has gone its own way, and the sound checkpoint of another."""
    folder = tmp_path_factory.mktemp("sound")
    source, engine = build(kind=request.param), build(kind=request.param)
    train(source, range(1))
    source.save(folder)
    train(engine, range(5, 6))
    return engine, folder


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_checkpoint_is_refused_whole(
    name: str, sound: tuple[TorchEngine, Path], tmp_path: Path
) -> None:
    """LESSONS 25: InwitError that names the folder and the fault, and an engine as it was."""
    act, says = BREAKS[name]
    engine, folder = sound
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    act(broken)
    before = state_of(engine)
    with pytest.raises(InwitError) as caught:
        engine.load(broken)
    assert str(broken) in str(caught.value)
    assert says in str(caught.value)
    assert caught.value.fix
    assert_identical(state_of(engine), before)


@pytest.mark.parametrize(
    ("writer", "reader", "says"),
    [
        (lambda: build(seed=1), build, "other weights"),
        (lambda: build("llama"), build, "other weights"),
        (lambda: build(kind="lora"), build, "another model"),
        (build, lambda: build(kind="lora"), "another model"),
        (
            lambda: build(kind="lora"),
            lambda: TorchEngine(
                loaded(), TorchSettings(device="cpu", lora=LoraSettings(rank=5, alpha=6))
            ),
            r"the model's \(5, 32\)",
        ),
        (
            lambda: build(kind="lora"),
            lambda: TorchEngine(
                loaded(), TorchSettings(device="cpu", lora=LoraSettings(rank=3, alpha=60))
            ),
            "its adapter is",
        ),
    ],
    ids=[
        "other start",
        "other family",
        "adapters into full",
        "full into adapters",
        "other rank",
        "other alpha",
    ],
)
def test_a_foreign_checkpoint_is_refused(
    writer: Callable[[], TorchEngine],
    reader: Callable[[], TorchEngine],
    says: str,
    tmp_path: Path,
) -> None:
    """LESSONS 25: nobody goes on from another run's weights without being told."""
    writer().save(tmp_path)
    engine = reader()
    before = {n: p.detach().clone() for n, p in engine._trainable().items()}
    with pytest.raises(InwitError, match=says):
        engine.load(tmp_path)
    assert_identical({n: p.detach() for n, p in engine._trainable().items()}, before)


def test_a_checkpoint_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InwitError, match="nowhere"):
        build().load(tmp_path / "nowhere")


# ---------------------------------------------------------------------- export


@pytest.mark.parametrize("family", ["qwen3", "llama", "gemma2", "gemma3"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_export_is_the_policy(family: str, kind: str, tmp_path: Path) -> None:
    """LESSONS 21: transformers alone reads it, adapters merged, and gives the same logits."""
    start = loaded(family)
    engine = TorchEngine(start, TorchSettings(device="cpu", lora=KINDS[kind]))
    train_without_reference(engine)
    engine.export(tmp_path)
    found = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert not any("lora" in name for name, _ in found.named_parameters())
    ids = some_ids(24, seed=3)
    wanted = plain_logits(start.model, ids)
    assert float((plain_logits(found, ids) - wanted).abs().max()) < 1e-5
    assert float((plain_logits(model_of(family), ids) - wanted).abs().max()) > 0.05
    words = AutoTokenizer.from_pretrained(tmp_path)
    talk = [{"role": "system", "content": "w9"}, {"role": "user", "content": "w7 w8"}]
    own = tokenizer()
    assert words.chat_template == own.chat_template
    for add in (False, True):
        one, two = (
            t.apply_chat_template(talk, add_generation_prompt=add, tokenize=False)
            for t in (words, own)
        )
        assert one == two
        assert words.encode(one) == own.encode(two)
    assert (words.eos_token_id, words.pad_token_id) == (own.eos_token_id, own.pad_token_id)


def train_without_reference(engine: TorchEngine) -> None:
    for step in range(2):
        asyncio.run(
            engine.update(play(engine, step), Objective(), OptimizerSettings(lr=0.02), TOTAL)
        )


@pytest.mark.parametrize("kind", KINDS)
def test_exporting_changes_nothing(kind: str, tmp_path: Path) -> None:
    """The adapter is merged in a copy: training goes on as if nothing had been written."""
    straight, exporting = build(kind=kind), build(kind=kind)
    train(straight, range(2))
    train(exporting, range(1))
    exporting.export(tmp_path)
    train(exporting, range(1, 2))
    assert_identical(state_of(exporting), state_of(straight))


def test_an_export_can_be_trained_further(tmp_path: Path) -> None:
    engine = build("llama", "lora")
    train(engine, range(2))
    engine.export(tmp_path)
    again = TorchEngine(load_model(str(tmp_path)), TorchSettings(device="cpu"))
    rows = play(engine, 7)
    one = asyncio.run(engine.logprobs(rows))
    two = asyncio.run(again.logprobs(rows))
    for a, b in zip(one, two, strict=True):
        assert a == pytest.approx(b, abs=1e-5)
