"""What is a log called? A name that no other log has, kept beside the log, and the tick at which it began.

On a disk it is the id that the log itself has. A log that turns out to be an older copy of what others have
seen, or of which a loss was accepted, gets another name: readers that have seen more of it are told of a gap.

Implements docs/protocol.md, section 14.
"""

from __future__ import annotations

import msgspec

from gapless.errors import StoreError
from gapless.model.ids import PubendId
from gapless.model.ticks import TICK_MIN, Tick
from gapless.node.logs import event_log
from gapless.store.recovery import RecoveryDatabase
from gapless.store.segment import new_id

log = event_log("gapless.lognames")


class LogName(msgspec.Struct, frozen=True):
    """How brokers call a log."""

    #: The id of the log on the disk; empty when an older program began it, or when it is in memory.
    disk_id: str
    name: str
    began: Tick
    #: If the log was found to be an older copy: what is lost of the one before it lies below.
    lost_before: Tick = TICK_MIN


_names = msgspec.msgpack.Decoder(LogName)


def log_name(
    database: RecoveryDatabase | None, pubend: PubendId, disk_id: str, *, has_events: bool, now: Tick
) -> LogName:
    """The name of a log; it gets one if it has none yet. Blocks."""
    stored = None if database is None else database.meta(_key(pubend))
    found = None if stored is None else _names.decode(stored)
    if found is not None and found.disk_id in ("", disk_id):
        return found
    # It is unknown when a log of an older version began.
    made = LogName(disk_id, disk_id or new_id(), TICK_MIN if has_events else now)
    if database is not None:
        try:
            _put(database, pubend, made)
        except StoreError as error:
            if error.code != "E302":
                raise
            # It gets the same name at the next start.
            log.repeated("log_name_not_written", by=error.code, code=error.code, reason=error.message)
    return made


def rename_log(
    database: RecoveryDatabase, pubend: PubendId, disk_id: str, began: Tick, lost_before: Tick = TICK_MIN
) -> None:
    """From now on the log has another name. Raises StoreError."""
    _put(database, pubend, LogName(disk_id, new_id(), began, lost_before))


def renamed_after_loss(database: RecoveryDatabase, pubend: PubendId, began: Tick, lost_before: Tick) -> None:
    """The same for a log that is open: its next life has another name. Raises StoreError."""
    stored = database.meta(_key(pubend))
    disk_id = "" if stored is None else _names.decode(stored).disk_id
    rename_log(database, pubend, disk_id, began, lost_before)
    log.warning("log_is_older_copy", pubend=pubend, first_tick=began, lost_before=lost_before)


def _put(database: RecoveryDatabase, pubend: PubendId, name: LogName) -> None:
    with database.transaction():
        database.put_meta(_key(pubend), msgspec.msgpack.encode(name))


def _key(pubend: PubendId) -> str:
    return f"log_name:{pubend}"
