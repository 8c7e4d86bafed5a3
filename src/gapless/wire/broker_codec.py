"""How do the messages of brokers become frames, and frames messages?

The stamps of a message are written once each, and its runs point to them: hundreds of runs made under the
same filters name those filters once. `conditions` encodes conditions.

Decoding checks that a frame *is* a message: every field present and within its bounds, every row readable.
Whether this neighbour may send it is checked by `protocol.peers` afterwards.

Implements docs/wire.md, section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from functools import lru_cache
from typing import Annotated, Final, assert_never

import msgspec
from msgspec import Meta

from gapless.errors import ContentError, PeerError, SchemaError
from gapless.model.batch import EventBatch
from gapless.model.bounds import (
    NAME_CHARACTERS_MAX,
    ROWS_MAX,
    ColumnTexts,
    Counter,
    Name,
    Text,
    TickNumber,
)
from gapless.model.budget import BATCH_BYTES_MAX, FRAME_BYTES_MAX, HOP_BYTES
from gapless.model.epochs import ALWAYS, EPOCH_ALL, EPOCH_MAX, EPOCH_NONE, LIVES_MAX, NEVER, Epochs
from gapless.model.ids import BrokerId, CellId, PubendId, TopicId
from gapless.model.logs import UNNAMED, LogLife
from gapless.model.schema import Schema
from gapless.model.stream import Run
from gapless.model.ticks import TICK_MAX, TICK_MIN, Tick, TickRange
from gapless.protocol.creations import MESSAGE_CREATIONS_MAX, Creation
from gapless.protocol.messages import (
    LIVES_TOLD_MAX,
    AckExpectedMessage,
    AckMessage,
    AdvertisementAckMessage,
    AdvertisementMessage,
    CellMessage,
    KnowledgeMessage,
    LinkStatusMessage,
    LogKnownMessage,
    Message,
    NackMessage,
    SidewaysMessage,
    StartGrantMessage,
    StartRequestMessage,
    TopicsMessage,
    Want,
    in_order,
)
from gapless.protocol.network import Network
from gapless.wire.codec import (
    ColumnsFormat,
    Head,
    column_texts,
    decode_batch,
    decode_head,
    encode_batch,
    encode_head,
    encode_ticks,
    unreadable,
)
from gapless.wire.conditions import Packed, Unpacker, pack
from gapless.wire.frames import Frame, Kind, Part, encode_frame

#: Maximum number of runs in one message.
RUNS_MAX: Final = 2**18
#: Maximum number of edges in one stamp, and of cells in one link status.
EDGES_MAX: Final = 2**16
#: Maximum number of conditions in one advertisement.
CONDITIONS_MAX: Final = 2**20
#: Knowledge with a longer head is split by its runs: the rows must fit into the same frame.
HEAD_BYTES_MAX: Final = FRAME_BYTES_MAX - BATCH_BYTES_MAX - 2 * HOP_BYTES

_Index = Annotated[int, Meta(ge=0, lt=RUNS_MAX)]
_EpochNumber = Annotated[int, Meta(ge=EPOCH_NONE, le=EPOCH_ALL)]
#: Versions of advertisements begin with the life of their broker, like epochs.
_Version = Annotated[int, Meta(ge=0, le=EPOCH_MAX)]
_Life = Annotated[int, Meta(ge=0, le=LIVES_MAX)]
#: The epoch of all other edges, and of those that are named.
_Stamp = tuple[_EpochNumber, Annotated[dict[Name, _EpochNumber], Meta(max_length=EDGES_MAX)]]
_Stamps = Annotated[tuple[_Stamp, ...], Meta(max_length=RUNS_MAX)]
#: A log: its id, the life of its host, how far it was told and had events when that began, and when it began.
_Log = tuple[Name, _Life, TickNumber, TickNumber, TickNumber]
_LogName = Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)]
_Wanted = Annotated[tuple[tuple[Name, Packed], ...], Meta(max_length=CONDITIONS_MAX)]


class _Knowledge(Head, frozen=True):
    pubend: Name
    first_time: bool
    final_before: TickNumber
    stamps: _Stamps
    #: Start, stop, and the index of the stamp.
    runs: Annotated[tuple[tuple[TickNumber, TickNumber, _Index], ...], Meta(max_length=RUNS_MAX)]
    log: _Log | None = None


class _Ack(Head, frozen=True):
    pubend: Name
    stamps: _Stamps
    runs: Annotated[tuple[tuple[TickNumber, _Index], ...], Meta(max_length=RUNS_MAX)]
    log: _LogName = ""


class _Nack(Head, frozen=True):
    pubend: Name
    start: TickNumber
    stop: TickNumber


class _AckExpected(Head, frozen=True):
    pubend: Name
    before: TickNumber
    log: _Log | None = None


class _StartRequest(Head, frozen=True):
    pubend: Name
    edge: Name
    epoch: _EpochNumber
    wanted: TickNumber | None
    log: _LogName = ""
    beyond: TickNumber = TICK_MIN


class _StartGrant(Head, frozen=True):
    pubend: Name
    edge: Name
    epoch: _EpochNumber
    wanted: TickNumber | None
    start: TickNumber
    until: TickNumber
    seen: _EpochNumber = EPOCH_NONE
    lost_before: TickNumber = TICK_MIN
    log: _Log | None = None
    lives: Annotated[tuple[_Life, ...], Meta(max_length=LIVES_TOLD_MAX)] = ()


class _LogKnown(Head, frozen=True):
    pubend: Name
    log: _Log
    known: TickNumber
    events: TickNumber


class _Advertisement(Head, frozen=True):
    root: Name
    origin: Name
    version: _Version
    base: _Version | None
    added: _Wanted
    removed: _Wanted
    epochs: _Stamp
    part: Counter = 0
    total: Counter | None = None


class _AdvertisementAck(Head, frozen=True):
    root: Name
    origin: Name
    version: _Version | None
    staged: tuple[_Version, Counter] | None = None


class _LinkStatus(Head, frozen=True):
    reaches: Annotated[tuple[Name, ...], Meta(max_length=EDGES_MAX)]
    topics: Counter = 0


#: Topic, columns, pubend, broker, when, and how long its events are kept.
_Created = tuple[Name, ColumnTexts, Name, Name, TickNumber, Text]


class _Topics(Head, frozen=True):
    creations: Annotated[tuple[_Created, ...], Meta(min_length=1, max_length=MESSAGE_CREATIONS_MAX)]


class _Sideways(Head, frozen=True):
    cell: Name
    kind: Annotated[int, Meta(ge=0, le=255)]
    head: msgspec.Raw


_knowledge = msgspec.msgpack.Decoder(_Knowledge)
_ack = msgspec.msgpack.Decoder(_Ack)
_nack = msgspec.msgpack.Decoder(_Nack)
_advertisement = msgspec.msgpack.Decoder(_Advertisement)
_link_status = msgspec.msgpack.Decoder(_LinkStatus)
_topics = msgspec.msgpack.Decoder(_Topics)
_sideways = msgspec.msgpack.Decoder(_Sideways)

#: What may be passed sideways.
_CELL_KINDS: Final = {
    int(kind): kind
    for kind in (
        Kind.KNOWLEDGE,
        Kind.ACK,
        Kind.NACK,
        Kind.ACK_EXPECTED,
        Kind.START_REQUEST,
        Kind.START_GRANT,
        Kind.LOG_KNOWN,
    )
}
#: The messages that are decoded field by field.
_PLAIN: Final[dict[Kind, tuple[msgspec.msgpack.Decoder[Head], Callable[..., Message]]]] = {
    Kind.ACK_EXPECTED: (msgspec.msgpack.Decoder(_AckExpected), AckExpectedMessage),
    Kind.START_REQUEST: (msgspec.msgpack.Decoder(_StartRequest), StartRequestMessage),
    Kind.START_GRANT: (msgspec.msgpack.Decoder(_StartGrant), StartGrantMessage),
    Kind.LOG_KNOWN: (msgspec.msgpack.Decoder(_LogKnown), LogKnownMessage),
    Kind.ADVERTISEMENT_ACK: (msgspec.msgpack.Decoder(_AdvertisementAck), AdvertisementAckMessage),
}


# ---- encoding ----------------------------------------------------------------------------------------


class BrokerEncoder:
    """Turns messages into frames. One for all links of a broker: a message to many is encoded once."""

    __slots__ = ("_batch", "_parts")

    def __init__(self) -> None:
        #: The batch that was encoded last, and its parts.
        self._batch: EventBatch | None = None
        self._parts: list[Part] = []

    def encode(self, message: Message) -> list[Part]:
        """The message as pieces to write one after the other: one frame, or several for much knowledge."""
        pieces: list[Part] = []
        cell: CellId | None = None
        if isinstance(message, SidewaysMessage):
            cell, message = message.cell, message.message
        for each in _split(message) if isinstance(message, KnowledgeMessage) else (message,):
            pieces += self._frame(each, cell)
        return pieces

    def _frame(self, message: Message, cell: CellId | None) -> list[Part]:
        kind, fields = _head(message)
        head = encode_head(fields)
        parts: list[Part] = []
        if isinstance(message, KnowledgeMessage):
            if len(head) > HEAD_BYTES_MAX and len(message.runs) > 1:
                # There are as many stamps as runs, and very many edges.
                halves = (self._frame(half, cell) for half in _halves(message, _middle(message)))
                return [piece for half in halves for piece in half]
            if message.batch is not None:
                parts = self._encoded(message.batch)
        if cell is not None:
            kind, head = Kind.SIDEWAYS, encode_head(_Sideways(cell, kind, msgspec.Raw(head)))
        return encode_frame(kind, head, parts)

    def _encoded(self, batch: EventBatch) -> list[Part]:
        if batch is not self._batch:
            self._parts = [encode_ticks(batch.ticks), encode_batch(batch)]
            self._batch = batch
        return self._parts


def _head(message: Message) -> tuple[Kind, Head]:
    """The kind and the head of anything but a sideways message."""
    match message:
        case KnowledgeMessage(pubend=pubend, runs=runs):
            stamps, at = _numbered(stamp for _, _, stamp in runs)
            indexed = tuple((run[0], run[1], index) for run, index in zip(runs, at, strict=True))
            log = _log(message.log)
            first_time, final_before = message.first_time, message.final_before
            return Kind.KNOWLEDGE, _Knowledge(pubend, first_time, final_before, stamps, indexed, log)
        case AckMessage(pubend=pubend, runs=acked):
            stamps, at = _numbered(stamp for _, stamp in acked)
            stops = tuple((stop, index) for (stop, _), index in zip(acked, at, strict=True))
            return Kind.ACK, _Ack(pubend, stamps, stops, message.log)
        case NackMessage(pubend=pubend, ticks=ticks):
            return Kind.NACK, _Nack(pubend, ticks.start, ticks.stop)
        case AckExpectedMessage(pubend=pubend, before=before):
            return Kind.ACK_EXPECTED, _AckExpected(pubend, before, _log(message.log))
        case StartRequestMessage(pubend=pubend, edge=edge, epoch=epoch, wanted=wanted):
            return Kind.START_REQUEST, _StartRequest(pubend, edge, epoch, wanted, message.log, message.beyond)
        case StartGrantMessage(pubend=pubend, edge=edge, epoch=epoch, wanted=wanted):
            granted = (message.start, message.until, message.seen, message.lost_before)
            log, lives = _log(message.log), message.lives
            return Kind.START_GRANT, _StartGrant(pubend, edge, epoch, wanted, *granted, log, lives)
        case LogKnownMessage(pubend=pubend, log=LogLife(id, life, floor, events, began)):
            known = (id, life, floor, events, began)
            return Kind.LOG_KNOWN, _LogKnown(pubend, known, message.known, message.events)
        case AdvertisementMessage(root=root, origin=origin, version=version):
            added, removed, epochs = _packed(message.added), _packed(message.removed), _stamp(message.epochs)
            part, total = message.part, message.total
            head = _Advertisement(root, origin, version, message.base, added, removed, epochs, part, total)
            return Kind.ADVERTISEMENT, head
        case AdvertisementAckMessage(root=root, origin=origin, version=held, staged=staged):
            return Kind.ADVERTISEMENT_ACK, _AdvertisementAck(root, origin, held, staged)
        case LinkStatusMessage() | TopicsMessage():
            return _news_head(message)
        case SidewaysMessage():
            raise AssertionError("a sideways message inside a sideways message")
        case _:
            assert_never(message)


def _news_head(message: LinkStatusMessage | TopicsMessage) -> tuple[Kind, Head]:
    if isinstance(message, TopicsMessage):
        return Kind.TOPICS_CREATED, _Topics(tuple(map(_created, message.creations)))
    return Kind.LINK_STATUS, _LinkStatus(tuple(sorted(message.reaches)), message.topics)


def _log(log: LogLife) -> _Log | None:
    return (log.id, log.life, log.floor, log.events, log.began) if log.id else None


def _created(each: Creation) -> _Created:
    return each.topic, column_texts(each.schema), each.pubend, each.broker, each.made, each.retention


def _split(message: KnowledgeMessage) -> Iterable[KnowledgeMessage]:
    """The same knowledge in messages that fit into frames: in halves, by rows or by runs."""
    batch, runs = message.batch, message.runs
    rows = 0 if batch is None else len(batch)
    if batch is not None and rows > 1 and (rows > ROWS_MAX or not batch.weighs_at_most(BATCH_BYTES_MAX)):
        cut = int(batch.ticks[rows // 2])
    elif len(runs) > RUNS_MAX:
        cut = _middle(message)
    else:
        yield message
        return
    for half in _halves(message, cut):
        yield from _split(half)


def _middle(message: KnowledgeMessage) -> Tick:
    """A tick before which half of the runs begin."""
    starts = sorted(start for start, _, _ in message.runs)
    cut = starts[len(starts) // 2]
    assert cut > starts[0], f"{len(starts)} runs of '{message.pubend}' that begin at one tick"
    return cut


def _halves(message: KnowledgeMessage, cut: Tick) -> tuple[KnowledgeMessage, KnowledgeMessage]:
    return _between(message, None, cut), _between(message, cut, None)


def _between(message: KnowledgeMessage, low: int | None, high: int | None) -> KnowledgeMessage:
    runs: list[Run] = []
    for start, stop, stamp in message.runs:
        begin = start if low is None else max(start, low)
        end = stop if high is None else min(stop, high)
        if begin < end:
            runs.append((begin, end, stamp))
    batch = message.batch
    if batch is not None:
        batch = batch.between(TICK_MIN if low is None else low, TICK_MAX if high is None else high)
    return KnowledgeMessage(
        pubend=message.pubend,
        runs=tuple(runs),
        batch=batch if batch is not None and len(batch) else None,
        first_time=message.first_time,
        final_before=message.final_before,
        log=message.log,
    )


def _numbered(stamps: Iterable[Epochs]) -> tuple[tuple[_Stamp, ...], list[int]]:
    """The distinct stamps, and for each stamp its index among them."""
    places: dict[Epochs, int] = {}
    at = [places.setdefault(stamp, len(places)) for stamp in stamps]
    return tuple(_stamp(stamp) for stamp in places), at


def _stamp(epochs: Epochs) -> _Stamp:
    return epochs.default, dict(epochs.items())


def _packed(wanted: Iterable[Want]) -> tuple[tuple[str, Packed], ...]:
    return tuple((topic, pack(condition)) for topic, condition in wanted)


# ---- decoding ----------------------------------------------------------------------------------------


class BrokerDecoder:
    """Turns the frames of neighbours into messages."""

    def __init__(
        self,
        topics: Mapping[TopicId, Schema],
        pubends: Mapping[PubendId, TopicId],
        created: frozenset[TopicId] = frozenset(),
    ) -> None:
        """`created` are the topics that are not in the network's description."""
        self._topics = topics
        self._created = created
        self._forms = {pubend: ColumnsFormat(topics[topic]) for pubend, topic in pubends.items()}
        self._unpackers = {topic: Unpacker(schema) for topic, schema in topics.items()}
        self._decoders: dict[Kind, Callable[[Frame], Message | None]] = {
            Kind.KNOWLEDGE: self._knowledge,
            Kind.ACK: _decode_ack,
            Kind.NACK: _decode_nack,
            Kind.ACK_EXPECTED: _decode_plain,
            Kind.START_REQUEST: _decode_plain,
            Kind.START_GRANT: _decode_plain,
            Kind.LOG_KNOWN: _decode_plain,
            Kind.ADVERTISEMENT: self._advertisement,
            Kind.ADVERTISEMENT_ACK: _decode_plain,
            Kind.LINK_STATUS: _decode_link_status,
            Kind.TOPICS_CREATED: _decode_topics,
            Kind.SIDEWAYS: self._sideways,
        }

    @staticmethod
    def of(network: Network) -> BrokerDecoder:
        """A decoder for the messages of one network."""
        pubends = {pubend: place.topic for pubend, place in network.pubends.items()}
        return BrokerDecoder(network.topics, pubends, network.created_topics)

    def decode(self, frame: Frame) -> Message | None:
        """The message in a frame; None when its topic or pubend is not known here yet.

        Raises PeerError, whatever the bytes are.
        """
        decoder = self._decoders.get(frame.kind)
        if decoder is None:
            raise PeerError("E213", f"a {frame.kind.name} frame may not come from a broker")
        return decoder(frame)

    def _knowledge(self, frame: Frame) -> KnowledgeMessage | None:
        head = decode_head(_knowledge, frame, len(frame.parts))
        form = self._forms.get(PubendId(head.pubend))
        if form is None:
            return None
        batch = None
        if frame.parts:
            if len(frame.parts) != 2:
                raise unreadable(frame, f"{len(frame.parts)} parts instead of 2")
            batch = decode_batch(*frame.parts, form)
            if not len(batch):
                raise unreadable(frame, "a batch without rows")
        stamps = _epochs(frame, head.stamps, len(head.runs))
        try:
            runs = tuple((start, stop, stamps[at]) for start, stop, at in head.runs)
        except IndexError:
            raise unreadable(frame, "a run has no stamp") from None
        return KnowledgeMessage(
            pubend=PubendId(head.pubend),
            runs=runs,
            batch=batch,
            first_time=head.first_time,
            final_before=head.final_before,
            log=_log_life(head.log),
        )

    def _advertisement(self, frame: Frame) -> AdvertisementMessage | None:
        head = decode_head(_advertisement, frame)
        if any(TopicId(topic) not in self._topics for topic, _ in (*head.added, *head.removed)):
            return None
        return AdvertisementMessage(
            root=CellId(head.root),
            origin=BrokerId(head.origin),
            version=head.version,
            base=head.base,
            added=self._conditions(head.added),
            removed=self._conditions(head.removed),
            epochs=_epoch(head.epochs),
            part=head.part,
            total=head.total,
        )

    def _conditions(self, wanted: _Wanted) -> Set[Want]:
        found = (self._condition(TopicId(name), packed) for name, packed in wanted)
        return in_order(each for each in found if each is not None)

    def _condition(self, topic: TopicId, packed: Packed) -> Want | None:
        try:
            return topic, self._unpackers[topic].unpack(packed)
        except ContentError as error:
            if topic in self._created:
                # Another topic of this name, with other columns, was created elsewhere.
                return None
            message = f"an advertised condition on the topic '{topic}' cannot be read: {error.message}"
            raise PeerError("E208", message) from error

    def _sideways(self, frame: Frame) -> SidewaysMessage | None:
        head = decode_head(_sideways, frame, len(frame.parts))
        kind = _CELL_KINDS.get(head.kind)
        if kind is None:
            raise unreadable(frame, f"a frame of kind {head.kind} cannot be passed sideways")
        message = self._decoders[kind](Frame(kind, memoryview(head.head), frame.parts))
        if message is None:
            return None
        assert isinstance(message, CellMessage), f"{kind.name} was decoded as {message}"
        return SidewaysMessage(cell=CellId(head.cell), message=message)


