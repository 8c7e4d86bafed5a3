"""What happened to a published event? One object tracks all events that are sent together.

A receipt costs nothing until it is asked for. Events sent together share a `Send`; `publish` returns a
`Publication`, which is a reference to the send and a position in it. A future is made only when a task has to
wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from gapless.errors import GaplessError
from gapless.model.ids import PubendId
from gapless.model.packed import PackedRows
from gapless.model.ticks import Tick, TickArray
from gapless.protocol.sessions.client_publishing import Outgoing
from gapless.protocol.sessions.messages import PublishReceipt

#: The values of one event, in the order of the topic's columns.
Row = tuple[object, ...]
#: Events in the form in which they are sent.
Piece: TypeAlias = pa.RecordBatch | PackedRows


class Receipt(NamedTuple):
    """The event is durable. Pubend and tick identify it, everywhere and for ever."""

    pubend: PubendId
    #: None if the event was stored before and the node no longer knows at which tick.
    tick: Tick | None


#: Builds a named tuple in half the time.
_receipt = tuple.__new__


@dataclass(frozen=True, slots=True)
class BatchReceipt:
    """All events of a batch are durable. `len` gives their number."""

    rows: int
    #: The pubend and ticks of consecutive rows; the ticks are empty if the node no longer knows them.
    parts: tuple[tuple[PubendId, TickArray], ...]

    def __len__(self) -> int:
        return self.rows

    @property
    def ticks(self) -> TickArray:
        """The ticks of the rows, in order."""
        return np.concatenate([ticks for _, ticks in self.parts]) if self.parts else np.empty(0, np.int64)


class Outcome:
    """The node's answer for the places `start..stop` of a send."""

    __slots__ = ("_first", "_ticks", "error", "pubend", "seen", "start", "stop")

    def __init__(
        self,
        start: int,
        stop: int,
        *,
        receipt: PublishReceipt | None = None,
        error: GaplessError | None = None,
    ) -> None:
        self.start = start
        self.stop = stop
        self.error = error
        #: Whether the program has seen the error.
        self.seen = False
        self.pubend = PubendId("") if receipt is None else receipt.pubend
        self._first: Tick | None = None
        self._ticks: TickArray | None = None

    def set_ticks(self, receipt: PublishReceipt, skipped: int) -> None:
        """Take the ticks of the receipt, except the first `skipped`."""
        if len(receipt.runs) == 1:
            self._first = receipt.runs[0][0] + skipped
        elif receipt.runs:
            self._ticks = receipt.ticks()[skipped : skipped + self.stop - self.start]

    def at(self, place: int) -> Receipt:
        """The receipt for one place. Raises the error, if any."""
        if self.error is not None:
            self.seen = True
            raise self.error
        if self._first is not None:
            return Receipt(self.pubend, self._first + place - self.start)
        ticks = self._ticks
        return Receipt(self.pubend, None if ticks is None else int(ticks[place - self.start]))

    def ticks(self) -> TickArray:
        """The ticks of all places; empty if they are not known. Raises the error, if any."""
        if self.error is not None:
            self.seen = True
            raise self.error
        if self._first is not None:
            return np.arange(self._first, self._first + self.stop - self.start, dtype=np.int64)
        return np.empty(0, np.int64) if self._ticks is None else self._ticks


