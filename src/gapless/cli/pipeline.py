"""`gapless pipeline`: the program that computes the views of a network."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Annotated

import typer

from gapless.cli.exits import EXIT_INTERRUPTED
from gapless.cli.nodes import ADDRESS, ADDRESS_VARIABLE, Pass, dials
from gapless.cli.readers import whole_number
from gapless.errors import LinkError
from gapless.node.spark.process import WITH_INPUT
from gapless.spark.session import check_installed
from gapless.views.limits import ROWS_MAX, State

#: The default checkpoint directory.
CHECKPOINTS = Path("gapless-checkpoints")
#: A node that has just started may need a moment.
CONNECT_SECONDS = 30.0
#: How long to wait at the end for a node that may be gone.
GONE_SECONDS = 10.0


@dials
def pipeline(
    *,
    to: Annotated[
        str,
        typer.Option("--to", metavar="ADDRESS", envvar=ADDRESS_VARIABLE, help="The one edge it belongs to."),
    ] = ADDRESS,
    master: Annotated[
        str,
        typer.Option("--master", metavar="URL", help="Where Spark runs: local[N], spark://HOST:PORT, ..."),
    ] = "local[*]",
    checkpoints: Annotated[
        Path, typer.Option("--checkpoints", metavar="DIR", help="The checkpoint directory.")
    ] = CHECKPOINTS,
    rows_max: Annotated[
        int,
        typer.Option(
            "--rows-max",
            metavar="N",
            parser=whole_number("--rows-max", 1),
            help="Maximum number of rows that a view may show, and a stage keep.",
        ),
    ] = ROWS_MAX,
    state: Annotated[
        State,
        typer.Option("--state", help="Where Spark keeps groups: memory is faster, rocksdb holds more."),
    ] = "auto",
    take_over: Annotated[
        bool,
        typer.Option("--take-over", help="Take over from a pipeline at another edge that is gone for good."),
    ] = False,
    door: Pass,
) -> None:
    """Compute the views of a network with Spark until stopped.

    \b
    Examples:
      gapless pipeline
      gapless pipeline --to gapless://edge-1:7400 --master spark://spark-1:7077 --checkpoints /shared/views

    A node without a network file starts this by itself when the first view is created, and so does the node
    that `[spark] broker` names. One pipeline computes all views of a network, at one edge: a second one is
    refused at any edge. Results are published to the topics of the views. Checkpoints may be deleted while it
    does not run: the views are then recomputed from the log. With a cluster, all of its machines must see the
    directory. With `--state auto` Spark keeps groups in memory when it runs here with at most a million rows,
    otherwise in RocksDB; a stage that has a checkpoint keeps its choice.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO, stream=sys.stderr)
    for chatty in ("py4j", "gapless.client"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    tls = door.files()
    stop, signals = _until_signal()
    if os.environ.get(WITH_INPUT):
        threading.Thread(target=_until_input_ends, args=[stop], daemon=True).start()
    forget_no_pandas()
    check_installed()
    from gapless.spark.application import run  # noqa: PLC0415  # it needs PySpark to be there

    try:
        run(
            to,
            master=master,
            checkpoints=checkpoints.absolute(),
            rows_max=rows_max,
            token=door.token,
            tls=tls,
            stop=stop,
            patience_s=CONNECT_SECONDS,
            take_over=take_over,
            state=state,
        )
    except LinkError as error:
        raise LinkError(error.code, f"the pipeline ends: {error.message}", retry=True) from error
    if signal.SIGINT in signals:
        raise typer.Exit(EXIT_INTERRUPTED)


def _until_signal() -> tuple[threading.Event, list[int]]:
    """An event that Ctrl-C and SIGTERM set, and the signals that came."""
    stop = threading.Event()
    signals: list[int] = []

    def stopped(number: int, _frame: object) -> None:
        signals.append(number)
        stop.set()

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, stopped)
    return stop, signals


def _until_input_ends(stop: threading.Event) -> None:
    """The node that started this holds the other end: when that closes, the node is gone."""
    # Without the buffer of `sys.stdin`: Python would wait for its lock when it ends, and abort.
    while os.read(sys.stdin.fileno(), 1_024):
        pass
    stop.set()
    time.sleep(GONE_SECONDS)
    os._exit(1)  # Java ends with this process.


def forget_no_pandas() -> None:
    """The command line does without pandas; PySpark does not."""
    sys.meta_path[:] = [each for each in sys.meta_path if type(each).__name__ != "_NoPandas"]
