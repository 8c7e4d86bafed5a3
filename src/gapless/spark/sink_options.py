"""What may be asked of a write with `format("gapless")`? Options as texts, checked before Spark computes.

| option | what it says |
| --- | --- |
| `brokers` | where the network is: `gapless://host:7400`, or several hosts with commas |
| `topic` | the topic to publish to |
| `publish` | `commit` (otherwise): the driver publishes a batch when it is computed; `tasks`: each task |
| `order` | `any` (otherwise), or `given` to publish rows in the order in which Spark gives them |
| `job` | of a batch write: the same rows under the same name are published once, however often it runs |
| `pubend` | which pubend of the topic; the first by name otherwise |
| `token` | the token that lets us in |
| `ca`, `certificate`, `key` | files for TLS: the authority of the nodes; the certificate that we show |
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field

from gapless.client.tls import TlsFiles
from gapless.errors import UsageError

_KNOWN = ("brokers", "topic", "publish", "order", "job", "pubend", "token", "ca", "certificate", "key")
#: What Spark itself puts among the options of a stream.
_OF_SPARK = frozenset({"checkpointlocation", "queryname", "path"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Where a query writes, and how."""

    brokers: str
    topic: str
    #: Whether each task publishes what it has; otherwise the driver publishes all of a batch.
    by_tasks: bool = False
    #: Whether rows are published in the order in which Spark gives them.
    is_ordered: bool = False
    job: str | None = None
    pubend: str | None = None
    token: str | None = field(default=None, repr=False)
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None

    @property
    def tls(self) -> TlsFiles | None:
        """What TLS needs; None where nothing of it is said."""
        return TlsFiles.of(self.ca, self.certificate, self.key)


def parse_sink_options(told: Mapping[str, str]) -> SinkOptions:
    """The options of a sink.

    >>> parse_sink_options({"brokers": "gapless://b", "topic": "trades", "publish": "tasks"}).by_tasks
    True

    Raises UsageError (E178), one line that names the option.
    """
    found = {name.lower(): value for name, value in told.items()}
    for name in found:
        if name not in _KNOWN and name not in _OF_SPARK:
            close = difflib.get_close_matches(name, _KNOWN, 1)
            hint = f"did you mean '{close[0]}'?" if close else f"there are {', '.join(_KNOWN)}"
            raise _wrong(name, f"there is no such option: {hint}")
    if found.get("path"):
        raise _wrong("path", "a topic has no path: name it with option 'topic', and save() without a path")
    for name in ("brokers", "topic"):
        if not found.get(name, "").strip():
            raise _wrong(name, "is missing: both 'brokers' and 'topic' are needed")
    if found.get("key") and not found.get("certificate"):
        raise _wrong("key", "goes with option 'certificate': give both")
    by_tasks = _chosen("publish", found.get("publish", "commit"), ("commit", "tasks")) == "tasks"
    if by_tasks and found.get("job"):
        raise _wrong("job", "goes with publish=commit: tasks do not know of the rows of other tasks")
    return SinkOptions(
        brokers=found["brokers"].strip(),
        topic=found["topic"].strip(),
        by_tasks=by_tasks,
        is_ordered=_chosen("order", found.get("order", "any"), ("any", "given")) == "given",
        job=found.get("job") or None,
        pubend=found.get("pubend") or None,
        token=found.get("token") or None,
        ca=found.get("ca") or None,
        certificate=found.get("certificate") or None,
        key=found.get("key") or None,
    )


def _chosen(option: str, told: str, allowed: tuple[str, ...]) -> str:
    if told.lower() not in allowed:
        raise _wrong(option, f"must be {' or '.join(map(repr, allowed))}, got {told!r:.80}")
    return told.lower()


def _wrong(option: str, text: str) -> UsageError:
    return UsageError("E178", f"option '{option}': {text}")
