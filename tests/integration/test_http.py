"""Metrics, status, health and readiness over HTTP: for GET, and within bounds."""

import asyncio
import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gapless.client import connect
from gapless.node import http as http_module
from gapless.node.config import load_network
from gapless.node.node import Node
from gapless.wire.address import Address
from tests.integration.files import run
from tests.integration.nodes import PATIENCE_SECONDS, BrokerId, free_addresses

PAIR = """
cells = {p = ["p1"], s = ["s1"]}
links = ["p--s"]
edges = ["p1", "s1"]
topics.trades = {price = "float"}
pubends.trades-1 = {topic = "trades", broker = "p1"}
http = {p1 = "127.0.0.1:0", s1 = "127.0.0.1:0"}
"""


def nodes(folder: Path) -> dict[str, Node]:
    addresses = free_addresses([BrokerId("p1"), BrokerId("s1")])
    listed = ", ".join(f'{name} = "{address}"' for name, address in addresses.items())
    file = load_network(f"addresses = {{{listed}}}\n{PAIR}", "network.toml")
    return {name: Node(file.node(BrokerId(name), folder / name, "gapless test")) for name in ("p1", "s1")}


async def ask(address: Address | None, request: bytes) -> tuple[int, dict[str, str], str]:
    """The status, headers and body that a request is answered with."""
    assert address is not None
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
    writer.close()
    head, _, body = answer.decode().partition("\r\n\r\n")
    first, *lines = head.split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert int(headers["Content-Length"]) == len(body.encode())
    return int(first.split()[1]), headers, body


