"""What does a subscriber get? Events that look like mappings, and batches of columns.

Events that arrive together stay together in a `Chunk`. An `Event` is a reference to one row. A column
is converted to Python values when one of its values is first read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gapless.content.rows import Positions, RowMask
from gapless.model.batch import EventBatch
from gapless.model.ids import PubendId, TopicId
from gapless.model.python_values import column_of, values_of
from gapless.model.schema import Schema
from gapless.model.ticks import Tick, TickArray
from gapless.protocol.sessions.arrivals import ArrivedRows

if TYPE_CHECKING:
    from gapless.client.subscription import Subscription


class Names:
    """The column names of a topic, and the index of each."""

    __slots__ = ("arrow", "names", "places", "schema")

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.arrow = schema.arrow()
        self.names = tuple(column.name for column in schema.columns)
        self.places = {name: at for at, name in enumerate(self.names)}


class Chunk(ArrivedRows):
    """Rows that arrived together, some of which the program has already taken."""

    __slots__ = ("_columns", "_lists", "_values", "names", "owner")

    def __init__(
        self,
        owner: Subscription,
        names: Names,
        ticks: TickArray,
        pubends: Sequence[PubendId],
        source: Positions | None,
        *,
        columns: pa.RecordBatch | None = None,
        values: list[tuple[object, ...]] | None = None,
    ) -> None:
        """Row r is an event of `pubends[source[r]]`; `source` is None if there is only one pubend."""
        super().__init__(ticks, pubends, source)
        self.owner = owner
        self.names = names
        self._columns = columns
        self._values = values
        self._lists: list[list[Any] | None] = [None] * len(names.names)

    def value(self, row: int, name: str) -> Any:
        """One value. Raises KeyError."""
        place = self.names.places[name]
        if self._values is not None:
            return self._values[row][place]
        values = self._lists[place]
        if values is None:
            assert self._columns is not None
            values = self._lists[place] = values_of(self._columns.column(place))
        return values[row]

    def columns(self) -> pa.RecordBatch:
        """All rows as columns."""
        if self._columns is None:
            assert self._values is not None
            arrays = [
                column_of(values, field.type)
                for field, values in zip(self.names.arrow, zip(*self._values, strict=True), strict=True)
            ]
            self._columns = pa.RecordBatch.from_arrays(arrays, schema=self.names.arrow)
        return self._columns

    def where(self, wanted: RowMask) -> Chunk:
        """The wanted rows only; they use the credit of all rows."""
        if wanted.all():
            return self
        at = np.flatnonzero(wanted)
        chunk = Chunk(
            self.owner,
            self.names,
            self.ticks[at],
            self.pubends,
            None if self.source is None else self.source[at],
            columns=None if self._columns is None else self._columns.take(pa.array(at)),
            values=None if self._values is None else [self._values[row] for row in at.tolist()],
        )
        chunk.credit = self.credit
        return chunk


class Event(Mapping[str, Any]):
    """One event: a value for each column by its name, and `pubend`, `tick` and `topic`."""

    __slots__ = ("_chunk", "_row")

    def __init__(self, chunk: Chunk, row: int) -> None:
        self._chunk = chunk
        self._row = row

    @property
    def pubend(self) -> PubendId:
        """The pubend it was published to. Pubend and tick identify the event, everywhere and for ever."""
        return self._chunk.pubend(self._row)

    @property
    def tick(self) -> Tick:
        """When it was published, in microseconds since 1970; ticks of a pubend strictly ascend."""
        return int(self._chunk.ticks[self._row])

    @property
    def topic(self) -> TopicId:
        """The topic it was published to."""
        return self._chunk.names.schema.topic

    async def ack(self) -> None:
        """Acknowledge this event: it will not be delivered again."""
        self._chunk.owner.ack_rows(self._chunk, self._row, self._row + 1)

    def __getitem__(self, name: str) -> Any:
        return self._chunk.value(self._row, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._chunk.names.names)

    def __len__(self) -> int:
        return len(self._chunk.names.names)

    def __repr__(self) -> str:
        return f"Event({self.pubend} {self.tick} {dict(self)})"


class Batch:
    """Events that arrived together, as columns."""

    __slots__ = ("chunk", "start", "ticks")

    def __init__(self, chunk: Chunk, start: int) -> None:
        self.chunk = chunk
        self.start = start
        #: The tick of each row.
        self.ticks = chunk.ticks[start:]

    @property
    def columns(self) -> pa.RecordBatch:
        """The values, as an Arrow record batch."""
        columns = self.chunk.columns()
        return columns.slice(self.start) if self.start else columns

    def __len__(self) -> int:
        return len(self.ticks)

    @property
    def topic(self) -> TopicId:
        """The topic they were published to."""
        return self.chunk.names.schema.topic

    @property
    def pubends(self) -> list[PubendId]:
        """The pubend of each row."""
        return self.chunk.row_pubends()[self.start :]

    def __iter__(self) -> Iterator[Event]:
        return (Event(self.chunk, row) for row in range(self.start, self.chunk.size))

    def by_pubend(self) -> dict[PubendId, EventBatch]:
        """The events of each pubend, in tick order."""
        if self.chunk.source is None:
            return {self.chunk.pubends[0]: EventBatch(self.ticks, self.columns)}
        source = self.chunk.source[self.start :]
        whole = EventBatch(self.ticks, self.columns)
        return {self.chunk.pubends[at]: whole.where(source == at) for at in np.unique(source).tolist()}

    def to_arrow(self) -> pa.Table:
        """The columns, preceded by the pubend and tick of each event: `_pubend` and `_tick`."""
        table = pa.Table.from_batches([self.columns])
        pubends = pa.array(self.pubends, pa.string()).dictionary_encode()
        return table.add_column(0, "_pubend", pubends).add_column(1, "_tick", pa.array(self.ticks))

    async def ack(self) -> None:
        """Acknowledge these events: they will not be delivered again."""
        self.chunk.owner.ack_rows(self.chunk, self.start, self.chunk.size)
