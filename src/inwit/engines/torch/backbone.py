"""A Hugging Face causal LM cut where the engine needs it: hidden states below, logits above."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from inwit.engines.torch.choice import Head, plain_logprobs
from inwit.engines.torch.packing import ATTENTION, Layout, Past, batches, pack, pad
from inwit.engines.torch.products import PackedWeights, adding, doing
from inwit.errors import InwitError
from inwit.rows import Ids

logger = logging.getLogger("inwit")

LAYER_TYPES = {"full_attention", "sliding_attention"}


class Backbone:
    """Hidden states and logits of a decoder-only model.

    The cut saves the vocabulary's logits wherever nobody asks for them. That hidden states and head
    together give the model's own logits is checked once, here; where they do not (an architecture
    that does something else on top), the model is refused.

    Args:
        model: the causal LM (for LoRA, the one the adapter was put into).
        active: a context entered at each pass, such as one that turns an adapter off.
        without: fast paths to leave out: `packing` and `sharing` (see `packing`), `in_place` (see
            `choice`), `adding` and `packed_weights` (see `products`).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        active: Callable[[], AbstractContextManager[object]] = nullcontext,
        without: Collection[str] = (),
    ) -> None:
        self.model = model
        self.active = active
        self.config = model.config.get_text_config()
        self.device = next(model.parameters()).device
        self._decoder = model.get_decoder()
        self._head: nn.Module = model.get_output_embeddings()
        parameters = inspect.signature(self._decoder.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._softcap = getattr(self.config, "final_logit_softcapping", None)
        scale = float(getattr(self.config, "logit_scale", None) or 1.0)
        self._scale = scale / float(getattr(self.config, "logits_scaling", None) or 1.0)
        plain = "in_place" in without or self._scale != 1 or self._softcap
        adds = "adding" not in without
        self._in_place = None if plain else _single_product(self._head, adds)
        self._adding = adding(model) if adds else {}
        self._packed = None if "packed_weights" in without else PackedWeights(model)
        self._share = "sharing" not in without
        self.packs = False
        self._check()
        if "packing" not in without:
            self.packs = self._can_pack()

    @property
    def vocabulary(self) -> int:
        return int(self.config.vocab_size)

    @property
    def window(self) -> int | None:
        """Width of the sliding attention window, in tokens, where the model has one."""
        width = getattr(self.config, "sliding_window", None)
        return int(width) if width and getattr(self.config, "use_sliding_window", True) else None

    @property
    def longest(self) -> int:
        """The most positions that the model was made for."""
        return int(getattr(self.config, "max_position_embeddings", None) or 1 << 30)

    def batches(self, sequences: Sequence[Ids], budget: int) -> list[list[int]]:
        """Indices of sequences for passes of at most `budget` tokens each (or of one sequence)."""
        return batches(sequences, budget, packed=self.packs, share=self._share)

    def layout(self, sequences: Sequence[Ids], past: Past | None = None) -> Layout:
        """Sequences as this model takes them in one pass; only a pack can have a past."""
        if self.packs:
            return pack(sequences, self.device, share=self._share, past=past)
        return pad(sequences, self.device)

    def states(self, layout: Layout, cache: Cache | None = None) -> Tensor:
        """Last hidden states [places, d] of a layout's tokens; `cache` is given keys and values."""
        if not layout.spans:
            return self.hidden(layout.ids, layout.positions, cache=cache).flatten(0, 1)
        mask: Any = torch.empty(
            1, 1, 1, 1, device=self.device
        )  # keeps transformers from making one
        if getattr(self.config, "layer_types", None):
            mask = dict.fromkeys(LAYER_TYPES, mask)
        return self.hidden(layout.ids, layout.positions, mask, cache, packed=layout)[0]

    def hidden(
        self,
        ids: Tensor,
        positions: Tensor,
        mask: Any = None,
        cache: Cache | None = None,
        **more: object,
    ) -> Tensor:
        """Last hidden states, [B, T, d].

        Args:
            ids, positions: [B, T]. Padding goes on the right: under causal attention it then
                touches no token before it, and needs no mask.
            mask: None for plain causal attention, or what `decode_mask` returns.
        """
        with self.active():
            output = self._decoder(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                use_cache=cache is not None,
                **{self._cache_name: cache},
                **more,
            )
        hidden: Tensor = output.last_hidden_state
        return hidden

    def training(self) -> AbstractContextManager[None]:
        """To be entered for forward and backward passes that make a gradient."""
        return doing(self._adding)

    def decoding(self, rows: int) -> AbstractContextManager[None]:
        """To be entered for a pass of one token for each of `rows` sequences."""
        return self._packed.of(rows) if self._packed else nullcontext()

    def release(self) -> None:
        """Forget what was made of the weights, for they are to change."""
        if self._packed:
            self._packed.clear()

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., d] -> [..., V], in fp32."""
        with self.active():
            logits: Tensor = self._head(hidden).float()
        if self._scale != 1:
            logits = logits * self._scale
        if self._softcap:
            logits = torch.tanh(logits / self._softcap) * self._softcap
        return logits

    def logprobs(
        self, states: Tensor, targets: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        """(log-probs of `targets`, entropies), [N] each, after hidden states [N, d], in nats."""
        if self._in_place and states.dtype == torch.float32:
            return self._in_place.logprobs(states, targets, temperature)
        logits = self.logits(states)
        return plain_logprobs(logits if temperature == 1 else logits / temperature, targets)

    def decode_mask(self, lengths: Tensor, positions: Tensor) -> Any:
        """Which cached tokens one new token per sequence attends to.

        Args:
            lengths: [B], tokens in each sequence's cache before the new one.
            positions: [1 or B, columns] of what is cached; beyond all lengths where nothing is.
        """
        seen = positions <= lengths[:, None]
        full = self._as_mask(seen)
        if self.window is None:
            return full
        near = self._as_mask(seen & (positions > lengths[:, None] - self.window))
        if getattr(self.config, "layer_types", None):
            return {"full_attention": full, "sliding_attention": near}
        return near

    def _as_mask(self, seen: Tensor) -> Tensor:
        seen = seen[:, None, None]
        if self.config._attn_implementation in ("sdpa", ATTENTION):
            return seen
        dtype = next(self.model.parameters()).dtype
        blocked = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
        return blocked.masked_fill(~seen, torch.finfo(dtype).min)

    def _check(self) -> None:
        name = type(self.model).__name__
        types = set(getattr(self.config, "layer_types", None) or ())
        if other := types - LAYER_TYPES:
            raise InwitError(
                f"{name} has layers of type {', '.join(sorted(other))}.",
                "The torch engine runs models whose layers are all attention.",
            )
        ids = torch.arange(min(5, self.vocabulary), device=self.device)[None]
        positions = torch.arange(ids.shape[1], device=self.device)[None]
        with torch.no_grad(), self.active():
            own = self.model(input_ids=ids, position_ids=positions).logits.float()
            ours = self.logits(self.hidden(ids, positions))
        if not torch.allclose(own, ours, atol=1e-3, rtol=1e-3):
            raise InwitError(
                f"{name} does something between its hidden states and its logits that the torch "
                "engine does not know.",
                "Use another architecture, or teach inwit.engines.torch.backbone this one.",
            )

    def _can_pack(self) -> bool:
        """Let `packing` do the attention, where that gives this model's own states."""
        before = self.config._attn_implementation
        packs = False
        if before in ("sdpa", ATTENTION):
            try:
                packs = self._packs_alike()
            except Exception as error:  # whatever a model cannot do, padding is left
                logger.debug("packing failed", exc_info=error)
        if not packs:
            self.config._attn_implementation = before
            name = type(self.model).__name__
            logger.warning("%s cannot be packed; its rows are padded, which is slower", name)
        return packs

    def _packs_alike(self) -> bool:
        ids = tuple(range(min(9, self.vocabulary)))
        some = (ids, ids[:-1] + ids[:1], ids[1:])
        with torch.no_grad():
            own = [self.states(pad([each], self.device)) for each in some]
            self.config._attn_implementation = ATTENTION
            layout = pack(some, self.device)
            found = self.states(layout)
        if self.window is not None and self.window not in layout.windows:
            return False  # its window is in a mask of its own, which nobody would look at
        off = max(
            float((found[list(places)] - states).abs().max() / states.abs().max())
            for places, states in zip(layout.places, own, strict=True)
        )
        return off < (1e-3 if own[0].dtype == torch.float32 else 5e-2)  # of the largest


def _single_product(head: nn.Module, adds: bool) -> Head | None:
    """A head that is one product of matrices and no more; None for any other."""
    if type(head) is nn.Linear and head.bias is None:
        return Head(head.weight, adds)
    return None
