"""How are many events read at once? `open_bulk` reads ranges of ticks as record batches from repositories.

```python
with open_bulk("gapless://localhost:7400", "trades") as trades:
    for past in trades.describe().values():
        for batch in trades.read(past.pubend, past.oldest, past.known, where="price > 100"):
            print(batch.num_rows)
```

A subscription delivers new events; this reads past ones. A range of ticks below the known horizon of its
pubend never changes: reading it again gives the same rows.

A `Bulk` can be pickled and sent to other processes; each of them connects directly to the nodes that keep the
events. If a node comes back at another port after a restart, the brokers are asked again, and a read resumes
after the last tick it returned.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
import pyarrow as pa
from pyarrow import flight

from gapless.client.refusals import error_of
from gapless.client.tls import TlsFiles
from gapless.errors import GaplessError, LinkError, ParameterError, no_pubend
from gapless.model.ids import TopicId
from gapless.model.schema import Schema
from gapless.model.ticks import Tick
from gapless.wire.bulk import (
    OWN_COLUMNS,
    TOKEN_HEADER,
    AskPlan,
    AskTopic,
    Described,
    Part,
    PubendPast,
    ReadHorizon,
    ReadPlan,
    ReadTicket,
    Refusal,
    encode,
)

__all__ = ["Bulk", "Part", "PubendPast", "ReadHorizon", "TlsFiles", "open_bulk"]

#: How long to retry a node that does not answer.
PATIENCE_SECONDS = 60.0
#: Pause before a retry: the first, and the longest.
_PAUSE_SECONDS = 0.05
_PAUSE_SECONDS_MAX = 2.0

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkPlace:
    """Everything another process needs to read a topic. Contains the token: send it only where you trust."""

    brokers: str
    topic: str
    token: str | None = field(default=None, repr=False)
    #: The CA file, or `TlsFiles` with a client certificate; True for the system's CAs. Other processes need
    #: files of the same names.
    tls: str | TlsFiles | bool | None = None
    #: The columns of the topic, as in a network description.
    columns: Mapping[str, str] = field(default_factory=dict)
    #: The bulk-read address of each pubend.
    doors: Mapping[str, str] = field(default_factory=dict)


def open_bulk(
    brokers: str,
    topic: str,
    *,
    token: str | None = None,
    tls: str | PathLike[str] | TlsFiles | bool | None = None,
    patience_s: float = PATIENCE_SECONDS,
) -> Bulk:
    """The events of a topic, for bulk reads. `brokers`, `token` and `tls` are as for `connect`, but a client
    certificate is given as `TlsFiles`, which other processes can use too.

    Raises UsageError, or LinkError if no broker answers.
    """
    if not isinstance(tls, str | PathLike | TlsFiles | bool | None):
        raise ParameterError(
            "E191", "for bulk reads, tls must be a CA file, TlsFiles or True, not an SSL context"
        )
    option = str(tls) if isinstance(tls, PathLike) else tls
    place = BulkPlace(brokers=brokers, topic=topic, token=token, tls=option)
    bulk = Bulk(place, patience_s=patience_s)
    bulk.find()
    return bulk


class Bulk:
    """The events of one topic. Made by `open_bulk`, or by unpickling one."""

    def __init__(self, place: BulkPlace, *, patience_s: float = PATIENCE_SECONDS) -> None:
        self.place = place
        self.patience_s = patience_s
        self._clients: dict[str, Any] = {}
        self._schema: Schema | None = None

    def __reduce__(self) -> tuple[Callable[..., Bulk], tuple[BulkPlace]]:
        return Bulk, (self.place,)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    @property
    def schema(self) -> Schema:
        """The columns of the topic."""
        if self._schema is None:
            self._schema = Schema.parse(TopicId(self.place.topic), self.place.columns)
        return self._schema

    @property
    def pubends(self) -> tuple[str, ...]:
        """The pubends of the topic, sorted."""
        return tuple(sorted(self.place.doors))

    def arrow(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """The Arrow schema of the batches of `read`. Raises ParameterError for an unknown column."""
        fields = {
            f"{each.name}_" if each.name in OWN_COLUMNS else each.name: each for each in self.schema.arrow()
        }
        for name in columns or ():
            if name not in fields:
                raise ParameterError(
                    "E191", f"topic '{self.place.topic}' has no column {name!r}: it has {', '.join(fields)}"
                )
        chosen = [fields[name].with_name(name) for name in (fields if columns is None else columns)]
        return pa.schema([*_OWN_FIELDS, *chosen])

    def find(self) -> None:
        """Ask the brokers where the topic's pubends are. Raises UsageError or LinkError."""
        # Imported here because processes that only read need no event loop.
        from gapless.client import sync  # noqa: PLC0415

        place = self.place
        with sync.connect(place.brokers, token=place.token, tls=place.tls, name="bulk") as client:
            topic, doors = client.bulk(place.topic)
        self._schema = None
        self.place = BulkPlace(
            brokers=place.brokers,
            topic=place.topic,
            token=place.token,
            tls=place.tls,
            columns=topic.columns,
            doors={str(pubend): door for pubend, door in doors.items()},
        )

    # Asking.

    def horizons(self) -> dict[str, ReadHorizon]:
        """Per pubend, one past its last event, and the tick below which everything is known."""
        answers = self._retried(lambda: self._asked_all("horizons"))
        found = [each for part in answers for each in msgspec.json.decode(part, type=list[ReadHorizon])]
        return {each.pubend: each for each in found}

    def describe(self) -> dict[str, PubendPast]:
        """What is kept of each pubend, and where it is."""
        answers = self._retried(lambda: self._asked_all("describe"))
        found = [each for part in answers for each in msgspec.json.decode(part, type=Described).pubends]
        return {each.pubend: each for each in found}

    def plan(
        self, pubend: str, start: Tick, stop: Tick, *, rows: int, rows_max: int | None = None
    ) -> list[Part]:
        """Cut a range into parts of about `rows` rows, at most `rows_max` rows in all."""
        asked = encode(
            AskPlan(
                topic=self.place.topic, pubend=pubend, start=start, stop=stop, rows=rows, rows_max=rows_max
            )
        )
        answer = self._retried(lambda: self._act(self._address_of(pubend), "plan", asked))
        return list(msgspec.json.decode(answer, type=ReadPlan).parts)

    # Reading.

    def read(
        self,
        pubend: str,
        start: Tick,
        stop: Tick | None = None,
        *,
        where: str = "",
        columns: Sequence[str] | None = None,
        history: bool = True,
        gone: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """The events of a range that `where` accepts, in order, in batches: `tick`, `pubend`, the columns.

        `stop` defaults to the known horizon. Without `history`, a read returns what a new subscription would
        get: of a compacted topic, the newest rows. With `gone`, a range whose start is no longer kept starts
        later; otherwise that raises StoreError (E306).

        Raises the node's error, or LinkError if the node does not come back in time.
        """
        schema = self.arrow(columns)
        asked = None if columns is None else tuple(columns)
        at, since = start, time.monotonic()
        pause_s = _PAUSE_SECONDS
        while True:
            ticket = ReadTicket(
                topic=self.place.topic,
                pubend=pubend,
                start=at,
                stop=stop,
                where=where,
                columns=asked,
                history=history,
                gone=gone,
            )
            try:
                for batch in self._stream(self._address_of(pubend), ticket):
                    yield _with_pubend(batch, pubend, schema)
                    at = batch.column(0)[-1].as_py() + 1
                    since, pause_s = time.monotonic(), _PAUSE_SECONDS
                return
            except GaplessError as error:
                pause_s = self._paused(error, since, pause_s)

    def _stream(self, door: str, ticket: ReadTicket) -> Iterator[pa.RecordBatch]:
        try:
            reader = self._client(door).do_get(flight.Ticket(encode(ticket)), self._options())
            for chunk in reader:
                yield chunk.data
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise _understood(error, door) from error

    # One call, and another one when the node is away.

    def _act(self, door: str, kind: str, body: bytes) -> bytes:
        try:
            answers = list(self._client(door).do_action((kind, body), self._options()))
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise _understood(error, door) from error
        found: bytes = answers[0].body.to_pybytes()
        return found

    def _asked_all(self, kind: str) -> list[bytes]:
        """Ask every node that hosts a pubend of the topic."""
        asked = encode(AskTopic(topic=self.place.topic))
        return [self._act(door, kind, asked) for door in sorted(set(self.place.doors.values()))]

    def _retried(self, call: Callable[[], Made]) -> Made:
        since, pause_s = time.monotonic(), _PAUSE_SECONDS
        while True:
            try:
                return call()
            except GaplessError as error:
                pause_s = self._paused(error, since, pause_s)

    def _paused(self, error: GaplessError, since: float, pause_s: float) -> float:
        """Pause, then ask the brokers for addresses again. Raises the error if retrying is pointless."""
        if not error.retry or time.monotonic() - since + pause_s > self.patience_s:
            raise error
        time.sleep(pause_s)
        try:
            self.find()
        except GaplessError as missed:
            # Perhaps no node answers or admits us yet: the next retry will show.
            if not missed.retry and not isinstance(missed, LinkError):
                raise
        self.close()
        return min(2 * pause_s, _PAUSE_SECONDS_MAX)

    def _address_of(self, pubend: str) -> str:
        door = self.place.doors.get(pubend)
        if door is None:
            raise no_pubend(pubend, self.place.topic, self.pubends)
        return door

    def _client(self, door: str) -> Any:
        client = self._clients.get(door)
        if client is None:
            option = self.place.tls
            files = (
                option
                if isinstance(option, TlsFiles)
                else TlsFiles(option if isinstance(option, str) else None)
            )
            client = self._clients[door] = flight.FlightClient(door, **files.for_flight())
        return client

    def _options(self) -> Any:
        token = self.place.token
        headers = [] if token is None else [(TOKEN_HEADER.encode(), f"Bearer {token}".encode())]
        return flight.FlightCallOptions(headers=headers)


_OWN_FIELDS = (
    pa.field("tick", pa.int64(), nullable=False),
    pa.field("pubend", pa.string(), nullable=False),
)


def _with_pubend(batch: pa.RecordBatch, pubend: str, schema: pa.Schema) -> pa.RecordBatch:
    """Add the pubend column to a batch. It is the same for all rows, so nodes do not send it."""
    tick, *others = batch.columns
    names = pa.repeat(pa.scalar(pubend, pa.string()), batch.num_rows)
    return pa.RecordBatch.from_arrays([tick, names, *others], schema=schema)


def _understood(error: Exception, door: str) -> GaplessError:
    """The error a node reported, or a LinkError if it cannot be reached."""
    detail = getattr(error, "extra_info", b"")
    if detail:
        refusal = msgspec.json.decode(detail, type=Refusal)
        return error_of(refusal.code, refusal.message, retry=refusal.retry)
    reason = str(error).splitlines()[0].split(". Detail:")[0]
    return LinkError("E411", f"bulk reads at {door} failed: {reason}", retry=True)
