"""What does a broker's host ask of a log? The contract of the logs on disk and in memory.

A log holds the records of one pubend. The host appends what `AppendRecord` asks for, flushes, and feeds
back what `Flushed` says; it answers `ReadRecords` with `read`, does `TrimLog` with `trim`, and starts a
broker with `recover`. `tests/contracts/test_logs.py` holds every implementation to this page.

Which call belongs where: `append` and `recover` touch no disk and may run in an event loop. `flush`, `read`,
`notes`, `trim` and `close` may wait for the disk and belong in a thread. Any number of reads may run beside
one flush and one trim.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gapless.errors import StoreError
from gapless.model.batch import EventBatch
from gapless.model.ticks import Tick, TickRange
from gapless.protocol.effects import Record
from gapless.protocol.pubend import Recovered
from gapless.store.retention import Retention

#: Approximate number of bytes of rows in one read; at most twice as many, unless a single row is larger.
READ_BYTES_MAX = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Flushed:
    """The result of a flush. Report failures before the token: `RecordDurable` covers everything below it."""

    #: Every record up to this one is durable, except `failed`; None when none is.
    token: int | None = None
    #: The records that were not written and never will be, not even after a crash.
    failed: tuple[int, ...] = ()
    #: Why they failed; None when none did.
    error: StoreError | None = None


class Extent(NamedTuple):
    """The tick range of one batch, and its number of rows."""

    first: Tick
    last: Tick
    rows: int


class RecordLog(Protocol):
    """The durable records of one pubend."""

    def append(self, token: int, record: Record, note: bytes = b"") -> None:
        """Add a record, without any promise that it stays. Tokens ascend, and so do ticks.

        The `note` of a batch is kept with it: after a crash either both exist or neither does.
        """
        ...

    def flush(self) -> Flushed:
        """Make appended records durable, as one group: the oldest record and as many after it as is quick.

        One flush at a time. To flush everything, repeat until all tokens were reported.

        Raises StoreError when the contents of the disk are uncertain. The log is unusable then: stop the
        broker, tell nobody anything about the pending records, open the log again.
        """
        ...

    def take_back(self) -> tuple[int, ...]:
        """Drop the batches that no flush has taken yet; returns their tokens. Not during a flush.

        For use after a failed flush: later batches must not be stored before the failed ones.
        """
        ...

    def read(
        self,
        ticks: TickRange,
        rows_max: int,
        *,
        bytes_max: int = READ_BYTES_MAX,
        history: bool = False,
    ) -> tuple[TickRange, EventBatch | None]:
        """The lowest durable rows of `ticks`, and the range for which they are complete.

        That range begins where `ticks` begins and is shorter only if there would be too many rows. Released
        rows are left out, unless `history` asks for everything that still exists.

        Raises StoreError E301 where the log is damaged.
        """
        ...

    def extents(self, ticks: TickRange) -> Iterator[Extent]:
        """The durable batches that may have rows in `ticks`, released or not, in order; no row is read.

        For planning: superseded or damaged rows are not recognized here.
        """
        ...

    def notes(self, start: Tick) -> Iterator[tuple[Tick, bytes]]:
        """The notes of all batches that end at `start` or later, in order, each with that last tick."""
        ...

    def trim(self, before: Tick, now: Tick) -> None:
        """The released events below `before` may be deleted as retention allows; `now` is the clock.

        Repeating is harmless.
        """
        ...

    def kept_from(self, now: Tick) -> Tick:
        """The tick from which retention keeps events that all subscribers have; `now` is the clock."""
        ...

    @property
    def retention(self) -> Retention:
        """How long events that all subscribers have are kept."""
        ...

    @property
    def log_bytes(self) -> int:
        """How large the log is."""
        ...

    @property
    def oldest(self) -> Tick:
        """Events below this tick are deleted; later ones may still exist."""
        ...

    def recover(self) -> Recovered:
        """The state that the durable records give to a starting broker."""
        ...

    def close(self) -> None:
        """Close the log. What was not flushed is lost."""
        ...
