"""How does a client get every event once and in order, over any number of connections?

A subscription knows, per pubend, the next tick that it expects. It drops events below that tick, and resumes
there after a lost connection, at the same edge or another one. When events are rare, the node tells how far
it has come (its *horizon*), so that it never asks for a past that held nothing for it and is gone. It grants
the node credit for the rows it has room for, so a slow program falls behind at the node, not here.

What the program is done with is acknowledged: when it asks for the next event, or when it says so itself, in
any order. Only the log waits for that, so an acknowledgement travels with the next credit, or after a while.

Rows themselves, and how the program waits for them, are left to the host.

Implements docs/protocol.md, section 15.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

import numpy as np

from gapless.content.rows import Positions, RowMask
from gapless.errors import GaplessError, LinkError, PeerError
from gapless.model.ids import PubendId, TopicId
from gapless.model.schema import Schema
from gapless.model.ticks import TICK_MIN, Tick, TickArray
from gapless.protocol.events import Order
from gapless.protocol.marks import mark, reached
from gapless.protocol.sessions.acks import AckLedger
from gapless.protocol.sessions.arrivals import ArrivedRows
from gapless.protocol.sessions.enrolment import (
    ClientEffect,
    Enrolment,
    FinishChange,
    Offer,
    ReportGap,
    SayNow,
    StartAckTimer,
    StartAwaitTimer,
    StartRetryTimer,
    StopAckTimer,
    Unregister,
    Wake,
)
from gapless.protocol.sessions.filters import Filters
from gapless.protocol.sessions.gaps import Gap, gap_before
from gapless.protocol.sessions.messages import (
    Acknowledge,
    ChangeFilter,
    ClientMessage,
    Confirmed,
    Credit,
    Horizon,
    Mode,
    RequestRefused,
    Start,
    Subscribe,
    Unsubscribe,
)

RESUMED = mark("subscription_resumed", "a client resumed a subscription on a new connection")
REPEAT_DROPPED = mark("repeat_dropped", "a client dropped events that it had before")
HORIZON_HEARD = mark("horizon_heard", "a client learned that it has everything below a tick")

#: A node that exceeds its credit by more rows than this is disconnected: it would fill our memory.
EXCESS_ROWS_MAX = 2**20
#: An acknowledgement is sent after a random share of the time it may wait, at least this one. The first,
#: which sets the rhythm of the others, may be sent earlier.
ACK_SHARE_MIN = 0.8
FIRST_ACK_SHARE_MIN = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Interest:
    """What a program subscribes to, and how."""

    topic: TopicId
    where: str = ""
    name: str | None = None
    order: Order = Order.PUBLISHER
    start: Start = "now"
    mode: Mode = "guaranteed"
    ack: Literal["auto", "manual"] = "auto"
    gaps: Literal["report", "raise"] = "report"
    credit_rows: int


@dataclass(slots=True)
class FilterChange:
    """A filter change that not all pubends have confirmed yet."""

    where: str
    #: The number of the request on this connection; None if it is still to be sent.
    request: int | None = None
    attempts: int = 0
    ticks: dict[PubendId, Tick] = field(default_factory=dict)


Rows = TypeVar("Rows", bound=ArrivedRows)


class ClientSubscription(Enrolment, Generic[Rows]):
    """One subscription of a program."""

    def __init__(self, interest: Interest, retries_max: int, *, roams: bool = False) -> None:
        """One that roams may be continued at other edges: its client knows several."""
        super().__init__(interest.name, retries_max)
        self._roams = roams
        self.interest = interest
        self.filters = Filters(interest.where)
        #: Requested ticks that the network no longer keeps, in the order of discovery.
        self.gaps: list[Gap] = []
        #: The pubends that have not confirmed it yet: their events come when they have.
        self.awaited: tuple[PubendId, ...] = ()
        #: The logs that `_expected` is about.
        self._logs: dict[PubendId, str] = {}
        self.schema: Schema | None = None
        #: Per pubend, the next tick that may arrive, and the next that the program may be given.
        self._expected: dict[PubendId, Tick] = {}
        self._taken: dict[PubendId, Tick] = {}
        self.change: FilterChange | None = None
        #: Per pubend, the acknowledged position: sent again on every connection.
        self._acked: dict[PubendId, Tick] = {}
        #: Rows not taken yet, their number, and those being taken.
        self._waiting: deque[Rows] = deque()
        self._buffered = 0
        self.current: Rows | None = None
        #: Rows that there is room for again, and that the node has not been told of.
        self._regrant = 0
        self._ledger = AckLedger()
        #: Whether something is to be acknowledged, whether at once, and whether a timer limits the delay.
        self.ack_due = False
        self._ack_now = False
        self._ack_timer = False
        self._ack_share_min = FIRST_ACK_SHARE_MIN
        #: Whether it has passed ticks by what the node told, a horizon or a gap, and not by their events.
        self._has_passed = False

    # What the program does.

    @property
    def positions(self) -> Mapping[PubendId, Tick]:
        """Per pubend, the first tick the program has not passed: a `start` to resume from."""
        current = self.current
        if not self._waiting and (current is None or current.at == current.size):
            # It has everything that arrived, and so knows as much as this subscription.
            return dict(self._expected)
        return self._taken if current is None else {**self._taken, **current.stops_at(current.at)}

    def positions_after(self, rows: Rows, count: int) -> Mapping[PubendId, Tick]:
        """The positions if the program has taken only the first `count` of these rows."""
        return {**self._taken, **rows.stops_at(count)}

    def next(self) -> tuple[Rows | None, list[ClientEffect]]:
        """Rows that the program has not taken, if there are any; the room of the former is free then."""
        if self.current is not None and self.current.at < self.current.size:
            return self.current, []
        if not self._waiting:
            return None, []
        rows = self._waiting.popleft()
        former, self.current = self.current, rows
        if former is not None:
            self._acked.update(former.stops(former.asked))
            self._taken.update(former.stops_at(former.at))
        self._buffered -= rows.size
        return rows, self._grant(rows.credit)

    def took(self, rows: Rows, start: int, stop: int) -> None:
        """The program has taken these rows. Whoever acknowledges by itself owes an answer for each."""
        rows.at = stop
        if self.interest.ack == "manual":
            if stop == start + 1:
                self._ledger.handed(rows.pubend(start), (int(rows.ticks[start]),))
                return
            for pubend, tick in zip(rows.row_pubends()[start:], rows.ticks[start:].tolist(), strict=True):
                self._ledger.handed(pubend, (tick,))

    def asks(self) -> list[ClientEffect]:
        """The program asks for more, so it is done with all that it has."""
        current = self.current
        if self.interest.ack != "auto" or current is None or current.asked >= current.at:
            return []
        current.asked = current.at
        return self.ack_later()

    def ack_later(self) -> list[ClientEffect]:
        """Acknowledge with the next grant of credit, or when the timer fires: nobody is waiting for it."""
        self.ack_due = True
        if self._ack_timer:
            return []
        self._ack_timer = True
        share, self._ack_share_min = self._ack_share_min, ACK_SHARE_MIN
        return [StartAckTimer(share_min=share)]

    def ack_at_once(self) -> list[ClientEffect]:
        """The timer has fired, or the program wants it."""
        self._ack_timer = False
        self._ack_now = True
        return [StopAckTimer(), Wake()]

    def acks(self, rows: Rows, start: int, stop: int) -> list[ClientEffect]:
        """The program acknowledges some rows."""
        if self.is_ended:
            return []
        if self.interest.ack == "auto":
            # Rows before these are acknowledged, too.
            rows.asked = max(rows.asked, stop)
            return self.ack_later() if rows is self.current else []
        for row in range(start, stop):
            pubend = rows.pubend(row)
            position = self._ledger.acked(pubend, (int(rows.ticks[row]),))
            if position is not None:
                self._acked[pubend] = position
        # The program may have a reason to acknowledge right now.
        self.ack_due = True
        return self.ack_at_once()

    def begin_change(self, where: str) -> list[ClientEffect]:
        """The program wants other events."""
        assert self.change is None, "one change at a time"
        self.change = FilterChange(where)
        return [Wake()]

    def finish(self) -> tuple[list[ClientMessage], int | None]:
        """The program is done with the subscription; gives the last acknowledgement, and what to end."""
        self._ack_now = True
        said: list[ClientMessage] = []
        if self.number is not None and self.error is None:
            said = self._due(iter(()), has_change=False)
        number, self.number = self.number, None
        self.is_ended = True
        return said, number

    def leaves(self) -> None:
        """The program leaves without a mistake: it is done with what it took."""
        if self.current is not None and self.interest.ack == "auto":
            self.current.asked = self.current.at
            self.ack_due = True

    # What is said to the node.

    def say(self, edge: str, numbers: Iterator[int]) -> tuple[list[ClientMessage], list[ClientEffect]]:
        """What to send now: the subscription itself, then acknowledgements, credit and changes."""
        if self.is_ended or self.error is not None:
            return [], []
        if self.request is None:
            request, effects = self._enrol(edge, numbers)
            return ([] if request is None else [self._subscribe(request)]), effects
        if self.number is None:
            return [], []
        had_timer = self._ack_timer
        said = self._due(numbers)
        return said, [StopAckTimer()] if had_timer and not self._ack_timer else []

    def _due(self, numbers: Iterator[int], *, has_change: bool = True) -> list[ClientMessage]:
        number = self.number
        assert number is not None
        said: list[ClientMessage] = []
        has_credit = 2 * self._regrant >= self.interest.credit_rows
        if self.ack_due and (self._ack_now or has_credit):
            self.ack_due = self._ack_now = self._ack_timer = False
            if self.current is not None and self.interest.ack == "auto":
                self._acked.update(self.current.stops(self.current.asked))
            if (self.filters.judges or self._has_passed) and self._is_done_with_all():
                # What was filtered out here is done with, too, and so is a past without events, or in a gap.
                self._acked.update(self._expected)
            if self._acked:
                said.append(Acknowledge(subscription=number, positions=dict(self._acked)))
        if has_credit:
            said.append(Credit(subscription=number, rows=self._regrant))
            self._regrant = 0
        change = self.change
        if has_change and change is not None and change.request is None and self.is_live:
            change.request = next(numbers)
            said.append(ChangeFilter(request=change.request, subscription=number, where=change.where))
        return said

    def _is_done_with_all(self) -> bool:
        """Whether the program is done with everything that arrived."""
        current = self.current
        if self._waiting:
            return False
        if self.interest.ack == "auto":
            return current is None or current.asked == current.size
        return (current is None or current.at == current.size) and self._ledger.is_empty

    def _subscribe(self, request: int) -> Subscribe:
        interest = self.interest
        start, where = interest.start, self.filters.where
        logs: dict[PubendId, str] = {}
        if self.is_live:
            reached(RESUMED)
            start = self._starts_again()
            if interest.name is None:
                # One with a name has its positions at its edge, which knows their logs itself.
                logs = {pubend: log for pubend, log in self._logs.items() if log and pubend in start}
            where = self.filters.resume(self._expected, self.schema)
        elif interest.name is not None and isinstance(start, Mapping):
            # A program that starts at its own positions is done with everything below them.
            self._acked = {**start, **self._acked}
        # Acknowledgements of the old connection may be lost: send them again.
        self.ack_due = self._ack_now = True
        self._regrant = 0
        for rows in self._waiting:
            # What came with them and was dropped used the credit of the old connection.
            rows.credit = rows.size
        return Subscribe(
            request=request,
            topic=interest.topic,
            where=where,
            name=interest.name,
            order=interest.order,
            start=start,
            mode=interest.mode,
            credit_rows=max(interest.credit_rows - self._buffered, 0),
            roams=self._roams,
            logs=logs,
        )

    def _starts_again(self) -> dict[PubendId, Tick]:
        """Where to go on: at what arrived, and at a pubend that had not confirmed where the program asked."""
        start = self.interest.start
        asked = start if isinstance(start, Mapping) else dict.fromkeys(self.awaited, start)
        ticks = {pubend: TICK_MIN + 1 if at == "earliest" else at for pubend, at in asked.items()}
        return {pubend: at for pubend, at in ticks.items() if isinstance(at, int)} | self._expected

    # What the node says.

    def unlinked(self) -> list[ClientEffect]:
        """The connection is lost."""
        effects = super().unlinked()
        if not self.is_live:
            # The program has seen nothing yet, so start over.
            self._expected = {}
            self._logs = {}
            self._taken = {}
            self._waiting.clear()
            self._buffered = 0
        change = self.change
        if change is not None and not change.ticks and self.interest.name is None:
            # The node may never have heard of it: then it keeps by the old condition what has not arrived. Go
            # on with that, and ask again. A name stays changed at the node, if it has heard.
            change.request = None
        elif change is not None and change.request is not None:
            # Some events of the new condition may have arrived. From now on, subscribe to both; where no tick
            # was confirmed, the new condition applies to everything that has not arrived.
            ticks = {pubend: change.ticks.get(pubend, tick) for pubend, tick in self._expected.items()}
            effects += self._changed(change, ticks)
        return effects

    def confirmed(self, confirmed: Confirmed) -> list[ClientEffect]:
        """One pubend has confirmed the subscription or a filter change."""
        if self.is_ended:
            return []
        if confirmed.request != self.request:
            return self._confirm_change(confirmed)
        self.number = confirmed.subscription
        self.schema = confirmed.schema
        effects = self._look_for_gap(confirmed)
        self.awaited = confirmed.awaited
        first, start = confirmed.start, self.interest.start
        if isinstance(start, Mapping):
            # A node starts at the lowest of all positions, so some of what it sends arrived before. That is
            # acknowledged, too: the node waits for it as for everything else it sends.
            first = max(first, start.get(confirmed.pubend, first))
            self._acked.setdefault(confirmed.pubend, first)
        self._expected.setdefault(confirmed.pubend, first)
        self._taken.setdefault(confirmed.pubend, first)
        enrolled = self._is_enrolled(confirmed)
        if enrolled is None:
            enrolled = [Wake()]
            if not self.is_live and len(self._confirmed) == 1:
                # What is there is served without the others, unless they come at once.
                enrolled.append(StartAwaitTimer())
        return effects + enrolled

    def _look_for_gap(self, confirmed: Confirmed) -> list[ClientEffect]:
        """Report a gap if the node starts later than we asked, or in another log."""
        pubend = confirmed.pubend
        found = gap_before(confirmed, self._asked(confirmed), self._logs.get(pubend))
        self._logs[pubend] = confirmed.log
        if found is None:
            return []
        gap, why = found
        self.gaps.append(gap)
        self._expected[pubend] = gap.stop
        # A node may still send what another log has below the end of the gap, and waits for it to be acked.
        self._has_passed = True
        ticks = f"ticks {gap.start}..{gap.stop}"
        text = f"pubend '{pubend}' {why} {ticks}, which a subscription to '{self.interest.topic}' asked for"
        if self.interest.gaps == "report":
            return [ReportGap(gap=gap, text=text)]
        text = f"{text}: subscribe again from its positions, or name the subscription"
        return self.fail(LinkError("E410", text))

    def _asked(self, confirmed: Confirmed) -> Tick | None:
        """Where the subscription should go on at a pubend; None if anywhere will do."""
        pubend, start = confirmed.pubend, self.interest.start
        if pubend in self._expected:
            return self._expected[pubend]
        asked = start.get(pubend) if isinstance(start, Mapping) else start
        return asked if isinstance(asked, int) else confirmed.lost_from

    def _confirm_change(self, confirmed: Confirmed) -> list[ClientEffect]:
        change = self.change
        if change is None or confirmed.request != change.request:
            return []
        change.ticks[confirmed.pubend] = confirmed.start
        if len(change.ticks) < confirmed.pubends:
            return []
        return [Unregister(request=confirmed.request), *self._changed(change, change.ticks)]

    def _changed(self, change: FilterChange, ticks: Mapping[PubendId, Tick]) -> list[ClientEffect]:
        self.filters.switch(change.where, ticks, self._expected)
        self.change = None
        return [FinishChange(ticks=dict(ticks))]

    def refused(self, refused: RequestRefused) -> list[ClientEffect]:
        """The node refuses the subscription or a filter change."""
        change = self.change
        if change is None or refused.request != change.request:
            return super().refused(refused)
        change.attempts += 1
        if refused.retry and change.attempts <= self._retries_max:
            change.request = None
            return [StartRetryTimer(attempts=change.attempts)]
        self.change = None
        return [FinishChange(ticks={}, error=refused)]

    def fail(self, error: GaplessError | RequestRefused) -> list[ClientEffect]:
        """The subscription has failed: no more events will arrive."""
        effects = super().fail(error)
        if self.change is not None:
            self.change = None
            effects.append(FinishChange(ticks={}, error=error))
        return [*effects, Offer()]

    def horizon(self, horizon: Horizon) -> list[ClientEffect]:
        """The node has sent everything below these ticks. It is acknowledged when the program is done."""
        moved = {
            pubend: tick for pubend, tick in horizon.before.items() if tick > self._expected.get(pubend, tick)
        }
        if not moved or self.is_ended:
            return []
        reached(HORIZON_HEARD)
        self._expected.update(moved)
        self._has_passed = True
        return self.ack_later()

    # Deliveries.

    def expects(self, pubend: PubendId, tick: Tick) -> bool:
        """Whether one event that arrives is new; it is not, after that."""
        if tick < self._expected.get(pubend, TICK_MIN):
            reached(REPEAT_DROPPED)
            return False
        self._expected[pubend] = tick + 1
        return True

    def fresh(self, ticks: TickArray, pubends: tuple[PubendId, ...], source: Positions | None) -> RowMask:
        """Which of many events that arrive are new."""
        starts = np.array([self._expected.get(pubend, TICK_MIN) for pubend in pubends], dtype=np.int64)
        fresh: RowMask = ticks >= (starts[0] if source is None else starts[source])
        return fresh

    def arrived(self, rows: Rows) -> None:
        """These are new: they are expected no more."""
        self._expected.update(rows.stops_at(rows.size))

    def drop(self, count: int) -> list[ClientEffect]:
        """So many rows arrived that it had before: there is room for as many others.

        What was acknowledged is said again: the node did not count it before it had sent them.
        """
        return self._grant(count) + self.ack_later()

    def drop_unwanted(self, count: int) -> list[ClientEffect]:
        """So many rows arrived that no condition of their ticks accepts: they are done with."""
        return self._grant(count) + self.ack_later()

    def keep(self, rows: Rows, count: int) -> list[ClientEffect]:
        """Keep new rows until the program asks for them; `count` arrived, of which these are left.

        Raises PeerError when the node sends far more than it has credit for.
        """
        rows.credit = count
        self._waiting.append(rows)
        self._buffered += rows.size
        if self._buffered > self.interest.credit_rows + EXCESS_ROWS_MAX:
            raise PeerError(
                "E241", f"the node sent {self._buffered} rows for a credit of {self.interest.credit_rows}"
            )
        return [Offer()]

    @property
    def pending(self) -> tuple[str, Mapping[PubendId, Tick]] | None:
        """A change that already applies where it has a tick: there the node applies it too."""
        return None if self.change is None else (self.change.where, self.change.ticks)

    def _grant(self, rows: int) -> list[ClientEffect]:
        self._regrant += rows
        return [Wake()] if 2 * self._regrant >= self.interest.credit_rows else []

    def leave_unheard(self, confirmed: Confirmed, numbers: Iterator[int]) -> list[ClientEffect]:
        """End a subscription that the program left before the node confirmed it."""
        effects: list[ClientEffect] = [Unregister(request=confirmed.request)]
        if confirmed.request == self.request:
            leave = Unsubscribe(request=next(numbers), subscription=confirmed.subscription)
            effects.append(SayNow(message=leave))
        return effects
