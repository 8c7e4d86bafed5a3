"""How does a network run without a network? One host for many brokers, in virtual time.

Everything that a real host gets from its surroundings (clocks, timers, sockets, disks, subscribers)
comes from one queue of moments and one random stream. Nothing else may decide anything, so that the same
seed always tells the same story. The host promises as little as the contract allows: it performs the
effects of a step in any order, fires timers late, and loses what it may lose.
"""

from __future__ import annotations

import heapq
import zlib
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import TypeAlias, assert_never

import pyarrow as pa

from gapless.errors import SupersededError
from gapless.model.batch import EventBatch
from gapless.model.epochs import LIFE_STEP
from gapless.model.ids import BrokerId, PubendId, SubscriptionId, TopicId
from gapless.model.ticks import TICK_MAX, TICKS_PER_MS, Tick
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
    TellHorizon,
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
from gapless.protocol.messages import KnowledgeMessage, Message
from gapless.protocol.network import Network
from gapless.protocol.path import untold
from gapless.protocol.pubend import Recovered
from gapless.protocol.trace import Entry
from gapless.sim.checkers import Violation, invariant_broken
from gapless.sim.conditions import Condition
from gapless.sim.connections import End, SimulatedConnection
from gapless.sim.disk import SimulatedLog
from gapless.sim.network import SimulatedLink, Weather, ends, handed_over
from gapless.sim.nodes import Pace, SimulatedNode
from gapless.sim.observer import Observer, Wish
from gapless.sim.publishing import PublishingHost
from gapless.sim.reporting import report_heard, report_sent
from gapless.sim.subscribers import Subscriber, restored
from gapless.sim.subscribing import SubscribingHost
from gapless.sim.translate import condition_of

Action: TypeAlias = Callable[[], None]
_ForSubscribers: TypeAlias = ConfirmSubscription | ConfirmChange | Deliver | TellHorizon

