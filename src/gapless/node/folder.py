"""Does what a node's folder holds fit together? What two places know is compared before anything is served.

A folder has a database and, for each pubend that lives here, a log. Each of them can be lost, cut short, or
replaced by an older copy without the others; alone, each would look like new, or like what a crash leaves. So
each knows something of the other:

- The database knows the id of every log and how far it had come when the database was last written. That was
  durable in the log before, so after any crash a log is at or beyond it. One that is behind has lost some.
- Beside the logs a small file names the node and counts its starts. The database counts them first, so the
  file is never ahead of it, unless the database is an older copy.

A contradiction is an error that names both. An operator who cannot restore what is missing says so
(`accept_loss`). Then the remaining events of the log become history, no tick is given twice, and subscribers
that had not got all of them are told of a gap.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import msgspec

from gapless.errors import ParameterError, StoreError
from gapless.model.bounds import ROWS_MAX
from gapless.model.epochs import LIFE_STEP, lives_max
from gapless.model.ids import BrokerId, PubendId
from gapless.model.ticks import TICK_MIN, TICKS_PER_MS, Tick
from gapless.node.lognames import rename_log
from gapless.node.logs import event_log
from gapless.protocol.effects import ReleaseRecord
from gapless.protocol.parameters import Parameters
from gapless.protocol.pubend import RESERVE_GROWTH_MAX
from gapless.protocol.sessions.losses import with_life
from gapless.store.files import DiskFiles, failure, write_all
from gapless.store.log import Log
from gapless.store.recovery import DATABASE_NAME, RecoveryDatabase
from gapless.store.segment import SUFFIX, new_id

TICKS_PER_SECOND = 1_000 * TICKS_PER_MS
log = event_log("gapless.folder")

LOGS_NAME = "log"
#: The file beside the logs.
IDENTITY_NAME = "node.json"
#: So far ahead the clocks of others may be.
_DAY_TICKS = 86_400 * TICKS_PER_SECOND
_FOREIGN = "give each broker its own folder"


class LogFacts(msgspec.Struct, frozen=True):
    """What the database knows of a log."""

    log_id: str
    #: The newest segment, and how many bytes of it were durable.
    number: int
    size: int
    next_tick: Tick
    reserved: Tick
    released: Tick


class _Identity(msgspec.Struct, frozen=True):
    node: str
    broker: str
    starts: int


_facts = msgspec.msgpack.Decoder(LogFacts)
_lives = msgspec.msgpack.Decoder(tuple[int, ...])
_identity = msgspec.json.Decoder(_Identity)


class Folder:
    """The data folder of one node. Made by `open`; `begin` follows when the database is open."""

    def __init__(self, path: Path, broker: BrokerId, accept_loss: Collection[str]) -> None:
        self.path = path
        self._broker = broker
        self._accepted = frozenset(accept_loss)
        #: The accepted ones that had in fact lost something.
        self._lost: set[str] = set()
        #: How often the node was started, this time included.
        self.starts = 1
        #: The lives that began from this folder, oldest first; the last is this one.
        self.lives: tuple[int, ...] = ()
        self._incarnation = 0
        self._unsaved = False
        #: Whether the operator knows that the database is missing, or an older copy.
        self.database_accepted = DATABASE_NAME in self._accepted

    def check_database(self) -> None:
        """Call before the database is opened, which makes one. Raises StoreError E308."""
        database = self.path / DATABASE_NAME
        with suppress(FileNotFoundError):
            if database.stat().st_size:
                return
        found = [f"the logs of {', '.join(logs)}"] if (logs := self._folders_with_logs()) else []
        if self._read() is not None:
            # An edge or a router may have no log, and names all the same.
            found.append(str(self.path / LOGS_NAME / IDENTITY_NAME))
        if not found:
            return
        if self.database_accepted:
            self._lost.add(DATABASE_NAME)
            log.warning("loss_accepted", file=str(database), reason="started without the database")
            return
        raise StoreError(
            "E308",
            f"{database} is missing beside {' and '.join(found)}, and with it created topics and named "
            f"subscriptions: restore it from a copy, or start once with --accept-loss {DATABASE_NAME}",
        )

    def begin(self, database: RecoveryDatabase, at_least: int) -> int:
        """Another life begins; gives its incarnation. Raises StoreError: E309, E310.

        On a full disk it begins all the same, and is written down as soon as there is room.
        """
        self._check_identity(database)
        before = int(database.meta("incarnation") or b"0")
        lives = _lives_before(database, before)
        if before > (believed := lives_max(time.time_ns() // 1_000 + _DAY_TICKS)):
            # Nobody else has believed it either, so nobody remembers it.
            lives = tuple(each for each in lives if each <= believed)
            log.warning("life_not_believed", life=before, reason="it is far ahead of every clock")
            before = max(lives, default=0)
        self._incarnation = max(before + LIFE_STEP, at_least)
        self.lives = with_life(lives, self._incarnation)
        self.starts = int(database.meta("starts") or b"0") + 1
        self._unsaved = True
        try:
            self._save(database)
        except StoreError as error:
            if error.code != "E302":
                raise
            log.repeated("start_not_written", by=error.code, code=error.code, reason=error.message)
        return self._incarnation

    def save_later(self, database: RecoveryDatabase) -> None:
        """Write down that this life has begun, if there was no room for that."""
        if self._unsaved:
            try:
                self._save(database)
            except StoreError as error:
                log.repeated("start_not_written", by=error.code, code=error.code, reason=error.message)

    def _save(self, database: RecoveryDatabase) -> None:
        node = database.meta("node")
        if node is None:
            node = new_id().encode()
        with database.transaction():
            database.put_meta("incarnation", b"%d" % self._incarnation)
            database.put_meta("starts", b"%d" % self.starts)
            database.put_meta("lives", msgspec.msgpack.encode(self.lives))
            database.put_meta("node", node)
            database.put_meta("broker", self._broker.encode())
        # The name of the database is on the disk before there is any log.
        with suppress(OSError):
            DiskFiles().sync_folder(self.path)
        self._unsaved = False
        self._write(_Identity(node.decode(), self._broker, self.starts))

    def check_log_folder(self, database: RecoveryDatabase, pubend: PubendId) -> None:
        """Call before a log is opened, which makes one. Raises StoreError E309."""
        facts = self._known(database, pubend)
        folder = self.path / LOGS_NAME / pubend
        if facts is None or _has_segments(folder) or pubend in self._accepted:
            return
        raise StoreError(
            "E309",
            f"{folder} has no log, and {database.path} knows of one up to tick {facts.next_tick - 1}: "
            f"{_way_out(pubend)}",
        )

    def check_log(self, database: RecoveryDatabase, disk: Log, beyond: Tick) -> None:
        """Compare a log with what the database knows of it; with a loss that was accepted, begin beyond it.

        `beyond` is a tick that no promise of an earlier life can have reached. Raises StoreError E309.
        """
        pubend = disk.pubend
        facts, notes = self._known(database, pubend), _notes(database, pubend)
        if notes < self.lost_before(database, pubend):
            # What was seen below it is known to be lost, and was accepted.
            notes = 0
        trouble = contradiction(disk, facts, notes)
        if trouble is None:
            return
        if pubend not in self._accepted:
            raise StoreError(
                "E309", f"{disk.folder} {trouble[0]}, {database.path} {trouble[1]}: {_way_out(pubend)}"
            )
        known = () if facts is None else (facts.next_tick, facts.reserved, facts.released)
        floor = max(beyond, notes + 1, *known, disk.recover().next_tick)
        # What is left below stays as history, and no new event gets a tick below. Whoever still needs some of
        # it is told that its past begins here. The pubend counts its records from 1 on.
        disk.append(0, ReleaseRecord(before=floor))
        done = disk.flush()
        if done.error is not None:
            raise done.error
        with database.transaction():
            database.put_meta(f"lost_before:{pubend}", b"%d" % floor)
            # Readers that have seen more of it than there is have to be told.
            rename_log(database, pubend, disk.log_id, floor)
            self.remember(database, disk)
        self._lost.add(pubend)
        log.warning(
            "loss_accepted", file=str(disk.folder), pubend=pubend, first_tick=floor, reason=trouble[0]
        )

    def report_needless(self) -> None:
        """Warn of losses that were accepted and did not happen: the next one would be accepted unseen."""
        for name in sorted(self._accepted - self._lost):
            log.warning(
                "nothing_lost",
                accepted=name,
                way_out=f"nothing was lost: start without --accept-loss {name} from now on",
            )

    def remember(self, database: RecoveryDatabase, disk: Log) -> None:
        """Write down how far a log has come: it is durable up to there already."""
        database.put_meta(f"log:{disk.pubend}", msgspec.msgpack.encode(facts_of(disk)))

    def lost_before(self, database: RecoveryDatabase, pubend: PubendId) -> Tick:
        """Below this tick, events of a pubend are lost that a subscriber lacked; TICK_MIN when none are."""
        return int(database.meta(f"lost_before:{pubend}") or TICK_MIN)

    def _known(self, database: RecoveryDatabase, pubend: PubendId) -> LogFacts | None:
        stored = database.meta(f"log:{pubend}")
        return None if stored is None else _facts.decode(stored)

    def _check_identity(self, database: RecoveryDatabase) -> None:
        broker = (database.meta("broker") or self._broker.encode()).decode()
        if broker != self._broker:
            raise StoreError(
                "E310", f"{self.path} is the folder of broker '{broker}', not '{self._broker}': {_FOREIGN}"
            )
        found, node = self._read(), database.meta("node")
        if found is None or node is None:
            # An older program, or the first start.
            return
        path = self.path / LOGS_NAME / IDENTITY_NAME
        if (found.node, found.broker) != (node.decode(), self._broker):
            if self.database_accepted:
                self._lost.add(DATABASE_NAME)
                return
            raise StoreError(
                "E310",
                f"{database.path} is of another node than the logs beside it ({path} says '{found.broker}'): "
                "restore both from one copy",
            )
        starts = int(database.meta("starts") or b"0")
        if found.starts > starts and self.database_accepted:
            self._lost.add(DATABASE_NAME)
            log.warning("loss_accepted", file=str(database.path), reason="started with an older copy")
        elif found.starts > starts:
            raise StoreError(
                "E309",
                f"{database.path} knows of {starts} starts of this node, {path} of {found.starts}: it is an "
                f"older copy; restore the newest, or start once with --accept-loss {DATABASE_NAME}",
            )

    def _folders_with_logs(self) -> list[str]:
        folder = self.path / LOGS_NAME
        return (
            sorted(each.name for each in folder.iterdir() if _has_segments(each)) if folder.is_dir() else []
        )

    def _read(self) -> _Identity | None:
        try:
            return _identity.decode((self.path / LOGS_NAME / IDENTITY_NAME).read_bytes())
        except (OSError, msgspec.DecodeError):
            # Without it there is one comparison less.
            return None

    def _write(self, identity: _Identity) -> None:
        """Atomically. A full disk keeps the older one, which contradicts nothing."""
        files, folder = DiskFiles(), self.path / LOGS_NAME
        path = folder / IDENTITY_NAME
        try:
            files.make_folder(folder)
            file = files.create(path.with_suffix(".new"))
            try:
                write_all(file, 0, msgspec.json.encode(identity))
                file.sync()
            finally:
                file.close()
            files.rename(path.with_suffix(".new"), path)
            files.sync_folder(folder)
        except OSError as error:
            trouble = failure(error, path)
            log.repeated("identity_not_written", by=trouble.code, code=trouble.code, reason=trouble.message)


def _lives_before(database: RecoveryDatabase, last: int) -> tuple[int, ...]:
    """The lives that began from a folder until now; of the programs that did not list them, the last one."""
    lives = database.meta("lives")
    if lives is not None:
        return _lives.decode(lives)
    # Programs that did not count their starts had incarnations of another kind: those are not compared.
    return (last,) if database.meta("starts") else ()


def beyond_promises(parameters: Parameters) -> Tick:
    """A tick that a pubend which ran here until now has given no event and promised no silence.

    One that has followed others beyond its clock may have: then the database knows how far it had come.
    """
    return time.time_ns() // 1_000 + usually_ahead(parameters) + TICKS_PER_SECOND


def usually_ahead(parameters: Parameters) -> Tick:
    """How far ahead of its clock a pubend gives ticks and reserves them, unless it follows others."""
    reserved = parameters.reserve_ms * RESERVE_GROWTH_MAX * TICKS_PER_MS
    return reserved + parameters.publish_ahead_ms * TICKS_PER_MS + ROWS_MAX


def check_accepted(names: Collection[str], pubends: Collection[PubendId]) -> None:
    """Raise ParameterError for a loss of something that is not here."""
    for name in sorted(set(names) - {DATABASE_NAME} - set(pubends)):
        there = ", ".join([DATABASE_NAME, *sorted(pubends)])
        raise ParameterError("E150", f"--accept-loss: there is no '{name}' here, there is {there}")


def facts_of(disk: Log) -> LogFacts:
    """How far a log has come. A flush may come in between: each number is durable, and none goes back."""
    (number, size), found = disk.end, disk.recover()
    return LogFacts(disk.log_id, number, size, found.next_tick, found.reserved, found.released)


def contradiction(disk: Log, facts: LogFacts | None, notes: Tick) -> tuple[str, str] | None:
    """What the log says and what the database says, when the log cannot be what the database has seen."""
    found = disk.recover()
    if facts is None:
        if notes < found.next_tick or not notes:
            return None
        return f"ends before tick {found.next_tick}", f"has seen events up to tick {notes}"
    if facts.log_id and facts.log_id != disk.log_id:
        return f"is log {disk.log_id[:8] or 'of an older program'}", f"knows log {facts.log_id[:8]}"
    known = max(facts.next_tick, notes + 1 if notes else 0)
    if found.next_tick < known:
        has = f"has events up to tick {found.next_tick - 1}" if found.next_tick > 0 else "has no events"
        return has, f"has seen some up to tick {known - 1}"
    number, size = disk.end
    if (number, size) < (facts.number, facts.size):
        return (
            f"ends in segment {number} after {size} bytes",
            f"has seen {facts.size} bytes of segment {facts.number}",
        )
    return None


def _notes(database: RecoveryDatabase, pubend: PubendId) -> Tick:
    stored = database.meta(f"notes:{pubend}")
    return int.from_bytes(stored, "big") if stored else 0


def _has_segments(folder: Path) -> bool:
    return folder.is_dir() and any(each.name.endswith(SUFFIX) for each in folder.iterdir())


def _way_out(pubend: PubendId) -> str:
    return (
        f"restore the log from a copy, or start once with --accept-loss {pubend}: "
        "the missing part is reported to subscribers as a gap"
    )
