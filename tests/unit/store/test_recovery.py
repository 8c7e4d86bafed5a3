"""What a node remembers beyond its logs: durable, typed, in one file."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from gapless.errors import StoreError
from gapless.model.ids import PubendId, TopicId
from gapless.model.notes import PublisherPosition
from gapless.protocol.events import Order
from gapless.store.recovery import DATABASE_NAME, NamedSubscription, RecoveryDatabase

P1, P2 = PubendId("trades@p1"), PubendId("trades@p2")


def position(publisher: str, catenation: int, tick: int, pubend: PubendId = P1) -> PublisherPosition:
    return PublisherPosition(publisher=publisher, pubend=pubend, catenation=catenation, tick=tick)


def subscription(name: str, **positions: int) -> NamedSubscription:
    return NamedSubscription(
        name=name,
        topic=TopicId("trades"),
        condition="price > 3",
        order=Order.TOTAL,
        positions={PubendId(pubend): tick for pubend, tick in positions.items()},
    )


def test_every_start_has_a_unique_number(tmp_path: Path) -> None:
    numbers = []
    for _ in range(3):
        with RecoveryDatabase.open(tmp_path) as database:
            numbers.append(database.begin_incarnation())
    assert numbers == [1, 2, 3]


def test_publishers_are_remembered_and_never_go_back(tmp_path: Path) -> None:
    with RecoveryDatabase.open(tmp_path) as database:
        assert database.publisher("ann", P1) is None
        database.put_publishers([position("ann", 5, 100), position("bob", 2, 90), position("ann", 1, 7, P2)])
        database.put_publishers([position("ann", 4, 99), position("bob", 3, 110)])
    with RecoveryDatabase.open(tmp_path) as database:
        assert database.publisher("ann", P1) == position("ann", 5, 100)
        assert list(database.publishers(P1)) == [position("ann", 5, 100), position("bob", 3, 110)]
        assert list(database.publishers(P2)) == [position("ann", 1, 7, P2)]
        database.drop_publishers(P1, ["ann", "nobody"])
        assert list(database.publishers(P1)) == [position("bob", 3, 110)]


def test_owners_and_holes_of_publishers_are_remembered(tmp_path: Path) -> None:
    told = replace(position("ann", 9, 100), owner="token feed", is_temporary=True, holes=((1, 3), (7, 7)))
    with RecoveryDatabase.open(tmp_path) as database:
        database.put_publishers([told])
    with RecoveryDatabase.open(tmp_path) as database:
        assert list(database.publishers(P1)) == [told]
        # Released by an operator, without another event.
        database.put_publishers([replace(told, owner=None)])
        assert database.publisher("ann", P1) == replace(told, owner=None)


def test_a_database_of_version_2_is_migrated(tmp_path: Path) -> None:
    old = sqlite3.connect(tmp_path / DATABASE_NAME)
    old.executescript(
        """
        create table publishers (publisher text not null, pubend text not null, catenation integer not null,
            tick integer not null, primary key (publisher, pubend)) without rowid;
        create table subscriptions (name text not null primary key, topic text not null,
            condition text not null, ordering text not null, positions blob not null, changes blob not null
        ) without rowid;
        create table meta (key text not null primary key, value blob not null) without rowid;
        insert into publishers values ('ann', 'trades@p1', 5, 100);
        pragma application_id = 1196444755;
        pragma user_version = 2;
        """
    )
    old.close()
    for _ in range(2):
        with RecoveryDatabase.open(tmp_path) as database:
            assert list(database.publishers(P1)) == [position("ann", 5, 100)]
            assert list(database.subscriptions()) == []


def test_subscriptions_are_remembered_with_their_positions(tmp_path: Path) -> None:
    with RecoveryDatabase.open(tmp_path) as database:
        database.put_subscription(replace(subscription("desk", p1=5), awaited=(P2,)))
        database.put_subscription(subscription("audit"))
        database.put_positions({"desk": {P1: 7, P2: 2**60}, "nobody": {P1: 1}})
    with RecoveryDatabase.open(tmp_path) as database:
        found = database.subscription("desk")
        assert found is not None
        assert found.positions == {P1: 7, P2: 2**60}
        assert found.awaited == (P2,)
        assert (found.topic, found.condition, found.order) == ("trades", "price > 3", Order.TOTAL)
        assert [each.name for each in database.subscriptions()] == ["audit", "desk"]
        assert database.drop_subscription("desk")
        assert not database.drop_subscription("desk")
        assert database.subscription("desk") is None


#: The tables of version 2, as they were.
VERSION_2 = """
create table publishers (publisher text not null, pubend text not null, catenation integer not null,
    tick integer not null, primary key (publisher, pubend)) without rowid;
create table subscriptions (name text not null primary key, topic text not null, condition text not null,
    ordering text not null, positions blob not null, changes blob not null) without rowid;
