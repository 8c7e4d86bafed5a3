"""A folder that lost a part of itself: no node starts in silence, and what is given up is a reported gap."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gapless.client import Client, connect
from gapless.errors import ParameterError, StoreError, SupersededError
from gapless.model.ids import BrokerId
from gapless.node import node as node_module
from gapless.node.named import NamedBook
from gapless.protocol.sessions.gaps import Gap
from tests.integration.nodes import FIVE_NODES, ONE_NODE, PATIENCE_SECONDS, Cluster


def run(story: Awaitable[None]) -> None:
    asyncio.run(asyncio.wait_for(story, 2 * PATIENCE_SECONDS))


@asynccontextmanager
async def client_of(cluster: Cluster, name: str) -> AsyncIterator[Client]:
    async with connect(f"gapless://{cluster.addresses[BrokerId(name)]}") as client:
        yield client


async def publish(client: Client, *prices: int) -> list[int]:
    waiting = [client.publish("trades", {"name": "x" * 100, "price": float(price)}) for price in prices]
    return [(await each).tick for each in waiting]  # type: ignore[misc]


def newest_segment(folder: Path) -> Path:
    return max((folder / "log" / "trades-1").glob("*.segment"))


def after_an_orderly_stop(
    tmp_path: Path, harm: Callable[[Path], None], *accept_loss: str
) -> tuple[list[int], StoreError]:
    """Publish, stop, do harm, start: gives the ticks of the events and why the node did not start."""
    ticks: list[int] = []
    errors: list[StoreError] = []

    async def story() -> None:
        async with Cluster.running(ONE_NODE, tmp_path) as cluster:
            async with client_of(cluster, "n1") as client:
                for price in range(20):
                    ticks.extend(await publish(client, price))
            await cluster.stop("n1")
            harm(tmp_path / "n1")
            for _ in range(2):
                # It does not mend itself by being tried again.
                with pytest.raises(StoreError) as caught:
                    await cluster.start("n1")
                errors.append(caught.value)

    run(story())
    assert errors[0].message == errors[1].message
    return ticks, errors[0]


def test_a_log_cut_in_half_after_an_orderly_stop_is_an_error(tmp_path: Path) -> None:
    def halve(folder: Path) -> None:
        path = newest_segment(folder)
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2)

    ticks, error = after_an_orderly_stop(tmp_path, halve)
    assert error.code == "E309"
    assert str(tmp_path / "n1" / "log" / "trades-1") in error.message
    assert f"has seen some up to tick {ticks[-1]}" in error.message
    assert "--accept-loss trades-1" in error.message


def test_a_loss_that_was_accepted_and_did_not_happen_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with Cluster.running(ONE_NODE, tmp_path) as cluster:
            async with client_of(cluster, "n1") as client:
                await publish(client, 1)
            await cluster.stop("n1")
            assert "nothing_lost" not in caplog.text
            await cluster.start("n1", "trades-1")
            assert "nothing_lost" in caplog.text
            assert "loss_accepted" not in caplog.text

    run(story())


def test_a_log_without_its_promises_is_an_error_although_all_events_are_there(tmp_path: Path) -> None:
    def cut_the_last_record(folder: Path) -> None:
        path = newest_segment(folder)
        # The last flush before the stop was one of silence, or of a release.
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size - 8)

    _, error = after_an_orderly_stop(tmp_path, cut_the_last_record)
    assert error.code == "E309"


def test_a_log_folder_that_is_gone_is_an_error(tmp_path: Path) -> None:
    _, error = after_an_orderly_stop(tmp_path, lambda folder: shutil.rmtree(folder / "log" / "trades-1"))
    assert error.code == "E309"
    assert "has no log" in error.message


def test_another_log_in_its_place_is_an_error(tmp_path: Path) -> None:
    async def other() -> None:
        async with (
            Cluster.running(ONE_NODE, tmp_path / "other") as cluster,
            client_of(cluster, "n1") as client,
        ):
            await publish(client, *range(40))

    run(other())

    def replace(folder: Path) -> None:
        shutil.rmtree(folder / "log" / "trades-1")
        shutil.copytree(tmp_path / "other" / "n1" / "log" / "trades-1", folder / "log" / "trades-1")

    _, error = after_an_orderly_stop(tmp_path, replace)
    assert error.code == "E309"
    assert "knows log" in error.message


def test_a_missing_database_beside_logs_is_an_error(tmp_path: Path) -> None:
    def lose(folder: Path) -> None:
        for path in folder.glob("node.sqlite*"):
            path.unlink()

    _, error = after_an_orderly_stop(tmp_path, lose)
    assert error.code == "E308"
    assert "--accept-loss node.sqlite" in error.message


def test_a_missing_database_of_an_edge_without_logs_is_an_error(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(FIVE_NODES, tmp_path) as cluster:
            await cluster.stop("s1")
            for path in (tmp_path / "s1").glob("node.sqlite*"):
                path.unlink()
            with pytest.raises(StoreError, match=r"E308 .* is missing beside .*node.json"):
                await cluster.start("s1")
            await cluster.start("s1", "node.sqlite")

    run(story())


def test_the_database_of_another_node_is_an_error(tmp_path: Path) -> None:
    async def other() -> None:
        async with Cluster.running(ONE_NODE, tmp_path / "other"):
            pass

    run(other())
    source = tmp_path / "other" / "n1" / "node.sqlite"
    _, error = after_an_orderly_stop(tmp_path, lambda folder: shutil.copy(source, folder / "node.sqlite"))
    assert error.code == "E310"


def test_the_folder_of_another_broker_is_an_error(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(FIVE_NODES, tmp_path) as cluster:
            await cluster.stop("s1")
            await cluster.stop("s2")
            shutil.rmtree(tmp_path / "s2")
            shutil.copytree(tmp_path / "s1", tmp_path / "s2")
            with pytest.raises(StoreError, match=r"E310 .* is the folder of broker 's1', not 's2'"):
                await cluster.start("s2")

    run(story())


def test_an_older_copy_of_the_database_is_an_error(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(ONE_NODE, tmp_path) as cluster:
            await cluster.stop("n1")
            shutil.copy(tmp_path / "n1" / "node.sqlite", tmp_path / "copy")
            await cluster.start("n1")
            await cluster.stop("n1")
            shutil.copy(tmp_path / "copy", tmp_path / "n1" / "node.sqlite")
            with pytest.raises(
                StoreError, match=r"E309 .* knows of 1 starts of this node, .* of 2: it is an older"
            ):
                await cluster.start("n1")
            await cluster.start("n1", "node.sqlite")

    run(story())


def test_an_accepted_loss_is_reported_to_subscribers_as_a_gap(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(ONE_NODE, tmp_path) as cluster:
            async with (
                client_of(cluster, "n1") as client,
                client.subscribe("trades", name="desk", ack="manual") as trades,
            ):
                first = await publish(client, *range(10))
                await (await anext(trades)).ack()
            await cluster.stop("n1")
            path = newest_segment(tmp_path / "n1")
            with path.open("r+b") as file:
                file.truncate(path.stat().st_size // 2)
            with pytest.raises(StoreError, match="E309"):
                await cluster.start("n1")
            with pytest.raises(ParameterError, match="E150 --accept-loss: there is no 'trades-2' here"):
                await cluster.start("n1", "trades-2")
            await cluster.start("n1", "trades-1")
            # Accepted once is enough, also when nothing is published before the next start.
            await cluster.stop("n1")
            await cluster.start("n1")
            async with (
                client_of(cluster, "n1") as client,
                client.subscribe("trades", name="desk") as trades,
            ):
                (later,) = await publish(client, 77)
                assert later > first[-1], "a tick is given once"
                event = await anext(trades)
                assert (event.tick, event["price"]) == (later, 77)
                ((pubend, start, stop),) = trades.gaps
                assert pubend == "trades-1"
                assert start <= first[1]
                assert first[-1] < stop <= later
            # It was accepted once, and is no trouble any more.
            await cluster.stop("n1")
            await cluster.start("n1")

    run(story())


def harmed(folder: Path, name: str) -> None:
    """Overwrite the header of a log, or everything in the database but its first page."""
    path, start = (newest_segment(folder), 32) if name == "trades-1" else (folder / name, 4_096)
    data = bytearray(path.read_bytes())
    stop = 64 if name == "trades-1" else len(data)
    data[start:stop] = b"\xff" * (stop - start)
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["trades-1", "node.sqlite"])
def test_damaged_files_without_a_copy_can_be_abandoned_as_the_error_says(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "n1"
    moved = folder / "log" / name if name == "trades-1" else folder / name

    async def story() -> None:
        async with Cluster.running(ONE_NODE, tmp_path) as cluster:
            async with client_of(cluster, "n1") as client:
                ticks = await publish(client, *range(20))
            await cluster.stop("n1")
            harmed(folder, name)
            with pytest.raises(StoreError, match=r"^E301 .* is damaged") as caught:
                await cluster.start("n1")
            what = str(moved) if name == "trades-1" else "it and its -wal file"
            assert f"move {what} away and start once with --accept-loss {name}" in caught.value.message
            moved.rename(tmp_path / "away")
            await cluster.start("n1", name)
            async with client_of(cluster, "n1") as client:
                assert (await publish(client, 77))[0] > ticks[-1]
            await cluster.stop("n1")
            await cluster.start("n1")

    run(story())


def test_an_abandoned_database_is_recreated(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(ONE_NODE, tmp_path) as cluster:
            async with client_of(cluster, "n1") as client:
                ticks = await publish(client, 1, 2)
            await cluster.stop("n1")
            (tmp_path / "n1" / "node.sqlite").unlink()
            await cluster.start("n1", "node.sqlite")
            async with client_of(cluster, "n1") as client:
                assert (await publish(client, 3))[0] > ticks[-1]
            await cluster.stop("n1")
            await cluster.start("n1")

    run(story())


async def released(cluster: Cluster, publisher: Client, tick: int) -> None:
    """Publish what no named subscription wants until the pubend has released a tick."""
    async with client_of(cluster, "s2") as client, client.subscribe("trades") as trades:
        while cluster.nodes["p1"].report()["pubends"][0]["released"] <= tick:  # type: ignore[index]
            await publish(publisher, -1)
            await anext(trades)


def test_an_edge_whose_folder_is_an_older_copy_reports_what_it_skips(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(FIVE_NODES, tmp_path) as cluster, client_of(cluster, "p1") as publisher:
            async with (
                client_of(cluster, "s1") as client,
                client.subscribe("trades", "price >= 0", name="desk") as trades,
            ):
                await publish(publisher, 1)
                assert (await anext(trades))["price"] == 1
            await cluster.stop("s1")
            shutil.copytree(tmp_path / "s1", tmp_path / "copy")
            await cluster.start("s1")
            skipped = await publish(publisher, 2, 3)
            assert await desk(cluster, 2) == ([2, 3], [])
            await released(cluster, publisher, skipped[-1])
            await cluster.stop("s1")
            shutil.rmtree(tmp_path / "s1")
            shutil.copytree(tmp_path / "copy", tmp_path / "s1")
            # It stays a gap over a restart with nobody there.
            await cluster.start("s1")
            await confirmed(cluster)
            await cluster.stop("s1")
            await cluster.start("s1")
            await publish(publisher, 4)
            got, ((pubend, start, stop),) = await desk(cluster, 1)
            assert got == [4]
            assert pubend == "trades-1"
            assert start <= skipped[0]
            assert skipped[-1] < stop
            # It was told, and what came after it was acknowledged.
            await publish(publisher, 5)
            assert await desk(cluster, 1) == ([5], [])

    run(story())


async def desk(cluster: Cluster, count: int) -> tuple[list[float], list[Gap]]:
    """What a client without a memory gets and acknowledges, and the gaps that it is told of."""
    async with (
        client_of(cluster, "s1") as client,
        client.subscribe("trades", "price >= 0", name="desk") as trades,
    ):
        return [(await anext(trades))["price"] for _ in range(count)], trades.gaps


async def confirmed(cluster: Cluster) -> None:
    """Wait until a subscription at s1 is confirmed, and so the restored ones are."""
    async with client_of(cluster, "s1") as client, client.subscribe("trades", "price >= 0", name="desk"):
        pass


def test_an_edge_that_dies_before_it_writes_positions_reports_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with Cluster.running(FIVE_NODES, tmp_path) as cluster, client_of(cluster, "p1") as publisher:
            monkeypatch.setattr(NamedBook, "moved", lambda _: None)
            await confirmed(cluster)
            ticks = await publish(publisher, 1, 2)
            assert await desk(cluster, 2) == ([1, 2], [])
            await released(cluster, publisher, ticks[-1])
            await cluster.stop("s1")
            await cluster.start("s1")
            await publish(publisher, 3)
            # The database knows of no position above the start, and that all below was acked.
            assert await desk(cluster, 1) == ([3], [])

    run(story())


def test_an_edge_that_fell_behind_its_own_later_life_ends_and_starts_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with Cluster.running(FIVE_NODES, tmp_path) as cluster, client_of(cluster, "p1") as publisher:
            await confirmed(cluster)
            await cluster.stop("s1")
            shutil.copytree(tmp_path / "s1", tmp_path / "copy")
            for _ in range(2):
                await cluster.start("s1")
                await confirmed(cluster)
                await cluster.stop("s1")
            shutil.rmtree(tmp_path / "s1")
            shutil.copytree(tmp_path / "copy", tmp_path / "s1")
            # An older copy, and a clock that stands still.
            monkeypatch.setattr(node_module, "least_incarnation", lambda _: 0)
            await cluster.start("s1")
            with pytest.raises(SupersededError, match="E311 others have seen life"):
                await cluster.nodes["s1"].run()
            await cluster.stop("s1")
            await cluster.start("s1")
            await confirmed(cluster)
            await publish(publisher, 9)
            got, _ = await desk(cluster, 1)
            assert got == [9]

    run(story())
