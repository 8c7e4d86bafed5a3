"""What is a subscriber to the deliveries of an edge, and what do those ask of their host?

Implements docs/protocol.md, section 15.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from gapless.content.rows import Positions
from gapless.model.ids import PubendId, SubscriptionId, TopicId
from gapless.model.ticks import Tick
from gapless.protocol.effects import Deliver
from gapless.protocol.events import Event

#: A subscription without a bound of its own.
UNBOUNDED = 2**62


class Outlet(Protocol):
    """What a host knows of the connection of a client."""

    @property
    def is_open(self) -> bool:
        """Whether anything sent has a chance to arrive."""

    @property
    def is_congested(self) -> bool:
        """Whether the client reads so slowly that much waits here."""

    @property
    def is_flooded(self) -> bool:
        """Whether so much waits that nothing more may be sent."""


class Parcel:
    """One delivery on its way to clients, and what the host has made of it: a row is encoded once."""

    __slots__ = ("delivery", "encoded")

    def __init__(self, delivery: Deliver) -> None:
        self.delivery = delivery
        #: For the host alone.
        self.encoded: object = None


class RowSet:
    """Some rows of a batch, in a bit for each row of it: less than a number for each of them."""

    __slots__ = ("_bits", "_count")

    def __init__(self, bits: npt.NDArray[np.uint8], count: int) -> None:
        self._bits = bits
        self._count = count

    @staticmethod
    def of(rows: Positions, count: int) -> RowSet:
        """These rows of so many."""
        chosen = np.zeros(count, dtype=np.bool_)
        chosen[rows] = True
        return RowSet(np.packbits(chosen), count)

    @property
    def nbytes(self) -> int:
        """The memory that it takes."""
        return self._bits.nbytes

    def positions(self) -> Positions:
        """The rows, which ascend."""
        return np.flatnonzero(np.unpackbits(self._bits, count=self._count))

    def without(self, rows: Positions) -> RowSet:
        """The other rows."""
        chosen = np.unpackbits(self._bits, count=self._count)
        chosen[rows] = 0
        return RowSet(np.packbits(chosen), self._count)


@dataclass(slots=True)
class Held:
    """One delivery to a laggard."""

    serial: int
    #: Per pubend one past the last tick.
    stops: Mapping[PubendId, Tick]
    #: What to send of it; None when all of it is sent, or need not be any more.
    unsent: tuple[Parcel, RowSet] | None


@dataclass(slots=True, eq=False)
class Reader:
    """Who gets the rows of one slot."""

    subscription: SubscriptionId
    topic: TopicId
    #: The number by which its client knows the subscription.
    number: int
    slot: int
    guaranteed: bool
    #: None when the client is gone and the subscription is kept for it.
    outlet: Outlet | None
    #: The pubends of each ledger that it is in: all at once in total order, one at a time otherwise.
    groups: tuple[tuple[PubendId, ...], ...]
    #: How many more rows it may be sent.
    credit: int = UNBOUNDED
    #: Whether its client is told its horizon, because it may come back at another edge.
    roams: bool = False
    #: As a laggard: what was handed to it and not acknowledged, by ledger, in order.
    catching: dict[tuple[PubendId, ...], deque[Held]] = field(default_factory=dict)
    #: Those of them that were not sent, or not wholly, for want of credit. Few, and an empty list is small.
    unsent: list[Held] = field(default_factory=list)
    #: What it is to be told of its horizon, per pubend. It was sent everything below before that was found.
    horizon: dict[PubendId, Tick] = field(default_factory=dict)
    #: Per pubend the first tick that was handed out live and could not be sent: it comes again.
    missed: dict[PubendId, Tick] = field(default_factory=dict)
    #: More is to be asked for, when what was sent has left.
    asking: bool = False
    #: It is going to be reported slow, and gets nothing until then.
    slowing: bool = False
    #: How often it is being reported slow: what was handed out before the broker knows is not for it.
    leaving: int = 0
    #: Whether it was last reported to be away.
    away: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TellBroker:
    """Feed an event to the broker. When it names a reader, `Deliveries.told` is called after that step."""

    event: Event
    reader: Reader | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRow:
    """Send one row to each of many readers, each by itself. Must not be repeated."""

    parcel: Parcel
    to: list[tuple[Reader, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRows:
    """Send rows, which ascend, to one reader. Must not be repeated."""

    parcel: Parcel
    reader: Reader
    rows: Positions


@dataclass(frozen=True, slots=True, kw_only=True)
class SendHorizon:
    """Tell a client that it has everything below these ticks. Repeating it is harmless."""

    reader: Reader
    before: Mapping[PubendId, Tick]


@dataclass(frozen=True, slots=True, kw_only=True)
class LookLater:
    """Call `Deliveries.look` in a moment. Asked for once until then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkLater:
    """Call `Deliveries.work` until there is none, a little in each turn. A repeat is harmless."""


DeliveryEffect: TypeAlias = TellBroker | SendRow | SendRows | SendHorizon | LookLater | WorkLater
