"""Which of the rows that arrived together has the program taken, and which is it done with?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gapless.content.rows import Positions
from gapless.model.ids import PubendId
from gapless.model.ticks import Tick, TickArray


class ArrivedRows:
    """The names of rows that arrived together, some of which the program has already taken."""

    __slots__ = ("_folded", "_stops", "asked", "at", "credit", "pubends", "size", "source", "ticks")

    def __init__(self, ticks: TickArray, pubends: Sequence[PubendId], source: Positions | None) -> None:
        """Row r is an event of `pubends[source[r]]`; `source` is None if there is only one pubend."""
        self.ticks = ticks
        self.pubends = pubends
        self.source = source
        self.size = len(ticks)
        #: Number of rows the program has taken, and number of those after which it asked for the next.
        self.at = 0
        self.asked = 0
        #: Rows of credit that these have used.
        self.credit = self.size
        self._stops: dict[PubendId, Tick] = {}
        self._folded = 0

    def pubend(self, row: int) -> PubendId:
        """The pubend of a row."""
        return self.pubends[0] if self.source is None else self.pubends[int(self.source[row])]

    def row_pubends(self) -> list[PubendId]:
        """The pubend of each row."""
        if self.source is None:
            return [self.pubends[0]] * self.size
        return [self.pubends[at] for at in self.source.tolist()]

    def stops(self, rows: int) -> Mapping[PubendId, Tick]:
        """Per pubend, one past the last tick among the first `rows` rows. `rows` must not decrease."""
        if rows > self._folded:
            if self.source is None:
                self._stops[self.pubends[0]] = int(self.ticks[rows - 1]) + 1
            else:
                for row in range(self._folded, rows):
                    self._stops[self.pubend(row)] = int(self.ticks[row]) + 1
            self._folded = rows
        return self._stops

    def stops_at(self, rows: int) -> dict[PubendId, Tick]:
        """The same, for any number of rows."""
        if not rows:
            return {}
        if self.source is None:
            return {self.pubends[0]: int(self.ticks[rows - 1]) + 1}
        found: dict[PubendId, Tick] = {}
        source = self.source[:rows]
        for at in np.unique(source).tolist():
            found[self.pubends[at]] = int(self.ticks[np.flatnonzero(source == at)[-1]]) + 1
        return found
