"""The embedded model: a Qwen3 of about 260,000 parameters and a word-level tokenizer.

Both are transformers' own classes, and both are saved and loaded like any other model.
"""

from __future__ import annotations

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from inwit.envs.checkout.shop import Shop
from inwit.seeding import derive

PAD, END = "<pad>", "."
MARKERS = (PAD, END, "Work:", "Check:", "Note:", "Q:", "Again:", "ok")
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
    vocabulary = {word: i for i, word in enumerate((*MARKERS, *shop.items, *NUMBERS))}
    words = Tokenizer(WordLevel(vocabulary))
    words.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token=PAD,
        eos_token=END,
        clean_up_tokenization_spaces=False,
        model_max_length=128,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """A random start from `seed`. Numbers begin as tens + units, and stay free parameters."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=24,
        max_position_embeddings=128,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    generator = torch.Generator().manual_seed(derive(seed, "checkout", "model"))
    model = Qwen3ForCausalLM(config)
    zero: int = tokenizer.convert_tokens_to_ids("0")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                rows, fan_in = parameter.shape
                std = 0.02 if rows == config.vocab_size else 0.7 * fan_in**-0.5
                parameter.normal_(0.0, std, generator=generator)
        number = torch.arange(len(NUMBERS))
        for layer, scale in ((model.model.embed_tokens, 0.5), (model.lm_head, 0.1)):
            tens, units = torch.randn(2, 10, config.hidden_size, generator=generator) * scale
            layer.weight[zero : zero + len(NUMBERS)] += tens[number // 10] + units[number % 10]
    return model
