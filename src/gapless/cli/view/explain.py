"""How is a view explained? Together with the existing views, with which it shares its stages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gapless.client.views import named_views, read_registry, read_view, schemas_of, view_named
from gapless.errors import UsageError
from gapless.views.planning.drawing import draw
from gapless.views.planning.explain import explain
from gapless.views.planning.graph import Planner, TransformGraph

if TYPE_CHECKING:
    from gapless.client import Client

#: The name of a text without a name.
UNNAMED = "view"


async def explained(client: Client, name: str | None, sql: str | None) -> tuple[str, TransformGraph]:
    """The explanation of an existing view, or of a text, and the graph of all views with it."""
    topics = await client.topics()
    registry = await read_registry(client, topics)
    schemas = schemas_of(topics)
    views = named_views(schemas, registry)
    # As in the pipeline. A view that cannot be planned is not computed either, and its status says so.
    graph, _ = Planner().planned(registry.texts(), views)
    text = view_named(registry.definitions, name).sql if name is not None else sql or ""
    relation, _ = read_view(text, schemas, registry)
    called = name or UNNAMED
    explanation = explain(called, relation, graph)
    return explanation, graph if name is not None else graph.with_view(called, relation)


def write_drawing(graph: TransformGraph, path: Path) -> None:
    """Draw the graph into a file. Raises UsageError."""
    try:
        path.write_text(draw(graph), encoding="utf-8")
    except OSError as error:
        raise UsageError("E154", f"{path} cannot be written: {error.strerror}") from error
