"""Filters that change while events flow, on real nodes, judged event by event by the tick of the change."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gapless.client import Client, Event, Subscription, connect
from gapless.errors import ContentError
from gapless.fleet import Fleet
from gapless.model.ids import PubendId
from gapless.model.ticks import Tick
from gapless.protocol.sessions.messages import ChangeFilter, Confirmed, RequestRefused, RowsDelivery
from tests.integration.nodes import FIVE_NODES, ONE_NODE, PATIENCE_SECONDS, Cluster
from tests.integration.test_named import TWO_PUBENDS, client_of

#: Each condition as text, and as a plain function of the price. The last accepts what ends a story.
CONDITIONS: list[tuple[str, Callable[[float], bool]]] = [
    ("price < 50 AND price >= 0", lambda price: 0 <= price < 50),
    ("price >= 50", lambda price: price >= 50),
    ("price BETWEEN 20 AND 70", lambda price: 20 <= price <= 70),
    ("", lambda price: True),
    ("price = 7", lambda price: price == 7),
    ("price > 90 OR price < 10", lambda price: price > 90 or price < 10),
    ("price = -1", lambda price: price == -1),
]

Name = tuple[PubendId, Tick]
Changes = list[Mapping[PubendId, Tick]]


def run(story: Coroutine[object, object, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 2 * PATIENCE_SECONDS))


def wanted(published: Mapping[Name, float], changes: Changes) -> list[Name]:
    """What a subscriber must have got: each event judged by the condition that decides of its tick."""
    found: list[Name] = []
    for (pubend, tick), price in published.items():
        decides = sum(since[pubend] <= tick for since in changes)
        if CONDITIONS[decides][1](price):
            found.append((pubend, tick))
    return sorted(found)


class Traffic:
    """Publishes prices of 0 to 99 until it is told to stop, and remembers the name of each event."""

    def __init__(self, clients: list[Client]) -> None:
        self._clients = clients
        self._stopping = False
        self.published: dict[Name, float] = {}

    async def flow(self) -> None:
        at = 0
        while not self._stopping:
            prices = [float((31 * at + 7 * each) % 100) for each in range(20)]
            await self._publish(self._clients[at % len(self._clients)], prices)
            at += 1

    async def end(self, flow: asyncio.Task[None]) -> None:
        """Stop, with a last event of each publisher."""
        self._stopping = True
        await flow
        for client in self._clients:
            await self._publish(client, [-1.0])

    async def _publish(self, client: Client, prices: list[float]) -> None:
        waiting = [client.publish("trades", {"name": "x", "price": price}) for price in prices]
        for price, each in zip(prices, waiting, strict=True):
            place = await each
            assert place.tick is not None
            self.published[PubendId(place.pubend), place.tick] = price


async def change_often(trades: Subscription, traffic: Traffic, ends: int) -> tuple[list[Event], Changes]:
    """Change the filter again and again while events flow; gives what came, and the ticks of the changes."""
    flow = asyncio.create_task(traffic.flow())
    got: list[Event] = []
    changes: Changes = []
    for where, _ in CONDITIONS[1:]:
        got += [await anext(trades) for _ in range(5)]
        changes.append(await trades.change(where))
    await traffic.end(flow)
    while sum(event["price"] == -1.0 for event in got) < ends:
        got.append(await anext(trades))
    return got, changes


def judge(got: list[Event], traffic: Traffic, changes: Changes, order: str) -> None:
    names = [(event.pubend, event.tick) for event in got]
    assert len(set(names)) == len(names), "an event came twice"
    assert sorted(names) == wanted(traffic.published, changes)
    if order == "total":
        assert [(tick, pubend) for pubend, tick in names] == sorted((t, p) for p, t in names)
        assert all(len(set(since.values())) == 1 for since in changes), "one tick for all pubends"
    for pubend in {pubend for pubend, _ in names}:
        ticks = [tick for each, tick in names if each == pubend]
        assert ticks == sorted(ticks)


@pytest.mark.parametrize("order", ["publisher", "total"])
@pytest.mark.parametrize("name", [None, "desk"])
def test_a_filter_changes_at_the_tick_it_is_said_to(tmp_path: Path, name: str | None, order: str) -> None:
    async def story() -> None:
        async with AsyncExitStack() as stack:
            cluster = await stack.enter_async_context(Cluster.running(TWO_PUBENDS, tmp_path))
            senders = [await stack.enter_async_context(client_of(cluster, each)) for each in ("p1", "q1")]
            client = await stack.enter_async_context(client_of(cluster, "s1"))
            subscription = client.subscribe("trades", CONDITIONS[0][0], name=name, order=order)
            trades = await stack.enter_async_context(subscription)
            traffic = Traffic(senders)
            got, changes = await change_often(trades, traffic, ends=2)
            judge(got, traffic, changes, order)

    run(story())


@pytest.mark.parametrize("victim", [pytest.param("b1", marks=pytest.mark.long), "s1"])
def test_a_filter_changes_exactly_while_nodes_are_killed(tmp_path: Path, victim: str) -> None:
    async def story() -> None:
        async with (
            Fleet(FIVE_NODES, tmp_path) as fleet,
            connect(fleet.address("p1")) as publisher,
            connect(fleet.address("s1")) as client,
            client.subscribe("trades", CONDITIONS[0][0], name="desk") as trades,
        ):
            traffic = Traffic([publisher])

            async def kill() -> None:
                await fleet.kill(victim)
                await fleet.start(victim)

            killing = asyncio.create_task(kill())
            got, changes = await change_often(trades, traffic, ends=1)
            await killing
            judge(got, traffic, changes, "publisher")

    run(story())


def test_a_condition_that_does_not_fit_leaves_the_old_one(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            Cluster.running(ONE_NODE, tmp_path) as cluster,
            client_of(cluster, "n1") as client,
            client.subscribe("trades", "price > 5") as trades,
        ):
            with pytest.raises(ContentError, match="prise"):
                await trades.change("prise > 5")
            await client.publish("trades", {"name": "x", "price": 1.0})
            await client.publish("trades", {"name": "x", "price": 6.0})
            assert (await anext(trades))["price"] == 6.0

    run(story())


def test_a_change_is_answered_like_a_subscription(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(ONE_NODE, tmp_path) as cluster, cluster.client("n1") as wire:
            confirmed = await wire.subscribe("price < 5")
            wire.say(ChangeFilter(request=2, subscription=confirmed.subscription, where="prise > 5"))
            refused = await wire.hear()
            assert isinstance(refused, RequestRefused)
            assert (refused.request, refused.code[:2]) == (2, "E1")
            wire.say(ChangeFilter(request=3, subscription=confirmed.subscription, where="price > 5"))
            changed = await wire.hear()
            assert isinstance(changed, Confirmed)
            assert (changed.request, changed.subscription) == (3, confirmed.subscription)
            wire.publish([1.0, 6.0])
            heard = [await wire.hear(), await wire.hear()]
            (rows,) = [each for each in heard if isinstance(each, RowsDelivery)]
            assert [(event.tick >= changed.start, event.values[1]) for event in rows.events] == [(True, 6.0)]

    run(story())


def test_too_many_changes_at_once_are_refused_for_the_time_being(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(ONE_NODE, tmp_path) as cluster, cluster.client("n1") as wire:
            confirmed = await wire.subscribe("price < 5")
            wire.publish([1.0])
            assert {type(await wire.hear()).__name__ for _ in range(2)} == {"PublishReceipt", "RowsDelivery"}
            for at in range(7):
                where = f"price = {at}"
                wire.say(ChangeFilter(request=10 + at, subscription=confirmed.subscription, where=where))
                assert isinstance(await wire.hear(), Confirmed)
            wire.say(ChangeFilter(request=20, subscription=confirmed.subscription, where="price = 9"))
            refused = await wire.hear()
            assert isinstance(refused, RequestRefused)
            assert (refused.code, refused.retry) == ("E139", True)

    run(story())
