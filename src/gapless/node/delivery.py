"""How do rows reach subscribers? Each is encoded once for all of them, and written to their connections.

Who gets what, and when it is taken, is decided by `Deliveries`. This is its host: it encodes and writes,
feeds the broker, and has the timer and the turns of the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from time import perf_counter
from typing import Any, Protocol, assert_never, cast

from gapless.content.rows import Positions
from gapless.model.batch import EventBatch
from gapless.model.ids import PubendId, TopicId
from gapless.node.connection import Connection
from gapless.node.guard import Guard
from gapless.node.turn import NextTurn
from gapless.protocol.effects import Deliver, TellHorizon
from gapless.protocol.events import Event
from gapless.protocol.sessions.delivering import Deliveries
from gapless.protocol.sessions.messages import Horizon
from gapless.protocol.sessions.readers import (
    DeliveryEffect,
    LookLater,
    Outlet,
    Parcel,
    SendHorizon,
    SendRow,
    SendRows,
    TellBroker,
    WorkLater,
)
from gapless.wire.client_codec import encode_node
from gapless.wire.delivery import COLUMNS_ROWS_MIN, SharedColumns, SharedRows
from gapless.wire.rows import RowFormat

#: The low water is looked for so long after an acknowledgement: together with others that come meanwhile.
LOW_WATER_SECONDS = 0.05
#: Laggards get so much of each turn of the loop, and the end of the step that was begun.
TURN_SECONDS = 0.002
#: A batch up to this size stays encoded until the next one.
KEPT_BYTES_MAX = 1 * 2**20


class Feed(Protocol):
    """How events reach the broker."""

    def __call__(self, event: Event, then: Callable[[], None] | None = None) -> None:
        """Let the broker take a step, now or after the present one, and call `then` after it."""


class Delivery:
    """The deliveries of one node."""

    def __init__(
        self,
        forms: Mapping[TopicId, RowFormat],
        sources: Mapping[PubendId, int],
        feed: Feed,
        waiting_max: int,
        guard: Guard | None = None,
    ) -> None:
        """`waiting_max` is how many deliveries the broker hands out before it waits for one to be taken.

        `guard` is told of our own bugs.
        """
        self.session = Deliveries(waiting_max)
        self._look_later = self._look if guard is None else guard.call(self._look)
        self._forms = forms
        self._sources = sources
        self._feed = feed
        self._loop = asyncio.get_running_loop()
        self._next_turn = NextTurn(self._work, guard)
        self._last_whole = _LastWhole()

    def deliver(self, effect: Deliver) -> None:
        """Hand out the rows of one delivery."""
        self.perform(self.session.deliver(effect))

    def tell_horizon(self, effect: TellHorizon) -> None:
        """Send roaming subscribers their horizon."""
        self.perform(self.session.horizon(effect.pubend, effect.before, effect.lagging))

    def drained(self, connection: Connection) -> None:
        """What was sent has been written, or is lost with the connection."""
        self.perform(self.session.drained(connection))

    def perform(self, effects: Iterable[DeliveryEffect]) -> None:
        """Do what the session asks for."""
        for effect in effects:
            match effect:
                case SendRow(parcel=parcel, to=to):
                    if to:
                        # All of them read one topic. This is the way of nearly all rows: no call too many.
                        one = self._writer(parcel).rows(to[0][0].topic).one
                        for reader, row in to:
                            connection: Any = reader.outlet
                            connection.send_one(one(reader.number, row))
                case SendRows(parcel=parcel, reader=reader, rows=rows):
                    writer = self._writer(parcel)
                    writer.write(_connection(reader.outlet), reader.number, reader.topic, rows)
                case TellBroker(event=event, reader=slow):
                    self._feed(event, None if slow is None else partial(self.session.told, slow))
                case SendHorizon(reader=reader, before=before):
                    horizon = Horizon(subscription=reader.number, before=before)
                    _connection(reader.outlet).send(encode_node(horizon))
                case LookLater():
                    self._loop.call_later(LOW_WATER_SECONDS, self._look_later)
                case WorkLater():
                    self._next_turn.ask()
                case _:
                    assert_never(effect)

    def _look(self) -> None:
        self.perform(self.session.look())

    def _work(self) -> None:
        until = perf_counter() + TURN_SECONDS
        try:
            while self.session.has_work and perf_counter() < until:
                self.perform(self.session.work())
        finally:
            if self.session.has_work:
                self._next_turn.ask()

    def _writer(self, parcel: Parcel) -> _Writer:
        if parcel.delivery.laggard:
            # It may be sent a few rows now and the others much later: nothing is kept for that.
            return _Writer(self._forms, parcel.delivery, self._sources, self._last_whole)
        if parcel.encoded is None:
            parcel.encoded = _Writer(self._forms, parcel.delivery, self._sources, self._last_whole)
        return cast(_Writer, parcel.encoded)


def _connection(outlet: Outlet | None) -> Connection:
    """The outlets of this host are its connections."""
    return cast(Connection, outlet)


class _LastWhole:
    """The last batch that a laggard got, encoded: those who fell behind together get the same."""

    __slots__ = ("_batch", "_columns")

    def __init__(self) -> None:
        self._batch: EventBatch | None = None
        self._columns: SharedColumns | None = None

    def of(self, effect: Deliver, numbers: list[int]) -> SharedColumns:
        """The whole batch of a delivery."""
        if effect.source is None and effect.batch is self._batch:
            assert self._columns is not None
            return self._columns
        columns = SharedColumns(effect.batch, numbers, effect.source)
        if effect.laggard and effect.source is None and effect.batch.nbytes <= KEPT_BYTES_MAX:
            self._batch, self._columns = effect.batch, columns
        return columns


class _Writer:
    """The rows of one delivery, encoded when first needed."""

    __slots__ = ("_columns", "_effect", "_forms", "_last", "_numbers", "_rows")

    def __init__(
        self,
        forms: Mapping[TopicId, RowFormat],
        effect: Deliver,
        sources: Mapping[PubendId, int],
        last: _LastWhole,
    ) -> None:
        self._last = last
        self._forms = forms
        self._effect = effect
        self._numbers = [sources[pubend] for pubend in effect.pubends]
        self._rows: SharedRows | None = None
        self._columns: SharedColumns | None = None

    def rows(self, topic: TopicId, rows: Positions | None = None) -> SharedRows:
        """The rows, each by itself: all that anybody gets, or these."""
        if self._rows is None:
            effect = self._effect
            wanted = effect.rows if rows is None else rows
            self._rows = SharedRows(self._forms[topic], effect.batch, wanted, self._numbers, effect.source)
        return self._rows

    def write(self, connection: Connection, number: int, topic: TopicId, rows: Positions) -> None:
        """Send some rows, which ascend, to one subscription."""
        effect = self._effect
        wanted = rows if effect.laggard else None
        if len(rows) == 1:
            connection.send_one(self.rows(topic, wanted).one(number, int(rows[0])))
        elif len(rows) < COLUMNS_ROWS_MIN:
            connection.send(self.rows(topic, wanted).few(number, rows.tolist()))
        elif len(rows) == len(effect.batch):
            if self._columns is None:
                self._columns = self._last.of(effect, self._numbers)
            connection.send(self._columns.frame([(number, None)]))
        else:
            source = None if effect.source is None else effect.source[rows]
            columns: Any = effect.batch.columns.take(rows)
            part = SharedColumns(EventBatch(effect.batch.ticks[rows], columns), self._numbers, source)
            connection.send(part.frame([(number, None)]))
