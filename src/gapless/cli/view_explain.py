"""How is a view explained to a person? Against the views that there are, with which it shares its stages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gapless.client.views import client_schemas, found, named_views, read_registry, read_view
from gapless.errors import UsageError
from gapless.views.drawing import draw
from gapless.views.explain import explain
from gapless.views.graph import Planner, TransformGraph

if TYPE_CHECKING:
    from gapless.client import Client

#: What a text without a name is called.
UNNAMED = "view"


async def explained(client: Client, name: str | None, sql: str | None) -> tuple[str, TransformGraph]:
    """The explanation of a view that there is, or of a text, and the graph of all views with it."""
    registry = await read_registry(client)
    schemas = await client_schemas(client)
    views = named_views(schemas, registry)
    # As the pipeline does. One that cannot be planned is not computed either, and says so in its status.
    graph, _ = Planner().planned(registry.texts(), views)
    text = found(registry.definitions, name).sql if name is not None else sql or ""
    relation, _ = read_view(text, schemas, registry)
    called = name or UNNAMED
    told = explain(called, relation, graph)
    return told, graph if name is not None else graph.with_view(called, relation)[0]


def write_drawing(graph: TransformGraph, path: Path) -> None:
    """Draw the graph into a file. Raises UsageError."""
    try:
        path.write_text(draw(graph), encoding="utf-8")
    except OSError as error:
        raise UsageError("E154", f"{path} cannot be written: {error.strerror}") from error
