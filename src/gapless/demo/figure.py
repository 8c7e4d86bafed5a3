"""How does the demo look? The latency of every event against the time it was published, for each edge."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from gapless.demo.account import Record
from gapless.demo.network import EDGES, PUBLISHERS, SUBSCRIBERS, VICTIM, router_of

#: They also differ in lightness, for readers who cannot distinguish the colours.
THROUGH_VICTIM, THROUGH_OTHER = "#0072b2", "#bbbbbb"
DOWN = "#d55e00"


def draw(record: Record, path: Path) -> None:
    """Write the picture as a PNG file."""
    figure = Figure(figsize=(11, 6.5), dpi=120, layout="constrained")
    figure.suptitle(f"Router {VICTIM} is killed while events flow", fontsize=14)
    axes = figure.subplots(len(EDGES), 1, sharex=True, sharey=True)
    for edge, each in zip(EDGES, axes, strict=True):
        _draw_edge(each, record, edge)
    axes[-1].set_xlabel("time at which the event was published (s)")
    figure.savefig(path, format="png")


def _draw_edge(axes: Axes, record: Record, edge: str) -> None:
    axes.axvspan(record.killed_s, record.back_s, color=DOWN, alpha=0.12, lw=0)
    for time_s, text, side in (
        (record.killed_s, "kill -9", "left"),
        (record.restarted_s, "started", "right"),
        (record.back_s, "back", "left"),
    ):
        axes.axvline(time_s, color=DOWN, lw=1.2, ls="-" if text == "kill -9" else ":")
        axes.annotate(
            text,
            (time_s, 1),
            xycoords=("data", "axes fraction"),
            xytext=(3 if side == "left" else -3, -11),
            textcoords="offset points",
            ha=side,
            fontsize=9,
            color=DOWN,
        )
    pubends = {plan.pubend for plan in PUBLISHERS}
    through = {pubend for pubend in pubends if router_of(pubend) == VICTIM}
    worst_s = 0.0
    for label, colour, some in (
        (f"events that never needed {VICTIM}", THROUGH_OTHER, pubends - through),
        (f"events that {VICTIM} carries", THROUGH_VICTIM, through),
    ):
        sent_s, at_s = _dots(record, edge, some)
        latency_s = at_s - sent_s
        worst_s = max(worst_s, float(latency_s.max(initial=0.0)))
        axes.plot(sent_s, latency_s * 1_000, ls="none", marker=".", ms=3, color=colour, label=label)
    axes.set_xlim(left=0)
    style(axes)
    axes.set_title(f"edge {edge}: at worst {worst_s * 1_000:,.0f} ms", loc="left", fontsize=11)
    axes.set_ylabel("latency (ms)")


def style(axes: Axes) -> None:
    """A logarithmic scale, a light grid, no frame, and a legend beside the title: nothing lies below it."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(visible=True, which="major", color="#dddddd", lw=0.6)
    axes.set_axisbelow(True)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False, fontsize=9, markerscale=3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _dots(
    record: Record, edge: str, pubends: set[str]
) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """When the events of some pubends were published, and when they came to an edge's subscribers."""
    sent_s: list[float] = []
    at_s: list[float] = []
    for plan in SUBSCRIBERS:
        if plan.edge == edge:
            taken = record.arrivals[plan.name]
            for name, pubend, came_s in zip(taken.names, taken.pubends, taken.at_s, strict=True):
                if pubend in pubends:
                    sent_s.append(record.sent_s(name))
                    at_s.append(came_s)
    return np.array(sent_s, dtype=np.float64), np.array(at_s, dtype=np.float64)
