"""What is one subscription at an edge, and how far is it? Its phases, and its progress as a laggard.

Implements docs/protocol.md, sections 9 and 10.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gapless.content.condition import Condition
from gapless.model.epochs import Epoch
from gapless.model.ids import PubendId, SubscriptionId, TopicId
from gapless.model.ticks import TICK_MAX, Tick
from gapless.protocol.events import Order


@dataclass(slots=True)
class Phase:
    """One condition of a subscription, and the ticks from which on it decides."""

    condition: Condition
    #: The epoch of the subscription set that first had it.
    birth: Epoch
    #: Per pubend the start tick that was asked for; "from now on" of those that are not named.
    wanted: Mapping[PubendId, Tick] = field(default_factory=dict)
    #: Per pubend what the pubend itself is asked for: of many that begin somewhere, the lowest for all.
    asked: dict[PubendId, Tick] = field(default_factory=dict)
    #: Per pubend that granted it: the start tick, and how far the pubend's past reached then.
    granted: dict[PubendId, tuple[Tick, Tick]] = field(default_factory=dict)
    #: Per pubend the first tick that it decides of. Empty for the first phase, which has no other before it.
    since: dict[PubendId, Tick] = field(default_factory=dict)
    #: The pubends of which the subscriber has taken all below `since`: the phases before are over there.
    passed: set[PubendId] = field(default_factory=set)


@dataclass(slots=True)
class Subend:
    """One subscription at this edge."""

    subscription: SubscriptionId
    slot: int
    topic: TopicId
    order: Order
    #: In the order in which they decide; never empty.
    phases: list[Phase]
    #: It was reported slow, and has neither taken anything nor been reported ready since.
    slow: bool = False
    #: Its subscriber is not there to take anything; it may come back at another edge.
    away: bool = False
    roams: bool = False
    #: The serials of the deliveries handed to it as a laggard that it has not taken.
    outstanding: set[int] = field(default_factory=set)
    #: Per pubend the id of the log in which its position is.
    logs: dict[PubendId, str] = field(default_factory=dict)
    #: Per pubend that has lost a log: where it began in the one that came after.
    bases: dict[PubendId, Tick] = field(default_factory=dict)

    def in_force(self, pubend: PubendId, tick: Tick) -> tuple[Phase, Tick]:
        """The phase that decides of a tick, and the tick up to which it does."""
        until = TICK_MAX
        for phase in reversed(self.phases[1:]):
            since = phase.since.get(pubend, TICK_MAX)
            if since <= tick:
                return phase, until
            until = min(until, since)
        return self.phases[0], until

    def pass_by(self, pubends: Iterable[PubendId], settled: Tick, topic: Iterable[PubendId]) -> bool:
        """All below `settled` was taken of these pubends; says whether that ends a phase.

        A phase is over when the subscriber can never be handed a tick of it again, on any pubend of `topic`.
        """
        for phase in self.phases[1:]:
            phase.passed.update(p for p in pubends if phase.since.get(p, TICK_MAX) <= settled)
        before = len(self.phases)
        while len(self.phases) > 1 and self.phases[1].passed.issuperset(topic):
            del self.phases[0]
        return len(self.phases) < before


@dataclass(slots=True)
class CatchUp:
    """How far a laggard is."""

    subend: Subend
    #: Per pubend, the tick below which everything was handed out.
    handed: dict[PubendId, Tick]
    #: Per pubend, the tick below which everything was taken.
    taken: dict[PubendId, Tick]
    #: The deliveries that were not taken, in order, with what had been handed out before each.
    outstanding: dict[int, dict[PubendId, Tick]] = field(default_factory=dict)
    #: The newest of them was neither taken nor reported sent, so nothing follows it yet.
    busy: bool = False
    #: How many ticks to ask for at once; grows when they hold little, shrinks when they hold much.
    window: int = 0
    #: What was known when there was nothing to hand out; None when something of its own has changed since.
    stuck: tuple[int, ...] | None = None

    def settle(self) -> None:
        """All before the oldest delivery that was not taken is taken; what was taken out of turn waits."""
        self.taken = next(iter(self.outstanding.values()), self.handed)
