"""Messages as bytes: the exact bytes of a few, and what is refused of the others."""

import re
import struct
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from gapless.content.language import parse_condition
from gapless.errors import PeerError
from gapless.model.batch import EventBatch
from gapless.model.bounds import SOURCES_MAX
from gapless.model.epochs import ALWAYS, NEVER, Epochs
from gapless.model.ids import BrokerId, CellId, PubendId, TopicId
from gapless.model.packed import PACKED_ROWS_MAX, PackedRows
from gapless.model.schema import Schema
from gapless.model.stream import KnowledgeStream
from gapless.model.ticks import TICK_MIN, TickRange
from gapless.protocol.messages import (
    AckMessage,
    AdvertisementMessage,
    KnowledgeMessage,
    LinkStatusMessage,
    Message,
    NackMessage,
    SidewaysMessage,
)
from gapless.protocol.network import Network
from gapless.protocol.sessions.messages import (
    ClientMessage,
    ColumnsDelivery,
    Confirmed,
    Publish,
    PublishReceipt,
    RequestRefused,
    RowsDelivery,
    Subscribe,
)
from gapless.wire import broker_codec, delivery
from gapless.wire.broker_codec import BrokerDecoder, BrokerEncoder
from gapless.wire.client_codec import ClientDecoder, NodeDecoder, encode_client, encode_node
from gapless.wire.codec import KEPT_BYTES_MIN, ColumnsFormat, encode_batch, schema_fingerprint
from gapless.wire.delivery import DELIVERY_BYTES_MAX, SharedColumns, SharedRows
from gapless.wire.frames import Frame, FrameReader, Kind, Part, encode_frame
from gapless.wire.handshake import (
    Hello,
    Refuse,
    Role,
    decode_link,
    encode_link,
)
from gapless.wire.rows import RowFormat

NETWORK = """
cells = { p = ["p1"], s = ["s1"] }
links = ["p--s"]
topics.trades = { sym = "string", price = "int?" }
pubends.t = { topic = "trades", broker = "p1" }
"""
TRADES = Schema.parse(TopicId("trades"), {"sym": "string", "price": "int?"})
T = PubendId("t")


def batch_of(*ticks: int, sym: str = "IBM") -> EventBatch:
    columns = {"sym": [sym] * len(ticks), "price": list(range(len(ticks)))}
    return EventBatch(np.array(ticks, np.int64), pa.RecordBatch.from_pydict(columns, schema=TRADES.arrow()))


def knowledge(batch: EventBatch | None, *runs: tuple[int, int, Epochs]) -> KnowledgeMessage:
    return KnowledgeMessage(pubend=T, runs=runs, batch=batch, first_time=True, final_before=TICK_MIN)


def frames_of(pieces: list[Part]) -> list[Frame]:
    return FrameReader(frozenset(Kind)).feed(b"".join(pieces))


def decoder() -> BrokerDecoder:
    return BrokerDecoder.of(Network.load(NETWORK))


def refused(frame: Frame, code: str, says: str) -> None:
    with pytest.raises(PeerError, match=f"{code}.*{says}"):
        decoder().decode(frame)


# ---- the exact bytes ---------------------------------------------------------------------------------

