"""How does a node keep what its named subscriptions have lost? In its database, until their clients know."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

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
_HEARD_KEY = "heard_lives"
_lost = msgspec.msgpack.Decoder(dict[str, dict[str, tuple[int, int]]])
_heard = msgspec.msgpack.Decoder(dict[str, int])
_logs = msgspec.msgpack.Decoder(dict[str, str])


class Losses(LossBook):
    """What the named subscriptions of a node have lost, on its disk."""

    def __init__(self, database: RecoveryDatabase | None = None, lives: Sequence[int] = ()) -> None:
        """`lives` are those that began from the folder, oldest first."""
        keys = (_LOST_KEY, _LOGS_KEY, _HEARD_KEY)
        lost, logs, heard = ((None if database is None else database.meta(key)) for key in keys)
        super().__init__(
            {
                name: {PubendId(pubend): ticks for pubend, ticks in each.items()}
                for name, each in ({} if lost is None else _lost.decode(lost)).items()
            },
            {PubendId(pubend): name for pubend, name in ({} if logs is None else _logs.decode(logs)).items()},
            lives,
            {
                PubendId(pubend): life
                for pubend, life in ({} if heard is None else _heard.decode(heard)).items()
            },
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
        kept = {_LOST_KEY: self.lost, _LOGS_KEY: self.logs, _HEARD_KEY: self.heard}
        encoded = {key: msgspec.msgpack.encode(value) for key, value in kept.items()}

        def put(database: RecoveryDatabase) -> None:
            for key, value in encoded.items():
                database.put_meta(key, value)

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
