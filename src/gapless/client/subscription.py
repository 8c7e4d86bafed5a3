"""How does a program get its events once and in order? A queue that knows which tick comes next.

Whatever happens to the connection, an event below the next expected tick of its pubend was given out
already and is dropped. What the program has gone past is acknowledged, and only then may the network let
go of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from types import TracebackType

import numpy as np

from gapless.errors import GaplessError
from gapless.model.ids import PubendId, TopicId
from gapless.model.ticks import Tick
from gapless.protocol.events import Order
from gapless.wire.client_messages import (
    Acknowledge,
    ClientMessage,
    ColumnsDelivery,
    Confirmed,
    RowsDelivery,
    Start,
    Subscribe,
    Unsubscribe,
)


class Event(Mapping[str, object]):
    """One event: its columns by name, and its name for ever, (pubend, tick)."""

    __slots__ = ("_names", "_values", "pubend", "tick")

    def __init__(
        self, names: tuple[str, ...], pubend: PubendId, tick: Tick, values: tuple[object, ...]
    ) -> None:
        self._names = names
        self._values = values
        self.pubend = pubend
        self.tick = tick

    def __getitem__(self, name: str) -> object:
        try:
            return self._values[self._names.index(name)]
        except ValueError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"Event({self.pubend}@{self.tick}, {dict(self)})"


class Subscription:
    """Events of one topic. An async context manager, and an async iterator of `Event`s."""

    def __init__(
        self, topic: TopicId, where: str, order: Order, start: Start, send: Callable[[ClientMessage], None]
    ) -> None:
        self.topic = topic
        self.where = where
        self._order = order
        self._start: Start = start
        self._send = send
        self._request = -1
        self._number: int | None = None
        #: Per pubend the next tick that the program has not been given.
        self.positions: dict[PubendId, Tick] = {}
        #: Per pubend the tick below which the program has gone past everything.
        self._passed: dict[PubendId, Tick] = {}
        self._names: tuple[str, ...] = ()
        self._waiting: deque[Event] = deque()
        self._changed = asyncio.Event()
        self._confirmed = asyncio.Event()
        self._confirmations: set[PubendId] = set()
        self._error: GaplessError | None = None
        self._unacknowledged = 0

    async def __aenter__(self) -> Subscription:
        await self._confirmed.wait()
        if self._error is not None:
            raise self._error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._number is not None:
            self._send(Unsubscribe(request=self._request, subscription=self._number))
            self._number = None

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        """The next event. Asking for it says that the program is done with the one before."""
        if not self._waiting:
            self._acknowledge()
        while not self._waiting:
            if self._error is not None:
                raise self._error
            self._changed.clear()
            await self._changed.wait()
        event = self._waiting.popleft()
        self._passed[event.pubend] = event.tick  # everything below this one is done with
        self._unacknowledged += 1
        if self._unacknowledged >= 1_000:
            self._acknowledge(all_of_it=False)
        return event

    # What the client calls.

    def ask(self, request: int) -> None:
        """Subscribe, or subscribe again from where the program is."""
        self._request = request
        self._number = None
        self._confirmations = set()
        start: Start = dict(self.positions) if self.positions else self._start
        self._send(
            Subscribe(request=request, topic=self.topic, where=self.where, order=self._order, start=start)
        )

    @property
    def request(self) -> int:
        """The number of the last Subscribe."""
        return self._request

    @property
    def number(self) -> int | None:
        """What the node calls the subscription; None while it does not."""
        return self._number

    def confirmed(self, message: Confirmed) -> None:
        """The node has begun to deliver from one pubend."""
        self._number = message.subscription
        self._names = tuple(column.name for column in message.schema.columns)
        self.positions.setdefault(message.pubend, message.start)
        self._confirmations.add(message.pubend)
        if len(self._confirmations) == message.pubends:
            self._confirmed.set()

    def delivered(self, message: RowsDelivery | ColumnsDelivery) -> None:
        """Events have come; those that came before are dropped."""
        if isinstance(message, RowsDelivery):
            for number, place in message.to:
                if number == self._number:
                    event = message.events[place]
                    self._take(event.pubend, event.tick, event.values)
        else:
            rows = message.to.get(self._number) if self._number is not None else np.zeros(0, np.int64)
            self._take_columns(message, rows)
        self._changed.set()

    def fail(self, error: GaplessError) -> None:
        """Nothing will come any more."""
        self._error = error
        self._confirmed.set()
        self._changed.set()

    def _take_columns(self, message: ColumnsDelivery, rows: object) -> None:
        batch = message.batch
        places = range(len(batch)) if rows is None else rows.tolist()  # type: ignore[attr-defined]
        columns = [column.to_pylist() for column in batch.columns.columns]
        ticks = batch.ticks.tolist()
        source = None if message.source is None else message.source.tolist()
        for row in places:
            pubend = message.pubends[0 if source is None else source[row]]
            self._take(pubend, ticks[row], tuple(column[row] for column in columns))

    def _take(self, pubend: PubendId, tick: Tick, values: tuple[object, ...]) -> None:
        if tick < self.positions.get(pubend, tick):
            return
        self.positions[pubend] = tick + 1
        self._waiting.append(Event(self._names, pubend, tick, values))

    def _acknowledge(self, *, all_of_it: bool = True) -> None:
        """Tell the node what the program has gone past."""
        if self._number is None or not self._unacknowledged:
            return
        positions = dict(self.positions) if all_of_it else dict(self._passed)
        self._send(Acknowledge(subscription=self._number, positions=positions))
        self._unacknowledged = 0
