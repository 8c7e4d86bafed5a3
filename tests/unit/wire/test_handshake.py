"""The first messages of a link: who is there, which versions it speaks, and what is refused of that."""

import msgspec
import pytest

from gapless.errors import PeerError
from gapless.protocol.network import Network
from gapless.wire.frames import FROM_STRANGER, Frame, FrameReader, Kind
from gapless.wire.handshake import (
    Hello,
    Ping,
    Refuse,
    Role,
    Welcome,
    check_hello,
    check_welcome,
    decode_link,
    encode_link,
    network_fingerprint,
)
from tests.unit.wire.test_codecs import NETWORK


def test_a_hello_without_optional_fields_proves_nothing() -> None:
    """What is missing counts as not given: no token, no network, no proof."""
    frame = Frame(Kind.HELLO, memoryview(msgspec.msgpack.encode({"role": "broker", "name": "s1"})))
    hello = decode_link(frame)
    assert isinstance(hello, Hello)
    assert (hello.token, hello.network, hello.nonce) == (None, "", b"")
    with pytest.raises(PeerError):
        check_hello(hello, "n")


def test_another_version_is_refused_with_both_ranges() -> None:
    hello = Hello(role=Role.BROKER, name="s1", network="n", version_min=3, version_max=4)
    [data] = encode_link(hello)
    [frame] = FrameReader(FROM_STRANGER).feed(data)
    assert decode_link(frame) == hello
    with pytest.raises(PeerError, match="E211 's1' speaks protocol version 3 to 4, this broker 1"):
        check_hello(hello, "n")
    assert check_hello(Hello(role=Role.BROKER, name="s1", network="n", version_max=9), "n") == 1
    with pytest.raises(PeerError, match="E211"):
        check_welcome(Welcome(version=2, name="p1", network="n"))


def test_brokers_of_another_network_are_refused_and_clients_are_not() -> None:
    with pytest.raises(PeerError, match="E217"):
        check_hello(Hello(role=Role.BROKER, name="s1", network="m"), "n")
    assert check_hello(Hello(role=Role.CLIENT, name="me"), "n") == 1
    check_welcome(Welcome(version=1, name="p1", network="n"))
    with pytest.raises(PeerError, match="E217"):
        check_welcome(Welcome(version=1, name="p1", network="m"), "n")


def test_a_fingerprint_tells_networks_apart_and_not_their_parameters() -> None:
    one = network_fingerprint(Network.load(NETWORK))
    assert one == network_fingerprint(Network.load(NETWORK + "parameters.ack_delay_ms = 7\n"))
    assert one != network_fingerprint(Network.load(NETWORK.replace("int?", "int")))


def test_a_hello_of_a_later_program_may_have_more_fields() -> None:
    more = b"\x88" + bytes(encode_link(Hello(role=Role.CLIENT, name="me"))[0])[17:-1].rstrip(b"\0")
    frame = Frame(Kind.HELLO, memoryview(more + b"\xa6future\x93\x01\x02\x03"))
    assert decode_link(frame) == Hello(role=Role.CLIENT, name="me")


def test_a_hello_that_speaks_no_version_is_refused() -> None:
    [data] = encode_link(Hello(role=Role.CLIENT, name="me", version_min=5, version_max=2))
    [frame] = FrameReader(FROM_STRANGER).feed(data)
    with pytest.raises(PeerError, match=r"E215.*no version"):
        decode_link(frame)


def test_refusals_and_pings_have_bounds() -> None:
    for message in (Refuse(code="oops", message=""), Ping(number=-1)):
        [frame] = FrameReader(frozenset(Kind)).feed(b"".join(encode_link(message)))
        with pytest.raises(PeerError, match="E215"):
            decode_link(frame)
