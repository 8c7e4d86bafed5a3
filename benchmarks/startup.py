"""How soon does a node listen that has 10 million events behind it, and what do they cost it in memory?

    .venv/bin/python -m benchmarks.startup [--events N] [--runs N] [--quick] [--json]

The events (250 bytes each) are published in batches and acknowledged by a subscriber. Two histories are made:
one that the default retention has trimmed, as everything was acknowledged, and one that is kept for ever, all
of which is on disk. Then nodes are started in turns: a fresh one, one with each history after an orderly
stop, and one with each after kill -9. Time is from exec to the line that says that it listens; memory is that
of the process a second later.

The rate of the store alone is measured beside that: records appended and made durable, without a node.

About 4 minutes and 3 GB of disk; with --quick (500,000 events) 1 minute.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console

from benchmarks import ours
from benchmarks.machine import Process, Window, cpu_s, free_port, load_client, resident_bytes, workspace
from benchmarks.report import Asked, console_for, median, new_figure, options, percentile, save, show, tell
from gapless.model.batch import EventBatch
from gapless.model.ids import PubendId
from gapless.protocol.effects import BatchRecord
from gapless.store.log import Log

NETWORK = """
cells = {{all = ["node"]}}
edges = ["node"]
topics.{topic} = {columns}
pubends.bench-1 = {{topic = "{topic}", broker = "node"}}
retention.{topic} = "{retention}"
"""
BATCH_ROWS = 5_000
START_MAX_S = 2.0
MEMORY_MAX_MB = 50.0
#: A node has come to rest so long after it listens.
REST_S = 1.0
STORE_SECONDS = 3.0
FRESH = "fresh"


@dataclass(slots=True)
class Figures:
    """What the starts of one kind of node have shown."""

    start_s: list[float] = field(default_factory=list)
    #: CPU of the process up to then: what is left of the time when nobody else wants the machine.
    cpu_s: list[float] = field(default_factory=list)
    resident_mb: list[float] = field(default_factory=list)


def start(folder: Path, retention: str, port: int) -> tuple[Process, float]:
    """A node on a folder, and how long it took until it listened."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "network.toml"
    file.write_text(NETWORK.format(topic=ours.TOPIC, columns=ours.columns_toml(), retention=retention))
    began = time.monotonic()
    node = Process(
        [sys.executable, "-m", "gapless", "up", file, "--data", folder, "--listen", f"127.0.0.1:{port}"],
        log=folder / "node.log",
    )
    node.line()
    return node, time.monotonic() - began


def make_history(folder: Path, retention: str, events: int) -> float:
    """Publish so many events and have them acknowledged; gives the rate."""
    port = free_port()
    node, _ = start(folder, retention, port)
    address = f"gapless://127.0.0.1:{port}"
    arguments = (address, "--count", events)
    with node:
        subscriber = load_client("benchmarks.ours", "subscribe", *arguments, log=folder / "subscribe.log")
        publisher = load_client(
            "benchmarks.ours", "publish", *arguments, "--batch", BATCH_ROWS, log=folder / "publish.log"
        )
        with subscriber, publisher:
            subscriber.line()
            publisher.line()
            publisher.say("go")
            began, ended = publisher.line()["began"], subscriber.line()["ended"]
        # The subscriber has acknowledged when it left; trims and archives come a little later.
        time.sleep(3)
    return float(events / (ended - began))


