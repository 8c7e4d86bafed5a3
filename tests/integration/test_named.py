"""Subscriptions with a name, on real nodes: they outlive their clients, their conditions and their edge."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gapless.client import Client, Options, Subscription, connect
from gapless.errors import StoreError, UsageError
from gapless.model.ids import BrokerId, PubendId
from gapless.node.config import NodeConfig
from gapless.node.node import Node
from gapless.protocol.network import Network
from gapless.protocol.sessions import subscribing
from gapless.protocol.sessions.messages import (
    Acknowledge,
    ChangeFilter,
    Confirmed,
    Credit,
    Done,
    ListTopics,
    RequestRefused,
    RowsDelivery,
    Topics,
    Unsubscribe,
)
from gapless.protocol.sessions.messages import Subscribe as SubscribeMessage
from tests.integration.nodes import FIVE_NODES, ONE_NODE, PATIENCE_SECONDS, TOPIC, Cluster, WireClient

TWO_PUBENDS = """
cells = {p = ["p1"], q = ["q1"], b = ["b1"], s = ["s1"]}
links = ["p--b", "q--b", "b--s"]
edges = ["s1"]
topics.trades = {name = "string", price = "float"}
pubends.trades-1 = {topic = "trades", broker = "p1"}
pubends.trades-2 = {topic = "trades", broker = "q1"}
"""


def run(story) -> None:  # type: ignore[no-untyped-def]
    asyncio.run(asyncio.wait_for(story, 2 * PATIENCE_SECONDS))


@asynccontextmanager
async def client_of(cluster: Cluster, name: str) -> AsyncIterator[Client]:
    async with connect(f"gapless://{cluster.addresses[BrokerId(name)]}") as client:
        yield client


async def publish(client: Client, *prices: int) -> list[int]:
    """Publish one event for each price; gives their ticks."""
    waiting = [client.publish("trades", {"name": "x", "price": float(price)}) for price in prices]
    return [(await each).tick for each in waiting]  # type: ignore[misc]


async def prices(subscription: Subscription, count: int) -> list[int]:
    return [int((await anext(subscription))["price"]) for _ in range(count)]  # type: ignore[call-overload]


async def acked(subscription: Subscription, count: int) -> list[int]:
    """The next events, each acknowledged by hand."""
    found: list[int] = []
    for _ in range(count):
        event = await anext(subscription)
        await event.ack()
        found.append(int(event["price"]))  # type: ignore[call-overload]
    return found


def test_a_client_without_memory_resumes_after_what_it_acknowledged(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(FIVE_NODES, tmp_path) as cluster, client_of(cluster, "p1") as publisher:
            async with (
                client_of(cluster, "s1") as client,
                client.subscribe("trades", "price >= 3", name="desk", ack="manual") as trades,
            ):
                await publish(publisher, *range(8))
                assert await acked(trades, 2) == [3, 4]
                assert await prices(trades, 1) == [5], "taken, and not acknowledged"
            await publish(publisher, 8, 1, 9)
            async with (
                client_of(cluster, "s1") as client,
                client.subscribe("trades", "price >= 3", name="desk") as trades,
            ):
                assert await prices(trades, 5) == [5, 6, 7, 8, 9]
                await publish(publisher, 2, 10)
                assert await prices(trades, 1) == [10]

    run(story())


def test_an_edge_that_restarts_serves_its_named_subscriptions_exactly_what_they_lack(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(FIVE_NODES, tmp_path) as cluster, client_of(cluster, "p1") as publisher:
            for name, where in (("low", "price < 100"), ("odd", "price = 1 OR price = 3 OR price = 103")):
                async with (
                    client_of(cluster, "s1") as client,
                    client.subscribe("trades", where, name=name) as trades,
                ):
                    await publish(publisher, 1, 2, 3)
                    await prices(trades, 1)
            await publish(publisher, 4)
            await cluster.stop("s1")
            await publish(publisher, 5, 103, 6)
            await cluster.start("s1")
            await publish(publisher, 7)
            async with client_of(cluster, "s1") as client:
                async with client.subscribe("trades", "price < 100", name="low") as trades:
                    assert await prices(trades, 9) == [2, 3, 1, 2, 3, 4, 5, 6, 7]
                async with client.subscribe(
                    "trades", "price = 1 OR price = 3 OR price = 103", name="odd"
                ) as trades:
                    assert await prices(trades, 2) == [3, 103]

    run(story())


@pytest.mark.parametrize("order", ["publisher", "total"])
def test_of_several_pubends_each_position_is_kept(tmp_path: Path, order: str) -> None:
    async def story() -> None:
        async with (
            Cluster.running(TWO_PUBENDS, tmp_path) as cluster,
            client_of(cluster, "p1") as one,
            client_of(cluster, "q1") as other,
        ):
            async with (
                client_of(cluster, "s1") as client,
                client.subscribe("trades", name="desk", order=order) as trades,  # type: ignore[arg-type]
            ):
                await publish(one, 1, 2)
                await publish(other, 11, 12)
                assert sorted(await prices(trades, 4)) == [1, 2, 11, 12]
            await publish(one, 3)
            await publish(other, 13)
            await cluster.stop("s1")
            await publish(other, 14)
            await cluster.start("s1")
            async with (
                client_of(cluster, "s1") as client,
                client.subscribe("trades", name="desk", order=order) as trades,  # type: ignore[arg-type]
            ):
                await publish(one, 4)
                await publish(other, 15)
                found = await prices(trades, 5)
                assert sorted(found) == [3, 4, 13, 14, 15]
                assert [each for each in found if each < 10] == [3, 4]

    run(story())


def test_another_condition_is_a_change_of_the_filter(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(ONE_NODE, tmp_path) as cluster, client_of(cluster, "n1") as publisher:
            async with (
                client_of(cluster, "n1") as client,
                client.subscribe("trades", "price < 10", name="desk") as trades,
            ):
                await publish(publisher, 1, 11)
                assert await prices(trades, 1) == [1]
            await publish(publisher, 2, 12)
            async with (
                client_of(cluster, "n1") as client,
                client.subscribe("trades", "price > 10", name="desk") as trades,
            ):
                await publish(publisher, 3, 13)
                assert await prices(trades, 2) == [2, 13], "what it was owed, and then what it wants"
            await cluster.stop("n1")
            await cluster.start("n1")
            async with client_of(cluster, "n1") as again:
                await publish(again, 4, 14)
                async with again.subscribe("trades", "price > 10", name="desk") as trades:
                    assert await prices(trades, 1) == [14]

    run(story())


def test_a_change_that_was_not_passed_survives_a_restart_at_its_tick(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(ONE_NODE, tmp_path) as cluster:
            async with (
                client_of(cluster, "n1") as publisher,
                client_of(cluster, "n1") as client,
                client.subscribe("trades", "price < 10", name="desk", ack="manual") as trades,
            ):
                await publish(publisher, 1, 11)
                ticks = await trades.change("price > 10")
                (since,) = ticks.values()
                later = await publish(publisher, 2, 12)
                assert later[0] >= since
                assert await prices(trades, 2) == [1, 12], "and none of it acknowledged"
            await cluster.stop("n1")
            await cluster.start("n1")
            async with (
                client_of(cluster, "n1") as client,
                client.subscribe("trades", "price > 10", name="desk") as trades,
            ):
                assert await prices(trades, 2) == [1, 12]

    run(story())


def test_another_topic_or_order_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(ONE_NODE, tmp_path) as cluster, client_of(cluster, "n1") as client:
            async with client.subscribe("trades", name="desk"):
                pass
            with pytest.raises(UsageError, match=r"E138 .*'desk' is of topic 'trades', publisher order"):
                async with client.subscribe("trades", name="desk", order="total"):
                    pass
            with pytest.raises(UsageError, match=r"E138 .*guaranteed"):
                async with client.subscribe("trades", name="desk", mode="best-effort"):
                    pass

    run(story())


def test_the_newer_of_two_clients_takes_over_and_the_older_is_told(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            Cluster.running(ONE_NODE, tmp_path) as cluster,
            client_of(cluster, "n1") as older,
            client_of(cluster, "n1") as newer,
            older.subscribe("trades", name="desk") as before,
        ):
            await publish(older, 1, 2)
            assert await prices(before, 2) == [1, 2]
            async with newer.subscribe("trades", name="desk") as after:
                with pytest.raises(UsageError, match="E137 another client subscribed as 'desk'"):
                    await anext(before)
                await publish(older, 3)
                found = await prices(after, 1)
                while found[-1] != 3:
                    found += await prices(after, 1)
                assert found in ([3], [2, 3], [1, 2, 3]), "what the older one acknowledged is not repeated"

    run(story())


def test_a_forgotten_name_starts_over(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(ONE_NODE, tmp_path) as cluster:
            async with client_of(cluster, "n1") as client:
                async with client.subscribe("trades", name="desk") as trades:
                    await trades.forget()
                await publish(client, 1)
                async with client.subscribe("trades", name="desk", order="total") as trades:
                    await publish(client, 2)
                    assert await prices(trades, 1) == [2]
                    await trades.forget()
            await cluster.stop("n1")
            await cluster.start("n1")
            report = json.loads(cluster.nodes["n1"].status())
            assert report["subscriptions"]["count"] == 0

    run(story())


def test_a_stored_position_is_resumed_and_an_unknown_name_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(ONE_NODE, tmp_path) as cluster, client_of(cluster, "n1") as client:
            for name, code in (("desk", "E142"), (None, "E138")):
                with pytest.raises(UsageError, match=f"^{code} "):
                    async with client.subscribe("trades", name=name, start="stored"):
                        pass
            assert json.loads(cluster.nodes["n1"].status())["subscriptions"]["count"] == 0
            async with client.subscribe("trades", name="desk"):
                await publish(client, 1)
            async with client.subscribe("trades", name="desk", start="stored") as trades:
                assert await prices(trades, 1) == [1]

    run(story())


def test_a_node_without_a_folder_refuses_names(tmp_path: Path) -> None:
    async def story() -> None:
        cluster = Cluster(Network.load(ONE_NODE), tmp_path)
        config = NodeConfig(cluster.network, BrokerId("n1"), cluster.addresses, None)
        async with Node(config), client_of(cluster, "n1") as client:
            with pytest.raises(UsageError, match="E136 this node has no data folder"):
                async with client.subscribe("trades", name="desk"):
                    pass

    run(story())


def test_the_status_shows_who_is_away_and_how_far_behind(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(ONE_NODE, tmp_path) as cluster, client_of(cluster, "n1") as client:
            async with client.subscribe("trades", "price > 0", name="desk") as trades:
                await publish(client, 1)
                assert await prices(trades, 1) == [1]
            later = await publish(client, 2, 3)
            report = json.loads(cluster.nodes["n1"].status())["subscriptions"]
            (listed,) = report["list"]
            assert (report["named"], report["parked"]) == (1, 1)
            assert (listed["name"], listed["state"], listed["where"]) == ("desk", "parked", "price > 0")
            assert listed["positions"]["trades-1"] <= later[0]
            assert listed["lag_ms"]["trades-1"] >= 0

    run(story())


def test_a_name_is_on_the_disk_before_its_client_hears_of_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(ONE_NODE, tmp_path) as cluster, cluster.client("n1") as wire:
            confirmed = await wire.subscribe("price > 1", name="desk")
            database = cluster.nodes["n1"]._database
            assert database is not None
            kept = database.subscription("desk")
            assert kept is not None
            assert kept.condition == "price > 1"
            assert kept.positions == {PubendId("trades-1"): confirmed.start}
            wire.say(Unsubscribe(request=2, subscription=confirmed.subscription, forget=True))
            assert await wire.hear() == Done(request=2)
            assert database.subscription("desk") is None

    run(story())


async def rows_until(wire: WireClient, count: int) -> list[float]:
    """The prices of the next rows, of which none is acknowledged."""
    found: list[float] = []
    while len(found) < count:
        heard = await wire.hear()
        assert isinstance(heard, RowsDelivery), heard
        found += [float(str(heard.events[place].values[1])) for _, place in heard.to]
    return found


def test_no_more_rows_are_sent_than_were_granted(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            Cluster.running(ONE_NODE, tmp_path) as cluster,
            cluster.client("n1") as poor,
            client_of(cluster, "n1") as client,
            client.subscribe("trades") as rich,
        ):
            confirmed = await poor.subscribe(credit_rows=3)
            await publish(client, *range(10))
            assert await prices(rich, 10) == list(range(10)), "it holds nobody up"
            assert await rows_until(poor, 3) == [0, 1, 2]
            poor.say(Credit(subscription=confirmed.subscription, rows=2))
            assert await rows_until(poor, 2) == [3, 4]
            # Whatever is sent next is the answer to this, unless more rows come first.
            poor.say(SubscribeMessage(request=9, topic=TOPIC, where="price <> 0 AND price = 0"))
            assert isinstance(await poor.hear(), Confirmed)
            poor.say(Credit(subscription=confirmed.subscription, rows=100))
            assert await rows_until(poor, 5) == [5, 6, 7, 8, 9]

    run(story())


def test_a_client_that_grants_little_gets_everything_once(tmp_path: Path) -> None:
    async def story() -> None:
        options = Options(credit_rows=7)
        async with (
            Cluster.running(ONE_NODE, tmp_path) as cluster,
            client_of(cluster, "n1") as publisher,
            connect(f"gapless://{cluster.addresses[BrokerId('n1')]}", options=options) as client,
            client.subscribe("trades", "price < 150") as trades,
        ):
            await asyncio.gather(*(publish(publisher, *range(at, at + 50)) for at in range(0, 200, 50)))
            assert await prices(trades, 150) == list(range(150))

    run(story())


def test_taking_over_is_refused_to_the_older_request(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            Cluster.running(ONE_NODE, tmp_path) as cluster,
            cluster.client("n1") as older,
            cluster.client("n1") as newer,
        ):
            await older.subscribe(name="desk")
            await newer.subscribe(name="desk")
            refused = await older.hear()
            assert isinstance(refused, RequestRefused)
            assert (refused.request, refused.code, refused.retry) == (1, "E137", False)

    run(story())


def test_positions_of_the_client_win_where_they_are_later(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(ONE_NODE, tmp_path) as cluster, client_of(cluster, "n1") as publisher:
            async with (
                client_of(cluster, "n1") as client,
                client.subscribe("trades", name="desk", ack="manual") as trades,
            ):
                await publish(publisher, 1, 2, 3)
                assert await acked(trades, 1) == [1]
                assert await prices(trades, 2) == [2, 3]
                mine = dict(trades.positions)
            async with (
                client_of(cluster, "n1") as client,
                client.subscribe("trades", name="desk", start=mine) as trades,
            ):
                await publish(publisher, 4)
                assert await prices(trades, 1) == [4]
            async with (
                client_of(cluster, "n1") as client,
                client.subscribe("trades", name="desk", ack="manual") as trades,
            ):
                await publish(publisher, 5, 6)
                assert await prices(trades, 2) == [5, 6]
                await publish(publisher, 7)
                assert await prices(trades, 1) == [7], "nobody waits for it to acknowledge what it has"

    run(story())


async def settled(wire: WireClient) -> None:
    """Return when the node has carried out all that the client said."""
    wire.say(ListTopics(request=99))
    while not isinstance(await wire.hear(), Topics):
        pass


def reach_and_position(cluster: Cluster, name: str) -> tuple[int, int]:
    """How far anybody can have read by now, and the position of a named subscription."""
    node = cluster.nodes["n1"]
    listed = json.loads(node.status())["subscriptions"]["list"]
    [position] = [each["positions"]["trades-1"] for each in listed if each["name"] == name]
    return node.sessions.subscriptions.session._reach(PubendId("trades-1")), position


@pytest.mark.parametrize("mode", ["guaranteed", "holding"])
def test_positions_beyond_what_can_have_been_read_are_refused(tmp_path: Path, mode: str) -> None:
    far = {PubendId("trades-1"): 2**60}

    async def story() -> None:
        async with Cluster.running(ONE_NODE, tmp_path) as cluster:
            async with cluster.client("n1") as wire:
                first = await wire.subscribe(name="desk", mode=mode, start="earliest")
                await settled(wire)
            async with cluster.client("n1") as wire:
                again = await wire.subscribe(name="desk", mode=mode, start=far)
                assert first.start <= again.start <= reach_and_position(cluster, "desk")[0]
                wire.say(Acknowledge(subscription=again.subscription, positions=far))
                await settled(wire)
                reach, position = reach_and_position(cluster, "desk")
                assert first.start <= position <= reach

    run(story())


def test_a_start_below_its_position_gives_a_name_nothing_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(ONE_NODE, tmp_path) as cluster, client_of(cluster, "n1") as publisher:
            async with cluster.client("n1") as wire:
                await wire.subscribe(name="desk")
                ticks = await publish(publisher, 1, 2)
                assert await wire.prices(2) == [1, 2]
                await settled(wire)
            async with cluster.client("n1") as wire:
                again = await wire.subscribe(name="desk", start={PubendId("trades-1"): ticks[0]})
                assert again.start == ticks[1] + 1
                await publish(publisher, 3)
                assert await wire.prices(1) == [3]

    run(story())


def test_a_name_that_the_disk_refuses_is_refused_to_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with Cluster.running(ONE_NODE, tmp_path) as cluster, cluster.client("n1") as wire:
            database = cluster.nodes["n1"]._database

            tried = asyncio.Event()
            loop = asyncio.get_running_loop()

            def full(_record: object) -> None:
                loop.call_soon_threadsafe(tried.set)
                raise StoreError("E302", "the disk is full: make room, then go on", retry=True)

            monkeypatch.setattr(database, "put_subscription", full)
            wire.say(SubscribeMessage(request=1, topic=TOPIC, name="desk"))
            refused = await wire.hear()
            assert isinstance(refused, RequestRefused)
            assert (refused.request, refused.code, refused.retry) == (1, "E302", True)
            assert not len(cluster.nodes["n1"].sessions.subscriptions)
            monkeypatch.undo()
            confirmed = await wire.subscribe(name="desk")
            tried.clear()
            monkeypatch.setattr(database, "put_subscription", full)
            change = ChangeFilter(request=2, subscription=confirmed.subscription, where="price > 5")
            wire.say(change)
            await asyncio.wait_for(tried.wait(), PATIENCE_SECONDS)
            monkeypatch.undo()
            changed = await wire.hear()
            assert isinstance(changed, Confirmed)
            assert changed.request == 2, "it hears of the change when the disk has it"
            kept = cluster.nodes["n1"]._database.subscription("desk")  # type: ignore[union-attr]
            assert kept is not None
            assert [where for where, _ in kept.changes] in (["price > 5"], [])

    run(story())


def test_the_number_of_names_at_a_node_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        monkeypatch.setattr(subscribing, "NAMED_MAX", 2)
        async with Cluster.running(ONE_NODE, tmp_path) as cluster, client_of(cluster, "n1") as client:
            for name in ("one", "two", "one"):
                async with client.subscribe("trades", name=name):
                    pass
            with pytest.raises(UsageError, match="E135 this node keeps 2 named subscriptions: forget some"):
                async with client.subscribe("trades", name="three"):
                    pass

    run(story())


def test_a_kept_name_whose_renewal_the_disk_refuses_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_record: object) -> None:
        raise StoreError("E302", "the disk is full: make room, then go on", retry=True)

    async def story() -> None:
        async with Cluster.running(ONE_NODE, tmp_path) as cluster, cluster.client("n1") as wire:
            confirmed = await wire.subscribe(name="desk")
            wire.say(Unsubscribe(request=2, subscription=confirmed.subscription))
            assert isinstance(await wire.hear(), Done)
            wire.publish([1.0, 2.0])
            await wire.receipt()
            monkeypatch.setattr(cluster.nodes["n1"]._database, "put_subscription", full)
            own = {confirmed.pubend: confirmed.start}
            wire.say(SubscribeMessage(request=3, topic=TOPIC, name="desk", where="price > 0", start=own))
            refused = await wire.hear()
            assert isinstance(refused, RequestRefused)
            assert (refused.request, refused.code) == (3, "E302")
            monkeypatch.undo()
            await wire.subscribe(name="desk")
            assert await wire.prices(2) == [1.0, 2.0]

    run(story())
