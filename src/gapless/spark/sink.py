"""How does Spark write each row to a topic once? A retry has the same publishers and numbers.

Spark retries: a task that failed, a task that is slow, a whole batch that was computed, and perhaps
published, before the driver died. A node stores no publisher's number twice, so a retry only needs the same
publishers, the same numbers, and under each number the same row. A stream's publisher is its query, whose
name is in the checkpoint, and the number of a row is made of its batch and its position there.

Spark does not guarantee the position: after a restart a batch may be cut into other tasks, and after a
shuffle rows come in another order. So a task only checks its rows and hands them to the driver, and the
driver, once it has all rows of a batch, publishes them sorted by their values. Rows that fit one message are
published as they come: the node takes all or none, so their order does not matter. Nothing of a failed batch
is published.

With `publish=tasks` each task publishes its rows, under the name of the query and of its partition. There is
no size limit, and all machines publish in parallel. A task that runs twice is still published once; a batch
that is recomputed after a restart only if it has the same rows in each partition, as after `repartition(8,
*frame.columns)`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import cast
from uuid import uuid4

import pyarrow as pa
from pyarrow import csv
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from gapless.client import sync
from gapless.client.rows import cut
from gapless.errors import SchemaError, UsageError, no_pubend, no_topic
from gapless.model.schema import Schema
from gapless.spark.options import SinkOptions, parse_sink_options
from gapless.spark.source import GaplessSource

#: Bits for the row within a batch; the batch is above them.
BATCH_ROWS_MAX = 2**32
#: Where Spark tells a task its query and its batch.
_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"


class GaplessTopic(GaplessSource):
    """A topic as a data source and a sink of Spark."""

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For `frame.write`."""
        options = parse_sink_options(self.options)
        return BatchWriter(options, _checked(options, schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  # Spark's name
        """For `frame.writeStream`. Spark calls it again for each batch that it commits."""
        options = parse_sink_options(self.options)
        if options.job is not None:
            raise UsageError("E178", "option 'job': only for batch writes; a stream has its checkpoint")
        return StreamWriter(options, _checked(options, schema, overwrite=overwrite))


class Written(WriterCommitMessage):
    """What a task returns to the driver: rows that fit the topic, unless it has published them."""

    def __init__(self, query: str, rows: bytes) -> None:
        self.query = query
        self.rows = rows


class BatchWriter(DataSourceArrowWriter):
    """One write of all rows of a DataFrame."""

    def __init__(self, options: SinkOptions, schema: Schema) -> None:
        self._options = options
        self._schema = schema
        #: Tasks get copies of this: one that is retried has the same name.
        self._run = uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """One task."""
        rows = _fitting(iterator, self._schema)
        if not self._options.by_tasks:
            return Written(self._run, _packed(rows))
        partition = _task().partitionId()
        _publish(self._options, rows, f"spark:{self._run}:{partition}", 0)
        return Written(self._run, b"")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks are done."""
        if self._options.by_tasks:
            return
        rows = _gathered(messages, self._schema)
        job = self._options.job
        name = f"spark:{self._run}" if job is None else f"spark:job:{_digest(job, rows)}"
        _publish(self._options, rows, name, 0)


class StreamWriter(DataSourceStreamArrowWriter):
    """The batches of a stream."""

    def __init__(self, options: SinkOptions, schema: Schema) -> None:
        self._options = options
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """One task of a batch."""
        task = _task()
        query, batch = task.getLocalProperty(_QUERY), task.getLocalProperty(_BATCH)
        assert query is not None, "a task of a stream belongs to a query"
        assert batch is not None, "a task of a stream belongs to a batch"
        rows = _fitting(iterator, self._schema)
        if not self._options.by_tasks:
            return Written(query, _packed(rows))
        _publish(self._options, rows, f"spark:{query}:{task.partitionId()}", int(batch) * BATCH_ROWS_MAX)
        return Written(query, b"")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """All tasks of a batch are done. If this fails, the batch is recomputed."""
        written = cast("Sequence[Written]", messages)
        if not self._options.by_tasks and written:
            rows = _gathered(messages, self._schema)
            _publish(self._options, rows, f"spark:{written[0].query}", batchId * BATCH_ROWS_MAX)


# ---- before anything is published --------------------------------------------------------------------

#: Schemas that this process has already checked.
_CHECKED: dict[tuple[SinkOptions, str], Schema] = {}


def _checked(options: SinkOptions, schema: StructType, *, overwrite: bool) -> Schema:
    """The schema of the topic. Raises UsageError when rows of Spark's schema cannot be published to it."""
    if overwrite:
        raise UsageError("E178", "option 'mode': a topic cannot be overwritten: write with mode 'append'")
    key = options, schema.json()
    if key not in _CHECKED:
        with _connected(options) as client:
            topics = client.topics()
        if options.topic not in topics:
            raise no_topic(options.topic, topics)
        topic = topics[options.topic]
        if options.pubend is not None and options.pubend not in topic.pubends:
            raise no_pubend(options.pubend, options.topic, topic.pubends)
        _check_columns(schema, topic.schema)
        _CHECKED[key] = topic.schema
    return _CHECKED[key]


def _check_columns(schema: StructType, topic: Schema) -> None:
    known = {column.name for column in topic.columns}
    own = [name for name in ("tick", "pubend") if name in schema.names and name not in known]
    if own:
        raise SchemaError(
            "E111",
            f"topic '{topic.topic}' has no column '{own[0]}': an event gets its tick and pubend when it is "
            "published: leave them out with .drop('tick', 'pubend')",
        )
    try:
        arrow = to_arrow_schema(schema, timezone="UTC")
    except PySparkException as error:
        reason = " ".join(str(error).split())
        raise SchemaError("E114", f"topic '{topic.topic}': {reason:.200}") from error
    empty = pa.RecordBatch.from_arrays([pa.array([], each.type) for each in arrow], schema=arrow)
    topic.checked(empty)


def _fitting(batches: Iterator[pa.RecordBatch], schema: Schema) -> pa.Table:
    """The rows of a task, in the columns of the topic. Raises SchemaError for a value that does not fit."""
    found = [schema.checked(batch) for batch in batches if batch.num_rows]
    return pa.Table.from_batches(found, schema.arrow())


# ---- from tasks to the driver ------------------------------------------------------------------------


def _packed(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def _gathered(messages: list[WriterCommitMessage | None], schema: Schema) -> pa.Table:
    """The rows of all tasks, in the order of their partitions."""
    parts = [pa.ipc.open_stream(each.rows).read_all() for each in cast("Sequence[Written]", messages)]
    return pa.concat_tables([schema.arrow().empty_table(), *parts])


# ---- publishing --------------------------------------------------------------------------------------


def _publish(options: SinkOptions, rows: pa.Table, identity: str, first: int) -> None:
    """Publish rows with the numbers from `first` on; those already published under them are not repeated."""
    if not rows.num_rows:
        return
    assert rows.num_rows <= BATCH_ROWS_MAX, f"{rows.num_rows} rows in one batch"
    if not options.is_ordered:
        rows = _in_one_order(rows)
    with _connected(options) as client:
        publisher = client.publisher(
            options.topic, pubend=options.pubend, identity=identity, first_catenation=first
        )
        publisher.publish_batch(rows)


def _in_one_order(rows: pa.Table) -> pa.Table:
    """The same rows in an order that depends only on them, if it matters."""
    whole = rows.combine_chunks()
    batches = whole.to_batches()
    if len(batches) == 1 and len(cut(batches[0])) == 1:
        return whole
    return whole.sort_by([(name, "ascending") for name in whole.schema.names])


def _digest(job: str, rows: pa.Table) -> str:
    """A name for a job and its rows, independent of their order."""
    ordered = rows.combine_chunks().sort_by([(name, "ascending") for name in rows.schema.names])
    # As text, because the bytes of a column depend on how it was made. Invalid UTF-8 is acceptable here.
    columns = [
        column.combine_chunks().view(pa.string()) if pa.types.is_binary(column.type) else column
        for column in ordered.columns
    ]
    text = pa.BufferOutputStream()
    csv.write_csv(pa.table(columns, names=ordered.schema.names), text)
    return hashlib.sha256(job.encode() + b"\0" + text.getvalue()).hexdigest()


def _connected(options: SinkOptions) -> sync.SyncClient:
    return sync.connect(options.brokers, token=options.token, tls=options.tls, name="spark")


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "Spark writes in tasks"
    return task
