"""How much do the machines alone cost? A three-hop path in one process, and the price of history.

    .venv/bin/python benchmarks/core_path.py [--batches N] [--plot FILE] [--json]

A pubend publishes batches of 500 events; everything goes to the router, because an archive behind it
wants everything; the router's filter passes 10% of it to an edge with 1,000 subscriptions, which an
index resolves to (row, subscription) pairs. Messages are handed over as objects: no sockets, no
disks, no encoding, so that what is measured is the protocol. All four brokers run in one process and
all their time counts.

The second half acks ten times more history at each point and prints the cost per batch and what the
brokers hold: both must stay flat.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import matplotlib as mpl
import numpy as np
import pyarrow as pa
from matplotlib import pyplot as plt
from rich.console import Console
from rich.table import Table

from gapless.content.condition import EVERYTHING, Condition
from gapless.content.normal import compare
from gapless.content.terms import ColumnTerm, constant
from gapless.model.ids import BrokerId, PubendId, SubscriptionId, TopicId
from gapless.protocol.broker import Broker
from gapless.protocol.effects import AppendRecord, Deliver, SendMessage, StartTimer
from gapless.protocol.events import (
    BrokerStarted,
    DeliveryTaken,
    Event,
    LinkUp,
    MessageReceived,
    Now,
    PublishRequested,
    RecordDurable,
    SubscribeRequested,
    TimerFired,
)
from gapless.protocol.network import Network

ROWS = 500
TARGET = 300_000
#: Batches measured at each point of the history.
MEASURED = 500
SUBSCRIPTIONS = 1_000
#: Of these groups the subscriptions name the first 1,000: 10% of all events match one each.
GROUPS = 10_000
PUBEND = PubendId("trades-1")
TOPIC = TopicId("trades")


@dataclass
class Hops:
    """The brokers of the path, and the queue between them."""

    brokers: dict[BrokerId, Broker]
    now_ms: int = 0
    queue: deque[tuple[BrokerId, Event]] = field(default_factory=deque)
    seconds: Counter[BrokerId] = field(default_factory=Counter)
    timers: dict[BrokerId, int] = field(default_factory=dict)
    delivered: int = 0

    def feed(self, broker: BrokerId, event: Event) -> None:
        """One step and its effects, the step's time booked on the broker."""
        now = Now(self.now_ms, self.now_ms * 1_000)
        start = time.perf_counter()
        effects = self.brokers[broker].step(event, now)
        self.seconds[broker] += time.perf_counter() - start
        for effect in effects:
            match effect:
                case SendMessage(to=to, message=message):
                    self.queue.append((to, MessageReceived(sender=broker, message=message)))
                case AppendRecord(pubend=pubend, token=token):
                    self.queue.append((broker, RecordDurable(pubend=pubend, token=token)))
                case Deliver(serial=serial, rows=rows):
                    self.delivered += len(rows)
                    self.queue.append((broker, DeliveryTaken(serial=serial)))
                case StartTimer(at_ms=at_ms):
                    self.timers[broker] = at_ms
                case _:
                    continue

    def drain(self) -> None:
        """Let everything that is under way arrive, and the timers that are due fire."""
        while self.queue:
            self.feed(*self.queue.popleft())
            if not self.queue:
                for broker, at_ms in list(self.timers.items()):
                    if at_ms <= self.now_ms:
                        self.timers[broker] = self.now_ms + 1
                        self.feed(broker, TimerFired())


def build() -> Hops:
    """The network with all subscriptions in place."""
    network = Network.parse(
        {
            "cells": {"P": ["pubend"], "R": ["router"], "E": ["edge"], "A": ["archive"]},
            "links": ["P--R", "R--E", "R--A"],
            "topics": {"trades": {"group": "int", "price": "float", "body": "binary"}},
            "pubends": {PUBEND: {"topic": "trades", "broker": "pubend"}},
            "edges": ["edge", "archive"],
        }
    )
    path = Hops({broker: Broker(network, broker, 1, {}) for broker in network.cell_of})
    for broker in path.brokers:
        path.feed(broker, BrokerStarted())
    for one, other in network.connections():
        path.feed(one, LinkUp(neighbour=other))
        path.feed(other, LinkUp(neighbour=one))
    path.drain()
    group = ColumnTerm("group", "int", nullable=False)
    wanted: list[tuple[str, Condition]] = [
        ("edge", compare(group, "=", constant(each))) for each in range(SUBSCRIPTIONS)
    ]
    for at, (broker, condition) in enumerate([*wanted, ("archive", EVERYTHING)]):
        path.feed(
            BrokerId(broker),
            SubscribeRequested(subscription=SubscriptionId(f"s{at}"), topic=TOPIC, condition=condition),
        )
    path.drain()
    path.now_ms += 1_000
    path.feed(BrokerId("edge"), TimerFired())
    path.drain()
    path.seconds.clear()
    return path


def batches(count: int) -> list[pa.RecordBatch]:
    """Distinct batches of random events with a body of 100 bytes."""
    random = np.random.default_rng(7)
    out = []
    for _ in range(count):
        body = [random.bytes(100) for _ in range(ROWS)]
        columns = {
            "group": random.integers(0, GROUPS, ROWS),
            "price": random.random(ROWS),
            "body": pa.array(body, pa.binary()),
        }
        out.append(pa.RecordBatch.from_pydict(columns))
    return out


