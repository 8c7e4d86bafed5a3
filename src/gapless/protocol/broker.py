"""How do the machines of one node work together? One `step`: events in, effects out.

Per pubend a broker has a *path*: the istream, an ostream per downstream cell, the pubend itself where
it lives, and the local subends where there are any. Knowledge enters a path from upstream or from the
pubend and flows to the ostreams and the subends; curiosity and acks flow the other way.

The simulator and the real node host this very object; nothing in it knows which one it is in.

Implements docs/protocol.md, sections 4 to 10 and 12.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import assert_never

from gapless.errors import UsageError
from gapless.model.epochs import Epochs, first_epoch
from gapless.model.ids import BrokerId, CellId, PubendId
from gapless.model.logs import LogLife
from gapless.model.packed import fitting
from gapless.model.ticks import TICK_MAX, TICK_MIN, Tick, TickSet
from gapless.protocol.acks import AckRuns, folded
from gapless.protocol.allowance import Allowance
from gapless.protocol.creations import Creation
from gapless.protocol.deadlines import Deadlines
from gapless.protocol.edge import Edge
from gapless.protocol.effects import AcceptPublish, Effect, RememberTopics, SendMessage, StartTimer
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
    RetentionMoved,
    RoamersReached,
    SubscribeRequested,
    SubscriberEvent,
    SubscriberReady,
    SubscriberSlow,
    SubscriptionsRestored,
    TimerFired,
    TopicsLearned,
    UnsubscribeRequested,
)
from gapless.protocol.holdings import Holdings
from gapless.protocol.joining import joined
from gapless.protocol.links import Links
from gapless.protocol.marks import mark, reached
from gapless.protocol.messages import (
    AckExpectedMessage,
    AckMessage,
    AdvertisementAckMessage,
    AdvertisementMessage,
    CellMessage,
    KnowledgeMessage,
    LinkStatusMessage,
    LogKnownMessage,
    Message,
    NackMessage,
    SidewaysMessage,
    StartGrantMessage,
    StartRequestMessage,
    TopicsMessage,
    topics_messages,
)
from gapless.protocol.network import Network
from gapless.protocol.ostream import CellFilter, Telling
from gapless.protocol.parts import BrokerParts
from gapless.protocol.path import Path, Standing, logs_told, memory_of
from gapless.protocol.peers import Peers
from gapless.protocol.pubend import Pubend, Recovered
from gapless.protocol.routing import Routing
from gapless.protocol.step import Memory, Step

FIRST_TIME_TWICE = mark("first_time_twice", "first-time knowledge of known ticks was not new")
ACK_EXPECTED_PASSED = mark("ack_expected_passed", "AckExpected was passed on to a cell that had not acked")
TOPICS_OVERTAKEN = mark("topics_overtaken", "a message spoke of a topic that nobody had told of yet")
TOPICS_TOLD_AGAIN = mark("topics_told_again", "a neighbour knew other topics and was told of all")
HANDED_STRAIGHT = mark("handed_straight", "new events went straight from a pubend to readers at its broker")
LOG_RENEWED = mark("log_renewed", "a pubend had begun another log: what was known of the old one was dropped")
LOG_CONTRADICTED = mark("log_contradicted", "what came from upstream contradicted the log that is known")
OLD_ACK_IGNORED = mark("old_ack_ignored", "an ack was about another log than the one that is known")
ACK_EXPECTED_ANSWERED = mark("ack_expected_answered", "AckExpected was answered with an ack by a router")


class Broker:
    """All machines of one node."""

    def __init__(
        self, network: Network, broker: BrokerId, incarnation: int, recovered: Mapping[PubendId, Recovered]
    ) -> None:
        """A broker with nothing but its logs. The host keeps `incarnation`, which grows with every start.

        Raises UsageError when the network has no such broker.
        """
        if broker not in network.cell_of:
            raise UsageError("E147", f"the network has no broker '{broker}'")
        self.network = network
        self.broker = broker
        self._cell = network.cell_of[broker]
        self._incarnation = incarnation
        self._recovered = dict(recovered)
        self._links = Links(network, broker)
        self._peers = Peers(network, broker)
        self._routing = Routing(network, broker, first_epoch(incarnation))
        self._paths = {each: Path.made(network, self._cell, each) for each in sorted(network.pubends)}
        istreams = {pubend: path.istream for pubend, path in self._paths.items()}
        self._edge = Edge(network, broker, incarnation, istreams) if broker in network.edges else None
        self._timer_ms: int | None = None
        self._deadlines = Deadlines()
        self._holdings = Holdings()
        #: What the last step changed, for `check`.
        self._touched: set[PubendId] = set()

    def step(self, event: Event, now: Now) -> list[Effect]:
        """Apply one event and return what the host must do. The only way state changes.

        Raises UsageError, before anything changes, when the caller broke the contract, and PeerError
        when a neighbour broke the protocol.
        """
        step = Step(now, is_due=self._timer_ms is None or now.ms >= self._timer_ms)
        self._apply(event, step)
        if step.is_due and self._timer_ms is not None and not isinstance(event, TimerFired):
            # The timer is due: its work is done here and now, so that no flood of messages can put it off.
            self._woken(step)
        if step.is_due or not isinstance(event, PublishRequested):  # A publish settles nothing.
            self._settle(step)
        self._touched = step.touched | step.straight
        return step.effects

    def check(self) -> None:
        """Raise if the last step broke an invariant. Runs after every step in tests and simulation."""
        for pubend in self._touched:
            self._paths[pubend].check()
        if self._edge is not None:
            self._edge.check(self._touched)

    def memory(self) -> Memory:
        """How much the broker holds."""
        return memory_of(self._paths.values())

    def inspect(self) -> BrokerParts:
        """Its machines, for status, `why` and traces: to look at, not to change."""
        return BrokerParts(self._paths, self._links, self._edge, self._wants)

    def _apply(self, event: Event, step: Step) -> None:
        match event:
            case BrokerStarted():
                self._begin(sorted(self.network.pubends), step)
            case PublishRequested():
                self._publish(event, step)
            case RecordDurable() | RecordFailed() | RecordsRead() | RetentionMoved():
                self._log_answered(event, step)
            case MessageReceived():
                self._heard(event, step)
            case LinkUp():
                self._link_up(event.neighbour, step)
            case LinkDown():
                self._links.down(event.neighbour, step.now)
            case (
                SubscribeRequested()
                | SubscriptionsRestored()
                | FilterChangeRequested()
                | UnsubscribeRequested()
                | DeliveryTaken()
                | SubscriberReady()
                | SubscriberSlow()
                | RoamersReached()
            ):
                self._subscriber_acted(event, step)
            case TopicsLearned():
                self._extend(event, step)
            case TimerFired():
                self._woken(step)
            case _:
                assert_never(event)

    def _heard(self, event: MessageReceived, step: Step) -> None:
        messages: Sequence[Message] = (event.message,)
        if event.also and isinstance(event.message, KnowledgeMessage):
            rows_max = self.network.parameters.message_rows_max
            messages = joined((event.message, *event.also), rows_max, self._is_news)
        understood = [self._peers.check(event.sender, message, step.now.clock) for message in messages]
        self._links.heard(event.sender, step.now)
        for message, is_understood in zip(messages, understood, strict=True):
            if is_understood:
                self._received(event.sender, message, step)
            else:
                # It has overtaken the news of a creation. Whatever it said will be said again.
                reached(TOPICS_OVERTAKEN)

    def _link_up(self, neighbour: BrokerId, step: Step) -> None:
        if neighbour not in self.network.neighbours(self.broker):
            raise UsageError("E148", f"'{neighbour}' is not a neighbour of '{self.broker}'")
        self._links.up(neighbour, step.now)
        step.effects += self._routing.link_up(neighbour)
        step.effects += logs_told(self._paths.values(), self.network, [neighbour])
        self._tell_topics([neighbour], self.network.created, step)

    def _extend(self, event: TopicsLearned, step: Step) -> None:
        """The host has written creations down: grow, and tell the neighbours."""
        before, network = self.network, self.network.extended(event.creations)
        if network is before:
            return
        self.network = self._links.network = network
        self._peers = Peers(network, self.broker)
        self._routing.extend(network)
        self._recovered.update(event.recovered)
        fresh = sorted(set(network.pubends) - set(before.pubends))
        self._paths.update((pubend, Path.made(self.network, self._cell, pubend)) for pubend in fresh)
        if self._edge is not None:
            self._edge.extend(network, {pubend: self._paths[pubend].istream for pubend in fresh})
        self._begin(fresh, step)
        up = [each for each in network.neighbours(self.broker) if self._links.is_up(each)]
        self._tell_topics(up, network.created - before.created, step)
        # What was said of their logs when the links came up was not understood, or not known here.
        step.effects += logs_told([self._paths[pubend] for pubend in fresh], network, up)
        for path in (self._paths[each] for each in fresh if self._paths[each].may_ack(self._cell)):
            self._send_up(path, path.log_wanted(), step)

    def _tell_topics(self, neighbours: Sequence[BrokerId], creations: Iterable[Creation], step: Step) -> None:
        for message in topics_messages(creations):
            step.effects += [SendMessage(to=neighbour, message=message) for neighbour in neighbours]

    def _news_told(self, sender: BrokerId, message: LinkStatusMessage | TopicsMessage, step: Step) -> None:
        if isinstance(message, TopicsMessage):
            self._topics_told(message, step)
            return
        self._links.status(sender, message)
        if message.topics != self.network.created_digest and self.network.created:
            reached(TOPICS_TOLD_AGAIN)
            self._tell_topics([sender], self.network.created, step)

    def _topics_told(self, message: TopicsMessage, step: Step) -> None:
        wider = self.network.extended(message.creations)
        fresh = wider.created - self.network.created
        if fresh:
            step.effects.append(RememberTopics(creations=tuple(sorted(fresh, key=lambda each: each.age))))

    def _log_answered(
        self, event: RecordDurable | RecordFailed | RecordsRead | RetentionMoved, step: Step
    ) -> None:
        pubend = self._hosted(event.pubend)
        step.used.add(event.pubend)
        match event:
            case RecordDurable():
                effects, knowledge, grants = pubend.durable(event.token, step.now)
                step.effects += effects
                if not self._straight(knowledge, step):
                    self._tell(knowledge, step)
                for grant in grants:
                    self._grant(grant, step)
            case RecordFailed():
                step.effects += pubend.failed(event.token, event.reason)
            case RecordsRead():
                effects, knowledge = pubend.read(event)
                step.effects += effects
                self._tell(knowledge, step)
            case RetentionMoved():
                step.effects += pubend.retention_moved(event.kept_from)
            case _:
                assert_never(event)

    def _subscriber_acted(self, event: SubscriberEvent, step: Step) -> None:
        edge = self._subends()
        match event:
            case SubscribeRequested():
                edge.subscribe(event)
                self._subscriptions_changed(step)
            case SubscriptionsRestored():
                edge.restore(event.requests)
                self._subscriptions_changed(step)
            case FilterChangeRequested():
                edge.change(event)
                self._subscriptions_changed(step)
            case UnsubscribeRequested():
                edge.unsubscribe(event.subscription)
                self._subscriptions_changed(step)
            case DeliveryTaken():
                for serial in (event.serial, *event.also):
                    step.touched.update(edge.taken(serial))
            case SubscriberReady():
                step.touched.update(edge.ready(event.subscription))
            case SubscriberSlow():
                step.touched.update(edge.slow(event))
            case RoamersReached():
                step.touched.update(edge.roamed(event))
            case _:
                assert_never(event)

    def _begin(self, pubends: Sequence[PubendId], step: Step) -> None:
        """These pubends are new to this life: begin those that live here, and look what is wanted of them."""
        for pubend in pubends:
            if self.network.pubends[pubend].broker == self.broker:
                log = self._recovered.get(pubend, Recovered())
                source = Pubend.recover(pubend, self.network.parameters, log, step.now, self._incarnation)
                self._paths[pubend].pubend = source
                self._paths[pubend].istream.log = source.log
                # The past below the first event, and all that was released, is silent for ever.
                self._tell([source.final()], step)
        if self._edge is not None:
            self._subscriptions_changed(step)

    def _publish(self, event: PublishRequested, step: Step) -> None:
        # When the pubend wants to be woken does not depend on what waits for the disk.
        pubend = self._hosted(event.pubend)
        schema = self.network.topics[self.network.pubends[event.pubend].topic]
        rows = fitting(event.rows, schema)
        if not rows.num_rows:
            # Nothing to log and nothing to tell: it is as durable as it will ever be.
            step.effects.append(AcceptPublish(pubend=event.pubend, token=event.token, ticks=range(0)))
            return
        step.effects += pubend.publish(event, rows, step.now)

    def _received(self, sender: BrokerId, message: Message, step: Step) -> None:
        match message:
            case KnowledgeMessage() | AckExpectedMessage() | StartGrantMessage():
                self._upstream_said(sender, message, step)
            case AckMessage():
                self._acked(sender, message, step)
            case NackMessage():
                self._nacked(sender, message, step)
            case StartRequestMessage():
                self._start_requested(message, step)
            case LogKnownMessage():
                self._log_known(message, step)
            case AdvertisementMessage():
                self._advertised(sender, message, step)
            case AdvertisementAckMessage():
                self._routing.acknowledged(sender, message)
            case LinkStatusMessage() | TopicsMessage():
                self._news_told(sender, message, step)
            case SidewaysMessage():
                step.effects += self._links.pass_on(message.message.pubend, message)
            case _:
                assert_never(message)

    def _upstream_said(
        self, sender: BrokerId, message: KnowledgeMessage | AckExpectedMessage | StartGrantMessage, step: Step
    ) -> None:
        path = self._paths[message.pubend]
        if not isinstance(message, StartGrantMessage):
            path.last_sender = sender
        if isinstance(message, KnowledgeMessage) and self._edge is not None:
            self._edge.check_stamps(message.runs)
        if not self._is_current(path, message.log, step):
            return
        if isinstance(message, KnowledgeMessage):
            self._tell([message], step)
        elif isinstance(message, AckExpectedMessage):
            self._ack_expected(message.pubend, message.before, step)
        else:
            self._grant(message, step)

    def _acked(self, sender: BrokerId, message: AckMessage, step: Step) -> None:
        path = self._paths[message.pubend]
        if message.log != path.istream.log.id:
            # Whoever sent it has not heard of this log, unless it is us who have not.
            reached(OLD_ACK_IGNORED)
            step.effects += logs_told([path], self.network, [sender])
            return
        path.ostreams[self.network.cell_of[sender]].acked_by_cell(message.runs)
        path.ack_dirty = True
        step.touched.add(message.pubend)

    def _is_current(self, path: Path, log: LogLife, step: Step) -> bool:
        """Whether what upstream says of a log may be used; takes up a log that is new here."""
        if log is path.istream.log:
            return True
        standing = path.standing(log)
        if standing is Standing.CONTRADICTED:
            reached(LOG_CONTRADICTED)
            known = path.log_known(step.now.ms, self.network.parameters.advertise_repeat_ms)
            if known is not None:
                self._send_up(path, known, step)
            return False
        if standing is not Standing.CURRENT:
            self._take_up(path, log, standing, step)
        return True

    def _take_up(self, path: Path, log: LogLife, standing: Standing, step: Step) -> None:
        """A pubend speaks from another log, or from a later life of its host: everybody below hears of it."""
        pubend = path.istream.pubend
        if standing is Standing.RENEWED:
            reached(LOG_RENEWED)
            path.renew(log)
            if self._edge is not None:
                self._edge.renewed(pubend)
        path.istream.log = log
        path.ack_again()
        step.touched.add(pubend)
        for cell in path.ostreams:
            self._send_down(path, cell, path.log_only(), step)

    def _log_known(self, message: LogKnownMessage, step: Step) -> None:
        """Somebody below knows of a log that contradicts what it was told: the pubend has to hear of it."""
        path = self._paths[message.pubend]
        if path.pubend is not None:
            path.pubend.contradicted(self.broker, message)
            return
        standing = path.standing(message.log)
        if standing in (Standing.LATER_LIFE, Standing.RENEWED):
            self._take_up(path, message.log, standing, step)
        self._send_up(path, message, step)

    def _tell(self, knowledge: list[KnowledgeMessage], step: Step) -> None:
        """Knowledge has come: join it, and pass the news on to every cell that may need it."""
        for message in knowledge:
            pubend, path = message.pubend, self._paths[message.pubend]
            first_time = message.first_time
            if first_time and path.knows(message.batch):
                reached(FIRST_TIME_TWICE)
                first_time = False
            step.touched.add(pubend)
            fresh, rows = path.istream.accumulate(message.runs, message.batch, message.final_before)
            if not fresh:
                continue
            path.ack_dirty = True
            for cell, ostream in path.ostreams.items():
                wants = self._wants(path, pubend, cell)
                route = self._links.route(pubend, cell, path.tree.children[cell])
                for telling in ostream.pass_on(fresh, rows, wants, first_time=first_time, route=route):
                    self._send_knowledge(path, cell, telling, step)

    def _is_news(self, message: KnowledgeMessage) -> bool:
        path = self._paths.get(message.pubend)
        return path is not None and not path.knows(message.batch)

    def _straight(self, knowledge: list[KnowledgeMessage], step: Step) -> bool:
        """Hand new events straight to local readers that lack nothing before them; says whether it did.

        Nearly all events of a broker that hosts the pubend and its readers are like that. The result is that
        of `_tell` and `_settle`, without looking for gaps, acks and deadlines that cannot be there.
        """
        if len(knowledge) != 1 or self._edge is None:
            return False
        [message] = knowledge
        pubend, batch, path = message.pubend, message.batch, self._paths[message.pubend]
        istream = path.istream
        if batch is None or path.ostreams or istream.asked or message.final_before != istream.final_before:
            return False
        delivers = self._edge.straight(pubend, message.runs[0], batch)
        if delivers is None:
            return False
        reached(HANDED_STRAIGHT)
        step.effects += delivers
        if delivers and istream.is_within_bounds:
            # The ack stays below the oldest untaken delivery, and the pubend wants to be woken no earlier.
            step.straight.add(pubend)
            step.used.discard(pubend)
        else:
            step.touched.add(pubend)
        return True

    def _send_knowledge(self, path: Path, cell: CellId, telling: Telling, step: Step) -> None:
        for message in path.told(telling, self.network.parameters.message_rows_max):
            if telling.to is not None and self._links.is_up(telling.to):
                step.effects.append(SendMessage(to=telling.to, message=message))
            else:
                self._send_down(path, cell, message, step)

    def _nacked(self, sender: BrokerId, message: NackMessage, step: Step) -> None:
        path = self._paths[message.pubend]
        ostream = path.ostreams[self.network.cell_of[sender]]
        wants = self._wants(path, message.pubend, ostream.cell)
        telling, unknown = ostream.answer(sender, message.ticks, path.istream.stream, wants)
        if telling is not None:
            self._send_knowledge(path, ostream.cell, telling, step)
        if unknown:
            self._ask(message.pubend, unknown, step)
        step.touched.add(message.pubend)

    def _ask(self, pubend: PubendId, ticks: TickSet, step: Step) -> None:
        """Ask upstream, or the pubend itself, for ticks that were not asked for just now."""
        path = self._paths[pubend]
        if path.pubend is not None:
            step.used.add(pubend)
            effects, knowledge = path.pubend.asked(ticks, step.now)
            step.effects += effects
            self._tell(knowledge, step)
            return
        fresh, repeated = path.istream.ask(ticks, step.now.ms)
        for ticks_now, sender in ((fresh, path.last_sender), (repeated, None)):
            # A question that got no answer goes to all of the cell: the last sender may have lost its way.
            for part in ticks_now:
                nack = NackMessage(pubend=pubend, ticks=part)
                assert path.upstream is not None, f"{self.broker} hosts {pubend}: nothing is upstream"
                step.effects += self._links.send_up(pubend, path.upstream, sender, nack, sideways=False)

    def _ack_expected(self, pubend: PubendId, before: Tick, step: Step) -> None:
        path = self._paths[pubend]
        step.touched.add(pubend)
        passed = False
        for cell, ostream in path.ostreams.items():
            if ostream.acked_under(self._wants(path, pubend, cell)) < before:
                reached(ACK_EXPECTED_PASSED)
                passed = True
                message = AckExpectedMessage(pubend=pubend, before=before, log=path.istream.log)
                self._send_down(path, cell, message, step)
        if self._edge is not None:
            self._edge.ack_expected(pubend, before, step.now)
        elif not passed:
            reached(ACK_EXPECTED_ANSWERED)
        path.ack_again()

    def _start_requested(self, message: StartRequestMessage, step: Step) -> None:
        path = self._paths[message.pubend]
        if path.pubend is None:
            self._send_up(path, message, step)
            return
        step.used.add(message.pubend)
        path.pubend.pass_old_log(message, step.now)
        known = self._routing.epochs_known(path.tree.root)
        effects, grants = path.pubend.start_requested(message, known.get(message.edge))
        step.effects += effects
        for grant in grants:
            self._grant(grant, step)

    def _grant(self, message: StartGrantMessage, step: Step) -> None:
        path = self._paths[message.pubend]
        if message.edge == self.broker:
            step.effects += self._subends().granted(message)
            step.touched.add(message.pubend)
            path.ack_dirty = True
            return
        cell = path.tree.towards(self._cell, self.network.cell_of[message.edge])
        if cell is not None:
            self._send_down(path, cell, message, step)

    def _advertised(self, sender: BrokerId, message: AdvertisementMessage, step: Step) -> None:
        step.effects += self._routing.received(sender, self._peers.fitting(message))
        for pubend, path in self._paths.items():
            if path.pubend is not None:
                effects, grants = path.pubend.advertised(self._routing.epochs_known(path.tree.root))
                if effects or grants:
                    step.used.add(pubend)
                step.effects += effects
                for grant in grants:
                    self._grant(grant, step)

    def _subscriptions_changed(self, step: Step) -> None:
        edge = self._subends()
        self._routing.wanted_here(*edge.changes(), edge.epochs())
        step.touched.update(self._paths)
        for path in self._paths.values():
            path.ack_dirty = True

    def _woken(self, step: Step) -> None:
        # With the heartbeat of the links everything is looked at: a change of a condition may be over, say.
        is_beat = step.now.ms >= self._links.deadline_ms()
        due = sorted(self._paths) if is_beat else self._deadlines.due(step.now.ms)
        step.touched.update(due)
        for pubend in due:
            path = self._paths[pubend]
            step.effects += [] if self._edge is None else self._edge.place(pubend)
            if path.pubend is not None and step.now.ms >= path.pubend.deadline_ms():
                wanted = self._is_wanted(path, pubend)
                effects, knowledge, expected = path.pubend.woken(step.now, wanted=wanted)
                step.effects += effects
                self._tell(knowledge, step)
                if expected is not None:
                    self._ack_expected(pubend, expected, step)

    def _settle(self, step: Step) -> None:
        """After every event: deliver, ask, ack, advertise, forget down to the bounds, set the timer."""
        if step.touched:
            if self._edge is not None:
                self._serve_subends(self._edge, step)
            for pubend in sorted(step.touched):
                if self._edge is not None:
                    step.effects += self._edge.horizons(pubend, step.now)
                self._ack(pubend, step)
        self._forget(step)
        if step.straight and not (step.is_due or step.touched or step.used):
            return  # It makes nobody due earlier.
        up = self._links.all_up()
        step.effects += self._links.woken(step.now)
        if up:
            step.effects += self._routing.woken(up, step.now)
        self._set_timer(up, step)

    def _serve_subends(self, edge: Edge, step: Step) -> None:
        # Asking a pubend of our own may bring knowledge at once, which may let subends advance again. The
        # next round asks for nothing that was asked in this one, so it is the last or the last but one.
        step.touched |= edge.related(step.touched)
        parameters = self.network.parameters
        left = Allowance.of(parameters.step_pairs_max)
        asked_here = True
        while asked_here:
            asked_here = False
            epoch = edge.epoch
            step.effects += edge.advance(set(step.touched), left)
            if edge.epoch != epoch:
                self._subscriptions_changed(step)
            for pubend in sorted(step.touched):
                for request in edge.start_requests(pubend, step.now):
                    self._start_requested(request, step)
                questions = edge.questions(pubend, step.now)
                # Cut where it begins, so that one lost nack costs little; routers pass the parts on whole.
                for part in questions.chopped(parameters.nack_ticks_max, parameters.question_parts_max):
                    self._ask(pubend, TickSet.of(part), step)
                    asked_here |= self._paths[pubend].pubend is not None

    def _ack(self, pubend: PubendId, step: Step) -> None:
        path = self._paths[pubend]
        if not path.ack_dirty and self._edge is None:
            return
        delay_ms = self.network.parameters.ack_delay_ms
        if path.ack_sent_ms is not None and step.now.ms < path.ack_sent_ms + delay_ms:
            path.ack_dirty = True
            return
        path.ack_dirty = False
        if self._edge is not None and not path.ostreams:
            # The common path: the same as before, found without folding anything.
            ack_of = (self._edge.acked(pubend), self._edge.ack_epoch(pubend))
            if ack_of == path.ack_of:
                return
            path.ack_of = ack_of
        runs = self._folded(path, pubend)
        if not runs or runs == path.ack_sent:
            return
        path.ack_sent, path.ack_sent_ms = runs, step.now.ms
        path.istream.settle(runs)
        if path.pubend is not None:
            step.effects += path.pubend.acked(runs)
        else:
            self._send_up(path, AckMessage(pubend=pubend, runs=runs, log=path.istream.log.id), step)

    def _folded(self, path: Path, pubend: PubendId) -> AckRuns:
        parts: list[list[tuple[Tick, Epochs]]] = [ostream.acked() for ostream in path.ostreams.values()]
        if self._edge is not None:
            acked = self._edge.acked(pubend)
            parts.append([(acked, self._edge.ack_stamp(pubend))] if acked > TICK_MIN else [])
        return folded(parts)

    def _forget(self, step: Step) -> None:
        """Forget what is beyond the bounds of the streams that changed, and of all streams together."""
        changed = sorted(step.touched | step.straight)
        for pubend in (each for each in changed if not self._paths[each].istream.is_within_bounds):
            self._paths[pubend].forget_to_bounds(*self._positions(pubend))
        bytes_max = self.network.parameters.broker_bytes_max
        step.touched.update(self._holdings.settle(self._paths, changed, bytes_max, self._positions))

    def _positions(self, pubend: PubendId) -> tuple[Tick, Tick]:
        """The local subends that are in step have had everything below; the lowest of the others is there."""
        return (TICK_MAX, TICK_MAX) if self._edge is None else self._edge.positions(pubend)

    def _set_timer(self, up: frozenset[BrokerId], step: Step) -> None:
        for pubend in step.touched | step.used:
            self._deadlines.put(pubend, self._deadline_ms(pubend))
        routing_ms = self._routing.deadline_ms(up) if up else None
        at = (self._links.deadline_ms(), routing_ms, self._deadlines.earliest())
        earliest = max(step.now.ms + 1, min(each for each in at if each is not None))
        if self._timer_ms != earliest:
            self._timer_ms = earliest
            step.effects.append(StartTimer(at_ms=earliest))

    def _deadline_ms(self, pubend: PubendId) -> int | None:
        """When a pubend must be looked at again even if nothing happens."""
        at = self._paths[pubend].deadlines_ms(self.network.parameters.ack_delay_ms)
        if self._edge is not None:
            at.append(self._edge.deadline_ms(pubend))
        return min((each for each in at if each is not None), default=None)

    def _send_down(self, path: Path, cell: CellId, message: CellMessage, step: Step) -> None:
        further = path.tree.children[cell]
        step.effects += self._links.send_down(message.pubend, cell, further, message)

    def _send_up(self, path: Path, message: CellMessage, step: Step) -> None:
        assert path.upstream is not None, f"{self.broker} hosts {message.pubend}: nothing is upstream"
        step.effects += self._links.send_up(message.pubend, path.upstream, path.last_sender, message)

    def _wants(self, path: Path, pubend: PubendId, cell: CellId) -> CellFilter:
        return self._routing.wants(path.tree.root, cell, self.network.pubends[pubend].topic)

    def _is_wanted(self, path: Path, pubend: PubendId) -> bool:
        """Whether anybody has subscribed to the topic of a pubend that lives here, as far as we know."""
        if self._edge is not None and self._edge.reads(pubend):
            return True
        return any(self._wants(path, pubend, cell).accepts for cell in path.ostreams)

    def _hosted(self, pubend: PubendId) -> Pubend:
        path = self._paths.get(pubend)
        if path is None or path.pubend is None:
            raise UsageError("E143", f"'{self.broker}' hosts no pubend '{pubend}'")
        return path.pubend

    def _subends(self) -> Edge:
        if self._edge is None:
            raise UsageError("E144", f"'{self.broker}' is not an edge: it takes no subscribers")
        return self._edge
