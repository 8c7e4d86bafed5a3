"""How do the messages of clients and nodes become frames, and frames messages?

A client asks and publishes, a node answers and delivers: each side encodes the one and decodes the other.
Most messages are the head of their frame. Others have rows or schemas in them: these are translated here.

Clients are trusted least. A Publish for a topic that does not exist, or whose schema has changed, does not
break the protocol: its rows are not read, and the node refuses it politely.

Deliveries name pubends by number. A node gives each of its pubends one number for its whole life, and says
which in every Confirmed; `NodeDecoder` remembers them.

Implements docs/wire.md, section 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
import pyarrow as pa
from msgspec import Meta

from gapless.errors import PeerError, SchemaError
from gapless.model.bounds import (
    NAME_CHARACTERS_MAX,
    ROWS_MAX,
    SOURCES_MAX,
    BrokerName,
    ColumnTexts,
    Counter,
    CounterOrNone,
    Name,
    Number,
    PubendName,
    Text,
    TickNumber,
    TickPositions,
    TopicName,
)
from gapless.model.ids import TopicId
from gapless.model.packed import PACKED_ROWS_MAX, PackedRows
from gapless.model.schema import Schema
from gapless.model.ticks import TICK_MIN
from gapless.protocol.sessions.messages import (
    Acknowledge,
    AskStatus,
    ChangeFilter,
    ClientMessage,
    ColumnsDelivery,
    Confirmed,
    CreateTopic,
    Credit,
    Done,
    Horizon,
    ListTopics,
    NodeMessage,
    Publish,
    PublishReceipt,
    PublishRefused,
    ReleasePublisher,
    RequestRefused,
    RowsDelivery,
    StatusReport,
    Subscribe,
    Topics,
    Unsubscribe,
)
from gapless.wire.arrow import rows_of
from gapless.wire.codec import (
    ColumnsFormat,
    Head,
    column_texts,
    decode_head,
    encode_columns,
    encode_head,
    schema_fingerprint,
    shortened,
    unreadable,
)
from gapless.wire.delivery import Source, decode_columns_delivery, decode_rows
from gapless.wire.frames import Frame, Kind, Part, encode_frame
from gapless.wire.rows import RowFormat, encode_packed

#: Maximum number of topics in one list.
TOPICS_MAX: Final = 2**16

_Pubends = Annotated[tuple[PubendName, ...], Meta(max_length=SOURCES_MAX)]


class _Publish(Head, frozen=True):
    topic: TopicName
    pubend: PubendName | None
    publisher: Name
    first_catenation: Counter
    schema: Number
    #: Ignored. Earlier clients put the name of an event here.
    unused: tuple[Name, TickNumber] | None
    given_up: Counter | None = None
    before: CounterOrNone | None = None
    is_temporary: bool = False


class _Confirmed(Head, frozen=True):
    request: Number
    subscription: Number
    source: Number
    pubends: Annotated[int, Meta(ge=1, le=SOURCES_MAX)]
    pubend: PubendName
    topic: TopicName
    columns: ColumnTexts
    start: TickNumber
    lost_from: TickNumber | None = None
    log: Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)] = ""
    began: TickNumber = TICK_MIN
    awaited: _Pubends = ()


class _Topics(Head, frozen=True):
    request: Number
    topics: Annotated[tuple[tuple[TopicName, ColumnTexts, _Pubends], ...], Meta(max_length=TOPICS_MAX)]
    places: Annotated[Mapping[PubendName, BrokerName], Meta(max_length=SOURCES_MAX)] = {}
    addresses: Annotated[Mapping[BrokerName, Text], Meta(max_length=SOURCES_MAX)] = {}
    repositories: Annotated[tuple[BrokerName, ...], Meta(max_length=SOURCES_MAX)] = ()
    bulk: Text = ""
    ends: TickPositions = msgspec.field(default_factory=dict)


_publish = msgspec.msgpack.Decoder(_Publish)
_confirmed = msgspec.msgpack.Decoder(_Confirmed)
_topics = msgspec.msgpack.Decoder(_Topics)

#: The messages that are nothing but a head.
_OF_CLIENTS: Final[dict[Kind, type[ClientMessage]]] = {
    Kind.SUBSCRIBE: Subscribe,
    Kind.CHANGE_FILTER: ChangeFilter,
    Kind.UNSUBSCRIBE: Unsubscribe,
    Kind.CREDIT: Credit,
    Kind.ACKNOWLEDGE: Acknowledge,
    Kind.LIST_TOPICS: ListTopics,
    Kind.CREATE_TOPIC: CreateTopic,
    Kind.ASK_STATUS: AskStatus,
    Kind.RELEASE_PUBLISHER: ReleasePublisher,
}
_OF_NODES: Final[dict[Kind, type[NodeMessage]]] = {
    Kind.RECEIPT: PublishReceipt,
    Kind.PUBLISH_REFUSED: PublishRefused,
    Kind.HORIZON: Horizon,
    Kind.DONE: Done,
    Kind.REQUEST_REFUSED: RequestRefused,
    Kind.STATUS_REPORT: StatusReport,
}
_KINDS: Final[dict[type, Kind]] = {
    message: kind for kinds in (_OF_CLIENTS, _OF_NODES) for kind, message in kinds.items()
}
_from_clients = {kind: msgspec.msgpack.Decoder(message) for kind, message in _OF_CLIENTS.items()}
_from_nodes = {kind: msgspec.msgpack.Decoder(message) for kind, message in _OF_NODES.items()}


# ---- from the client ---------------------------------------------------------------------------------


def encode_client(message: ClientMessage) -> list[Part]:
    """What a client sends, as pieces to write one after the other."""
    if not isinstance(message, Publish):
        return encode_frame(_KINDS[type(message)], encode_head(message))
    assert message.rows is not None, f"a Publish to '{message.topic}' without rows"
    head = _Publish(
        message.topic,
        message.pubend,
        message.publisher,
        message.first_catenation,
        message.schema,
        None,
        message.given_up,
        message.before,
        message.is_temporary,
    )
    if isinstance(message.rows, PackedRows):
        return encode_frame(Kind.PUBLISH_ROWS, encode_head(head), encode_packed(message.rows))
    return encode_frame(Kind.PUBLISH, encode_head(head), [encode_columns(message.rows)])


class ClientDecoder:
    """Turns the frames of clients into messages. One for all clients of a node."""

    __slots__ = ("_forms", "_topics")

    def __init__(self, topics: Mapping[TopicId, Schema]) -> None:
        """`topics` may grow and change while the decoder is in use."""
        self._topics = topics
        self._forms: dict[TopicId, tuple[ColumnsFormat, RowFormat, int]] = {}

    def decode(self, frame: Frame) -> ClientMessage:
        """The message in a frame. Raises PeerError, whatever the bytes are."""
        if frame.kind in (Kind.PUBLISH, Kind.PUBLISH_ROWS):
            return self._publish(frame)
        decoder = _from_clients.get(frame.kind)
        if decoder is None:
            raise PeerError("E213", f"a {frame.kind.name} frame may not come from a client")
        return decode_head(decoder, frame)

    def _publish(self, frame: Frame) -> Publish:
        is_packed = frame.kind is Kind.PUBLISH_ROWS
        head = decode_head(_publish, frame, parts=2 if is_packed else 1)
        if head.before is not None and head.before >= head.first_catenation:
            raise unreadable(frame, f"number {head.before} is not before {head.first_catenation}")
        rows: pa.RecordBatch | PackedRows | None = None
        encoded: memoryview | None = None
        damage: PeerError | None = None
        known = self._known(head.topic)
        if known is not None and known[2] == head.schema:
            try:
                if is_packed:
                    rows = known[1].unpacked(frame)
                else:
                    rows, encoded = known[0].decode_new(frame.parts[0])
            except PeerError as error:
                # The head is valid: the rows are refused by their numbers, and the connection stays open.
                # A new error: this one refers to its cause, that to the stack, and the stack to this frame.
                damage = PeerError(error.code, error.message, retry=error.retry)
        return Publish(
            topic=head.topic,
            pubend=head.pubend,
            publisher=head.publisher,
            first_catenation=head.first_catenation,
            schema=head.schema,
            rows=rows,
            given_up=head.given_up,
            before=head.before,
            is_temporary=head.is_temporary,
            encoded=encoded,
            nbytes=len(frame.parts[-1]),
            claimed_rows=_claimed_rows(frame) if rows is None else rows.num_rows,
            damage=damage,
        )

    def _known(self, topic: TopicId) -> tuple[ColumnsFormat, RowFormat, int] | None:
        schema = self._topics.get(topic)
        if schema is None:
            return None
        known = self._forms.get(topic)
        if known is None or known[0].schema is not schema:
            known = self._forms[topic] = (
                ColumnsFormat(schema),
                RowFormat(schema),
                schema_fingerprint(schema),
            )
        return known


def _claimed_rows(frame: Frame) -> int:
    """The number of rows in a frame, as far as known without reading them."""
    if frame.kind is Kind.PUBLISH_ROWS:
        return max(1, min(len(frame.parts[0]) // 4, PACKED_ROWS_MAX))
    return min(rows_of(frame.parts[0]), ROWS_MAX)


# ---- from the node -----------------------------------------------------------------------------------


def encode_node(message: NodeMessage) -> list[Part]:
    """What a node answers. Deliveries are encoded by `delivery`, once for all who get them."""
    match message:
        case PublishRefused(message=text) | RequestRefused(message=text):
            message = msgspec.structs.replace(message, message=shortened(text))
        case Confirmed():
            return encode_frame(Kind.CONFIRMED, encode_head(_confirmed_head(message)))
        case Topics():
            return encode_frame(Kind.TOPICS, encode_head(_topics_head(message)))
        case RowsDelivery() | ColumnsDelivery():
            raise AssertionError("deliveries are encoded by SharedRows and SharedColumns")
    return encode_frame(_KINDS[type(message)], encode_head(message))


def _confirmed_head(message: Confirmed) -> _Confirmed:
    return _Confirmed(
        message.request,
        message.subscription,
        message.source,
        message.pubends,
        message.pubend,
        message.schema.topic,
        column_texts(message.schema),
        message.start,
        message.lost_from,
        message.log,
        message.began,
        message.awaited,
    )


def _topics_head(message: Topics) -> _Topics:
    return _Topics(
        message.request,
        tuple((schema.topic, column_texts(schema), pubends) for schema, pubends in message.topics),
        dict(message.places),
        dict(message.addresses),
        message.repositories,
        message.bulk,
        dict(message.ends),
    )


class NodeDecoder:
    """Turns the frames of one node into messages. One for each connection: it remembers the sources."""

    __slots__ = ("_sources",)

    def __init__(self) -> None:
        self._sources: dict[int, Source] = {}

    def decode(self, frame: Frame) -> NodeMessage:
        """The message in a frame. Raises PeerError, whatever the bytes are."""
        match frame.kind:
            case Kind.ROWS:
                return decode_rows(frame, self._sources)
            case Kind.COLUMNS:
                return decode_columns_delivery(frame, self._sources)
            case Kind.CONFIRMED:
                return self._confirmed(frame)
            case Kind.TOPICS:
                return _decode_topics(frame)
        decoder = _from_nodes.get(frame.kind)
        if decoder is None:
            raise PeerError("E213", f"a {frame.kind.name} frame may not come from a node")
        message = decode_head(decoder, frame)
        if isinstance(message, PublishReceipt):
            _check_receipt(frame, message)
        return message

    def _confirmed(self, frame: Frame) -> Confirmed:
        fields = msgspec.structs.asdict(decode_head(_confirmed, frame))
        schema = _schema(frame, fields.pop("topic"), fields.pop("columns"))
        message = Confirmed(schema=schema, **fields)
        known = self._sources.get(message.source)
        if known is None or known.pubend != message.pubend or known.schema != schema:
            self._sources[message.source] = Source(message.pubend, schema)
        return message


def _check_receipt(frame: Frame, receipt: PublishReceipt) -> None:
    count = receipt.last_catenation - receipt.first_catenation + 1
    named = sum(run[1] for run in receipt.runs)
    if count < 1 or (receipt.runs and (named != count or count > ROWS_MAX)):
        raise unreadable(frame, f"{named} ticks for {count} events")


def _decode_topics(frame: Frame) -> Topics:
    fields = msgspec.structs.asdict(decode_head(_topics, frame))
    listed = fields.pop("topics")
    topics = tuple((_schema(frame, topic, columns), pubends) for topic, columns, pubends in listed)
    return Topics(topics=topics, **fields)


def _schema(frame: Frame, topic: str, columns: Mapping[str, str]) -> Schema:
    try:
        return Schema.parse(TopicId(topic), columns)
    except SchemaError as error:
        raise unreadable(frame, error.message) from error
