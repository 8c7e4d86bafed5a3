"""Where does a node listen? One grammar for addresses in descriptions, on command lines and in programs.

Clients take `[gapless://|gapless+tls://]ADDRESS[,ADDRESS...][/]`, where ADDRESS is `HOST[:PORT]` and HOST a
name, an IPv4 address, or an IPv6 address in brackets. Descriptions and options of a node take one ADDRESS.
"""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv6Address, ip_address
from typing import Final, NamedTuple

from gapless.errors import NetworkDescriptionError, UsageError

#: The port of a node unless another is given.
DEFAULT_PORT: Final = 7400

SCHEME: Final = "gapless://"
#: The same over TLS.
TLS_SCHEME: Final = "gapless+tls://"

_ADDRESS = re.compile(r"(?:\[(?P<six>[^\[\]]+)\]|(?P<host>[^\s:/\[\]@?#,]+))(?::(?P<port>[0-9]{1,5}))?")


class Address(NamedTuple):
    """Where a node listens. Port 0 means any free one."""

    host: str
    port: int

    @staticmethod
    def parse(text: str, place: str, *, port: int | None = DEFAULT_PORT) -> Address:
        """An address from `host:port` or, if there is a default `port`, from `host`.

        >>> print(Address.parse("localhost", "here"), Address.parse("[::1]:7401", "here"))
        localhost:7400 [::1]:7401

        Raises NetworkDescriptionError naming the place.
        """
        found = _parse(text, port)
        if found is None:
            raise NetworkDescriptionError("E131", f"{place}: {_refusal(text)}")
        return found

    @property
    def is_loopback(self) -> bool:
        """Whether only programs of the same machine can connect there."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_addresses(text: str) -> tuple[Address, ...]:
    """The addresses that a client may connect to, in the order in which it tries them.

    >>> [str(address) for address in parse_addresses("gapless://edge-1,edge-2:7401,[::1]:7402")]
    ['edge-1:7400', 'edge-2:7401', '[::1]:7402']

    Raises UsageError.
    """
    _, mark, listed = text.partition("://")
    if not mark:
        listed = text
    elif not text.startswith((SCHEME, TLS_SCHEME)):
        raise UsageError("E190", _refusal(text))
    found: dict[Address, None] = {}
    for each in listed.removesuffix("/").split(","):
        address = _parse(each.strip(), DEFAULT_PORT)
        if address is None or address.port == 0:
            raise UsageError("E190", _refusal(each.strip()))
        found[address] = None
    return tuple(found)


def is_tls(text: str) -> bool:
    """Whether the scheme of a client's addresses asks for TLS.

    >>> is_tls("gapless+tls://edge-1"), is_tls("gapless://edge-1"), is_tls("edge-1")
    (True, False, False)
    """
    return text.startswith(TLS_SCHEME)


def _parse(text: str, port: int | None) -> Address | None:
    """An address; None if the text is invalid."""
    match = _ADDRESS.fullmatch(text)
    if match is None or (match["port"] is None and port is None):
        return None
    number = int(match["port"]) if match["port"] is not None else port
    assert number is not None
    if number > 65_535 or (match["six"] is not None and not _is_ipv6(match["six"])):
        return None
    return Address(match["six"] or match["host"], number)


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except AddressValueError:
        return False
    return True


def _refusal(text: str) -> str:
    return f"{text!r} is not an address: write host:port, or [::1]:port for IPv6"
