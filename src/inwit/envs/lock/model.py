"""The embedded model: a Qwen3 of about 230,000 parameters and a word-level tokenizer."""

from __future__ import annotations

import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from inwit.envs.embedded import small_model, word_tokenizer
from inwit.envs.lock.dial import DIAL, OPERATIONS
from inwit.envs.lock.env import NO, YES
from inwit.seeding import derive

MARKERS = ("Keys:", "Lock:", "Goal:", "Try:", "Again:", "Check:", "Note:", YES, NO)
DIGITS = tuple(str(n) for n in range(DIAL))

CHAT_TEMPLATE = """\
{%- for message in messages -%}
  {%- if message.role == 'user' -%}{{ message.content + ' ' }}
  {%- elif message.role == 'assistant' -%}{{ message.content + ' . ' }}
  {%- endif -%}
{%- endfor -%}
"""
"""No role has a marker of its own, and nothing opens an answer: the prompts end on their cue."""


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token per word: padding, the full stop, 9 markers, 12 operations, 10 digits."""
    return word_tokenizer((*MARKERS, *OPERATIONS, *DIGITS), CHAT_TEMPLATE)


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """A random start from `seed`."""
    generator = torch.Generator().manual_seed(derive(seed, "lock", "model"))
    return small_model(tokenizer, generator)
