"""How does a node start and stop? Logs first, then the broker, then the listening socket.

A node that starts recovers its logs, raises its incarnation, and only then listens. A node that stops
closes the door, refuses what is new, lets what is on its way to the disk finish, sends its clients elsewhere,
and closes the logs.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from http import HTTPStatus
from types import TracebackType

from gapless.errors import NetworkDescriptionError, StoreError, SupersededError, UsageError
from gapless.model.ids import PubendId, TopicId
from gapless.model.ticks import TICK_MAX, Tick
from gapless.node.bulk_reads.opening import BulkReads
from gapless.node.catalog import AddLogs, Catalog, retention_of, stored_creations
from gapless.node.clock import WallClock, check_ahead, least_incarnation
from gapless.node.config import NodeConfig, check_links
from gapless.node.counters import Counters, Rates
from gapless.node.descriptors import Descriptors, limit
from gapless.node.door import Door
from gapless.node.folder import LOGS_NAME, Folder, beyond_promises, check_accepted
from gapless.node.guard import Guard
from gapless.node.host import Host
from gapless.node.http import HttpDoor, Page, text_page
from gapless.node.inquiry import Inquiry
from gapless.node.links import BrokerConnections
from gapless.node.lognames import log_name, renamed_after_loss
from gapless.node.logs import REPEATS, event_log
from gapless.node.losses import Losses
from gapless.node.metrics import exposition
from gapless.node.principals import Principals
from gapless.node.quarantine import Quarantine
from gapless.node.remembering import Remembering
from gapless.node.security import Tls, Tokens, check_files, days_left, is_gone
from gapless.node.sessions import Sessions
from gapless.node.status import (
    ahead,
    clients_status,
    clock_status,
    process_status,
    pubends_status,
    report_json,
    roles,
    subscriptions_status,
    upstream_missing,
)
from gapless.node.storage import Storage, on_disk
from gapless.protocol.broker import Broker
from gapless.protocol.events import BrokerStarted
from gapless.protocol.figures import known_horizon, stream_reach
from gapless.protocol.network import Network, PubendPlace
from gapless.protocol.pubend import Recovered
from gapless.protocol.sessions.identities import PublisherIdentities
from gapless.protocol.sessions.publishers import Publishers
from gapless.protocol.sessions.subscriptions import NamedSubscription
from gapless.store.archive import Archive
from gapless.store.contract import RecordLog
from gapless.store.files import ARCHIVE_NAME, DiskFiles, failure, keep_private
from gapless.store.history import History
from gapless.store.keyed import SEGMENT_BYTES, KeyedLog
from gapless.store.log import Log, LogOptions
from gapless.store.memory import MemoryLog
from gapless.store.recovery import RecoveryDatabase
from gapless.store.reserve import Reserve
from gapless.store.retention import KEYED, Keep, Retention
from gapless.wire.address import Address
from gapless.wire.proof import NetworkSecret

log = event_log("gapless.node")

#: How often the node looks at itself: rates, troubles that repeat.
TICK_SECONDS = 1.0
#: A node that stops waits so long for the disk, and then as long for its clients to take what is theirs.
DRAIN_SECONDS_MAX = 5.0
#: A log that is kept by size has segments of a quarter of that, but none smaller than this.
SEGMENT_BYTES_MIN = 2**16
#: A certificate that expires within this many days causes a warning.
CERTIFICATE_DAYS_MIN = 14.0


class Node:
    """One running node. Use it as an async context manager."""

    def __init__(self, config: NodeConfig) -> None:
        self.config = config
        self._database: RecoveryDatabase | None = None
        self._folder: Folder | None = None
        #: Room that is given up when the disk is full; and whether it was so a second ago.
        self._reserve: Reserve | None = None
        self._is_full = False
        #: The named subscriptions that the database had when the node started.
        self._named: list[NamedSubscription] = []
        self._http: HttpDoor | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._rates = Rates()
        self._stopping = asyncio.Event()
        #: Why the node stopped by itself.
        self.failure: BaseException | None = None
        #: Hears of every mistake of ours, wherever it happens.
        self.guard = Guard(self._mistaken)
        self.quarantine = Quarantine()
        #: When its certificate expires, in Unix time; None without TLS.
        self.certificate_expires: float | None = None

    @property
    def address(self) -> Address:
        """Where the node listens, with the port that it really has."""
        return self._door.address

    @property
    def scheme(self) -> str:
        """The scheme of this node's address."""
        return "gapless://" if self.config.tls is None else "gapless+tls://"

    @property
    def http_address(self) -> Address | None:
        """Where metrics and status are to be had, if anywhere."""
        return None if self._http is None else self._http.address

    @property
    def counters(self) -> Counters:
        """What the node has counted, until now."""
        counters = self._host.counters
        if self._ticker is not None:
            counters.messages_dropped = self.links.dropped
            counters.events_refused = self.sessions.publishing.session.events_refused
            counters.events_quarantined = self.quarantine.events
        return counters

    @property
    def clock(self) -> Tick:
        """What the clock of the node says."""
        return self._host.now().clock

    @property
    def clock_held(self) -> Tick:
        """How far a leap of the machine's clock goes that is not believed."""
        return self._host.clock.held

    @property
    def uptime_s(self) -> float:
        """For how long the node has been up."""
        return self._host.uptime_s

    async def __aenter__(self) -> Node:
        config = self.config
        loop = asyncio.get_running_loop()
        self._host = Host(self._mistaken, WallClock(config.network.parameters.ticks_ahead_ms))
        self._check_security(config)
        self._incarnation, logs = await loop.run_in_executor(None, self._open)
        self.storage = Storage(
            logs,
            self._host.feed,
            self._broken,
            before_trim=self._remember,
            flushed=self.counters.flushed,
            archives=self._archives(),
            make_room=lambda: self._reserve is not None and self._reserve.release(),
            guard=self.guard,
            quarantine=self.quarantine,
        )
        self._recover_publishers(logs)
        self.catalog = Catalog(
            self._network,
            config.broker,
            self._database,
            addresses={broker: str(config.client_address(broker)) for broker in config.addresses},
            ends=lambda pubend: max(known_horizon(self.broker, pubend)[0], 0),
            open_logs=self._open_logs,
            feed=self._host.feed,
            clock=lambda: self._host.now().clock,
            guard=self.guard,
        )
        self.sessions = Sessions(
            self._network,
            self._publishers,
            self._host.feed,
            self.status,
            self.catalog,
            database=self._database,
            losses=Losses(self._database, () if self._folder is None else self._folder.lives),
            guard=self.guard,
            principals=Principals(config.limits),
            reach=lambda pubend: stream_reach(self.broker, pubend, self._host.now().clock),
            is_gone=lambda principal: is_gone(principal, self.config.tokens, self.config.tls),
            clock=self._host.clock.now,
        )
        self.links = BrokerConnections(config, self._host.feed, self.guard, self.quarantine)
        self.links.extend(self._network)
        self.catalog.grown = (self.sessions, self.links)
        self.broker = Broker(self._network, config.broker, self._incarnation, self._recovered_logs())
        self._host.run(self.broker, self.links, self.storage, self.sessions, self.catalog)
        self.sessions.inquiry = Inquiry(self)
        self.sessions.remember = self._remembering.write_now
        self.sessions.publishing.flush = self.storage.flush
        self.bulk = self.sessions.bulk = BulkReads(
            config, self._histories, lambda pubend: known_horizon(self.broker, pubend)
        )
        self._host.feed(BrokerStarted())
        # Before any link is up, so that nothing is acknowledged upwards that they need.
        self.sessions.subscriptions.restore(self._named)
        self._door = self._made_door()
        await self._listen()
        self.links.start()
        self._tick()
        log.info("listening", listens=f"{self.scheme}{self.address}", http=str(self.http_address or ""))
        return self

    async def _listen(self) -> None:
        """Open all doors. Raises UsageError when one cannot be opened; everything is closed then."""
        config = self.config
        try:
            await self._door.open()
            if config.http is not None:
                self._http = HttpDoor(config.http, self._pages())
                await self._http.open()
            if config.broker in config.bulk:
                await self.bulk.opened()
        except UsageError:
            self._door.shut()
            if self._http is not None:
                await self._http.close()
            await self.storage.close()
            await self._remembering.close()
            if self._database is not None:
                self._database.close()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._door.shut()
        await self._drain()
        if self._ticker is not None:
            self._ticker.cancel()
        if self._http is not None:
            await self._http.close()
        await self.bulk.close()
        await self.links.stop()
        self._host.stop()
        await self.catalog.close()
        await self.sessions.subscriptions.close()
        await self.storage.close()
        await self._remembering.close()
        if self._database is not None:
            try:
                self._remembering.write_now()
            except StoreError as refused:
                # The log also has all of it, and is ahead of the database: a start reads more of it.
                log.warning("not_remembered", code=refused.code, reason=refused.message)
            self._database.close()
        log.info("stopped", steps=self.counters.steps)
        REPEATS.sweep(all_of_them=True)

    async def _drain(self) -> None:
        """Refuse what is new, let what is on its way arrive, and send the clients elsewhere."""
        self.sessions.stop()
        if self.failure is None:
            try:
                await asyncio.wait_for(self.storage.idle(), DRAIN_SECONDS_MAX)
            except TimeoutError:
                log.warning("slow_disk", reason="stopping although not all that was published is durable")
        self.sessions.close(UsageError("E188", "node shutting down; reconnect elsewhere", retry=True))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.sessions.gone(), DRAIN_SECONDS_MAX)

    async def run(self) -> None:
        """Until `stop` is called. Raises StoreError when a log cannot be trusted, or a mistake of our own."""
        await self._stopping.wait()
        if isinstance(self.failure, Exception):
            raise self.failure
        if self.failure is not None:
            # SystemExit in a thread is also a bug; raised as it is, it would end the process silently.
            raise AssertionError(f"{self.failure!r} ended a thread of the node") from self.failure

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """Make `run` return."""
        self._stopping.set()

    def renew(self, tls: Tls | None, secret: NetworkSecret | None, tokens: Tokens | None) -> None:
        """Use these from now on; clients whose token was removed are disconnected.

        Raises NetworkDescriptionError, and nothing has changed then.
        """
        config = replace(self.config, tls=tls, secret=secret, tokens=tokens)
        if (tls is None) != (self.config.tls is None):
            raise NetworkDescriptionError("E132", "tls: adding or removing it needs a restart of all nodes")
        self._check_security(config)
        self.config = config
        self._door.renew(config)
        self.links.renew(config)
        self.bulk.renew(config)
        self.sessions.renew(tokens)

    def _check_security(self, config: NodeConfig) -> None:
        """Check that brokers and clients can prove their identity. Raises NetworkDescriptionError."""
        check_links(config.network, config.tls, config.secret, config.tokens)
        if config.tls is not None:
            self.certificate_expires = check_files(config.tls, config.broker)
            if days_left(self.certificate_expires) < CERTIFICATE_DAYS_MIN:
                days = round(days_left(self.certificate_expires), 1)
                log.warning("certificate_expires_soon", file=str(config.tls.certificate), days=days)

    def _made_door(self) -> Door:
        """The door, with room for as many connections as this process may open files."""
        descriptors = Descriptors(
            limit=limit(),
            links=len(self._network.neighbours(self.config.broker)),
            logs=lambda: len(self.storage.logs),
            has_http=self.config.http is not None,
        )
        return Door(
            self.config,
            self.links,
            self.sessions,
            counters=self.counters,
            guard=self.guard,
            descriptors=descriptors,
        )

    def status(self) -> str:
        """The status of the node, as JSON; docs/operating.md describes it."""
        return report_json(self.report())

    def report(self) -> dict[str, object]:
        """The status of the node."""
        config, counters = self.config, self.counters
        waiting_for = self.waiting_for()
        now = self._host.now()
        http = self.http_address
        return {
            "broker": config.broker,
            "cell": config.network.cell_of[config.broker],
            "roles": roles(self.broker.network, config.broker),
            "software": config.software,
            "incarnation": self._incarnation,
            "starts": 1 if self._folder is None else self._folder.starts,
            "listens": f"{self.scheme}{self.address}",
            "http": None if http is None else f"http://{http}",
            "bulk": self.bulk.address,
            "time_us": now.clock,
            "clock": clock_status(self._host.clock),
            "uptime_s": round(self.uptime_s, 3),
            "ready": not waiting_for,
            "waiting_for": waiting_for,
            "stopping": self._stopping.is_set(),
            "totals": counters.totals(),
            "rates": self._rates.per_second,
            "flush_ms": {
                "p50": counters.flush_quantile(0.5) * 1_000,
                "p99": counters.flush_quantile(0.99) * 1_000,
            },
            "disk": None
            if self._reserve is None
            else {"free_bytes": self._free_bytes(), "is_full": self._is_full},
            "memory": asdict(self.broker.memory()),
            "quarantined": [asdict(each) for each in self.quarantine.listed()],
            "process": process_status(),
            "links": [
                {**asdict(each), "address": str(config.addresses[each.broker])}
                for each in self.links.figures()
            ],
            "pubends": pubends_status(self.broker, self.storage.figures(), now.clock),
            "clients": clients_status(self.sessions, self._door.clients_max),
            "subscriptions": subscriptions_status(self.sessions, self.broker),
        }

    def _public_report(self) -> dict[str, object]:
        """The same for callers without a token: where tokens are required, without the names of clients."""
        report = self.report()
        if self.config.tokens is not None:
            for part in ("clients", "subscriptions"):
                figures = report[part]
                assert isinstance(figures, dict)
                report[part] = {**figures, "list": []}
        return report

    def waiting_for(self) -> list[str]:
        """Why the node is not ready to serve; empty when it is."""
        if self._stopping.is_set():
            failure = self.failure
            return ["its end" if failure is None else f"its end: {type(failure).__name__}: {failure}"]
        up = self.links.up()
        missing = upstream_missing(self.broker.network, self.config.broker, up)
        room = ["room on its disk"] if self._is_full else []
        return [*(f"a link to cell {cell}" for cell in missing), *room, *self.troubles()]

    def troubles(self) -> list[str]:
        """The threads and tasks of the node that have ended, or are stuck."""
        writing = (self._remembering.trouble(), self.catalog.trouble())
        return [
            *self.storage.troubles(),
            *(trouble for trouble in writing if trouble is not None),
            *self.sessions.subscriptions.troubles(),
            *self.links.troubles(),
        ]

    def _pages(self) -> dict[str, Callable[[], Page]]:
        """What the HTTP endpoint serves."""

        def ready() -> Page:
            waiting_for = self.waiting_for()
            if waiting_for:
                return text_page(f"waiting for {', '.join(waiting_for)}", HTTPStatus.SERVICE_UNAVAILABLE)
            return text_page("ready")

        return {
            "/metrics": lambda: Page(exposition(self), kind="text/plain; version=0.0.4; charset=utf-8"),
            "/status": lambda: Page(report_json(self._public_report()).encode(), kind="application/json"),
            "/healthz": lambda: text_page("alive"),
            "/readyz": ready,
        }

    def _tick(self) -> None:
        """Once a second."""
        loop = asyncio.get_running_loop()
        self._ticker = loop.call_later(TICK_SECONDS, self.guard.call(self._tick))
        if self.storage.is_dead:
            raise AssertionError("the thread that flushes the logs has ended")
        self._rates = self._rates.tick(self.counters, loop.time())
        now = self._host.now().clock
        self.storage.tick(now)
        far_ahead = ahead(self.broker, now)
        if far_ahead:
            # What the clock cannot bound has to be known should the log be lost.
            self._remember_ends(self.storage.logs)
        for each in far_ahead:
            log.repeated(
                "ticks_ahead",
                by=each.pubend,
                pubend=each.pubend,
                ahead_s=each.ahead_s,
                asked_beyond_s=each.asked_beyond_s,
            )
        self._look_at_disk()
        self.sessions.sweep()
        REPEATS.sweep()

    def _look_at_disk(self) -> None:
        """Say when the disk is full and when it is not, and keep a little of it for then."""
        if self._reserve is None or self._folder is None or self._database is None:
            return
        self._reserve.restore()
        is_full = self._free_bytes() < self.config.limits.free_bytes_min
        if is_full != self._is_full:
            self._is_full = is_full
            tell = log.warning if is_full else log.info
            tell("disk_full" if is_full else "disk_has_room", free_bytes=self._free_bytes())
        self._folder.save_later(self._database)

    def _free_bytes(self) -> int:
        """How much room the disk of the folder has; all there can be for a node without one."""
        try:
            return 2**63 - 1 if self._reserve is None else self._reserve.free_bytes()
        except OSError:
            return 0

    def _open(self) -> tuple[int, dict[PubendId, RecordLog]]:
        """The incarnation and the logs. Blocks."""
        config = self.config
        incarnation = max(least_incarnation(time.time_ns() // 1_000), config.incarnation_min)
        if config.folder is not None:
            self._folder = Folder(config.folder, config.broker, config.accept_loss)
            try:
                DiskFiles().make_folder(config.folder)
                keep_private(config.folder)
            except PermissionError as error:
                # It may be another user's, who lets us in.
                log.warning("readable_folder", folder=str(config.folder), reason=error.strerror)
            except OSError as error:
                raise failure(error, config.folder) from error
            self._folder.check_database()
            self._reserve = Reserve(config.folder, config.limits.free_bytes_min)
            self._reserve.release()
            self._database = RecoveryDatabase.open(config.folder)
        logs: dict[PubendId, RecordLog] = {}
        try:
            if self._database is not None and self._folder is not None:
                incarnation = self._folder.begin(self._database, incarnation)
                self._named = list(self._database.subscriptions())
            self._network = config.network.extended(stored_creations(self._database))
            places = [place for place in self._network.pubends.values() if place.broker == config.broker]
            check_accepted(config.accept_loss, [place.pubend for place in places])
            for place in places:
                logs[place.pubend] = self._open_log(place, self._network)
            floors = {pubend: each.recover().floor for pubend, each in logs.items()}
            check_ahead(floors, time.time_ns() // 1_000, config.network.parameters.ticks_ahead_ms)
            self._remember_ends(logs)
            if self._folder is not None:
                self._folder.report_needless()
        except BaseException:
            for each in logs.values():
                each.close()
            if self._database is not None:
                self._database.close()
            raise
        return incarnation, logs

    def _open_log(self, place: PubendPlace, network: Network) -> RecordLog:
        config = self.config
        retention = self._retention(place, network)
        is_keyed = retention.keep in KEYED
        if config.folder is None:
            memory = MemoryLog(retention=retention)
            return KeyedLog(memory) if is_keyed else memory
        options = LogOptions(
            retention=retention,
            free_bytes_min=config.limits.free_bytes_min,
            segment_bytes_max=_segment_bytes(retention),
        )
        assert self._folder is not None
        assert self._database is not None
        schema = network.topics[place.topic].arrow()
        self._folder.check_log_folder(self._database, place.pubend)
        disk = Log.open(config.folder / LOGS_NAME / place.pubend, place.pubend, schema, options=options)
        try:
            self._folder.check_log(self._database, disk, beyond_promises(network.parameters))
        except BaseException:
            disk.close()
            raise
        return KeyedLog(disk) if is_keyed else disk

    def _remember_ends(self, logs: Mapping[PubendId, RecordLog]) -> None:
        """Record how far each log has come, so that a loss is noticed. Skipped while the disk is full."""
        try:
            self._remember_logs(logs)
        except StoreError as error:
            if error.code != "E302":
                raise
            log.repeated("disk_full", by=error.code, code=error.code, reason=error.message)

    def _remember_logs(self, logs: Mapping[PubendId, RecordLog]) -> None:
        """Write down how far the logs have come. Raises StoreError."""
        if self._database is not None and self._folder is not None:
            with self._database.transaction():
                # A copy: this also runs in a thread, and topics are created meanwhile.
                for each in tuple(logs.values()):
                    disk = on_disk(each)
                    if disk is not None:
                        self._folder.remember(self._database, disk)

    def _archives(self) -> dict[PubendId, Archive]:
        """Where the events of topics go that are kept for other programs."""
        config = self.config
        if config.folder is None:
            return {}
        return {
            place.pubend: Archive(
                config.folder / ARCHIVE_NAME / place.topic,
                place.pubend,
                config.network.topics[place.topic].arrow(),
            )
            for place in config.network.pubends.values()
            if place.broker == config.broker and place.topic in config.archive
        }

    def _histories(self, topic: TopicId) -> dict[PubendId, History]:
        """The pasts of a topic's pubends that live here. Called in any thread."""
        config, network = self.config, self.catalog.network
        schema = network.topics.get(topic)
        if schema is None:
            return {}
        folder = None if config.folder is None else config.folder / ARCHIVE_NAME / topic
        logs = self.storage.logs
        return {
            pubend: History(pubend, schema, logs[pubend], folder)
            for pubend in network.pubends_of(topic)
            if pubend in logs
        }

    def _retention(self, place: PubendPlace, network: Network) -> Retention:
        """How long events are kept: as the description says, else as requested when the topic was created."""
        configured = self.config.retention.get(place.topic)
        created = next((each.retention for each in network.created if each.pubend == place.pubend), "")
        return configured or retention_of(created, network.topics[place.topic], self.config.retention_else)

    def _open_logs(self, places: Sequence[PubendPlace], network: Network, now: Tick) -> AddLogs:
        """Pubends were created here: open and name their logs, in a thread. Raises StoreError."""
        opened: dict[PubendId, RecordLog] = {}
        with contextlib.ExitStack() as closing:
            for place in places:
                opening = opened[place.pubend] = self._open_log(place, network)
                closing.callback(opening.close)
                self._named_log(place.pubend, opening, opening.recover(), now)
            closing.pop_all()
        return lambda: self._add_logs(opened, now)

    def _add_logs(self, opened: Mapping[PubendId, RecordLog], now: Tick) -> dict[PubendId, Recovered]:
        recovered: dict[PubendId, Recovered] = {}
        for pubend, each in opened.items():
            recovered[pubend] = self._named_log(pubend, each, self.storage.add(pubend, each, now), now)
            self._publishers[pubend] = self._recovered(pubend, each)
        return recovered

    def _recovered_logs(self) -> dict[PubendId, Recovered]:
        """What a starting broker recovers from the logs, and what its operator has declared lost."""
        logs = self.storage.logs
        now = self._host.now().clock
        return {
            pubend: self._named_log(pubend, logs[pubend], each, now)
            for pubend, each in self.storage.recovered(now).items()
        }

    def _named_log(self, pubend: PubendId, log: RecordLog, found: Recovered, now: Tick) -> Recovered:
        """What is recovered from a log, with its name, and what the operator has declared lost."""
        disk, database = on_disk(log), self._database
        disk_id = "" if disk is None else disk.log_id
        name = log_name(database, pubend, disk_id, has_events=found.next_tick > 0, now=now)
        lost_before = name.lost_before
        if database is not None and self._folder is not None:
            lost_before = max(lost_before, self._folder.lost_before(database, pubend))
        untold_from = self.config.untold.get(pubend, TICK_MAX)
        return replace(
            found, log_id=name.name, began=name.began, lost_before=lost_before, untold_from=untold_from
        )

    def _recover_publishers(self, logs: Mapping[PubendId, RecordLog]) -> None:
        """Who published what, and whose the identities are."""
        self._identities = PublisherIdentities(
            publishers_max=self.config.limits.principal_publishers_max,
            publisher_days_min=self.config.limits.publisher_days_min,
            is_gone=lambda principal: is_gone(principal, self.config.tokens, self.config.tls),
        )
        self._publishers = {pubend: self._recovered(pubend, each) for pubend, each in logs.items()}
        self._identities.sort()
        self._remembering = Remembering(
            self._database, self._publishers, lambda: self._remember_logs(self.storage.logs)
        )
        if self._folder is not None and self._folder.database_accepted:
            # What is in doubt must stay so, and the next start does not know of the loss.
            self._remembering.write_now()

    def _recovered(self, pubend: PubendId, log: RecordLog) -> Publishers:
        """Who published what, as far as it was remembered, and from there on as the log tells it."""
        if self._database is None:
            return Publishers(pubend, self._identities)
        stored = self._database.meta(f"notes:{pubend}")
        start = int.from_bytes(stored, "big") if stored else 0
        found = Publishers.recover(pubend, log, self._database.publishers(pubend), start, self._identities)
        assert self._folder is not None
        is_lost = self._folder.database_accepted
        found.doubt(TICK_MAX if is_lost else self._folder.lost_before(self._database, pubend))
        return found

    async def _remember(self) -> dict[PubendId, Tick]:
        return await self._remembering.write()

    def _broken(self, error: StoreError) -> None:
        """A log cannot be trusted: the node stops rather than promise anything."""
        if self.failure is not None:
            return
        log.error("log_broken", code=error.code, reason=error.message)
        self.failure = error
        self._host.stop()
        self._stopping.set()

    def _mistaken(self, mistake: BaseException) -> None:
        """An unexpected error: stop the node. A restart recovers from the log."""
        if self.failure is not None:
            return
        if isinstance(mistake, SupersededError):
            if self._database is not None:
                with contextlib.suppress(StoreError):
                    self._database.begin_incarnation(mistake.incarnation)
                    if mistake.older_copy is not None:
                        pubend = PubendId(mistake.older_copy)
                        renamed_after_loss(self._database, pubend, mistake.began, mistake.lost_before)
            self._broken(mistake)
            return
        found = traceback.extract_tb(mistake.__traceback__)
        where = f"{found[-1].filename}:{found[-1].lineno}" if found else ""
        log.error("mistake", reason=f"{type(mistake).__name__}: {mistake}", where=where)
        self.failure = mistake
        self._host.stop()
        self._stopping.set()


def _segment_bytes(retention: Retention) -> int:
    """How large the segments of a log are: retention deletes or rewrites whole ones, so a few must fit."""
    largest = LogOptions().segment_bytes_max
    if retention.keep in KEYED:
        return SEGMENT_BYTES
    if retention.keep is not Keep.SIZE:
        return largest
    return max(SEGMENT_BYTES_MIN, min(largest, retention.keep_bytes // 4))
