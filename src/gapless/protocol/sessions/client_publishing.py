"""How does a publisher get each of its events stored once? Numbered, kept, sent again: the client's half.

Every event has a *catenation number*, and a node stores each number of a publisher at most once. So what has
no receipt can be sent again, on this connection or the next, under the same number. Every transmission names
the number before its first, the last one this publisher relies on, so that nothing is stored after a hole.

Order is kept within a pubend, and so is the memory of what was stored. So a publisher stays with its pubend
once it has sent an event, wherever that lives by then, and waits while it is down.

The host gives events in the form it sends them (`send`), transmits what it is told, and reports connections,
answers and the ends of pauses. What it has to do is returned.

Implements docs/protocol.md, section 13.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from gapless.errors import GaplessError, PeerError, UsageError
from gapless.model.ids import PubendId
from gapless.protocol.marks import mark, reached
from gapless.protocol.sessions.messages import RESEND_HOURS_MAX, PublishReceipt, PublishRefused

#: A small send waits while another is in flight, because fewer and larger ones are faster. For each of these
#: milliseconds that the quickest receipt took, one more may be in flight: a distant node is not a busy one.
TRIP_MS = 5
#: Nothing waits while only this many events are in flight, together with those to be sent: waiting would
#: double the latency of single events, and a node that is busy gets larger sends soon enough.
FEW_ROWS_MAX = 4
#: Maximum number of small sends in flight.
SENDS_MAX = 8
#: A send with at least this many events is not small.
SEND_ROWS_WORTH = 512
#: The refusal of a node that does not host the pubend.
MOVED = "E143"
#: No event is sent again later than this after it was first sent.
RESEND_MS_MAX = RESEND_HOURS_MAX * 3_600_000

RESENT = mark("resent", "a publisher sent events again on a new connection")
HOLE_FILLED = mark("hole_filled", "a publisher was told what is missing, and sent it again")
GIVEN_UP = mark("given_up", "a publisher gave up events that were refused too often")
FOLLOWED_PUBEND = mark("followed_pubend", "a publisher heard that its pubend is elsewhere, and followed")


class Outgoing:
    """Events that are sent together, and which of them have no outcome. A *place* counts them from 0."""

    __slots__ = ("again", "attempts", "count", "first", "nbytes", "open", "sent_ms")

    def __init__(self, count: int = 0, nbytes: int = 0) -> None:
        #: Number of events and bytes, from when it is sent on.
        self.count = count
        self.nbytes = nbytes
        #: The catenation number of place 0, once there is one, and when it was first sent.
        self.first = -1
        self.sent_ms = 0
        #: Ranges of places without an outcome, ascending.
        self.open: list[tuple[int, int]] = [(0, count)] if count else []
        #: Whether it must be sent again, and how many times a node has asked for that.
        self.again = False
        self.attempts = 0

    @property
    def last_open(self) -> int:
        """The number of the last event without an outcome; there must be one."""
        return self.first + self.open[-1][1] - 1

    def close(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The places `start..stop` have an outcome. Returns those that had none before."""
        left: list[tuple[int, int]] = []
        closed: list[tuple[int, int]] = []
        for low, high in self.open:
            begin, end = max(low, start), min(high, stop)
            if begin >= end:
                left.append((low, high))
                continue
            closed.append((begin, end))
            left += [(a, b) for a, b in ((low, begin), (end, high)) if a < b]
        self.open = left
        return closed


Sent = TypeVar("Sent", bound=Outgoing)


class Transmission(NamedTuple, Generic[Sent]):
    """Send the places `start..stop`; `before` is the number the publisher relies on."""

    outgoing: Sent
    start: int
    stop: int
    before: int


class Settle(NamedTuple, Generic[Sent]):
    """The places `start..stop` have this outcome: a receipt, or an error."""

    outgoing: Sent
    start: int
    stop: int
    receipt: PublishReceipt | None
    error: GaplessError | None


class StartPause(NamedTuple):
    """Call `pause_over` after the backoff for so many attempts. `linked` ends a pause early."""

    attempts: int


