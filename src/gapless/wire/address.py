"""Where does a node listen? Hosts and ports, as people write them in descriptions and on command lines."""

from __future__ import annotations

from typing import Final, NamedTuple

from gapless.errors import NetworkDescriptionError

#: Where a node listens unless it is told otherwise.
DEFAULT_PORT: Final = 7400


class Address(NamedTuple):
    """Where a node listens. Port 0 means any free one."""

    host: str
    port: int

    @staticmethod
    def parse(text: str, place: str, *, port: int | None = DEFAULT_PORT) -> Address:
        """An address from `host:port` or, when there is a `port` to fall back on, from `host`.

        >>> print(Address.parse("localhost", "here"))
        localhost:7400

        Raises NetworkDescriptionError naming the place.
        """
        host, _, told = text.rpartition(":") if ":" in text else (text, "", str(port))
        if not host or not told.isdigit() or int(told) > 65_535:
            raise NetworkDescriptionError("E131", f"{place}: {text!r} is no address: write host:port")
        return Address(host.strip("[]"), int(told))

    @property
    def is_loopback(self) -> bool:
        """Whether only programs of the same machine can connect there."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
