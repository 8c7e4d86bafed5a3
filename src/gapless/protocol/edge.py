"""How does one edge serve all its subscribers? Subscriptions, start ticks, deliveries and questions.

The edge numbers its subscription set with epochs, asks every pubend of a topic from which tick on a
new subscription is gapless, places confirmed subends into groups, and after each step lets the
groups advance and collects what they lack.

Implements docs/protocol.md, sections 8, 9 and 10.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count

from gapless.content.condition import Condition
from gapless.content.cost import placing_cost
from gapless.errors import SupersededError, UsageError
from gapless.model.batch import EventBatch
from gapless.model.epochs import EPOCH_ALL, EPOCH_NONE, Epoch, Epochs, first_epoch, incarnation_of
from gapless.model.ids import BrokerId, PubendId, SubscriptionId, TopicId
from gapless.model.stream import Run
from gapless.model.ticks import TICK_MAX, TICK_MIN, Tick, TickSet
from gapless.protocol.allowance import Allowance
from gapless.protocol.curiosity import NackClock
from gapless.protocol.door import PubendDoor, had_before
from gapless.protocol.effects import ConfirmChange, ConfirmSubscription, Deliver, Effect
from gapless.protocol.events import (
    FilterChangeRequested,
    Now,
    Order,
    RoamersReached,
    SubscribeRequested,
    SubscriberSlow,
)
from gapless.protocol.istream import Istream
from gapless.protocol.lane import Lane
from gapless.protocol.marks import mark, reached
from gapless.protocol.messages import StartGrantMessage, StartRequestMessage, Want
from gapless.protocol.network import Network
from gapless.protocol.parts import EdgeParts
from gapless.protocol.subend import Group
from gapless.protocol.subscription import Phase, Subend

LEFT_LIVE_PATH = mark("left_live_path", "a slow subscriber left the live path")
ACK_EXPECTED_HEARD = mark("ack_expected_heard", "an edge lacked ticks that the pubend expected to be acked")
LOG_GAP = mark("log_gap", "a subscription went on in another log, and its subscriber was told of the gap")
LOG_GAP_GREW = mark("log_gap_grew", "events of a lost log were thrown away before their subscriber had them")
PLACED_LATER = mark("placed_later", "more subscriptions were granted than are placed in one step")
CHANGE_OVER = mark("change_over", "the condition before a change was needed by nobody any more")

#: The conditions that a subscription may have at once: one, and those of changes that are under way.
PHASES_MAX = 8
#: What it takes to begin a subscription beside its condition, in units of about a microsecond.
PLACED_COST = 100


class Edge:
    """All subends of one broker."""

    def __init__(
        self, network: Network, broker: BrokerId, incarnation: int, istreams: dict[PubendId, Istream]
    ) -> None:
        self.broker = broker
        self._incarnation = incarnation
        self.epoch: Epoch = first_epoch(incarnation)
        self._parameters = network.parameters
        self._topics = network.topics
        self._serials = count(1)
        self._slots = count(0)
        self._free_slots: list[int] = []
        self._subends: dict[SubscriptionId, Subend] = {}
        #: What was not yet told to the routing: an item for each phase that began or ended.
        self._begun: list[Want] = []
        self._ended: list[Want] = []
        self._doors: dict[PubendId, PubendDoor] = {}
        self._publisher: dict[PubendId, Group] = {}
        self._total: dict[TopicId, Group] = {}
        #: Deliveries that were not taken, with the group, and the laggard if it was for one alone.
        self._waiting: dict[int, tuple[Group, Subend | None]] = {}
        #: The merge of subscriptions that are older than the newest pubend of their topic.
        self._older: dict[SubscriptionId, Group] = {}
        #: Groups that are cut take turns.
        self._turns = count(1)
        #: Gaps that grew, to be told of.
        self._grown: list[Effect] = []
        #: Members that have taken all below a change, and first wait for a start in a renewed log.
        self._put_off: list[tuple[Group, Subend, Tick]] = []
        self.extend(network, istreams)

    def inspect(self) -> EdgeParts:
        """Its machines, for status, `why` and traces: to look at, not to change."""
        return EdgeParts(self._doors, self._subends)

    def extend(self, network: Network, istreams: dict[PubendId, Istream]) -> None:
        """These pubends are new. Subscriptions of a topic that was there keep to the pubends that it had."""
        self._topics = network.topics
        for pubend, istream in istreams.items():
            lane = Lane(pubend, self.broker, istream, NackClock(self._parameters))
            self._publisher[pubend] = group = Group((lane,), self._parameters)
            self._doors[pubend] = PubendDoor(lane, network.pubends[pubend].topic, [group])
        for topic in sorted({self._doors[pubend].topic for pubend in istreams}):
            before = self._total.get(topic)
            if before is not None:
                alike = [each for each in self._subends.values() if each.topic == topic]
                self._older.update((each.subscription, self._merge(each)) for each in alike)
            self._total[topic] = self._group(network.pubends_of(topic))
            for pubend in self._total[topic].pubends:
                self._doors[pubend].groups.append(self._total[topic])

    def subscribe(self, event: SubscribeRequested) -> None:
        """Begin a new subscription under a new epoch. Raises UsageError before anything changes."""
        wanted = self._acceptable(event)
        self._subscribe(event, wanted)
        for pubend in wanted.keys() & event.logs.keys():
            self._doors[pubend].claims.add(event.subscription)

    def restore(self, events: Sequence[SubscribeRequested]) -> None:
        """Go on with subscriptions of an earlier life. Raises UsageError before anything changes.

        All of them ask a pubend for one start tick, the lowest that any of them needs, and each begins at its
        own: so it takes one grant to restore them, and not as many as there are positions.
        """
        starts = [self._acceptable(event) for event in events]
        lowest: dict[PubendId, Tick] = {}
        for wanted in starts:
            for pubend, start in wanted.items():
                lowest[pubend] = min(start, lowest.get(pubend, TICK_MAX))
        for event, wanted in zip(events, starts, strict=True):
            subend = self._subscribe(event, wanted)
            subend.away = True
            subend.phases[0].asked = {pubend: lowest[pubend] for pubend in wanted}
        for pubend, start in lowest.items():
            self._doors[pubend].floor = min(self._doors[pubend].floor, start)

    def _acceptable(self, event: SubscribeRequested) -> dict[PubendId, Tick]:
        """The start ticks that a new subscription asks for. Raises UsageError when it cannot be."""
        if event.subscription in self._subends:
            raise UsageError("E140", f"subscription '{event.subscription}' exists already at '{self.broker}'")
        if event.topic not in self._total:
            raise UsageError("E141", f"there is no topic '{event.topic}' with a pubend")
        wanted = self._wanted(event)
        conditions = [event.condition, *(condition for condition, _ in event.changes)]
        self._check(event.subscription, event.topic, conditions)
        return wanted

    def _subscribe(self, event: SubscribeRequested, wanted: Mapping[PubendId, Tick]) -> Subend:
        slot = self._free_slots.pop() if self._free_slots else next(self._slots)
        name, logs = event.subscription, dict(event.logs)
        subend = Subend(name, slot, event.topic, event.order, [], logs=logs, roams=event.roams)
        self._subends[event.subscription] = subend
        self._add_phase(subend, event.condition, wanted, {})
        for condition, since in event.changes:
            self._add_phase(subend, condition, {}, since)
        return subend

    def change(self, event: FilterChangeRequested) -> None:
        """Begin to change a condition under a new epoch. Raises UsageError before anything changes."""
        subend = self._subend(event.subscription)
        conditions = [*(phase.condition for phase in subend.phases), event.condition]
        self._check(event.subscription, subend.topic, conditions)
        self._add_phase(subend, event.condition, {}, {})

    def unsubscribe(self, subscription: SubscriptionId) -> None:
        """End a subscription under a new epoch. Raises UsageError when there is none of that name."""
        subend = self._subend(subscription)
        del self._subends[subscription]
        self.epoch += 1
        for pubend in self._merge(subend).pubends:
            door = self._doors[pubend]
            for phase in subend.phases:
                for waiting in (door.pending, door.ungranted, door.granted):
                    waiting.pop(phase.birth, None)
            door.roaming.discard(subscription)
            door.claims.discard(subscription)
            if not door.pending:
                door.floor = TICK_MAX
        self._ended += [(subend.topic, phase.condition) for phase in subend.phases]
        self._drop_outstanding(subend)
        for group in self._groups_of(subend):
            group.remove(subend)
        self._older.pop(subscription, None)
        self._free_slots.append(subend.slot)

    def _subend(self, subscription: SubscriptionId) -> Subend:
        subend = self._subends.get(subscription)
        if subend is None:
            raise UsageError("E142", f"there is no subscription '{subscription}' at '{self.broker}'")
        return subend

    def changes(self) -> tuple[list[Want], list[Want]]:
        """What has begun and what has ended to be wanted here since this was last asked."""
        changed = self._begun, self._ended
        self._begun, self._ended = [], []
        return changed

    def epochs(self) -> Epochs:
        """The stamp of the current subscription set."""
        return Epochs({self.broker: self.epoch})

    def check_stamps(self, runs: Sequence[Run]) -> None:
        """Raise SupersededError when a stamp speaks of subscriptions of a later life of this edge."""
        for _, _, stamp in runs:
            if self.epoch < (seen := stamp.get(self.broker)) < EPOCH_ALL:
                raise SupersededError(self.broker, self._incarnation, incarnation_of(seen))

    def renewed(self, pubend: PubendId) -> None:
        """A pubend has begun another log, which has lost its promises: all who read it ask for a start again.

        In total order those who wait keep their places on the other pubends.
        """
        door = self._doors[pubend]
        door.request, door.lives, door.lost_before = None, (), TICK_MIN
        door.lane.renewed()
        for subend in self._subends.values():
            group = self.group_of(subend.subscription, pubend)
            if group is not None and subend.phases[0].birth not in door.pending:
                self._displace(subend, group)
            for phase in subend.phases:
                if phase.birth in door.pending:
                    phase.granted.pop(pubend, None)
                    door.granted.pop(phase.birth, None)
                    door.ungranted[phase.birth] = (subend, phase)
        door.ungranted = dict(sorted(door.ungranted.items()))
        for each in sorted({each for group in door.groups for each in group.pubends}):
            self._doors[each].pending = dict(sorted(self._doors[each].pending.items()))

    def _displace(self, subend: Subend, group: Group) -> None:
        """Let a reader of a group wait for its start once more, at the position that it has."""
        first = subend.phases[0]
        held = {each: group.acked(each) for each in group.pubends}
        positions = group.positions(subend)
        first.wanted = {**first.wanted, **positions}
        first.asked.update(positions)
        first.granted.update((each, (at, group.horizon)) for each, at in positions.items())
        group.displace(subend)
        for each in group.pubends:
            door = self._doors[each]
            door.pending[first.birth] = (subend, first)
            # Without it nothing says that it may still need what it was handed and has not taken.
            door.floor = min(door.floor, held[each])

    def granted(self, message: StartGrantMessage) -> list[Effect]:
        """A pubend says from which tick on the subscriptions of an epoch are gapless.

        Raises SupersededError when it knows of a later life of this edge.
        """
        door = self._doors[message.pubend]
        if message.seen > self.epoch:
            raise SupersededError(self.broker, self._incarnation, incarnation_of(message.seen))
        if message.seen != EPOCH_NONE:
            # An older program names only the newest of them.
            door.lives = message.lives or (incarnation_of(message.seen),)
        door.lost_before = max(door.lost_before, message.lost_before)
        request = door.request
        if request is not None and request.wanted == message.wanted and request.epoch <= message.epoch:
            door.request = None
        for birth, (subend, phase) in list(door.ungranted.items()):
            if birth > message.epoch:
                break
            if phase.asked.get(message.pubend) == message.wanted:
                position = phase.wanted.get(message.pubend, TICK_MIN)
                start = max(message.start, position)
                if phase is subend.phases[0]:
                    start = max(start, self._lowest_start(subend, position, message))
                phase.granted[message.pubend] = (start, message.until)
                del door.ungranted[birth]
                door.granted[birth] = (subend, phase)
        return self.place(message.pubend)

    def _lowest_start(self, subend: Subend, position: Tick, message: StartGrantMessage) -> Tick:
        """Where a subscription begins at the earliest if its position is not in the log of the grant."""
        pubend, began, lost_before = message.pubend, message.log.began, message.lost_before
        if self._is_elsewhere(subend, pubend):
            # Not below its position: it would take an event there for one that it has. And not below what may
            # be lost: the gap before its start has to hold all of that.
            return max(position + 1, had_before(subend, pubend), began, lost_before)
        # Nobody says which log this position is in. There, only the one that is lost had events.
        is_lost = not subend.logs.get(pubend) and began < position < lost_before
        return lost_before if is_lost else TICK_MIN

    def place(self, pubend: PubendId) -> list[Effect]:
        """Let granted subscriptions begin, as many as one step may; the others have to be asked for again."""
        door = self._doors[pubend]
        effects: list[Effect] = []
        if not door.granted:
            return effects
        work = self._parameters.place_work_max
        while door.granted and work > 0:
            subend, phase = door.granted.pop(next(iter(door.granted)))
            work -= PLACED_COST + (0 if subend.away else placing_cost(phase.condition))
            effects += self._place(subend, pubend)
        if door.granted:
            reached(PLACED_LATER)
        for other in self._doors.values():
            if not other.pending:
                other.floor = TICK_MAX
        return effects

    def taken(self, serial: int) -> tuple[PubendId, ...]:
        """A delivery was taken by all who were to get it; returns the pubends to look at."""
        group, subend = self._waiting.pop(serial, (None, None))
        if group is None:
            return ()
        group.taken(serial, subend)
        if subend is None:
            return group.pubends
        subend.outstanding.discard(serial)
        subend.slow = False
        for each in self._groups_of(subend):
            each.stir(subend)
        return self._merge(subend).pubends

    def ready(self, subscription: SubscriptionId) -> tuple[PubendId, ...]:
        """A laggard was sent all that it was handed, and has room; returns the pubends to look at."""
        subend = self._subends.get(subscription)
        if subend is None or subend.away:
            return ()
        subend.slow = False
        lagging = [group.sent(subend) for group in self._groups_of(subend)]
        return self._merge(subend).pubends if any(lagging) else ()

    def _is_elsewhere(self, subend: Subend, pubend: PubendId) -> bool:
        """Whether the position of a subscription is in another log than the one that there is now."""
        own, now = subend.logs.get(pubend, ""), self._doors[pubend].lane.istream.log.id
        return bool(own and now) and own != now

    def slow(self, event: SubscriberSlow) -> tuple[PubendId, ...]:
        """A subscriber's queue overflowed: take it off the live path; returns the pubends to look at."""
        subend = self._subends.get(event.subscription)
        if subend is None:
            return ()
        reached(LEFT_LIVE_PATH)
        # Whoever comes back has shown no slowness yet.
        subend.slow = event.away or not subend.away
        subend.away = event.away
        self._drop_outstanding(subend)
        first = subend.phases[0]
        positions = dict(event.positions)
        for pubend, base in subend.bases.items():
            if positions.get(pubend, base) < base:
                # It had not taken all of the log that is lost.
                reached(LOG_GAP_GREW)
                self._grown.append(self._confirm(subend, pubend, base, positions[pubend]))
                positions[pubend] = base
        for group in self._groups_of(subend):
            if all(first.birth not in self._doors[p].pending for p in group.pubends):
                group.fall_behind(subend, positions)
            elif any(p in subend.logs for p in group.pubends):
                # It was displaced, and begins where it is now when it is placed again.
                back = {
                    p: at
                    for p, at in positions.items()
                    if p in group.pubends and at < first.wanted.get(p, TICK_MIN)
                }
                first.wanted = {**first.wanted, **back}
                first.granted.update(
                    (p, (at, first.granted[p][1])) for p, at in back.items() if p in first.granted
                )
        return self._merge(subend).pubends

    def _confirm(
        self, subend: Subend, pubend: PubendId, start: Tick, lost_from: Tick | None
    ) -> ConfirmSubscription:
        door = self._doors[pubend]
        return ConfirmSubscription(
            subscription=subend.subscription,
            slot=subend.slot,
            pubend=pubend,
            start=start,
            lives=door.lives,
            lost_before=door.lost_before,
            log=door.lane.istream.log.id,
            began=door.lane.istream.log.began,
            lost_from=lost_from,
        )

    def roamed(self, event: RoamersReached) -> tuple[PubendId, ...]:
        """Those who roam know how far they are; returns the pubends to look at."""
        return (event.pubend,) if self._doors[event.pubend].roamed(event) else ()

    def horizons(self, pubend: PubendId, now: Now) -> list[Effect]:
        """Have those who roam told how far they are, now and then."""
        door = self._doors[pubend]
        if not door.roaming or now.ms < door.horizon_at_ms:
            return []
        door.horizon_at_ms = now.ms + self._parameters.horizon_ms
        return door.horizon()

    def ack_expected(self, pubend: PubendId, before: Tick, now: Now) -> None:
        """The pubend misses acks below `before`: ask at once for everything that is unknown there."""
        door = self._doors[pubend]
        if before > self.acked(pubend):
            reached(ACK_EXPECTED_HEARD)
        door.lane.expected = max(door.lane.expected, before)
        door.lane.clock.hurry(now.ms)

    def related(self, pubends: set[PubendId]) -> set[PubendId]:
        """The pubends that total order ties to these: what one of them has, the others are waited for."""
        groups = {id(g): g for pubend in pubends for g in self._doors[pubend].groups if g.has_readers}
        return {pubend for group in groups.values() for pubend in group.pubends}

    def advance(self, pubends: set[PubendId], left: Allowance) -> list[Effect]:
        """Hand out what can be handed out on these pubends, or as much as is left of this step.

        Ends phases that are over, under a new epoch.
        """
        over = False
        effects, self._grown = self._grown, []
        put_off, self._put_off = self._put_off, []
        for group, subend, settled in put_off:
            if self._subends.get(subend.subscription) is subend:
                over |= self._pass_by(group, subend, settled)
        groups = {id(g): g for pubend in sorted(pubends) for g in self._doors[pubend].groups}
        for group in sorted(groups.values(), key=lambda each: each.turn):
            delivers = group.advance(self._serials, left)
            for deliver in delivers:
                self._waiting[deliver.serial] = (group, None)
            effects += delivers
            if not group.is_cut:
                group.turn = 0
            elif delivers:
                group.turn = next(self._turns)
            over |= self._catch_up_all(group, effects, left)
            for subend, settled in group.passed():
                over |= self._pass_by(group, subend, settled)
        self.epoch += over
        for pubend in pubends:
            door = self._doors[pubend]
            door.lane.settled_below(door.position)
        return effects

    def _catch_up_all(self, group: Group, effects: list[Effect], left: Allowance) -> bool:
        """Hand their next parts to laggards, to one of each group at least; says whether a phase ended."""
        over = False
        known = group.known_now() if group.ready else ()
        for at, lag in enumerate([each for each in group.ready.values() if each.stuck != known]):
            if at and left.laggard_rows <= 0:
                group.is_cut = True
                break
            lag.stuck = known
            # Whoever was not looked at in this step comes first in the next.
            group.ready[lag.subend.subscription] = group.ready.pop(lag.subend.subscription)
            effects += self._catch_up(group, lag.subend, left)
            group.is_cut |= lag.stuck is None
            if len(lag.subend.phases) > 1:
                over |= self._pass_by(group, lag.subend, min(lag.taken.values()))
        return over

    def straight(self, pubend: PubendId, run: Run, batch: EventBatch) -> list[Deliver] | None:
        """Take new knowledge from the pubend itself, and hand its rows to all readers at once.

        None, with nothing changed, unless all readers are in step and lack nothing below the run.
        """
        door, group = self._doors[pubend], self._publisher[pubend]
        if door.pending or door.request is not None or not door.lane.is_settled(group.horizon):
            return None
        if any(each.has_readers for each in door.groups if each is not group):
            return None
        delivers = group.straight(run, batch, self._serials)
        for deliver in delivers or ():
            self._waiting[deliver.serial] = (group, None)
        return delivers

    def questions(self, pubend: PubendId, now: Now) -> TickSet:
        """The ticks of a pubend to ask for now."""
        door = self._doors[pubend]
        door.delay_curiosity(self._parameters, now)
        gaps = urgent = TickSet()
        for group in door.groups:
            if group.has_readers:
                gaps |= group.gaps(door.lane)
                urgent |= group.wanted(door.lane)
        return door.lane.clock.update(gaps, urgent, now.ms, door.position)

    def start_requests(self, pubend: PubendId, now: Now) -> list[StartRequestMessage]:
        """The start request to send now, if one is due."""
        return self._doors[pubend].start_requests(self.broker, self._parameters, now)

    def acked(self, pubend: PubendId) -> Tick:
        """The tick below which no subend needs anything of this pubend; TICK_MIN for none."""
        door = self._doors[pubend]
        reading = [group.acked(pubend) for group in door.groups if group.has_readers]
        if reading:
            return min(door.floor, *reading, door.level if door.roaming else TICK_MAX)
        return min(door.floor, max(door.lane.istream.frontier, door.lane.expected))

    def ack_epoch(self, pubend: PubendId) -> Epoch:
        """The subscriptions that `acked` speaks for: not yet those that wait for their start tick."""
        return next(iter(self._doors[pubend].pending), self.epoch + 1) - 1

    def ack_stamp(self, pubend: PubendId) -> Epochs:
        """The same as a stamp."""
        return Epochs({self.broker: self.ack_epoch(pubend)})

    def reads(self, pubend: PubendId) -> bool:
        """Whether anybody here has subscribed to the topic of a pubend."""
        door = self._doors[pubend]
        return bool(door.pending) or any(group.has_readers for group in door.groups)

    def positions(self, pubend: PubendId) -> tuple[Tick, Tick]:
        """The lowest horizon of the groups that read a pubend, and the lowest laggard; TICK_MAX for none."""
        return self._doors[pubend].position, self._doors[pubend].behind

    def deadline_ms(self, pubend: PubendId) -> int | None:
        """When this pubend must be looked at again even if nothing happens."""
        door = self._doors[pubend]
        waiting = [door.lane.clock.deadline_ms()]
        if door.granted or any(group.is_cut for group in door.groups):
            waiting.append(0)
        if door.request is not None:
            waiting.append(door.request.sent_ms + self._parameters.advertise_repeat_ms)
        if door.roaming:
            waiting.append(door.horizon_at_ms)
        if self._parameters.delay_curiosity_ms is not None and any(g.has_readers for g in door.groups):
            waiting.append(door.delay_at_ms)
        return min((at for at in waiting if at is not None), default=None)

    def check(self, pubends: Iterable[PubendId]) -> None:
        """Raise if an invariant is broken on one of these pubends."""
        for pubend in pubends:
            door = self._doors[pubend]
            door.lane.requires.check()
            door.lane.clock.asked.check()
            door.lane.clock.noticed.check()
            for group in door.groups:
                for name, lag in group.laggards.items():
                    taken, handed = lag.taken[pubend], lag.handed[pubend]
                    assert taken <= handed, f"{name} took {taken}, was handed {handed}"
                    assert lag.busy != (name in group.ready), f"{name} is ready, and busy too, or neither"
                    assert lag.outstanding.keys() <= lag.subend.outstanding, f"{name} holds what was taken"
            for birth in door.ungranted.keys() | door.granted.keys():
                assert (birth in door.ungranted) != (birth in door.granted), f"{birth} is granted, and is not"
            assert door.ungranted.keys() <= door.pending.keys(), "what waits for a grant is pending"

    def _merge(self, subend: Subend) -> Group:
        """The merge of all pubends that a subscription has."""
        return self._older.get(subend.subscription) or self._total[subend.topic]

    def group_of(self, subscription: SubscriptionId, pubend: PubendId) -> Group | None:
        """The group in which a subscription reads a pubend; None if it does not read that pubend.

        A subscription that is older than the newest pubend of its topic keeps to the merge that it had.
        """
        subend = self._subends.get(subscription)
        groups = () if subend is None else self._groups_of(subend)
        return next((group for group in groups if pubend in group.pubends), None)

    def _group(self, pubends: tuple[PubendId, ...]) -> Group:
        return Group(tuple(self._doors[pubend].lane for pubend in pubends), self._parameters)

    def _groups_of(self, subend: Subend) -> list[Group]:
        total = self._merge(subend)
        if subend.order is Order.TOTAL:
            return [total]
        return [self._publisher[pubend] for pubend in total.pubends]

    def _wanted(self, event: SubscribeRequested) -> dict[PubendId, Tick]:
        """The start ticks that are asked for, by pubend. Raises UsageError for what is no tick."""
        pubends = self._total[event.topic].pubends
        if event.start is None:
            return {}
        starts = event.start if isinstance(event.start, Mapping) else dict.fromkeys(pubends, event.start)
        for start in starts.values():
            if not TICK_MIN <= start < TICK_MAX:
                raise UsageError(
                    "E145", f"subscription '{event.subscription}' starts at {start}: no such tick"
                )
        return {pubend: starts[pubend] for pubend in pubends if pubend in starts}

    def _check(self, subscription: SubscriptionId, topic: TopicId, conditions: list[Condition]) -> None:
        misfit = conditions[-1].misfit(self._topics[topic])
        if misfit is not None:
            raise UsageError("E146", f"subscription '{subscription}': {misfit}")
        if len(conditions) > PHASES_MAX:
            raise UsageError(
                "E139",
                f"subscription '{subscription}' has {PHASES_MAX - 1} changes of its condition under way: "
                "try again when it has taken the events before them",
                retry=True,
            )

    def _add_phase(
        self,
        subend: Subend,
        condition: Condition,
        wanted: Mapping[PubendId, Tick],
        since: Mapping[PubendId, Tick],
    ) -> None:
        """A condition of a subscription begins under a new epoch; `since` is where it did so already."""
        self.epoch += 1
        phase = Phase(condition, self.epoch, wanted, dict(wanted))
        subend.phases.append(phase)
        self._begun.append((subend.topic, condition))
        for group in self._groups_of(subend):
            if all(pubend in since for pubend in group.pubends):
                at = max(since[pubend] for pubend in group.pubends)
                phase.since.update(dict.fromkeys(group.pubends, at))
            else:
                for door in map(self._doors.__getitem__, group.pubends):
                    door.pending[phase.birth] = door.ungranted[phase.birth] = (subend, phase)

    def _place(self, subend: Subend, pubend: PubendId) -> list[Effect]:
        """Let the phases of a subscription begin that have their grants, each after those before it."""
        in_total = subend.order is Order.TOTAL
        group = self._merge(subend) if in_total else self._publisher[pubend]
        effects: list[Effect] = []
        for phase in subend.phases:
            if phase.birth not in self._doors[pubend].pending:
                continue
            if any(each not in phase.granted for each in group.pubends):
                break
            if phase is subend.phases[0]:
                starts = group.place(subend)
                for each in group.pubends if subend.roams else ():
                    self._doors[each].roam(subend.subscription, starts[each])
                effects += [self._begun_at(subend, each, starts[each]) for each in group.pubends]
            else:
                since = group.change(subend, phase)
                effects += [
                    ConfirmChange(
                        subscription=subend.subscription, pubend=each, condition=phase.condition, since=since
                    )
                    for each in group.pubends
                ]
            for each in group.pubends:
                del self._doors[each].pending[phase.birth]
        return effects

    def _begun_at(self, subend: Subend, pubend: PubendId, start: Tick) -> ConfirmSubscription:
        """A subscription was placed; if it was in another log before, something is lost."""
        lost_from = None
        log = self._doors[pubend].lane.istream.log
        if self._is_elsewhere(subend, pubend):
            reached(LOG_GAP)
            position = subend.phases[0].wanted.get(pubend, start)
            lost_from = position if log.began == TICK_MIN else min(position, log.began)
            subend.bases[pubend] = start
        subend.logs[pubend] = log.id
        self._doors[pubend].claims.discard(subend.subscription)
        return self._confirm(subend, pubend, start, lost_from)

    def _pass_by(self, group: Group, subend: Subend, settled: Tick) -> bool:
        before, pubends = list(subend.phases), self._merge(subend).pubends
        if any(before[0].birth in self._doors[each].pending for each in pubends):
            self._put_off.append((group, subend, settled))
            return False
        over = subend.pass_by(group.pubends, settled, pubends)
        if over:
            reached(CHANGE_OVER)
            ended = before[: len(before) - len(subend.phases)]
            self._ended += [(subend.topic, phase.condition) for phase in ended]
        return over

    def _catch_up(self, group: Group, subend: Subend, left: Allowance) -> list[Effect]:
        effects: list[Effect] = []
        if not (subend.slow and subend.outstanding):
            deliver = group.catch_up(subend, self._serials, left)
            if deliver is not None:
                subend.outstanding.add(deliver.serial)
                self._waiting[deliver.serial] = (group, subend)
                effects.append(deliver)
        if subend.slow and not subend.outstanding and self._has_caught_up(subend):
            # Its queue was emptied and there is nothing to put into it: it is in step again.
            subend.slow = False
            for each in self._groups_of(subend):
                each.stir(subend)
        group.rejoin(subend)
        return effects

    def _drop_outstanding(self, subend: Subend) -> None:
        """What was handed to it as a laggard will not be taken any more."""
        for serial in subend.outstanding:
            self._waiting.pop(serial)[0].taken(serial, None)
        subend.outstanding.clear()

    def _has_caught_up(self, subend: Subend) -> bool:
        return all(
            group.caught_up(subend)
            for group in self._groups_of(subend)
            if subend.subscription in group.laggards
        )
