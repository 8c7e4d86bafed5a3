"""How many durable events a second, and how soon? Beside NATS JetStream, Redis, RabbitMQ and ActiveMQ.

    .venv/bin/python -m benchmarks.throughput [--runs N] [--only NAME,...] [--measure KIND,...] [--quick]
        [--against COMMIT] [--json]

One publisher, one subscriber and the server are processes of their own, on one machine; events are 250
bytes. Three things are measured: the rate at which events are published, confirmed and delivered; the
latency from the call of `publish` to the delivery, at 2,000 single events a second; and the deliveries a
second when 100 connections get everything. All systems take turns within every round, because machines are
noisy; the median of the rounds is told, and every ratio is taken within its round. For each system the table
says what it has on disk when it confirms, and how many calls of fsync and its kind strace saw for 5,000
events. A system that is not installed is left out. With --against, Gapless as it was at an earlier commit
takes its turn as well, and the ratios of the two are told.

About 15 minutes; with --quick, without RabbitMQ and ActiveMQ, 2.
"""

from __future__ import annotations

import shutil
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import ours
from benchmarks.machine import (
    Process,
    SyncCount,
    Window,
    checked_out,
    free_port,
    load_client,
    wait_until_quiet,
    workspace,
)
from benchmarks.peers import activemq, nats, rabbit, redis
from benchmarks.report import Asked, console_for, median, new_figure, options, save, show, tell

#: What can be measured.
KINDS = ("rate", "latency", "fan-out")
RATE = 2_000
#: How many events are published while the calls that make them durable are counted.
SYNCED_EVENTS = 5_000
FAN_OUT = 100


@dataclass(frozen=True, slots=True)
class System:
    """Something that can be measured."""

    name: str
    #: What is on disk when it confirms.
    synced: str
    program: str
    module: str
    start: Callable[[Path, int], Process]
    #: Events of a run for throughput, for latency and for the fan-out; 0 when it is not measured.
    flat_out: int
    paced: int = 0
    fan_out: int = 0
    #: Further arguments of the publisher and of the subscriber.
    publish: tuple[object, ...] = ()
    subscribe: tuple[object, ...] = ()
    fan_subscribe: tuple[object, ...] = ()
    fan_publish: tuple[object, ...] = ()
    #: What its load clients find in their environment beside ours.
    environment: dict[str, str] | None = None


FSYNC = "all of it: one fdatasync for what came together"
CACHE = "nothing: it confirms from the page cache"
OURS = "Gapless, single publish"
OURS_BATCHES = "Gapless, publish_batch"
JETSTREAM = "NATS JetStream, file"
REDIS = "Redis Streams, always"
#: Against an earlier commit nothing may get worse by more than this.
WORSE_MAX = 0.05


def systems(*, quick: bool) -> list[System]:
    """Everything that is measured, ours first."""
    few = 4 if quick else 1
    found = [
        System(
            OURS,
            FSYNC,
            "python3",
            "benchmarks.ours",
            ours.start_node,
            600_000 // few,
            paced=20_000 // few,
            fan_out=40_000 // few,
        ),
        System(
            OURS_BATCHES,
            FSYNC,
            "python3",
            "benchmarks.ours",
            ours.start_node,
            2_000_000 // few,
            publish=("--batch", 5_000),
        ),
        System(
            JETSTREAM,
            CACHE,
            "nats-server",
            "benchmarks.peers.nats",
            nats.start,
            300_000 // few,
            paced=20_000 // few,
            fan_out=20_000 // few,
            fan_subscribe=("--kind", "none"),
            fan_publish=("--window", 1_000),
        ),
        System(
            REDIS,
            FSYNC,
            "redis-server",
            "benchmarks.peers.redis",
            lambda folder, port: redis.start(folder, port, "always"),
            200_000 // few,
            paced=20_000 // few,
        ),
        System(
            "Redis Streams, everysec",
            "nothing: it syncs once a second",
            "redis-server",
            "benchmarks.peers.redis",
            lambda folder, port: redis.start(folder, port, "everysec"),
            300_000 // few,
            paced=20_000 // few,
        ),
    ]
    return found if quick else [*found, *slow_systems()]


