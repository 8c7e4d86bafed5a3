"""Connecting: addresses, refusals, silence, garbage, and coming back."""

import asyncio
import socket
from datetime import datetime

import pytest

import gapless
from gapless.client import Options, connect
from gapless.errors import GaplessError, LinkError, PeerError, UsageError
from gapless.protocol.sessions.messages import ListTopics, Publish, RequestRefused, Subscribe
from gapless.wire.address import parse_addresses
from gapless.wire.handshake import Hello, Ping, Pong, Refuse
from tests.unit.client.fake_node import PUBEND, QUICK, TRADES, FakeNode, Peer, connected, event, run

BRIEF = Options(connect_timeout_s=0.05, backoff_min_s=0.001, backoff_max_s=0.01)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tcp://localhost:7400",
        "gapless://",
        "gapless://host:0",
        "gapless://host:70000",
        "gapless://host:port",
        "gapless://a,,b",
        "gapless://user@host",
        "gapless://::1:7400",
    ],
)
def test_a_bad_address_is_refused_before_anything_happens(text: str) -> None:
    with pytest.raises(UsageError, match=r"^E190 "):
        connect(text)


def test_an_address_named_twice_is_one() -> None:
    assert len(parse_addresses("gapless://a,a:7400,b")) == 2


def test_connect_is_offered_at_the_root() -> None:
    assert gapless.connect is connect


def test_when_no_node_answers_the_error_names_every_address() -> None:
    async def story() -> None:
        ports = free_port(), free_port()
        address = f"gapless://127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}"
        with pytest.raises(LinkError, match="E401 no node answers") as raised:
            async with connect(address, options=BRIEF):
                pass
        assert raised.value.retry
        assert all(str(port) in str(raised.value) for port in ports)
        assert str(raised.value).count("E401") == 1

    run(story())


def test_the_client_says_who_it_is() -> None:
    async def story() -> None:
        async with FakeNode() as node, connect(node.address, token="secret", name="desk-3", options=QUICK):
            hello = await node.hear(Hello)
            assert (hello.name, hello.token, hello.network) == ("desk-3", "secret", "")

    run(story())


def test_a_refusal_of_our_version_is_told_at_once() -> None:
    async def story() -> None:
        async with FakeNode() as node:
            node.on_hello = lambda peer, _hello: peer.link(Refuse(code="E211", message="speaks 7 to 9"))
            with pytest.raises(PeerError, match=r"^E211 speaks 7 to 9 \(at 127.0.0.1:"):
                async with connect(node.address, options=QUICK):
                    pass

    run(story())


def test_a_refusal_for_now_is_dialled_again() -> None:
    async def story() -> None:
        async with FakeNode() as node:

            def not_yet(peer: Peer, _hello: Hello) -> None:
                node.on_hello = None
                peer.link(Refuse(code="E222", message="starting", retry=True))

            node.on_hello = not_yet
            async with connect(node.address, options=QUICK) as client:
                await client.publish("trades", event(1))
            assert len(node.peers) == 2

    run(story())


def test_a_refusal_for_now_that_lasts_is_told_with_its_own_code() -> None:
    async def story() -> None:
        async with FakeNode() as node:
            full = Refuse(code="E106", message="anonymous has 5 connections: end some", retry=True)
            node.on_hello = lambda peer, _hello: peer.link(full)
            dead = f"127.0.0.1:{free_port()}"
            told = rf"^E106 anonymous has 5 connections: end some \(at 127.0.0.1:\d+; {dead}: E401 "
            address = node.address.replace("gapless://", f"gapless://{dead},")
            with pytest.raises(UsageError, match=told) as raised:
                async with connect(address, options=BRIEF):
                    pass
            assert raised.value.retry
            assert len(node.peers) > 1, "it was dialled again"

    run(story())


@pytest.mark.parametrize(
    ("nonsense", "code"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "E210"),
        (b"G\xa7\x01\x40\xff\xff\xff\xff" + bytes(8), "E212"),
        (b"G\xa7\x09\x40" + bytes(12), "E211"),
    ],
)
def test_what_is_no_node_is_told_at_once(nonsense: bytes, code: str) -> None:
    async def story() -> None:
        async with FakeNode() as node:
            node.on_hello = lambda peer, _hello: peer.write([nonsense])
            with pytest.raises(PeerError, match=f"^{code} "):
                async with connect(node.address, options=QUICK):
                    pass

    run(story())


