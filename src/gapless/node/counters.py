"""How often did what happen at this node? Numbers that only grow, and how fast they grow.

A counter is raised once per batch, message or flush, never once per event, so that counting costs nothing
that could be measured. The host raises them from the events and effects that pass through it; nothing in
the protocol knows that it is counted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from gapless.protocol.effects import (
    AcceptPublish,
    AppendRecord,
    BatchRecord,
    Deliver,
    Effect,
    SendMessage,
)
from gapless.protocol.events import Event, MessageReceived, PublishRequested, SubscriberSlow
from gapless.protocol.messages import AckMessage, KnowledgeMessage, Message, NackMessage, SidewaysMessage

#: The upper bounds of the histogram of flushes, in seconds.
FLUSH_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)

#: The messages between brokers that are counted, and the counters for each; the others are few.
_RECEIVED: dict[type[object], str] = {
    KnowledgeMessage: "knowledge_received",
    NackMessage: "nacks_received",
    AckMessage: "acks_received",
}
_SENT: dict[type[object], str] = {
    KnowledgeMessage: "knowledge_sent",
    NackMessage: "nacks_sent",
    AckMessage: "acks_sent",
}


@dataclass(slots=True)
class Counters:
    """What one node has counted since it started."""

    #: Steps of the broker.
    steps: int = 0
    #: Events that clients asked to store, those that became durable, and those that were refused.
    events_published: int = 0
    events_accepted: int = 0
    events_refused: int = 0
    #: Events that were met in a log or came from a neighbour, and are too large to be told.
    events_quarantined: int = 0
    #: Bytes of events that were handed to the logs.
    event_bytes: int = 0
    #: Deliveries, and the rows in them, one for each subscription that got it.
    deliveries: int = 0
    rows_delivered: int = 0
    #: How often a subscription was taken off the live path because it did not keep up.
    slow_reports: int = 0
    knowledge_sent: int = 0
    knowledge_received: int = 0
    nacks_sent: int = 0
    nacks_received: int = 0
    acks_sent: int = 0
    acks_received: int = 0
    #: Messages between brokers that were dropped because the neighbour did not read.
    messages_dropped: int = 0
    #: Clients that were welcomed, and connections that were cut off with an error code.
    clients_welcomed: int = 0
    connections_refused: int = 0
    flushes: int = 0
    flush_seconds: float = 0.0
    #: How many flushes took at most so long as the bound at the same place of FLUSH_SECONDS, and longer.
    flush_buckets: list[int] = field(default_factory=lambda: [0] * (len(FLUSH_SECONDS) + 1))
    #: How often a connection was refused with which code.
    refusals: Counter[str] = field(default_factory=Counter)

    def happened(self, event: Event) -> None:
        """An event reached the broker."""
        self.steps += 1
        if isinstance(event, MessageReceived):
            for message in (event.message, *event.also):
                self._message(message, _RECEIVED)
        elif isinstance(event, PublishRequested):
            self.events_published += event.rows.num_rows
        elif isinstance(event, SubscriberSlow):
            self.slow_reports += 1

    def asked(self, effect: Effect) -> None:
        """The broker asked for something."""
        if isinstance(effect, SendMessage):
            self._message(effect.message, _SENT)
        elif isinstance(effect, Deliver):
            self.deliveries += 1
            self.rows_delivered += len(effect.rows)
        elif isinstance(effect, AppendRecord):
            if isinstance(effect.record, BatchRecord):
                self.event_bytes += effect.record.batch.nbytes
        elif isinstance(effect, AcceptPublish):
            self.events_accepted += len(effect.ticks)

    def refused(self, code: str) -> None:
        """A connection was cut off with this code."""
        self.connections_refused += 1
        self.refusals[code] += 1

    def flushed(self, seconds: float) -> None:
        """A flush took so long."""
        self.flushes += 1
        self.flush_seconds += seconds
        self.flush_buckets[bisect_left(FLUSH_SECONDS, seconds)] += 1

    def flush_quantile(self, share: float) -> float:
        """How long that share of the flushes took at most, by the buckets; 0 when there was none.

        >>> counters = Counters()
        >>> for seconds in (0.0002, 0.0009, 0.0009, 0.7):
        ...     counters.flushed(seconds)
        >>> counters.flush_quantile(0.5), counters.flush_quantile(1.0)
        (0.001, 1.0)
        """
        below = 0
        for bound, count in zip((*FLUSH_SECONDS, FLUSH_SECONDS[-1]), self.flush_buckets, strict=True):
            below += count
            if count and below >= share * self.flushes:
                return bound
        return 0.0

    def totals(self) -> dict[str, int | float]:
        """All numbers by name."""
        return {name: getattr(self, name) for name in TOTALS}

    def _message(self, message: Message, names: dict[type[object], str]) -> None:
        if isinstance(message, SidewaysMessage):
            message = message.message
        name = names.get(message.__class__)
        if name is not None:
            setattr(self, name, getattr(self, name) + 1)


#: The names of all counters that are plain numbers, in order.
TOTALS = tuple(each.name for each in fields(Counters) if each.name not in ("flush_buckets", "refusals"))


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast the counters grew in the last second or so."""

    per_second: Mapping[str, float] = field(default_factory=dict)
    _at: float | None = None
    _before: Mapping[str, int | float] = field(default_factory=dict)

    def tick(self, counters: Counters, now: float) -> Rates:
        """The rates since the last time; `now` is a clock in seconds that never jumps.

        >>> counters = Counters()
        >>> rates = Rates().tick(counters, 10.0)
        >>> counters.steps += 50
        >>> rates.tick(counters, 12.0).per_second["steps"]
        25.0
        """
        totals = counters.totals()
        if self._at is None or now <= self._at:
            return Rates({}, now, totals)
        seconds = now - self._at
        rates = {name: round((value - self._before[name]) / seconds, 3) for name, value in totals.items()}
        return Rates(rates, now, totals)
