"""How long did events take? The cumulative distribution, as `gapless bench --plot` draws it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from gapless.errors import UsageError

COLOURS = ("#0072b2", "#e69f00")


def draw_latencies(title: str, sorted_ms: Mapping[str, npt.NDArray[np.float64]], path: Path) -> None:
    """Draw a line for each set of times. Raises UsageError E154."""
    figure = Figure(figsize=(8, 5), dpi=130, layout="constrained")
    axes = figure.subplots()
    for (name, times), colour in zip(sorted_ms.items(), COLOURS, strict=False):
        axes.plot(times, np.linspace(0, 100, len(times)), label=name, color=colour)
    axes.set_xscale("log")
    axes.set_xlabel("milliseconds")
    axes.set_ylabel("% of events")
    axes.set_title(title)
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path)
    except OSError as error:
        raise UsageError("E154", f"--plot {path}: cannot be written: {error.strerror}") from error
