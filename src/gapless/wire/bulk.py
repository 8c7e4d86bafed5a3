"""How does a reader ask a repository for many events at once? Tickets and answers of bulk reads.

A repository opens a second port on request: an Arrow Flight service, where ranges of ticks are read as record
batches, straight from the log and from the archive. A request is JSON, in an action (`horizons`, `describe`,
`plan`) or in the ticket of a read; so are answers other than batches.

A range is `start..stop`, half-open, of one pubend. Its *known horizon* is the tick below which everything is
settled: every event there is durable, and no other will ever appear. A read ends there at the latest, so
reading a range twice gives the same rows.

Implements docs/wire.md, section 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from gapless.content.language import TEXT_CHARACTERS_MAX
from gapless.errors import GaplessError, UsageError
from gapless.model.bounds import Name
from gapless.model.schema import COLUMNS_MAX
from gapless.model.ticks import Tick

#: Maximum size of a request; a larger one is refused unread.
REQUEST_BYTES_MAX = 4 * TEXT_CHARACTERS_MAX + 2**16
#: The header of a call that carries the client's token, as `Bearer TOKEN`.
TOKEN_HEADER = "authorization"  # noqa: S105  # the name of a header, not a token
#: The columns that come before those of the topic; a topic's own column of such a name gets a `_` after it.
OWN_COLUMNS = ("tick", "pubend")

_Tick = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Rows = Annotated[int, Meta(ge=1, le=2**62)]

Request = TypeVar("Request", bound=msgspec.Struct)


class AskTopic(msgspec.Struct, frozen=True, kw_only=True):
    """`horizons` and `describe`: which part of a topic is here."""

    topic: Name


class AskPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`plan`: cut a range into parts of about `rows` rows, and end it before it has more than `rows_max`."""

    topic: Name
    pubend: Name
    start: _Tick
    stop: _Tick
    rows: _Rows
    rows_max: _Rows | None = None


class ReadTicket(msgspec.Struct, frozen=True, kw_only=True):
    """Read the events of a range that `where` accepts, as batches with `tick` and these columns."""

    topic: Name
    pubend: Name
    start: _Tick
    #: None for the known horizon.
    stop: _Tick | None = None
    where: Annotated[str, Meta(max_length=TEXT_CHARACTERS_MAX)] = ""
    #: None for all columns of the topic.
    columns: Annotated[tuple[Name, ...], Meta(max_length=COLUMNS_MAX)] | None = None
    #: Everything that still exists; otherwise what a subscription would get: nothing that was released, and
    #: only the newest rows of a topic that keeps these.
    history: bool = True
    #: Whether the beginning of the range may be missing because it is no longer kept.
    gone: bool = False


class ReadHorizon(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of one pubend. `stop <= known`: there is silence between the two."""

    pubend: str
    #: One past the last durable event.
    stop: Tick
    #: Everything below this tick is settled.
    known: Tick


class ArchivedFile(msgspec.Struct, frozen=True, kw_only=True):
    """One Parquet file of the archive, and the ticks of its events."""

    file: str
    start: Tick
    stop: Tick


class PubendPast(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of one pubend."""

    pubend: str
    #: Everything is kept from `oldest` on, in the archive or in the log, and from `log_oldest` on in the log.
    oldest: Tick
    log_oldest: Tick
    stop: Tick
    known: Tick
    retention: str
    #: The files of the archive, oldest first, and the folder that they are in at the node.
    archive: tuple[ArchivedFile, ...] = ()
    folder: str = ""


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """What a repository has of a topic."""

    topic: str
    #: As in a network description.
    columns: dict[str, str]
    pubends: tuple[PubendPast, ...]


class Part(msgspec.Struct, frozen=True, array_like=True):
    """A piece of a range, and its maximum number of rows."""

    start: Tick
    stop: Tick
    rows: int


class ReadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a range, end to end from its start. They end before it does if it has too many rows."""

    parts: tuple[Part, ...]


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was refused: an error of `docs/operating.md`."""

    code: Annotated[str, Meta(pattern="^E[1-9][0-9]{2}$")]
    message: str
    retry: bool = False


def encode(message: msgspec.Struct | Sequence[msgspec.Struct]) -> bytes:
    """A request or an answer as bytes."""
    return msgspec.json.encode(message)


def decode_request(data: bytes, kind: type[Request]) -> Request:
    """Decodes a request. Raises UsageError for any invalid bytes.

    >>> decode_request(b'{"topic": "trades"}', AskTopic)
    AskTopic(topic='trades')
    """
    if len(data) > REQUEST_BYTES_MAX:
        raise UsageError("E198", f"a bulk request of {len(data)} bytes: at most {REQUEST_BYTES_MAX} are read")
    try:
        return msgspec.json.decode(data, type=kind)
    except (ValueError, RecursionError) as error:
        raise UsageError("E198", f"a bulk request cannot be read: {error}") from error


def refusal_of(error: GaplessError) -> Refusal:
    """An error as it is sent."""
    return Refusal(code=error.code, message=error.message, retry=error.retry)
