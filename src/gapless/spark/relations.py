"""What has a view published so far, and what must it publish now? The relation, as its topic has it.

The topic of a view defines what its subscribers hold. So its publisher first reads it, and from then on
publishes only differences. It does not matter why there is a difference: new events, another answer after a
checkpoint was lost, a batch that Spark repeats, a crash between publishing and committing.

Every batch of changes ends with a marker, which names the base events that it includes. Markers never go
back: while a view is recomputed from the beginning, its relation stays as it is until the computation has
reached the newest marker.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gapless.errors import PipelineError
from gapless.model.schema import COLUMN_TYPES, Column
from gapless.spark.state import Delta, KeyedRows, Mask, combined
from gapless.views.limits import ROWS_MAX
from gapless.views.registry import (
    AS_OF,
    GONE,
    KEY,
    KIND,
    MARKER,
    SHOWN,
    STAMP,
    AsOf,
    as_of_text,
    parsed_as_of,
    stamp_of,
)


class Publishes(Protocol):
    """Publishes rows to the topic of a view, in order, and returns when they are durable."""

    def publish_batch(self, data: object, /) -> object:
        """All rows of a table."""


def covers(reached: AsOf, wanted: AsOf) -> bool:
    """Whether a horizon includes everything that another does.

    >>> covers({"t": {"p": 5}}, {"t": {"p": 4}}), covers({"t": {"p": 5}}, {"u": {"q": 1}})
    (True, False)
    """
    return all(
        reached.get(topic, {}).get(pubend, 0) >= tick
        for topic, ticks in wanted.items()
        for pubend, tick in ticks.items()
    )


def met(horizons: list[AsOf]) -> AsOf:
    """The common part of these horizons: the least tick of each pubend."""
    found: dict[object, dict[object, int]] = {}
    for horizon in horizons:
        for topic, ticks in horizon.items():
            known = found.setdefault(topic, {})
            for pubend, tick in ticks.items():
                known[pubend] = min(tick, known.get(pubend, tick))
    return found  # type: ignore[return-value]


class Relation:
    """The relation of one view, of which this process is the only publisher."""

    def __init__(self, name: str, columns: tuple[Column, ...], rows_max: int = ROWS_MAX) -> None:
        self.name = name
        self.columns = columns
        self.rows_max = rows_max
        own = [pa.field(KEY, pa.string()), pa.field(STAMP, pa.int64())]
        fields = [pa.field(each.name, COLUMN_TYPES[each.type]) for each in columns]
        self.rows = KeyedRows(pa.schema([*own, *fields]), ignored=(KEY, STAMP))
        #: The horizon of the newest marker.
        self.as_of: AsOf = {}
        self._stamp = 0
        self._random = np.random.default_rng()
        #: Changes not published yet, in order.
        self._unsaid: list[pa.Table] = []

    @property
    def topic_schema(self) -> pa.Schema:
        """The columns of the topic."""
        return pa.schema([pa.field(KIND, pa.int64()), pa.field(AS_OF, pa.string()), *self.rows.schema])

    def restore(self, snapshot: pa.Table) -> None:
        """Load the rows of the topic: newer versions of a row come after older ones."""
        kinds = snapshot.column(KIND)
        markers = snapshot.filter(pc.equal(kinds, MARKER)).column(AS_OF).to_pylist()
        keyed = snapshot.filter(pc.not_equal(kinds, MARKER))
        # The first of each key, seen from the end.
        turned = keyed.take(pa.array(np.arange(keyed.num_rows)[::-1]))
        codes = pc.dictionary_encode(combined(turned.column(KEY))).indices.to_numpy()
        newest = turned.take(pa.array(np.unique(codes, return_index=True)[1]))
        shown = newest.filter(pc.equal(newest.column(KIND), SHOWN))
        stamps = pc.fill_null(shown.column(STAMP), 0)
        shown = shown.set_column(shown.schema.get_field_index(STAMP), STAMP, stamps)
        self.rows.put(shown.select(self.rows.schema.names))
        self._stamp = _total(stamps)
        if markers:
            self.as_of = parsed_as_of(markers[-1])

    def apply(self, rows: pa.Table, visible: Mask) -> None:
        """Takes changed rows of the view, with their keys: invisible ones are removed."""
        stamps = self._random.integers(-(2**63), 2**63 - 1, rows.num_rows, np.int64)
        delta = self.rows.apply(rows.append_column(STAMP, pa.array(stamps)), visible)
        self._stamp = stamp_of(
            [self._stamp, _total(delta.new.column(STAMP)), -_total(delta.old.column(STAMP))]
        )
        if delta:
            self._unsaid += [self._topic_rows(delta)]
        if len(self.rows) > self.rows_max:
            raise PipelineError(
                "E502",
                f"view '{self.name}' shows {len(self.rows)} rows, at most {self.rows_max}: "
                "group or select more, or allow more rows",
            )

    def replace(self, rows: pa.Table, visible: Mask) -> None:
        """Takes all rows of the view: any others are removed."""
        gone = self.rows.keys_besides(rows.column(KEY))
        self.apply(rows, visible)
        if len(gone):
            absent = [
                pa.nulls(len(gone), each.type) for each in self.rows.schema if each.name not in (KEY, STAMP)
            ]
            names = [each for each in self.rows.schema.names if each != STAMP]
            self.apply(pa.table([gone, *absent], names=names), np.zeros(len(gone), np.bool_))

    def publish(self, publisher: Publishes, as_of: AsOf) -> None:
        """Publish the changes, and a marker; durable when this returns."""
        marker = pa.table(
            {KIND: [MARKER], AS_OF: [as_of_text(as_of)], STAMP: pa.array([self._stamp], pa.int64())}
        )
        publisher.publish_batch(self._complete([*self._unsaid, marker]))
        self._unsaid.clear()
        self.as_of = as_of

    def _topic_rows(self, delta: Delta) -> pa.Table:
        """A change as rows of the topic."""
        shown = delta.new.append_column(KIND, pa.repeat(pa.scalar(SHOWN, pa.int64()), delta.new.num_rows))
        gone = pa.table({KEY: delta.gone, KIND: pa.repeat(pa.scalar(GONE, pa.int64()), len(delta.gone))})
        return pa.concat_tables([shown, gone], promote_options="default")

    def _complete(self, parts: list[pa.Table]) -> pa.Table:
        empty = self.topic_schema.empty_table()
        return pa.concat_tables([empty, *parts], promote_options="permissive").combine_chunks()


def _total(stamps: pa.ChunkedArray) -> int:
    """The sum, wrapping at 64 bits."""
    return int(stamps.to_numpy().sum(dtype=np.int64))
