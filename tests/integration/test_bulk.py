"""Bulk reads on real nodes: any range, again and again the same rows, from the log and from the archive."""

import asyncio
import pickle
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import flight

from gapless.client import Client, connect
from gapless.client.bulk import Bulk, PubendPast, open_bulk
from gapless.errors import ContentError, GaplessError, LinkError, ParameterError, StoreError, UsageError
from gapless.model.ids import BrokerId
from gapless.node.bulk_reads import opening, server
from gapless.node.node import Node
from gapless.node.security import token_hash
from gapless.wire.bulk import REQUEST_BYTES_MAX, Refusal
from tests.integration.authority import Authority
from tests.integration.files import Network, run, running
from tests.integration.nodes import ONE_NODE, Cluster
from tests.integration.test_retention import acked_by_all

NODE = """
cells = {all = ["n1"]}
topics.trades = {price = "float", note = "string"}
pubends.trades-1 = {topic = "trades", broker = "n1"}
parameters = {ack_delay_ms = 1}
"""
TWO = """
cells = {p = ["p1"], q = ["q1"], s = ["s1"]}
links = ["p--s", "q--s"]
edges = ["s1"]
topics.trades = {price = "float", note = "string"}
pubends.trades-1 = {topic = "trades", broker = "p1"}
pubends.trades-2 = {topic = "trades", broker = "q1"}
"""


async def publish(client: Client, first: int, count: int, note: str = "") -> None:
    rows = {"price": [float(price) for price in range(first, first + count)], "note": [note] * count}
    await client.publish_batch("trades", rows)


def prices(batches: Iterable[pa.RecordBatch]) -> list[float]:
    return [price for batch in batches for price in batch.column("price").to_pylist()]


def only(bulk: Bulk) -> PubendPast:
    [past] = bulk.describe().values()
    return past


def test_a_range_gives_the_same_rows_every_time(tmp_path: Path) -> None:
    def read(address: str) -> None:
        with open_bulk(address, "trades") as bulk:
            past = only(bulk)
            assert past.oldest <= 0
            assert past.stop <= past.known
            batches = list(bulk.read("trades-1", past.oldest, past.known))
            assert batches[0].schema.names == ["tick", "pubend", "price", "note"]
            assert batches[0].column("pubend").to_pylist()[:1] == ["trades-1"]
            assert prices(batches) == [float(price) for price in range(1_000)]
            ticks = [tick for batch in batches for tick in batch.column("tick").to_pylist()]
            assert ticks == sorted(set(ticks))
            assert ticks[-1] + 1 == past.stop
            # Any part of it, with any rows and columns of it, by another process.
            other = pickle.loads(pickle.dumps(bulk))
            part = list(other.read("trades-1", ticks[10], ticks[20], where="price >= 15", columns=["price"]))
            assert part[0].schema.names == ["tick", "pubend", "price"]
            assert prices(part) == [15.0, 16.0, 17.0, 18.0, 19.0]
            assert list(other.read("trades-1", past.stop, past.known)) == []
            assert prices(other.read("trades-1", ticks[990])) == [float(each) for each in range(990, 1_000)]
            other.close()

    async def story() -> None:
        async with running(NODE, tmp_path, "n1") as network, connect(network.address("n1")) as client:
            assert (await client.status())["bulk"] is None, "nobody has asked for it yet"
            for first in range(0, 1_000, 100):
                await publish(client, first, 100)
            await asyncio.to_thread(read, network.address("n1"))
            assert (await client.status())["bulk"].startswith("grpc://127.0.0.1:")
        async with running(NODE, tmp_path, "n1") as network:
            await asyncio.to_thread(read, network.address("n1"))

    run(story())


def test_what_cannot_be_read_is_refused_in_one_line(tmp_path: Path) -> None:
    def read(address: str) -> None:
        with open_bulk(address, "trades") as bulk:
            known = only(bulk).known
            with pytest.raises(UsageError, match=r"^E198 pubend 'trades-1' is known up to"):
                list(bulk.read("trades-1", 0, known + 10**12))
            with pytest.raises(ContentError, match=r"^E161 at 1: no column 'prise'"):
                list(bulk.read("trades-1", 0, known, where="prise > 3"))
            with pytest.raises(ParameterError, match=r"^E191 topic 'trades' has no column 'size'"):
                list(bulk.read("trades-1", 0, known, columns=["size"]))
            with pytest.raises(UsageError, match=r"^E143 topic 'trades' has no pubend 'trades-9'"):
                list(bulk.read("trades-9", 0, known))
        with pytest.raises(UsageError, match=r"^E141 there is no topic 'news'"):
            open_bulk(address, "news")
        with pytest.raises(ParameterError, match=r"^E191 for bulk reads, tls must be a CA file"):
            open_bulk(address, "trades", tls=object())  # type: ignore[arg-type]

    async def story() -> None:
        async with running(NODE, tmp_path, "n1") as network, connect(network.address("n1")) as client:
            await publish(client, 0, 10)
            await asyncio.to_thread(read, network.address("n1"))

    run(story())


