"""How fast is content matched, and how does that grow with the number of subscriptions?

    .venv/bin/python -m benchmarks.content [--seconds S] [--quick] [--plot FILE] [--json]

Rows against SQL conditions (see `content_rows.py`) and XML documents against XPath patterns (see
`content_xml.py`), from 1,000 to 100,000 subscriptions, on one core. The peers are measured in the same run:
a loop over all compiled conditions, DuckDB evaluating them all in one query where it can, and lxml
evaluating every compiled XPath. Every figure that is asked for is printed with what was asked.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pyarrow as pa
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.content_rows import Churn, Figures, as_json, measure_churn, measure_forest, measure_rows
from benchmarks.content_xml import measure_xml, measure_xml_churn, measure_xml_duplicates

ROW_COUNTS = (1_000, 4_000, 16_000, 100_000)
PATTERN_COUNTS = (1_000, 5_000, 20_000, 50_000)
QUICK_ROW_COUNTS = (1_000, 16_000)
QUICK_PATTERN_COUNTS = (1_000, 5_000)


@dataclass(frozen=True)
class Asked:
    """A figure and the least, or the most, that it should be."""

    what: str
    measured: float
    bound: float
    at_most: bool = False

    @property
    def reached(self) -> bool:
        """Whether it is as asked."""
        return self.measured <= self.bound if self.at_most else self.measured >= self.bound


def main() -> None:
    """Measure everything, print the tables, draw the curves."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=1.5, help="time for each figure (default 1.5)")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller points, for a first look")
    parser.add_argument("--plot", type=Path, default=Path("benchmarks/out/content.png"))
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    given = parser.parse_args()
    one_core()
    console = Console(stderr=given.json)
    if not console.is_terminal:
        console = Console(stderr=given.json, width=140)
    row_counts = QUICK_ROW_COUNTS if given.quick else ROW_COUNTS
    pattern_counts = QUICK_PATTERN_COUNTS if given.quick else PATTERN_COUNTS
    rows = measured_rows(row_counts, given.seconds, console)
    console.print("changes of rows' subscriptions ...", style="dim")
    churn = measure_churn(max(row_counts), seconds=4 * given.seconds)
    console.print("the covering forest ...", style="dim")
    forest = measure_forest(min(16_000, max(row_counts)))
    console.print("XML documents ...", style="dim")
    xml = measure_xml(pattern_counts, given.seconds)
    alike = measure_xml_duplicates(max(pattern_counts), given.seconds)
    xml_churn = measure_xml_churn(max(pattern_counts), seconds=2 * given.seconds)
    asked = [] if given.quick else figures(rows, churn, [*xml, alike], xml_churn)
    draw(rows, xml, given.plot)
    if given.json:
        everything = {
            "rows": [as_json(each) for each in rows],
            "churn": asdict(churn),
            "forest": forest,
            "xml": xml,
            "xml_duplicates": alike,
            "xml_churn": xml_churn,
            "asked": [{**asdict(each), "reached": each.reached} for each in asked],
        }
        print(json.dumps(everything))
        return
    show_rows(rows, churn, console)
    show_forest(forest, console)
    show_xml([*xml, alike], xml_churn, console)
    show_asked(asked, console)
    console.print(f"curves drawn in {given.plot}")


def one_core() -> None:
    """Whatever is measured here runs on one core, the libraries' own threads included."""
    pa.set_cpu_count(1)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def measured_rows(counts: Sequence[int], seconds: float, console: Console) -> list[Figures]:
    """The lines of the first table, with progress."""
    found: list[Figures] = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("rows", total=3 * len(counts))
        for figures_of_one in measure_rows(tuple(counts), seconds=seconds):
            found.append(figures_of_one)
            progress.update(
                task,
                advance=1,
                description=f"rows: {figures_of_one.workload} {figures_of_one.subscriptions:,}",
            )
    return found


