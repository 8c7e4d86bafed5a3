"""What becomes of records when the disk has no room for those before them."""

import asyncio
import threading
from dataclasses import replace

import pytest

from gapless.errors import StoreError
from gapless.model.ids import PubendId
from gapless.node import storage as storage_module
from gapless.node.logs import REPEATS
from gapless.node.storage import Storage
from gapless.node.telling import STEP_ROWS_MAX
from gapless.protocol.effects import AppendRecord, TrimLog
from gapless.protocol.events import Event, RecordDurable, RecordFailed
from gapless.store.contract import Flushed
from gapless.store.memory import MemoryLog
from tests.contracts.events import batch

PUBEND = PubendId("p")


class _Gated(MemoryLog):
    """A log whose flushes wait until they may begin."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max=bytes_max)
        self.taken = threading.Event()
        self.go = threading.Event()

    def flush(self) -> Flushed:
        result = super().flush()
        self.taken.set()
        assert self.go.wait(30)
        return result


def test_events_published_after_some_that_failed_are_not_stored_before_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fed: list[Event] = []

    async def story() -> None:
        log = _Gated(bytes_max=0)
        storage = Storage({PUBEND: log}, fed.append, lambda _: None)
        storage.append(AppendRecord(pubend=PUBEND, token=1, record=batch(1)))
        await asyncio.get_running_loop().run_in_executor(None, log.taken.wait, 30)
        # There is room again when the next one comes, but nobody has heard yet that the first one failed.
        log.bytes_max = None
        storage.append(AppendRecord(pubend=PUBEND, token=2, record=batch(2)))
        log.go.set()
        await storage.idle()
        failed = [event.token for event in fed if isinstance(event, RecordFailed)]
        assert failed == [1, 2]
        assert [record.getMessage() for record in caplog.records] == ["append_failed"], (
            "somebody must make room"
        )
        storage.append(AppendRecord(pubend=PUBEND, token=3, record=batch(3)))
        await storage.idle()
        await storage.close()
        assert [event.token for event in fed if isinstance(event, RecordDurable)] == [3]

    asyncio.run(story())


@pytest.mark.parametrize("code", ["E302", "E303"])
def test_a_trim_that_the_database_refused_is_done_later(
    code: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    REPEATS.sweep(all_of_them=True)
    caplog.clear()
    monkeypatch.setattr(storage_module, "TRIM_SECONDS", 0)
    monkeypatch.setattr(storage_module, "TRIM_AGAIN_SECONDS", 0)
    asked: list[str] = []
    done = asyncio.Event()

    async def before_trim() -> dict[PubendId, int]:
        asked.append("remember")
        if len(asked) < 5:
            raise StoreError(code, "injected")
        return {}

    class _Trimmed(MemoryLog):
        def trim(self, before: int, now: int) -> None:
            asked.append(f"trim {before}")
            loop.call_soon_threadsafe(done.set)

    async def story() -> None:
        nonlocal loop
        loop = asyncio.get_running_loop()
        storage = Storage(
            {PUBEND: _Trimmed()},
            lambda _: None,
            lambda _: None,
            before_trim=before_trim,
            make_room=lambda: bool(asked.append("room")),
        )
        storage.trim(TrimLog(pubend=PUBEND, before=5), 100)
        storage.trim(TrimLog(pubend=PUBEND, before=7), 100)
        await asyncio.wait_for(done.wait(), 30)
        await storage.close()

    loop: asyncio.AbstractEventLoop
    asyncio.run(story())
    assert asked == ["remember", "room", "remember", "room", "remember", "trim 7"]
    assert [record.getMessage() for record in caplog.records] == ["trim_failed"], "once, on one line"
    assert not any(record.exc_info for record in caplog.records)


def test_heavy_rows_are_told_in_steps_a_turn_each() -> None:
    fed: list[tuple[int, int]] = []

    async def story() -> None:
        turn = 0

        def count() -> None:
            nonlocal turn
            turn += 1
            loop.call_soon(count)

        def feed(event: Event) -> None:
            assert isinstance(event, RecordDurable)
            fed.append((turn, event.token))

        loop = asyncio.get_running_loop()
        storage = Storage({PUBEND: MemoryLog()}, feed, lambda _: None)
        for token in range(1, 7):
            heavy = replace(batch(token), weight=STEP_ROWS_MAX // 2 - 1)
            storage.append(AppendRecord(pubend=PUBEND, token=token, record=heavy))
        count()
        await storage.idle()
        await storage.close()

    asyncio.run(story())
    assert [token for _, token in fed] == [2, 4, 6], "all of them before it is idle"
    turns = [turn for turn, _ in fed]
    assert sorted(set(turns)) == turns


def test_what_may_go_while_the_database_is_written_goes_with_the_next_trim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The database does not know yet what the log would forget."""
    monkeypatch.setattr(storage_module, "TRIM_SECONDS", 0)
    happened: list[str] = []

    class _Trimmed(MemoryLog):
        def trim(self, before: int, now: int) -> None:
            happened.append(f"trim {before}")
            loop.call_soon_threadsafe(trimmed.release)

    async def story() -> None:
        nonlocal loop
        loop = asyncio.get_running_loop()

        async def before_trim() -> dict[PubendId, int]:
            happened.append("remember")
            if len(happened) == 1:
                storage.trim(TrimLog(pubend=PUBEND, before=9), 0)
            return {}

        storage = Storage({PUBEND: _Trimmed()}, lambda _: None, lambda _: None, before_trim=before_trim)
        storage.trim(TrimLog(pubend=PUBEND, before=5), 0)
        for _ in range(2):
            await asyncio.wait_for(trimmed.acquire(), 30)
        await storage.close()

    loop: asyncio.AbstractEventLoop
    trimmed = asyncio.Semaphore(0)
    asyncio.run(story())
    assert happened == ["remember", "trim 5", "remember", "trim 9"]


