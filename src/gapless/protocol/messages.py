"""What do brokers say to each other? Every message that crosses a link.

Any message may be lost, repeated, delayed or overtaken. Knowledge and acknowledgements are joined in
a lattice, curiosity is repeated until it is answered, and advertisements are versioned, so none of
that does harm.

Implements docs/protocol.md, section 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import TypeAlias

from gapless.content.condition import Condition
from gapless.model.batch import EventBatch
from gapless.model.epochs import EPOCH_NONE, Epoch, Epochs
from gapless.model.ids import BrokerId, CellId, PubendId, TopicId
from gapless.model.logs import UNNAMED, LogLife
from gapless.model.stream import Run
from gapless.model.ticks import TICK_MIN, Tick, TickRange
from gapless.protocol.creations import MESSAGE_CREATIONS_MAX, Creation

#: Lives of an edge that a grant names; beyond, the oldest are left out.
LIVES_TOLD_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class KnowledgeMessage:
    """Downstream: the ticks of `runs` are known; those of `batch` are data, all others final."""

    pubend: PubendId
    runs: tuple[Run, ...]
    batch: EventBatch | None
    #: First-time knowledge goes to everybody who may need it, a retransmission only to the curious.
    first_time: bool
    #: No tick below this one is needed by anybody any more.
    final_before: Tick
    #: The log that has these ticks.
    log: LogLife = UNNAMED


@dataclass(frozen=True, slots=True, kw_only=True)
class AckMessage:
    """Upstream: the ticks up to each stop are not needed by the subscriptions of that stamp.

    The stops ascend; the first run begins with time itself, each other where the one before stops.
    """

    pubend: PubendId
    runs: tuple[tuple[Tick, Epochs], ...]
    #: The id of the log that has these ticks.
    log: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NackMessage:
    """Upstream: somebody below lacks `ticks` and asks for them."""

    pubend: PubendId
    ticks: TickRange


@dataclass(frozen=True, slots=True, kw_only=True)
class AckExpectedMessage:
    """Downstream: the pubend expected every tick below `before` to be acked by now."""

    pubend: PubendId
    before: Tick
    #: The log that the tick is in.
    log: LogLife = UNNAMED


#: What somebody wants of a topic.
Want: TypeAlias = tuple[TopicId, Condition]


def in_order(wants: Iterable[Want]) -> Set[Want]:
    """A set that keeps the order of its wants: what a step does must not depend on how Python hashes them."""
    return dict.fromkeys(wants).keys()


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvertisementMessage:
    """Towards a root: what the brokers and subscribers below `origin` want, as a change or as a whole."""

    #: The cell of the pubends that the advertisement travels to.
    root: CellId
    origin: BrokerId
    #: Counts the changes of `origin`, above all versions of its earlier incarnations.
    version: int
    #: The version that `added` and `removed` change; None when `added` is the whole set.
    base: int | None
    added: Set[Want]
    removed: Set[Want]
    #: The epoch of every edge at or below `origin` that the whole set speaks for.
    epochs: Epochs
    #: A large advertisement travels in parts: the number of this one, ...
    part: int = 0
    #: ... and how many conditions all parts add and remove; None when there is just this one.
    total: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvertisementAckMessage:
    """Answer to an advertisement: the version that is held now, None when a whole one is needed."""

    root: CellId
    origin: BrokerId
    version: int | None
    #: The version and the number of the part that this is the answer to, when others are missing.
    staged: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequestMessage:
    """Upstream: `edge` asks from which tick on its subscriptions of `epoch` are gapless."""

    pubend: PubendId
    edge: BrokerId
    epoch: Epoch
    #: The earliest tick that is wanted, None for "from now on".
    wanted: Tick | None
    #: Some of them had come up to `beyond` in the log of this id: a new log must go on above that.
    log: str = ""
    beyond: Tick = TICK_MIN


@dataclass(frozen=True, slots=True, kw_only=True)
class StartGrantMessage:
    """Downstream: nothing from `start` on that `edge` needs at `epoch` will be released unacked."""

    pubend: PubendId
    edge: BrokerId
    epoch: Epoch
    #: What the request wanted: the answer to one request is no answer to another.
    wanted: Tick | None
    start: Tick
    #: Every tick below is known to the pubend: from `start` up to here there is a past to catch up with.
    until: Tick
    #: The newest epoch of another life of the edge that asked here for a start; EPOCH_NONE for none.
    seen: Epoch = EPOCH_NONE
    #: Of the events below, some were lost before everybody had acked them.
    lost_before: Tick = TICK_MIN
    #: The log that made the promise.
    log: LogLife = UNNAMED
    #: The other lives of the edge that were granted a start here, newest first; at most `LIVES_TOLD_MAX`.
    lives: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogKnownMessage:
    """Upstream: what was said contradicts this log, which is known here up to the tick `known`."""

    pubend: PubendId
    log: LogLife
    known: Tick
    #: One past the last event that is known of it.
    events: Tick


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStatusMessage:
    """To every neighbour, now and then: which cells the sender has a working link to."""

    reaches: frozenset[CellId]
    #: The digest of the creations that the sender knows: a neighbour that knows others sends them.
    topics: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsMessage:
    """To every neighbour: these topics were created. A broker to which one is new passes it on."""

    creations: tuple[Creation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SidewaysMessage:
    """To a broker of the own cell: pass `message` on to a broker of `cell`, which I cannot reach."""

    cell: CellId
    message: CellMessage


CellMessage: TypeAlias = (
    KnowledgeMessage
    | AckMessage
    | NackMessage
    | AckExpectedMessage
    | StartRequestMessage
    | StartGrantMessage
    | LogKnownMessage
)
Message: TypeAlias = (
    CellMessage
    | AdvertisementMessage
    | AdvertisementAckMessage
    | LinkStatusMessage
    | TopicsMessage
    | SidewaysMessage
)


def topics_messages(creations: Iterable[Creation]) -> list[TopicsMessage]:
    """Creations in messages of the size that is allowed, the oldest first."""
    ordered = sorted(creations, key=lambda creation: creation.age)
    return [
        TopicsMessage(creations=tuple(ordered[start : start + MESSAGE_CREATIONS_MAX]))
        for start in range(0, len(ordered), MESSAGE_CREATIONS_MAX)
    ]
