"""How many events a second can be filtered for thousands of subscribers, each of which wants 0.1%?

    .venv/bin/python -m benchmarks.filters [--subscribers N] [--runs N] [--quick] [--json]

Every subscriber has a connection of its own and a condition over two columns. The publisher gives events of
250 bytes as fast as it gets receipts; the rate counts until the last matching event has reached its
subscriber. Ours is measured without names and with (durable: the subscription and its position outlive client
and edge); both have every event on disk before its receipt. ActiveMQ with selectors and RabbitMQ with a
headers exchange are measured with nothing durable at all. All take turns; ratios are taken within a round.

About 10 minutes, most of it for connecting to the peers; with --quick (400 subscribers, one round) 2.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import ours
from benchmarks.machine import (
    Process,
    Window,
    free_port,
    load_client,
    raise_limits,
    resident_bytes,
    wait_until_quiet,
    workspace,
)
from benchmarks.peers import activemq, rabbit
from benchmarks.report import Asked, console_for, median, new_figure, options, save, show, tell

WHERE = "name = 'NY' AND key BETWEEN {key} AND {key}"
OURS = "Gapless"
OURS_NAMED = "Gapless, all durable"
ACTIVEMQ = "ActiveMQ, selectors"
RABBIT = "RabbitMQ, headers"
#: After so long without a further delivery, a run has failed.
STUCK_S = 30.0


@dataclass(slots=True)
class Figures:
    """What the rounds have shown of one system; a figure for each round."""

    durable: str
    #: Events in a second, until the last was delivered.
    whole_per_s: list[float] = field(default_factory=list)
    deliveries_per_s: list[float] = field(default_factory=list)
    connecting_s: list[float] = field(default_factory=list)
    subscribing_s: list[float] = field(default_factory=list)
    #: Cores of the server, the publisher and the subscribers.
    cores: list[list[float]] = field(default_factory=list)
    resident_mb: list[float] = field(default_factory=list)
    foreign_cores: list[float] = field(default_factory=list)


def run_ours(found: Figures, subscribers: int, seconds: float, *, named: bool) -> None:
    """One round of ours."""
    with workspace() as folder:
        port = free_port()
        address = f"gapless://127.0.0.1:{port}"
        name = ("--named", "bench") if named else ()
        with (
            ours.start_node(folder / "node", port) as node,
            load_client(
                "benchmarks.swarm",
                f"127.0.0.1:{port}",
                *("--connections", subscribers, "--where", WHERE, *name),
                log=folder / "swarm.log",
            ) as swarm,
        ):
            ready = swarm.line()
            found.connecting_s.append(ready["connecting_s"])
            found.subscribing_s.append(ready["subscribing_s"])

            def publisher(count: int) -> Process:
                return load_client(
                    "benchmarks.ours", "publish", address, "--count", count, log=folder / "pub.log"
                )

            # The first event of each publisher is for making its connection warm.
            pace(found, node, swarm, publisher, subscribers=subscribers, seconds=seconds, extra=1)
            found.resident_mb.append(resident_bytes(node.pid) / 2**20)
            swarm.say("stop")


def run_peer(
    found: Figures,
    subscribers: int,
    seconds: float,
    *,
    name: str,
    start: Callable[[Path, int], Process],
) -> None:
    """One round of a peer."""
    with workspace() as folder:
        port = free_port()
        with start(folder / "server", port) as server:
            began = time.monotonic()
            with load_client(
                "benchmarks.peers.filters",
                *(name, "subscribe", port, "--connections", subscribers),
                log=folder / "subscribe.log",
            ) as swarm:
                swarm.line()
                found.connecting_s.append(time.monotonic() - began)

                def publisher(count: int) -> Process:
                    arguments = (name, "publish", port, "--count", count)
                    return load_client("benchmarks.peers.filters", *arguments, log=folder / "publish.log")

                pace(found, server, swarm, publisher, subscribers=subscribers, seconds=seconds, extra=0)
                found.resident_mb.append(resident_bytes(server.pid) / 2**20)


def pace(
    found: Figures,
    server: Process,
    swarm: Process,
    publisher: Callable[[int], Process],
    *,
    subscribers: int,
    seconds: float,
    extra: int,
) -> None:
    """Find out roughly how fast it is, which warms it up, and then load it for some seconds."""
    count = ours.KEYS
    rate = 0.0
    for _ in range(4):
        rate, _ = load(server, swarm, publisher, count, subscribers=subscribers, extra=extra)
        if count / rate > seconds / 4:
            break
        count = max(count, int(rate * seconds / 2) // ours.KEYS * ours.KEYS)
    wait_until_quiet()
    count = max(ours.KEYS, int(rate * seconds) // ours.KEYS * ours.KEYS)
    rate, window = load(server, swarm, publisher, count, subscribers=subscribers, extra=extra)
    found.whole_per_s.append(rate)
    found.deliveries_per_s.append(rate * subscribers / ours.KEYS)
    found.cores.append(window.cores)
    found.foreign_cores.append(window.foreign_cores)


def load(
    server: Process,
    swarm: Process,
    publisher: Callable[[int], Process],
    count: int,
    *,
    subscribers: int,
    extra: int,
) -> tuple[float, Window]:
    """Publish so many events; gives the rate until everybody has what it wants. Raises RuntimeError."""
    before = _rows(swarm)["rows"]
    with publisher(count) as publishing:
        publishing.line()
        # Every key comes equally often, and each subscriber wants one. The extra event has key 0.
        wanted = before + count * subscribers // ours.KEYS + extra * (-(-subscribers // ours.KEYS))
        with Window(server.pid, publishing.pid, swarm.pid) as window:
            publishing.say("go")
            began = publishing.line()["began"]
            moved, seen = time.monotonic(), _rows(swarm)
            while seen["rows"] < wanted:
                time.sleep(0.02)
                now = _rows(swarm)
                if now["rows"] > seen["rows"]:
                    moved = time.monotonic()
                elif time.monotonic() - moved > STUCK_S:
                    raise RuntimeError(f"{now['rows']} of {wanted} deliveries, and no more come")
                seen = now
        publishing.say("end")
    return count / (seen["now"] - began), window


def _rows(swarm: Process) -> dict[str, Any]:
    swarm.say("rows")
    return swarm.line()


def ratio(mine: Figures, theirs: Figures) -> float:
    """The median of what each round gives."""
    pairs = zip(mine.whole_per_s, theirs.whole_per_s, strict=False)
    return median(one / other for one, other in pairs)


def show_figures(console: Console, found: dict[str, Figures], subscribers: int) -> None:
    """The table."""
    rows = []
    for name, each in found.items():
        cores = [median(run[at] for run in each.cores) for at in range(3)] if each.cores else []
        rows.append(
            [
                name,
                f"{median(each.whole_per_s):,.0f}",
                f"{median(each.deliveries_per_s):,.0f}",
                f"{median(each.connecting_s):.1f}",
                f"{median(each.subscribing_s):.1f}" if each.subscribing_s else "-",
                " ".join(f"{core:.2f}" for core in cores),
                f"{median(each.resident_mb):,.0f}",
                f"{median(each.foreign_cores):.2f}",
                each.durable,
            ]
        )
    columns: tuple[str, ...] = ("system", "events/s in", "deliveries/s", "connect s", "subscribe s")
    columns += ("cores: server, pub, subs", "server MB", "foreign", "on disk")
    show(console, f"{subscribers:,} subscribers, each wants 0.1%, 250 bytes", columns, rows)


def draw(found: dict[str, Figures], subscribers: int) -> None:
    """Bars."""
    figure = new_figure(width=8)
    axes = figure.subplots()
    names = [name for name, each in found.items() if each.whole_per_s][::-1]
    axes.barh(names, [median(found[name].whole_per_s) for name in names])
    axes.set(title=f"{subscribers:,} filters at 0.1% each", xlabel="events/s in", xscale="log")
    save(figure, "filters")


def main() -> None:
    """Measure in turns, print the table, draw the bars."""
    parser = options(__doc__)
    parser.add_argument("--subscribers", type=int, default=0, help="default 4000, with --quick 400")
    parser.add_argument("--runs", type=int, default=0, help="rounds (default 3, with --quick 1)")
    parser.add_argument("--seconds", type=float, default=8.0, help="about so long is each load")
    parser.add_argument("--only", default="", help="only systems whose names contain one of these, by commas")
    given = parser.parse_args()
    raise_limits()
    console = console_for(as_json=given.json)
    subscribers = given.subscribers or (400 if given.quick else 4_000)
    synced = "every event before its receipt"
    systems: dict[str, tuple[str, str, Callable[[Figures], None]]] = {
        OURS: ("python3", synced, lambda each: run_ours(each, subscribers, given.seconds, named=False)),
        OURS_NAMED: (
            "python3",
            f"{synced}; subscriptions and positions",
            lambda each: run_ours(each, subscribers, given.seconds, named=True),
        ),
        ACTIVEMQ: (
            "activemq",
            "nothing",
            lambda each: run_peer(each, subscribers, given.seconds, name="activemq", start=activemq.start),
        ),
        RABBIT: (
            "rabbitmq-server",
            "nothing",
            lambda each: run_peer(each, subscribers, given.seconds, name="rabbit", start=rabbit.start),
        ),
    }
    wanted = [part.strip().lower() for part in given.only.split(",") if part.strip()]
    listed = {
        name: system
        for name, system in systems.items()
        if shutil.which(system[0]) is not None
        and (not wanted or any(part in name.lower() for part in wanted))
    }
    found = {name: Figures(durable) for name, (_, durable, _) in listed.items()}
    runs = given.runs or (1 if given.quick else 3)
    for run in range(runs):
        for name, (_, _, measure) in listed.items():
            console.print(f"round {run + 1} of {runs}: {name} ...", style="dim")
            measure(found[name])
    show_figures(console, found, subscribers)
    draw(found, subscribers)
    asked: list[Asked] = []
    if OURS in found and ACTIVEMQ in found:
        asked.append(Asked("events/s in, times ActiveMQ", ratio(found[OURS], found[ACTIVEMQ]), 50))
    if OURS in found and OURS_NAMED in found:
        cost = 100 * (1 - ratio(found[OURS_NAMED], found[OURS]))
        asked.append(Asked("what making all durable costs", cost, 20, at_most=True, unit="%"))
    everything = {
        name: {key: getattr(each, key) for key in Figures.__slots__} for name, each in found.items()
    }
    tell(console, "filters", {"subscribers": subscribers, "systems": everything}, asked, as_json=given.json)


if __name__ == "__main__":
    main()
