"""How does a program use a view? As a live table that is always up to date: `client.view(name)`.

```python
async with client.view("available") as table:
    print(table.rows())
    async for change in table.changes():
        for weight, row in change.rows():
            print("+" if weight > 0 else "-", row)
```

The table shows the view exactly as of `table.as_of`, a tick per pubend of its base topics: it includes every
event below and none above. Use `wait_until` to wait for your own events. One exception: a view that reads one
topic in two stages (`gapless view explain` shows them) may, while events arrive, include some above the
horizon, which one stage has seen before the other.

Rows arrive through a subscription, so a lost connection, a dead broker or a restarted pipeline costs time and
nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import pyarrow as pa

from gapless.client.receipts import BatchReceipt, Receipt
from gapless.client.subscription import Subscription
from gapless.client.table import Change, RelationState, State, between
from gapless.client.views import reached, read_registry, read_view, schemas_of, view_named
from gapless.client.waiting import Signal
from gapless.content.condition import Condition
from gapless.content.language import parse_condition
from gapless.content.normal import either
from gapless.errors import UsageError, ViewError, no_topic
from gapless.model.ids import PubendId, TopicId
from gapless.model.python_values import rows_of
from gapless.model.schema import Schema
from gapless.model.ticks import TICK_MIN, Tick
from gapless.views.registry import KIND, OWN_COLUMNS, SHOWN, Definition

if TYPE_CHECKING:
    from gapless.client.connection import Client
    from gapless.views.planning.stages import ViewPlan

#: What `wait_until` takes: a horizon such as `as_of`, a tick per pubend, or one or more receipts.
#: Names may be plain texts.
Horizon: TypeAlias = (
    Mapping[Any, Tick]
    | Mapping[Any, Mapping[Any, Tick]]
    | Receipt
    | BatchReceipt
    | Iterable[Receipt | BatchReceipt]
)


class View:
    """A live table. Made by `Client.view`; starts with `async with`."""

    def __init__(self, client: Client, name: str, where: str) -> None:
        self._client = client
        self._where = where
        #: The name of the view.
        self.name = name
        self._definition: Definition | None = None
        self._state: RelationState | None = None
        self._order: tuple[tuple[str, str], ...] = ()
        #: The last sorted state, by number.
        self._sorted: tuple[int, pa.Table] | None = None
        self._stack = contextlib.AsyncExitStack()
        self._changed = Signal()
        self._error: BaseException | None = None
        self._ended = False

    async def __aenter__(self) -> Self:
        if self._definition is not None or self._ended:
            raise UsageError("E193", "a live table can be entered only once: ask for it again")
        client = self._client
        topics = await client.topics()
        registry = await read_registry(client, topics)
        self._definition = definition = view_named(registry.definitions, self.name)
        schemas = schemas_of(topics)
        schema = schemas.get(definition.topic)
        if schema is None:
            raise no_topic(definition.topic, schemas)
        plan: ViewPlan | None = None
        with contextlib.suppress(ViewError):
            # A client that may see the view may not be allowed to see its base topics.
            _, plan = read_view(definition.sql, schemas, registry)
        self._order = _order(plan, schema)
        own = Schema(schema.topic, tuple(c for c in schema.columns if c.name not in OWN_COLUMNS))
        condition = parse_condition(self._where, own) if self._where.strip() else None
        pushed = "" if condition is None or not is_settled(condition, plan) else _pushed(condition, schema)
        self._state = RelationState(schema, None if pushed else condition, is_part=bool(pushed))
        try:
            rows = await self._stack.enter_async_context(
                client.subscribe(definition.topic, pushed, start="earliest")
            )
            ends = await client.ends(definition.topic)
            there = asyncio.get_running_loop().create_future()
            task = asyncio.create_task(self._pump(rows, ends, there, is_part=bool(pushed)), name=self.name)
            self._stack.push_async_callback(_cancelled, task)
            await there
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        self._changed.notify()
        await self._stack.aclose()

    # What programs call.

    def rows(self) -> list[dict[str, Any]]:
        """All rows, in the view's order if it has one, or sorted by its columns from left to right."""
        rows: list[dict[str, Any]] = rows_of(self.to_arrow())
        return rows

    def to_arrow(self) -> pa.Table:
        """The same rows as an Arrow table."""
        state = self.state
        if self._sorted is None or self._sorted[0] != state.number:
            table = state.to_arrow()
            self._sorted = (state.number, table.sort_by(list(self._order)) if table.num_rows else table)
        return self._sorted[1]

    def __len__(self) -> int:
        return len(self.state)

    @property
    def as_of(self) -> Mapping[TopicId, Mapping[PubendId, Tick]]:
        """Per topic and pubend, the tick below which every event is included. Empty before any state."""
        return self.state.as_of

    @property
    def schema(self) -> pa.Schema:
        """The columns of the view."""
        return self.state.to_arrow().schema

    @property
    def definition(self) -> Definition:
        """The definition of the view."""
        self._check_entered()
        assert self._definition is not None
        return self._definition

    @property
    def state(self) -> State:
        """The current state, an immutable value. Raises the error that ended the table, if any."""
        self._check_entered()
        if self._error is not None:
            raise self._error
        assert self._state is not None
        return self._state.shown

    async def changes(self) -> AsyncIterator[Change]:
        """All current rows, and then every change. A slow reader gets fewer and larger changes."""
        before = State(0, self.state.table.slice(0, 0))
        while True:
            state = self.state
            if state.number > before.number:
                change = between(before, state)
                before = state
                yield change
            elif self._ended:
                return
            else:
                await self._changed.wait()

    async def wait_until(self, as_of: Horizon) -> None:
        """Wait until the table includes these events.

        `as_of` is one or more receipts, a horizon such as another table's `as_of`, or a mapping from pubends
        to ticks, which means every event below the tick. Raises UsageError E191 if the view does not depend
        on one of them.
        """
        wanted = wanted_horizons(as_of)
        topics = {
            pubend: name for name, topic in (await self._client.topics()).items() for pubend in topic.pubends
        }
        while True:
            state = self.state
            missing = [
                pubend for pubend, tick in wanted.items() if state.horizons.get(pubend, TICK_MIN) < tick
            ]
            if not missing:
                return
            for pubend in missing:
                topic = topics.get(pubend)
                if state.as_of and pubend not in state.horizons and topic not in state.as_of:
                    bases = ", ".join(sorted(state.as_of))
                    raise UsageError(
                        "E191", f"view '{self.name}' depends on {bases}, not on '{topic or pubend}'"
                    )
            if self._ended:
                raise UsageError("E193", "the live table has been closed")
            await self._changed.wait()

    # What comes.

    async def _pump(
        self, rows: Subscription, ends: Mapping[PubendId, Tick], there: asyncio.Future[None], *, is_part: bool
    ) -> None:
        assert self._state is not None
        try:
            if all(end <= 0 for end in ends.values()) or reached(rows.positions, ends):
                _done(there)
            async for batch in rows.batches():
                is_new = self._state.take(batch.columns)
                # With a part, the last row may not be one of ours: then start with the first complete state.
                if (is_part and is_new) or reached(rows.positions, ends):
                    _done(there)
                if is_new:
                    self._changed.notify()
                    # Let readers run first: more rows may be waiting.
                    await asyncio.sleep(0)
        except Exception as error:  # noqa: BLE001  # readers must see it, whatever it is
            self._error = error
            if not there.done():
                there.set_exception(error)
            self._changed.notify()

    def _check_entered(self) -> None:
        if self._definition is None or self._state is None:
            raise UsageError("E193", "a live table starts with `async with`")


