"""`gapless history`: SQL over any time range of a topic, from the log and from the archive."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gapless.cli.nodes import ADDRESS, ADDRESS_VARIABLE, Json, Pass, dials, notice
from gapless.cli.pipeline import forget_no_pandas
from gapless.cli.readers import whole_number
from gapless.errors import ContentError, GaplessError, PipelineError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

#: Default maximum number of rows of a table in a terminal.
TABLE_ROWS = 100
#: The name of the table in `--sql`.
TABLE = "events"

_Node = Annotated[
    str,
    typer.Option(
        "--node",
        metavar="ADDRESS",
        envvar=ADDRESS_VARIABLE,
        help="The address of the node, or several separated by commas: any will do.",
    ),
]
_Place = "earliest|now|TICK|TIME"


@dials
def history(
    topic: Annotated[str, typer.Argument(help="The topic to look at.")],
    *,
    sql: Annotated[
        str | None, typer.Option("--sql", metavar="SELECT", help=f"A Spark query over table {TABLE}.")
    ] = None,
    where: Annotated[
        str, typer.Option("--where", metavar="SQL", help="Only events that this condition accepts.")
    ] = "",
    begin: Annotated[str, typer.Option("--from", metavar=_Place, help="Where to begin.")] = "earliest",
    end: Annotated[str, typer.Option("--to", metavar=_Place, help="Where to end; not included.")] = "now",
    columns: Annotated[
        str | None,
        typer.Option("--columns", metavar="NAMES", help="Only these columns, separated by commas."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", metavar="N", parser=whole_number("--limit", 1), help="At most N rows."),
    ] = None,
    gone: Annotated[
        bool, typer.Option("--gone", help="Begin later if the beginning is no longer kept.")
    ] = False,
    as_json: Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", metavar="FILE", help="Write a Parquet file.")
    ] = None,
    master: Annotated[
        str,
        typer.Option("--master", metavar="URL", help="Where Spark runs: local[N], spark://HOST:PORT"),
    ] = "local[*]",
    node: _Node = ADDRESS,
    door: Pass,
) -> None:
    """Query the past: SQL over any time range of a topic.

    \b
    Examples:
      gapless history trades --from 2026-01-31 --where "price > 100"
      gapless history trades --sql "SELECT sym, max(price) FROM events GROUP BY sym"
      gapless history trades --to 2026-02-01 --parquet january.parquet

    Events have the columns `tick` (microseconds since 1970), `pubend` and those of the topic. Spark reads
    archived files directly where it sees them, and the rest from the network. The condition of --where is
    evaluated where the events are.
    """
    if end.startswith("gapless:"):
        raise UsageError("E151", "--to says where the history ends: name the node with --node")
    if as_json + as_csv + (parquet is not None) > 1:
        raise UsageError("E151", "choose one of --json, --csv and --parquet")
    files = door.files()
    if parquet is not None and not parquet.absolute().parent.is_dir():
        raise UsageError("E156", f"{parquet}: cannot be written: there is no such folder")
    options = {"brokers": node, "topic": topic, "where": where, "from": begin, "to": end}
    optional = {"columns": columns, "token": door.token}
    if files is not None:
        optional |= {"ca": files.authority, "certificate": files.certificate, "key": files.key}
    query = _Query(
        {**options, **{name: each for name, each in optional.items() if each is not None}}, gone, sql
    )
    is_table = not as_json and not as_csv and parquet is None
    most = TABLE_ROWS if limit is None and is_table else limit
    with progress() as tell:
        tell("asking the node")
        forget_no_pandas()
        _check(query)
        _hush()
        with _spark(master, tell) as spark:
            tell(f"reading {topic}")
            frame = _answer_frame(spark, query)
            if parquet is not None:
                _write(frame if limit is None else frame.limit(limit), parquet)
                return
            rows = _rows(frame if most is None else frame.limit(most + 1 if limit is None else most))
    _show(rows, as_json=as_json, as_csv=as_csv, most=most)


def _hush() -> None:
    """Do not log what the error already says."""
    for chatty in ("py4j", "gapless.client"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    for chatty in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(chatty).setLevel(logging.CRITICAL)


@dataclass(frozen=True, slots=True)
class _Query:
    """What is asked for."""

    options: dict[str, str]
    gone: bool
    sql: str | None


def _check(query: _Query) -> None:
    """Check everything before Spark takes its time to start. Raises GaplessError."""
    from gapless.client.bulk import open_bulk  # noqa: PLC0415
    from gapless.content.language import parse_condition  # noqa: PLC0415
    from gapless.spark.options import parse_options  # noqa: PLC0415
    from gapless.spark.session import check_installed  # noqa: PLC0415

    options = parse_options(query.options)
    check_installed()
    with open_bulk(options.brokers, options.topic, token=options.token, tls=options.tls) as bulk:
        bulk.arrow(options.columns)
        parse_condition(options.where, bulk.schema)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Show what is being done, and for how long, on a terminal."""
    if not sys.stderr.isatty():
        yield lambda _doing: None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    # A copy of the descriptor: standard error is turned away while Spark starts.
    with os.fdopen(os.dup(sys.stderr.fileno()), "w") as terminal:
        console = Console(file=terminal, force_terminal=True)
        with Progress(*columns, console=console, transient=True, redirect_stdout=False) as bar:
            task = bar.add_task("", total=None)
            yield lambda doing: bar.update(task, description=doing, refresh=True)


