"""What must the database know before a log is trimmed? Who published what, and how far the logs have come.

A commit waits for the disk, which may be slow under load, so a thread does it. The event loop takes the
positions from the publishers, a few at a time, and puts them back if the disk refuses them. When a node
stops, or an operator waits for it, everything is written at once (`write_now`): positions that were taken and
not yet written are put back first, and the thread then skips them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gapless.model.ids import PubendId
from gapless.model.notes import PublisherPosition
from gapless.model.ticks import Tick
from gapless.node.worker import WorkThread
from gapless.protocol.sessions.publishers import Publishers
from gapless.store.recovery import RecoveryDatabase

#: Maximum number of publishers that are taken in one turn of the event loop.
TAKEN_MAX = 500
#: A commit that takes longer than this is stuck.
COMMIT_SECONDS_MAX = 30.0


@dataclass(slots=True)
class _Taken:
    """What is on its way to the database."""

    forgotten: dict[PubendId, list[str]] = field(default_factory=dict)
    positions: dict[PubendId, list[PublisherPosition]] = field(default_factory=dict)
    #: Per pubend: with this, everything stored up to this tick is written. Empty but for the last part.
    ticks: dict[PubendId, Tick] = field(default_factory=dict)
    #: Whether it was put back, for another commit to write.
    is_void: bool = False


class Remembering:
    """Writes down what the publishers of a node have stored."""

    def __init__(
        self,
        database: RecoveryDatabase | None,
        publishers: Mapping[PubendId, Publishers],
        write_logs: Callable[[], None],
    ) -> None:
        """`publishers` may grow; `write_logs` writes down how far the logs have come."""
        self._database = database
        self._publishers = publishers
        self._write_logs = write_logs
        self._desk = WorkThread("gapless-remember", patience_s=COMMIT_SECONDS_MAX)
        self._turn = asyncio.Lock()
        self._under_way: _Taken | None = None

    def trouble(self) -> str | None:
        """What is wrong with the writing thread; None when all is well."""
        return self._desk.trouble()

    async def write(self) -> dict[PubendId, Tick]:
        """Write everything. Returns the tick up to which each log may drop its notes. Raises StoreError."""
        if self._database is None:
            return {}
        async with self._turn:
            while True:
                is_last = all(each.unwritten <= TAKEN_MAX for each in self._publishers.values())
                taken = self._take(TAKEN_MAX, is_last=is_last)
                await self._write_taken(taken)
                if is_last and not taken.is_void:
                    return taken.ticks

    def write_now(self) -> None:
        """Write everything before this returns. Raises StoreError."""
        if self._database is None:
            return
        taken = _Taken()
        try:
            with self._database.transaction():
                # The thread commits in a transaction of its own: it is done by now, or will find this void.
                if self._under_way is not None and not self._under_way.is_void:
                    self._under_way.is_void = True
                    self._put_back(self._under_way)
                most = max((each.unwritten for each in self._publishers.values()), default=0)
                taken = self._take(most, is_last=True)
                self._commit(taken)
        except BaseException:
            self._put_back(taken)
            raise

    async def close(self) -> None:
        """Wait for what is under way, and end the thread."""
        async with self._turn:
            await self._desk.close()

    async def _write_taken(self, taken: _Taken) -> None:
        self._under_way = taken
        try:
            await self._desk.do(self._commit, taken)
        except BaseException:
            if not taken.is_void:
                self._put_back(taken)
            raise
        finally:
            self._under_way = None

    def _take(self, most: int, *, is_last: bool) -> _Taken:
        taken = _Taken()
        for pubend, publishers in self._publishers.items():
            taken.forgotten[pubend], taken.positions[pubend] = publishers.take(most)
            if is_last:
                taken.ticks[pubend] = publishers.known_tick
        return taken

    def _put_back(self, taken: _Taken) -> None:
        for pubend, positions in taken.positions.items():
            self._publishers[pubend].put_back(taken.forgotten[pubend], positions)

    def _commit(self, taken: _Taken) -> None:
        """Runs in a thread, or on the event loop."""
        assert self._database is not None
        with self._database.transaction():
            if taken.is_void:
                return
            for pubend, positions in taken.positions.items():
                self._database.drop_publishers(pubend, taken.forgotten[pubend])
                self._database.put_publishers(positions)
            for pubend, tick in taken.ticks.items():
                self._database.put_meta(f"notes:{pubend}", tick.to_bytes(8, "big"))
            if taken.ticks:
                self._write_logs()
