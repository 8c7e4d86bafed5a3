"""`gapless pub`: publish events from the command line, from files, or from standard input.

Everything streams: a piece is read, sent, and forgotten when its receipt arrives, so a file may be larger
than memory and a pipe may never end. An unreadable row ends the command; the rows before it are published,
and the message says how many.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import IO, TYPE_CHECKING, Annotated

import typer

from gapless.cli.nodes import Json, NodeOptions, dials, notice, run
from gapless.cli.readers import number, one_of, whole_number
from gapless.errors import GaplessError, UsageError, no_topic

if TYPE_CHECKING:
    import pyarrow as pa

    from gapless.cli.pub.rows import RowPiece, RowReader
    from gapless.client import BatchReceipt, Publisher

#: Standard input, where a file is named.
STDIN = "-"
#: Approximate number of sends per second with a rate.
SENDS_PER_SECOND = 50
#: Maximum number of pieces in flight; the client bounds their bytes.
PIECES_MAX = 64
#: Maximum number of events that `--json` names individually.
NAMES_MAX = 1_000
#: How long to wait for pending receipts when stopped.
STOP_SECONDS = 1.0
#: Number of bytes read from standard input at once.
READ_BYTES_MAX = 2**20


@dials
def pub(
    topic: Annotated[str, typer.Argument(help="The topic to publish to.")],
    events: Annotated[
        list[str] | None, typer.Argument(metavar="JSON", help="Events, each a JSON object.")
    ] = None,
    *,
    file: Annotated[
        list[str] | None,
        typer.Option(
            "--file",
            metavar="FILE",
            help="A file with events: .jsonl, .ndjson, .csv, .parquet or .xml; - is stdin. Repeatable.",
        ),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="jsonl|csv|parquet|xml",
            parser=one_of("--format", "jsonl", "csv", "parquet", "xml"),
            help="The format of the files; overrides their suffixes.",
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            metavar="N", parser=number("--rate", 0.001, 1e9), help="Publish no more than N events a second."
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            parser=whole_number("--batch", 1, 2**20),
            help="Send at most N events together.  [default: as they are read]",
        ),
    ] = None,
    node: NodeOptions,
    as_json: Json = False,
) -> None:
    """Publish events and wait until they are durable.

    Without events and files, lines of JSON are read from standard input and published as they come.

    \b
    Examples:
      gapless pub trades '{"sym": "IBM", "price": 120.5}'
      gapless pub trades --file monday.parquet --file tuesday.csv
      tail -f trades.jsonl | gapless pub trades
      gapless pub trades --file trades.jsonl --rate 2000

    Every counted event is on the node's disk. An unreadable row ends the command: all rows before it are
    published, none after it. Events given as arguments are all read first, and published only if all can be.
    Exit status: 0 when everything is durable, 2 otherwise.
    """
    files = [*(file or []), *[each for each in events or [] if each == STDIN]]
    objects = [each for each in events or [] if each != STDIN]
    if not files and not objects:
        files = [STDIN]
        if sys.stdin is not None and sys.stdin.isatty():
            notice("reading lines of JSON; Ctrl-D ends them")
    if STDIN in files and sys.stdin is None:
        raise UsageError("E156", "standard input is closed: name events or a file")
    if files.count(STDIN) > 1:
        raise UsageError("E151", "standard input can be read once: name - once")
    work = _Work(topic, objects, files, form, rate, batch)
    run(_published(work, node, as_json=as_json))


@dataclass(frozen=True, slots=True)
class _Work:
    """What to publish, and how."""

    topic: str
    objects: list[str]
    files: list[str]
    form: str | None
    rate: float | None
    batch: int | None


@dataclass(slots=True)
class _Account:
    """What has become durable."""

    started: float = field(default_factory=monotonic)
    events: int = 0
    #: Per pubend: how many, the first tick and the last.
    pubends: dict[str, dict[str, int]] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)

    def add(self, receipt: BatchReceipt) -> None:
        self.events += len(receipt)
        for pubend, ticks in receipt.parts:
            if len(ticks):
                entry = self.pubends.setdefault(pubend, {"events": 0, "first": int(ticks[0]), "last": 0})
                entry["events"] += len(ticks)
                entry["last"] = int(ticks[-1])
                room = NAMES_MAX - len(self.names)
                self.names += [f"{pubend}:{tick}" for tick in ticks[:room].tolist()]

    @property
    def seconds(self) -> float:
        return monotonic() - self.started

    def __str__(self) -> str:
        noun = "event" if self.events == 1 else "events"
        return f"published {self.events:,} {noun}, durable, {self.seconds:.1f} s"

    def before(self, message: str) -> str:
        """Why it ended early, and what was published anyway."""
        noun = "event before it was" if self.events == 1 else "events before it were"
        return f"{message}; {self.events:,} {noun} published"


async def _published(work: _Work, node: NodeOptions, *, as_json: bool) -> None:
    from gapless.cli.pub.rows import RowReader  # noqa: PLC0415  # Arrow, when it is needed

    for name in work.files:
        if name != STDIN:
            _check_file(Path(name))
            _format(name, work)
    async with node.client() as client:
        topics = await client.topics()
        if work.topic not in topics:
            raise no_topic(work.topic, topics)
        reader = RowReader(topics[work.topic].schema)
        account = _Account()
        try:
            with _progress(work, account) as advance:
                sender = _Sender(client.publisher_of(work.topic), account, work)
                if work.objects:
                    await sender.send(reader.objects(work.objects))
                async for piece in _pieces(work, reader):
                    await sender.send(piece.rows)
                    advance(piece.size)
                await sender.settle()
        except asyncio.CancelledError:
            await sender.settle_quietly(STOP_SECONDS)
            typer.echo(f"stopped: {account}", err=True)
            raise
        except GaplessError as error:
            await sender.settle_quietly()
            if account.events or work.files:
                raise _reworded(error, account.before(error.message)) from error
            raise
    if as_json:
        _say_json(work.topic, account)
    else:
        typer.echo(str(account), err=True)


def _reworded(error: GaplessError, message: str) -> GaplessError:
    """The same error in other words."""
    from gapless.client.refusals import error_of  # noqa: PLC0415

    return error_of(error.code, message)


def _say_json(topic: str, account: _Account) -> None:
    import json  # noqa: PLC0415

    report = {
        "topic": topic,
        "published": account.events,
        "seconds": round(account.seconds, 6),
        "pubends": account.pubends,
        "events": account.names,
    }
    typer.echo(json.dumps(report))


def _check_file(path: Path) -> None:
    """Check a file before anything is published. Raises UsageError E156."""
    from gapless.cli.files.formats import opened  # noqa: PLC0415

    with opened(path):
        pass
    if path.is_dir():
        raise UsageError("E156", f"{path}: cannot be read: it is a folder")


# ---- reading -----------------------------------------------------------------------------------------


def _format(name: str, work: _Work) -> str:
    """How a file is written. Raises UsageError E157."""
    from gapless.cli.files.formats import format_of  # noqa: PLC0415

    if work.form is not None:
        return work.form
    return "jsonl" if name == STDIN else format_of(Path(name), "; or say --format")


async def _pieces(work: _Work, reader: RowReader) -> AsyncIterator[RowPiece]:
    """All rows, piece by piece; those of standard input as soon as they are there."""
    for name in work.files:
        form = _format(name, work)
        if name == STDIN and form == "jsonl":
            async for piece in _live(reader):
                yield piece
        else:
            for piece in _stored(name, form, reader):
                yield piece


def _stored(name: str, form: str, reader: RowReader) -> Iterator[RowPiece]:
    from gapless.cli.files.formats import line_blocks  # noqa: PLC0415

    path = Path(name)
    if name == STDIN:
        if form != "csv":
            raise UsageError("E151", f"--format {form} cannot be read from standard input: name a file")
        yield from reader.csv(sys.stdin.buffer, "stdin")
    elif form == "parquet":
        yield from reader.parquet(path)
    elif form == "xml":
        yield from reader.document(path)
    else:
        with path.open("rb") as file:
            if form == "csv":
                yield from reader.csv(file, name)
                return
            for block in line_blocks(file):
                yield from reader.lines(block, name)


async def _live(reader: RowReader) -> AsyncIterator[RowPiece]:
    """Lines of standard input, as they come."""
    from gapless.cli.files.formats import LINE_BYTES_MAX, LineBlock  # noqa: PLC0415

    blocks: asyncio.Queue[bytes] = asyncio.Queue(4)
    loop = asyncio.get_running_loop()
    # Not a pool thread: one that waits for a terminal would keep the command from ending.
    threading.Thread(target=_read_stdin, args=(sys.stdin.buffer, loop, blocks), daemon=True).start()
    line_number, rest = 1, b""
    while True:
        block = await blocks.get()
        *lines, rest = (rest + block).split(b"\n")
        if not block and rest:
            lines, rest = [rest], b""
        for piece in reader.lines(LineBlock.of(lines, line_number), "stdin"):
            yield piece
        line_number += len(lines)
        if not block:
            return
        if len(rest) > LINE_BYTES_MAX:
            # An endless line is refused by its reader.
            list(reader.lines(LineBlock.of([rest], line_number), "stdin"))


def _read_stdin(file: IO[bytes], loop: asyncio.AbstractEventLoop, blocks: asyncio.Queue[bytes]) -> None:
    # Unbuffered: a thread waiting inside the buffer at exit makes Python abort.
    read: Callable[[int], bytes] = getattr(file, "raw", file).read
    block = b"-"
    while block:
        block = read(READ_BYTES_MAX)
        try:
            asyncio.run_coroutine_threadsafe(blocks.put(block), loop).result()
        except RuntimeError:
            return  # the loop has ended


# ---- sending -----------------------------------------------------------------------------------------


class _Sender:
    """Sends pieces in order, several at a time, no faster than requested."""

    def __init__(self, publisher: Publisher, account: _Account, work: _Work) -> None:
        self._publisher = publisher
        self._account = account
        self._rate = work.rate
        self._rows_max = work.batch or (max(1, int(work.rate / SENDS_PER_SECOND)) if work.rate else 2**20)
        self._sent = 0
        self._began: float | None = None
        self._tasks: deque[asyncio.Task[BatchReceipt]] = deque()

    async def send(self, rows: pa.RecordBatch) -> None:
        """Send rows; returns when there is room for more. Raises errors of earlier ones."""
        from gapless.client.rows import cut  # noqa: PLC0415

        for start in range(0, rows.num_rows, self._rows_max):
            for piece in cut(rows.slice(start, self._rows_max)):
                await self._pace(piece.num_rows)
                await self._publisher.ready()
                task = asyncio.create_task(self._publisher.publish_batch(piece))
                self._tasks.append(task)
                # Each piece is queued before the next, which keeps them in order.
                await asyncio.sleep(0)
                await self._collect(PIECES_MAX)

    async def _pace(self, rows: int) -> None:
        if self._rate is not None:
            self._began = self._began or monotonic()
            due = self._began + self._sent / self._rate
            await asyncio.sleep(max(0.0, due - monotonic()))
        self._sent += rows

    async def _collect(self, left_max: int) -> None:
        while self._tasks and (len(self._tasks) > left_max or self._tasks[0].done()):
            self._account.add(await self._tasks.popleft())

    async def settle(self) -> None:
        """Return when everything is durable."""
        await self._collect(0)

    async def settle_quietly(self, patience_s: float | None = None) -> None:
        """After an error, wait for pending pieces, and count them."""
        done = (await asyncio.wait(self._tasks, timeout=patience_s))[0] if self._tasks else set()
        for task in self._tasks:
            if task in done and task.exception() is None:
                self._account.add(task.result())
        self._tasks.clear()


# ---- progress ----------------------------------------------------------------------------------------


@contextmanager
def _progress(work: _Work, account: _Account) -> Iterator[Callable[[int], None]]:
    """A bar with the count and the rate, on a terminal; without files of known size, no end to it."""
    # Whoever types events sees what was typed; a bar would write into the same line.
    is_typed = STDIN in work.files and sys.stdin.isatty()
    if not sys.stderr.isatty() or not work.files or is_typed:
        yield lambda _size: None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    sizes = [Path(name).stat().st_size for name in work.files if name != STDIN]
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as bar:
        task = bar.add_task("publishing", total=sum(sizes) if STDIN not in work.files else None)

        def advance(size: int) -> None:
            rate = account.events / max(account.seconds, 1e-3)
            description = f"published {account.events:,}, {rate:,.0f}/s"
            bar.update(task, advance=size, description=description)

        yield advance
