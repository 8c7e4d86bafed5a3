"""How does a node log what happens? Events with names and fields, as lines of JSON or for people.

```python
log = event_log("gapless.links")
log.info("link_up", neighbour="b1")
```

is `{"time": "2026-11-16T02:40:01.123Z", "level": "info", "broker": "s1", "event": "link_up", "neighbour":
"b1"}` for a program, and `02:40:01.123 info    link_up neighbour=b1` for a person. Names of events do not
change; docs/operating.md lists them.

A trouble that repeats, such as a peer that sends garbage again and again, is told when it begins, and then
once in a while with how often it has happened since: `log.repeated`.

Much of what is told was chosen by a peer, such as the name of a client. Both forms escape whatever is not
printable, so no peer can control the terminal of a reader, or add lines to the log.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Literal, TextIO

Form = Literal["json", "text"]

#: A trouble that repeats is told at most so often.
REPEAT_SECONDS = 10.0
#: Maximum number of different troubles that are counted; beyond it, the oldest are reported and forgotten.
REPEATS_MAX = 1_024


@dataclass(slots=True)
class _Repeat:
    """One trouble that has been told, and what came since."""

    logger: logging.Logger
    level: int
    event: str
    told_at: float
    count: int = 0
    fields: dict[str, object] = field(default_factory=dict)


class Repeats:
    """The troubles of one process that repeat."""

    def __init__(self) -> None:
        self._known: dict[Hashable, _Repeat] = {}

    def happened(
        self, logger: logging.Logger, level: int, event: str, by: Hashable, fields: dict[str, object]
    ) -> None:
        """Tell it if it is new; count it if not."""
        key = (logger.name, event, by)
        known = self._known.get(key)
        if known is not None:
            known.count += 1
            known.fields = fields
            return
        if len(self._known) >= REPEATS_MAX:
            self._tell(self._known.pop(next(iter(self._known))))
        self._known[key] = _Repeat(logger, level, event, time.monotonic())
        _emit(logger, level, event, fields)

    def sweep(self, *, all_of_them: bool = False) -> None:
        """Tell what has repeated for long enough, and forget what has not."""
        due = time.monotonic() - REPEAT_SECONDS
        for key, known in list(self._known.items()):
            if all_of_them or known.told_at <= due:
                self._tell(known)
                if known.count and not all_of_them:
                    known.told_at, known.count = time.monotonic(), 0
                else:
                    del self._known[key]

    def _tell(self, known: _Repeat) -> None:
        if known.count:
            _emit(known.logger, known.level, known.event, {**known.fields, "repeated": known.count})


#: All nodes of a process share one log, and so they share this.
REPEATS = Repeats()


class EventLog:
    """A logger whose lines are events with fields."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, /, **fields: object) -> None:
        """Log a detail that is shown only with --verbose."""
        _emit(self._logger, logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        """A change that is as it should be."""
        _emit(self._logger, logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        """Somebody should look at this some time."""
        _emit(self._logger, logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        """Somebody should look at this now."""
        _emit(self._logger, logging.ERROR, event, fields)

    def repeated(
        self, event: str, /, *, by: Hashable, level: int = logging.WARNING, **fields: object
    ) -> None:
        """A trouble that may come again and again; `by` says which are the same one."""
        REPEATS.happened(self._logger, level, event, by, fields)


def event_log(name: str) -> EventLog:
    """The log of a part of a node."""
    return EventLog(name)


def configure(broker: str, *, form: Form | None, verbose: bool, stream: TextIO | None = None) -> None:
    """Send all logs of this process to standard error: as text to a terminal, else as JSON."""
    target = sys.stderr if stream is None else stream
    chosen: Form = form or ("text" if target.isatty() else "json")
    handler = logging.StreamHandler(target)
    handler.setFormatter(JsonLines(broker) if chosen == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if verbose else logging.INFO)
    # The debug messages of asyncio do not help.
    logging.getLogger("asyncio").setLevel(logging.WARNING)


class JsonLines(logging.Formatter):
    """A line of JSON for each record."""

    def __init__(self, broker: str) -> None:
        super().__init__()
        self._broker = broker

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        line: dict[str, object] = {
            "time": f"{_stamp(record, '%Y-%m-%dT%H:%M:%S')}Z",
            "level": record.levelname.lower(),
            "broker": self._broker,
            "logger": record.name,
            **_content(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextLines(logging.Formatter):
    """A line for a person."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        content = _content(record)
        event = _printable(str(content.pop("event")))
        fields = "".join(f" {name}={_shown(value)}" for name, value in content.items())
        line = f"{_stamp(record, '%H:%M:%S')} {record.levelname.lower():<7} {event}{fields}"
        if not record.exc_info:
            return line
        # Indented, so that no line of a message that a peer has chosen passes for a line of the log.
        trace = self.formatException(record.exc_info).splitlines()
        return "\n".join([line, *(f"  {_printable(each)}" for each in trace)])


def _emit(logger: logging.Logger, level: int, event: str, fields: dict[str, object]) -> None:
    if logger.isEnabledFor(level):
        logger.log(level, event, extra={"gapless_fields": fields})


def _content(record: logging.LogRecord) -> dict[str, object]:
    """The event and its fields; of a record that is none of ours, its text is the event."""
    return {"event": record.getMessage(), **getattr(record, "gapless_fields", {})}


def _stamp(record: logging.LogRecord, form: str) -> str:
    return f"{time.strftime(form, time.gmtime(record.created))}.{int(record.msecs):03}"


def _shown(value: object) -> str:
    text = str(value)
    return text if text and text.isprintable() and not set(text) & set(' "=') else json.dumps(text)


def _printable(text: str) -> str:
    """A text with control characters escaped, on one line."""
    return text if text.isprintable() else json.dumps(text)[1:-1]