def test_garbage_ends_the_connection_and_not_the_client() -> None:
    async def story() -> None:
        async with connected() as (node, client):
            node.on_publish = lambda peer, _message: peer.write([b"\x00" * 64])
            publication = client.publish("trades", event(1))
            assert (await node.hear(Refuse)).code == "E210"
            node.on_publish = None
            assert (await publication).pubend == PUBEND
            assert node.prices == [1.0]
            assert len(node.peers) >= 2

    run(story())


def test_half_a_frame_and_the_end_is_a_lost_connection() -> None:
    async def story() -> None:
        async with connected() as (node, client):

            def half(peer: Peer, message: Publish) -> None:
                node.on_publish = None
                peer.write([b"G\xa7\x01\x40\x10\x00"])
                peer.drop()

            node.on_publish = half
            await client.publish("trades", event(1))
            assert node.prices == [1.0]

    run(story())


def test_another_address_is_dialled_when_one_is_lost() -> None:
    async def story() -> None:
        async with FakeNode() as first, FakeNode() as second:
            address = f"{first.address},{second.address.removeprefix('gapless://')}"
            async with connect(address, options=QUICK) as client:
                await client.publish("trades", event(1))
                await first.__aexit__()
                await client.publish("trades", event(2))
                assert (first.prices, second.prices) == ([1.0], [2.0])
            # Only stopped once more.
            await first.__aenter__()

    run(story())


def test_requests_outlive_their_connection() -> None:
    async def story() -> None:
        async with connected() as (node, client):
            await node.hear(ListTopics)
            asked = asyncio.create_task(client.topics())
            node.take = _drop_topics_once(node)  # type: ignore[method-assign]
            topics = await asked
            assert topics["trades"].columns == {"sym": "string", "price": "float", "note": "string?"}
            assert topics["trades"].pubends == (PUBEND,)
            assert len(node.peers) == 2

    run(story())


def _drop_topics_once(node: FakeNode):  # type: ignore[no-untyped-def]
    take = FakeNode.take
    is_done = False

    def taking(peer: Peer, message: object) -> None:
        nonlocal is_done
        if isinstance(message, ListTopics) and not is_done:
            is_done = True
            peer.drop()
        else:
            take(node, peer, message)  # type: ignore[arg-type]

    return taking


def test_a_refused_request_raises_and_one_refused_for_now_is_repeated() -> None:
    async def story() -> None:
        async with connected(Options(backoff_min_s=0.001, backoff_max_s=0.002, retries_max=2)) as (
            node,
            client,
        ):
            requests: list[int] = []

            def refuse(peer: Peer, message: object) -> None:
                if isinstance(message, ListTopics):
                    requests.append(message.request)
                    peer.send(
                        RequestRefused(request=message.request, code="E181", message="busy", retry=True)
                    )

            node.take = refuse  # type: ignore[method-assign]
            with pytest.raises(UsageError, match=r"^E181 busy$"):
                await client.topics()
            assert len(requests) == 3

    run(story())


def test_the_status_is_what_the_node_says() -> None:
    async def story() -> None:
        async with connected() as (_, client):
            assert await client.status() == {"name": "fake"}

    run(story())


def test_a_silent_node_is_asked_and_then_left() -> None:
    async def story() -> None:
        options = Options(ping_s=0.02, backoff_min_s=0.001, backoff_max_s=0.01)
        async with connected(options) as (node, client):
            await node.hear(Ping)
            node.take = lambda peer, message: node.heard.put_nowait((peer, message))  # type: ignore[method-assign]
            await node.hear(Ping)
            assert await node.hear(str) == "lost"
            node.take = FakeNode.take.__get__(node)  # type: ignore[method-assign]
            await client.publish("trades", event(1))

    run(story())


def test_a_ping_is_answered() -> None:
    async def story() -> None:
        async with connected() as (node, _):
            node.peer.link(Ping(number=12))
            assert (await node.hear(Pong)).number == 12

    run(story())


