"""Which condition decides about which tick? A subscription's filter, and those it had before.

A change of the filter takes effect at a tick of each pubend that the node names. If the connection is lost
before all events below that tick have come, one condition alone can no longer be asked for: the old one
decides about some of the missing events, the new one about others. Then both are asked for, and what comes
is judged here, each event by the condition of its tick. So nothing is lost and nothing is repeated.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from gapless.content.evaluate import mask
from gapless.content.language import parse_condition
from gapless.content.normal import either
from gapless.content.rows import RowMask, Rows
from gapless.model.ids import PubendId
from gapless.model.schema import Schema
from gapless.model.ticks import TICK_MAX, TICK_MIN, Tick, TickArray

#: So many changes are remembered of a subscription whose filter changes, and for which no event comes.
SEGMENTS_MAX = 64


class Filters:
    """The conditions of one subscription, from the oldest that may still be needed to the newest.

    >>> schema = Schema.parse("t", {"a": "int"})
    >>> filters, pubend = Filters("a < 5"), PubendId("p")
    >>> filters.switch("a > 8", {pubend: 100}, {pubend: 60})
    >>> filters.resume({pubend: 70}, schema)
    '(a <= 4 OR a >= 9)'
    >>> filters.resume({pubend: 100}, schema)
    'a > 8'
    """

    __slots__ = ("_judges", "_segments")

    def __init__(self, where: str) -> None:
        #: Each condition, and per pubend the tick from which on it decides.
        self._segments: list[tuple[str, Mapping[PubendId, Tick]]] = [(where, {})]
        self._judges = False

    @property
    def where(self) -> str:
        """The newest condition."""
        return self._segments[-1][0]

    @property
    def judges(self) -> bool:
        """Whether more is asked for than is wanted, so that `mask` must be applied."""
        return self._judges

    def switch(self, where: str, ticks: Mapping[PubendId, Tick], positions: Mapping[PubendId, Tick]) -> None:
        """From these ticks on, another condition decides. Everything below the positions has come."""
        if not self._judges:
            self._prune(positions)
            del self._segments[: -SEGMENTS_MAX + 1]
        self._segments.append((where, dict(ticks)))

    def resume(self, positions: Mapping[PubendId, Tick], schema: Schema | None) -> str:
        """What to ask for when everything below the positions has come."""
        self._prune(positions)
        self._judges = len(self._segments) > 1
        if not self._judges:
            return self.where
        assert schema is not None, "a filter was changed before anything was confirmed"
        return str(either(parse_condition(where, schema) for where, _ in self._segments))

    def _prune(self, positions: Mapping[PubendId, Tick]) -> None:
        """Forget the conditions that decide about nothing that may still come."""
        while len(self._segments) > 1:
            starts = self._segments[1][1]
            if any(tick < starts.get(pubend, TICK_MIN) for pubend, tick in positions.items()):
                break
            del self._segments[0]

    def mask(
        self,
        columns: pa.RecordBatch,
        ticks: TickArray,
        pubends: list[PubendId],
        schema: Schema,
        *,
        pending: tuple[str, Mapping[PubendId, Tick]] | None = None,
    ) -> RowMask:
        """Which rows are wanted, each by the condition of its tick.

        A change that is `pending` decides already where it has a tick: the node goes by it there.
        """
        wanted = np.zeros(len(ticks), dtype=np.bool_)
        rows = Rows(columns)
        segments = [(where, starts, TICK_MIN) for where, starts in self._segments]
        if pending is not None:
            segments.append((*pending, TICK_MAX))
        for where, starts, otherwise in segments:
            # Whatever earlier conditions said of these ticks: a change may take effect before an older one.
            decides = ticks >= np.array([starts.get(each, otherwise) for each in pubends], dtype=np.int64)
            if decides.any():
                np.copyto(wanted, mask(parse_condition(where, schema), rows), where=decides)
        return wanted
