"""What of named subscriptions is on the disk? That they exist, what they want, and how far they have come.

A subscription with a name outlives its client and its node. That it exists, and every change of its
condition, is on the disk before its client hears of it. Its position is not written for every
acknowledgement: all that have moved are written together, once in `POSITIONS_SECONDS`, and when the node
stops. So a node that crashes may resume a subscription up to that much before what was acknowledged last: a
client that kept its positions drops what it has, and one that did not gets those events again.

One thread writes, and whatever was asked for while it wrote is the next transaction: many subscriptions cost
hardly more than one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from gapless.errors import StoreError
from gapless.model.ids import PubendId
from gapless.model.ticks import Tick
from gapless.node.guard import Guard
from gapless.node.logs import event_log
from gapless.node.worker import WorkThread
from gapless.protocol.sessions.subscriptions import NamedSubscription
from gapless.store.recovery import RecoveryDatabase

log = event_log("gapless.named")

#: Positions that have moved are written so long after the first of them moved.
POSITIONS_SECONDS = 1.0

#: Called when a change is on the disk, or with what went wrong.
Then: TypeAlias = Callable[[StoreError | None], None]
_Change: TypeAlias = tuple[Callable[[RecoveryDatabase], object], Then]


class NamedBook:
    """The named subscriptions of one node, on its disk."""

    def __init__(
        self,
        database: RecoveryDatabase,
        positions: Callable[[Collection[str]], Mapping[str, Mapping[PubendId, Tick]]],
        guard: Guard | None = None,
    ) -> None:
        """`positions` gives those that have moved since it was last asked, and those of some names besides.

        `guard` hears of our mistakes.
        """
        self._guard = guard
        self._database = database
        self._positions = positions
        self._loop = asyncio.get_running_loop()
        self._desk = WorkThread("gapless-named")
        self._waiting: list[_Change] = []
        self._writing: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        #: Names whose positions the disk refused: written with those that move next, or later, as they
        #: are then. What was refused is older than what was asked for since.
        self._refused: set[str] = set()
        self._closing = False

    def put(self, record: NamedSubscription, then: Then) -> None:
        """Write a subscription down, with what else changes meanwhile."""
        self._change(lambda database: database.put_subscription(record), then)

    def write(self, change: Callable[[RecoveryDatabase], object], then: Then) -> None:
        """Write something else down, with what changes meanwhile."""
        self._change(change, then)

    def drop(self, name: str, then: Then) -> None:
        """Forget a subscription."""
        self._change(lambda database: database.drop_subscription(name), then)

    def moved(self) -> None:
        """Some position has moved: it is written soon."""
        if self._timer is None:
            self._timer = self._loop.call_later(POSITIONS_SECONDS, self._write_positions)

    def trouble(self) -> str | None:
        """What is wrong with the thread that writes, None when all is well."""
        return self._desk.trouble()

    async def close(self) -> None:
        """Write everything that is not written, and wait for it."""
        self._closing = True
        if self._timer is not None:
            self._write_positions()
        while self._writing is not None:
            await asyncio.wait([self._writing])
        await self._desk.close()

    def _write_positions(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        positions = self._positions(self._refused)
        self._refused = set()
        if not positions:
            return

        def written(error: StoreError | None) -> None:
            if error is not None:
                # Until they are written a restart repeats more than it must.
                log.repeated("positions_not_written", by=error.code, code=error.code, reason=error.message)
                self._refused.update(positions)
                if not self._closing:
                    self.moved()

        self._change(lambda database: database.put_positions(positions), written)

    def _change(self, change: Callable[[RecoveryDatabase], object], then: Then) -> None:
        self._waiting.append((change, then))
        if self._writing is None:
            self._write()

    def _write(self) -> None:
        changes, self._waiting = self._waiting, []
        self._writing = self._desk.do(self._commit, changes)
        self._writing.add_done_callback(lambda done: self._written(changes, done))

    def _commit(self, changes: list[_Change]) -> None:
        with self._database.transaction():
            for change, _ in changes:
                change(self._database)

    def _written(self, changes: list[_Change], done: asyncio.Future[None]) -> None:
        self._writing = None
        error = done.exception()
        try:
            if error is not None and not isinstance(error, StoreError):
                raise error
            if self._waiting:
                self._write()
            for _, then in changes:
                then(error)
        except Exception as mistake:
            if self._guard is None:
                raise
            self._guard.mistaken(mistake)
