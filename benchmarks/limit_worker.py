"""How fast this machine multiplies matrices at a case's shapes, measured when asked.

It takes its turn between the steps of inwit and TRL, so that all three see the same machine. Each
rate is the best of several repetitions and, without gradients, of several layouts of the weights:
one by one, joined where they share an input, packed. A limit is what could be reached, not what
usually is.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from benchmarks import limit, wire

SECONDS = 0.3
"""How long a rate is measured at least."""

REPETITIONS = 3
MOST_ROWS = 1024
"""Rows beyond which a product gets no faster."""

Pairs = list[tuple[Tensor, Tensor]]
"""(input, weight) of each product, in order."""

TRAINED_LAYERS = 2
"""Layers measured in training, where products are large and weights need not be streamed."""


def rate_of(run: Callable[[], object], operations: int) -> float:
    """Operations a second, from the fastest of the repetitions."""
    run()
    best, spent, n = float("inf"), 0.0, 0
    while spent < SECONDS or n < REPETITIONS:
        start = time.perf_counter()
        run()
        seconds = time.perf_counter() - start
        best, spent, n = min(best, seconds), spent + seconds, n + 1
    return operations / best


class Products:
    """A model's weights, random and as many as it has, so that they come from memory as in it."""

    def __init__(self, sizes: limit.Sizes) -> None:
        self.sizes = sizes
        scale = 0.05
        self.layers = [
            [(torch.randn(sum(outs), width) * scale, outs) for outs, width in sizes.products]
            for _ in range(sizes.layers)
        ]
        self.head = torch.randn(sizes.vocabulary, sizes.hidden) * scale

    def _inputs(self, rows: int) -> list[Tensor]:
        return [torch.randn(rows, width) for _, width in self.sizes.products]

    def forward_rate(self, rows: int) -> float:
        """All layers' products once, for `rows` positions."""
        inputs = self._inputs(rows)
        joined = [(x, w) for layer in self.layers for x, (w, _) in zip(inputs, layer, strict=True)]
        apart = [
            (x, part)
            for layer in self.layers
            for x, (w, outs) in zip(inputs, layer, strict=True)
            for part in w.split(outs)
        ]
        operations = limit.layer_operations(self.sizes, rows)
        return max(self._plain(apart, operations), self._best(joined, operations))

    def head_rate(self, rows: int) -> float:
        pairs = [(torch.randn(rows, self.sizes.hidden), self.head)]
        return self._best(pairs, limit.head_operations(self.sizes, rows))

    def _plain(self, pairs: Pairs, operations: int) -> float:
        triples = [(x, w.T, torch.empty(len(x), len(w))) for x, w in pairs]
        return rate_of(lambda: [torch.mm(x, w, out=y) for x, w, y in triples], operations)

    def _best(self, pairs: Pairs, operations: int) -> float:
        """The better of the weights as they are and, where MKL is there, packed by it."""
        plain = self._plain(pairs, operations)
        if not torch.backends.mkl.is_available():
            return plain
        mkl = torch.ops.mkl
        packed = [(x, mkl._mkl_reorder_linear_weight(w, len(x)), w) for x, w in pairs]
        return max(
            plain,
            rate_of(
                lambda: [mkl._mkl_linear(x, p, w, None, len(x)) for x, p, w in packed], operations
            ),
        )

    def training_rate(self, rows: int) -> float:
        """Forward, and both products backward, of some layers."""
        layers = self.layers[:TRAINED_LAYERS]
        inputs = self._inputs(rows)
        passes = [
            there_and_back(x, w)
            for layer in layers
            for x, (w, _) in zip(inputs, layer, strict=True)
        ]
        operations = 6 * rows * len(layers) * self.sizes.layer_weights
        return rate_of(lambda: [run() for run in passes], operations)

    def head_training_rate(self, rows: int) -> float:
        run = there_and_back(torch.randn(rows, self.sizes.hidden), self.head)
        return rate_of(run, 3 * limit.head_operations(self.sizes, rows))


def there_and_back(x: Tensor, weight: Tensor) -> Callable[[], object]:
    """Something that computes x W^T and its gradients by x and by W, into memory it has already.

    Fresh memory for large results is an expense of the operating system, and no part of the limit.
    """
    y = torch.randn(len(x), len(weight))
    dy, dx, dw = torch.randn_like(y), torch.empty_like(x), torch.empty_like(weight)

    def run() -> None:
        torch.mm(x, weight.T, out=y)
        torch.mm(dy, weight, out=dx)
        torch.mm(dy.T, x, out=dw)

    return run


def measure(products: Products, job: wire.Job) -> wire.Step:
    first = limit.prefill(len(job.texts), job.prompt_tokens)
    rest = limit.decode(job.completions, job.prompt_tokens, job.completion_tokens)
    sequences = job.completions
    together = first + rest
    rates = limit.Rates(
        prefill=limit.Rate(
            products.forward_rate(min(first.positions, MOST_ROWS)), products.head_rate(first.logits)
        ),
        decode=limit.Rate(products.forward_rate(sequences), products.head_rate(sequences)),
        training=limit.Rate(
            products.training_rate(min(together.positions, MOST_ROWS)),
            products.head_training_rate(min(together.logits, MOST_ROWS // 2)),
        ),
    )
    sampling, training = limit.limit_seconds(
        products.sizes,
        len(job.texts),
        job.group,
        job.prompt_tokens,
        job.completion_tokens,
        rates,
    )
    gflops = {
        f"{name}_{part}": getattr(getattr(rates, name), part) / 1e9
        for name in ("prefill", "decode", "training")
        for part in ("layers", "head")
    }
    return wire.Step(sampling, training, 0, 0, wire.peak_mb(), gflops)


def main() -> None:
    line = wire.Line()
    job = line.job()
    torch.set_num_threads(job.threads)
    torch.manual_seed(0)
    config = json.loads((Path(job.folder) / "config.json").read_text(encoding="utf-8"))
    with torch.inference_mode():
        products = Products(limit.Sizes.of(config))
        line.say(wire.Ready("", {"torch": torch.__version__}))
        for _ in line.requests():
            line.say(measure(products, job))


if __name__ == "__main__":
    main()
