"""How do people write the address of a network? Parsing of `gapless://` addresses."""

from __future__ import annotations

import re

from gapless.errors import UsageError
from gapless.wire.address import DEFAULT_PORT, Address

SCHEME = "gapless://"
#: The scheme for TLS.
TLS_SCHEME = "gapless+tls://"

_PLACE = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^\s:/\[\]@?#]+))(?::(?P<port>[0-9]{1,5}))?")


def parse_addresses(text: str) -> tuple[Address, ...]:
    """Parse an address list, in the order to try them.

    >>> [str(address) for address in parse_addresses("gapless://edge-1,edge-2:7401,[::1]:7402")]
    ['edge-1:7400', 'edge-2:7401', '[::1]:7402']

    Raises UsageError.
    """
    if not text.startswith((SCHEME, TLS_SCHEME)):
        raise UsageError("E190", f"{text!r} is no address: write gapless://host:7400, or several with commas")
    found: dict[Address, None] = {}
    for place in text.partition("://")[2].removesuffix("/").split(","):
        match = _PLACE.fullmatch(place.strip())
        port = int(match["port"] or DEFAULT_PORT) if match else 0
        if match is None or not 0 < port < 2**16:
            raise UsageError(
                "E190", f"{place!r} in {text!r} is no host and port: write host:7400, or [::1]:7400 for IPv6"
            )
        found[Address(match["six"] or match["host"], port)] = None
    return tuple(found)


def is_tls(text: str) -> bool:
    """Whether an address asks for TLS.

    >>> is_tls("gapless+tls://edge-1"), is_tls("gapless://edge-1")
    (True, False)
    """
    return text.startswith(TLS_SCHEME)
