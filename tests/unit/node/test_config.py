"""The network file is checked as a whole, and every key of it is documented."""

import re
import tomllib
from pathlib import Path

import pytest

from gapless.errors import GaplessError
from gapless.model.ids import BrokerId, TopicId
from gapless.node.config import NETWORK_SECTIONS, NODE_SECTIONS, Limits, load_network, parse_retention
from gapless.store.retention import Keep, Retention

DOCUMENT = (Path(__file__).parents[3] / "docs" / "network.md").read_text(encoding="utf-8")
EXAMPLE = re.findall(r"^```toml\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)[0]
HASH = "ab" * 32

NODE = """
cells = {all = ["n1"]}
topics.trades = {price = "float"}
pubends.trades-1 = {topic = "trades", broker = "n1"}
"""


def table(title: str) -> list[str]:
    """The first column of the table of the document whose first header is this."""
    lines = DOCUMENT.splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith(f"| {title} |"))
    rows = []
    for line in lines[at + 2 :]:
        if not line.startswith("|"):
            break
        rows.append(line.split("|")[1].strip().strip("`"))
    return rows


def test_the_documented_example_has_every_section_of_a_real_network(tmp_path: Path) -> None:
    file = load_network(EXAMPLE, "network.toml", tmp_path)
    assert set(tomllib.loads(EXAMPLE)) == {*NETWORK_SECTIONS, *NODE_SECTIONS} - {
        "repositories",
        "client_addresses",
        # It has TLS.
        "secret",
    }
    node = file.node(BrokerId("s1"), None, "")
    assert str(node.listen) == "10.0.0.8:7400"
    assert str(node.http) == "127.0.0.1:7480"
    assert file.node(BrokerId("b1"), None, "").http is None
    assert node.tls is not None
    assert node.tls.certificate == tmp_path / "certificates" / "s1.pem"
    assert node.tls.authority == tmp_path / "certificates" / "authority.pem"
    assert node.retention[TopicId("trades")] == Retention(keep=Keep.TIME, keep_ms=7 * 86_400_000)
    assert node.retention[TopicId("news")] == Retention(keep=Keep.SIZE, keep_bytes=10**10)
    assert node.archive == {"trades"}
    assert node.limits == Limits(clients_max=20_000, free_bytes_min=10**9)


