"""Where do the brokers of a scenario live? A tiny host without chance: it does what it is told, in order.

Messages take no time and arrive in the order in which they were sent, unless the story holds, loses or
repeats them. Time passes, and timers fire, only when the story waits, so the ticks of what is published
before the first wait are small numbers. Disks flush at once unless the story says otherwise.

Every step of every broker is followed by its `check`, and every delivery is judged by the ledger.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from gapless.model.batch import EventBatch
from gapless.model.ids import BrokerId, PubendId, SubscriptionId
from gapless.model.ticks import TICKS_PER_MS, Tick, TickRange
from gapless.protocol.broker import Broker
from gapless.protocol.effects import (
    AcceptPublish,
    AppendRecord,
    BatchRecord,
    ConfirmChange,
    ConfirmSubscription,
    Deliver,
    Effect,
    ReadRecords,
    Record,
    RefusePublish,
    ReleaseRecord,
    ReserveRecord,
    SendMessage,
    StartRecord,
    StartTimer,
    TrimLog,
)
from gapless.protocol.events import (
    BrokerStarted,
    DeliveryTaken,
    Event,
    FilterChangeRequested,
    LinkDown,
    LinkUp,
    MessageReceived,
    Now,
    PublishRequested,
    RecordDurable,
    RecordFailed,
    RecordsRead,
    SubscribeRequested,
    SubscriberSlow,
    TimerFired,
    UnsubscribeRequested,
)
from gapless.protocol.messages import Message, SidewaysMessage
from gapless.protocol.network import Network
from gapless.protocol.pubend import Recovered
from gapless.protocol.trace import Entry, describe
from tests.scenarios.ledger import Account, Ledger, Row

#: A story is quiet long before so many steps; one that is not has a loop in it.
STEPS_MAX = 20_000

#: Lines that are not shown until a story asks for them, by their first word.
HIDDEN = frozenset(
    {"advertise", "advertised", "append", "link-status", "read", "start-grant", "start-request", "trim"}
)

CONFIRMS = (ConfirmSubscription, ConfirmChange)

#: One connection, in one direction.
Way = tuple[BrokerId, BrokerId]


@dataclass(slots=True)
class Log:
    """The log of one pubend: what a crash keeps, and what waits for the flush."""

    durable: list[Record] = field(default_factory=list)
    waiting: list[AppendRecord] = field(default_factory=list)
    released: Tick = 0

    def recovered(self) -> Recovered:
        """What a restarted broker is told of this log."""
        ticks = [r.batch.last + 1 for r in self.durable if isinstance(r, BatchRecord)]
        reserved = [r.before for r in self.durable if isinstance(r, ReserveRecord)]
        released = [r.before for r in self.durable if isinstance(r, ReleaseRecord)]
        return Recovered(
            next_tick=max(ticks, default=0),
            reserved=max(reserved, default=0),
            released=max(released, default=0),
            starts=tuple(r for r in self.durable if isinstance(r, StartRecord)),
        )

    def held(self) -> list[Tick]:
        """The ticks of all events that are durable and not released."""
        batches = [record.batch for record in self.durable if isinstance(record, BatchRecord)]
        return [int(tick) for batch in batches for tick in batch.ticks if tick >= self.released]

    def read(self, ticks: TickRange, rows_max: int) -> tuple[TickRange, EventBatch | None]:
        """The lowest `rows_max` rows of `ticks`, and for which ticks these are all rows."""
        parts = [
            part
            for record in self.durable
            if isinstance(record, BatchRecord)
            and len(part := record.batch.between(max(ticks.start, self.released), ticks.stop))
        ]
        batch = EventBatch.joined(parts) if parts else None
        if batch is not None and len(batch) > rows_max:
            batch = batch.slice(0, rows_max)
            ticks = TickRange(ticks.start, batch.last + 1)
        return ticks, batch


@dataclass(slots=True)
class Subscriber:
    """A client of an edge, and what was handed to it that it has not taken."""

    edge: BrokerId
    stalled: bool = False
    queue: list[tuple[int, PubendId, Tick]] = field(default_factory=list)


@dataclass(slots=True)
class Host:
    """All brokers of one scenario with their links, disks, clocks and clients."""

    network: Network
    #: What each wall clock is ahead of the time since the beginning, in ticks.
    clocks: dict[BrokerId, Tick] = field(default_factory=dict)
    now_ms: int = 0
    lines: list[str] = field(default_factory=list)
    history: list[Entry] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    hidden: set[str] = field(default_factory=lambda: set(HIDDEN))
    brokers: dict[BrokerId, Broker] = field(default_factory=dict)
    incarnations: dict[BrokerId, int] = field(default_factory=dict)
    timers: dict[BrokerId, int] = field(default_factory=dict)
    logs: dict[PubendId, Log] = field(default_factory=dict)
    #: Brokers whose disk does not flush by itself, and those whose disk fails.
    disk_waits: set[BrokerId] = field(default_factory=set)
    disk_fails: set[BrokerId] = field(default_factory=set)
    subscribers: dict[SubscriptionId, Subscriber] = field(default_factory=dict)
    slots: dict[BrokerId, dict[int, SubscriptionId]] = field(default_factory=dict)
    #: Connections that do not work, in both directions.
    cut: set[Way] = field(default_factory=set)
    #: What is held back: per way the kind of message (None for all), and the messages.
    holds: dict[Way, str | None] = field(default_factory=dict)
    held: dict[Way, list[Message]] = field(default_factory=dict)
    #: Per way the kinds of the next messages to lose or to repeat.
    losses: dict[Way, list[str | None]] = field(default_factory=dict)
    repeats: dict[Way, list[str | None]] = field(default_factory=dict)
    #: What happens next: to which incarnation of which broker.
    coming: deque[tuple[BrokerId, int, Event]] = field(default_factory=deque)
    _tokens: int = 0
    _shown_ms: int = 0

    # ---- what a story can do -------------------------------------------------------------------------

    def start(self) -> None:
        """Start all brokers and bring all links up."""
        self.logs = {pubend: Log() for pubend in sorted(self.network.pubends)}
        for broker in sorted(self.network.cell_of):
            self._start_broker(broker)
        for one, other in self.network.connections():
            self._link(one, other, up=True)
        self.settle()

    def set_clock(self, broker: BrokerId, tick: Tick) -> None:
        """Set a wall clock, which runs on from there."""
        self.clocks[broker] = tick - self.now_ms * TICKS_PER_MS

    def publish(self, pubend: PubendId, rows: pa.RecordBatch) -> None:
        """One publisher hands over rows at once."""
        self._tokens += 1
        place = self.network.pubends[pubend]
        self._feed(place.broker, PublishRequested(pubend=pubend, token=self._tokens, rows=rows))

    def subscribe(self, edge: BrokerId, request: SubscribeRequested, account: Account) -> None:
        """A new client subscribes at an edge."""
        self.subscribers[request.subscription] = Subscriber(edge)
        self.ledger.accounts[request.subscription] = account
        self._feed(edge, request)

    def change(self, request: FilterChangeRequested, accepts: Callable[[Row], bool]) -> None:
        """A client wants other events."""
        self.ledger.accounts[request.subscription].changes.append(accepts)
        self._feed(self.subscribers[request.subscription].edge, request)

    def unsubscribe(self, subscription: SubscriptionId) -> None:
        """A client goes away."""
        gone = self.subscribers.pop(subscription)
        self._feed(gone.edge, UnsubscribeRequested(subscription=subscription))
        self._report_taken(gone.edge, {serial for serial, _, _ in gone.queue})

    def crash(self, broker: BrokerId, *, silently: bool) -> None:
        """Stop a broker; its soft state, its clients and what was not flushed are gone."""
        linked = [each for each in self.network.neighbours(broker) if self._connected(broker, each)]
        del self.brokers[broker]
        self.timers.pop(broker, None)
        for pubend, place in self.network.pubends.items():
            if place.broker == broker:
                self.logs[pubend].waiting.clear()
        for subscription in [name for name, each in self.subscribers.items() if each.edge == broker]:
            del self.subscribers[subscription]
        for way in [way for way in self.held if broker in way]:
            del self.held[way]
        for neighbour in linked if not silently else []:
            self._feed(neighbour, LinkDown(neighbour=broker))

    def restart(self, broker: BrokerId) -> None:
        """Start a broker again from what its disk has kept."""
        self._start_broker(broker)
        for neighbour in self.network.neighbours(broker):
            if self._connected(broker, neighbour):
                self._link(broker, neighbour, up=True)

    def cut_link(self, one: BrokerId, other: BrokerId, *, silently: bool) -> None:
        """Break a connection; silently means that nobody is told."""
        for way in ((one, other), (other, one)):
            self.cut.add(way)
            self.held.pop(way, None)
        if not silently:
            self._link(one, other, up=False)

    def heal_link(self, one: BrokerId, other: BrokerId) -> None:
        """Mend a connection."""
        self.cut -= {(one, other), (other, one)}
        self._link(one, other, up=True)

    def release(self, way: Way, *, backwards: bool) -> None:
        """Let go what was held, the last first when `backwards`."""
        self.holds.pop(way)
        messages = self.held.pop(way, [])
        for message in reversed(messages) if backwards else messages:
            self._feed(way[1], MessageReceived(sender=way[0], message=message))

    def flush(self, broker: BrokerId) -> None:
        """Make everything durable that waits for the disk of a broker."""
        for pubend, log in self.logs.items():
            if self.network.pubends[pubend].broker == broker and log.waiting:
                for append in log.waiting:
                    self._keep(append)
                self._feed(broker, RecordDurable(pubend=pubend, token=log.waiting[-1].token))
                log.waiting = []

    def take(self, subscription: SubscriptionId) -> None:
        """A client that had stopped takes what waits for it, and goes on taking."""
        subscriber = self.subscribers[subscription]
        subscriber.stalled = False
        queue, subscriber.queue = subscriber.queue, []
        if queue:
            self._show(subscriber.edge, None, f"taken {_waiting_text(queue)} by {subscription}")
        for _, pubend, tick in queue:
            self.ledger.take(subscription, pubend, tick)
        self._report_taken(subscriber.edge, {serial for serial, _, _ in queue})

    def overflow(self, subscription: SubscriptionId) -> None:
        """The queue of a client is full: throw it away and report the client as slow."""
        subscriber = self.subscribers[subscription]
        queue, subscriber.queue = subscriber.queue, []
        positions: dict[PubendId, Tick] = {}
        for _, pubend, tick in queue:
            positions.setdefault(pubend, tick)
        self._show(subscriber.edge, None, f"thrown away {_waiting_text(queue)} for {subscription}")
        self._feed(subscriber.edge, SubscriberSlow(subscription=subscription, positions=positions))
        self._report_taken(subscriber.edge, {serial for serial, _, _ in queue})

    def wait(self, duration_ms: int) -> None:
        """Let time pass: timers fire in order, and messages flow between them."""
        until_ms = self.now_ms + duration_ms
        while self.timers and min(self.timers.values()) <= until_ms:
            self.now_ms = max(self.now_ms, min(self.timers.values()))
            self.settle()
        self.now_ms = until_ms

    def settle(self) -> None:
        """Let everything happen that takes no time."""
        for _ in range(STEPS_MAX):
            if self.coming:
                broker, incarnation, event = self.coming.popleft()
                if broker in self.brokers and self.incarnations[broker] == incarnation:
                    self._step(broker, event)
            elif due := sorted((at, broker) for broker, at in self.timers.items() if at <= self.now_ms):
                broker = due[0][1]
                del self.timers[broker]
                self._step(broker, TimerFired())
            else:
                return
        raise AssertionError(f"not quiet after {STEPS_MAX} steps: a loop of messages or timers")

    def say(self, line: str) -> None:
        """Print a line; the time stands above it when it has changed since the last one."""
        if self._shown_ms != self.now_ms:
            self._shown_ms = self.now_ms
            self.lines.append(f"at {self.now_ms} ms")
        self.lines.append(line.rstrip())

    # ---- what brokers ask for ------------------------------------------------------------------------

    def _step(self, broker: BrokerId, event: Event) -> None:
        self.history.append((self.now_ms, broker, event))
        if isinstance(event, MessageReceived):
            self._show(event.sender, broker, describe(event.message))
        machine = self.brokers[broker]
        effects = machine.step(
            event, Now(ms=self.now_ms, clock=self.clocks[broker] + self.now_ms * TICKS_PER_MS)
        )
        machine.check()
        # The effects of one step have no order, so a confirmation may stand behind its first delivery.
        for effect in sorted(effects, key=lambda each: not isinstance(each, CONFIRMS)):
            self.history.append((self.now_ms, broker, effect))
            self._perform(broker, effect)

    def _perform(self, broker: BrokerId, effect: Effect) -> None:
        match effect:
            case SendMessage(to=to, message=message):
                self._send((broker, to), message)
            case StartTimer(at_ms=at_ms):
                self.timers[broker] = at_ms
            case Deliver():
                self._deliver(broker, effect)
            case ConfirmSubscription(subscription=subscription, slot=slot, pubend=pubend, start=start):
                self.slots[broker][slot] = subscription
                self.ledger.accounts[subscription].starts[pubend] = start
                self._show(broker, None, describe(effect))
            case ConfirmChange(subscription=subscription, pubend=pubend, since=since):
                self.ledger.accounts[subscription].changed.setdefault(pubend, []).append(since)
                self._show(broker, None, describe(effect))
            case AppendRecord():
                self._append(broker, effect)
            case ReadRecords(pubend=pubend, ticks=ticks, rows_max=rows_max):
                self._show(broker, None, describe(effect))
                ticks, batch = self.logs[pubend].read(ticks, rows_max)
                self._feed(broker, RecordsRead(pubend=pubend, ticks=ticks, batch=batch))
            case TrimLog(pubend=pubend, before=before):
                self._show(broker, None, describe(effect))
                self.logs[pubend].released = max(self.logs[pubend].released, before)
            case AcceptPublish() | RefusePublish():
                self._show(broker, None, describe(effect))

    def _send(self, way: Way, message: Message) -> None:
        sender, to = way
        if not self._connected(sender, to) or self._armed(self.losses, way, message):
            self._show(sender, to, f"{describe(message)}  (lost)")
        elif way in self.holds and _is_kind(message, self.holds[way]):
            self._show(sender, to, f"{describe(message)}  (held)")
            self.held.setdefault(way, []).append(message)
        else:
            self._feed(to, MessageReceived(sender=sender, message=message))
            if self._armed(self.repeats, way, message):
                self._feed(to, MessageReceived(sender=sender, message=message))

    def _deliver(self, edge: BrokerId, effect: Deliver) -> None:
        text = describe(effect, self.slots[edge])
        stalled = [name for name, each in self.subscribers.items() if each.edge == edge and each.stalled]
        waiting = sorted({self.slots[edge][int(slot)] for slot in effect.slots}.intersection(stalled))
        self._show(edge, None, text + (f"  ({' '.join(waiting)} waits)" if waiting else ""))
        for row, slot in zip(effect.rows, effect.slots, strict=True):
            pubend = effect.pubends[0 if effect.source is None else int(effect.source[row])]
            tick = int(effect.batch.ticks[row])
            subscription = self.slots[edge][int(slot)]
            if subscription in stalled:
                self.subscribers[subscription].queue.append((effect.serial, pubend, tick))
            else:
                self.ledger.take(subscription, pubend, tick)
        self._report_taken(edge, {effect.serial})

    def _report_taken(self, edge: BrokerId, serials: Iterable[int]) -> None:
        waiting = {s for each in self.subscribers.values() if each.edge == edge for s, _, _ in each.queue}
        for serial in sorted(set(serials) - waiting):
            self._feed(edge, DeliveryTaken(serial=serial))

    def _append(self, broker: BrokerId, append: AppendRecord) -> None:
        pubend, token = append.pubend, append.token
        if broker in self.disk_fails:
            self._show(broker, None, f"{describe(append)}  (failed)")
            self._feed(broker, RecordFailed(pubend=pubend, token=token, reason="disk full"))
        elif broker in self.disk_waits:
            self._show(broker, None, f"{describe(append)}  (not flushed)")
            self.logs[pubend].waiting.append(append)
        else:
            self._show(broker, None, describe(append))
            self._keep(append)
            self._feed(broker, RecordDurable(pubend=pubend, token=token))

    def _keep(self, append: AppendRecord) -> None:
        self.logs[append.pubend].durable.append(append.record)
        if isinstance(append.record, BatchRecord):
            batch = append.record.batch
            for tick, row in zip(batch.ticks, batch.columns.to_pylist(), strict=True):
                self.ledger.durable(append.pubend, int(tick), row)

    # ---- small parts ---------------------------------------------------------------------------------

    def _start_broker(self, broker: BrokerId) -> None:
        incarnation = self.incarnations[broker] = self.incarnations.get(broker, 0) + 1
        places = self.network.pubends.items()
        recovered = {pubend: self.logs[pubend].recovered() for pubend, p in places if p.broker == broker}
        self.brokers[broker] = Broker(self.network, broker, incarnation, recovered)
        self.slots[broker] = {}
        self._feed(broker, BrokerStarted())

    def _link(self, one: BrokerId, other: BrokerId, *, up: bool) -> None:
        for broker, neighbour in ((one, other), (other, one)):
            self._feed(broker, LinkUp(neighbour=neighbour) if up else LinkDown(neighbour=neighbour))

    def _connected(self, one: BrokerId, other: BrokerId) -> bool:
        return one in self.brokers and other in self.brokers and (one, other) not in self.cut

    def _feed(self, broker: BrokerId, event: Event) -> None:
        if broker in self.brokers:
            self.coming.append((broker, self.incarnations[broker], event))

    def _armed(self, armed: Mapping[Way, list[str | None]], way: Way, message: Message) -> bool:
        for kind in armed.get(way, []):
            if _is_kind(message, kind):
                armed[way].remove(kind)
                return True
        return False

    def _show(self, broker: BrokerId, to: BrokerId | None, text: str) -> None:
        kind = text.split(maxsplit=1)[0]
        if kind == "sideways":
            kind = text.partition(": ")[2].split(maxsplit=1)[0]
        if kind not in self.hidden:
            width = max(len(name) for name in self.network.cell_of)
            arrow = "  " if to is None else "->"
            self.say(f"{broker:<{width}} {arrow} {to or '':<{width}}  {text}")


def _is_kind(message: Message, kind: str | None) -> bool:
    if kind is None or describe(message).split()[0] == kind:
        return True
    return isinstance(message, SidewaysMessage) and _is_kind(message.message, kind)


def _waiting_text(queue: list[tuple[int, PubendId, Tick]]) -> str:
    return " ".join(f"{pubend} {tick}" for _, pubend, tick in queue) or "nothing"
