"""Which pubend must be looked at next, and when? A broker has one timer and perhaps a thousand pubends.

Most pubends have nothing to do most of the time. So a step asks only those for their deadline that it has
touched, and the earliest of all is found in a heap; what one event costs does not depend on how many topics
there are.

Implements docs/protocol.md, section 4.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from gapless.model.ids import PubendId

#: Maximum number of outdated heap entries per pubend.
STALE_MAX = 4


class Deadlines:
    """When each pubend wants to be looked at.

    >>> deadlines = Deadlines()
    >>> deadlines.put(PubendId("a"), 30)
    >>> deadlines.put(PubendId("b"), 20)
    >>> deadlines.put(PubendId("b"), 40)
    >>> deadlines.earliest()
    30
    >>> deadlines.due(35), deadlines.due(40)
    (['a'], ['a', 'b'])
    """

    __slots__ = ("_at", "_heap")

    def __init__(self) -> None:
        self._at: dict[PubendId, int] = {}
        #: Every deadline that is set, and some that no longer are.
        self._heap: list[tuple[int, PubendId]] = []

    def put(self, pubend: PubendId, at_ms: int | None) -> None:
        """A pubend wants to be looked at then, or not at all."""
        if at_ms == self._at.get(pubend):
            return
        if at_ms is None:
            del self._at[pubend]
            return
        self._at[pubend] = at_ms
        heappush(self._heap, (at_ms, pubend))
        if len(self._heap) > STALE_MAX * (len(self._at) + 1):
            self._heap = [(at, each) for each, at in self._at.items()]
            heapify(self._heap)

    def earliest(self) -> int | None:
        """When the first of them wants to be looked at; None when none does."""
        self._drop_stale()
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int) -> list[PubendId]:
        """Those whose time has come, sorted. They stay due until they are set again."""
        found: list[tuple[int, PubendId]] = []
        self._drop_stale()
        while self._heap and self._heap[0][0] <= now_ms:
            found.append(heappop(self._heap))
            self._drop_stale()
        self._heap += found
        if found:
            heapify(self._heap)
        return sorted({pubend for _, pubend in found})

    def _drop_stale(self) -> None:
        while self._heap and self._at.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
