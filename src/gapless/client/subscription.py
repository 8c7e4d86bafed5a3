"""How does a program get its events? Every matching one, once and in order, over any number of connections.

A subscription knows, per pubend, the next tick it expects. It drops events below that tick, and resumes there
after a lost connection. It grants the node credit for the rows it has room for, so a slow program falls
behind at the node, which keeps the events, and not here.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np

from gapless.client.acks import AckLedger
from gapless.client.events import Batch, Chunk, Event, Names
from gapless.client.filters import Filters
from gapless.client.options import AckMode, GapMode
from gapless.client.refusals import error_of, name_elsewhere
from gapless.client.session import Session
from gapless.client.waiting import Signal
from gapless.content.language import parse_condition
from gapless.errors import GaplessError, LinkError, PeerError, UsageError
from gapless.model.ids import PubendId, TopicId
from gapless.model.ticks import TICK_MIN, Tick
from gapless.protocol.events import Order
from gapless.wire.client_codec import encode_client
from gapless.wire.client_messages import (
    Acknowledge,
    ChangeFilter,
    ColumnsDelivery,
    Confirmed,
    Credit,
    Mode,
    RequestRefused,
    RowsDelivery,
    Start,
    Subscribe,
    Unsubscribe,
)
from gapless.wire.frames import Part

log = logging.getLogger("gapless.client")

#: A node that exceeds its credit by more rows than this is disconnected: it would fill our memory.
EXCESS_ROWS_MAX = 2**20
#: An acknowledgement is sent after a random share of the time it may wait, at least this one. The first,
#: which sets the rhythm of the others, may be sent earlier.
ACK_SHARE_MIN = 0.8
FIRST_ACK_SHARE_MIN = 0.1


class Gap(NamedTuple):
    """Ticks that the network no longer keeps. If there were events among them, they are not delivered."""

    pubend: PubendId
    start: Tick
    stop: Tick


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a program subscribes to, and how."""

    topic: TopicId
    where: str = ""
    name: str | None = None
    order: Order = Order.PUBLISHER
    start: Start = "now"
    mode: Mode = "guaranteed"
    ack: AckMode = "auto"
    gaps: GapMode = "report"
    credit_rows: int


@dataclass(slots=True)
class _Change:
    """A filter change that not all pubends have confirmed yet."""

    where: str
    done: asyncio.Future[Mapping[PubendId, Tick]]
    #: The number of the request on this connection; None if it is still to be sent.
    request: int | None = None
    attempts: int = 0
    ticks: dict[PubendId, Tick] = field(default_factory=dict)