def test_invalid_flight_requests_get_one_clear_line(tmp_path: Path) -> None:
    def speak(address: str) -> None:
        with open_bulk(address, "trades") as bulk:
            door = bulk.place.doors["trades-1"]
        with flight.FlightClient(door) as client:
            for ticket in (b"", b"{", b"[]", b'{"topic": 3}', b"x" * (REQUEST_BYTES_MAX + 1)):
                with pytest.raises(flight.FlightServerError, match="E198 a bulk request") as caught:
                    client.do_get(flight.Ticket(ticket)).read_all()
                assert msgspec.json.decode(caught.value.extra_info, type=Refusal).code == "E198"
            for kind, body in (("horizons", b"{}"), ("describe", b"\xff"), ("plan", b'{"topic":"trades"}')):
                with pytest.raises(flight.FlightServerError, match="E198 a bulk request"):
                    list(client.do_action((kind, body)))
            with pytest.raises(flight.FlightServerError, match="E198 there is no action 'drop'"):
                list(client.do_action(("drop", b"{}")))
            with pytest.raises(flight.FlightServerError, match="E141 no pubend of topic 'news' is here"):
                list(client.do_action(("horizons", b'{"topic":"news"}')))
            assert [each.type for each in client.list_actions()] == ["horizons", "describe", "plan"]

    async def story() -> None:
        async with running(NODE, tmp_path, "n1") as network:
            await asyncio.to_thread(speak, network.address("n1"))

    run(story())


async def filled(network: Network, client: Client, events: int) -> None:
    """Publish, let everybody have it, and trim what retention lets go of."""
    node: Node = network.nodes["n1"]
    for first in range(0, events, 100):
        await publish(client, first, 100, note="x" * 100)
        await acked_by_all(client, node)
        node.storage.tick(node._host.now().clock)
    await node.storage.idle()
    # What waits to be trimmed is trimmed now, and not in a second.
    await node.storage._trim()
    for desk in (node.storage.archivist, node.storage.reader):
        await desk.do(lambda: None)


def test_the_archive_has_what_the_log_deleted(tmp_path: Path) -> None:
    def read(address: str) -> None:
        with open_bulk(address, "trades") as bulk:
            past = only(bulk)
            assert past.log_oldest > 0, "the log has let go of something"
            assert past.oldest <= 0, "and the archive has it"
            found = prices(bulk.read("trades-1", past.oldest, past.known, where="price >= 0"))
            assert found == [float(price) for price in range(4_000)]
            # In parts that lie end to end, across the border of the two, and not too many rows of them.
            rows = len(prices(bulk.read("trades-1", past.oldest, past.known)))
            parts = bulk.plan("trades-1", past.oldest, past.known, rows=300)
            assert [part.stop for part in parts[:-1]] == [part.start for part in parts[1:]]
            assert (parts[0].start, parts[-1].stop) == (past.oldest, past.known)
            counts = [len(prices(bulk.read("trades-1", part.start, part.stop))) for part in parts]
            assert sum(counts) == rows
            assert counts == [part.rows for part in parts]
            assert all(count <= 700 for count in counts)
            some = bulk.plan("trades-1", past.oldest, past.known, rows=300, rows_max=1_234)
            assert len(prices(bulk.read("trades-1", past.oldest, some[-1].stop))) == 1_234

    async def story() -> None:
        text = f'{NODE}retention.trades = "100kB"\narchive.trades = true\n'
        async with running(text, tmp_path, "n1") as network, connect(network.address("n1")) as client:
            await filled(network, client, 4_000)
            await asyncio.to_thread(read, network.address("n1"))

    run(story())


def test_deleted_ticks_are_an_error_unless_the_reader_allows_it(tmp_path: Path) -> None:
    def read(address: str) -> None:
        with open_bulk(address, "trades") as bulk:
            past = only(bulk)
            assert past.oldest > 0
            with pytest.raises(
                StoreError, match=r"^E306 pubend 'trades-1' keeps nothing below tick"
            ) as caught:
                list(bulk.read("trades-1", 0, past.known))
            assert not caught.value.retry
            with pytest.raises(StoreError, match=r"^E306"):
                list(bulk.read("trades-1", past.oldest - 1, past.known))
            kept = prices(bulk.read("trades-1", past.oldest, past.known, where="price >= 0"))
            assert kept == [float(price) for price in range(4_000 - len(kept), 4_000)]
            assert prices(bulk.read("trades-1", 0, past.known, where="price >= 0", gone=True)) == kept

    async def story() -> None:
        async with (
            running(f'{NODE}retention.trades = "100kB"\n', tmp_path, "n1") as network,
            connect(network.address("n1")) as client,
        ):
            await filled(network, client, 4_000)
            await asyncio.to_thread(read, network.address("n1"))

    run(story())


