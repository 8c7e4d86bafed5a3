"""How does a program without an event loop use a network? The same names, and plain calls.

```python
from gapless import sync

with sync.connect("gapless://localhost:7400") as client:
    client.publish("trades", {"sym": "IBM", "price": 121.5})  # durable when this returns
    with client.subscribe("trades", where="price > 100", start="earliest") as trades:
        for trade in trades:
            print(trade.tick, trade["sym"])
```

`publish` waits for one receipt at a time. To publish many events, use `publish_batch`, or `enqueue` them and
`flush` at the end.

The event loop runs in its own thread. Queued and delivered events cross between the threads in batches, so a
call costs little more than it would in the loop itself. Any number of threads may use a client; only one may
use a subscription.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from gapless.client import connection
from gapless.client.connection import Topic
from gapless.client.events import Batch, Event
from gapless.client.hold import Hold
from gapless.client.options import (
    DEFAULTS,
    AckMode,
    DeliveryMode,
    DeliveryOrder,
    GapMode,
    Options,
    StartAt,
)
from gapless.client.publisher import Publisher
from gapless.client.receipts import BatchReceipt, Publication, Receipt
from gapless.client.subscription import Subscription
from gapless.client.sync_view import SyncView
from gapless.client.tls import TlsOption
from gapless.client.view import View
from gapless.client.views import ViewInfo
from gapless.errors import UsageError
from gapless.model.ids import PubendId
from gapless.model.ticks import Tick
from gapless.protocol.sessions.gaps import Gap
from gapless.views.registry import Definition

if TYPE_CHECKING:
    from gapless.views.fluent import Table
    from gapless.views.relation import Relation

Made = TypeVar("Made")

#: Maximum number of queued events the loop's thread has not taken; `enqueue` blocks when it is reached.
QUEUE_ROWS_MAX = 4_096


class _Loop:
    """An event loop in its own thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="gapless client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def run(self, coroutine: Coroutine[Any, Any, Made], timeout_s: float | None = None) -> Made:
        """Run in the loop and return the result. Raises UsageError E193 if the loop is or gets closed."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise UsageError("E193", "the synchronous client cannot be used inside its own event loop")
        with self._lock:
            if self._is_closed:
                coroutine.close()
                raise _closed()
            future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result(timeout_s)
        except concurrent.futures.CancelledError:
            if self._is_closed:
                raise _closed() from None
            raise
        except concurrent.futures.TimeoutError:
            if not future.done():
                future.cancel()
                raise TimeoutError(f"no answer within {timeout_s:g} seconds") from None
            raise
        except BaseException:
            future.cancel()
            raise

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call something in the loop, without waiting. Raises UsageError E193 if the loop is closed."""
        with self._lock:
            if self._is_closed:
                raise _closed()
            self.loop.call_soon_threadsafe(callback)

    def close(self) -> None:
        """Stop the loop and its thread. Calls that other threads are waiting for raise E193."""
        with self._lock:
            self._is_closed = True
            ended = asyncio.run_coroutine_threadsafe(_end_all(), self.loop)
        ended.result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


async def _end_all() -> None:
    """Cancel whatever else runs in this loop, and wait until it has ended."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _closed() -> UsageError:
    return UsageError("E193", "the client was closed: connect again")


class SyncPublication:
    """A queued event. Made by `enqueue`."""

    __slots__ = ("_loop", "_made")

    def __init__(self, loop: _Loop) -> None:
        self._loop = loop
        #: What the loop's thread made of it; an error if it could not even be queued there.
        self._made: Publication | Exception | None = None

    def result(self, timeout_s: float | None = None) -> Receipt:
        """Wait for the receipt: then the event is durable.

        Raises the refusal, or TimeoutError.
        """
        return self._loop.run(self._wait(), timeout_s)

    async def _wait(self) -> Receipt:
        # Whatever was queued before this call has been published by the time this runs.
        assert self._made is not None
        if isinstance(self._made, Exception):
            raise self._made
        return await self._made


class _Queue:
    """Events on their way to the loop's thread, which takes all of them at once."""

    def __init__(self, loop: _Loop) -> None:
        self._loop = loop
        self._queue: deque[tuple[SyncPublication, Callable[[], Publisher], Mapping[str, object]]] = deque()
        self._scheduled = False
        self._lock = threading.Lock()

    def put(self, publisher: Callable[[], Publisher], event: Mapping[str, object]) -> SyncPublication:
        """Queue one event. Blocks while the queue is full."""
        publication = SyncPublication(self._loop)
        with self._lock:
            self._queue.append((publication, publisher, dict(event)))
            is_full = len(self._queue) >= QUEUE_ROWS_MAX
            is_first, self._scheduled = not self._scheduled, True
        if is_first:
            self._loop.call_soon(self._drain)
        if is_full:
            self._loop.run(_ready(publisher))
        return publication

    def _drain(self) -> None:
        """In the loop: publish what was queued."""
        with self._lock:
            queue, self._queue = self._queue, deque()
            self._scheduled = False
        for publication, publisher, event in queue:
            try:
                publication._made = publisher().publish(event)
            except Exception as error:  # noqa: BLE001  # `result` raises it
                publication._made = error


