"""What the tests of stores append: a schema, batches that say which they are, and short names."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from gapless.model.batch import EventBatch
from gapless.model.ids import BrokerId, PubendId
from gapless.model.ticks import Tick, TickRange
from gapless.protocol.effects import BatchRecord, StartRecord
from gapless.store.contract import RecordLog

PUBEND = PubendId("trades@p1")
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("note", pa.string())])
ALL_TICKS = TickRange(0, 2**62)


def events(ticks: Sequence[Tick]) -> EventBatch:
    """Events that say their ticks; the text is longer than a sector, and sometimes missing."""
    columns = {"id": list(ticks), "note": [None if tick % 7 == 0 else f"event {tick} " * 3 for tick in ticks]}
    return EventBatch(np.asarray(ticks, dtype=np.int64), pa.RecordBatch.from_pydict(columns, schema=SCHEMA))


def batch(*ticks: Tick) -> BatchRecord:
    return BatchRecord(batch=events(ticks))


def start(edge: str, epoch: int, tick: Tick, wanted: Tick | None = None) -> StartRecord:
    return StartRecord(edge=BrokerId(edge), epoch=epoch, wanted=wanted, start=tick)


def ticks_in(log: RecordLog, ticks: TickRange = ALL_TICKS, *, history: bool = False) -> list[Tick]:
    """All ticks that a log gives for a range, read in small steps; every row must say its own tick."""
    found: list[Tick] = []
    while ticks:
        covered, got = log.read(ticks, 5, history=history)
        assert covered.start == ticks.start
        assert covered.start < covered.stop <= ticks.stop
        assert got is not None or covered == ticks
        if got is not None:
            assert 0 < len(got) <= 5
            assert got.first >= covered.start
            assert got.last < covered.stop
            assert got == events(got.ticks.tolist())
            found += got.ticks.tolist()
        ticks = TickRange(covered.stop, ticks.stop)
    assert found == sorted(set(found))
    return found
