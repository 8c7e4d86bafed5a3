"""What does a live table hold? The rows of a relation as of its newest marker, and what has changed since.

Rows come with their keys, changed ones only, and wait until the marker after them comes: it says of which
base events they are the answer. A state is a table that never changes; the next one is made of it with a few
array operations, whatever the number of rows. So whoever compares two states holds them both, and a reader
that is slow gets fewer and larger changes instead of a queue that grows.

A marker may have a stamp, the sum of the stamps of all rows that are shown (see `gapless.views.registry`). A
state whose own sum is another lacks rows that were superseded meanwhile, and is not shown: the next one will
have them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gapless.content.condition import Condition
from gapless.content.evaluate import mask
from gapless.content.rows import Rows
from gapless.model.ids import PubendId, TopicId
from gapless.model.schema import Schema
from gapless.model.ticks import Tick
from gapless.views.registry import AS_OF, KEY, KIND, MARKER, OWN_COLUMNS, SHOWN, STAMP, parsed_as_of

#: The number of the state that a row came with.
_SINCE = "gapless_since"

AsOf: TypeAlias = Mapping[TopicId, Mapping[PubendId, Tick]]


@dataclass(frozen=True, slots=True)
class State:
    """The rows that are shown, exactly as of a horizon."""

    #: Counts the states from 1 on; 0 before there is any.
    number: int
    #: The columns of the view, with the key of each row and the state that it came with before them.
    table: pa.Table
    #: Of each base topic, per pubend: every event below the tick is accounted for.
    as_of: AsOf = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def horizons(self) -> dict[PubendId, Tick]:
        """The horizon of each pubend, whatever its topic."""
        return {pubend: tick for ticks in self.as_of.values() for pubend, tick in ticks.items()}

    def to_arrow(self) -> pa.Table:
        """The rows, with the columns of the view."""
        return _bare(self.table)


@dataclass(frozen=True, slots=True)
class Change:
    """What has changed from one state to a later one."""

    #: Rows that are shown now and were not before, or with other values.
    added: pa.Table
    #: The rows that are not shown any more, or with other values, as they were.
    removed: pa.Table
    #: The horizon of the later state.
    as_of: AsOf

    def __len__(self) -> int:
        return int(self.added.num_rows + self.removed.num_rows)

    def rows(self) -> list[tuple[int, dict[str, Any]]]:
        """Each row with its weight: -1 for what was shown before, then +1 for what is shown now."""
        return [
            *((-1, row) for row in self.removed.to_pylist()),
            *((+1, row) for row in self.added.to_pylist()),
        ]


class RelationState:
    """Applies what comes of a relation. `shown` is the newest state that is whole."""

    def __init__(self, schema: Schema, condition: Condition | None = None, *, is_part: bool = False) -> None:
        """Of the rows, those are shown that the condition accepts.

        `is_part` says that only a part of the relation comes: then there is no sum to compare with.
        """
        self._condition = condition
        self._is_part = is_part
        fields = [each for each in schema.arrow() if each.name not in OWN_COLUMNS]
        own = [pa.field(KEY, pa.string()), pa.field(STAMP, pa.int64()), pa.field(_SINCE, pa.int64())]
        self._schema = pa.schema([*own, *fields])
        self._waiting: list[pa.RecordBatch] = []
        #: All rows as of the last marker, whether that state is whole or not.
        self._rows: pa.Table = self._schema.empty_table()
        self._number = 0
        self.shown = State(0, self._select(self._rows))

    def take(self, rows: pa.RecordBatch) -> bool:
        """Rows of the relation came; whether there is a new state to show."""
        kinds = rows.column(KIND).to_numpy(zero_copy_only=False)
        start = 0
        is_new = False
        for at in np.flatnonzero(kinds == MARKER).tolist():
            if at > start:
                self._waiting.append(rows.slice(start, at - start))
            start = at + 1
            is_new = self._commit(rows.column(AS_OF)[at].as_py(), rows.column(STAMP)[at].as_py()) or is_new
        if start < rows.num_rows:
            self._waiting.append(rows.slice(start))
        return is_new

    def _commit(self, as_of: str | None, stamp: int | None) -> bool:
        self._number += 1
        if self._waiting:
            self._rows = self._merged(pa.Table.from_batches(self._waiting))
            self._waiting = []
        if as_of is None or not self._is_whole(stamp):
            return False
        try:
            horizon = parsed_as_of(as_of)
        except ValueError:
            # Whoever wrote it does not know what a marker is: the next one may.
            return False
        self.shown = State(self._number, self._select(self._rows), horizon)
        return True

    def _merged(self, changed: pa.Table) -> pa.Table:
        """All rows, with those that have changed in the place of what they were."""
        changed = _last_of_each(changed.filter(pc.is_valid(changed.column(KEY))).combine_chunks())
        keys = changed.column(KEY)
        found = pc.index_in(keys, value_set=self._rows.column(KEY)).drop_null().to_numpy()
        stays = np.ones(self._rows.num_rows, dtype=np.bool_)
        stays[found] = False
        shown = changed.filter(pc.equal(changed.column(KIND), SHOWN))
        since = pa.repeat(pa.scalar(self._number, pa.int64()), shown.num_rows)
        arrived = shown.append_column(_SINCE, since).select(self._schema.names).cast(self._schema)
        stayed = self._rows.filter(pa.array(stays)) if len(found) else self._rows
        return pa.concat_tables([stayed, arrived]).combine_chunks()

    def _is_whole(self, stamp: int | None) -> bool:
        if stamp is None or self._is_part:
            return True
        stamps = self._rows.column(STAMP)
        if stamps.null_count:
            return True
        # Sums of 64 bits go round, here as where they were made.
        with np.errstate(over="ignore"):
            return int(stamps.to_numpy().sum(dtype=np.int64)) == stamp

    def _select(self, rows: pa.Table) -> pa.Table:
        rows = rows.drop_columns([STAMP])
        if self._condition is None or not rows.num_rows:
            return rows
        [batch] = rows.to_batches()
        return rows.filter(pa.array(mask(self._condition, Rows(batch))))


def between(before: State, after: State) -> Change:
    """What has changed from one state to a later one."""
    since = after.table.column(_SINCE).to_numpy()
    added = after.table.filter(pa.array(since > before.number))
    old = before.table.column(KEY)
    stays = pc.is_in(old, value_set=after.table.column(KEY))
    replaced = pc.is_in(old, value_set=added.column(KEY))
    removed = before.table.filter(pc.or_(pc.invert(stays), replaced))
    return Change(_bare(added), _bare(removed), after.as_of)


def _last_of_each(rows: pa.Table) -> pa.Table:
    """The last row of each key."""
    [keys] = rows.column(KEY).chunks or [pa.array([], pa.string())]
    codes: npt.NDArray[np.int32] = keys.dictionary_encode().indices.to_numpy()
    last = np.zeros(int(codes.max()) + 1 if len(codes) else 0, dtype=np.int64)
    last[codes] = np.arange(len(codes))
    return rows if len(last) == len(codes) else rows.take(pa.array(np.sort(last)))


def _bare(table: pa.Table) -> pa.Table:
    return table.drop_columns([KEY, _SINCE])
