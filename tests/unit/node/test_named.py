"""What the disk has of a name is never older than what was last asked of it, whatever it refused before."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from threading import Event
from typing import cast

import pytest

from gapless.errors import StoreError
from gapless.model.ids import PubendId, TopicId
from gapless.model.ticks import Tick
from gapless.node import named
from gapless.node.named import NamedBook
from gapless.protocol.events import Order
from gapless.protocol.sessions.subscriptions import NamedSubscription
from gapless.store.recovery import RecoveryDatabase

P = PubendId("p")


class Disk:
    """A database that refuses what a test tells it to refuse, and writes when it is let."""

    def __init__(self) -> None:
        self.positions: dict[str, Mapping[PubendId, Tick]] = {}
        self.refusals = 0
        self.is_let = Event()
        self.is_let.set()
        self.has_begun = Event()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.has_begun.set()
        self.is_let.wait(10)
        if self.refusals:
            self.refusals -= 1
            raise StoreError("E302", "full")
        yield

    def put_subscription(self, record: NamedSubscription) -> None:
        self.positions[record.name] = record.positions

    def put_positions(self, positions: Mapping[str, Mapping[PubendId, Tick]]) -> None:
        self.positions.update(positions)


class Desk:
    """The name "desk", which is at some tick, and its book."""

    def __init__(self) -> None:
        self.disk, self.at = Disk(), 0
        self.book = NamedBook(cast(RecoveryDatabase, self.disk), self._positions)
        self._has_moved = False

    def _positions(self, again: Collection[str]) -> Mapping[str, Mapping[PubendId, Tick]]:
        is_asked, self._has_moved = self._has_moved or "desk" in again, False
        return {"desk": {P: self.at}} if is_asked else {}

    def move(self, tick: Tick) -> None:
        self.at, self._has_moved = tick, True
        self.book.moved()

    def put(self, tick: Tick) -> None:
        self.at = tick
        record = NamedSubscription(
            name="desk", topic=TopicId("t"), condition="", order=Order.PUBLISHER, positions={P: tick}
        )
        self.book.put(record, lambda _: None)

    async def written(self) -> None:
        """Wait for everything that was asked for."""
        # Positions are asked for in the next turns of the loop.
        for _ in range(10):
            await asyncio.sleep(0)
        done = asyncio.get_running_loop().create_future()
        self.book.write(lambda _: None, done.set_result)
        await done


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named, "POSITIONS_SECONDS", 0.0)


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("later", ["put", "move"])
def test_positions_that_were_refused_are_not_written_over_later_ones(is_known: bool, later: str) -> None:
    """A name that goes on in another log may be at a lower tick: it would skip what lies between."""

    async def story() -> None:
        desk = Desk()
        desk.disk.refusals = 1
        desk.disk.is_let.clear()
        desk.move(50)
        await asyncio.to_thread(desk.disk.has_begun.wait, 10)
        if is_known:
            desk.disk.is_let.set()
            await desk.written()
        desk.put(20) if later == "put" else desk.move(20)
        for _ in range(10):
            await asyncio.sleep(0)
        desk.disk.is_let.set()
        for _ in range(3):
            await desk.written()
        await desk.book.close()
        assert desk.disk.positions == {"desk": {P: 20}}

    asyncio.run(story())


def test_positions_that_were_refused_are_written_in_the_end() -> None:
    async def story() -> None:
        desk = Desk()
        desk.disk.refusals = 3
        desk.move(50)
        for _ in range(5):
            await desk.written()
        await desk.book.close()
        assert desk.disk.positions == {"desk": {P: 50}}

    asyncio.run(story())
