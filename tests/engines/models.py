"""Tiny random models of four families, built in milliseconds, and a word-level tokenizer.

The weights are drawn wide enough that the next-token distributions are far from uniform, and every
bias and norm is moved away from where it starts, so that a mistake in any of them can be seen.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch.optim.optimizer import register_optimizer_step_pre_hook
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from inwit.engines.torch import Loaded
from inwit.rows import Floats, Ids

VOCABULARY = 72
POSITIONS = 160
WINDOW = 8
PAD, END = 0, 1

CHAT_TEMPLATE = """\
{%- for message in messages -%}
  {{- '<' + message.role + '> ' + message.content + ' ' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<assistant>' -}}{%- endif -%}
"""

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "head_dim": 8,
    "max_position_embeddings": POSITIONS,
    "pad_token_id": PAD,
    "eos_token_id": END,
    "bos_token_id": None,
}


def qwen3() -> PreTrainedModel:
    return Qwen3ForCausalLM(
        Qwen3Config(**SIZES, num_hidden_layers=2, num_key_value_heads=2, tie_word_embeddings=False)
    )


def llama() -> PreTrainedModel:
    """As SmolLM2: grouped-query attention and tied embeddings."""
    return LlamaForCausalLM(
        LlamaConfig(**SIZES, num_hidden_layers=2, num_key_value_heads=1, tie_word_embeddings=True)
    )


def gemma2() -> PreTrainedModel:
    """Softcaps on attention and on logits, hence eager attention; a window in every other layer."""
    return Gemma2ForCausalLM(
        Gemma2Config(
            **SIZES,
            num_hidden_layers=2,
            num_key_value_heads=2,
            sliding_window=WINDOW,
            query_pre_attn_scalar=8,
            attn_logit_softcapping=2.0,
            final_logit_softcapping=4.0,
        )
    )


def gemma3() -> PreTrainedModel:
    """Layers with a window before, between and after one without; two rotary bases."""
    return Gemma3ForCausalLM(
        Gemma3TextConfig(
            **SIZES,
            num_hidden_layers=3,
            num_key_value_heads=1,
            sliding_window=WINDOW,
            query_pre_attn_scalar=8,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        )
    )


FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    "qwen3": qwen3,
    "llama": llama,
    "gemma2": gemma2,
    "gemma3": gemma3,
}


@functools.cache
def _model(family: str, seed: int) -> PreTrainedModel:
    model = FAMILIES[family]()
    generator = torch.Generator().manual_seed(seed)
    embedding = model.get_input_embeddings().weight
    head = model.get_output_embeddings().weight
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter is embedding or parameter is head:
                std = 0.35
            elif parameter.dim() > 1:
                std = parameter.shape[1] ** -0.5
            else:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
                continue
            parameter.normal_(0.0, std, generator=generator)
    return model.eval()


def model_of(family: str, seed: int = 0) -> PreTrainedModel:
    """A fresh copy: training it touches no other test."""
    return copy.deepcopy(_model(family, seed))


def tokenizer(size: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """`size` words: padding, end, the markers of three roles, and w5, w6, ..."""
    words = ["<pad>", "<end>", "<system>", "<user>", "<assistant>"]
    words += [f"w{i}" for i in range(len(words), size)]
    inner = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}))
    inner.pre_tokenizer = WhitespaceSplit()
    outer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        eos_token="<end>",
        clean_up_tokenization_spaces=False,
        model_max_length=POSITIONS,
    )
    outer.chat_template = CHAT_TEMPLATE
    return outer


def loaded(family: str = "qwen3", seed: int = 0) -> Loaded:
    return Loaded(model_of(family, seed), tokenizer(), f"test:{family}")


@torch.no_grad()
def plain_logits(model: PreTrainedModel, ids: Ids) -> torch.Tensor:
    """[T, V], from the model's own forward over one sequence: no cache, no padding, no mask."""
    return model(torch.tensor([ids]), use_cache=False).logits[0].float()


def plain_logprobs(
    model: PreTrainedModel, prompt: Ids, completion: Ids, temperature: float = 1.0
) -> Floats:
    """Log-probs of a completion's tokens, one plain pass a sequence: the tests' oracle."""
    logits = plain_logits(model, prompt + completion)[len(prompt) - 1 : -1]
    logp = torch.log_softmax(logits / temperature, -1)
    return tuple(logp.gather(-1, torch.tensor(completion)[:, None])[:, 0].tolist())


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@contextmanager
def stepping(model: torch.nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """Holds the model's gradients as the last optimizer step took them; a step leaves none."""
    found: dict[str, torch.Tensor] = {}
    handle = register_optimizer_step_pre_hook(lambda *_: found.update(gradients(model)))
    try:
        yield found
    finally:
        handle.remove()
