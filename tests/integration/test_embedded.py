"""A node inside the process: the same client, the same data folder, one process at a time."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import gapless
from gapless.errors import LinkError, StoreError
from gapless.node.spark import supervisor
from tests.integration.files import until
from tests.integration.nodes import PATIENCE_SECONDS

TRADES = {"sym": "string", "price": "float"}
OPENS = """
import asyncio, sys, gapless

async def story():
    async with gapless.embedded(sys.argv[1]):
        pass

try:
    asyncio.run(story())
except gapless.errors.StoreError as error:
    print(error.code)
"""


def run(story) -> None:  # type: ignore[no-untyped-def]
    asyncio.run(asyncio.wait_for(story, 2 * PATIENCE_SECONDS))


def test_what_is_published_is_there_the_next_time(tmp_path: Path) -> None:
    async def story() -> None:
        async with gapless.embedded(tmp_path) as client:
            await client.create_topic("trades", TRADES)
            async with client.subscribe("trades", where="price > 100") as trades:
                receipt = await client.publish("trades", {"sym": "IBM", "price": 121.5})
                trade = await anext(trades)
                assert (trade["sym"], trade.tick) == ("IBM", receipt.tick)
        async with gapless.embedded(tmp_path) as client:
            assert (await client.topics())["trades"].columns == TRADES
            again = await client.publish("trades", {"sym": "IBM", "price": 1.0})
            assert again.pubend == "trades-node"
        assert (tmp_path / "node" / "log" / "trades-node").is_dir()

    run(story())


def test_without_a_path_nothing_is_kept() -> None:
    async def story() -> None:
        async with gapless.embedded() as client:
            await client.create_topic("trades", TRADES)
        async with gapless.embedded() as client:
            assert await client.topics() == {}

    run(story())


def test_a_folder_is_open_in_one_process_at_a_time(tmp_path: Path) -> None:
    async def story() -> None:
        async with gapless.embedded(tmp_path):
            with pytest.raises(StoreError) as refused:
                async with gapless.embedded(tmp_path):
                    pass
            assert refused.value.code == "E304"
            command = [sys.executable, "-c", OPENS, str(tmp_path)]
            other = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS
            )
            assert other.stdout.strip() == "E304"

    run(story())


def test_other_programs_cannot_connect_to_an_embedded_node() -> None:
    async def story() -> None:
        async with gapless.embedded() as client:
            address = (await client.status())["listens"]
            with pytest.raises(gapless.errors.GaplessError) as refused:
                async with gapless.connect(address, token="a guess"):
                    pass
            assert refused.value.code == "E185"

    run(story())


def test_a_synchronous_program_can_embed_a_node(tmp_path: Path) -> None:
    with gapless.sync.embedded(tmp_path) as client:
        client.create_topic("trades", TRADES)
        with client.subscribe("trades") as trades:
            client.publish_batch("trades", {"sym": ["a", "b"], "price": [1.0, 2.0]})
            events = iter(trades)
            assert [next(events)["sym"] for _ in range(2)] == ["a", "b"]


def test_an_error_of_the_program_passes_and_the_node_is_stopped(tmp_path: Path) -> None:
    async def story() -> None:
        with pytest.raises(ZeroDivisionError):
            async with gapless.embedded(tmp_path):
                raise ZeroDivisionError
        async with gapless.embedded(tmp_path) as client:
            assert await client.topics() == {}
        with pytest.raises((LinkError, gapless.errors.UsageError), match="E193"):
            await client.topics()

    run(story())


def is_running(process: str) -> bool:
    return Path("/proc", process).exists()


def test_the_first_view_starts_a_pipeline_that_stops_before_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "node" / "pipeline.log"
    # In place of Spark: says whether it has a token and which process it is, and waits for its input to end.
    stand_in = ["/bin/sh", "-c", "echo ${GAPLESS_TOKEN:+token} $$; exec cat"]
    monkeypatch.setattr(supervisor, "command", lambda *_, **__: stand_in)

    async def story() -> None:
        async with gapless.embedded(tmp_path) as client:
            await client.create_topic("trades", TRADES)
            assert not output.exists()
            await client.create_view("highs", "SELECT sym, max(price) AS high FROM trades GROUP BY sym")
            await until(lambda: output.exists() and output.read_text().endswith("\n"))
            token, process = output.read_text().split()
            assert (token, is_running(process)) == ("token", True)
        assert not is_running(process)

    run(story())


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()

    async def story() -> None:
        with pytest.raises(StoreError, match=rf"^E303 .*{place}.*: check the disk and the permissions"):
            async with gapless.embedded(tmp_path / place):
                pass

    run(story())