def test_every_section_is_documented() -> None:
    assert table("section") == [*NETWORK_SECTIONS, *NODE_SECTIONS]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("adresses = {}", "E131 network.toml: adresses: unknown section: did you mean 'addresses'?"),
        ("zzz = 1", "E131 network.toml: zzz: unknown section: there are cells, links"),
        (
            "addresses.n2 = 'x:1'",
            "E131 network.toml: addresses.n2: there is no such broker in the cells",
        ),
        (
            "http.n1 = 'localhost'",
            "E131 network.toml: http.n1: 'localhost' is not an address: write host:port",
        ),
        ("tls.certificate = 'a.pem'", "E131 network.toml: tls.key: is missing: TLS needs"),
        (
            "tls.certifcate = 'a.pem'",
            "E131 network.toml: tls.certifcate: unknown key: did you mean 'certificate'?",
        ),
        (
            "tls = {certificate = 'a', key = 'b', authority = 'c', clients = 'all'}",
            "E131 network.toml: tls.clients: must be 'none' or 'optional' or 'required', got 'all'",
        ),
        ("tls = 3", "E131 network.toml: tls: must be a table, got 3"),
        ("tokens.a = {}", "E133 network.toml: tokens.a: sha256 must be 64 hexadecimal digits"),
        ("tokens.a = 'secret'", "E133 network.toml: tokens.a: must be a table: make it with `gapless token`"),
        (
            f"tokens.a = {{sha256 = '{HASH}', publish = 'x'}}",
            "E133 network.toml: tokens.a: publish must be a list",
        ),
        (
            f"tokens.a = {{sha256 = '{HASH}', admin = 1}}",
            "E133 network.toml: tokens.a: admin must be true or false",
        ),
        (
            f"tokens.a = {{sha256 = '{HASH}', admim = true}}",
            "E131 network.toml: tokens.a.admim: unknown key: did you",
        ),
        (
            f"tokens.a = {{sha256 = '{HASH}'}}\ntokens.b = {{sha256 = '{HASH}'}}",
            "E133 network.toml: tokens.b: has the same token as 'a': make one for each",
        ),
        ("tokens = 'nowhere.toml'", "E133 network.toml: tokens: nowhere.toml cannot be read: No such file"),
        (
            "retention.trade = '7d'",
            "E131 network.toml: retention.trade: there is no such topic: did you mean 'trades'?",
        ),
        (
            "retention.trades = '7 weeks'",
            "E131 network.toml: retention.trades: must be 'acknowledged', 'forever'",
        ),
        ("retention.trades = 7", "E131 network.toml: retention.trades: must be 'acknowledged', 'forever'"),
        (
            "retention.trades = 'newest(pric)'",
            "E131 network.toml: retention.trades: topic 'trades' has no column 'pric': did you mean 'price'?",
        ),
        (
            "retention.trades = 'newest(price, price)'",
            "E131 network.toml: retention.trades: newest(...) names different columns, got 'price, price'",
        ),
        (
            "retention.trades = 'relation(price)'",
            "E131 network.toml: retention.trades: a relation has a column 'gapless_kind' of type int",
        ),
        ("archive.trades = 'yes'", "E131 network.toml: archive.trades: must be true or false"),
        ("limits.clients_max = 0", "E131 network.toml: limits.clients_max: must be a whole number from 1"),
        ("limits.free_bytes_min = '1 parsec'", "E131 network.toml: limits.free_bytes_min: must be a size"),
        (
            "limits.document_bytes_max = '5MB'",
            "E131 network.toml: limits.document_bytes_max: must be a size from 1 to 4194304 bytes, got '5MB'",
        ),
        (
            "limits.document_parts_max = 100001",
            "E131 network.toml: limits.document_parts_max: must be a whole number from 1 to 100000",
        ),
        (
            "limits.client_max = 3",
            "E131 network.toml: limits.client_max: unknown key: did you mean 'clients_max'?",
        ),
    ],
)
def test_a_mistake_is_named_with_its_place_and_the_way_out(line: str, reason: str) -> None:
    with pytest.raises(GaplessError) as caught:
        load_network(f"{line}\n{NODE}", "network.toml")
    assert str(caught.value).startswith(reason)


@pytest.mark.parametrize(
    ("text", "retention"),
    [
        ("acknowledged", Retention()),
        ("forever", Retention(keep=Keep.FOREVER)),
        ("36h", Retention(keep=Keep.TIME, keep_ms=36 * 3_600_000)),
        ("1.5d", Retention(keep=Keep.TIME, keep_ms=129_600_000)),
        ("90min", Retention(keep=Keep.TIME, keep_ms=5_400_000)),
        ("64 MiB", Retention(keep=Keep.SIZE, keep_bytes=64 * 2**20)),
        ("newest(user)", Retention(keep=Keep.NEWEST, columns=("user",))),
        ("newest( user,item )", Retention(keep=Keep.NEWEST, columns=("user", "item"))),
        ("relation(gapless_key)", Retention(keep=Keep.RELATION, columns=("gapless_key",))),
    ],
)
def test_retention_is_written_as_people_write_it(text: str, retention: Retention) -> None:
    assert parse_retention(text) == retention
    assert parse_retention(str(retention)) == retention


@pytest.mark.parametrize(
    "text", ["", "0d", "-1d", "7", "d", "7D", "1e9GB", "nan d", "7d ", "newest()", "newest"]
)
def test_what_is_no_retention_is_refused(text: str) -> None:
    with pytest.raises(GaplessError, match="E131 retention: must be"):
        parse_retention(text)
