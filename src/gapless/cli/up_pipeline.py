"""When does a node start Spark? While its network has views: the registry says so, and the node follows it.

The node is a client of its own network for that, as anybody could be.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from gapless.errors import GaplessError
from gapless.node.config import NodeConfig
from gapless.node.logs import event_log
from gapless.node.node import Node
from gapless.node.pipeline import PipelineProcess, Spark, command
from gapless.views.registry import REGISTRY_TOPIC, Registry

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
    address = f"{node.scheme}{_reachable(node)}"
    ca = None if config.tls is None else config.tls.authority
    with contextlib.ExitStack() as stack:
        folder = config.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        token = {} if spark.token is None else {"GAPLESS_TOKEN": spark.token}
        process = PipelineProcess(command(address, spark, folder, ca=ca), folder / "pipeline.log", token)
        task = asyncio.create_task(_follow(node, address, spark, ca, process), name="views")
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


async def _follow(node: Node, address: str, spark: Spark, ca: Path | None, process: PipelineProcess) -> None:
    """Want the process while there are views."""
    # One node of a network does this; the others need no client library.
    from gapless.client import Options, connect  # noqa: PLC0415

    # Topics come from anywhere in the network: there is nothing to wait for but time.
    while REGISTRY_TOPIC not in node.broker.network.topics:  # noqa: ASYNC110
        await asyncio.sleep(LOOK_SECONDS)
    registry = Registry()
    while True:
        try:
            async with (
                connect(address, token=spark.token, tls=ca, name="views", options=Options()) as client,
                client.subscribe(REGISTRY_TOPIC, start="earliest") as rows,
            ):
                async for batch in rows.batches():
                    for pubend, events in batch.by_pubend().items():
                        registry.apply(pubend, events.ticks.tolist(), events.columns)
                    process.want(bool(registry.definitions))
        except GaplessError as error:
            log.warning("views_not_followed", code=error.code, reason=error.message)
            await asyncio.sleep(LOOK_SECONDS)