async def _ready(publisher: Callable[[], Publisher]) -> None:
    await publisher().ready()


class SyncClient:
    """A connection to a network, re-established whenever it is lost. Made by `connect`."""

    def __init__(self, client: connection.Client) -> None:
        self._client = client
        self._loop: _Loop | None = None
        self._queue: _Queue | None = None
        self._publishers: dict[str, SyncPublisher] = {}

    def __enter__(self) -> Self:
        if self._loop is not None:
            raise UsageError("E193", "a client can be entered only once: connect again")
        loop = self._loop = _Loop()
        try:
            loop.run(self._client.__aenter__())
        except BaseException:
            self._loop = None
            loop.close()
            raise
        self._queue = _Queue(loop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop = self._running()
        try:
            loop.run(self._client.__aexit__(kind, error, trace))
        finally:
            self._loop = None
            loop.close()

    def _running(self) -> _Loop:
        if self._loop is None:
            raise UsageError("E193", "the client is not connected: use it with `with`")
        return self._loop

    def topics(self) -> dict[str, Topic]:
        """All topics this client may see, by name."""
        return self._running().run(self._client.topics())

    def create_topic(self, name: str, columns: Mapping[str, str], *, retention: str = "") -> None:
        """Create a topic with columns such as `{"price": "float", "note": "string?"}`."""
        self._running().run(self._client.create_topic(name, columns, retention=retention))

    def bulk(self, topic: str) -> tuple[Topic, dict[PubendId, str]]:
        """A topic, and the bulk-read address of each of its pubends."""
        return self._running().run(self._client.bulk(topic))

    def ends(self, topic: str) -> dict[PubendId, Tick]:
        """Per pubend of a topic, one past its last durable event; 0 if it has none."""
        return self._running().run(self._client.ends(topic))

    def status(self) -> dict[str, Any]:
        """The status of the node."""
        return self._running().run(self._client.status())

    def inquire(
        self, event: tuple[str, int] | None = None, subscription: str | None = None
    ) -> dict[str, Any]:
        """What the node knows about one event, by pubend and tick, and about one subscription."""
        return self._running().run(self._client.inquire(event, subscription))

    def release_publisher(self, identity: str) -> None:
        """Release an identity at this node: it will belong to the next principal that publishes under it."""
        self._running().run(self._client.release_publisher(identity))

    def publisher(
        self,
        topic: str,
        *,
        pubend: str | None = None,
        identity: str | None = None,
        first_catenation: int = 0,
    ) -> SyncPublisher:
        """A separate publisher to a topic. Its events keep their order."""

        async def make() -> Publisher:
            return self._client.publisher(
                topic, pubend=pubend, identity=identity, first_catenation=first_catenation
            )

        made = self._running().run(make())
        return self._publisher(lambda: made)

    def publish(self, topic: str, event: Mapping[str, object]) -> Receipt:
        """Publish one event. It is durable when this returns; raises the refusal if it was refused."""
        return self._publisher_of(topic).publish(event)

    def enqueue(self, topic: str, event: Mapping[str, object]) -> SyncPublication:
        """Queue one event without waiting for its receipt: faster, and not durable yet.

        `SyncPublication.result` waits for the receipt, `flush` for those of all events. Blocks while the
        network is behind.
        """
        return self._publisher_of(topic).enqueue(event)

    def _publisher_of(self, topic: str) -> SyncPublisher:
        publisher = self._publishers.get(topic)
        if publisher is None:
            publisher = self._publisher(lambda: self._client.publisher_of(topic))
            self._publishers[topic] = publisher
        return publisher

    def _publisher(self, publisher: Callable[[], Publisher]) -> SyncPublisher:
        loop = self._running()
        assert self._queue is not None, "the client is entered"
        return SyncPublisher(loop, self._queue, publisher)

    def publish_batch(self, topic: str, data: object) -> BatchReceipt:
        """Publish all rows of a batch. They are durable when this returns."""
        return self._running().run(self._client.publish_batch(topic, data))

    def flush(self) -> None:
        """Wait until everything published so far is durable. Raises a refusal that nobody has seen."""
        self._running().run(self._client.flush())

    def subscribe(
        self,
        topic: str,
        where: str = "",
        *,
        name: str | None = None,
        order: DeliveryOrder = "publisher",
        start: StartAt = "now",
        ack: AckMode = "auto",
        mode: DeliveryMode = "guaranteed",
        gaps: GapMode = "report",
        credit_rows: int | None = None,
    ) -> SyncSubscription:
        """Every event of a topic that `where` accepts, once and in order; use it with `with`."""

        async def make() -> Subscription:
            return self._client.subscribe(
                topic,
                where,
                name=name,
                order=order,
                start=start,
                ack=ack,
                mode=mode,
                gaps=gaps,
                credit_rows=credit_rows,
            )

        loop = self._running()
        return SyncSubscription(loop, loop.run(make()))

    def hold(self, topic: str, name: str, start: Mapping[str, Tick], where: str = "") -> SyncHold:
        """Keep the events of a topic from `start` on, under a name, without delivery; use it with `with`."""

        async def make() -> Hold:
            return self._client.hold(topic, name, start, where)

        loop = self._running()
        return SyncHold(loop, loop.run(make()))

    def forget_hold(self, topic: str, name: str, *, timeout_s: float) -> None:
        """Forget the name of a hold. Raises TimeoutError if the topic's node does not answer in time."""

        async def forget() -> None:
            async with self._client.hold(topic, name, {}) as hold:
                await hold.forget()

        self._running().run(forget(), timeout_s)

    def create_view(self, name: str, view: str | Relation | Table) -> Definition:
        """Create a view: an SQL text, or a table of `gapless.views.fluent`, over topics and other views."""
        return self._running().run(self._client.create_view(name, view))

    def views(self) -> dict[str, ViewInfo]:
        """All views, by name, with their status."""
        return self._running().run(self._client.views())

    def drop_view(self, name: str) -> None:
        """Drop a view. Raises UsageError: E173 if there is none, E179 if other views use it."""
        self._running().run(self._client.drop_view(name))

    def view(self, name: str, where: str = "") -> SyncView:
        """A view as a live table of the rows that `where` accepts; use it with `with`."""

        async def make() -> View:
            return self._client.view(name, where)

        loop = self._running()
        return SyncView(loop, loop.run(make()))


class SyncHold:
    """A name that keeps events from being released. Made by `SyncClient.hold`; starts with `with`."""

    def __init__(self, loop: _Loop, hold: Hold) -> None:
        self._loop = loop
        self._hold = hold

    def __enter__(self) -> Self:
        self._loop.run(self._hold.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._hold.__aexit__(kind, error, trace))

    def acknowledge(self, positions: Mapping[str, Tick]) -> None:
        """Acknowledge everything below these ticks. Raises the error that ended the hold, if any."""

        async def acknowledge() -> None:
            self._hold.acknowledge(positions)

        self._loop.run(acknowledge())

    def forget(self) -> None:
        """End the hold and forget its name."""
        self._loop.run(self._hold.forget())


class SyncPublisher:
    """Publishes to one topic, in order. Made by `SyncClient.publisher`."""

    def __init__(self, loop: _Loop, queue: _Queue, publisher: Callable[[], Publisher]) -> None:
        self._loop = loop
        self._queue = queue
        #: Only called in the loop.
        self._publisher = publisher

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.flush()

    def publish(self, event: Mapping[str, object]) -> Receipt:
        """Publish one event. It is durable when this returns; raises the refusal if it was refused."""
        return self._queue.put(self._publisher, event).result()

    def enqueue(self, event: Mapping[str, object]) -> SyncPublication:
        """Queue one event without waiting for its receipt: see `SyncClient.enqueue`."""
        return self._queue.put(self._publisher, event)

    def publish_batch(self, data: object) -> BatchReceipt:
        """Publish all rows of a batch. They are durable when this returns."""

        async def publish() -> BatchReceipt:
            return await self._publisher().publish_batch(data)

        return self._loop.run(publish())

    def flush(self) -> None:
        """Wait until everything published so far is durable. Raises a refusal nobody has seen."""

        async def flush() -> None:
            await self._publisher().flush()

        self._loop.run(flush())


class SyncEvent(Event):
    """One event: a value for each column by its name, and `pubend`, `tick` and `topic`."""

    __slots__ = ("_loop",)

    _loop: _Loop

    def ack(self) -> None:  # type: ignore[override]  # the same name, without `await`
        """Acknowledge this event: it will not be delivered again."""
        chunk, row = self._chunk, self._row
        self._loop.loop.call_soon_threadsafe(chunk.owner.ack_rows, chunk, row, row + 1)


class SyncBatch(Batch):
    """Events that arrived together, as columns."""

    __slots__ = ("_loop",)

    _loop: _Loop

    def ack(self) -> None:  # type: ignore[override]  # the same name, without `await`
        """Acknowledge these events: they will not be delivered again."""
        chunk, start = self.chunk, self.start
        self._loop.loop.call_soon_threadsafe(chunk.owner.ack_rows, chunk, start, chunk.size)


class SyncSubscription:
    """An iterator over events. Made by `SyncClient.subscribe`; starts with `with`."""

    def __init__(self, loop: _Loop, subscription: Subscription) -> None:
        self._loop = loop
        self._subscription = subscription
        #: The batch this thread has taken from the loop, and how many of its rows it has given out.
        self._batch: Batch | None = None
        self._at = 0

    def __enter__(self) -> Self:
        self._loop.run(self._subscription.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._leave(kind, error, trace))

    async def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Rows that the program has not taken must not be acknowledged.
        batch = self._batch
        if batch is not None:
            self._subscription.hand_back(batch, self._at)
        await self._subscription.__aexit__(kind, error, trace)

    def __next__(self) -> SyncEvent:
        """The next event; waits for it."""
        for event in self:
            return event
        raise StopIteration

    def __iter__(self) -> Iterator[SyncEvent]:
        # An inner loop per batch: `for event in subscription` has to be fast.
        while (batch := self._taken()) is not None:
            chunk, start = batch.chunk, batch.start
            while self._batch is batch and self._at < len(batch):
                event = SyncEvent(chunk, start + self._at)
                event._loop = self._loop
                self._at += 1
                yield event

    def batches(self) -> Iterator[SyncBatch]:
        """The same events as batches of columns, as they arrived."""
        while (taken := self._taken()) is not None:
            batch = SyncBatch(taken.chunk, taken.start + self._at)
            batch._loop = self._loop
            self._at = len(taken)
            yield batch

    def _taken(self) -> Batch | None:
        if self._batch is None or self._at >= len(self._batch):
            # Asking for the next batch acknowledges this one; the program is done with all of it.
            self._batch = self._loop.run(self._subscription.next_batch())
            self._at = 0
        return self._batch

    def change(self, where: str) -> Mapping[PubendId, Tick]:
        """Change the filter. Returns, per pubend, the tick from which the new one applies."""
        return self._loop.run(self._subscription.change(where))

    def forget(self) -> None:
        """End the subscription, and forget its name and position if it has a name."""
        self._loop.run(self._subscription.forget())

    @property
    def positions(self) -> Mapping[PubendId, Tick]:
        """Per pubend, the first tick the program has not passed."""
        if self._batch is None:
            return self._subscription.positions
        return self._subscription.positions_after(self._batch, self._at)

    @property
    def gaps(self) -> list[Gap]:
        """Requested ticks that the network no longer keeps."""
        return list(self._subscription.gaps)

    @property
    def where(self) -> str:
        """The condition that applies to new events."""
        return self._subscription.where


def connect(
    address: str,
    *,
    token: str | None = None,
    tls: TlsOption = None,
    name: str | None = None,
    options: Options = DEFAULTS,
) -> SyncClient:
    """A client of the network at `address`; use it with `with`. See `gapless.connect`."""
    return SyncClient(connection.connect(address, token=token, tls=tls, name=name, options=options))