class FindPubend(NamedTuple):
    """Find a node that hosts `ClientPublishing.pubend`; call `found` or `not_found`."""

    #: Whether what was known of the places of pubends has turned out to be wrong.
    is_stale: bool


class GiveUpQueued(NamedTuple):
    """What is queued and not sent yet cannot be sent: it fails with this error."""

    error: GaplessError


PublishingEffect: TypeAlias = Settle[Sent] | StartPause | FindPubend | GiveUpQueued


@dataclass(slots=True)
class ClientPublishing(Generic[Sent]):
    """What one publisher has numbered and has no receipt for."""

    identity: str
    #: The pubend that the program asked for; None lets the publisher choose.
    wish: PubendId | None = None
    #: The number of the first event.
    first: int = 0
    #: How often one send is retried, and how often in a row a pubend may be elsewhere.
    retries_max: int = 5
    #: How long a pubend may be looked for; None for ever.
    patience_ms: int | None = None
    #: The pubend that it got: never another once an event was sent.
    pubend: PubendId | None = field(init=False)
    #: Whether a pubend was chosen, or it was left to the node.
    is_chosen: bool = field(default=False, init=False)
    #: The number of the next event.
    next: int = field(init=False)
    #: What is in flight, in the order of its numbers.
    sent: deque[Sent] = field(default_factory=deque, init=False)
    #: Set while a node has asked us to retry later, or no node hosts the pubend for now.
    is_paused: bool = field(default=False, init=False)
    #: Set while the host looks for the pubend.
    is_searching: bool = field(default=False, init=False)
    #: Whether to look again when the pause is over, since when that has gone on, and how often it failed.
    _looks_again: bool = field(default=False, init=False)
    _searching_since_ms: int | None = field(default=None, init=False)
    _searches: int = field(default=0, init=False)
    #: How often a node has said since the last receipt that the pubend is elsewhere.
    _moves: int = field(default=0, init=False)
    #: The number of the last event that was given up after refusals; -1 when none was.
    _given_up: int = field(default=-1, init=False)
    #: Whether some sends have to be sent again.
    _comes_again: bool = field(default=False, init=False)
    #: The highest number known to be stored, and the pubend that has it.
    _had: tuple[PubendId | None, int] = field(default=(None, -1), init=False)
    #: The quickest receipt of this connection, and how many small sends may therefore be in flight.
    _trip_ms: int | None = field(default=None, init=False)
    _sends_max: int = field(default=1, init=False)

    def __post_init__(self) -> None:
        self.pubend = self.wish
        self.next = self.first

    # ---- sending -------------------------------------------------------------------------------------

    @property
    def is_sending(self) -> bool:
        """Whether anything may be sent now."""
        return not (self.is_paused or self.is_searching)

    def has_window(self, rows: int) -> bool:
        """Whether so many events may be sent now, with others in flight."""
        sends = len(self.sent)
        if sends < self._sends_max or rows >= SEND_ROWS_WORTH:
            return True
        return sends < SENDS_MAX and rows + sum(each.count for each in self.sent) <= FEW_ROWS_MAX

    def resends(self, bytes_max: int) -> tuple[list[Transmission[Sent]], bool]:
        """What must be sent again, about so many bytes, and whether there is more. Comes before all else."""
        out: list[Transmission[Sent]] = []
        if not self._comes_again:
            return out, False
        size = 0
        before = self._node_had()
        for outgoing in self.sent:
            if outgoing.again:
                outgoing.again = False
                for start, stop in outgoing.open:
                    first = outgoing.first + start
                    out.append(Transmission(outgoing, start, stop, min(before, first - 1)))
                    before = outgoing.first + stop - 1
                size += outgoing.nbytes
                if size > bytes_max:
                    return out, True
            if outgoing.open:
                before = outgoing.last_open
        self._comes_again = False
        return out, False

    def send(self, outgoing: Sent, now_ms: int) -> Transmission[Sent]:
        """Number new events and send them. Nothing may be left to send again."""
        assert not self._comes_again, f"{self.identity} sends {self.next} before what comes again"
        assert outgoing.count, "there are no events"
        before = next((each.last_open for each in reversed(self.sent) if each.open), self._node_had())
        outgoing.first, self.next = self.next, self.next + outgoing.count
        outgoing.sent_ms = now_ms
        self.sent.append(outgoing)
        return Transmission(outgoing, 0, outgoing.count, min(before, outgoing.first - 1))

    def given_up(self) -> int | None:
        """The number up to which events without a receipt are not sent again; None if none were given up."""
        if self._given_up < 0:
            return None
        # Older events that are still to be sent must not be covered: they would count as known.
        oldest = self.sent[0] if self.sent else None
        below = self.next if oldest is None or not oldest.open else oldest.first + oldest.open[0][0]
        told = min(self._given_up, below - 1)
        return told if told >= 0 else None

    def _node_had(self) -> int:
        """The highest number that the pubend is known to have; -1 if none is."""
        pubend, number = self._had
        return number if self.pubend is None or self.pubend == pubend else -1

    # ---- connections ---------------------------------------------------------------------------------

    def linked(self, now_ms: int) -> list[PublishingEffect[Sent]]:
        """There is a new connection: everything without a receipt is sent again, to the same pubend."""
        self._trip_ms, self._sends_max = None, 1
        self.is_paused = self._looks_again = False
        effects = self._give_up_old(now_ms)
        for outgoing in self.sent:
            reached(RESENT)
            outgoing.again = self._comes_again = True
        return effects

    def unlinked(self) -> None:
        """The connection is lost; everything is kept. Any pubend will do if nothing was ever sent."""
        if self.next == self.first:
            self.pubend, self.is_chosen = self.wish, False

    def _give_up_old(self, now_ms: int) -> list[PublishingEffect[Sent]]:
        """Fail what was first sent too long ago: the node may have forgotten that it stored it."""
        effects: list[PublishingEffect[Sent]] = []
        while self.sent and self.sent[0].sent_ms < now_ms - RESEND_MS_MAX:
            first, last = self.sent[0].first, self.sent[0].first + self.sent[0].count - 1
            error = UsageError(
                "E102",
                f"events {first} to {last} of publisher '{self.identity}' were sent {RESEND_HOURS_MAX} hours "
                "ago and have no receipt: check whether they are stored before you publish them again",
            )
            effects += self._settle(first, last, None, error, now_ms)
        return effects

    # ---- answers -------------------------------------------------------------------------------------

    def receipt(self, receipt: PublishReceipt, now_ms: int) -> list[PublishingEffect[Sent]]:
        """Events are durable. Raises PeerError if they were never sent."""
        self._moves = 0
        self.pubend = self.pubend or receipt.pubend
        if self._had[0] != receipt.pubend or receipt.last_catenation > self._had[1]:
            self._had = (receipt.pubend, receipt.last_catenation)
        return list(self._settle(receipt.first_catenation, receipt.last_catenation, receipt, None, now_ms))

    def refused(
        self, refused: PublishRefused, error: GaplessError, now_ms: int
    ) -> list[PublishingEffect[Sent]]:
        """Events were not stored. Retry those that may be stored later, a few times."""
        first, last = refused.first_catenation, refused.last_catenation
        if refused.code == MOVED and self._moves < self.retries_max:
            # The node knows better than we do where the topic lives.
            reached(FOLLOWED_PUBEND)
            self._moves += 1
            for outgoing in self.sent:
                outgoing.again = self._comes_again = True
            return self.search(is_stale=True)
        if not refused.retry:
            return list(self._settle(first, last, None, error, now_ms))
        if refused.had is not None:
            # It lacks an event we rely on: send everything it lacks again, in order.
            reached(HOLE_FILLED)
            self._had = (self.pubend, refused.had)
        effects: list[PublishingEffect[Sent]] = []
        attempts = 0
        for outgoing in list(self.sent):
            is_meant = outgoing.first <= last and first < outgoing.first + outgoing.count
            if not is_meant or not outgoing.open:
                continue
            outgoing.attempts += 1
            if outgoing.attempts > self.retries_max:
                reached(GIVEN_UP)
                self._given_up = max(last, self._given_up)
                effects += self._settle(first, last, None, error, now_ms)
            else:
                outgoing.again = self._comes_again = True
                attempts = max(attempts, outgoing.attempts)
        if attempts and not self.is_paused:
            self.is_paused = True
            effects.append(StartPause(attempts))
        return effects

    def pause_over(self) -> list[PublishingEffect[Sent]]:
        """The pause has ended: go on, or look for the pubend again."""
        self.is_paused = False
        return self.search() if self._looks_again else []

    def _settle(
        self, first: int, last: int, receipt: PublishReceipt | None, error: GaplessError | None, now_ms: int
    ) -> Iterator[Settle[Sent]]:
        if last >= self.next:
            raise PeerError(
                "E240",
                f"the node answers event {last} of publisher '{self.identity}', which was never sent",
            )
        settled: list[Settle[Sent]] = []
        for outgoing in self.sent:
            low = outgoing.first
            if low > last:
                break
            for start, stop in outgoing.close(first - low, last + 1 - low):
                settled.append(Settle(outgoing, start, stop, receipt, error))
        while self.sent and not self.sent[0].open:
            trip_ms = max(1, now_ms - self.sent.popleft().sent_ms)
            if self._trip_ms is None or trip_ms < self._trip_ms:
                self._trip_ms = trip_ms
                self._sends_max = min(1 + trip_ms // TRIP_MS, SENDS_MAX)
        return iter(settled)

    # ---- where the events go -------------------------------------------------------------------------

    def choose(self, pubend: PubendId | None) -> None:
        """Publish to this pubend, or to the one that the node chooses."""
        self.pubend, self.is_chosen = pubend, True

    def search(self, *, is_stale: bool = False) -> list[PublishingEffect[Sent]]:
        """The pubend is not at this node: look for it."""
        self._looks_again = False
        if self.is_searching:
            return []
        self.is_searching = True
        return [FindPubend(is_stale)]

    def found(self, pubend: PubendId | None) -> None:
        """A node with this pubend was found. The host calls `linked` when it is connected to it."""
        self.is_searching = False
        self._searching_since_ms, self._searches = None, 0
        self.choose(pubend)

    def not_found(self, error: GaplessError, now_ms: int) -> list[PublishingEffect[Sent]]:
        """Look again after a pause, as the pubend's node may come back; or give up."""
        self.is_searching = False
        since_ms = self._searching_since_ms = (
            now_ms if self._searching_since_ms is None else self._searching_since_ms
        )
        is_over = self.patience_ms is not None and now_ms - since_ms > self.patience_ms
        if is_over or not error.retry:
            self._searching_since_ms, self._searches = None, 0
            return self.fail(error)
        self._searches += 1
        self._looks_again = True
        if self.is_paused:
            return []
        self.is_paused = True
        return [StartPause(self._searches)]

    def fail(self, error: GaplessError) -> list[PublishingEffect[Sent]]:
        """Nothing can be sent any more, for now or for good: everything in flight and queued fails."""
        effects: list[PublishingEffect[Sent]] = []
        for outgoing in self.sent:
            effects += [
                Settle(outgoing, start, stop, None, error)
                for start, stop in outgoing.close(0, outgoing.count)
            ]
        self.sent.clear()
        self._comes_again = False
        effects.append(GiveUpQueued(error))
        return effects

    def check(self) -> None:
        """Raise if an invariant is broken. Runs after every step in tests and simulation."""
        stop = self.first
        for outgoing in self.sent:
            assert outgoing.first >= stop, f"{self.identity} has {outgoing.first} after {stop - 1}"
            stop = outgoing.first + outgoing.count
        assert stop <= self.next, f"{self.identity} has sent {stop - 1} before numbering it"
        again = any(outgoing.again for outgoing in self.sent)
        assert self._comes_again or not again, f"{self.identity} forgets to send again"
