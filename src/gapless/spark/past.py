"""How does the past of a topic become a table? Archive files that Spark reads directly, and then the log.

A repository archives its log as Parquet files. Where this program sees those files, Spark reads them like any
others: as fast, with its own pruning of columns and row groups. Events still in the log, or in an archive on
another machine, come through `format("gapless")`. For each pubend there is one tick below which its events
come from files, and from which on they come from the node, so that no event is duplicated or missed; the log
may be trimmed and archived in the meantime, because a node finds a range wherever it is by then.

The range is fixed when the table is made: a query that runs twice sees the same events.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F  # noqa: N812  # the usual name
from pyspark.sql.pandas.types import from_arrow_schema

from gapless.client.bulk import Bulk, PubendPast, open_bulk
from gapless.content.language import parse_condition
from gapless.errors import StoreError, UsageError
from gapless.model.ticks import TICK_MAX, Tick
from gapless.spark import register
from gapless.spark.expressions import column
from gapless.spark.options import EARLIEST, NOW, Place, SourceOptions, parse_options
from gapless.views.planning.pushdown import pushed
from gapless.views.relation import Scan
from gapless.views.sql.parse import parse_in_scope, row_scope
from gapless.wire.bulk import OWN_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_BEGINNING: Tick = 0


@dataclass(frozen=True, slots=True)
class Span:
    """What is read of one pubend: the range from files up to `seam`, from the node from there on."""

    pubend: str
    start: Tick
    seam: Tick
    stop: Tick
    #: Files with their first tick and one past their last, for all that is below the seam.
    files: tuple[tuple[str, Tick, Tick], ...] = ()


def history(  # they are the options of the source, as arguments
    spark: SparkSession,
    brokers: str,
    topic: str,
    *,
    where: str = "",
    from_: str | Tick | datetime | None = None,
    to: str | Tick | datetime | None = None,
    columns: Iterable[str] | None = None,
    token: str | None = None,
    ca: str | None = None,
    certificate: str | None = None,
    key: str | None = None,
    gone: bool = False,
    files: bool | str | PathLike[str] | None = None,
) -> DataFrame:
    """The events of a topic as a table: `tick`, `pubend`, and its columns.

    `where` is a condition as for a subscription. `from_` and `to` are `earliest`, `now`, a tick or a time;
    the default is everything up to now. With `gone` a range whose beginning is no longer kept begins later;
    otherwise that is an error. `files` says whether Spark may read archives directly. By default it does in
    local mode on the machine of the node, which tells nobody else where its files are; elsewhere give the
    folder where this program and all executors see the archive of the topic.

    Raises UsageError for invalid arguments, StoreError (E306) for ticks that are no longer kept, LinkError.
    """
    given = {
        "brokers": brokers,
        "topic": topic,
        "where": where,
        "from": _place_text(from_),
        "to": _place_text(to),
        "columns": None if columns is None else ",".join(columns),
        "token": token,
        "ca": ca,
        "certificate": certificate,
        "key": key,
        "gone": "allow" if gone else None,
    }
    named = {name: value for name, value in given.items() if value is not None}
    options = parse_options(named)
    register(spark)
    if files is None:
        files = (spark.conf.get("spark.master", "") or "").startswith("local")
    folder = None if isinstance(files, bool) else str(files)
    with open_bulk(options.brokers, options.topic, token=token, tls=options.tls) as bulk:
        wanted = from_arrow_schema(bulk.arrow(options.columns)).names
        condition = _condition(bulk, options.where)
        accepted = condition if files else None
        pasts = bulk.describe()
        spans = [_span(past, options, folder, seen=accepted is not None) for past in pasts.values()]
        every = bulk.arrow()
    named["from"] = _offset(spans, lambda each: each.seam)
    named["to"] = _offset(spans, lambda each: each.stop)
    parts = [] if accepted is None else _archived(spark, spans, every, accepted)
    parts = [part.select(*(F.col(f"`{name}`") for name in wanted)) for part in parts]
    if not parts or any(each.seam < each.stop for each in spans):
        parts.append(spark.read.format("gapless").options(**named).load())
    return reduce(lambda one, other: one.unionByName(other), parts)


def _place_text(place: str | Tick | datetime | None) -> str | None:
    return place.isoformat() if isinstance(place, datetime) else None if place is None else str(place)


def _offset(spans: list[Span], tick: Callable[[Span], Tick]) -> str:
    return json.dumps({each.pubend: tick(each) for each in spans})


# ---- where a pubend is read --------------------------------------------------------------------------


def _span(past: PubendPast, options: SourceOptions, folder: str | None, *, seen: bool) -> Span:
    """Which part of a pubend is read where. The folder of its files is the node's own unless given."""
    start = max(_tick(options.start, EARLIEST, past), _BEGINNING)
    stop = min(_tick(options.stop, NOW, past), past.known)
    if start < past.oldest and start < stop:
        if not options.gone and options.start != EARLIEST and options.start is not None:
            raise StoreError(
                "E306",
                f"pubend '{past.pubend}' keeps nothing below tick {past.oldest}, and {start} was requested: "
                "begin there, or allow a missing beginning",
            )
        start = past.oldest
    stop = max(start, stop)
    # From there on the log has it; whatever the log deletes before it is read, the archive has.
    seam = max(start, min(stop, past.log_oldest))
    place = folder or past.folder
    files = [
        # Plain names only, so that no path leads elsewhere.
        (str(Path(place, Path(each.file).name)), each.start, each.stop)
        for each in past.archive
        if each.stop > start and each.start < seam
    ]
    if not seen or not place or not all(_is_here(*each) for each in files):
        return Span(past.pubend, start, start, stop)
    return Span(past.pubend, start, seam, stop, tuple(files))