STAMPED = Epochs({BrokerId("s1"): 3})


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            NackMessage(pubend=T, ticks=TickRange(5, 300)),
            "47a70112080000000700000000000000 93a17405cd012c00",
        ),
        (
            AckMessage(pubend=T, runs=((7, ALWAYS), (9, STAMPED), (12, ALWAYS))),
            (
                "47a70111280000002100000000000000"
                "94a1749292cf7fffffffffffffff8092ff81a273310393920700920901920c00a000000000000000"
            ),
        ),
        (
            SidewaysMessage(cell=CellId("p"), message=knowledge(None, (1, 4, NEVER))),
            (
                "47a70119200000001b00000000000000"
                "93a1701096a174c3d3c0000000000000009192ff809193010400c00000000000"
            ),
        ),
        (
            LinkStatusMessage(reaches=frozenset({CellId("b"), CellId("a")})),
            "47a70118080000000700000000000000 9292a161a1620000",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_messages_of_brokers_have_these_bytes(message: Message, expected: str) -> None:
    assert b"".join(BrokerEncoder().encode(message)).hex() == expected.replace(" ", "")


def test_a_hello_has_these_bytes_for_ever() -> None:
    [data] = encode_link(Hello(role=Role.CLIENT, name="me", token="x"))
    assert bytes(data).hex() == (
        "47a70001500000004a00000000000000"
        "87a4726f6c65a6636c69656e74a46e616d65a26d65a76e6574776f726ba0a8736f667477617265a0a5746f6b656ea178"
        "ab76657273696f6e5f6d696e01ab76657273696f6e5f6d617801000000000000"
    )  # fmt: skip


def test_one_row_for_one_subscriber_has_these_bytes() -> None:
    shared = SharedRows(RowFormat(TRADES), batch_of(258), np.array([0]), [4])
    assert shared.one(7, 0).hex() == (
        "47a70143280000002800000000000000"  # the header
        "01000000010000000700000000000000"  # one pair, one row; subscription 7 gets row 0
        "02010000000000000400000006000000"  # tick 258, source 4, 6 bytes
        "92a349424d000000"
    )  # fmt: skip


# ---- brokers -----------------------------------------------------------------------------------------


def test_stamps_are_written_once_each() -> None:
    runs = tuple((10 * at, 10 * at + 5, STAMPED) for at in range(100))
    once = len(b"".join(BrokerEncoder().encode(knowledge(None, *runs))))
    assert once < 100 * 12


def test_a_message_for_many_links_is_encoded_once() -> None:
    encoder = BrokerEncoder()
    message = knowledge(batch_of(*range(2_000)), (0, 2_000, ALWAYS))
    first, second = encoder.encode(message), encoder.encode(message)
    assert first[1] is second[1]
    assert decoder().decode(frames_of(second)[0]) == message


def test_much_knowledge_is_sent_as_several_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_codec, "BATCH_BYTES_MAX", 2_000)
    monkeypatch.setattr(broker_codec, "RUNS_MAX", 3)
    batch = batch_of(*range(0, 500, 2))
    runs = tuple((start, start + 90, ALWAYS if start else STAMPED) for start in range(0, 500, 100))
    batch = batch.where(batch.ticks % 100 < 90)
    message = knowledge(batch, *runs)
    for sent in (message, SidewaysMessage(cell=CellId("p"), message=message)):
        frames = frames_of(BrokerEncoder().encode(sent))
        assert len(frames) == 4
        stream = KnowledgeStream()
        for frame in frames:
            part = decoder().decode(frame)
            part = part.message if isinstance(part, SidewaysMessage) else part
            assert isinstance(part, KnowledgeMessage)
            assert (part.first_time, part.final_before) == (True, TICK_MIN)
            stream.accumulate(list(part.runs), part.batch)
        whole = KnowledgeStream()
        whole.accumulate(list(runs), batch)
        assert list(stream.known.runs(0, 600)) == list(whole.known.runs(0, 600))
        assert EventBatch.joined(stream.rows.between(0, 600)) == batch


def test_one_tick_that_does_not_ascend_is_refused() -> None:
    for ticks in ((3, 3), (4, 3), (TICK_MIN - 1, 0), (0, 2**62)):
        refused(*frames_of(BrokerEncoder().encode(knowledge(batch_of(*ticks)))), "E216", "ascend")


def test_ticks_and_rows_must_be_as_many() -> None:
    [frame] = frames_of(BrokerEncoder().encode(knowledge(batch_of(1, 2))))
    refused(frame._replace(parts=(frame.parts[0][:8], frame.parts[1])), "E216", "2 rows and 1 ticks")
    refused(frame._replace(parts=(frame.parts[0][:9], frame.parts[1])), "E216", "9 bytes of ticks")
    refused(frame._replace(parts=frame.parts[:1]), "E215", "parts")
    [empty] = frames_of(BrokerEncoder().encode(knowledge(batch_of())))
    refused(empty, "E216", "no rows")


def with_columns(columns: pa.RecordBatch, options: pa.ipc.IpcWriteOptions | None = None) -> Frame:
    """Knowledge of two rows, whose columns are these."""
    [frame] = frames_of(BrokerEncoder().encode(knowledge(batch_of(1, 2))))
    if options is None:
        return frame._replace(parts=(frame.parts[0], memoryview(columns.serialize())))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, columns.schema, options=options) as writer:
        writer.write_batch(columns)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    return frame._replace(parts=(frame.parts[0], memoryview(reader.read_next_message().serialize())))


