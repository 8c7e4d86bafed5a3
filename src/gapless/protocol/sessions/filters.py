"""Which condition applies to which tick? A subscription's current filter and its earlier ones.

A filter change takes effect at one tick per pubend, which the node names. If the connection is lost before
all events below that tick have arrived, the old condition applies to some of the missing events and the new
one to others. The client then subscribes to both and filters here, each event by the condition of its tick.
So nothing is lost and nothing is repeated.
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

#: Maximum number of remembered conditions of a subscription whose filter changes while no event arrives.
SEGMENTS_MAX = 64


class Filters:
    """The conditions of one subscription, from the oldest still needed to the newest.

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
        #: Each condition, and per pubend the tick from which it applies.
        self._segments: list[tuple[str, Mapping[PubendId, Tick]]] = [(where, {})]
        self._judges = False

    @property
    def where(self) -> str:
        """The newest condition."""
        return self._segments[-1][0]

    @property
    def judges(self) -> bool:
        """Whether the subscription asks for more than is wanted, so that `mask` must be applied."""
        return self._judges

    def switch(self, where: str, ticks: Mapping[PubendId, Tick], positions: Mapping[PubendId, Tick]) -> None:
        """Apply another condition from these ticks on. Everything below the positions has arrived."""
        if not self._judges:
            self._prune(positions)
            del self._segments[: -SEGMENTS_MAX + 1]
        self._segments.append((where, dict(ticks)))

    def resume(self, positions: Mapping[PubendId, Tick], schema: Schema | None) -> str:
        """The condition to subscribe with if everything below the positions has arrived."""
        self._prune(positions)
        self._judges = len(self._segments) > 1
        if not self._judges:
            return self.where
        assert schema is not None, "a filter was changed before anything was confirmed"
        return str(either(parse_condition(where, schema) for where, _ in self._segments))

    def _prune(self, positions: Mapping[PubendId, Tick]) -> None:
        """Forget conditions that apply to nothing that may still arrive."""
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

        A `pending` change already applies where it has a tick: there the node applies it too.
        """
        wanted = np.zeros(len(ticks), dtype=np.bool_)
        rows = Rows(columns)
        segments = [(where, starts, TICK_MIN) for where, starts in self._segments]
        if pending is not None:
            segments.append((*pending, TICK_MAX))
        for where, starts, otherwise in segments:
            # This overrides earlier conditions: a change may take effect at a lower tick than an older one.
            decides = ticks >= np.array([starts.get(each, otherwise) for each in pubends], dtype=np.int64)
            if decides.any():
                np.copyto(wanted, mask(parse_condition(where, schema), rows), where=decides)
        return wanted
