"""What happens to what a client publishes? Checked, known or new, on its way to the disk, answered.

Publishing is exactly once: the catenation numbers of `publishers` tell what was stored already, and a client
hears of its events when they are durable, or why they never will be.

What comes in one turn of the event loop, from however many clients, is stored together: a step of the broker
and a record of the log cost about the same for one event and for a thousand.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

import numpy as np
import pyarrow as pa

from gapless.errors import PeerError, UsageError
from gapless.model.budget import EVENT_BYTES_MAX, TOGETHER_BYTES_MAX, event_sizes
from gapless.model.ids import BrokerId, PubendId, TopicId
from gapless.model.packed import PackedRows, as_columns, put_together
from gapless.node.config import Limits
from gapless.node.documents import DocumentQuota, Weights
from gapless.node.guard import Guard
from gapless.node.publishers import TOLD_BYTES_MAX, HoleError, NoteValue, Publishers, note
from gapless.node.security import Rights
from gapless.node.turn import NextTurn
from gapless.protocol.effects import AcceptPublish, AppendRecord, BatchRecord, RefusePublish
from gapless.protocol.events import Event, PublishRequested
from gapless.protocol.network import Network
from gapless.wire.client_messages import NodeMessage, Publish, PublishRefused, Receipt, tick_runs

#: More rows than this are not stored together, and one request with more is cut: a step would take too long.
TOGETHER_ROWS_MAX = 65_536
#: A request with at least this many rows, or bytes, gets a step of its own: copying it would cost more.
TOGETHER_ROWS_WORTH, TOGETHER_BYTES_WORTH = 512, 64 * 2**10
#: Bytes of one pubend that are handed over in one turn of the loop, unless it is a single request.
TURN_BYTES = 4 * 2**20
#: Steps that take less are nobody's.
CAUSED_SECONDS = 0.001
#: What a row and a byte of an event take at most, without conditions that cost much.
FAIR_ROW_SECONDS, FAIR_BYTE_SECONDS = 1e-4, 1e-8


class Speaker(Protocol):
    """Whoever gets the answers: a client, or what is left of it."""

    rights: Rights

    def send(self, message: NodeMessage) -> None:
        """Say it; lost when nobody is there."""

    def caused(self, seconds: float, now: float) -> None:
        """A step for what it has published took so long, until this time of `perf_counter`."""


@dataclass(slots=True)
class _Request:
    """Rows that a client published and that are on their way to the disk."""

    client: Speaker
    pubend: PubendId
    publisher: str
    first: int
    last: int
    #: What the note of the rows says of the publisher.
    told: NoteValue
    #: None when they were handed over.
    rows: pa.RecordBatch | PackedRows | None
    #: The rows as they came, when they can be passed on like that.
    encoded: memoryview | None
    #: What they weigh, with what is written beside them.
    nbytes: int
    #: How many more rows would take as long, because of the documents in them.
    weight: int = 0
    #: Who has sent some of the same events since, and which: the client on a new connection, or another
    #: process that does the same work.
    again: list[tuple[Speaker, int, int]] = field(default_factory=list)

    @property
    def fair_seconds(self) -> float:
        """How long a step for it may take: what it takes longer is the fault of others, who subscribe."""
        rows = self.last + 1 - self.first + self.weight
        return rows * FAIR_ROW_SECONDS + self.nbytes * FAIR_BYTE_SECONDS


class Publishing:
    """All that clients of one node publish."""

    def __init__(
        self,
        network: Network,
        publishers: Mapping[PubendId, Publishers],
        feed: Callable[[Event], None],
        addresses: Mapping[BrokerId, str],
        guard: Guard | None = None,
        *,
        limits: Limits | None = None,
    ) -> None:
        """`addresses` are where clients reach the other nodes; `guard` hears of mistakes of our own."""
        self._documents = DocumentQuota(Limits() if limits is None else limits)
        self._next_turn = NextTurn(self._take_turn, guard)
        self._addresses = addresses
        self.network = network
        self._publishers = publishers
        self._feed = feed
        #: What came and waits for the end of this turn of the loop, or for the next; how many bytes that is;
        #: and what is on its way, by token.
        self._coming: dict[PubendId, deque[_Request]] = {}
        self._coming_bytes = 0
        self._requests: dict[int, list[_Request]] = {}
        self._tokens = count()
        #: What the present step is about.
        self._in_step: list[_Request] = []
        #: What goes into the log beside the rows that are being published.
        self._note = b""
        #: How heavy the documents in them are.
        self._weight = 0
        #: Begins to flush what was stored; set before anybody is let in.
        self.flush: Callable[[], None] = lambda: None
        #: Nothing new is taken any more.
        self.is_stopping = False
        #: How many events were not stored.
        self.events_refused = 0

    def publish(self, client: Speaker, message: Publish) -> None:
        """A client publishes: answered now or when the rows are durable."""
        last = message.last_catenation
        try:
            client.rights.check_publish(message.topic)
            if self.is_stopping:
                raise UsageError("E188", "node shutting down; publish elsewhere", retry=True)
            pubend = self._pubend_for(client, message)
            publishers = self._publishers[pubend]
            schema = self.network.topics[message.topic]
            if message.damage is not None:
                raise message.damage
            if message.rows is None:
                raise UsageError("E111", f"the rows are not of the schema of topic '{message.topic}'")
            rows_count = message.rows.num_rows
            if message.nbytes > EVENT_BYTES_MAX:
                _check_sizes(message.topic, message.rows)
            principal = client.rights.principal
            publishers.check_owner(message.publisher, principal)
            if message.given_up is not None:
                publishers.given_up(message.publisher, message.given_up)
            publishers.check_before(message.publisher, message.before, message.first_catenation, last)
            known = publishers.fresh(message.publisher, message.first_catenation, rows_count)
            if known == rows_count:
                self._repeat(client, message, pubend, last)
                return
            if known:
                # A publisher that was restarted may cut its events into other batches than before.
                self._repeat(client, message, pubend, message.first_catenation + known - 1)
            rows = message.rows.slice(known) if known else message.rows
            weights: Weights | None = None
            if not isinstance(rows, PackedRows):
                # Packed rows have no documents.
                rows = schema.checked(rows)
                weights = self._documents.check(schema, rows)
            self._take_all(client, message, pubend, known, rows, weights=weights)
        except (UsageError, PeerError) as error:
            self._refuse(client, message.publisher, message.first_catenation, last, error)

    def release(self, publisher: str) -> None:
        """An identity belongs to whoever uses it next. Raises UsageError when it is not known here."""
        released = [each.release(publisher) for each in self._publishers.values()]
        if not any(released):
            raise UsageError(
                "E103",
                f"publisher '{publisher}' is not known here: connect to the node that stores its events",
            )

    def hand_over(self) -> None:
        """Give the broker everything that came."""
        while self._coming:
            self._hand_over_some()

    def _take_turn(self) -> None:
        """Give the broker what came in this turn of the loop, or as much of it as a turn may take."""
        self._hand_over_some()
        self.flush()
        if self._coming:
            self._next_turn.ask()

    def _hand_over_some(self) -> None:
        for pubend in list(self._coming):
            coming = self._coming.get(pubend)
            taken: list[_Request] = []
            rows = nbytes = 0
            while coming:
                rows += coming[0].last + 1 - coming[0].first + coming[0].weight
                nbytes += coming[0].nbytes
                if taken and (rows > TOGETHER_ROWS_MAX or nbytes > TURN_BYTES):
                    break
                taken.append(coming.popleft())
            self._coming_bytes -= sum(request.nbytes for request in taken)
            if not coming:
                self._coming.pop(pubend, None)
            together: list[_Request] = []
            for request in taken:
                many = request.last - request.first >= TOGETHER_ROWS_WORTH
                if many or request.nbytes >= TOGETHER_BYTES_WORTH:
                    self._store(pubend, together)
                    self._store(pubend, [request])
                    together = []
                else:
                    together.append(request)
            self._store(pubend, together)

    def _store(self, pubend: PubendId, requests: list[_Request]) -> None:
        requests = self._standing(pubend, requests)
        if not requests:
            return
        rows = put_together([request.rows for request in requests if request.rows is not None])
        encoded = requests[0].encoded if len(requests) == 1 else None
        # The step that stores the rows asks for their note before it is over.
        self._note = note({request.publisher: request.told for request in requests})
        self._weight = sum(request.weight for request in requests)
        token = next(self._tokens)
        self._requests[token] = requests
        for request in requests:
            request.rows = request.encoded = None
        self._in_step += requests
        try:
            self._feed(PublishRequested(pubend=pubend, token=token, rows=rows, encoded=encoded))
        except UsageError as error:
            for request in self._requests.pop(token):
                self._failed(request, error)

    def _standing(self, pubend: PubendId, requests: list[_Request]) -> list[_Request]:
        """The requests without those that came after something that has failed since: they are refused."""
        accepted = self._publishers[pubend].accepted
        if all(request.last <= accepted(request.publisher) for request in requests):
            return requests
        standing: list[_Request] = []
        for request in requests:
            had = accepted(request.publisher)
            if request.last <= had:
                standing.append(request)
            else:
                self._refuse_all(request, HoleError(request.publisher, had))
        return standing

    def _failed(self, request: _Request, error: UsageError) -> None:
        """A request was not stored: nothing of its publisher that came later may be."""
        self._publishers[request.pubend].failed(request.publisher, request.first)
        self._refuse_all(request, error)
        coming = self._coming.get(request.pubend)
        if coming:
            standing = self._standing(request.pubend, list(coming))
            self._coming[request.pubend] = deque(standing)
            if not standing:
                del self._coming[request.pubend]
            left = [each for requests in self._coming.values() for each in requests]
            self._coming_bytes = sum(each.nbytes for each in left)

    def _take_all(
        self,
        client: Speaker,
        message: Publish,
        pubend: PubendId,
        known: int,
        rows: pa.RecordBatch | PackedRows,
        *,
        weights: Weights | None,
    ) -> None:
        """Take the rows of a message but for those that are known, in pieces when they are many or heavy."""
        publishers, publisher = self._publishers[pubend], message.publisher
        principal = client.rights.principal
        pieces = pieces_of(rows.num_rows, weights)
        encoded = None if known or len(pieces) > 1 else message.encoded
        for at, stop, weight in pieces:
            piece = rows if len(pieces) == 1 else rows.slice(at, stop - at)
            first = message.first_catenation + known + at
            last = first + piece.num_rows - 1
            told = publishers.accept(publisher, first, last, principal, is_temporary=message.is_temporary)
            nbytes = message.nbytes // len(pieces) + len(publisher)
            nbytes += 0 if isinstance(told, int) else TOLD_BYTES_MAX
            request = _Request(client, pubend, publisher, first, last, told, piece, encoded, nbytes, weight)
            if not self._take(request):
                end = message.first_catenation + known + rows.num_rows - 1
                if last < end:
                    had = publishers.accepted(publisher)
                    self._refuse(client, publisher, last + 1, end, HoleError(publisher, had))
                return

    def _take(self, request: _Request) -> bool:
        """Take a request; not if something before it has failed meanwhile, then it is refused."""
        while self._coming and self._coming_bytes + request.nbytes > TOGETHER_BYTES_MAX:
            self._hand_over_some()
            if not self._standing(request.pubend, [request]):
                return False
        self._next_turn.ask()
        self._coming.setdefault(request.pubend, deque()).append(request)
        self._coming_bytes += request.nbytes
        return True

    def stepped(self, seconds: float, now: float) -> None:
        """A step has taken so long, until now: whoever published what it was about has caused it."""
        in_step, self._in_step = self._in_step, []
        if seconds >= CAUSED_SECONDS:
            total = sum(request.nbytes for request in in_step) or 1
            for request in in_step:
                request.client.caused(min(seconds * request.nbytes / total, request.fair_seconds), now)

    def _refuse(
        self, client: Speaker, publisher: str, first: int, last: int, error: UsageError | PeerError
    ) -> None:
        # How many rows damaged data has is only a claim.
        self.events_refused += 1 if isinstance(error, PeerError) else last + 1 - first
        client.send(
            PublishRefused(
                publisher=publisher,
                first_catenation=first,
                last_catenation=last,
                code=error.code,
                message=error.message,
                retry=error.retry,
                had=error.had if isinstance(error, HoleError) else None,
            )
        )

    def _refuse_all(self, request: _Request, error: UsageError) -> None:
        self._refuse(request.client, request.publisher, request.first, request.last, error)
        for client, first, last in request.again:
            self._refuse(client, request.publisher, first, last, error)

    def weight_of(self, effect: AppendRecord) -> int:
        """How many more rows would take as long as the documents of a record."""
        return self._weight if isinstance(effect.record, BatchRecord) else 0

    def note_of(self, effect: AppendRecord) -> bytes:
        """What is kept in the log beside a record."""
        return self._note if isinstance(effect.record, BatchRecord) else b""

    def accepted(self, effect: AcceptPublish) -> None:
        """Rows are durable: the client hears of it."""
        at = 0
        for request in self._requests.pop(effect.token):
            ticks = effect.ticks[at : at + request.last + 1 - request.first]
            at += len(ticks)
            self._publishers[request.pubend].stored(request.publisher, request.last, int(ticks[-1]))
            self._in_step.append(request)
            for client, first, last in ((request.client, request.first, request.last), *request.again):
                client.send(
                    Receipt(
                        publisher=request.publisher,
                        first_catenation=first,
                        last_catenation=last,
                        pubend=effect.pubend,
                        runs=tick_runs(ticks[first - request.first : last + 1 - request.first]),
                    )
                )

    def refused(self, effect: RefusePublish) -> None:
        """Rows were not stored: the client hears why."""
        error = UsageError("E182", effect.reason, retry=True)
        for request in self._requests.pop(effect.token):
            self._failed(request, error)

    def _check_topic(self, client: Speaker, topic: TopicId, pubend: PubendId | None) -> None:
        """Whether a pubend is the topic's, as far as is known here. Raises UsageError.

        That there is a pubend of a topic that the client may not see is not told: it does not live here.
        """
        place = None if pubend is None else self.network.pubends.get(pubend)
        if place is None or place.topic == topic:
            return
        if client.rights.may_see(place.topic):
            raise UsageError(
                "E115",
                f"pubend '{pubend}' is of topic '{place.topic}' and not of '{topic}': name one of '{topic}', "
                "or none",
            )
        raise UsageError("E143", f"pubend '{pubend}' does not live at this node")

    def _pubend_for(self, client: Speaker, message: Publish) -> PubendId:
        if message.topic not in self.network.topics:
            raise client.rights.no_topic(message.topic, self.network.topics)
        self._check_topic(client, message.topic, message.pubend)
        if message.pubend is not None:
            if message.pubend in self._publishers:
                return message.pubend
            raise UsageError("E143", f"pubend '{message.pubend}' does not live at this node")
        here = [pubend for pubend in self.network.pubends_of(message.topic) if pubend in self._publishers]
        if not here:
            there = {self.network.pubends[each].broker for each in self.network.pubends_of(message.topic)}
            brokers = [f"{broker} ({self._addresses.get(broker, 'unknown')})" for broker in sorted(there)]
            raise UsageError(
                "E143", f"topic '{message.topic}' is not published here: connect to {', '.join(brokers)}"
            )
        return here[0]

    def _repeat(self, client: Speaker, message: Publish, pubend: PubendId, last: int) -> None:
        """Everything up to `last` came before, or was given up: receipts, now or when it is durable."""
        publisher, publishers = message.publisher, self._publishers[pubend]
        durable = publishers.durable(publisher)
        for first, until, is_accepted in publishers.pieces(publisher, message.first_catenation, last):
            if not is_accepted:
                error = UsageError(
                    "E102",
                    f"events {first} to {until} of publisher '{publisher}' were given up, or are not known "
                    "to be stored: publish them under new numbers if they are missing",
                )
                self._refuse(client, publisher, first, until, error)
                continue
            stored = min(durable, until)
            if stored >= first:
                client.send(
                    Receipt(
                        publisher=publisher,
                        first_catenation=first,
                        last_catenation=stored,
                        pubend=pubend,
                        runs=(),
                    )
                )
            if stored < until:
                self._tell_later(client, publisher, pubend, max(first, stored + 1), until)

    def _tell_later(self, client: Speaker, publisher: str, pubend: PubendId, first: int, last: int) -> None:
        """These events are on their way: their receipts are for this client, too."""
        for requests in (*self._requests.values(), *self._coming.values()):
            for request in requests:
                low, high = max(request.first, first), min(request.last, last)
                if request.publisher == publisher and request.pubend == pubend and low <= high:
                    request.again.append((client, low, high))


def pieces_of(count: int, weights: Weights | None) -> list[tuple[int, int, int]]:
    """Where rows are cut so that none takes too long: start, stop and weight of each piece.

    >>> pieces_of(100_000, None)
    [(0, 65536, 0), (65536, 100000, 0)]
    >>> pieces_of(4, np.array([30_000, 30_000, 90_000, 10]))
    [(0, 2, 60000), (2, 3, 90000), (3, 4, 10)]
    """
    if weights is None:
        starts = range(0, count, TOGETHER_ROWS_MAX)
        return [(at, min(count, at + TOGETHER_ROWS_MAX), 0) for at in starts]
    # How heavy all rows before each row are, and all of them.
    before = np.concatenate(([0], np.cumsum(weights + 1)))
    pieces: list[tuple[int, int, int]] = []
    start = 0
    while start < count:
        fitting = int(before.searchsorted(before[start] + TOGETHER_ROWS_MAX, "right")) - 1
        stop = max(fitting, start + 1)
        pieces.append((start, stop, int(before[stop] - before[start]) - (stop - start)))
        start = stop
    return pieces


def _check_sizes(topic: TopicId, rows: pa.RecordBatch | PackedRows) -> None:
    """Raise UsageError if a row exceeds `EVENT_BYTES_MAX`."""
    sizes = event_sizes(as_columns(rows))
    at = int(sizes.argmax())
    if sizes[at] > EVENT_BYTES_MAX:
        raise UsageError(
            "E194",
            f"row {at} for topic '{topic}' has {sizes[at]} bytes, an event has at most {EVENT_BYTES_MAX}: "
            "split it, or publish where to find the rest",
        )