@contextmanager
def _spark(master: str, tell: Callable[[str], None]) -> Iterator[SparkSession]:
    """A session that starts quietly; an error in it is one line."""
    tell("starting Spark")
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.sql.types import Row  # noqa: F401, PLC0415  # loaded before the noise is turned off

    from gapless.spark.session import session  # noqa: PLC0415

    with tempfile.TemporaryFile() as noise:
        before = os.dup(2)
        os.dup2(noise.fileno(), 2)
        try:
            spark = session(master, name="gapless history")
        except Exception as error:
            raise _in_a_line(error) from error
        finally:
            os.dup2(before, 2)
            os.close(before)
    try:
        yield spark
    except PySparkException as error:
        raise _in_a_line(error) from error
    finally:
        spark.stop()


def _answer_frame(spark: SparkSession, query: _Query) -> DataFrame:
    from gapless.spark.past import history as table  # noqa: PLC0415
    from gapless.spark.queries import answer  # noqa: PLC0415

    options = query.options
    names = options.get("columns")
    frame = table(
        spark,
        options["brokers"],
        options["topic"],
        where=options["where"],
        from_=options["from"],
        to=options["to"],
        columns=None if names is None else names.split(","),
        token=options.get("token"),
        ca=options.get("ca"),
        certificate=options.get("certificate"),
        key=options.get("key"),
        gone=query.gone,
    )
    if query.sql is None:
        return frame.orderBy("tick", "pubend")
    frame.createOrReplaceTempView(TABLE)
    return answer(spark, query.sql, TABLE)


def _rows(frame: DataFrame) -> pa.Table:
    return frame.toArrow()


def _write(frame: DataFrame, file: Path) -> None:
    """One file, written under a temporary name and renamed, so that it is complete when visible."""
    folder = Path(tempfile.mkdtemp(prefix=f".{file.name}.", dir=file.absolute().parent))
    try:
        frame.coalesce(1).write.mode("overwrite").parquet(str(folder / "made"))
        made = sorted((folder / "made").glob("*.parquet"))
        if made:
            made[0].replace(file)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _show(rows: pa.Table, *, as_json: bool, as_csv: bool, most: int | None) -> None:
    import numpy as np  # noqa: PLC0415

    from gapless.cli.view.watch import print_rows, row_text  # noqa: PLC0415  # a table needs rich
    from gapless.model.python_values import rows_of, time_text  # noqa: PLC0415

    if as_json:
        for batch in rows.to_batches(10_000):
            sys.stdout.write("".join(f"{row_text(row)}\n" for row in rows_of(batch)))
    elif as_csv:
        import csv  # noqa: PLC0415

        from gapless.cli.files.cells import bytes_text  # noqa: PLC0415

        def plain(value: Any) -> object:
            if isinstance(value, bytes):
                return bytes_text(value)
            if isinstance(value, np.datetime64):
                return time_text(value)
            return value.isoformat() if hasattr(value, "isoformat") else value

        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(rows.schema.names)
        for batch in rows.to_batches(10_000):
            writer.writerows([plain(value) for value in row.values()] for row in rows_of(batch))
    else:
        is_cut = most is not None and rows.num_rows > most
        print_rows(rows.slice(0, most))
        if is_cut:
            notice(f"there are more than these {most} rows: --limit says how many to show")


#: What Spark appends to a message, and how our own errors look inside one.
_STATE = re.compile(r"[.]?\s*SQLSTATE: .*")
_OWN = re.compile(r"gapless\.errors\.\w+: (E[1-5]\d\d) (.+)")


def _in_a_line(error: Exception) -> GaplessError:
    """The error in Spark: our own if it was one, otherwise Spark's first words."""
    text = str(error)
    own = _OWN.search(text)
    if own is not None:
        return GaplessError(own[1], own[2])
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    first = _STATE.sub("", first)
    if type(error).__name__ in ("AnalysisException", "ParseException"):
        return ContentError("E178", f"--sql: {first}")
    if "JAVA_GATEWAY" in text:
        return UsageError("E174", "Spark does not start: does `java -version` say 17 or newer?")
    return PipelineError("E501", f"Spark: {first:.300}")