def test_many_rows_are_passed_on_as_received() -> None:
    sent = batch_of(*range(5_000))
    message = memoryview(sent.columns.serialize())
    columns, encoded = ColumnsFormat(TRADES).decode_kept(memoryview(bytes(message)))
    assert columns.equals(sent.columns)
    assert encoded == message
    batch = EventBatch(sent.ticks, columns, encoded=encoded)
    assert encode_batch(batch) is encoded
    assert encode_batch(batch.slice(0, 5_000)) is encoded
    assert encode_batch(batch.slice(0, 4_999)) != encoded


def test_few_bytes_are_not_kept() -> None:
    sent = batch_of(*range(KEPT_BYTES_MIN // 64))
    columns, encoded = ColumnsFormat(TRADES).decode_kept(memoryview(bytes(sent.columns.serialize())))
    assert columns.equals(sent.columns)
    assert encoded is None


@pytest.mark.parametrize("more", [b"hidden!!", bytes(100_000)])
def test_bytes_with_more_than_the_rows_in_them_are_refused(more: bytes) -> None:
    data = bytes(batch_of(*range(5_000)).columns.serialize()) + more
    with pytest.raises(PeerError, match=r"E216.*a body of"):
        ColumnsFormat(TRADES).decode_kept(memoryview(data))


def test_a_compressed_batch_is_refused_before_decompression() -> None:
    columns = pa.RecordBatch.from_pydict({"sym": ["x" * 100_000] * 2, "price": [1, 2]}, schema=TRADES.arrow())
    plain = with_columns(columns, pa.ipc.IpcWriteOptions())
    assert isinstance(decoder().decode(plain), KnowledgeMessage)
    for codec in ("zstd", "lz4"):
        packed = with_columns(columns, pa.ipc.IpcWriteOptions(compression=codec))
        assert len(packed.parts[1]) < 2_000
        refused(packed, "E216", "compressed")


def test_an_arrow_message_that_says_it_is_the_last_is_refused() -> None:
    frame = with_columns(batch_of(1, 2).columns)
    part = bytearray(frame.parts[1])
    part[4:8] = bytes(4)
    refused(frame._replace(parts=(frame.parts[0], memoryview(bytes(part)))), "E216", "truncated")


def test_a_null_in_a_required_column_is_refused() -> None:
    columns = pa.RecordBatch.from_pydict({"sym": ["a", None], "price": [1, None]})
    refused(with_columns(columns), "E216", "'sym' has a null")


def test_invalid_utf8_is_refused() -> None:
    bad = pa.array([b"ok", b"\xff\xfe"], pa.binary()).view(pa.string())
    refused(
        with_columns(pa.RecordBatch.from_arrays([bad, pa.array([1, 2])], ["sym", "price"])), "E216", "UTF"
    )


def test_columns_of_another_schema_are_refused() -> None:
    for other in ({"sym": [1, 2], "price": [1, 2]}, {"sym": ["a", "b"]}, {"price": [1.5, 2]}):
        refused(with_columns(pa.RecordBatch.from_pydict(other)), "E216", "schema")


def test_a_run_without_a_stamp_is_refused() -> None:
    head = bytes.fromhex("95a174c3009192ff8091930104") + b"\x01"
    refused(Frame(Kind.KNOWLEDGE, memoryview(head)), "E215", "stamp")
    refused(Frame(Kind.ACK, memoryview(bytes.fromhex("93a1749192ff80919209") + b"\x01")), "E215", "stamp")
    refused(Frame(Kind.ACK, memoryview(bytes.fromhex("93a1749192ff8090"))), "E215", "stamps")


def test_messages_about_unknown_topics_are_ignored_and_bad_conditions_refused() -> None:
    message = KnowledgeMessage(
        pubend=PubendId("u"), runs=(), batch=batch_of(1), first_time=True, final_before=TICK_MIN
    )
    for each in (message, SidewaysMessage(cell=CellId("p"), message=message)):
        [frame] = frames_of(BrokerEncoder().encode(each))
        assert decoder().decode(frame) is None
    condition = parse_condition("price > 3", TRADES)
    for topic, columns, says in (("quotes", TRADES, "quotes"), ("trades", "x = 1", "no column 'x'")):
        if isinstance(columns, str):
            condition = parse_condition(columns, Schema.parse(TopicId("trades"), {"x": "int"}))
        wanted = frozenset({(TopicId(topic), condition)})
        advertised = AdvertisementMessage(
            root=CellId("p"),
            origin=BrokerId("s1"),
            version=1,
            base=None,
            added=wanted,
            removed=frozenset(),
            epochs=NEVER,
        )
        [frame] = frames_of(BrokerEncoder().encode(advertised))
        if topic == "quotes":
            assert decoder().decode(frame) is None
        else:
            refused(frame, "E208", says)
            lenient = BrokerDecoder({TRADES.topic: TRADES}, {}, frozenset({TRADES.topic}))
            assert lenient.decode(frame) == replace(advertised, added=frozenset())


def test_only_messages_to_a_cell_travel_sideways() -> None:
    for kind in (Kind.SIDEWAYS, Kind.LINK_STATUS, Kind.PUBLISH):
        refused(Frame(Kind.SIDEWAYS, memoryview(b"\x93\xa1p" + bytes([kind]) + b"\x90")), "E215", "sideways")


def test_a_broker_may_not_send_frames_of_clients() -> None:
    refused(Frame(Kind.PUBLISH, memoryview(b"")), "E213", "PUBLISH")
    with pytest.raises(PeerError, match="E213"):
        ClientDecoder({}).decode(Frame(Kind.NACK, memoryview(b"")))
    with pytest.raises(PeerError, match="E213"):
        NodeDecoder().decode(Frame(Kind.NACK, memoryview(b"")))
    with pytest.raises(PeerError, match="E213"):
        decode_link(Frame(Kind.NACK, memoryview(b"")))


def test_kept_values_do_not_keep_a_large_read_alive() -> None:
    [small] = [b"".join(BrokerEncoder().encode(knowledge(batch_of(1), (0, 9, ALWAYS))))]
    chunk = small * 200
    for frame in FrameReader(frozenset(Kind)).feed(chunk)[:2]:
        message = decoder().decode(frame)
        assert isinstance(message, KnowledgeMessage)
        assert message.batch is not None
        data = message.batch.columns.column(0).buffers()[2]
        while data.parent is not None:
            data = data.parent
        assert data.size < len(small)
        assert data.address % 8 == 0


# ---- clients -----------------------------------------------------------------------------------------


def publish(topic: str = "trades", schema: int | None = None, rows: int = 2) -> Publish:
    return Publish(
        topic=TopicId(topic),
        publisher="me",
        first_catenation=1,
        schema=schema_fingerprint(TRADES) if schema is None else schema,
        rows=batch_of(*range(rows)).columns,
    )


def damage(decoded: ClientMessage) -> str:
    """What is wrong with rows that were published."""
    assert isinstance(decoded, Publish)
    assert decoded.rows is None
    return str(decoded.damage)


def test_a_publish_for_another_schema_is_not_a_peer_error() -> None:
    topics = {TRADES.topic: TRADES}
    node = ClientDecoder(topics)
    for message in (publish(topic="quotes"), publish(schema=5)):
        decoded = node.decode(*frames_of(encode_client(message)))
        assert isinstance(decoded, Publish)
        assert decoded.rows is None
    assert node.decode(*frames_of(encode_client(publish()))) == publish()
    topics[TRADES.topic] = Schema.parse(TRADES.topic, {"sym": "string"})
    changed = node.decode(*frames_of(encode_client(publish())))
    assert isinstance(changed, Publish)
    assert changed.rows is None
    topics[TRADES.topic] = TRADES
    assert re.match(r"E216.*no rows", damage(node.decode(*frames_of(encode_client(publish(rows=0))))))


def test_unreadable_rows_are_counted() -> None:
    node = ClientDecoder({TRADES.topic: TRADES})
    for message in (publish(topic="quotes", rows=7), publish(schema=5, rows=7)):
        decoded = node.decode(*frames_of(encode_client(message)))
        assert isinstance(decoded, Publish)
        assert (decoded.first_catenation, decoded.last_catenation) == (1, 7)
    [frame] = frames_of(encode_client(publish(rows=7)))
    for part in (b"", b"\xff" * 8, b"\xff" * 200, bytes(200)):
        decoded = node.decode(frame._replace(parts=(memoryview(part),)))
        assert isinstance(decoded, Publish)
        assert (decoded.first_catenation, decoded.last_catenation) == (1, 1)


PLAIN = Schema.parse(TopicId("plain"), {"a": "int", "b": "float?", "c": "string"})


def published_rows(*rows: object, lengths: list[int] | None = None, schema: Schema = PLAIN) -> list[Frame]:
    """A frame of packed rows, whatever they are."""
    data = [msgspec.msgpack.encode(row) for row in rows]
    head = msgspec.msgpack.encode(["plain", None, "me", 1, schema_fingerprint(schema), None, None])
    lengths = [len(each) for each in data] if lengths is None else lengths
    told = struct.pack(f"<{len(lengths)}I", *lengths)
    return frames_of(encode_frame(Kind.PUBLISH_ROWS, head, [told, b"".join(data)]))


def test_a_few_rows_are_published_as_bytes() -> None:
    rows = PackedRows(PLAIN.arrow(), [msgspec.msgpack.encode(row) for row in ((1, 2.5, "x"), (2, None, "y"))])
    message = replace(publish("plain", schema_fingerprint(PLAIN)), rows=rows)
    decoded = ClientDecoder({PLAIN.topic: PLAIN}).decode(*frames_of(encode_client(message)))
    assert decoded == message


def test_a_packed_row_is_kept_in_canonical_form() -> None:
    # 2**60 + 1 is no float that Arrow would make of an integer.
    decoded = ClientDecoder({PLAIN.topic: PLAIN}).decode(*published_rows((1, 2**60 + 1, "x")))
    assert isinstance(decoded, Publish)
    assert isinstance(decoded.rows, PackedRows)
    assert decoded.rows.columns().to_pylist() == [{"a": 1, "b": 2.0**60, "c": "x"}]


@pytest.mark.parametrize(
    "row", [(1, 2.0), (1, 2.0, "x", 4), ("1", 2.0, "x"), (2**63, 2.0, "x"), (None, 2.0, "x"), {"a": 1}, 7]
)
def test_a_packed_row_of_another_schema_is_refused(row: object) -> None:
    decoded = ClientDecoder({PLAIN.topic: PLAIN}).decode(*published_rows((1, 2.0, "x"), row))
    assert damage(decoded).startswith("E216")
    assert isinstance(decoded, Publish)
    assert (decoded.first_catenation, decoded.last_catenation) == (1, 2)


@pytest.mark.parametrize(
    "frames",
    [
        published_rows(),
        published_rows(*[(1, 2.0, "x")] * (PACKED_ROWS_MAX + 1)),
        published_rows((1, 2.0, "x"), lengths=[]),
        [published_rows((1, 2.0, "x"))[0]._replace(parts=(memoryview(b"\x01"), memoryview(b"\x93")))],
    ],
)
def test_packed_rows_that_do_not_add_up_are_refused(frames: list[Frame]) -> None:
    assert damage(ClientDecoder({PLAIN.topic: PLAIN}).decode(*frames)).startswith("E215")


def test_rows_longer_than_the_frame_are_refused() -> None:
    decoded = ClientDecoder({PLAIN.topic: PLAIN}).decode(*published_rows((1, 2.0, "x"), lengths=[2**31]))
    assert damage(decoded).startswith(("E215", "E216"))


def test_a_topic_with_documents_takes_only_columns() -> None:
    schema = Schema.parse(TopicId("plain"), {"a": "xml"})
    decoded = ClientDecoder({schema.topic: schema}).decode(*published_rows((b"<a/>",), schema=schema))
    assert re.match(r"E215.*columns", damage(decoded))


def test_fingerprints_tell_schemas_apart() -> None:
    others = [{"sym": "string"}, {"sym": "string", "price": "int"}, {"price": "int?", "sym": "string"}]
    marks = {schema_fingerprint(Schema.parse(TopicId("trades"), columns)) for columns in others}
    assert len(marks | {schema_fingerprint(TRADES)}) == 4


def test_a_subscription_out_of_bounds_is_refused() -> None:
    for wrong in (
        {"where": "x" * 1_000_001},
        {"name": ""},
        {"start": 2**62 + 1},
        {"credit_rows": -1},
        {"logs": {"p": ""}},
        {"logs": {"p": "x" * 257}},
        {"logs": {"": "x"}},
        {"logs": {"p": 5}},
        {"logs": {str(number): "x" for number in range(SOURCES_MAX + 1)}},
        {"logs": None},
    ):
        message = Subscribe(request=1, topic=TopicId("trades"), **wrong)  # type: ignore[arg-type]
        [frame] = frames_of(encode_client(message))
        with pytest.raises(PeerError, match="E215"):
            ClientDecoder({}).decode(frame)


def test_a_receipt_names_as_many_ticks_as_events() -> None:
    for runs, last in ((((5, 2),), 3), (((5, 2),), 0), ((), 0), (((0, 2**20), (2**30, 1)), 2**20 + 1)):
        message = PublishReceipt(
            publisher="me", first_catenation=1, last_catenation=last, pubend=T, runs=runs
        )
        with pytest.raises(PeerError, match="E215"):
            NodeDecoder().decode(*frames_of(encode_node(message)))


def node_decoder() -> NodeDecoder:
    made = NodeDecoder()
    other = Schema.parse(TopicId("quotes"), {"bid": "int"})
    for number, schema in ((0, TRADES), (1, TRADES), (2, other)):
        told = Confirmed(
            request=1,
            subscription=1,
            source=number,
            pubends=1,
            pubend=PubendId(f"t{number}"),
            schema=schema,
            start=0,
        )
        made.decode(*frames_of(encode_node(told)))
    return made


def test_deliveries_of_unknown_sources_are_refused() -> None:
    shared = SharedRows(RowFormat(TRADES), batch_of(1), np.array([0]), [9])
    columns = SharedColumns(batch_of(1), [9])
    for pieces in ([shared.one(1, 0)], columns.frame([(1, None)])):
        with pytest.raises(PeerError, match="source 9"):
            node_decoder().decode(*frames_of(list(pieces)))


def test_deliveries_of_several_topics_at_once_are_refused() -> None:
    source = np.array([0, 1])
    shared = SharedColumns(batch_of(1, 1), [0, 2], source)
    with pytest.raises(PeerError, match=r"E216.*several topics"):
        node_decoder().decode(*frames_of(shared.frame([(1, None)])))
    both = SharedColumns(batch_of(1, 1), [0, 1], source)
    assert node_decoder().decode(*frames_of(both.frame([(1, None)])))


def test_deliveries_of_missing_rows_are_refused() -> None:
    shared = SharedColumns(batch_of(1, 2), [0])
    with pytest.raises(PeerError, match="beyond 2"):
        node_decoder().decode(*frames_of(shared.frame([(1, np.array([0, 2]))])))
    good = bytearray(SharedRows(RowFormat(TRADES), batch_of(1), np.array([0]), [0]).one(1, 0))
    good[28] = 1  # the row of the only pair
    with pytest.raises(PeerError, match="does not have"):
        node_decoder().decode(*frames_of([bytes(good)]))


def test_a_time_beyond_the_calendar_does_not_end_the_connection() -> None:
    form = RowFormat(Schema.parse(TopicId("times"), {"sent": "timestamp"}))
    for time in (2**62, -(2**62), 0, 253402300800 * 10**6):
        sent = pa.array([time], pa.int64()).view(pa.timestamp("us", tz="UTC"))
        [data] = form.encode(pa.RecordBatch.from_arrays([sent], ["sent"]))
        [value] = form.decode(data)
        assert value == (np.datetime64(time, "us") if time else datetime(1970, 1, 1, tzinfo=UTC))


def test_a_decimal_that_no_column_can_hold_is_refused() -> None:
    form = RowFormat(Schema.parse(TopicId("costs"), {"cost": "decimal"}))
    assert form.decode(msgspec.msgpack.encode(["1.5"])) == (Decimal("1.5"),)
    for text in ("NaN", "Infinity", "1E+29", "0.0000000001", "-100000000000000000000000000000"):
        with pytest.raises(PeerError, match="E216"):
            form.decode(msgspec.msgpack.encode([text]))


def test_a_delivery_of_many_bytes_is_sent_as_several_frames() -> None:
    rows = 40
    batch = batch_of(*range(rows), sym="x" * (DELIVERY_BYTES_MAX // 16))
    shared = SharedRows(RowFormat(TRADES), batch, np.arange(rows), [0])
    frames = frames_of(shared.some([(1, row) for row in range(rows)]))
    assert len(frames) == 3
    deliveries = [node_decoder().decode(frame) for frame in frames]
    ticks = [event.tick for each in deliveries if isinstance(each, RowsDelivery) for event in each.events]
    assert ticks == list(range(rows))


def test_a_batch_of_many_bytes_is_delivered_in_several_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "DELIVERY_BYTES_MAX", 1_000)
    source = np.arange(100) % 2
    shared = SharedColumns(batch_of(*range(100)), [0, 1], source)
    wanted = {1: None, 2: np.array([3, 50, 99]), 3: np.array([98])}
    frames = frames_of(shared.frame(list(wanted.items())))
    assert len(frames) == 4
    got: dict[int, list[tuple[str, int]]] = {}
    for frame in frames:
        each = node_decoder().decode(frame)
        assert isinstance(each, ColumnsDelivery)
        assert each.source is not None
        for number, rows in each.to.items():
            assert rows is None or len(rows)
            for row in range(len(each.batch)) if rows is None else rows:
                event = each.pubends[each.source[row]], int(each.batch.ticks[row])
                got.setdefault(number, []).append(event)
    for number, rows in wanted.items():
        ticks = range(100) if rows is None else rows.tolist()
        assert got[number] == [(f"t{tick % 2}", tick) for tick in ticks]


def test_long_error_messages_are_shortened_and_not_refused() -> None:
    long = RequestRefused(request=1, code="E101", message="x" * 10_000, retry=False)
    told = NodeDecoder().decode(*frames_of(encode_node(long)))
    assert isinstance(told, RequestRefused)
    assert told.message.endswith("x...")
    last = decode_link(*frames_of(encode_link(Refuse(code="E211", message="x" * 10_000))))
    assert isinstance(last, Refuse)
    assert len(last.message) == 4_096


def test_the_bytes_of_a_batch_are_the_same_object_for_every_connection() -> None:
    shared = SharedColumns(batch_of(*range(5_000)), [0])
    one, other = shared.frame([(1, None)]), shared.frame([(2, None)])
    assert [a is b for a, b in zip(one, other, strict=True)] == [False, True, True, True, True]


def test_large_rows_among_many_small_ones_are_split_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_codec, "BATCH_BYTES_MAX", 250_000)
    rows = 2_000
    batch = EventBatch.of(range(rows), {"sym": ["x" * (100_000 if at < 8 else 0) for at in range(rows)]})
    assert batch.nbytes > 800_000
    few = batch.where(batch.ticks < 8)
    for told in (batch, few):
        frames = frames_of(BrokerEncoder().encode(knowledge(told, (0, rows, ALWAYS))))
        assert all(sum(map(len, frame.parts)) < 300_000 for frame in frames)
        assert sum(len(frame.parts[0]) // 8 for frame in frames) == len(told)


def test_knowledge_with_a_very_long_head_is_sent_as_several_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_codec, "HEAD_BYTES_MAX", 2_000)
    edges = [BrokerId(f"edge-{at}") for at in range(50)]
    runs = tuple((at, at + 1, Epochs(dict.fromkeys(edges, at))) for at in range(20))
    frames = frames_of(BrokerEncoder().encode(knowledge(None, *runs)))
    assert len(frames) > 5
    assert all(len(frame.head) < 2_200 for frame in frames)


def test_columns_that_share_bytes_are_refused() -> None:
    schema = Schema.parse(TopicId("t"), {f"c{at}": "binary" for at in range(500)})
    shared = pa.array([b"x" * 40_000], pa.binary())
    columns = pa.RecordBatch.from_arrays([shared] * 500, schema=schema.arrow())
    data = overlapping(columns.serialize().to_pybytes())
    with pytest.raises(PeerError) as caught:
        ColumnsFormat(schema).decode(memoryview(data))
    assert caught.value.code == "E216"
    assert "a buffer of" in str(caught.value)


def overlapping(message: bytes) -> bytes:
    """The same message of one row of binaries, with all columns in the place of the first one."""
    size = int.from_bytes(message[4:8], "little") + 8
    meta, body = bytearray(message[:size]), message[size:]
    # The buffers are pairs of an offset and a length: validity, offsets and values of each column.
    place = meta.find((40_000).to_bytes(8, "little")) - 40
    first = meta[place : place + 48]
    for at in range(1, 500):
        meta[place + 48 * at : place + 48 * (at + 1)] = first
    short = body[: int.from_bytes(first[32:40], "little") + 40_000]
    told = len(body).to_bytes(8, "little")
    assert meta.count(told) == 1
    return bytes(meta.replace(told, len(short).to_bytes(8, "little"))) + short