def earlier(listed: Sequence[System], commit: str, environment: dict[str, str]) -> list[System]:
    """Gapless as it was at a commit: each of its systems, run with that package."""

    def start(folder: Path, port: int) -> Process:
        return ours.start_node(folder, port, environment=environment)

    return [
        replace(system, name=earlier_name(system.name, commit), start=start, environment=environment)
        for system in listed
        if system.name in (OURS, OURS_BATCHES)
    ]


def earlier_name(name: str, commit: str) -> str:
    """What a system of ours is called as it was at a commit."""
    return f"{name}, at {commit}"


def slow_systems() -> list[System]:
    """Those that take minutes to start, or to take a load."""
    rabbits = [
        System(
            f"RabbitMQ, {kind} queue",
            synced,
            "rabbitmq-server",
            "benchmarks.peers.rabbit",
            rabbit.start,
            100_000,
            paced=20_000,
            subscribe=("--kind", kind),
        )
        for kind, synced in (("stream", CACHE), ("quorum", FSYNC))
    ]
    activemq_topic = System(
        "ActiveMQ, durable topic",
        "all of it: one fsync for each message",
        "activemq",
        "benchmarks.peers.activemq",
        activemq.start,
        4_000,
    )
    return [*rabbits, activemq_topic]


@dataclass(slots=True)
class Figures:
    """What the rounds have shown of one system; a figure for each round."""

    confirmed_per_s: list[float] = field(default_factory=list)
    #: Until everything was confirmed and delivered.
    whole_per_s: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    fan_out_per_s: list[float] = field(default_factory=list)
    #: Cores of the server, the publisher and the subscriber in the run for throughput.
    cores: list[list[float]] = field(default_factory=list)
    #: Calls of fsync and its kind while `SYNCED_EVENTS` were confirmed, counted once.
    syncs: int | None = None
    foreign_cores: list[float] = field(default_factory=list)


@contextmanager
def loaded(
    system: System, count: int, publish: tuple[object, ...], subscribe: tuple[object, ...]
) -> Iterator[tuple[Process, Process, Process]]:
    """A fresh server, a publisher and a subscriber that are ready."""
    with workspace() as folder:
        port = free_port()
        target: object = f"gapless://127.0.0.1:{port}" if system.module == "benchmarks.ours" else port
        with system.start(folder / "server", port) as server:
            arguments = (target, "--count", count)
            with load_client(
                system.module,
                "subscribe",
                *arguments,
                *subscribe,
                log=folder / "subscribe.log",
                environment=system.environment,
            ) as subscriber:
                subscriber.line()
                with load_client(
                    system.module,
                    "publish",
                    *arguments,
                    *publish,
                    log=folder / "publish.log",
                    environment=system.environment,
                ) as publisher:
                    publisher.line()
                    wait_until_quiet()
                    yield server, publisher, subscriber


def one_run(
    system: System, count: int, publish: tuple[object, ...], subscribe: tuple[object, ...]
) -> tuple[dict[str, Any], dict[str, Any], Window]:
    """Publish so many events; what the publisher and the subscriber say at the end."""
    with (
        loaded(system, count, publish, subscribe) as (server, publisher, subscriber),
        Window(server.pid, publisher.pid, subscriber.pid) as window,
    ):
        publisher.say("go")
        published, taken = publisher.line(), subscriber.line()
    return published, taken, window


def measure(system: System, found: Figures, kinds: Sequence[str]) -> None:
    """One round of one system, of the kinds that are wanted."""
    if "rate" in kinds:
        measure_rate(system, found)
    if system.paced and "latency" in kinds:
        measure_latency(system, found)
    if system.fan_out and "fan-out" in kinds:
        measure_fan_out(system, found)


def measure_rate(system: System, found: Figures) -> None:
    """Publish flat out until everything is confirmed and delivered."""
    count = system.flat_out
    published, taken, window = one_run(system, count, system.publish, system.subscribe)
    began = published["began"]
    found.confirmed_per_s.append(count / (published["ended"] - began))
    found.whole_per_s.append(count / (max(published["ended"], taken["ended"]) - began))
    found.cores.append(window.cores)
    found.foreign_cores.append(window.foreign_cores)


def measure_latency(system: System, found: Figures) -> None:
    """Publish single events at a pace that is no load."""
    pace = ("--rate", RATE)
    subscribe = (*system.subscribe, *(("--events",) if system.module == "benchmarks.ours" else pace))
    _, taken, window = one_run(system, system.paced, pace, subscribe)
    found.p50_ms.append(taken["p50_ms"])
    found.p99_ms.append(taken["p99_ms"])
    found.foreign_cores.append(window.foreign_cores)