create table meta (key text not null primary key, value blob not null) without rowid;
insert into subscriptions values ('desk', 'trades', 'price > 3', 'total', x'81A974726164657340703107', x'90');
insert into meta values ('incarnation', x'34');
pragma application_id = 0x47504C53;
pragma user_version = 2;
"""


def test_a_database_of_the_previous_version_is_migrated(tmp_path: Path) -> None:
    old = sqlite3.connect(tmp_path / DATABASE_NAME)
    old.executescript(VERSION_2)
    old.close()
    mine = replace(subscription("mine"), owner="token ann")
    with RecoveryDatabase.open(tmp_path) as database:
        assert database.begin_incarnation() == 5
        [found] = database.subscriptions()
        assert found == replace(subscription("desk"), positions={P1: 7}), "nobody owns it"
        database.put_subscription(mine)
    with RecoveryDatabase.open(tmp_path) as database:
        assert database.begin_incarnation() == 6
        assert database.subscription("mine") == mine


def test_a_transaction_is_all_or_nothing(tmp_path: Path) -> None:
    def interrupted(database: RecoveryDatabase) -> None:
        with database.transaction():
            database.put_publishers([position("ann", 5, 100)])
            database.put_meta("trades@p1", b"100")
            raise InterruptedError

    with RecoveryDatabase.open(tmp_path) as database:
        with pytest.raises(InterruptedError):
            interrupted(database)
        assert database.publisher("ann", P1) is None
        assert database.meta("trades@p1") is None
        with database.transaction():
            database.put_publishers([position("ann", 5, 100)])
            database.put_meta("trades@p1", b"100")
    with RecoveryDatabase.open(tmp_path) as database:
        assert database.publisher("ann", P1) == position("ann", 5, 100)
        assert database.meta("trades@p1") == b"100"


def test_a_transaction_is_on_the_disk_when_it_returns(tmp_path: Path) -> None:
    with RecoveryDatabase.open(tmp_path) as database:
        assert database._connection.execute("pragma synchronous").fetchone() == (2,)
        assert database._connection.execute("pragma journal_mode").fetchone() == ("wal",)


def test_two_nodes_cannot_have_one_folder(tmp_path: Path) -> None:
    with (
        RecoveryDatabase.open(tmp_path),
        pytest.raises(StoreError, match=r"^E304 .* is in use by another node: stop that one, or give"),
    ):
        RecoveryDatabase.open(tmp_path)
    RecoveryDatabase.open(tmp_path).close()


def test_files_that_are_not_ours_are_refused(tmp_path: Path) -> None:
    path = tmp_path / DATABASE_NAME
    path.write_bytes(b"no database at all " * 100)
    with pytest.raises(
        StoreError, match=r"^E305 .*node.sqlite is not a database: move it out of the folder$"
    ):
        RecoveryDatabase.open(tmp_path)
    path.unlink()
    other = sqlite3.connect(path)
    other.execute("create table customers (name)")
    other.close()
    with pytest.raises(StoreError, match=r"^E305 .* is not a node's database of version 5: use the version"):
        RecoveryDatabase.open(tmp_path)
    path.unlink()
    RecoveryDatabase.open(tmp_path).close()
    newer = sqlite3.connect(path)
    newer.execute("pragma user_version = 99")
    newer.close()
    with pytest.raises(StoreError, match="E305"):
        RecoveryDatabase.open(tmp_path)


def test_a_damaged_database_is_reported(tmp_path: Path) -> None:
    with RecoveryDatabase.open(tmp_path) as database:
        database.put_publishers([position(f"publisher {number}", number, number) for number in range(5_000)])
    path = tmp_path / DATABASE_NAME
    data = bytearray(path.read_bytes())
    data[8_192:65_536] = b"\xff" * (65_536 - 8_192)
    path.write_bytes(data)
    with RecoveryDatabase.open(tmp_path) as database, pytest.raises(StoreError, match=r"^E301 .* is damaged"):
        list(database.publishers(P1))


def test_a_full_disk_is_reported_and_nothing_is_lost(tmp_path: Path) -> None:
    with RecoveryDatabase.open(tmp_path) as database:
        database.put_meta("small", b"1")
        pages = database._connection.execute("pragma page_count").fetchone()[0]
        database._connection.execute(f"pragma max_page_count = {pages + 2}")
        with pytest.raises(
            StoreError, match=r"^E302 the disk of .* is full: make room, then go on$"
        ) as caught:
            database.put_meta("large", bytes(100_000))
        assert caught.value.retry
        assert database.meta("large") is None
        assert database.meta("small") == b"1"
        database._connection.execute("pragma max_page_count = 1000000")
        database.put_meta("large", bytes(100_000))
        assert database.meta("large") == bytes(100_000)