def figures(
    rows: list[Figures], churn: Churn, xml: list[dict[str, Any]], xml_churn: dict[str, Any]
) -> list[Asked]:
    """What was asked of the full run."""
    by_key = {(each.workload, each.subscriptions): each for each in rows}
    equality, three = by_key[("equality", 16_000)], by_key[("three", 16_000)]
    mixed = by_key[("mixed", 100_000)]
    least, most, alike = xml[0], xml[-2], xml[-1]
    growth = least["documents_per_s"] / most["documents_per_s"]
    return [
        Asked("16,000 equalities, events/s, batches of 1,000", equality.index_per_s, 1_000_000),
        Asked("16,000 of three conditions, events/s, batches of 1,000", three.index_per_s, 150_000),
        Asked("16,000 equalities, events/s, batches of 10", equality.index_tens_per_s, 20_000),
        Asked("16,000 of three conditions, events/s, batches of 10", three.index_tens_per_s, 20_000),
        Asked("100,000 mixed, events/s, batches of 1,000", mixed.index_per_s, 30_000),
        Asked("16,000 equalities, times the loop", equality.ratio, 100),
        Asked("16,000 of three conditions, times the loop", three.ratio, 100),
        Asked("changes/s at 100,000 mixed while matching", churn.changes_per_s, 5_000),
        Asked("matching speed kept during the changes", churn.kept, 0.8),
        Asked("50,000 patterns, documents/s, parsing included", most["documents_per_s"], 1_000),
        Asked("50,000 patterns, times lxml in a loop", most["ratio"], 200),
        Asked("the same, duplicates allowed, documents/s", alike["documents_per_s"], 1_000),
        Asked("the same, duplicates allowed, times lxml in a loop", alike["ratio"], 200),
        Asked("50 times the patterns take times the time", growth, 10, at_most=True),
        Asked("changes/s at 50,000 patterns while matching", xml_churn["changes_per_s"], 5_000),
        Asked(
            "XML matching speed kept during the changes",
            xml_churn["churn_matching_documents_per_s"] / xml_churn["quiet_documents_per_s"],
            0.8,
        ),
    ]


def show_rows(rows: list[Figures], churn: Churn, console: Console) -> None:
    """The table of rows."""
    table = Table(title="rows against SQL conditions: events/s, one core", title_justify="left")
    for name in (
        "workload",
        "subscriptions",
        "matches/event",
        "index",
        "index, tens",
        "loop",
        "DuckDB, prepared",
    ):
        table.add_column(name, justify="left" if name == "workload" else "right")
    for name in ("index/loop", "parse µs", "add µs", "bytes each"):
        table.add_column(name, justify="right")
    for each in rows:
        table.add_row(
            each.workload,
            f"{each.subscriptions:,}",
            f"{each.matches_per_event:.1f}",
            f"{each.index_per_s:,.0f}",
            f"{each.index_tens_per_s:,.0f}",
            f"{each.loop_per_s:,.0f}",
            "-" if each.duckdb_per_s is None else f"{each.duckdb_per_s:,.0f}",
            f"{each.ratio:,.0f}",
            f"{each.parse_us:.0f}",
            f"{each.add_us:.0f}",
            f"{each.bytes_per_subscription:,.0f}",
        )
    console.print(table)
    console.print(
        f"changes: {churn.changes_per_s:,.0f} a second at {churn.subscriptions:,} mixed, "
        f"{churn.change_us:.0f} µs each; matching {churn.busy_per_s:,.0f} events/s instead of "
        f"{churn.quiet_per_s:,.0f} ({churn.kept:.0%}); with the changes on the same core "
        f"{churn.throughput_per_s:,.0f}, and with parsing their texts {churn.parsing_per_s:,.0f}"
    )


def show_forest(forest: dict[str, float], console: Console) -> None:
    """What covering costs."""
    console.print(
        f"forest: {forest['subscriptions']:,.0f} mixed, of which {forest['maximal']:,.0f} maximal; "
        f"an addition takes {forest['add_us']:,.0f} µs, a removal {forest['remove_us']:,.0f} µs"
    )


