"""What is handed out at once? Rows of one or several pubends in delivery order.

Implements docs/protocol.md, section 10.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gapless.content.rows import Positions
from gapless.model.batch import EventBatch
from gapless.model.ids import PubendId
from gapless.model.ticks import Tick
from gapless.protocol.lane import Lane


@dataclass(slots=True)
class Merged:
    """Rows of one or several pubends in delivery order."""

    batch: EventBatch
    source: Positions | None

    def where(self, rows: Positions) -> Merged:
        """The rows at these positions."""
        if len(rows) == len(self.batch):
            return self
        return Merged(self.batch.take(rows), None if self.source is None else self.source[rows])

    def before(self, stop: int) -> Merged:
        """The first rows."""
        return Merged(self.batch.slice(0, stop), None if self.source is None else self.source[:stop])


def cut(batch: EventBatch, start: int, rows_max: int) -> int:
    """Where to end a piece that begins at `start`: rows of one tick stay together."""
    stop = min(len(batch), start + rows_max)
    while stop < len(batch) and batch.ticks[stop] == batch.ticks[stop - 1]:
        stop += 1
    return stop


def merge_reach(lanes: Sequence[Lane], start: Mapping[PubendId, Tick], stop: Tick, bytes_max: int) -> Tick:
    """Up to where the rows of all pubends are merged at once: copying all that is there may be too much.

    Each pubend has an equal part of the bytes, and one event at least.
    """
    for lane in lanes:
        size = 0
        for batch in lane.istream.stream.rows.each_between(start[lane.pubend], stop):
            size += batch.nbytes
            if size > bytes_max // len(lanes):
                over = -(-len(batch) * (size - bytes_max // len(lanes)) // max(batch.nbytes, 1))
                rows = max(len(batch) - over, int(size == batch.nbytes))
                stop = int(batch.ticks[rows - 1]) + 1 if rows else batch.first
                break
    return stop


def merge(lanes: Sequence[Lane], start: Mapping[PubendId, Tick], stop: Tick) -> Merged | None:
    """The rows of all pubends from `start` on below `stop`, by tick and then pubend; None for none."""
    parts = [
        (at, EventBatch.joined(batches))
        for at, lane in enumerate(lanes)
        if (batches := lane.istream.stream.rows.between(start[lane.pubend], stop))
    ]
    if not parts:
        return None
    ticks = np.concatenate([batch.ticks for _, batch in parts])
    source = np.concatenate([np.full(len(batch), at, dtype=np.int64) for at, batch in parts])
    columns = pa.concat_batches([batch.columns for _, batch in parts])
    order = np.lexsort((source, ticks))
    return Merged(EventBatch(ticks[order], columns.take(pa.array(order))), source[order])
