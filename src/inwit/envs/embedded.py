"""What the embedded models share: a word-level tokenizer and a small Qwen3 from a random start.

Both are transformers' own classes, and both are saved and loaded like any other model.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

PAD, END = "<pad>", "."
POSITIONS = 128
"""The longest text in tokens."""


def word_tokenizer(words: Iterable[str], template: str) -> PreTrainedTokenizerFast:
    """One token per word, in order, after `PAD` and `END`; `template` is its chat template."""
    vocabulary = {word: i for i, word in enumerate((PAD, END, *words))}
    whole_words = Tokenizer(WordLevel(vocabulary))
    whole_words.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=whole_words,
        pad_token=PAD,
        eos_token=END,
        clean_up_tokenization_spaces=False,
        model_max_length=POSITIONS,
    )
    tokenizer.chat_template = template
    return tokenizer


def small_model(tokenizer: PreTrainedTokenizerFast, generator: torch.Generator) -> Qwen3ForCausalLM:
    """A random start, every weight of it drawn from `generator`."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=24,
        max_position_embeddings=POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                rows, fan_in = parameter.shape
                std = 0.02 if rows == config.vocab_size else 0.7 * fan_in**-0.5
                parameter.normal_(0.0, std, generator=generator)
    return model
