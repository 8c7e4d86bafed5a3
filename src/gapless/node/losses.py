"""How does a node keep what its named subscriptions have lost? In its database, until their clients know."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from gapless.errors import StoreError
from gapless.model.ids import PubendId
from gapless.model.ticks import Tick
from gapless.node.logs import event_log
from gapless.node.named import NamedBook
from gapless.protocol.effects import ConfirmSubscription
from gapless.protocol.sessions.losses import LossBook
from gapless.store.recovery import RecoveryDatabase

log = event_log("gapless.losses")

#: What the disk has refused is tried again after this time.
RETRY_SECONDS = 1.0
_LOST_KEY = "lost"
_LOGS_KEY = "known_logs"
_lost = msgspec.msgpack.Decoder(dict[str, dict[str, tuple[int, int]]])
_logs = msgspec.msgpack.Decoder(dict[str, str])


class Losses(LossBook):
    """What the named subscriptions of a node have lost, on its disk."""

    def __init__(self, database: RecoveryDatabase | None = None, life_before: int = 0) -> None:
        """`life_before` is the last incarnation that the folder knew of when the node started."""
        lost = None if database is None else database.meta(_LOST_KEY)
        logs = None if database is None else database.meta(_LOGS_KEY)
        super().__init__(
            {
                name: {PubendId(pubend): ticks for pubend, ticks in each.items()}
                for name, each in ({} if lost is None else _lost.decode(lost)).items()
            },
            {PubendId(pubend): name for pubend, name in ({} if logs is None else _logs.decode(logs)).items()},
            life_before,
        )
        self.book: NamedBook | None = None
        self._is_saving = False

    def _lose(self, name: str, effect: ConfirmSubscription, lost_from: Tick, reason: str) -> None:
        super()._lose(name, effect, lost_from, reason)
        start, stop = self.lost[name][effect.pubend]
        log.warning("ticks_lost", name=name, pubend=effect.pubend, start=start, stop=stop, reason=reason)

    def save(self) -> None:
        """Have the disk know what was lost, should the node die before the clients hear of it."""
        if not self._is_saving:
            self._is_saving = True
            asyncio.get_running_loop().call_soon(self._save)

    def _save(self) -> None:
        assert self.book is not None, "somebody has a name, so there is a database"
        self._is_saving = False
        self.settle()
        self.book.write(self.write(), self._saved)

    def _saved(self, error: StoreError | None) -> None:
        if error is not None:
            log.repeated("losses_not_written", by=error.code, code=error.code, reason=error.message)
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self.save)

    def write(self) -> Callable[[RecoveryDatabase], None]:
        """A function that writes the current state to a database."""
        lost, logs = msgspec.msgpack.encode(self.lost), msgspec.msgpack.encode(self.logs)

        def put(database: RecoveryDatabase) -> None:
            database.put_meta(_LOST_KEY, lost)
            database.put_meta(_LOGS_KEY, logs)

        return put


def told_of_gap(effect: ConfirmSubscription) -> None:
    """Tell the operator that subscribers of this edge have a gap, because a pubend has begun another log."""
    log.repeated(
        "log_began_anew",
        by=(effect.pubend, effect.log),
        pubend=effect.pubend,
        log=effect.log,
        start=effect.lost_from,
        stop=effect.start,
    )
