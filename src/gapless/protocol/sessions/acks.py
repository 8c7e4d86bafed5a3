"""Which tick has a subscriber acknowledged up to? Acknowledgements in any order, one position per pubend."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from gapless.model.ids import PubendId
from gapless.model.ticks import Tick


class AckLedger:
    """Events the program has and has not acknowledged, per pubend.

    >>> ledger, pubend = AckLedger(), PubendId("p")
    >>> ledger.handed(pubend, [5, 6, 9])
    >>> ledger.acked(pubend, [6])
    >>> ledger.acked(pubend, [5])
    7
    >>> ledger.acked(pubend, [9])
    10
    """

    __slots__ = ("_done", "_handed")

    def __init__(self) -> None:
        #: Ticks in order, including those acknowledged out of order.
        self._handed: dict[PubendId, deque[Tick]] = {}
        self._done: dict[PubendId, set[Tick]] = {}

    @property
    def is_empty(self) -> bool:
        """Whether the program has acknowledged everything it was given."""
        return not any(self._handed.values())

    def handed(self, pubend: PubendId, ticks: Iterable[Tick]) -> None:
        """Record events given to the program. Ticks ascend."""
        self._handed.setdefault(pubend, deque()).extend(ticks)

    def acked(self, pubend: PubendId, ticks: Iterable[Tick]) -> Tick | None:
        """Record acknowledged events; return the position if it has moved."""
        handed = self._handed.get(pubend)
        if not handed:
            return None
        done = self._done.setdefault(pubend, set())
        done.update(tick for tick in ticks if tick >= handed[0])
        position = None
        while handed and handed[0] in done:
            position = handed.popleft() + 1
            done.remove(position - 1)
        return position
