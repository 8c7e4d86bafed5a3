"""What becomes of records when the disk has no room for those before them."""

import asyncio
import threading

import pytest

from gapless.model.ids import PubendId
from gapless.node.storage import Storage
from gapless.protocol.effects import AppendRecord
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
