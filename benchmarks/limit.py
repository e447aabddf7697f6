"""The least arithmetic that a step needs, counted; pure functions, no torch.

Only products of matrices are counted. What is left out (norms, softmax, drawing tokens, AdamW)
takes real time too, so no program reaches this limit, and none goes below it that computes as much.

- Sampling: every distinct prompt once, then every sampled token but a completion's last, which
  nothing comes after. Logits wherever a token is drawn; a group draws its first tokens from one
  vector of logits.
- Training: the same positions again, and each product twice more for its two gradients. A group's
  prompt is counted once.
- Attention: 4 x heads x head size operations for each pair of a query and a key that it sees, at
  the rate of the weights' products, which is more than attention reaches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BACKWARD = 2
"""Products of the backward pass for each of the forward: by the input and by the weight."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a decoder's products depend on."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Sizes:
        """From the contents of a model's config.json."""
        heads = config["num_attention_heads"]
        return cls(
            layers=config["num_hidden_layers"],
            hidden=config["hidden_size"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            intermediate=config["intermediate_size"],
            vocabulary=config["vocab_size"],
        )

    @property
    def products(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """A layer's products: (outputs of those that share an input, that input's width).

        Query, key and value; output; gate and up; down.
        """
        wide, narrow = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return (
            ((wide, narrow, narrow), self.hidden),
            ((self.hidden,), wide),
            ((self.intermediate, self.intermediate), self.hidden),
            ((self.hidden,), self.intermediate),
        )

    @property
    def layer_weights(self) -> int:
        return sum(sum(outputs) * inputs for outputs, inputs in self.products)


@dataclass(frozen=True, slots=True)
class Work:
    """Positions that the layers run over, rows of logits, and (query, key) pairs of attention."""

    positions: int
    logits: int
    pairs: int

    def __add__(self, other: Work) -> Work:
        return Work(
            self.positions + other.positions,
            self.logits + other.logits,
            self.pairs + other.pairs,
        )


def prefill(prompts: int, prompt_tokens: int) -> Work:
    """Every prompt once, with logits after its last token only."""
    pairs = prompt_tokens * (prompt_tokens + 1) // 2
    return Work(prompts * prompt_tokens, prompts, prompts * pairs)


def decode(sequences: int, prompt_tokens: int, completion_tokens: int) -> Work:
    """Every completion's tokens but the last; the t-th one sees the prompt and t tokens."""
    fed = completion_tokens - 1
    pairs = fed * prompt_tokens + fed * (fed + 1) // 2
    return Work(sequences * fed, sequences * fed, sequences * pairs)


@dataclass(frozen=True, slots=True)
class Rate:
    """Operations a second that the machine reached: in the layers' products, in the head's."""

    layers: float
    head: float


def layer_operations(sizes: Sizes, positions: int) -> int:
    """A multiplication and an addition for each weight and position, in all layers."""
    return 2 * positions * sizes.layers * sizes.layer_weights


def head_operations(sizes: Sizes, rows: int) -> int:
    return 2 * rows * sizes.hidden * sizes.vocabulary


def attention_operations(sizes: Sizes, pairs: int) -> int:
    """Query by key, and weight by value: two products of `head_dim` for each head and pair."""
    return 4 * pairs * sizes.layers * sizes.heads * sizes.head_dim


def forward_seconds(sizes: Sizes, work: Work, rate: Rate) -> float:
    inner = layer_operations(sizes, work.positions) + attention_operations(sizes, work.pairs)
    return inner / rate.layers + head_operations(sizes, work.logits) / rate.head


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates at the shapes that each pass has."""

    prefill: Rate
    decode: Rate
    training: Rate


def limit_seconds(
    sizes: Sizes, prompts: int, group: int, prompt_tokens: int, completion_tokens: int, rates: Rates
) -> tuple[float, float]:
    """(sampling, training): the least seconds that a step can take at these rates."""
    first = prefill(prompts, prompt_tokens)
    rest = decode(prompts * group, prompt_tokens, completion_tokens)
    sampling = forward_seconds(sizes, first, rates.prefill)
    sampling += forward_seconds(sizes, rest, rates.decode)
    training = (1 + BACKWARD) * forward_seconds(sizes, first + rest, rates.training)
    return sampling, training
