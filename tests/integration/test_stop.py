"""A node that is told to stop: what was accepted is kept, clients are sent elsewhere, and nothing is lost."""

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gapless.cli.exits import EXIT_INTERRUPTED
from gapless.client import connect
from gapless.node.config import NodeConfig, load_network
from gapless.node.node import Node
from tests.integration.files import run
from tests.integration.nodes import PATIENCE_SECONDS, BrokerId, free_addresses

NODE = """
cells = {all = ["n1"]}
topics.trades = {price = "float"}
pubends.trades-1 = {topic = "trades", broker = "n1"}
retention.trades = "forever"
"""
EDGES = """
cells = {p = ["p1"], s = ["s1"], t = ["s2"]}
links = ["p--s", "p--t"]
edges = ["s1", "s2"]
topics.trades = {price = "float"}
pubends.trades-1 = {topic = "trades", broker = "p1"}
"""


def configs(text: str, folder: Path, *names: str) -> dict[str, NodeConfig]:
    addresses = free_addresses([BrokerId(name) for name in names])
    listed = ", ".join(f'{name} = "{address}"' for name, address in addresses.items())
    file = load_network(f"addresses = {{{listed}}}\n{text}", "network.toml")
    return {name: file.node(BrokerId(name), folder / name, "gapless test") for name in names}


def test_a_publisher_continues_after_a_clean_restart(tmp_path: Path) -> None:
    async def story() -> None:
        config = configs(NODE, tmp_path, "n1")["n1"]
        first = await Node(config).__aenter__()
        async with connect(f"gapless://{config.listen}") as client:
            published = [client.publish("trades", {"price": float(price)}) for price in range(1_000)]
            await published[0]
            # Many are on their way; some are refused for the time being, and come again.
            await first.__aexit__(None, None, None)
            published += [client.publish("trades", {"price": float(price)}) for price in range(1_000, 1_100)]
            async with Node(config):
                for each in published:
                    await each
                async with client.subscribe("trades", start="earliest") as trades:
                    prices = [(await anext(trades))["price"] for _ in range(1_100)]
        assert prices == [float(price) for price in range(1_100)]

    run(story())


def test_a_subscriber_moves_to_the_next_edge_when_its_own_stops(tmp_path: Path) -> None:
    async def story() -> None:
        made = configs(EDGES, tmp_path, "p1", "s1", "s2")
        async with Node(made["p1"]), Node(made["s2"]):
            s1 = await Node(made["s1"]).__aenter__()
            async with (
                connect(f"gapless://{made['p1'].listen}") as publisher,
                connect(f"gapless://{made['s1'].listen},{made['s2'].listen}") as subscriber,
                subscriber.subscribe("trades") as trades,
            ):
                for price in range(100):
                    await publisher.publish("trades", {"price": float(price)})
                assert (await anext(trades))["price"] == 0.0
                await s1.__aexit__(None, None, None)
                for price in range(100, 200):
                    await publisher.publish("trades", {"price": float(price)})
                assert [(await anext(trades))["price"] for _ in range(1, 200)] == list(range(1, 200))
                assert s1.counters.refusals == {"E188": 1}
                assert (await subscriber.status())["broker"] == "s2"

    run(story())


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, EXIT_INTERRUPTED)])
def test_a_signal_stops_a_node_and_its_log_says_so(
    number: signal.Signals, status: int, tmp_path: Path
) -> None:
    arguments = ["up", "--topic", "trades:price=float", "--listen", "127.0.0.1:0", "--log", "json"]
    node = subprocess.Popen(
        [sys.executable, "-m", "gapless", *arguments, "--data", str(tmp_path), "--http", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert node.stdout is not None
    told = json.loads(node.stdout.readline())
    assert told["http"].startswith("http://127.0.0.1:")

    async def story() -> None:
        async with connect(told["listens"]) as client:
            await client.publish("trades", {"price": 1.0})

    asyncio.run(story())
    node.send_signal(number)
    _, errors = node.communicate(timeout=PATIENCE_SECONDS)
    assert node.returncode == status
    lines = [json.loads(line) for line in errors.splitlines()]
    assert [line["event"] for line in lines] == ["descriptors", "listening", "stopping", "stopped"]
    assert {line["broker"] for line in lines} == {"node"}
    assert {line["level"] for line in lines} == {"info"}
    assert lines[2]["signal"] == number.name


def test_a_second_signal_ends_a_node_that_waits_for_its_disk(tmp_path: Path) -> None:
    # This disk never finishes a flush, and the node waits for it when it is told to stop.
    program = """
import threading
from gapless.cli.main import main
from gapless.store.memory import MemoryLog
MemoryLog.flush = lambda self: threading.Event().wait()
main()
"""
    arguments = [
        "up",
        "--topic",
        "trades:price=float",
        "--in-memory",
        "--listen",
        "127.0.0.1:0",
        "--log",
        "json",
    ]
    node = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert node.stdout is not None
    assert node.stderr is not None
    node.stdout.readline()
    node.send_signal(signal.SIGTERM)
    for line in node.stderr:
        if json.loads(line)["event"] == "stopping":
            break
    node.send_signal(signal.SIGTERM)
    node.communicate(timeout=PATIENCE_SECONDS)
    assert node.returncode == -signal.SIGTERM
