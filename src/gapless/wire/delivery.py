"""How does an edge deliver one batch to thousands of connections? Each row is encoded once.

`SharedRows` is for few rows each: a delivery is a header, pairs of numbers, and the encoded rows. One row for
one subscriber is one `pack` and one copy. `SharedColumns` is for many rows each: the Arrow message is made
once, and frames for a hundred connections differ only in their heads. Which is cheaper depends on the rows
per connection; `COLUMNS_ROWS_MIN` is the break-even point.

Implements docs/wire.md, section 6.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta

from gapless.content.rows import Positions
from gapless.errors import PeerError
from gapless.model.batch import EventBatch
from gapless.model.bounds import ROWS_MAX, SOURCES_MAX, Number
from gapless.model.budget import BATCH_BYTES_MAX
from gapless.model.ids import PubendId
from gapless.model.schema import Schema
from gapless.model.ticks import TICK_MAX, TICK_MIN
from gapless.protocol.sessions.messages import ColumnsDelivery, EventRow, RowsDelivery
from gapless.wire.codec import (
    ColumnsFormat,
    Head,
    decode_batch,
    decode_head,
    encode_batch,
    encode_head,
    encode_ticks,
    unreadable,
)
from gapless.wire.frames import (
    HEADER_BYTES,
    MAGIC,
    VERSION_MAX,
    Frame,
    Kind,
    Part,
    encode_frame,
)
from gapless.wire.rows import RowFormat

#: From this many rows per connection on, columns cost less than rows.
COLUMNS_ROWS_MIN: Final = 64
#: Maximum number of subscriptions in one delivery.
SUBSCRIPTIONS_MAX: Final = 2**20
#: A larger delivery is sent as several.
DELIVERY_BYTES_MAX: Final = BATCH_BYTES_MAX

_COUNTS = struct.Struct("<II")
_PAIR = struct.Struct("<II")
#: Before the bytes of a row: its tick, its source, how many bytes.
_ENTRY = struct.Struct("<qII")
#: The header of a frame, the counts and one pair.
_ONE = struct.Struct("<2sBBIIHHIIII")
#: The same with as many pairs as there are rows.
_FEW = [struct.Struct(f"<2sBBIIHHII{2 * rows}I") for rows in range(COLUMNS_ROWS_MIN)]
_ROWS = int(Kind.ROWS)
_PADDING = [bytes(count) for count in range(8)]


class SharedRows:
    """Some rows of one batch, encoded, for any number of connections."""

    __slots__ = ("_entries",)

    #: By row: its tick, its source and its bytes, padded to a multiple of 8.
    _entries: dict[int, bytes]

    def __init__(
        self,
        form: RowFormat,
        batch: EventBatch,
        rows: Positions,
        numbers: Sequence[int],
        source: Positions | None = None,
    ) -> None:
        """`rows` are those that anybody gets; row r is of the pubend with number `numbers[source[r]]`."""
        if source is None and batch.packed is not None and len(batch) == 1:
            [tick], [data], number = batch.ticks.tolist(), batch.packed.rows, numbers[0]
            self._entries = {0: _ENTRY.pack(tick, number, len(data)) + data + _PADDING[-len(data) % 8]}
            return
        wanted = np.unique(rows)
        ticks = batch.ticks[wanted].tolist()
        some = batch if len(wanted) == len(batch) else batch.take(wanted)
        sources = [numbers[0]] * len(wanted) if source is None else [numbers[at] for at in source[wanted]]
        self._entries = {
            row: _ENTRY.pack(tick, number, len(data)) + data + _PADDING[-len(data) % 8]
            for row, tick, number, data in zip(
                wanted.tolist(), ticks, sources, form.encoded(some), strict=True
            )
        }

    def one(self, subscription: int, row: int) -> bytes:
        """The frame that delivers one row to one subscription."""
        entry = self._entries[row]
        length = 16 + len(entry)
        return _ONE.pack(MAGIC, VERSION_MAX, _ROWS, length, length, 0, 0, 1, 1, subscription, 0) + entry

    def few(self, subscription: int, rows: Sequence[int]) -> list[Part]:
        """Frames that deliver fewer than `COLUMNS_ROWS_MIN` different rows to one subscription."""
        known = self._entries
        entries = [known[row] for row in rows]
        length = 8 + 8 * len(rows) + sum(map(len, entries))
        if length > DELIVERY_BYTES_MAX:
            return self.some([(subscription, row) for row in rows])
        count = len(rows)
        pairs = [subscription] * (2 * count)
        pairs[1::2] = range(count)
        head = _FEW[count].pack(MAGIC, VERSION_MAX, _ROWS, length, length, 0, 0, count, count, *pairs)
        return [head + b"".join(entries)]

    def some(self, pairs: Sequence[tuple[int, int]]) -> list[Part]:
        """Frames that deliver rows to the subscriptions of one connection: (subscription, row) in order."""
        frames: list[Part] = []
        start = size = 0
        for at, (_, row) in enumerate(pairs):
            length = len(self._entries[row]) + _PAIR.size
            if at > start and size + length > DELIVERY_BYTES_MAX:
                frames.append(self._frame(pairs[start:at]))
                start, size = at, 0
            size += length
        if start < len(pairs):
            frames.append(self._frame(pairs[start:]))
        return frames

    def _frame(self, pairs: Sequence[tuple[int, int]]) -> bytes:
        places: dict[int, int] = {}
        numbers: list[int] = []
        for subscription, row in pairs:
            numbers.append(subscription)
            numbers.append(places.setdefault(row, len(places)))
        head = [_COUNTS.pack(len(pairs), len(places)), struct.pack(f"<{len(numbers)}I", *numbers)]
        head += [self._entries[row] for row in places]
        [frame] = encode_frame(Kind.ROWS, b"".join(head))
        return bytes(frame)


class _Columns(Head, frozen=True):
    sources: Annotated[tuple[Number, ...], Meta(min_length=1, max_length=SOURCES_MAX)]
    #: Per subscription how many of the positions are its own; None when it gets all rows.
    shares: Annotated[
        tuple[tuple[Number, Annotated[int, Meta(ge=0, le=ROWS_MAX)] | None], ...],
        Meta(max_length=SUBSCRIPTIONS_MAX),
    ]


_columns = msgspec.msgpack.Decoder(_Columns)


class SharedColumns:
    """A whole batch, encoded, for any number of connections."""

    __slots__ = ("_numbers", "_pieces")

    def __init__(self, batch: EventBatch, numbers: Sequence[int], source: Positions | None = None) -> None:
        """Row r is of the pubend with number `numbers[source[r]]`."""
        self._numbers = tuple(numbers)
        #: Where each piece of the batch begins and ends, and its parts. There is more than one only when
        #: the batch is too large for a frame.
        self._pieces = [
            (start, start + len(piece), _parts(piece, start, source)) for start, piece in _pieces(batch, 0)
        ]

    def frame(self, shares: Iterable[tuple[int, Positions | None]]) -> list[Part]:
        """The frame that delivers to the subscriptions of one connection their rows; None for all.

        Positions ascend. A delivery too large for one frame is sent as several.
        """
        if len(self._pieces) == 1:
            return self._encoded(shares, self._pieces[0][2])
        listed = list(shares)
        frames: list[Part] = []
        for start, stop, parts in self._pieces:
            inside = [
                (number, None if rows is None else rows[(rows >= start) & (rows < stop)] - start)
                for number, rows in listed
            ]
            present = [(number, rows) for number, rows in inside if rows is None or len(rows)]
            if present:
                frames += self._encoded(present, parts)
        return frames

    def _encoded(self, shares: Iterable[tuple[int, Positions | None]], parts: list[Part]) -> list[Part]:
        listed: list[tuple[int, int | None]] = []
        positions: list[bytes] = []
        for subscription, rows in shares:
            listed.append((subscription, None if rows is None else len(rows)))
            if rows is not None:
                positions.append(rows.astype("<u4").tobytes())
        head = encode_head(_Columns(self._numbers, tuple(listed)))
        return encode_frame(Kind.COLUMNS, head, [*parts, b"".join(positions)])


def _pieces(batch: EventBatch, start: int) -> Iterator[tuple[int, EventBatch]]:
    """The batch in pieces that fit into frames, each with the place of its first row."""
    if len(batch) < 2 or batch.weighs_at_most(DELIVERY_BYTES_MAX):
        yield start, batch
        return
    middle = len(batch) // 2
    yield from _pieces(batch.slice(0, middle), start)
    yield from _pieces(batch.slice(middle, len(batch)), start + middle)


def _parts(piece: EventBatch, start: int, source: Positions | None) -> list[Part]:
    owners = b"" if source is None else source[start : start + len(piece)].astype("<u4").tobytes()
    return [encode_ticks(piece.ticks), encode_batch(piece), owners]


# ---- decoding ----------------------------------------------------------------------------------------


class Source:
    """A pubend that events come from, and how to read them."""

    __slots__ = ("columns", "pubend", "rows", "schema")

    def __init__(self, pubend: PubendId, schema: Schema) -> None:
        self.pubend = pubend
        self.schema = schema
        self.rows = RowFormat(schema)
        self.columns = ColumnsFormat(schema)


def decode_rows(frame: Frame, sources: Mapping[int, Source]) -> RowsDelivery:
    """The delivery in a frame of rows. Raises PeerError."""
    head = frame.head
    if frame.parts or len(head) < _COUNTS.size:
        raise unreadable(frame, "it is truncated, or has parts")
    pairs, rows = _COUNTS.unpack_from(head)
    at = _COUNTS.size + pairs * _PAIR.size
    if not pairs or not rows or at + rows * _ENTRY.size > len(head) or rows > ROWS_MAX:
        raise unreadable(frame, f"{pairs} pairs and {rows} rows in {len(head)} bytes")
    to = tuple(_PAIR.iter_unpack(head[_COUNTS.size : at]))
    events: list[EventRow] = []
    topic = None
    for _ in range(rows):
        if at + _ENTRY.size > len(head):
            raise unreadable(frame, "it is cut short")
        tick, number, length = _ENTRY.unpack_from(head, at)
        at += _ENTRY.size
        source = sources.get(number)
        if source is None or not TICK_MIN <= tick < TICK_MAX or at + length > len(head):
            raise unreadable(frame, f"a row of source {number} at tick {tick} with {length} bytes")
        events.append(EventRow(source.pubend, tick, source.rows.decode(head[at : at + length])))
        at += length + -length % 8
        topic = _same_topic(frame, topic, source)
    if at != len(head):
        raise unreadable(frame, "the lengths of its rows do not add up")
    if max(row for _, row in to) >= rows:
        raise unreadable(frame, "a row is delivered that it does not have")
    assert topic is not None
    return RowsDelivery(topic=topic.schema.topic, events=tuple(events), to=to)


def decode_columns_delivery(frame: Frame, sources: Mapping[int, Source]) -> ColumnsDelivery:
    """The delivery in a frame of columns. Raises PeerError."""
    head = decode_head(_columns, frame, parts=4)
    ticks, columns, owners, positions = frame.parts
    found: list[Source] = []
    topic = None
    for number in head.sources:
        source = sources.get(number)
        if source is None:
            raise unreadable(frame, f"rows of source {number}, which was never confirmed")
        topic = _same_topic(frame, topic, source)
        found.append(source)
    batch = decode_batch(ticks, columns, found[0].columns, strictly=len(found) == 1)
    source_of = None
    if len(found) > 1:
        source_of = _positions(frame, owners, len(found))
        if len(source_of) != len(batch):
            raise unreadable(frame, f"{len(source_of)} sources for {len(batch)} rows")
    elif len(owners):
        raise unreadable(frame, "sources for rows that have only one")
    return ColumnsDelivery(
        topic=found[0].schema.topic,
        batch=batch,
        pubends=tuple(source.pubend for source in found),
        source=source_of,
        to=_shared(frame, head, _positions(frame, positions, len(batch))),
    )


def _shared(frame: Frame, head: _Columns, positions: Positions) -> dict[int, Positions | None]:
    to: dict[int, Positions | None] = {}
    at = 0
    for subscription, count in head.shares:
        to[subscription] = None if count is None else positions[at : at + count]
        at += count or 0
    if at != len(positions) or len(to) != len(head.shares):
        raise unreadable(frame, "the shares of its subscriptions do not add up")
    return to


def _positions(frame: Frame, part: memoryview, stop: int) -> Positions:
    if len(part) % 4:
        raise unreadable(frame, "truncated positions of four bytes")
    positions = np.frombuffer(part, dtype="<u4").astype(np.int64)
    if len(positions) and positions.max() >= stop:
        raise unreadable(frame, f"a position beyond {stop}")
    return positions


def _same_topic(frame: Frame, before: Source | None, source: Source) -> Source:
    if before is not None and before is not source and before.schema != source.schema:
        raise PeerError("E216", f"a {frame.kind.name} frame has rows of several topics")
    return source


assert _ONE.size == HEADER_BYTES + _COUNTS.size + _PAIR.size
