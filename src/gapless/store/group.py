"""What is written together? A group: all records since the last flush, small batches joined.

A group fails as a whole or is durable as a whole: `store.log` writes it and syncs once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from gapless.errors import StoreError
from gapless.model.batch import EventBatch
from gapless.model.ticks import Tick
from gapless.protocol.effects import BatchRecord, Record
from gapless.store.record import Payload, batch_payload, control_payload

#: Batches below this size that are flushed together are written as one.
JOIN_BYTES = 32 * 2**10


@dataclass(frozen=True, slots=True)
class Waiting:
    """A record that was appended and is not yet durable."""

    token: int
    record: Record
    note: bytes


@dataclass(slots=True)
class FlushGroup:
    """The part of a flush that is to be written."""

    entries: list[Waiting]
    failed: list[int]
    error: StoreError | None = None
    #: First tick and offset of each batch frame, for the index.
    batches: list[tuple[Tick, int]] = field(default_factory=list)

    def fail(self, error: StoreError) -> None:
        """Nothing of it will be written."""
        self.failed = sorted([*self.failed, *(entry.token for entry in self.entries)])
        self.entries = []
        self.error = error

    def payloads(self, next_tick: Tick, schema: pa.Schema) -> Iterator[Payload]:
        """The records as they are written: small batches that follow each other become one."""
        small: list[Waiting] = []
        size = 0
        stop = next_tick
        for entry in self.entries:
            record = entry.record
            if isinstance(record, BatchRecord):
                batch = record.batch
                assert batch.first >= stop, f"{batch} is logged after tick {stop - 1}"
                assert batch.schema is schema or batch.schema.equals(schema), f"columns {batch.schema.names}"
                stop = batch.last + 1
                small.append(entry)
                size += batch.nbytes
                if size < JOIN_BYTES:
                    continue
            if small:
                yield _joined(small)
                small, size = [], 0
            if not isinstance(record, BatchRecord):
                yield control_payload(record)
        if small:
            yield _joined(small)


def _joined(entries: list[Waiting]) -> Payload:
    batches = [entry.record.batch for entry in entries if isinstance(entry.record, BatchRecord)]
    notes = [
        (entry.record.batch.last, entry.note)
        for entry in entries
        if entry.note and isinstance(entry.record, BatchRecord)
    ]
    return batch_payload(EventBatch.joined(batches), notes)
