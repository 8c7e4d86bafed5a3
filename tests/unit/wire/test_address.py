"""One grammar for addresses, wherever they are written."""

import pytest

from gapless.errors import NetworkDescriptionError, UsageError
from gapless.wire.address import Address, is_tls, parse_addresses

GOOD = [
    ("localhost", "localhost", 7400),
    ("localhost:7401", "localhost", 7401),
    ("10.0.0.5:1", "10.0.0.5", 1),
    ("edge-1.example:65535", "edge-1.example", 65_535),
    ("[::1]", "::1", 7400),
    ("[::1]:7401", "::1", 7401),
    ("[2001:db8::5]:7401", "2001:db8::5", 7401),
    ("[fe80::1%eth0]:7401", "fe80::1%eth0", 7401),
]
BAD = [
    "",
    ":7400",
    "host:",
    "host:port",
    "host:70000",
    "host:-1",
    "host:\N{SUPERSCRIPT TWO}",
    "::1",
    "::1:7400",
    "[::1",
    "::1]:7400",
    "[]:7400",
    "[host]:7400",
    "[10.0.0.5]:7400",
    "[::1]7400",
    "a b:7400",
    "user@host",
    "tcp://localhost:7400",
    "host/path",
]


@pytest.mark.parametrize(("text", "host", "port"), GOOD)
def test_clients_and_descriptions_read_the_same_address(text: str, host: str, port: int) -> None:
    assert Address.parse(text, "addresses.b1") == Address(host, port)
    assert parse_addresses(text) == (Address(host, port),)
    assert parse_addresses(f"gapless://{text}/") == (Address(host, port),)
    assert parse_addresses(f"gapless+tls://{text}") == (Address(host, port),)


@pytest.mark.parametrize(("text", "host", "port"), GOOD)
def test_a_printed_address_is_read_back(text: str, host: str, port: int) -> None:
    assert Address.parse(str(Address(host, port)), "here") == Address(host, port)


@pytest.mark.parametrize("text", BAD)
def test_clients_and_descriptions_refuse_the_same_text(text: str) -> None:
    with pytest.raises(NetworkDescriptionError, match=r"^E131 addresses\.b1: .* not an address: write "):
        Address.parse(text, "addresses.b1")
    with pytest.raises(UsageError, match=r"^E190 .* not an address: write "):
        parse_addresses(text)


def test_an_ipv6_address_without_brackets_is_refused_with_a_hint() -> None:
    with pytest.raises(UsageError, match=r"write host:port, or \[::1\]:port for IPv6"):
        parse_addresses("::1")


def test_port_0_is_for_listening_only() -> None:
    assert Address.parse("localhost:0", "--listen").port == 0
    with pytest.raises(UsageError, match=r"^E190 "):
        parse_addresses("localhost:0")


def test_an_address_without_a_port_is_refused_where_there_is_no_default() -> None:
    for text in ("localhost", "[::1]"):
        with pytest.raises(NetworkDescriptionError, match=r"^E131 --http: "):
            Address.parse(text, "--http", port=None)


def test_several_hosts_need_one_scheme_or_none() -> None:
    expected = (Address("a", 7400), Address("b", 7401), Address("::1", 7402))
    assert parse_addresses("gapless://a,b:7401,[::1]:7402") == expected
    assert parse_addresses("a, b:7401, [::1]:7402") == expected
    assert parse_addresses("a,a:7400") == (Address("a", 7400),)


def test_only_the_tls_scheme_asks_for_tls() -> None:
    assert is_tls("gapless+tls://a")
    assert not is_tls("gapless://a")
    assert not is_tls("a:7400")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.0.1", "::1", "0:0:0:0:0:0:0:1"])
def test_loopback_is_known_in_every_spelling(host: str) -> None:
    assert Address(host, 7400).is_loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.5", "127.example", "2001:db8::1"])
def test_other_hosts_are_not_loopback(host: str) -> None:
    assert not Address(host, 7400).is_loopback
