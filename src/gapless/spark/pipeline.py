"""How are the views of a network computed? By following the registry and running stages.

A new view gets its stages: existing ones are shared, the rest are started. A dropped view leaves its stages,
and an unused stage ends. A failed query is restarted after a pause that grows each time, from its checkpoint
and its relations; until then its views say why. All state is in the log, in the relations, or in a checkpoint
that may be lost.

All views are planned together, in the order of the registry, so a restarted application computes them with
the same stages. A running view keeps its stages when another view that shared them is dropped, until it is
restarted. Holds on the log are released when no view can need them (`holds`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa

from gapless.client.bulk import Bulk, open_bulk
from gapless.client.sync import SyncClient
from gapless.client.tls import TlsFiles
from gapless.client.views import reached
from gapless.errors import GaplessError, LinkError, PipelineError
from gapless.model.ids import TopicId
from gapless.model.schema import Schema
from gapless.spark.compile import readers
from gapless.spark.graph import RunningView, view_columns
from gapless.spark.holds import Holds
from gapless.spark.relations import Relation
from gapless.spark.running import Runner, Running, hold_name
from gapless.views.definitions import Views, base_topics
from gapless.views.planning.graph import Planner
from gapless.views.planning.stages import Events, Keyed, ViewPlan, stage_name
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

log = logging.getLogger("gapless.pipeline")

#: How often the application checks its queries.
TICK_SECONDS = 0.2
#: How often it publishes the state of the views, when nothing else changes.
STATUS_SECONDS = 2.0
#: How long an application that ends tries to announce it.
LAST_WORDS_SECONDS = 2.0
#: Minimum and maximum pause before a failed query is restarted; it doubles each time.
PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 1.0, 60.0
#: Pause before releasing a hold is retried.
FORGET_AGAIN_SECONDS = 10.0
#: A query that ran for this long has recovered: its next failure counts as the first.
RECOVERED_SECONDS = 300.0


@dataclass
class _Entry:
    """A view of the registry, and its state."""

    definition: Definition
    #: Its latest plan; None when it could not be planned so far.
    plan: ViewPlan | None = None
    state: str = STARTING
    message: str = ""
    #: When to retry, by the monotonic clock; None while it runs, or when retrying is useless.
    retry_at: float | None = 0.0
    pause_s: float = PAUSE_SECONDS_MIN
    failed_at: float = 0.0
    #: The status that was last published.
    said: Status | None = None


class Pipeline:
    """The views of one network, computed by one Spark application."""

    def __init__(self, client: SyncClient, runner: Runner) -> None:
        self._client = client
        self.runner = runner
        self._registry = Registry()
        #: Whether the registry has been read up to where it was at the start.
        self._is_read = False
        self._planner = Planner()
        self._holds = Holds(client, runner.folder)
        #: When to look for unneeded names, by the monotonic clock; None while there can be none.
        self._forget_at: float | None = 0.0
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
        if self.runner.network.has_names:
            self._holds.load()
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
            # The node may be away; do not wait for it now.
            last = threading.Thread(target=self._say, kwargs={"force": True}, daemon=True)
            last.start()
            last.join(LAST_WORDS_SECONDS)
            self.runner.close()

    def _follow(self) -> None:
        """Follow the registry; runs in a separate thread."""
        try:
            # It ends with the client, and then no report is possible.
            rows = self._client.subscribe(REGISTRY_TOPIC, start="earliest").__enter__()
            ends = self._client.ends(REGISTRY_TOPIC)
            self._is_read = reached(rows.positions, ends)
            for batch in rows.batches():
                for pubend, events in batch.by_pubend().items():
                    self._registry.apply(pubend, events.ticks.tolist(), events.columns)
                self._is_read = self._is_read or reached(rows.positions, ends)
                self._changed.set()
        except (GaplessError, RuntimeError) as error:
            self._lost = error
            self._changed.set()

    # One round.

    def step(self, now: float) -> None:
        """Add and remove views, restart what has failed, and publish the state."""
        if not self._is_read:
            return  # A view that was not read yet has not been dropped.
        definitions = {each.name: each for each in self._registry.in_order()}
        for name in [name for name, e in self._entries.items() if definitions.get(name) != e.definition]:
            self._forget(name, now)
        for name, definition in definitions.items():
            self._entries.setdefault(name, _Entry(definition))
        self._look_after(now)
        due = [e for e in self._entries.values() if e.retry_at is not None and e.retry_at <= now]
        if due:
            self._say()
            self._take_up(due, definitions, now)
        if self._forget_at is not None and self._forget_at <= now:
            self._forget_holds(now)
        self.runner.start_next()
        self._notice_running()
        self._say(force=now - self._status_at >= STATUS_SECONDS)

    def _notice_running(self) -> None:
        """A view is running when all of its stages have caught up with something."""
        graph, running = self.runner.graph, self.runner.running
        for name, entry in self._entries.items():
            if entry.state == STARTING and name in graph.views:
                stages = graph.roots_of(graph.views[name].plan.shown.stage)
                if all(running[each].is_current for each in stages):
                    entry.state = RUNNING

    def _forget(self, name: str, now: float) -> None:
        """A view was dropped."""
        del self._entries[name]
        runner = self.runner
        if name in runner.graph.views:
            needed = self._roots_of(entry.plan for entry in self._entries.values())
            for root in runner.graph.remove(name):
                if root.stage in needed:
                    runner.running.pop(root.stage).stop()  # A failed view continues with it later.
                else:
                    runner.drop(root)
        self._forget_at = now
        for entry in self._entries.values():
            if entry.state == FAILED and entry.retry_at is None:
                entry.retry_at = now  # It may have shared a stage that was too large, and not need it now.

    def _forget_holds(self, now: float) -> None:
        """Release holds on the log that no view, whether running, failed or not started, can need.

        A view that could not be planned may need any remaining name, so all of them stay: a name too many
        costs disk space, one too few costs events. `gapless view list` shows such a view; once it is planned
        or dropped, the names are released.
        """
        self._forget_at = None
        plans = [entry.plan for entry in self._entries.values()]
        if not self.runner.network.has_names or None in plans:
            return
        if not self._holds.forget_all_but(self._hold_names(plans)):
            self._forget_at = now + FORGET_AGAIN_SECONDS

    def _hold_names(self, plans: Iterable[ViewPlan | None]) -> dict[str, TopicId]:
        """The names of the stages of plans, each with its topic."""
        return {
            hold_name(stage_name(stage), number): topic
            for stage in self._roots_of(plans)
            for number, topic in enumerate(readers(stage))
        }

    def _roots_of(self, plans: Iterable[ViewPlan | None]) -> set[Keyed | Events]:
        """What Spark runs for plans."""
        roots_of = self.runner.graph.roots_of
        return {stage for each in plans if each is not None for stage in roots_of(each.shown.stage)}

    def _take_up(self, due: list[_Entry], definitions: Mapping[str, Definition], now: float) -> None:
        """Start views, together with those that have to start over because of them."""
        graph, runner = self.runner.graph, self.runner
        try:
            topics = {name: topic.schema for name, topic in self._client.topics().items()}
        except GaplessError as error:
            if not error.retry and not isinstance(error, LinkError):
                raise
            log.warning("%s", error)
            return
        plans = self._planned(due, definitions, topics, now)
        # Those that they replace are no longer needed; and the last of those that could not be planned is
        # gone.
        self._forget_at = now
        try:
            if runner.network.has_names:
                self._holds.write_down(self._hold_names(plans.values()))
        except GaplessError as error:
            for name in plans:
                self._fail(self._entries[name], error, now)
            return
        # Events keep no state rows: a view that joins late makes them start over, for all.
        late = {each for each in self._roots_of(plans.values()) if isinstance(each, Events)}
        for stage in late:
            # With the last view of one, another may be gone.
            for view in graph.above(graph.roots[stage]) if stage in graph.roots else ():
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
        # A view on running stages is computed from their rows, and shown at once.
        runner.publish([graph.views[name] for name in plans if name in graph.views])

    def _planned(
        self,
        due: list[_Entry],
        definitions: Mapping[str, Definition],
        topics: Mapping[str, Schema],
        now: float,
    ) -> dict[str, ViewPlan]:
        """Plans the views that are due, among all existing views."""
        texts = {name: each.sql for name, each in definitions.items()}
        graph, refused = self._planner.planned(texts, Views(texts, base_topics(topics)))
        plans: dict[str, ViewPlan] = {}
        for entry in due:
            name = entry.definition.name
            if name in refused:
                # Its topic may not be known here yet.
                self._fail(entry, refused[name], now)
            else:
                plans[name] = entry.plan = graph.plans[name]
        return plans

    def _add(self, entry: _Entry, made: ViewPlan, topics: Mapping[str, Schema], now: float) -> None:
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
        view = RunningView(definition.name, made, relation, self._client.publisher(definition.topic))
        self.runner.graph.add(view, self.runner.make_root)
        entry.state, entry.message, entry.retry_at = STARTING, "", None

    def _snapshot(self, topic: TopicId, relation: Relation) -> pa.Table:
        """What the topic of a view has."""
        network = self.runner.network
        options = network.options
        tls = TlsFiles.of(options.get("ca"), options.get("certificate"), options.get("key"))
        with open_bulk(network.brokers, topic, token=options.get("token"), tls=tls) as bulk:
            return newest_rows(bulk, relation)

    # Failures.

    def _look_after(self, now: float) -> None:
        """Handles queries that have ended: their views, and those that share stages with them, start over."""
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
        """Stop what only this view needs; files stay on disk."""
        for root in self.runner.graph.remove(name):
            self.runner.running.pop(root.stage).stop()

    def _fail(self, entry: _Entry, error: Exception, now: float, *, again: bool = True) -> None:
        if now - entry.failed_at > RECOVERED_SECONDS:
            entry.pause_s = PAUSE_SECONDS_MIN
        entry.state, entry.message, entry.failed_at = FAILED, " ".join(str(error).split()), now
        entry.retry_at = now + entry.pause_s if again else None
        entry.pause_s = min(2 * entry.pause_s, PAUSE_SECONDS_MAX)

    # Status of the views.

    def _say(self, *, force: bool = False) -> None:
        """Publish the status of each view that has changed; with `force`, also the figures."""
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
    """The rows of a relation as stored in its topic, the oldest first."""
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
