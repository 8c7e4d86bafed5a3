"""When does a node start Spark? While its network has views: the registry says so, and the node follows it.

The node is a client of its own network for that, as anybody could be.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from gapless.errors import GaplessError
from gapless.node.config import NodeConfig
from gapless.node.logs import event_log
from gapless.node.node import Node
from gapless.node.pipeline import PipelineProcess, Spark, command
from gapless.node.security import ClientCertificates, Tls
from gapless.views.registry import REGISTRY_TOPIC, Registry

if TYPE_CHECKING:
    from gapless.client.tls import TlsFiles

log = event_log("gapless.pipeline")

#: How often a node without views looks whether there is a registry by now.
LOOK_SECONDS = 0.5


@contextlib.asynccontextmanager
async def pipeline_of(node: Node, config: NodeConfig) -> AsyncIterator[PipelineProcess | None]:
    """The process that computes the views of this node's network; None when that is another's business."""
    spark = config.spark
    if spark is None or spark.broker != config.broker:
        yield None
        return
    # One node of a network does this; the others need no client library.
    from gapless.client.tls import TlsFiles  # noqa: PLC0415

    address = f"{node.scheme}{_reachable(node)}"
    tls = _shown(config.tls)
    with contextlib.ExitStack() as stack:
        folder = config.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        token = {} if spark.token is None else {"GAPLESS_TOKEN": spark.token}
        files = tls or TlsFiles()
        told = command(
            address, spark, folder, ca=files.authority, certificate=files.certificate, key=files.key
        )
        process = PipelineProcess(told, folder / "pipeline.log", token)
        task = asyncio.create_task(_follow(node, address, spark, tls, process), name="views")
        try:
            yield process
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await process.close()


def _reachable(node: Node) -> str:
    """Where this machine reaches the node."""
    host = node.address.host
    return f"{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{node.address.port}"  # noqa: S104


def _shown(tls: Tls | None) -> TlsFiles | None:
    """What the pipeline needs: the authority; and where clients have to show a certificate, the node's."""
    from gapless.client.tls import TlsFiles  # noqa: PLC0415  # as above

    if tls is None:
        return None
    if tls.clients is not ClientCertificates.REQUIRED:
        return TlsFiles(str(tls.authority.absolute()))
    return TlsFiles(*(str(path.absolute()) for path in (tls.authority, tls.certificate, tls.key)))


async def _follow(
    node: Node, address: str, spark: Spark, tls: TlsFiles | None, process: PipelineProcess
) -> None:
    """Want the process while there are views."""
    from gapless.client import Options, connect  # noqa: PLC0415  # as above

    # Topics come from anywhere in the network: there is nothing to wait for but time.
    while REGISTRY_TOPIC not in node.broker.network.topics:  # noqa: ASYNC110
        await asyncio.sleep(LOOK_SECONDS)
    registry = Registry()
    while True:
        try:
            async with (
                connect(address, token=spark.token, tls=tls, name="views", options=Options()) as client,
                client.subscribe(REGISTRY_TOPIC, start="earliest") as rows,
            ):
                async for batch in rows.batches():
                    for pubend, events in batch.by_pubend().items():
                        registry.apply(pubend, events.ticks.tolist(), events.columns)
                    process.want(bool(registry.definitions))
        except GaplessError as error:
            log.warning("views_not_followed", code=error.code, reason=error.message)
            await asyncio.sleep(LOOK_SECONDS)
