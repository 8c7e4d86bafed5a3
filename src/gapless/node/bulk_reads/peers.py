"""Who is at the other end of a call of gRPC? Its address as gRPC tells it, and how its connection ends."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import Collection, Iterator
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote

#: A host and a port.
Place: TypeAlias = tuple[str, int]

#: Where this process has its open files, on every system that we know.
_OPEN_FILES = Path("/dev/fd")


def address_of(peer: str) -> Place | None:
    """The host and the port of a peer; None when it has none.

    >>> address_of("ipv4:127.0.0.1:40312"), address_of("ipv6:%5B::1%5D:40312"), address_of("unix:")
    (('127.0.0.1', 40312), ('::1', 40312), None)
    """
    kind, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdigit():
        return None
    return _plain(host.strip("[]")), int(port)


def is_loopback(peer: str) -> bool:
    """Whether a peer came over the loopback of this machine, and so runs on it.

    >>> is_loopback("ipv4:127.0.0.1:40312"), is_loopback("ipv6:%5B::1%5D:1"), is_loopback("ipv4:10.0.0.7:1")
    (True, True, False)
    """
    address = address_of(peer)
    return address is not None and ip_address(address[0]).is_loopback


def hang_up(peer: str | Place, port: int) -> None:
    """End the connection that a peer has to a port of this process; the owner of the socket sees it end.

    The socket is another library's. It is not closed, which would give its number to somebody else while it
    is in use: it is only shut, and its owner closes it.
    """
    address = address_of(peer) if isinstance(peer, str) else peer
    for connection, place in connections(port):
        if place == address:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def hang_up_others(peers: Collection[str], port: int) -> int:
    """End all connections to a port of this process but those of some peers; gives how many there were."""
    kept = {address_of(peer) for peer in peers}
    count = 0
    for connection, place in connections(port):
        if place not in kept:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
                count += 1
    return count


def connections(port: int) -> Iterator[tuple[socket.socket, Place]]:
    """All connections to a port of this process, each with its peer; the socket is a copy, for the moment."""
    for number in _open_numbers():
        with contextlib.suppress(OSError), _copied(number) as found:
            ends = _ends(found)
            if ends is not None and ends[0] == port:
                yield found, ends[1]


def _open_numbers() -> list[int]:
    """The numbers of the files that this process has open, or may have.

    Listing them takes a descriptor. When another thread has taken the last one, all numbers are tried.
    """
    try:
        return [int(each.name) for each in _OPEN_FILES.iterdir()] if _OPEN_FILES.is_dir() else []
    except OSError:
        return list(range(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))


def _copied(number: int) -> socket.socket:
    """The socket with this number, under a number that nothing else uses meanwhile. Raises OSError."""
    copy = os.dup(number)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        # It is not a socket.
        os.close(copy)
        raise


def _ends(connection: socket.socket) -> tuple[int, Place] | None:
    """The port at this end, and the address of the other one. Raises OSError."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    host, port = connection.getpeername()[:2]
    return connection.getsockname()[1], (_plain(host), port)


def _plain(host: str) -> str:
    """One text for one host: a socket for both versions of IP writes those of the old one in its own way."""
    address = ip_address(host)
    old = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(old or address)
