"""The lines of `gapless.protocol.trace`, which all scenarios are made of."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from gapless.content.condition import EVERYTHING
from gapless.model.batch import EventBatch
from gapless.model.epochs import ALWAYS, Epochs, first_epoch
from gapless.model.ids import BrokerId, CellId, PubendId, SubscriptionId, TopicId
from gapless.model.logs import LogLife
from gapless.model.stream import Run
from gapless.model.ticks import TICK_MIN, TickRange
from gapless.protocol.effects import (
    AcceptPublish,
    AppendRecord,
    BatchRecord,
    ConfirmChange,
    ConfirmSubscription,
    Deliver,
    ReadRecords,
    RefusePublish,
    ReleaseRecord,
    ReserveRecord,
    SendMessage,
    StartRecord,
    StartTimer,
    TrimLog,
)
from gapless.protocol.events import (
    BrokerStarted,
    DeliveryTaken,
    FilterChangeRequested,
    LinkDown,
    LinkUp,
    MessageReceived,
    Order,
    PublishRequested,
    RecordDurable,
    RecordFailed,
    RecordsRead,
    RetentionMoved,
    SubscribeRequested,
    SubscriberReady,
    SubscriberSlow,
    SubscriptionsRestored,
    TimerFired,
    UnsubscribeRequested,
)
from gapless.protocol.messages import (
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
)
from gapless.protocol.trace import Entry, Item, describe, mentions, story
from tests.conditions import where

TRADES = PubendId("trades")
QUOTES = PubendId("quotes")
TOPIC = TopicId("trades")
ROOT = CellId("P")
P, B1, S1 = BrokerId("p"), BrokerId("b1"), BrokerId("s1")
ALICE = SubscriptionId("alice")
EPOCH = first_epoch(1) + 2
STAMP = Epochs({S1: EPOCH})
BATCH = EventBatch.of([11, 12], {"price": [3, 7]})
MANY = EventBatch.of(list(range(10, 510)), {"price": [0] * 500})


def positions(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(numbers, dtype=np.int64)


def knowledge(
    runs: Sequence[Run], batch: EventBatch | None, final_before: int = TICK_MIN
) -> KnowledgeMessage:
    return KnowledgeMessage(
        pubend=TRADES, runs=tuple(runs), batch=batch, first_time=True, final_before=final_before
    )


def ack(*runs: tuple[int, Epochs]) -> AckMessage:
    return AckMessage(pubend=TRADES, runs=runs)


def deliver(batch: EventBatch, rows: Sequence[int], slots: Sequence[int]) -> Deliver:
    return Deliver(serial=4, batch=batch, rows=positions(*rows), slots=positions(*slots), pubends=(TRADES,))


NACK = NackMessage(pubend=TRADES, ticks=TickRange(10, 12))
MERGED = Deliver(
    serial=5,
    batch=EventBatch.of([11, 11, 12], {"price": [1, 2, 3]}),
    rows=positions(0, 1, 2),
    slots=positions(0, 0, 0),
    pubends=(QUOTES, TRADES),
    source=positions(0, 1, 1),
)

#: Each item with its line, and whether it mentions tick 11 of trades.
LINES: list[tuple[Item, str, bool]] = [
    # messages
    (knowledge([(10, 14, ALWAYS)], BATCH), "knowledge trades 10..14 data 11 12 first-time", True),
    (knowledge([(14, 16, STAMP)], None, 9), "knowledge trades 14..16 {s1:1.2} first-time final ..9", False),
    (knowledge([(14, 16, ALWAYS)], None, 12), "knowledge trades 14..16 first-time final ..12", True),
    (
        knowledge([(1, 2, STAMP), (4, 6, STAMP), (6, 8, ALWAYS)], None),
        "knowledge trades 1..2 4..6 {s1:1.2}, 6..8 first-time",
        False,
    ),
    (
        knowledge([(i, i + 1, ALWAYS) for i in range(0, 40, 2)], MANY),
        "knowledge trades 20 runs 0..39 data 500 events 10..510 first-time",
        False,
    ),
    (ack((14, STAMP)), "ack trades ..14 {s1:1.2}", True),
    (ack((9, ALWAYS), (11, STAMP)), "ack trades ..9, 9..11 {s1:1.2}", False),
    (ack(), "ack trades nothing", False),
    (NACK, "nack trades 10..12", True),
    (AckExpectedMessage(pubend=TRADES, before=12), "ack-expected trades ..12", True),
    (
        AdvertisementMessage(
            root=ROOT,
            origin=S1,
            version=EPOCH,
            base=None,
            added=frozenset({(TOPIC, where("price BETWEEN 5 AND 8")), (TOPIC, EVERYTHING)}),
            removed=frozenset(),
            epochs=STAMP,
        ),
        "advertise to P by s1 version 1.2 trades where TRUE; trades where price BETWEEN 5 AND 8 {s1:1.2}",
        False,
    ),
    (
        AdvertisementMessage(
            root=ROOT,
            origin=S1,
            version=EPOCH,
            base=EPOCH - 1,
            added=frozenset({(TOPIC, EVERYTHING)}),
            removed=frozenset({(TOPIC, where("price BETWEEN 5 AND 8"))}),
            epochs=STAMP,
        ),
        (
            "advertise to P by s1 version 1.2 since 1.1 + trades where TRUE "
            "- trades where price BETWEEN 5 AND 8 {s1:1.2}"
        ),
        False,
    ),
    (
        AdvertisementMessage(
            root=ROOT,
            origin=S1,
            version=EPOCH,
            base=None,
            added=frozenset(),
            removed=frozenset(),
            epochs=STAMP,
        ),
        "advertise to P by s1 version 1.2 nothing {s1:1.2}",
        False,
    ),
    (
        AdvertisementAckMessage(root=ROOT, origin=S1, version=EPOCH),
        "advertised to P by s1 version 1.2",
        False,
    ),
    (
        AdvertisementAckMessage(root=ROOT, origin=S1, version=None),
        "advertised to P by s1 send the whole",
        False,
    ),
    (
        StartRequestMessage(pubend=TRADES, edge=S1, epoch=EPOCH, wanted=None),
        "start-request trades {s1:1.2} from now",
        False,
    ),
    (
        StartGrantMessage(pubend=TRADES, edge=S1, epoch=EPOCH, wanted=None, start=11, until=11),
        "start-grant trades {s1:1.2} from 11",
        False,
    ),
    (LinkStatusMessage(reaches=frozenset({CellId("s1"), ROOT})), "link-status reaches P s1", False),
    (LinkStatusMessage(reaches=frozenset()), "link-status reaches nothing", False),
    (
        LogKnownMessage(pubend=TRADES, log=LogLife("a7", 3, 0, 0, 0), known=11, events=9),
        "log-known trades log a7 life 3 ..11",
        False,
    ),
    (SidewaysMessage(cell=CellId("s1"), message=NACK), "sideways to s1: nack trades 10..12", True),
    # effects
    (SendMessage(to=P, message=NACK), "-> p  nack trades 10..12", True),
    (
        AppendRecord(pubend=TRADES, token=3, record=BatchRecord(batch=BATCH)),
        "append trades #3 data 11 12",
        True,
    ),
    (
        AppendRecord(pubend=TRADES, token=3, record=ReserveRecord(before=99)),
        "append trades #3 reserve ..99",
        False,
    ),
    (
        AppendRecord(pubend=TRADES, token=3, record=ReleaseRecord(before=99)),
        "append trades #3 release ..99",
        False,
    ),
    (
        AppendRecord(pubend=TRADES, token=3, record=StartRecord(edge=S1, epoch=EPOCH, wanted=None, start=11)),
        "append trades #3 start {s1:1.2} from 11",
        False,
    ),
    (
        ReadRecords(pubend=TRADES, ticks=TickRange(10, 12), rows_max=50),
        "read trades 10..12 at most 50 rows",
        True,
    ),
    (TrimLog(pubend=TRADES, before=12), "trim trades ..12", True),
    (TrimLog(pubend=TRADES, before=11), "trim trades ..11", False),
    (AcceptPublish(pubend=TRADES, token=7, ticks=range(11, 13)), "accept trades #7 as 11 12", True),
    (AcceptPublish(pubend=TRADES, token=7, ticks=range(0)), "accept trades #7 as nothing", False),
    (RefusePublish(pubend=TRADES, token=7, reason="disk full"), "refuse trades #7: disk full", False),
    (
        ConfirmSubscription(subscription=ALICE, slot=0, pubend=TRADES, start=11),
        "confirm alice trades from 11",
        False,
    ),
    (deliver(BATCH, [0, 1], [0, 0]), "deliver trades 11 12 -> alice", True),
    (deliver(BATCH, [0, 0], [0, 3]), "deliver trades 11 -> alice slot 3", True),
    (deliver(BATCH, [0, 1, 1], [0, 0, 3]), "deliver trades 11 12 -> alice, trades 12 -> slot 3", True),
    (deliver(BATCH, [1], [0]), "deliver trades 12 -> alice", False),
    (deliver(MANY, range(500), range(500)), "deliver trades 500 events 10..510 -> 500 subscriptions", True),
    (MERGED, "deliver quotes 11 trades 11 12 -> alice", True),
    (
        Deliver(
            serial=6,
            batch=MANY,
            rows=positions(*range(500)),
            slots=positions(*[0] * 500),
            pubends=(QUOTES, TRADES),
            source=positions(*[0] * 500),
        ),
        "deliver quotes and trades 500 events 10..510 -> alice",
        False,
    ),
    (StartTimer(at_ms=200), "start timer 200 ms", False),
    (StartTimer(at_ms=200, spread_ms=50), "start timer 200 ms spread 50 ms", False),
    (
        ConfirmChange(subscription=ALICE, pubend=TRADES, condition=EVERYTHING, since=12),
        "confirm alice trades where TRUE from 12",
        False,
    ),
    # events
    (BrokerStarted(), "started", False),
    (
        PublishRequested(pubend=TRADES, token=7, rows=pa.RecordBatch.from_pydict({"price": [3, 7]})),
        "publish trades #7 2 rows",
        False,
    ),
    (RecordDurable(pubend=TRADES, token=3), "durable trades #3", False),
    (RecordFailed(pubend=TRADES, token=3, reason="disk full"), "not durable trades #3: disk full", False),
    (
        RecordsRead(pubend=TRADES, ticks=TickRange(10, 13), batch=BATCH),
        "was read trades 10..13 data 11 12",
        True,
    ),
    (RecordsRead(pubend=TRADES, ticks=TickRange(12, 13), batch=None), "was read trades 12..13", False),
    (RetentionMoved(pubend=TRADES, kept_from=12), "keep trades from 12", False),
    (MessageReceived(sender=B1, message=NACK), "<- b1  nack trades 10..12", True),
    (LinkUp(neighbour=B1), "link to b1 is up", False),
    (LinkDown(neighbour=B1), "link to b1 is down", False),
    (TimerFired(), "timer fired", False),
    (
        SubscribeRequested(
            subscription=ALICE, topic=TOPIC, condition=EVERYTHING, order=Order.TOTAL, start=10
        ),
        "subscribe alice trades where TRUE in total order from 10",
        False,
    ),
    (
        SubscribeRequested(subscription=ALICE, topic=TOPIC, condition=EVERYTHING),
        "subscribe alice trades where TRUE",
        False,
    ),
    (
        SubscribeRequested(
            subscription=ALICE, topic=TOPIC, condition=EVERYTHING, start={TRADES: 7, QUOTES: 9}
        ),
        "subscribe alice trades where TRUE from quotes 9 trades 7",
        False,
    ),
    (
        SubscriptionsRestored(
            requests=(SubscribeRequested(subscription=ALICE, topic=TOPIC, condition=EVERYTHING),)
        ),
        "restore subscribe alice trades where TRUE",
        False,
    ),
    (SubscriberSlow(subscription=ALICE, positions={}, away=True), "away alice", False),
    (
        FilterChangeRequested(subscription=ALICE, condition=EVERYTHING),
        "change alice where TRUE",
        False,
    ),
    (UnsubscribeRequested(subscription=ALICE), "unsubscribe alice", False),
    (DeliveryTaken(serial=4), "taken delivery 4", False),
    (SubscriberReady(subscription=ALICE), "ready alice", False),
    (SubscriberSlow(subscription=ALICE, positions={TRADES: 11}), "slow alice took trades ..11", True),
    (SubscriberSlow(subscription=ALICE, positions={TRADES: 12}), "slow alice took trades ..12", False),
    (SubscriberSlow(subscription=ALICE, positions={}), "slow alice", False),
]


@pytest.mark.parametrize(("item", "line", "_mentioned"), LINES, ids=[line for _, line, _ in LINES])
def test_every_item_is_one_compact_line(item: Item, line: str, _mentioned: bool) -> None:
    assert describe(item, {0: ALICE}) == line


@pytest.mark.parametrize(("item", "_line", "mentioned"), LINES, ids=[line for _, line, _ in LINES])
def test_an_item_mentions_the_ticks_it_speaks_of(item: Item, _line: str, mentioned: bool) -> None:
    assert mentions(item, TRADES, 11) is mentioned
    assert not mentions(item, PubendId("other"), 11)


def test_a_delivery_of_two_pubends_mentions_the_ticks_of_each() -> None:
    assert mentions(MERGED, QUOTES, 11)
    assert mentions(MERGED, TRADES, 12)
    assert not mentions(MERGED, QUOTES, 12)


def test_a_story_follows_one_tick_and_leaves_repetitions_out() -> None:
    sent = knowledge([(10, 14, ALWAYS)], BATCH)
    acked = ack((14, STAMP))
    entries: list[Entry] = [
        (0, P, BrokerStarted()),
        (0, P, PublishRequested(pubend=TRADES, token=6, rows=BATCH.columns)),
        (1, P, PublishRequested(pubend=TRADES, token=7, rows=BATCH.columns)),
        (1, P, AppendRecord(pubend=TRADES, token=3, record=BatchRecord(batch=BATCH))),
        (1, P, AppendRecord(pubend=TRADES, token=4, record=ReserveRecord(before=99))),
        (2, P, RecordDurable(pubend=QUOTES, token=9)),
        (2, P, RecordDurable(pubend=TRADES, token=2)),
        (2, P, RecordDurable(pubend=TRADES, token=4)),
        (2, P, RecordDurable(pubend=TRADES, token=5)),
        (2, P, AcceptPublish(pubend=TRADES, token=7, ticks=range(11, 13))),
        (2, P, SendMessage(to=S1, message=sent)),
        (2, S1, ConfirmSubscription(subscription=ALICE, slot=0, pubend=TRADES, start=0)),
        (12, S1, MessageReceived(sender=P, message=sent)),
        (12, S1, deliver(BATCH, [0, 1], [0, 0])),
        (13, S1, DeliveryTaken(serial=3)),
        (13, S1, DeliveryTaken(serial=4)),
        (60, S1, SendMessage(to=P, message=acked)),
        (70, P, MessageReceived(sender=S1, message=acked)),
        (70, P, TrimLog(pubend=TRADES, before=14)),
        (110, S1, SendMessage(to=P, message=ack((20, STAMP)))),
        (120, P, TrimLog(pubend=TRADES, before=20)),
        (130, P, SendMessage(to=S1, message=knowledge([(20, 22, ALWAYS)], None, 20))),
        (140, P, SendMessage(to=S1, message=knowledge([(22, 24, ALWAYS)], None, 20))),
        (150, P, SendMessage(to=S1, message=AckExpectedMessage(pubend=TRADES, before=30))),
        (160, P, SendMessage(to=S1, message=AckExpectedMessage(pubend=TRADES, before=31))),
        (170, S1, BrokerStarted()),
        (180, S1, SendMessage(to=P, message=SidewaysMessage(cell=CellId("P"), message=acked))),
        (190, S1, SendMessage(to=P, message=SidewaysMessage(cell=CellId("P"), message=acked))),
        (200, S1, DeliveryTaken(serial=4)),
    ]
    told = story(entries, TRADES, 11)
    assert told.splitlines() == [
        "  0  p          started",
        "  1  p          publish trades #7 2 rows",
        "  1  p          append trades #3 data 11 12",
        "  2  p          durable trades #4",
        "  2  p          accept trades #7 as 11 12",
        "  2  p   -> s1  knowledge trades 10..14 data 11 12 first-time",
        " 12  s1  <- p   knowledge trades 10..14 data 11 12 first-time",
        " 12  s1         deliver trades 11 12 -> alice",
        " 13  s1         taken delivery 4",
        " 60  s1  -> p   ack trades ..14 {s1:1.2}",
        " 70  p   <- s1  ack trades ..14 {s1:1.2}",
        " 70  p          trim trades ..14",
        "130  p   -> s1  knowledge trades 20..22 first-time final ..20",
        "150  p   -> s1  ack-expected trades ..30",
        "170  s1         started",
        "180  s1  -> p   sideways to P: ack trades ..14 {s1:1.2}",
    ]


def test_a_story_of_nothing_is_empty() -> None:
    assert story([], TRADES, 11) == ""
