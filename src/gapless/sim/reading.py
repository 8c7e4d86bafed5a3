"""Who subscribes in a simulation? Programs that host the client session, and whose connections break.

A program has one subscription, over one connection after another: at its own edge, or at any edge if it
*roams*. It takes rows at its own pace, and is done with each when it asks for the next, or says so itself, in
any order. One with a name may be killed: it comes back without a memory, and goes on at what it acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random
from typing import Literal, assert_never

import numpy as np

from gapless.content.rows import Positions
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
    ColumnsDelivery,
    Confirmed,
    Credit,
    Done,
    Horizon,
    RequestRefused,
    RowsDelivery,
    Subscribe,
    Unsubscribe,
)
from gapless.protocol.sessions.subscriber import ClientSubscription, Interest
from gapless.sim.connections import Side
from gapless.sim.observer import Wish
from gapless.sim.subscribing import SubscriberPeer
from gapless.sim.translate import condition_of
from gapless.sim.world import World
from gapless.wire.client_codec import NodeDecoder, encode_client
from gapless.wire.frames import Frame

#: How long an acknowledgement may wait.
ACK_US = 100_000
#: The pause before an attempt, at most.
PAUSE_US_MAX = 100_000
#: How long it waits for the other pubends once one has confirmed it, at most.
AWAITED_US_MAX = 200_000


class SimulatedRows(ArrivedRows):
    """Rows that arrived together, by their ids."""

    __slots__ = ("ids",)

    def __init__(
        self, ticks: TickArray, pubends: Sequence[PubendId], source: Positions | None, ids: list[int]
    ) -> None:
        super().__init__(ticks, pubends, source)
        self.ids = ids


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

    def __post_init__(self) -> None:
        self.edge = BrokerId(self.wish.edge)
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
                rows = [(event.pubend, event.tick, event.values[0]) for event in message.events]
                self._arrived([rows[place] for _, place in message.to])
            case ColumnsDelivery():
                self._columns_arrived(message)
            case Done():
                pass
            case _:
                raise AssertionError(f"a subscriber hears {message}")

    def _confirmed(self, confirmed: Confirmed) -> None:
        is_new = not self.machine.is_live or confirmed.pubend not in self._known
        effects = self.machine.confirmed(confirmed)
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

    def _begin_live(self, retry: int) -> None:
        if retry == self._retries:
            self._perform(self.machine.begin())
            self._tell_started()

    def _report_gaps(self, effects: Iterable[ClientEffect]) -> None:
        for effect in effects:
            if isinstance(effect, ReportGap):
                for observer in self.world.observers:
                    observer.gap(self.name, effect.gap.pubend, effect.gap.start, effect.gap.stop)

    def _arrived(self, events: list[tuple[PubendId, int, object]]) -> None:
        """A few rows have come, each by itself."""
        for observer in self.world.observers:
            observer.rows_arrived(self.name, len(events))
        fresh = [each for each in events if self.machine.expects(each[0], each[1])]
        if not fresh:
            self._perform(self.machine.drop(len(events)))
            return
        pubends = sorted({pubend for pubend, _, _ in fresh})
        source = np.array([pubends.index(pubend) for pubend, _, _ in fresh], dtype=np.int64)
        ticks = np.array([tick for _, tick, _ in fresh], dtype=np.int64)
        self._keep(SimulatedRows(ticks, pubends, source, [int(str(row)) for _, _, row in fresh]), len(events))

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
        self._keep(rows, count)

    def _keep(self, rows: SimulatedRows, count: int) -> None:
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
                case StartAckTimer():
                    self._acks += 1
                    self._later(self.random.randint(1, ACK_US), partial(self._ack, self._acks))
                case StopAckTimer():
                    self._acks += 1
                case StartRetryTimer():
                    self._retries += 1
                    self._later(self.random.randint(1, PAUSE_US_MAX), partial(self._retry, self._retries))
                case StopRetryTimer():
                    self._retries += 1
                case StartAwaitTimer():
                    self._retries += 1
                    self._later(
                        self.random.randint(1, AWAITED_US_MAX), partial(self._begin_live, self._retries)
                    )
                case Fail(error=error):
                    raise AssertionError(f"{self.name} failed: {error}")
                case FinishChange() | ReportGap() | Unregister():
                    pass
                case SayNow(message=message):
                    assert self.side is not None
                    self.side.write(encode_client(message))
                case _:
                    assert_never(effect)

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
                if isinstance(message, Subscribe):
                    observer.credit(self.name, message.credit_rows or 0, is_new=True)
                elif isinstance(message, Credit):
                    observer.credit(self.name, message.rows, is_new=False)
                elif isinstance(message, Acknowledge):
                    observer.acknowledged(self.name, message.positions)
            self.side.write(encode_client(message))
        self._perform(effects)
