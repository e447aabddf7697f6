"""The products of a model's linear layers, done another way for as long as a context lasts.

Decoding multiplies a few rows with every weight, over and over: MKL takes a quarter less time where
it has laid the weights out beforehand. Training adds a gradient to the one before it, pass by pass:
the product can do that itself, without a gradient in between as large as the weights.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

logger = logging.getLogger("inwit")

Forward = Callable[[Tensor], Tensor]

WORTH = 1 << 17
"""Elements of the least weight that is packed: smaller ones are multiplied no faster for it."""

LEAST = 0.75
"""Share of the rows that weights were packed for, below which the plain product is as fast."""

STEADY = 12
"""Passes after which packing pays, which takes as long as some seven of them."""


@contextmanager
def doing(forwards: Mapping[nn.Module, Forward]) -> Iterator[None]:
    """Let each module's forward be another one."""
    for module, forward in forwards.items():
        module.forward = forward
    try:
        yield
    finally:
        for module in forwards:
            del module.forward  # an attribute of this object; the class keeps its own


# ---------------------------------------------------------------------- decoding


class PackedWeights:
    """MKL's copies of a model's weights, for products of a number of rows that changes seldom.

    They are as large as the weights. Whoever changes these has to call `clear`.
    """

    def __init__(self, model: nn.Module) -> None:
        self._layers = [
            module
            for module in model.modules()
            if type(module) is nn.Linear
            and module.weight.numel() >= WORTH
            and module.weight.dtype == torch.float32
            and module.weight.device.type == "cpu"
        ]
        if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
            self._layers = []
        self.clear()

    def clear(self) -> None:
        self._rows = 0
        self._odd = 0  # passes in a row that the copies did not fit
        self._forwards: dict[nn.Module, Forward] = {}

    @property
    def rows(self) -> int:
        """Of the products that weights are packed for; 0 where they are not packed."""
        return self._rows

    @contextmanager
    def of(self, rows: int) -> Iterator[None]:
        """Within it, products of `rows` rows use packed weights, if there are any that fit."""
        if LEAST * self._rows <= rows <= self._rows:
            self._odd = 0
        else:
            self._odd += 1
            if self._odd < STEADY or not self._layers:
                yield
                return
            self._pack(rows)
        with doing(self._forwards):
            yield

    def _pack(self, rows: int) -> None:
        self.clear()  # first, so that the memory can be taken again
        self._rows = rows
        self._forwards = {layer: _packed(layer, rows) for layer in self._layers}


def _packed(layer: nn.Linear, rows: int) -> Forward:
    """The layer's product for up to `rows` rows; fewer are filled up, for MKL wants as many."""
    weight, bias = layer.weight.detach(), layer.bias
    packed = torch.ops.mkl._mkl_reorder_linear_weight(weight, rows)

    def forward(x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        n = len(flat)
        if n < rows:
            flat = functional.pad(flat, (0, 0, 0, rows - n))
        out: Tensor = torch.ops.mkl._mkl_linear(flat, packed, weight, bias, rows)[:n]
        return out.view(*x.shape[:-1], -1)

    return forward


# ---------------------------------------------------------------------- training


def adding(model: nn.Module) -> dict[nn.Module, Forward]:
    """Forwards by which weights of linear layers and embeddings add to their `grad` themselves."""
    found: dict[nn.Module, Forward] = {}
    for module in model.modules():
        if type(module) is nn.Linear and module.weight.requires_grad:
            found[module] = partial(_linear, module)
        elif type(module) is nn.Embedding and module.weight.requires_grad and _plain(module):
            found[module] = partial(_embedding, module)
    return found


def _plain(layer: nn.Embedding) -> bool:
    return not (layer.sparse or layer.scale_grad_by_freq or layer.max_norm)


def add_product(weight: Tensor, grad: Tensor, x: Tensor) -> None:
    """Add grad^T @ x to the gradient of a weight [out, in]; grad is [N, out], x [N, in]."""
    if weight.grad is None:
        weight.grad = grad.t() @ x
    else:
        weight.grad.addmm_(grad.t(), x)


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    out: Tensor = _AddingLinear.apply(x, layer.weight)  # type: ignore[no-untyped-call]
    return out if layer.bias is None else out + layer.bias


def _embedding(layer: nn.Embedding, ids: Tensor) -> Tensor:
    out: Tensor = _AddingEmbedding.apply(  # type: ignore[no-untyped-call]
        ids, layer.weight, layer.padding_idx
    )
    return out


class _AddingLinear(torch.autograd.Function):
    """x @ weight^T."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight = weight  # itself: what checkpointing gives back is another tensor
        return functional.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None]:
        (x,) = ctx.saved_tensors
        add_product(ctx.weight, grad.flatten(0, -2), x.flatten(0, -2))
        return grad @ ctx.weight if ctx.needs_input_grad[0] else None, None


class _AddingEmbedding(torch.autograd.Function):
    """weight[ids]; the padding's row gets no gradient, as in torch's own."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, padding: int | None) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.weight, ctx.padding = weight, padding
        return functional.embedding(ids, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None]:
        (ids,) = ctx.saved_tensors
        weight = ctx.weight
        if ctx.padding is not None:
            grad = grad.masked_fill((ids == ctx.padding)[..., None], 0)
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
        weight.grad.index_add_(0, ids.flatten(), grad.flatten(0, -2).to(weight.dtype))
        return None, None, None
