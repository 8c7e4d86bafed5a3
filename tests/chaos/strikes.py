"""How is each fault done to real processes? One method per kind, which strikes, waits, and mends."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence

from tests.chaos.plan import MEASURED, Blow
from tests.chaos.proxy import Gate
from tests.chaos.stage import EDGES, KILLED, REPOSITORIES, ROUTERS, SMALL, Stage
from tests.chaos.wishes import encode, some_condition

#: After this many faults, a subscriber changes its filter.
CHANGE_EVERY = 3


def targets_of(stage: Stage) -> Mapping[str, Sequence[str]]:
    """Whom each kind of fault may strike on this stage."""
    brokers = (*REPOSITORIES, *ROUTERS, *EDGES)
    links, doors = sorted(stage.links), sorted(stage.doors)
    return {
        "router kill": ROUTERS,
        "repository kill": REPOSITORIES,
        "edge kill": EDGES,
        "all routers kill": ("all routers",),
        "broker stop": brokers,
        "broker restart": brokers,
        "link cut": links,
        "link refuse": links,
        "link swallow": links,
        "link slow": links,
        "client link cut": doors,
        "client link swallow": doors,
        "client link slow": doors,
        "disk full": () if stage.disk is None else (f"disk of {SMALL}",),
        "reader stop": sorted(stage.home),
        "client kill": KILLED,
        "client stop": sorted(stage.clients),
        "garbage": brokers,
    }


class Strikes:
    """Does to a stage what was planned."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._ways: dict[str, Callable[[Blow], Awaitable[None]]] = {
            MEASURED: self._kill_broker,
            "router kill": self._kill_broker,
            "repository kill": self._kill_broker,
            "edge kill": self._kill_broker,
            "all routers kill": self._kill_routers,
            "broker stop": self._stop_broker,
            "broker restart": self._restart_broker,
            "link cut": self._cut,
            "link refuse": self._refuse,
            "link swallow": self._swallow,
            "link slow": self._slow,
            "client link cut": self._cut,
            "client link swallow": self._swallow,
            "client link slow": self._slow,
            "disk full": self._fill_disk,
            "reader stop": self._stop_reader,
            "client kill": self._kill_client,
            "client stop": self._stop_client,
            "garbage": self._send_garbage,
        }

    async def strike(self, blow: Blow) -> None:
        """Strike, wait as long as it lasts, and mend."""
        recorder = self._stage.recorder
        recorder.write("fault", number=blow.number, what=blow.kind, target=blow.target, for_s=blow.for_s)
        await self._ways[blow.kind](blow)
        recorder.write("mended", number=blow.number)
        if blow.number % CHANGE_EVERY == 0:
            wants = encode(some_condition("trades", random.Random(blow.chance)))
            self._stage.clients["steady"].tell({"change": wants, "of": "changing"})

    # ---- brokers -------------------------------------------------------------------------------------

    async def _kill_broker(self, blow: Blow) -> None:
        await self._kill(blow.target)
        await asyncio.sleep(blow.for_s)
        await self._revive(blow.target)

    async def _kill_routers(self, blow: Blow) -> None:
        await asyncio.gather(*(self._kill(router) for router in ROUTERS))
        await asyncio.sleep(blow.for_s)
        await asyncio.gather(*(self._revive(router) for router in ROUTERS))

    async def _kill(self, broker: str) -> None:
        if self._stage.fleet.runs(broker) and broker not in self._stage.down:
            self._stage.down.add(broker)
            await self._stage.fleet.kill(broker)

    async def _revive(self, broker: str) -> None:
        if not self._stage.fleet.runs(broker):
            await self._stage.up(broker)

    async def _stop_broker(self, blow: Blow) -> None:
        fleet = self._stage.fleet
        if not fleet.runs(blow.target) or blow.target in self._stage.down:
            return
        process = fleet.pid(blow.target)
        fleet.pause(blow.target)
        await asyncio.sleep(blow.for_s)
        if fleet.runs(blow.target) and fleet.pid(blow.target) == process:
            fleet.resume(blow.target)

    async def _restart_broker(self, blow: Blow) -> None:
        """An orderly stop, with SIGTERM, while everybody wants something of it."""
        if not self._stage.fleet.runs(blow.target) or blow.target in self._stage.down:
            return
        self._stage.down.add(blow.target)
        status = await self._stage.fleet.stop(blow.target)
        if status not in (0, -signal.SIGKILL):
            # The fleet kills what does not stop in time, which a busy machine may be to blame for.
            self._stage.recorder.write("broke", of=blow.target, why=f"exit status {status} after SIGTERM")
        await asyncio.sleep(blow.for_s)
        await self._revive(blow.target)

    # ---- cables --------------------------------------------------------------------------------------

    def _gate(self, blow: Blow) -> Gate:
        return self._stage.links.get(blow.target) or self._stage.doors[blow.target]

    async def _cut(self, blow: Blow) -> None:
        self._gate(blow).cut()

    async def _refuse(self, blow: Blow) -> None:
        gate = self._gate(blow)
        await gate.refuse()
        gate.cut()
        await asyncio.sleep(blow.for_s)
        await gate.accept()

    async def _swallow(self, blow: Blow) -> None:
        gate = self._gate(blow)
        gate.swallow()
        await asyncio.sleep(blow.for_s)
        if blow.chance % 3:
            gate.cut()
        gate.forward()

    async def _slow(self, blow: Blow) -> None:
        gate = self._gate(blow)
        if blow.chance % 2:
            gate.delay_s = 0.05 + blow.chance % 450 / 1_000
        else:
            gate.bytes_per_s = 2_000.0 + blow.chance % 30_000
        await asyncio.sleep(blow.for_s)
        gate.forward()

    # ---- disks ---------------------------------------------------------------------------------------

    async def _fill_disk(self, blow: Blow) -> None:
        disk = self._stage.disk
        assert disk is not None, "planned only where there is one"
        # In a thread: the gates must not stand still meanwhile.
        await asyncio.to_thread(disk.fill)
        await asyncio.sleep(blow.for_s)
        disk.free()

    # ---- clients -------------------------------------------------------------------------------------

    async def _stop_reader(self, blow: Blow) -> None:
        client = self._stage.clients[self._stage.home[blow.target]]
        client.tell({"read": False, "of": blow.target})
        await asyncio.sleep(blow.for_s)
        client.tell({"read": True, "of": blow.target})

    async def _kill_client(self, blow: Blow) -> None:
        client = self._stage.clients[blow.target]
        if client.runs:
            await client.kill()
            await asyncio.sleep(blow.for_s)
            await client.start()

    async def _stop_client(self, blow: Blow) -> None:
        client = self._stage.clients[blow.target]
        client.signal(signal.SIGSTOP)
        await asyncio.sleep(blow.for_s)
        client.signal(signal.SIGCONT)

    async def _send_garbage(self, blow: Blow) -> None:
        """What is no frame, half a frame, or the announcement of 4 GB; the node must cut it off."""
        chance = random.Random(blow.chance)
        host, _, port = self._stage.fleet.addresses[blow.target].rpartition(":")
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(host, int(port))
            try:
                writer.write(_garbage(chance))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(2.0):
                        await writer.drain()
                        await reader.read()
            finally:
                writer.transport.abort()


def _garbage(chance: random.Random) -> bytes:
    kind = chance.randrange(4)
    if kind == 0:
        return chance.randbytes(chance.randrange(1, 4_000))
    if kind == 1:
        return b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    if kind == 2:
        return struct.pack("<I", 0xFFFF_FFFF) + chance.randbytes(64)
    return struct.pack("<I", chance.randrange(2**16)) + bytes([chance.randrange(20)]) * 3
