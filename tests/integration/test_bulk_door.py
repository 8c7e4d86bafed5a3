"""The door for bulk reads and those who come to it: idle ones, strange ones, and those from elsewhere."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from pyarrow import flight

from gapless.client import connect
from gapless.client.bulk import Bulk, open_bulk
from gapless.node.bulk_reads import server, slots
from gapless.wire.bulk import ReadTicket, Refusal, encode
from tests.integration.files import Network, run, running
from tests.integration.test_bulk import NODE, filled, only, prices, publish

EVENTS = 400_000


async def many(network: Network) -> None:
    """So many events that they do not fit into buffers on the way."""
    async with connect(network.address("n1")) as client:
        for first in range(0, EVENTS, 10_000):
            await publish(client, first, 10_000, note="some text to make it longer" * 4)


@pytest.fixture
def one_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "READS_MAX", 1)
    monkeypatch.setattr(server, "WAIT_SECONDS_MAX", 0.01)


@pytest.mark.usefixtures("one_slot")
def test_an_idle_reader_loses_its_slot_and_may_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.3)

    def read(address: str) -> None:
        with open_bulk(address, "trades") as one, open_bulk(address, "trades") as other:
            batches = one.read("trades-1", 0)
            first = next(batches)
            assert prices(other.read("trades-1", 0)) == [float(each) for each in range(EVENTS)]
            assert prices([first, *batches]) == [float(each) for each in range(EVENTS)], "each row once"

    async def story() -> None:
        async with running(NODE, tmp_path, "n1") as network:
            await many(network)
            await asyncio.to_thread(read, network.address("n1"))

    run(story())


@pytest.mark.usefixtures("one_slot")
def test_a_reader_that_returns_too_late_gets_one_line_of_explanation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(place: Bulk) -> None:
        service = made[-1]
        ticket = flight.Ticket(encode(ReadTicket(topic="trades", pubend="trades-1", start=0)))
        with flight.FlightClient(place.place.doors["trades-1"]) as client:
            reader = client.do_get(ticket)
            reader.read_chunk()
            [under_way] = service.reads._under_way
            while not under_way.is_cut:
                # As if it had waited for half a minute, as soon as it waits.
                service.reads.look(time.monotonic() + slots.IDLE_SECONDS)
            with pytest.raises(
                flight.FlightUnavailableError, match=r"^E412 .* took nothing for 30 s"
            ) as told:
                reader.read_all()
            refusal = msgspec.json.decode(told.value.extra_info, type=Refusal)
            assert (refusal.code, refusal.retry) == ("E412", True)
            assert "\n" not in str(told.value)
        with flight.FlightClient(place.place.doors["trades-1"]) as client:
            reader = client.do_get(ticket)
            reader.read_chunk()
            # Nobody takes anything, and yet nothing waits any more in the end.
            while len(service.reads):
                service.reads.look(time.monotonic() + slots.IDLE_SECONDS)
                service.reads.look(time.monotonic() + 2 * slots.IDLE_SECONDS)
            with pytest.raises(flight.FlightUnavailableError):
                reader.read_all()

    made: list[server.Service] = []
    start = server.Service.__init__

    def kept(service: server.Service, *arguments: object) -> None:
        made.append(service)
        start(service, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(server.Service, "__init__", kept)

    async def story() -> None:
        async with running(NODE, tmp_path, "n1") as network:
            await many(network)
            bulk = await asyncio.to_thread(open_bulk, network.address("n1"), "trades")
            await asyncio.to_thread(read, bulk)
            bulk.close()

    run(story())


def test_large_batches_travel_in_pieces_that_a_slow_reader_can_take_in_time() -> None:
    batch = pa.RecordBatch.from_pydict({"tick": list(range(4_000)), "note": ["x" * 1_000] * 4_000})
    pieces = list(server.pieces(batch))
    assert pa.Table.from_batches(pieces).equals(pa.Table.from_batches([batch]))
    assert len(pieces) == 4
    assert all(piece.nbytes <= 2 * server.PIECE_BYTES for piece in pieces)
    small = batch.slice(0, 10)
    assert list(server.pieces(small)) == [small]
    empty = batch.slice(0, 0)
    assert list(server.pieces(empty)) == [empty]


def test_calls_that_are_not_for_this_door_get_one_clear_line(tmp_path: Path) -> None:
    def speak(address: str) -> None:
        with open_bulk(address, "trades") as bulk:
            door = bulk.place.doors["trades-1"]
            known = only(bulk).known
        path = flight.FlightDescriptor.for_path("trades")
        rows = pa.schema([("price", pa.float64())])

        def put(client: flight.FlightClient) -> None:
            writer, _ = client.do_put(path, rows)
            writer.close()

        def exchange(client: flight.FlightClient) -> None:
            writer, reader = client.do_exchange(path)
            writer.done_writing()
            reader.read_all()

        calls = {
            "list_flights": lambda client: list(client.list_flights()),
            "get_flight_info": lambda client: client.get_flight_info(path),
            "get_schema": lambda client: client.get_schema(path),
            "do_put": put,
            "do_exchange": exchange,
        }
        with flight.FlightClient(door) as client:
            for name, call in calls.items():
                # For one of them PyArrow has no error of its own, and keeps the text alone.
                kind = OSError if name == "get_schema" else flight.FlightServerError
                with pytest.raises(kind, match=f"^E181 there is no {name} here: ") as told:
                    call(client)
                assert "Traceback" not in str(told.value)
                assert "\n" not in str(told.value)
                if kind is not OSError:
                    assert msgspec.json.decode(told.value.extra_info, type=Refusal).code == "E181"
            # A range that ends before it begins has nothing.
            for start, stop in ((known, known - 1), (2**63 - 1, -(2**63))):
                ticket = encode(ReadTicket(topic="trades", pubend="trades-1", start=start, stop=stop))
                assert client.do_get(flight.Ticket(ticket)).read_all().num_rows == 0
                asked = {"topic": "trades", "pubend": "trades-1", "start": start, "stop": stop, "rows": 1}
                [answer] = client.do_action(("plan", msgspec.json.encode(asked)))
                assert answer.body.to_pybytes() == b'{"parts":[]}'

    async def story() -> None:
        async with running(NODE, tmp_path, "n1") as network:
            await asyncio.to_thread(speak, network.address("n1"))

    run(story())


def test_an_internal_error_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a secret of the node")

    monkeypatch.setattr(server.BulkSource, "horizon", broken)

    def speak(address: str) -> None:
        with open_bulk(address, "trades") as bulk:
            door = bulk.place.doors["trades-1"]
        ticket = flight.Ticket(encode(ReadTicket(topic="trades", pubend="trades-1", start=0)))
        with flight.FlightClient(door) as client:
            for call in (
                lambda: list(client.do_action(("horizons", b'{"topic":"trades"}'))),
                lambda: client.do_get(ticket).read_all(),
            ):
                with pytest.raises(flight.FlightServerError, match=r"^E181 .*: its log says why") as told:
                    call()
                assert "secret" not in str(told.value)

    async def story() -> None:
        async with running(NODE, tmp_path, "n1") as network:
            await asyncio.to_thread(speak, network.address("n1"))

    run(story())


@pytest.mark.parametrize("here", [True, False])
def test_file_locations_are_revealed_only_on_the_same_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    if not here:
        monkeypatch.setattr(server, "is_loopback", lambda _: False)

    def read(address: str, folder: Path) -> None:
        with open_bulk(address, "trades") as bulk:
            past = only(bulk)
            assert past.archive, "what is archived is told to all"
            assert past.folder == (str(folder) if here else "")
            file = folder / past.archive[0].file
            file.write_bytes(bytes(file.stat().st_size))
            with pytest.raises(Exception, match=r"^E301 ") as told:
                list(bulk.read("trades-1", past.oldest, past.known))
            assert (str(folder) in str(told.value)) == here
            assert (file.name in str(told.value)) == here

    async def story() -> None:
        text = f'{NODE}retention.trades = "100kB"\narchive.trades = true\n'
        async with running(text, tmp_path, "n1") as network, connect(network.address("n1")) as client:
            await filled(network, client, 4_000)
            folder = tmp_path / "data" / "n1" / "archive" / "trades"
            await asyncio.to_thread(read, network.address("n1"), folder)

    run(story())
