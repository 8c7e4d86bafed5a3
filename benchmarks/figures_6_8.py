"""How do latency and nacks behave when a link or a broker fails? Figures 6 to 8 of the Gryphon paper.

    .venv/bin/python -m benchmarks.figures_6_8 [--only NAME,...] [--outage SECONDS] [--quick] [--json]

The paper's network (ten brokers in eight cells), each broker a process; four publishers with 25 events a
second each; a subscriber to everything at each of five edges. What is failed is stalled for 2.5 seconds
before, so that events are lost: a link takes what comes and forwards nothing, a router is frozen (SIGSTOP),
and the publishing broker goes on to log while nothing that it sends arrives. Then the link is cut, or the
broker killed with -9; after 10, 30 or 20 seconds it is back. Proxies before the brokers of interest read
along, which is how nacks are counted. The simulator runs the same experiments in virtual time: `gapless sim
--scenario`.

About 3 minutes; with --quick (outages of 4 seconds) 1.5.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.gates import Gate
from benchmarks.machine import Window, workspace
from benchmarks.report import OUT, Asked, console_for, options, percentile, show, tell
from gapless.client import connect
from gapless.client.connection import Client
from gapless.figures.failures import draw
from gapless.figures.measures import as_json, rows
from gapless.fleet import Fleet
from gapless.sim.paper import PAPER_PARAMETERS, Latency, Nack, PaperResult
from gapless.sim.topologies import COLUMNS, FIGURE3_PUBENDS, figure3
from gapless.wire.frames import Frame, Kind

EVENTS_PER_S = 25
#: When publishing starts, the stall begins and the failure comes, in seconds.
PUBLISHING_STARTS_S, STALL_S, FAIL_S = 2.0, 5.5, 8.0
OUTAGES_S = {"b1-s1-link": 10.0, "b1-crash": 30.0, "p1-crash": 20.0}
QUICK_OUTAGE_S = 4.0
#: How long everything goes on after the repair, and how long what is missing may then take.
AFTERMATH_S, PATIENCE_S = 6.0, 20.0
#: The links with a gate, as (who dials, who is dialled): those of s1, s2 and p1.
GATED = (
    *((router, edge) for router in ("b1", "b2") for edge in ("s1", "s2")),
    *((router, "p1") for router in ("b1", "b2", "b3", "b4")),
)
BODY = "x" * 60


def description() -> str:
    """The network of the paper as TOML."""
    network = figure3()
    cells = ", ".join(
        f"{cell} = {msgspec.json.encode(brokers).decode()}" for cell, brokers in network.cells.items()
    )
    links = msgspec.json.encode([f"{low}--{high}" for low, high in map(sorted, network.links)]).decode()
    columns = ", ".join(f'{name} = "{kind}"' for name, kind in COLUMNS.items())
    pubends = "\n".join(f'{name} = {{topic = "trades", broker = "p1"}}' for name in FIGURE3_PUBENDS)
    parameters = "\n".join(
        f"{key} = {msgspec.json.encode(value).decode()}" for key, value in PAPER_PARAMETERS.items()
    )
    edges = msgspec.json.encode(sorted(network.edges)).decode()
    return (
        f"cells = {{{cells}}}\nlinks = {links}\nedges = {edges}\ntopics.trades = {{{columns}}}\n"
        f"[pubends]\n{pubends}\n[parameters]\n{parameters}\n"
    )


@dataclass(slots=True)
class Stage:
    """One experiment while it runs, and what is written down of it."""

    fleet: Fleet
    gates: dict[tuple[str, str], Gate]
    began: float = 0.0
    nacks: dict[str, list[Nack]] = field(default_factory=dict)
    through_b1: set[str] = field(default_factory=set)
    sent_s: dict[int, float] = field(default_factory=dict)
    #: The numbers of the events that have a receipt, and by edge those that came, in order.
    accepted: set[int] = field(default_factory=set)
    latencies: dict[str, list[Latency]] = field(default_factory=dict)
    taken: dict[str, list[int]] = field(default_factory=dict)
    #: Cleared while the publishing broker is down.
    may_publish: asyncio.Event = field(default_factory=asyncio.Event)

    def now_s(self) -> float:
        """Seconds since the experiment began."""
        return time.monotonic() - self.began

    def observe(self, sender: str, receiver: str, frame: Frame) -> None:
        """A frame passes a gate."""
        if frame.kind is Kind.NACK:
            pubend, start, stop = msgspec.msgpack.decode(frame.head)[:3]
            nack = Nack(time_s=self.now_s(), to=receiver, pubend=pubend, start=start, stop=stop)
            self.nacks.setdefault(sender, []).append(nack)
        elif frame.kind is Kind.KNOWLEDGE and frame.parts and (sender, receiver) == ("p1", "b1"):
            is_before = self.began and self.now_s() < STALL_S
            if is_before:
                self.through_b1.add(msgspec.msgpack.decode(frame.head)[0])

    # What is failed and repaired.

    async def stall(self, name: str) -> None:
        """Let it lose events without anybody noticing."""
        if name == "b1-s1-link":
            self.gates["b1", "s1"].stall()
        elif name == "b1-crash":
            self.fleet.pause("b1")
        else:
            for gate in self.gates.values():
                if gate.dialled == "p1":
                    gate.stall()

    async def fail(self, name: str) -> None:
        """Let everybody notice."""
        if name == "b1-s1-link":
            self.gates["b1", "s1"].cut()
            return
        if name == "p1-crash":
            self.may_publish.clear()
        await self.fleet.kill("b1" if name == "b1-crash" else "p1")

    async def repair(self, name: str) -> None:
        """Let it be as before."""
        for gate in self.gates.values():
            gate.heal()
        if name != "b1-s1-link":
            await self.fleet.start("b1" if name == "b1-crash" else "p1")
        self.may_publish.set()

    # Who publishes and subscribes.

    async def publish(self, client: Client, pubend: str, offset: int, until_s: float) -> None:
        """One event each 40 ms to one pubend."""
        publisher = client.publisher("trades", pubend=pubend)
        count = len(FIGURE3_PUBENDS)
        publications = []
        due_s = PUBLISHING_STARTS_S + offset / count / EVENTS_PER_S
        number = 0
        while due_s < until_s:
            await asyncio.sleep(due_s - self.now_s())
            due_s += 1 / EVENTS_PER_S
            if not self.may_publish.is_set():
                continue
            row = number * count + offset
            number += 1
            self.sent_s[row] = self.now_s()
            event = {"id": row, "group": row % 10, "price": float(row % 100), "name": BODY}
            publications.append((row, publisher.publish(event)))
        for row, publication in publications:
            await publication
            self.accepted.add(row)

    async def take(self, edge: str, ready: asyncio.Barrier) -> None:
        """Write down what a subscriber to everything gets, for ever."""
        latencies = self.latencies.setdefault(edge, [])
        taken = self.taken.setdefault(edge, [])
        async with connect(self.fleet.address(edge)) as client, client.subscribe("trades") as trades:
            await ready.wait()
            async for trade in trades:
                now_s = self.now_s()
                sent_s = self.sent_s[trade["id"]]
                latencies.append(Latency(pubend=str(trade.pubend), sent_s=sent_s, latency_s=now_s - sent_s))
                taken.append(trade["id"])

    def missing(self) -> int:
        """Accepted events that some subscriber does not have."""
        return sum(len(self.accepted.difference(taken)) for taken in self.taken.values())

    def duplicated(self) -> int:
        """Events that some subscriber has again."""
        return sum(len(taken) - len(set(taken)) for taken in self.taken.values())


async def experiment(name: str, outage_s: float, folder: Path) -> tuple[PaperResult, float]:
    """Run one experiment; its result, and the cores that others took meanwhile."""
    async with AsyncExitStack() as stack:
        # The gates are there before the fleet, and hear of frames only when it runs.
        watching: list[Stage] = []

        def observe(sender: str, receiver: str, frame: Frame) -> None:
            if watching:
                watching[0].observe(sender, receiver, frame)

        gates = {ends: await stack.enter_async_context(Gate(*ends, observe)) for ends in GATED}
        seen_by: dict[str, dict[str, str]] = {}
        for (dialler, dialled), gate in gates.items():
            seen_by.setdefault(dialler, {})[dialled] = gate.address
        fleet = Fleet(description(), folder, seen_by=seen_by)
        for (_, dialled), gate in gates.items():
            gate.aim(fleet.addresses[dialled])
        await stack.enter_async_context(fleet)
        stage = Stage(fleet, gates)
        watching.append(stage)
        edges = sorted(str(edge) for edge in fleet.network.edges)
        ready = asyncio.Barrier(len(edges) + 1)
        client = await stack.enter_async_context(connect(fleet.address("p1")))
        takers = [asyncio.create_task(stage.take(edge, ready)) for edge in edges]
        for taker in takers:
            stack.callback(taker.cancel)
        async with asyncio.timeout(60):
            await ready.wait()
        with Window(*(fleet.pid(broker) for broker in fleet.names)) as window:
            failed_s, repaired_s = await play(stage, name, outage_s, client)
        return result_of(stage, name, failed_s, repaired_s), window.foreign_cores


async def play(stage: Stage, name: str, outage_s: float, client: Client) -> tuple[float, float]:
    """The load, and what goes wrong meanwhile; when the failure and the repair really came."""
    stage.began = time.monotonic()
    stage.may_publish.set()
    until_s = FAIL_S + outage_s + AFTERMATH_S
    publishing = [
        asyncio.create_task(stage.publish(client, pubend, at, until_s))
        for at, pubend in enumerate(FIGURE3_PUBENDS)
    ]
    times: list[float] = []
    for at_s, act in ((STALL_S, stage.stall), (FAIL_S, stage.fail), (FAIL_S + outage_s, stage.repair)):
        await asyncio.sleep(at_s - stage.now_s())
        times.append(stage.now_s())
        await act(name)
    await asyncio.gather(*publishing)
    end_s = stage.now_s() + PATIENCE_S
    while stage.missing() and stage.now_s() < end_s:  # noqa: ASYNC110  # counting is no event
        await asyncio.sleep(0.05)
    return round(times[1], 2), round(times[2], 2)


def result_of(stage: Stage, name: str, failed_s: float, repaired_s: float) -> PaperResult:
    """What the experiment showed, in the form in which the simulator tells it."""
    return PaperResult(
        name=name,
        violation=None,
        stalled_s=STALL_S,
        failed_s=failed_s,
        repaired_s=repaired_s,
        latencies=stage.latencies,
        nacks=stage.nacks,
        pubends_of_b1=sorted(stage.through_b1),
        published=len(stage.sent_s),
        lost=stage.missing(),
        duplicated=stage.duplicated(),
        trace=(),
    )


def recovery_s(result: PaperResult) -> float:
    """How long after the failure was there everything that had been sent before it, at s1 and s2."""
    arrived = [
        each.sent_s + each.latency_s - result.failed_s
        for edge in ("s1", "s2")
        for each in result.latencies[edge]
        if each.sent_s <= result.failed_s
    ]
    return max(0.0, max(arrived, default=0.0))


def quiet_ms(result: PaperResult) -> float:
    """The median latency before anything went wrong, over all edges."""
    ordered = sorted(
        each.latency_s
        for taken in result.latencies.values()
        for each in taken
        if each.sent_s < result.stalled_s
    )
    return 1e3 * percentile(ordered, 0.5)


def main() -> None:
    """Run the experiments, print their tables, draw their figures."""
    parser = options(__doc__)
    parser.add_argument("--only", default="", help=f"some of {', '.join(OUTAGES_S)}")
    parser.add_argument(
        "--outage", type=float, default=0.0, help="seconds (default 10, 30 and 20, as in the paper)"
    )
    given = parser.parse_args()
    console = console_for(as_json=given.json)
    names = [each.strip() for each in given.only.split(",") if each.strip()] or list(OUTAGES_S)
    asked: list[Asked] = []
    found: dict[str, Any] = {}
    OUT.mkdir(parents=True, exist_ok=True)
    for name in names:
        outage_s = given.outage or (QUICK_OUTAGE_S if given.quick else OUTAGES_S[name])
        console.print(f"{name}: {FAIL_S + outage_s + AFTERMATH_S:.0f} seconds ...", style="dim")
        with workspace() as folder:
            result, foreign = asyncio.run(experiment(name, outage_s, folder))
        draw(result, OUT / f"figures_6_8-{name}.png")
        table = [(row.what, row.measured, row.in_the_paper) for row in rows(result)]
        table.append(("median latency before", f"{quiet_ms(result):.1f} ms", ""))
        if name != "p1-crash":
            table.append(("all there after the failure", f"{recovery_s(result) * 1e3:.0f} ms", ""))
            asked.append(
                Asked(
                    f"{name}: all there so long after the failure",
                    recovery_s(result),
                    1,
                    at_most=True,
                    unit="s",
                )
            )
        table.append(("foreign CPU", f"{foreign:.2f} cores", ""))
        show(console, name, ("", "measured", "in the paper"), table)
        wrong = result.lost + result.duplicated
        asked.append(Asked(f"{name}: lost or duplicated", wrong, 0, at_most=True))
        found[name] = {**as_json(result), "foreign_cores": foreign, "recovery_s": recovery_s(result)}
    tell(console, "figures_6_8", found, asked, as_json=given.json)


if __name__ == "__main__":
    main()
