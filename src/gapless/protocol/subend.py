"""How do subscribers get their events in order, without gaps, once? Subends and their groups.

Subends that are in step share everything: a *group* has one doubt horizon, and each time it advances,
all new rows are matched against all members at once. There is a group per pubend for publisher
order, and one per topic for total order, whose horizon is the lowest of all its pubends: a merge
edge, ordered by tick and then pubend.

A subend that falls behind (or starts in the past) is a *laggard*: it leaves the group, what it has not
taken is forgotten, and it catches up through curiosity at its own pace: it is handed the next delivery when
it was sent the one before and has room for more, or has taken it. When it has reached the group's horizon, it
is a member again. It never slows the others down. A laggard whose subscriber is away is *parked*: nothing is
handed to it, and it costs nothing but its position.

A subscription whose condition changes has several *phases*, and each tick belongs to one of them. What a
group hands out is cut where a phase begins, so that a change takes effect at one tick exactly.

Implements docs/protocol.md, sections 8 and 10.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

import numpy as np

from gapless.content.condition import Condition
from gapless.content.evaluate import mask
from gapless.content.index.index import Index
from gapless.content.rows import Positions, Rows
from gapless.model.batch import EventBatch, LastJoined, gathered
from gapless.model.epochs import ALWAYS
from gapless.model.ids import PubendId, SubscriptionId
from gapless.model.stream import Run
from gapless.model.ticks import EMPTY, TICK_MAX, TICK_MIN, Tick, TickSet
from gapless.protocol.allowance import LAGGARD_ROWS, Allowance
from gapless.protocol.effects import Deliver
from gapless.protocol.lane import Lane
from gapless.protocol.marks import mark, reached
from gapless.protocol.merging import Merged, cut, merge, merge_reach
from gapless.protocol.parameters import Parameters
from gapless.protocol.subscription import CatchUp, Phase, Subend

BEYOND_DOUBT_HELD = mark("beyond_doubt_held", "data beyond the doubt horizon waited for a gap to be filled")
LAGGARD_DELIVERED = mark("laggard_delivered", "a laggard was handed events from its past")
LAGGARD_AHEAD = mark("laggard_ahead", "a laggard was handed more before it had taken the part before")
LAGGARD_REJOINED = mark("laggard_rejoined", "a laggard caught up and rejoined its group")
LATE_START_HELD = mark(
    "late_start_held", "an event below a subscription's start tick was not delivered to it"
)
MERGE_HELD = mark("merge_held", "total order waited for a pubend that lagged behind the others")
DELIVERIES_FULL = mark("deliveries_full", "a group stopped handing out because too many deliveries wait")
STEP_USED_UP = mark("step_used_up", "a group had more to hand out than one step may")
PARKED = mark("parked", "a subscription whose subscriber is away was put aside")
CHANGE_OF_MEMBER = mark("change_of_member", "a member's condition changed when the horizon reached the tick")
CHANGE_OF_LAGGARD = mark("change_of_laggard", "a laggard came to a tick at which its condition changes")

#: How many that are gone already a heap of positions may hold, beside as many as are there.
HEAP_STALE_MAX = 64
#: So many members are asked one by one.
FEW_MAX = 4
#: Deliveries are not made larger than this by putting batches together.
_TOGETHER_BYTES_MAX = 1 * 2**20
#: Deliveries to a laggard are smaller, and made of fewer batches: each laggard gets deliveries of its own,
#: and everybody else is served in between.
_LAGGARD_BYTES_MAX, _LAGGARD_PARTS_MAX = 128 * 2**10, 128
#: What was copied for laggards may be held by each of thousands: no more than this for all of them, about.
_LAGGARDS_BYTES_MAX = 64 * 2**20
#: At least so many rows are looked at to be handed to members.
_ROWS_MIN = 16
#: No more bytes of several pubends are merged at once, but for one event of each.
_MERGED_BYTES_MAX = 4 * 2**20
_WINDOW_MIN = 1_000
#: More than all time since ticks began: a window that ended before now would have to be moved on with every
#: part of an answer, and each time be asked for in ever smaller parts.
_WINDOW_MAX = 2**52


@dataclass(slots=True)
class Group:
    """The subends that are in step on the same pubends, and the laggards that want to be."""

    lanes: tuple[Lane, ...]
    parameters: Parameters
    #: Everything below was handed to all members.
    horizon: Tick = TICK_MIN
    #: The conditions of the members, by slot.
    index: Index = field(default_factory=lambda: Index(few_max=FEW_MAX))
    #: Members whose start tick the horizon has not passed yet.
    late_starts: dict[int, Tick] = field(default_factory=dict)
    #: Members whose condition changes beyond the horizon, by the tick of the change.
    switches: dict[Tick, dict[SubscriptionId, Subend]] = field(default_factory=dict)
    #: Members whose condition has changed, and who may not have taken all below that tick.
    passing: dict[Tick, dict[SubscriptionId, Subend]] = field(default_factory=dict)
    #: Deliveries that were not taken yet, with the lowest tick they hold: these ascend, ...
    waiting: dict[int, Tick] = field(default_factory=dict)
    #: ... but for those of laggards that rejoined, and those from before the horizon was set anew.
    waiting_apart: dict[int, Tick] = field(default_factory=dict)
    #: A heap of the latter by tick, with some that were taken already.
    apart_low: list[tuple[Tick, int]] = field(default_factory=list)
    laggards: dict[SubscriptionId, CatchUp] = field(default_factory=dict)
    #: The laggards that are not busy: there may be work for them.
    ready: dict[SubscriptionId, CatchUp] = field(default_factory=dict)
    #: Those that are away; and per pubend a heap of what they have taken, with some that are back already.
    parked: dict[SubscriptionId, CatchUp] = field(default_factory=dict)
    parked_taken: dict[PubendId, list[tuple[Tick, int, CatchUp]]] = field(default_factory=dict)
    parkings: int = 0
    #: Per pubend what laggards lack, and what was known when that was found; who came since is apart.
    lacking: dict[PubendId, tuple[tuple[int, ...], TickSet]] = field(default_factory=dict)
    newcomers: dict[PubendId, dict[SubscriptionId, CatchUp]] = field(default_factory=dict)
    #: Members were not handed all that they can get, or laggards were not looked at: the step was used up.
    is_cut: bool = False
    #: When that was so last, it was its turn then; 0 if it was not so.
    turn: int = 0
    #: How many rows to look at for the next delivery, about twice as many as a step was enough for.
    rows_at_once: int = 2**62
    #: Those who fall behind together are handed the same.
    last: LastJoined = field(default_factory=LastJoined)

    @property
    def pubends(self) -> tuple[PubendId, ...]:
        """The pubends whose events the group gets, sorted."""
        return tuple(lane.pubend for lane in self.lanes)

    @property
    def has_readers(self) -> bool:
        """Whether anybody waits for events here."""
        return bool(len(self.index) or self.laggards or self.parked)

    def place(self, subend: Subend) -> dict[PubendId, Tick]:
        """Let a granted subend in; returns the ticks from which on it is gapless."""
        first = subend.phases[0]
        starts = {pubend: first.granted[pubend][0] for pubend in self.pubends}
        from_now = all(pubend not in first.wanted for pubend in self.pubends)
        if self.has_readers and from_now:
            # "From now on" need not begin before what the others already had.
            starts = {pubend: max(start, self.horizon) for pubend, start in starts.items()}
        elif from_now:
            self._begin_at(min(starts.values()))
        elif not self.has_readers:
            # Nobody looked at this stream for a while: it goes on where the newcomer's past ends.
            # No further than the slowest pubend has come: a later newcomer must not begin in its future.
            self._begin_at(min(first.granted[pubend][1] for pubend in self.pubends))
        if not subend.away and min(starts.values()) == max(starts.values()) >= self.horizon:
            self._join(subend, min(starts.values()))
        else:
            self._set_apart(subend, starts, self.parameters.nack_ticks_max)
            # The horizon it chases must not run over silence that says nothing of it.
            self._require(subend, self.horizon)
        return starts

    def change(self, subend: Subend, phase: Phase) -> Tick:
        """Let a granted phase follow those before it; returns the first tick that it decides of."""
        granted = max(phase.granted[pubend][0] for pubend in self.pubends)
        earlier = [other.since.get(self.pubends[0], TICK_MIN) for other in subend.phases]
        # Members have had everything below the horizon, and phases do not overtake each other.
        since = max(granted, self.horizon, *earlier)
        phase.since.update(dict.fromkeys(self.pubends, since))
        for lane in self.lanes:
            lane.require(since, phase.birth)
        if subend.slot in self.index:
            self.switches.setdefault(since, {})[subend.subscription] = subend
            self._switch()
        self.stir(subend)
        return since

    def passed(self) -> list[tuple[Subend, Tick]]:
        """Members that have taken all below a change of their condition, and up to where they have."""
        found: list[tuple[Subend, Tick]] = []
        settled = self._settled() if self.passing else TICK_MIN
        for since in sorted(since for since in self.passing if since <= settled):
            found += [(each, settled) for each in self.passing.pop(since).values() if each.slot in self.index]
        return found

    def remove(self, subend: Subend) -> None:
        """The subscription has ended."""
        if self.laggards.pop(subend.subscription, None) is not None:
            self._gone(subend)
        self.parked.pop(subend.subscription, None)
        self.index.remove(subend.slot)
        self.late_starts.pop(subend.slot, None)
        for phase in subend.phases:
            # Its slot may be somebody else's soon: nothing here may speak of it any more.
            since = phase.since.get(self.pubends[0], TICK_MIN)
            for members in (self.switches.get(since), self.passing.get(since)):
                if members is not None:
                    members.pop(subend.subscription, None)

    def fall_behind(self, subend: Subend, positions: dict[PubendId, Tick]) -> None:
        """The subscriber has thrown away what it had not taken: go on from `positions`."""
        old = self.laggards.get(subend.subscription) or self.parked.get(subend.subscription)
        start = self.late_starts.get(subend.slot, TICK_MIN)
        if old is None and start > self.horizon and not subend.away:
            return
        at = {**(old.handed if old else dict.fromkeys(self.pubends, self.horizon)), **positions}
        # Below a phase whose past it has taken it has everything, however far back its last event is.
        since = {each: phase.since[each] for phase in subend.phases for each in phase.passed}
        handed = {each: max(start, since.get(each, TICK_MIN), at[each]) for each in self.pubends}
        self.remove(subend)
        self._set_apart(subend, handed, old.window if old else self.parameters.nack_ticks_max)

    def taken(self, serial: int, subend: Subend | None) -> None:
        """A delivery was taken by all who were to get it."""
        if self.waiting.pop(serial, None) is None:
            self.waiting_apart.pop(serial, None)
        if subend is not None:
            lag = self.laggards.get(subend.subscription)
            if lag is not None and serial in lag.outstanding:
                if serial == next(reversed(lag.outstanding)):
                    self.sent(subend)
                del lag.outstanding[serial]
                lag.settle()

    def sent(self, subend: Subend) -> bool:
        """It was sent all that it was handed, and has room for more; says whether it is a laggard here."""
        lag = self.laggards.get(subend.subscription)
        if lag is None:
            return False
        lag.busy = False
        self.ready[subend.subscription] = lag
        self._come(lag)
        return True

    def known_now(self) -> tuple[int, ...]:
        """Differs whenever more or less is known to laggards: while it stays, those who are stuck stay so."""
        return (self.horizon, *(lane.istream.stream.known.version for lane in self.lanes))

    def positions(self, subend: Subend) -> dict[PubendId, Tick]:
        """Per pubend the tick below which a reader was handed everything."""
        lag = self.laggards.get(subend.subscription) or self.parked.get(subend.subscription)
        if lag is not None:
            return dict(lag.handed)
        at = max(self.horizon, self.late_starts.get(subend.slot, TICK_MIN))
        return dict.fromkeys(self.pubends, at)

    def displace(self, subend: Subend) -> None:
        """Take a reader out until it is placed again. What it was handed, it may still take."""
        lag = self.laggards.get(subend.subscription)
        if lag is not None:
            self.put_apart({serial: min(at.values()) for serial, at in lag.outstanding.items()})
        self.remove(subend)
        self.lacking.clear()
        self.newcomers.clear()

    def stir(self, subend: Subend) -> None:
        """Something has changed for a laggard: look at it again, even if nothing else has."""
        lag = self.laggards.get(subend.subscription)
        if lag is not None:
            self._come(lag)

    def advance(self, serials: Iterator[int], left: Allowance) -> list[Deliver]:
        """Hand out everything up to the doubt horizon to the members, or as much as one step may."""
        out: list[Deliver] = []
        self.is_cut = False
        if not self.has_readers:
            return out
        # With laggards alone the horizon goes on too: it is what they chase.
        reach = min(lane.resolved(self.horizon) for lane in self.lanes)
        self._mark_held(reach)
        for end in (*sorted(since for since in self.switches if since < reach), reach):
            # Cut where conditions change: what is handed out at once is judged by one condition of each.
            for merged, stop in self._pieces({lane.pubend: self.horizon for lane in self.lanes}, end):
                if len(self.waiting) >= self.parameters.deliveries_waiting_max:
                    reached(DELIVERIES_FULL)
                    return out
                if merged is None:
                    self._move_to(stop)
                    continue
                if left.pairs <= 0:
                    self._cut()
                    return out
                deliver, rows = self._matched(merged, serials, left)
                if deliver is not None:
                    self.waiting[deliver.serial] = self.horizon
                    out.append(deliver)
                if rows < len(merged.batch):
                    self.rows_at_once = max(_ROWS_MIN, 2 * rows)
                    self._move_to(int(merged.batch.ticks[rows - 1]) + 1)
                    self._cut()
                    return out
                self.rows_at_once = min(2 * self.rows_at_once, 2**62)
                self._move_to(stop)
        return out

    def _cut(self) -> None:
        reached(STEP_USED_UP)
        self.is_cut = True

    def straight(self, run: Run, batch: EventBatch, serials: Iterator[int]) -> list[Deliver] | None:
        """Hand out rows that come next, with no silence in doubt among them; None when it is not so simple.

        For a group of one pubend; the run begins with the first tick that the pubend has not told of.
        """
        start, stop, stamp = run
        stream = self.lanes[0].istream.stream
        if (
            start != self.horizon
            or stamp is not ALWAYS
            or not stream.known
            or stream.known.stop != start
            or self.laggards
            or self.parked
            or self.late_starts
            or self.switches
            or self.passing
            or len(self.waiting) >= self.parameters.deliveries_waiting_max
            or len(batch) > self.parameters.message_rows_max
            or len(batch) * len(self.index) > self.parameters.step_pairs_max
        ):
            return None
        stream.accumulate([run], batch)
        self.horizon = stop
        deliver, _ = self._matched(Merged(batch, None), serials, Allowance.of(self.parameters.step_pairs_max))
        if deliver is None:
            return []
        self.waiting[deliver.serial] = start
        return [deliver]

    def catch_up(self, subend: Subend, serials: Iterator[int], left: Allowance) -> Deliver | None:
        """Hand the next part of its past to a laggard that was sent the part before."""
        lag = self.laggards[subend.subscription]
        left.laggard_rows -= LAGGARD_ROWS
        while self._may_get_more(lag) and not self.caught_up(subend):
            low = min(lag.handed.values())
            phase, until = subend.in_force(self.pubends[0], low)
            known = [lane.resolved_under(lag.handed[lane.pubend], phase.birth) for lane in self.lanes]
            reach = min(*known, self.horizon, low + lag.window, until)
            if reach <= low:
                return None
            merged, stop = next(self._pieces(lag.handed, reach, laggard=True))
            before = lag.handed
            lag.handed = {pubend: max(at, stop) for pubend, at in lag.handed.items()}
            rows = 0 if merged is None else len(merged.batch)
            self._adapt_window(lag, rows)
            left.laggard_rows -= rows
            if stop == until:
                reached(CHANGE_OF_LAGGARD)
            deliver = None if merged is None else self._accepted(merged, subend, phase.condition, serials)
            if deliver is None:
                lag.settle()
                if left.laggard_rows <= 0:
                    # It is looked at again, after those who were not looked at in this step.
                    lag.stuck = None
                    return None
                continue
            reached(LAGGARD_DELIVERED)
            if lag.outstanding:
                reached(LAGGARD_AHEAD)
            lag.outstanding[deliver.serial] = before
            lag.busy = True
            self.ready.pop(subend.subscription, None)
            return deliver
        return None

    def rejoin(self, subend: Subend) -> bool:
        """Make a laggard that has caught up a member again; says whether it did."""
        lag = self.laggards[subend.subscription]
        if subend.slow or not self.caught_up(subend):
            return False
        reached(LAGGARD_REJOINED)
        del self.laggards[subend.subscription]
        self._gone(subend)
        self.put_apart({serial: min(at.values()) for serial, at in lag.outstanding.items()})
        self._join(subend, max(lag.handed.values()))
        return True

    def caught_up(self, subend: Subend) -> bool:
        """Whether a laggard stands exactly where the members stand, on every pubend."""
        handed = self.laggards[subend.subscription].handed.values()
        return min(handed) == max(handed) == self.horizon

    def acked(self, pubend: PubendId) -> Tick:
        """The tick below which all readers have taken their events of this pubend."""
        lagging = [lag.taken[pubend] for lag in self.laggards.values()]
        if self.parked:
            lagging.append(self._parked_low(pubend))
        return min([self._settled(), *lagging])

    def _settled(self) -> Tick:
        """The tick below which the members have taken everything."""
        oldest = next(iter(self.waiting.values()), self.horizon)
        heap = self.apart_low
        while heap and heap[0][1] not in self.waiting_apart:
            heappop(heap)
        return min(self.horizon, oldest, heap[0][0] if heap else TICK_MAX)

    def put_apart(self, deliveries: Mapping[int, Tick]) -> None:
        """These deliveries wait beside those that ascend."""
        self.waiting_apart.update(deliveries)
        for serial, tick in deliveries.items():
            heappush(self.apart_low, (tick, serial))
        if len(self.apart_low) > 2 * len(self.waiting_apart) + HEAP_STALE_MAX:
            self.apart_low = [(tick, serial) for serial, tick in self.waiting_apart.items()]
            heapify(self.apart_low)

    def gaps(self, lane: Lane) -> TickSet:
        """Ticks of a lane that hold the members back, and may yet come by themselves."""
        if not self.has_readers:
            return EMPTY
        stop = max(lane.istream.frontier, self._last_row() if len(self.lanes) > 1 else TICK_MIN)
        if stop <= self.horizon or lane.resolved(self.horizon) >= stop:
            return EMPTY
        return lane.gaps(self.horizon, stop)

    def wanted(self, lane: Lane) -> TickSet:
        """Ticks of a lane that somebody waits for: expected ones, and those laggards are ready for."""
        if not self.has_readers:
            return EMPTY
        # In a merge an event that one pubend expects to be acked may wait for the silence of any other.
        expected = max(each.expected for each in self.lanes)
        # A pubend that falls silent must not keep a condition alive that is to be replaced.
        change = max(self.switches, default=TICK_MIN)
        until = max(expected, lane.overdue, change)
        wanted = lane.gaps(self.horizon, until) if until > self.horizon else EMPTY
        return wanted | self._lacking(lane) if self.ready else wanted

    def _lacking(self, lane: Lane) -> TickSet:
        """Ticks that laggards are ready for. Of those that are stuck it is known already what they lack."""
        known = self.known_now()
        before, lacking = self.lacking.get(lane.pubend, ((), EMPTY))
        newcomers = self.newcomers.pop(lane.pubend, {})
        lags, parts = (newcomers, [lacking]) if before == known else (self.ready, [])
        for lag in lags.values():
            if self._may_get_more(lag) and not (lag.subend.slow and lag.subend.outstanding):
                start = lag.handed[lane.pubend]
                phase, until = lag.subend.in_force(lane.pubend, start)
                stop = min(self.horizon, start + lag.window, until)
                parts.append(lane.gaps_under(start, stop, phase.birth))
                _, change = lag.subend.in_force(lane.pubend, min(lag.handed.values()))
                if self.horizon < change < TICK_MAX:
                    # It comes to the tick of a change no earlier than the horizon that it chases.
                    parts.append(lane.gaps(self.horizon, change))
        lacking = parts[0] if len(parts) == 1 else TickSet.of(*(run for part in parts for run in part))
        self.lacking[lane.pubend] = (known, lacking)
        return lacking

    def _may_get_more(self, lag: CatchUp) -> bool:
        """Whether a laggard was sent what it was handed, and does not owe too much of it."""
        return not lag.busy and len(lag.outstanding) < self.parameters.deliveries_waiting_max

    def _come(self, lag: CatchUp) -> None:
        lag.stuck = None
        for pubend in self.pubends:
            self.newcomers.setdefault(pubend, {})[lag.subend.subscription] = lag

    def _gone(self, subend: Subend) -> None:
        """A laggard is none any more: what it lacked may be lacked by nobody."""
        self.ready.pop(subend.subscription, None)
        self.lacking.clear()
        if not self.laggards:
            self.last.forget()
        for newcomers in self.newcomers.values():
            newcomers.pop(subend.subscription, None)

    def _set_apart(self, subend: Subend, handed: dict[PubendId, Tick], window: int) -> None:
        lag = CatchUp(subend, dict(handed), dict(handed), window=window)
        if not subend.away:
            self.laggards[subend.subscription] = self.ready[subend.subscription] = lag
            self._come(lag)
            return
        reached(PARKED)
        self.parked[subend.subscription] = lag
        self.parkings += 1
        for pubend in self.pubends:
            heap = self.parked_taken.setdefault(pubend, [])
            heappush(heap, (lag.taken[pubend], self.parkings, lag))
            if len(heap) > 2 * len(self.parked) + HEAP_STALE_MAX:
                heap[:] = [each for each in heap if self.parked.get(each[2].subend.subscription) is each[2]]
                heapify(heap)

    def _parked_low(self, pubend: PubendId) -> Tick:
        """The lowest tick of a pubend that one of those who are away has not taken."""
        heap = self.parked_taken[pubend]
        while self.parked.get(heap[0][2].subend.subscription) is not heap[0][2]:
            heappop(heap)
        return heap[0][0]

    def _join(self, subend: Subend, start: Tick) -> None:
        self.index.add(subend.slot, subend.in_force(self.pubends[0], self.horizon)[0].condition)
        if start > self.horizon:
            self.late_starts[subend.slot] = start
        self._require(subend, start)
        for phase in subend.phases[1:]:
            since = phase.since.get(self.pubends[0])
            if since is not None and not phase.passed.issuperset(self.pubends):
                later = self.switches if since > self.horizon else self.passing
                later.setdefault(since, {})[subend.subscription] = subend

    def _require(self, subend: Subend, start: Tick) -> None:
        """From `start` on, silence must be made by filters that know of the phases it falls into."""
        for lane in self.lanes:
            lane.require(start, subend.phases[0].birth)
            for phase in subend.phases[1:]:
                since = phase.since.get(lane.pubend)
                if since is not None:
                    lane.require(max(start, since), phase.birth)

    def _begin_at(self, horizon: Tick) -> None:
        """Nobody reads here: the stream goes on at another place, which may be an earlier one."""
        self.put_apart(self.waiting)
        self.waiting.clear()
        self.horizon = horizon

    def _switch(self) -> None:
        """Where the horizon has come to a change of condition, judge members by the new one."""
        for since in [since for since in self.switches if since <= self.horizon]:
            members = self.switches.pop(since)
            for subend in members.values():
                if subend.slot in self.index:
                    reached(CHANGE_OF_MEMBER)
                    self.index.remove(subend.slot)
                    condition = subend.in_force(self.pubends[0], self.horizon)[0].condition
                    self.index.add(subend.slot, condition)
            self.passing.setdefault(since, {}).update(members)

    def _move_to(self, stop: Tick) -> None:
        self.horizon = stop
        if self.switches:
            self._switch()
        if self.late_starts:
            self.late_starts = {slot: start for slot, start in self.late_starts.items() if start > stop}

    def _adapt_window(self, lag: CatchUp, rows: int) -> None:
        if rows * 4 < self.parameters.message_rows_max:
            lag.window = min(lag.window * 2, _WINDOW_MAX)
        elif rows >= self.parameters.message_rows_max:
            lag.window = max(lag.window // 2, _WINDOW_MIN)

    def _mark_held(self, reach: Tick) -> None:
        if any(lane.istream.frontier > reach for lane in self.lanes):
            reached(MERGE_HELD if len(self.lanes) > 1 else BEYOND_DOUBT_HELD)

    def _last_row(self) -> Tick:
        held = (lane.istream.stream.rows for lane in self.lanes)
        return max((rows.highest()[1] for rows in held if rows.rows), default=TICK_MIN)

    def _pieces(
        self, start: dict[PubendId, Tick], stop: Tick, *, laggard: bool = False
    ) -> Iterator[tuple[Merged | None, Tick]]:
        """The rows from `start` on below `stop` in delivery order, in bounded pieces."""
        rows_max = self.parameters.message_rows_max
        bytes_max = self._laggard_bytes_max if laggard else _MERGED_BYTES_MAX
        if not laggard and self.rows_at_once < rows_max:
            bytes_max = bytes_max * self.rows_at_once // rows_max
            rows_max = self.rows_at_once
        if len(self.lanes) == 1:
            lane = self.lanes[0]
            chunks: Iterable[EventBatch] = lane.istream.stream.rows.each_between(start[lane.pubend], stop)
            if not self.index.takes_all:
                # What one of many wants of a delivery is written to it at once, so a delivery costs them all
                # nearly the same, however many rows it has. Those who want all of it get it as it came.
                chunks = (
                    gathered(chunks, rows_max, bytes_max, _LAGGARD_PARTS_MAX, self.last.joined)
                    if laggard
                    else gathered(chunks, rows_max, _TOGETHER_BYTES_MAX)
                )
            for chunk in chunks:
                for piece in chunk.pieces(rows_max):
                    yield Merged(piece, None), piece.last + 1
        else:
            low = start
            while min(low.values()) < stop:
                reach = merge_reach(self.lanes, low, stop, bytes_max)
                merged = merge(self.lanes, low, reach)
                low = {pubend: max(at, reach) for pubend, at in low.items()}
                at = 0
                while merged is not None and at < len(merged.batch):
                    stop_at = cut(merged.batch, at, rows_max)
                    yield merged.where(np.arange(at, stop_at)), int(merged.batch.ticks[stop_at - 1]) + 1
                    at = stop_at
        if stop > min(start.values()):
            yield None, stop

    @property
    def _laggard_bytes_max(self) -> int:
        """How many bytes to copy for a laggard at once, as long as each of its events is smaller."""
        return min(_LAGGARD_BYTES_MAX, _LAGGARDS_BYTES_MAX // max(len(self.laggards), 1))

    def _matched(self, merged: Merged, serials: Iterator[int], left: Allowance) -> tuple[Deliver | None, int]:
        """A delivery of the first rows, as many as the step has room for, and how many these are."""
        batch = merged.batch
        found = self.index.match_all(len(batch), left.pairs)
        (rows, slots), count = found or self.index.match_first(batch.derived(Rows), left.pairs)
        if count < len(merged.batch):
            if merged.source is not None:
                count, rows, slots = self._whole_ticks(merged, count, rows, slots)
            merged = merged.before(count)
        left.pairs -= len(rows)
        if self.late_starts and len(rows):
            rows, slots = self._started(merged, rows, slots)
        if not len(rows):
            return None, count
        return self._deliver(merged, rows, slots, serials), count

    def _whole_ticks(
        self, merged: Merged, count: int, rows: Positions, slots: Positions
    ) -> tuple[int, Positions, Positions]:
        """The same without a part of the rows of one tick, or with all of them if there is no other tick."""
        whole = int(np.searchsorted(merged.batch.ticks, merged.batch.ticks[count]))
        if whole:
            end = int(np.searchsorted(rows, whole))
            return whole, rows[:end], slots[:end]
        whole = cut(merged.batch, 0, count)
        rows, slots = self.index.match(merged.before(whole).batch.derived(Rows))
        return whole, rows, slots

    def _started(self, merged: Merged, rows: Positions, slots: Positions) -> tuple[Positions, Positions]:
        late = np.fromiter(self.late_starts.keys(), dtype=np.int64, count=len(self.late_starts))
        late.sort()
        starts = np.asarray([self.late_starts[int(slot)] for slot in late], dtype=np.int64)
        at = np.minimum(np.searchsorted(late, slots), len(late) - 1)
        keep = (late[at] != slots) | (merged.batch.ticks[rows] >= starts[at])
        if not keep.all():
            reached(LATE_START_HELD)
        return rows[keep], slots[keep]

    def _accepted(
        self, merged: Merged, subend: Subend, condition: Condition, serials: Iterator[int]
    ) -> Deliver | None:
        rows = np.flatnonzero(mask(condition, merged.batch.derived(Rows)))
        if not len(rows):
            return None
        # A view of one number. It is held as long as its subscriber does not take the rows.
        slots = np.broadcast_to(np.int64(subend.slot), len(rows))
        return self._deliver(merged, rows, slots, serials, laggard=True)

    def _deliver(
        self,
        merged: Merged,
        rows: Positions,
        slots: Positions,
        serials: Iterator[int],
        *,
        laggard: bool = False,
    ) -> Deliver:
        return Deliver(
            serial=next(serials),
            batch=merged.batch,
            rows=rows,
            slots=slots,
            pubends=self.pubends,
            source=merged.source,
            laggard=laggard,
        )
