"""What becomes of what clients publish? Known or new, on its way to the log, answered: the edge's half.

Publishing is exactly once. The catenation numbers of `publishers` tell what was stored before; what is new
goes to the broker with a note of who published it; and a client hears of its events when they are durable, or
why they never will be. What comes between two turns of the host, from however many clients, is stored
together: a step of the broker and a record of the log cost about the same for one event and for a thousand.

The host calls `publish` for each request, feeds the broker with `steps` once per turn, and passes on what the
broker answers to `accepted` and `refused`. All of them return what to tell to whom.

Implements docs/protocol.md, section 13.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gapless.errors import PeerError, UsageError
from gapless.model.budget import EVENT_BYTES_MAX, TOGETHER_BYTES_MAX, event_sizes
from gapless.model.ids import BrokerId, PubendId, TopicId
from gapless.model.notes import STATE_BYTES_MAX, NoteValue, encode_note
from gapless.model.packed import PackedRows, as_columns, put_together
from gapless.model.schema import Schema
from gapless.model.ticks import Tick
from gapless.protocol.effects import AcceptPublish
from gapless.protocol.events import PublishRequested
from gapless.protocol.marks import mark, reached
from gapless.protocol.network import Network
from gapless.protocol.sessions.messages import Publish, PublishReceipt, PublishRefused
from gapless.protocol.sessions.publishers import HoleError, Publishers

#: Maximum number of rows that are stored together. A request with more is cut: a step would take too long.
TOGETHER_ROWS_MAX = 65_536
#: A request with at least this many rows, or bytes, gets a step of its own: copying it would cost more.
TOGETHER_ROWS_WORTH, TOGETHER_BYTES_WORTH = 512, 64 * 2**10
#: Maximum number of bytes of one pubend that are handed over in one turn, unless it is a single request.
TURN_BYTES = 4 * 2**20

PUBLISHED_AGAIN = mark("published_again", "events came again that were stored, and got a second receipt")
PUBLISHED_ON_THE_WAY = mark("published_on_the_way", "events came again that were on their way to the log")
PUBLISHED_IN_PART = mark("published_in_part", "some events of a request were known, and only the rest stored")
HOLE_REFUSED = mark("hole_refused", "events were refused because others before them were missing")
HOLE_STAYS = mark("hole_stays", "events came that were given up before, and were refused for good")
MOVED_PUBLISHER = mark("moved_publisher", "a publisher came to a node that does not host its pubend")

#: One number per row.
Weights: TypeAlias = npt.NDArray[np.int64]


class PublishingRights(Protocol):
    """What a client may do, as far as publishing is concerned."""

    @property
    def principal(self) -> str:
        """Who it is, for ownership and quotas."""

    def check_publish(self, topic: TopicId) -> None:
        """Raise UsageError unless it may publish to a topic."""

    def may_see(self, topic: TopicId) -> bool:
        """Whether it may know that there is such a topic."""

    def no_topic(self, topic: TopicId, topics: Iterable[TopicId]) -> UsageError:
        """The error for a topic that there is not."""


class PublishingPeer(Protocol):
    """Whoever gets the answers: a connection of a client, or what is left of it."""

    @property
    def rights(self) -> PublishingRights:
        """What it may do."""


Peer = TypeVar("Peer", bound=PublishingPeer)


class PublishAnswer(NamedTuple, Generic[Peer]):
    """Tell a client what became of its events. Lost when it is gone; then it asks again elsewhere."""

    to: Peer
    message: PublishReceipt | PublishRefused


@dataclass(slots=True, eq=False)
class PendingPublish(Generic[Peer]):
    """Rows that a client published and that are on their way to the log."""

    peer: Peer
    pubend: PubendId
    publisher: str
    first: int
    last: int
    #: What the note of the rows says of the publisher.
    state: NoteValue
    #: None once they were handed over.
    rows: pa.RecordBatch | PackedRows | None
    #: The rows as they came, when they can be passed on like that.
    encoded: memoryview | None
    #: What they weigh, with what is written beside them.
    nbytes: int
    #: How many more rows would take as long, because of the documents in them.
    weight: int = 0

    @property
    def whose(self) -> tuple[PubendId, str]:
        """Whose events they are, and where."""
        return self.pubend, self.publisher

    @property
    def cost_rows(self) -> int:
        """How many plain rows would take as long."""
        return self.last + 1 - self.first + self.weight

    @property
    def is_large(self) -> bool:
        """Whether it is worth a step of its own."""
        return self.last - self.first >= TOGETHER_ROWS_WORTH or self.nbytes >= TOGETHER_BYTES_WORTH


class EdgePublishing(Generic[Peer]):
    """All that the clients of one node publish."""

    def __init__(
        self,
        network: Network,
        publishers: Mapping[PubendId, Publishers],
        addresses: Mapping[BrokerId, str],
        weigh: Callable[[Schema, pa.RecordBatch], Weights | None] = lambda _schema, _rows: None,
    ) -> None:
        """`publishers` are those of the pubends that live here; `addresses` say where the other nodes are.

        `weigh` says how many more rows would take as long as each row, None for all the same; it raises
        UsageError for rows that this node does not take.
        """
        self.network = network
        self._publishers = publishers
        self._addresses = addresses
        self._weigh = weigh
        #: What came and was not handed over, and how many bytes that is; and what is on its way, by token.
        self._coming: dict[PubendId, deque[PendingPublish[Peer]]] = {}
        self._coming_bytes = 0
        self._under_way: dict[int, list[PendingPublish[Peer]]] = {}
        self._tokens = count()
        #: How many requests of each publisher came and are not answered.
        self._unanswered: Counter[tuple[PubendId, str]] = Counter()
        #: Who has sent some of their events again, and the first and the last of these: the client on a new
        #: connection, or another process that does the same work. However often, each is answered once more.
        self._again: dict[tuple[PubendId, str], dict[Peer, tuple[int, int]]] = {}
        #: Nothing new is taken any more.
        self.is_stopping = False
        #: Number of events that were not stored.
        self.events_refused = 0

    # ---- what comes ----------------------------------------------------------------------------------

    @property
    def is_waiting(self) -> bool:
        """Whether something waits to be handed over."""
        return bool(self._coming)

    def has_room(self, nbytes: int) -> bool:
        """Whether so many bytes more may wait. If not, hand something over before it is published."""
        return not self._coming or self._coming_bytes + nbytes <= TOGETHER_BYTES_MAX

    def publish(self, peer: Peer, message: Publish, now: Tick) -> list[PublishAnswer[Peer]]:
        """A client publishes; `now` is the wall clock. What can be said already is returned."""
        try:
            peer.rights.check_publish(message.topic)
            if self.is_stopping:
                raise UsageError("E188", "node shutting down; publish elsewhere", retry=True)
            pubend = self._pubend_for(peer.rights, message)
            rows, weights = self._checked(message)
            return self._take(peer, message, pubend, rows=rows, weights=weights, now=now)
        except (UsageError, PeerError) as error:
            # The damage of a message would refer to the stack, and the stack to the message: a cycle that
            # keeps alive whatever came together with it.
            error.__traceback__ = None
            first, last = message.first_catenation, message.last_catenation
            return [self._refusal(peer, message.publisher, first, last, error)]

    def release(self, publisher: str) -> None:
        """An identity belongs to whoever uses it next. Raises UsageError when it is not known here."""
        released = [each.release(publisher) for each in self._publishers.values()]
        if not any(released):
            raise UsageError(
                "E103",
                f"publisher '{publisher}' is not known here: connect to the node that stores its events",
            )

    def _pubend_for(self, rights: PublishingRights, message: Publish) -> PubendId:
        topic, pubend = message.topic, message.pubend
        if topic not in self.network.topics:
            raise rights.no_topic(topic, self.network.topics)
        if pubend is not None:
            place = self.network.pubends.get(pubend)
            # That there is a pubend of a topic that the client may not see is not told.
            if place is not None and place.topic != topic and rights.may_see(place.topic):
                raise UsageError(
                    "E115",
                    f"pubend '{pubend}' is of topic '{place.topic}' and not of '{topic}': name one of "
                    f"'{topic}', or none",
                )
            if pubend in self._publishers and place is not None and place.topic == topic:
                return pubend
            reached(MOVED_PUBLISHER)
            raise UsageError("E143", f"pubend '{pubend}' does not live at this node")
        pubends = self.network.pubends_of(topic)
        here = next((each for each in pubends if each in self._publishers), None)
        if here is None:
            reached(MOVED_PUBLISHER)
            there = {self.network.pubends[each].broker for each in pubends}
            brokers = [f"{broker} ({self._addresses.get(broker, 'unknown')})" for broker in sorted(there)]
            raise UsageError(
                "E143", f"topic '{topic}' is not published here: connect to {', '.join(brokers)}"
            )
        return here

    def _checked(self, message: Publish) -> tuple[pa.RecordBatch | PackedRows, Weights | None]:
        """The rows in the schema of the topic, and their weights. Raises UsageError or PeerError."""
        if message.damage is not None:
            raise message.damage
        rows = message.rows
        if rows is None:
            raise UsageError("E111", f"the rows are not of the schema of topic '{message.topic}'")
        if message.nbytes > EVENT_BYTES_MAX:
            _check_sizes(message.topic, rows)
        if isinstance(rows, PackedRows):
            # They were seen to fit when they were unpacked, and have no documents.
            return rows, None
        schema = self.network.topics[message.topic]
        rows = schema.checked(rows)
        return rows, self._weigh(schema, rows)

    def _take(
        self,
        peer: Peer,
        message: Publish,
        pubend: PubendId,
        *,
        rows: pa.RecordBatch | PackedRows,
        weights: Weights | None,
        now: Tick,
    ) -> list[PublishAnswer[Peer]]:
        """Take what is new, in pieces when it is much or heavy, and answer for what is known."""
        publishers, publisher = self._publishers[pubend], message.publisher
        first, last = message.first_catenation, message.last_catenation
        principal = peer.rights.principal
        publishers.check_owner(publisher, principal)
        if message.given_up is not None:
            publishers.given_up(publisher, message.given_up)
        publishers.check_before(publisher, message.before, first, last)
        known = publishers.fresh(publisher, first, rows.num_rows)
        if known == rows.num_rows:
            return self._repeat(peer, publisher, pubend, first, last)
        pieces = pieces_of(rows.num_rows - known, None if weights is None else weights[known:])
        encoded = None if known or len(pieces) > 1 else message.encoded
        for at, stop, weight in pieces:
            is_whole = stop - at == rows.num_rows
            low, high = first + known + at, first + known + stop - 1
            state = publishers.accept(
                publisher, low, high, principal, now=now, is_temporary=message.is_temporary
            )
            nbytes = message.nbytes // len(pieces) + len(publisher)
            nbytes += 0 if isinstance(state, int) else STATE_BYTES_MAX
            piece = rows if is_whole else rows.slice(known + at, stop - at)
            self._coming.setdefault(pubend, deque()).append(
                PendingPublish(peer, pubend, publisher, low, high, state, piece, encoded, nbytes, weight)
            )
            self._coming_bytes += nbytes
            self._unanswered[pubend, publisher] += 1
        if not known:
            return []
        # A publisher that was restarted may cut its events into other batches than before.
        reached(PUBLISHED_IN_PART)
        return self._repeat(peer, publisher, pubend, first, first + known - 1)

    def _repeat(
        self, peer: Peer, publisher: str, pubend: PubendId, first: int, last: int
    ) -> list[PublishAnswer[Peer]]:
        """These events came before, or were given up: answer now, or when they are durable."""
        publishers = self._publishers[pubend]
        durable = publishers.durable(publisher)
        answers: list[PublishAnswer[Peer]] = []
        for low, high, is_accepted in publishers.pieces(publisher, first, last):
            if not is_accepted:
                reached(HOLE_STAYS)
                error = UsageError(
                    "E102",
                    f"events {low} to {high} of publisher '{publisher}' were given up, or are not known "
                    "to be stored: publish them under new numbers if they are missing",
                )
                answers.append(self._refusal(peer, publisher, low, high, error))
                continue
            stored = min(durable, high)
            if stored >= low:
                reached(PUBLISHED_AGAIN)
                answers.append(PublishAnswer(peer, _receipt(publisher, pubend, low, stored, ())))
            if stored < high:
                reached(PUBLISHED_ON_THE_WAY)
                self._tell_later(peer, publisher, pubend, max(low, stored + 1), high)
        return answers

    def _tell_later(self, peer: Peer, publisher: str, pubend: PubendId, first: int, last: int) -> None:
        """These events are on their way: their receipts are for this client, too."""
        again = self._again.setdefault((pubend, publisher), {})
        low, high = again.get(peer, (first, last))
        again[peer] = min(low, first), max(high, last)

    def _sent_again(self, whose: tuple[PubendId, str], first: int, last: int) -> list[tuple[Peer, int, int]]:
        """Who is to hear of these events besides, and of which; they are asked for no longer."""
        found: list[tuple[Peer, int, int]] = []
        again = self._again.get(whose, {})
        for peer, (low, high) in list(again.items()):
            start, stop = max(low, first), min(high, last)
            if start > stop:
                continue
            found.append((peer, start, stop))
            left = (stop + 1, high) if start == low else (low, start - 1 if stop == high else high)
            again[peer] = left
            if left[0] > left[1]:
                del again[peer]
        return found

    def _answered(self, request: PendingPublish[Peer]) -> None:
        whose = request.whose
        left = self._unanswered[whose] - 1
        if left:
            self._unanswered[whose] = left
        else:
            del self._unanswered[whose]
            self._again.pop(whose, None)

    # ---- to the broker and back ----------------------------------------------------------------------

    def steps(self) -> Iterator[PublishRequested]:
        """What one turn gives to the broker. Feed each to it before asking for the next."""
        for pubend in list(self._coming):
            rows = nbytes = taken = 0
            together: list[PendingPublish[Peer]] = []
            while coming := self._coming.get(pubend):
                request = coming[0]
                rows += request.cost_rows
                nbytes += request.nbytes
                if taken and (rows > TOGETHER_ROWS_MAX or nbytes > TURN_BYTES):
                    break
                if request.is_large and together:
                    # What was refused while this was stored may not be followed by more: look again.
                    yield from self._stored(pubend, together)
                    together = []
                    rows -= request.cost_rows
                    nbytes -= request.nbytes
                    continue
                taken += 1
                coming.popleft()
                self._coming_bytes -= request.nbytes
                if not coming:
                    del self._coming[pubend]
                if request.is_large:
                    yield from self._stored(pubend, [request])
                else:
                    together.append(request)
            yield from self._stored(pubend, together)

    def _stored(self, pubend: PubendId, requests: list[PendingPublish[Peer]]) -> Iterator[PublishRequested]:
        if not requests:
            return
        rows = put_together([request.rows for request in requests if request.rows is not None])
        encoded = requests[0].encoded if len(requests) == 1 else None
        token = next(self._tokens)
        self._under_way[token] = requests
        weight = 0
        for request in requests:
            request.rows = request.encoded = None
            weight += request.weight
        yield PublishRequested(
            pubend=pubend,
            token=token,
            rows=rows,
            encoded=encoded,
            note=encode_note({request.publisher: request.state for request in requests}),
            weight=weight,
        )

    def requests(self, token: int) -> list[PendingPublish[Peer]]:
        """What is stored under a token and not answered yet."""
        return self._under_way[token]

    def accepted(self, effect: AcceptPublish) -> list[PublishAnswer[Peer]]:
        """Rows are durable: whoever published them hears of it."""
        answers: list[PublishAnswer[Peer]] = []
        tick = effect.ticks.start
        pubend = effect.pubend
        stored = self._publishers[pubend].stored
        requests = self._under_way.pop(effect.token)
        #: Of publishers whose events came again: the ticks of those that are durable now.
        runs_again: dict[str, list[tuple[int, int, Tick]]] = {}
        for request in requests:
            first, last, publisher = request.first, request.last, request.publisher
            stored(publisher, last, tick + last - first)
            runs = ((tick, last + 1 - first),)
            answers.append(PublishAnswer(request.peer, _receipt(publisher, pubend, first, last, runs)))
            if self._again and request.whose in self._again:
                _lengthen(runs_again.setdefault(publisher, []), first, last, tick)
            tick += last + 1 - first
        for publisher, durable in runs_again.items():
            for first, last, tick in durable:
                for peer, low, high in self._sent_again((pubend, publisher), first, last):
                    runs = ((tick + low - first, high + 1 - low),)
                    answers.append(PublishAnswer(peer, _receipt(publisher, pubend, low, high, runs)))
        for request in requests:
            self._answered(request)
        return answers

    def refused(self, token: int, error: UsageError) -> list[PublishAnswer[Peer]]:
        """Rows were not stored: whoever published them hears why, and nothing that came later is stored."""
        answers: list[PublishAnswer[Peer]] = []
        for request in self._under_way.pop(token):
            self._publishers[request.pubend].failed(request.publisher, request.first)
            answers += self._refuse_all(request, error)
            answers += self._drop_fallen(request.pubend)
        return answers

    def _drop_fallen(self, pubend: PubendId) -> list[PublishAnswer[Peer]]:
        """Refuse what came after something that has failed since."""
        coming = self._coming.get(pubend)
        if not coming:
            return []
        answers: list[PublishAnswer[Peer]] = []
        accepted = self._publishers[pubend].accepted
        standing: deque[PendingPublish[Peer]] = deque()
        for request in coming:
            had = accepted(request.publisher)
            if request.last <= had:
                standing.append(request)
            else:
                self._coming_bytes -= request.nbytes
                answers += self._refuse_all(request, HoleError(request.publisher, had))
        if standing:
            self._coming[pubend] = standing
        else:
            del self._coming[pubend]
        return answers

    # ---- refusals ------------------------------------------------------------------------------------

    def _refuse_all(self, request: PendingPublish[Peer], error: UsageError) -> list[PublishAnswer[Peer]]:
        again = self._sent_again(request.whose, request.first, request.last)
        asked = [(request.peer, request.first, request.last), *again]
        self._answered(request)
        return [self._refusal(peer, request.publisher, low, high, error) for peer, low, high in asked]

    def _refusal(
        self, peer: Peer, publisher: str, first: int, last: int, error: UsageError | PeerError
    ) -> PublishAnswer[Peer]:
        # How many rows damaged data has is only a claim.
        self.events_refused += 1 if isinstance(error, PeerError) else last + 1 - first
        had = None
        if isinstance(error, HoleError):
            reached(HOLE_REFUSED)
            had = error.had
        refused = PublishRefused(
            publisher=publisher,
            first_catenation=first,
            last_catenation=last,
            code=error.code,
            message=error.message,
            retry=error.retry,
            had=had,
        )
        return PublishAnswer(peer, refused)

    def check(self) -> None:
        """Raise if an invariant is broken. Runs after every step in tests and simulation."""
        waiting = [each for requests in self._coming.values() for each in requests]
        assert self._coming_bytes == sum(each.nbytes for each in waiting), "bytes that wait were miscounted"
        assert all(each.rows is not None for each in waiting), "what waits was handed over"
        waiting += [each for requests in self._under_way.values() for each in requests]
        assert self._unanswered == Counter(each.whose for each in waiting), "requests were miscounted"
        assert self._again.keys() <= self._unanswered.keys(), "somebody waits for what is not on its way"


def pieces_of(rows: int, weights: Weights | None) -> list[tuple[int, int, int]]:
    """Where rows are cut so that none takes too long: start, stop and weight of each piece.

    >>> pieces_of(100_000, None)
    [(0, 65536, 0), (65536, 100000, 0)]
    >>> pieces_of(4, np.array([30_000, 30_000, 90_000, 10]))
    [(0, 2, 60000), (2, 3, 90000), (3, 4, 10)]
    """
    if weights is None:
        if rows <= TOGETHER_ROWS_MAX:
            return [(0, rows, 0)]
        starts = range(0, rows, TOGETHER_ROWS_MAX)
        return [(at, min(rows, at + TOGETHER_ROWS_MAX), 0) for at in starts]
    # How heavy all rows before each row are, and all of them.
    before = np.concatenate(([0], np.cumsum(weights + 1)))
    pieces: list[tuple[int, int, int]] = []
    start = 0
    while start < rows:
        fitting = int(before.searchsorted(before[start] + TOGETHER_ROWS_MAX, "right")) - 1
        stop = max(fitting, start + 1)
        pieces.append((start, stop, int(before[stop] - before[start]) - (stop - start)))
        start = stop
    return pieces


def _lengthen(runs: list[tuple[int, int, Tick]], first: int, last: int, tick: Tick) -> None:
    """Add events to runs with consecutive numbers and ticks: the first and last number, the first tick."""
    if runs:
        low, high, start = runs[-1]
        if first == high + 1 and tick == start + first - low:
            runs[-1] = low, last, start
            return
    runs.append((first, last, tick))


def _receipt(
    publisher: str, pubend: PubendId, first: int, last: int, runs: tuple[tuple[Tick, int], ...]
) -> PublishReceipt:
    return PublishReceipt(
        publisher=publisher, first_catenation=first, last_catenation=last, pubend=pubend, runs=runs
    )


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
