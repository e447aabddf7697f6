"""Learning curves as a picture: accuracy over sampled tokens, and over CPU-seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

COLOURS = ("#1f77b4", "#d95f02", "#1b9e77", "#7570b3", "#e7298a", "#66a61e")
AXES = (
    ("sampled_tokens", "sampled tokens (thousands)", 1e-3),
    ("cpu_seconds", "CPU-seconds of training", 1.0),
)

MEASURES = {"a1": "critique-free accuracy", "a2": "accuracy of the second answer"}


def plot_curves(
    runs: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]],
    path: Path,
    *,
    measure: str = "a1",
    budget: int | None = None,
    target: float | None = None,
) -> None:
    """Draw the evaluations on dev of each method's runs, one line a run, the interval as a band.

    Args:
        runs: method -> its runs -> their evaluation lines of `metrics.jsonl`.
        measure: what is drawn, such as `a1` for first answers and `a2` for second ones.
        budget: sampled tokens at which the methods are compared, drawn as a line.
        target: accuracy drawn as a line.
    """
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for axis, (key, label, unit) in zip(axes, AXES, strict=True):
        for colour, (method, lines) in zip(cycle(COLOURS), runs.items(), strict=False):
            for i, evaluated in enumerate(lines):
                points = [p for p in evaluated if p["measures"][measure]["ci"] is not None]
                found = [p["measures"][measure] for p in points]
                x = [p[key] * unit for p in points]
                axis.plot(
                    x,
                    [100 * m["value"] for m in found],
                    color=colour,
                    label=method if i == 0 else None,
                )
                axis.fill_between(
                    x,
                    [100 * m["ci"][0] for m in found],
                    [100 * m["ci"][1] for m in found],
                    color=colour,
                    alpha=0.15,
                    lw=0,
                )
        if target is not None:
            axis.axhline(100 * target, color="grey", lw=0.8, ls=":")
        axis.set_xlabel(label)
        axis.set_xlim(left=0)
        axis.grid(alpha=0.25)
    if budget is not None:
        axes[0].axvline(budget * 1e-3, color="grey", lw=0.8, ls="--")
    axes[0].set_ylabel(f"{MEASURES.get(measure, measure)} on dev, %")
    axes[0].set_ylim(0, 100)
    axes[0].legend(loc="lower right", frameon=False)
    n = {p["measures"][measure]["n"] for lines in runs.values() for points in lines for p in points}
    figure.suptitle(
        f"held-out accuracy, N = {', '.join(map(str, sorted(n)))}, 95% Wilson bands", size=10
    )
    figure.savefig(path, dpi=130)
    plt.close(figure)
