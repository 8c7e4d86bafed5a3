"""What a named subscription costs its owner is counted whenever it changes hands, condition or node."""

import asyncio
from pathlib import Path

import pytest

from gapless.client import Client, connect
from gapless.content.cost import matching_cost
from gapless.content.language import parse_condition
from gapless.errors import UsageError
from gapless.model.ids import TopicId
from gapless.model.schema import Schema
from gapless.node import principals, sessions
from gapless.node.security import token_hash
from gapless.protocol.sessions.messages import ListTopics, RequestRefused, Topics
from tests.integration.files import run, running, until
from tests.integration.nodes import ONE_NODE, Cluster

NODE = """
cells = {all = ["n1"]}
edges = ["n1"]
topics.trades = {name = "string", price = "float"}
pubends.trades-1 = {topic = "trades", broker = "n1"}
"""
SCHEMA = Schema.parse(TopicId("trades"), {"name": "string", "price": "float"})
COST = matching_cost(parse_condition("name LIKE '%a%'", SCHEMA))


@pytest.fixture(autouse=True)
def anonymous_is_one_principal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(principals, "ANONYMOUS_SHARES", 1)


def limited(**limits: int) -> str:
    listed = "\n".join(f"{name} = {most}" for name, most in limits.items())
    return f"{NODE}\n[limits]\n{listed}"


async def visit(client: Client, letter: str, **options: object) -> None:
    """Subscribe as the desk to what contains a letter, and leave."""
    async with client.subscribe("trades", f"name LIKE '%{letter}%'", name="desk", **options):  # type: ignore[arg-type]
        pass


async def is_refused(client: Client, letter: str) -> bool:
    """Whether one more condition costs too much."""
    try:
        async with client.subscribe("trades", f"name LIKE '%{letter}%'"):
            return False
    except UsageError as error:
        if error.code != "E125":
            raise
        return True


def test_a_name_that_comes_back_with_another_condition_pays_for_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            running(limited(principal_matching_cost_max=2 * COST), tmp_path, "n1") as network,
            connect(network.address("n1")) as client,
        ):
            await visit(client, "a")
            async with client.subscribe("trades", "name LIKE '%b%'"):
                # The old condition and the new one are evaluated beside each other for a while.
                with pytest.raises(UsageError, match=r"^E125 the conditions of anonymous would cost"):
                    await visit(client, "c")
                await visit(client, "a")
            await visit(client, "c")
            anonymous = network.nodes["n1"].sessions.principals.of("anonymous")
            await until(lambda: anonymous.matching_cost == COST)
            async with client.subscribe("trades", "name LIKE '%b%'"):
                assert not await is_refused(client, "c"), "it is paid for"
                assert await is_refused(client, "d")

    run(story())


def test_a_filter_that_changes_pays_for_the_new_condition(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            running(limited(principal_matching_cost_max=COST), tmp_path, "n1") as network,
            connect(network.address("n1")) as client,
            client.subscribe("trades", "price > 1") as events,
        ):
            await events.change("name LIKE '%a%'")
            with pytest.raises(UsageError, match=r"^E125 the conditions of anonymous would cost"):
                await events.change("name LIKE '%b%'")
            await events.change("price > 2")
            anonymous = network.nodes["n1"].sessions.principals.of("anonymous")
            await until(lambda: anonymous.matching_cost == 0)
            await events.change("name LIKE '%b%'")

    run(story())


def test_a_name_that_comes_back_with_a_condition_and_positions_pays_for_both_conditions(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with (
            running(limited(principal_matching_cost_max=2 * COST), tmp_path, "n1") as network,
            connect(network.address("n1")) as client,
        ):
            await visit(client, "a")
            [listed] = network.nodes["n1"].report()["subscriptions"]["list"]  # type: ignore[index]
            await visit(client, "c", start=listed["positions"])
            assert not await is_refused(client, "a")
            assert not await is_refused(client, "c")
            assert await is_refused(client, "d")

    run(story())


def test_a_name_that_a_node_restores_is_paid_for_before_anybody_comes_back(tmp_path: Path) -> None:
    async def story() -> None:
        network_file = limited(principal_matching_cost_max=COST)
        async with (
            running(network_file, tmp_path, "n1") as network,
            connect(network.address("n1")) as client,
        ):
            await visit(client, "a")
        async with (
            running(network_file, tmp_path, "n1") as network,
            connect(network.address("n1")) as client,
        ):
            assert await is_refused(client, "d")
            assert not await is_refused(client, "a")
            await visit(client, "a")
            async with client.subscribe("trades", "name LIKE '%a%'", name="desk") as desk:
                await desk.forget()
            assert not await is_refused(client, "d")

    run(story())


def test_a_name_that_comes_back_with_a_longer_condition_stays_within_the_quota(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            running(limited(principal_condition_bytes_max=100), tmp_path, "n1") as network,
            connect(network.address("n1")) as client,
        ):
            async with client.subscribe("trades", "price > 1", name="desk"):
                pass
            with pytest.raises(UsageError, match=r"^E106 .*\.principal_condition_bytes_max$"):
                async with client.subscribe("trades", f"name = '{'x' * 90}'", name="desk"):
                    pass
            async with client.subscribe("trades", "price > 2", name="desk"):
                pass

    run(story())


def test_an_adopted_name_counts_against_the_quotas_of_its_new_owner(tmp_path: Path) -> None:
    tokens = f"""
principal_names_max = 1
[tokens]
heir = {{ sha256 = "{token_hash("heir's secret")}", subscribe = ["*"], adopt = ["*"] }}
"""

    async def story() -> None:
        async with running(NODE, tmp_path, "n1") as network, connect(network.address("n1")) as client:
            await visit(client, "a")
        async with (
            running(f"{NODE}\n[limits]{tokens}", tmp_path, "n1") as network,
            connect(network.address("n1"), token="heir's secret") as heir,
        ):
            async with heir.subscribe("trades", name="own") as own:
                with pytest.raises(UsageError, match=r"^E106 token heir has 1 named subscriptions"):
                    await visit(heir, "a")
                await own.forget()
            await visit(heir, "a")

    run(story())


def test_requests_that_wait_are_bounded_for_one_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "REQUESTS_MAX", 2)

    async def story() -> None:
        opened = asyncio.Event()

        async def slowly() -> str:
            await opened.wait()
            return "grpc://nowhere:1"

        async with Cluster.running(ONE_NODE, tmp_path) as cluster, cluster.client("n1") as client:
            monkeypatch.setattr(cluster.nodes["n1"].bulk, "opened", slowly)
            for request in (1, 2, 3):
                client.say(ListTopics(request=request, bulk=True))
            refused = await client.hear()
            assert isinstance(refused, RequestRefused)
            assert (refused.request, refused.code, refused.retry) == (3, "E108", True)
            # What needs no waiting is answered all the same.
            client.say(ListTopics(request=4))
            answered = [await client.hear()]
            opened.set()
            answered += [await client.hear(), await client.hear()]
            client.say(ListTopics(request=5, bulk=True))
            answered.append(await client.hear())
            assert [each.request for each in answered if isinstance(each, Topics)] == [4, 1, 2, 5]

    run(story())
