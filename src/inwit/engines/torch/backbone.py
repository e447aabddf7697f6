"""A Hugging Face causal LM cut where the engine needs it: hidden states below, logits above."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from inwit.errors import InwitError

LAYER_TYPES = {"full_attention", "sliding_attention"}


class Backbone:
    """Hidden states and logits of a decoder-only model.

    The cut saves the vocabulary's logits wherever nobody asks for them. That hidden states and head
    together give the model's own logits is checked once, here; where they do not (an architecture
    that does something else on top), the model is refused.

    Args:
        model: the causal LM (for LoRA, the one the adapter was put into).
        active: a context entered at each pass, such as one that turns an adapter off.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        active: Callable[[], AbstractContextManager[object]] = nullcontext,
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
        self._check()

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

    def hidden(
        self, ids: Tensor, positions: Tensor, mask: Any = None, cache: Cache | None = None
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
            )
        hidden: Tensor = output.last_hidden_state
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., d] -> [..., V], in fp32."""
        with self.active():
            logits: Tensor = self._head(hidden).float() * self._scale
        if self._softcap:
            logits = torch.tanh(logits / self._softcap) * self._softcap
        return logits

    def decode_mask(self, lengths: Tensor, width: int) -> Any:
        """Which cached positions one new token per sequence attends to.

        Args:
            lengths: [B], tokens in each sequence's cache before the new one.
            width: columns of the cache in use.
        """
        column = torch.arange(width, device=lengths.device)
        seen = column <= lengths[:, None]
        full = self._as_mask(seen)
        if self.window is None:
            return full
        near = self._as_mask(seen & (column > lengths[:, None] - self.window))
        if getattr(self.config, "layer_types", None):
            return {"full_attention": full, "sliding_attention": near}
        return near

    def _as_mask(self, seen: Tensor) -> Tensor:
        seen = seen[:, None, None]
        if self.config._attn_implementation == "sdpa":
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
