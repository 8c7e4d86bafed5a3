"""`gapless up`: start one node of a network, or a network of one.

With a network description, the node is one of its brokers. Without one, the node is a whole network by
itself, with the topics that are named on the command line: the quickest way to something that runs.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from gapless import __version__
from gapless.errors import ParameterError, UsageError
from gapless.model.ids import BrokerId
from gapless.node.config import DEFAULT_PORT, Address, NodeConfig, load_network
from gapless.node.node import Node
from gapless.protocol.network import Network

#: The only broker of a network without a description.
SOLE_BROKER = BrokerId("node")


def up(
    network: Annotated[
        Path | None,
        typer.Argument(metavar="NETWORK.toml", help="The network. Without it, one node is all there is."),
    ] = None,
    *,
    broker: Annotated[
        str | None, typer.Option("--broker", help="Which broker of the network this node is.")
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", metavar="NAME:COLUMN=TYPE,...", help="A topic of a node without a description."
        ),
    ] = None,
    data: Annotated[
        Path, typer.Option("--data", help="The folder for logs; a folder for each broker is made in it.")
    ] = Path("gapless-data"),
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="HOST:PORT", help="Listen here, whatever the file says.")
    ] = None,
    in_memory: Annotated[
        bool, typer.Option("--in-memory", help="Keep nothing on disk: all is lost when the node stops.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log what links and clients do.")] = False,
) -> None:
    """Start a node and serve until it is stopped.

    gapless up --topic trades:sym=string,price=float

    gapless up network.toml --broker b1

    The node says on one line of standard output where it listens, and stops at Ctrl-C or SIGTERM after what
    is on its way to the disk has arrived.
    """
    config = configured(network, broker, topic or [], data, listen)
    if in_memory:
        config = replace(config, folder=None)
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(_serve(config))


def configured(
    network: Path | None, broker: str | None, topics: list[str], data: Path, listen: str | None
) -> NodeConfig:
    """What to run, checked as a whole. Raises UsageError."""
    if network is None:
        if broker is not None:
            raise ParameterError("E151", "--broker needs a network description: name the file as well")
        if not topics:
            raise ParameterError(
                "E151", "name a network description, or topics: --topic trades:sym=string,price=float"
            )
        described = alone(topics)
        addresses = {SOLE_BROKER: Address("127.0.0.1", DEFAULT_PORT)}
        name = SOLE_BROKER
    else:
        if topics:
            raise ParameterError("E151", "--topic is for a node without a description: add it to the file")
        try:
            text = network.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not a text"
            raise UsageError("E156", f"{network} cannot be read: {reason}") from error
        described, addresses = load_network(text, network.name)
        name = _chosen(described, broker)
    if listen is not None:
        addresses[name] = Address.parse(listen, "--listen")
    return NodeConfig(described, name, addresses, data / name, f"gapless {__version__}")


def alone(topics: list[str]) -> Network:
    """A network of one broker with these topics.

    >>> alone(["trades:sym=string,price=float?"]).topics["trades"].columns[1].nullable
    True

    Raises UsageError for a topic that makes no sense.
    """
    columns: dict[str, dict[str, str]] = {}
    for text in topics:
        name, colon, listed = text.partition(":")
        pairs = [each.partition("=") for each in listed.split(",")]
        if not colon or not name or not all(column and kind for column, _, kind in pairs):
            raise ParameterError(
                "E150", f"--topic takes NAME:COLUMN=TYPE,..., such as trades:price=float, got {text!r}"
            )
        if name in columns:
            raise ParameterError("E150", f"--topic names {name!r} twice")
        columns[name] = {column: kind for column, _, kind in pairs}
    return Network.parse(
        {
            "cells": {"all": [SOLE_BROKER]},
            "edges": [SOLE_BROKER],
            "topics": columns,
            "pubends": {name: {"topic": name, "broker": SOLE_BROKER} for name in columns},
        }
    )


def _chosen(network: Network, broker: str | None) -> BrokerId:
    names = sorted(network.cell_of)
    if broker is None:
        if len(names) > 1:
            raise ParameterError("E151", f"say which broker this is: --broker {' | '.join(names)}")
        return names[0]
    if BrokerId(broker) not in network.cell_of:
        raise ParameterError("E150", f"--broker: there is no '{broker}', there are {', '.join(names)}")
    return BrokerId(broker)


async def _serve(config: NodeConfig) -> None:
    async with Node(config) as node:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, node.stop)
        line = {"broker": config.broker, "listens": f"gapless://{node.address}"}
        typer.echo(json.dumps(line))
        await node.run()