def _tick(place: Place | None, otherwise: str, past: PubendPast) -> Tick:
    place = otherwise if place is None else place
    if isinstance(place, Mapping):
        return place.get(past.pubend, _tick(None, otherwise, past))
    if isinstance(place, str):
        return past.oldest if place == EARLIEST else past.known
    return min(place, TICK_MAX)


def _is_here(file: str, start: Tick, stop: Tick) -> bool:
    """Whether a path on this machine leads to the same file that the node means."""
    try:
        metadata = pq.read_metadata(file)
        if not metadata.num_row_groups:
            return False
        first, last = metadata.row_group(0), metadata.row_group(metadata.num_row_groups - 1)
        ticks = first.column(0).statistics, last.column(0).statistics
        return bool(ticks[0].min == start and ticks[1].max == stop - 1)
    except (OSError, AttributeError, pa.ArrowException):
        return False


# ---- files that Spark reads directly -----------------------------------------------------------------


def _condition(bulk: Bulk, where: str) -> Column | None:
    """The condition as Spark evaluates it on files, if the meaning is the same. Raises ContentError."""
    schema = bulk.schema
    wanted = str(parse_condition(where, schema))
    if wanted == "TRUE":
        return F.lit(True)  # a literal
    if any(each.name in OWN_COLUMNS for each in schema.columns):
        # In files they have other names.
        return None
    try:
        expression = parse_in_scope(where, row_scope(schema.columns))
    except UsageError:
        return None
    text, left = pushed(Scan(schema.topic, schema.columns), [expression])
    return column(expression) if text == wanted and not left else None


def _archived(spark: SparkSession, spans: list[Span], every: pa.Schema, accepted: Column) -> list[DataFrame]:
    """The files below the seams: whole ones unchanged, and those at the ends only in part."""
    schema = from_arrow_schema(every)
    by_bounds: dict[tuple[Tick, Tick] | None, list[str]] = {}
    for span in spans:
        for file, start, stop in span.files:
            is_whole = span.start <= start and stop <= span.seam
            by_bounds.setdefault(None if is_whole else (span.start, span.seam), []).append(file)
    frames: list[DataFrame] = []
    for bounds, files in by_bounds.items():
        frame = spark.read.schema(schema).parquet(*files)
        if bounds is not None:
            frame = frame.where((F.col("tick") >= bounds[0]) & (F.col("tick") < bounds[1]))
        frames.append(frame.where(accepted))
    return frames
