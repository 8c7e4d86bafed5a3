"""How does a node start and stop? Logs first, then the broker, then the door.

A node that starts recovers its logs, raises its incarnation, and only then listens. A node that stops
closes the door, lets what is on its way to the disk finish, and closes the logs.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from gapless.errors import PeerError, StoreError, UsageError
from gapless.model.ids import PubendId
from gapless.node.config import Address, NodeConfig
from gapless.node.connection import Connection, Owner
from gapless.node.counters import Rates
from gapless.node.host import Host
from gapless.node.links import Links
from gapless.node.publishers import Publishers
from gapless.node.sessions import Sessions
from gapless.node.status import (
    clients_status,
    pubends_status,
    roles,
    subscriptions_status,
    told,
    upstream_missing,
)
from gapless.node.storage import Storage
from gapless.protocol.broker import Broker
from gapless.protocol.events import BrokerStarted
from gapless.store.contract import RecordLog
from gapless.store.log import Log
from gapless.store.memory import MemoryLog
from gapless.store.recovery import RecoveryDatabase
from gapless.wire.frames import FROM_STRANGER, HELLO_BYTES_MAX, Frame
from gapless.wire.handshake import (
    Hello,
    Role,
    Welcome,
    check_hello,
    decode_link,
    encode_link,
    network_fingerprint,
)

log = logging.getLogger("gapless.node")

#: Whoever connects has so long to say who it is.
HELLO_SECONDS_MAX = 5.0
#: How often the node looks at itself: rates, retention, troubles that repeat.
TICK_SECONDS = 1.0


class Node:
    """One running node. Use it as an async context manager."""

    def __init__(self, config: NodeConfig) -> None:
        self.config = config
        self._database: RecoveryDatabase | None = None
        self._server: asyncio.Server | None = None
        self._fingerprint = network_fingerprint(config.network)
        self._stopping = asyncio.Event()
        #: Why the node stopped by itself.
        self.failure: StoreError | None = None

    @property
    def address(self) -> Address:
        """Where the node listens, with the port that it really has."""
        assert self._server is not None, "the node has not started"
        host, port = self._server.sockets[0].getsockname()[:2]
        return Address(host, port)

    async def __aenter__(self) -> Node:
        config = self.config
        loop = asyncio.get_running_loop()
        incarnation, logs = await loop.run_in_executor(None, self._open)
        self._host = Host()
        self._incarnation = incarnation
        self._rates = Rates(self._host.counters)
        self._storage = Storage(
            logs, self._host.feed, self._broken, self._remember, self._host.counters.flushed
        )
        self._publishers = {pubend: self._recovered(pubend, each) for pubend, each in logs.items()}
        self._sessions = Sessions(config.network, self._publishers, self._host.feed, self.status)
        self._links = Links(
            config.network, config.broker, config.addresses, self._host.feed, software=config.software
        )
        self._broker = Broker(config.network, config.broker, incarnation, self._storage.recovered())
        self._host.run(self._broker, self._links, self._storage, self._sessions)
        self._host.feed(BrokerStarted())
        listen = config.listen
        try:
            self._server = await loop.create_server(self._accept, listen.host, listen.port)
        except OSError as error:
            await self._storage.close()
            raise UsageError("E183", f"cannot listen at {listen}: {error.strerror or error}") from error
        self._links.start()
        self._tick()
        log.info("%s listens at %s", config.broker, self.address)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._ticker.cancel()
        self._server.close()
        self._sessions.close("this node stops")
        await self._links.stop()
        self._host.stop()
        await self._storage.close()
        if self._database is not None:
            self._remember()
            self._database.close()

    async def run(self) -> None:
        """Until `stop` is called. Raises StoreError when a log cannot be trusted any more."""
        await self._stopping.wait()
        if self.failure is not None:
            raise self.failure

    def stop(self) -> None:
        """Make `run` return."""
        self._stopping.set()

    def status(self) -> str:
        """What the node tells of itself, as JSON; docs/operating.md describes it."""
        return told(self.report())

    def report(self) -> dict[str, object]:
        """What the node tells of itself."""
        config, counters = self.config, self._host.counters
        waiting_for = self.waiting_for()
        now = self._host.now()
        return {
            "broker": config.broker,
            "cell": config.network.cell_of[config.broker],
            "roles": roles(config.network, config.broker),
            "software": config.software,
            "incarnation": self._incarnation,
            "listens": str(self.address),
            "time_us": now.clock,
            "uptime_s": round(self._host.uptime_s, 3),
            "ready": not waiting_for,
            "waiting_for": waiting_for,
            "totals": counters.totals(),
            "rates": self._rates.per_second,
            "flush_ms": {
                "p50": counters.flush_quantile(0.5) * 1_000,
                "p99": counters.flush_quantile(0.99) * 1_000,
            },
            "memory": asdict(self._broker.memory()),
            "links": [
                {**asdict(each), "address": str(config.addresses[each.broker])}
                for each in self._links.figures()
            ],
            "pubends": pubends_status(self._broker, self._storage.figures(), now.clock),
            "clients": clients_status(self._sessions, config.clients_max),
            "subscriptions": subscriptions_status(self._sessions, self._broker),
        }

    def waiting_for(self) -> list[str]:
        """Why the node is not ready to serve; empty when it is."""
        up = self._links.up()
        return [
            f"a link to cell {cell}" for cell in upstream_missing(self.config.network, self.config.broker, up)
        ]

    def _tick(self) -> None:
        """Once a second."""
        self._ticker = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)
        self._host.counters.messages_dropped = self._links.dropped
        self._rates.tick(asyncio.get_running_loop().time())

    def _open(self) -> tuple[int, dict[PubendId, RecordLog]]:
        """The incarnation and the logs. Blocks."""
        config = self.config
        places = [place for place in config.network.pubends.values() if place.broker == config.broker]
        if config.folder is None:
            return 1, {place.pubend: MemoryLog() for place in places}
        config.folder.mkdir(parents=True, exist_ok=True)
        self._database = RecoveryDatabase.open(config.folder)
        incarnation = self._database.begin_incarnation()
        logs: dict[PubendId, RecordLog] = {
            place.pubend: Log.open(
                Path(config.folder) / "log" / place.pubend,
                place.pubend,
                config.network.topics[place.topic].arrow(),
            )
            for place in places
        }
        return incarnation, logs

    def _recovered(self, pubend: PubendId, log: RecordLog) -> Publishers:
        """Who published what, as far as it was remembered, and from there on as the log tells it."""
        if self._database is None:
            return Publishers(pubend)
        told = self._database.meta(f"notes:{pubend}")
        start = int.from_bytes(told, "big") if told else 0
        return Publishers.recover(pubend, log, self._database.publishers(pubend), start)

    def _remember(self) -> None:
        """Write down who published what: the log may forget it after this."""
        if self._database is None:
            return
        with self._database.transaction():
            for pubend, publishers in self._publishers.items():
                self._database.put_publishers(publishers.positions())
                self._database.put_meta(f"notes:{pubend}", publishers.known_tick.to_bytes(8, "big"))

    def _broken(self, error: StoreError) -> None:
        """A log cannot be trusted: the node stops rather than promise anything."""
        log.error("stopping: %s", error)
        self.failure = error
        self._host.stop()
        self._stopping.set()

    def _accept(self) -> Connection:
        connection = Connection(FROM_STRANGER, lambda made: _Stranger(self, made))
        connection.reader.allow(FROM_STRANGER, bytes_max=HELLO_BYTES_MAX)
        return connection

    def introduced(self, connection: Connection, hello: Hello) -> Owner:
        """Somebody said who it is. Raises PeerError when it may not come in."""
        version = check_hello(hello, self._fingerprint)
        connection.send(
            encode_link(
                Welcome(
                    version=version,
                    name=self.config.broker,
                    network=self._fingerprint,
                    software=self.config.software,
                )
            )
        )
        if hello.role is Role.BROKER:
            return self._links.welcome(connection, hello)
        return self._sessions.welcome(connection, hello)


class _Stranger:
    """A connection whose other side has not said who it is."""

    def __init__(self, node: Node, connection: Connection) -> None:
        self._node = node
        self._connection = connection
        loop = asyncio.get_running_loop()
        self._patience = loop.call_later(HELLO_SECONDS_MAX, connection.abort, "it did not say who it is")

    def received(self, frame: Frame) -> None:
        self._patience.cancel()
        hello = decode_link(frame)
        if not isinstance(hello, Hello):
            raise PeerError("E213", f"a {frame.kind.name} frame before the handshake was done")
        self._connection.hand_over(self._node.introduced(self._connection, hello))

    def drained(self) -> None:
        """Nobody waits for that."""

    def lost(self, reason: str) -> None:  # noqa: ARG002  # nobody knew it
        self._patience.cancel()
