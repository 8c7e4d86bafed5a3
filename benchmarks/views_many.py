"""What do a hundred views cost? The CPU of the pipeline for 1, 10 and 100 views over the same topic.

    python -m benchmarks.views_many [--views 1,10,100] [--rate 2000] [--seconds 20]

The views are drawn from three aggregations of one topic and differ in what they select and show, as the views
of many people do: one view is one stage, ten and a hundred are three. A publisher sends at a steady rate;
what the pipeline's processes (driver, virtual machine, Python workers) take meanwhile is its cost. A stage
begins its next batch when the last one is done, so there are fewer batches when each costs more: what tells
is the cost of a state, that is of one batch of all stages with everything that is shown of it.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.machine import Process, cpu_s, free_port, tree, wait_until_quiet, workspace
from benchmarks.ours import NODE
from benchmarks.report import Asked, console_for, new_figure, options, save, show, tell
from gapless.client import connect
from gapless.client.connection import Client

KEYS = 1_000
PACE_S = 0.05
#: Java compiles what it runs for about so long after the start, beside the work; that is not counted.
WARM_S = 30.0
STAGES = (
    "SELECT item, sum(qty) AS total, count(*) AS sales FROM sales GROUP BY item",
    "SELECT shop, max(price) AS highest, avg(price) AS middle FROM sales GROUP BY shop",
    "SELECT item, last(price) AS price, min(price) AS lowest FROM sales WHERE qty > 1 GROUP BY item",
)
SHOWN = (
    "SELECT item, total, total - {number} AS above FROM ({stage}) AS s",
    "SELECT shop, highest - {number} AS above FROM ({stage}) AS s",
    "SELECT item, price, lowest FROM ({stage}) AS s WHERE price < lowest * 1.{number}",
)


def view_text(number: int) -> str:
    """The view with this number: all are different, over three aggregations."""
    which = number % len(STAGES)
    return SHOWN[which].format(stage=STAGES[which], number=number + 1)


async def publish(client: Client, rate: float, seconds: float) -> None:
    """Batches at a steady pace."""
    generator = np.random.default_rng(1)
    rows = max(1, round(rate * PACE_S))
    began, number = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        batch = pa.RecordBatch.from_pydict(
            {
                "item": pa.array(generator.integers(0, KEYS, rows)),
                "shop": pa.array(generator.integers(0, 50, rows)),
                "qty": pa.array(generator.integers(1, 9, rows)),
                "price": pa.array(generator.random(rows) * 100),
            }
        )
        await client.publish_batch("sales", batch)
        number += 1
        await asyncio.sleep(max(0.0, began + number * PACE_S - time.monotonic()))


async def measured(address: str, node: int, count: int, rate: float, seconds: float) -> dict[str, Any]:
    """Create so many views, wait until all are running, and see what the pipeline takes under load."""
    async with connect(address) as client:
        await publish(client, rate, 0.5)
        for number in range(count):
            await client.create_view(f"view_{number}", view_text(number))
        async with client.view(f"view_{count - 1}") as table:
            async for _ in table.changes():
                if len(table.to_arrow()):
                    break
            await publish(client, rate, WARM_S)
            pipeline = [pid for pid in tree(node) if pid != node]
            before, began = sum(map(cpu_s, pipeline)), time.monotonic()
            states = 0

            async def count_states() -> None:
                nonlocal states
                async for _ in table.changes():
                    states += 1

            counting = asyncio.create_task(count_states())
            await publish(client, rate, seconds)
            wall, after = time.monotonic() - began, sum(map(cpu_s, pipeline))
            counting.cancel()
    return {"views": count, "cores": (after - before) / wall, "batches_s": states / wall}


def main() -> None:
    """Measure."""
    parser = options(__doc__)
    parser.add_argument("--views", default="1,10,100")
    parser.add_argument("--rate", type=float, default=2_000.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    console = console_for(as_json=given.json)
    found: list[dict[str, Any]] = []
    for count in map(int, given.views.split(",")):
        wait_until_quiet()
        with workspace() as folder:
            port = free_port()
            listen = ("--data", folder / "node", "--listen", f"127.0.0.1:{port}")
            topic = ("--topic", "sales:item=int,shop=int,qty=int,price=float")
            with Process([*NODE, "up", *topic, *listen], log=folder / "node.log") as node:
                node.line()
                address, seconds = f"gapless://127.0.0.1:{port}", 8.0 if given.quick else given.seconds
                found.append(asyncio.run(measured(address, node.pid, count, given.rate, seconds)))
    show(
        console,
        f"the pipeline at {given.rate:,.0f} events/s",
        ("views", "distinct stages", "cores", "states/s of one view", "core seconds per state"),
        [
            (
                str(each["views"]),
                str(min(each["views"], len(STAGES))),
                f"{each['cores']:.2f}",
                f"{each['batches_s']:.2f}",
                f"{cost_of(each):.2f}",
            )
            for each in found
        ],
    )
    draw(found)
    asked: list[Asked] = []
    of = {each["views"]: cost_of(each) for each in found}
    if {10, 100} <= set(of):
        more = of[100] / of[10]
        asked.append(
            Asked("cost of a state of 100 views to that of 10, same stages", more, 2.0, at_most=True)
        )
    tell(console, "views_many", {"rounds": found}, asked, as_json=given.json)


def cost_of(found: dict[str, Any]) -> float:
    """Core seconds for one batch of all stages."""
    return float(found["cores"] / found["batches_s"])


def draw(found: list[dict[str, Any]]) -> None:
    """The curve."""
    figure = new_figure()
    axes = figure.add_subplot()
    axes.plot([each["views"] for each in found], [cost_of(each) for each in found], "o-", label="measured")
    one = cost_of(found[0])
    axes.plot(
        [each["views"] for each in found],
        [one * min(each["views"], len(STAGES)) for each in found],
        "--",
        label="the first view's cost times distinct stages",
    )
    axes.set(
        xscale="log",
        xlabel="views",
        ylabel="core seconds per state",
        ylim=(0, None),
        title="Views that share stages",
    )
    axes.legend()
    save(figure, "views_many")


if __name__ == "__main__":
    main()
