"""`gapless status`: what does a node report about itself?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

from gapless.cli.nodes import Json, NodesOptions, dials, run
from gapless.cli.output.terminal import tame, tamed

if TYPE_CHECKING:
    from rich.console import Console

#: Number of subscriptions shown individually.
SUBSCRIPTIONS_SHOWN = 20
#: Ticks that are less ahead of the clock are not reported: a restart skips some.
TICKS_AHEAD_S_MIN = 15.0


@dials
def status(
    *,
    nodes: NodesOptions,
    as_json: Json = False,
) -> None:
    """Show the status of nodes: links, pubends, clients, subscriptions, topics.

    \b
    Examples:
      gapless status
      gapless status --to gapless://edge-1:7400 --to gapless://edge-2:7400
      gapless status --json | jq .subscriptions.count

    With --json there is one object per line for each node; operating.md describes its fields. A node that
    does not answer is shown with the reason. Exit status: 0 when any node answers, 2 otherwise.
    """
    run(_shown(nodes, as_json=as_json))


async def _shown(nodes: NodesOptions, *, as_json: bool) -> None:
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
                typer.echo(f"{answer.place.address} does not answer: {tame(answer.error)}", err=True)
        elif as_json:
            typer.echo(json.dumps({**answer.report, "topics": topics[answer.place]}))
        else:
            _tell(tamed(answer.report), tamed(topics[answer.place]))


def _tell(report: dict[str, Any], topics: dict[str, dict[str, str]]) -> None:
    from gapless.cli.top.screen import new_console  # noqa: PLC0415  # tables need rich

    console = new_console()
    _tell_node(console, report)
    _tell_tables(console, report)
    for name, columns in topics.items():
        listed = ", ".join(f"{column} {kind}" for column, kind in columns.items())
        console.print(f"topic {name}: {listed}", soft_wrap=True, markup=False)


def _tell_node(console: Console, report: dict[str, Any]) -> None:
    from gapless.cli.top.screen import duration  # noqa: PLC0415

    ready = "ready" if report["ready"] else f"waits for {', '.join(report['waiting_for'])}"
    totals, rates = report["totals"], report["rates"]
    accepted, delivered = rates.get("events_accepted", 0), rates.get("rows_delivered", 0)
    # A node of an earlier version does not tell.
    started = f", start number {report['starts']:,}" if "starts" in report else ""
    lines = {
        "broker": f"{report['broker']} in cell {report['cell']}: {', '.join(report['roles']) or 'no role'}",
        "state": f"{ready}, up {duration(report['uptime_s'])}{started}",
        "listens": ", ".join(each for each in (report["listens"], report["http"]) if each),
        "software": report["software"],
        "published": f"{totals['events_accepted']:,} durable, {accepted:,.0f} a second",
        "delivered": f"{totals['rows_delivered']:,} rows, {delivered:,.0f} a second",
        "clients": f"{report['clients']['count']:,}",
        "clock": _clock(report),
    }
    lines = {name: text for name, text in lines.items() if name != "clock" or text}
    for name, text in lines.items():
        console.print(f"{name:<14}{text}", soft_wrap=True, markup=False)


def _clock(report: dict[str, Any]) -> str:
    """What is odd about the clock and the ticks of a node; empty when nothing is."""
    found: list[str] = []
    clock = report.get("clock", {})  # a node of an earlier version does not tell
    if clock.get("held_s"):
        found.append(f"{clock['held_s']:,.0f} s ahead, which is not believed (E118)")
    elif clock.get("leaps"):
        found.append(f"{clock['leaps']:,} leaps, the last of {clock['last_leap_s']:+,.1f} s")
    for each in report["pubends"]:
        ahead_s = (each.get("ticks_ahead_ms") or 0.0) / 1_000
        if ahead_s >= TICKS_AHEAD_S_MIN:
            found.append(f"ticks of {each['pubend']} are {ahead_s:,.0f} s ahead")
        if each.get("asked_beyond") is not None:
            found.append(f"{each['pubend']} was asked for ticks too far ahead")
    return "; ".join(found)


def _tell_tables(console: Console, report: dict[str, Any]) -> None:
    from gapless.cli.top.screen import link_table, pubend_table, subscription_table  # noqa: PLC0415

    if report["links"]:
        console.print(link_table([report]))
    if report["pubends"]:
        console.print(pubend_table([report]))
    subscriptions = report["subscriptions"]
    if subscriptions["count"]:
        console.print(subscription_table([report], SUBSCRIPTIONS_SHOWN))
    if subscriptions["count"] > SUBSCRIPTIONS_SHOWN:
        console.print(f"{subscriptions['count']:,} subscriptions in all; --json lists more of them")
