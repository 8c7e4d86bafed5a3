"""How do the stages of all running views work together? Changed state rows go up, and views publish.

A *root* is a stage that Spark runs as a streaming query. A *feed* is what a view or another stage sees of a
stage; equal feeds are shared. A feed serves views, and stages above it. A micro-batch of a root gives, for
each of its feeds, the new version of the changed rows; from there on only changes move:

    root --(visible, columns)--> feed --> views: difference to the relation, published with a marker
                                  |
                                  +----> stage above: groups or pairs that are touched --> its feeds ...

Everything here happens under one lock, in the thread of the root's query. A view that is added to a running
stage is computed from the state rows that the stage keeps. `Events` keep none: they start over instead.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gapless.errors import PipelineError
from gapless.model.schema import COLUMN_TYPES, Column
from gapless.spark.compile import leaves
from gapless.spark.derived import Derived, derived_from, fields_of
from gapless.spark.relations import Publishes, Relation, covers, met
from gapless.spark.state import Delta, KeyedRows, Mask, combined, where_mask
from gapless.spark.top import first_rows, touched
from gapless.views.planning.stages import Events, Keyed, Paired, Reduced, Shown, Stage, ViewPlan
from gapless.views.registry import KEY, STAMP, AsOf

#: Evaluates these feeds on state rows, like `compile.shown`.
Evaluate = Callable[[pa.Table, list[tuple[str, Shown]]], pa.Table]


class RunningView:
    """One view: its rows, its topic, and whether it has caught up with its relation."""

    def __init__(self, name: str, plan: ViewPlan, relation: Relation, publisher: Publishes) -> None:
        self.name = name
        self.plan = plan
        self.relation = relation
        self.publisher = publisher
        #: Whether the relation has the rows as of the newest batch; until then, all of them are needed once.
        self.is_level = False
        #: Why it was stopped, while others go on.
        self.error: PipelineError | None = None

    def take(self, rows: pa.Table, visible: Mask, delta: Delta | None, every: KeyedRows | None) -> None:
        """Takes changed rows of the feed; with the change and all rows, where they are kept."""
        try:
            self._take(rows, visible, delta, every)
        except PipelineError as error:
            self.error, self.is_level = error, False

    def _take(self, rows: pa.Table, visible: Mask, delta: Delta | None, every: KeyedRows | None) -> None:
        top = self.plan.top
        if top is None:
            self.relation.apply(rows, visible)
            return
        shown = self.relation.rows.table().drop_columns([STAMP])
        if delta is None or every is None:
            # Events are never removed: a row that was not among the first never will be.
            new = rows.filter(pa.array(visible))
            delta = Delta(new.slice(0, 0), new, pa.array([], pa.string()))
            known = shown.filter(pc.invert(pc.is_in(shown.column(KEY), value_set=combined(new.column(KEY)))))
            candidates = pa.concat_tables([known.select(new.schema.names), new])
        else:
            candidates = every.table()
        first = first_rows(candidates.filter(pa.array(touched(candidates, delta, top.per))), top)
        left = shown.filter(pa.array(touched(shown, delta, top.per)))
        self._withdraw(
            left.filter(pc.invert(pc.is_in(left.column(KEY), value_set=combined(first.column(KEY)))))
        )
        self.relation.apply(first, np.ones(first.num_rows, np.bool_))

    def _withdraw(self, rows: pa.Table) -> None:
        self.relation.apply(rows, np.zeros(rows.num_rows, np.bool_))

    def replace(self, rows: pa.Table, visible: Mask) -> None:
        """All rows of the feed."""
        if self.plan.top is not None:
            rows = first_rows(rows.filter(pa.array(visible)), self.plan.top)
            visible = np.ones(rows.num_rows, np.bool_)
        try:
            self.relation.replace(rows, visible)
        except PipelineError as error:
            self.error = error
            return
        self.is_level = True


@dataclass
class StageFeed:
    """What is seen of a stage, and by whom."""

    shown: Shown
    #: Unique among all feeds.
    number: int
    #: All visible rows, while they are needed.
    rows: KeyedRows | None = None
    views: list[RunningView] = field(default_factory=list)
    #: Stages above, each with the side on which this is its input.
    above: list[tuple[DerivedStep, int]] = field(default_factory=list)

    @property
    def schema(self) -> pa.Schema:
        """The key and the columns."""
        return pa.schema([pa.field(KEY, pa.string()), *fields_of(self.shown)])

    @property
    def keeps(self) -> bool:
        """Whether all rows are needed."""
        tops = any(view.plan.top is not None for view in self.views)
        return bool(self.above) or (tops and not isinstance(self.shown.stage, Events))


@dataclass
class DerivedStep:
    """A stage over other stages."""

    stage: Reduced | Paired
    inputs: tuple[StageFeed, ...]
    derived: Derived
    feeds: dict[Shown, StageFeed] = field(default_factory=dict)


class Root:
    """A stage that Spark runs."""

    def __init__(self, stage: Keyed | Events, columns: Iterable[tuple[str, str]]) -> None:
        self.stage = stage
        self.feeds: dict[Shown, StageFeed] = {}
        fields = [pa.field(name, COLUMN_TYPES[kind]) for name, kind in columns]
        self.schema = pa.schema([pa.field(KEY, pa.string()), *fields])
        #: The state rows; events have none.
        self.rows: KeyedRows | None = KeyedRows(self.schema) if isinstance(stage, Keyed) else None
        #: The horizon of the newest batch.
        self.as_of: AsOf = {}


class RunningGraph:
    """The running stages and views."""

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate
        self.lock = threading.RLock()
        self.roots: dict[Keyed | Events, Root] = {}
        self._steps: dict[Reduced | Paired, DerivedStep] = {}
        self.views: dict[str, RunningView] = {}
        self._numbers = itertools.count()

    # Views come and go.

    def add(self, view: RunningView, make_root: Callable[[Keyed | Events], Root]) -> None:
        """Add a view, with any missing stages that it needs. `level` makes it current."""
        with self.lock:
            feed = self._feed(view.plan.shown, make_root)
            feed.views.append(view)
            self.views[view.name] = view
            self._keep(feed)

    def remove(self, name: str) -> list[Root]:
        """Remove a view; returns the roots that are no longer needed."""
        with self.lock:
            view = self.views.pop(name)
            self._feed_of(view).views.remove(view)
            return self._pruned()

    def roots_of(self, stage: Stage) -> list[Keyed | Events]:
        """The roots that a stage is computed from, each once."""
        match stage:
            case Keyed() | Events():
                return [stage]
            case Reduced():
                return self.roots_of(stage.input.stage)
            case Paired():
                both = (*self.roots_of(stage.left.stage), *self.roots_of(stage.right.stage))
                return list(dict.fromkeys(both))

    def as_of(self, view: RunningView) -> AsOf:
        """The current horizon of a view. Topics without any data yet are listed as well."""
        stages = self.roots_of(view.plan.shown.stage)
        topics: AsOf = {leaf.topic: {} for stage in stages for leaf in leaves(stage)}
        return met([topics, *(self.roots[each].as_of for each in stages)])

    def above(self, root: Root) -> list[RunningView]:
        """The views that are computed from a root."""
        return [view for view in self.views.values() if root.stage in self.roots_of(view.plan.shown.stage)]

    # Batches.

    def feeds(self, root: Root) -> list[tuple[str, StageFeed]]:
        """The feeds of a root, each with the prefix of its columns, which never changes."""
        with self.lock:
            return [(str(feed.number), feed) for feed in root.feeds.values()]

    def take(self, root: Root, table: pa.Table, feeds: list[tuple[str, StageFeed]], as_of: AsOf) -> None:
        """Takes a micro-batch: the changed state rows with what these feeds show of them."""
        with self.lock:
            if root.rows is not None:
                root.rows.put(table)
            root.as_of = as_of
            for prefix, feed in feeds:
                self._deliver(feed, _part(table, prefix, feed), where_mask(table.column(f"{prefix}.")))
            taken = {id(feed) for _, feed in feeds}
            for feed in [each for each in root.feeds.values() if id(each) not in taken]:
                self._fill(feed)  # It was added while the batch was computed.

    def level(self, views: Iterable[RunningView]) -> Iterator[RunningView]:
        """Make views current, of these, whose relation is not ahead of the computation."""
        with self.lock:
            for view in views:
                if view.error is None and not view.is_level and covers(self.as_of(view), view.relation.as_of):
                    feed = self._feed_of(view)
                    if isinstance(feed.shown.stage, Events):
                        view.is_level = True  # Rows of events never change.
                    else:
                        view.replace(*self._whole(feed))
                if view.is_level:
                    yield view

    def _deliver(self, feed: StageFeed, rows: pa.Table, visible: Mask) -> None:
        delta = None if feed.rows is None else feed.rows.apply(rows, visible)
        for view in [each for each in feed.views if each.error is None]:
            if view.is_level or isinstance(feed.shown.stage, Events):
                view.take(rows, visible, delta, feed.rows)
        if delta:
            for step, side in feed.above:
                self._derive(step, side, delta)

    def _derive(self, step: DerivedStep, side: int, delta: Delta) -> None:
        """Applies a change of an input of a stage, and its consequences."""
        inputs = tuple(_all_rows(feed) for feed in step.inputs)
        changed, gone = step.derived.take(side, delta, inputs)
        if not changed.num_rows and not len(gone):
            return
        keys = pa.table({KEY: gone})
        absent = pa.concat_tables([step.derived.rows.schema.empty_table(), keys], promote_options="default")
        step.derived.rows.apply(absent, np.zeros(len(gone), np.bool_))
        real = step.derived.rows.apply(changed, np.ones(changed.num_rows, np.bool_)).new
        feeds = [(str(feed.number), feed) for feed in step.feeds.values()]
        table = self._evaluate(real, [(prefix, feed.shown) for prefix, feed in feeds])
        for prefix, feed in feeds:
            rows, visible = _part(table, prefix, feed), where_mask(table.column(f"{prefix}."))
            ended = pa.concat_tables([feed.schema.empty_table(), keys], promote_options="default")
            both = np.concatenate([visible, np.zeros(len(gone), np.bool_)])
            self._deliver(feed, pa.concat_tables([rows, ended]), both)

    def _whole(self, feed: StageFeed) -> tuple[pa.Table, Mask]:
        """All rows of a feed, computed from the state rows of its stage."""
        if feed.rows is not None:
            rows = feed.rows.table()
            return rows, np.ones(rows.num_rows, np.bool_)
        stage = feed.shown.stage
        state = self._state(stage)
        if not len(state):
            return feed.schema.empty_table(), np.zeros(0, np.bool_)
        table = self._evaluate(state.table(), [("0", feed.shown)])
        return _part(table, "0", feed), where_mask(table.column("0."))

    def _state(self, stage: Stage) -> KeyedRows:
        if isinstance(stage, Reduced | Paired):
            return self._steps[stage].derived.rows
        rows = self.roots[stage].rows
        assert rows is not None, "events keep no rows"
        return rows

    # Stages come and go.

    def _stage_feeds(self, stage: Stage) -> dict[Shown, StageFeed]:
        return self._steps[stage].feeds if isinstance(stage, Reduced | Paired) else self.roots[stage].feeds

    def _feed_of(self, view: RunningView) -> StageFeed:
        return self._stage_feeds(view.plan.shown.stage)[view.plan.shown]

    def _feed(self, shown: Shown, make_root: Callable[[Keyed | Events], Root]) -> StageFeed:
        stage = shown.stage
        if isinstance(stage, Reduced | Paired):
            if stage not in self._steps:
                self._steps[stage] = self._step(stage, make_root)
        elif stage not in self.roots:
            self.roots[stage] = make_root(stage)
        feeds = self._stage_feeds(stage)
        if shown not in feeds:
            feeds[shown] = StageFeed(shown, next(self._numbers))
        return feeds[shown]

    def _step(self, stage: Reduced | Paired, make_root: Callable[[Keyed | Events], Root]) -> DerivedStep:
        below = (stage.input,) if isinstance(stage, Reduced) else (stage.left, stage.right)
        step = DerivedStep(stage, tuple(self._feed(each, make_root) for each in below), derived_from(stage))
        for side, feed in enumerate(step.inputs):
            feed.above.append((step, side))
            self._keep(feed)
        for side, feed in enumerate(step.inputs):
            rows = _all_rows(feed).table()
            self._derive(step, side, Delta(rows.slice(0, 0), rows, pa.array([], pa.string())))
        return step

    def _keep(self, feed: StageFeed) -> None:
        """Keep all rows of a feed from now on, if they are needed."""
        if feed.keeps and feed.rows is None:
            if isinstance(feed.shown.stage, Events):
                feed.rows = KeyedRows(feed.schema)
                return
            rows, visible = self._whole(feed)
            feed.rows = KeyedRows(feed.schema)
            feed.rows.apply(rows, visible)

    def _fill(self, feed: StageFeed) -> None:
        """Recompute a feed from the state of its stage, after it has missed something."""
        if isinstance(feed.shown.stage, Events):
            return
        kept, feed.rows = feed.rows, None
        rows, visible = self._whole(feed)
        feed.rows = kept
        self._deliver(feed, rows, visible)

    def restored(self, root: Root) -> None:
        """A root has restored the state rows of an earlier run."""
        with self.lock:
            for feed in root.feeds.values():
                self._fill(feed)

    def _pruned(self) -> list[Root]:
        """Drop everything unused; returns the roots among it."""
        while True:
            idle = [step for step in self._steps.values() if not _used(step.feeds)]
            if not idle:
                break
            for step in idle:
                del self._steps[step.stage]
                for feed in step.inputs:
                    feed.above = [each for each in feed.above if each[0] is not step]
        for step in self._steps.values():
            _used(step.feeds)
        dropped = [root for root in self.roots.values() if not _used(root.feeds)]
        for root in dropped:
            del self.roots[root.stage]
        return dropped


def _used(feeds: dict[Shown, StageFeed]) -> bool:
    """Drop unused feeds; returns whether any is left."""
    for shown in [shown for shown, feed in feeds.items() if not feed.views and not feed.above]:
        del feeds[shown]
    return bool(feeds)


def _all_rows(feed: StageFeed) -> KeyedRows:
    assert feed.rows is not None, "a stage above needs all rows"
    return feed.rows


def _part(table: pa.Table, prefix: str, feed: StageFeed) -> pa.Table:
    """The columns of one feed, under its own names."""
    names = [f"{prefix}.{name}" for name, _ in feed.shown.outputs]
    return table.select([KEY, *names]).rename_columns(feed.schema.names).cast(feed.schema)


def view_columns(plan: ViewPlan) -> tuple[Column, ...]:
    """The columns of a view."""
    return tuple(Column(name, each.kind, nullable=True) for name, each in plan.shown.outputs)
