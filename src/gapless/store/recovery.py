"""What must a node remember beyond its logs? A small SQLite database, one file per node.

It holds the number of starts, the position of each publisher, and the named subscriptions. Every change is
one transaction and on disk when it returns. It is for data that changes rarely or can be batched: the
positions of publishers are also in the notes of the log, and the database only saves reading them all.

All calls may wait for the disk: they belong in a thread. Concurrent calls wait for each other.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from gapless.errors import StoreError
from gapless.model.ids import PubendId, TopicId
from gapless.model.notes import PublisherPosition
from gapless.model.ticks import Tick
from gapless.protocol.events import Order
from gapless.protocol.sessions.subscriptions import NamedSubscription
from gapless.store.files import PRIVATE, DiskFiles, File, Files, failure

DATABASE_NAME = "node.sqlite"
LOCK_NAME = "node.lock"

_APPLICATION = 0x47504C53
_VERSION = 5
_TABLES = """
create table publishers (
    publisher text not null,
    pubend text not null,
    catenation integer not null,
    tick integer not null,
    owner text,
    is_temporary integer not null default 0,
    holes blob not null default x'90',
    primary key (publisher, pubend)
) without rowid;
create table subscriptions (
    name text not null primary key,
    topic text not null,
    condition text not null,
    ordering text not null,
    positions blob not null,
    changes blob not null,
    owner text,
    awaited blob not null default x'90'
) without rowid;
create table meta (
    key text not null primary key,
    value blob not null
) without rowid;
"""
#: Migrates a database of each earlier version to the next.
_UPGRADES = {
    2: "alter table subscriptions add column owner text;",
    3: """
    alter table publishers add column owner text;
    alter table publishers add column is_temporary integer not null default 0;
    alter table publishers add column holes blob not null default x'90';
    """,
    4: "alter table subscriptions add column awaited blob not null default x'90';",
}

_holes_decoder = msgspec.msgpack.Decoder(tuple[tuple[int, int], ...])
_positions_decoder = msgspec.msgpack.Decoder(dict[str, int])
_awaited_decoder = msgspec.msgpack.Decoder(list[str])
_changes_decoder = msgspec.msgpack.Decoder(list[tuple[str, dict[str, int]]])


class RecoveryDatabase:
    """The database of one node. Made by `open`, and closed by leaving its `with` block."""

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: File) -> None:
        self.path = path
        self._connection = connection
        self._lock = lock
        self._using = threading.RLock()

    @staticmethod
    def open(folder: Path, files: Files | None = None) -> RecoveryDatabase:
        """Open the database of the node in `folder`, or create one.

        Raises StoreError: damaged (E301), disk full (E302), I/O error (E303), in use (E304), not ours (E305).
        """
        files = files or DiskFiles()
        path = folder / DATABASE_NAME
        try:
            files.make_folder(folder)
            lock = files.lock(folder / LOCK_NAME)
        except OSError as error:
            raise failure(error, folder) from error
        try:
            _make_private(path)
            with _explained(path):
                # Calls come from a pool of threads, one at a time.
                connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
                try:
                    _prepare(connection, path)
                except BaseException:
                    connection.close()
                    raise
        except BaseException:
            lock.close()
            raise
        return RecoveryDatabase(path, connection, lock)

    def __enter__(self) -> RecoveryDatabase:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database."""
        self._connection.close()
        self._lock.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commits all changes of the block together, or none if it raises."""
        with self._using, _explained(self.path):
            if self._connection.in_transaction:
                yield
                return
            self._connection.execute("begin immediate")
            try:
                yield
                self._connection.execute("commit")
            except BaseException:
                # SQLite may have rolled back by itself.
                with suppress(sqlite3.Error):
                    self._connection.execute("rollback")
                raise

    # ---- the node itself -----------------------------------------------------------------------------

    def begin_incarnation(self, at_least: int = 0) -> int:
        """The number of this life: durable, above all earlier ones, and at least `at_least`."""
        with self.transaction():
            incarnation = max(int(self.meta("incarnation") or b"0") + 1, at_least)
            self.put_meta("incarnation", b"%d" % incarnation)
        return incarnation

    def meta(self, key: str) -> bytes | None:
        """A value by its key; None when it was never stored."""
        with self._using, _explained(self.path):
            row = self._connection.execute("select value from meta where key = ?", (key,)).fetchone()
        return None if row is None else bytes(row[0])

    def put_meta(self, key: str, value: bytes) -> None:
        """Remember a value."""
        with self.transaction():
            self._connection.execute(
                "insert into meta values (?, ?) on conflict do update set value = excluded.value",
                (key, value),
            )

    # ---- publishers ----------------------------------------------------------------------------------

    def publisher(self, publisher: str, pubend: PubendId) -> PublisherPosition | None:
        """The position of a publisher at a pubend; None when unknown."""
        return next(self._publishers("where publisher = ? and pubend = ?", (publisher, pubend)), None)

    def publishers(self, pubend: PubendId) -> Iterator[PublisherPosition]:
        """The positions of all publishers of a pubend, by name."""
        return self._publishers("where pubend = ? order by publisher", (pubend,))

    def _publishers(self, rest: str, values: tuple[str, ...]) -> Iterator[PublisherPosition]:
        columns = "select publisher, pubend, catenation, tick, owner, is_temporary, holes from publishers "
        with _explained(self.path):
            for row in self._connection.execute(columns + rest, values):
                publisher, pubend, catenation, tick, owner, is_temporary, holes = row
                yield PublisherPosition(
                    publisher=publisher,
                    pubend=PubendId(pubend),
                    catenation=catenation,
                    tick=tick,
                    owner=owner,
                    is_temporary=bool(is_temporary),
                    holes=_holes_decoder.decode(holes),
                )

    def put_publishers(self, positions: Iterable[PublisherPosition]) -> None:
        """Store the positions of publishers. A position never goes back."""
        rows = [
            (
                each.publisher,
                each.pubend,
                each.catenation,
                each.tick,
                each.owner,
                each.is_temporary,
                msgspec.msgpack.encode(each.holes),
            )
            for each in positions
        ]
        with self.transaction():
            self._connection.executemany(
                "insert into publishers (publisher, pubend, catenation, tick, owner, is_temporary, holes) "
                "values (?, ?, ?, ?, ?, ?, ?) on conflict do update set "
                "catenation = excluded.catenation, tick = excluded.tick, owner = excluded.owner, "
                "is_temporary = excluded.is_temporary, holes = excluded.holes "
                "where excluded.catenation >= publishers.catenation",
                rows,
            )

    def drop_publishers(self, pubend: PubendId, names: Iterable[str]) -> None:
        """Forget publishers of a pubend."""
        with self.transaction():
            self._connection.executemany(
                "delete from publishers where pubend = ? and publisher = ?",
                [(pubend, name) for name in names],
            )

    # ---- subscriptions -------------------------------------------------------------------------------

    def subscription(self, name: str) -> NamedSubscription | None:
        """A named subscription; None if it does not exist."""
        return next(self._subscriptions("where name = ?", (name,)), None)

    def subscriptions(self) -> Iterator[NamedSubscription]:
        """All named subscriptions, by name."""
        return self._subscriptions("order by name", ())

    def put_subscription(self, subscription: NamedSubscription) -> None:
        """Store a subscription, replacing any of that name."""
        each = subscription
        with self.transaction():
            self._connection.execute(
                "insert or replace into subscriptions values (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    each.name,
                    each.topic,
                    each.condition,
                    each.order.value,
                    _packed(each.positions),
                    msgspec.msgpack.encode([(where, dict(since)) for where, since in each.changes]),
                    each.owner,
                    msgspec.msgpack.encode(each.awaited),
                ),
            )

    def put_positions(self, positions: Mapping[str, Mapping[PubendId, Tick]]) -> None:
        """Store the positions of subscriptions by name; unknown names are ignored."""
        rows = [(_packed(each), name) for name, each in positions.items()]
        with self.transaction():
            self._connection.executemany("update subscriptions set positions = ? where name = ?", rows)

    def drop_subscription(self, name: str) -> bool:
        """Delete a subscription; returns whether it existed."""
        with self.transaction():
            done = self._connection.execute("delete from subscriptions where name = ?", (name,))
            return done.rowcount > 0

    def _subscriptions(self, rest: str, values: tuple[str, ...]) -> Iterator[NamedSubscription]:
        columns = "select name, topic, condition, ordering, positions, changes, owner, awaited "
        with _explained(self.path):
            for row in self._connection.execute(columns + "from subscriptions " + rest, values):
                name, topic, condition, ordering, positions, changes, owner, awaited = row
                yield NamedSubscription(
                    name=name,
                    topic=TopicId(topic),
                    condition=condition,
                    order=Order(ordering),
                    positions=_ticks_of(_positions_decoder.decode(positions)),
                    changes=tuple(
                        (where, _ticks_of(since)) for where, since in _changes_decoder.decode(changes)
                    ),
                    owner=owner,
                    awaited=tuple(PubendId(each) for each in _awaited_decoder.decode(awaited)),
                )


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Set the connection up, and make the tables of a new database."""
    # No other node may have the file, so a lock in it is a program inspecting it: wait a little.
    connection.execute("pragma busy_timeout = 5000")
    application = connection.execute("pragma application_id").fetchone()[0]
    version = connection.execute("pragma user_version").fetchone()[0]
    tables = connection.execute("select count(*) from sqlite_master").fetchone()[0]
    is_ours = application == _APPLICATION and (version == _VERSION or version in _UPGRADES)
    if not is_ours and (application or version or tables):
        raise StoreError(
            "E305",
            f"{path} is not a node's database of version {_VERSION}: use the version that wrote it, "
            "or another folder",
        )
    connection.execute("pragma journal_mode = wal")
    # A transaction is on disk when it returns.
    connection.execute("pragma synchronous = full")
    connection.execute("pragma journal_size_limit = 4194304")
    if not tables:
        connection.executescript(
            f"begin; {_TABLES} pragma application_id = {_APPLICATION}; "
            f"pragma user_version = {_VERSION}; commit;"
        )
        return
    for earlier in range(version, _VERSION):
        connection.executescript(f"begin; {_UPGRADES[earlier]} pragma user_version = {earlier + 1}; commit;")