SECOND_US = 1_000_000
#: The wall clock at the virtual time 0, so that clocks may jump back without becoming negative.
CLOCK_START: Tick = 1_000 * SECOND_US
#: How many events and effects are kept to tell what led to a violation.
TRACE_ENTRIES_MAX = 200_000
#: A broker's memory is checked once in this many of its steps.
STEPS_PER_WEIGHING = 20
#: The more rows a broker holds, the longer it takes to check it.
ROWS_PER_CHECK = 30
STEPS_PER_CHECK_MAX = 20


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
        #: How many logs there were.
        self._logs = 0
        self.links = {ends(a, b): SimulatedLink(ends(a, b)) for a, b in network.connections()}
        self.nodes = {name: SimulatedNode(name) for name in sorted(network.cell_of)}
        for pubend, place in sorted(network.pubends.items()):
            self.nodes[place.broker].logs[pubend] = self.new_log(place.broker)
            self.log_began(pubend, self.nodes[place.broker].logs[pubend])
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
            try:
                action()
            except AssertionError as error:
                raise invariant_broken(error, "a host") from error
        self.time_us = max(self.time_us, time_us)

    def clock(self, broker: BrokerId) -> Tick:
        """What the wall clock of a broker says."""
        return CLOCK_START + self.time_us + self.nodes[broker].clock_offset

    # ---- brokers -------------------------------------------------------------------------------------

    def start(self, broker: BrokerId) -> None:
        """Boot a broker that is down, from what is on its disk."""
        node = self.nodes[broker]
        assert node.broker is None, f"{broker} runs already"
        node.incarnation += LIFE_STEP
        node.numbers.add(node.incarnation)
        node.lives += 1
        node.base_ms = self.random.randrange(1_000_000)
        recovered = {pubend: log.recovered() for pubend, log in node.logs.items()}
        network = (self.network.described or self.network).extended(node.created)
        node.broker = Broker(network, broker, node.incarnation, recovered)
        node.publishing = PublishingHost(self, node, identities_max=self.pace.identities_max)
        node.subscribing = SubscribingHost(self, node)
        self.feed(broker, BrokerStarted())
        requests = tuple(restored(each, network) for each in node.desk.by_name.values())
        if requests:
            self.feed(broker, SubscriptionsRestored(requests=requests))
        node.subscribing.restore()
        for link in self._links_of[broker]:
            self._refresh(link)
        for observer in self.observers:
            observer.restarted(broker)

    def crash(self, broker: BrokerId) -> None:
        """Lose everything but the disk, and of that what was not flushed."""
        node = self.nodes[broker]
        assert node.broker is not None, f"{broker} is down already"
        assert node.subscribing is not None
        node.subscribing.crashed()
        node.broker = node.publishing = node.subscribing = None
        for connection in node.connections:
            connection.node.drop()
        node.connections = []
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
        life = node.lives
        for action in inbox:
            if node.lives == life:
                action()

    def feed(self, broker: BrokerId, event: Event) -> None:
        """Let something happen to a broker, if it is there to notice."""
        node = self.nodes[broker]
        if node.broker is None:
            return
        if node.stalled:
            node.inbox.append(partial(self.feed, broker, event))
            return
        self._record(broker, event)
        self.steps += 1
        node.steps += 1
        for observer in self.observers:
            observer.stepped(broker)
        if isinstance(event, MessageReceived):
            report_heard(self.observers, broker, (event.message, *event.also))
        now = Now(self.time_us // 1_000 + node.base_ms, self.clock(broker))
        try:
            effects = node.broker.step(event, now)
            if node.steps % node.steps_per_check == 0:
                node.broker.check()
            self._perform(node, effects)
        except Violation:
            raise
        except SupersededError as behind:
            self._begin_anew(node, behind)
            return
        except Exception as error:
            raise invariant_broken(error, broker) from error
        if node.steps % STEPS_PER_WEIGHING == 0:
            weight = node.broker.memory()
            often = self.pace.steps_per_check + weight.rows // ROWS_PER_CHECK
            node.steps_per_check = min(STEPS_PER_CHECK_MAX, often)
            for observer in self.observers:
                observer.weighed(broker, weight.row_bytes, weight.runs)

    def new_log(self, broker: BrokerId) -> SimulatedLog:
        """An empty log for a pubend of a broker, which begins now."""
        self._logs += 1
        return SimulatedLog(f"log{self._logs}", self.clock(broker))

    def log_began(self, pubend: PubendId, log: SimulatedLog) -> None:
        """Tell the observers that from now on a pubend has this log."""
        for observer in self.observers:
            observer.log_began(pubend, log.log_id)

    def _begin_anew(self, node: SimulatedNode, behind: SupersededError) -> None:
        """A broker has fallen behind what others have seen of it: it starts again, in a life above that."""
        self.faults["fell_behind"] += behind.older_copy is None
        self.faults["older_copy_noticed"] += behind.older_copy is not None
        assert node.broker is not None
        for pubend, tick in untold(node.broker.inspect().paths).items():
            node.logs[pubend].untold_from = tick
        self.crash(node.name)
        node.incarnation = max(node.incarnation, behind.incarnation)
        if behind.older_copy is not None:
            log = node.logs[PubendId(behind.older_copy)]
            log.log_id, log.began = self.new_log(node.name).log_id, behind.began
            log.lost_before = behind.lost_before
            self.log_began(PubendId(behind.older_copy), log)
        self.start(node.name)

    def _later(self, node: SimulatedNode, delay_us: int, event: Event) -> None:
        """Feed an event later, unless the broker has crashed by then."""
        self.after(delay_us, partial(self._feed_life, node, node.lives, event))

    def _feed_life(self, node: SimulatedNode, life: int, event: Event) -> None:
        if node.lives == life:
            self.feed(node.name, event)

    # ---- effects -------------------------------------------------------------------------------------

    def _perform(self, node: SimulatedNode, effects: list[Effect]) -> None:
        for effect in self._shuffled(effects):
            self._record(node.name, effect)
            match effect:
                case SendMessage():
                    self._send(node, effect.to, effect.message)
                case AppendRecord() | ReadRecords():
                    self._use_disk(node, effect)
                case TrimLog():
                    assert node.publishing is not None
                    node.publishing.trim(effect.pubend, effect.before)
                case AcceptPublish() | RefusePublish():
                    self._answer_publisher(node, effect)
                case ConfirmSubscription() | ConfirmChange() | Deliver() | TellHorizon():
                    self._serve(node, effect)
                case RememberTopics():
                    self._remember(node, effect.creations)
                case StartTimer():
                    self._start_timer(node, effect)
                case _:
                    assert_never(effect)

    def _serve(self, node: SimulatedNode, effect: _ForSubscribers) -> None:
        if self.pace.sessions or isinstance(effect, TellHorizon):
            assert node.subscribing is not None
            node.subscribing.heard(effect)
        elif isinstance(effect, ConfirmSubscription):
            self._confirm(node, effect)
        elif isinstance(effect, ConfirmChange):
            self._confirm_change(node, effect)
        else:
            self._deliver(node, effect)

    def _shuffled(self, effects: list[Effect]) -> list[Effect]:
        """Any order, except that a log and a subscriber's queue are filled in the order of their numbers."""
        assert sum(isinstance(effect, StartTimer) for effect in effects) <= 1, "two timers in one step"
        if len(effects) < 2:
            return effects
        shuffled = list(effects)
        self.random.shuffle(shuffled)
        numbered = AppendRecord | ConfirmSubscription | ConfirmChange | Deliver | TellHorizon
        in_order = iter([effect for effect in effects if isinstance(effect, numbered)])
        return [next(in_order) if isinstance(effect, numbered) else effect for effect in shuffled]

    def _start_timer(self, node: SimulatedNode, effect: StartTimer) -> None:
        node.timer += 1
        fires_us = (effect.at_ms - node.base_ms) * 1_000 + self.random.randint(0, effect.spread_ms * 1_000)
        # A timer that is due already still takes a moment, so that time cannot stand still.
        self.after(max(100, fires_us - self.time_us), partial(self._fire, node, node.timer))

    def _fire(self, node: SimulatedNode, timer: int) -> None:
        if node.timer == timer:
            self.feed(node.name, TimerFired())

    # ---- disk ----------------------------------------------------------------------------------------

    def _use_disk(self, node: SimulatedNode, effect: AppendRecord | ReadRecords) -> None:
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

    def _flush(self, node: SimulatedNode, pubend: PubendId) -> None:
        if node.logs[pubend].begin_flush():
            delay = self.random.randint(self.pace.flush_us_min, self.pace.flush_us_max)
            self.after(delay, partial(self._flushed, node, node.lives, pubend))

    def _flushed(self, node: SimulatedNode, life: int, pubend: PubendId) -> None:
        if node.broker is None or node.lives != life:
            return
        log = node.logs[pubend]
        done = log.end_flush(self.random, node.disk_full, node.refuses)
        self._report_durable(pubend, log, done.batches)
        for observer in self.observers:
            observer.flushed(pubend, done.written)
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

    def _remember(self, node: SimulatedNode, creations: tuple[Creation, ...]) -> None:
        delay = self.random.randint(self.pace.flush_us_min, self.pace.flush_us_max)
        self.after(delay, partial(self._remembered, node, node.lives, creations))

    def _remembered(self, node: SimulatedNode, life: int, creations: tuple[Creation, ...]) -> None:
        if node.broker is None or node.lives != life:
            return
        node.created.update(creations)
        recovered: dict[PubendId, Recovered] = {}
        for each in creations:
            if each.broker == node.name:
                if each.pubend not in node.logs:
                    node.logs[each.pubend] = self.new_log(node.name)
                    self.log_began(each.pubend, node.logs[each.pubend])
                recovered[each.pubend] = node.logs[each.pubend].recovered()
                assert node.publishing is not None
                node.publishing.host(each.pubend)
        self.feed(node.name, TopicsLearned(creations=creations, recovered=recovered))

    def _report_durable(self, pubend: PubendId, log: SimulatedLog, batches: Sequence[EventBatch]) -> None:
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
        for receiver, message, also in handed_over(held):
            self._forward(link, receiver, message, *also)

    def _refresh(self, link: SimulatedLink) -> None:
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

    def _send(self, node: SimulatedNode, to: BrokerId, message: Message) -> None:
        report_sent(self.observers, self.network, node.name, to, message)
        link = self.links[ends(node.name, to)]
        if not link.up:
            return
        if link.stalled:
            link.held.append((to, message))
        else:
            self._forward(link, to, message)

    def _forward(self, link: SimulatedLink, to: BrokerId, message: Message, *also: KnowledgeMessage) -> None:
        for at_us in link.arrivals(to, self.time_us, self.weather, self.random, self.faults):
            arrive = partial(self._arrive, link, link.generation, to, message, *also)
            self.after(at_us - self.time_us, arrive)

    def _arrive(
        self, link: SimulatedLink, generation: int, to: BrokerId, message: Message, *also: KnowledgeMessage
    ) -> None:
        if link.generation != generation:
            return
        if link.stalled:
            link.held += [(to, each) for each in (message, *also)]
            return
        one, other = link.ends
        sender = other if to == one else one
        self.feed(to, MessageReceived(sender=sender, message=message, also=also))

    # ---- publishers and subscribers ------------------------------------------------------------------

    def connect(self, broker: BrokerId, client: End, peer: End) -> SimulatedConnection:
        """A connection of a client to a broker that is up. It ends with that broker's life."""
        node = self.nodes[broker]
        connection = SimulatedConnection(self, self.random, client, peer)
        node.connections = [each for each in node.connections if not each.is_broken]
        node.connections.append(connection)
        return connection

    def connections(self) -> list[SimulatedConnection]:
        """All connections of clients that work."""
        every = [each for node in self.nodes.values() for each in node.connections]
        return [each for each in every if not each.is_broken]

    def publish(self, pubend: PubendId, rows: pa.RecordBatch) -> bool:
        """Hand rows straight to a pubend, for experiments; False when its broker is not there."""
        node = self.nodes[self.network.pubends[pubend].broker]
        if node.broker is None or pubend not in node.broker.network.pubends:
            # It is down, or has lost the folder that knew of the topic and not heard of it again.
            return False
        # Below the tokens of sessions.
        self._tokens -= 1
        node.requests[self._tokens] = rows.column("id").to_pylist()
        self.feed(node.name, PublishRequested(pubend=pubend, token=self._tokens, rows=rows))
        return True

    def _answer_publisher(self, node: SimulatedNode, effect: AcceptPublish | RefusePublish) -> None:
        ids = node.requests.pop(effect.token, None)
        if ids is None:
            assert node.publishing is not None
            node.publishing.answer(effect)
        elif isinstance(effect, AcceptPublish):
            for observer in self.observers:
                observer.accepted(effect.pubend, ids, list(effect.ticks))

    def topics_at(self, edge: BrokerId) -> list[TopicId]:
        """The topics that an edge knows, or knew when it was up last."""
        node = self.nodes[edge]
        described = self.network.described or self.network
        network = described.extended(node.created) if node.broker is None else node.broker.network
        return sorted(network.topics)

    def subscribe(
        self, wish: Wish, queue_max: int, take_us_max: int, *, durable: bool = False
    ) -> Subscriber | None:
        """Subscribe; None when the broker is not there, or has lost the topic with its folder.

        A durable subscription outlives the broker.
        """
        edge = BrokerId(wish.edge)
        node = self.nodes[edge]
        if node.broker is None or TopicId(wish.topic) not in node.broker.network.topics:
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

    def _confirm(self, node: SimulatedNode, effect: ConfirmSubscription) -> None:
        subscriber = node.desk.by_name.get(effect.subscription)
        if subscriber is not None:
            for observer in self.observers:
                observer.reads(effect.subscription, effect.pubend, effect.log)
        if subscriber is not None and effect.pubend not in subscriber.kept:
            subscriber.kept[effect.pubend] = effect.start
            for observer in self.observers:
                observer.confirmed(effect.subscription, effect.pubend, effect.start, effect.log)
        if subscriber is not None:
            subscriber.logs[effect.pubend] = effect.log
            if effect.lost_from is not None:
                self._report_gap(subscriber, effect.pubend, effect.lost_from, effect.start)
            elif effect.pubend not in subscriber.heard:
                subscriber.heard[effect.pubend] = (effect.log, TICK_MAX)
        node.desk.confirm(effect.subscription, effect.slot)

    def _report_gap(self, subscriber: Subscriber, pubend: PubendId, lost_from: Tick, start: Tick) -> None:
        log, told = subscriber.heard.get(pubend, ("", TICK_MAX))
        if log == subscriber.logs[pubend] and told <= lost_from:
            # A host with an older copy of its folder does not know that its subscriber was told before.
            return
        subscriber.heard[pubend] = (subscriber.logs[pubend], lost_from)
        # What it has of the old log may reach further than the host knew: it takes nothing below for new.
        start = max(start, subscriber.positions.get(pubend, start))
        subscriber.kept[pubend] = start
        for observer in self.observers:
            observer.gap(subscriber.wish.subscription, pubend, lost_from, start)

    def _confirm_change(self, node: SimulatedNode, effect: ConfirmChange) -> None:
        condition = node.desk.confirm_change(effect.subscription, effect.pubend, effect.since)
        if condition is not None:
            assert condition_of(condition) == effect.condition, f"{effect.subscription} asked for {condition}"
            for observer in self.observers:
                observer.changed(effect.subscription, effect.pubend, condition, effect.since)

    def _deliver(self, node: SimulatedNode, effect: Deliver) -> None:
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
                    self.after(delay_us, partial(self._report_ready, node, node.lives, subscriber))

    def _report_ready(self, node: SimulatedNode, life: int, subscriber: Subscriber) -> None:
        has_room = len(subscriber.queue) < subscriber.queue_max and not subscriber.dropped
        if node.lives == life and has_room and not (subscriber.closed or subscriber.away):
            subscription = SubscriptionId(subscriber.wish.subscription)
            self.feed(node.name, SubscriberReady(subscription=subscription))

    def _visit(self, node: SimulatedNode, subscriber: Subscriber) -> None:
        if subscriber.queue and not (subscriber.visiting or subscriber.paused):
            subscriber.visiting = True
            self.after(self.random.randint(1, subscriber.take_us_max), partial(self._take, node, subscriber))

    def _take(self, node: SimulatedNode, subscriber: Subscriber) -> None:
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

    def _report_slow(self, node: SimulatedNode, subscriber: Subscriber) -> None:
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

    def _report_taken(self, node: SimulatedNode, serials: list[int]) -> None:
        for serial in serials:
            self.feed(node.name, DeliveryTaken(serial=serial))

    def _record(self, broker: BrokerId, item: Event | Effect) -> None:
        self.trace.append((self.time_us // TICKS_PER_MS, broker, item))
        text = f"{self.time_us} {broker} {type(item).__name__}"
        self.fingerprint = zlib.crc32(text.encode(), self.fingerprint)
