"""`gapless pub`: publish events from the command line, from files, or from standard input."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer

from gapless.cli.match_cells import cell
from gapless.cli.match_files import open_sources
from gapless.cli.nodes import ADDRESS, TO, run
from gapless.client import Client, connect
from gapless.errors import UsageError
from gapless.model.schema import Schema


def pub(
    topic: Annotated[str, typer.Argument(help="The topic to publish to.")],
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[EVENT|FILE]...", help="JSON objects, or files; without, lines of JSON from stdin."
        ),
    ] = None,
    *,
    to: Annotated[str, TO] = ADDRESS,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")] = False,
) -> None:
    """Publish events and wait until they are durable.

    gapless pub trades '{"sym": "IBM", "price": 120.5}'

    gapless pub trades monday.parquet tuesday.jsonl

    tail -f trades.jsonl | gapless pub trades

    Files may be .jsonl, .csv, .parquet or .xml. Every event that is counted at the end is on the node's disk.
    """
    run(_published(topic, what or [], to, as_json=as_json))


async def _published(topic: str, what: list[str], to: str, *, as_json: bool) -> None:
    async with connect(to) as client:
        topics = await client.topics()
        if topic not in topics:
            known = ", ".join(topics) or "none"
            raise UsageError("E141", f"there is no topic '{topic}': there is {known}")
        schema = topics[topic].schema
        count = 0
        if what:
            for rows in batches(schema, what):
                count += len(await client.publish_batch(topic, rows))
        else:
            count = await _from_lines(client, topic, schema)
    if as_json:
        typer.echo(json.dumps({"topic": topic, "published": count}))
    else:
        typer.echo(f"published {count} to {topic}", err=True)


async def _from_lines(client: Client, topic: str, schema: Schema) -> int:
    """Lines of standard input, each as soon as it is there."""
    loop = asyncio.get_running_loop()
    count = 0
    while True:
        line = await loop.run_in_executor(None, sys.stdin.readline)
        if not line:
            break
        if line.strip():
            count += 1
            client.publish(topic, event_of(schema, line, f"line {count}"))
            await client.ready(topic)
    await client.flush()
    return count


def batches(schema: Schema, what: Iterable[str]) -> Iterator[pa.RecordBatch]:
    """JSON objects and files, in order, as rows of the schema.

    Raises UsageError for what cannot be read.
    """
    for text in what:
        if text.lstrip().startswith("{"):
            event = event_of(schema, text, "the event")
            arrays = [pa.array([event.get(field.name)], field.type) for field in schema.arrow()]
            yield pa.RecordBatch.from_arrays(arrays, names=[column.name for column in schema.columns])
        else:
            kinds = {column.name: column.type for column in schema.columns}
            [source] = open_sources([Path(text)], {})
            there = [column.name for column in source.schema.columns]
            wanted = {name: kinds[name] for name in there if name in kinds}
            [source] = open_sources([Path(text)], wanted)
            for chunk in source.chunks(there):
                yield chunk.columns


def event_of(schema: Schema, text: str, place: str) -> dict[str, object]:
    """One JSON object as an event. Raises UsageError E158 naming the place."""
    try:
        values = json.loads(text)
    except ValueError as error:
        raise UsageError("E158", f"{place} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise UsageError("E158", f"{place} is not a JSON object")
    kinds = {column.name: column.type for column in schema.columns}
    event: dict[str, object] = {}
    for name, value in values.items():
        if name not in kinds:
            known = ", ".join(kinds)
            raise UsageError(
                "E111", f"{place}: topic '{schema.topic}' has no column {name!r}: it has {known}"
            )
        try:
            event[name] = cell(value, kinds[name])
        except ValueError as error:
            raise UsageError("E158", f"{place}: column '{name}': {error}") from error
    return event
