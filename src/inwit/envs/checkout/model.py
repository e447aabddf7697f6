"""The embedded model: a Qwen3 of about 260,000 parameters and a word-level tokenizer."""

from __future__ import annotations

import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from inwit.envs.checkout.shop import Shop
from inwit.envs.embedded import small_model, word_tokenizer
from inwit.seeding import derive

MARKERS = ("Work:", "Check:", "Note:", "Q:", "Again:", "ok")
NUMBERS = tuple(str(n) for n in range(100))

CHAT_TEMPLATE = """\
{%- for message in messages -%}
  {%- if message.role == 'user' -%}{{ message.content + ' ' }}
  {%- elif message.role == 'assistant' -%}{{ 'Work: ' + message.content + ' . ' }}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- 'Check:' if messages[0].content == 'critic' else 'Work:' -}}
{%- endif -%}
"""
"""The roles' markers: the system message names the role, which decides what is written next."""


def build_tokenizer(shop: Shop) -> PreTrainedTokenizerFast:
    """One token per word or number: 8 markers, 88 items, 100 numbers."""
    return word_tokenizer((*MARKERS, *shop.items, *NUMBERS), CHAT_TEMPLATE)


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """A random start from `seed`. Numbers begin as tens + units, and stay free parameters."""
    generator = torch.Generator().manual_seed(derive(seed, "checkout", "model"))
    model = small_model(tokenizer, generator)
    zero: int = tokenizer.convert_tokens_to_ids("0")
    number = torch.arange(len(NUMBERS))
    with torch.no_grad():
        for layer, scale in ((model.model.embed_tokens, 0.5), (model.lm_head, 0.1)):
            tens, units = torch.randn(2, 10, model.config.hidden_size, generator=generator) * scale
            layer.weight[zero : zero + len(NUMBERS)] += tens[number // 10] + units[number % 10]
    return model
