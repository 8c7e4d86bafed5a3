"""Tokens: who has none stays outside, and who has one may do what it says and nothing else."""

from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path

import pytest

from gapless.client import connect
from gapless.errors import GaplessError, UsageError
from gapless.model.ids import BrokerId
from gapless.node.config import load_network
from gapless.node.node import Node
from gapless.node.security import token_hash
from gapless.wire.address import Address
from tests.integration.files import run, running

NODE = f"""
cells = {{all = ["n1"]}}
topics.trades = {{price = "float"}}
topics.news = {{text = "string"}}
pubends.trades-1 = {{topic = "trades", broker = "n1"}}
pubends.news-1 = {{topic = "news", broker = "n1"}}

[tokens]
feed = {{ sha256 = "{token_hash("feed's secret")}", publish = ["t*"] }}
desk = {{ sha256 = "{token_hash("desk's secret")}", subscribe = ["trades"] }}
boss = {{ sha256 = "{token_hash("boss's secret")}", admin = true }}
"""


async def code(request: Awaitable[object]) -> str:
    with pytest.raises(GaplessError) as caught:
        await request
    assert isinstance(caught.value, UsageError)
    return caught.value.code


def test_a_token_gives_the_rights_that_stand_beside_it_and_no_others(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(NODE, tmp_path, "n1") as network:
            address = network.address("n1")
            async with (
                connect(address, token="feed's secret") as feed,
                connect(address, token="desk's secret") as desk,
                connect(address, token="boss's secret") as boss,
                desk.subscribe("trades") as trades,
            ):
                await feed.publish("trades", {"price": 1.0})
                assert (await anext(trades))["price"] == 1.0
                assert await code(desk.publish("trades", {"price": 2.0})) == "E184"
                assert await code(feed.subscribe("trades").__aenter__()) == "E184"
                assert await code(desk.subscribe("news").__aenter__()) == "E184"
                assert await code(feed.status()) == "E184"
                # Nobody sees topics that are none of its business.
                assert list(await feed.topics()) == ["trades"]
                assert sorted(await boss.topics()) == ["news", "trades"]
                report = await boss.status()
                assert {each["token"] for each in report["clients"]["list"]} == {"feed", "desk", "boss"}

    run(story())


@pytest.mark.parametrize("token", [None, "guessed"])
def test_nobody_comes_in_without_a_token_of_the_network(token: str | None, tmp_path: Path) -> None:
    async def story() -> None:
        async with running(NODE, tmp_path, "n1") as network:
            assert await code(connect(network.address("n1"), token=token).__aenter__()) == "E185"
            assert network.nodes["n1"].counters.refusals == {"E185": 1}

    run(story())


def test_tokens_may_be_in_a_file_of_their_own(tmp_path: Path) -> None:
    before, _, entries = NODE.partition("[tokens]")
    (tmp_path / "tokens.toml").write_text(entries)

    async def story() -> None:
        async with (
            running(f'tokens = "tokens.toml"\n{before}', tmp_path, "n1") as network,
            connect(network.address("n1"), token="boss's secret") as boss,
        ):
            assert (await boss.status())["broker"] == "n1"

    run(story())


@pytest.mark.parametrize(("host", "told"), [("127.0.0.1", 0), ("0.0.0.0", 1)])
def test_a_node_that_anybody_may_reach_says_so(
    host: str, told: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = load_network(NODE.partition("[tokens]")[0], "network.toml")
    config = replace(file.node(BrokerId("n1"), tmp_path, ""), addresses={BrokerId("n1"): Address(host, 0)})

    async def story() -> None:
        async with Node(config):
            pass

    run(story())
    lines = [record for record in caplog.records if record.getMessage() == "open_door"]
    assert [getattr(line, "gapless_fields", {})["missing"] for line in lines] == ["tls and tokens"] * told
