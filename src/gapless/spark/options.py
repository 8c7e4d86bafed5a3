"""What may be asked of `format("gapless")`? Options as texts, checked before Spark plans anything.

| option | what it says |
| --- | --- |
| `brokers` | where the network is: `gapless://host:7400`, or several hosts with commas |
| `topic` | the topic |
| `where` | a condition that the repository evaluates, as for a subscription |
| `columns` | the columns to read, with commas; all of them otherwise. `tick` and `pubend` are always there |
| `from` | `earliest`, `now`, a tick, a time such as `2026-01-31T12:00:00Z`, or JSON: a tick per pubend |
| `to` | where to end, in the same words; the end is not included |
| `name` | of a durable subscription that holds the log for this query, and is acknowledged with its commits |
| `rows_per_partition` | about so many rows are one task of Spark |
| `max_rows` | a micro-batch has no more rows than this |
| `gone` | `allow` to begin later when the beginning is no longer kept; otherwise that is an error |
| `history` | `false` to read what a new subscription would get: of a compacted topic the newest rows |
| `pushdown` | `true` to evaluate filters of a batch query where the events are; see `PushingReader` |
| `token` | the token that lets us in |
| `ca`, `certificate`, `key` | files for TLS: the authority of the nodes; the certificate that we show |

A stream begins with `now` unless it is told otherwise, and a batch with `earliest`.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from gapless.client.tls import TlsFiles
from gapless.errors import UsageError
from gapless.model.ticks import TICK_MAX, TICK_MIN, Tick

#: About so many rows are one task, unless the user says otherwise.
ROWS_PER_PARTITION = 500_000

#: A place in a topic, as it is told.
Place = str | Tick | Mapping[str, Tick]
EARLIEST, NOW = "earliest", "now"
_KNOWN = (
    "brokers",
    "topic",
    "where",
    "columns",
    "from",
    "to",
    "name",
    "rows_per_partition",
    "max_rows",
    "gone",
    "history",
    "pushdown",
    "token",
    "ca",
    "certificate",
    "key",
)
_BOOLEANS = {"true": True, "false": False}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What a query reads."""

    brokers: str
    topic: str
    where: str = ""
    columns: tuple[str, ...] | None = None
    #: EARLIEST, NOW, a tick, or a tick for each pubend; None where the user has not said.
    start: Place | None = None
    stop: Place | None = None
    name: str | None = None
    rows_per_partition: int = ROWS_PER_PARTITION
    max_rows: int | None = None
    gone: bool = False
    history: bool = True
    pushdown: bool = False
    token: str | None = field(default=None, repr=False)
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None

    @property
    def tls(self) -> TlsFiles | None:
        """What TLS needs; None where nothing of it is said."""
        return TlsFiles.of(self.ca, self.certificate, self.key)


def parse_options(told: Mapping[str, str]) -> SourceOptions:
    """The options of a source.

    >>> parse_options({"brokers": "gapless://b", "topic": "trades", "columns": "sym, price"}).columns
    ('sym', 'price')

    Raises UsageError (E178), one line that names the option.
    """
    found = {name.lower(): value for name, value in told.items()}
    for name in found:
        if name not in _KNOWN and name != "path":
            close = difflib.get_close_matches(name, _KNOWN, 1)
            hint = f"did you mean '{close[0]}'?" if close else f"there are {', '.join(_KNOWN)}"
            raise _wrong(name, f"there is no such option: {hint}")
    if found.get("path"):
        raise _wrong("path", "a topic has no path: name it with option 'topic', and load() without a path")
    for name in ("brokers", "topic"):
        if not found.get(name, "").strip():
            raise _wrong(name, "is missing: both 'brokers' and 'topic' are needed")
    if found.get("key") and not found.get("certificate"):
        raise _wrong("key", "goes with option 'certificate': give both")
    return SourceOptions(
        brokers=found["brokers"].strip(),
        topic=found["topic"].strip(),
        where=found.get("where", ""),
        columns=_columns(found.get("columns")),
        start=_place("from", found.get("from")),
        stop=_place("to", found.get("to")),
        name=found.get("name") or None,
        rows_per_partition=_count("rows_per_partition", found.get("rows_per_partition"), ROWS_PER_PARTITION),
        max_rows=_count("max_rows", found["max_rows"], 1) if found.get("max_rows") else None,
        gone=_choice("gone", found.get("gone", "error"), {"allow": True, "error": False}),
        history=_choice("history", found.get("history", "true").lower(), _BOOLEANS),
        pushdown=_choice("pushdown", found.get("pushdown", "false").lower(), _BOOLEANS),
        token=found.get("token") or None,
        ca=found.get("ca") or None,
        certificate=found.get("certificate") or None,
        key=found.get("key") or None,
    )


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
        raise ValueError(f"{tick} is no tick")
    return tick


def _columns(told: str | None) -> tuple[str, ...] | None:
    if told is None:
        return None
    names = [name.strip() for name in told.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise _wrong("columns", f"write the names of columns, each once, with commas, got {told!r:.80}")
    # These are there anyway, and first.
    return tuple(name for name in names if name not in ("tick", "pubend"))


def _place(option: str, told: str | None) -> Place | None:
    if told is None or not told.strip():
        return None
    if told.lstrip().startswith("{"):
        return _offset(option, told)
    if told.strip().lower() in (EARLIEST, NOW):
        return told.strip().lower()
    try:
        return tick_of(told)
    except ValueError:
        raise _wrong(
            option,
            f"must be 'earliest', 'now', a tick or a time such as 2026-01-31T12:00:00Z, got {told!r:.80}",
        ) from None


def _offset(option: str, told: str) -> dict[str, Tick]:
    try:
        found = json.loads(told)
        if all(isinstance(tick, int) and TICK_MIN <= tick < TICK_MAX for tick in found.values()):
            return dict(found)
    except ValueError:
        pass
    raise _wrong(option, f'must have a tick for each pubend, such as {{"trades-1": 12}}, got {told!r:.80}')


def _count(option: str, told: str | None, otherwise: int) -> int:
    if told is None:
        return otherwise
    if not told.strip().isdigit() or not 1 <= int(told) <= 2**53:
        raise _wrong(option, f"must be a whole number from 1 on, got {told!r:.80}")
    return int(told)


def _choice(option: str, told: str, allowed: Mapping[str, bool]) -> bool:
    if told not in allowed:
        raise _wrong(option, f"must be {' or '.join(map(repr, allowed))}, got {told!r:.80}")
    return allowed[told]


def _wrong(option: str, text: str) -> UsageError:
    return UsageError("E178", f"option '{option}': {text}")
