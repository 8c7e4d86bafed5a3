"""Topics that are created while real nodes run: durable, known everywhere, and published from anywhere."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gapless.client import Client, connect
from gapless.errors import GaplessError, SchemaError, StoreError, UsageError
from gapless.model.ids import BrokerId
from gapless.node.catalog import META_KEY
from gapless.protocol.sessions.messages import PublishRefused
from gapless.store.log import Log
from gapless.store.recovery import RecoveryDatabase
from tests.integration.nodes import FIVE_NODES, PATIENCE_SECONDS, Cluster

EMPTY_NODE = """
cells = {all = ["n1"]}
edges = ["n1"]
"""
BONDS = {"name": "string", "yield": "float?"}


def run(story) -> None:  # type: ignore[no-untyped-def]
    asyncio.run(asyncio.wait_for(story, 2 * PATIENCE_SECONDS))


def client_of(cluster: Cluster, *names: str) -> Client:
    listed = ",".join(str(cluster.addresses[name]) for name in names)  # type: ignore[index]
    return connect(f"gapless://{listed}")


def test_a_created_topic_and_its_events_survive_a_restart(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(EMPTY_NODE, tmp_path) as cluster:
            async with client_of(cluster, "n1") as client:
                assert await client.topics() == {}
                await client.create_topic("bonds", BONDS)
                async with client.subscribe("bonds") as bonds:
                    receipt = await client.publish("bonds", {"name": "a"})
                    assert receipt.pubend == "bonds-n1"
                    assert (await anext(bonds))["name"] == "a"
            await cluster.stop("n1")
            await cluster.start("n1")
            async with client_of(cluster, "n1") as client:
                topics = await client.topics()
                assert topics["bonds"].columns == BONDS
                assert topics["bonds"].pubends == ("bonds-n1",)
                async with client.subscribe("bonds") as bonds:
                    later = await client.publish("bonds", {"name": "b", "yield": 1.5})
                    assert later.tick is not None
                    assert receipt.tick is not None
                    assert later.tick > receipt.tick
                    assert (await anext(bonds))["yield"] == 1.5

    run(story())


def test_creating_the_same_topic_again_is_not_an_error_and_a_different_one_is(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(EMPTY_NODE, tmp_path) as cluster, client_of(cluster, "n1") as client:
            await client.create_topic("bonds", BONDS)
            await client.create_topic("bonds", BONDS)
            assert (await client.topics())["bonds"].pubends == ("bonds-n1",)
            with pytest.raises(UsageError) as refused:
                await client.create_topic("bonds", {"name": "int"})
            assert refused.value.code == "E187"
            assert "name=string yield=float?" in refused.value.message
            assert "name=int" in refused.value.message
            with pytest.raises(SchemaError, match="E110"):
                await client.create_topic("../bonds", BONDS)
            with pytest.raises(UsageError, match="E121"):
                await client.create_topic("notes", BONDS, retention="sometimes")
            assert list(await client.topics()) == ["bonds"]

    run(story())


def test_others_are_served_while_a_topic_is_written_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on = threading.Event()
    opened = Log.open

    def slowly(folder: Path, *arguments: Any, **named: Any) -> Log:
        if folder.name != "bonds-n1":
            assert may_go_on.wait(PATIENCE_SECONDS), "everybody waits for the disk"
        return opened(folder, *arguments, **named)

    monkeypatch.setattr(Log, "open", slowly)

    async def story() -> None:
        async with (
            Cluster.running(EMPTY_NODE, tmp_path) as cluster,
            client_of(cluster, "n1") as client,
            client_of(cluster, "n1") as other,
        ):
            await client.create_topic("bonds", BONDS)
            creating = [asyncio.create_task(client.create_topic(name, BONDS)) for name in ("a", "b", "a")]
            await other.publish("bonds", {"name": "x"})
            assert list(await other.topics()) == ["bonds"]
            assert not any(each.done() for each in creating)
            may_go_on.set()
            await asyncio.gather(*creating)
            assert sorted(await other.topics()) == ["a", "b", "bonds"]
            await client.publish("a", {"name": "y"})

    run(story())


def test_a_topic_that_the_disk_refuses_is_not_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Log.open
    failures = [StoreError("E303", "no log can be made")]

    def refused(*arguments: Any, **named: Any) -> Log:
        if failures:
            raise failures.pop()
        return opened(*arguments, **named)

    monkeypatch.setattr(Log, "open", refused)

    async def story() -> None:
        async with Cluster.running(EMPTY_NODE, tmp_path) as cluster, client_of(cluster, "n1") as client:
            with pytest.raises(GaplessError, match="no log can be made"):
                await client.create_topic("bonds", BONDS)
            assert await client.topics() == {}
            await client.create_topic("bonds", BONDS)
            await client.publish("bonds", {"name": "x"})

    run(story())


def test_a_topic_created_at_the_repository_is_subscribed_to_at_every_edge(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            Cluster.running(FIVE_NODES, tmp_path) as cluster,
            client_of(cluster, "p1") as publisher,
            client_of(cluster, "s1") as one,
            client_of(cluster, "s2") as other,
        ):
            await publisher.create_topic("bonds", BONDS)
            for client in (one, other):
                while "bonds" not in await client.topics():
                    pass
            async with one.subscribe("bonds") as bonds, other.subscribe("bonds", "name = 'x'") as some:
                await publisher.publish_batch("bonds", {"name": ["w", "x", "y"]})
                assert [(await anext(bonds))["name"] for _ in range(3)] == ["w", "x", "y"]
                assert (await anext(some))["name"] == "x"

    run(story())


TWO_REPOSITORIES = """
cells = {p = ["p1"], q = ["q1"], s = ["s1"]}
links = ["p--s", "q--s"]
edges = ["s1"]
repositories = ["p1", "q1"]
"""


def created_apart(folder: Path, columns: dict[str, str]) -> None:
    """Let a stopped node believe that it created bonds while nobody could hear of it."""
    told = [["bonds", columns, "bonds-q1", "q1", 2**60, ""]]
    with RecoveryDatabase.open(folder) as database:
        database.put_meta(META_KEY, msgspec.msgpack.encode(told))


@pytest.mark.parametrize("order", ["publisher", "total"])
def test_existing_subscriptions_get_the_events_of_a_second_pubend(tmp_path: Path, order: str) -> None:
    async def story() -> None:
        async with Cluster.running(TWO_REPOSITORIES, tmp_path) as cluster:
            await cluster.stop("q1")
            created_apart(tmp_path / "q1", BONDS)
            async with client_of(cluster, "p1") as one, client_of(cluster, "s1") as reader:
                await one.create_topic("bonds", BONDS)
                while "bonds" not in await reader.topics():
                    pass
                async with reader.subscribe("bonds", order=order) as bonds:
                    await one.publish("bonds", {"name": "first"})
                    assert (await anext(bonds))["name"] == "first"
                    await cluster.start("q1")
                    while len((await reader.topics())["bonds"].pubends) < 2:
                        pass
                    # The subscription begins anew, where it was, with both pubends.
                    async with client_of(cluster, "q1") as other:
                        names = []
                        while names[-1:] != ["other"]:
                            await one.publish("bonds", {"name": "one"})
                            await other.publish("bonds", {"name": "other"})
                            names.append((await anext(bonds))["name"])
                    assert "first" not in names

    run(story())


def test_of_two_topics_of_one_name_the_older_counts_and_nothing_breaks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with Cluster.running(TWO_REPOSITORIES, tmp_path) as cluster:
            await cluster.stop("q1")
            created_apart(tmp_path / "q1", {"name": "int"})
            async with client_of(cluster, "p1") as one, client_of(cluster, "s1") as reader:
                await one.create_topic("bonds", BONDS)
                while "bonds" not in await reader.topics():
                    pass
                async with reader.subscribe("bonds", "name LIKE 'a%'") as bonds:
                    await cluster.start("q1")
                    async with client_of(cluster, "q1") as other:
                        assert (await other.topics())["bonds"].columns == {"name": "int"}
                        await other.publish("bonds", {"name": 7})
                    await one.publish("bonds", {"name": "a1"})
                    assert (await anext(bonds))["name"] == "a1"
                    assert (await reader.topics())["bonds"].pubends == ("bonds-p1",)
                    while len(cluster.nodes["q1"].catalog.network.created) < 2:
                        await reader.topics()
                    # From its next start on, q1 is of the same opinion as the others.
                    await cluster.stop("q1")
                    await cluster.start("q1")
                    async with client_of(cluster, "q1") as other:
                        assert (await other.topics())["bonds"].columns == BONDS
                        await other.publish("bonds", {"name": "a2"})
                    assert (await anext(bonds))["name"] == "a2"
        assert any(record.message == "topic_set_aside" for record in caplog.records)

    run(story())


def test_a_refused_publish_names_where_to_go(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(FIVE_NODES, tmp_path) as cluster, cluster.client("s1") as client:
            client.publish([1.0])
            refused = await client.hear()
            assert isinstance(refused, PublishRefused)
            assert refused.code == "E143"
            assert f"p1 ({cluster.addresses[BrokerId('p1')]})" in refused.message

    run(story())
