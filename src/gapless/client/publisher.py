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
from math import inf
from types import TracebackType
from typing import Self

from gapless.client.receipts import BatchReceipt, Piece, Publication, Row, Send
from gapless.client.refusals import error_of
from gapless.client.rows import Shape
from gapless.client.session import never_sent
from gapless.client.steering import Steering
from gapless.client.waiting import Signal
from gapless.errors import GaplessError, LinkError, UsageError
from gapless.model.ids import PubendId, TopicId
from gapless.wire.client_codec import encode_client
from gapless.wire.client_messages import RESEND_HOURS_MAX, Publish, PublishRefused, Receipt
from gapless.wire.frames import Part

#: A small send waits while another is in flight, because fewer and larger ones are faster. For each of these
#: seconds that the quickest receipt took, one more may be in flight: a distant node is not a busy one.
TRIP_SECONDS = 0.005
#: Maximum number of small sends in flight.
SENDS_MAX = 8
#: A send with at least this many events is not small.
SEND_ROWS_WORTH = 512
#: `ready` waits while the queue is this long.
QUEUE_ROWS_READY = 4_096
#: Approximate number of bytes in one write.
WRITE_BYTES_MAX = 4 * 2**20
#: The refusal of a node that does not host the pubend.
MOVED = "E143"
#: No event is sent again later than this after it was first sent.
RESEND_SECONDS_MAX = RESEND_HOURS_MAX * 3_600.0
#: Maximum number of failed sends remembered for `flush`.
UNSEEN_MAX = 1_000


#: A clock that counts suspended time, where there is one.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)


