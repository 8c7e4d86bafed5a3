"""How does a program get its events? It iterates over a subscription, in asyncio, a row or a batch at a time.

What is expected, dropped, granted and acknowledged is decided by `ClientSubscription`. This is its host: it
makes events of rows, lets the program wait for them, and has the timers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from types import TracebackType
from typing import Self, assert_never

import numpy as np

from gapless.client.enrolled import Enrolled
from gapless.client.events import Batch, Chunk, Event, Names
from gapless.client.refusals import refusal_error
from gapless.client.session import ReconnectingSession
from gapless.client.waiting import Signal
from gapless.content.language import parse_condition
from gapless.errors import GaplessError, LinkError, UsageError
from gapless.model.ids import PubendId
from gapless.model.ticks import Tick
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
from gapless.protocol.sessions.gaps import Gap
from gapless.protocol.sessions.messages import (
    ColumnsDelivery,
    Confirmed,
    Horizon,
    RowsDelivery,
    Unsubscribe,
)
from gapless.protocol.sessions.subscriber import ClientSubscription, Interest
from gapless.wire.client_codec import encode_client

log = logging.getLogger("gapless.client")

#: How long a new subscription waits for the other pubends once one has confirmed it.
AWAITED_SECONDS = 1.0


class Subscription(Enrolled[ClientSubscription[Chunk]]):
    """An async iterator over events. Made by `Client.subscribe`; starts with `async with`."""

    def __init__(self, session: ReconnectingSession, interest: Interest) -> None:
        super().__init__(
            session, ClientSubscription(interest, session.options.retries_max, roams=session.roams)
        )
        self._names: Names | None = None
        self._is_manual = interest.ack == "manual"
        self._retry: asyncio.TimerHandle | None = None
        #: The change of the filter that is under way, and who may begin one.
        self._changed: asyncio.Future[Mapping[PubendId, Tick]] | None = None
        self._changing = asyncio.Lock()
        self._ack_timer: asyncio.TimerHandle | None = None
        self._arrived = Signal()
        self._is_forgotten = False

    async def __aenter__(self) -> Self:
        if self._live is not None or self._machine.is_ended:
            raise UsageError("E193", "a subscription can be entered only once: subscribe again")
        if self._session.error is not None:
            raise self._session.error
        try:
            await self._go_live()
        except BaseException:
            await self._end(forget=False)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._machine.leaves()
        await self._end(forget=False)

    # What programs call.

    async def __aiter__(self) -> AsyncIterator[Event]:
        machine, is_manual = self._machine, self._is_manual
        self._perform(machine.asks())
        while (chunk := await self._next_chunk()) is not None:
            while chunk.at < chunk.size:
                row = chunk.at
                chunk.at = row + 1
                if is_manual:
                    machine.took(chunk, row, row + 1)
                yield Event(chunk, row)
                if not is_manual:
                    chunk.asked = max(chunk.asked, row + 1)
                    if not machine.ack_due:
                        self._perform(machine.ack_later())

    async def __anext__(self) -> Event:
        self._perform(self._machine.asks())
        chunk = await self._next_chunk()
        if chunk is None:
            raise StopAsyncIteration
        row = chunk.at
        self._machine.took(chunk, row, row + 1)
        return Event(chunk, row)

    async def batches(self) -> AsyncIterator[Batch]:
        """The same events as batches of columns, as they arrived."""
        while (batch := await self.next_batch()) is not None:
            yield batch

    async def next_batch(self) -> Batch | None:
        """Wait for the next batch; None if the subscription has ended."""
        self._perform(self._machine.asks())
        chunk = await self._next_chunk()
        if chunk is None:
            return None
        start = chunk.at
        self._machine.took(chunk, start, chunk.size)
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
            if self._changed is not None and not self._changed.done():
                # Its caller was cancelled, but the change is still in progress.
                await asyncio.wait([self._changed])
                self._check_usable()
            self._changed = asyncio.get_running_loop().create_future()
            self._changed.add_done_callback(asyncio.Future.exception)
            self._perform(self._machine.begin_change(where))
            return await asyncio.shield(self._changed)

    async def forget(self) -> None:
        """End the subscription, and forget its name and position if it has a name.

        Raises if the node refuses or cannot be asked; the name is kept then: subscribe again to forget it.
        """
        name = self._machine.interest.name
        if self._machine.is_ended and name is not None and not self._is_forgotten:
            raise UsageError("E193", f"the subscription has ended, and '{name}' is kept: subscribe again")
        await self._end(forget=True)
        self._is_forgotten = True

    @property
    def gaps(self) -> list[Gap]:
        """Requested ticks that the network no longer keeps, in the order of discovery."""
        return self._machine.gaps

    @property
    def awaited(self) -> tuple[PubendId, ...]:
        """The pubends that have not confirmed it yet: their events come when they have."""
        return self._machine.awaited

    @property
    def positions(self) -> Mapping[PubendId, Tick]:
        """Per pubend, the first tick the program has not passed: a `start` to resume from."""
        return self._machine.positions

    def positions_after(self, batch: Batch, rows: int) -> Mapping[PubendId, Tick]:
        """The positions if the program has taken only the first rows of the newest batch."""
        return self._machine.positions_after(batch.chunk, batch.start + rows)

    def hand_back(self, batch: Batch, rows: int) -> None:
        """Record that the program has taken only the first rows of the newest batch."""
        if batch.chunk is self._machine.current:
            batch.chunk.at = batch.start + rows

    @property
    def where(self) -> str:
        """The condition that applies to new events."""
        return self._machine.filters.where

    def ack_rows(self, chunk: Chunk, start: int, stop: int) -> None:
        """Acknowledge some rows."""
        self._perform(self._machine.acks(chunk, start, stop))

    # Waiting.

    def _check_usable(self) -> None:
        if self._live is None:
            raise UsageError("E193", "a subscription starts with `async with`")
        if self._machine.error is not None:
            raise refusal_error(self._machine.error)
        if self._machine.is_ended:
            raise UsageError("E193", "the subscription has ended: subscribe again")

    async def _next_chunk(self) -> Chunk | None:
        """A chunk with rows that the program has not taken; None if the subscription has ended."""
        if self._live is None:
            raise UsageError("E193", "a subscription starts with `async with`")
        while not self._machine.is_ended:
            chunk, effects = self._machine.next()
            if effects:
                self._perform(effects)
            if chunk is not None:
                return chunk
            if self._machine.error is not None:
                raise refusal_error(self._machine.error)
            await self._arrived.wait()
        return None

    def _perform(self, effects: Iterable[ClientEffect]) -> None:
        """Do what the machine asks for."""
        for effect in effects:
            match effect:
                case Wake():
                    self._session.wake(self)
                case Offer():
                    self._arrived.notify()
                case (
                    StartAckTimer()
                    | StopAckTimer()
                    | StartRetryTimer()
                    | StopRetryTimer()
                    | StartAwaitTimer()
                ):
                    self._set_timer(effect)
                case GoLive() | Fail():
                    self._settle(effect)
                case FinishChange():
                    self._finish_change(effect)
                case ReportGap(text=text):
                    log.warning("%s", text)
                case Unregister(request=request):
                    self._session.confirming.pop(request, None)
                case SayNow(message=message):
                    self._session.put(encode_client(message))
                case _:
                    assert_never(effect)

    def _finish_change(self, effect: FinishChange) -> None:
        changed = self._changed
        if changed is None or changed.done():
            return
        if effect.error is None:
            changed.set_result(dict(effect.ticks))
        else:
            changed.set_exception(refusal_error(effect.error))

    def _set_timer(
        self, effect: StartAckTimer | StopAckTimer | StartRetryTimer | StopRetryTimer | StartAwaitTimer
    ) -> None:
        loop = asyncio.get_running_loop()
        if isinstance(effect, StartAckTimer | StopAckTimer):
            _stop(self._ack_timer)
        else:
            _stop(self._retry)
        if isinstance(effect, StartAckTimer):
            options = self._session.options
            delay = options.ack_s if self._machine.interest.name is None else options.ack_named_s
            delay *= random.uniform(effect.share_min, 1.0)
            self._ack_timer = loop.call_later(delay, self._fired, self._machine.ack_at_once)
        elif isinstance(effect, StartRetryTimer):
            pause = self._session.backoff_s(effect.attempts)
            self._retry = loop.call_later(pause, self._fired, self._machine.retry)
        elif isinstance(effect, StartAwaitTimer):
            self._retry = loop.call_later(AWAITED_SECONDS, self._fired, self._machine.begin)

    def _fired(self, due: Callable[[], list[ClientEffect]]) -> None:
        self._perform(due())

    # What the session asks and tells.

    def confirmed(self, confirmed: Confirmed) -> None:
        """One pubend has confirmed the subscription or a filter change."""
        if self._machine.is_ended:
            self._session.numbered.pop(confirmed.subscription, None)
            self._perform(self._machine.leave_unheard(confirmed, self._session.numbers))
            return
        if self._names is None or self._names.schema != confirmed.schema:
            self._names = Names(confirmed.schema)
        super().confirmed(confirmed)

    def horizon(self, horizon: Horizon) -> None:
        """The node has sent everything below some ticks."""
        self._perform(self._machine.horizon(horizon))

    # Deliveries.

    def rows(self, delivery: RowsDelivery, places: list[int]) -> None:
        """A few events arrived."""
        if self._names is None:
            return
        expects = self._machine.expects
        events = [
            event for event in map(delivery.events.__getitem__, places) if expects(event.pubend, event.tick)
        ]
        if not events:
            self._perform(self._machine.drop(len(places)))
            return
        pubends = list(dict.fromkeys(event.pubend for event in events))
        source = None
        if len(pubends) > 1:
            source = np.array([pubends.index(event.pubend) for event in events], dtype=np.int64)
        ticks = np.array([event.tick for event in events], dtype=np.int64)
        values = [event.values for event in events]
        self._keep(Chunk(self, self._names, ticks, pubends, source, values=values), len(places))

    def columns(self, delivery: ColumnsDelivery) -> None:
        """Many events arrived."""
        machine = self._machine
        if self._names is None or machine.number is None:
            return
        rows = delivery.to[machine.number]
        batch, source = delivery.batch, delivery.source
        columns, ticks = batch.columns, batch.ticks
        if rows is not None:
            columns, ticks = columns.take(rows), ticks[rows]
            source = None if source is None else source[rows]
        count = len(ticks)
        if not count:
            return
        fresh = machine.fresh(ticks, delivery.pubends, source)
        if not fresh.any():
            self._perform(machine.drop(count))
            return
        chunk = Chunk(self, self._names, ticks, delivery.pubends, source, columns=columns).where(fresh)
        machine.arrived(chunk)
        self._keep(chunk, count)

    def _keep(self, chunk: Chunk, count: int) -> None:
        """Keep new rows until the program asks for them."""
        machine = self._machine
        if machine.filters.judges:
            wanted = machine.filters.mask(
                chunk.columns(),
                chunk.ticks,
                chunk.row_pubends(),
                chunk.names.schema,
                pending=machine.pending,
            )
            chunk = chunk.where(wanted)
            if not chunk.size:
                self._perform(machine.drop_unwanted(count))
                return
        self._perform(machine.keep(chunk, count))

    async def _end(self, *, forget: bool) -> None:
        machine, session = self._machine, self._session
        if machine.is_ended:
            return
        _stop(self._ack_timer)
        _stop(self._retry)
        said, number = machine.finish()
        session.subscriptions.pop(self, None)
        self._arrived.notify()
        self._finish_change(FinishChange(ticks={}, error=UsageError("E193", "the subscription has ended")))
        if number is None or session.error is not None or not session.is_linked:
            if forget:
                raise LinkError(
                    "E403", "not connected, so the subscription cannot be forgotten: try again", retry=True
                )
            return
        for message in said:
            session.put(encode_client(message))
        session.numbered.pop(number, None)
        try:
            await self._unsubscribe(number, forget=forget)
        except GaplessError:
            # Either the connection is lost and there is nothing to end, or the node had its reason.
            if not forget:
                return
            with contextlib.suppress(GaplessError):
                # The node still serves it.
                await self._unsubscribe(number, forget=False)
            raise

    async def _unsubscribe(self, number: int, *, forget: bool) -> None:
        await self._session.request(
            lambda request: Unsubscribe(request=request, subscription=number, forget=forget), is_of_link=True
        )


def _stop(timer: asyncio.TimerHandle | None) -> None:
    """Stop a timer, if there is one."""
    if timer is not None:
        timer.cancel()
