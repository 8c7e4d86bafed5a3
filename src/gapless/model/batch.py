"""What is a batch of events? Ticks beside Arrow columns, cut and joined without touching single rows.

The batch is the unit of work everywhere: it is published, logged, filtered and delivered as a whole.
An optional opaque body is just one more column. Batches are immutable.

Implements docs/protocol.md, section 1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import is_
from typing import Any, Final, TypeVar
from weakref import ref

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gapless.model.packed import PackedRows, put_together
from gapless.model.ticks import Tick, TickArray

Made = TypeVar("Made")

#: Cached results are kept for this many batches, and this many rows in all.
KEPT_BATCHES_MAX: Final = 64
KEPT_ROWS_MAX: Final = 131_072


class EventBatch:
    """Events of one pubend in tick order: `ticks[i]` is the tick of row i of `columns`.

    A few rows may be `packed`; their columns are then made on demand.
    """

    __slots__ = (
        "__weakref__",
        "_arrays",
        "_columns",
        "_derived",
        "_most",
        "_nbytes",
        "encoded",
        "packed",
        "ticks",
    )

    def __init__(
        self,
        ticks: TickArray,
        rows: pa.RecordBatch | PackedRows,
        nbytes: int | None = None,
        encoded: memoryview | None = None,
        most: int | None = None,
    ) -> None:
        """`nbytes` is its size, and `encoded` the columns as an Arrow message, when already known.

        When `nbytes` is only an estimate, `most` is an upper bound.
        """
        assert len(ticks) == rows.num_rows, f"{len(ticks)} ticks for {rows.num_rows} rows"
        #: Strictly ascending.
        self.ticks = ticks
        #: The bytes that the columns were read from, which logs and links reuse; None if not available.
        self.encoded = encoded
        #: The rows as bytes; None when they arrived as columns.
        self.packed: PackedRows | None = None
        self._columns: pa.RecordBatch | None = None
        if isinstance(rows, PackedRows):
            self.packed = rows
        else:
            self._columns = rows
        self._nbytes = nbytes
        #: None when `nbytes` is exact.
        self._most = most
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        self._derived: dict[Callable[[pa.RecordBatch], Any], Any] = {}

    @staticmethod
    def of(ticks: Sequence[Tick], columns: Mapping[str, Sequence[object]]) -> EventBatch:
        """A batch from plain lists, for tests and examples."""
        return EventBatch(np.asarray(ticks, dtype=np.int64), pa.RecordBatch.from_pydict(dict(columns)))

    @property
    def columns(self) -> pa.RecordBatch:
        """The rows as columns."""
        found = self._columns
        if found is None:
            assert self.packed is not None
            _computed.add(self)
            found = self._columns = self.packed.columns()
        return found

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        return self.columns.schema if self.packed is None else self.packed.schema

    @property
    def _rows(self) -> pa.RecordBatch | PackedRows:
        """The rows as they are kept."""
        return self.columns if self.packed is None else self.packed

    def __len__(self) -> int:
        return len(self.ticks)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EventBatch):
            return NotImplemented
        return bool(np.array_equal(self.ticks, other.ticks)) and self.columns.equals(other.columns)

    __hash__ = None  # type: ignore[assignment]  # a batch is a value, but too big a one to hash

    @property
    def nbytes(self) -> int:
        """The size of the batch in memory, for bounds; for a part of a batch, its share by rows.

        Computed on first use: it takes a while.
        """
        if self._nbytes is None:
            # Rows that become columns later take about twice as much; that is rare, and does not last.
            self._nbytes = self._rows.nbytes + self.ticks.nbytes
        return self._nbytes

    def weighed(self) -> EventBatch:
        """The batch itself, with an exact `nbytes` from now on: one large row may be most of it."""
        if self._most is not None:
            self._nbytes = self._most = None
        return self

    def weighs_at_most(self, bytes_max: int) -> bool:
        """Whether it is at most this large. Computes the exact size only if the estimate does not decide."""
        most = self.nbytes if self._most is None else self._most
        return most <= bytes_max or (self._most is not None and self.weighed().nbytes <= bytes_max)

    @property
    def first(self) -> Tick:
        """The tick of the first event; the batch must not be empty."""
        return int(self.ticks[0])

    @property
    def last(self) -> Tick:
        """The tick of the last event; the batch must not be empty."""
        return int(self.ticks[-1])

    def array(self, name: str) -> npt.NDArray[Any]:
        """A column as a read-only NumPy array, converted once.

        Nulls become NaN or None, as Arrow defines. So a null turns its whole column of integers into
        floats, and integers beyond 2**53 are rounded then: compare such columns with Arrow.
        """
        found = self._arrays.get(name)
        if found is None:
            _computed.add(self)
            found = self._arrays[name] = self.columns.column(name).to_numpy(zero_copy_only=False)
            found.flags.writeable = False
        return found

    def derived(self, make: Callable[[pa.RecordBatch], Made]) -> Made:
        """The result of `make(columns)`, computed once: all users of a batch share it.

        It is kept while the batch is one of those used last. It may take many times the memory of the batch,
        and counts towards no bound.
        """
        found: Made | None = self._derived.get(make)
        if found is None:
            _computed.add(self)
            found = self._derived[make] = make(self.columns)
        return found

    def _forget_computed(self) -> None:
        """Drop everything that can be recomputed."""
        if self._derived:
            self._derived = {}
        if self._arrays:
            self._arrays = {}
        if self.packed is not None:
            self._columns = None

    def between(self, start: Tick, stop: Tick) -> EventBatch:
        """The events with ticks in `start..stop`; shares memory with this batch."""
        if len(self.ticks) and start <= self.ticks[0] and self.ticks[-1] < stop:
            return self
        low, high = np.searchsorted(self.ticks, (start, stop))
        return self.slice(int(low), int(high))

    def slice(self, start: int, stop: int) -> EventBatch:
        """The rows `start..stop` by position; shares memory with this batch."""
        stop = min(max(start, stop), len(self.ticks))
        if start == 0 and stop == len(self.ticks):
            return self
        rows = self._rows.slice(start, max(stop - start, 0))
        return EventBatch(self.ticks[start:stop], rows, self._share(stop - start), most=self._heaviest)

    def where(self, mask: npt.NDArray[np.bool_]) -> EventBatch:
        """The rows that `mask` marks; the batch itself when it marks them all."""
        assert len(mask) == len(self), f"a mask of {len(mask)} rows for a batch of {len(self)}"
        if mask.all():
            return self
        at = np.flatnonzero(mask)
        return EventBatch(self.ticks[at], self._taken(at), self._share(len(at)), most=self._heaviest)

    def take(self, rows: npt.NDArray[np.int64]) -> EventBatch:
        """The rows at these positions, in this order."""
        return EventBatch(self.ticks[rows], self._taken(rows), self._share(len(rows)), most=self._heaviest)

    def _taken(self, at: npt.NDArray[np.int64]) -> pa.RecordBatch | PackedRows:
        if self.packed is not None:
            return self.packed.take(at.tolist())
        return self.columns.take(pa.array(at))

    def _share(self, rows: int) -> int | None:
        if self._nbytes is None or self.packed is not None:
            return None
        return -(-self._nbytes * max(rows, 0) // max(len(self.ticks), 1))

    @property
    def _heaviest(self) -> int | None:
        """Upper bound of the size of a part, where that is estimated."""
        if self._nbytes is None or self.packed is not None:
            return None
        return self._nbytes if self._most is None else self._most

    def pieces(self, rows_max: int) -> list[EventBatch]:
        """The same events in order, in batches of at most `rows_max` rows."""
        return [self.slice(at, min(len(self), at + rows_max)) for at in range(0, len(self), rows_max)]

    @staticmethod
    def joined(batches: Sequence[EventBatch]) -> EventBatch:
        """One batch of all rows in tick order; of two rows with one tick, the first is kept.

        There must be at least one batch, even an empty one: it determines the columns.
        """
        assert batches, "no batches to join"
        if len(batches) == 1:
            return batches[0]
        ticks = np.concatenate([batch.ticks for batch in batches])
        whole = EventBatch(
            ticks,
            put_together([batch._rows for batch in batches]),
            sum(batch.nbytes for batch in batches),
            most=_most_of_all(batches),
        )
        if np.all(ticks[1:] > ticks[:-1]):
            return whole
        _, at = np.unique(ticks, return_index=True)
        return whole.take(at)

    def check(self) -> None:
        """Raise if ticks are not strictly ascending."""
        assert bool(np.all(self.ticks[1:] > self.ticks[:-1])), "ticks of a batch must ascend"

    def __repr__(self) -> str:
        span = f" {self.first}..{self.last + 1}" if len(self) else ""
        return f"EventBatch({len(self)} events{span})"


class _Computed:
    """The batches with cached results; older ones drop theirs."""

    __slots__ = ("_batches", "_rows")

    def __init__(self) -> None:
        self._batches: deque[tuple[ref[EventBatch], int]] = deque()
        self._rows = 0

    def add(self, batch: EventBatch) -> None:
        """A result of a batch is about to be computed. The previous call may have been for the same batch."""
        batches = self._batches
        if batches and batches[-1][0]() is batch:
            return
        batches.append((ref(batch), len(batch)))
        self._rows += len(batch)
        while len(batches) > 1 and (len(batches) > KEPT_BATCHES_MAX or self._rows > KEPT_ROWS_MAX):
            reference, rows = batches.popleft()
            self._rows = self._rows - rows if len(batches) > 1 else len(batch)
            old = reference()
            if old is not None and old is not batch:
                old._forget_computed()


_computed = _Computed()


def _most_of_all(batches: Sequence[EventBatch]) -> int | None:
    """Upper bound of the size of batches together; None when the sizes are exact."""
    if all(batch._most is None for batch in batches):
        return None
    return sum(batch.nbytes if batch._most is None else batch._most for batch in batches)


class LastJoined:
    """Joins batches, and returns the same result to all callers that ask for those joined last."""

    __slots__ = ("_parts", "_whole")

    def __init__(self) -> None:
        self._parts: Sequence[EventBatch] = ()
        self._whole: EventBatch | None = None

    def joined(self, batches: Sequence[EventBatch]) -> EventBatch:
        """See `EventBatch.joined`."""
        if len(batches) == 1:
            return batches[0]
        if self._whole is None or len(batches) != len(self._parts) or not all(map(is_, batches, self._parts)):
            self._parts, self._whole = batches, EventBatch.joined(batches)
        return self._whole

    def forget(self) -> None:
        """Drop the last result."""
        self._parts, self._whole = (), None


def gathered(
    batches: Iterable[EventBatch],
    rows_max: int,
    bytes_max: int,
    parts_max: int = 2**62,
    joined: Callable[[Sequence[EventBatch]], EventBatch] = EventBatch.joined,
) -> Iterator[EventBatch]:
    """The same rows in fewer and larger batches, up to these limits, unless they were larger before.

    At most `parts_max` are joined into one, by `joined`.

    >>> small = [EventBatch.of([tick], {"a": [tick]}) for tick in range(5)]
    >>> [batch.ticks.tolist() for batch in gathered(small, 2, 1_000)]
    [[0, 1], [2, 3], [4]]
    """
    parts: list[EventBatch] = []
    rows = size = 0
    for batch in batches:
        full = rows + len(batch) > rows_max or size + batch.nbytes > bytes_max or len(parts) >= parts_max
        if parts and full:
            yield joined(parts)
            parts, rows, size = [], 0, 0
        parts.append(batch)
        rows, size = rows + len(batch), size + batch.nbytes
    if parts:
        yield joined(parts)