def test_a_node_that_refuses_us_later_for_good_ends_everything_outstanding() -> None:
    async def story() -> None:
        async with FakeNode() as node:
            client = connect(node.address, options=QUICK)
            await client.__aenter__()
            node.on_publish = lambda peer, _: peer.link(
                Refuse(code="E217", message="your token was withdrawn")
            )
            publication = client.publish("trades", event(1))
            with pytest.raises(GaplessError, match=r"^E217 your token was withdrawn$"):
                await publication
            with pytest.raises(GaplessError, match=r"^E217 "):
                client.publish("trades", event(2))
            with pytest.raises(GaplessError, match=r"^E217 "):
                await client.topics()
            with pytest.raises(GaplessError, match=r"^E217 "):
                await client.ready("trades")
            await client.__aexit__(None, None, None)

    run(story())


def test_patience_with_a_lost_connection_can_be_bounded() -> None:
    async def story() -> None:
        node = FakeNode()
        await node.__aenter__()
        client = connect(
            node.address, options=Options(give_up_s=0.05, backoff_min_s=0.001, backoff_max_s=0.01)
        )
        await client.__aenter__()
        node.on_publish = lambda _peer, _message: None
        publication = client.publish("trades", event(1))
        await node.hear(Publish)
        await node.__aexit__()
        with pytest.raises(LinkError, match="E401 no node answers"):
            await publication
        await client.__aexit__(None, None, None)

    run(story())


def test_a_client_is_used_inside_its_context_only() -> None:
    async def story() -> None:
        client = connect("gapless://127.0.0.1:1")
        with pytest.raises(UsageError, match=r"E193 .*async with"):
            client.publish("trades", event(1))
        async with connected() as (_, entered):
            with pytest.raises(UsageError, match="E193"):
                await entered.__aenter__()
        with pytest.raises(UsageError, match=r"E193 .*has been left"):
            entered.publish("trades", event(1))

    run(story())


def test_names_and_choices_are_checked() -> None:
    async def story() -> None:
        async with connected() as (_, client):
            for call in (
                lambda: client.subscribe(""),
                lambda: client.subscribe("trades", order="random"),  # type: ignore[arg-type]
                lambda: client.subscribe("trades", start="later"),  # type: ignore[arg-type]
                lambda: client.subscribe("trades", start={"p": "x"}),  # type: ignore[dict-item]
                lambda: client.subscribe("trades", order=["total"]),  # type: ignore[arg-type]
                lambda: client.subscribe("trades", ack="never"),  # type: ignore[arg-type]
                lambda: client.subscribe("trades", mode="holding"),  # type: ignore[arg-type]
                lambda: client.subscribe("trades", gaps="rise"),  # type: ignore[arg-type]
                lambda: client.subscribe(7),  # type: ignore[arg-type]
                lambda: client.subscribe("trades", name=7),  # type: ignore[arg-type]
                lambda: client.subscribe("trades", credit_rows="9"),  # type: ignore[arg-type]
                lambda: client.subscribe("trades", credit_rows=0),
                lambda: client.subscribe("trades", credit_rows=2**70),
                lambda: client.subscribe("trades", name="x" * 300),
                # What cannot be sent is refused here: nobody would wait for its failure later.
                lambda: client.subscribe("trades", name="\udcff"),
                lambda: client.subscribe("trades", "sym = '\udcff'"),
                lambda: client.subscribe("trades", "price > 1 OR " * 10**5),
                lambda: client.subscribe("trades", None),  # type: ignore[arg-type]
                lambda: client.subscribe("trades", start=2**70),
                lambda: client.subscribe("trades", start={"p": -(2**70)}),
                lambda: client.publisher("trades", first_catenation=-1),
            ):
                with pytest.raises(UsageError, match=r"^E191 "):
                    call()
            with pytest.raises(UsageError, match=r"^E110 "):
                await client.create_topic("quotes", {"bid": "integer"})
            for question in (
                client.create_topic("quotes", {"bid": "int"}, retention="\udcff"),
                client.inquire(("p", 2**70)),
                client.inquire(("p", 5), "\udcff"),
            ):
                with pytest.raises(UsageError, match=r"^E191 "):
                    await question

    run(story())


def test_a_subscription_begins_at_a_time() -> None:
    async def story() -> None:
        async with connected() as (node, client):
            for text in ("1970-01-01T00:00:00.000005", "1970-01-01T01:00:00.000005+01:00"):
                async with client.subscribe("trades", start=datetime.fromisoformat(text)):
                    assert (await node.hear(Subscribe)).start == 5

    run(story())


def test_the_fake_node_and_the_tests_agree_on_the_topic() -> None:
    assert [column.name for column in TRADES.columns] == list(event(1))
