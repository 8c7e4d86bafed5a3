"""How are many events read at once? An Arrow Flight service over the pasts of the pubends that live here.

Every call runs in a thread of the Flight library, beside the event loop. It touches two things that others
write: numbers of a pubend, which only grow and are read one at a time, and logs, which allow reads beside
the writer. How many reads run at once is bounded, also for one principal; whoever comes later waits a little
or is refused at once, before any work, and comes again. Converting rows to columns holds the interpreter
lock, and many threads doing so would starve the event loop, so few compute at a time. A reader that takes
nothing for long loses its slot (`gapless.node.bulk_reads.slots`). One that sends too much is disconnected
(`gapless.node.bulk_reads.inbound`).

What goes wrong is told in the words of everything else here: the error of a call carries the code and the
text as JSON, and no call is answered with a traceback. Where files are is told to callers on the same machine
alone, who may read an archive without us. Importing this module loads Flight, so nobody does before somebody
wants to read.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyarrow import flight

from gapless.content.condition import EVERYTHING as ALL_EVENTS
from gapless.content.language import parse_condition
from gapless.errors import GaplessError, LinkError, StoreError, UsageError
from gapless.model.ids import PubendId, TopicId
from gapless.model.ticks import Tick, TickRange
from gapless.node.bulk_reads.connections import ConnectionBound
from gapless.node.bulk_reads.inbound import Inbound, Resident, can_watch, traffic_of
from gapless.node.bulk_reads.peers import hang_up, is_loopback
from gapless.node.bulk_reads.slots import IDLE_SECONDS, Read, Reads
from gapless.node.descriptors import limit
from gapless.node.logs import event_log
from gapless.node.security import EVERYTHING, ClientCertificates, Rights, Tls, Tokens
from gapless.protocol.sessions.identities import ANONYMOUS
from gapless.store.history import History, Wanted
from gapless.wire.address import Address
from gapless.wire.bulk import (
    TOKEN_HEADER,
    ArchivedFile,
    AskPlan,
    AskTopic,
    Described,
    Part,
    PubendPast,
    ReadHorizon,
    ReadPlan,
    ReadTicket,
    Refusal,
    decode_request,
    encode,
    refusal_of,
)
from gapless.wire.codec import column_texts

log = event_log("gapless.bulk")

#: Maximum number of concurrent reads, and how long another one waits before it is refused (E199).
READS_MAX = 16
WAIT_SECONDS_MAX = 10.0
#: One principal may have this many, those that wait included; without a token, each connection may.
READS_OF_ONE_MAX = 12
#: Maximum number of threads that read logs and build columns at the same time.
WORKERS_MAX = 2
#: Approximate number of bytes handed over at once. A reader of 35 kB/s takes them before it counts as idle.
PIECE_BYTES = 2**20
#: The calls of Flight that are answered.
_OFFERED = frozenset(
    {flight.FlightMethod.DO_GET, flight.FlightMethod.DO_ACTION, flight.FlightMethod.LIST_ACTIONS}
)


class BulkSource:
    """What the service reads: the pasts of a node's pubends, and how far each of them is."""

    def __init__(
        self,
        histories: Callable[[TopicId], Mapping[PubendId, History]],
        horizon: Callable[[PubendId], tuple[Tick, Tick]],
    ) -> None:
        """`horizon` gives one past the last durable event, and the known horizon. Both run in any thread."""
        self._histories = histories
        self._horizon = horizon

    def of(self, topic: str) -> dict[PubendId, History]:
        """The pasts of a topic that are kept here. Raises UsageError when none is."""
        found = dict(self._histories(TopicId(topic)))
        if not found:
            raise UsageError("E141", f"no pubend of topic '{topic}' is here: ask the node that hosts it")
        return found

    def one(self, topic: str, pubend: str) -> History:
        """The past of one pubend. Raises UsageError."""
        found = self.of(topic)
        if pubend not in found:
            raise UsageError("E143", f"pubend '{pubend}' of topic '{topic}' is not here: ask where it is")
        return found[PubendId(pubend)]

    def horizon(self, pubend: PubendId) -> ReadHorizon:
        """How far a pubend is."""
        stop, known = self._horizon(pubend)
        return ReadHorizon(pubend=pubend, stop=stop, known=known)


