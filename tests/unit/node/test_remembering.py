"""What publishers have stored is written by a thread, in parts; and at once when somebody waits for it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from gapless.errors import StoreError
from gapless.model.ids import PubendId
from gapless.node import remembering
from gapless.node.remembering import Remembering
from gapless.protocol.sessions.publishers import Publishers
from gapless.store.recovery import RecoveryDatabase

P = PubendId("p")


def stored(publishers: Publishers, *names: str, tick: int = 1) -> None:
    for name in names:
        publishers.accept(name, publishers.accepted(name) + 1, publishers.accepted(name) + 1)
        publishers.stored(name, publishers.accepted(name), tick)


def written(database: RecoveryDatabase) -> dict[str, int]:
    return {each.publisher: each.catenation for each in database.publishers(P)}


def test_everything_is_written_in_parts_and_then_up_to_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembering, "TAKEN_MAX", 3)
    database = RecoveryDatabase.open(tmp_path / "node.sqlite")
    publishers = Publishers(P)
    logs: list[str] = []

    async def story() -> None:
        writer = Remembering(database, {P: publishers}, lambda: logs.append("written"))
        stored(publishers, *(f"p{at}" for at in range(10)), tick=7)
        assert await writer.write() == {P: 7}
        assert not publishers.unwritten
        await writer.close()

    asyncio.run(story())
    assert written(database) == {f"p{at}": 0 for at in range(10)}
    assert database.meta("notes:p") == (7).to_bytes(8, "big")
    assert logs == ["written"], "with the last part only"
    database.close()


def test_what_the_disk_refused_is_written_the_next_time(tmp_path: Path) -> None:
    database = RecoveryDatabase.open(tmp_path / "node.sqlite")
    publishers = Publishers(P)
    is_full = True

    def write_logs() -> None:
        if is_full:
            raise StoreError("E302", "injected")

    async def story() -> None:
        nonlocal is_full
        writer = Remembering(database, {P: publishers}, write_logs)
        stored(publishers, "a", "b")
        for write in (writer.write, writer.write_now):
            with pytest.raises(StoreError):
                await write() if write == writer.write else writer.write_now()
            assert publishers.unwritten == 2
        assert written(database) == {}
        is_full = False
        await writer.write()
        await writer.close()

    asyncio.run(story())
    assert written(database) == {"a": 0, "b": 0}
    database.close()


def test_a_publisher_that_returns_while_being_forgotten_is_kept(tmp_path: Path) -> None:
    """The thread is about to forget somebody when all is written at once: it must not do so after that."""
    database = RecoveryDatabase.open(tmp_path / "node.sqlite")
    publishers = Publishers(P)
    go, waits = threading.Event(), threading.Event()

    async def story() -> None:
        writer = Remembering(database, {P: publishers}, lambda: None)
        stored(publishers, "a")
        await writer.write()
        publishers.forget(publishers._known["a"])

        def hold() -> None:
            waits.set()
            assert go.wait(30)

        held = writer._desk.do(hold)
        writing = asyncio.create_task(writer.write())
        await asyncio.get_running_loop().run_in_executor(None, waits.wait, 30)
        while publishers.unwritten:  # noqa: ASYNC110  # it is taken in the next turn
            await asyncio.sleep(0)
        stored(publishers, "a", tick=3)
        writer.write_now()
        assert written(database) == {"a": 0}
        go.set()
        await held
        assert await writing == {P: 3}
        await writer.close()

    asyncio.run(story())
    assert written(database) == {"a": 0}
    database.close()
