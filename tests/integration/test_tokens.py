"""Tokens: who has none stays outside, and who has one may do what it says and nothing else."""

from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path

import pytest

from gapless.client import connect
from gapless.errors import GaplessError, UsageError
from gapless.model.ids import BrokerId
from gapless.node.config import load_network
from gapless.node.node import Node
from gapless.node.secret import write_secret
from gapless.node.security import token_hash
from gapless.wire.address import Address
from tests.integration.files import LOOPS, Loop, run, running, until
from tests.integration.nodes import free_addresses

NODE = f"""
cells = {{all = ["n1"]}}
topics.trades = {{price = "float"}}
topics.news = {{text = "string"}}
pubends.trades-1 = {{topic = "trades", broker = "n1"}}
pubends.news-1 = {{topic = "news", broker = "n1"}}

[tokens]
feed = {{ sha256 = "{token_hash("feed's secret")}", publish = ["t*"] }}
desk = {{ sha256 = "{token_hash("desk's secret")}", subscribe = ["trades"] }}
boss = {{ sha256 = "{token_hash("boss's secret")}", admin = true }}
"""


async def code(request: Awaitable[object]) -> str:
    with pytest.raises(GaplessError) as caught:
        await request
    assert isinstance(caught.value, UsageError)
    return caught.value.code