def _epochs(frame: Frame, stamps: tuple[_Stamp, ...], runs: int) -> list[Epochs]:
    if len(stamps) > runs:
        raise unreadable(frame, "more stamps than runs")
    return [_epoch(stamp) for stamp in stamps]


def _epoch(stamp: _Stamp) -> Epochs:
    default, by_edge = stamp
    if not by_edge:
        # Identical objects compare fast.
        if default == EPOCH_ALL:
            return ALWAYS
        if default == EPOCH_NONE:
            return NEVER
    return Epochs({BrokerId(edge): epoch for edge, epoch in by_edge.items()}, default)


@lru_cache(maxsize=1024)
def _log_life(log: _Log | None) -> LogLife:
    """The same object for the same log, so that comparing the logs of many messages is cheap."""
    return UNNAMED if log is None else LogLife(*log)


def _decode_ack(frame: Frame) -> AckMessage:
    head = decode_head(_ack, frame)
    stamps = _epochs(frame, head.stamps, len(head.runs))
    try:
        runs = tuple((stop, stamps[at]) for stop, at in head.runs)
    except IndexError:
        raise unreadable(frame, "a run has no stamp") from None
    return AckMessage(pubend=PubendId(head.pubend), runs=runs, log=head.log)


def _decode_nack(frame: Frame) -> NackMessage:
    head = decode_head(_nack, frame)
    return NackMessage(pubend=PubendId(head.pubend), ticks=TickRange(head.start, head.stop))


def _decode_plain(frame: Frame) -> Message:
    """A message whose fields are those of its head; only a log has a form of its own."""
    decoder, message = _PLAIN[frame.kind]
    fields = msgspec.structs.asdict(decode_head(decoder, frame))
    if "log" in fields and not isinstance(fields["log"], str):
        fields["log"] = _log_life(fields["log"])
    return message(**fields)


def _decode_link_status(frame: Frame) -> LinkStatusMessage:
    head = decode_head(_link_status, frame)
    return LinkStatusMessage(reaches=frozenset(map(CellId, head.reaches)), topics=head.topics)


def _decode_topics(frame: Frame) -> TopicsMessage:
    head = decode_head(_topics, frame)
    try:
        creations = tuple(
            Creation(
                schema=Schema.parse(TopicId(topic), columns),
                pubend=PubendId(pubend),
                broker=BrokerId(broker),
                made=made,
                retention=retention,
            )
            for topic, columns, pubend, broker, made, retention in head.creations
        )
    except SchemaError as error:
        raise unreadable(frame, error.message) from error
    return TopicsMessage(creations=creations)
