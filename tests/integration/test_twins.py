"""Two processes do the same work under one name, as a scheduler does that does not trust a slow one."""

import asyncio
from pathlib import Path

import pyarrow as pa

from gapless.client import connect
from gapless.client.bulk import open_bulk
from tests.integration.files import run, running
from tests.integration.test_bulk import NODE, prices

EVENTS = 300_000


def test_events_of_twins_are_stored_once_and_both_hear_of_them(tmp_path: Path) -> None:
    rows = pa.table({"price": pa.array(range(EVENTS), pa.float64()), "note": ["x"] * EVENTS})

    def read(address: str) -> list[float]:
        with open_bulk(address, "trades") as bulk:
            return prices(bulk.read("trades-1", 0))

    async def publish(address: str) -> int:
        async with connect(address) as client:
            publisher = client.publisher("trades", identity="twin", first_catenation=7 * 2**32)
            return len(await publisher.publish_batch(rows))

    async def story() -> None:
        async with running(f'{NODE}retention.trades = "forever"\n', tmp_path, "n1") as network:
            address = network.address("n1")
            assert await asyncio.gather(*(publish(address) for _ in range(3))) == [EVENTS] * 3
            assert await asyncio.to_thread(read, address) == [float(price) for price in range(EVENTS)]
            assert await publish(address) == EVENTS
            assert len(await asyncio.to_thread(read, address)) == EVENTS

    run(story())
