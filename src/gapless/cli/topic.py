"""`gapless topic`: create and list topics while the network runs."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gapless.cli.nodes import Json, NodeOptions, dials, run
from gapless.cli.output.terminal import print_table, tame
from gapless.errors import GaplessError, ParameterError, no_topic

if TYPE_CHECKING:
    from gapless.client import Topic

app = typer.Typer(
    name="topic",
    help="""Create and list topics.

    gapless topic create trades sym=string price=float
    """,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.command("create")
@dials
def create(
    name: Annotated[str, typer.Argument(help="Letters, digits, '_', '-' and '.'.")],
    columns: Annotated[
        list[str],
        typer.Argument(metavar="COLUMN=TYPE", help="int, float, string, ...; TYPE? may be null."),
    ],
    *,
    retention: Annotated[
        str,
        typer.Option(
            "--retention",
            metavar="7d|10GB|forever|newest(COLUMN)",
            help="How long to keep acknowledged events, or the newest of each key.",
        ),
    ] = "",
    node: NodeOptions,
    as_json: Json = False,
) -> None:
    """Create a topic, durably; creating the same one again is not an error.

    gapless topic create trades sym=string price=float note=string?

    The types are int, float, string, bool, timestamp, decimal, binary and xml.
    """
    wanted = columns_of(columns)

    async def story() -> tuple[Topic, bool]:
        async with node.client() as client:
            before = await client.topics()
            await client.create_topic(name, wanted, retention=retention)
            return (await client.topics())[name], name not in before

    topic, is_new = run(story())
    if as_json:
        typer.echo(json.dumps({**topic_json(topic), "created": is_new}))
    else:
        there = "created" if is_new else "was there already:"
        brokers = ", ".join(sorted(set(topic.brokers.values())))
        typer.echo(tame(f"{there} {name} ({_columns(topic)}) at {brokers}"))


@app.command("release")
@dials
def release(
    identity: Annotated[str, typer.Argument(help="The identity that a program publishes under.")],
    *,
    node: NodeOptions,
) -> None:
    """Release a publisher identity to the next principal that publishes under it.

    gapless topic release import-7

    An identity belongs to the token or certificate that first published under it. Ask the node that stores
    its events; what it knows about them stays known.
    """

    async def story() -> None:
        async with node.client() as client:
            await client.release_publisher(identity)

    run(story())
    typer.echo(f"released {identity}")


@app.command("list")
@dials
def list_topics(
    *,
    node: NodeOptions,
    as_json: Json = False,
) -> None:
    """List all topics that we may see.

    gapless topic list --json
    """

    async def story() -> dict[str, Topic]:
        async with node.client() as client:
            return await client.topics()

    topics = run(story())
    if as_json:
        typer.echo(json.dumps([topic_json(topic) for _, topic in sorted(topics.items())]))
        return
    if not topics:
        typer.echo("no topics: make one with gapless topic create", err=True)
    lines = [
        (name, ", ".join(sorted(set(topic.brokers.values()))), _columns(topic))
        for name, topic in sorted(topics.items())
    ]
    print_table(("TOPIC", "AT", "COLUMNS"), lines)


@app.command("show")
@dials
def show(
    name: Annotated[str, typer.Argument(help="The topic.")],
    *,
    node: NodeOptions,
    as_json: Json = False,
) -> None:
    """Show the columns of a topic, its pubends, where they live, and how far they are.

    gapless topic show trades
    """
    shown = run(_shown(node, name))
    if as_json:
        typer.echo(json.dumps(shown))
        return
    print_table(("COLUMN", "TYPE"), list(shown["columns"].items()))
    typer.echo()
    lines = [
        (each["pubend"], each["broker"], str(each["last_tick"] or ""), each["last_time"] or "")
        for each in shown["pubends"]
    ]
    print_table(("PUBEND", "AT", "KNOWN UP TO TICK", "WHICH IS"), lines)


async def _shown(node: NodeOptions, name: str) -> dict[str, Any]:
    async with node.client() as client:
        topics = await client.topics()
        if name not in topics:
            raise no_topic(name, topics)
        shown = topic_json(topics[name])
        try:
            status = await client.status()
        except GaplessError as error:
            # The rest is visible without the right to see the status.
            if error.code != "E184":
                raise
            status = {}
    ticks = {each["pubend"]: each["frontier"] for each in status.get("pubends", ())}
    for each in shown["pubends"]:
        tick = ticks.get(each["pubend"])
        # An unknown pubend is known up to the beginning of time.
        each["last_tick"] = tick if tick is not None and tick > 0 else None
        each["last_time"] = None if each["last_tick"] is None else _time(each["last_tick"])
    return shown


def topic_json(topic: Topic) -> dict[str, Any]:
    """A topic for programs."""
    return {
        "topic": topic.schema.topic,
        "columns": topic.columns,
        "pubends": [{"pubend": each, "broker": topic.brokers.get(each)} for each in topic.pubends],
    }


def columns_of(texts: list[str]) -> dict[str, str]:
    """Columns from `name=type` each. Raises ParameterError.

    >>> columns_of(["sym=string", "price=float?"])
    {'sym': 'string', 'price': 'float?'}
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, kind = text.partition("=")
        if not name or not equals or not kind:
            raise ParameterError("E150", f"write a column as NAME=TYPE, such as price=float, got {text!r}")
        if name in found:
            raise ParameterError("E150", f"the column {name!r} is named twice")
        found[name] = kind
    return found


def _columns(topic: Topic) -> str:
    return " ".join(f"{name}={kind}" for name, kind in topic.columns.items())


def _time(tick: int) -> str:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=tick)
    return moment.isoformat(sep=" ", timespec="milliseconds")
