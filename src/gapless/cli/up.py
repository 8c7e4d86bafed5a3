"""`gapless up`: start one node of a network, or a network of one.

With a network description, the node is one of its brokers. Without one, the node is a whole network by
itself, with the topics named on the command line: the quickest way to start.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from gapless import __version__
from gapless.cli.exits import EXIT_INTERRUPTED
from gapless.cli.loop import loop_factory
from gapless.cli.readers import file_text
from gapless.errors import GaplessError, ParameterError, SupersededError
from gapless.model.epochs import LIFE_STEP
from gapless.model.ids import BrokerId
from gapless.node.config import (
    SOLE_BROKER,
    SOLE_RETENTION,
    NodeConfig,
    Spark,
    load_network,
    parse_retention,
    sole_network,
)
from gapless.node.descriptors import raise_limit
from gapless.node.logs import configure, event_log
from gapless.node.node import Node
from gapless.node.spark.supervisor import supervised_pipeline
from gapless.protocol.network import Network
from gapless.store.retention import Retention
from gapless.wire.address import DEFAULT_PORT, Address

log = event_log("gapless.up")

#: Modules that would otherwise be loaded on first use, while all clients wait, or fail to load with too many
#: open files: the parser of conditions, what pyarrow needs of numpy, the resolver of host names.
LOADED_FIRST = ("gapless.content.sql.parse", "numpy.ma", "encodings.idna")

AcceptLoss = Annotated[
    list[str] | None,
    typer.Option(
        "--accept-loss",
        metavar="PUBEND|node.sqlite",
        help="Start although this log, or the database, has lost something; the loss becomes a reported gap.",
    ),
]
#: The version that nodes and clients see.
SOFTWARE = f"gapless {__version__}"
#: How long one thread keeps the interpreter while another waits for it.
SWITCH_SECONDS = 0.0005


def up(
    network: Annotated[
        Path | None,
        typer.Argument(metavar="NETWORK.toml", help="The network file; default: a network of one."),
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
        Path, typer.Option("--data", help="The folder for logs; each broker makes its own folder in it.")
    ] = Path("gapless-data"),
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            envvar="GAPLESS_LISTEN",
            help="Listen here; overrides the file.",
        ),
    ] = None,
    retention: Annotated[
        str | None,
        typer.Option(
            "--retention",
            metavar="7d|10GB|forever|acknowledged",
            help=f"How long a node without a description keeps events. [default: {SOLE_RETENTION}]",
        ),
    ] = None,
    in_memory: Annotated[
        bool, typer.Option("--in-memory", help="Keep nothing on disk: a stop loses everything.")
    ] = False,
    http: Annotated[
        str | None,
        typer.Option("--http", metavar="HOST:PORT", help="Serve metrics, status and health here, over HTTP."),
    ] = None,
    logs: Annotated[
        str | None,
        typer.Option(
            "--log", metavar="json|text", help="Log format; default: text on a terminal, otherwise json."
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Also log what every client does.")] = False,
    accept_loss: AcceptLoss = None,
) -> None:
    """Start a node and serve until it is stopped.

    gapless up

    gapless up --topic trades:sym=string,price=float

    gapless up network.toml --broker b1

    Without a file the node is a whole network by itself, and `gapless topic create` creates its topics.

    The node prints one line that says where it listens. On Ctrl-C or SIGTERM it accepts nothing new, finishes
    pending writes, tells its clients, and stops; a second signal stops it at once. On SIGHUP it reloads
    tokens, certificates and the network's secret.
    """
    if logs not in (None, "json", "text"):
        raise ParameterError("E150", f"--log takes json or text, got {logs!r}")
    # SIGHUP, from a closed terminal or after the tokens changed, must not end a node, not even now.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def read_config() -> NodeConfig:
        return configured(network, broker, topic or [], data, listen, retention=retention)

    config = replace(read_config(), accept_loss=frozenset(accept_loss or ()))
    if in_memory:
        config = replace(config, folder=None)
    if http is not None:
        config = replace(config, http=Address.parse(http, "--http", port=None))
    configure(config.broker, form=logs, verbose=verbose)  # type: ignore[arg-type]  # checked above
    _run(config, None if network is None else read_config)


def _run(config: NodeConfig, read_config: Callable[[], NodeConfig] | None) -> None:
    """Serve until it is stopped; `told` reads the network file again, if there is one."""
    raise_limit()
    for name in LOADED_FIRST:
        import_module(name)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        if runner.run(_serve(config, read_config)) == signal.SIGINT:
            raise typer.Exit(EXIT_INTERRUPTED)


def configured(
    network: Path | None,
    broker: str | None,
    topics: list[str],
    data: Path,
    listen: str | None,
    *,
    retention: str | None = None,
) -> NodeConfig:
    """What to run, checked as a whole. Raises UsageError."""
    if network is None:
        if broker is not None:
            raise ParameterError("E151", "--broker needs a network description: name the file as well")
        addresses = {SOLE_BROKER: Address("127.0.0.1", DEFAULT_PORT)}
        config = NodeConfig(
            alone(topics),
            SOLE_BROKER,
            addresses,
            data / SOLE_BROKER,
            SOFTWARE,
            retention_else=_for_all(parse_retention(retention or SOLE_RETENTION, "--retention")),
            spark=Spark(broker=SOLE_BROKER),
        )
    else:
        if topics:
            raise ParameterError("E151", "--topic is for a node without a description: add it to the file")
        if retention is not None:
            raise ParameterError("E151", "--retention is for a node without a file: write it there")
        file = load_network(file_text(network), network.name, network.parent)
        name = _chosen(file.network, broker)
        config = file.node(name, data / name, SOFTWARE)
    if listen is not None:
        address = Address.parse(listen, "--listen")
        config = replace(config, addresses={**config.addresses, config.broker: address})
    return config


def alone(topics: list[str]) -> Network:
    """A network of one broker with these topics.

    >>> alone(["trades:sym=string,price=float?"]).topics["trades"].columns[1].nullable
    True

    Raises UsageError for an invalid topic.
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
    return sole_network(columns)