def show_xml(xml: list[dict[str, Any]], xml_churn: dict[str, Any], console: Console) -> None:
    """The table of documents."""
    table = Table(title="XML documents of 22 elements against XPath patterns, one core", title_justify="left")
    for name in (
        "patterns",
        "distinct",
        "matches/document",
        "documents/s",
        "lxml loop",
        "index/loop",
        "one document, ms",
    ):
        table.add_column(name, justify="right")
    for name in ("add µs", "bytes each"):
        table.add_column(name, justify="right")
    for line in xml:
        table.add_row(
            f"{line['patterns']:,}",
            f"{line['distinct']:,}",
            f"{line['matches_per_document']:,.1f}",
            f"{line['documents_per_s']:,.0f}",
            f"{line['loop_documents_per_s']:,.1f}",
            f"{line['ratio']:,.0f}",
            f"{line['single_ms']:.2f}",
            f"{line['add_us']:.0f}",
            f"{line['bytes_per_pattern']:,.0f}",
        )
    console.print(table)
    kept = xml_churn["churn_matching_documents_per_s"] / xml_churn["quiet_documents_per_s"]
    console.print(
        f"changes: {xml_churn['changes_per_s']:,.0f} a second at {xml_churn['patterns']:,} patterns, "
        f"{xml_churn['change_us']:.0f} µs each; matching keeps {kept:.0%} of its speed; with the changes on "
        f"the same core {xml_churn['churn_documents_per_s']:,.0f} documents/s instead of "
        f"{xml_churn['quiet_documents_per_s']:,.0f}"
    )


def show_asked(asked: list[Asked], console: Console) -> None:
    """What was asked, and whether it was reached."""
    if not asked:
        return
    table = Table(title="asked for", title_justify="left")
    for name in ("figure", "measured", "asked", ""):
        table.add_column(name, justify="left" if name in ("figure", "") else "right")
    for each in asked:
        digits = 0 if each.bound >= 100 else 2
        sign = "≤" if each.at_most else "≥"
        verdict = "reached" if each.reached else "[red]MISSED[/red]"
        table.add_row(each.what, f"{each.measured:,.{digits}f}", f"{sign} {each.bound:,.{digits}f}", verdict)
    console.print(table)


def draw(rows: list[Figures], xml: list[dict[str, Any]], path: Path) -> None:
    """Time per event and per document against the number of subscriptions, both axes logarithmic."""
    mpl.use("Agg")
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 5), layout="constrained")
    colours = {"equality": "tab:green", "three": "tab:blue", "mixed": "tab:purple"}
    for workload, colour in colours.items():
        lines = [each for each in rows if each.workload == workload]
        counts = [each.subscriptions for each in lines]
        left.plot(
            counts, [1e6 / each.index_per_s for each in lines], "o-", color=colour, label=f"index, {workload}"
        )
        left.plot(
            counts, [1e6 / each.loop_per_s for each in lines], "s:", color=colour, label=f"loop, {workload}"
        )
    known = [each for each in rows if each.duckdb_per_s and each.workload == "three"]
    left.plot(
        [each.subscriptions for each in known],
        [1e6 / (each.duckdb_per_s or 1) for each in known],
        "^--",
        color="tab:orange",
        label="DuckDB prepared, three",
    )
    _axes(left, "rows: µs per event", "subscriptions")
    counts = [line["patterns"] for line in xml]
    right.plot(counts, [1e3 / line["documents_per_s"] for line in xml], "o-", color="tab:blue", label="index")
    loop = [1e3 / line["loop_documents_per_s"] for line in xml]
    right.plot(counts, loop, "s:", color="tab:red", label="lxml, each XPath in a loop")
    _axes(right, "XML: ms per document", "patterns")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _axes(axes: Axes, title: str, label: str) -> None:
    axes.set(xscale="log", yscale="log", title=title, xlabel=label)
    axes.grid(visible=True, which="both", alpha=0.25)
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=4, frameon=False)


if __name__ == "__main__":
    main()
