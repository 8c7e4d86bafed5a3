"""What does a node need to know before it starts? One TOML file for the whole network, and its own name.

The file is the description that `protocol.network` checks (cells, links, topics, pubends, edges,
parameters) and, for real networks, the address of every broker:

```toml
[addresses]
p1 = "10.0.0.5:7400"
b1 = "10.0.0.6:7400"
```

Everything is checked before anything starts.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gapless.errors import GaplessError, NetworkDescriptionError
from gapless.model.ids import BrokerId
from gapless.protocol.network import Network

DEFAULT_PORT = 7400
#: How many clients may be connected to one node, unless the file says otherwise.
CLIENTS_MAX = 20_000


@dataclass(frozen=True, slots=True)
class Address:
    """Where a node listens. Port 0 means any free one."""

    host: str
    port: int

    @staticmethod
    def parse(text: str, place: str) -> Address:
        """An address from `host:port` or `host`.

        >>> print(Address.parse("localhost", "here"))
        localhost:7400

        Raises NetworkDescriptionError naming the place.
        """
        host, _, port = text.rpartition(":") if ":" in text else (text, "", str(DEFAULT_PORT))
        if not host or not port.isdigit() or int(port) > 65_535:
            raise NetworkDescriptionError("E131", f"{place}: {text!r} is no address: write host:port")
        return Address(host.strip("[]"), int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """What one node is and where it keeps its data."""

    network: Network
    broker: BrokerId
    addresses: Mapping[BrokerId, Address]
    #: None keeps everything in memory: nothing survives a restart.
    folder: Path | None
    #: The version of the program, for people.
    software: str = ""
    #: So many clients may be connected at once.
    clients_max: int = CLIENTS_MAX

    @property
    def listen(self) -> Address:
        """Where this node listens."""
        return self.addresses[self.broker]


def load_network(text: str, name: str) -> tuple[Network, dict[BrokerId, Address]]:
    """A network and the addresses of its brokers from the text of a TOML file called `name`.

    Raises NetworkDescriptionError, or SchemaError or ParameterError for those parts, naming the place.
    """
    try:
        description = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise NetworkDescriptionError("E130", f"{name}: not TOML: {error}") from error
    told = description.pop("addresses", {})
    try:
        network = Network.parse(description)
        addresses = _addresses(told, network)
    except GaplessError as error:
        raise type(error)(error.code, f"{name}: {error.message}") from error
    return network, addresses


def _addresses(told: object, network: Network) -> dict[BrokerId, Address]:
    if not isinstance(told, Mapping):
        raise NetworkDescriptionError("E131", "addresses: must be a table of broker = 'host:port'")
    addresses: dict[BrokerId, Address] = {}
    for name, text in told.items():
        if name not in network.cell_of:
            raise NetworkDescriptionError("E131", f"addresses.{name}: there is no such broker in the cells")
        if not isinstance(text, str):
            raise NetworkDescriptionError("E131", f"addresses.{name}: must be a text such as 'host:7400'")
        addresses[BrokerId(name)] = Address.parse(text, f"addresses.{name}")
    missing = sorted(set(network.cell_of) - set(addresses))
    if missing and len(network.cell_of) > 1:
        raise NetworkDescriptionError("E131", f"addresses: none is given for {', '.join(missing)}")
    for name in missing:
        addresses[name] = Address("127.0.0.1", DEFAULT_PORT)
    return addresses
