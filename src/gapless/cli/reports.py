"""What do the nodes of a network say of themselves? All are asked at once; one that does not answer is down.

Where a network is comes from its description (each broker has an address there), or from addresses that a
person names one by one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from gapless.cli.nodes import ADDRESS, ADDRESS_VARIABLE, Credentials, NodesOptions
from gapless.cli.readers import file_text
from gapless.errors import GaplessError, UsageError

if TYPE_CHECKING:
    from gapless.client import Client

#: A node that has not answered after so long is shown as down.
ANSWER_SECONDS_MAX = 2.0
#: Maximum number of nodes that are asked.
NODES_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node is asked."""

    address: str
    #: The broker that the description names; None when only the address is known.
    broker: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of asking one node: a report, or why there is none."""

    place: Place
    report: dict[str, Any] | None
    error: str = ""

    @property
    def name(self) -> str:
        """What to call the node."""
        name = self.report["broker"] if self.report is not None else self.place.broker
        return str(name or self.place.address)


def places_of(network: Path | None, nodes: NodesOptions) -> list[Place]:
    """Where to ask: at every broker of a description, or at the addresses. Raises UsageError."""
    if network is None:
        named = nodes.to or [os.environ.get(ADDRESS_VARIABLE) or ADDRESS]
        single = dict.fromkeys(text for each in named for text in _split(each))
        return [Place(text) for text in single][:NODES_MAX]
    if nodes.to:
        raise UsageError("E151", "the network description and --to both say where to ask: choose one")
    from gapless.node.config import load_network  # noqa: PLC0415  # no command that needs none pays for it

    found = load_network(file_text(network), network.name, network.parent)
    scheme = "gapless+tls" if nodes.context() is not None else "gapless"
    listed = sorted({**found.addresses, **found.client_addresses}.items())[:NODES_MAX]
    return [Place(f"{scheme}://{address}", broker) for broker, address in listed]


def _split(text: str) -> list[str]:
    """Addresses with commas, each as one of its own. Raises UsageError."""
    from gapless.wire.address import SCHEME, TLS_SCHEME, is_tls, parse_addresses  # noqa: PLC0415

    scheme = TLS_SCHEME if is_tls(text) else SCHEME
    return [f"{scheme}{address}" for address in parse_addresses(text)]


class Watch:
    """Connections to some nodes, for asking them again and again. A lost one is made again."""

    def __init__(self, places: Sequence[Place], door: Credentials) -> None:
        self._places = places
        self._door = door
        self._clients: dict[Place, Client] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for place in list(self._clients):
            await self._drop(place)

    async def ask(self) -> list[Answer]:
        """The report of every node, in the order of the places."""
        # Loading it takes seconds on a busy machine, which no node is to blame for.
        import gapless.client  # noqa: F401, PLC0415

        return list(await asyncio.gather(*(self._answer(place) for place in self._places)))

    async def client(self, place: Place) -> Client:
        """A connection to a node, made now if there is none. Raises GaplessError."""
        client = self._clients.get(place)
        if client is None:
            client = self._door.client_at(place.address)
            await client.__aenter__()
            self._clients[place] = client
        return client

    async def _answer(self, place: Place) -> Answer:
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                client = await self.client(place)
                return Answer(place, await client.status())
        except GaplessError as error:
            await self._drop(place)
            return Answer(place, None, str(error))
        except TimeoutError:
            await self._drop(place)
            return Answer(
                place,
                None,
                f"E401 {place.address} did not answer within {ANSWER_SECONDS_MAX:g} seconds: try again",
            )

    async def _drop(self, place: Place) -> None:
        client = self._clients.pop(place, None)
        if client is not None:
            with contextlib.suppress(GaplessError):
                await client.__aexit__(None, None, None)


def check_answered(answers: Sequence[Answer]) -> None:
    """Raise UsageError when not a single node answered: then something is wrong with the question."""
    if all(answer.report is None for answer in answers):
        first = answers[0]
        code, _, message = first.error.partition(" ")
        from gapless.client.refusals import error_of  # noqa: PLC0415

        raise error_of(code, message if len(answers) == 1 else f"none of {len(answers)} nodes: {message}")