def publish(path: Hops, rows: list[pa.RecordBatch], count: int) -> float:
    """Publish `count` batches through the whole path; returns the seconds in the machines."""
    before = sum(path.seconds.values())
    for at in range(count):
        if at % 2 == 0:
            path.now_ms += 1  # about a million events a second of virtual time
        path.feed(BrokerId("pubend"), PublishRequested(pubend=PUBEND, token=at, rows=rows[at % len(rows)]))
        path.drain()
    return sum(path.seconds.values()) - before


def throughput(count: int) -> dict[str, object]:
    """Events per second through all machines, and each broker's share."""
    path, rows = build(), batches(64)
    publish(path, rows, 200)
    path.seconds.clear()
    path.delivered = 0
    gc.collect()
    seconds = publish(path, rows, count)
    events = count * ROWS
    return {
        "events": events,
        "delivered": path.delivered,
        "events_per_second": events / seconds,
        "microseconds_per_batch": {b: s / count * 1e6 for b, s in sorted(path.seconds.items())},
    }


def history(points: list[int]) -> list[dict[str, float]]:
    """Cost per batch and memory after more and more acked history: one path, measured as it goes."""
    path, rows = build(), batches(64)
    done = 0
    out: list[dict[str, float]] = []
    for point in points:
        publish(path, rows, point - MEASURED - done)
        gc.collect()
        # The median of short stretches: one hiccup of the machine must not look like a trend.
        stretches = [publish(path, rows, MEASURED // 10) / (MEASURED // 10) for _ in range(10)]
        done = point
        memory = [broker.memory() for broker in path.brokers.values()]
        out.append(
            {
                "events": done * ROWS,
                "microseconds_per_batch": median(stretches) * 1e6,
                "rows_held": sum(m.rows for m in memory),
                "row_bytes_held": sum(m.row_bytes for m in memory),
                "runs_held": sum(m.runs for m in memory),
                "arrow_bytes": pa.total_allocated_bytes(),
                "process_bytes": _resident_bytes(),
            }
        )
    return out


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize()


def show(fast: dict[str, object], past: list[dict[str, float]], console: Console) -> None:
    """Both tables, and the verdicts."""
    shares = fast["microseconds_per_batch"]
    assert isinstance(shares, dict)
    table = Table(
        "broker", "us per batch", title=f"Three hops, batches of {ROWS}, {SUBSCRIPTIONS} subscriptions"
    )
    for broker, microseconds in shares.items():
        table.add_row(broker, f"{microseconds:,.0f}")
    table.add_row("all", f"{sum(shares.values()):,.0f}", style="bold")
    console.print(table)
    console.print(
        f"{fast['events']:,} events published, {fast['delivered']:,} deliveries: "
        f"[bold]{fast['events_per_second']:,.0f} events/s[/bold] through the machines (asked for: {TARGET:,})"
    )
    table = Table(
        "acked events",
        "us per batch",
        "rows held",
        "runs held",
        "Arrow MB",
        "process MB",
        title="The price of history",
    )
    for point in past:
        table.add_row(
            f"{point['events']:,.0f}",
            f"{point['microseconds_per_batch']:,.0f}",
            f"{point['rows_held']:,.0f}",
            f"{point['runs_held']:,.0f}",
            f"{point['arrow_bytes'] / 1e6:,.1f}",
            f"{point['process_bytes'] / 1e6:,.1f}",
        )
    console.print(table)
    first, last = past[0], past[-1]
    console.print(
        f"{last['events'] / first['events']:.0f} times the history: "
        f"{last['microseconds_per_batch'] / first['microseconds_per_batch']:.2f} times the cost per batch, "
        f"{last['rows_held'] / max(1, first['rows_held']):.2f} times the rows held, "
        f"{last['process_bytes'] / first['process_bytes']:.2f} times the process"
    )


def draw(past: list[dict[str, float]], file: Path) -> None:
    """The two curves of history as a picture."""
    mpl.use("Agg")
    events = [point["events"] / 1e6 for point in past]
    figure, (cost, memory) = plt.subplots(1, 2, figsize=(10, 4))
    cost.plot(events, [point["microseconds_per_batch"] for point in past], marker="o")
    cost.set(
        title="Cost of a batch of 500 events", xlabel="acked history (million events)", ylabel="microseconds"
    )
    memory.plot(events, [point["process_bytes"] / 1e6 for point in past], marker="o", label="process")
    memory.plot(
        events, [point["row_bytes_held"] / 1e6 for point in past], marker="o", label="rows held by brokers"
    )
    memory.set(title="Memory", xlabel="acked history (million events)", ylabel="MB")
    memory.legend()
    for axes in (cost, memory):
        axes.set_ylim(bottom=0)
        axes.grid(visible=True, alpha=0.3)
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=120)


def main() -> None:
    """Print both tables and draw the curves."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--batches", type=int, default=2_000, help="batches for the throughput (default 2000)"
    )
    parser.add_argument("--plot", type=Path, default=Path("benchmarks/out/core_path.png"))
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    given = parser.parse_args()
    fast = throughput(given.batches)
    past = history([1_000, 2_000, 4_000, 7_000, 10_000])
    draw(past, given.plot)
    if given.json:
        print(json.dumps({"throughput": fast, "history": past}))
        return
    console = Console()
    show(fast, past, console)
    console.print(f"curves drawn in {given.plot}")


if __name__ == "__main__":
    main()
