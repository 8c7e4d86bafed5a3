"""What did each subscriber of the demo get? Counted from what was published and what arrived, by outsiders.

Nothing here asks a broker. Events are named by their publisher and the number that it gave them, both of
which travel in the rows. What a subscriber should have got is decided by its judge (`demo_network`) over all
that was published.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from gapless.demo.network import EDGES, PUBLISHERS, Row, SubscriberPlan

#: An event: its publisher, and the number that it has there.
Name = tuple[str, int]
Seconds = npt.NDArray[np.float64]

PHASES = ("before", "during", "after")


@dataclass(slots=True)
class Published:
    """All that one publisher has published; the place of an event is its number."""

    rows: list[Row] = field(default_factory=list)
    #: When each was handed to the client library.
    sent_s: list[float] = field(default_factory=list)


@dataclass(slots=True)
class SubscriberArrivals:
    """All that has come to one subscriber, in the order in which it came."""

    names: list[Name] = field(default_factory=list)
    pubends: list[str] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Record:
    """All that happened in one run. Times are seconds since the first event could be published."""

    published: dict[str, Published]
    arrivals: dict[str, SubscriberArrivals]
    #: When the router was killed, started again, and listened again.
    killed_s: float = float("inf")
    restarted_s: float = float("inf")
    back_s: float = float("inf")
    #: When, after the kill, something newer than it had come from every pubend to every edge.
    recovered_s: float = float("inf")
    #: When publishing ended.
    stopped_s: float = float("inf")

    def sent_s(self, name: Name) -> float:
        """When an event was published."""
        return self.published[name[0]].sent_s[name[1]]

    def of_topic(self, topic: str) -> Iterator[tuple[Name, Row]]:
        """Every event of a topic."""
        for plan in PUBLISHERS:
            if plan.topic == topic:
                for number, row in enumerate(self.published[plan.name].rows):
                    yield (plan.name, number), row


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyFigures:
    """How long events took, in seconds; zeros when there were none."""

    events: int
    p50_s: float
    p99_s: float
    max_s: float

    @staticmethod
    def of(seconds: Seconds) -> LatencyFigures:
        """The figures of some events."""
        if not len(seconds):
            return LatencyFigures(events=0, p50_s=0.0, p99_s=0.0, max_s=0.0)
        p50, p99 = np.percentile(seconds, (50, 99))
        return LatencyFigures(
            events=len(seconds), p50_s=float(p50), p99_s=float(p99), max_s=float(seconds.max())
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What one subscriber got, beside what it should have got."""

    plan: SubscriberPlan
    #: How many events its topic had, and how many of them its judge accepts.
    published: int
    matched: int
    delivered: int
    lost: int
    duplicated: int
    #: Events of a publisher that came after a later one of theirs.
    out_of_order: int
    #: Events that its judge does not accept.
    unwanted: int
    latency: Mapping[str, LatencyFigures]

    @property
    def kept(self) -> bool:
        """Whether every promise was kept."""
        return not (self.lost or self.duplicated or self.out_of_order or self.unwanted)


def wanted_by(plan: SubscriberPlan, record: Record) -> set[Name]:
    """The events that a subscriber must get."""
    return {name for name, row in record.of_topic(plan.topic) if plan.wants(row)}


def account_of(plan: SubscriberPlan, record: Record) -> Account:
    """Verify exactly-once delivery to one subscriber."""
    wanted = wanted_by(plan, record)
    taken = record.arrivals[plan.name]
    counts = Counter(taken.names)
    return Account(
        plan=plan,
        published=sum(1 for _ in record.of_topic(plan.topic)),
        matched=len(wanted),
        delivered=len(taken.names),
        lost=len(wanted - counts.keys()),
        duplicated=counts.total() - len(counts),
        out_of_order=_out_of_order(taken.names),
        unwanted=len(counts.keys() - wanted),
        latency=_latencies(taken, record),
    )


def _out_of_order(names: Sequence[Name]) -> int:
    newest: dict[str, int] = {}
    found = 0
    for publisher, number in names:
        before = newest.get(publisher, -1)
        # The same one again is a duplicate, and counted as such.
        found += number < before
        newest[publisher] = max(number, before)
    return found


def _latencies(taken: SubscriberArrivals, record: Record) -> dict[str, LatencyFigures]:
    at = np.array(taken.at_s, dtype=np.float64)
    sent = np.array([record.sent_s(name) for name in taken.names], dtype=np.float64)
    return by_phase(sent, at, record.killed_s, record.back_s)


def by_phase(sent_s: Seconds, at_s: Seconds, killed_s: float, back_s: float) -> dict[str, LatencyFigures]:
    """The latencies before, during and after an outage; what was in flight belongs to the outage."""
    before, after = at_s <= killed_s, sent_s >= back_s
    masks = (before, ~before & ~after, after)
    return {
        phase: LatencyFigures.of((at_s - sent_s)[mask]) for phase, mask in zip(PHASES, masks, strict=True)
    }


def differing_orders(plans: Sequence[SubscriberPlan], record: Record) -> int:
    """How often two neighbouring events of one subscriber in total order stand otherwise with another.

    Only events that both have got are compared, each at its first arrival.
    """
    total = [list(dict.fromkeys(record.arrivals[plan.name].names)) for plan in plans if plan.order == "total"]
    found = 0
    for one, other in pairwise(total):
        place = {name: at for at, name in enumerate(other)}
        places = [place[name] for name in one if name in place]
        found += sum(later < earlier for earlier, later in pairwise(places))
    return found


def recovery_s(plans: Sequence[SubscriberPlan], record: Record) -> dict[str, dict[str, float]]:
    """By edge and pubend: how long after the kill the first event came that was published after it.

    An edge that never got one is missing.
    """
    found: dict[str, dict[str, float]] = {edge: {} for edge in EDGES}
    for plan in plans:
        taken, at_edge = record.arrivals[plan.name], found[plan.edge]
        for name, pubend, at_s in zip(taken.names, taken.pubends, taken.at_s, strict=True):
            if record.sent_s(name) > record.killed_s:
                after_s = at_s - record.killed_s
                at_edge[pubend] = min(after_s, at_edge.get(pubend, after_s))
    return found
