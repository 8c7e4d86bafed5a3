"""How do the messages of clients and nodes become frames, and frames messages?

A client asks and publishes, a node answers and delivers: each side encodes the one and decodes the other.
Clients are trusted least. A Publish for a topic that does not exist, or whose schema has changed, does not
break the protocol: its rows are not read, and the node refuses it politely.

Deliveries name pubends by number. A node gives each of its pubends one number for its whole life, and says
which in every Confirmed; `NodeDecoder` remembers them.

Implements docs/wire.md, section 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, assert_never

import msgspec
import pyarrow as pa
from msgspec import Meta

from gapless.errors import PeerError, SchemaError
from gapless.model.ids import BrokerId, PubendId, TopicId
from gapless.model.packed import PACKED_ROWS_MAX, PackedRows
from gapless.model.schema import Schema
from gapless.model.ticks import TICK_MIN, Tick
from gapless.protocol.events import Order
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
    NAME_CHARACTERS_MAX,
    ROWS_MAX,
    ColumnsFormat,
    ColumnTexts,
    ConditionText,
    Counter,
    Head,
    Name,
    Number,
    RowCount,
    Text,
    TickNumber,
    column_texts,
    decode_head,
    encode_columns,
    encode_head,
    schema_fingerprint,
    shortened,
    unreadable,
)
from gapless.wire.delivery import SOURCES_MAX, Source, decode_columns_delivery, decode_rows
from gapless.wire.frames import Frame, Kind, Part, encode_frame
from gapless.wire.rows import RowFormat, encode_packed

#: Topics of one list.
TOPICS_MAX: Final = 2**16
#: Characters of a status report.
REPORT_CHARACTERS_MAX: Final = 8 * 2**20

_Positions = Annotated[dict[Name, TickNumber], Meta(max_length=SOURCES_MAX)]
_Code = Annotated[str, Meta(pattern="^E[1-9][0-9][0-9]$")]
#: Maximum number of rows granted at once.
CREDIT_ROWS_MAX: Final = 2**40
_CreditRows = Annotated[int, Meta(ge=0, le=CREDIT_ROWS_MAX)]
#: A catenation number, or -1 for none.
_Before = Annotated[int, Meta(ge=-1, le=2**62)]


class _Publish(Head, frozen=True):
    topic: Name
    pubend: Name | None
    publisher: Name
    first_catenation: Counter
    schema: Number
    #: Ignored. Earlier clients put the name of an event here.
    unused: tuple[Name, TickNumber] | None
    given_up: Counter | None = None
    before: _Before | None = None
    is_temporary: bool = False


class _Subscribe(Head, frozen=True):
    request: Number
    topic: Name
    where: ConditionText
    name: Name | None
    order: Order
    start: Literal["now", "earliest", "stored"] | TickNumber | _Positions
    mode: Literal["guaranteed", "best-effort", "holding"]
    credit_rows: _CreditRows | None
    roams: bool = False


class _ChangeFilter(Head, frozen=True):
    request: Number
    subscription: Number
    where: ConditionText


class _Unsubscribe(Head, frozen=True):
    request: Number
    subscription: Number
    forget: bool


class _Credit(Head, frozen=True):
    subscription: Number
    rows: _CreditRows


class _Acknowledge(Head, frozen=True):
    subscription: Number
    positions: _Positions


class _Request(Head, frozen=True):
    request: Number


class _ListTopics(Head, frozen=True):
    request: Number
    bulk: bool = False


class _AskStatus(Head, frozen=True):
    request: Number
    event: tuple[Name, TickNumber] | None = None
    subscription: Annotated[str, Meta(min_length=1, max_length=2 * NAME_CHARACTERS_MAX)] | None = None


class _ReleasePublisher(Head, frozen=True):
    request: Number
    publisher: Name


class _CreateTopic(Head, frozen=True):
    request: Number
    topic: Name
    columns: ColumnTexts
    retention: Text = ""


class _Receipt(Head, frozen=True):
    publisher: Name
    first_catenation: Counter
    last_catenation: Counter
    pubend: Name
    runs: Annotated[tuple[tuple[TickNumber, RowCount], ...], Meta(max_length=ROWS_MAX)]


class _PublishRefused(Head, frozen=True):
    publisher: Name
    first_catenation: Counter
    last_catenation: Counter
    code: _Code
    message: Text
    retry: bool
    had: _Before | None = None


class _Confirmed(Head, frozen=True):
    request: Number
    subscription: Number
    source: Number
    pubends: Annotated[int, Meta(ge=1, le=SOURCES_MAX)]
    pubend: Name
    topic: Name
    columns: ColumnTexts
    start: TickNumber
    lost_from: TickNumber | None = None
    log: Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)] = ""
    began: TickNumber = TICK_MIN
    awaited: Annotated[tuple[Name, ...], Meta(max_length=SOURCES_MAX)] = ()


class _RequestRefused(Head, frozen=True):
    request: Number
    code: _Code
    message: Text
    retry: bool


class _Topics(Head, frozen=True):
    request: Number
    topics: Annotated[
        tuple[tuple[Name, ColumnTexts, Annotated[tuple[Name, ...], Meta(max_length=SOURCES_MAX)]], ...],
        Meta(max_length=TOPICS_MAX),
    ]
    places: Annotated[dict[Name, Name], Meta(max_length=SOURCES_MAX)] = msgspec.field(default_factory=dict)
    addresses: Annotated[dict[Name, Text], Meta(max_length=SOURCES_MAX)] = msgspec.field(default_factory=dict)
    repositories: Annotated[tuple[Name, ...], Meta(max_length=SOURCES_MAX)] = ()
    bulk: Text = ""
    ends: Annotated[dict[Name, TickNumber], Meta(max_length=SOURCES_MAX)] = msgspec.field(
        default_factory=dict
    )


class _StatusReport(Head, frozen=True):
    request: Number
    report: Annotated[str, Meta(max_length=REPORT_CHARACTERS_MAX)]


_publish = msgspec.msgpack.Decoder(_Publish)
_subscribe = msgspec.msgpack.Decoder(_Subscribe)
_change_filter = msgspec.msgpack.Decoder(_ChangeFilter)
_unsubscribe = msgspec.msgpack.Decoder(_Unsubscribe)
_credit = msgspec.msgpack.Decoder(_Credit)
_acknowledge = msgspec.msgpack.Decoder(_Acknowledge)
_request = msgspec.msgpack.Decoder(_Request)
_ask_status = msgspec.msgpack.Decoder(_AskStatus)
_list_topics = msgspec.msgpack.Decoder(_ListTopics)
_release_publisher = msgspec.msgpack.Decoder(_ReleasePublisher)
_create_topic = msgspec.msgpack.Decoder(_CreateTopic)
_receipt = msgspec.msgpack.Decoder(_Receipt)
_publish_refused = msgspec.msgpack.Decoder(_PublishRefused)
_confirmed = msgspec.msgpack.Decoder(_Confirmed)
_request_refused = msgspec.msgpack.Decoder(_RequestRefused)
_topics = msgspec.msgpack.Decoder(_Topics)
_status_report = msgspec.msgpack.Decoder(_StatusReport)


# ---- from the client ---------------------------------------------------------------------------------


def encode_client(message: ClientMessage) -> list[Part]:
    """What a client sends, as pieces to write one after the other."""
    match message:
        case Publish(topic=topic, pubend=pubend, publisher=publisher, first_catenation=first):
            assert message.rows is not None, f"a Publish to '{topic}' without rows"
            published = _Publish(
                topic,
                pubend,
                publisher,
                first,
                message.schema,
                None,
                message.given_up,
                message.before,
                message.is_temporary,
            )
            if isinstance(message.rows, PackedRows):
                return encode_frame(Kind.PUBLISH_ROWS, encode_head(published), encode_packed(message.rows))
            return encode_frame(Kind.PUBLISH, encode_head(published), [encode_columns(message.rows)])
        case Subscribe(request=request, topic=topic, where=where, name=name, order=order):
            start = message.start if isinstance(message.start, str | int) else _told(message.start)
            subscribed = _Subscribe(
                request, topic, where, name, order, start, message.mode, message.credit_rows, message.roams
            )
            return encode_frame(Kind.SUBSCRIBE, encode_head(subscribed))
        case ChangeFilter(request=request, subscription=subscription, where=where):
            head: Head = _ChangeFilter(request, subscription, where)
            kind = Kind.CHANGE_FILTER
        case Unsubscribe(request=request, subscription=subscription, forget=forget):
            kind, head = Kind.UNSUBSCRIBE, _Unsubscribe(request, subscription, forget)
        case Credit(subscription=subscription, rows=rows):
            kind, head = Kind.CREDIT, _Credit(subscription, rows)
        case Acknowledge(subscription=subscription, positions=positions):
            kind, head = Kind.ACKNOWLEDGE, _Acknowledge(subscription, _told(positions))
        case ListTopics(request=request, bulk=bulk):
            kind, head = Kind.LIST_TOPICS, _ListTopics(request, bulk)
        case CreateTopic(request=request, topic=topic, columns=columns, retention=retention):
            kind, head = Kind.CREATE_TOPIC, _CreateTopic(request, topic, dict(columns), retention)
        case AskStatus(request=request, event=event, subscription=name):
            kind, head = Kind.ASK_STATUS, _AskStatus(request, event, name)
        case ReleasePublisher(request=request, publisher=publisher):
            kind, head = Kind.RELEASE_PUBLISHER, _ReleasePublisher(request, publisher)
        case _:
            assert_never(message)
    return encode_frame(kind, encode_head(head))


def _told(positions: Mapping[PubendId, Tick]) -> dict[str, int]:
    return {pubend: tick for pubend, tick in positions.items()}  # noqa: C416  # the keys become plain texts


class ClientDecoder:
    """Turns the frames of clients into messages. One for all clients of a node."""

    __slots__ = ("_forms", "_topics")

    def __init__(self, topics: Mapping[TopicId, Schema]) -> None:
        """`topics` may grow and change while the decoder is in use."""
        self._topics = topics
        self._forms: dict[TopicId, tuple[ColumnsFormat, RowFormat, int]] = {}

    def decode(self, frame: Frame) -> ClientMessage:
        """The message in a frame. Raises PeerError, whatever the bytes are."""
        match frame.kind:
            case Kind.PUBLISH | Kind.PUBLISH_ROWS:
                return self._publish(frame)
            case Kind.ACKNOWLEDGE:
                done = decode_head(_acknowledge, frame)
                return Acknowledge(subscription=done.subscription, positions=_positions(done.positions))
            case Kind.CREDIT:
                credit = decode_head(_credit, frame)
                return Credit(subscription=credit.subscription, rows=credit.rows)
            case Kind.SUBSCRIBE:
                return _decode_subscribe(frame)
            case Kind.CHANGE_FILTER:
                change = decode_head(_change_filter, frame)
                return ChangeFilter(
                    request=change.request, subscription=change.subscription, where=change.where
                )
            case Kind.UNSUBSCRIBE:
                gone = decode_head(_unsubscribe, frame)
                return Unsubscribe(request=gone.request, subscription=gone.subscription, forget=gone.forget)
            case Kind.LIST_TOPICS:
                listed = decode_head(_list_topics, frame)
                return ListTopics(request=listed.request, bulk=listed.bulk)
            case Kind.CREATE_TOPIC:
                create = decode_head(_create_topic, frame)
                return CreateTopic(
                    request=create.request,
                    topic=TopicId(create.topic),
                    columns=create.columns,
                    retention=create.retention,
                )
            case Kind.ASK_STATUS:
                return _decode_ask_status(frame)
            case Kind.RELEASE_PUBLISHER:
                release = decode_head(_release_publisher, frame)
                return ReleasePublisher(request=release.request, publisher=release.publisher)
            case _:
                raise PeerError("E213", f"a {frame.kind.name} frame may not come from a client")

    def _publish(self, frame: Frame) -> Publish:
        is_packed = frame.kind is Kind.PUBLISH_ROWS
        head = decode_head(_publish, frame, parts=2 if is_packed else 1)
        if head.before is not None and head.before >= head.first_catenation:
            raise unreadable(frame, f"number {head.before} is not before {head.first_catenation}")
        topic = TopicId(head.topic)
        rows: pa.RecordBatch | PackedRows | None = None
        encoded: memoryview | None = None
        damage: PeerError | None = None
        known = self._known(topic)
        if known is not None and known[2] == head.schema:
            try:
                if is_packed:
                    rows = known[1].unpacked(frame)
                else:
                    rows, encoded = known[0].decode_new(frame.parts[0])
            except PeerError as error:
                # The head is valid: the rows are refused by their numbers, and the connection stays open.
                damage = error.with_traceback(None)
        return Publish(
            topic=topic,
            pubend=None if head.pubend is None else PubendId(head.pubend),
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


def _decode_ask_status(frame: Frame) -> AskStatus:
    head = decode_head(_ask_status, frame)
    event = None if head.event is None else (PubendId(head.event[0]), head.event[1])
    return AskStatus(request=head.request, event=event, subscription=head.subscription)


def _positions(told: dict[str, int]) -> dict[PubendId, Tick]:
    return {PubendId(pubend): tick for pubend, tick in told.items()}


def _decode_subscribe(frame: Frame) -> Subscribe:
    head = decode_head(_subscribe, frame)
    start = head.start
    return Subscribe(
        request=head.request,
        topic=TopicId(head.topic),
        where=head.where,
        name=head.name,
        order=head.order,
        start=_positions(start) if isinstance(start, dict) else start,
        mode=head.mode,
        credit_rows=head.credit_rows,
        roams=head.roams,
    )


# ---- from the node -----------------------------------------------------------------------------------


def encode_node(message: NodeMessage) -> list[Part]:
    """What a node answers. Deliveries are encoded by `delivery`, once for all who get them."""
    match message:
        case PublishReceipt(publisher=publisher, first_catenation=first, last_catenation=last):
            head: Head = _Receipt(publisher, first, last, message.pubend, message.runs)
            kind = Kind.RECEIPT
        case PublishRefused(publisher=publisher, first_catenation=first, last_catenation=last):
            kind = Kind.PUBLISH_REFUSED
            head = _PublishRefused(
                publisher, first, last, message.code, shortened(message.message), message.retry, message.had
            )
        case Confirmed(request=request, schema=schema):
            kind = Kind.CONFIRMED
            head = _Confirmed(
                request,
                message.subscription,
                message.source,
                message.pubends,
                message.pubend,
                schema.topic,
                column_texts(schema),
                message.start,
                message.lost_from,
                message.log,
                message.began,
                message.awaited,
            )
        case Horizon(subscription=subscription, before=before):
            kind, head = Kind.HORIZON, _Acknowledge(subscription, _told(before))
        case Done(request=request):
            kind, head = Kind.DONE, _Request(request)
        case RequestRefused(request=request, code=code, message=text, retry=retry):
            kind, head = Kind.REQUEST_REFUSED, _RequestRefused(request, code, shortened(text), retry)
        case Topics(request=request, topics=topics):
            listed = tuple((each.topic, column_texts(each), tuple(pubends)) for each, pubends in topics)
            places = {str(pubend): str(broker) for pubend, broker in message.places.items()}
            addresses = {str(broker): address for broker, address in message.addresses.items()}
            ends = _told(message.ends)
            told = _Topics(request, listed, places, addresses, message.repositories, message.bulk, ends)
            kind, head = Kind.TOPICS, told
        case StatusReport(request=request, report=report):
            kind, head = Kind.STATUS_REPORT, _StatusReport(request, report)
        case RowsDelivery() | ColumnsDelivery():
            raise AssertionError("deliveries are encoded by SharedRows and SharedColumns")
        case _:
            assert_never(message)
    return encode_frame(kind, encode_head(head))


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
            case Kind.RECEIPT:
                return _decode_receipt(frame)
            case Kind.PUBLISH_REFUSED:
                refused = decode_head(_publish_refused, frame)
                return PublishRefused(**msgspec.structs.asdict(refused))
            case Kind.CONFIRMED:
                return self._confirmed(frame)
            case Kind.HORIZON:
                told = decode_head(_acknowledge, frame)
                return Horizon(subscription=told.subscription, before=_positions(told.positions))
            case Kind.DONE:
                return Done(request=decode_head(_request, frame).request)
            case Kind.REQUEST_REFUSED:
                return RequestRefused(**msgspec.structs.asdict(decode_head(_request_refused, frame)))
            case Kind.TOPICS:
                return _decode_topics(frame)
            case Kind.STATUS_REPORT:
                report = decode_head(_status_report, frame)
                return StatusReport(request=report.request, report=report.report)
            case _:
                raise PeerError("E213", f"a {frame.kind.name} frame may not come from a node")

    def _confirmed(self, frame: Frame) -> Confirmed:
        head = decode_head(_confirmed, frame)
        pubend = PubendId(head.pubend)
        schema = _schema(frame, head.topic, head.columns)
        known = self._sources.get(head.source)
        if known is None or known.pubend != pubend or known.schema != schema:
            self._sources[head.source] = Source(pubend, schema)
        return Confirmed(
            request=head.request,
            subscription=head.subscription,
            source=head.source,
            pubends=head.pubends,
            pubend=pubend,
            schema=schema,
            start=head.start,
            lost_from=head.lost_from,
            log=head.log,
            began=head.began,
            awaited=tuple(map(PubendId, head.awaited)),
        )


def _decode_receipt(frame: Frame) -> PublishReceipt:
    head = decode_head(_receipt, frame)
    count = head.last_catenation - head.first_catenation + 1
    named = sum(run[1] for run in head.runs)
    if count < 1 or (head.runs and (named != count or count > ROWS_MAX)):
        raise unreadable(frame, f"{named} ticks for {count} events")
    return PublishReceipt(
        publisher=head.publisher,
        first_catenation=head.first_catenation,
        last_catenation=head.last_catenation,
        pubend=PubendId(head.pubend),
        runs=head.runs,
    )


def _decode_topics(frame: Frame) -> Topics:
    head = decode_head(_topics, frame)
    return Topics(
        request=head.request,
        topics=tuple(
            (_schema(frame, topic, columns), tuple(map(PubendId, pubends)))
            for topic, columns, pubends in head.topics
        ),
        places={PubendId(pubend): BrokerId(broker) for pubend, broker in head.places.items()},
        addresses={BrokerId(broker): address for broker, address in head.addresses.items()},
        repositories=tuple(map(BrokerId, head.repositories)),
        bulk=head.bulk,
        ends=_positions(head.ends),
    )


def _schema(frame: Frame, topic: str, columns: dict[str, str]) -> Schema:
    try:
        return Schema.parse(TopicId(topic), columns)
    except SchemaError as error:
        raise unreadable(frame, error.message) from error