def test_what_one_flush_leaves_the_next_one_takes() -> None:
    fed: list[Event] = []

    class _OneByOne(MemoryLog):
        def flush(self) -> Flushed:
            held = [self._waiting.pop() for _ in range(len(self._waiting) - 1)]
            done = super().flush()
            self._waiting.extend(reversed(held))
            return done

    async def story() -> None:
        storage = Storage({PUBEND: _OneByOne()}, fed.append, lambda _: None)
        for token in range(1, 5):
            storage.append(AppendRecord(pubend=PUBEND, token=token, record=batch(token)))
        await storage.idle()
        await storage.close()

    asyncio.run(story())
    assert [event.token for event in fed if isinstance(event, RecordDurable)] == [1, 2, 3, 4]


def test_a_large_flush_keeps_no_small_one_of_another_log_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_module, "QUICK_BYTES_MAX", batch(1).batch.nbytes)
    fed: list[Event] = []
    other = PubendId("q")

    async def story() -> None:
        heavy = _Gated(bytes_max=2**30)
        storage = Storage({PUBEND: heavy, other: MemoryLog()}, fed.append, lambda _: None)
        for token in (1, 2):
            storage.append(AppendRecord(pubend=PUBEND, token=token, record=batch(token)))
        await asyncio.get_running_loop().run_in_executor(None, heavy.taken.wait, 30)
        storage.append(AppendRecord(pubend=other, token=1, record=batch(1)))
        while not fed:  # noqa: ASYNC110  # nothing else tells of it
            await asyncio.sleep(0)
        assert fed == [RecordDurable(pubend=other, token=1)]
        heavy.go.set()
        await storage.idle()
        await storage.close()

    asyncio.run(asyncio.wait_for(story(), 30))
    assert fed[1:] == [RecordDurable(pubend=PUBEND, token=2)]


class _Timed(MemoryLog):
    """A log that counts its flushes and says which threads did them."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[str] = []

    def flush(self) -> Flushed:
        self.threads.append(threading.current_thread().name)
        return super().flush()


def _durable(fed: list[Event]) -> list[int]:
    return [event.token for event in fed if isinstance(event, RecordDurable)]


def test_the_loop_flushes_at_once_while_the_disk_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_module, "SLOW_SECONDS", 30.0)
    fed: list[Event] = []

    async def story() -> None:
        storage = Storage({PUBEND: (log := _Timed())}, fed.append, lambda _: None)
        for token in (1, 2):
            storage.append(AppendRecord(pubend=PUBEND, token=token, record=batch(token)))
            storage.flush()
            assert _durable(fed) == list(range(1, token + 1)), "answered in the same turn of the loop"
        await storage.idle()
        await storage.close()
        assert log.threads == 2 * [threading.current_thread().name]

    asyncio.run(story())


def test_a_thread_flushes_after_a_slow_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_module, "SLOW_SECONDS", 0.0)
    monkeypatch.setattr(storage_module, "SLOW_TIMES", 10**9)
    fed: list[Event] = []

    async def story() -> None:
        storage = Storage({PUBEND: (log := _Timed())}, fed.append, lambda _: None)
        for token in (1, 2, 3):
            storage.append(AppendRecord(pubend=PUBEND, token=token, record=batch(token)))
            storage.flush()
            assert _durable(fed) == ([1] if token == 1 else list(range(1, token)))
            await storage.idle()
        await storage.close()
        assert _durable(fed) == [1, 2, 3]
        assert log.threads == [threading.current_thread().name, "gapless-flush", "gapless-flush"]

    asyncio.run(story())


def test_a_thread_flushes_many_rows() -> None:
    fed: list[Event] = []

    async def story() -> None:
        storage = Storage({PUBEND: (log := _Timed())}, fed.append, lambda _: None)
        many = batch(*range(1, storage_module.AT_ONCE_ROWS_MAX + 2))
        storage.append(AppendRecord(pubend=PUBEND, token=1, record=many))
        storage.flush()
        assert not fed
        await storage.idle()
        await storage.close()
        assert [type(event) for event in fed] == [RecordDurable]
        assert log.threads == ["gapless-flush"]

    asyncio.run(story())


def test_a_thread_flushes_while_another_flush_is_under_way() -> None:
    fed: list[Event] = []
    other = PubendId("q")

    async def story() -> None:
        gated, timed = _Gated(bytes_max=2**30), _Timed()
        storage = Storage({PUBEND: gated, other: timed}, fed.append, lambda _: None)
        storage.append(AppendRecord(pubend=PUBEND, token=1, record=batch(1)))
        await asyncio.get_running_loop().run_in_executor(None, gated.taken.wait, 30)
        storage.append(AppendRecord(pubend=other, token=1, record=batch(1)))
        storage.flush()
        assert not fed
        gated.go.set()
        await storage.idle()
        await storage.close()
        assert timed.threads == ["gapless-flush"]

    asyncio.run(story())


def test_an_error_of_a_flush_at_once_is_heard_like_that_of_a_thread() -> None:
    broken: list[StoreError] = []

    class _Broken(MemoryLog):
        def flush(self) -> Flushed:
            raise StoreError("E303", "injected")

    async def story() -> None:
        storage = Storage({PUBEND: _Broken()}, lambda _: None, broken.append)
        storage.append(AppendRecord(pubend=PUBEND, token=1, record=batch(1)))
        storage.flush()
        assert [error.code for error in broken] == ["E303"]
        await storage.close()

    asyncio.run(story())
