"""A process that is kept running while it is wanted, and what a network file says of it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gapless.errors import NetworkDescriptionError
from gapless.node.config import Spark, load_network
from gapless.node.spark import process as pipeline
from gapless.node.spark.process import PipelineProcess, command

NETWORK = """
cells = {P = ["p1"], S = ["s1"]}
links = ["P--S"]
edges = ["s1"]
topics.trades = {price = "float"}
pubends.trades = {topic = "trades", broker = "p1"}
addresses = {p1 = "127.0.0.1:7401", s1 = "127.0.0.1:7402"}
"""
#: Calls us, and stays until we hang up.
CHILD = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1]))).recv(1); sys.exit(3)"

Calls = asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]]


@asynccontextmanager
async def called() -> AsyncIterator[tuple[int, Calls]]:
    """A port, and those who call there."""
    calls: Calls = asyncio.Queue()
    server = await asyncio.start_server(lambda *ends: calls.put_nowait(ends), "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], calls


def test_a_dead_process_is_restarted_and_stopped_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "PAUSE_SECONDS_MIN", 0.001)

    async def story() -> None:
        async with called() as (port, calls):
            process = PipelineProcess([sys.executable, "-c", CHILD, str(port)], tmp_path / "log", {})
            assert process.pid is None
            process.want(True)
            _, writer = await calls.get()
            first = process.pid
            writer.close()
            reader, writer = await calls.get()
            assert process.pid not in (None, first)
            assert process.starts == 2
            await process.close()
            assert await reader.read() == b""
            assert process.pid is None
            writer.close()

    asyncio.run(story())


def test_a_process_runs_only_while_it_is_wanted(tmp_path: Path) -> None:
    async def story() -> None:
        async with called() as (port, calls):
            process = PipelineProcess([sys.executable, "-c", CHILD, str(port)], tmp_path / "log", {})
            process.want(True)
            reader, writer = await calls.get()
            process.want(False)
            assert await reader.read() == b""
            writer.close()
            process.want(True)
            _, writer = await calls.get()
            await process.close()
            assert process.starts == 2
            writer.close()

    asyncio.run(story())


def test_what_earlier_processes_said_is_put_aside_when_it_is_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "OUTPUT_BYTES_MAX", 10)
    output = tmp_path / "log"
    output.write_text("what was said long ago")

    async def story() -> None:
        async with called() as (port, calls):
            process = PipelineProcess([sys.executable, "-c", CHILD, str(port)], output, {})
            process.want(True)
            _, writer = await calls.get()
            assert output.read_text() == ""
            await process.close()
            writer.close()

    asyncio.run(story())
    assert (tmp_path / "log.1").read_text() == "what was said long ago"


def test_a_network_file_says_which_node_starts_spark(tmp_path: Path) -> None:
    file = load_network(
        f'{NETWORK}spark = {{broker = "s1", checkpoints = "views"}}', "network.toml", tmp_path
    )
    spark = file.spark
    assert spark == Spark(broker="s1", checkpoints=tmp_path / "views")
    assert spark is not None
    told = command("gapless://s1:7402", spark, tmp_path)
    assert told[3:] == [
        "pipeline",
        "--to",
        "gapless://s1:7402",
        "--master",
        "local[*]",
        "--checkpoints",
        str(tmp_path / "views"),
        "--state",
        "auto",
        "--rows-max",
        "1000000",
    ]
    shown = command("gapless+tls://s1:7402", spark, tmp_path, ca="ca.pem", certificate="s1.pem", key="s1.key")
    assert shown[-6:] == ["--ca", "ca.pem", "--certificate", "s1.pem", "--key", "s1.key"]


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        ("{}", "spark.broker: is missing"),
        ('{broker = "s1", rows_max = 0}', "spark.rows_max: must be a whole number from 1, got 0"),
        ('{broker = "s1", state = "disk"}', "spark.state: must be one of auto, memory, rocksdb, got 'disk'"),
        ('{broker = "s2"}', "spark.broker: there is no broker 's2' in the cells"),
        ('{broker = "p1"}', "spark.broker: broker 'p1' takes no subscribers"),
        ('{broker = "s1", masters = "x"}', "spark.masters: unknown key: did you mean 'master'?"),
        ('{broker = "s1", master = 3}', "spark.master: must be a text"),
    ],
)
def test_a_section_that_makes_no_sense_is_refused(section: str, reason: str) -> None:
    with pytest.raises(NetworkDescriptionError, match="E131") as refused:
        load_network(f"{NETWORK}spark = {section}", "network.toml")
    assert reason in str(refused.value)