def measure_fan_out(system: System, found: Figures) -> None:
    """Publish flat out to many connections."""
    subscribe = (*system.fan_subscribe, "--subscriptions", FAN_OUT)
    published, taken, window = one_run(system, system.fan_out, system.fan_publish, subscribe)
    found.fan_out_per_s.append(taken["taken"] / (taken["ended"] - published["began"]))
    found.foreign_cores.append(window.foreign_cores)


def count_syncs(system: System, found: Figures) -> None:
    """See what the server really does before it confirms: count its calls of fsync and the like."""
    with loaded(system, SYNCED_EVENTS, system.publish, system.subscribe) as (server, publisher, subscriber):
        with workspace() as folder, SyncCount(server.pid, folder / "strace.txt") as counted:
            publisher.say("go")
            publisher.line()
        found.syncs = counted.calls
        subscriber.line()


def ratio(ours_: list[float], theirs: list[float]) -> float:
    """The median of what each round gives."""
    return median(mine / other for mine, other in zip(ours_, theirs, strict=False) if other)


def figures(found: dict[str, Figures]) -> list[Asked]:
    """What is asked, as far as the systems were there."""
    asked: list[Asked] = []
    single, batches = found.get(OURS), found.get(OURS_BATCHES)
    jetstream, synced = found.get(JETSTREAM), found.get(REDIS)
    if single and jetstream and single.whole_per_s:
        asked.append(
            Asked("single publish, times JetStream", ratio(single.whole_per_s, jetstream.whole_per_s), 3)
        )
    if single and synced and single.whole_per_s:
        asked.append(
            Asked("single publish, times Redis always", ratio(single.whole_per_s, synced.whole_per_s), 4)
        )
    if batches and jetstream and batches.whole_per_s:
        asked.append(
            Asked("publish_batch, times JetStream", ratio(batches.whole_per_s, jetstream.whole_per_s), 10)
        )
    if single and synced and single.p50_ms:
        asked.append(
            Asked(
                "p50 of single publish, times that of Redis always",
                ratio(single.p50_ms, synced.p50_ms),
                1,
                True,
            )
        )
    if single and single.p99_ms:
        asked.append(Asked("p99 of single publish at 2,000/s", median(single.p99_ms), 10, True, "ms"))
    if single and jetstream and single.fan_out_per_s:
        asked.append(
            Asked(
                "fan-out to 100, times JetStream without acks",
                ratio(single.fan_out_per_s, jetstream.fan_out_per_s),
                2,
            )
        )
    return asked


def compared(found: dict[str, Figures], commit: str) -> list[Asked]:
    """How Gapless does beside Gapless as it was at a commit, round by round."""
    asked: list[Asked] = []
    for name in (OURS, OURS_BATCHES):
        now, then = found.get(name), found.get(earlier_name(name, commit))
        if now is None or then is None:
            continue
        for what, key, at_most in (
            ("confirmed and delivered/s", "whole_per_s", False),
            ("p50", "p50_ms", True),
            ("fan-out", "fan_out_per_s", False),
        ):
            if getattr(now, key):
                times = ratio(getattr(now, key), getattr(then, key))
                bound = 1 + WORSE_MAX if at_most else 1 - WORSE_MAX
                asked.append(Asked(f"{name}: {what}, times that at {commit}", times, bound, at_most))
    return asked


def show_figures(console: Console, found: dict[str, Figures], listed: list[System]) -> None:
    """The table."""
    rows = []
    for system in listed:
        each = found.get(system.name)
        if each is None or not each.foreign_cores:
            continue
        cores = [median(run[at] for run in each.cores) for at in range(3)]
        latency = f"{median(each.p50_ms):.2f} / {median(each.p99_ms):.1f}" if each.p50_ms else "-"
        rows.append(
            [
                system.name,
                f"{median(each.confirmed_per_s):,.0f}",
                f"{median(each.whole_per_s):,.0f}",
                latency,
                f"{median(each.fan_out_per_s):,.0f}" if each.fan_out_per_s else "-",
                " ".join(f"{core:.2f}" for core in cores),
                f"{median(each.foreign_cores):.2f}",
                "-" if each.syncs is None else f"{each.syncs:,}",
                system.synced,
            ]
        )
    columns = ("system", "confirmed/s", "and delivered/s", f"p50/p99 ms at {RATE:,}/s")
    show(
        console,
        "durable publish to one subscriber, 250 bytes",
        (
            *columns,
            *(f"to {FAN_OUT}: deliveries/s", "cores: server, pub, sub", "foreign"),
            *(f"syncs for {SYNCED_EVENTS:,}", "on disk when it confirms"),
        ),
        rows,
    )