def _for_all(retention: Retention) -> Retention:
    if retention.columns:
        raise ParameterError("E151", f"{retention} is for one topic: create it with that --retention")
    return retention


def _chosen(network: Network, broker: str | None) -> BrokerId:
    names = sorted(network.cell_of)
    if broker is None:
        if len(names) > 1:
            raise ParameterError("E151", f"say which broker this is: --broker {' | '.join(names)}")
        return names[0]
    if BrokerId(broker) not in network.cell_of:
        raise ParameterError("E150", f"--broker: there is no '{broker}', there are {', '.join(names)}")
    return BrokerId(broker)


def _reload(node: Node, read_config: Callable[[], NodeConfig] | None) -> None:
    """Take the tokens, certificates and secret as the network file has them now."""
    if read_config is None:
        log.info("not_reloaded", reason="there is no network file")
        return
    try:
        config = read_config()
        node.renew(config.tls, config.secret, config.tokens)
    except GaplessError as error:
        log.error("reload_failed", code=error.code, reason=error.message)
        return
    log.info("reloaded", what="tokens, certificates and the network's secret")


async def _serve(config: NodeConfig, read_config: Callable[[], NodeConfig] | None) -> signal.Signals | None:
    """Serve until stopped; the signal that stopped it.

    A node that has fallen behind what others have seen of it starts again, in a life above that.
    """
    while True:
        try:
            return await _serve_once(config, read_config)
        except SupersededError as behind:
            log.warning("starting_again", code=behind.code, reason=behind.message)
            config = replace(config, incarnation_min=behind.incarnation + LIFE_STEP, untold=behind.untold)


async def _serve_once(
    config: NodeConfig, read_config: Callable[[], NodeConfig] | None
) -> signal.Signals | None:
    stopped_by: signal.Signals | None = None
    loop = asyncio.get_running_loop()
    node = Node(config)
    # Before it starts: a callback may fail while the node still opens its files.
    node.guard.last_net(loop)
    async with node, supervised_pipeline(node, config):

        def stop(number: signal.Signals) -> None:
            nonlocal stopped_by
            if node.is_stopping:
                # A second signal means now: handle it as if it had not been caught.
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
                return
            stopped_by = number
            node.stop()
            log.info("stopping", signal=number.name)

        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, stop, each)
        loop.add_signal_handler(signal.SIGHUP, _reload, node, read_config)
        line = {"broker": config.broker, "listens": f"{node.scheme}{node.address}"}
        if node.http_address is not None:
            line["http"] = f"http://{node.http_address}"
        typer.echo(json.dumps(line))
        # Threads parse conditions and write to disks. The event loop wakes up thousands of times a second,
        # and waits at most this long for the interpreter each time; the default is ten times as long.
        sys.setswitchinterval(SWITCH_SECONDS)
        # Objects created so far stay alive: exclude them from garbage collection.
        gc.collect()
        gc.freeze()
        await node.run()
    return stopped_by
