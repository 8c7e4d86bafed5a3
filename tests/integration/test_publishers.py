"""What is stored of publishers: a receipt is the truth, over full disks, restarts and other people."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gapless.client import Client, Options, connect
from gapless.errors import GaplessError, UsageError
from gapless.node.security import token_hash
from gapless.store.files import DiskFiles
from tests.integration.files import Network, run, running

NODE = """
cells = {all = ["n1"]}
topics.trades = {price = "float"}
pubends.trades-1 = {topic = "trades", broker = "n1"}
retention.trades = "forever"
"""
TOKENS = f"""
[tokens]
feed = {{ sha256 = "{token_hash("feed's secret")}", publish = ["*"], subscribe = ["*"] }}
other = {{ sha256 = "{token_hash("other's secret")}", publish = ["*"] }}
boss = {{ sha256 = "{token_hash("boss's secret")}", admin = true }}
"""
QUICK = Options(retries_max=1, backoff_min_s=0.001, backoff_max_s=0.002)


@asynccontextmanager
async def client_of(network: Network, token: str | None = None) -> AsyncIterator[Client]:
    async with connect(network.address("n1"), options=QUICK, token=token) as client:
        yield client


async def stored(client: Client, until: float) -> list[float]:
    """The prices in the log, from the first to one that is there."""
    found: list[float] = []
    async with client.subscribe("trades", start="earliest") as trades:
        async for each in trades:
            found.append(each["price"])
            if found[-1] == until:
                return found
    raise AssertionError("the subscription ended")


def test_an_event_that_was_given_up_on_a_full_disk_never_gets_a_receipt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with running(NODE, tmp_path, "n1") as network:
            async with client_of(network) as client:
                publisher = client.publisher("trades", identity="me")
                await publisher.publish({"price": 0.0})
                with monkeypatch.context() as full:
                    full.setattr(DiskFiles, "free_bytes", lambda *_: 0)
                    with pytest.raises(GaplessError, match="E182"):
                        await publisher.publish({"price": 1.0})
                await publisher.publish({"price": 2.0})
            await resent(network)
        async with running(NODE, tmp_path, "n1") as network:
            await resent(network)
            async with client_of(network) as client:
                publisher = client.publisher("trades", identity="me", first_catenation=3)
                await publisher.publish({"price": 3.0})
                assert await stored(client, 3.0) == [0.0, 2.0, 3.0]

    async def resent(network: Network) -> None:
        async with client_of(network) as client:
            again = client.publisher("trades", identity="me", first_catenation=1)
            lost = again.publish({"price": 1.0})
            with pytest.raises(
                UsageError, match=r"^E102 events 1 to 1 of publisher 'me' were given up"
            ) as caught:
                await lost
            assert not caught.value.retry
            # The one after it is stored, and says so.
            await again.publish({"price": 2.0})

    run(story())


def test_events_behind_one_that_is_refused_for_good_are_stored(tmp_path: Path) -> None:
    """They name it as the number before: the node asks for it, and hears that it will not come."""

    async def story() -> None:
        async with running(NODE, tmp_path, "n1") as network, client_of(network) as client:
            publisher = client.publisher("trades", identity="me")
            await publisher.publish({"price": 0.0})
            publishing = network.nodes["n1"].sessions.publishing
            feed, refusals = publishing._feed, ["one"]

            def refuse_once(event: object) -> None:
                if refusals:
                    refusals.pop()
                    raise UsageError("E181", "refused for a test")
                feed(event)  # type: ignore[arg-type]

            publishing._feed = refuse_once
            batches = [publisher.publish_batch({"price": [price] * 600}) for price in (1.0, 2.0, 3.0)]
            first, *others = await asyncio.gather(*batches, return_exceptions=True)
            assert isinstance(first, UsageError)
            assert [len(each) for each in others] == [600, 600]  # type: ignore[arg-type]
            await publisher.publish({"price": 4.0})
            assert await stored(client, 4.0) == [0.0] + [2.0] * 600 + [3.0] * 600 + [4.0]

    run(story())


def test_an_identity_belongs_to_the_token_that_made_it_and_can_be_released(tmp_path: Path) -> None:
    async def story() -> None:
        for start in range(2):
            async with (
                running(NODE + TOKENS, tmp_path, "n1") as network,
                client_of(network, "feed's secret") as feed,
                client_of(network, "other's secret") as other,
            ):
                mine = feed.publisher("trades", identity="me", first_catenation=start)
                await mine.publish({"price": float(start)})
                theirs = other.publisher("trades", identity="me", first_catenation=100)
                with pytest.raises(UsageError, match=r"^E103 publisher 'me' belongs to another principal"):
                    await theirs.publish({"price": 100.0})
        async with (
            running(NODE + TOKENS, tmp_path, "n1") as network,
            client_of(network, "boss's secret") as boss,
            client_of(network, "feed's secret") as feed,
            client_of(network, "other's secret") as other,
        ):
            with pytest.raises(UsageError, match="E184"):
                await feed.release_publisher("me")
            with pytest.raises(UsageError, match=r"^E103 publisher 'nobody' is not known here"):
                await boss.release_publisher("nobody")
            await boss.release_publisher("me")
            await other.publisher("trades", identity="me", first_catenation=2).publish({"price": 2.0})
            with pytest.raises(UsageError, match="E103"):
                await feed.publisher("trades", identity="me", first_catenation=3).publish({"price": 3.0})
            assert await stored(feed, 2.0) == [0.0, 1.0, 2.0]

    run(story())


def test_clients_continue_when_a_network_gets_tokens(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(NODE, tmp_path, "n1") as network, client_of(network) as client:
            await client.publisher("trades", identity="me").publish({"price": 0.0})
        async with (
            running(NODE + TOKENS, tmp_path, "n1") as network,
            client_of(network, "feed's secret") as feed,
            client_of(network, "other's secret") as other,
        ):
            mine = feed.publisher("trades", identity="me")
            # What it had stored without a token is known.
            assert (await mine.publish({"price": 0.0})).tick is None
            await mine.publish({"price": 1.0})
            with pytest.raises(UsageError, match="E103"):
                await other.publisher("trades", identity="me").publish({"price": 0.0})
            assert await stored(feed, 1.0) == [0.0, 1.0]

    run(story())


def test_invented_publishers_are_refused_before_they_displace_a_real_one(tmp_path: Path) -> None:
    async def story() -> None:
        text = f"{NODE}limits.principal_publishers_max = 20\n"
        async with running(text, tmp_path, "n1") as network, client_of(network) as client:
            await client.publisher("trades", identity="real").publish({"price": 0.0})
            invented = [client.publisher("trades", identity=f"invented {each}") for each in range(19)]
            for each in invented:
                await each.publish({"price": 1.0})
            with pytest.raises(UsageError, match=r"^E104 20 publisher identities are in use"):
                await client.publisher("trades", identity="one more").publish({"price": 2.0})
            async with client_of(network) as again:
                assert (await again.publisher("trades", identity="real").publish({"price": 0.0})).tick is None
            await invented[0].publish({"price": 3.0})
            assert await stored(client, 3.0) == [0.0] + [1.0] * 19 + [3.0]

    run(story())
