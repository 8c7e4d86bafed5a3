"""Whoever says that it is a broker has to prove it: hand-made handshakes against a node with a secret."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gapless.node.security import token_hash
from tests.hostile.raw import Heard, Raw, frame, hello
from tests.hostile.victim import Victim

SECRET = "the brokers know it, and nobody else"
PAIR = f"""
cells = {{p = ["p1"], s = ["s1"]}}
links = ["p--s"]
edges = ["s1"]
topics.trades = {{price = "float"}}
pubends.trades-1 = {{topic = "trades", broker = "p1"}}
secret = {{file = "network.secret"}}
[tokens]
desk = {{ sha256 = "{token_hash("desk's token")}", subscribe = ["trades"] }}
"""
NONCE = b"n" * 32


@pytest.fixture
def edge(tmp_path: Path) -> Iterator[Victim]:
    """The node of `s1`, which `p1` dials."""
    with victim(tmp_path, "s1") as running:
        yield running


def victim(folder: Path, broker: str) -> Victim:
    file = folder / "network.secret"
    file.write_text(f"{SECRET}\n")
    file.chmod(0o600)
    return Victim(folder, PAIR, broker=broker, brokers=["p1", "s1"])


def fingerprint() -> str:
    """What an attacker knows who has ever seen the HELLO of a broker."""
    said = [
        [["p", ["p1"]], ["s", ["s1"]]],
        [["p", "s"]],
        [["trades", [["price", "float"]]]],
        [["trades-1", "trades", "p1"]],
        ["s1"],
    ]
    return hashlib.sha256(msgspec.msgpack.encode(said)).hexdigest()[:32]


def proof(side: str, nonce: bytes, *, dialler: str = "p1", secret: str = SECRET, own: bytes = NONCE) -> bytes:
    """As docs/wire.md says, for whoever dials `s1`."""
    said = ["gapless link 1", side, fingerprint(), "broker", dialler, "s1", 1, 1, own, nonce]
    return hmac.new(secret.encode(), msgspec.msgpack.encode(said), hashlib.sha256).digest()


def broker_hello(nonce: bytes | None = NONCE, name: str = "p1", *, network: str | None = None) -> bytes:
    more = {} if nonce is None else {"nonce": nonce}
    return hello(name, role="broker", network=network or fingerprint(), **more)


def challenged(victim: Victim) -> tuple[Raw, Heard]:
    """A connection that says it is `p1`, and the challenge that it gets."""
    raw = Raw(victim.port)
    heard = raw.ask(broker_hello())
    assert heard is not None
    assert heard.kind == "CHALLENGE", heard
    return raw, heard


def linked(victim: Victim) -> tuple[Raw, bytes]:
    """The link of the real `p1`, and the proof that it gave."""
    raw, heard = challenged(victim)
    assert heard.head["name"] == "s1"
    assert heard.head["proof"] == proof("acceptor", heard.head["nonce"])
    shown = proof("dialler", heard.head["nonce"])
    welcome = raw.ask(frame("PROOF", {"proof": shown}))
    assert welcome is not None
    assert (welcome.kind, welcome.head["network"]) == ("WELCOME", fingerprint())
    return raw, shown


def is_alive(link: Raw) -> bool:
    link.send(frame("PING", 4711))
    return bool(link.hear_kind("PONG").head == 4711)


def refusal(raw: Raw, *frames: bytes) -> str:
    with raw:
        heard = raw.ask(*frames)
        assert heard is not None
        assert heard.kind == "REFUSE", heard
        assert raw.hear() is None
    return str(heard.head["code"])


def link_ups(victim: Victim) -> int:
    status, page = victim.page("/status")
    assert status == 200
    [link] = json.loads(page)["links"]
    return int(link["ups"])


def test_a_link_cannot_be_displaced_without_the_proof(edge: Victim) -> None:
    link, overheard = linked(edge)
    with link:
        # No part in the challenge; a guess; what the real one showed; what the node itself showed.
        assert refusal(Raw(edge.port), broker_hello(nonce=None)) == "E227"
        raw, heard = challenged(edge)
        guess = proof("dialler", heard.head["nonce"], secret="x" * 40)
        assert refusal(raw, frame("PROOF", {"proof": guess})) == "E228"
        raw, _ = challenged(edge)
        assert refusal(raw, frame("PROOF", {"proof": overheard})) == "E228"
        raw, heard = challenged(edge)
        assert refusal(raw, frame("PROOF", {"proof": heard.head["proof"]})) == "E228"
        # Only the handshake may come before the proof, and only once.
        raw, _ = challenged(edge)
        assert refusal(raw, frame("NACK", ["trades-1", 1, 2])) == "E213"
        raw, _ = challenged(edge)
        assert refusal(raw, broker_hello()) == "E213"
        assert is_alive(link)
        assert link_ups(edge) == 1


def test_a_peer_that_is_not_a_neighbour_gets_no_challenge(edge: Victim) -> None:
    """So nobody learns what the node proves to a broker of another name."""
    assert refusal(Raw(edge.port), broker_hello(name="p2")) == "E221"
    assert refusal(Raw(edge.port), broker_hello(name="s1")) == "E221"


def test_a_broker_that_proves_itself_replaces_its_own_dead_link(edge: Victim) -> None:
    first, _ = linked(edge)
    second, _ = linked(edge)
    with first, second:
        while first.hear() is not None:
            pass
        assert is_alive(second)
        assert link_ups(edge) == 2


def test_a_client_does_not_get_the_network_fingerprint(edge: Victim) -> None:
    with Raw(edge.port) as raw:
        welcome = raw.ask(hello(token="desk's token"))
        assert welcome is not None
        assert (welcome.kind, welcome.head["network"]) == ("WELCOME", "")


@pytest.mark.parametrize("answer", ["welcome", "wrong proof", "reflected", "knowledge"])
def test_a_dialled_broker_must_prove_itself(answer: str, tmp_path: Path) -> None:
    dialler = victim(tmp_path, "p1")
    with socket.create_server(("127.0.0.1", dialler.ports["s1"])) as listening, dialler:
        with Raw.accepted(listening) as raw:
            heard = raw.hear()
            assert heard is not None
            assert (heard.kind, heard.head["network"]) == ("HELLO", fingerprint())
            own = heard.head["nonce"]
            answers = {
                "welcome": frame(
                    "WELCOME", {"version": 1, "name": "s1", "network": fingerprint(), "software": ""}
                ),
                "wrong proof": frame("CHALLENGE", {"name": "s1", "nonce": NONCE, "proof": bytes(32)}),
                "reflected": frame(
                    "CHALLENGE",
                    {"name": "s1", "nonce": own, "proof": proof("dialler", own, own=own, secret="y" * 32)},
                ),
                "knowledge": frame("NACK", ["trades-1", 1, 2]),
            }
            codes = {"welcome": "E227", "knowledge": "E213"}
            assert refusal(raw, answers[answer]) == codes.get(answer, "E228")
        assert link_ups(dialler) == 0


def test_tokens_with_unauthenticated_links_are_refused_at_start(tmp_path: Path) -> None:
    open_links = Victim(
        tmp_path,
        PAIR.replace('secret = {file = "network.secret"}\n', ""),
        broker="s1",
        brokers=["p1", "s1"],
    )
    with pytest.raises(AssertionError, match=r"E123 network.toml: tokens: .* add .tls., or a .secret."):
        open_links.start()
    assert open_links.stop() == 2


def test_the_challenger_logs_why_the_other_broker_hung_up(edge: Victim) -> None:
    raw, _ = challenged(edge)
    reason = {"code": "E228", "message": "'s1' does not know the network's secret", "retry": False}
    with raw:
        heard = raw.ask(frame("REFUSE", reason))
        assert heard is not None
        assert heard.head["code"] == "E222"
    told = [json.loads(line) for line in edge.log.read_text().splitlines()]
    [refused] = [each for each in told if each["event"] == "peer_refused"]
    assert "hung up: E228 's1' does not know the network's secret" in refused["reason"]