def test_a_token_gives_the_rights_that_stand_beside_it_and_no_others(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(NODE, tmp_path, "n1") as network:
            address = network.address("n1")
            async with (
                connect(address, token="feed's secret") as feed,
                connect(address, token="desk's secret") as desk,
                connect(address, token="boss's secret") as boss,
                desk.subscribe("trades") as trades,
            ):
                await feed.publish("trades", {"price": 1.0})
                assert (await anext(trades))["price"] == 1.0
                assert await code(desk.publish("trades", {"price": 2.0})) == "E184"
                assert await code(feed.subscribe("trades").__aenter__()) == "E184"
                assert await code(desk.subscribe("news").__aenter__()) == "E184"
                assert await code(feed.status()) == "E184"
                # Nobody sees topics that are none of its business.
                assert list(await feed.topics()) == ["trades"]
                assert sorted(await boss.topics()) == ["news", "trades"]
                report = await boss.status()
                assert {each["token"] for each in report["clients"]["list"]} == {"feed", "desk", "boss"}

    run(story())


@pytest.mark.parametrize("token", [None, "guessed"])
def test_clients_without_a_valid_token_are_refused(token: str | None, tmp_path: Path) -> None:
    async def story() -> None:
        async with running(NODE, tmp_path, "n1") as network:
            assert await code(connect(network.address("n1"), token=token).__aenter__()) == "E185"
            assert network.nodes["n1"].counters.refusals == {"E185": 1}

    run(story())


def test_tokens_may_be_in_a_file_of_their_own(tmp_path: Path) -> None:
    before, _, entries = NODE.partition("[tokens]")
    (tmp_path / "tokens.toml").write_text(entries)

    async def story() -> None:
        async with (
            running(f'tokens = "tokens.toml"\n{before}', tmp_path, "n1") as network,
            connect(network.address("n1"), token="boss's secret") as boss,
        ):
            assert (await boss.status())["broker"] == "n1"

    run(story())


@pytest.mark.parametrize(("host", "told"), [("127.0.0.1", 0), ("0.0.0.0", 1)])
def test_an_openly_reachable_node_logs_a_warning(
    host: str, told: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = load_network(NODE.partition("[tokens]")[0], "network.toml")
    config = replace(file.node(BrokerId("n1"), tmp_path, ""), addresses={BrokerId("n1"): Address(host, 0)})

    async def story() -> None:
        async with Node(config):
            pass

    run(story())
    lines = [record for record in caplog.records if record.getMessage() == "open_door"]
    assert [getattr(line, "gapless_fields", {})["missing"] for line in lines] == ["tls and tokens"] * told


PAIR = f"""
cells = {{p = ["p1"], s = ["s1"]}}
links = ["p--s"]
edges = ["s1"]
topics.trades = {{price = "float"}}
pubends.trades-1 = {{topic = "trades", broker = "p1"}}
secret = {{file = "network.secret"}}

[tokens]
desk = {{ sha256 = "{token_hash("desk's secret")}", publish = ["trades"], subscribe = ["trades"] }}
"""


@pytest.mark.parametrize("loop", LOOPS)
def test_brokers_that_share_a_secret_serve_clients_with_tokens(loop: Loop, tmp_path: Path) -> None:
    write_secret(tmp_path / "network.secret")

    async def story() -> None:
        async with (
            running(PAIR, tmp_path, "p1", "s1") as network,
            connect(network.address("s1"), token="desk's secret") as desk,
            desk.subscribe("trades") as trades,
        ):
            await desk.publish("trades", {"price": 1.0})
            assert (await anext(trades))["price"] == 1.0
            assert [each.up for each in network.nodes["p1"].links.figures()] == [True]

    run(story(), loop)


def test_brokers_with_different_secrets_refuse_each_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_secret(tmp_path / "network.secret")
    write_secret(tmp_path / "other.secret")

    async def story() -> None:
        file = load_network(f"{ADDRESSES}{PAIR}", "network.toml", tmp_path)
        other = load_network(f"{ADDRESSES}{PAIR}".replace("network.secret", "other.secret"), "n", tmp_path)
        addresses = free_addresses([BrokerId("p1"), BrokerId("s1")])
        configs = [
            replace(each.node(BrokerId(name), None, ""), addresses=addresses)
            for each, name in ((file, "p1"), (other, "s1"))
        ]
        async with Node(configs[0]) as dialler, Node(configs[1]) as acceptor:
            await until(lambda: any(each.getMessage() == "link_failed" for each in caplog.records))
            assert dialler.links.up() == acceptor.links.up() == []
            # The same secret everywhere, and the link comes up by itself.
            acceptor.renew(None, configs[0].secret, configs[0].tokens)
            await until(lambda: bool(dialler.links.up()))

    run(story())
    told = [getattr(each, "gapless_fields", {}) for each in caplog.records]
    assert "E228 's1' does not know the network's secret" in str([each.get("reason") for each in told])
    written = (tmp_path / "network.secret").read_text().strip()
    assert written not in str([each.__dict__ for each in caplog.records])


ADDRESSES = 'addresses = {p1 = "127.0.0.1:0", s1 = "127.0.0.1:0"}\n'


@pytest.mark.parametrize("more", ["", '[tls]\ncertificate = "a"\nkey = "b"\nauthority = "c"\n'])
def test_tokens_need_brokers_that_prove_who_they_are(more: str, tmp_path: Path) -> None:
    text = f"{ADDRESSES}{PAIR}{more}".replace('secret = {file = "network.secret"}\n', "")
    if more:
        assert load_network(text, "network.toml", tmp_path).tls is not None
        return
    with pytest.raises(UsageError, match=r"E123 network.toml: tokens: .* add .tls., or a .secret. made with"):
        load_network(text, "network.toml", tmp_path)
    # Whoever makes the description in a program is told the same.
    alone = load_network(f"{ADDRESSES}{PAIR.partition('secret')[0]}", "network.toml", tmp_path)
    tokens = load_network(NODE, "network.toml").tokens
    config = replace(alone.node(BrokerId("s1"), None, ""), tokens=tokens)

    async def story() -> None:
        assert await code(Node(config).__aenter__()) == "E123"

    run(story())


@pytest.mark.parametrize(
    ("text", "mode", "reason"),
    [
        (None, 0o600, "cannot be read: No such file or directory"),
        ("short", 0o600, "holds no secret of at least 32 characters"),
        ("x" * 40, 0o604, "may be read by every user of this machine: chmod 600"),
    ],
)
def test_a_secret_that_is_none_is_refused(text: str | None, mode: int, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "network.secret"
    if text is not None:
        path.write_text(text)
        path.chmod(mode)
    with pytest.raises(UsageError, match=f"E123 network.toml: secret.file: .*{reason}"):
        load_network(f"{ADDRESSES}{PAIR}", "network.toml", tmp_path)
