"""Were the promises kept on real processes? The simulator's checkers, fed with what real clients wrote down.

The checkers want to see the truth (which events are in the logs, under which tick), then what publishers
were told, what subscriptions were confirmed from, and what each took. Here the truth is put together from
outside: an event is in a log under the tick that its receipt names or, when the receipt came too late to name
one, under the tick with which it was delivered. An event that shows up under two ticks was stored twice,
which is told to the checkers as a publish of one row that was accepted twice.

A publish counts as accepted at the moment when the program *began* it: whatever tick it got was given later.
So an event that was published after a subscription was confirmed and has a tick below the start is a broken
promise, whatever happened on the way of its receipt.

`routing`, `memory` and `invariant` look inside brokers and have no equivalent here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gapless.protocol.network import Network
from gapless.sim.checkers import Checkers, Violation
from gapless.sim.observer import Wish
from gapless.sim.plan import Plan
from tests.chaos.history import Gap, History, Published, Stretch, Subscribed, digest
from tests.chaos.wishes import InTurn

#: A subscription without a name ends with its edge: what it missed may be gone when it comes back.
EDGE_DEATHS = ("edge kill", "broker restart")
FORFEIT_S = 60.0

#: Under which heading of the final account a broken promise stands.
HEADINGS = {
    "gapless": "lost",
    "liveness": "lost",
    "durability": "lost",
    "release": "lost",
    "start": "lost",
    "exactly_once": "duplicated",
    "order": "out of order",
    "filter": "not wanted",
}


@dataclass(slots=True)
class Verdict:
    """What the checkers said of a history."""

    published: int = 0
    accepted: int = 0
    refused: int = 0
    delivered: int = 0
    #: Events that subscriptions without a name were told to be gone after the death of their edge.
    forfeited: int = 0
    #: At most one of each kind per subscription, publisher or pubend.
    violations: list[Violation] = field(default_factory=list)

    def count(self, heading: str) -> int:
        """How many broken promises stand under a heading."""
        return sum(HEADINGS[each.checker] == heading for each in self.violations)


def judge(
    history: History, network: Network, *, is_over: bool, released: Mapping[str, int] | None = None
) -> Verdict:
    """Hold a history against the promises.

    When it `is_over`, everybody must have everything. `released` is, per pubend, the tick below which its log
    keeps nothing, when somebody has looked; then nothing may be missing below it, and it must be beyond all
    that was delivered.
    """
    return _Trial(history, network, is_over, released).verdict()


class _Trial:
    """One history before the checkers."""

    def __init__(
        self, history: History, network: Network, is_over: bool, released: Mapping[str, int] | None
    ) -> None:
        self._history = history
        self._is_over = is_over
        self._released = released
        self._plan = _plan_of(network)
        self._checkers = Checkers(self._plan)
        self._verdict = Verdict()
        #: The names of each event: more than one if it was stored more than once.
        self._names: dict[int, set[tuple[str, int]]] = {}
        #: Per pubend, what its log has or had, by tick.
        self._truth: dict[str, dict[int, dict[str, Any]]] = {pubend: {} for pubend in self._plan.topic_of}
        self._stretches: dict[str, list[Stretch]] = {}

    def verdict(self) -> Verdict:
        history, verdict = self._history, self._verdict
        verdict.published = len(history.published)
        verdict.refused = sum(each.refused is not None for each in history.published.values())
        verdict.accepted = sum(
            each.receipt_at is not None and each.refused is None for each in history.published.values()
        )
        verdict.delivered = sum(
            len(stretch.taken) for each in history.subscribed.values() for stretch in each.stretches
        )
        for name, why in history.broken:
            verdict.violations.append(Violation("liveness", f"failed: {why}", subject=name))
        self._find_names()
        self._tell_truth()
        self._tell_publishers_order()
        for subscribed in history.subscribed.values():
            self._stretches[subscribed.name] = self._joined(subscribed)
        self._tell_starts_and_receipts()
        for name in history.subscribed:
            for number, stretch in enumerate(self._stretches[name]):
                self._tell_taken(name, number, stretch)
        if self._is_over:
            self._look_for_unfinished()
        return verdict

    def _broken(self, violation: Violation) -> None:
        """The first of each kind and subject: what comes after a broken promise proves nothing."""
        known = {(each.checker, each.subject) for each in self._verdict.violations}
        if (violation.checker, violation.subject) not in known:
            self._verdict.violations.append(violation)

    # ---- what is true --------------------------------------------------------------------------------

    def _find_names(self) -> None:
        published = self._history.published
        for event in published.values():
            if event.tick is not None and event.pubend is not None:
                self._names.setdefault(event.id, set()).add((event.pubend, event.tick))
        for subscribed in self._history.subscribed.values():
            for stretch in subscribed.stretches:
                for taken in stretch.taken:
                    known = published.get(taken.id)
                    if known is not None and known.refused is None and digest(known.row) == taken.digest:
                        self._names.setdefault(taken.id, set()).add((taken.pubend, taken.tick))

    def _tell_truth(self) -> None:
        """Every name of every event, in tick order. Of two events with one name, the one with a receipt."""
        truth = self._truth
        for row_id, names in self._names.items():
            event = self._history.published[row_id]
            for pubend, tick in names:
                is_certain = (event.pubend, event.tick) == (pubend, tick)
                if is_certain or tick not in truth[pubend]:
                    truth[pubend][tick] = {**event.row, "_pubend": pubend, "_tick": tick}
        for pubend, rows in truth.items():
            ticks = sorted(rows)
            self._checkers.durable(pubend, ticks, [rows[tick] for tick in ticks])

    def _tell_publishers_order(self) -> None:
        """What one publisher published in order is in the log in order."""
        told: dict[tuple[str, str], list[tuple[int, int, Published]]] = {}
        for row_id, names in self._names.items():
            event = self._history.published[row_id]
            pubend, tick = min(names)
            told.setdefault((event.publisher, pubend), []).append((event.number, tick, event))
        for (_, pubend), events in sorted(told.items()):
            events.sort(key=lambda each: each[0])
            try:
                Checkers(self._plan).durable(
                    pubend, [tick for _, tick, _ in events], [event.row for _, _, event in events]
                )
            except Violation as violation:
                self._broken(violation)

    # ---- publishers and starts ------------------------------------------------------------------------

    def _tell_starts_and_receipts(self) -> None:
        for _, subscribed, number, event in sorted(self._moments(), key=lambda each: each[0]):
            self._checkers.stepped("")
            try:
                if event is not None:
                    self._tell_receipt(event)
                elif subscribed is not None:
                    self._tell_start(subscribed, number)
            except Violation as violation:
                self._broken(violation)

    def _moments(self) -> Iterator[tuple[float, Subscribed | None, int, Published | None]]:
        for event in self._history.published.values():
            yield event.at, None, 0, event
        for subscribed in self._history.subscribed.values():
            for number, stretch in enumerate(self._stretches[subscribed.name]):
                yield stretch.at, subscribed, number, None

    def _tell_start(self, subscribed: Subscribed, number: int) -> None:
        stretch = self._stretches[subscribed.name][number]
        wish = Wish(
            subscription=_name_of(subscribed.name, number),
            edge="",
            topic=subscribed.topic,
            condition=InTurn(tuple(subscribed.turns)),  # type: ignore[arg-type]  # one that the judge knows
            total=subscribed.total,
            wanted=None,
        )
        self._checkers.subscribed(wish)
        for pubend, start in sorted(stretch.starts.items()):
            self._checkers.confirmed(wish.subscription, pubend, start)

    def _tell_receipt(self, event: Published) -> None:
        names = self._names.get(event.id, set())
        if not names:
            if event.refused is None and self._is_over:
                self._tell_nameless(event)
            return
        pubends = sorted({pubend for pubend, _ in names})
        ticks = sorted(tick for _, tick in names)
        self._checkers.accepted(pubends[0], [event.id], ticks)

    def _tell_nameless(self, event: Published) -> None:
        """No receipt, or one without a tick, and nobody ever got it."""
        if event.receipt_at is None:
            raise Violation(
                "liveness", f"event {event.number} has no receipt", subject=event.publisher, pubend=None
            )
        for subscribed in self._history.subscribed.values():
            first = subscribed.stretches[0] if subscribed.stretches else None
            is_owed = first is not None and first.at < event.at and len(subscribed.stretches) == 1
            if subscribed.topic == event.topic and is_owed and _wants_always(subscribed, event):
                text = f"event {event.number} of {event.publisher} was accepted and never taken"
                raise Violation("liveness", text, subject=subscribed.name)

    # ---- subscribers ---------------------------------------------------------------------------------

    def _joined(self, subscribed: Subscribed) -> list[Stretch]:
        """The stretches of a subscription, where those with nothing wanted between them are one.

        A gap is ticks, and there need not be an event among them: a subscription that has had nothing for a
        while cannot know. Where there was one, it is lost; that may happen to a subscription without a name
        whose edge has died, and to no other.
        """
        joined: list[Stretch] = []
        condition = InTurn(tuple(subscribed.turns))
        for stretch in subscribed.stretches:
            gap = stretch.after
            lost = [] if gap is None else self._between(gap, condition)
            if gap is None or lost or not joined:
                joined.append(Stretch(stretch.at, stretch.starts, list(stretch.taken), gap))
            else:
                joined[-1].taken += stretch.taken
            if gap is not None and lost:
                self._verdict.forfeited += len(lost)
                if subscribed.is_durable or not self._edge_died_before(gap):
                    text = f"{len(lost)} events were gone before it came back for them"
                    name = _name_of(subscribed.name, len(joined) - 1)
                    self._broken(Violation("release", text, subject=name, pubend=gap.pubend, tick=lost[0]))
        return joined

    def _between(self, gap: Gap, condition: InTurn) -> list[int]:
        """The ticks of the wanted events in a gap."""
        rows = self._truth[gap.pubend]
        return sorted(
            tick for tick, row in rows.items() if gap.start <= tick < gap.stop and condition.accepts(row)
        )

    def _edge_died_before(self, gap: Gap) -> bool:
        return any(
            fault.what in EDGE_DEATHS
            and fault.target in self._plan.edges
            and gap.at - FORFEIT_S < fault.at < gap.at
            for fault in self._history.faults.values()
        )

    def _tell_taken(self, subscription: str, number: int, stretch: Stretch) -> None:
        name = _name_of(subscription, number)
        try:
            for taken in stretch.taken:
                event = self._history.published.get(taken.id)
                is_same = event is not None and digest(event.row) == taken.digest
                self._checkers.taken(name, taken.pubend, taken.tick, taken.id if is_same else -1)
        except Violation as violation:
            self._broken(violation)
            self._checkers.ended(name)
            return
        if number + 1 < len(self._stretches[subscription]):
            self._checkers.ended(name)

    def _look_for_unfinished(self) -> None:
        for pubend, before in (self._released or {}).items():
            try:
                self._checkers.releasing(pubend, before)
                self._checkers.released(pubend, before)
            except Violation as violation:
                self._broken(violation)
                if violation.subject not in self._plan.topic_of:
                    self._checkers.ended(violation.subject)
        while (left := self._checkers.unfinished()) is not None:
            if left.subject in self._plan.topic_of:
                # Everybody has everything; what is left is said of the logs.
                if self._released is not None:
                    self._broken(left)
                return
            self._broken(left)
            self._checkers.ended(left.subject)


def _wants_always(subscribed: Subscribed, event: Published) -> bool:
    return all(condition.accepts(event.row) for condition, _ in subscribed.turns)


def _name_of(subscription: str, number: int) -> str:
    return subscription if not number else f"{subscription}/{number}"


def _plan_of(network: Network) -> Plan:
    brokers = {str(broker): str(cell) for broker, cell in network.cell_of.items()}
    return Plan(
        topic_of={str(name): str(place.topic) for name, place in network.pubends.items()},
        root_of={str(name): brokers[place.broker] for name, place in network.pubends.items()},
        cell_of=brokers,
        links=[],
        edges=frozenset(str(edge) for edge in network.edges),
        row_bytes_max={},
        runs_max={},
    )
