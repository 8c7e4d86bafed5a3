"""How are views created, listed and dropped? Through the registry, a topic that every client can read.

A view is checked here against the existing topics and views before anything is published, so mistakes are
reported at once, with their place in the text. The pipeline (`gapless.spark`) subscribes to the registry,
computes the views and reports their status in the status topic.
"""

from __future__ import annotations

import difflib
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from gapless.client.events import Batch
from gapless.errors import UsageError, ViewError
from gapless.model.ids import PubendId
from gapless.model.schema import Schema
from gapless.model.ticks import TICK_MIN, Tick
from gapless.views.registry import (
    REGISTRY_COLUMNS,
    REGISTRY_RETENTION,
    REGISTRY_TOPIC,
    RELATION_RETENTION,
    STATUS_COLUMNS,
    STATUS_RETENTION,
    STATUS_TOPIC,
    Definition,
    Registry,
    Status,
    checked_name,
    definition_rows,
    dropping_rows,
    fresh_topic,
    relation_columns,
    statuses_of,
)

if TYPE_CHECKING:
    from gapless.client.connection import Client, Topic
    from gapless.views.definitions import Views
    from gapless.views.fluent import Table
    from gapless.views.planning.stages import ViewPlan
    from gapless.views.relation import Relation


@dataclass(frozen=True, slots=True)
class ViewInfo:
    """A view and its status; None until the pipeline has reported one."""

    definition: Definition
    status: Status | None

    @property
    def name(self) -> str:
        """The name of the view."""
        return self.definition.name

    @property
    def sql(self) -> str:
        """The SQL text of the view."""
        return self.definition.sql


async def create_view(client: Client, name: str, view: str | Relation | Table) -> tuple[Definition, bool]:
    """The definition of a view, and whether it is new: see `Client.create_view`."""
    from gapless.views.relation import columns  # noqa: PLC0415

    checked_name(name)
    sql = view if isinstance(view, str) else _text_of(view)
    topics = await client.topics()
    registry = await read_registry(client, topics)
    for topic, types, kept in (
        (REGISTRY_TOPIC, REGISTRY_COLUMNS, REGISTRY_RETENTION),
        (STATUS_TOPIC, STATUS_COLUMNS, STATUS_RETENTION),
    ):
        if topic not in topics:
            await client.create_topic(topic, types, retention=kept)
    there = registry.definitions.get(name)
    if there is not None and there.sql == sql:
        return there, False
    if there is not None:
        raise UsageError("E173", f"there is already a view '{name}': drop it, or choose another name")
    schemas = schemas_of(topics)
    if name in schemas:
        raise UsageError("E173", f"there is a topic '{name}': choose another name for the view")
    relation, _ = read_view(sql, schemas, registry)
    definition = Definition(name, sql, fresh_topic(name, topics), datetime.now(UTC))
    await client.create_topic(
        definition.topic, relation_columns(columns(relation)), retention=RELATION_RETENTION
    )
    await client.publish_batch(REGISTRY_TOPIC, definition_rows(definition))
    return definition, True


async def drop_view(client: Client, name: str) -> None:
    """See `Client.drop_view`."""
    topics = await client.topics()
    registry = await read_registry(client, topics)
    view_named(registry.definitions, name)
    users = named_views(schemas_of(topics), registry).users_of(name)
    if users:
        others = ", ".join(f"'{each}'" for each in users)
        raise UsageError(
            "E179", f"view '{name}' is used by {others}: drop {'it' if not users[1:] else 'them'} first"
        )
    await client.publish_batch(REGISTRY_TOPIC, dropping_rows(name))


async def list_views(client: Client) -> dict[str, ViewInfo]:
    """See `Client.views`."""
    topics = await client.topics()
    registry = await read_registry(client, topics)
    statuses: dict[str, Status] = {}
    async for batch in newest_rows(client, STATUS_TOPIC, topics):
        statuses.update((each.name, each) for each in statuses_of(batch.columns))
    views = {name: (definition, statuses.get(name)) for name, definition in registry.definitions.items()}
    return {
        name: ViewInfo(definition, status if status and status.topic == definition.topic else None)
        for name, (definition, status) in sorted(views.items())
    }


async def read_registry(client: Client, topics: Collection[str]) -> Registry:
    """All current views."""
    registry = Registry()
    async for batch in newest_rows(client, REGISTRY_TOPIC, topics):
        for pubend, part in batch.by_pubend().items():
            registry.apply(pubend, part.ticks.tolist(), part.columns)
    return registry


async def newest_rows(client: Client, topic: str, topics: Collection[str]) -> AsyncIterator[Batch]:
    """The current rows of a compacted topic; none if it is not among the topics."""
    if topic not in topics:
        return
    async with client.subscribe(topic, start="earliest") as rows:
        ends = await client.ends(topic)
        while not reached(rows.positions, ends):
            batch = await rows.next_batch()
            if batch is None:
                return
            yield batch


def reached(positions: Mapping[PubendId, Tick], ends: Mapping[PubendId, Tick]) -> bool:
    """Whether everything below these ends has arrived. The last row of a compacted topic always arrives."""
    return all(end <= 0 or positions.get(pubend, TICK_MIN) >= end for pubend, end in ends.items())


def schemas_of(topics: Mapping[str, Topic]) -> dict[str, Schema]:
    """The columns of topics."""
    return {name: topic.schema for name, topic in topics.items()}


def named_views(schemas: Mapping[str, Schema], registry: Registry) -> Views:
    """The relations of all views, by name."""
    # Imported here because the parser is half of what a client would have to load.
    from gapless.views.definitions import Views, base_topics  # noqa: PLC0415

    return Views(registry.texts(), base_topics(schemas))


def read_view(sql: str, schemas: Mapping[str, Schema], registry: Registry) -> tuple[Relation, ViewPlan]:
    """The relation and the plan of an SQL text. Raises ViewError, with the place in the text."""
    from gapless.views.definitions import base_topics  # noqa: PLC0415
    from gapless.views.planning.graph import TransformGraph  # noqa: PLC0415
    from gapless.views.sql.parse import parse_view  # noqa: PLC0415

    relation = parse_view(sql, base_topics(schemas), named_views(schemas, registry))
    try:
        return relation, TransformGraph().planned(relation)
    except ViewError as error:
        error.text = error.text or sql
        raise


def _text_of(view: Relation | Table) -> str:
    from gapless.views.fluent import Table  # noqa: PLC0415
    from gapless.views.sql.text import view_sql  # noqa: PLC0415

    return view_sql(view.relation if isinstance(view, Table) else view)


def view_named(definitions: Mapping[str, Definition], name: str) -> Definition:
    """The view of that name. Raises UsageError E173 if there is none."""
    there = definitions.get(name)
    if there is None:
        raise UsageError("E173", f"there is no view '{name}'{_hint(name, definitions)}")
    return there


def _hint(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    if close:
        return f": did you mean '{close[0]}'?"
    return f": there are {', '.join(sorted(known))}" if known else ": no view has been created"
