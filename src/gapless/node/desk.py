"""Who has not yet acknowledged which delivery?

The broker hands out deliveries with serial numbers and wants to hear when all subscribers of one have
taken it. A guaranteed subscriber has taken what its client acknowledged, not what was written to a socket:
only then may the broker let go of it. A subscriber that does not keep up is reported slow, which frees the
deliveries that it held for everybody else; the broker catches it up later, from what it acknowledged last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from gapless.model.ids import PubendId
from gapless.model.ticks import Tick


@dataclass(slots=True, eq=False)
class Owed:
    """What one subscription was handed and has not acknowledged."""

    #: Per delivery: its serial, how many rows, and per pubend one past the last tick.
    deliveries: deque[tuple[int, int, Mapping[PubendId, Tick]]] = field(default_factory=deque)
    rows: int = 0
    #: Per pubend the tick below which the client needs nothing any more.
    acknowledged: dict[PubendId, Tick] = field(default_factory=dict)


class Desk:
    """The deliveries of one broker that are not taken by all."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        #: How many subscriptions have not taken a delivery yet.
        self._waiting: dict[int, int] = {}

    def handed(self, serial: int, subscriptions: int) -> bool:
        """A delivery went out to so many subscriptions that will acknowledge; says whether it is done."""
        if subscriptions:
            self._waiting[serial] = subscriptions
        return not subscriptions

    def owe(self, owed: Owed, serial: int, rows: int, stops: Mapping[PubendId, Tick]) -> None:
        """A subscription was handed its rows of a delivery."""
        owed.deliveries.append((serial, rows, stops))
        owed.rows += rows

    def acknowledged(self, owed: Owed, positions: Mapping[PubendId, Tick]) -> list[int]:
        """The client needs nothing below these ticks; gives the serials that are done now."""
        for pubend, tick in positions.items():
            if tick > owed.acknowledged.get(pubend, tick - 1):
                owed.acknowledged[pubend] = tick
        done: list[int] = []
        while owed.deliveries:
            serial, rows, stops = owed.deliveries[0]
            if any(owed.acknowledged.get(pubend, stop - 1) < stop for pubend, stop in stops.items()):
                break
            owed.deliveries.popleft()
            owed.rows -= rows
            done += self._taken(serial)
        return done

    def released(self, owed: Owed) -> list[int]:
        """The subscription is slow or gone and holds nothing any more; gives the serials done now."""
        done: list[int] = []
        for serial, _, _ in owed.deliveries:
            done += self._taken(serial)
        owed.deliveries.clear()
        owed.rows = 0
        return done

    def _taken(self, serial: int) -> list[int]:
        left = self._waiting[serial] - 1
        if left:
            self._waiting[serial] = left
            return []
        del self._waiting[serial]
        return [serial]