def uptime_s() -> float:
    """Seconds since some moment, including the time the machine was suspended."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


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
        #: The pubend the program asked for, and the one it got: never another once an event was sent.
        self._wish = pubend
        self._pubend = pubend
        self._is_numbered = is_numbered
        self._is_chosen = False
        #: The search for a node that hosts the pubend, when it started, and how often it failed.
        self._steered: asyncio.Task[None] | None = None
        self._searching_since: float | None = None
        self._searches = 0
        #: How often a node has said since the last receipt that the pubend is elsewhere.
        self._moves = 0
        #: The number of the first event, and of the next one.
        self._first = self._next = first_catenation
        self._shape: Shape | None = None
        self._learning: asyncio.Task[None] | None = None
        #: The send that `publish` fills, and how many more events it may take.
        self._filling = Send()
        self._rows: list[Row] = self._filling.rows
        self._room = session.options.outstanding_rows_max
        #: Sends that are ready, in order; and those in flight, in the order of their numbers.
        self._waiting: deque[Send] = deque()
        self._sent: deque[Send] = deque()
        #: Number of events in `_waiting` and `_sent` without an outcome, and bytes of their columns.
        self._outstanding_rows = 0
        self._outstanding_bytes = 0
        self._row_bytes = 256.0
        #: The quickest receipt of this connection, and how many small sends may therefore be in flight.
        self._trip_s = inf
        self._sends_max = 1
        #: The number of the last event that was given up after refusals; -1 when none was.
        self._given_up = -1
        #: Set while the node has asked us to retry later.
        self._pause: asyncio.TimerHandle | None = None
        #: Whether some sends have to be sent again.
        self._comes_again = False
        #: The highest number known to be stored, and the pubend that has it.
        self._had: tuple[PubendId | None, int] = (None, -1)
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
        for send in [*self._sent, *self._waiting]:
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
        shape = self._shape
        parts: list[Part] = []
        if shape is None or self._pause is not None or self._steered is not None:
            return parts, False
        if not self._is_chosen and not self._chosen():
            return parts, False
        size = 0
        before = self._node_had()
        if not self._comes_again:
            before = next((send.last_open for send in reversed(self._sent) if send.open), before)
        for send in self._sent if self._comes_again else ():
            if send.again:
                send.again = False
                size += send.nbytes
                parts += self._encoded(send, shape, before)
                if size > WRITE_BYTES_MAX:
                    return parts, True
            if send.open:
                before = send.last_open
        self._comes_again = False
        while True:
            if not self._waiting:
                if not self._rows or (
                    len(self._sent) >= self._sends_max and len(self._rows) < SEND_ROWS_WORTH
                ):
                    break
                self._close_filling()
            if size > WRITE_BYTES_MAX:
                return parts, True
            send = self._waiting.popleft()
            self._make(send, shape)
            if send.count:
                send.first, self._next = self._next, self._next + send.count
                send.sent_s = uptime_s()
                self._sent.append(send)
                size += send.nbytes
                parts += self._encoded(send, shape, before)
                before = send.last_open
        self._reckon()
        return parts, False

    def _node_had(self) -> int:
        """The highest number that the pubend is known to have; -1 if none is."""
        pubend, number = self._had
        return number if self._pubend is None or self._pubend == pubend else -1

    def _encoded(self, send: Send, shape: Shape, before: int) -> list[Part]:
        """The frames for all events of a send without an outcome, after the number they rely on."""
        parts: list[Part] = []
        for start, piece in send.pieces:
            stop = start + piece.num_rows
            for low, high in send.open:
                begin, end = max(low, start), min(high, stop)
                if begin < end:
                    first = send.first + begin
                    rows = piece.slice(begin - start, end - begin)
                    parts += self._frame(min(before, first - 1), first, rows, shape)
                    before = send.first + end - 1
        return parts

    def _frame(self, before: int, first: int, rows: Piece, shape: Shape) -> list[Part]:
        return encode_client(
            Publish(
                topic=self.topic,
                pubend=self._pubend,
                publisher=self.identity,
                first_catenation=first,
                schema=shape.fingerprint,
                rows=rows,
                given_up=self._told_given_up(),
                before=before,
                is_temporary=not self._is_numbered,
            )
        )

    def _told_given_up(self) -> int | None:
        """The number up to which events without a receipt are not sent again; None if none were given up."""
        if self._given_up < 0:
            return None
        # Older events that are still to be sent must not be covered: they would count as known.
        oldest = self._sent[0] if self._sent else None
        below = self._next if oldest is None or not oldest.open else oldest.first + oldest.open[0][0]
        told = min(self._given_up, below - 1)
        return told if told >= 0 else None

    def linked(self) -> None:
        """A new connection: send everything without a receipt again, to the same pubend."""
        self._trip_s, self._sends_max = inf, 1
        home = self._session is self._steering.home
        if home and self._steering.is_elsewhere(self.topic, self._pubend, first=self._is_numbered):
            self._steer()
        self._resume()
        self._give_up_old()
        for send in self._sent:
            send.again = self._comes_again = True
        self._session.wake(self)

    def _give_up_old(self) -> None:
        """Fail what was first sent too long ago: the node may have forgotten that it stored it."""
        oldest_s = uptime_s() - RESEND_SECONDS_MAX
        while self._sent and self._sent[0].sent_s < oldest_s:
            first, last = self._sent[0].first, self._sent[0].first + self._sent[0].count - 1
            error = UsageError(
                "E102",
                f"events {first} to {last} of publisher '{self.identity}' were sent {RESEND_HOURS_MAX} hours "
                "ago and have no receipt: check whether they are stored before you publish them again",
            )
            self._settle(first, last, None, error)

    def unlinked(self) -> None:
        """The connection is lost; everything is kept. Any pubend will do if nothing was ever sent."""
        if self._next == self._first:
            self._pubend, self._is_chosen = self._wish, False
            if self._session is not self._steering.home:
                self._steer()

    # Where the events go.

    def _chosen(self) -> bool:
        """Choose a pubend at home and return True, or start looking for one elsewhere and return False."""
        here = self._steering.here(self.topic, self._wish, first=self._is_numbered)
        if here is None and self._steering.is_elsewhere(self.topic, self._wish, first=self._is_numbered):
            self._steer()
            return False
        self._pubend, self._is_chosen = here or self._wish, True
        return True

    def _steer(self) -> None:
        if self._steered is None:
            self._steered = asyncio.create_task(self._find())

    async def _find(self) -> None:
        """Switch to a session with a node that hosts the pubend, or any pubend of the topic."""
        try:
            session, pubend = await self._steering.session(self.topic, self._pubend, first=self._is_numbered)
        except GaplessError as error:
            self._not_found(error)
            return
        finally:
            self._steered = None
        self._searching_since, self._searches = None, 0
        self._pubend, self._is_chosen = pubend, True
        if session is not self._session:
            self._session.publishers.pop(self.identity, None)
            self._session = session
            session.publishers[self.identity] = self
        if session.error is not None:
            self.failed(session.error)
        elif session.is_linked:
            self.linked()

    def _not_found(self, error: GaplessError) -> None:
        """Look again after a pause, as the pubend's node may come back; or give up."""
        loop = asyncio.get_running_loop()
        since = self._searching_since = self._searching_since or loop.time()
        patience_s = self._session.options.give_up_s
        if not error.retry or (patience_s is not None and loop.time() - since > patience_s):
            self._searching_since, self._searches = None, 0
            self._settle_all(error)
            return
        self._searches += 1
        if self._pause is None:
            self._pause = loop.call_later(self._session.backoff_s(self._searches), self._look_again)

    def _look_again(self) -> None:
        self._resume()
        self._steer()

    def _settle_all(self, error: GaplessError) -> None:
        """Fail everything in flight and everything queued."""
        for send in self._sent:
            self._outstanding_rows -= sum(stop - start for start, stop in send.open)
            self._outstanding_bytes -= send.nbytes
            send.fail(error)
            self._unseen.append(send)
        self._sent.clear()
        self._give_up(error)

    def failed(self, error: GaplessError) -> None:
        """The client has given up connecting."""
        if self._steered is not None:
            self._steered.cancel()
        self._resume()
        self._close_filling()
        for send in [*self._sent, *self._waiting]:
            send.fail(error)
            self._unseen.append(send)
        self._sent.clear()
        self._waiting.clear()
        self._outstanding_rows = self._outstanding_bytes = 0
        self._room = 0
        self._changed.notify()

    def receipt(self, receipt: Receipt) -> None:
        """Events are durable."""
        self._moves = 0
        self._pubend = self._pubend or receipt.pubend
        if self._had[0] != receipt.pubend or receipt.last_catenation > self._had[1]:
            self._had = (receipt.pubend, receipt.last_catenation)
        self._settle(receipt.first_catenation, receipt.last_catenation, receipt, None)

    def refusal(self, refused: PublishRefused) -> None:
        """Events were not stored. Retry those that may be stored later, a few times."""
        error = error_of(refused.code, refused.message, retry=refused.retry)
        if refused.code == MOVED and self._moves < self._session.options.retries_max:
            # The node knows better than we do where the topic lives.
            self._moves += 1
            for send in self._sent:
                send.again = self._comes_again = True
            self._steering.home.topics = None
            self._steer()
            return
        if not refused.retry:
            self._settle(refused.first_catenation, refused.last_catenation, None, error)
            return
        if refused.had is not None:
            # It lacks an event we rely on: send everything it lacks again, in order.
            self._had = (self._pubend, refused.had)
        attempts = 0
        for send in list(self._sent):
            is_meant = (
                send.first <= refused.last_catenation and refused.first_catenation < send.first + send.count
            )
            if not is_meant or not send.open:
                continue
            send.attempts += 1
            if send.attempts > self._session.options.retries_max:
                self._given_up = max(refused.last_catenation, self._given_up)
                self._settle(refused.first_catenation, refused.last_catenation, None, error)
            else:
                send.again = self._comes_again = True
                attempts = max(attempts, send.attempts)
        if attempts and self._pause is None:
            delay_s = self._session.backoff_s(attempts)
            self._pause = asyncio.get_running_loop().call_later(delay_s, self._paused)

    def _paused(self) -> None:
        self._resume()
        self._session.wake(self)

    def _resume(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None

    def _settle(self, first: int, last: int, receipt: Receipt | None, error: GaplessError | None) -> None:
        if last >= self._next:
            raise never_sent(f"event {last} of publisher '{self.identity}'")
        for send in self._sent:
            if send.first > last:
                break
            new = send.settle(first - send.first, last + 1 - send.first, receipt, error)
            self._outstanding_rows -= new
            if new and not send.open:
                self._outstanding_bytes -= send.nbytes
            if new and error is not None:
                self._unseen.append(send)
        while self._sent and not self._sent[0].open:
            self._took(uptime_s() - self._sent.popleft().sent_s)
        self._reckon()
        if self._rows or self._waiting:
            self._session.wake(self)

    def _took(self, trip_s: float) -> None:
        if trip_s < self._trip_s:
            self._trip_s = trip_s
            self._sends_max = min(1 + int(trip_s / TRIP_SECONDS), SENDS_MAX)

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
            known = ", ".join(sorted(self._steering.home.schemas)) or "none"
            self._give_up(UsageError("E141", f"there is no topic '{self.topic}': there is {known}"))
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
            known = ", ".join(sorted(self._steering.home.schemas)) or "none"
            raise UsageError("E141", f"there is no topic '{self.topic}': there is {known}")
        return self._shape
