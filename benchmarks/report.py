"""How are figures told? Tables, what was asked for beside what was measured, and JSON for programs."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

OUT = Path("benchmarks/out")


@dataclass(frozen=True, slots=True)
class Asked:
    """A figure and the least, or the most, that it should be."""

    what: str
    measured: float
    bound: float
    at_most: bool = False
    unit: str = ""

    @property
    def reached(self) -> bool:
        """Whether it is as asked."""
        return self.measured <= self.bound if self.at_most else self.measured >= self.bound


def options(description: str | None) -> argparse.ArgumentParser:
    """The options that every benchmark of the network has."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="less of everything, for a first look")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    return parser


def console_for(*, as_json: bool) -> Console:
    """Where tables and progress go: out of the way of JSON."""
    console = Console(stderr=as_json)
    return console if console.is_terminal else Console(stderr=as_json, width=150)


def median(values: Iterable[float]) -> float:
    """The median; 0 of nothing."""
    found = list(values)
    return statistics.median(found) if found else 0.0


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which this share of the ordered values lies; 0 of nothing."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def show(console: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table whose first column is text and whose others are numbers."""
    table = Table(title=title, title_justify="left")
    for at, name in enumerate(columns):
        table.add_column(name, justify="left" if not at else "right", no_wrap=not at)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def show_asked(console: Console, asked: Sequence[Asked]) -> None:
    """What was asked, and whether it was reached."""
    table = Table(title="asked for", title_justify="left")
    for name in ("figure", "measured", "asked", ""):
        table.add_column(name, justify="left" if name in ("figure", "") else "right")
    for each in asked:
        digits = 0 if each.bound >= 100 else 2
        sign = "≤" if each.at_most else "≥"
        verdict = "reached" if each.reached else "[red]MISSED[/red]"
        unit = f" {each.unit}" if each.unit else ""
        table.add_row(
            each.what,
            f"{each.measured:,.{digits}f}{unit}",
            f"{sign} {each.bound:,.{digits}f}{unit}",
            verdict,
        )
    console.print(table)


def tell(
    console: Console, name: str, found: dict[str, Any], asked: Sequence[Asked], *, as_json: bool
) -> None:
    """Keep the results beside the plot, and print them for a program when it asked."""
    judged = [{**asdict(each), "reached": each.reached} for each in asked]
    text = json.dumps({**found, "asked": judged})
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"{name}.json").write_text(text + "\n")
    if as_json:
        print(text)
        return
    if asked:
        show_asked(console, asked)
    plots = sorted(str(path) for path in OUT.glob(f"{name}*.png"))
    console.print(f"drawn in {', '.join(plots)}; every run is in {OUT / name}.json")


def new_figure(columns: int = 1, rows: int = 1, *, width: float = 5.5, height: float = 4.2) -> Figure:
    """An empty picture that needs no screen."""
    mpl.use("Agg")
    return plt.figure(figsize=(width * columns, height * rows), layout="constrained")


def save(figure: Figure, name: str) -> None:
    """Write a picture to the folder of results."""
    OUT.mkdir(parents=True, exist_ok=True)
    figure.savefig(OUT / f"{name}.png", dpi=120)
    plt.close(figure)
