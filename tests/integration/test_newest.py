"""A topic that keeps the newest event of each key, at real nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gapless.client import Client, connect
from gapless.errors import UsageError
from tests.integration.files import run, running

NODE = """
cells = {all = ["n1"]}
topics.prices = {sym = "string", venue = "string", price = "float"}
pubends.prices-1 = {topic = "prices", broker = "n1"}
retention.prices = "newest(sym, venue)"
"""


def price(sym: str, venue: str, value: float) -> dict[str, object]:
    return {"sym": sym, "venue": venue, "price": value}


async def newest(client: Client, topic: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    async with client.subscribe(topic, start="earliest") as prices:
        end = (await client.ends(topic)).popitem()[1]
        async for event in prices:
            found.append(dict(event))
            if event.tick == end - 1:
                return found
    return found


def test_late_subscribers_get_the_newest_of_each_key_and_present_ones_get_all(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            running(NODE, tmp_path, "n1") as network,
            connect(network.address("n1")) as client,
            client.subscribe("prices") as live,
        ):
            for value in range(20):
                await client.publish("prices", price("IBM", "NYSE", value))
                await client.publish("prices", price("IBM", f"V{value % 3}", value))
            assert [(await anext(live))["price"] for _ in range(40)] == [at // 2 for at in range(40)]
            wanted = [
                price("IBM", "V2", 17),
                price("IBM", "V0", 18),
                price("IBM", "NYSE", 19),
                price("IBM", "V1", 19),
            ]
            # What a broker still has in memory may come as well, and the newest behind it.
            assert [each for each in await newest(client, "prices") if each in wanted] == wanted
        async with running(NODE, tmp_path, "n1") as network, connect(network.address("n1")) as client:
            assert await newest(client, "prices") == wanted, "also after a restart"
            status = await client.status()
            assert status["pubends"][0]["retention"] == "newest(sym, venue)"

    run(story())


def test_a_topic_is_created_like_that_and_its_key_must_be_among_its_columns(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(NODE, tmp_path, "n1") as network, connect(network.address("n1")) as client:
            columns = {"user": "int", "page": "string?"}
            with pytest.raises(UsageError, match=r"^E121 retention: topic 'seen' has no column 'usr'"):
                await client.create_topic("seen", columns, retention="newest(usr)")
            await client.create_topic("seen", columns, retention="newest(user)")
            for page in ("a", "b", None):
                await client.publish_batch("seen", [{"user": 1, "page": page}, {"user": 2, "page": "x"}])
            assert (await newest(client, "seen"))[-2:] == [
                {"user": 1, "page": None},
                {"user": 2, "page": "x"},
            ]

    run(story())
