"""Who subscribes in a simulation? Programs that host the client session, and whose connections break.

A program has one subscription, over one connection after another: at its own edge, or at any edge if it
*roams*. It takes rows at its own pace, and is done with each when it asks for the next, or says so itself, in
any order. One with a name may be killed: it comes back without a memory, and goes on at what it acknowledged.
Some want other events after a while, whatever their connections do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import count
from random import Random
from typing import Literal, assert_never

import numpy as np
import pyarrow as pa

from gapless.content.normal import either
from gapless.content.rows import Positions, RowMask
from gapless.model.ids import BrokerId, PubendId, TopicId
from gapless.model.ticks import TickArray
from gapless.protocol.events import Order
from gapless.protocol.sessions.arrivals import ArrivedRows
from gapless.protocol.sessions.enrolment import (
    ClientEffect,
    Fail,
    FinishChange,
    GoLive,
    Offer,
    ReportGap,
    SayNow,
    StartAckTimer,
    StartAwaitTimer,
    StartRetryTimer,
    StopAckTimer,
    StopRetryTimer,
    Unregister,
    Wake,
)
from gapless.protocol.sessions.messages import (
    Acknowledge,
    ChangeFilter,
    ColumnsDelivery,
    Confirmed,
    Credit,
    Done,
    EventRow,
    Horizon,
    RequestRefused,
    RowsDelivery,
    Subscribe,
    Unsubscribe,
)
from gapless.protocol.sessions.subscriber import ClientSubscription, Interest
from gapless.sim.conditions import Condition, Either
from gapless.sim.connections import Side
from gapless.sim.observer import Wish
from gapless.sim.subscribing import SubscriberPeer
from gapless.sim.translate import columns_of_values, condition_of
from gapless.sim.world import World
from gapless.wire.client_codec import NodeDecoder, encode_client
from gapless.wire.frames import Frame

#: How long an acknowledgement may wait.
ACK_US = 100_000
#: The pause before an attempt, at most.
PAUSE_US_MAX = 100_000
#: How long it waits for the other pubends once one has confirmed it, at most.
AWAITED_US_MAX = 200_000

#: How often one program changes its mind: fewer times than an edge takes at once.
CHANGES_MAX = 6


class SimulatedRows(ArrivedRows):
    """Rows that arrived together, by their ids."""

    __slots__ = ("ids",)

    def __init__(
        self, ticks: TickArray, pubends: Sequence[PubendId], source: Positions | None, ids: list[int]
    ) -> None:
        super().__init__(ticks, pubends, source)
        self.ids = ids

    def where(self, wanted: RowMask) -> SimulatedRows:
        """Only these rows."""
        source = None if self.source is None else self.source[wanted]
        ids = [row_id for row_id, is_wanted in zip(self.ids, wanted.tolist(), strict=True) if is_wanted]
        return SimulatedRows(self.ticks[wanted], self.pubends, source, ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How one program behaves."""

    #: The edges that it may use.
    edges: tuple[BrokerId, ...]
    ack: Literal["auto", "manual"]
    credit_rows: int
    #: How long it takes to come back to its rows.
    take_us_max: int
    #: Its subscription has a name.
    is_named: bool


