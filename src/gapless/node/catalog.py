"""Which topics were created while the network runs? What one node knows of them, in its database.

A creation is on the disk before anybody hears of it: before the client that asked for it, before the broker,
and so before the neighbours. Whatever needs to know of new topics at a node (links, logs, sessions) is told
first, and the broker last, so that nothing it asks for is unknown to them.

To write a creation down and to begin a log takes half a dozen syncs, so a thread does it, one creation after
the other. Meanwhile the frame that asked for it waits in its connection, as it does for a long condition
(`node/reading.py`), and everything else goes on. A node without a disk does it at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

import msgspec

from gapless.errors import NetworkDescriptionError, SchemaError, StoreError, UsageError
from gapless.model.ids import BrokerId, PubendId, TopicId
from gapless.model.schema import Schema
from gapless.model.ticks import Tick
from gapless.node.config import Limits, fitting_retention, parse_retention
from gapless.node.guard import Guard
from gapless.node.logs import event_log
from gapless.node.worker import WorkThread
from gapless.protocol.creations import TOPICS_MAX, Creation, columns_text, is_topic_name, pubend_name
from gapless.protocol.events import Event, TopicsLearned
from gapless.protocol.network import Network, PubendPlace
from gapless.protocol.pubend import Recovered
from gapless.protocol.sessions.messages import CreateTopic, Topics
from gapless.store.recovery import RecoveryDatabase
from gapless.store.retention import Retention
from gapless.wire.codec import column_texts

log = event_log("gapless.catalog")

#: A creation that takes longer than this is stuck.
STORE_SECONDS_MAX = 30.0
#: The key of all creations in the database of a node.
META_KEY = "creations"
#: The key of who has created which topic at this node.
CREATORS_KEY = "creators"


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    topic: str
    columns: dict[str, str]
    pubend: str
    broker: str
    made: int
    retention: str = ""


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(list[_Stored])
_creators_decoder = msgspec.msgpack.Decoder(dict[str, str])


def stored_creations(database: RecoveryDatabase | None) -> list[Creation]:
    """What a node has written down. Raises StoreError."""
    stored = None if database is None else database.meta(META_KEY)
    if database is None or stored is None:
        return []
    try:
        return [
            Creation(
                schema=Schema.parse(TopicId(each.topic), each.columns),
                pubend=PubendId(each.pubend),
                broker=BrokerId(each.broker),
                made=each.made,
                retention=each.retention,
            )
            for each in _decoder.decode(stored)
        ]
    except (msgspec.DecodeError, SchemaError) as error:
        raise StoreError(
            "E301",
            f"{database.path}: the created topics cannot be read: {error}: restore it from a copy, or move "
            f"it and its -wal file away and start once with --accept-loss {database.path.name}",
        ) from error


def _stored_creators(database: RecoveryDatabase | None) -> dict[TopicId, str]:
    stored = None if database is None else database.meta(CREATORS_KEY)
    if stored is None:
        return {}
    try:
        return {TopicId(topic): by for topic, by in _creators_decoder.decode(stored).items()}
    except msgspec.DecodeError:
        # It decides of nothing but a quota.
        return {}


class NotStoredYetError(Exception):
    """A topic must be written to the disk first, by a thread. Raised before anything has changed."""


#: Adds logs that were opened; on the event loop.
AddLogs: TypeAlias = Callable[[], Mapping[PubendId, Recovered]]
#: Opens the logs of new pubends, named at this time; may run in a thread. Raises StoreError.
OpenLogs: TypeAlias = Callable[[Sequence[PubendPlace], Network, Tick], AddLogs]
#: Called when a creation is on the disk and known, or with what went wrong.
Then: TypeAlias = Callable[[UsageError | StoreError | None], None]


class _Plan(NamedTuple):
    """What is to be written down."""

    creations: tuple[Creation, ...]
    #: Who has created which topic; None if that does not change.
    creators: dict[TopicId, str] | None = None


class Grown(Protocol):
    """What must know of new topics before the broker does."""

    def extend(self, network: Network) -> None:
        """The network has grown to this."""


class Catalog:
    """The created topics, as one node knows them."""

    def __init__(
        self,
        network: Network,
        broker: BrokerId,
        database: RecoveryDatabase | None,
        *,
        addresses: Mapping[BrokerId, str],
        ends: Callable[[PubendId], Tick],
        open_logs: OpenLogs,
        feed: Callable[[Event], None],
        clock: Callable[[], Tick],
        guard: Guard | None = None,
    ) -> None:
        """`network` is the described one with what was written down; `open_logs` makes room for pubends.

        `addresses` are those that clients can reach; `ends` gives one past the last durable event of a pubend
        that lives here. `guard` hears of mistakes of our own.
        """
        self._guard = guard
        #: The thread that writes; made with the first creation.
        self._desk: WorkThread | None = None
        #: What waits for it, each with whoever waits for that.
        self._waiting: deque[tuple[Callable[[], _Plan | None], Then]] = deque()
        self._is_storing = False
        self._ends = ends
        self.addresses = addresses
        self.network = network
        self._broker = broker
        self._database = database
        self._open_logs = open_logs
        self._feed = feed
        self._clock = clock
        #: The principals that have created topics at this node: for quotas, and nothing else.
        self._creators = _stored_creators(database)
        #: Who is told before the broker, in this order.
        self.grown: tuple[Grown, ...] = ()
        for each in network.set_aside:
            self._complain(each)

    def create(self, asked: CreateTopic, principal: str, limits: Limits) -> None:
        """A client of a principal wants a topic. When this returns it is on the disk.

        Creating it again is not an error. Raises UsageError or StoreError, and then nothing has changed.
        Raises NotStoredYetError if that takes long: call `store`.
        """
        plan = self._planned(asked, principal, limits)
        if plan is None:
            return
        if self._database is not None:
            raise NotStoredYetError(asked.topic)
        network = self.network.extended(plan.creations)
        self._adopt(network, plan, self._written(network, plan, self._clock()))

    def store(self, asked: CreateTopic, principal: str, limits: Limits, then: Then) -> None:
        """Create a topic, and call `then` in a later turn of the loop."""
        self._put(partial(self._planned, asked, principal, limits), then)

    def _planned(self, asked: CreateTopic, principal: str, limits: Limits) -> _Plan | None:
        """What is to be written down for a new topic; None if it is there. Raises UsageError."""
        if not is_topic_name(asked.topic):
            raise SchemaError(
                "E110",
                f"{asked.topic!r:.80} is not a valid name for a topic: use letters, digits, '_', '-' and '.'",
            )
        schema = Schema.parse(asked.topic, asked.columns)
        there = self.network.topics.get(asked.topic)
        if there == schema:
            return None
        if there is not None:
            raise UsageError(
                "E187",
                f"topic '{asked.topic}' already has the columns {columns_text(there)}, "
                f"and not {columns_text(schema)}: choose another name",
            )
        if self._broker not in self.network.repositories:
            others = ", ".join(sorted(self.network.repositories)) or "none"
            raise UsageError("E189", f"'{self._broker}' takes no new topics: these do: {others}")
        if len(self.network.topics) >= TOPICS_MAX:
            raise UsageError("E180", f"there are already {TOPICS_MAX} topics: no more can be created")
        mine = sum(self._creators.get(topic) == principal for topic in self.network.topics)
        if mine >= limits.principal_topics_max:
            raise UsageError(
                "E106",
                f"{principal} has created {mine:,} topics here: use fewer topics with more columns, or "
                "raise limits.principal_topics_max",
            )
        if asked.retention:
            _checked_retention(asked.retention, schema)
        creation = Creation(
            schema=schema,
            pubend=pubend_name(asked.topic, self._broker, self._taken()),
            broker=self._broker,
            made=self._clock(),
            retention=asked.retention,
        )
        objection = self.network.objection(creation)
        if objection is not None:
            raise UsageError("E187", f"topic '{asked.topic}' cannot be created: {objection}")
        # Creators of topics that do not exist are dropped.
        known = {each: by for each, by in self._creators.items() if each in self.network.topics}
        return _Plan((creation,), {**known, asked.topic: principal})

    def topics_for(self, request: int, may_see: Callable[[TopicId], bool]) -> Topics:
        """The answer to a client that asks for all topics."""
        network = self.network
        topics = tuple(
            (schema, network.pubends_of(topic)) for topic, schema in network.topics.items() if may_see(topic)
        )
        seen = {schema.topic for schema, _ in topics}
        places = {p: place.broker for p, place in network.pubends.items() if place.topic in seen}
        near = {*places.values(), *network.repositories}
        return Topics(
            request=request,
            topics=topics,
            places=places,
            addresses={broker: text for broker, text in self.addresses.items() if broker in near},
            repositories=tuple(sorted(network.repositories)),
            ends={pubend: self._ends(pubend) for pubend, broker in places.items() if broker == self._broker},
        )

    def learned(self, creations: tuple[Creation, ...]) -> None:
        """Neighbours told of creations. What cannot be written down now, they tell again."""
        plan = _Plan(creations)
        if self._database is not None:
            self._put(lambda: plan, _tell_not_stored)
            return
        network = self.network.extended(creations)
        if network is not self.network:
            try:
                self._adopt(network, plan, self._written(network, plan, self._clock()))
            except StoreError as error:
                _tell_not_stored(error)

    def trouble(self) -> str | None:
        """What is wrong with the thread that writes; None when all is well."""
        return None if self._desk is None else self._desk.trouble()

    async def close(self) -> None:
        """Wait for what is being written, and end the thread."""
        self._waiting.clear()
        if self._desk is not None:
            await self._desk.close()

    def _put(self, planned: Callable[[], _Plan | None], then: Then) -> None:
        self._waiting.append((planned, then))
        asyncio.get_running_loop().call_soon(self._guarded(self._next))

    def _next(self) -> None:
        """Hand the next creation to the thread, if it is free."""
        while self._waiting and not self._is_storing:
            planned, then = self._waiting.popleft()
            try:
                # Meanwhile others may have been created.
                plan = planned()
            except UsageError as error:
                then(error)
                continue
            network = self.network if plan is None else self.network.extended(plan.creations)
            if plan is None or network is self.network:
                then(None)
                continue
            if self._desk is None:
                self._desk = WorkThread("gapless-create", patience_s=STORE_SECONDS_MAX)
            self._is_storing = True
            task = self._desk.do(self._written, network, plan, self._clock())
            task.add_done_callback(self._guarded(partial(self._was_written, network, plan, then)))

    def _was_written(self, network: Network, plan: _Plan, then: Then, done: asyncio.Future[AddLogs]) -> None:
        self._is_storing = False
        try:
            self._adopt(network, plan, done.result())
        except StoreError as error:
            then(error)
        else:
            then(None)
        self._next()

    def _guarded(self, do: Callable[..., None]) -> Callable[..., None]:
        return do if self._guard is None else self._guard.call(do)

    def _written(self, network: Network, plan: _Plan, now: Tick) -> AddLogs:
        """Write down what is created, and open its logs; may run in a thread. Raises StoreError."""
        if self._database is not None:
            creations = sorted(network.created, key=lambda each: each.age)
            with self._database.transaction():
                if plan.creators is not None:
                    self._database.put_meta(CREATORS_KEY, _encode(plan.creators))
                self._database.put_meta(META_KEY, _encode([_stored(each) for each in creations]))
        fresh = [place for pubend, place in network.pubends.items() if pubend not in self.network.pubends]
        return self._open_logs([each for each in fresh if each.broker == self._broker], network, now)

    def _adopt(self, network: Network, plan: _Plan, add_logs: AddLogs) -> None:
        """What was written down exists from now on."""
        recovered = add_logs()
        if plan.creators is not None:
            self._creators = plan.creators
        before, self.network = self.network, network
        for grown in self.grown:
            grown.extend(network)
        new = tuple(sorted(network.created - before.created, key=lambda each: each.age))
        for each in new:
            if network.objection(each) is not None:
                self._complain(each)
        self._feed(TopicsLearned(creations=new, recovered=recovered))

    def _taken(self) -> set[str]:
        return {*self.network.pubends, *(each.pubend for each in self.network.created)}

    def _complain(self, creation: Creation) -> None:
        log.error(
            "topic_set_aside",
            topic=creation.topic,
            pubend=creation.pubend,
            broker=creation.broker,
            reason=self.network.objection(creation),
            way_out="create it under another name; its events stay in the log of its broker",
        )


def _tell_not_stored(error: UsageError | StoreError | None) -> None:
    """What neighbours have told of could not be written down: they tell it again."""
    if error is not None:
        log.repeated("topics_not_stored", by=error.code, code=error.code, reason=error.message)


def retention_of(text: str, schema: Schema, otherwise: Retention) -> Retention:
    """How long a created topic keeps its events. A text of another node may make no sense."""
    try:
        return fitting_retention(parse_retention(text), schema, "retention") if text else otherwise
    except NetworkDescriptionError:
        return otherwise


def _checked_retention(text: str, schema: Schema) -> None:
    try:
        fitting_retention(parse_retention(text), schema, "retention")
    except NetworkDescriptionError as error:
        raise UsageError("E121", error.message) from error


def _stored(each: Creation) -> _Stored:
    return _Stored(each.topic, column_texts(each.schema), each.pubend, each.broker, each.made, each.retention)
