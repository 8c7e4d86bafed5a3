"""Nodes in processes of their own: kill -9 one while events flow, and nobody loses or repeats any."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Coroutine
from pathlib import Path

import pytest

from gapless.client import connect
from gapless.errors import UsageError
from gapless.fleet import Fleet
from tests.integration.nodes import FIVE_NODES, ONE_NODE, PATIENCE_SECONDS

#: A program that starts a fleet, says which processes that made, and waits for its end.
STARTER = f"""
import asyncio, sys
from pathlib import Path
from gapless.fleet import Fleet

async def story():
    async with Fleet({ONE_NODE!r}, Path(sys.argv[1])) as fleet:
        print(fleet.pid("n1"), flush=True)
        await asyncio.Event().wait()

asyncio.run(story())
"""


def run(story: Coroutine[object, object, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 2 * PATIENCE_SECONDS))


@pytest.mark.parametrize("victim", [pytest.param("b1", marks=pytest.mark.long), "p1"])
def test_a_killed_node_costs_no_event(victim: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            Fleet(FIVE_NODES, tmp_path) as fleet,
            connect(fleet.address("p1")) as publisher,
            connect(fleet.address("s1")) as first,
            connect(fleet.address("s2")) as second,
            first.subscribe("trades", "price < 500") as low,
            second.subscribe("trades", "price >= 500") as high,
        ):
            for price in range(1_000):
                publication = publisher.publish("trades", {"name": "x", "price": float(price)})
                if price % 50 == 0:
                    await publication
                if price == 300:
                    await fleet.kill(victim)
                    await fleet.start(victim)
            await publication
            assert [(await anext(low))["price"] for _ in range(500)] == [float(p) for p in range(500)]
            assert [(await anext(high))["price"] for _ in range(500)] == [float(p) for p in range(500, 1_000)]

    run(story())


def test_a_named_subscriber_gets_exactly_what_it_lacked_when_its_edge_was_killed(tmp_path: Path) -> None:
    async def story() -> None:
        async with Fleet(FIVE_NODES, tmp_path) as fleet, connect(fleet.address("p1")) as publisher:

            async def publish(*prices: int) -> None:
                waiting = [publisher.publish("trades", {"name": "x", "price": float(p)}) for p in prices]
                for each in waiting:
                    await each

            async with (
                connect(fleet.address("s1")) as client,
                client.subscribe("trades", "price < 500", name="desk") as trades,
            ):
                await publish(*range(100))
                assert [(await anext(trades))["price"] for _ in range(50)] == [float(p) for p in range(50)]
            # It is away, events flow, and nobody told the edge to write anything down.
            await publish(*range(100, 200), *range(500, 600))
            await fleet.kill("s1")
            await publish(*range(200, 300))
            await fleet.start("s1")
            await publish(*range(300, 400), 999)
            async with (
                connect(fleet.address("s1")) as client,
                client.subscribe("trades", "price < 500", name="desk") as trades,
            ):
                found = [int((await anext(trades))["price"]) for _ in range(350)]
                while found[-1] != 399:
                    found.append(int((await anext(trades))["price"]))
                # What was acknowledged in its last second may come again to a client without a memory.
                assert found == list(range(found[0], 400))
                assert found[0] <= 50
                assert trades.gaps == []

    run(story())


def test_a_frozen_node_continues_where_it_was(tmp_path: Path) -> None:
    async def story() -> None:
        async with Fleet(ONE_NODE, tmp_path) as fleet, connect(fleet.address("n1")) as client:
            fleet.pause("n1")
            receipt = client.publish("trades", {"name": "x", "price": 1.0})
            stopped = await asyncio.to_thread(os.waitid, os.P_PID, fleet.pid("n1"), os.WSTOPPED)
            assert stopped is not None
            assert not receipt.done()
            fleet.resume("n1")
            await receipt
            assert fleet.cpu_seconds("n1") > 0
            assert fleet.rss_bytes("n1") > 1_000_000
            assert await fleet.stop("n1") == 0
            assert not fleet.runs("n1")

    run(story())


def test_a_node_keeps_its_port_while_it_is_down(tmp_path: Path) -> None:
    async def story() -> None:
        async with Fleet(ONE_NODE, tmp_path) as fleet:
            await fleet.kill("n1")
            port = int(fleet.addresses["n1"].rpartition(":")[2])
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", port))
            await fleet.start("n1")
            async with connect(fleet.address("n1")) as client:
                await client.publish("trades", {"name": "x", "price": 1.0})

    run(story())


def test_a_node_that_cannot_start_says_why_and_the_others_are_ended(tmp_path: Path) -> None:
    async def story() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            fleet = Fleet(FIVE_NODES, tmp_path, addresses={"b1": address})
            with pytest.raises(UsageError, match="E186 the node b1 did not start: error: E183"):
                await fleet.__aenter__()
            assert not any(fleet.runs(name) for name in fleet.names)

    run(story())


def test_a_broker_may_see_another_at_a_proxy(tmp_path: Path) -> None:
    async def story() -> None:
        seen_by = {"b1": {"p1": "127.0.0.1:9"}}
        async with Fleet(FIVE_NODES, tmp_path, seen_by=seen_by) as fleet:
            assert 'p1 = "127.0.0.1:9"' in (tmp_path / "b1.toml").read_text()
            assert f'p1 = "{fleet.addresses["p1"]}"' in (tmp_path / "s1.toml").read_text()

    run(story())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nodes_die_with_the_process_that_started_them(number: signal.Signals, tmp_path: Path) -> None:
    async def story() -> None:
        starter = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-c", STARTER, str(tmp_path)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert starter.stdout is not None
        # A handle on the process itself: a number may be given to another one.
        node = os.pidfd_open(int(await starter.stdout.readline()))
        gone = asyncio.Event()
        asyncio.get_running_loop().add_reader(node, gone.set)
        starter.send_signal(number)
        await gone.wait()
        asyncio.get_running_loop().remove_reader(node)
        os.close(node)
        await starter.communicate()

    run(story())
