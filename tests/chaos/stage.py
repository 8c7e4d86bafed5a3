"""What is a chaos run played on? Real brokers, gates on every cable, and client programs, all on one machine.

```text
   publishers                    b1                     readers-1
       |    \\                 /  |  \\                 /  |
      p1     p2  ===  gates ===  |  === gates ===  s1    s2   (every client has a gate to every broker)
   (small disk)               \\  |  /                 \\  |
                                 b2                     readers-2, steady
```

Network namespaces with netem would do the same to packets; the gates do it to connections, which is what the
programs can tell apart, and they need no rights and no kernel module.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from gapless.fleet import Fleet
from gapless.sim.conditions import Everything
from tests.chaos.clients import PublisherSpec, Spec, SubscriberSpec
from tests.chaos.disk import SmallDisk
from tests.chaos.history import Recorder
from tests.chaos.proxy import Gate
from tests.chaos.wishes import TOPICS, Pattern, encode, some_condition

NETWORK = f"""
cells = {{p = ["p1"], q = ["p2"], b = ["b1", "b2"], s = ["s1"], t = ["s2"]}}
links = ["p--b", "q--b", "b--s", "b--t"]
edges = ["s1", "s2"]
pubends.trades-1 = {{topic = "trades", broker = "p1"}}
pubends.trades-2 = {{topic = "trades", broker = "p2"}}
pubends.news-1 = {{topic = "news", broker = "p1"}}
{TOPICS}
"""
REPOSITORIES, ROUTERS, EDGES = ("p1", "p2"), ("b1", "b2"), ("s1", "s2")
#: The repository whose disk is small.
SMALL = "p1"
#: Client programs, and those of them that are killed. The one that is not has the filters that change.
CLIENTS = ("publishers", "readers-1", "readers-2", "steady")
KILLED = ("publishers", "readers-1", "readers-2")
EVENTS_PER_S = 25.0
#: A program that has not begun after so long never will.
CLIENT_SECONDS_MAX = 90.0


class ClientProcess:
    """One client program, which may be killed and started again."""

    def __init__(self, spec: Spec, folder: Path) -> None:
        self.spec = spec
        self._file = folder / f"{spec.name}.json"
        self._log = folder / f"{spec.name}.log"
        self._process: asyncio.subprocess.Process | None = None
        #: The commands that must be said again to a new life.
        self._finishing = False
        spec.write(self._file)

    async def start(self) -> None:
        """Start it, and wait until everything in it runs."""
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "tests.chaos.clients", str(self._file)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), CLIENT_SECONDS_MAX)
        assert line, f"client {self.spec.name} did not start: see {self._log}"
        if self._finishing:
            self.tell({"finish": True})

    def tell(self, command: dict[str, Any]) -> None:
        """Give it a command."""
        if "finish" in command:
            self._finishing = True
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it runs."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def kill(self) -> None:
        """Kill it; it is gone when this returns."""
        process, self._process = self._process, None
        if process is not None:
            for number in (signal.SIGKILL, signal.SIGCONT):
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(number)
            await process.communicate()

    @property
    def runs(self) -> bool:
        """Whether it was started and not killed by us."""
        return self._process is not None


class Stage:
    """Everything of one run that can be broken."""

    def __init__(self, fleet: Fleet, folder: Path, links: dict[str, Gate], doors: dict[str, Gate]) -> None:
        self.fleet = fleet
        self.folder = folder
        #: The gates between brokers, and those between clients and brokers.
        self.links = links
        self.doors = doors
        self.clients: dict[str, ClientProcess] = {}
        self.disk: SmallDisk | None = None
        self.recorder = Recorder(folder / "history" / "conductor.jsonl")
        #: Which client has which subscription.
        self.home: dict[str, str] = {}
        #: Brokers that we hold down or frozen at the moment.
        self.down: set[str] = set()

    @staticmethod
    @asynccontextmanager
    async def set_up(seed: int, folder: Path) -> AsyncIterator[Stage]:
        """Brokers and clients that run, and in the end do not."""
        (folder / "history").mkdir(parents=True)
        disk = SmallDisk(folder / SMALL)
        is_mounted = disk.mount()
        async with AsyncExitStack() as stack:
            links, seen_by = await _links(stack)
            fleet = Fleet(NETWORK, folder, seen_by=seen_by, options=("--verbose",))
            for name, gate in links.items():
                gate.aim(fleet.addresses[name.split("--")[1]])
            doors = {}
            for client in CLIENTS:
                for broker in REPOSITORIES if client == "publishers" else EDGES:
                    gate = await stack.enter_async_context(Gate(f"{client}--{broker}"))
                    gate.aim(fleet.addresses[broker])
                    doors[gate.name] = gate
            await stack.enter_async_context(fleet)
            stage = Stage(fleet, folder, links, doors)
            stage.disk = disk if is_mounted else None
            stack.callback(stage.recorder.close)
            for spec in _specs(seed, folder / "history", doors):
                stage.clients[spec.name] = ClientProcess(spec, folder)
                stage.home.update({each.name: spec.name for each in spec.subscribers})
                stack.push_async_callback(stage.clients[spec.name].kill)
            readers = [client for name, client in stage.clients.items() if name != "publishers"]
            await asyncio.gather(*(client.start() for client in readers))
            await stage.clients["publishers"].start()
            yield stage

    async def up(self, broker: str, patience_s: float = 60.0) -> None:
        """Start a broker that we killed, again and again while its disk is full."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            try:
                await self.fleet.start(broker)
            except Exception:
                if loop.time() - began > patience_s:
                    raise
                await asyncio.sleep(0.3)
            else:
                self.down.discard(broker)
                return

    def died(self, broker: str) -> bool:
        """Whether a broker that should run has gone by itself."""
        if broker in self.down or not self.fleet.runs(broker):
            return False
        try:
            stat = Path(f"/proc/{self.fleet.pid(broker)}/stat").read_text(encoding="ascii")
        except OSError:
            return True
        return stat.rpartition(")")[2].split()[0] in "ZX"

    async def heal(self) -> None:
        """Mend everything that is broken."""
        if self.disk is not None:
            self.disk.free()
        for gate in (*self.links.values(), *self.doors.values()):
            await gate.heal()
        for broker in self.fleet.names:
            if self.fleet.runs(broker):
                with contextlib.suppress(ProcessLookupError):
                    self.fleet.resume(broker)
            else:
                await self.up(broker)
        for client in self.clients.values():
            if not client.runs:
                await client.start()
            client.signal(signal.SIGCONT)
        for name, home in self.home.items():
            self.clients[home].tell({"read": True, "of": name})