def _make_private(path: Path) -> None:
    """SQLite would create files readable by everybody; the files beside a database have its permissions."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE))
    except OSError as error:
        raise failure(error, path) from error


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Translate SQLite's errors into ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise _store_error(error, path) from error


def _store_error(error: sqlite3.Error, path: Path) -> StoreError:
    # The lower byte is the kind; the rest identifies the system call.
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:
        case _ if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_SHMSIZE:
            return _full(path)
        case sqlite3.SQLITE_FULL:
            return _full(path)
        case sqlite3.SQLITE_CORRUPT:
            return StoreError(
                "E301",
                f"{path} is damaged: restore it from a copy, or move it and its -wal file away and start "
                f"once with --accept-loss {path.name}",
            )
        case sqlite3.SQLITE_NOTADB:
            return StoreError("E305", f"{path} is not a database: move it out of the folder")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreError(
                "E304", f"{path} is in use by another program: close that one, then retry", retry=True
            )
        case _:
            return StoreError("E303", f"{path}: {error}: check the disk and the permissions of its folder")


def _full(path: Path) -> StoreError:
    return StoreError("E302", f"the disk of {path} is full: make room, then go on", retry=True)


def _ticks_of(values: Mapping[str, int]) -> dict[PubendId, Tick]:
    return {PubendId(pubend): tick for pubend, tick in values.items()}


def _packed(positions: Mapping[PubendId, Tick]) -> bytes:
    return msgspec.msgpack.encode(dict(positions))