def test_a_hole_in_the_archive_is_noticed_and_a_damaged_file_named(tmp_path: Path) -> None:
    def read(address: str, files: list[Path]) -> None:
        with open_bulk(address, "trades") as bulk:
            past = only(bulk)
            files[1].rename(files[1].with_suffix(".away"))
            assert only(bulk).oldest == pq.read_table(files[2]).column("tick")[0].as_py()
            with pytest.raises(StoreError, match=r"^E306"):
                list(bulk.read("trades-1", past.oldest, past.known))
            files[1].with_suffix(".away").rename(files[1])
            text = bytearray(files[2].read_bytes())
            text[40:400] = bytes(360)
            files[2].write_bytes(text)
            with pytest.raises(StoreError, match=rf"^E301 {files[2]} is damaged: .*: restore the file"):
                list(bulk.read("trades-1", past.oldest, past.known))

    async def story() -> None:
        text = f'{NODE}retention.trades = "100kB"\narchive.trades = true\n'
        async with running(text, tmp_path, "n1") as network, connect(network.address("n1")) as client:
            await filled(network, client, 4_000)
            files = sorted((tmp_path / "data" / "n1" / "archive" / "trades").glob("*.parquet"))
            assert len(files) > 4
            await asyncio.to_thread(read, network.address("n1"), files)

    run(story())


def test_each_repository_is_asked_for_its_own_events(tmp_path: Path) -> None:
    def read(address: str) -> None:
        with open_bulk(address, "trades") as bulk:
            assert bulk.pubends == ("trades-1", "trades-2")
            assert len(set(bulk.place.doors.values())) == 2
            horizons = bulk.horizons()
            assert prices(bulk.read("trades-1", 0, horizons["trades-1"].known)) == [1.0, 2.0]
            assert prices(bulk.read("trades-2", 0, horizons["trades-2"].known)) == [11.0, 12.0, 13.0]

    async def story() -> None:
        async with running(TWO, tmp_path, "p1", "q1", "s1") as network:
            async with connect(network.address("p1")) as one, connect(network.address("q1")) as other:
                await publish(one, 1, 2)
                await publish(other, 11, 3)
            await asyncio.to_thread(read, network.address("s1"))

    run(story())


def test_a_node_that_restarts_in_the_middle_costs_neither_a_row_nor_a_second_one(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(ONE_NODE, tmp_path) as cluster:
            address = f"gapless://{cluster.addresses[BrokerId('n1')]}"
            async with connect(address) as client:
                for first in range(0, 400_000, 10_000):
                    rows = {
                        "name": ["a text that makes the rows so long that they do not fit into buffers"]
                        * 10_000,
                        "price": [float(price) for price in range(first, first + 10_000)],
                    }
                    await client.publish_batch("trades", rows)
            bulk = await asyncio.to_thread(open_bulk, address, "trades")
            stop = (await asyncio.to_thread(bulk.horizons))["trades-1"].stop
            batches = bulk.read("trades-1", 0, stop)
            first_batch = await asyncio.to_thread(next, batches)
            await cluster.stop("n1")
            await cluster.start("n1")
            rest = await asyncio.to_thread(list, batches)
            assert prices([first_batch, *rest]) == [float(price) for price in range(400_000)]
            await asyncio.to_thread(bulk.close)

    run(story())


def test_a_node_that_does_not_come_back_is_an_error(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(NODE, tmp_path, "n1") as network:
            address = network.address("n1")
            bulk = await asyncio.to_thread(open_bulk, address, "trades", patience_s=0.2)
        with pytest.raises(LinkError, match=r"^E411 bulk reads at grpc://127.0.0.1:[0-9]+ failed: "):
            await asyncio.to_thread(bulk.horizons)
        await asyncio.to_thread(bulk.close)

    run(story())


def test_a_reader_that_takes_nothing_does_not_keep_the_node_from_stopping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "CLOSE_SECONDS_MAX", 0.2)

    async def story() -> None:
        async with running(NODE, tmp_path, "n1") as network:
            address = network.address("n1")
            async with connect(address) as client:
                for first in range(0, 400_000, 10_000):
                    await publish(client, first, 10_000, note="some text to make it longer" * 4)
            bulk = await asyncio.to_thread(open_bulk, address, "trades")
            batches = bulk.read("trades-1", 0)
            await asyncio.to_thread(next, batches)
        # Here the node has stopped, although nobody has taken the rest.
        with pytest.raises(LinkError):
            await asyncio.to_thread(open_bulk, address, "trades", patience_s=0.2)
        await asyncio.to_thread(batches.close)  # type: ignore[attr-defined]
        await asyncio.to_thread(bulk.close)

    run(story())


def test_too_many_simultaneous_reads_are_asked_to_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "READS_MAX", 1)
    monkeypatch.setattr(server, "WAIT_SECONDS_MAX", 0.01)

    def read(address: str) -> None:
        with open_bulk(address, "trades", patience_s=0.1) as one, open_bulk(address, "trades") as other:
            batches = one.read("trades-1", 0)
            next(batches)
            one_more = Bulk(other.place, patience_s=0.1)
            with pytest.raises(UsageError, match=r"^E199 too many bulk reads at this node") as caught:
                list(one_more.read("trades-1", 0))
            assert caught.value.retry
            list(batches)
            assert len(prices(one_more.read("trades-1", 0))) == 400_000
            one_more.close()

    async def story() -> None:
        async with running(NODE, tmp_path, "n1") as network:
            async with connect(network.address("n1")) as client:
                for first in range(0, 400_000, 10_000):
                    await publish(client, first, 10_000, note="some text to make it longer" * 4)
            await asyncio.to_thread(read, network.address("n1"))

    run(story())