def wanted_horizons(as_of: Horizon) -> dict[PubendId, Tick]:
    """Per pubend, the tick below which every event is to be included.

    >>> wanted_horizons(Receipt(PubendId("buy-p1"), 17))
    {'buy-p1': 18}
    """
    found: dict[PubendId, Tick] = {}

    def want(pubend: str, tick: Tick) -> None:
        found[PubendId(pubend)] = max(tick, found.get(PubendId(pubend), TICK_MIN))

    match as_of:
        case Receipt(pubend=pubend, tick=tick):
            if tick is None:
                raise UsageError(
                    "E191", "the receipt has no tick: the node no longer knows where that event is"
                )
            want(pubend, tick + 1)
        case BatchReceipt():
            for pubend, ticks in as_of.parts:
                if len(ticks):
                    want(pubend, int(ticks[-1]) + 1)
        case Mapping():
            for name, stops in as_of.items():
                for source, stop in stops.items() if isinstance(stops, Mapping) else ((name, stops),):
                    want(source, int(stop))
        case _:
            for each in as_of:
                for pubend, tick in wanted_horizons(each).items():
                    want(pubend, tick)
    return found


def _order(plan: ViewPlan | None, schema: Schema) -> tuple[tuple[str, str], ...]:
    """The sort order of rows: that of a top-k, then by all columns."""
    names = [column.name for column in schema.columns if column.name not in OWN_COLUMNS]
    first: list[tuple[str, str]] = []
    if plan is not None and plan.top is not None:
        first += [(name, "ascending") for name in plan.top.per]
        first += [(name, "descending" if descending else "ascending") for name, descending in plan.top.order]
    known = {name for name, _ in first}
    return (*first, *((name, "ascending") for name in names if name not in known))


def is_settled(condition: Condition, plan: ViewPlan | None) -> bool:
    """Whether the condition's result can never change for a key.

    If so, brokers may leave out the rows that it rejects. Otherwise a row that no longer matches would not be
    delivered, and its old values would be shown for ever.
    """
    from gapless.views.expressions import ColumnRef  # noqa: PLC0415  # with the parser, which is loaded by now
    from gapless.views.planning.stages import Events, Keyed  # noqa: PLC0415

    if plan is None:
        return False
    stage = plan.shown.stage
    if isinstance(stage, Events):
        return True
    if not isinstance(stage, Keyed):
        return False
    keys = {name for name, _ in stage.keys}
    settled = {name for name, each in plan.shown.outputs if isinstance(each, ColumnRef) and each.name in keys}
    return {column.name for column in condition.columns} <= settled


def _pushed(condition: Condition, schema: Schema) -> str:
    """The condition for brokers: rows that are wanted, and everything that is not a shown row."""
    return str(either([parse_condition(f"{KIND} <> {SHOWN}", schema), condition]))


def _done(there: asyncio.Future[None]) -> None:
    if not there.done():
        there.set_result(None)


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
