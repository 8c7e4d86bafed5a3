"""Random messages of every kind, and what takes them apart."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Context, Decimal

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from gapless.content.language import parse_condition
from gapless.model.batch import EventBatch
from gapless.model.epochs import EPOCH_ALL, EPOCH_MAX, LIVES_MAX, Epochs, first_epoch
from gapless.model.ids import BrokerId, CellId, PubendId, TopicId
from gapless.model.logs import UNNAMED, LogLife
from gapless.model.schema import Schema
from gapless.model.ticks import TICK_MAX, TICK_MIN, TickArray, TickRange
from gapless.protocol.creations import Creation
from gapless.protocol.events import Order
from gapless.protocol.messages import (
    LIVES_TOLD_MAX,
    AckExpectedMessage,
    AckMessage,
    AdvertisementAckMessage,
    AdvertisementMessage,
    KnowledgeMessage,
    LinkStatusMessage,
    LogKnownMessage,
    NackMessage,
    SidewaysMessage,
    StartGrantMessage,
    StartRequestMessage,
    TopicsMessage,
)
from gapless.protocol.sessions.messages import (
    Acknowledge,
    AskStatus,
    ChangeFilter,
    Confirmed,
    CreateTopic,
    Credit,
    Done,
    Horizon,
    ListTopics,
    Publish,
    PublishReceipt,
    PublishRefused,
    ReleasePublisher,
    RequestRefused,
    StatusReport,
    Subscribe,
    Topics,
    Unsubscribe,
)
from gapless.wire.broker_codec import BrokerDecoder
from gapless.wire.codec import schema_fingerprint
from gapless.wire.handshake import (
    NONCE_BYTES,
    Challenge,
    Hello,
    Ping,
    Pong,
    Proof,
    Refuse,
    Role,
    Welcome,
)

TRADES = Schema.parse(
    TopicId("trades"),
    {
        "sym": "string",
        "price": "float?",
        "volume": "int",
        "open": "bool?",
        "sent": "timestamp?",
        "cost": "decimal?",
        "raw": "binary",
        "news": "xml?",
    },
)
QUOTES = Schema.parse(TopicId("quotes"), {"bid": "int?"})
TOPICS = {schema.topic: schema for schema in (TRADES, QUOTES)}
PUBENDS = {
    PubendId("t1"): TRADES.topic,
    PubendId("t2"): TRADES.topic,
    PubendId("q"): QUOTES.topic,
}
CONDITIONS = [
    "",
    "price > 3 AND NOT volume = 7 OR sym LIKE 'I%'",
    "sym IN ('a', 'it''s', 'é')",
    "XPATH(news, '/news//hl1[@class = ''x'']')",
    "sent >= TIMESTAMP '2026-01-31 12:00:00' AND cost < 1.5 AND raw = X'0aff'",
    "FALSE",
]


def tick_runs(ticks: TickArray) -> tuple[tuple[int, int], ...]:
    """Ticks as the runs of a receipt."""
    if not len(ticks):
        return ()
    cuts = np.flatnonzero(np.diff(ticks) != 1) + 1
    starts = np.concatenate([[0], cuts])
    counts = np.diff(np.concatenate([starts, [len(ticks)]]))
    return tuple(zip(ticks[starts].tolist(), counts.tolist(), strict=True))


decoder = BrokerDecoder(TOPICS, PUBENDS)

ticks = st.one_of(st.integers(-5, 60), st.integers(TICK_MIN, TICK_MAX - 1))
names = st.text(min_size=1, max_size=12)
texts = st.text(max_size=40)
numbers = st.integers(0, 2**32 - 1)
counters = st.one_of(st.integers(0, 300), st.integers(0, 2**62))
versions = st.one_of(st.integers(0, 300), st.integers(0, EPOCH_MAX))
lives = st.one_of(st.integers(0, 300), st.integers(0, LIVES_MAX))
epochs = st.one_of(
    st.integers(-1, 3), st.integers(0, 5).map(first_epoch), st.just(EPOCH_ALL), st.integers(-1, EPOCH_ALL)
)
stamps = st.builds(Epochs, st.dictionaries(names.map(BrokerId), epochs, max_size=3), epochs)
pubends = st.sampled_from(sorted(PUBENDS))
log_lives = st.builds(LogLife, names, lives, ticks, ticks, ticks)
logs = st.just(UNNAMED) | log_lives

_WIDE = Context(prec=60)
#: Values of each column, the extreme ones too.
VALUES: dict[str, list[object]] = {
    "sym": ["", "IBM", "é", "\U0001f600", "a longer text with \0 in it"],
    "price": [None, 0.0, -1.5, 1e300, float("-inf"), 5e-324],
    "volume": [0, -1, 127, 2**32, 2**63 - 1, -(2**63)],
    "open": [None, True, False],
    "sent": [None, datetime(1900, 1, 1, tzinfo=UTC), datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)],
    "cost": [
        None,
        *(Decimal(whole).scaleb(-9, _WIDE) for whole in (0, 1, -1_500_000_000, 10**38 - 1, -(10**38) + 1)),
    ],
    "raw": [b"", b"\0", b"\xff" * 9, b"x" * 300],
    "news": [None, b"<a/>"],
}


def table(schema: Schema, rows: list[dict[str, object]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=schema.arrow())


@st.composite
def batches(draw: st.DrawFn) -> EventBatch:
    """Trades in tick order; some are the middle of a larger batch."""
    at = sorted(draw(st.sets(ticks, min_size=1, max_size=8)))
    chance = draw(st.randoms(use_true_random=False))
    rows = [{name: chance.choice(values) for name, values in VALUES.items()} for _ in at]
    batch = EventBatch(np.array(at, dtype=np.int64), table(TRADES, rows))
    if len(batch) > 2 and draw(st.booleans()):
        return batch.slice(1, len(batch) - 1)
    return batch


runs = st.lists(st.tuples(ticks, ticks, stamps), max_size=5).map(tuple)
knowledge = st.one_of(
    st.builds(
        KnowledgeMessage,
        pubend=st.sampled_from([PubendId("t1"), PubendId("t2")]),
        runs=runs,
        batch=st.none() | batches(),
        first_time=st.booleans(),
        final_before=ticks,
        log=logs,
    ),
    st.builds(
        KnowledgeMessage,
        pubend=pubends,
        runs=runs,
        batch=st.none(),
        first_time=st.booleans(),
        final_before=ticks,
        log=logs,
    ),
)
cell_messages = st.one_of(
    knowledge,
    st.builds(AckMessage, pubend=pubends, runs=st.lists(st.tuples(ticks, stamps), max_size=5).map(tuple)),
    st.builds(NackMessage, pubend=pubends, ticks=st.builds(TickRange, ticks, ticks)),
    st.builds(AckExpectedMessage, pubend=pubends, before=ticks),
    st.builds(
        StartRequestMessage,
        pubend=pubends,
        edge=names,
        epoch=epochs,
        wanted=st.none() | ticks,
        log=st.just("") | names,
        beyond=ticks,
    ),
    st.builds(LogKnownMessage, pubend=pubends, log=log_lives, known=ticks, events=ticks),
    st.builds(
        StartGrantMessage,
        pubend=pubends,
        edge=names,
        epoch=epochs,
        wanted=st.none() | ticks,
        start=ticks,
        until=ticks,
        seen=epochs,
        log=logs,
        lives=st.lists(lives, max_size=LIVES_TOLD_MAX).map(tuple),
    ),
)
wanted = st.frozensets(
    st.sampled_from(
        [(TRADES.topic, parse_condition(text, TRADES)) for text in CONDITIONS]
        + [(QUOTES.topic, parse_condition(f"bid > {bid}", QUOTES)) for bid in range(3)]
    ),
    max_size=4,
)
creations = st.builds(
    Creation,
    schema=st.sampled_from([TRADES, QUOTES]),
    pubend=names,
    broker=names,
    made=ticks,
    retention=names,
)
broker_messages = st.one_of(
    cell_messages,
    st.builds(
        AdvertisementMessage,
        root=names,
        origin=names,
        version=versions,
        base=st.none() | versions,
        added=wanted,
        removed=wanted,
        epochs=stamps,
        part=counters,
        total=st.none() | counters,
    ),
    st.builds(
        AdvertisementAckMessage,
        root=names,
        origin=names,
        version=st.none() | versions,
        staged=st.none() | st.tuples(versions, counters),
    ),
    st.builds(
        LinkStatusMessage,
        reaches=st.frozensets(names.map(CellId), max_size=4),
        topics=st.integers(min_value=0, max_value=2**62),
    ),
    st.builds(TopicsMessage, creations=st.lists(creations, min_size=1, max_size=4).map(tuple)),
    st.builds(SidewaysMessage, cell=names, message=cell_messages),
)

_positions = st.dictionaries(names, ticks, max_size=3)
_columns = st.dictionaries(
    st.sampled_from(["a", "b", "c"]), st.sampled_from(["int", "string?", "xml"]), min_size=1
)
client_messages = st.one_of(
    st.builds(
        Publish,
        topic=st.just(TRADES.topic),
        pubend=st.none() | names,
        publisher=names,
        first_catenation=counters,
        schema=st.just(schema_fingerprint(TRADES)),
        rows=batches().map(lambda batch: batch.columns),
        given_up=st.none() | counters,
        before=st.sampled_from([None, -1]),
        is_temporary=st.booleans(),
    ),
    st.builds(
        Subscribe,
        request=numbers,
        topic=names,
        where=texts,
        name=st.none() | names,
        order=st.sampled_from(Order),
        start=st.sampled_from(["now", "earliest", "stored"]) | ticks | _positions,
        mode=st.sampled_from(["guaranteed", "best-effort", "holding"]),
        credit_rows=st.none() | st.integers(0, 2**40),
        roams=st.booleans(),
        logs=st.dictionaries(names, names, max_size=3),
    ),
    st.builds(ReleasePublisher, request=numbers, publisher=names),
    st.builds(ChangeFilter, request=numbers, subscription=numbers, where=texts),
    st.builds(Unsubscribe, request=numbers, subscription=numbers, forget=st.booleans()),
    st.builds(Credit, subscription=numbers, rows=st.integers(0, 2**40)),
    st.builds(Acknowledge, subscription=numbers, positions=_positions),
    st.builds(ListTopics, request=numbers, bulk=st.booleans()),
    st.builds(CreateTopic, request=numbers, topic=names, columns=_columns, retention=names),
    st.builds(
        AskStatus,
        request=numbers,
        event=st.none() | st.tuples(names, ticks),
        subscription=st.none() | names,
    ),
)


@st.composite
def receipts(draw: st.DrawFn) -> PublishReceipt:
    named = sorted(draw(st.sets(ticks, min_size=1, max_size=9)))
    first = draw(st.integers(0, 2**61))
    runs = tick_runs(np.array(named, dtype=np.int64))
    return PublishReceipt(
        publisher=draw(names),
        first_catenation=first,
        last_catenation=first + len(named) - 1,
        pubend=PubendId(draw(names)),
        runs=runs if draw(st.booleans()) else (),
    )


_schemas = st.builds(Schema.parse, names.map(TopicId), _columns)
_codes = st.sampled_from(["E101", "E216", "E301"])
node_messages = st.one_of(
    receipts(),
    st.builds(
        PublishRefused,
        publisher=names,
        first_catenation=counters,
        last_catenation=counters,
        code=_codes,
        message=texts,
        retry=st.booleans(),
        had=st.none() | st.just(-1) | counters,
    ),
    st.builds(
        Confirmed,
        request=numbers,
        subscription=numbers,
        source=numbers,
        pubends=st.integers(1, 9),
        pubend=names,
        schema=_schemas,
        start=ticks,
    ),
    st.builds(Done, request=numbers),
    st.builds(RequestRefused, request=numbers, code=_codes, message=texts, retry=st.booleans()),
    st.builds(
        Topics,
        request=numbers,
        topics=st.lists(st.tuples(_schemas, st.lists(names, max_size=3).map(tuple)), max_size=3).map(tuple),
        places=st.dictionaries(names, names, max_size=3),
        addresses=st.dictionaries(names, names, max_size=3),
        repositories=st.lists(names, max_size=3).map(tuple),
        bulk=names,
    ),
    st.builds(Horizon, subscription=numbers, before=_positions),
    st.builds(StatusReport, request=numbers, report=texts),
)
_versions = st.integers(1, 255)
_secrets = st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES)
link_messages = st.one_of(
    st.builds(
        lambda low, high, **rest: Hello(version_min=min(low, high), version_max=max(low, high), **rest),
        _versions,
        _versions,
        role=st.sampled_from(Role),
        name=names,
        network=texts,
        software=texts,
        token=st.none() | texts,
        nonce=st.just(b"") | _secrets,
    ),
    st.builds(Challenge, name=names, nonce=_secrets, proof=_secrets),
    st.builds(Proof, proof=_secrets),
    st.builds(Welcome, version=_versions, name=names, network=texts, software=texts),
    st.builds(Refuse, code=_codes, message=texts, retry=st.booleans()),
    st.builds(Ping, number=counters),
    st.builds(Pong, number=counters),
)
