"""`gapless match`: which rows of a file does a condition accept, and why not the others?

For trying out a condition before subscribing with it: the language, the types and the index are the ones
that brokers use. Rows are read, matched and printed a chunk at a time, so a file may be larger than memory.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from gapless.cli.files.cells import parse_columns
from gapless.cli.files.sources import FileChunk, FileSource, open_sources
from gapless.cli.output.console import say_json
from gapless.cli.readers import whole_number
from gapless.content.condition import Condition
from gapless.content.explain import explain
from gapless.content.index.index import Index
from gapless.content.language import parse_condition
from gapless.content.rows import RowMask, Rows
from gapless.content.xml.document import parse_root
from gapless.errors import ContentError, ParameterError, UsageError

#: Default number of explained rows.
EXPLAINED_MAX = 10
#: How many documents that cannot be read are named one by one.
NAMED_MAX = 20

_Files = Annotated[
    list[Path], typer.Argument(metavar="FILE", help="Files: .jsonl, .ndjson, .csv, .parquet or .xml.")
]
_Where = Annotated[str, typer.Option(metavar="CONDITION", help="An SQL condition, or an XPath pattern.")]
_Column = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=TYPE",
        help="Override the type of a column, such as sent=timestamp or body=xml; repeatable.",
    ),
]
_Count = Annotated[bool, typer.Option("--count", help="Print only the number of matching rows.")]
_Limit = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        parser=whole_number("--limit", 1),
        help=f"Stop after N matching rows; with --explain, after N rows (default {EXPLAINED_MAX}).",
    ),
]
_Explain = Annotated[bool, typer.Option("--explain", help="Explain for each row why it matches, or why not.")]
_Row = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        parser=whole_number("--row", 1),
        help="Explain only this row; the first is 1, and in JSON it is the line.",
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object with the result instead of rows.")]


def match(
    files: _Files,
    *,
    where: _Where,
    column: _Column = None,
    count: _Count = False,
    limit: _Limit = None,
    explain_rows: _Explain = False,
    row: _Row = None,
    json: _Json = False,
) -> None:
    """Try a condition on files, and see why a row matches or not.

    Columns and their types are taken from the file. Matching rows are printed: a line of JSON unchanged, a
    row of a table as a JSON object, an XML document by the name of its file. The number of rows and the
    condition as understood go to standard error.

    \b
    Examples:
      gapless match --where "price > 100 AND sym LIKE 'I%'" trades.jsonl
      gapless match --where "sent >= '2026-01-31'" --column sent=timestamp --explain mails.csv
      gapless match --where "/nitf[head/urgency <= 3]//body" --count news/*.xml

    Exit status: 0 when the files were read, also when nothing matches; 2 when the command was refused.
    """
    _check_options(count=count, explain_rows=explain_rows, row=row, json=json)
    sources = open_sources(files, parse_columns(column or []))
    # Before the condition is parsed: it may be about an omitted column.
    for source in sources:
        for notice in source.notices:
            _notice(notice)
    conditions = [parse_condition(where, source.schema) for source in sources]
    asked = _Asked(explain_rows, limit or EXPLAINED_MAX if explain_rows else limit, row)
    tally = _Tally()
    started = monotonic()
    with _progress(files, enabled=count or json) as advance:
        for source, condition in zip(sources, conditions, strict=True):
            if tally.stopped:
                break
            for found in _matched(source, condition, asked, tally):
                if explain_rows:
                    _explain(condition, found, tally, json=json)
                elif not (count or json):
                    _print(found)
                advance(found.chunk.size)
    if row is not None and not tally.rows:
        raise ParameterError("E150", f"--row {row}: no such row; the last one is {tally.last}")
    _sum_up(tally, asked, conditions, monotonic() - started, count=count, json=json)


def _check_options(*, count: bool, explain_rows: bool, row: int | None, json: bool) -> None:
    if row is not None and not explain_rows:
        raise UsageError("E151", "--row goes with --explain: it says which row to explain")
    for option, is_given in (("--explain", explain_rows), ("--json", json)):
        if count and is_given:
            raise UsageError("E151", f"--count and {option} do not go together: choose one")


# ---- matching ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Asked:
    """Which rows are wanted."""

    #: Whether rows are explained, also those that do not match.
    explained: bool
    #: How many at most: rows to explain, or rows that match.
    limit: int | None
    #: The one row to explain.
    row: int | None


@dataclass(slots=True)
class _Tally:
    """What has been found so far."""

    rows: int = 0
    matched: int = 0
    #: Documents that cannot be read.
    unreadable: int = 0
    #: The number of the last row that was seen, wanted or not.
    last: int = 0
    #: Whether rows were left unread because there were enough.
    stopped: bool = False
    explanations: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Found:
    """The rows of a chunk that are wanted, and which of them match."""

    chunk: FileChunk
    rows: Rows
    wanted: range
    matches: RowMask


def _matched(source: FileSource, condition: Condition, asked: _Asked, tally: _Tally) -> Iterator[_Found]:
    """Match a source chunk by chunk, as far as is wanted, and count."""
    index = Index()
    index.add(0, condition)
    columns = sorted(condition.columns, key=str)
    for chunk in source.chunks([each.name for each in columns]):
        rows = Rows(chunk.columns)
        matches = np.zeros(len(rows), np.bool_)
        matches[index.match(rows)[0]] = True
        broken = _unreadable(chunk, [each.name for each in columns if each.kind == "xml"])
        matches[list(broken)] = False
        wanted = _wanted(chunk, matches, asked, tally)
        for at in (each for each in broken if each in wanted):
            tally.unreadable += 1
            if tally.unreadable <= NAMED_MAX:
                _notice(f"{chunk.place(at)}: does not match, because it cannot be read: {broken[at]}")
        tally.rows += len(wanted)
        tally.matched += int(matches[wanted.start : wanted.stop].sum())
        yield _Found(chunk, rows, wanted, matches)
        if tally.stopped or (asked.row is not None and tally.last >= asked.row):
            return


def _wanted(chunk: FileChunk, matches: RowMask, asked: _Asked, tally: _Tally) -> range:
    """The positions of a chunk that are still wanted."""
    tally.last = max(chunk.numbers, default=tally.last)
    if asked.row is not None:
        at = bisect_left(chunk.numbers, asked.row)
        there = at < len(chunk.numbers) and chunk.numbers[at] == asked.row
        return range(at, at + there)
    everything = range(len(chunk.numbers))
    if asked.limit is None:
        return everything
    if asked.explained:
        some = everything[: asked.limit - tally.rows]
    else:
        hits = np.flatnonzero(matches)
        left = asked.limit - tally.matched
        some = everything
        if len(hits) >= left:
            some = everything[: int(hits[left - 1]) + 1 if left else 0]
    tally.stopped = len(some) < len(everything)
    return some


def _unreadable(chunk: FileChunk, documents: Sequence[str]) -> dict[int, str]:
    """The rows with a document that cannot be read, and why."""
    found: dict[int, str] = {}
    for name in documents:
        for at, data in enumerate(chunk.columns.column(name).to_pylist()):
            if data is not None:
                try:
                    parse_root(data)
                except ContentError as error:
                    found[at] = str(error)
    return found


# ---- telling -----------------------------------------------------------------------------------------


def _print(found: _Found) -> None:
    matching = [at for at in found.wanted if found.matches[at]]
    if matching:
        typer.echo("\n".join(found.chunk.text(at) for at in matching))


def _explain(condition: Condition, found: _Found, tally: _Tally, *, json: bool) -> None:
    for at in found.wanted:
        explanation = explain(condition, found.rows, at)
        place = found.chunk.place(at)
        if json:
            tally.explanations.append({"place": place, **asdict(explanation)})
        else:
            typer.echo(f"{place} {explanation}")


def _sum_up(
    tally: _Tally, asked: _Asked, conditions: Sequence[Condition], seconds: float, *, count: bool, json: bool
) -> None:
    understood = list(dict.fromkeys(str(condition) for condition in conditions))
    if tally.unreadable > NAMED_MAX:
        _notice(f"{tally.unreadable:,} documents cannot be read; the first {NAMED_MAX} are named")
    if count:
        typer.echo(tally.matched)
    elif json:
        outcome = {
            "rows": tally.rows,
            "matched": tally.matched,
            "unreadable": tally.unreadable,
            "stopped": tally.stopped,
            "seconds": round(seconds, 6),
            "conditions": understood,
        }
        say_json({**outcome, "explanations": tally.explanations} if asked.explained else outcome)
    else:
        first = "the first " if tally.stopped else ""
        rows = f"{tally.matched:,} of {first}{tally.rows:,} rows match"
        typer.echo(f"{rows}: {'; '.join(understood)}", err=True)
    if asked.explained and tally.stopped and not json:
        _notice(f"there are more rows than the first {tally.rows:,}: choose with --limit or --row")


def _notice(text: str) -> None:
    typer.echo(f"notice: {text}", err=True)


@contextmanager
def _progress(files: Sequence[Path], *, enabled: bool) -> Iterator[Callable[[int], None]]:
    """A bar of the bytes read, on a terminal that shows nothing else."""
    console = Console(stderr=True)
    alone = console.is_terminal and (enabled or not sys.stdout.isatty())
    columns = (TextColumn("matching"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    # Output bypasses the bar.
    bar = Progress(
        *columns,
        console=console,
        transient=True,
        disable=not alone,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with bar:
        task = bar.add_task("matching", total=sum(path.stat().st_size for path in files))
        yield partial(bar.advance, task)
