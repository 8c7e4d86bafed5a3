"""How does Spark run a stage? As one streaming query, each of whose batches is collected once.

A batch is a single job: the aggregation, and what every feed shows of the changed rows, come to the driver
together as Arrow. Feeds that exist when the query starts are part of it, because planning them in Spark takes
as long as computing them; only later ones are added with every batch. Then the graph takes the rows, the
views publish, the state rows are stored, and Spark commits. After a crash at any point in between, Spark
repeats the batch, which then changes nothing that was published.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from gapless.errors import GaplessError, PipelineError
from gapless.model.ids import TopicId
from gapless.spark.checkpoints import Checkpoint
from gapless.spark.compile import PUBEND, TICK, Read, compiled, leaves, shown, state_columns
from gapless.spark.expressions import named
from gapless.spark.graph import Root, RunningGraph, RunningView
from gapless.spark.relations import covers
from gapless.views.limits import ROWS_MAX
from gapless.views.planning.stages import Events, Keyed, Leaf, Shown, stage_name
from gapless.views.registry import KEY

log = logging.getLogger("gapless.pipeline")

#: Maximum number of events of one topic in a batch: a long history is computed in pieces.
BATCH_ROWS_MAX = 1_000_000
#: Number of relations published to at the same time.
PUBLISHERS_MAX = 16
#: Number of queries that start at the same time. Each starts a Python process for every topic that it reads,
#: and Spark waits only ten seconds for it: on a busy machine, many at once would all be late, again and
#: again.
STARTING_MAX = 2
#: Spark's message when it cannot read its own state.
_STATE_LOST = "STATE_STORE"
#: Spark's message for a query whose sources have not all answered.
_INITIALIZING = "Initializing sources"
#: Spark's message for a query that has nothing to do.
_IDLE = ("Waiting for data to arrive", "Waiting for next trigger")


@dataclass(frozen=True)
class NetworkAccess:
    """How Spark reaches the network."""

    brokers: str
    #: Further options of `format("gapless")`, such as the token.
    options: Mapping[str, str] = field(default_factory=dict)
    #: Whether the nodes can keep names, which hold the log for stages that have not read it.
    has_names: bool = True


class Running:
    """One root and its query."""

    def __init__(self, root: Root, runner: Runner) -> None:
        self.root = root
        self.name = stage_name(root.stage)
        self._runner = runner
        self.checkpoint = Checkpoint(runner.folder / self.name, root.schema)
        self.query: StreamingQuery | None = None
        #: Why a batch failed, if it was not Spark's fault.
        self.error: GaplessError | None = None
        self.batch_ms: float | None = None
        #: The prefixes of the feeds that are part of the query.
        self._planned: set[str] = set()
        self._stopped = False

    def restore(self) -> None:
        """Restore the state of an earlier run, or start over."""
        root, graph = self.root, self._runner.graph
        try:
            if isinstance(root.stage, Events):
                self._restore_events(root)
            elif (restored := self.checkpoint.restore()) is not None and root.rows is not None:
                for table in restored.rows:
                    root.rows.put(table)
                root.as_of = restored.as_of
                graph.restored(root)
        except PipelineError as error:
            log.warning("%s: recomputing from the log", error)
            self.checkpoint.drop()

    def _restore_events(self, root: Root) -> None:
        """Events continue where every view above has them, otherwise from the beginning."""
        committed = self.checkpoint.committed()
        if committed is None:
            self.checkpoint.drop()
            return
        self.checkpoint.check_spark()
        graph = self._runner.graph
        try:
            as_of = self.checkpoint.as_of(committed, _topics(root.stage))
        except (OSError, ValueError, AssertionError) as error:
            raise PipelineError("E503", f"{self.checkpoint.folder} cannot be read: {error}") from error
        behind = [view for view in graph.above(root) if not covers(view.relation.as_of, as_of)]
        if behind or any(feed.rows is not None for feed in root.feeds.values()):
            self.checkpoint.drop()
        else:
            root.as_of = as_of

    def start(self) -> None:
        """Start the query. `failure` reports what prevents it."""
        try:
            self.query = self._started()
        except Exception as error:  # noqa: BLE001  # whatever Spark reports, other stages go on
            self.error = self._ended(error)

    def _started(self) -> StreamingQuery:
        frame = compiled(self.root.stage, self._runner.reader(self.name))
        feeds = self._runner.graph.feeds(self.root)
        self._planned = {prefix for prefix, _ in feeds}
        keep = [KEY] if self.root.rows is None else self.root.schema.names
        frame = shown(frame, [(prefix, feed.shown) for prefix, feed in feeds], keep)
        return (
            frame.writeStream.queryName(self.name)
            .outputMode("update")
            .option("checkpointLocation", str(self.checkpoint.spark))
            .trigger(processingTime="0 seconds")
            .foreachBatch(self._batch)
            .start()
        )

    @property
    def is_starting(self) -> bool:
        """Whether its sources have not all answered yet."""
        return self.query is not None and self.query.isActive and self._status_message() == _INITIALIZING

    @property
    def is_current(self) -> bool:
        """Whether it has computed something since its start, or found nothing to compute."""
        if self.batch_ms is not None:
            return True
        return self.query is not None and self.query.isActive and self._status_message() in _IDLE

    def _status_message(self) -> str:
        assert self.query is not None
        return str(self.query.status["message"])

    def stop(self) -> None:
        """Stop the query. Its results stay."""
        # Without the lock: a batch may hold it while it waits for a node that is away.
        self._stopped = True
        if self.query is not None:
            try:
                self.query.stop()
            except Exception as error:  # noqa: BLE001  # it is no longer needed, however it ends
                log.warning("%s", self._ended(error))

    def failure(self) -> GaplessError | None:
        """Why the query ended by itself; None if it did not."""
        if self.error is not None or self.query is None or self.query.isActive:
            return self.error
        reason = self.query.exception()
        if _STATE_LOST in str(reason):
            log.warning("%s cannot be read: recomputing from the log", self.checkpoint.spark)
            self.checkpoint.drop()
        return self._ended(reason)

    def _ended(self, reason: Exception | None) -> PipelineError:
        lines = [line for line in str(reason or "it ended without a reason").splitlines() if line.strip()]
        return PipelineError("E501", f"Spark ended stage {self.name}: {' '.join(lines)[:300]}")

    def _batch(self, frame: DataFrame, batch: int) -> None:
        try:
            self._take(frame, batch)
        except GaplessError as error:
            self.error = error
            raise

    def _take(self, frame: DataFrame, batch: int) -> None:
        started = time.monotonic()
        graph, root = self._runner.graph, self.root
        feeds = graph.feeds(root)
        late = [(prefix, feed.shown) for prefix, feed in feeds if prefix not in self._planned]
        table = (shown(frame, late, frame.columns) if late else frame).toArrow()
        as_of = self.checkpoint.as_of(batch, _topics(root.stage))
        with graph.lock:
            if self._stopped:
                return  # Another pipeline may have taken over.
            graph.take(root, table, feeds, as_of)
            if root.rows is not None and len(root.rows) > self._runner.rows_max:
                raise PipelineError(
                    "E502", f"stage {self.name} keeps {len(root.rows)} rows, at most {self._runner.rows_max}"
                )
            self._runner.publish(graph.above(root))
            if root.rows is not None:
                changed = table.select(root.schema.names).cast(root.schema)
                if self.checkpoint.write(batch, changed, as_of, len(root.rows)):
                    self.checkpoint.write_whole(batch, root.rows.table(), as_of)
        self.batch_ms = (time.monotonic() - started) * 1_000


class Runner:
    """All queries of one Spark application."""

    def __init__(
        self, spark: SparkSession, network: NetworkAccess, folder: Path, *, rows_max: int = ROWS_MAX
    ) -> None:
        self.spark = spark
        self.network = network
        self.folder = folder
        self.rows_max = rows_max
        self.graph = RunningGraph(self.evaluate)
        self.running: dict[Keyed | Events, Running] = {}
        #: Queries to start, in order, and started ones whose sources have not all answered.
        self._waiting: list[Running] = []
        self._starting: list[Running] = []
        self._pool = ThreadPoolExecutor(PUBLISHERS_MAX, "gapless-publish")

    def reader(self, stage: str) -> Read:
        """Reads the leaves of a stage, one after the other, as streams from the beginning."""
        numbers = itertools.count()
        return lambda leaf: self._read(leaf, hold_name(stage, next(numbers)))

    def _read(self, leaf: Leaf, name: str) -> DataFrame:
        options = {
            **self.network.options,
            "brokers": self.network.brokers,
            "topic": str(leaf.topic),
            "from": "earliest",
            "max_rows": str(BATCH_ROWS_MAX),
            # Every row includes the position of its event.
            "columns": ",".join(_read_name(name) for name in leaf.columns) or "tick",
        }
        if leaf.where:
            options["where"] = leaf.where
        if self.network.has_names:
            options["name"] = name
        frame = self.spark.readStream.format("gapless").options(**options).load()
        places = [named("tick").alias(TICK), named("pubend").alias(PUBEND)]
        return frame.select(*(named(_read_name(name)).alias(name) for name in leaf.columns), *places)

    def evaluate(self, rows: pa.Table, feeds: list[tuple[str, Shown]]) -> pa.Table:
        """Evaluates these feeds on state rows that are already here."""
        return shown(self.spark.createDataFrame(rows), feeds, [KEY]).toArrow()

    def make_root(self, stage: Keyed | Events) -> Root:
        """A root that is not running yet."""
        root = Root(stage, state_columns(stage))
        self.running[stage] = Running(root, self)
        return root

    def restore(self, roots: Iterable[Running]) -> None:
        """Restore the state of roots, once all of their views exist. `start_next` starts them, in turn."""
        with self.graph.lock:
            fresh = list(roots)
            for each in fresh:
                each.restore()
            for each in fresh:
                self.publish(self.graph.above(each.root))
            self._waiting += fresh

    def start_next(self) -> None:
        """Start waiting roots, unless too many are starting."""
        self._starting = [each for each in self._starting if each.is_starting]
        while self._waiting and len(self._starting) < STARTING_MAX:
            each = self._waiting.pop(0)
            if self.running.get(each.root.stage) is each:
                each.start()
                self._starting.append(each)

    def drop(self, root: Root) -> None:
        """A root is no longer needed."""
        running = self.running.pop(root.stage)
        running.stop()
        running.checkpoint.drop()

    def publish(self, views: list[RunningView]) -> None:
        """Publish the changes of views, with a marker each; durable when this returns."""
        graph = self.graph

        def one(view: RunningView) -> None:
            view.relation.publish(view.publisher, graph.as_of(view))

        level = list(graph.level(views))
        if len(level) == 1:
            one(level[0])
        else:
            list(self._pool.map(one, level))

    def close(self) -> None:
        """Stop all queries."""
        for each in self.running.values():
            each.stop()
        self._pool.shutdown(wait=False)


def hold_name(stage: str, number: int) -> str:
    """The durable subscription that keeps the log for one leaf of a stage until it has been read."""
    return f"gapless.views.{stage}.{number}"


def _topics(stage: Keyed | Events) -> list[TopicId]:
    return [leaf.topic for leaf in leaves(stage)]


def _read_name(name: str) -> str:
    """The source's name for a column: two names are reserved."""
    return f"{name}_" if name in ("tick", "pubend") else name
