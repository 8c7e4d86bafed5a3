"""How does the ticket sale look? The staleness of every event against the time it was published."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gapless.demo.figure import style
from gapless.demo.network import EDGES
from gapless.demo.sale.account import Sale, staleness

#: They also differ in lightness, for readers who cannot distinguish the colours.
COLOURS = dict(zip(EDGES, ("#0072b2", "#e69f00"), strict=True))
ROUTER, SPARK = "#555555", "#d55e00"


def draw(sale: Sale, path: Path) -> None:
    """Write the picture as a PNG file."""
    figure = Figure(figsize=(11, 5.5), dpi=120, layout="constrained")
    figure.suptitle(f"A live view while router {sale.victim} and Spark are killed", fontsize=14)
    axes = figure.subplots()
    for at, edge in enumerate(EDGES):
        sent_s, at_s = staleness(sale.shown[edge], sale)
        stale_s = at_s - sent_s
        worst_s = stale_s.max(initial=0.0)
        label = f"shown at {edge}: at worst {worst_s:.1f} s"
        # The second lies on the first: smaller dots let it be seen.
        size = 5 - 3 * at
        axes.plot(sent_s, stale_s, ls="none", marker=".", ms=size, color=COLOURS[edge], label=label)
    _mark(axes, f"{sale.victim} down", (sale.router_killed_s, sale.router_back_s), ROUTER, 0.97)
    _mark(axes, "Spark down, until it has caught up", (sale.spark_killed_s, sale.spark_back_s), SPARK, 0.91)
    axes.set_xlim(0, sale.stopped_s)
    style(axes)
    axes.set_xlabel("time at which the event was published (s)")
    axes.set_ylabel("staleness (s)")
    low, high = axes.get_ylim()
    # Room for two names above all dots.
    axes.set_ylim(low, high * (high / low) ** 0.2)
    figure.savefig(path, format="png")


def _mark(axes: Axes, text: str, down_s: tuple[float, float], colour: str, height: float) -> None:
    """The time in which something was down, with its name above the dots."""
    start_s, stop_s = down_s
    axes.axvspan(start_s, stop_s, color=colour, alpha=0.1, lw=0)
    axes.axvline(start_s, color=colour, lw=1.2)
    axes.axvline(stop_s, color=colour, lw=1.2, ls=":")
    axes.annotate(
        f"kill -9: {text}",
        (start_s, height),
        xycoords=("data", "axes fraction"),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        fontsize=9,
        color=colour,
        # Lines of the other one pass behind it.
        bbox={"facecolor": "white", "alpha": 0.8, "lw": 0, "pad": 1.5},
    )
