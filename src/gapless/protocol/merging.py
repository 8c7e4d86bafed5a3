"""What is handed out at once? Rows of one or several pubends in delivery order.

Implements docs/protocol.md, section 10.
"""

from __future__ import annotations

from dataclasses import dataclass

from gapless.content.rows import Positions
from gapless.model.batch import EventBatch


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


def cut(batch: EventBatch, start: int, rows_max: int) -> int:
    """Where to end a piece that begins at `start`: rows of one tick stay together."""
    stop = min(len(batch), start + rows_max)
    while stop < len(batch) and batch.ticks[stop] == batch.ticks[stop - 1]:
        stop += 1
    return stop
