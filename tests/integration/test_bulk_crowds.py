"""Many bulk reads at once: few of one principal run, few are computed at a time, the others are refused."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from gapless.client import connect
from gapless.node.bulk_reads import server
from gapless.store.history import History
from gapless.wire.bulk import ReadTicket, encode
from tests.integration.files import run, running
from tests.integration.test_bulk import NODE

TICKET = flight.Ticket(encode(ReadTicket(topic="trades", pubend="trades-1", start=0)))


def token(name: str) -> str:
    digest = hashlib.sha256(name.encode()).hexdigest()
    return f'tokens.{name} = {{sha256 = "{digest}", publish = ["*"], subscribe = ["*"]}}\n'


def options(name: str) -> flight.FlightCallOptions:
    return flight.FlightCallOptions(headers=[(b"authorization", b"Bearer " + name.encode())])


def test_reads_of_one_principal_are_bounded_and_others_still_come_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "READS_OF_ONE_MAX", 2)
    opened: list[int] = []
    read = History.read
    monkeypatch.setattr(History, "read", lambda *a, **k: opened.append(1) or read(*a, **k))

    def attack(door: str) -> None:
        # Over one connection, and each is left before its end.
        with flight.FlightClient(door) as client, flight.FlightClient(door) as other:
            kept = [client.do_get(TICKET, options("one")) for _ in range(2)]
            for stream in kept:
                stream.read_chunk()
            for _ in range(5):
                with pytest.raises(flight.FlightUnavailableError, match=r"^E199 too many bulk reads"):
                    client.do_get(TICKET, options("one"))
            assert len(opened) == 2, "those refused cost no work"
            assert other.do_get(TICKET, options("other")).read_chunk().data.num_rows

    async def story() -> None:
        text = NODE + token("one") + token("other")
        async with running(text, tmp_path, "n1") as network:
            address = network.address("n1")
            async with connect(address, token="one") as client:
                for first in range(0, 400_000, 10_000):
                    rows = {
                        "price": [float(price) for price in range(first, first + 10_000)],
                        "note": ["some text to make it longer" * 4] * 10_000,
                    }
                    await client.publish_batch("trades", rows)
            door = await network.nodes["n1"].bulk.opened()
            await asyncio.to_thread(attack, door)

    run(story())


def test_few_reads_are_computed_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = Busy()
    read = History.read
    monkeypatch.setattr(History, "read", lambda *a, **k: busy.watched(read(*a, **k)))

    def attack(door: str) -> None:
        with flight.FlightClient(door) as client:

            def one() -> None:
                assert client.do_get(TICKET).read_all().num_rows == 100

            threads = [threading.Thread(target=one) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    async def story() -> None:
        async with running(NODE, tmp_path, "n1") as network:
            async with connect(network.address("n1")) as client:
                await client.publish_batch("trades", {"price": [1.0] * 100, "note": [""] * 100})
            door = await network.nodes["n1"].bulk.opened()
            await asyncio.to_thread(attack, door)
        assert busy.most == server.WORKERS_MAX

    run(story())


class Busy:
    """How many threads were inside at once, at most. Each stays until there are too many, or for a moment."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self.most = 0

    def watched(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
        while True:
            with self._changed:
                self._inside += 1
                self.most = max(self.most, self._inside)
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._inside > server.WORKERS_MAX, 0.1)
            batch = next(batches, None)
            with self._changed:
                self._inside -= 1
            if batch is None:
                return
            yield batch
