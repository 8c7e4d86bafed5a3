"""Every message survives the wire, and no bytes whatever do more than raise PeerError."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapless.errors import PeerError
from gapless.model.ids import PubendId
from gapless.protocol.sessions.messages import ColumnsDelivery, Confirmed, Publish, RowsDelivery
from gapless.wire.broker_codec import BrokerEncoder
from gapless.wire.client_codec import ClientDecoder, NodeDecoder, encode_client, encode_node
from gapless.wire.codec import schema_fingerprint
from gapless.wire.delivery import SharedColumns, SharedRows
from gapless.wire.frames import Frame, FrameReader, Kind, Part, encode_frame
from gapless.wire.handshake import decode_link, encode_link
from gapless.wire.rows import RowFormat
from tests.properties.wire_cases import (
    TOPICS,
    TRADES,
    VALUES,
    batches,
    broker_messages,
    client_messages,
    decoder,
    link_messages,
    node_messages,
    table,
)

EVERY_KIND = frozenset(Kind)
FORM = RowFormat(TRADES)
#: The pubends that the node decoder of these tests was told of, by their numbers.
SOURCES = {0: PubendId("t1"), 7: PubendId("t2")}


def joined(pieces: list[Part]) -> bytes:
    return b"".join(pieces)


def frames_of(data: bytes) -> list[Frame]:
    return FrameReader(EVERY_KIND).feed(data)


def only_frame(pieces: list[Part]) -> Frame:
    [frame] = frames_of(joined(pieces))
    return frame


def node_decoder() -> NodeDecoder:
    made = NodeDecoder()
    for number, pubend in SOURCES.items():
        told = Confirmed(
            request=1, subscription=1, source=number, pubends=2, pubend=pubend, schema=TRADES, start=0
        )
        made.decode(only_frame(encode_node(told)))
    return made


# ---- there and back ----------------------------------------------------------------------------------


@given(broker_messages)
def test_messages_of_brokers_survive_encoding(message) -> None:
    assert decoder.decode(only_frame(BrokerEncoder().encode(message))) == message


@given(client_messages)
def test_messages_of_clients_survive_encoding(message) -> None:
    assert ClientDecoder(TOPICS).decode(only_frame(encode_client(message))) == message


@given(node_messages)
def test_messages_of_nodes_survive_encoding(message) -> None:
    assert NodeDecoder().decode(only_frame(encode_node(message))) == message


@given(link_messages)
def test_messages_of_the_handshake_survive_encoding(message) -> None:
    assert decode_link(only_frame(encode_link(message))) == message


@given(batches(), st.data())
def test_rows_survive_encoding(batch, data) -> None:
    places = st.integers(0, len(batch) - 1)
    pairs = data.draw(st.lists(st.tuples(st.integers(0, 2**32 - 1), places), min_size=1, max_size=9))
    source = data.draw(st.none() | st.lists(st.integers(0, 1), min_size=len(batch), max_size=len(batch)))
    numbers = [0] if source is None else [0, 7]
    rows = np.array([row for _, row in pairs])
    shared = SharedRows(FORM, batch, rows, numbers, None if source is None else np.array(source))
    delivery = node_decoder().decode(only_frame(shared.some(pairs)))
    assert isinstance(delivery, RowsDelivery)
    values = [tuple(row.values()) for row in batch.columns.to_pylist()]
    expected = [
        (number, SOURCES[numbers[0 if source is None else source[row]]], int(batch.ticks[row]), values[row])
        for number, row in pairs
    ]
    assert [(number, *delivery.events[at]) for number, at in delivery.to] == expected
    assert len(delivery.events) == len(set(rows.tolist())), "a row is written once"
    number, row = pairs[0]
    alone = node_decoder().decode(only_frame([shared.one(number, row)]))
    own = sorted({each for of, each in pairs if of == number})
    assert shared.few(number, own) == shared.some([(number, each) for each in own])
    assert isinstance(alone, RowsDelivery)
    assert (alone.to, [tuple(event) for event in alone.events]) == (((number, 0),), [expected[0][1:]])


@given(batches(), st.data())
def test_columns_survive_encoding(batch, data) -> None:
    places = st.lists(st.integers(0, len(batch) - 1), max_size=5)
    shares = data.draw(st.dictionaries(st.integers(0, 2**32 - 1), st.none() | places, max_size=4))
    source = data.draw(st.none() | st.lists(st.integers(0, 1), min_size=len(batch), max_size=len(batch)))
    numbers = [0] if source is None else [0, 7]
    shared = SharedColumns(batch, numbers, None if source is None else np.array(source))
    pieces = shared.frame(
        [(number, None if rows is None else np.array(rows, np.int64)) for number, rows in shares.items()]
    )
    delivery = node_decoder().decode(only_frame(pieces))
    assert isinstance(delivery, ColumnsDelivery)
    assert delivery.batch == batch
    assert delivery.pubends == tuple(SOURCES[number] for number in numbers)
    assert (None if delivery.source is None else delivery.source.tolist()) == source
    told = {number: None if rows is None else rows.tolist() for number, rows in delivery.to.items()}
    assert told == shares


# ---- bytes that nobody should send -------------------------------------------------------------------


def decode_anything(frame: Frame, node: NodeDecoder) -> None:
    """Hand a frame to every decoder; each gives a message or raises PeerError."""
    decoders: list[Callable[[Frame], object]] = [decoder.decode, ClientDecoder(TOPICS).decode, node.decode]
    for decode in [*decoders, decode_link]:
        try:
            decode(frame)
        except PeerError:
            continue


def read_anything(data: bytes, node: NodeDecoder) -> None:
    try:
        frames = frames_of(data)
    except PeerError:
        return
    for frame in frames:
        decode_anything(frame, node)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_at_once(data: bytes) -> None:
    reader = FrameReader(EVERY_KIND)
    if data and data[:2] != b"G\xa7"[: len(data)]:
        with pytest.raises(PeerError, match="E210"):
            reader.feed(data)
    read_anything(data, NodeDecoder())


@given(st.sampled_from(Kind), st.binary(max_size=60), st.lists(st.binary(max_size=60), max_size=4))
def test_random_heads_and_parts_are_refused_or_are_messages(
    kind: Kind, head: bytes, parts: list[bytes]
) -> None:
    decode_anything(Frame(kind, memoryview(head), tuple(map(memoryview, parts))), node_decoder())


def _delivery(batch, rows: bool) -> list[Part]:
    if rows:
        every = np.arange(len(batch))
        return SharedRows(FORM, batch, every, [0]).some([(3, row) for row in every.tolist()])
    return SharedColumns(batch, [0]).frame([(3, None), (4, np.arange(len(batch)))])


any_frame = st.one_of(
    broker_messages.map(lambda message: joined(BrokerEncoder().encode(message))),
    client_messages.map(lambda message: joined(encode_client(message))),
    node_messages.map(lambda message: joined(encode_node(message))),
    link_messages.map(lambda message: joined(encode_link(message))),
    st.builds(lambda batch, rows: joined(_delivery(batch, rows)), batches(), st.booleans()),
)


WORDS = [0, 1, 8, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**64 - 1]


def damage(chance: random.Random, data: bytearray) -> None:
    """Change, cut or repeat something."""
    at = chance.randrange(len(data))
    what = chance.random()
    if what < 0.4:
        data[at] ^= 1 << chance.randrange(8)
    elif what < 0.7:
        data[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFF])
    elif what < 0.85:
        data[at & ~7 : (at & ~7) + 8] = chance.choice(WORDS).to_bytes(8, "little")
    elif what < 0.93:
        del data[at:]
    else:
        data[at:at] = data[max(0, at - 16) : at]


def damaged(chance: random.Random, frame: Frame) -> Frame:
    pieces = [bytearray(piece) for piece in (frame.head, *frame.parts)]
    for _ in range(chance.choice([1, 1, 1, 2, 4, 16])):
        left = [piece for piece in pieces if piece]
        if left:
            damage(chance, chance.choice(left))
    head, *parts = [memoryview(bytes(piece)) for piece in pieces]
    return Frame(frame.kind, head, tuple(parts))


@given(any_frame, st.integers(0, 2**32))
def test_damaged_frames_are_refused_or_are_messages(data: bytes, seed: int) -> None:
    node = node_decoder()
    chance = random.Random(seed)
    [*frames] = frames_of(data)
    for _ in range(10):
        changed = bytearray(data)
        damage(chance, changed)
        read_anything(bytes(changed), node)
        decode_anything(damaged(chance, frames[0]), node)


def test_damaged_columns_are_refused_or_can_be_read_to_the_last_value() -> None:
    chance = random.Random(7)
    clients = ClientDecoder(TOPICS)
    rows = [{name: chance.choice(values) for name, values in VALUES.items()} for _ in range(20)]
    message = Publish(
        topic=TRADES.topic,
        publisher="me",
        first_catenation=1,
        schema=schema_fingerprint(TRADES),
        rows=table(TRADES, rows),
    )
    frame = only_frame(encode_client(message))
    read = 0
    for _ in range(10_000):
        part = bytearray(frame.parts[0])
        damage(chance, part)
        found = clients.decode(frame._replace(parts=(memoryview(bytes(part)),)))
        assert isinstance(found, Publish)
        assert (found.rows is None) == (found.damage is not None)
        if found.rows is None:
            continue
        FORM.encode(found.rows)
        read += 1
    assert 100 < read < 9_900


@given(any_frame, st.data())
def test_heads_and_parts_that_are_cut_short_are_refused_or_are_messages(data: bytes, draw) -> None:
    frame = frames_of(data)[0]
    node = node_decoder()
    decode_anything(frame._replace(head=frame.head[: draw.draw(st.integers(0, len(frame.head)))]), node)
    for place, part in enumerate(frame.parts):
        short = part[: draw.draw(st.integers(0, len(part)))]
        decode_anything(frame._replace(parts=(*frame.parts[:place], short, *frame.parts[place + 1 :])), node)
        decode_anything(frame._replace(parts=frame.parts[:place]), node)


@given(st.lists(any_frame, min_size=1, max_size=4), st.lists(st.integers(1, 300), min_size=1, max_size=20))
def test_frames_do_not_depend_on_how_the_bytes_arrive(pieces: list[bytes], sizes: list[int]) -> None:
    data = b"".join(pieces)
    whole = frames_of(data)
    reader = FrameReader(EVERY_KIND)
    found: list[Frame] = []
    at = turn = 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        found += reader.feed(data[at : at + size])
        at, turn = at + size, turn + 1
    assert found == whole
    assert reader.pending_bytes == 0


@given(st.sampled_from(Kind), st.binary(max_size=50), st.lists(st.binary(max_size=50), max_size=8))
def test_frames_survive_encoding(kind: Kind, head: bytes, parts: list[bytes]) -> None:
    frame = only_frame(encode_frame(kind, head, parts))
    assert (frame.kind, bytes(frame.head), [bytes(part) for part in frame.parts]) == (kind, head, parts)
