"""How fast is the past? Rows a second that Spark reads from archives, from the live log, and without us.

    python -m benchmarks.history [--rows 6000000] [--runs 3]

A node stores events and archives its sealed segments as Parquet. Then one Spark session, round by round,
reads all columns of: the archive through `gapless.spark.history`, the same through
`spark.read.format("gapless")`, the live log of a topic that has no archive, and the very same files through
plain `spark.read.parquet`. Ratios are taken within a round.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import gapless.spark
from benchmarks.machine import Process, free_port, wait_until_quiet, workspace
from benchmarks.ours import NODE
from benchmarks.report import Asked, console_for, median, new_figure, options, save, show, tell
from gapless.client import connect
from gapless.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = 'item = "int", qty = "int", price = "float"'
BATCH_ROWS = 16_384
#: The same for both: only the first has an archive.
ARCHIVED, LIVE = "archived", "live"
NETWORK = f"""
edges = ["node"]
[cells]
all = ["node"]
[addresses]
node = "127.0.0.1:PORT"
[topics]
{ARCHIVED} = {{ {COLUMNS} }}
{LIVE} = {{ {COLUMNS} }}
[pubends]
{ARCHIVED} = {{ topic = "{ARCHIVED}", broker = "node" }}
{LIVE} = {{ topic = "{LIVE}", broker = "node" }}
[retention]
{ARCHIVED} = "SIZE"
{LIVE} = "forever"
[archive]
{ARCHIVED} = true
"""


async def published(address: str, topic: str, rows: int) -> None:
    """Store so many events."""
    generator = np.random.default_rng(1)
    batch = pa.RecordBatch.from_pydict(
        {
            "item": pa.array(generator.integers(0, 100_000, BATCH_ROWS)),
            "qty": pa.array(generator.integers(1, 9, BATCH_ROWS)),
            "price": pa.array(generator.random(BATCH_ROWS)),
        }
    )
    async with connect(address) as client:
        for _ in range(rows // BATCH_ROWS):
            await client.publish_batch(topic, batch)


def archived(folder: Path, rows: int) -> list[str]:
    """Wait until nearly all events are in files: all but the newest segment, which is an eighth of them."""
    while True:
        files = sorted(folder.glob("*.parquet"))
        if sum(pq.read_metadata(each).num_rows for each in files) > 0.8 * rows:
            return [str(each) for each in files]
        time.sleep(0.5)


def timed(frame: Callable[[], DataFrame]) -> tuple[int, float]:
    """Read every row and every column: how many rows, and how long it took."""
    from pyspark.sql import functions as f  # noqa: PLC0415  # the session comes first

    began = time.monotonic()
    [row] = frame().agg(f.count("*"), f.sum("item"), f.sum("qty"), f.sum("price"), f.max("tick")).collect()
    return int(row[0]), time.monotonic() - began


def main() -> None:
    """Measure."""
    parser = options(__doc__)
    parser.add_argument("--rows", type=int, default=6_000_000)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    rows = 1_500_000 if given.quick else given.rows
    console = console_for(as_json=given.json)
    found: dict[str, list[float]] = {}
    with workspace() as folder:
        port = free_port()
        address = f"gapless://127.0.0.1:{port}"
        file = folder / "network.toml"
        # A quarter of the size is a segment; all sealed ones are archived at once.
        size = f"{max(rows * 40 // 8, 2**20)}B"
        file.write_text(NETWORK.replace("PORT", str(port)).replace("SIZE", size))
        up = [*NODE, "up", file, "--broker", "node", "--data", folder / "data"]
        with Process(up, log=folder / "node.log") as node:
            node.line()
            for topic in (ARCHIVED, LIVE):
                asyncio.run(published(address, topic, rows))
            files = archived(folder / "data" / "node" / "archive" / ARCHIVED, rows)
            measure(found, address, files, 1 if given.quick else given.runs)
    rates = {name: median(each) for name, each in found.items()}
    plain = found["spark.read.parquet"]
    ratio = median(p / h for p, h in zip(plain, found["history, archived"], strict=True))
    show(
        console,
        f"reading {rows:,} rows of 3 numbers, tick and pubend",
        ("what", "rows/s"),
        [(name, f"{rate:,.0f}") for name, rate in rates.items()],
    )
    draw(rates)
    asked = [
        Asked("history on archived data", rates["history, archived"], 2_000_000, unit="rows/s"),
        Asked("the live log", rates["format('gapless'), live log"], 500_000, unit="rows/s"),
        Asked("plain Parquet is faster by", ratio, 1.5, at_most=True, unit="times"),
    ]
    tell(console, "history", {"rates": found}, asked, as_json=given.json)


def measure(found: dict[str, list[float]], address: str, files: list[str], runs: int) -> None:
    """Rows a second of each way, in rounds; the first round warms up and is not counted."""
    spark = session("local[*]", name="history")
    gapless.spark.register(spark)

    def source(topic: str) -> DataFrame:
        reader = spark.read.format("gapless").option("brokers", address).option("topic", topic)
        return reader.load()

    ways: dict[str, Callable[[], Any]] = {
        "spark.read.parquet": lambda: spark.read.parquet(*files),
        "history, archived": lambda: gapless.spark.history(spark, address, ARCHIVED),
        "format('gapless'), archived": lambda: source(ARCHIVED),
        "format('gapless'), live log": lambda: source(LIVE),
    }
    try:
        for run in range(runs + 1):
            wait_until_quiet()
            for name, frame in ways.items():
                count, seconds = timed(frame)
                if run:
                    found.setdefault(name, []).append(count / seconds)
    finally:
        spark.stop()


def draw(rates: dict[str, float]) -> None:
    """One bar for each way."""
    figure = new_figure(width=7.0)
    axes = figure.add_subplot()
    axes.barh(list(rates), [rate / 1e6 for rate in rates.values()])
    axes.set(xlabel="million rows a second", title="Reading the past with Spark")
    axes.invert_yaxis()
    save(figure, "history")


if __name__ == "__main__":
    main()
