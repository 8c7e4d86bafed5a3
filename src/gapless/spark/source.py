"""How does Spark read a topic? `format("gapless")`: ranges of ticks, each read where its events are kept.

An offset is a tick for each pubend. A micro-batch ends at one past the last durable event of each, never
beyond what is known there, so a batch that is run again, after any restart, has the same rows. No state is
kept here: every range is read from the repository, as Arrow batches, by a suitable number of tasks.

The driver asks for the progress of the pubends and the distribution of rows; tasks connect by themselves,
each to the node that has its events, and once per Python worker.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from gapless.client import sync
from gapless.client.bulk import Bulk, BulkPlace, Part, open_bulk
from gapless.errors import GaplessError, LinkError, UsageError, no_pubend
from gapless.model.ticks import Tick
from gapless.spark.options import EARLIEST, NOW, Place, SourceOptions, parse_options
from gapless.spark.pushdown import Pushed, joined, pushed

#: A position in a topic: the next tick of each pubend.
Offset = dict[str, Tick]
#: A pubend that has appeared since an offset was made: all of it is new.
_BEGINNING: Tick = 0
#: How often a stream checks for new pubends of the topic.
FIND_SECONDS = 30.0


@dataclass(frozen=True)
class PubendRange:
    """A range of one pubend."""

    pubend: str
    start: Tick
    stop: Tick


class Ranges(InputPartition):
    """What one task reads."""

    def __init__(self, pieces: Sequence[PubendRange], place: BulkPlace) -> None:
        super().__init__(None)
        self.pieces = tuple(pieces)
        self.place = place


class GaplessSource(DataSource):
    """A topic as a data source of Spark."""

    @classmethod
    def name(cls) -> str:
        """The name in `format(...)`."""
        return "gapless"

    def schema(self) -> StructType:
        """`tick`, `pubend`, and the columns of the topic, or those requested."""
        options = parse_options(self.options)
        with _opened(options) as bulk:
            return from_arrow_schema(bulk.arrow(options.columns))

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  # it is what `schema` returns
        """For `spark.read`."""
        options = parse_options(self.options)
        return PushingReader(options) if options.pushdown else BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802  # Spark's name
        """For `spark.readStream`."""
        options = parse_options(self.options)
        if isinstance(options.stop, str):
            raise UsageError("E178", "option 'to': a stream ends at a tick or at a time, or not at all")
        return StreamReader(options)


class BatchReader(DataSourceReader):
    """One read of a range."""

    def __init__(self, options: SourceOptions) -> None:
        # The earliest events may be released between this query and the read.
        earliest = options.start in (None, EARLIEST)
        self._options = replace(options, gone=True) if earliest else options
        #: The combined filters of Spark.
        self._pushed = Pushed()

    def partitions(self) -> Sequence[InputPartition]:
        """Splits the range into tasks."""
        options, pushed_down = self._options, self._pushed
        with _opened(options) as bulk:
            start = _resolved(bulk, options.start, EARLIEST)
            stop = _resolved(bulk, options.stop, NOW)
            known = {each.pubend: each.known for each in bulk.horizons().values()}
            start = {pubend: max(tick, pushed_down.start) for pubend, tick in start.items()}
            stop = {pubend: min(tick, known[pubend], pushed_down.stop) for pubend, tick in stop.items()}
            return _tasks(bulk, start, stop, options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return _read(partition, self._options)


class PushingReader(BatchReader):
    """One read of a range, with filters of Spark evaluated where the events are.

    Spark plans the read of a DataFrame once and reuses the plan: a second query of the same DataFrame,
    without filters, gets the rows of the first (Spark 4.3). So this is only on request, for a DataFrame of
    one query.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Take the filters that the repository can evaluate; leave the others to Spark."""
        with _opened(self._options) as bulk:
            self._pushed, rest = pushed(filters, bulk.schema)
        self._options = replace(self._options, where=joined(self._options.where, self._pushed.where))
        return rest


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of ranges."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._bulk: Bulk | None = None
        #: When the brokers were last asked for the pubends: there may be new ones.
        self._found = 0.0
        #: The parts of the next micro-batch, if they were planned when its end was chosen.
        self._planned: dict[PubendRange, list[Part]] = {}
        #: The durable subscription that keeps the log for this query, if it has a name.
        self._hold: tuple[sync.SyncClient, sync.SyncHold] | None = None
        #: With Trigger.AvailableNow: where it ends.
        self._target: Offset | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Tasks read by themselves: they need the options, not the driver's connections.
        return StreamReader(self._options).__dict__

    def initialOffset(self) -> Offset:  # noqa: N802  # Spark's name
        """Where a new query begins."""
        start = _resolved(self._opened, self._options.start, NOW)
        self._hold_from(start)
        return start

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """Limits of one micro-batch."""
        rows = self._options.max_rows
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802  # Spark's name
        """Where the next micro-batch ends: `start` itself when there is nothing new."""
        self._hold_from(start)
        self._find_again()
        end = dict(start)
        for pubend, stop in self._ends().items():
            end[pubend] = max(stop, start.get(pubend, _BEGINNING))
        if isinstance(limit, ReadMaxRows):
            end = self._limited(start, end, limit.max_rows)
        return end

    def reportLatestOffset(self) -> Offset:  # noqa: N802  # Spark's name
        """The current end of the topic, to compute the lag."""
        return {each.pubend: each.stop for each in self._opened.horizons().values()}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Read up to the current end, and then stop."""
        self._target = self._ends()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Splits a micro-batch into tasks."""
        planned, self._planned = self._planned, {}
        return _tasks(self._opened, start, end, self._options, planned)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return _read(partition, self._options)

    def commit(self, end: Offset) -> None:
        """Everything below is processed: the network need not keep it for this query."""
        hold = self._hold_from(end)
        if hold is not None:
            hold.acknowledge(end)

    def stop(self) -> None:
        """The query has ended; uncommitted events stay held under its name."""
        if self._hold is not None:
            (client, hold), self._hold = self._hold, None
            try:
                hold.__exit__(None, None, None)
            finally:
                client.__exit__(None, None, None)
        if self._bulk is not None:
            self._bulk.close()
            self._bulk = None

    @property
    def _opened(self) -> Bulk:
        if self._bulk is None:
            self._bulk = _opened(self._options)
        return self._bulk

    def _find_again(self) -> None:
        """Look for new pubends of the topic from time to time."""
        now = time.monotonic()
        if now - self._found > FIND_SECONDS:
            if self._found:
                try:
                    self._opened.find()
                except GaplessError as error:
                    # The old list will do, if no node answers or accepts us.
                    if not error.retry and not isinstance(error, LinkError):
                        raise
            self._found = now

    def _hold_from(self, start: Offset) -> sync.SyncHold | None:
        """The hold of a named query; a new one begins at `start`."""
        options = self._options
        if options.name is None or self._hold is not None:
            return None if self._hold is None else self._hold[1]
        client = sync.connect(options.brokers, token=options.token, tls=options.tls, name="spark").__enter__()
        try:
            hold = client.hold(options.topic, options.name, start).__enter__()
        except BaseException:
            client.__exit__(None, None, None)
            raise
        self._hold = (client, hold)
        return hold

    def _ends(self) -> Offset:
        """One past the last event of each pubend, or the requested end of the query."""
        if self._target is not None:
            return self._target
        stops = {each.pubend: each.stop for each in self._opened.horizons().values()}
        last = self._options.stop
        if isinstance(last, Mapping):
            return {name: min(stop, last.get(name, stop)) for name, stop in stops.items()}
        return stops if not isinstance(last, int) else {name: min(stop, last) for name, stop in stops.items()}

    def _limited(self, start: Offset, end: Offset, rows_max: int) -> Offset:
        """An end before `end` that limits the number of rows; every pubend gets its share."""
        behind = [pubend for pubend in sorted(end) if end[pubend] > start.get(pubend, _BEGINNING)]
        limited = dict(start)
        self._planned = {}
        room = rows_max
        for at, pubend in enumerate(behind):
            share = max(1, room // (len(behind) - at))
            if room <= 0:
                break
            begin = start.get(pubend, _BEGINNING)
            rows = min(share, self._options.rows_per_partition)
            parts = self._opened.plan(pubend, begin, end[pubend], rows=rows, rows_max=share)
            limited[pubend] = parts[-1].stop if parts else begin
            self._planned[PubendRange(pubend, begin, limited[pubend])] = parts
            room -= sum(part.rows for part in parts)
        return limited


def _opened(options: SourceOptions) -> Bulk:
    return open_bulk(options.brokers, options.topic, token=options.token, tls=options.tls)


def _resolved(bulk: Bulk, place: Place | None, otherwise: str) -> Offset:
    """A position such as `earliest` as ticks."""
    place = otherwise if place is None else place
    if isinstance(place, Mapping):
        unknown = sorted(set(place) - set(bulk.pubends))
        if unknown:
            raise no_pubend(unknown[0], bulk.place.topic, bulk.pubends)
        if len(place) == len(bulk.pubends):
            return dict(place)
        return {**_resolved(bulk, None, otherwise), **place}
    if place == NOW:
        return {each.pubend: each.known for each in bulk.horizons().values()}
    if place == EARLIEST:
        return {each.pubend: max(each.oldest, _BEGINNING) for each in bulk.describe().values()}
    assert isinstance(place, int)
    return dict.fromkeys(bulk.pubends, place)


def _tasks(
    bulk: Bulk,
    start: Offset,
    stop: Offset,
    options: SourceOptions,
    planned: Mapping[PubendRange, list[Part]] = MappingProxyType({}),
) -> list[Ranges]:
    """Splits ranges into tasks of about equal size; small ranges of several pubends share a task."""
    rows = options.rows_per_partition
    tasks: list[Ranges] = []
    pieces: list[PubendRange] = []
    count = 0
    for pubend in sorted(stop):
        begin = start.get(pubend, _BEGINNING)
        if begin >= stop[pubend]:
            continue
        parts = planned.get(PubendRange(pubend, begin, stop[pubend]))
        if parts is None:
            parts = bulk.plan(pubend, begin, stop[pubend], rows=rows)
        for part in parts:
            if pieces and count + part.rows > rows:
                tasks.append(Ranges(pieces, bulk.place))
                pieces, count = [], 0
            pieces.append(PubendRange(pubend, part.start, part.stop))
            count += part.rows
    if pieces:
        tasks.append(Ranges(pieces, bulk.place))
    return tasks


#: The open connections of a Spark Python worker, which runs many tasks one after the other.
_OPEN: dict[tuple[str, str, str | None], Bulk] = {}


def _read(partition: InputPartition, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, Ranges):
        # Spark runs one task even if there is none.
        return
    place = partition.place
    key = (place.brokers, place.topic, place.token)
    bulk = _OPEN.get(key)
    if bulk is None or bulk.place != place:
        bulk = _OPEN[key] = Bulk(place)
    for piece in partition.pieces:
        yield from bulk.read(
            piece.pubend,
            piece.start,
            piece.stop,
            where=options.where,
            columns=options.columns,
            history=options.history,
            gone=options.gone,
        )