async def get(node: Node, path: str) -> tuple[int, str]:
    status, _, body = await ask(node.http_address, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return status, body


async def samples(node: Node) -> dict[tuple[str, str], float]:
    """Every sample of the metrics, by name and first label."""
    status, text = await get(node, "/metrics")
    assert status == 200
    return {
        (sample.name, next(iter(sample.labels.values()), "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_count_what_happened(tmp_path: Path) -> None:
    async def story() -> None:
        both = nodes(tmp_path)
        async with (
            both["p1"] as p1,
            both["s1"] as s1,
            connect(f"gapless://{p1.address}") as publisher,
            connect(f"gapless://{s1.address}") as subscriber,
            subscriber.subscribe("trades", "price >= 10", name=None) as trades,
            subscriber.subscribe("trades", mode="best-effort"),
        ):
            for price in range(30):
                await publisher.publish("trades", {"price": float(price)})
            for _ in range(20):
                await anext(trades)
            at_p1, at_s1 = await samples(p1), await samples(s1)
            assert at_p1["gapless_events_published_total", ""] == 30
            assert at_p1["gapless_events_accepted_total", ""] == 30
            assert at_p1["gapless_knowledge_sent_total", ""] >= 20
            assert at_p1["gapless_flush_seconds_count", ""] >= 30
            assert at_p1["gapless_flush_seconds_bucket", "+Inf"] == at_p1["gapless_flush_seconds_count", ""]
            assert at_p1["gapless_link_up", "s1"] == at_s1["gapless_link_up", "p1"] == 1
            assert at_p1["gapless_pubend_last_tick", "trades-1"] > 0
            assert at_p1["gapless_pubend_log_bytes", "trades-1"] > 0
            assert at_s1["gapless_rows_delivered_total", ""] >= 20
            assert at_s1["gapless_clients", ""] == 1
            assert at_s1["gapless_subscriptions", "guaranteed"] == 1
            assert at_s1["gapless_subscriptions", "best_effort"] == 1
            assert at_s1["gapless_ready", ""] == 1

    run(story())


def test_status_is_the_same_over_http_and_from_a_client(tmp_path: Path) -> None:
    async def story() -> None:
        async with nodes(tmp_path)["p1"] as p1, connect(f"gapless://{p1.address}") as client:
            status, body = await get(p1, "/status")
            over_http, told = json.loads(body), await client.status()
            assert status == 200
            assert over_http.keys() == told.keys()
            assert over_http["roles"] == ["repository", "edge"]
            assert over_http["clients"]["count"] == 1
            [pubend] = over_http["pubends"]
            assert (pubend["pubend"], pubend["here"], pubend["retention"]) == (
                "trades-1",
                True,
                "acknowledged",
            )
            [link] = over_http["links"]
            assert (link["broker"], link["up"]) == ("s1", False)

    run(story())


def test_a_node_is_ready_once_its_way_to_the_pubends_is_there(tmp_path: Path) -> None:
    async def story() -> None:
        both = nodes(tmp_path)
        async with both["s1"] as s1:
            assert await get(s1, "/healthz") == (200, "alive\n")
            assert await get(s1, "/readyz") == (503, "waiting for a link to cell p\n")
            async with both["p1"] as p1, connect(f"gapless://{s1.address}") as client:
                assert await get(p1, "/readyz") == (200, "ready\n")
                # A subscription is confirmed by the pubend, so the way to it is there.
                async with client.subscribe("trades"):
                    assert await get(s1, "/readyz") == (200, "ready\n")

    run(story())


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        ("POST /metrics HTTP/1.1\r\n\r\n", 405),
        ("GET /secrets HTTP/1.1\r\n\r\n", 404),
        ("GET /healthz?x=1 HTTP/1.0\r\n\r\n", 200),
        ("nonsense\r\n\r\n", 400),
        ("GET / HTTP/2.0\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nX: " + "x" * 20_000 + "\r\n\r\n", 431),
    ],
)
def test_anything_but_a_short_get_is_refused(request_text: str, status: int, tmp_path: Path) -> None:
    async def story() -> None:
        async with nodes(tmp_path)["p1"] as p1:
            answered, headers, _ = await ask(p1.http_address, request_text.encode())
            assert answered == status
            assert headers["Connection"] == "close"
            assert ("Allow" in headers) == (status == 405)

    run(story())


def test_a_client_that_sends_its_request_too_slowly_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_module, "REQUEST_SECONDS_MAX", 0.2)

    async def story() -> None:
        async with nodes(tmp_path)["p1"] as p1:
            assert p1.http_address is not None
            reader, writer = await asyncio.open_connection("127.0.0.1", p1.http_address.port)
            writer.write(b"GET /metrics")
            assert await asyncio.wait_for(reader.read(), PATIENCE_SECONDS) == b""
            writer.close()
            assert (await get(p1, "/healthz"))[0] == 200

    run(story())


def fields_of(title: str) -> set[str]:
    """The names in the first column of a table of docs/operating.md."""
    lines = (Path(__file__).parents[2] / "docs" / "operating.md").read_text(encoding="utf-8").splitlines()
    at = lines.index(f"| {title} | meaning |")
    found: set[str] = set()
    for line in lines[at + 2 :]:
        if not line.startswith("|"):
            break
        found.update(re.findall(r"`(\w+)`", line.split("|")[1]))
    return found


def test_every_field_of_the_status_is_documented(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            nodes(tmp_path)["p1"] as p1,
            connect(f"gapless://{p1.address}") as client,
            client.subscribe("trades"),
        ):
            report = p1.report()
            assert set(report) == fields_of("field of the status")
            [pubend] = report["pubends"]  # type: ignore[misc]
            assert set(pubend) == fields_of("field of a pubend")
            [subscription] = report["subscriptions"]["list"]  # type: ignore[index]
            assert set(subscription) == fields_of("field of a subscription")

    run(story())


def test_every_metric_is_documented(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "operating.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"`(gapless_[a-z_]+)[`{]", text))

    async def story() -> None:
        async with nodes(tmp_path)["p1"] as p1:
            _, body = await get(p1, "/metrics")
            named = set(re.findall(r"^# TYPE (gapless_\w+)", body, re.MULTILINE))
            assert named - documented == set()

    run(story())
