"""`gapless view`: create views, read them, and watch them change."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gapless.cli.nodes import Json, NodeOptions, dials, notice, run
from gapless.cli.output.terminal import print_table, tame
from gapless.cli.readers import file_text, seconds, whole_number
from gapless.errors import GaplessError, PipelineError, UsageError

if TYPE_CHECKING:
    from gapless.client import Client
    from gapless.client.views import ViewInfo
    from gapless.views.planning.graph import TransformGraph
    from gapless.views.registry import Definition, Status

app = typer.Typer(
    name="view",
    help="""Create and read live views of topics.

    \b
    gapless view create stock "SELECT item, sum(qty) AS total FROM sales GROUP BY item"
    gapless view watch stock
    """,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

#: How long to wait for a created view.
WAIT_SECONDS = 120.0
#: After this long without a pipeline, print a hint.
HINT_SECONDS = 5.0

_Name = Annotated[str, typer.Argument(metavar="NAME", help="What the view is called.")]
_Where = Annotated[str, typer.Option("--where", metavar="SQL", help="Only rows that this condition accepts.")]
_File = Annotated[
    Path | None,
    typer.Option("--file", metavar="FILE", help="Read the SQL from a file; - for standard input."),
]


@app.command("create")
@dials
def create(
    name: _Name,
    sql: Annotated[str | None, typer.Argument(metavar="SQL", help="A SELECT over topics and views.")] = None,
    *,
    file: _File = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait until it is computed.")] = False,
    wait: Annotated[
        float,
        typer.Option("--wait", metavar="SECONDS", parser=seconds("--wait"), help="How long to wait for it."),
    ] = WAIT_SECONDS,
    node: NodeOptions,
    as_json: Json = False,
) -> None:
    """Create a view: a table that is always up to date.

    \b
    Examples:
      gapless view create stock "SELECT item, sum(qty) AS total FROM sales GROUP BY item"
      gapless view create low "SELECT item FROM stock WHERE total < 10"
      gapless view create busiest --file busiest.sql --no-wait

    Views have SELECT with expressions, WHERE, GROUP BY with sum, count, min, max, avg, HAVING, joins by equal
    columns, UNION ALL, and ORDER BY with LIMIT last. A view that cannot be maintained is refused at once,
    with the reason and the position. Creating the same view again is not an error. The pipeline computes it;
    the command waits until it reports that the view is running.
    """
    from gapless.client.views import create_view  # noqa: PLC0415

    text = _sql(sql, file)

    async def story() -> tuple[Definition, Status | None, bool]:
        async with node.client() as client:
            made, is_new = await create_view(client, name, text)
            status = None if no_wait else await _running(client, made, wait)
            return made, status, is_new

    made, status, is_new = run(story())
    if as_json:
        described = {"view": made.name, "sql": made.sql, "topic": made.topic, "created": is_new}
        typer.echo(json.dumps({**described, "state": None if status is None else status.state}))
    else:
        there = "created" if is_new else "was there already:"
        typer.echo(tame(f"{there} {name}{'' if status is None else f', {_state(status)}'}"))


@app.command("list")
@dials
def list_views(
    *,
    node: NodeOptions,
    as_json: Json = False,
) -> None:
    """List all views and their state.

    gapless view list --json
    """

    async def story() -> dict[str, ViewInfo]:
        async with node.client() as client:
            return await client.views()

    views = run(story())
    if as_json:
        typer.echo(json.dumps([_view_json(view) for view in views.values()]))
        return
    if not views:
        typer.echo("no views: make one with gapless view create", err=True)
    lines = [(name, _state(view.status), " ".join(view.sql.split())) for name, view in views.items()]
    print_table(("VIEW", "STATE", "SQL"), lines)


@app.command("show")
@dials
def show(
    name: _Name,
    *,
    where: _Where = "",
    limit: Annotated[
        int | None,
        typer.Option("--limit", metavar="N", parser=whole_number("--limit", 1), help="At most N rows."),
    ] = None,
    node: NodeOptions,
    as_json: Json = False,
) -> None:
    """Print the rows that a view shows now.

    \b
    Examples:
      gapless view show stock --where "total < 10" --limit 20
      gapless view show stock --json | jq .item

    With --json each row is a line. Otherwise a line on standard error says as of when they are.
    """
    from gapless.cli.view.watch import as_of_time, print_rows, row_text  # noqa: PLC0415
    from gapless.model.python_values import rows_of  # noqa: PLC0415

    async def story() -> tuple[Any, int, str]:
        async with node.client() as client, client.view(name, where) as table:
            rows = table.to_arrow()
            return rows if limit is None else rows.slice(0, limit), rows.num_rows, as_of_time(table.as_of)

    rows, count, as_of = run(story())
    if as_json:
        for row in rows_of(rows):
            typer.echo(row_text(row))
    else:
        print_rows(rows)
        typer.echo(f"{rows.num_rows} of {count} rows, {as_of}", err=True)


@app.command("watch")
@dials
def watch(
    name: _Name,
    *,
    where: _Where = "",
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            metavar="N",
            parser=whole_number("--limit", 1),
            help="End after N changes; the first is the current state.",
        ),
    ] = None,
    node: NodeOptions,
    as_json: Json = False,
) -> None:
    """Watch a view change, as a table in the terminal; Ctrl-C ends.

    \b
    Examples:
      gapless view watch stock --where "total < 10"
      gapless view watch stock --json | jq 'select(.weight > 0).row'

    With --json, or without a terminal, each changed row is a line: its weight is -1 for a row that disappears
    and 1 for one that appears. All current rows come first.
    """
    from gapless.cli.view.watch import watched  # noqa: PLC0415

    async def story() -> None:
        async with node.client() as client, client.view(name, where) as table:
            await watched(table, as_json=as_json, limit=limit)

    run(story())


@app.command("explain")
@dials
def explain(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="An existing view.")] = None,
    *,
    sql: Annotated[
        str | None, typer.Option("--sql", metavar="SQL", help="Explain this text, without creating a view.")
    ] = None,
    file: _File = None,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Draw the graph of all views into this file.")
    ] = None,
    node: NodeOptions,
) -> None:
    """Explain how a view is computed: what brokers select, what Spark keeps, what it shares with others.

    \b
    Examples:
      gapless view explain stock
      gapless view explain --sql "SELECT item, max(qty) AS most FROM sales GROUP BY item"
      gapless view explain stock --svg stock.svg
    """
    if (name is None) == (sql is None and file is None):
        raise UsageError("E151", "name a view, or give its text with --sql or --file")
    from gapless.cli.view.explain import explained, write_drawing  # noqa: PLC0415

    text = None if name is not None else _sql(sql, file)

    async def story() -> tuple[str, TransformGraph]:
        async with node.client() as client:
            return await explained(client, name, text)

    explanation, graph = run(story())
    if svg is not None:
        write_drawing(graph, svg)
    typer.echo(explanation, nl=False)


@app.command("drop")
@dials
def drop(
    name: _Name,
    *,
    node: NodeOptions,
) -> None:
    """Drop a view. A view that other views use cannot be dropped before them.

    gapless view drop stock
    """

    async def story() -> None:
        async with node.client() as client:
            await client.drop_view(name)

    run(story())
    typer.echo(f"dropped {name}")


def _sql(sql: str | None, file: Path | None) -> str:
    if (sql is None) == (file is None):
        raise UsageError("E151", "give either the text of the view or --file")
    if file is None:
        assert sql is not None
        return sql
    if str(file) != "-":
        return file_text(file)
    try:
        return typer.get_text_stream("stdin").read()
    except UnicodeDecodeError as error:
        raise UsageError("E156", "standard input is not a text") from error


async def _running(client: Client, made: Definition, wait_s: float) -> Status:
    """Wait until the pipeline reports that the view is running, and print its state meanwhile."""
    from gapless.views.registry import FAILED, RUNNING, STATUS_TOPIC, statuses_of  # noqa: PLC0415

    said: Status | None = None
    loop = asyncio.get_running_loop()
    hint = loop.call_later(
        HINT_SECONDS,
        lambda: notice(
            f"{made.name}: waiting for Spark, which takes a while to start; where no node starts it, "
            "run gapless pipeline"
        ),
    )
    try:
        async with asyncio.timeout(wait_s), client.subscribe(STATUS_TOPIC, start="earliest") as statuses:
            async for batch in statuses.batches():
                for status in statuses_of(batch.columns):
                    if (status.name, status.topic) != (made.name, made.topic) or status == said:
                        continue
                    hint.cancel()
                    if status.state == RUNNING:
                        return status
                    if status.state == FAILED:
                        raise _failed(made, status)
                    said = status
                    notice(f"{made.name}: {_state(status)}")
    except TimeoutError:
        pass
    finally:
        hint.cancel()
    raise PipelineError(
        "E505",
        f"view '{made.name}' was created but does not run after {wait_s:g} seconds: see gapless view list",
        retry=True,
    )


def _failed(made: Definition, status: Status) -> GaplessError:
    code, _, reason = status.message.partition(" ")
    if code == "E174":
        return UsageError(code, f"view '{made.name}' was created but waits for Spark: at the node, {reason}")
    return PipelineError("E505", f"view '{made.name}' was created but failed: {status.message}")


def _state(status: Status | None) -> str:
    if status is None:
        return "waiting"
    rows = "" if status.rows is None else f", {status.rows} row{'' if status.rows == 1 else 's'}"
    return f"{status.state}{rows}{f': {status.message}' if status.message else ''}"


def _view_json(view: ViewInfo) -> dict[str, Any]:
    """A view for programs."""
    status = view.status
    return {
        "view": view.name,
        "sql": view.sql,
        "topic": view.definition.topic,
        "made": None if view.definition.made is None else view.definition.made.isoformat(),
        "state": None if status is None else status.state,
        "message": None if status is None else status.message or None,
        "rows": None if status is None else status.rows,
        "as_of": None if status is None or status.as_of is None else json.loads(status.as_of),
    }
