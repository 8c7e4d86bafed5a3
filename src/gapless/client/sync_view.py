"""How does a program without an event loop use a view? The same live table, with plain calls.

```python
with client.view("available") as table:
    print(table.rows())
    for change in table.changes():
        print(change.rows())
```
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

import pyarrow as pa

from gapless.client.table import Change, State
from gapless.client.view import Horizon, View
from gapless.model.ids import PubendId, TopicId
from gapless.model.python_values import rows_of
from gapless.model.ticks import Tick
from gapless.views.registry import Definition

Made = TypeVar("Made")


class Runs(Protocol):
    """An event loop in its own thread."""

    def run(self, coroutine: Coroutine[Any, Any, Made], timeout_s: float | None = None) -> Made:
        """Run in the loop and return the result."""


class SyncView:
    """A live table. Made by `Client.view`; starts with `with`. Any number of threads may use it."""

    def __init__(self, loop: Runs, view: View) -> None:
        self._loop = loop
        self._view = view

    def __enter__(self) -> Self:
        self._loop.run(self._view.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._view.__aexit__(kind, error, trace))

    def rows(self) -> list[dict[str, Any]]:
        """All rows, in the view's order if it has one, or sorted by its columns from left to right."""
        rows: list[dict[str, Any]] = rows_of(self.to_arrow())
        return rows

    def to_arrow(self) -> pa.Table:
        """The same rows as an Arrow table."""
        return self._view.to_arrow()

    def __len__(self) -> int:
        return len(self._view)

    @property
    def as_of(self) -> Mapping[TopicId, Mapping[PubendId, Tick]]:
        """Per topic and pubend, the tick below which every event is included. Empty before any state."""
        return self._view.as_of

    @property
    def state(self) -> State:
        """The current state, an immutable value."""
        return self._view.state

    @property
    def definition(self) -> Definition:
        """The definition of the view."""
        return self._view.definition

    def changes(self) -> Iterator[Change]:
        """All current rows, and then every change. A slow reader gets fewer and larger changes."""
        changes = self._view.changes()
        while (change := self._loop.run(_next(changes))) is not None:
            yield change

    def wait_until(self, as_of: Horizon, timeout_s: float | None = None) -> None:
        """Wait until the table includes these events: see the asynchronous table.

        Raises TimeoutError if that takes longer than `timeout_s`.
        """
        self._loop.run(self._view.wait_until(as_of), timeout_s)


async def _next(changes: AsyncIterator[Change]) -> Change | None:
    return await anext(changes, None)
