"""How does a network run without a network? One host for many brokers, in virtual time.

Everything that a real host gets from its surroundings (clocks, timers, sockets, disks, subscribers)
comes from one queue of moments and one random stream. Nothing else may decide anything, so that the same
seed always tells the same story. The host promises as little as the contract allows: it performs the
effects of a step in any order, fires timers late, and loses what it may lose.
"""

from __future__ import annotations

import heapq
import traceback
import zlib
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TypeAlias, assert_never

import pyarrow as pa

from gapless.model.batch import EventBatch
from gapless.model.ids import BrokerId, PubendId, SubscriptionId, TopicId
from gapless.model.ticks import TICKS_PER_MS, Tick
from gapless.protocol.broker import Broker
from gapless.protocol.creations import Creation
from gapless.protocol.effects import (
    AcceptPublish,
    AppendRecord,
    ConfirmChange,
    ConfirmSubscription,
    Deliver,
    Effect,
    ReadRecords,
    RefusePublish,
    ReleaseRecord,
    RememberTopics,
    SendMessage,
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
    Order,
    PublishRequested,
    RecordDurable,
    RecordFailed,
    RecordsRead,
    SubscribeRequested,
    SubscriberReady,
    SubscriberSlow,
    SubscriptionsRestored,
    TimerFired,
    TopicsLearned,
    UnsubscribeRequested,
)
from gapless.protocol.messages import KnowledgeMessage, Message, NackMessage, SidewaysMessage
from gapless.protocol.network import Network
from gapless.protocol.trace import Entry
from gapless.sim.checkers import Violation
from gapless.sim.conditions import Condition
from gapless.sim.disk import Log
from gapless.sim.network import Link, Weather, ends
from gapless.sim.observer import Observer, Wish
from gapless.sim.subscribers import Desk, Subscriber
from gapless.sim.translate import condition_of

Action: TypeAlias = Callable[[], None]

SECOND_US = 1_000_000
#: The wall clock at the virtual time 0, so that clocks may jump back without becoming negative.
CLOCK_START: Tick = 1_000 * SECOND_US
#: How many events and effects are kept to tell what led to a violation.
TRACE_ENTRIES_MAX = 200_000
#: A broker's memory is looked at once in so many of its steps.
STEPS_PER_WEIGHING = 20
#: The more rows a broker holds, the longer it takes to check it.
ROWS_PER_CHECK = 30
STEPS_PER_CHECK_MAX = 20


@dataclass(slots=True)
class Node:
    """One broker and what its host keeps for it, some of it longer than the broker lives."""

    name: BrokerId
    #: None while the broker is down.
    broker: Broker | None = None
    #: How often it was started. The host keeps it on its disk.
    incarnation: int = 0
    logs: dict[PubendId, Log] = field(default_factory=dict)
    #: The creations that are on its disk.
    created: set[Creation] = field(default_factory=set)
    desk: Desk = field(default_factory=Desk)
    #: It accepts everything and does nothing.
    stalled: bool = False
    inbox: list[Event] = field(default_factory=list)
    #: How far its wall clock is off.
    clock_offset: Tick = 0
    #: Its monotonic clock starts anywhere.
    base_ms: int = 0
    #: Counts the timers asked for: only the last one fires.
    timer: int = 0
    disk_full: bool = False
    steps: int = 0
    steps_per_check: int = 1
    #: The ids of the rows of each publish request that is not answered yet.
    requests: dict[int, list[int]] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Pace:
    """How fast the parts of a host are."""

    flush_us_min: int = 300
    flush_us_max: int = 8_000
    read_us_max: int = 3_000
    #: The odds that the record after the surviving ones is half written when a broker crashes.
    torn_odds: float = 0.3
    #: A broker's invariants are checked once in so many steps, or less often when it holds many rows.
    steps_per_check: int = 1


