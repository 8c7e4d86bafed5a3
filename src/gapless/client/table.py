"""What does a live table hold? The rows of a relation as of its newest marker.

Only changed rows arrive, with their keys. They wait for the marker that follows them, which says which base
events they include. A state is an immutable table; the next one is derived from it with a few array
operations, whatever the number of rows. A reader compares two states, so a slow one gets fewer and larger
changes instead of a growing queue.

A marker may have a stamp, the sum of the stamps of all rows shown (see `gapless.views.registry`). A state
with another sum lacks rows that have been superseded since, and is not shown: the next one will be complete.
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
from gapless.model.python_values import rows_of
from gapless.model.schema import Schema
from gapless.model.ticks import Tick
from gapless.views.registry import AS_OF, KEY, KIND, MARKER, OWN_COLUMNS, SHOWN, STAMP, parsed_as_of

#: The number of the state in which a row arrived.
_SINCE = "gapless_since"

AsOf: TypeAlias = Mapping[TopicId, Mapping[PubendId, Tick]]


@dataclass(frozen=True, slots=True)
class State:
    """The rows of a table, exactly as of a horizon."""

    #: States are numbered from 1; 0 before there is any.
    number: int
    #: The columns of the view, preceded by the key of each row and the state in which it arrived.
    table: pa.Table
    #: Per base topic and pubend, the tick below which every event is included.
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
    """The difference between a state and a later one."""

    #: New rows, and the new values of changed rows.
    added: pa.Table
    #: Removed rows, and the old values of changed rows.
    removed: pa.Table
    #: The horizon of the later state.
    as_of: AsOf

    def __len__(self) -> int:
        return int(self.added.num_rows + self.removed.num_rows)

    def rows(self) -> list[tuple[int, dict[str, Any]]]:
        """Each row with its weight: first -1 for removed rows, then +1 for added ones."""
        return [
            *((-1, row) for row in rows_of(self.removed)),
            *((+1, row) for row in rows_of(self.added)),
        ]


class RelationState:
    """Applies the updates of a relation. `shown` is the newest complete state."""

    def __init__(self, schema: Schema, condition: Condition | None = None, *, is_part: bool = False) -> None:
        """Show only rows that the condition accepts.

        `is_part` says that only a part of the relation arrives, so that its sum cannot be checked.
        """
        self._condition = condition
        self._is_part = is_part
        fields = [each for each in schema.arrow() if each.name not in OWN_COLUMNS]
        own = [pa.field(KEY, pa.string()), pa.field(STAMP, pa.int64()), pa.field(_SINCE, pa.int64())]
        self._schema = pa.schema([*own, *fields])
        self._waiting: list[pa.RecordBatch] = []
        #: All rows as of the last marker, whether that state is complete or not.
        self._rows: pa.Table = self._schema.empty_table()
        self._number = 0
        self.shown = State(0, self._select(self._rows))

    def take(self, rows: pa.RecordBatch) -> bool:
        """Apply rows of the relation; return whether there is a new state to show."""
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
            # A malformed marker: wait for the next one.
            return False
        self.shown = State(self._number, self._select(self._rows), horizon)
        return True

    def _merged(self, changed: pa.Table) -> pa.Table:
        """All rows, with changed ones replacing their old values."""
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
        # 64-bit sums wrap around, here and where they were computed.
        with np.errstate(over="ignore"):
            return int(stamps.to_numpy().sum(dtype=np.int64)) == stamp

    def _select(self, rows: pa.Table) -> pa.Table:
        rows = rows.drop_columns([STAMP])
        if self._condition is None or not rows.num_rows:
            return rows
        [batch] = rows.to_batches()
        return rows.filter(pa.array(mask(self._condition, Rows(batch))))


def between(before: State, after: State) -> Change:
    """The difference between a state and a later one."""
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
