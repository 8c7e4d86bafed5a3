"""What does guaranteed delivery cost, from 1,000 to 16,000 subscribers? Figures 4 and 5 of the Gryphon paper.

    .venv/bin/python -m benchmarks.figures_4_5 [--subscribers N,N,...] [--runs N] [--quick] [--json]

Two nodes, each a process: the repository, where 2,000 events of 250 bytes a second are published one by one,
and an edge with all subscribers. Each has a connection of its own and gets 2 events a second. A few
subscribers at the repository itself tell the *local* latency. The same load runs with guaranteed
subscriptions and with best-effort ones, in turns; the CPU of both nodes is what the kernel counts for their
processes, and latency is from the call of `publish` to the read of the subscriber's socket. The subscribers
are played by one lean process (`swarm.py`); on a small machine it competes with the nodes, which makes
latencies worse than they were elsewhere.

About 12 minutes; with --quick (1,000 and 2,000 subscribers, one round) 2.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks import ours
from benchmarks.machine import Process, Window, load_client, raise_limits, wait_until_quiet, workspace
from benchmarks.report import Asked, console_for, median, new_figure, options, save, show, tell
from gapless.fleet import Fleet

NETWORK = f"""
cells = {{p = ["p1"], s = ["s1"]}}
links = ["p--s"]
edges = ["p1", "s1"]
topics.{ours.TOPIC} = {ours.columns_toml()}
pubends.bench-1 = {{topic = "{ours.TOPIC}", broker = "p1"}}
"""
RATE = 2_000
MODES = ("guaranteed", "best-effort")
LOCAL_SUBSCRIBERS = 5
#: The load runs for so long before anything is counted.
WARM_S = 4.0
#: The most that guaranteed delivery may cost: part of a core more at the edge.
OVERHEAD_MAX = 4.0
LATENCY_P99_MAX_MS = 250


@dataclass(frozen=True, slots=True)
class Run:
    """One load with one mode."""

    subscribers: int
    mode: str
    #: Percent of one core.
    edge_cpu: float
    repository_cpu: float
    p50_ms: float
    p99_ms: float
    local_p50_ms: float
    local_p99_ms: float
    #: Rows in a second that came, and that should have.
    rows_per_s: float
    wanted_per_s: float
    connecting_s: float
    subscribing_s: float
    edge_mb: float
    swarm_cpu: float
    foreign_cpu: float

    @property
    def held(self) -> bool:
        """Whether all that was published in time was delivered in time."""
        return self.rows_per_s > 0.97 * self.wanted_per_s


def swarm(address: str, count: int, mode: str, log: Path) -> Process:
    """So many subscribers at a node."""
    return load_client(
        "benchmarks.swarm", address, "--connections", count, "--mode", mode, "--where", "key = {key}", log=log
    )


async def measure(folder: Path, subscribers: int, mode: str, seconds: float) -> Run:
    """One load with one mode, in a network of its own."""
    async with Fleet(NETWORK, folder) as fleet:
        local = swarm(fleet.addresses["p1"], LOCAL_SUBSCRIBERS, mode, folder / "local.log")
        remote = swarm(fleet.addresses["s1"], subscribers, mode, folder / "remote.log")
        count = int(RATE * (WARM_S + seconds + 2))
        publisher = load_client(
            "benchmarks.ours",
            "publish",
            fleet.address("p1"),
            "--count",
            count,
            "--rate",
            RATE,
            log=folder / "publisher.log",
        )
        with local, remote, publisher:
            for each in (local, publisher):
                await asyncio.to_thread(each.line)
            ready = await asyncio.to_thread(remote.line)
            await asyncio.to_thread(wait_until_quiet)
            publisher.say("go")
            await asyncio.sleep(WARM_S)
            for each in (local, remote):
                each.say("begin")
                each.line()
            with Window(fleet.pid("s1"), fleet.pid("p1"), remote.pid, publisher.pid, local.pid) as window:
                await asyncio.sleep(seconds)
            for each in (local, remote):
                each.say("end")
            near, far = local.line(), remote.line()
            edge_mb = fleet.rss_bytes("s1") / 2**20
            for each in (local, remote):
                each.say("stop")
    edge, repository, swarming, _, _ = window.cores
    return Run(
        subscribers=subscribers,
        mode=mode,
        edge_cpu=100 * edge,
        repository_cpu=100 * repository,
        p50_ms=far["p50_ms"],
        p99_ms=far["p99_ms"],
        local_p50_ms=near["p50_ms"],
        local_p99_ms=near["p99_ms"],
        rows_per_s=far["rows"] / window.wall_s,
        wanted_per_s=RATE * subscribers / ours.KEYS,
        connecting_s=ready["connecting_s"],
        subscribing_s=ready["subscribing_s"],
        edge_mb=edge_mb,
        swarm_cpu=100 * swarming,
        foreign_cpu=100 * window.foreign_cores,
    )


def of(runs: list[Run], subscribers: int, mode: str, figure: str) -> list[float]:
    """One figure of all rounds."""
    return [getattr(run, figure) for run in runs if (run.subscribers, run.mode) == (subscribers, mode)]


def differences(runs: list[Run], subscribers: int) -> list[float]:
    """How much more CPU the edge took for guaranteed delivery, in each round."""
    pairs = zip(*(of(runs, subscribers, mode, "edge_cpu") for mode in MODES), strict=False)
    return [guaranteed - best for guaranteed, best in pairs]


def show_runs(console: Console, runs: list[Run], counts: list[int]) -> None:
    """The table of medians."""
    rows = []
    for count in counts:
        for mode in MODES:

            def told(figure: str, form: str = ".1f", count: int = count, mode: str = mode) -> str:
                return format(median(of(runs, count, mode, figure)), form)

            rows.append(
                [
                    f"{count:,} {mode}",
                    told("edge_cpu"),
                    f"{median(differences(runs, count)):+.1f}" if mode == "guaranteed" else "",
                    told("repository_cpu"),
                    f"{told('p50_ms')} / {told('p99_ms', '.0f')}",
                    f"{told('local_p50_ms')} / {told('local_p99_ms', '.0f')}",
                    f"{told('rows_per_s', ',.0f')} of {told('wanted_per_s', ',.0f')}",
                    f"{told('connecting_s')} + {told('subscribing_s')}",
                    told("edge_mb", ".0f"),
                    told("swarm_cpu", ".0f"),
                    told("foreign_cpu", ".0f"),
                ]
            )
    columns: tuple[str, ...] = (
        "subscribers",
        "edge CPU %",
        "more",
        "repository %",
        "p50/p99 ms",
        "local p50/p99 ms",
    )
    columns += ("deliveries/s", "connect + subscribe s", "edge MB", "swarm %", "foreign %")
    show(console, f"{RATE:,} events/s in, 2 events/s to each; percent of one core", columns, rows)


def draw(runs: list[Run], counts: list[int]) -> None:
    """Figures 4 and 5."""
    figure = new_figure(2)
    cpu, latency = figure.subplots(1, 2)
    styles = {"guaranteed": "-", "best-effort": "--"}
    for mode, style in styles.items():
        for name, label, colour in (
            ("edge_cpu", "edge", "tab:blue"),
            ("repository_cpu", "repository", "tab:green"),
        ):
            values = [median(of(runs, count, mode, name)) for count in counts]
            cpu.plot(counts, values, style, marker="o", color=colour, label=f"{label}, {mode}")
        for name, label, colour in (
            ("p50_ms", "remote, median", "tab:blue"),
            ("p99_ms", "remote, p99", "tab:cyan"),
            ("local_p50_ms", "local, median", "tab:green"),
        ):
            values = [median(of(runs, count, mode, name)) for count in counts]
            latency.plot(counts, values, style, marker="o", color=colour, label=f"{label}, {mode}")
    cpu.set(title="CPU (as Figure 4)", xlabel="subscribers", ylabel="percent of one core", ylim=(0, None))
    latency.set(title="latency (as Figure 5)", xlabel="subscribers", ylabel="ms", yscale="log")
    for axes in (cpu, latency):
        axes.legend(fontsize=8)
        axes.grid(visible=True, alpha=0.3)
    save(figure, "figures_4_5")


def figures(runs: list[Run], counts: list[int]) -> list[Asked]:
    """What is asked of the full run, as far as it was run."""
    most = max(counts)
    more = {count: median(differences(runs, count)) for count in counts}
    asked = [
        Asked(
            "guaranteed costs at the edge, the most of all rows",
            max(more.values()),
            OVERHEAD_MAX,
            at_most=True,
            unit="% of a core",
        )
    ]
    if most >= 4 * min(counts):
        # A line through all rounds: how much the difference grows per 15,000 more subscribers.
        points = [(count, each) for count in counts for each in differences(runs, count)]
        slope = float(np.polyfit([x for x, _ in points], [y for _, y in points], 1)[0]) * 15_000
        asked.append(
            Asked(
                "how much that grows from 1,000 to 16,000",
                slope,
                OVERHEAD_MAX,
                at_most=True,
                unit="% of a core",
            )
        )
    held = min(run.rows_per_s / run.wanted_per_s for run in runs if run.subscribers == most)
    asked.append(Asked(f"deliveries of those wanted at {most:,} connections", 100 * held, 97, unit="%"))
    asked.append(
        Asked(
            f"p99 at {most:,} connections, guaranteed",
            median(of(runs, most, "guaranteed", "p99_ms")),
            LATENCY_P99_MAX_MS,
            at_most=True,
            unit="ms",
        )
    )
    return asked


def main() -> None:
    """Measure in turns, print the table, draw both figures."""
    parser = options(__doc__)
    parser.add_argument("--subscribers", default="", help="default 1000,2000,4000,8000,16000")
    parser.add_argument("--runs", type=int, default=0, help="rounds (default 3, with --quick 1)")
    parser.add_argument("--seconds", type=float, default=10.0, help="so long is counted")
    given = parser.parse_args()
    raise_limits()
    console = console_for(as_json=given.json)
    listed = given.subscribers or ("1000,2000" if given.quick else "1000,2000,4000,8000,16000")
    counts = [int(each) for each in listed.split(",")]
    runs: list[Run] = []
    rounds = given.runs or (1 if given.quick else 3)
    for number in range(rounds):
        for count in counts:
            # Whoever is second has a disk and caches that are warm: it is not always the same.
            for mode in MODES if number % 2 == 0 else MODES[::-1]:
                console.print(
                    f"round {number + 1} of {rounds}: {count:,} subscribers, {mode} ...", style="dim"
                )
                with workspace() as folder:
                    runs.append(asyncio.run(measure(folder, count, mode, given.seconds)))
    show_runs(console, runs, counts)
    draw(runs, counts)
    found: dict[str, Any] = {"runs": [asdict(run) for run in runs]}
    tell(console, "figures_4_5", found, figures(runs, counts), as_json=given.json)


if __name__ == "__main__":
    main()
