"""What does the pipeline remember of a relation? Its rows by key, so that only real changes are passed on.

Rows are kept as Arrow columns, never as Python objects. Changed rows are appended; an array has the position
of the newest row of each key, and when more rows are dead than alive the columns are copied without them. So
the cost of a batch depends on its own size, not on the number of rows: its keys are looked up one by one when
they are few, and all at once when they are a good part of all.

The result is a `Delta`: removed rows and added rows. With weights -1 and +1 it feeds linear operators; as
rows with keys it feeds subscribers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gapless.views.registry import KEY

#: Minimum number of dead rows that are worth a copy.
DEAD_ROWS_MIN = 10_000
#: From this many keys on, if they are this share of all, they are looked up together.
MANY_KEYS = 1_000
MANY_SHARE = 16
_ABSENT = -1

Mask = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Delta:
    """How a relation changed: removed and added rows, both with their keys."""

    old: pa.Table
    new: pa.Table
    #: The keys that no longer have a row.
    gone: pa.Array

    def __bool__(self) -> bool:
        return bool(self.old.num_rows or self.new.num_rows)


class KeyedRows:
    """The rows of a relation, each with its key text in the column `gapless_key`."""

    def __init__(self, schema: pa.Schema, *, ignored: Collection[str] = (KEY,)) -> None:
        """`schema` includes the key; rows that differ only in `ignored` columns are equal."""
        self.schema = schema
        self._compared = [name for name in schema.names if name not in ignored]
        self._log = schema.empty_table()
        #: The keys by number, in pieces; their count; and the position of the row of each in the log.
        self._keys: list[pa.Array] = []
        self._count = 0
        self._places: Places = np.empty(0, np.int64)
        self._alive = 0
        #: The number of each key, for small batches; None until it is built.
        self._numbers: dict[str, int] | None = None

    def __len__(self) -> int:
        return self._alive

    def table(self) -> pa.Table:
        """All rows, in the order of the first appearance of their keys."""
        places = self._places[: self._count]
        return self._log.take(pa.array(places[places != _ABSENT]))

    def put(self, rows: pa.Table) -> None:
        """Take these rows, replacing any of their keys."""
        self.apply(rows, np.ones(rows.num_rows, np.bool_), compared=False)

    def keys_besides(self, keys: pa.ChunkedArray) -> pa.Array:
        """The keys of rows that are not among these."""
        own = self.table().column(KEY)
        return own.filter(pc.invert(pc.is_in(own, value_set=combined(keys)))).combine_chunks()

    def apply(self, rows: pa.Table, visible: Mask, *, compared: bool = True) -> Delta:
        """Take the newest version of rows; invisible ones are removed.

        An unchanged row is not a change. Each key comes once. Without `compared` every row counts as a
        change, and the old rows are not looked up.
        """
        rows = rows.select(self.schema.names).cast(self.schema)
        numbers = self._numbered(rows.column(KEY))
        before = self._places[numbers]
        was = before != _ABSENT
        old_places = before[was]
        changed = np.ones(rows.num_rows, np.bool_)
        old = self._log.take(pa.array(old_places)) if compared else self.schema.empty_table()
        if compared:
            same = _same(old, rows.filter(pa.array(was)), self._compared)
            changed[was] = ~same | ~visible[was]
            old = old.filter(pa.array(changed[was]))
        gone = was & ~visible
        come = visible & changed
        new = rows.filter(pa.array(come))
        self._places[numbers[gone]] = _ABSENT
        self._places[numbers[come]] = self._log.num_rows + np.arange(new.num_rows)
        self._log = pa.concat_tables([self._log, new])
        self._alive += int(np.count_nonzero(come & ~was)) - int(np.count_nonzero(gone))
        self._clean()
        return Delta(old, new, combined(rows.column(KEY)).filter(pa.array(gone)))

    def _numbered(self, keys: pa.ChunkedArray) -> Places:
        """The number of each key; new keys get one."""
        texts = combined(keys)
        few = len(texts) < max(MANY_KEYS, self._count // MANY_SHARE)
        numbers = self._one_by_one(texts) if few else self._together(texts)
        new = numbers == _ABSENT
        if new.any():
            fresh = pc.dictionary_encode(texts.filter(pa.array(new)))
            numbers[new] = self._count + fresh.indices.to_numpy()
            self._know(fresh.dictionary)
        return numbers

    def _one_by_one(self, texts: pa.Array) -> Places:
        if self._numbers is None:
            known = [key for part in self._keys for key in part.to_pylist()]
            self._numbers = dict(zip(known, range(len(known)), strict=True))
        return np.fromiter(map(self._numbers.get, texts.to_pylist(), repeat(_ABSENT)), np.int64, len(texts))

    def _together(self, texts: pa.Array) -> Places:
        """The same for many keys: Arrow hashes all known ones, which is faster than many calls."""
        if len(self._keys) != 1:
            self._keys = [pa.concat_arrays([pa.array([], pa.string()), *self._keys])]
        found = pc.fill_null(pc.index_in(texts, value_set=self._keys[0]), _ABSENT)
        numbers: Places = found.to_numpy().astype(np.int64)
        return numbers

    def _know(self, keys: pa.Array) -> None:
        """Give new keys the next numbers."""
        if self._numbers is not None and len(keys) < MANY_KEYS:
            self._numbers.update(
                zip(keys.to_pylist(), range(self._count, self._count + len(keys)), strict=True)
            )
        else:
            self._numbers = None
        self._keys.append(keys)
        self._count += len(keys)
        if self._count > len(self._places):
            grown = np.full(max(1024, 2 * self._count), _ABSENT, np.int64)
            grown[: len(self._places)] = self._places
            self._places = grown

    def _clean(self) -> None:
        """Drop dead rows, and keys without rows, when they are the larger part."""
        if self._log.num_rows - self._alive <= max(DEAD_ROWS_MIN, self._alive):
            return
        self._log = self.table().combine_chunks()
        self._keys = [combined(self._log.column(KEY))]
        self._count = self._log.num_rows
        self._numbers = None
        self._places = np.arange(self._count, dtype=np.int64)


def combined(column: pa.ChunkedArray) -> pa.Array:
    """A column in one piece."""
    chunk = column.combine_chunks()
    return chunk if isinstance(chunk, pa.Array) else pa.concat_arrays(chunk.chunks)


def _same(left: pa.Table, right: pa.Table, names: Iterable[str]) -> Mask:
    """For each row, whether it has the same values in both tables; nulls are equal, and so are NaNs."""
    same = np.ones(left.num_rows, np.bool_)
    for name in names:
        same &= same_values(combined(left.column(name)), combined(right.column(name)))
    return same


def same_values(left: pa.Array, right: pa.Array) -> Mask:
    """For each position, whether both have the same value."""
    equal = pc.fill_null(pc.equal(left, right), False)
    same: Mask = pc.or_(equal, pc.and_(pc.is_null(left), pc.is_null(right))).to_numpy(zero_copy_only=False)
    if pa.types.is_floating(left.type):
        same |= pc.fill_null(pc.and_(pc.is_nan(left), pc.is_nan(right)), False).to_numpy(zero_copy_only=False)
    return same


def where_mask(column: pa.ChunkedArray) -> Mask:
    """A column of truth values as a mask."""
    mask: Mask = combined(column).to_numpy(zero_copy_only=False).astype(np.bool_)
    return mask


def codes(*tables: pa.Table) -> list[Places]:
    """One number per row, equal where the rows are, in whichever table; nulls are equal to nulls here."""
    whole = pa.concat_tables(tables)
    numbers: Places = np.zeros(whole.num_rows, np.int64)
    for name in whole.schema.names:
        encoded = pc.dictionary_encode(normal(combined(whole.column(name))), null_encoding="encode")
        numbers = numbers * (len(encoded.dictionary) + 1) + encoded.indices.to_numpy(zero_copy_only=False)
        # Kept small, so that any number of columns fits.
        numbers = np.unique(numbers, return_inverse=True)[1].astype(np.int64)
    edges = np.cumsum([table.num_rows for table in tables])[:-1]
    return np.split(numbers, edges)


def normal(values: pa.Array) -> pa.Array:
    """The same values, with minus zero as zero: they are equal and must be one key."""
    return pc.add(values, 0.0) if pa.types.is_floating(values.type) else values
