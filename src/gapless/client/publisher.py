"""How is an event published? Numbered, sent with whatever else is queued, kept until its receipt arrives.

`publish` only queues the event. When the socket is free, everything queued becomes the columns of one frame.
While a frame is in flight, further events queue up, unless the node is far away. So there is no timer, no
delay when there is little to do, and large batches when there is much.

Every event has a *catenation number*, and a node stores each number of a publisher at most once. So an event
without a receipt can be sent again, on this connection or the next, under the same number. Every frame names
the number before its first, the last one this publisher relies on, so that nothing is stored after a hole.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Self, assert_never

from gapless.client.receipts import BatchReceipt, Publication, Row, Send
from gapless.client.refusals import error_of
from gapless.client.rows import Shape
from gapless.client.steering import Steering
from gapless.client.waiting import Signal
from gapless.errors import GaplessError, LinkError, UsageError, no_topic
from gapless.model.ids import PubendId, TopicId
from gapless.protocol.sessions.client_publishing import (
    ClientPublishing,
    FindPubend,
    GiveUpQueued,
    PublishingEffect,
    Settle,
    StartPause,
    Transmission,
)
from gapless.protocol.sessions.messages import Publish, PublishReceipt, PublishRefused
from gapless.wire.client_codec import encode_client
from gapless.wire.frames import Part

#: `ready` waits while the queue is this long.
QUEUE_ROWS_READY = 4_096
#: Approximate number of bytes in one write.
WRITE_BYTES_MAX = 4 * 2**20
#: Maximum number of failed sends remembered for `flush`.
UNSEEN_MAX = 1_000


#: A clock that counts suspended time, where there is one.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)


def uptime_ms() -> int:
    """Milliseconds since some moment, including the time the machine was suspended."""
    return int(1_000 * (time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)))


class Publisher:
    """Publishes to one topic, in order. Made by `Client.publisher`."""

    def __init__(
        self,
        steering: Steering,
        topic: TopicId,
        identity: str,
        *,
        pubend: PubendId | None = None,
        first_catenation: int = 0,
        is_numbered: bool = False,
    ) -> None:
        """`is_numbered` says that the program numbers its events itself, perhaps across restarts."""
        self.topic = topic
        #: The publisher's identity: the node deduplicates by it and the number.
        self.identity = identity
        self._steering = steering
        #: Where events are sent: at first home, then the node that hosts the pubend.
        self._session = session = steering.home
        self._is_numbered = is_numbered
        give_up_s = session.options.give_up_s
        self._machine: ClientPublishing[Send] = ClientPublishing(
            identity,
            wish=pubend,
            first=first_catenation,
            retries_max=session.options.retries_max,
            patience_ms=None if give_up_s is None else int(give_up_s * 1_000),
        )
        #: The search for a node that hosts the pubend.
        self._steered: asyncio.Task[None] | None = None
        self._shape: Shape | None = None
        self._learning: asyncio.Task[None] | None = None
        #: The send that `publish` fills, and how many more events it may take.
        self._filling = Send()
        self._rows: list[Row] = self._filling.rows
        self._room = session.options.outstanding_rows_max
        #: Sends that are ready, in order.
        self._waiting: deque[Send] = deque()
        #: Number of events without an outcome that are ready or in flight, and bytes of their columns.
        self._outstanding_rows = 0
        self._outstanding_bytes = 0
        self._row_bytes = 256.0
        #: Set while the node has asked us to retry later.
        self._pause: asyncio.TimerHandle | None = None
        #: The newest sends with errors that perhaps nobody has seen.
        self._unseen: deque[Send] = deque(maxlen=UNSEEN_MAX)
        self._changed = Signal()
        session.publishers[identity] = self
        steering.publishers[identity] = self
        self._learn()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.flush()

    # What programs call.

    def publish(self, event: Mapping[str, object]) -> Publication:
        """Queue one event. Await the result for its receipt: then the event is durable.

        Raises SchemaError if columns are missing or unknown, and LinkError if more is outstanding than
        `Options` allow: await `ready` now and then. Awaiting the result raises SchemaError if a value does
        not fit its column.
        """
        shape = self._shape
        if shape is None:
            return self._publish_unshaped(event)
        try:
            row = shape.values(event)
            if len(event) != shape.width:
                row = shape.completed(event)
        except KeyError:
            row = shape.completed(event)
        rows = self._rows
        index = len(rows)
        if index >= self._room:
            raise self._full()
        rows.append(row)
        if not index:
            self._session.wake(self)
        return Publication(self._filling, index)

    async def publish_batch(self, data: object) -> BatchReceipt:
        """Publish all rows of a batch. They are durable when this returns.

        `data` is an Arrow table or batch, a pandas or Polars data frame, a dict of lists, or a list of dicts.
        Raises UsageError before anything is sent if it does not fit the topic, and the node's error if rows
        were refused; other rows may have been stored.
        """
        shape = await self._shaped()
        pieces = shape.batches(data)
        sends: list[Send] = []
        for piece in pieces:
            await self.ready()
            self._close_filling()
            send = Send()
            send.made([piece], {})
            self._enqueue(send)
            sends.append(send)
            self._session.wake(self)
        for send in sends:
            await send.settled()
        # Mark all errors as seen, so that `flush` does not report them again.
        outcomes = [
            outcome for send in sends for outcome in sorted(send.outcomes, key=lambda each: each.start)
        ]
        errors = [outcome.error for outcome in outcomes if outcome.error is not None]
        for outcome in outcomes:
            outcome.seen = True
        if errors:
            raise errors[0]
        rows = sum(send.count for send in sends)
        return BatchReceipt(rows, tuple((outcome.pubend, outcome.ticks()) for outcome in outcomes))

    async def ready(self) -> None:
        """Wait until there is room for more events: this is how to apply back-pressure."""
        while True:
            if self._session.error is not None:
                raise self._session.error
            options = self._session.options
            if (
                len(self._rows) < QUEUE_ROWS_READY
                and self._outstanding_rows + len(self._rows) < max(options.outstanding_rows_max // 4, 1)
                and self._outstanding_bytes < max(options.outstanding_bytes_max // 4, 1)
            ):
                return
            await self._changed.wait()

    async def flush(self) -> None:
        """Wait until everything published so far is durable. Raises a refusal that nobody has seen."""
        self._close_filling()
        for send in [*self._machine.sent, *self._waiting]:
            await send.settled()
        errors = [error for send in self._unseen if (error := send.unseen()) is not None]
        self._unseen.clear()
        if errors:
            raise errors[0]

    @property
    def outstanding(self) -> int:
        """Number of events without an outcome."""
        return self._outstanding_rows + len(self._rows)

    # The queue.

    def _publish_unshaped(self, event: Mapping[str, object]) -> Publication:
        """Queue an event for a topic whose schema is not known yet."""
        if self._session.error is not None:
            raise self._session.error
        self._learn()
        if self._shape is not None:
            return self.publish(event)
        index = len(self._rows)
        if index >= self._room:
            raise self._full()
        self._rows.append((dict(event),))
        self._session.wake(self)
        return Publication(self._filling, index)

    def _full(self) -> GaplessError:
        if self._session.error is not None:
            return self._session.error
        return LinkError(
            "E405",
            f"{self.outstanding} events for topic '{self.topic}' have no receipt yet: "
            "await ready() before publishing more",
            retry=True,
        )

    def _close_filling(self) -> None:
        """Close the current send; the next event starts a new one."""
        if self._rows:
            self._enqueue(self._filling)
            self._filling = Send()
            self._rows = self._filling.rows
            self._reckon()

    def _enqueue(self, send: Send) -> None:
        self._waiting.append(send)
        self._outstanding_rows += len(send.rows) or send.count
        self._outstanding_bytes += send.nbytes

    def _reckon(self) -> None:
        """Update how many more events may be queued."""
        options = self._session.options
        rows = options.outstanding_rows_max - self._outstanding_rows
        bytes_left = options.outstanding_bytes_max - self._outstanding_bytes
        self._room = max(0, min(rows, int(bytes_left / self._row_bytes)))
        self._changed.notify()

    def _make(self, send: Send, shape: Shape) -> None:
        """Convert the events of a send to columns."""
        if not send.rows:
            return
        rows = len(send.rows)
        pieces, failed = shape.pieces(send.rows)
        send.made(pieces, failed)
        self._outstanding_rows -= rows - send.count
        self._outstanding_bytes += send.nbytes
        if send.count:
            self._row_bytes = max(send.nbytes / send.count, 1.0)
        if failed:
            self._unseen.append(send)

    # What the session asks and tells.

    def frames(self) -> tuple[list[Part], bool]:
        """The frames to send now: first what must be sent again, then what is new."""
        shape, machine = self._shape, self._machine
        parts: list[Part] = []
        if shape is None or not machine.is_sending or not (machine.is_chosen or self._chosen()):
            return parts, False
        again, more = machine.resends(WRITE_BYTES_MAX)
        size = 0
        for transmission in again:
            parts += self._encoded(transmission, shape)
            size += transmission.outgoing.nbytes
        if more:
            return parts, True
        while True:
            if not self._waiting:
                if not self._rows or not machine.has_window(len(self._rows)):
                    break
                self._close_filling()
            if size > WRITE_BYTES_MAX:
                return parts, True
            send = self._waiting.popleft()
            self._make(send, shape)
            if send.count:
                size += send.nbytes
                parts += self._encoded(machine.send(send, uptime_ms()), shape)
        self._reckon()
        return parts, False

    def _encoded(self, transmission: Transmission[Send], shape: Shape) -> list[Part]:
        """The frames of a transmission."""
        send, low, high, before = transmission
        machine = self._machine
        parts: list[Part] = []
        for start, piece in send.pieces:
            begin, end = max(low, start), min(high, start + piece.num_rows)
            if begin < end:
                first = send.first + begin
                parts += encode_client(
                    Publish(
                        topic=self.topic,
                        pubend=machine.pubend,
                        publisher=self.identity,
                        first_catenation=first,
                        schema=shape.fingerprint,
                        rows=piece.slice(begin - start, end - begin),
                        given_up=machine.given_up(),
                        before=before,
                        is_temporary=not self._is_numbered,
                    )
                )
                before = send.first + end - 1
        return parts

    def linked(self) -> None:
        """A new connection: send everything without a receipt again, to the same pubend."""
        home = self._session is self._steering.home
        pubend = self._machine.pubend
        if home and self._steering.is_elsewhere(self.topic, pubend, first=self._is_numbered):
            self._perform(self._machine.search())
        self._resume()
        self._perform(self._machine.linked(uptime_ms()))
        self._session.wake(self)

    def unlinked(self) -> None:
        """The connection is lost; everything is kept."""
        self._machine.unlinked()
        if not self._machine.is_chosen and self._session is not self._steering.home:
            self._perform(self._machine.search())

    def receipt(self, receipt: PublishReceipt) -> None:
        """Events are durable."""
        self._perform(self._machine.receipt(receipt, uptime_ms()))

    def refusal(self, refused: PublishRefused) -> None:
        """Events were not stored."""
        error = error_of(refused.code, refused.message, retry=refused.retry)
        self._perform(self._machine.refused(refused, error, uptime_ms()))

    def failed(self, error: GaplessError) -> None:
        """The client has given up connecting."""
        if self._steered is not None:
            self._steered.cancel()
        self._resume()
        self._perform(self._machine.fail(error))
        self._room = 0

    # What the machine asks for.

    def _perform(self, effects: list[PublishingEffect[Send]]) -> None:
        for effect in effects:
            match effect:
                case Settle():
                    self._settle(effect)
                case StartPause(attempts=attempts):
                    delay_s = self._session.backoff_s(attempts)
                    self._pause = asyncio.get_running_loop().call_later(delay_s, self._paused)
                case FindPubend(is_stale=is_stale):
                    if is_stale:
                        self._steering.home.topics = None
                    self._steered = asyncio.create_task(self._find())
                case GiveUpQueued(error=error):
                    self._give_up(error)
                case _:
                    assert_never(effect)
        if effects:
            self._reckon()
            if self._machine.is_sending and (self._rows or self._waiting):
                self._session.wake(self)

    def _settle(self, effect: Settle[Send]) -> None:
        send = effect.outgoing
        send.settle(effect.start, effect.stop, effect.receipt, effect.error)
        self._outstanding_rows -= effect.stop - effect.start
        if not send.open:
            self._outstanding_bytes -= send.nbytes
        if effect.error is not None:
            self._unseen.append(send)

    def _paused(self) -> None:
        self._pause = None
        self._perform(self._machine.pause_over())
        self._session.wake(self)

    def _resume(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None

    # Where the events go.

    def _chosen(self) -> bool:
        """Choose a pubend at home and return True, or start looking for one elsewhere and return False."""
        wish = self._machine.wish
        here = self._steering.here(self.topic, wish, first=self._is_numbered)
        if here is None and self._steering.is_elsewhere(self.topic, wish, first=self._is_numbered):
            self._perform(self._machine.search())
            return False
        self._machine.choose(here or wish)
        return True

    async def _find(self) -> None:
        """Switch to a session with a node that hosts the pubend, or any pubend of the topic."""
        wanted = self._machine.pubend
        try:
            session, pubend = await self._steering.session(self.topic, wanted, first=self._is_numbered)
        except GaplessError as error:
            self._perform(self._machine.not_found(error, uptime_ms()))
            return
        finally:
            self._steered = None
        self._machine.found(pubend)
        if session is not self._session:
            self._session.leave(self.identity)
            self._session = session
            session.publishers[self.identity] = self
        if session.error is not None:
            self.failed(session.error)
        elif session.is_linked:
            self.linked()

    # The topic.

    def _learn(self) -> None:
        """Use the schema if it is known, or ask for it."""
        schema = self._steering.home.schemas.get(self.topic)
        if schema is not None:
            self._shape = Shape(schema)
        elif self._learning is None:
            self._learning = asyncio.create_task(self._ask())

    async def _ask(self) -> None:
        try:
            await self._steering.home.learn_topics()
        except GaplessError as error:
            self._give_up(error)
            return
        finally:
            self._learning = None
        schema = self._steering.home.schemas.get(self.topic)
        if schema is None:
            self._give_up(no_topic(self.topic, self._steering.home.schemas))
            return
        shape = Shape(schema)
        self._reshape(shape)
        self._shape = shape
        self._changed.notify()
        self._session.wake(self)

    def _reshape(self, shape: Shape) -> None:
        """Convert events that were queued before the schema was known."""
        failed: dict[int, GaplessError] = {}
        rows: list[Row] = []
        for index, (event,) in enumerate(self._rows):
            assert isinstance(event, dict)
            try:
                rows.append(shape.completed(event))
            except UsageError as error:
                failed[index] = error
        if failed:
            # Rare: all queued events become one send, and the good ones are converted to columns at once.
            pieces, misfits = shape.pieces(rows) if rows else ([], {})
            good = [index for index in range(len(self._rows)) if index not in failed]
            failed |= {good[at]: error for at, error in misfits.items()}
            send = self._filling
            send.made(pieces, failed)
            self._unseen.append(send)
            self._filling = Send()
            self._rows = self._filling.rows
            self._enqueue(send)
        else:
            self._rows[:] = rows

    def _give_up(self, error: GaplessError) -> None:
        """Fail what is queued: it cannot be sent."""
        self._close_filling()
        for send in self._waiting:
            self._outstanding_rows -= len(send.rows) or send.count
            self._outstanding_bytes -= send.nbytes
            send.fail(error)
            self._unseen.append(send)
        self._waiting.clear()
        self._reckon()

    async def _shaped(self) -> Shape:
        if self._shape is None:
            self._learn()
        task = self._learning
        if task is not None:
            await asyncio.shield(task)
        if self._session.error is not None:
            raise self._session.error
        if self._shape is None:
            raise no_topic(self.topic, self._steering.home.schemas)
        return self._shape
