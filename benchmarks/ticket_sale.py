"""How stale is a view? The ticket sale of the SMILE paper, from publishers through Spark to a client.

    python -m benchmarks.ticket_sale [--rates 1000,100000] [--items 100000] [--seconds 20] [--runs 2]

Sellers offer items; buyers in the east and in the west buy some of each; the view `available` merges the
buys, sums them by item, joins the offers and shows what is left. One node, its Spark pipeline, a publisher
and a client that watches the view, all on this machine. A buy's staleness ends when the client shows a state
that includes it, and begins with the call of `publish_batch`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import uvloop

from benchmarks.machine import (
    Process,
    Window,
    free_port,
    load_client,
    tree,
    wait_until_quiet,
    workspace,
)
from benchmarks.ours import NODE, say, told
from benchmarks.report import (
    Asked,
    console_for,
    median,
    new_figure,
    options,
    percentile,
    save,
    show,
    tell,
)
from gapless.client import connect
from gapless.client.connection import Client

#: Batches of buys are published so often.
PACE_S = 0.02
#: Java compiles what it runs for about so long after the start, beside the work; that is not counted.
WARM_S = 30.0
SEATS = 1_000_000_000
TOPICS = {
    "sellers": {"item": "int", "price": "float", "qty": "int"},
    "buyers_east": {"item": "int", "qty": "int"},
    "buyers_west": {"item": "int", "qty": "int"},
}
VIEW = """
SELECT s.item, s.price, s.qty - coalesce(b.total, 0) AS avail
FROM (SELECT item, last(price) AS price, sum(qty) AS qty FROM sellers GROUP BY item) s
LEFT JOIN (
  SELECT item, sum(qty) AS total
  FROM (SELECT item, qty FROM buyers_east UNION ALL SELECT item, qty FROM buyers_west)
  GROUP BY item
) b ON s.item = b.item
WHERE s.qty - coalesce(b.total, 0) > 0
"""


async def sell(client: Client, items: int) -> None:
    """Offer every item once."""
    batch = pa.RecordBatch.from_pydict(
        {
            "item": pa.array(np.arange(items)),
            "price": pa.array(np.full(items, 99.5)),
            "qty": pa.array(np.full(items, SEATS)),
        }
    )
    await client.publish_batch("sellers", batch)


async def buy(given: argparse.Namespace) -> None:
    """Be the buyers: batches at a steady pace; tells when each was published, and its last tick."""
    generator = np.random.default_rng(1)
    rows = max(1, round(given.rate * PACE_S))
    pace = rows / given.rate
    batches: list[tuple[float, str, int, int]] = []

    async def one(client: Client, topic: str, batch: pa.RecordBatch) -> None:
        called = time.time()
        receipt = await client.publish_batch(topic, batch)
        batches.append((called, topic, int(receipt.ticks[-1]), batch.num_rows))

    async with connect(given.address) as client:
        say(ready=True)
        await told()
        began, tasks, number = time.monotonic(), set[asyncio.Task[None]](), 0
        while time.monotonic() - began < given.seconds:
            batch = pa.RecordBatch.from_pydict(
                {
                    "item": pa.array(generator.integers(0, given.items, rows)),
                    "qty": pa.array(np.ones(rows, int)),
                }
            )
            topic = ("buyers_east", "buyers_west")[number % 2]
            task = asyncio.create_task(one(client, topic, batch))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            number += 1
            await asyncio.sleep(max(0.0, began + number * pace - time.monotonic()))
        await asyncio.gather(*tasks)
        say(batches=batches, ended=time.monotonic() - began, cpu_s=time.process_time())


async def watch(given: argparse.Namespace) -> None:
    """Be the client that watches the view; tells when each horizon was shown."""
    shown: list[tuple[float, dict[str, int]]] = []
    asked = asyncio.create_task(told())
    async with connect(given.address) as client, client.view("available") as table:
        say(ready=True, rows=len(table.to_arrow()))
        changes = table.changes()
        while not asked.done():
            change = asyncio.ensure_future(anext(changes))
            await asyncio.wait({change, asked}, return_when=asyncio.FIRST_COMPLETED)
            if not change.done():
                change.cancel()
                break
            horizon = change.result().as_of
            shown.append((time.time(), {topic: max(ticks.values()) for topic, ticks in horizon.items()}))
        sold = SEATS * given.items - sum(table.to_arrow()["avail"].to_pylist())
        say(shown=shown, sold=sold, cpu_s=time.process_time())


def staleness_ms(bought: dict[str, Any], watched: dict[str, Any]) -> list[float]:
    """How long each batch of buys took to be shown, in milliseconds, the warm-up left out."""
    began = min(called for called, *_ in bought["batches"])
    times = np.array([at for at, _ in watched["shown"]])
    found: list[float] = []
    for topic in ("buyers_east", "buyers_west"):
        horizons = np.array([horizon.get(topic, 0) for _, horizon in watched["shown"]])
        for called, of, tick, _rows in bought["batches"]:
            if of != topic or called < began + WARM_S:
                continue
            at = int(np.searchsorted(horizons, tick, side="right"))  # every event below the horizon is in it
            assert at < len(times), "the view never showed the last buys"
            found.append(float(times[at] - called) * 1_000)
    return sorted(found)


def topic_options() -> list[str]:
    """The topics, for `gapless up`."""
    return [
        part
        for name, columns in TOPICS.items()
        for part in ("--topic", f"{name}:{','.join(f'{c}={t}' for c, t in columns.items())}")
    ]


def round_of(folder: Path, rate: float, items: int, seconds: float) -> dict[str, Any]:
    """One node, one pipeline, one rate."""
    port = free_port()
    address = f"gapless://127.0.0.1:{port}"
    listen = ("--data", folder, "--listen", f"127.0.0.1:{port}")
    with Process([*NODE, "up", *topic_options(), *listen], log=folder.with_suffix(".log")) as node:
        node.line()
        asyncio.run(_prepared(address, items))
        log = folder.with_suffix(".watch.log")
        with load_client("benchmarks.ticket_sale", "watch", address, "--items", items, log=log) as watcher:
            assert watcher.line()["rows"] == items, "the view does not show every item"
            arguments = ("buy", address, "--rate", rate, "--items", items, "--seconds", seconds + WARM_S)
            with load_client("benchmarks.ticket_sale", *arguments, log=log) as buyer:
                buyer.line()
                ours = tree(node.pid)
                with Window(*ours, buyer.pid, watcher.pid) as window:
                    buyer.say("")
                    bought = buyer.line()
                    asyncio.run(_caught_up(address, bought))
            watcher.say("")
            watched = watcher.line()
    events = sum(rows for *_, rows in bought["batches"])
    assert watched["sold"] == events, f"{events:,} were bought and {watched['sold']:,} are missing"
    stale = staleness_ms(bought, watched)
    return {
        "rate": rate,
        "rate_made": events / bought["ended"],
        "p50_ms": percentile(stale, 0.5),
        "p99_ms": percentile(stale, 0.99),
        "max_ms": stale[-1],
        "states": len(watched["shown"]),
        "cores": sum(window.cores[: len(ours)]),
        "foreign_cores": window.foreign_cores,
    }


async def _prepared(address: str, items: int) -> None:
    async with connect(address) as client:
        await sell(client, items)
        await client.create_view("available", VIEW)
        async with client.view("available") as table:
            async for _ in table.changes():
                if len(table.to_arrow()) == items:
                    return


async def _caught_up(address: str, bought: dict[str, Any]) -> None:
    """Wait until the view includes the last buys."""
    last: dict[str, int] = {}
    for _, topic, tick, _ in bought["batches"]:
        last[topic] = max(last.get(topic, 0), tick)
    async with connect(address) as client, client.view("available") as table:
        async for change in table.changes():
            shown = {topic: max(ticks.values()) for topic, ticks in change.as_of.items()}
            if all(shown.get(topic, 0) > tick for topic, tick in last.items()):
                return


def draw(found: list[dict[str, Any]]) -> None:
    """Staleness by rate."""
    figure = new_figure()
    axes = figure.add_subplot()
    rates = sorted({each["rate"] for each in found})
    for name in ("p50_ms", "p99_ms"):
        middle = [median(each[name] for each in found if each["rate"] == rate) for rate in rates]
        axes.plot(rates, middle, "o-", label=name[:3])
    axes.set(xscale="log", xlabel="buys a second", ylabel="staleness at the client, ms", ylim=(0, None))
    axes.set_title("The ticket sale: how stale is the view?")
    axes.legend()
    save(figure, "ticket_sale")


def main() -> None:
    """Measure, or be one of the load clients."""
    if len(sys.argv) > 1 and sys.argv[1] in ("buy", "watch"):
        parser = argparse.ArgumentParser()
        parser.add_argument("role")
        parser.add_argument("address")
        parser.add_argument("--rate", type=float, default=0.0)
        parser.add_argument("--items", type=int, required=True)
        parser.add_argument("--seconds", type=float, default=0.0)
        given = parser.parse_args()
        uvloop.run((buy if given.role == "buy" else watch)(given))
        return
    parser = options(__doc__)
    parser.add_argument("--rates", default="1000,100000", help="buys a second, with commas between")
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--runs", type=int, default=2)
    given = parser.parse_args()
    console = console_for(as_json=given.json)
    found: list[dict[str, Any]] = []
    for run in range(1 if given.quick else given.runs):
        for rate in map(float, given.rates.split(",")):
            wait_until_quiet()
            with workspace() as folder:
                console.print(f"run {run + 1}: {rate:,.0f} buys/s, {given.items:,} items")
                found.append(
                    round_of(folder / "node", rate, given.items, 10.0 if given.quick else given.seconds)
                )
                console.print(json.dumps(found[-1]), style="dim")
    show(
        console,
        f"the ticket sale, {given.items:,} items",
        ("buys/s asked", "made", "staleness p50 ms", "p99 ms", "max ms", "states shown", "foreign cores"),
        [
            [
                f"{each['rate']:,.0f}",
                *(f"{each[name]:,.0f}" for name in ("rate_made", "p50_ms", "p99_ms", "max_ms", "states")),
                f"{each['foreign_cores']:.2f}",
            ]
            for each in found
        ],
    )
    draw(found)
    asked: list[Asked] = []
    for rate, bound in ((1_000.0, 1_000.0), (100_000.0, 2_000.0)):
        of = [each for each in found if each["rate"] == rate]
        if of:
            middle = median(each["p50_ms"] for each in of)
            asked.append(Asked(f"p50 staleness at {rate:,.0f}/s", middle, bound, at_most=True, unit="ms"))
            made = median(each["rate_made"] for each in of)
            asked.append(Asked(f"buys/s made of {rate:,.0f}", made, 0.98 * rate))
    tell(console, "ticket_sale", {"rounds": found}, asked, as_json=given.json)


if __name__ == "__main__":
    main()
