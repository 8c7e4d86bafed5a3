"""What do a client and its node say to each other?

Publishing is exactly once: a publisher numbers its events with *catenation numbers* and keeps them until a
receipt names them; it may send them again at any time, here or elsewhere, and an event that is already stored
is answered with another receipt and not stored again.

Delivery is exactly once: an event is named by (pubend, tick), and in the order of a subscription its ticks
ascend per pubend. A client that comes back says from which tick on it lacks events.

Requests have numbers that the client chooses; every request is answered by one message with its number.

Implements docs/wire.md, section 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Meta

from gapless.content.language import WRITTEN_CHARACTERS_MAX
from gapless.content.rows import Positions
from gapless.errors import PeerError
from gapless.model.batch import EventBatch
from gapless.model.bounds import (
    NAME_CHARACTERS_MAX,
    ROWS_MAX,
    ColumnTexts,
    Counter,
    CounterOrNone,
    CreditRows,
    ErrorCode,
    LogNames,
    Name,
    Number,
    PubendName,
    RowCount,
    Text,
    TickNumber,
    TickPositions,
    TopicName,
)
from gapless.model.ids import BrokerId, PubendId, TopicId
from gapless.model.packed import PackedRows
from gapless.model.schema import Schema
from gapless.model.ticks import TICK_MIN, Tick, TickArray
from gapless.protocol.events import Order

#: Where a subscription begins: with the next events, with everything that is kept, at the stored position of
#: its name (E142 if the name does not exist), at one tick for all pubends, or at a tick for each pubend that
#: the client remembers; other pubends begin now.
Start: TypeAlias = Literal["now", "earliest", "stored"] | TickNumber | TickPositions
#: `holding` is for a name whose client reads in bulk: nothing is delivered, and unacknowledged events are
#: kept.
Mode: TypeAlias = Literal["guaranteed", "best-effort", "holding"]

#: How long after first sending it a client may resend an event: later, a node may have forgotten the
#: publisher, and would store the event twice.
RESEND_HOURS_MAX = 24
#: Maximum length of a status report.
REPORT_CHARACTERS_MAX = 8 * 2**20

ConditionText = Annotated[str, Meta(max_length=WRITTEN_CHARACTERS_MAX)]


class SessionMessage(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """A message that travels as the array of its fields, in this order. New fields come last, with a default.

    The bounds of the fields are checked when a message is decoded.
    """


# ---- from the client ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """Rows to store. Answered by one or more receipts or refusals that together name them all."""

    topic: TopicId
    #: The pubend that steers the publisher; None lets the node choose.
    pubend: PubendId | None = None
    publisher: str
    #: The catenation number of the first row; the others follow.
    first_catenation: int
    #: `codec.schema_fingerprint` of the schema that the rows were made for.
    schema: int
    #: As they came. None when they cannot be read: the topic has another schema, there is no such topic, or
    #: they are damaged.
    rows: pa.RecordBatch | PackedRows | None
    #: The publisher gave up events, up to this number, that were refused for the time being.
    given_up: int | None = None
    #: The number before the first: the last below it that the publisher counts on, stored or still to come.
    #: What is between the two will not come. -1 when it counts on nothing; None from clients that do not say.
    before: int | None = None
    #: Whether the client generated the publisher's name, and will not use it again once it has ended.
    is_temporary: bool = False
    #: The bytes that the rows were read from, when they can be passed on; see `ColumnsFormat.decode_kept`.
    encoded: memoryview | None = field(default=None, compare=False)
    #: How many bytes the rows came in: no row has more.
    nbytes: int = field(default=0, compare=False)
    #: How many rows they claim to be, when they cannot be read.
    claimed_rows: int = field(default=1, compare=False)
    #: What is wrong with them, when they are damaged.
    damage: PeerError | None = field(default=None, compare=False)

    @property
    def last_catenation(self) -> int:
        """The catenation number of the last row."""
        rows = self.claimed_rows if self.rows is None else self.rows.num_rows
        return self.first_catenation + rows - 1


class Subscribe(SessionMessage, frozen=True, kw_only=True):
    """Answered by one Confirmed for each pubend of the topic, or by a RequestRefused."""

    request: Number
    topic: TopicName
    #: A condition in SQL or XPath; empty for every event.
    where: ConditionText = ""
    #: A subscription with a name is durable: what it has not acknowledged is kept for it.
    name: Name | None = None
    order: Order = Order.PUBLISHER
    start: Start = "now"
    mode: Mode = "guaranteed"
    #: How many rows may be delivered before the client must grant more; None for as many as it reads.
    credit_rows: CreditRows | None = None
    #: Whether the client may come back at another node, and so wants to know its horizon.
    roams: bool = False
    #: The logs that the positions of `start` are in, as far as the client knows them.
    logs: LogNames = msgspec.field(default_factory=dict)


class ChangeFilter(SessionMessage, frozen=True, kw_only=True):
    """Answered like a Subscribe: each Confirmed names the tick from which the new condition applies."""

    request: Number
    subscription: Number
    where: ConditionText


class Unsubscribe(SessionMessage, frozen=True, kw_only=True):
    """Answered by a Done, after which nothing comes for the subscription."""

    request: Number
    subscription: Number
    #: Whether a durable subscription is to be forgotten, and not only left for now.
    forget: bool = False


class Credit(SessionMessage, frozen=True, kw_only=True):
    """This many more rows may be delivered. Not answered."""

    subscription: Number
    rows: CreditRows


class Acknowledge(SessionMessage, frozen=True, kw_only=True):
    """Per pubend, the tick below which the subscription no longer needs anything. Not answered."""

    subscription: Number
    positions: TickPositions


class ListTopics(SessionMessage, frozen=True, kw_only=True):
    """Answered by Topics."""

    request: Number
    #: Whether the client wants to read events in bulk: the node opens the port for it, and says where it is.
    bulk: bool = False


class CreateTopic(SessionMessage, frozen=True, kw_only=True):
    """Answered by Done; creating the same topic again is not an error."""

    request: Number
    topic: TopicName
    #: As in a network description: `{"price": "float", "note": "string?"}`.
    columns: ColumnTexts
    #: How long events that nobody needs any more are kept: `7d`, `10GB`, `forever`; empty for not at all.
    retention: Text = ""


class AskStatus(SessionMessage, frozen=True, kw_only=True):
    """Answered by a StatusReport: of the node, or of one event and one subscription, if one is named."""

    request: Number
    event: tuple[PubendName, TickNumber] | None = None
    #: By the name that its client gave it, or as a status lists it.
    subscription: Annotated[str, Meta(min_length=1, max_length=2 * NAME_CHARACTERS_MAX)] | None = None


class ReleasePublisher(SessionMessage, frozen=True, kw_only=True):
    """The identity will belong to the next principal that publishes under it. Answered by Done."""

    request: Number
    publisher: Name


ClientMessage: TypeAlias = (
    Publish
    | Subscribe
    | ChangeFilter
    | Unsubscribe
    | Credit
    | Acknowledge
    | ListTopics
    | CreateTopic
    | AskStatus
    | ReleasePublisher
)


# ---- from the node -----------------------------------------------------------------------------------


class PublishReceipt(SessionMessage, frozen=True, kw_only=True):
    """The events with these catenation numbers are durable, and will be delivered."""

    publisher: Name
    first_catenation: Counter
    last_catenation: Counter
    pubend: PubendName
    #: Their ticks in order, as (first, how many follow each other); none when they are no longer known.
    runs: Annotated[tuple[tuple[TickNumber, RowCount], ...], Meta(max_length=ROWS_MAX)]

    def ticks(self) -> TickArray:
        """The tick of each event, in the order of their catenation numbers.

        >>> names = {"publisher": "me", "first_catenation": 7, "last_catenation": 9, "pubend": PubendId("p")}
        >>> receipt = PublishReceipt(**names, runs=((5, 2), (9, 1)))
        >>> receipt.ticks().tolist()
        [5, 6, 9]
        """
        parts = [np.arange(first, first + count, dtype=np.int64) for first, count in self.runs]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)


class PublishRefused(SessionMessage, frozen=True, kw_only=True):
    """The events with these catenation numbers were not stored."""

    publisher: Name
    first_catenation: Counter
    last_catenation: Counter
    code: ErrorCode
    message: Text
    #: Whether a retry may help.
    retry: bool
    #: When events that the publisher counts on are missing: the last number that is stored, -1 for none.
    had: CounterOrNone | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """From `start` on, the subscription gets every matching event of `pubend`, once and in order."""

    request: int
    #: The number that names the subscription from now on.
    subscription: int
    #: The number that names the pubend in deliveries, and how many of the topic's are to be confirmed.
    source: int
    pubends: int
    pubend: PubendId
    schema: Schema
    start: Tick
    #: Of a named subscription: the ticks from here to `start` were lost, and may have held events for it.
    lost_from: Tick | None = None
    #: The log of the pubend, and the tick at which it began: one that took the place of another that a client
    #: has read from is a gap. Comes again, under the same request, when the pubend has begun another log.
    log: str = ""
    began: Tick = TICK_MIN
    #: The pubends that have not confirmed it yet; the others are served meanwhile.
    awaited: tuple[PubendId, ...] = ()


class Horizon(SessionMessage, frozen=True, kw_only=True):
    """The subscription was sent everything below these ticks. Sent to those who roam; they acknowledge it."""

    subscription: Number
    before: TickPositions


class EventRow(NamedTuple):
    """One event: its name, and a value for each column of its topic."""

    pubend: PubendId
    tick: Tick
    values: tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsDelivery:
    """A few events, each written once, and who gets which, in this order."""

    topic: TopicId
    events: tuple[EventRow, ...]
    #: Pairs of a subscription and the place of an event.
    to: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsDelivery:
    """Many events as columns, and which rows of them each subscription gets, in this order."""

    topic: TopicId
    batch: EventBatch
    pubends: tuple[PubendId, ...]
    #: Row r of `batch` is an event of `pubends[source[r]]`; None when there is only one pubend.
    source: Positions | None
    #: Per subscription the rows that it gets; None for all of them.
    to: Mapping[int, Positions | None]


class Done(SessionMessage, frozen=True, kw_only=True):
    """The request succeeded."""

    request: Number


class RequestRefused(SessionMessage, frozen=True, kw_only=True):
    """The request failed, and changed nothing."""

    request: Number
    code: ErrorCode
    message: Text
    retry: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """All topics that the client may see, with the pubends of each, and where things are."""

    request: int
    topics: tuple[tuple[Schema, tuple[PubendId, ...]], ...]
    #: The broker of each pubend.
    places: Mapping[PubendId, BrokerId] = field(default_factory=dict)
    #: Where clients reach the brokers that host pubends, or may.
    addresses: Mapping[BrokerId, str] = field(default_factory=dict)
    #: The brokers that take new topics.
    repositories: tuple[BrokerId, ...] = ()
    #: Where the events of this node are read in bulk (`gapless.wire.bulk`); empty unless that was asked for.
    bulk: str = ""
    #: Of each pubend that lives at this node, one past the last durable event.
    ends: Mapping[PubendId, Tick] = field(default_factory=dict)


class StatusReport(SessionMessage, frozen=True, kw_only=True):
    """The node's status, as JSON."""

    request: Number
    report: Annotated[str, Meta(max_length=REPORT_CHARACTERS_MAX)]


NodeMessage: TypeAlias = (
    PublishReceipt
    | PublishRefused
    | Confirmed
    | Horizon
    | RowsDelivery
    | ColumnsDelivery
    | Done
    | RequestRefused
    | Topics
    | StatusReport
)
