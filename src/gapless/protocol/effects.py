"""What can a broker ask of its host? Everything that `Broker.step` may return.

The effects of one step have no order among themselves: what must wait for another thing waits for
the event that reports it.

Implements docs/protocol.md, section 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from gapless.content.condition import Condition
from gapless.content.rows import Positions
from gapless.model.batch import EventBatch
from gapless.model.epochs import Epoch
from gapless.model.ids import BrokerId, PubendId, SubscriptionId
from gapless.model.ticks import TICK_MIN, Tick, TickRange
from gapless.protocol.creations import Creation
from gapless.protocol.messages import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """Log record: events with their ticks, and who published them."""

    batch: EventBatch
    #: The note of the request that they came with.
    note: bytes = b""
    #: How many more rows would take as long; for the host, and not stored.
    weight: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveRecord:
    """Log record: no tick below `before` will be given to a new event after a restart."""

    before: Tick


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRecord:
    """Log record: `edge` was promised everything from `start` on for its subscriptions of `epoch`."""

    edge: BrokerId
    epoch: Epoch
    #: What the edge asked for: None for "from now on".
    wanted: Tick | None
    start: Tick


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseRecord:
    """Log record: nobody needs the events below `before` any more, and nobody will be promised them."""

    before: Tick


Record: TypeAlias = BatchRecord | ReserveRecord | StartRecord | ReleaseRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessage:
    """Send to a neighbour. It may be lost, and repeating it is harmless."""

    to: BrokerId
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRecord:
    """Append to the pubend's log and flush; answered by `RecordDurable` or `RecordFailed`.

    Tokens ascend. Records become durable in the order of their tokens. Must not be repeated.
    """

    pubend: PubendId
    token: int
    record: Record


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRecords:
    """Read the rows of `ticks` from the log, the lowest `rows_max` of them; answered by `RecordsRead`."""

    pubend: PubendId
    ticks: TickRange
    rows_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimLog:
    """A ReleaseRecord is durable: the log may drop the events below `before`. Repeating is harmless."""

    pubend: PubendId
    before: Tick


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptPublish:
    """The rows of that request are durable and have these ticks: they will be delivered."""

    pubend: PubendId
    token: int
    ticks: range


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusePublish:
    """The rows of that request were not published and never will be."""

    pubend: PubendId
    token: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmSubscription:
    """From `start` on, the subscription gets every matching event of `pubend`, once and in order.

    Comes again for a subscription that goes on in another log of the pubend, or that has lost more of the old
    one than was known.
    """

    subscription: SubscriptionId
    #: The small number that names the subscription in deliveries; used again only after it has ended.
    slot: int
    pubend: PubendId
    start: Tick
    #: The other lives of this edge that the pubend has granted a start to, newest first; not all, if many.
    lives: tuple[int, ...] = ()
    #: Of the events below, the pubend has lost some before everybody had acked them.
    lost_before: Tick = TICK_MIN
    #: The id of the pubend's log. A host that keeps the position of a subscription keeps it, too.
    log: str = ""
    #: The tick at which that log began.
    began: Tick = TICK_MIN
    #: Set when that log is not the one in which the subscription had its position: of the old log it gets
    #: nothing more from here on, and of the new one nothing below `start`. Its subscriber has to be told.
    lost_from: Tick | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmChange:
    """Of the events of `pubend` from `since` on, `condition` decides alone; before, what it replaces.

    The changes of one subscription are confirmed in the order in which they were asked for.
    """

    subscription: SubscriptionId
    pubend: PubendId
    condition: Condition
    since: Tick


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliver:
    """Hand rows to subscribers: row `rows[i]` of `batch` goes to slot `slots[i]`, in this order.

    Answered by `DeliveryTaken` once all of them have taken theirs. In total order one delivery
    may carry events of several pubends, ordered by tick and then pubend.
    """

    serial: int
    batch: EventBatch
    rows: Positions
    slots: Positions
    pubends: tuple[PubendId, ...]
    #: Row r of `batch` is an event of `pubends[source[r]]`; None when there is only one pubend.
    source: Positions | None = None
    #: Whether it is for one subscriber alone that is behind the others.
    laggard: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TellHorizon:
    """All subscribers of `pubend` were handed everything below `before`, except those that are lagging.

    Those that roam are to be told, behind what they were handed before. Answered by `RoamersReached` when
    they have said so. Repeating is harmless.
    """

    pubend: PubendId
    before: Tick
    lagging: frozenset[SubscriptionId]


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberTopics:
    """Write down that these topics were created; answered by `TopicsLearned`. Repeating is harmless."""

    creations: tuple[Creation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTimer:
    """Feed `TimerFired` at `at_ms`, or up to `spread_ms` later. Replaces the timer asked for before."""

    at_ms: int
    spread_ms: int = 0


Effect: TypeAlias = (
    SendMessage
    | AppendRecord
    | ReadRecords
    | TrimLog
    | AcceptPublish
    | RefusePublish
    | ConfirmSubscription
    | ConfirmChange
    | Deliver
    | TellHorizon
    | RememberTopics
    | StartTimer
)
