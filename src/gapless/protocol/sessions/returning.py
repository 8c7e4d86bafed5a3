"""Is what a returning subscriber asks for really gone? Not if it held the log here all the time.

The log of a pubend keeps what somebody lacks. A subscriber that wants little may have got its last event long
ago; everything since, which nobody lacks, is released. When its connection breaks, it comes back as a new
subscription that asks for the ticks after that event, and the pubend grants a later start. But the old
subscription is still there, connected or parked: had there been an event for it, the pubend would have kept
it. So a new subscription of the same client to the same events starts where it asked to, and reports no gap.

This works at the edge where the subscriber was. Another edge cannot tell, and reports the gap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice

from gapless.model.ids import PubendId, TopicId
from gapless.model.ticks import TICK_MAX, TICK_MIN, Tick
from gapless.protocol.effects import ConfirmSubscription
from gapless.protocol.sessions.subscriptions import EdgeSubscription

#: Maximum number of equal subscriptions of one client that are looked at; beyond, a gap may be reported.
ALIKE_MAX = 64


class Returning:
    """The subscriptions without a name, by client and by what they ask for."""

    def __init__(self, positions: Callable[[EdgeSubscription], Mapping[PubendId, Tick]]) -> None:
        """`positions` gives, per pubend, the tick below which a subscription needs nothing any more."""
        self._positions = positions
        self._keys: dict[EdgeSubscription, tuple[str, TopicId, str]] = {}
        self._alike: dict[tuple[str, TopicId, str], dict[EdgeSubscription, None]] = {}
        #: Per subscription whose condition has changed, the ticks from which on the newest decides.
        self._since: dict[EdgeSubscription, Mapping[PubendId, Tick]] = {}

    def add(
        self, subscription: EdgeSubscription, where: str, since: Mapping[PubendId, Tick] | None = None
    ) -> None:
        """A subscription has begun, or has got another condition, which decides from some ticks on."""
        self.drop(subscription)
        if subscription.asked.name is None:
            client, _, _ = subscription.name.rpartition("#")
            key = self._keys[subscription] = (client, subscription.asked.topic, where)
            self._alike.setdefault(key, {})[subscription] = None
            if since is not None:
                self._since[subscription] = since

    def drop(self, subscription: EdgeSubscription) -> None:
        """A subscription has ended."""
        self._since.pop(subscription, None)
        key = self._keys.pop(subscription, None)
        if key is not None:
            del self._alike[key][subscription]
            if not self._alike[key]:
                del self._alike[key]

    def start(self, subscription: EdgeSubscription, effect: ConfirmSubscription) -> Tick:
        """Where a subscription starts: as granted, or as asked for if it misses nothing between the two."""
        start, pubend = subscription.asked.start, effect.pubend
        wanted = start.get(pubend) if isinstance(start, Mapping) else start
        if not isinstance(wanted, int) or wanted >= effect.start or wanted < effect.lost_before:
            return effect.start
        if effect.lost_from is not None:
            return effect.start
        key = self._keys.get(subscription)
        others = () if key is None else islice(self._alike[key], ALIKE_MAX)
        if not any(self._holds(each, subscription, effect, wanted) for each in others):
            return effect.start
        # Until it has acknowledged more, this is its position: it may come back from here once more.
        subscription.resumed = {**subscription.resumed, pubend: wanted}
        return wanted

    def _holds(
        self,
        other: EdgeSubscription,
        subscription: EdgeSubscription,
        effect: ConfirmSubscription,
        wanted: Tick,
    ) -> bool:
        """Whether `other` has kept every event from `wanted` on that `subscription` wants."""
        pubend = effect.pubend
        if other is subscription or other.reader is None or not other.reader.guaranteed:
            return False
        if other.owner is not subscription.owner or other.matched != subscription.matched:
            return False
        if pubend not in other.starts or self._positions(other).get(pubend, TICK_MAX) > wanted:
            return False
        if other in self._since and wanted < self._since[other].get(pubend, TICK_MAX):
            # Below that tick it has kept what another condition accepts.
            return False
        # Of a log that is lost it has kept nothing, nor of the next one before it went on there.
        is_same_log = other.logs[pubend][0] == effect.log
        return is_same_log and wanted >= other.bases.get(pubend, TICK_MIN)
