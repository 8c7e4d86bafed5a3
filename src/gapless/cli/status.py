"""`gapless status`: what does a node say of itself?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

from gapless.cli.nodes import Json, Nodes, dials, run

if TYPE_CHECKING:
    from rich.console import Console

#: How many subscriptions a person is shown one by one.
SUBSCRIPTIONS_SHOWN = 20


@dials
def status(
    *,
    nodes: Nodes,
    as_json: Json = False,
) -> None:
    """Show what nodes are and do: links, pubends, clients, subscriptions, topics.

    \b
    Examples:
      gapless status
      gapless status --to gapless://edge-1:7400 --to gapless://edge-2:7400
      gapless status --json | jq .subscriptions.count

    With --json there is one object per line for each node; operating.md describes its fields. A node that
    does not answer is shown with the reason. Exit status: 0 when any node answers, 2 otherwise.
    """
    run(_shown(nodes, as_json=as_json))


async def _shown(nodes: Nodes, *, as_json: bool) -> None:
    from gapless.cli.reports import Watch, check_answered, places_of  # noqa: PLC0415

    async with Watch(places_of(None, nodes), nodes) as watch:
        answers = await watch.ask()
        check_answered(answers)
        topics = {}
        for answer in answers:
            if answer.report is not None:
                client = await watch.client(answer.place)
                known = await client.topics()
                topics[answer.place] = {name: topic.columns for name, topic in known.items()}
    for answer in answers:
        if answer.report is None:
            if as_json:
                typer.echo(json.dumps({"address": answer.place.address, "error": answer.error}))
            else:
                typer.echo(f"{answer.place.address} does not answer: {answer.error}", err=True)
        elif as_json:
            typer.echo(json.dumps({**answer.report, "topics": topics[answer.place]}))
        else:
            _tell(answer.report, topics[answer.place])


def _tell(report: dict[str, Any], topics: dict[str, dict[str, str]]) -> None:
    from gapless.cli.top_view import new_console  # noqa: PLC0415  # tables need rich

    console = new_console()
    _tell_node(console, report)
    _tell_tables(console, report)
    for name, columns in topics.items():
        listed = ", ".join(f"{column} {kind}" for column, kind in columns.items())
        console.print(f"topic {name}: {listed}", soft_wrap=True, markup=False)


def _tell_node(console: Console, report: dict[str, Any]) -> None:
    from gapless.cli.top_view import duration  # noqa: PLC0415

    ready = "ready" if report["ready"] else f"waits for {', '.join(report['waiting_for'])}"
    totals, rates = report["totals"], report["rates"]
    accepted, delivered = rates.get("events_accepted", 0), rates.get("rows_delivered", 0)
    lines = {
        "broker": f"{report['broker']} in cell {report['cell']}: {', '.join(report['roles']) or 'no role'}",
        "state": f"{ready}, up {duration(report['uptime_s'])}, start number {report['starts']:,}",
        "listens": ", ".join(each for each in (report["listens"], report["http"]) if each),
        "software": report["software"],
        "published": f"{totals['events_accepted']:,} durable, {accepted:,.0f} a second",
        "delivered": f"{totals['rows_delivered']:,} rows, {delivered:,.0f} a second",
        "clients": f"{report['clients']['count']:,}",
    }
    for name, text in lines.items():
        console.print(f"{name:<14}{text}", soft_wrap=True, markup=False)


def _tell_tables(console: Console, report: dict[str, Any]) -> None:
    from gapless.cli.top_view import link_table, pubend_table, subscription_table  # noqa: PLC0415

    if report["links"]:
        console.print(link_table([report]))
    if report["pubends"]:
        console.print(pubend_table([report]))
    subscriptions = report["subscriptions"]
    if subscriptions["count"]:
        console.print(subscription_table([report], SUBSCRIPTIONS_SHOWN))
    if subscriptions["count"] > SUBSCRIPTIONS_SHOWN:
        console.print(f"{subscriptions['count']:,} subscriptions in all; --json lists more of them")