class Subscription:
    """An async iterator over events. Made by `Client.subscribe`; starts with `async with`."""

    def __init__(self, session: Session, wish: Wish) -> None:
        self._session = session
        self._wish = wish
        self._filters = Filters(wish.where)
        #: Requested ticks that the network no longer keeps, in the order of discovery.
        self.gaps: list[Gap] = []
        self._names: Names | None = None
        #: Per pubend, the next tick that may arrive, and the next that the program may be given.
        self._expected: dict[PubendId, Tick] = {}
        self._taken: dict[PubendId, Tick] = {}
        #: On this connection: its request, its number, and the pubends that have confirmed it.
        self._request: int | None = None
        self._number: int | None = None
        self._confirmed: set[PubendId] = set()
        #: The edge it was first asked for at; one with a name lives there.
        self._edge: str | None = None
        self._attempts = 0
        self._retry: asyncio.TimerHandle | None = None
        self._live: asyncio.Future[None] | None = None
        self._change: _Change | None = None
        self._changing = asyncio.Lock()
        #: Per pubend, the acknowledged position: sent again on every connection.
        self._acked: dict[PubendId, Tick] = {}
        #: Chunks not taken yet, their number of rows, and the chunk being taken.
        self._chunks: deque[Chunk] = deque()
        self._buffered = 0
        self._chunk: Chunk | None = None
        self._regrant = 0
        self._ledger = AckLedger()
        #: Whether something is to be acknowledged, whether at once, and the timer that limits the delay.
        self._ack_due = False
        self._ack_now = False
        self._ack_timer: asyncio.TimerHandle | None = None
        self._ack_share_min = FIRST_ACK_SHARE_MIN
        self._arrived = Signal()
        self._error: GaplessError | None = None
        self._ended = False

    async def __aenter__(self) -> Self:
        if self._live is not None or self._ended:
            raise UsageError("E193", "a subscription can be entered only once: subscribe again")
        if self._session.error is not None:
            raise self._session.error
        self._live = asyncio.get_running_loop().create_future()
        self._session.subscriptions[self] = None
        self._session.wake(self)
        try:
            await self._live
        except BaseException:
            await self._end(forget=False)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._chunk is not None and self._wish.ack == "auto":
            self._chunk.asked = self._chunk.at
            self._ack_due = True
        await self._end(forget=False)

    # What programs call.

    async def __aiter__(self) -> AsyncIterator[Event]:
        is_manual = self._wish.ack == "manual"
        self._ack_taken()
        while (chunk := await self._next_chunk()) is not None:
            while chunk.at < chunk.size:
                row = chunk.at
                chunk.at = row + 1
                if is_manual:
                    self._ledger.handed(chunk.pubend(row), (int(chunk.ticks[row]),))
                yield Event(chunk, row)
                if not is_manual:
                    chunk.asked = max(chunk.asked, row + 1)
                    if not self._ack_due:
                        self._ack_later()

    async def __anext__(self) -> Event:
        self._ack_taken()
        chunk = await self._next_chunk()
        if chunk is None:
            raise StopAsyncIteration
        row = chunk.at
        chunk.at = row + 1
        if self._wish.ack == "manual":
            self._ledger.handed(chunk.pubend(row), (int(chunk.ticks[row]),))
        return Event(chunk, row)

    async def batches(self) -> AsyncIterator[Batch]:
        """The same events as batches of columns, as they arrived."""
        while (batch := await self.next_batch()) is not None:
            yield batch

    async def next_batch(self) -> Batch | None:
        """Wait for the next batch; None if the subscription has ended."""
        self._ack_taken()
        chunk = await self._next_chunk()
        if chunk is None:
            return None
        start, chunk.at = chunk.at, chunk.size
        if self._wish.ack == "manual":
            for pubend, tick in zip(chunk.row_pubends()[start:], chunk.ticks[start:].tolist(), strict=True):
                self._ledger.handed(pubend, (tick,))
        return Batch(chunk, start)

    async def change(self, where: str) -> Mapping[PubendId, Tick]:
        """Change the filter. Returns, per pubend, the tick from which the new one applies.

        No event is lost or repeated. Raises ContentError if the condition does not fit the topic; then the
        filter does not change.
        """
        async with self._changing:
            self._check_usable()
            assert self._names is not None
            parse_condition(where, self._names.schema)
            if self._change is not None:
                # Its caller was cancelled, but the change is still in progress.
                await asyncio.wait([self._change.done])
                self._check_usable()
            change = _Change(where, asyncio.get_running_loop().create_future())
            change.done.add_done_callback(asyncio.Future.exception)
            self._change = change
            self._session.wake(self)
            return await asyncio.shield(change.done)

    async def forget(self) -> None:
        """End the subscription, and forget its name and position if it has a name."""
        await self._end(forget=True)

    @property
    def positions(self) -> Mapping[PubendId, Tick]:
        """Per pubend, the first tick the program has not passed: a `start` to resume from."""
        chunk = self._chunk
        return self._taken if chunk is None else {**self._taken, **_stops(chunk, chunk.at)}

    def positions_after(self, batch: Batch, rows: int) -> Mapping[PubendId, Tick]:
        """The positions if the program has taken only the first rows of the newest batch."""
        return {**self._taken, **_stops(batch.chunk, batch.start + rows)}

    def hand_back(self, batch: Batch, rows: int) -> None:
        """Record that the program has taken only the first rows of the newest batch."""
        if batch.chunk is self._chunk:
            self._chunk.at = batch.start + rows

    @property
    def where(self) -> str:
        """The condition that applies to new events."""
        return self._filters.where

    # Taking.

    def _check_usable(self) -> None:
        if self._live is None:
            raise UsageError("E193", "a subscription starts with `async with`")
        if self._error is not None:
            raise self._error
        if self._ended:
            raise UsageError("E193", "the subscription has ended: subscribe again")

    async def _next_chunk(self) -> Chunk | None:
        """A chunk with rows that the program has not taken; None if the subscription has ended."""
        if self._live is None:
            raise UsageError("E193", "a subscription starts with `async with`")
        while True:
            if self._ended:
                return None
            if self._chunk is not None and self._chunk.at < self._chunk.size:
                return self._chunk
            if self._chunks:
                self._begin(self._chunks.popleft())
            elif self._error is not None:
                raise self._error
            else:
                await self._arrived.wait()

    def _ack_taken(self) -> None:
        """The program asks for more, so it is done with all that it has."""
        chunk = self._chunk
        if self._wish.ack == "auto" and chunk is not None and chunk.asked < chunk.at:
            chunk.asked = chunk.at
            self._ack_later()

    def _ack_later(self) -> None:
        """Acknowledge with the next grant of credit, or when the timer fires: nobody is waiting for it."""
        self._ack_due = True
        if self._ack_timer is None:
            options = self._session.options
            delay = options.ack_s if self._wish.name is None else options.ack_named_s
            # Thousands of clients that got the same event must not all answer at the same moment.
            delay *= random.uniform(self._ack_share_min, 1.0)
            self._ack_share_min = ACK_SHARE_MIN
            self._ack_timer = asyncio.get_running_loop().call_later(delay, self._ack_at_once)

    def _has_taken_all(self) -> bool:
        """Whether the program is done with everything that arrived."""
        chunk = self._chunk
        if self._chunks:
            return False
        if self._wish.ack == "auto":
            return chunk is None or chunk.asked == chunk.size
        return (chunk is None or chunk.at == chunk.size) and self._ledger.is_empty

    def _ack_at_once(self) -> None:
        self._stop_ack_timer()
        self._ack_now = True
        self._session.wake(self)

    def _stop_ack_timer(self) -> None:
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None

    def _begin(self, chunk: Chunk) -> None:
        """Start taking the rows of a chunk, which makes room for as many more."""
        self._finish_chunk()
        self._chunk = chunk
        self._buffered -= chunk.size
        self._grant(chunk.credit)

    def _finish_chunk(self) -> None:
        chunk, self._chunk = self._chunk, None
        if chunk is not None:
            self._acked.update(chunk.stops(chunk.asked))
            self._taken.update(_stops(chunk, chunk.at))

    def _grant(self, rows: int) -> None:
        self._regrant += rows
        if 2 * self._regrant >= self._wish.credit_rows:
            self._session.wake(self)

    def ack_rows(self, chunk: Chunk, start: int, stop: int) -> None:
        """Acknowledge some rows."""
        if self._ended:
            return
        if self._wish.ack == "auto":
            # Rows before these are acknowledged, too.
            chunk.asked = max(chunk.asked, stop)
            if chunk is self._chunk:
                self._ack_later()
        else:
            for row in range(start, stop):
                pubend = chunk.pubend(row)
                position = self._ledger.acked(pubend, (int(chunk.ticks[row]),))
                if position is not None:
                    self._acked[pubend] = position
            # The program may have a reason to acknowledge right now.
            self._ack_due = True
            self._ack_at_once()

    # What the session asks and tells.

    def frames(self) -> tuple[list[Part], bool]:
        """The frames to send: the subscription itself, then acknowledgements, credit and changes."""
        if self._ended or self._error is not None or self._live is None:
            return [], False
        if self._request is None:
            return ([] if self._retry is not None else self._subscribe_frames()), False
        parts: list[Part] = []
        number = self._number
        if number is None:
            return parts, False
        has_credit = 2 * self._regrant >= self._wish.credit_rows
        if self._ack_due and (self._ack_now or has_credit):
            self._ack_due = self._ack_now = False
            self._stop_ack_timer()
            if self._chunk is not None and self._wish.ack == "auto":
                self._acked.update(self._chunk.stops(self._chunk.asked))
            if self._filters.judges and self._has_taken_all():
                # Rows that were filtered out here are done with, too: the log keeps them like the rest.
                self._acked.update(self._expected)
            if self._acked:
                parts += encode_client(Acknowledge(subscription=number, positions=self._acked))
        if has_credit:
            parts += encode_client(Credit(subscription=number, rows=self._regrant))
            self._regrant = 0
        change = self._change
        if change is not None and change.request is None and self._live.done():
            change.request = self._session.number()
            self._session.confirming[change.request] = self
            parts += encode_client(
                ChangeFilter(request=change.request, subscription=number, where=change.where)
            )
        return parts, False

    def _subscribe_frames(self) -> list[Part]:
        assert self._live is not None
        wish = self._wish
        edge = self._edge = self._edge or self._session.node
        if wish.name is not None and edge != self._session.node:
            self.failed(name_elsewhere(wish.name, edge, self._session.node))
            return []
        self._request = self._session.number()
        self._session.confirming[self._request] = self
        start = wish.start
        where = self._filters.where
        if self._live.done():
            start = dict(self._expected)
            where = self._filters.resume(self._expected, None if self._names is None else self._names.schema)
        elif wish.name is not None and isinstance(start, Mapping):
            # A program that starts at its own positions is done with everything below them.
            self._acked = {**start, **self._acked}
        # Acknowledgements of the old connection may be lost: send them again.
        self._ack_due = self._ack_now = True
        self._regrant = 0
        return encode_client(
            Subscribe(
                request=self._request,
                topic=wish.topic,
                where=where,
                name=wish.name,
                order=wish.order,
                start=start,
                mode=wish.mode,
                credit_rows=max(wish.credit_rows - self._buffered, 0),
            )
        )

    def linked(self) -> None:
        """A new connection: subscribe again, at the exact position."""
        self._session.wake(self)

    def unlinked(self) -> None:
        """The connection is lost."""
        self._request = self._number = None
        self._confirmed = set()
        self._stop_retry()
        if self._live is not None and not self._live.done():
            # The program has seen nothing yet, so start over.
            self._expected = {}
            self._taken = {}
            self._chunks.clear()
            self._buffered = 0
        change = self._change
        if change is not None and change.request is not None:
            # Some events of the new condition may have arrived. From now on, subscribe to both; where no tick
            # was confirmed, the new condition applies to everything that has not arrived.
            ticks = {pubend: change.ticks.get(pubend, tick) for pubend, tick in self._expected.items()}
            self._changed(change, ticks)

    def failed(self, error: GaplessError) -> None:
        """The subscription has failed: no more events will arrive."""
        if self._error is None:
            self._error = error
        self._stop_retry()
        if self._live is not None and not self._live.done():
            self._live.set_exception(error)
        if self._change is not None and not self._change.done.done():
            self._change.done.set_exception(error)
        self._arrived.notify()

    def confirmed(self, confirmed: Confirmed) -> None:
        """One pubend has confirmed the subscription or a filter change."""
        if self._ended:
            self._leave(confirmed)
            return
        if confirmed.request != self._request:
            self._confirm_change(confirmed)
            return
        assert self._live is not None
        self._number = confirmed.subscription
        if self._names is None or self._names.schema != confirmed.schema:
            self._names = Names(confirmed.schema)
        self._look_for_gap(confirmed)
        first = confirmed.start
        if isinstance(self._wish.start, Mapping):
            # A node starts at the lowest of all positions, so some of what it sends arrived before. That is
            # acknowledged, too: the node waits for it as for everything else it sends.
            first = max(first, self._wish.start.get(confirmed.pubend, first))
            self._acked.setdefault(confirmed.pubend, first)
        self._expected.setdefault(confirmed.pubend, first)
        self._taken.setdefault(confirmed.pubend, first)
        self._confirmed.add(confirmed.pubend)
        if len(self._confirmed) < confirmed.pubends:
            return
        self._session.confirming.pop(confirmed.request, None)
        self._attempts = 0
        if not self._live.done():
            self._live.set_result(None)
        self._session.wake(self)

    def _leave(self, confirmed: Confirmed) -> None:
        """End a subscription that the program left before the node confirmed it."""
        self._session.confirming.pop(confirmed.request, None)
        self._session.numbered.pop(confirmed.subscription, None)
        if confirmed.request == self._request:
            request = self._session.number()
            leave = Unsubscribe(request=request, subscription=confirmed.subscription)
            self._session.put(encode_client(leave))

    def _look_for_gap(self, confirmed: Confirmed) -> None:
        """Report a gap if the node starts later than we asked."""
        pubend = confirmed.pubend
        start = self._wish.start
        asked: Tick | None
        if pubend in self._expected:
            asked = self._expected[pubend]
        elif isinstance(start, Mapping):
            asked = start.get(pubend)
        else:
            asked = start if isinstance(start, int) else None
        if asked is None:
            asked = confirmed.lost_from
        if asked is None or confirmed.start <= asked:
            return
        gap = Gap(pubend, asked, confirmed.start)
        self.gaps.append(gap)
        self._expected[pubend] = confirmed.start
        text = (
            f"pubend '{pubend}' no longer keeps ticks {asked}..{confirmed.start}, which a subscription to "
            f"'{self._wish.topic}' asked for"
        )
        if self._wish.gaps == "raise":
            self.failed(
                LinkError("E410", f"{text}: subscribe again from its positions, or name the subscription")
            )
        else:
            log.warning("%s", text)

    def _confirm_change(self, confirmed: Confirmed) -> None:
        change = self._change
        if change is None or confirmed.request != change.request:
            return
        change.ticks[confirmed.pubend] = confirmed.start
        if len(change.ticks) == confirmed.pubends:
            self._session.confirming.pop(confirmed.request, None)
            self._changed(change, change.ticks)

    def _changed(self, change: _Change, ticks: Mapping[PubendId, Tick]) -> None:
        self._filters.switch(change.where, ticks, self._expected)
        self._change = None
        if not change.done.done():
            change.done.set_result(dict(ticks))

    def is_of(self, request: int) -> bool:
        """Whether this is its request on this connection."""
        return self._request == request

    def refused(self, refused: RequestRefused) -> None:
        """The node refuses the subscription or a filter change."""
        error = error_of(refused.code, refused.message, retry=refused.retry)
        retries_max = self._session.options.retries_max
        change = self._change
        if change is not None and refused.request == change.request:
            change.attempts += 1
            if refused.retry and change.attempts <= retries_max:
                change.request = None
                self._wake_later(change.attempts)
            else:
                self._change = None
                if not change.done.done():
                    change.done.set_exception(error)
        elif refused.request == self._request:
            self._attempts += 1
            if refused.retry and self._attempts <= retries_max:
                self._request = None
                self._wake_later(self._attempts)
            else:
                self.failed(error)

    def _wake_later(self, attempts: int) -> None:
        self._stop_retry()
        loop = asyncio.get_running_loop()
        self._retry = loop.call_later(self._session.backoff_s(attempts), self._wake_now)

    def _wake_now(self) -> None:
        self._retry = None
        self._session.wake(self)

    def _stop_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    # Deliveries.

    def rows(self, delivery: RowsDelivery, places: list[int]) -> None:
        """A few events arrived."""
        if self._names is None:
            return
        expected = self._expected
        events = []
        for place in places:
            event = delivery.events[place]
            if event.tick >= expected.get(event.pubend, TICK_MIN):
                expected[event.pubend] = event.tick + 1
                events.append(event)
        if not events:
            self._grant(len(places))
            return
        pubends = list(dict.fromkeys(event.pubend for event in events))
        source = None
        if len(pubends) > 1:
            source = np.array([pubends.index(event.pubend) for event in events], dtype=np.int64)
        ticks = np.array([event.tick for event in events], dtype=np.int64)
        values = [event.values for event in events]
        self._take(Chunk(self, self._names, ticks, pubends, source, values=values), len(places))

    def columns(self, delivery: ColumnsDelivery) -> None:
        """Many events arrived."""
        if self._names is None or self._number is None:
            return
        rows = delivery.to[self._number]
        batch, source = delivery.batch, delivery.source
        columns, ticks = batch.columns, batch.ticks
        if rows is not None:
            columns, ticks = columns.take(rows), ticks[rows]
            source = None if source is None else source[rows]
        count = len(ticks)
        if not count:
            return
        pubends = delivery.pubends
        chunk = Chunk(self, self._names, ticks, pubends, source, columns=columns)
        starts = np.array([self._expected.get(pubend, TICK_MIN) for pubend in pubends], dtype=np.int64)
        fresh = ticks >= (starts[0] if source is None else starts[source])
        if not fresh.any():
            self._grant(count)
            return
        chunk = chunk.where(fresh)
        self._expected.update(_stops(chunk, chunk.size))
        self._take(chunk, count)

    def _take(self, chunk: Chunk, count: int) -> None:
        """Buffer new rows until the program asks for them."""
        chunk.credit = count
        if self._filters.judges:
            change = self._change
            wanted = self._filters.mask(
                chunk.columns(),
                chunk.ticks,
                chunk.row_pubends(),
                chunk.names.schema,
                pending=None if change is None else (change.where, change.ticks),
            )
            chunk = chunk.where(wanted)
            if not chunk.size:
                self._grant(count)
                self._ack_later()
                return
        self._chunks.append(chunk)
        self._buffered += chunk.size
        if self._buffered > self._wish.credit_rows + EXCESS_ROWS_MAX:
            raise PeerError(
                "E241", f"the node sent {self._buffered} rows for a credit of {self._wish.credit_rows}"
            )
        self._arrived.notify()

    async def _end(self, *, forget: bool) -> None:
        if self._ended:
            return
        self._stop_ack_timer()
        self._ack_now = True
        parts, _ = self.frames() if self._session.is_linked and self._number is not None else ([], False)
        number, self._number = self._number, None
        self._ended = True
        self._stop_retry()
        self._session.subscriptions.pop(self, None)
        self._arrived.notify()
        if self._change is not None and not self._change.done.done():
            self._change.done.set_exception(UsageError("E193", "the subscription has ended"))
        if number is None or self._session.error is not None or not self._session.is_linked:
            if forget:
                raise LinkError(
                    "E403", "not connected, so the subscription cannot be forgotten: try again", retry=True
                )
            return
        self._session.put(parts)
        self._session.numbered.pop(number, None)
        try:
            await self._session.request(
                lambda request: Unsubscribe(request=request, subscription=number, forget=forget),
                is_of_link=True,
            )
        except GaplessError:
            # Either the connection is lost and there is nothing to end, or the node had its reason.
            if forget:
                raise


def _stops(chunk: Chunk, rows: int) -> dict[PubendId, Tick]:
    """Per pubend, one past its last tick among the first rows of a chunk."""
    if not rows:
        return {}
    if chunk.source is None:
        return {chunk.pubends[0]: int(chunk.ticks[rows - 1]) + 1}
    found: dict[PubendId, Tick] = {}
    source = chunk.source[:rows]
    for at in np.unique(source).tolist():
        found[chunk.pubends[at]] = int(chunk.ticks[np.flatnonzero(source == at)[-1]]) + 1
    return found
