"""What does a broker's host ask of a log? The contract that the disk and the memory both keep.

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

#: About so many bytes of rows one read gives, and at most twice as many, unless a single row is larger.
READ_BYTES_MAX = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Flushed:
    """What a flush came to. Feed the failures before the token: `RecordDurable` speaks for all below it."""

    #: Every record up to this one is durable, but for `failed`; None when none is.
    token: int | None = None
    #: The records that were not written and never will be, not even after a crash.
    failed: tuple[int, ...] = ()
    #: Why they failed; None when none did.
    error: StoreError | None = None


class Extent(NamedTuple):
    """Where one batch lies among the ticks, and how many rows it has."""

    first: Tick
    last: Tick
    rows: int


class RecordLog(Protocol):
    """The durable records of one pubend."""

    def append(self, token: int, record: Record, note: bytes = b"") -> None:
        """Take a record, without any promise that it stays. Tokens ascend, and so do ticks.

        The `note` of a batch is kept with it: after a crash either both are there or neither is.
        """
        ...

    def flush(self) -> Flushed:
        """Make what was appended durable, as one group: the oldest record and as much behind it as is quick.

        One flush at a time. Whoever wants all of it flushes until all tokens were told.

        Raises StoreError when nobody can say what is on the disk. The log is unusable then: stop the broker,
        tell nobody anything about the records under way, open the log again.
        """
        ...

    def take_back(self) -> tuple[int, ...]:
        """Give up the batches that no flush has taken yet; gives their tokens. Not during a flush.

        After a flush that failed: what was published later must not be stored before what failed is.
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
        """The lowest durable rows of `ticks`, and the range for which they are all there are.

        That range begins where `ticks` begins and is less only if the rows would be too many. What was
        released is not given, unless `history` asks for all that is still there.

        Raises StoreError E301 where the log is damaged.
        """
        ...

    def extents(self, ticks: TickRange) -> Iterator[Extent]:
        """The durable batches that may have rows in `ticks`, released or not, in order; no row is read.

        For planning: that a row is superseded, or damaged, is not seen here.
        """
        ...

    def notes(self, start: Tick) -> Iterator[tuple[Tick, bytes]]:
        """The notes of all batches that end at `start` or later, in order, each with that last tick."""
        ...

    def trim(self, before: Tick, now: Tick) -> None:
        """The events below `before`, which are released, may go as retention rules; `now` is the clock.

        Repeating is harmless.
        """
        ...

    def kept_from(self, now: Tick) -> Tick:
        """From this tick on retention wants events kept although everybody has them; `now` is the clock."""
        ...

    @property
    def retention(self) -> Retention:
        """How long events are kept that everybody has."""
        ...

    @property
    def log_bytes(self) -> int:
        """How large the log is."""
        ...

    @property
    def oldest(self) -> Tick:
        """Events below this tick are gone; those from here on may still be there."""
        ...

    def recover(self) -> Recovered:
        """What the durable records say to a broker that starts."""
        ...

    def close(self) -> None:
        """Let go of the log. What was not flushed is lost."""
        ...
