"""What may be asked of `format("gapless")`? Options as texts, checked before Spark plans anything.

Reading and writing have these in common:

| option | meaning |
| --- | --- |
| `brokers` | where the network is: `gapless://host:7400`, or several hosts separated by commas |
| `topic` | the topic |
| `token` | the token to connect with |
| `ca`, `certificate`, `key` | files for TLS: the authority of the nodes; the certificate that we show |

A read also has these. By default a stream begins with `now`, and a batch with `earliest`.

| option | meaning |
| --- | --- |
| `where` | a condition that the repository evaluates, as for a subscription |
| `columns` | columns to read, separated by commas; default: all. `tick` and `pubend` are always included |
| `from` | `earliest`, `now`, a tick, a time such as `2026-01-31T12:00:00Z`, or JSON: a tick per pubend |
| `to` | where to end, in the same form; the end is not included |
| `name` | of a durable subscription that holds the log for this query, and is acknowledged with its commits |
| `rows_per_partition` | approximate number of rows per Spark task |
| `max_rows` | maximum number of rows in a micro-batch |
| `gone` | `allow` to begin later when the beginning is no longer kept; otherwise that is an error |
| `history` | `false` to read what a new subscription would get: the newest rows of a compacted topic |
| `pushdown` | `true` to evaluate filters of a batch query where the events are; see `PushingReader` |

And a write these:

| option | meaning |
| --- | --- |
| `publish` | `commit` (default): the driver publishes a batch when it is computed; `tasks`: each task |
| `order` | `any` (default), or `given` to publish rows in the order in which Spark delivers them |
| `job` | for a batch write: the same rows under the same name are published once, however often it runs |
| `pubend` | which pubend of the topic; default: the first by name |
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from gapless.client.tls import TlsFiles
from gapless.errors import UsageError
from gapless.model.ticks import TICK_MAX, TICK_MIN, Tick

#: Default of `rows_per_partition`.
ROWS_PER_PARTITION = 500_000

#: A position in a topic, as given by the user.
Place = str | Tick | Mapping[str, Tick]
EARLIEST, NOW = "earliest", "now"
_CONNECTION = ("brokers", "topic", "token", "ca", "certificate", "key")
_SOURCE = (
    *("where", "columns", "from", "to", "name", "rows_per_partition", "max_rows", "gone", "history"),
    "pushdown",
)
_SINK = ("publish", "order", "job", "pubend")
#: Options that Spark itself adds for a stream that is written.
_OF_SPARK = ("checkpointlocation", "queryname")
_BOOLEANS = {"true": True, "false": False}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """Which topic is meant, and how to reach it."""

    brokers: str
    topic: str
    token: str | None = field(default=None, repr=False)
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None

    @property
    def tls(self) -> TlsFiles | None:
        """The files for TLS; None if none is given."""
        return TlsFiles.of(self.ca, self.certificate, self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(ConnectionOptions):
    """What a query reads."""

    where: str = ""
    columns: tuple[str, ...] | None = None
    #: EARLIEST, NOW, a tick, or a tick for each pubend; None if not given.
    start: Place | None = None
    stop: Place | None = None
    name: str | None = None
    rows_per_partition: int = ROWS_PER_PARTITION
    max_rows: int | None = None
    gone: bool = False
    history: bool = True
    pushdown: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions(ConnectionOptions):
    """Where a query writes, and how."""

    #: Whether each task publishes its rows; otherwise the driver publishes the whole batch.
    by_tasks: bool = False
    #: Whether rows are published in the order in which Spark delivers them.
    is_ordered: bool = False
    job: str | None = None
    pubend: str | None = None


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """The options of a source.

    >>> parse_options({"brokers": "gapless://b", "topic": "trades", "columns": "sym, price"}).columns
    ('sym', 'price')

    Raises UsageError (E178), one line that names the option.
    """
    found = _known_options(options, _SOURCE, "load()")
    return SourceOptions(
        **_connection(found),
        where=found.get("where", ""),
        columns=_columns(found.get("columns")),
        start=_place("from", found.get("from")),
        stop=_place("to", found.get("to")),
        name=found.get("name") or None,
        rows_per_partition=_count("rows_per_partition", found.get("rows_per_partition"), ROWS_PER_PARTITION),
        max_rows=_count("max_rows", found["max_rows"], 1) if found.get("max_rows") else None,
        gone=_choice("gone", found.get("gone", "error"), {"allow": True, "error": False}),
        history=_choice("history", found.get("history", "true"), _BOOLEANS),
        pushdown=_choice("pushdown", found.get("pushdown", "false"), _BOOLEANS),
    )


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """The options of a sink.

    >>> parse_sink_options({"brokers": "gapless://b", "topic": "trades", "publish": "tasks"}).by_tasks
    True

    Raises UsageError (E178), one line that names the option.
    """
    found = _known_options(options, _SINK, "save()", ignored=_OF_SPARK)
    by_tasks = _choice("publish", found.get("publish", "commit"), {"commit": False, "tasks": True})
    if by_tasks and found.get("job"):
        raise _wrong("job", "needs publish=commit: tasks do not know the rows of other tasks")
    return SinkOptions(
        **_connection(found),
        by_tasks=by_tasks,
        is_ordered=_choice("order", found.get("order", "any"), {"any": False, "given": True}),
        job=found.get("job") or None,
        pubend=found.get("pubend") or None,
    )


def _known_options(
    options: Mapping[str, str], more: Sequence[str], verb: str, *, ignored: Sequence[str] = ()
) -> dict[str, str]:
    """The options by their names in lower case. Raises UsageError if there is no such option."""
    found = {name.lower(): value for name, value in options.items()}
    known = (*_CONNECTION, *more)
    for name in found:
        if name not in (*known, *ignored, "path"):
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean '{close[0]}'?" if close else f"there are {', '.join(known)}"
            raise _wrong(name, f"there is no such option: {hint}")
    if found.get("path"):
        raise _wrong("path", f"a topic has no path: name it with option 'topic', and {verb} without a path")
    return found


def _connection(found: Mapping[str, str]) -> dict[str, Any]:
    """The fields that reading and writing share."""
    for name in ("brokers", "topic"):
        if not found.get(name, "").strip():
            raise _wrong(name, "is missing: both 'brokers' and 'topic' are needed")
    if found.get("key") and not found.get("certificate"):
        raise _wrong("key", "goes with option 'certificate': give both")
    return {
        "brokers": found["brokers"].strip(),
        "topic": found["topic"].strip(),
        **{name: found.get(name) or None for name in ("token", "ca", "certificate", "key")},
    }


def tick_of(text: str) -> Tick:
    """A tick, or the tick of a time; a time without a zone is in UTC.

    >>> tick_of("12"), tick_of("1970-01-01T00:00:01Z"), tick_of("1970-01-01 01:00:01+01:00")
    (12, 1000000, 1000000)

    Raises ValueError.
    """
    stripped = text.strip()
    if stripped.lstrip("-").isdigit():
        tick = int(stripped)
    else:
        time = datetime.fromisoformat(stripped)
        time = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
        tick = (time - _EPOCH) // timedelta(microseconds=1)
    if not TICK_MIN <= tick < TICK_MAX:
        raise ValueError(f"{tick} is not a tick")
    return tick


def _columns(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise _wrong(
            "columns", f"write the names of columns, each once, separated by commas, got {text!r:.80}"
        )
    # These are always included, and come first.
    return tuple(name for name in names if name not in ("tick", "pubend"))


def _place(option: str, text: str | None) -> Place | None:
    if text is None or not text.strip():
        return None
    if text.lstrip().startswith("{"):
        return _offset(option, text)
    if text.strip().lower() in (EARLIEST, NOW):
        return text.strip().lower()
    try:
        return tick_of(text)
    except ValueError:
        raise _wrong(
            option,
            f"must be 'earliest', 'now', a tick or a time such as 2026-01-31T12:00:00Z, got {text!r:.80}",
        ) from None


def _offset(option: str, text: str) -> dict[str, Tick]:
    try:
        found = json.loads(text)
        if all(isinstance(tick, int) and TICK_MIN <= tick < TICK_MAX for tick in found.values()):
            return dict(found)
    except ValueError:
        pass
    raise _wrong(option, f'must have a tick for each pubend, such as {{"trades-1": 12}}, got {text!r:.80}')


def _count(option: str, text: str | None, otherwise: int) -> int:
    if text is None:
        return otherwise
    if not text.strip().isdigit() or not 1 <= int(text) <= 2**53:
        raise _wrong(option, f"must be a whole number from 1 on, got {text!r:.80}")
    return int(text)


def _choice(option: str, text: str, allowed: Mapping[str, bool]) -> bool:
    if text.lower() not in allowed:
        raise _wrong(option, f"must be {' or '.join(map(repr, allowed))}, got {text!r:.80}")
    return allowed[text.lower()]


def _wrong(option: str, text: str) -> UsageError:
    return UsageError("E178", f"option '{option}': {text}")
