"""`gapless status`: what does a node say of itself?"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from gapless.cli.nodes import ADDRESS, TO, run
from gapless.client import connect


def status(
    *,
    to: Annotated[str, TO] = ADDRESS,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what a node is, its links, clients and topics.

    gapless status --to gapless://edge-1:7400
    """
    run(_shown(to, as_json=as_json))


async def _shown(to: str, *, as_json: bool) -> None:
    async with connect(to) as client:
        report = await client.status()
        topics = {name: topic.columns for name, topic in (await client.topics()).items()}
    if as_json:
        typer.echo(json.dumps({**report, "topics": topics}))
        return
    for name, value in report.items():
        listed = ", ".join(value) or "none" if isinstance(value, list) else value
        typer.echo(f"{name:<14}{listed}")
    for name, columns in topics.items():
        typer.echo(f"topic {name}: " + ", ".join(f"{column} {kind}" for column, kind in columns.items()))