def draw(found: dict[str, Figures]) -> None:
    """Bars: rate, latency and fan-out."""
    figure = new_figure(3)
    names = [name for name, each in found.items() if each.foreign_cores][::-1]
    rate, latency, fan_out = figure.subplots(1, 3)
    colours = ["tab:green" if name.startswith("Gapless") else "tab:gray" for name in names]
    rate.barh(names, [median(found[name].whole_per_s) for name in names], color=colours)
    rate.set(title="confirmed and delivered", xlabel="events/s", xscale="log")
    timed = [name for name in names if found[name].p50_ms]
    places = range(len(timed))
    latency.barh(
        [at + 0.2 for at in places], [median(found[name].p50_ms) for name in timed], 0.4, label="p50"
    )
    latency.barh(
        [at - 0.2 for at in places], [median(found[name].p99_ms) for name in timed], 0.4, label="p99"
    )
    latency.set(title=f"latency at {RATE:,} events/s", xlabel="ms", xscale="log")
    latency.set_yticks(list(places), timed)
    latency.legend()
    fanned = [name for name in names if found[name].fan_out_per_s]
    fan_out.barh(fanned, [median(found[name].fan_out_per_s) for name in fanned])
    fan_out.set(title=f"everything to {FAN_OUT} connections", xlabel="deliveries/s")
    save(figure, "throughput")


def main() -> None:
    """Measure everything in turns, print the table, draw the bars."""
    parser = options(__doc__)
    parser.add_argument("--runs", type=int, default=0, help="rounds (default 5, with --quick 1)")
    parser.add_argument("--only", default="", help="only systems whose names contain one of these, by commas")
    parser.add_argument("--measure", default=",".join(KINDS), help=f"which of {', '.join(KINDS)}, by commas")
    parser.add_argument("--against", metavar="COMMIT", help="measure Gapless as it was at a commit as well")
    given = parser.parse_args()
    with checked_out(given.against) if given.against else nullcontext({}) as environment:
        run(given, environment)


def run(given: Namespace, environment: dict[str, str]) -> None:
    """As `main`; `environment` is where an earlier Gapless is, if one is wanted."""
    console = console_for(as_json=given.json)
    kinds = [each.strip() for each in given.measure.split(",")]
    wanted = [part.strip().lower() for part in given.only.split(",") if part.strip()]
    listed = [
        system
        for system in systems(quick=given.quick)
        if not wanted or any(part in system.name.lower() for part in wanted)
    ]
    if given.against:
        listed += earlier(listed, given.against, environment)
    for system in [each for each in listed if shutil.which(each.program) is None]:
        console.print(f"{system.name} is left out: there is no {system.program}", style="yellow")
        listed.remove(system)
    found = {system.name: Figures() for system in listed}
    if shutil.which("strace") is not None and not given.quick:
        for system in listed:
            console.print(f"what {system.name} syncs ...", style="dim")
            count_syncs(system, found[system.name])
    runs = given.runs or (1 if given.quick else 5)
    for at in range(runs):
        # Whoever comes first in a round may find the machine in another state: turn the order around.
        for system in listed if at % 2 == 0 else reversed(listed):
            console.print(f"round {at + 1} of {runs}: {system.name} ...", style="dim")
            measure(system, found[system.name], kinds)
    show_figures(console, found, listed)
    draw(found)
    everything = {
        name: {key: getattr(each, key) for key in Figures.__slots__} | {"synced": system.synced}
        for system in listed
        for name, each in [(system.name, found[system.name])]
    }
    asked = [*figures(found), *(compared(found, given.against) if given.against else ())]
    tell(console, "throughput", {"systems": everything}, asked, as_json=given.json)


if __name__ == "__main__":
    main()
