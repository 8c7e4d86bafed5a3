"""What does an edge keep per pubend? Who reads there, who waits for a start tick, and who roams.

Implements docs/protocol.md, sections 8, 9 and 15.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gapless.model.epochs import Epoch
from gapless.model.ids import BrokerId, PubendId, SubscriptionId, TopicId
from gapless.model.ticks import TICK_MAX, TICK_MIN, TICKS_PER_MS, Tick
from gapless.protocol.effects import Effect, TellHorizon
from gapless.protocol.events import Now, Order, RoamersReached
from gapless.protocol.lane import Lane
from gapless.protocol.marks import mark, reached
from gapless.protocol.messages import StartRequestMessage
from gapless.protocol.parameters import Parameters
from gapless.protocol.subend import Group
from gapless.protocol.subscription import Phase, Subend

START_REQUESTED_AGAIN = mark("start_requested_again", "a start request was repeated because no grant came")
STARTS_TOGETHER = mark(
    "starts_together", "a start tick was asked for that is wanted, or below what is wanted"
)
DELAY_CURIOUS = mark("delay_curious", "a doubt horizon trailed the clock by more than DCT")
HELD_FOR_ROAMERS = mark("held_for_roamers", "an ack waited until a subscriber that roams knew its horizon")


@dataclass(slots=True)
class StartRequest:
    """A start request that waits for its grant."""

    epoch: Epoch
    wanted: Tick | None
    sent_ms: int


def had_before(subend: Subend, pubend: PubendId) -> Tick:
    """The tick below which a subscription may have had events: of another log it takes none there.

    In total order an event comes after those of all pubends that have lower ticks.
    """
    wanted = subend.phases[0].wanted
    positions = wanted.values() if subend.order is Order.TOTAL else [wanted.get(pubend, TICK_MIN)]
    return max(positions, default=TICK_MIN)


@dataclass(slots=True)
class PubendDoor:
    """What the edge keeps per pubend: its lane, its groups, and who waits for a start tick."""

    lane: Lane
    topic: TopicId
    groups: list[Group] = field(default_factory=list)
    #: Phases that wait for their start tick, by their birth, which ascends.
    pending: dict[Epoch, tuple[Subend, Phase]] = field(default_factory=dict)
    #: Those of them that the pubend has not granted, and those that it has: these are placed as soon as there
    #: is time for it. In total order they may still wait for other pubends.
    ungranted: dict[Epoch, tuple[Subend, Phase]] = field(default_factory=dict)
    granted: dict[Epoch, tuple[Subend, Phase]] = field(default_factory=dict)
    request: StartRequest | None = None
    #: What the pubend said of other lives of this edge, and of events that it has lost.
    lives: tuple[int, ...] = ()
    lost_before: Tick = TICK_MIN
    #: Restored subscriptions that wait for their start tick need the ticks from here on.
    floor: Tick = TICK_MAX
    #: Those whose position, and the log that it is in, are what a client says, and not confirmed yet.
    claims: set[SubscriptionId] = field(default_factory=set)
    delay_at_ms: int = 0
    #: The subscriptions that roam and have begun here; all know that they have everything below `level`.
    roaming: set[SubscriptionId] = field(default_factory=set)
    level: Tick = TICK_MIN
    #: Not before this time they are told again how far they are.
    horizon_at_ms: int = 0

    def roam(self, subscription: SubscriptionId, start: Tick) -> None:
        """One that roams has begun: it knows of nothing below its start tick."""
        self.level = min(self.level, start) if self.roaming else start
        self.roaming.add(subscription)

    def roamed(self, event: RoamersReached) -> bool:
        """Those who roam know how far they are; returns whether that counts."""
        is_of_all = event.roamers == len(self.roaming)
        if is_of_all:
            self.level = event.before
        return is_of_all

    def old_log(self, parameters: Parameters, now: Now) -> tuple[str, Tick]:
        """A log that those who wait have positions in and that may be gone, and the highest of these.

        What a client claims moves ticks no further ahead of the clock than publishing does.
        """
        pubend, known = self.lane.pubend, self.lane.istream.log.id
        claimed_max = now.clock + parameters.publish_ahead_ms * TICKS_PER_MS
        old: list[tuple[Tick, str]] = []
        for subend, phase in self.ungranted.values():
            log = subend.logs.get(pubend, "")
            if pubend in phase.wanted and log not in ("", known):
                had = had_before(subend, pubend)
                old.append((min(had, claimed_max) if subend.subscription in self.claims else had, log))
        return (old[0][1], max(at for at, _ in old)) if old else ("", TICK_MIN)

    def start_requests(self, broker: BrokerId, parameters: Parameters, now: Now) -> list[StartRequestMessage]:
        """The start request to send now, if one is due."""
        pubend = self.lane.pubend
        if not self.ungranted:
            self.request = None
            return []
        request = self.request
        if request is not None and now.ms < request.sent_ms + parameters.advertise_repeat_ms:
            # Thousands may be waiting, and one answer is for all that want the same: look when it has come.
            return []
        ungranted = [phase for _, phase in self.ungranted.values()]
        if request is not None:
            reached(START_REQUESTED_AGAIN)
        wanted = ungranted[0].asked.get(pubend)
        if wanted is not None and request is None:
            # All that begin somewhere ask together for the lowest, and each begins at its own: when thousands
            # come back, each at a position of its own, one promise is enough for them.
            reached(STARTS_TOGETHER)
            starting = [phase for phase in ungranted if pubend in phase.asked]
            wanted = min(phase.asked[pubend] for phase in starting)
            for phase in starting:
                phase.asked[pubend] = wanted
        alike = [phase.birth for phase in ungranted if phase.asked.get(pubend) == wanted]
        self.request = StartRequest(max(alike), wanted, now.ms)
        log, beyond = self.old_log(parameters, now)
        return [
            StartRequestMessage(
                pubend=pubend,
                edge=broker,
                epoch=self.request.epoch,
                wanted=wanted,
                log=log,
                beyond=beyond,
            )
        ]

    @property
    def position(self) -> Tick:
        """The tick below which all readers were handed everything."""
        return min((group.horizon for group in self.groups if group.has_readers), default=TICK_MAX)

    @property
    def behind(self) -> Tick:
        """The lowest tick that a laggard was not handed; TICK_MAX when there is no laggard."""
        lagging = (lag.handed for group in self.groups for lag in group.laggards.values())
        return min((handed[self.lane.pubend] for handed in lagging), default=TICK_MAX)

    def delay_curiosity(self, parameters: Parameters, now: Now) -> None:
        """Ask for what the readers lack where their horizon trails the clock for too long."""
        if self.roaming and now.ms >= self.horizon_at_ms:
            # Where nobody wants what is published, nothing comes by itself: the silence is asked for.
            ago = parameters.horizon_ms * TICKS_PER_MS
            self.lane.overdue = max(self.lane.overdue, now.clock - ago)
        delay_ms = parameters.delay_curiosity_ms
        if delay_ms is None or now.ms < self.delay_at_ms:
            return
        self.delay_at_ms = now.ms + delay_ms
        if TICK_MIN < self.position < now.clock - delay_ms * TICKS_PER_MS:
            reached(DELAY_CURIOUS)
            self.lane.overdue = max(self.lane.overdue, now.clock)

    def horizon(self) -> list[Effect]:
        """What those who roam are to be told, if it is more than they know."""
        position = self.position
        if not self.level < position < TICK_MAX:
            return []
        reached(HELD_FOR_ROAMERS)
        lagging = {name for group in self.groups for name in (*group.laggards, *group.parked)}
        # Whoever waits to go on in another log is in no group.
        lagging.update(each.subscription for each, phase in self.pending.values() if phase is each.phases[0])
        lagging &= self.roaming
        return [TellHorizon(pubend=self.lane.pubend, before=position, lagging=frozenset(lagging))]