class Service(flight.FlightServerBase):  # type: ignore[misc]  # PyArrow has no types
    """The service of one node; it listens when it is made, and ends with `stop`."""

    def __init__(self, listen: Address, source: BulkSource, tls: Tls | None, tokens: Tokens | None) -> None:
        scheme, files = ("grpc", {}) if tls is None else ("grpc+tls", _files(tls))
        self.door = _Door(tokens)
        super().__init__(f"{scheme}://{listen}", middleware={"rights": self.door}, **files)
        self._source = source
        #: Held while a thread computes: parsing, planning, reading rows.
        self._working = threading.Semaphore(WORKERS_MAX)
        self.reads = Reads(
            READS_MAX, lambda peer: hang_up(peer, self.port), IDLE_SECONDS, owner_max=READS_OF_ONE_MAX
        )
        self._stopping = threading.Event()
        watch = threading.Thread(
            target=self.reads.watch, args=[self._stopping], name="gapless-bulk-idle", daemon=True
        )
        watch.start()
        crowd = ConnectionBound(limit(), self.port, self.reads.peers)
        threading.Thread(
            target=crowd.watch, args=[self._stopping], name="gapless-bulk-crowd", daemon=True
        ).start()
        size = Resident() if can_watch() else None
        self._inbound = Inbound(
            size or (lambda: 0), lambda: traffic_of(self.port), lambda peer: hang_up(peer, self.port)
        )
        if size is not None:
            threading.Thread(
                target=self._inbound.watch,
                args=[self._stopping, size.close],
                name="gapless-bulk-inbound",
                daemon=True,
            ).start()

    def stop(self) -> None:
        """Refuse what is new, end what is under way after its next batch, and let go. Blocks."""
        self._stopping.set()
        self.shutdown()

    # What Flight calls, in threads of its own.

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        """`horizons`, `describe` and `plan`."""
        self._inbound.let_in(context.peer())
        with _telling(context):
            return iter([encode(self._answered(context, action.type, action.body.to_pybytes()))])

    def list_actions(self, context: Any) -> list[tuple[str, str]]:  # noqa: ARG002  # as Flight calls it
        """The supported actions."""
        return [
            ("horizons", "the progress of each pubend of a topic"),
            ("describe", "what is kept of a topic"),
            ("plan", "a range in parts of about the given number of rows"),
        ]

    def do_get(self, context: Any, ticket: Any) -> Any:
        """A read."""
        self._inbound.let_in(context.peer())
        with _telling(context):
            asked = decode_request(ticket.ticket, ReadTicket)
            rights = _rights(context)
            rights.check_subscribe(TopicId(asked.topic))
            history = self._source.one(asked.topic, asked.pubend)
            read = self._begun(context, rights)
            try:
                return self._streamed(context, asked, history, read)
            except BaseException:
                self.reads.end(read)
                raise

    def _begun(self, context: Any, rights: Rights) -> Read:
        """A slot for a read. Raises UsageError when there is none."""
        owner = None if rights.principal == ANONYMOUS else rights.principal
        read = self.reads.begin(context.peer(), owner, wait_s=WAIT_SECONDS_MAX)
        if read is None:
            text = (
                f"too many bulk reads at this node, at most {READS_MAX} run, and {READS_OF_ONE_MAX} of one "
                "principal: try again"
            )
            raise UsageError("E199", text, retry=True)
        return read

    def _streamed(self, context: Any, asked: ReadTicket, history: History, read: Read) -> Any:
        """The rows of a read that has a slot; it gives the slot back when it ends, or is dropped."""
        known = self._source.horizon(history.pubend).known
        ticks = TickRange(asked.start, known if asked.stop is None else asked.stop)
        if ticks.stop > known:
            raise UsageError(
                "E198",
                f"pubend '{asked.pubend}' is known up to {known}, and {ticks.stop} is asked for: "
                "ask again later",
            )
        with self._working:
            condition = parse_condition(asked.where, history.schema)
        wanted = Wanted(
            condition=None if condition == ALL_EVENTS else condition,
            columns=asked.columns,
            history=asked.history,
        )
        schema = history.arrow(asked.columns)
        batches = history.read(ticks, wanted, gone=asked.gone)
        rows = self._bounded(context, batches, read)
        # A caller may leave before the first row is asked for.
        weakref.finalize(rows, self.reads.abandon, read).atexit = False
        return flight.GeneratorStream(schema, rows)

    def _answered(self, context: Any, kind: str, body: bytes) -> Any:
        rights = _rights(context)
        match kind:
            case "horizons":
                asked = decode_request(body, AskTopic)
                rights.check_subscribe(TopicId(asked.topic))
                return [self._source.horizon(pubend) for pubend in self._source.of(asked.topic)]
            case "describe":
                asked = decode_request(body, AskTopic)
                rights.check_subscribe(TopicId(asked.topic))
                return self._described(asked.topic, here=is_loopback(context.peer()))
            case "plan":
                wish = decode_request(body, AskPlan)
                rights.check_subscribe(TopicId(wish.topic))
                history = self._source.one(wish.topic, wish.pubend)
                with self._working:
                    parts = history.plan(TickRange(wish.start, wish.stop), wish.rows, wish.rows_max)
                return ReadPlan(parts=tuple(Part(*each) for each in parts))
            case _:
                raise UsageError(
                    "E198", f"there is no action {kind!r:.80}: there are horizons, describe, plan"
                )

    def _described(self, topic: str, *, here: bool) -> Described:
        """What is kept of a topic, and where; the latter only for callers `here`, on this machine."""
        found = self._source.of(topic)
        pasts: list[PubendPast] = []
        for pubend, history in found.items():
            kept, horizon = history.kept(), self._source.horizon(pubend)
            pasts.append(
                PubendPast(
                    pubend=pubend,
                    oldest=kept.oldest,
                    log_oldest=kept.log_oldest,
                    stop=horizon.stop,
                    known=horizon.known,
                    retention=str(history.log.retention),
                    archive=tuple(
                        ArchivedFile(file=each.path.name, start=each.start, stop=each.stop)
                        for each in kept.files
                    ),
                    folder=str(kept.files[0].path.parent.absolute()) if kept.files and here else "",
                )
            )
        schema = next(iter(found.values())).schema
        return Described(topic=topic, columns=column_texts(schema), pubends=tuple(pasts))

    def _bounded(
        self, context: Any, batches: Iterator[pa.RecordBatch], read: Read
    ) -> Iterator[pa.RecordBatch]:
        """The same rows, computed only as they are taken, a few reads at a time, and none after the end."""
        with _telling(context):
            try:
                for piece in self._worked(each for batch in batches for each in pieces(batch)):
                    if self._stopping.is_set():
                        raise UsageError("E188", "node shutting down; reconnect elsewhere", retry=True)
                    read.handed = time.monotonic()
                    yield piece
                    read.handed = None
                    if read.is_cut:
                        raise LinkError(
                            "E412",
                            f"a bulk read took nothing for {self.reads.idle_s:.0f} seconds, and its place is "
                            "another's: continue after the last tick received",
                            retry=True,
                        )
            finally:
                self.reads.end(read)

    def _worked(self, parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same parts; few threads compute the next one at a time."""
        while True:
            with self._working:
                piece = next(parts, None)
            if piece is None:
                return
            yield piece


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in pieces that a slow reader can take in time."""
    count = -(-batch.nbytes // PIECE_BYTES)
    rows = max(1, -(-batch.num_rows // max(1, count)))
    for start in range(0, max(1, batch.num_rows), rows):
        yield batch.slice(start, rows)


class _Door(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # PyArrow has no types
    """Looks at each call: at its token, and whether there is such a call here.

    Those that are not would be answered with a traceback, and for some of them Flight would do so whatever
    is raised there: so they come no further than this.
    """

    def __init__(self, tokens: Tokens | None) -> None:
        super().__init__()
        #: May change while calls come in.
        self.tokens = tokens

    def start_call(self, info: Any, headers: Mapping[str, list[str]]) -> _Caller:
        """Refuse callers without a valid token, and calls that are not for us."""
        token = next((values[0] for name, values in headers.items() if name.lower() == TOKEN_HEADER), "")
        try:
            rights = EVERYTHING
            tokens = self.tokens
            if tokens is not None:
                rights = tokens.rights(str(token).removeprefix("Bearer ") or None)
            if info.method not in _OFFERED:
                raise UsageError(
                    "E181",
                    f"there is no {info.method.name.lower()} here: ask with the actions horizons, describe "
                    "and plan, and read with do_get",
                )
        except UsageError as error:
            raise _flight_error(error) from error
        return _Caller(rights)


class _Caller(flight.ServerMiddleware):  # type: ignore[misc]  # PyArrow has no types
    """The rights of the caller."""

    def __init__(self, rights: Rights) -> None:
        super().__init__()
        self.rights = rights


def _rights(context: Any) -> Rights:
    rights: Rights = context.get_middleware("rights").rights
    return rights


@contextlib.contextmanager
def _telling(context: Any) -> Iterator[None]:
    """Report errors to the caller in one line; log those that are not the caller's fault."""
    try:
        yield
    except GaplessError as error:
        if isinstance(error, StoreError) and error.code != "E306":
            log.error("bulk_read_failed", code=error.code, reason=error.message)
            if not is_loopback(context.peer()):
                # The text names a file of this machine.
                error = StoreError(error.code, "the node cannot read what it keeps: its log says why")
        raise _flight_error(error) from error
    except Exception as error:
        log.error("bulk_read_failed", code="E181", reason=repr(error))
        raise _flight_error(UsageError("E181", "the node failed to answer this: its log says why")) from error


def _flight_error(error: GaplessError) -> Exception:
    """An error in the form in which Flight carries it to the client."""
    refusal: Refusal = refusal_of(error)
    kinds: dict[str, Callable[..., Exception]] = {
        "E184": flight.FlightUnauthorizedError,
        "E185": flight.FlightUnauthenticatedError,
        "E188": flight.FlightUnavailableError,
        "E199": flight.FlightUnavailableError,
        "E412": flight.FlightUnavailableError,
    }
    kind = kinds.get(error.code) or flight.FlightServerError
    made: Exception = kind(f"{error.code} {error.message}", extra_info=encode(refusal))
    return made


def _files(tls: Tls) -> dict[str, object]:
    """The files of a broker, as Flight wants them."""
    return {
        "tls_certificates": [(tls.certificate.read_bytes(), tls.key.read_bytes())],
        "verify_client": tls.clients is ClientCertificates.REQUIRED,
        "root_certificates": tls.authority.read_bytes(),
    }
