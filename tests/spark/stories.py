"""What the tests of the pipeline share: a node, an application, and what a view shows at each marker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapless.client import sync
from gapless.model.ids import TopicId
from gapless.spark.pipeline import Pipeline
from gapless.spark.relations import covers
from gapless.spark.running import NetworkAccess, Runner
from gapless.views.registry import (
    AS_OF,
    GONE,
    KEY,
    KIND,
    MARKER,
    OWN_COLUMNS,
    SHOWN,
    AsOf,
    parsed_as_of,
)
from tests.spark.threads import in_thread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = tuple[Any, ...]


@contextmanager
def node(folder: Path, *topics: str) -> Iterator[str]:
    """A node of its own process, which starts no Spark, with topics that are kept; where it listens."""
    parsed = {name: columns for name, _, columns in (topic.partition(":") for topic in topics)}
    lines = ["edges = ['node']", "cells = {all = ['node']}", "[retention]"]
    lines += [f"{name} = 'forever'" for name in parsed]
    lines += ["[topics]", *(f"{name} = {{{_kinds(columns)}}}" for name, columns in parsed.items())]
    lines += ["[pubends]", *(f"{name} = {{topic = '{name}', broker = 'node'}}" for name in parsed)]
    file = folder / "network.toml"
    file.write_text("\n".join(lines), encoding="utf-8")
    command = [sys.executable, "-m", "gapless", "up", str(file), "--data", str(folder)]
    with subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["listens"]
        finally:
            process.terminate()


def _kinds(columns: str) -> str:
    pairs = (each.partition("=") for each in columns.split(","))
    return ", ".join(f"{name} = '{kind}'" for name, _, kind in pairs)


@contextmanager
def pipeline(spark: SparkSession, address: str, folder: Path, **options: int) -> Iterator[Pipeline]:
    """An application that computes the views of a network, in a thread of this process."""
    with (
        sync.connect(address) as client,
        in_thread(Pipeline(client, Runner(spark, NetworkAccess(address), folder, **options))) as running,
    ):
        yield running


def state_at(client: sync.SyncClient, topic: str, as_of: AsOf) -> set[Row]:
    """What a view shows when it includes a horizon, as a set of rows; waits for it."""
    return next(states(client, topic, as_of))


def states(client: sync.SyncClient, topic: str, as_of: AsOf) -> Iterator[set[Row]]:
    """What a view shows at each marker from one that includes the horizon on."""
    shown: dict[str, Row] = {}
    with client.subscribe(topic, start="earliest") as rows:
        for row in rows:
            values = dict(row)
            if values[KIND] == MARKER:
                if covers(parsed_as_of(values[AS_OF]), as_of):
                    yield set(shown.values())
                continue
            assert values[KIND] in (GONE, SHOWN)
            shown.pop(values[KEY], None)
            if values[KIND] == SHOWN:
                shown[values[KEY]] = tuple(v for name, v in values.items() if name not in OWN_COLUMNS)


def published(client: sync.SyncClient, topic: str, rows: dict[str, list[Any]]) -> AsOf:
    """Publish events; the horizon that includes them."""
    receipt = client.publish_batch(topic, rows)
    return {TopicId(topic): {pubend: int(ticks[-1]) + 1 for pubend, ticks in receipt.parts}}
