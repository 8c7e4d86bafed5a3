"""A client that leaves thousands of subscriptions behind delays nobody: they are ended a few at a time."""

import asyncio
from pathlib import Path

import pytest

from gapless.client import connect
from gapless.node import subscriptions
from gapless.node.leaving import LEAVING_MAX
from gapless.protocol.events import Event, SubscriberSlow, UnsubscribeRequested
from tests.integration.files import run, running
from tests.integration.nodes import ONE_NODE, Cluster

MANY = 10 * LEAVING_MAX + 1


@pytest.mark.parametrize("named", [False, True])
def test_subscriptions_are_parked_and_ended_in_small_parts(
    named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "PARKED_SECONDS", 0.0)
    #: For each turn of the loop in which there were some: how many steps of the broker.
    parts: list[int] = []

    async def story() -> None:
        async with running(ONE_NODE, tmp_path, "n1") as network:
            node = network.nodes["n1"]
            held = node.sessions.subscriptions
            async with connect(network.address("n1")) as other, other.subscribe("trades") as trades:
                async with connect(network.address("n1")) as client:
                    for at in range(MANY):
                        name = f"name-{at}" if named else None
                        await client.subscribe("trades", name=name).__aenter__()
                    assert len(held) == MANY + 1
                    feed = held._feed
                    steps = 0

                    def counted(event: Event, then: object = None) -> None:
                        nonlocal steps
                        if isinstance(event, SubscriberSlow | UnsubscribeRequested):
                            if not steps:
                                asyncio.get_running_loop().call_soon(turned)
                            steps += 1
                        feed(event, then)  # type: ignore[arg-type]

                    def turned() -> None:
                        nonlocal steps
                        parts.append(steps)
                        steps = 0

                    held._feed = counted  # type: ignore[assignment]
                    node.sessions.delivery._feed = counted  # type: ignore[assignment]
                    [session] = [each for each in node.sessions.clients() if len(each.subscriptions) == MANY]
                    session.connection.abort("lost")
                    # It must not come back meanwhile.
                    client._session._fail(ConnectionError("the test is over"))  # type: ignore[arg-type]
                    while any(each.client is session for each in held.held()) or (
                        len(held) > 1 and not named
                    ):
                        await asyncio.sleep(0)
                        assert held._principals.of("anonymous").subscriptions == len(held)
                await other.publish("trades", {"name": "x", "price": 1.0})
                assert (await anext(trades))["price"] == 1.0

    run(story(), asyncio.new_event_loop)
    assert sum(parts) >= MANY
    # Parking some and ending others may fall into one turn.
    assert max(parts) <= 2 * LEAVING_MAX


def test_a_name_can_be_taken_over_while_its_client_is_leaving(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(ONE_NODE, tmp_path) as cluster, cluster.client("n1") as first:
            await first.subscribe(name="desk")
            for at in range(3 * LEAVING_MAX):
                await first.subscribe(f"price > {at}")
            held = cluster.nodes["n1"].sessions.subscriptions
            async with cluster.client("n1") as second:
                # The name comes last, so that it is not parked yet.
                [session] = [each for each in cluster.nodes["n1"].sessions.clients() if each.subscriptions]
                number = next(iter(session.subscriptions))
                session.subscriptions[number] = session.subscriptions.pop(number)
                first.connection.abort("lost")
                while not held._leaving:  # noqa: ASYNC110  # nothing tells of it
                    await asyncio.sleep(0)
                await second.subscribe(name="desk")
                while held._leaving:  # noqa: ASYNC110  # nothing tells of it
                    await asyncio.sleep(0)
                second.publish([1.0, 2.0])
                await second.receipt()
                assert await second.prices(2) == [1.0, 2.0]

    asyncio.run(story())