class Send(Outgoing):
    """Events that are sent together, and their outcomes.

    A *place* numbers the events that are actually sent. An event that does not fit its columns has no place
    and fails at once, so the catenation numbers of the others are consecutive.
    """

    __slots__ = ("_places", "_waiting", "failed", "outcomes", "pieces", "rows", "whole")

    def __init__(self) -> None:
        super().__init__()
        #: The events, until they are converted to columns.
        self.rows: list[Row] = []
        #: The events as they are sent, cut to fit frames, each piece with the place of its first row. Dropped
        #: when all is settled: a program may keep a publication for long, and the rows are not needed.
        self.pieces: list[tuple[int, Piece]] = []
        self.outcomes: list[Outcome] = []
        #: The pubend and first tick if one receipt covers all events, which is nearly always so.
        self.whole: tuple[PubendId, Tick] | None = None
        #: The errors of events without a place, by their index among all events.
        self.failed: dict[int, Outcome] = {}
        #: The place of each index; None if they are equal.
        self._places: list[int] | None = None
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def made(self, pieces: Sequence[Piece], failed: dict[int, GaplessError]) -> None:
        """Record that the events were converted to columns, except those that failed."""
        for piece in pieces:
            self.pieces.append((self.count, piece))
            self.count += piece.num_rows
            self.nbytes += piece.nbytes
        self.open = [(0, self.count)] if self.count else []
        if failed:
            self.failed = {index: Outcome(0, 1, error=error) for index, error in failed.items()}
            good = iter(range(self.count))
            self._places = [-1 if index in failed else next(good) for index in range(len(self.rows))]
        self.rows = []
        self._wake()

    def settle(
        self, start: int, stop: int, receipt: PublishReceipt | None, error: GaplessError | None
    ) -> None:
        """Record the outcome of the places `start..stop`, which had none."""
        outcome = Outcome(start, stop, receipt=receipt, error=error)
        if receipt is not None:
            outcome.set_ticks(receipt, start + self.first - receipt.first_catenation)
        self.outcomes.append(outcome)
        if not self.open:
            self.pieces = []
            is_whole = stop - start == self.count and not self.failed
            if is_whole and receipt is not None and len(receipt.runs) == 1:
                self.whole = receipt.pubend, receipt.runs[0][0] + self.first - receipt.first_catenation
        self._wake()

    def fail(self, error: GaplessError) -> None:
        """Fail everything that has no outcome."""
        if self.rows:
            self.made([], dict.fromkeys(range(len(self.rows)), error))
        for start, stop in self.close(0, self.count):
            self.settle(start, stop, None, error)

    def outcome(self, index: int) -> Outcome | None:
        """The outcome of one event; None if there is none yet."""
        if self._places is not None:
            place = self._places[index]
            if place < 0:
                return self.failed[index]
            index = place
        for outcome in self.outcomes:
            if outcome.start <= index < outcome.stop:
                return outcome
        return None

    def receipt(self, index: int) -> Receipt | None:
        """The receipt of one event; None if there is none yet. Raises its error."""
        outcome = self.outcome(index)
        if outcome is None:
            return None
        return outcome.at(index if self._places is None else self._places[index])

    def unseen(self) -> GaplessError | None:
        """An error that the program has not seen; from now on it counts as seen."""
        found = None
        for outcome in [*self.failed.values(), *self.outcomes]:
            if outcome.error is not None and not outcome.seen:
                outcome.seen = True
                found = found or outcome.error
        return found

    async def wait(self, index: int) -> None:
        """Wait for the outcome of one event, or for any outcome if `index` is -1."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((index, future))
        await future

    async def settled(self) -> None:
        """Wait for the outcomes of all events."""
        while self.rows or self.open:
            await self.wait(-1)

    def _wake(self) -> None:
        if not self._waiting:
            return
        waiting: list[tuple[int, asyncio.Future[None]]] = []
        for index, future in self._waiting:
            if future.done():
                continue
            if index < 0 or self.outcome(index) is not None:
                future.set_result(None)
            else:
                waiting.append((index, future))
        self._waiting = waiting


class Publication(msgspec.Struct, eq=False, gc=False):
    """A published event. Awaiting it returns the receipt or raises the refusal.

    There is one per event, so it is a struct: no Python call to build it, and no work for the collector.
    """

    _send: Send
    _index: int

    def __await__(self) -> Generator[object, None, Receipt]:
        send = self._send
        index = self._index
        whole = send.whole
        if whole is not None:
            return _receipt(Receipt, (whole[0], whole[1] + index))
        receipt = send.receipt(index)
        while receipt is None:
            yield from send.wait(index).__await__()
            receipt = send.receipt(index)
        return receipt

    def done(self) -> bool:
        """Whether awaiting returns or raises at once."""
        return self._send.outcome(self._index) is not None