@dataclass(slots=True, eq=False)
class SubscriberProgram:
    """One program, over all of its connections."""

    world: World
    random: Random
    wish: Wish
    habits: Habits
    edge: BrokerId = field(init=False)
    machine: ClientSubscription[SimulatedRows] = field(init=False)
    #: Counts its lives; 0 when it is gone for good.
    life: int = 1
    side: Side | None = None
    #: It does not take anything at the moment.
    is_paused: bool = False
    _decoder: NodeDecoder = field(default_factory=NodeDecoder)
    _numbers: count[int] = field(default_factory=lambda: count(1))
    _is_dialling: bool = False
    _is_taking: bool = False
    _acks: int = 0
    _retries: int = 0
    #: In manual mode: what was taken and not acknowledged.
    _unacked: list[tuple[SimulatedRows, int]] = field(default_factory=list)
    #: Where pubends have confirmed it, and in which log, until it is live; those of which the observers know
    #: for this life, and for any life; and whether it came back without a memory.
    _started: dict[PubendId, tuple[int, str]] = field(default_factory=dict)
    _known: set[PubendId] = field(default_factory=set)
    _shares: set[PubendId] = field(default_factory=set)
    _is_reborn: bool = False
    #: What it has asked for, one after another; and how many changes the observers know of, by pubend.
    _conditions: list[Condition] = field(init=False)
    _changed: Counter[PubendId] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.edge = BrokerId(self.wish.edge)
        self._conditions = [self.wish.condition]
        self._begin()

    @property
    def name(self) -> str:
        """What the checkers call its subscription."""
        return self.wish.subscription

    @property
    def is_closed(self) -> bool:
        """Whether it is gone."""
        return self.life == 0

    # ---- what the workload asks ----------------------------------------------------------------------

    def leave(self) -> None:
        """The program unsubscribes, if it can, and is gone."""
        said, number = self.machine.finish()
        if self.side is not None and number is not None:
            leave = Unsubscribe(request=next(self._numbers), subscription=number)
            for message in (*said, leave):
                self.side.write(encode_client(message))
        self._close()

    def kill(self) -> bool:
        """The process dies and is started again, without a memory; False when it has not begun."""
        if not self.machine.is_live:
            return False
        self._hang_up()
        self.life += 1
        self._acks += 1
        self._retries += 1
        self._is_dialling = self._is_taking = False
        self._is_reborn = True
        self._begin()
        return True

    def change(self, condition: Condition) -> bool:
        """The program wants other events from now on; False when it cannot ask for them now.

        Not one with a name, which may have rows of the new condition before it hears of the change; nor one
        in total order, for which a change decides from one tick on unless its connection breaks meanwhile.
        """
        machine = self.machine
        if self.habits.is_named or self.wish.total or len(self._conditions) > CHANGES_MAX:
            return False
        if self.is_closed or not machine.is_live or machine.change is not None:
            return False
        self._conditions.append(condition)
        for observer in self.world.observers:
            observer.changing(self.name, condition)
        self._perform(machine.begin_change(str(condition_of(condition))))
        return True

    def quicken(self, take_us_max: int) -> None:
        """From now on it comes back to its rows at once."""
        self.is_paused = False
        if self.habits.take_us_max > take_us_max:
            self.habits = Habits(
                edges=self.habits.edges,
                ack=self.habits.ack,
                credit_rows=self.habits.credit_rows,
                take_us_max=take_us_max,
                is_named=self.habits.is_named,
            )
        self._take_soon()

    def pause(self, is_paused: bool) -> None:
        """Let it stop taking rows, or go on."""
        self.is_paused = is_paused
        self._take_soon()

    # ---- connections ---------------------------------------------------------------------------------

    def _begin(self) -> None:
        wish, habits = self.wish, self.habits
        self.machine = ClientSubscription(
            Interest(
                topic=TopicId(wish.topic),
                where=str(condition_of(wish.condition)),
                name=wish.subscription if habits.is_named else None,
                order=Order.TOTAL if wish.total else Order.PUBLISHER,
                start="now" if wish.wanted is None or self._is_reborn else wish.wanted,
                ack=habits.ack,
                credit_rows=habits.credit_rows,
            ),
            retries_max=1_000,
            roams=len(habits.edges) > 1,
        )
        self._unacked = []
        self._started = {}
        self._known = set()
        self._dial()

    def _later(self, delay_us: int, action: partial[None]) -> None:
        self.world.after(delay_us, partial(self._in_life, self.life, action))

    def _in_life(self, life: int, action: partial[None]) -> None:
        if self.life == life:
            action()

    def _dial(self) -> None:
        if not self._is_dialling and self.side is None:
            self._is_dialling = True
            # Mostly before its subscription is forgotten, and sometimes long after.
            most = self.random.choice((5_000, 50_000, 500_000, 4_000_000))
            self._later(self.random.randint(500, most), partial(self._dialled))

    def _dialled(self) -> None:
        self._is_dialling = False
        if len(self.habits.edges) > 1 and self.random.random() < 0.5:
            self.edge = self.random.choice(self.habits.edges)
        node = self.world.nodes[self.edge]
        if node.broker is None or node.subscribing is None or node.stalled:
            self._dial()
            return
        peer: SubscriberPeer = node.subscribing.welcome(self.name)
        connection = self.world.connect(self.edge, self, peer)
        self.side, peer.side = connection.client, connection.node
        self._decoder = NodeDecoder()
        for observer in self.world.observers:
            observer.roamed(self.name, self.edge)
        self._perform(self.machine.linked())

    def _hang_up(self) -> None:
        if self.side is not None:
            self.side.drop()
            self.side = None

    def _close(self) -> None:
        self.life = 0
        if self.side is not None:
            # What it has written may still arrive.
            self.side.connection.cut()
            self.side = None
        for observer in self.world.observers:
            observer.ended(self.name)

    def lost(self) -> None:
        """The connection is gone."""
        self.side = None
        if not self.is_closed:
            if not self.machine.is_live:
                # It starts over, and is promised something else then.
                self._started = {}
            self._perform(self.machine.unlinked())
            self._dial()

    # ---- what comes ----------------------------------------------------------------------------------

    def received(self, frame: Frame) -> None:
        """The node says something."""
        if self.is_closed:
            return
        message = self._decoder.decode(frame)
        match message:
            case Confirmed():
                self._confirmed(message)
            case RequestRefused():
                self._perform(self.machine.refused(message))
            case Horizon():
                for observer in self.world.observers:
                    observer.horizon(self.name, message.before)
                self._perform(self.machine.horizon(message))
            case RowsDelivery():
                self._arrived([message.events[place] for _, place in message.to])
            case ColumnsDelivery():
                self._columns_arrived(message)
            case Done():
                pass
            case _:
                raise AssertionError(f"a subscriber hears {message}")

    def _confirmed(self, confirmed: Confirmed) -> None:
        is_new = not self.machine.is_live or confirmed.pubend not in self._known
        change = self.machine.change
        effects = self.machine.confirmed(confirmed)
        if change is not None and change.request == confirmed.request:
            self._tell_changed(confirmed.pubend, len(self._conditions) - 1, confirmed.start)
        start = max([confirmed.start, *(each.gap.stop for each in effects if isinstance(each, ReportGap))])
        if is_new:
            self._started[confirmed.pubend] = (start, confirmed.log)
        if confirmed.pubend in self._shares:
            for observer in self.world.observers:
                observer.reads(self.name, confirmed.pubend, confirmed.log)
            self._report_gaps(effects)
        self._tell_started()
        if any(isinstance(effect, Unregister) for effect in effects):
            host = self.world.nodes[self.edge].subscribing
            holder = "" if host is None else host.holder(confirmed.subscription)
            for observer in self.world.observers:
                observer.held(self.name, holder, is_named=self.habits.is_named)
        self._perform(effects)

    def _tell_started(self) -> None:
        """The promises of a subscription hold when it is live."""
        if not self.machine.is_live:
            return
        started, self._started = self._started, {}
        for pubend, (start, log) in started.items():
            for observer in self.world.observers:
                if pubend in self._shares:
                    observer.reborn(self.name, pubend, start)
                else:
                    observer.confirmed(self.name, pubend, start, log)
            self._known.add(pubend)
            self._shares.add(pubend)
            # Where it had not begun, what it asked for since decides of everything.
            self._tell_changed(pubend, len(self._conditions) - 1 - (self.machine.change is not None), start)

    def _tell_changed(self, pubend: PubendId, changes: int, since: int) -> None:
        """So many changes have been made at a pubend; those that are not known decide from this tick on."""
        if pubend not in self._shares:
            return
        for at in range(self._changed[pubend] + 1, changes + 1):
            for observer in self.world.observers:
                observer.changed(self.name, pubend, self._conditions[at], since)
            self._changed[pubend] = at

    def _begin_live(self, retry: int) -> None:
        if retry == self._retries:
            self._perform(self.machine.begin())
            self._tell_started()

    def _report_gaps(self, effects: Iterable[ClientEffect]) -> None:
        for effect in effects:
            if isinstance(effect, ReportGap):
                for observer in self.world.observers:
                    observer.gap(self.name, effect.gap.pubend, effect.gap.start, effect.gap.stop)

    def _arrived(self, events: list[EventRow]) -> None:
        """A few rows have come, each by itself."""
        for observer in self.world.observers:
            observer.rows_arrived(self.name, len(events))
        fresh = [event for event in events if self.machine.expects(event.pubend, event.tick)]
        if not fresh:
            self._perform(self.machine.drop(len(events)))
            return
        pubends = sorted({event.pubend for event in fresh})
        source = np.array([pubends.index(event.pubend) for event in fresh], dtype=np.int64)
        ticks = np.array([event.tick for event in fresh], dtype=np.int64)
        rows = SimulatedRows(ticks, pubends, source, [int(str(event.values[0])) for event in fresh])
        self._keep(rows, columns_of_values([event.values for event in fresh]), len(events))

    def _columns_arrived(self, delivery: ColumnsDelivery) -> None:
        """Many rows have come together."""
        batch, source, count = delivery.batch, delivery.source, len(delivery.batch)
        for observer in self.world.observers:
            observer.rows_arrived(self.name, count)
        fresh = self.machine.fresh(batch.ticks, delivery.pubends, source)
        if not fresh.any():
            self._perform(self.machine.drop(count))
            return
        ids = batch.array("id")[fresh].tolist()
        of = None if source is None else source[fresh]
        rows = SimulatedRows(batch.ticks[fresh], delivery.pubends, of, ids)
        self.machine.arrived(rows)
        self._keep(rows, batch.columns.filter(pa.array(fresh)), count)

    def _keep(self, rows: SimulatedRows, columns: pa.RecordBatch, count: int) -> None:
        machine = self.machine
        if machine.filters.judges:
            assert machine.schema is not None
            wanted = machine.filters.mask(
                columns, rows.ticks, rows.row_pubends(), machine.schema, pending=machine.pending
            )
            rows = rows.where(wanted)
            if not rows.size:
                self._perform(machine.drop_unwanted(count))
                return
        for pubend, row_id in zip(rows.row_pubends(), rows.ids, strict=True):
            for observer in self.world.observers:
                observer.arrived(self.name, pubend, row_id)
        self._perform(self.machine.keep(rows, count))

    # ---- taking --------------------------------------------------------------------------------------

    def _take_soon(self) -> None:
        if not (self._is_taking or self.is_paused or self.is_closed):
            self._is_taking = True
            self._later(self.random.randint(1, self.habits.take_us_max), partial(self._take))

    def _take(self) -> None:
        """Take some rows, one by one; in manual mode, acknowledge some of those taken."""
        self._is_taking = False
        if self.is_paused or not self.machine.is_live:
            return
        for _ in range(self.random.choice((1, 3, 30))):
            self._asks()
            rows, effects = self.machine.next()
            self._perform(effects)
            if rows is None:
                break
            row = rows.at
            self.machine.took(rows, row, row + 1)
            for observer in self.world.observers:
                observer.taken(self.name, rows.pubend(row), int(rows.ticks[row]), rows.ids[row])
            if self.habits.ack == "manual":
                self._unacked.append((rows, row))
        else:
            self._take_soon()
        while self._unacked and self.random.random() < 0.7:
            rows, row = self._unacked.pop(self.random.randrange(len(self._unacked)))
            self._done_with(rows, row)
            self._perform(self.machine.acks(rows, row, row + 1))
        if self._unacked:
            self._take_soon()

    def _asks(self) -> None:
        current = self.machine.current
        if self.habits.ack == "auto" and current is not None:
            for row in range(current.asked, current.at):
                self._done_with(current, row)
        self._perform(self.machine.asks())

    def _done_with(self, rows: SimulatedRows, row: int) -> None:
        for observer in self.world.observers:
            observer.finished(self.name, rows.pubend(row), int(rows.ticks[row]))

    # ---- effects -------------------------------------------------------------------------------------

    def _perform(self, effects: Iterable[ClientEffect]) -> None:
        for effect in effects:
            match effect:
                case Wake():
                    self._say()
                case Offer() | GoLive():
                    self._take_soon()
                case StartAckTimer() | StartRetryTimer() | StartAwaitTimer():
                    self._start_timer(effect)
                case StopAckTimer():
                    self._acks += 1
                case StopRetryTimer():
                    self._retries += 1
                case Fail(error=error):
                    raise AssertionError(f"{self.name} failed: {error}")
                case FinishChange(ticks=ticks, error=error):
                    assert error is None, f"{self.name} may not change its mind: {error}"
                    for pubend, since in ticks.items():
                        self._tell_changed(pubend, len(self._conditions) - 1, since)
                case ReportGap() | Unregister():
                    pass
                case SayNow(message=message):
                    assert self.side is not None
                    self.side.write(encode_client(message))
                case _:
                    assert_never(effect)

    def _start_timer(self, effect: StartAckTimer | StartRetryTimer | StartAwaitTimer) -> None:
        match effect:
            case StartAckTimer():
                self._acks += 1
                self._later(self.random.randint(1, ACK_US), partial(self._ack, self._acks))
            case StartRetryTimer():
                self._retries += 1
                self._later(self.random.randint(1, PAUSE_US_MAX), partial(self._retry, self._retries))
            case StartAwaitTimer():
                self._retries += 1
                delay = self.random.randint(1, AWAITED_US_MAX)
                self._later(delay, partial(self._begin_live, self._retries))

    def _ack(self, timer: int) -> None:
        if self._acks == timer:
            self._perform(self.machine.ack_at_once())

    def _retry(self, timer: int) -> None:
        if self._retries == timer:
            self._perform(self.machine.retry())

    def _say(self) -> None:
        if self.side is None:
            return
        said, effects = self.machine.say(self.edge, self._numbers)
        for message in said:
            for observer in self.world.observers:
                if isinstance(message, Subscribe | ChangeFilter):
                    observer.asked(self.name, self._asked(message.where))
                if isinstance(message, Subscribe):
                    observer.credit(self.name, message.credit_rows or 0, is_new=True)
                elif isinstance(message, Credit):
                    observer.credit(self.name, message.rows, is_new=False)
                elif isinstance(message, Acknowledge):
                    observer.acknowledged(self.name, message.positions)
            self.side.write(encode_client(message))
        self._perform(effects)

    def _asked(self, where: str) -> Condition:
        """Which of its conditions it asks for, or which of them together."""
        every = range(len(self._conditions))
        for some in (
            self._conditions[start : stop + 1] for stop in reversed(every) for start in every[: stop + 1]
        ):
            if where == str(either(condition_of(each) for each in some)):
                return reduce(Either, some)
        raise AssertionError(f"{self.name} asks for {where}, and wants {self._conditions}")
