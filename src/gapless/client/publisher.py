"""How are events published exactly once? Numbered, kept until their receipt, sent again when in doubt.

What is published during one turn of the event loop goes out as one batch. Every event has a catenation
number; until the node's receipt names it, it is kept, and after a broken connection it is sent again with
the same number, which the node recognises.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from gapless.client.refusals import error_of
from gapless.errors import SchemaError
from gapless.model.ids import PubendId
from gapless.model.schema import Schema
from gapless.model.ticks import Tick, TickArray
from gapless.wire.client_messages import Publish, PublishRefused, Receipt
from gapless.wire.codec import schema_fingerprint

#: So many events may be without a receipt; who publishes more waits.
OUTSTANDING_ROWS_MAX = 200_000
#: One message has at most so many events.
ROWS_PER_MESSAGE_MAX = 10_000
#: How often events are sent again that the node refused for the time being, and the pause before.
RETRIES_MAX = 20
RETRY_SECONDS = 0.1


class Stored(NamedTuple):
    """Where an event is now, for ever. The tick is None when the node only knows that it has it."""

    pubend: PubendId
    tick: Tick | None


@dataclass(slots=True, eq=False)
class _Sent:
    """Events that have no receipt yet."""

    first: int
    rows: pa.RecordBatch
    done: asyncio.Future[tuple[PubendId, TickArray]]
    retries: int = 0

    @property
    def last(self) -> int:
        return self.first + int(self.rows.num_rows) - 1


class Publication:
    """One event on its way. Awaiting it gives its place once it is durable; not awaiting it is fine, too."""

    __slots__ = ("_at", "_done")

    def __init__(self, done: asyncio.Future[tuple[PubendId, TickArray]], at: int) -> None:
        self._done = done
        self._at = at

    def __await__(self) -> Generator[Any, None, Stored]:
        pubend, ticks = yield from asyncio.shield(self._done).__await__()
        return Stored(pubend, int(ticks[self._at]) if self._at < len(ticks) else None)


class Publisher:
    """What one client publishes to one topic."""

    def __init__(self, schema: Schema, name: str, send: Callable[[Publish], None]) -> None:
        """`send` loses what is sent while there is no connection."""
        self._schema = schema
        self._fingerprint = schema_fingerprint(schema)
        self._arrow = schema.arrow()
        self._name = name
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._next = 0
        self._queued: list[Mapping[str, object]] = []
        self._queued_done: asyncio.Future[tuple[PubendId, TickArray]] | None = None
        self._sent: deque[_Sent] = deque()
        self._outstanding = 0
        self._room = asyncio.Event()
        self._room.set()

    async def room(self) -> None:
        """Wait until more may be published."""
        await self._room.wait()

    def publish(self, event: Mapping[str, object]) -> Publication:
        """Publish one event with all others of this turn of the loop."""
        if self._queued_done is None:
            self._queued_done = self._new_future()
            self._loop.call_soon(self._flush)
        self._queued.append(event)
        publication = Publication(self._queued_done, len(self._queued) - 1)
        if len(self._queued) >= ROWS_PER_MESSAGE_MAX:
            self._flush()
        return publication

    def publish_rows(self, rows: pa.RecordBatch) -> list[asyncio.Future[tuple[PubendId, TickArray]]]:
        """Publish rows of the topic's schema."""
        self._flush()
        rows = self._schema.checked(rows)
        found = []
        for at in range(0, rows.num_rows, ROWS_PER_MESSAGE_MAX):
            done = self._new_future()
            self._post(rows.slice(at, ROWS_PER_MESSAGE_MAX), done)
            found.append(done)
        return found

    def resend(self) -> None:
        """There is a new connection: send everything that has no receipt."""
        for sent in self._sent:
            self._say(sent)

    async def settled(self) -> None:
        """Wait until everything has its receipt or was refused."""
        self._flush()
        while self._sent:
            await asyncio.wait([self._sent[-1].done])

    def received(self, receipt: Receipt) -> None:
        """Events are durable."""
        ticks = receipt.ticks()
        while self._sent and self._sent[0].last <= receipt.last_catenation:
            sent = self._sent.popleft()
            start = sent.first - receipt.first_catenation
            own = ticks[start : start + sent.rows.num_rows] if start >= 0 else ticks[:0]
            self._settle(sent)
            if not sent.done.done():
                sent.done.set_result((receipt.pubend, own))

    def refused(self, refusal: PublishRefused) -> None:
        """Events were not stored."""
        for sent in list(self._sent):
            if sent.first > refusal.last_catenation or sent.last < refusal.first_catenation:
                continue
            if refusal.retry and sent.retries < RETRIES_MAX:
                sent.retries += 1
                self._loop.call_later(RETRY_SECONDS, self._say, sent)
                continue
            self._sent.remove(sent)
            self._settle(sent)
            if not sent.done.done():
                sent.done.set_exception(error_of(refusal.code, refusal.message, retry=refusal.retry))

    def fail(self, error: Exception) -> None:
        """There will be no receipts any more."""
        while self._sent:
            sent = self._sent.popleft()
            self._settle(sent)
            if not sent.done.done():
                sent.done.set_exception(error)

    def _flush(self) -> None:
        events, done = self._queued, self._queued_done
        if not events or done is None:
            return
        self._queued, self._queued_done = [], None
        try:
            self._post(self._rows(events), done)
        except SchemaError as error:
            done.set_exception(error)

    def _rows(self, events: list[Mapping[str, object]]) -> pa.RecordBatch:
        """Events as columns; a name that the topic lacks is an error, not silently dropped."""
        names = {field.name for field in self._arrow}
        for event in events:
            if not names.issuperset(event):
                wrong = next(name for name in event if name not in names)
                known = ", ".join(sorted(names))
                raise SchemaError(
                    "E111", f"topic '{self._schema.topic}' has no column {wrong!r}: it has {known}"
                )
        try:
            arrays = [
                pa.array([event.get(field.name) for event in events], field.type) for field in self._arrow
            ]
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            reason = str(error).splitlines()[0]
            raise SchemaError("E114", f"topic '{self._schema.topic}': {reason}") from error
        plain = pa.schema([pa.field(field.name, field.type) for field in self._arrow])
        return self._schema.checked(pa.RecordBatch.from_arrays(arrays, schema=plain))

    def _post(self, rows: pa.RecordBatch, done: asyncio.Future[tuple[PubendId, TickArray]]) -> None:
        sent = _Sent(self._next, rows, done)
        self._next += rows.num_rows
        self._sent.append(sent)
        self._outstanding += rows.num_rows
        if self._outstanding > OUTSTANDING_ROWS_MAX:
            self._room.clear()
        self._say(sent)

    def _say(self, sent: _Sent) -> None:
        if sent.done.done():
            return
        self._send(
            Publish(
                topic=self._schema.topic,
                publisher=self._name,
                first_catenation=sent.first,
                schema=self._fingerprint,
                rows=sent.rows,
            )
        )

    def _settle(self, sent: _Sent) -> None:
        self._outstanding -= sent.rows.num_rows
        if self._outstanding <= OUTSTANDING_ROWS_MAX // 2:
            self._room.set()

    def _new_future(self) -> asyncio.Future[tuple[PubendId, TickArray]]:
        done: asyncio.Future[tuple[PubendId, TickArray]] = self._loop.create_future()
        # Whoever does not await a publication does not want to hear of its failure either.
        done.add_done_callback(lambda future: future.cancelled() or future.exception())
        return done
