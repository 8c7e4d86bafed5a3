"""When does a node start Spark? While its network has views, and until nothing is held for those that it had.

The registry and the topic of holds say so. The supervisor follows both as a client of its own node: when the
last view is dropped, the pipeline must still let go of the log. `gapless up` and `gapless.embedded` run it.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from gapless.errors import GaplessError
from gapless.model.ids import PubendId, TopicId
from gapless.node.config import NodeConfig
from gapless.node.logs import event_log
from gapless.node.node import Node
from gapless.node.security import ClientCertificates, Tls
from gapless.node.spark.process import PipelineProcess, command
from gapless.views.registry import (
    FAILED,
    HOLDS_TOPIC,
    REGISTRY_TOPIC,
    STATUS_TOPIC,
    HoldBook,
    Registry,
    Status,
    status_rows,
)
from gapless.wire.address import Address

if TYPE_CHECKING:
    from gapless.client import Client
    from gapless.client.tls import TlsFiles

log = event_log("gapless.pipeline")

#: The error of a pipeline that finds no PySpark or no Java.
NOT_INSTALLED = "E174"
#: How often a node without views looks whether there is a registry by now.
LOOK_SECONDS = 0.5


@contextlib.asynccontextmanager
async def supervised_pipeline(node: Node, config: NodeConfig) -> AsyncIterator[PipelineProcess | None]:
    """The process that computes the views of this node's network; None when that is another's business."""
    spark = config.spark
    if spark is None or spark.broker != config.broker:
        yield None
        return
    # Only one node of a network does this; the others need no client library.
    from gapless.client import Options, connect  # noqa: PLC0415
    from gapless.client.tls import TlsFiles  # noqa: PLC0415

    address = f"{node.scheme}{_reachable(node)}"
    tls = _files_of(config.tls)
    with contextlib.ExitStack() as stack:
        folder = config.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        token = {} if spark.token is None else {"GAPLESS_TOKEN": spark.token}
        files = tls or TlsFiles()
        arguments = command(
            address, spark, folder, ca=files.authority, certificate=files.certificate, key=files.key
        )
        process = PipelineProcess(arguments, folder / "pipeline.log", token)
        demand = _Demand(process, config.broker)

        def connected() -> Client:
            return connect(address, token=spark.token, tls=tls, name="views", options=Options())

        process.on_end = demand.ended
        tasks = [
            asyncio.create_task(_follow(node, topic, connected, take), name="views")
            for topic, take in ((REGISTRY_TOPIC, demand.registry), (HOLDS_TOPIC, demand.holds))
        ]
        tasks.append(asyncio.create_task(_say_missing(demand, connected), name="views"))
        try:
            yield process
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await process.close()


def _reachable(node: Node) -> str:
    """Where this machine reaches the node."""
    host, port = node.address
    loopback = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
    return str(Address(loopback.get(host, host), port))


def _files_of(tls: Tls | None) -> TlsFiles | None:
    """What the pipeline needs: the authority; and where clients have to show a certificate, the node's."""
    from gapless.client.tls import TlsFiles  # noqa: PLC0415  # as above

    if tls is None:
        return None
    if tls.clients is not ClientCertificates.REQUIRED:
        return TlsFiles(str(tls.authority.absolute()))
    return TlsFiles(*(str(path.absolute()) for path in (tls.authority, tls.certificate, tls.key)))


class _Demand:
    """Whether the process is wanted, by what both topics say."""

    def __init__(self, process: PipelineProcess, broker: str) -> None:
        self._process = process
        self._broker = broker
        self._views = Registry()
        self._holds = HoldBook()
        #: What is not installed, by the process's last words; None while nothing is known to be missing.
        self._missing: str | None = None
        #: The views that wait for it and have not been told.
        self.waiting: set[tuple[str, TopicId]] = set()
        self.is_waiting = asyncio.Event()

    def registry(self, pubend: PubendId, ticks: list[int], rows: pa.RecordBatch) -> None:
        """Rows of the registry came."""
        self._views.apply(pubend, ticks, rows)
        self._tell()
        self._wait_for_missing(rows.column("name").to_pylist())

    def holds(self, pubend: PubendId, ticks: list[int], rows: pa.RecordBatch) -> None:
        """Rows of the topic of holds came."""
        self._holds.apply(pubend, ticks, rows)
        self._tell()

    def ended(self, reason: str) -> None:
        """The process has ended, and this is what it said last."""
        code, _, message = reason.removeprefix("error: ").partition(" ")
        was, self._missing = self._missing, message if code == NOT_INSTALLED else None
        if was != self._missing:
            self._wait_for_missing(self._views.definitions)

    def statuses(self) -> list[Status]:
        """The failures to report to those waiting for a view; each once."""
        waiting, self.waiting = self.waiting, set()
        self.is_waiting.clear()
        message = f"{NOT_INSTALLED} {self._missing}"
        return [Status(name, topic, FAILED, message, at=datetime.now(UTC)) for name, topic in sorted(waiting)]

    def _wait_for_missing(self, names: Iterable[str]) -> None:
        found = [self._views.definitions[name] for name in names if name in self._views.definitions]
        if self._missing is not None and found:
            self.waiting |= {(each.name, each.topic) for each in found}
            self.is_waiting.set()

    def _tell(self) -> None:
        self._process.want(bool(self._views.definitions or self._holds.at(self._broker)))


async def _say_missing(demand: _Demand, connected: Callable[[], Client]) -> None:
    """Report to those waiting for a view that Spark cannot start here, for as long as this runs."""
    while True:
        await demand.is_waiting.wait()
        statuses = demand.statuses()
        try:
            async with connected() as client:
                await client.publish_batch(STATUS_TOPIC, status_rows(statuses))
        except GaplessError as error:
            log.warning("views_not_told", code=error.code, reason=error.message)


async def _follow(
    node: Node,
    topic: TopicId,
    connected: Callable[[], Client],
    take: Callable[[PubendId, list[int], pa.RecordBatch], None],
) -> None:
    """Take all rows of a topic, once there is one, for as long as this runs."""
    # Topics come from anywhere in the network: there is nothing to wait for but time.
    while topic not in node.broker.network.topics:  # noqa: ASYNC110
        await asyncio.sleep(LOOK_SECONDS)
    while True:
        try:
            async with connected() as client, client.subscribe(topic, start="earliest") as rows:
                async for batch in rows.batches():
                    for pubend, events in batch.by_pubend().items():
                        take(pubend, events.ticks.tolist(), events.columns)
        except GaplessError as error:
            log.warning("views_not_followed", code=error.code, reason=error.message)
            await asyncio.sleep(LOOK_SECONDS)