async def _links(stack: AsyncExitStack) -> tuple[dict[str, Gate], dict[str, dict[str, str]]]:
    """A gate on every link; the broker with the lesser name dials."""
    links: dict[str, Gate] = {}
    seen_by: dict[str, dict[str, str]] = {}
    pairs = [("b1", "b2")]
    pairs += [(router, other) for router in ROUTERS for other in (*REPOSITORIES, *EDGES)]
    for one, other in pairs:
        gate = await stack.enter_async_context(Gate(f"{one}--{other}"))
        links[gate.name] = gate
        seen_by.setdefault(one, {})[other] = gate.address
    return links, seen_by


def _specs(seed: int, folder: Path, doors: dict[str, Gate]) -> list[Spec]:
    """Who publishes and who subscribes to what, from the seed."""
    chance = random.Random(f"clients {seed}")

    def address(client: str, *brokers: str) -> str:
        listed = [doors[f"{client}--{broker}"].address for broker in brokers]
        return "gapless://" + ",".join(listed)

    def reader(client: str, name: str, topic: str, **options: Any) -> SubscriberSpec:
        wants = options.pop("wants", None) or some_condition(topic, chance)
        # What has a name is known to the edge that it was made at, and to no other.
        edges = chance.sample(EDGES, 1 if options.get("durable") else len(EDGES))
        return SubscriberSpec(
            name=name, address=address(client, *edges), topic=topic, wants=encode(wants), **options
        )

    publishers = [
        PublisherSpec(
            name=f"publisher-{number}",
            number=number,
            address=address("publishers", broker),
            topic=topic,
            pubend=pubend,
            events_per_s=EVENTS_PER_S,
        )
        for number, (broker, topic, pubend) in enumerate(
            [("p1", "trades", "trades-1"), ("p2", "trades", "trades-2"), ("p1", "news", "news-1")]
        )
    ]
    steady = [
        reader("steady", "all-trades", "trades", wants=Everything()),
        reader("steady", "all-news", "news", wants=Pattern("/item")),
        reader("steady", "total-trades", "trades", wants=Everything(), order="total"),
        reader("steady", "changing", "trades"),
    ]
    first = [
        reader("readers-1", "sql-1", "trades"),
        reader("readers-1", "sql-total", "trades", order="total", ack="manual"),
        reader("readers-1", "xpath-1", "news", ack="manual"),
        reader("readers-1", "durable-total", "trades", order="total", durable=True),
    ]
    second = [
        reader("readers-2", "slow", "trades", slow_s=0.004, credit_rows=50),
        reader("readers-2", "sql-2", "trades", ack="manual"),
        reader("readers-2", "xpath-2", "news"),
        reader("readers-2", "durable", "trades", durable=True, ack="manual"),
        reader("readers-2", "durable-xpath", "news", durable=True),
    ]
    told = {"publishers": ([], publishers), "readers-1": (first, []), "readers-2": (second, [])}
    told["steady"] = (steady, [])
    return [
        Spec(name=name, seed=seed, folder=os.fspath(folder), publishers=publishing, subscribers=reading)
        for name, (reading, publishing) in told.items()
    ]