def disk_mb(folder: Path) -> float:
    """What a node has on disk."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20


def measure_start(folder: Path, retention: str, found: Figures, *, kill: bool) -> None:
    """Start a node once, and end it in an orderly way or not."""
    node, seconds = start(folder, retention, free_port())
    found.start_s.append(seconds)
    found.cpu_s.append(cpu_s(node.pid))
    time.sleep(REST_S)
    found.resident_mb.append(resident_bytes(node.pid) / 2**20)
    if kill:
        node.kill()
    else:
        node.stop()


def store_rate(folder: Path, rows: int, records_per_flush: int) -> dict[str, float]:
    """Append and flush for some seconds, without a node."""
    schema = pa.schema(
        [("sent", pa.int64()), ("key", pa.int64()), ("name", pa.string()), ("body", pa.string())]
    )
    columns = {
        "sent": range(rows),
        "key": range(rows),
        "name": [ours.NAME] * rows,
        "body": [ours.BODY] * rows,
    }
    batch = pa.RecordBatch.from_pydict({name: list(each) for name, each in columns.items()}, schema=schema)
    log = Log.open(folder, PubendId("p"), schema)
    token = tick = 0
    flushes: list[float] = []
    began = time.perf_counter()
    while time.perf_counter() - began < STORE_SECONDS:
        for _ in range(records_per_flush):
            record = BatchRecord(batch=EventBatch(np.arange(tick, tick + rows, dtype=np.int64), batch))
            log.append(token, record)
            token, tick = token + 1, tick + rows
        flushing = time.perf_counter()
        log.flush()
        flushes.append(time.perf_counter() - flushing)
    seconds = time.perf_counter() - began
    log.close()
    flushes.sort()
    return {
        "rows": rows,
        "records_per_flush": records_per_flush,
        "events_per_s": tick / seconds,
        "mb_per_s": tick * 250 / seconds / 2**20,
        "flushes_per_s": len(flushes) / seconds,
        "flush_p50_ms": 1e3 * percentile(flushes, 0.5),
        "flush_p99_ms": 1e3 * percentile(flushes, 0.99),
    }


def show_starts(console: Console, found: dict[str, Figures], disks: dict[str, float], events: int) -> None:
    """The table of starts."""
    base = median(found[FRESH].resident_mb)
    rows = [
        [
            name,
            f"{median(each.start_s):.2f}",
            f"{max(each.start_s):.2f}",
            f"{median(each.cpu_s):.2f}",
            f"{median(each.resident_mb):.0f}",
            f"{median(each.resident_mb) - base:+.0f}",
            f"{disks.get(name, 0):,.0f}",
        ]
        for name, each in found.items()
    ]
    columns = (
        "node",
        "exec to listening, s",
        "at most",
        "CPU s",
        "memory MB",
        "more than fresh",
        "on disk MB",
    )
    show(console, f"starting a node with {events:,} acknowledged events behind it", columns, rows)


def show_store(console: Console, found: list[dict[str, float]]) -> None:
    """The table of the store."""
    rows = [
        [
            f"{each['rows']:,.0f} rows, {each['records_per_flush']:.0f} a flush",
            f"{each['events_per_s']:,.0f}",
            f"{each['mb_per_s']:,.0f}",
            f"{each['flushes_per_s']:,.0f}",
            f"{each['flush_p50_ms']:.2f} / {each['flush_p99_ms']:.1f}",
        ]
        for each in found
    ]
    columns = ("records", "durable events/s", "MB/s", "flushes/s", "flush p50/p99 ms")
    show(console, "the store alone: append and flush with fdatasync", columns, rows)


def draw(found: dict[str, Figures]) -> None:
    """Bars."""
    figure = new_figure(2)
    names = list(found)[::-1]
    seconds, memory = figure.subplots(1, 2)
    seconds.barh(names, [median(found[name].start_s) for name in names])
    seconds.axvline(START_MAX_S, color="tab:red", linestyle=":")
    seconds.set(title="from exec to listening", xlabel="seconds")
    memory.barh(names, [median(found[name].resident_mb) for name in names])
    memory.axvline(median(found[FRESH].resident_mb) + MEMORY_MAX_MB, color="tab:red", linestyle=":")
    memory.set(title="memory", xlabel="MB")
    save(figure, "startup")


def main() -> None:
    """Make the histories, start the nodes in turns, print the tables."""
    parser = options(__doc__)
    parser.add_argument("--events", type=int, default=0, help="default 10000000, with --quick 500000")
    parser.add_argument("--runs", type=int, default=0, help="starts of each (default 5, with --quick 2)")
    given = parser.parse_args()
    console = console_for(as_json=given.json)
    events = given.events or (500_000 if given.quick else 10_000_000)
    runs = given.runs or (2 if given.quick else 5)
    kinds = {
        f"{keep}, {end}": (keep, end) for keep in ("acknowledged", "forever") for end in ("stopped", "killed")
    }
    found = {FRESH: Figures(), **{name: Figures() for name in kinds}}
    with workspace() as folder, Window() as window:
        made: dict[str, float] = {}
        for keep in ("acknowledged", "forever"):
            console.print(f"a history of {events:,} events, kept {keep} ...", style="dim")
            made[keep] = make_history(folder / keep, keep, events)
        disks = {name: disk_mb(folder / keep) for name, (keep, _) in kinds.items()}
        for run in range(runs):
            console.print(f"starts: round {run + 1} of {runs} ...", style="dim")
            measure_start(folder / f"fresh-{run}", "acknowledged", found[FRESH], kill=False)
            for name, (keep, end) in kinds.items():
                # How a node is ended decides how the next one finds its files.
                measure_start(folder / keep, keep, Figures(), kill=end == "killed")
                measure_start(folder / keep, keep, found[name], kill=False)
        console.print("the store alone ...", style="dim")
        shapes = ((1, 1), (1, 100), (500, 1), (5_000, 4))
        stores = [store_rate(folder / f"store-{rows}-{each}", rows, each) for rows, each in shapes]
    show_starts(console, found, disks, events)
    show_store(console, stores)
    console.print(f"foreign CPU: {window.foreign_cores:.2f} cores")
    draw(found)
    asked: list[Asked] = []
    base = median(found[FRESH].resident_mb)
    for name in kinds:
        each = found[name]
        asked.append(Asked(f"{name}: exec to listening", median(each.start_s), START_MAX_S, True, "s"))
        more = median(each.resident_mb) - base
        asked.append(Asked(f"{name}: more memory than a fresh node", more, MEMORY_MAX_MB, True, "MB"))
    told: dict[str, Any] = {
        "events": events,
        "making_per_s": made,
        "starts": {
            name: {key: getattr(each, key) for key in Figures.__slots__} for name, each in found.items()
        },
        "store": stores,
        "foreign_cores": window.foreign_cores,
    }
    tell(console, "startup", told, asked, as_json=given.json)


if __name__ == "__main__":
    main()
