"""How does a program see a view? As a table that is always up to date: `client.view(name)`.

```python
async with client.view("available") as table:
    print(table.rows())
    async for change in table.changes():
        for weight, row in change.rows():
            print("+" if weight > 0 else "-", row)
```

What is shown is the view exactly as of `table.as_of`, a tick for each pubend of the topics that it is made
of: every event below is included, and none above. `wait_until` waits until an event of one's own is. There is
one exception: a view that reads one topic in two stages (`gapless view explain` shows it) may, while events
come, include some above the horizon, of which one of its stages has heard first.

The rows come through a subscription, so a lost connection, a dead broker or a restarted pipeline costs time
and nothing else.
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
from gapless.client.views import client_schemas, found, reached, read_registry, read_view
from gapless.client.waiting import Signal
from gapless.content.condition import Condition
from gapless.content.language import parse_condition
from gapless.content.normal import either
from gapless.errors import UsageError, ViewError
from gapless.model.ids import PubendId, TopicId
from gapless.model.schema import Schema
from gapless.model.ticks import TICK_MIN, Tick
from gapless.views.registry import KIND, OWN_COLUMNS, SHOWN, Definition

if TYPE_CHECKING:
    from gapless.client.connection import Client
    from gapless.views.stages import Plan

#: What `wait_until` takes: a horizon as `as_of` gives it, a tick per pubend, a receipt, or several of these.
#: Names may be plain texts.
Horizon: TypeAlias = (
    Mapping[Any, Tick]
    | Mapping[Any, Mapping[Any, Tick]]
    | Receipt
    | BatchReceipt
    | Iterable[Receipt | BatchReceipt]
)


class View:
    """A live table. Made by `Client.view`; begins with `async with`."""

    def __init__(self, client: Client, name: str, where: str) -> None:
        self._client = client
        self._where = where
        #: What the view is called.
        self.name = name
        self._definition: Definition | None = None
        self._state: RelationState | None = None
        self._order: tuple[tuple[str, str], ...] = ()
        #: The state that was put in order last.
        self._sorted: tuple[int, pa.Table] | None = None
        self._stack = contextlib.AsyncExitStack()
        self._changed = Signal()
        self._error: BaseException | None = None
        self._ended = False

    async def __aenter__(self) -> Self:
        if self._definition is not None or self._ended:
            raise UsageError("E193", "a live table can be entered once: ask for it again")
        client = self._client
        registry = await read_registry(client)
        self._definition = definition = found(registry.definitions, self.name)
        schemas = await client_schemas(client)
        schema = schemas.get(definition.topic)
        if schema is None:
            raise UsageError("E141", f"there is no topic '{definition.topic}' that this client may see")
        plan: Plan | None = None
        with contextlib.suppress(ViewError):
            # Whoever may see the view need not be allowed to see what it is made of.
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
        """All rows, in the order of the view if it has one, else by its columns from left to right."""
        rows: list[dict[str, Any]] = self.to_arrow().to_pylist()
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
        """Of each topic, per pubend: every event below the tick is accounted for. Empty before any state."""
        return self.state.as_of

    @property
    def schema(self) -> pa.Schema:
        """The columns of the view."""
        return self.state.to_arrow().schema

    @property
    def definition(self) -> Definition:
        """What the view is."""
        self._check_entered()
        assert self._definition is not None
        return self._definition

    @property
    def state(self) -> State:
        """What is shown now; it never changes. Raises what has ended the table, if anything has."""
        self._check_entered()
        if self._error is not None:
            raise self._error
        assert self._state is not None
        return self._state.shown

    async def changes(self) -> AsyncIterator[Change]:
        """All rows that there are, and then what changes. A slow reader gets fewer and larger changes."""
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
        """Return when what is shown accounts for these events.

        `as_of` is a receipt or several, a horizon such as another table's `as_of`, or a mapping from pubends
        to ticks: every event below the tick. Raises UsageError E191 when the view has nothing to do with one
        of them.
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
                    told = ", ".join(sorted(state.as_of))
                    raise UsageError(
                        "E191", f"view '{self.name}' is made of {told}, and not of '{topic or pubend}'"
                    )
            if self._ended:
                raise UsageError("E193", "the live table has been left")
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
                # Of a part, the last row may be none of ours: then the first whole state is where it begins.
                if (is_part and is_new) or reached(rows.positions, ends):
                    _done(there)
                if is_new:
                    self._changed.notify()
                    # Readers first: more rows may be waiting.
                    await asyncio.sleep(0)
        except Exception as error:  # noqa: BLE001  # whoever waits for a change must hear of it, whatever it is
            self._error = error
            if not there.done():
                there.set_exception(error)
            self._changed.notify()

    def _check_entered(self) -> None:
        if self._definition is None or self._state is None:
            raise UsageError("E193", "a live table begins with `async with`")


def wanted_horizons(as_of: Horizon) -> dict[PubendId, Tick]:
    """Per pubend the tick below which everything is to be accounted for.

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
                    "E191", "the node no longer knows where that event is: its receipt has no tick"
                )
            want(pubend, tick + 1)
        case BatchReceipt():
            for pubend, ticks in as_of.parts:
                if len(ticks):
                    want(pubend, int(ticks[-1]) + 1)
        case Mapping():
            for name, told in as_of.items():
                for source, stop in told.items() if isinstance(told, Mapping) else ((name, told),):
                    want(source, int(stop))
        case _:
            for each in as_of:
                for pubend, tick in wanted_horizons(each).items():
                    want(pubend, tick)
    return found


def _order(plan: Plan | None, schema: Schema) -> tuple[tuple[str, str], ...]:
    """How rows are put in order: that of a top-k, and then by all columns."""
    names = [column.name for column in schema.columns if column.name not in OWN_COLUMNS]
    first: list[tuple[str, str]] = []
    if plan is not None and plan.top is not None:
        first += [(name, "ascending") for name in plan.top.per]
        first += [(name, "descending" if descending else "ascending") for name, descending in plan.top.order]
    known = {name for name, _ in first}
    return (*first, *((name, "ascending") for name in names if name not in known))


def is_settled(condition: Condition, plan: Plan | None) -> bool:
    """Whether no row can ever leave or enter the condition while it has its key.

    Then brokers may leave out the rows that it does not accept. Otherwise a row that has left it would not be
    heard of, and would be shown for ever.
    """
    from gapless.views.expressions import ColumnRef  # noqa: PLC0415  # with the parser, which is loaded by now
    from gapless.views.stages import Events, Keyed  # noqa: PLC0415

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
    """What brokers are to let through: rows that are wanted, and whatever is no row that is shown."""
    return str(either([parse_condition(f"{KIND} <> {SHOWN}", schema), condition]))


def _done(there: asyncio.Future[None]) -> None:
    if not there.done():
        there.set_result(None)


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
