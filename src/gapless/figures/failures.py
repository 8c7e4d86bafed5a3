"""How do the paper's failures look? Figures 6, 7 and 8, as one picture per experiment.

Above, the latency of every message at s1 and at s2 against the time it was sent. Below, the moments in which
nacks were sent: how many, and for how many milliseconds of ticks, adding up. Every point is one message, as
in the paper.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import accumulate
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gapless.figures.measures import duration, worst_s
from gapless.sim.paper import PaperResult
from gapless.sim.topologies import FIGURE3_PUBENDS

TITLES = {
    "b1-s1-link": "Failure of the link b1\N{EN DASH}s1 (as Figure 6 of the paper)",
    "b1-crash": "Crash of the broker b1 (as Figure 7 of the paper)",
    "p1-crash": "Crash of the publishing broker p1 (as Figure 8 of the paper)",
}
#: They also differ in shape, for readers who cannot distinguish the colours.
STYLES = {
    "s1": ("#0072b2", "o", 6),
    "s2": ("#e69f00", "s", 9),
    "b1": ("#555555", "x", 6),
    "b2": ("#009e73", "^", 6),
}
THROUGH_B1, THROUGH_B2 = "#0072b2", "#999999"
STALLED, FAILED = "#f0e442", "#d55e00"


def draw(result: PaperResult, path: Path) -> None:
    """Write the picture of an experiment as a PNG file."""
    figure = Figure(figsize=(11, 7.5), dpi=130, layout="constrained")
    figure.suptitle(TITLES[result.name], fontsize=14)
    (left, right), (count, ticks) = figure.subplots(2, 2)
    highest_s = max(worst_s(result, edge) for edge in ("s1", "s2"))
    for axes, edge in ((left, "s1"), (right, "s2")):
        _draw_latency(axes, result, edge)
        axes.set_ylim(-0.04 * highest_s, 1.08 * highest_s)
    _draw_nacks(count, result, in_ms=False)
    _draw_nacks(ticks, result, in_ms=True)
    figure.savefig(path, format="png")


def _draw_latency(axes: Axes, result: PaperResult, edge: str) -> None:
    axes.axvspan(result.stalled_s, result.failed_s, color=STALLED, alpha=0.5, lw=0, label="stalled")
    axes.axvspan(result.failed_s, result.repaired_s, color=FAILED, alpha=0.16, lw=0, label="failed")
    for label, colour, pubends in _paths(result):
        some = [each for each in result.latencies[edge] if each.pubend in pubends]
        sent_s, latency_s = [each.sent_s for each in some], [each.latency_s for each in some]
        axes.plot(sent_s, latency_s, linestyle="none", marker=".", markersize=4, color=colour, label=label)
    worst = duration(worst_s(result, edge))
    axes.set_title(f"latency at {edge}: at worst {worst}", loc="left", fontsize=11)
    axes.set_xlabel("time at which the message was sent (s)")
    axes.set_ylabel("latency of the message (s)")
    axes.set_xlim(left=0)
    _finish(axes)


def _paths(result: PaperResult) -> list[tuple[str, str, Collection[str]]]:
    """The pubends by the way their messages take, where a failure on the way tells them apart."""
    if result.name == "p1-crash":
        return [("all pubends", THROUGH_B1, FIGURE3_PUBENDS)]
    others = [pubend for pubend in FIGURE3_PUBENDS if pubend not in result.pubends_of_b1]
    return [
        ("pubends through b2", THROUGH_B2, others),
        ("pubends through b1", THROUGH_B1, result.pubends_of_b1),
    ]


def _draw_nacks(axes: Axes, result: PaperResult, *, in_ms: bool) -> None:
    origin_s, origin = _origin(result)
    for broker, (colour, marker, size) in STYLES.items():
        nacks = result.nacks.get(broker, ())
        if not nacks:
            continue
        times_ms = [(nack.time_s - origin_s) * 1_000 for nack in nacks]
        sums = list(accumulate(nack.range_ms if in_ms else 1 for nack in nacks))
        axes.plot(
            [times_ms[0], *times_ms],
            [0, *sums],
            drawstyle="steps-post",
            linewidth=1,
            color=colour,
            marker=marker,
            markersize=size,
            # Hollow, so that equal points of two brokers are both seen.
            markerfacecolor="none",
            # The first point only draws the line up from zero.
            markevery=slice(1, None),
            label=f"{broker}: {sums[-1]:,.0f}{' ms' if in_ms else ''}",
        )
    axes.set_title("nack range, cumulative" if in_ms else "nacks, cumulative", loc="left", fontsize=11)
    axes.set_xlabel(f"time since {origin} (ms)")
    axes.set_ylabel("ticks asked for (ms)" if in_ms else "nack messages sent")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.set_ylim(bottom=0)
    _finish(axes)


def _origin(result: PaperResult) -> tuple[float, str]:
    """The moment that leads to the nacks: a failure that is noticed, or a publishing broker that returns."""
    if result.name == "p1-crash":
        return result.repaired_s, "p1 restarted"
    return result.failed_s, "b1 crashed" if result.name == "b1-crash" else "the link failed"


def _finish(axes: Axes) -> None:
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=9, framealpha=0.9)
