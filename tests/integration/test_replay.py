"""`gapless sub --history`: a new durable subscriber gets the past, archived or not, and then what comes."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from gapless.client import connect
from tests.integration.files import run, running
from tests.integration.test_bulk import NODE, filled, publish

EVENTS = 3_000
ARCHIVED = f'{NODE}retention.trades = "100kB"\narchive.trades = true\n'


class Subscriber:
    """A `gapless sub` of its own process, whose lines are read until there are enough."""

    def __init__(self, address: str, *arguments: str) -> None:
        command = [sys.executable, "-m", "gapless", "sub", "trades", "--to", address, *arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def prices(self, count: int) -> list[float]:
        assert self._process.stdout is not None
        lines = [self._process.stdout.readline() for _ in range(count)]
        return [json.loads(line)["price"] for line in lines]

    def stop(self) -> tuple[str, str]:
        """What else it printed, and what it said."""
        self._process.terminate()
        return self._process.communicate(timeout=30)


def test_a_new_subscriber_gets_the_past_from_the_archive_and_goes_on(tmp_path: Path) -> None:
    arguments = ("--name", "audit", "--from", "earliest", "--history", "--where", "price >= 10")

    async def story() -> None:
        async with running(ARCHIVED, tmp_path, "n1") as network, connect(network.address("n1")) as client:
            address = network.address("n1")
            await filled(network, client, EVENTS)
            report = network.nodes["n1"].report()
            assert report["pubends"][0]["oldest_tick"] > 0, "the log has let go of the beginning"  # type: ignore[index]

            subscriber = await asyncio.to_thread(Subscriber, address, *arguments)
            past = await asyncio.to_thread(subscriber.prices, EVENTS - 10)
            assert past == [float(price) for price in range(10, EVENTS)]
            await publish(client, EVENTS, 50)
            assert await asyncio.to_thread(subscriber.prices, 50) == [
                float(price) for price in range(EVENTS, EVENTS + 50)
            ]
            rest, said = await asyncio.to_thread(subscriber.stop)
            assert rest == ""
            assert said.splitlines()[-1] == "subscribed to trades"

            # The very same command again: it has a name now, and goes on where it was.
            await publish(client, EVENTS + 50, 10)
            again = await asyncio.to_thread(Subscriber, address, *arguments)
            assert await asyncio.to_thread(again.prices, 10) == [
                float(price) for price in range(EVENTS + 50, EVENTS + 60)
            ]
            rest, _ = await asyncio.to_thread(again.stop)
            assert rest == ""
            names = {
                each["name"]
                for each in network.nodes["n1"].report()["subscriptions"]["list"]  # type: ignore[index]
            }
            assert names == {"audit"}, "nothing else is held"

    run(story())


def test_a_subscriber_that_is_stopped_in_the_past_begins_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(ARCHIVED, tmp_path, "n1") as network, connect(network.address("n1")) as client:
            address = network.address("n1")
            await filled(network, client, EVENTS)
            arguments = ("--name", "audit", "--from", "0", "--history")
            first = await asyncio.to_thread(Subscriber, address, *arguments)
            assert await asyncio.to_thread(first.prices, 5) == [0.0, 1.0, 2.0, 3.0, 4.0]
            first._process.kill()
            await asyncio.to_thread(first._process.communicate)
            await publish(client, EVENTS, 50)
            second = await asyncio.to_thread(Subscriber, address, *arguments)
            found: list[float] = []
            while len(found) < EVENTS + 50:
                # Among them are those, below zero, with which the log was made to let go.
                found += [price for price in await asyncio.to_thread(second.prices, 1) if price >= 0]
            assert found == [float(price) for price in range(EVENTS + 50)]
            await asyncio.to_thread(second.stop)

    run(story())


def test_options_that_do_not_go_together_are_refused() -> None:
    for arguments, text in (
        (["--history"], "error: E151 --history goes with --from"),
        (
            ["--history", "--from", "0", "--order", "total"],
            "error: E151 --history reads one pubend after",
        ),
        (["--history", "--from", "0", "--name", "a", "--limit", "3"], "error: E151 --history and --name go"),
    ):
        command = [sys.executable, "-m", "gapless", "sub", "trades", *arguments]
        answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert answer.returncode == 2
        assert answer.stderr.startswith(text)
        assert len(answer.stderr.splitlines()) == 1
