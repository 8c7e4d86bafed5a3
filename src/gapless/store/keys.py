"""Which rows are superseded? The newest tick of each key, and the ticks of the rows that newer ones replace.

For `newest(...)` a row supersedes the previous row of its key as soon as it is durable. For `relation(...)`
it does so when the *marker* after it is durable: until then the rows before the last marker count, because a
reader applies rows when their marker comes. Of the markers themselves the newest is alive.

A row wrongly called alive costs a reader a stale row followed by a newer one. A row wrongly called superseded
would be lost. So rows that cannot be tracked count as alive.
"""

from __future__ import annotations

from itertools import compress, count, islice, repeat
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gapless.model.batch import EventBatch
from gapless.model.ticks import TICK_MIN, Tick, TickArray
from gapless.store.retention import Keep, Retention
from gapless.views.registry import KIND, MARKER

#: Maximum number of tracked keys; rows of any others are kept for ever.
KEYS_MAX = 5_000_000
#: Maximum number of rows waiting for their marker; any others are kept for ever.
WAITING_ROWS_MAX = 5_000_000

_NEVER = TICK_MIN - 1
_EMPTY = np.empty(0, dtype=np.int64)


class KeyIndex:
    """The keys of one log. Batches are added in tick order; any number of threads may read concurrently."""

    def __init__(self, retention: Retention) -> None:
        assert retention.columns, f"'{retention}' names no key"
        self._columns = retention.columns
        self._is_relation = retention.keep is Keep.RELATION
        #: The index of each key in `_newest`, which has the tick of its newest row.
        self._place: dict[Any, int] = {}
        self._newest: TickArray = _EMPTY
        #: For a relation: the keys and ticks of the rows after the last marker, and that marker's tick.
        self._waiting: list[tuple[list[Any], TickArray]] = []
        self._waiting_rows = 0
        self._marker: Tick | None = None
        #: Ascending ticks of superseded rows still in the log, in a few immutable arrays.
        self._dead: tuple[TickArray, ...] = ()
        #: Guards changes of `_dead`.
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._place)

    def add(self, batch: EventBatch) -> None:
        """Rows became durable."""
        if not self._is_relation:
            self._supersede(_keys(batch.columns, self._columns), batch.ticks)
            return
        kinds = batch.columns.column(KIND).to_numpy(zero_copy_only=False)
        markers = np.flatnonzero(kinds == MARKER)
        committed = int(markers[-1]) + 1 if len(markers) else 0
        self._wait(batch.slice(0, committed), kinds[:committed] != MARKER)
        if committed:
            waiting, self._waiting, self._waiting_rows = self._waiting, [], 0
            for keys, ticks in waiting:
                self._supersede(keys, ticks)
            before = _EMPTY if self._marker is None else np.array([self._marker], dtype=np.int64)
            self._bury(np.concatenate([before, batch.ticks[markers[:-1]]]))
            self._marker = int(batch.ticks[markers[-1]])
        self._wait(batch.slice(committed, len(batch)), kinds[committed:] != MARKER)

    def alive(self, ticks: TickArray) -> npt.NDArray[np.bool_]:
        """Which of these ascending ticks do not belong to superseded rows."""
        alive = np.ones(len(ticks), dtype=np.bool_)
        for dead in self._dead:
            low, high = np.searchsorted(dead, (ticks[0], ticks[-1] + 1)) if len(ticks) else (0, 0)
            if low < high:
                within = dead[low:high]
                at = np.searchsorted(within, ticks)
                at[at == len(within)] = 0
                alive &= within[at] != ticks
        return alive

    def dead_between(self, start: Tick, stop: Tick) -> TickArray:
        """The ticks of superseded rows in `start..stop`, ascending."""
        parts = []
        for dead in self._dead:
            low, high = np.searchsorted(dead, (start, stop))
            parts.append(dead[low:high])
        return np.sort(np.concatenate(parts)) if parts else _EMPTY

    @property
    def dead(self) -> int:
        """How many superseded rows are still in the log."""
        return sum(map(len, self._dead))

    def forget(self, deleted: TickArray) -> None:
        """Superseded rows with these ascending ticks were deleted from the log."""
        if not len(deleted):
            return
        with self._lock:
            left = (dead[~np.isin(dead, deleted, assume_unique=True)] for dead in self._dead)
            self._dead = tuple(each for each in left if len(each))

    def _wait(self, batch: EventBatch, is_row: npt.NDArray[np.bool_]) -> None:
        """Adds rows of a relation whose marker has not come yet."""
        if not is_row.any() or self._waiting_rows >= WAITING_ROWS_MAX:
            return
        rows = batch.where(is_row)
        keys = _keys(rows.columns, self._columns)
        # A row without a key replaces nothing and is never replaced.
        if rows.columns.column(self._columns[0]).null_count:
            named = [key is not None for key in keys]
            keys, ticks = list(compress(keys, named)), rows.ticks[np.array(named)]
        else:
            ticks = rows.ticks
        self._waiting.append((keys, ticks))
        self._waiting_rows += len(keys)

    def _supersede(self, keys: list[Any], ticks: TickArray) -> None:
        places = self._places(keys)
        if len(places) and places.min() < 0:
            known = places >= 0
            places, ticks = places[known], ticks[known]
        before = self._newest[places]
        # A key may occur twice in one batch: its last row is the newest.
        self._newest[places] = ticks
        repeated = self._newest[places] != ticks
        self._bury(np.concatenate([before[before != _NEVER], ticks[repeated]]))

    def _places(self, keys: list[Any]) -> npt.NDArray[np.int64]:
        """The index of each key in the arrays; a new key gets one, if there is room.

        The cost of this is looking up a million keys, so known ones are looked up once.
        """
        place = self._place
        places = np.fromiter(map(place.get, keys, repeat(-1)), dtype=np.int64, count=len(keys))
        fresh = np.flatnonzero(places < 0)
        if len(fresh):
            unknown = [keys[at] for at in fresh.tolist()]
            room = max(KEYS_MAX - len(place), 0)
            place.update(zip(islice(dict.fromkeys(unknown), room), count(len(place)), strict=False))
            places[fresh] = np.fromiter(map(place.get, unknown, repeat(-1)), dtype=np.int64, count=len(fresh))
            if len(place) > len(self._newest):
                more = np.full(max(len(place), 2 * len(self._newest)) - len(self._newest), _NEVER)
                self._newest = np.concatenate([self._newest, more])
        return places

    def _bury(self, ticks: TickArray) -> None:
        if not len(ticks):
            return
        with self._lock:
            arrays = [*self._dead, np.unique(ticks)]
            # Each is at least twice as long as the next, so there are few, and each tick rarely moves.
            while len(arrays) > 1 and len(arrays[-2]) < 2 * len(arrays[-1]):
                last = arrays.pop()
                arrays[-1] = np.sort(np.concatenate([arrays[-1], last]))
            self._dead = tuple(arrays)


def _keys(columns: pa.RecordBatch, names: tuple[str, ...]) -> list[Any]:
    """The key of each row, as something that can be hashed."""
    lists = [_values(columns.column(name)) for name in names]
    return lists[0] if len(lists) == 1 else list(zip(*lists, strict=True))


def _values(column: pa.Array) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        # Converting timestamps to Python objects is slow; their integers do as well.
        column = column.cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values
