"""What does the application do that computes the views of a network? It follows the registry and runs stages.

Views that are created get their stages: those that others have already are shared, the rest are started.
Views that are dropped leave theirs, and a stage that serves nobody ends. A query that fails is started again
after a pause, each time a longer one, from what its checkpoint and its relations have; meanwhile its views
say why. Nothing is kept here that is not in the log, in the relations, or in a checkpoint that may be lost.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa

from gapless.client.bulk import Bulk, open_bulk
from gapless.client.sync import Client
from gapless.client.tls import TlsFiles
from gapless.errors import GaplessError, LinkError, PipelineError
from gapless.model.ids import TopicId
from gapless.model.schema import Schema
from gapless.spark.compile import readers
from gapless.spark.graph import Root, View, view_columns
from gapless.spark.relations import Relation
from gapless.spark.running import Runner, Running, hold_name
from gapless.views.definitions import Views, base_topics
from gapless.views.plan import plan
from gapless.views.registry import (
    FAILED,
    REGISTRY_COLUMNS,
    REGISTRY_RETENTION,
    REGISTRY_TOPIC,
    RELATION_RETENTION,
    RUNNING,
    STARTING,
    STATUS_COLUMNS,
    STATUS_RETENTION,
    STATUS_TOPIC,
    STOPPED,
    Definition,
    Registry,
    Status,
    as_of_text,
    relation_columns,
    status_rows,
)
from gapless.views.stages import Events, Plan, stage_name

log = logging.getLogger("gapless.pipeline")

#: How often the application looks after its queries.
TICK_SECONDS = 0.2
#: How often it says how the views are, when nothing else changes.
STATUS_SECONDS = 2.0
#: How long an application that ends tries to say so.
LAST_WORDS_SECONDS = 3.0
#: A query that failed is started again after a pause, which doubles from the one to the other.
PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 1.0, 60.0
#: A query that ran for so long has recovered: its next failure is a first one.
RECOVERED_SECONDS = 300.0


@dataclass
class _Entry:
    """A view of the registry, and how it is."""

    definition: Definition
    state: str = STARTING
    message: str = ""
    #: When to try again, by the monotonic clock; None while it runs, or when trying is no use.
    retry_at: float | None = 0.0
    pause_s: float = PAUSE_SECONDS_MIN
    failed_at: float = 0.0
    #: What was last said of it.
    said: Status | None = None


class Pipeline:
    """The views of one network, computed by one Spark application."""

    def __init__(self, client: Client, runner: Runner) -> None:
        self._client = client
        self.runner = runner
        self._registry = Registry()
        #: Set when the registry has changed.
        self._changed = threading.Event()
        self._lost: Exception | None = None
        self._entries: dict[str, _Entry] = {}
        self._status_at = 0.0

    def run(self, stop: threading.Event, lost: threading.Event | None = None) -> None:
        """Compute views until told to stop, or until `lost`. Raises what ends the connection for good."""
        client = self._client
        client.create_topic(REGISTRY_TOPIC, REGISTRY_COLUMNS, retention=REGISTRY_RETENTION)
        client.create_topic(STATUS_TOPIC, STATUS_COLUMNS, retention=STATUS_RETENTION)
        threading.Thread(target=self._follow, name="gapless registry", daemon=True).start()
        try:
            while not stop.is_set() and not (lost is not None and lost.is_set()):
                self._changed.wait(TICK_SECONDS)
                if self._lost is not None:
                    raise self._lost
                self._changed.clear()
                self.step(time.monotonic())
        finally:
            for entry in self._entries.values():
                entry.state = STOPPED if entry.state != FAILED else FAILED
            # The node may be away, and nobody shall wait for it to come back now.
            last = threading.Thread(target=self._say, kwargs={"force": True}, daemon=True)
            last.start()
            last.join(LAST_WORDS_SECONDS)
            self.runner.close()

    def _follow(self) -> None:
        """In a thread of its own: what the registry says."""
        try:
            with self._client.subscribe(REGISTRY_TOPIC, start="earliest") as rows:
                for batch in rows.batches():
                    for pubend, events in batch.by_pubend().items():
                        self._registry.apply(pubend, events.ticks.tolist(), events.columns)
                    self._changed.set()
        except (GaplessError, RuntimeError) as error:
            self._lost = error
            self._changed.set()

    # One look at everything.

    def step(self, now: float) -> None:
        """Take up and give up views, start again what has failed, and say how things are."""
        definitions = dict(self._registry.definitions)
        for name in [name for name, e in self._entries.items() if definitions.get(name) != e.definition]:
            self._forget(name)
        for name, definition in definitions.items():
            self._entries.setdefault(name, _Entry(definition))
        self._look_after(now)
        due = [e for e in self._entries.values() if e.retry_at is not None and e.retry_at <= now]
        if due:
            self._say()
            self._take_up(due, definitions, now)
        self.runner.start_next()
        self._notice_running()
        self._say(force=now - self._status_at >= STATUS_SECONDS)

    def _notice_running(self) -> None:
        """A view runs when all of its stages have caught up with something."""
        graph, running = self.runner.graph, self.runner.running
        for name, entry in self._entries.items():
            if entry.state == STARTING and name in graph.views:
                stages = graph.roots_of(graph.views[name].plan.shown.stage)
                if all(running[each].is_current for each in stages):
                    entry.state = RUNNING

    def _forget(self, name: str) -> None:
        """A view was dropped."""
        del self._entries[name]
        if name in self.runner.graph.views:
            for root in self.runner.graph.remove(name):
                self.runner.drop(root)
                self._release(root)

    def _release(self, root: Root) -> None:
        """A stage is needed no more: the network need not keep anything for it."""
        if not self.runner.network.has_names:
            return
        for number, topic in enumerate(readers(root.stage)):
            try:
                with self._client.hold(topic, hold_name(stage_name(root.stage), number), {}) as hold:
                    hold.forget()
            except GaplessError as error:
                log.warning("%s", error)

    def _take_up(self, due: list[_Entry], definitions: Mapping[str, Definition], now: float) -> None:
        """Start views, together with those that have to begin again because of them."""
        graph, runner = self.runner.graph, self.runner
        try:
            topics = {name: topic.schema for name, topic in self._client.topics().items()}
        except LinkError as error:
            log.warning("%s", error)
            return
        plans: dict[str, Plan] = {}
        relations = Views({name: each.sql for name, each in definitions.items()}, base_topics(topics))
        for entry in due:
            try:
                plans[entry.definition.name] = plan(relations[entry.definition.name])
            except GaplessError as error:
                self._fail(entry, error, now, again=False)
        # Events keep no state rows: whoever comes late to them makes them begin again, for all.
        late = {stage for made in plans.values() for stage in graph.roots_of(made.shown.stage)}
        for stage in [each for each in late if isinstance(each, Events) and each in graph.roots]:
            for view in graph.above(graph.roots[stage]):
                plans[view.name] = view.plan
                self._let_go(view.name)
        before = set(runner.running)
        for name, made in plans.items():
            self._add(self._entries[name], made, topics, now)
        fresh = [root for stage, root in runner.running.items() if stage not in before]
        runner.restore(fresh)
        log.info(
            "%d views, %d stages, of which %d are new", len(graph.views), len(runner.running), len(fresh)
        )
        # A view on stages that run already is computed from their rows, and shown at once.
        runner.publish([graph.views[name] for name in plans if name in graph.views])

    def _add(self, entry: _Entry, made: Plan, topics: Mapping[str, Schema], now: float) -> None:
        definition = entry.definition
        columns = view_columns(made)
        try:
            if definition.topic not in topics:
                told = relation_columns(columns)
                self._client.create_topic(definition.topic, told, retention=RELATION_RETENTION)
            relation = Relation(definition.name, columns, self.runner.rows_max)
            relation.restore(self._snapshot(definition.topic, relation))
        except GaplessError as error:
            self._fail(entry, error, now)
            return
        view = View(definition.name, made, relation, self._client.publisher(definition.topic))
        self.runner.graph.add(view, self.runner.make_root)
        entry.state, entry.message, entry.retry_at = STARTING, "", None

    def _snapshot(self, topic: TopicId, relation: Relation) -> pa.Table:
        """What the topic of a view has."""
        network = self.runner.network
        options = network.options
        tls = TlsFiles.of(options.get("ca"), options.get("certificate"), options.get("key"))
        with open_bulk(network.brokers, topic, token=options.get("token"), tls=tls) as bulk:
            return newest_rows(bulk, relation)

    # What goes wrong.

    def _look_after(self, now: float) -> None:
        """Queries that have ended: their views, and those that share stages with them, begin again."""
        for view in [each for each in self.runner.graph.views.values() if each.error is not None]:
            assert view.error is not None
            log.warning("%s", view.error)
            self._let_go(view.name)
            self._fail(self._entries[view.name], view.error, now, again=False)
        for running in list(self.runner.running.values()):
            error = running.failure()
            if error is not None:
                self._restart(running, error, now)

    def _restart(self, running: Running, error: GaplessError, now: float) -> None:
        log.warning("%s", error)
        graph = self.runner.graph
        for view in graph.above(running.root):
            if view.name in graph.views:
                entry = self._entries[view.name]
                self._let_go(view.name)
                self._fail(entry, error, now, again=error.code != "E502")
        if running.root.stage in self.runner.running:
            self.runner.running.pop(running.root.stage).stop()

    def _let_go(self, name: str) -> None:
        """Stop what only this view needs; what is on the disk stays."""
        for root in self.runner.graph.remove(name):
            self.runner.running.pop(root.stage).stop()

    def _fail(self, entry: _Entry, error: Exception, now: float, *, again: bool = True) -> None:
        if now - entry.failed_at > RECOVERED_SECONDS:
            entry.pause_s = PAUSE_SECONDS_MIN
        entry.state, entry.message, entry.failed_at = FAILED, " ".join(str(error).split()), now
        entry.retry_at = now + entry.pause_s if again else None
        entry.pause_s = min(2 * entry.pause_s, PAUSE_SECONDS_MAX)

    # What is said of the views.

    def _say(self, *, force: bool = False) -> None:
        """Publish the status of each view that is other than what was said; with `force` the figures, too."""
        statuses = []
        for entry in self._entries.values():
            status = self._status(entry)
            said = entry.said
            if (
                said is None
                or (status.state, status.message) != (said.state, said.message)
                or (force and (status.rows, status.as_of) != (said.rows, said.as_of))
            ):
                statuses.append(status)
                entry.said = status
        if force:
            self._status_at = time.monotonic()
        if statuses:
            try:
                self._client.publish_batch(STATUS_TOPIC, status_rows(statuses))
            except GaplessError as error:
                log.warning("%s", error)

    def _status(self, entry: _Entry) -> Status:
        view = self.runner.graph.views.get(entry.definition.name)
        batch_ms = None
        if view is not None:
            roots = self.runner.graph.roots_of(view.plan.shown.stage)
            times = [self.runner.running[each].batch_ms for each in roots if each in self.runner.running]
            batch_ms = max((each for each in times if each is not None), default=None)
        return Status(
            name=entry.definition.name,
            topic=entry.definition.topic,
            state=entry.state,
            message=entry.message,
            rows=None if view is None else len(view.relation.rows),
            as_of=None if view is None else as_of_text(view.relation.as_of),
            batch_ms=batch_ms,
            at=datetime.now(UTC),
        )


def newest_rows(bulk: Bulk, relation: Relation) -> pa.Table:
    """The rows of a relation as its topic has them, the oldest first."""
    batches = [
        batch
        for past in bulk.describe().values()
        for batch in bulk.read(past.pubend, past.oldest, past.known, history=False, gone=True)
    ]
    if not batches:
        return relation.topic_schema.empty_table()
    table = pa.Table.from_batches(batches)
    missing = [name for name in relation.topic_schema.names if name not in table.schema.names]
    if missing:
        raise PipelineError("E501", f"topic of view '{relation.name}' has no column '{missing[0]}'")
    return table.select(relation.topic_schema.names)
