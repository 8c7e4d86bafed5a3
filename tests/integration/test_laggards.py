"""Who reads its past is sent all of it, whether or not it acknowledges: what is acknowledged is the log's."""

from pathlib import Path

import pytest

from gapless.client import Event, connect
from gapless.model.ids import BrokerId
from gapless.protocol.sessions.messages import Done, Unsubscribe
from tests.integration.files import LOOPS, Loop, run, running
from tests.integration.nodes import ONE_NODE, Cluster

NODE = """
cells = {all = ["n1"]}
topics.trades = {price = "float"}
pubends.trades-1 = {topic = "trades", broker = "n1"}
parameters = {ack_delay_ms = 1}
"""
TWO_PUBENDS = NODE + 'pubends.trades-2 = {topic = "trades", broker = "n1"}\n'
#: More than two deliveries hold.
EVENTS = 10_000


@pytest.mark.parametrize("order", ["publisher", "total"])
@pytest.mark.parametrize("network", [NODE, TWO_PUBENDS], ids=["one pubend", "two pubends"])
def test_a_program_that_acknowledges_late_gets_all_of_its_past(
    network: str, order: str, tmp_path: Path
) -> None:
    async def story() -> None:
        async with (
            running(network, tmp_path, "n1") as nodes,
            connect(nodes.address("n1")) as client,
        ):
            async with client.subscribe("trades", name="desk", order=order, ack="manual"):
                pass
            for first in range(0, EVENTS, 1_000):
                rows = [{"price": float(price)} for price in range(first, first + 1_000)]
                await client.publish_batch("trades", rows)
            async with client.subscribe("trades", name="desk", order=order, ack="manual") as trades:
                got: list[Event] = [await anext(trades) for _ in range(EVENTS)]
                last = {event.pubend: event.tick for event in got}
                for pubend in last:
                    ticks = [event.tick for event in got if event.pubend == pubend]
                    assert ticks == sorted(ticks)
                assert sorted(event["price"] for event in got) == [float(price) for price in range(EVENTS)]
                first_of = {event.pubend: event.tick for event in reversed(got)}
                report = nodes.nodes["n1"].report
                for each in report()["pubends"]:  # type: ignore[attr-defined]
                    assert each["acked"] <= first_of.get(each["pubend"], each["acked"])
                for event in got:
                    await event.ack()
                while any(
                    each["acked"] <= last.get(each["pubend"], -1)
                    for each in report()["pubends"]  # type: ignore[attr-defined]
                ):
                    await client.publish("trades", {"price": -1.0})
                    event = await anext(trades)
                    assert event["price"] == -1.0, "nothing comes twice"
                    await event.ack()

    run(story())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_past_does_not_pile_up_when_its_reader_does_not_read(loop: Loop, tmp_path: Path) -> None:
    """Rows of a kilobyte: far more than sockets hold, so that most of it must wait in the log."""

    async def story() -> None:
        async with (
            Cluster.running(ONE_NODE, tmp_path) as cluster,
            connect(f"gapless://{cluster.addresses[BrokerId('n1')]}") as client,
            cluster.client("n1") as wire,
        ):
            confirmed = await wire.subscribe(name="desk")
            wire.say(Unsubscribe(request=2, subscription=confirmed.subscription))
            assert await wire.hear() == Done(request=2)
            for first in range(0, 40_000, 1_000):
                prices = [float(price) for price in range(first, first + 1_000)]
                await client.publish_batch("trades", {"name": ["x" * 1_000] * 1_000, "price": prices})
            await wire.subscribe(name="desk")
            assert wire.connection._transport is not None
            wire.connection._transport.pause_reading()
            delivery = cluster.nodes["n1"].sessions.delivery.session
            while not delivery.congested:
                await client.status()
            assert delivery.rows < 40_000
            [connection] = delivery.congested
            assert connection.backlog_bytes < 10 * 2**20
            wire.connection._transport.resume_reading()
            got = await wire.prices(40_000, acknowledge=False)
            assert got == [float(price) for price in range(40_000)]

    run(story(), loop)