class World:
    """A network of brokers in virtual time. Only queued actions, and its driver between them, touch it."""

    def __init__(self, network: Network, random: Random, observers: Sequence[Observer], pace: Pace) -> None:
        self.network = network
        self.random = random
        self.observers = list(observers)
        self.pace = pace
        self.time_us = 0
        self.steps = 0
        #: What went wrong, by kind: counted by whoever does it.
        self.faults: Counter[str] = Counter()
        self.trace: deque[Entry] = deque(maxlen=TRACE_ENTRIES_MAX)
        #: A checksum of everything that happened: two equal runs have equal fingerprints.
        self.fingerprint = 0
        self.weather = Weather()
        self.links = {ends(a, b): Link(ends(a, b)) for a, b in network.connections()}
        self.nodes = {name: Node(name) for name in sorted(network.cell_of)}
        for pubend, place in sorted(network.pubends.items()):
            self.nodes[place.broker].logs[pubend] = Log()
        self._links_of = {
            name: [link for link in self.links.values() if name in link.ends] for name in self.nodes
        }
        self._queue: list[tuple[int, int, Action]] = []
        self._queued = 0
        self._tokens = 0

    # ---- time ----------------------------------------------------------------------------------------

    def after(self, delay_us: int, action: Action) -> None:
        """Do something `delay_us` from now."""
        self._queued += 1
        heapq.heappush(self._queue, (self.time_us + max(0, delay_us), self._queued, action))

    def run_until(self, time_us: int) -> None:
        """Let everything happen that happens up to `time_us`. Raises Violation."""
        while self._queue and self._queue[0][0] <= time_us:
            at_us, _, action = heapq.heappop(self._queue)
            self.time_us = max(self.time_us, at_us)
            action()
        self.time_us = max(self.time_us, time_us)

    def clock(self, broker: BrokerId) -> Tick:
        """What the wall clock of a broker says."""
        return CLOCK_START + self.time_us + self.nodes[broker].clock_offset

    # ---- brokers -------------------------------------------------------------------------------------

    def start(self, broker: BrokerId) -> None:
        """Boot a broker that is down, from what is on its disk."""
        node = self.nodes[broker]
        assert node.broker is None, f"{broker} runs already"
        node.incarnation += 1
        node.base_ms = self.random.randrange(1_000_000)
        recovered = {pubend: log.recovered() for pubend, log in node.logs.items()}
        network = (self.network.described or self.network).extended(node.created)
        node.broker = Broker(network, broker, node.incarnation, recovered)
        self.feed(broker, BrokerStarted())
        restored = tuple(_restored(each, network) for each in node.desk.by_name.values())
        if restored:
            self.feed(broker, SubscriptionsRestored(requests=restored))
        for link in self._links_of[broker]:
            self._refresh(link)
        for observer in self.observers:
            observer.restarted(broker)

    def crash(self, broker: BrokerId) -> None:
        """Lose everything but the disk, and of that what was not flushed."""
        node = self.nodes[broker]
        assert node.broker is not None, f"{broker} is down already"
        node.broker = None
        node.stalled = False
        node.inbox = []
        node.requests = {}
        node.timer += 1
        for pubend, log in node.logs.items():
            left = log.crash(self.random, self.pace.torn_odds)
            self.faults["unsynced_loss"] += left.records_lost > 0
            self.faults["torn_write"] += left.torn
            self._report_durable(pubend, log, left.batches)
        for subscriber in list(node.desk.by_name.values()):
            if not subscriber.durable:
                subscriber.closed = True
                for observer in self.observers:
                    observer.ended(subscriber.wish.subscription)
        node.desk = node.desk.survivors()
        for link in self._links_of[broker]:
            self._refresh(link)
        for observer in self.observers:
            observer.crashed(broker)

    def stall(self, broker: BrokerId) -> None:
        """From now on the broker accepts everything and does nothing."""
        self.nodes[broker].stalled = True

    def resume(self, broker: BrokerId) -> None:
        """The broker does all that it has put off."""
        node = self.nodes[broker]
        node.stalled = False
        inbox, node.inbox = node.inbox, []
        for event in inbox:
            self.feed(broker, event)

    def feed(self, broker: BrokerId, event: Event) -> None:
        """Let something happen to a broker, if it is there to notice."""
        node = self.nodes[broker]
        if node.broker is None:
            return
        if node.stalled:
            node.inbox.append(event)
            return
        self._record(broker, event)
        self.steps += 1
        node.steps += 1
        for observer in self.observers:
            observer.stepped(broker)
        now = Now(self.time_us // 1_000 + node.base_ms, self.clock(broker))
        try:
            effects = node.broker.step(event, now)
            if node.steps % node.steps_per_check == 0:
                node.broker.check()
            self._perform(node, effects)
        except Violation:
            raise
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error} ({place.filename.rpartition('/')[2]}:{place.lineno})"
            raise Violation("invariant", text, subject=broker) from error
        if node.steps % STEPS_PER_WEIGHING == 0:
            weight = node.broker.memory()
            often = self.pace.steps_per_check + weight.rows // ROWS_PER_CHECK
            node.steps_per_check = min(STEPS_PER_CHECK_MAX, often)
            for observer in self.observers:
                observer.weighed(broker, weight.row_bytes, weight.runs)

    def _later(self, node: Node, delay_us: int, event: Event) -> None:
        """Feed an event later, unless the broker has crashed by then."""
        self.after(delay_us, partial(self._feed_life, node, node.incarnation, event))

    def _feed_life(self, node: Node, incarnation: int, event: Event) -> None:
        if node.incarnation == incarnation:
            self.feed(node.name, event)

    # ---- effects -------------------------------------------------------------------------------------

    def _perform(self, node: Node, effects: list[Effect]) -> None:
        for effect in self._shuffled(effects):
            self._record(node.name, effect)
            match effect:
                case SendMessage():
                    self._send(node, effect.to, effect.message)
                case AppendRecord() | ReadRecords() | TrimLog():
                    self._use_disk(node, effect)
                case AcceptPublish() | RefusePublish():
                    self._answer_publisher(node, effect)
                case ConfirmSubscription():
                    self._confirm(node, effect)
                case ConfirmChange():
                    self._confirm_change(node, effect)
                case Deliver():
                    self._deliver(node, effect)
                case RememberTopics():
                    self._remember(node, effect.creations)
                case StartTimer():
                    self._start_timer(node, effect)
                case _:
                    assert_never(effect)

    def _shuffled(self, effects: list[Effect]) -> list[Effect]:
        """Any order, except that a log and a subscriber's queue are filled in the order of their numbers."""
        assert sum(isinstance(effect, StartTimer) for effect in effects) <= 1, "two timers in one step"
        if len(effects) < 2:
            return effects
        shuffled = list(effects)
        self.random.shuffle(shuffled)
        numbered = AppendRecord | ConfirmSubscription | ConfirmChange | Deliver
        in_order = iter([effect for effect in effects if isinstance(effect, numbered)])
        return [next(in_order) if isinstance(effect, numbered) else effect for effect in shuffled]

    def _start_timer(self, node: Node, effect: StartTimer) -> None:
        node.timer += 1
        fires_us = (effect.at_ms - node.base_ms) * 1_000 + self.random.randint(0, effect.spread_ms * 1_000)
        # A timer that is due already still takes a moment, so that time cannot stand still.
        self.after(max(100, fires_us - self.time_us), partial(self._fire, node, node.timer))

    def _fire(self, node: Node, timer: int) -> None:
        if node.timer == timer:
            self.feed(node.name, TimerFired())

    # ---- disk ----------------------------------------------------------------------------------------

    def _use_disk(self, node: Node, effect: AppendRecord | ReadRecords | TrimLog) -> None:
        log = node.logs[effect.pubend]
        match effect:
            case AppendRecord():
                log.append(effect.token, effect.record)
                if isinstance(effect.record, ReleaseRecord):
                    for observer in self.observers:
                        observer.releasing(effect.pubend, effect.record.before)
                self._flush(node, effect.pubend)
            case ReadRecords():
                ticks, batch = log.read(effect.ticks, effect.rows_max)
                answer = RecordsRead(pubend=effect.pubend, ticks=ticks, batch=batch)
                self._later(node, self.random.randint(0, self.pace.read_us_max), answer)
            case TrimLog():
                log.trim(effect.before)

    def _flush(self, node: Node, pubend: PubendId) -> None:
        if node.logs[pubend].begin_flush():
            delay = self.random.randint(self.pace.flush_us_min, self.pace.flush_us_max)
            self.after(delay, partial(self._flushed, node, node.incarnation, pubend))

    def _flushed(self, node: Node, incarnation: int, pubend: PubendId) -> None:
        if node.broker is None or node.incarnation != incarnation:
            return
        log = node.logs[pubend]
        done = log.end_flush(self.random, node.disk_full)
        self._report_durable(pubend, log, done.batches)
        self._flush(node, pubend)
        if done.token is not None:
            self.feed(node.name, RecordDurable(pubend=pubend, token=done.token))
        for token in done.failed:
            self.faults["disk_full"] += 1
            self.feed(node.name, RecordFailed(pubend=pubend, token=token, reason="the disk is full"))

    def create(self, creation: Creation) -> bool:
        """Create a topic at its broker; False when it is not there to be asked."""
        node = self.nodes[creation.broker]
        if node.broker is None:
            return False
        self.network = self.network.extended([creation])
        self._remember(node, (creation,))
        return True

    def _remember(self, node: Node, creations: tuple[Creation, ...]) -> None:
        delay = self.random.randint(self.pace.flush_us_min, self.pace.flush_us_max)
        self.after(delay, partial(self._remembered, node, node.incarnation, creations))

    def _remembered(self, node: Node, incarnation: int, creations: tuple[Creation, ...]) -> None:
        if node.broker is None or node.incarnation != incarnation:
            return
        node.created.update(creations)
        for each in creations:
            if each.broker == node.name:
                node.logs.setdefault(each.pubend, Log())
        self.feed(node.name, TopicsLearned(creations=creations, recovered={}))

    def _report_durable(self, pubend: PubendId, log: Log, batches: Sequence[EventBatch]) -> None:
        for batch in batches:
            for observer in self.observers:
                observer.durable(pubend, batch.ticks.tolist(), batch.columns.to_pylist())
        for observer in self.observers:
            observer.released(pubend, log.released)

    # ---- links ---------------------------------------------------------------------------------------

    def cut(self, one: BrokerId, other: BrokerId) -> None:
        """Break a link until it is healed."""
        link = self.links[ends(one, other)]
        link.cut = True
        self._refresh(link)

    def heal(self, one: BrokerId, other: BrokerId) -> None:
        """Mend a link; it is up again as soon as both brokers are."""
        link = self.links[ends(one, other)]
        link.cut = False
        self._refresh(link)

    def stall_link(self, one: BrokerId, other: BrokerId) -> None:
        """From now on the link accepts messages and forwards none."""
        self.links[ends(one, other)].stalled = True

    def resume_link(self, one: BrokerId, other: BrokerId) -> None:
        """The link forwards what it has held back."""
        link = self.links[ends(one, other)]
        link.stalled = False
        held, link.held = link.held, []
        for receiver, message, also in _together(held):
            self._forward(link, receiver, message, *also)

    def _refresh(self, link: Link) -> None:
        up = not link.cut and all(self.nodes[end].broker is not None for end in link.ends)
        if up == link.up:
            return
        one, other = link.ends
        if up:
            link.connect()
            self.feed(one, LinkUp(neighbour=other))
            self.feed(other, LinkUp(neighbour=one))
        else:
            link.disconnect()
            self.feed(one, LinkDown(neighbour=other))
            self.feed(other, LinkDown(neighbour=one))

    def _send(self, node: Node, to: BrokerId, message: Message) -> None:
        self._report_sent(node.name, to, message)
        link = self.links[ends(node.name, to)]
        if not link.up:
            return
        if link.stalled:
            link.held.append((to, message))
        else:
            self._forward(link, to, message)

    def _forward(self, link: Link, to: BrokerId, message: Message, *also: KnowledgeMessage) -> None:
        for at_us in link.arrivals(to, self.time_us, self.weather, self.random, self.faults):
            arrive = partial(self._arrive, link, link.generation, to, message, *also)
            self.after(at_us - self.time_us, arrive)

    def _arrive(
        self, link: Link, generation: int, to: BrokerId, message: Message, *also: KnowledgeMessage
    ) -> None:
        if link.generation != generation:
            return
        if link.stalled:
            link.held += [(to, each) for each in (message, *also)]
            return
        one, other = link.ends
        sender = other if to == one else one
        self.feed(to, MessageReceived(sender=sender, message=message, also=also))

    def _report_sent(self, sender: BrokerId, to: BrokerId, message: Message) -> None:
        cell = self.network.cell_of[to]
        if isinstance(message, SidewaysMessage):
            cell, message = message.cell, message.message
        if isinstance(message, KnowledgeMessage) and message.batch is not None:
            ticks = message.batch.ticks.tolist()
            for observer in self.observers:
                observer.rows_sent(sender, to, cell, message.pubend, ticks)
        elif isinstance(message, NackMessage):
            for observer in self.observers:
                observer.nack_sent(sender, to, message.pubend, message.ticks.start, message.ticks.stop)

    # ---- publishers and subscribers ------------------------------------------------------------------

    def publish(self, pubend: PubendId, rows: pa.RecordBatch) -> bool:
        """Hand rows to a pubend; False when its broker is not there to take them."""
        node = self.nodes[self.network.pubends[pubend].broker]
        if node.broker is None:
            return False
        self._tokens += 1
        node.requests[self._tokens] = rows.column("id").to_pylist()
        self.feed(node.name, PublishRequested(pubend=pubend, token=self._tokens, rows=rows))
        return True

    def _answer_publisher(self, node: Node, effect: AcceptPublish | RefusePublish) -> None:
        ids = node.requests.pop(effect.token)
        if isinstance(effect, AcceptPublish):
            for observer in self.observers:
                observer.accepted(effect.pubend, ids, effect.ticks.tolist())

    def topics_at(self, edge: BrokerId) -> list[TopicId]:
        """The topics that an edge knows, or knew when it was up last."""
        node = self.nodes[edge]
        described = self.network.described or self.network
        network = described.extended(node.created) if node.broker is None else node.broker.network
        return sorted(network.topics)

    def subscribe(
        self, wish: Wish, queue_max: int, take_us_max: int, *, durable: bool = False
    ) -> Subscriber | None:
        """Subscribe; None when the broker is not there. A durable subscription outlives the broker."""
        edge = BrokerId(wish.edge)
        node = self.nodes[edge]
        if node.broker is None:
            return None
        for observer in self.observers:
            observer.subscribed(wish)
        subscriber = Subscriber(wish, queue_max, take_us_max, durable=durable)
        node.desk.by_name[wish.subscription] = subscriber
        request = SubscribeRequested(
            subscription=SubscriptionId(wish.subscription),
            topic=TopicId(wish.topic),
            condition=condition_of(wish.condition),
            order=Order.TOTAL if wish.total else Order.PUBLISHER,
            start=wish.wanted,
        )
        self.feed(edge, request)
        return subscriber

    def change(self, subscriber: Subscriber, condition: Condition) -> None:
        """The subscriber wants other events from now on."""
        wish = subscriber.wish
        for observer in self.observers:
            observer.changing(wish.subscription, condition)
        subscriber.changes.append(condition)
        subscriber.since.append({})
        request = FilterChangeRequested(
            subscription=SubscriptionId(wish.subscription), condition=condition_of(condition)
        )
        self.feed(BrokerId(wish.edge), request)

    def go_away(self, subscriber: Subscriber) -> bool:
        """The subscriber takes nothing until it is back; False when its broker is not there to be told."""
        node = self.nodes[BrokerId(subscriber.wish.edge)]
        if subscriber.closed or subscriber.away or node.broker is None or node.stalled:
            return False
        positions, done = node.desk.forsake(subscriber)
        name = SubscriptionId(subscriber.wish.subscription)
        self.feed(node.name, SubscriberSlow(subscription=name, positions=positions, away=True))
        self._report_taken(node, done)
        return True

    def come_back(self, subscriber: Subscriber) -> None:
        """The subscriber is there again, if its broker is."""
        node = self.nodes[BrokerId(subscriber.wish.edge)]
        if not subscriber.closed and subscriber.away and node.broker is not None:
            subscriber.away = False
            name = SubscriptionId(subscriber.wish.subscription)
            self.feed(node.name, SubscriberSlow(subscription=name, positions={}))

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """The subscriber goes away."""
        wish = subscriber.wish
        node = self.nodes[BrokerId(wish.edge)]
        for observer in self.observers:
            observer.ended(wish.subscription)
        done = node.desk.leave(subscriber)
        self.feed(node.name, UnsubscribeRequested(subscription=SubscriptionId(wish.subscription)))
        subscriber.forgotten = not node.stalled
        self._report_taken(node, done)

    def subscribers(self) -> list[Subscriber]:
        """Everyone who is subscribed now."""
        return [each for node in self.nodes.values() for each in node.desk.by_name.values()]

    def pause(self, subscriber: Subscriber, paused: bool) -> None:
        """Let a subscriber stop reading, or begin again."""
        subscriber.paused = paused
        self._visit(self.nodes[BrokerId(subscriber.wish.edge)], subscriber)

    def _confirm(self, node: Node, effect: ConfirmSubscription) -> None:
        subscriber = node.desk.by_name.get(effect.subscription)
        if subscriber is not None and effect.pubend not in subscriber.kept:
            subscriber.kept[effect.pubend] = effect.start
            for observer in self.observers:
                observer.confirmed(effect.subscription, effect.pubend, effect.start)
        node.desk.confirm(effect.subscription, effect.slot)

    def _confirm_change(self, node: Node, effect: ConfirmChange) -> None:
        condition = node.desk.confirm_change(effect.subscription, effect.pubend, effect.since)
        if condition is not None:
            assert condition_of(condition) == effect.condition, f"{effect.subscription} asked for {condition}"
            for observer in self.observers:
                observer.changed(effect.subscription, effect.pubend, condition, effect.since)

    def _deliver(self, node: Node, effect: Deliver) -> None:
        touched, done = node.desk.deliver(effect)
        for serial in done:
            self._later(node, 0, DeliveryTaken(serial=serial))
        for subscriber in touched:
            if subscriber.dropped:
                self.after(self.random.randint(0, 2_000), partial(self._report_slow, node, subscriber))
            else:
                self._visit(node, subscriber)
                if effect.laggard and self.random.random() < 0.5:
                    # Often before it has taken anything, and sometimes after it has taken all.
                    delay_us = self.random.randint(0, subscriber.take_us_max)
                    self.after(delay_us, partial(self._report_ready, node, node.incarnation, subscriber))

    def _report_ready(self, node: Node, incarnation: int, subscriber: Subscriber) -> None:
        has_room = len(subscriber.queue) < subscriber.queue_max and not subscriber.dropped
        if node.incarnation == incarnation and has_room and not (subscriber.closed or subscriber.away):
            subscription = SubscriptionId(subscriber.wish.subscription)
            self.feed(node.name, SubscriberReady(subscription=subscription))

    def _visit(self, node: Node, subscriber: Subscriber) -> None:
        if subscriber.queue and not (subscriber.visiting or subscriber.paused):
            subscriber.visiting = True
            self.after(self.random.randint(1, subscriber.take_us_max), partial(self._take, node, subscriber))

    def _take(self, node: Node, subscriber: Subscriber) -> None:
        subscriber.visiting = False
        if subscriber.closed or subscriber.paused or not subscriber.queue:
            return
        count = len(subscriber.queue)
        if self.random.random() < 0.3:
            count = self.random.randint(1, count)
        taken, done = node.desk.take(subscriber, count)
        for _, pubend, tick, row_id in taken:
            for observer in self.observers:
                observer.taken(subscriber.wish.subscription, pubend, tick, row_id)
        if subscriber.durable and self.random.random() < 0.3:
            # The host writes positions down now and then, and not all of them.
            subscriber.kept.update(subscriber.positions)
        self._visit(node, subscriber)
        self._report_taken(node, done)

    def _report_slow(self, node: Node, subscriber: Subscriber) -> None:
        if subscriber.closed or subscriber.away or not subscriber.dropped:
            return
        if node.stalled:
            # Until the broker knows, more may be delivered, and what comes after a gap must be dropped too.
            self.after(10_000, partial(self._report_slow, node, subscriber))
            return
        positions, done = node.desk.report(subscriber)
        self.faults["queue_overflow"] += 1
        subscription = SubscriptionId(subscriber.wish.subscription)
        self.feed(node.name, SubscriberSlow(subscription=subscription, positions=positions))
        self._report_taken(node, done)

    def _report_taken(self, node: Node, serials: list[int]) -> None:
        for serial in serials:
            self.feed(node.name, DeliveryTaken(serial=serial))

    def _record(self, broker: BrokerId, item: Event | Effect) -> None:
        self.trace.append((self.time_us // TICKS_PER_MS, broker, item))
        text = f"{self.time_us} {broker} {type(item).__name__}"
        self.fingerprint = zlib.crc32(text.encode(), self.fingerprint)


def _restored(subscriber: Subscriber, network: Network) -> SubscribeRequested:
    """What a host that starts says of a subscription that it kept."""
    wish = subscriber.wish
    start = dict(subscriber.kept)
    if wish.wanted is not None:
        # Pubends that had not confirmed it owe it what it asked for.
        start = dict.fromkeys(network.pubends_of(TopicId(wish.topic)), wish.wanted) | start
    return SubscribeRequested(
        subscription=SubscriptionId(wish.subscription),
        topic=TopicId(wish.topic),
        condition=condition_of(wish.condition),
        order=Order.TOTAL if wish.total else Order.PUBLISHER,
        start=start,
        changes=tuple(
            (condition_of(condition), dict(since))
            for condition, since in zip(subscriber.changes, subscriber.since, strict=True)
        ),
    )


def _together(
    held: list[tuple[BrokerId, Message]],
) -> list[tuple[BrokerId, Message, list[KnowledgeMessage]]]:
    """What was held back, as a host finds it: knowledge right behind knowledge is handed over with it."""
    found: list[tuple[BrokerId, Message, list[KnowledgeMessage]]] = []
    for to, message in held:
        behind = found and found[-1][0] == to and isinstance(found[-1][1], KnowledgeMessage)
        if behind and isinstance(message, KnowledgeMessage):
            found[-1][2].append(message)
        else:
            found.append((to, message, []))
    return found