def test_tokens_give_readers_the_rights_of_subscribers(tmp_path: Path) -> None:
    tokens = f"""
[tokens]
feed = {{ sha256 = "{token_hash("feed's secret")}", publish = ["trades"] }}
desk = {{ sha256 = "{token_hash("desk's secret")}", subscribe = ["trades"] }}
"""

    def read(address: str) -> None:
        with open_bulk(address, "trades", token="desk's secret") as bulk:
            assert prices(bulk.read("trades-1", 0)) == [0.0, 1.0]
            assert "secret" not in repr(bulk.place)
            place = bulk.place
        with open_bulk(address, "trades", token="feed's secret") as bulk:
            for call in (bulk.horizons, bulk.describe, lambda: list(bulk.read("trades-1", 0))):
                with pytest.raises(UsageError, match=r"^E184 token 'feed' may not subscribe to 'trades'"):
                    call()
        for token in (None, "guessed"):
            with pytest.raises(UsageError, match=r"^E185"):
                open_bulk(address, "trades", token=token)
            with flight.FlightClient(place.doors["trades-1"]) as client:
                headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
                with pytest.raises(flight.FlightUnauthenticatedError, match="E185"):
                    list(
                        client.do_action(
                            ("horizons", b'{"topic":"trades"}'), flight.FlightCallOptions(headers=headers)
                        )
                    )

    async def story() -> None:
        async with running(NODE + tokens, tmp_path, "n1") as network:
            async with connect(network.address("n1"), token="feed's secret") as client:
                await publish(client, 0, 2)
            await asyncio.to_thread(read, network.address("n1"))

    run(story())


@pytest.mark.parametrize("clients", ["none", "required"])
def test_over_tls_the_authority_decides_whom_to_trust(tmp_path: Path, clients: str) -> None:
    authority = Authority(tmp_path)
    authority.issue("n1")
    other = Authority(tmp_path / "other")
    text = f"""{NODE}
[tls]
certificate = "{{broker}}.pem"
key = "{{broker}}.key"
authority = "ca.pem"
clients = "{clients}"
"""

    def read(address: str) -> None:
        with open_bulk(address, "trades", tls=authority.path) as bulk:
            assert bulk.place.doors["trades-1"].startswith("grpc+tls://")
            assert prices(bulk.read("trades-1", 0)) == [0.0, 1.0]
            place = bulk.place
        stranger = Bulk(replace(place, tls=str(other.path)), patience_s=0.0)
        with pytest.raises(GaplessError, match=r"E411 bulk reads at .* failed"):
            stranger.horizons()
        stranger.close()

    async def story() -> None:
        async with (
            running(text, tmp_path, "n1") as network,
            connect(network.address("n1"), tls=authority.context(authority.issue("feed"))) as client,
        ):
            await publish(client, 0, 2)
            if clients == "required":
                with pytest.raises(UsageError, match=r"^E196"):
                    await asyncio.to_thread(read, network.address("n1"))
            else:
                await asyncio.to_thread(read, network.address("n1"))

    run(story())
