"""A peer that breaks the protocol is named, and changes nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from gapless.content.condition import Condition
from gapless.errors import PeerError, SchemaError
from gapless.model.batch import EventBatch
from gapless.model.epochs import ALWAYS, EPOCH_ALL, EPOCH_NONE, NEVER, Epochs
from gapless.model.ids import BrokerId, CellId, PubendId, TopicId
from gapless.model.logs import LogLife
from gapless.model.packed import PackedRows
from gapless.model.ticks import TickRange
from gapless.protocol.broker import Broker
from gapless.protocol.events import BrokerStarted, LinkUp, MessageReceived, Now, PublishRequested
from gapless.protocol.messages import (
    AckExpectedMessage,
    AckMessage,
    AdvertisementAckMessage,
    AdvertisementMessage,
    KnowledgeMessage,
    LinkStatusMessage,
    LogKnownMessage,
    Message,
    NackMessage,
    SidewaysMessage,
    StartGrantMessage,
    StartRequestMessage,
)
from gapless.protocol.network import Network
from gapless.protocol.ostream import Ostream
from tests.conditions import where

NETWORK = Network.parse(
    {
        "cells": {"P": ["p"], "B": ["b1", "b2"], "S": ["s"], "T": ["t"]},
        "links": ["P--B", "B--S", "B--T"],
        "topics": {"trades": {"price": "int"}},
        "pubends": {"trades": {"topic": "trades", "broker": "p"}},
        "edges": ["s", "t"],
    }
)
TRADES = PubendId("trades")
NACK = NackMessage(pubend=TRADES, ticks=TickRange(1, 5))
KNOWLEDGE = KnowledgeMessage(
    pubend=TRADES, runs=((0, 5, ALWAYS),), batch=None, first_time=True, final_before=0
)


def advertisement(root: str, origin: str) -> AdvertisementMessage:
    return AdvertisementMessage(
        root=CellId(root),
        origin=BrokerId(origin),
        version=1,
        base=None,
        added=frozenset(),
        removed=frozenset(),
        epochs=NEVER,
    )


def wanting(topic: str, condition: Condition) -> AdvertisementMessage:
    return replace(advertisement("P", "s"), added=frozenset({(TopicId(topic), condition)}))


def ack(root: str, origin: str) -> AdvertisementAckMessage:
    return AdvertisementAckMessage(root=CellId(root), origin=BrokerId(origin), version=1)


def request(edge: str) -> StartRequestMessage:
    return StartRequestMessage(pubend=TRADES, edge=BrokerId(edge), epoch=1, wanted=None)


def grant(edge: str) -> StartGrantMessage:
    return StartGrantMessage(pubend=TRADES, edge=BrokerId(edge), epoch=1, wanted=None, start=1, until=1)


def data(ticks: list[int], columns: dict[str, list[object]]) -> KnowledgeMessage:
    """Knowledge of the ticks 0..5 with these rows."""
    rows = pa.RecordBatch.from_pydict(columns)
    if columns["price"] and isinstance(columns["price"][0], int):
        rows = NETWORK.topics[TopicId("trades")].checked(rows)
    return replace(KNOWLEDGE, batch=EventBatch(np.asarray(ticks, dtype=np.int64), rows))


LOG_KNOWN = LogKnownMessage(pubend=TRADES, log=LogLife("log", 1, 0, 0, 0), known=5, events=5)
FAULTS: list[tuple[str, Message, str]] = [
    ("nobody", LinkStatusMessage(reaches=frozenset()), "E203"),
    ("s", KNOWLEDGE, "E201"),
    ("b2", KNOWLEDGE, "E201"),
    ("p", NACK, "E202"),
    ("b2", NACK, "E202"),
    ("s", NackMessage(pubend=TRADES, ticks=TickRange(5, 5)), "E205"),
    # An epoch of all edges that are not named would speak for other cells.
    ("s", replace(advertisement("P", "s"), epochs=ALWAYS), "E207"),
    ("s", replace(advertisement("P", "s"), epochs=Epochs({BrokerId("s"): 5}, default=7)), "E207"),
    ("s", AckMessage(pubend=TRADES, runs=((9, ALWAYS), (4, ALWAYS))), "E205"),
    (
        "p",
        KnowledgeMessage(pubend=TRADES, runs=((5, 5, ALWAYS),), batch=None, first_time=True, final_before=0),
        "E205",
    ),
    ("p", data([1, 2], {"price": ["a", "b"]}), "E205"),
    ("p", data([2, 1], {"price": [1, 2]}), "E205"),
    ("p", data([1, 9], {"price": [1, 2]}), "E205"),
    ("p", data([], {"price": []}), "E205"),
    ("p", replace(KNOWLEDGE, final_before=2**70), "E205"),
    ("s", AckMessage(pubend=TRADES, runs=((2**70, ALWAYS),)), "E205"),
    ("p", AckExpectedMessage(pubend=TRADES, before=2**70), "E205"),
    ("p", LOG_KNOWN, "E202"),
    ("s", replace(LOG_KNOWN, known=2**70), "E205"),
    ("s", replace(LOG_KNOWN, log=LogLife("log", -1, 0, 0, 0)), "E205"),
    ("p", replace(KNOWLEDGE, log=LogLife("log", 1, 2**70, 0, 0)), "E205"),
    ("b2", SidewaysMessage(cell=CellId("P"), message=NACK), "E206"),
    ("s", wanting("trades", where("nope > 1", nope="int")), "E208"),
    ("s", request("t"), "E205"),
    ("p", grant("p"), "E205"),
    ("s", SidewaysMessage(cell=CellId("P"), message=NACK), "E206"),
    ("b2", SidewaysMessage(cell=CellId("nowhere"), message=NACK), "E206"),
    ("s", advertisement("nowhere", "s"), "E207"),
    ("s", advertisement("P", "t"), "E207"),
    ("p", advertisement("P", "p"), "E207"),
    ("s", advertisement("P", "nobody"), "E207"),
    ("s", ack("P", "b1"), "E207"),
    ("p", ack("nowhere", "b1"), "E207"),
    ("p", ack("P", "b2"), "E207"),
    ("s", replace(advertisement("P", "s"), epochs=Epochs({BrokerId("t"): 1})), "E207"),
    ("s", AckMessage(pubend=TRADES, runs=((9, Epochs({BrokerId("t"): 1})),)), "E205"),
    ("s", LinkStatusMessage(reaches=frozenset({CellId("P")})), "E205"),
    ("s", LinkStatusMessage(reaches=frozenset({CellId("nowhere")})), "E205"),
    ("b2", SidewaysMessage(cell=CellId("P"), message=KNOWLEDGE), "E206"),
    ("b2", SidewaysMessage(cell=CellId("S"), message=AckMessage(pubend=TRADES, runs=((9, ALWAYS),))), "E206"),
    ("b2", SidewaysMessage(cell=CellId("S"), message=grant("t")), "E206"),
    ("b2", SidewaysMessage(cell=CellId("S"), message=data([1, 2], {"price": ["a", "b"]})), "E205"),
    ("b2", SidewaysMessage(cell=CellId("P"), message=request("p")), "E205"),
]


@pytest.mark.parametrize(("sender", "message", "code"), FAULTS)
def test_a_message_out_of_place_is_a_peer_error_and_changes_nothing(
    sender: str, message: Message, code: str
) -> None:
    broker = started()
    before = state(broker)
    with pytest.raises(PeerError) as caught:
        broker.step(MessageReceived(sender=BrokerId(sender), message=message), Now(5, 5_000))
    assert caught.value.code == code
    assert sender in str(caught.value)
    assert "\n" not in str(caught.value)
    assert state(broker) == before


@pytest.mark.parametrize(
    ("sender", "message"),
    [
        ("s", NACK),
        ("p", KNOWLEDGE),
        ("p", data([1, 4], {"price": [3, 7]})),
        ("s", advertisement("P", "s")),
        ("b2", advertisement("P", "s")),
        ("p", ack("P", "b1")),
        ("s", request("s")),
        ("p", grant("t")),
        ("b2", SidewaysMessage(cell=CellId("S"), message=KNOWLEDGE)),
        ("b2", SidewaysMessage(cell=CellId("P"), message=request("t"))),
        ("b2", SidewaysMessage(cell=CellId("S"), message=grant("s"))),
        ("s", AckMessage(pubend=TRADES, runs=((9, Epochs({BrokerId("s"): 1})),))),
        ("s", LinkStatusMessage(reaches=frozenset({CellId("B")}))),
    ],
)
def test_a_message_in_its_place_is_taken(sender: str, message: Message) -> None:
    broker = started()
    broker.step(MessageReceived(sender=BrokerId(sender), message=message), Now(5, 5_000))
    broker.check()


def started() -> Broker:
    broker = Broker(NETWORK, BrokerId("b1"), 1, {})
    broker.step(BrokerStarted(), Now(0, 0))
    for neighbour in NETWORK.neighbours(BrokerId("b1")):
        broker.step(LinkUp(neighbour=neighbour), Now(0, 0))
    return broker


def state(broker: Broker) -> tuple[object, ...]:
    path = broker._paths[TRADES]
    return (
        broker.memory(),
        path.last_sender,
        [list(ostream.passed) for ostream in path.ostreams.values()],
        dict(broker._links.heard_ms),
        {root: dict(held.below) for root, held in broker._routing._roots.items()},
    )


def test_packed_rows_of_another_schema_are_refused_by_the_broker() -> None:
    broker = Broker(NETWORK, BrokerId("p"), 1, {})
    broker.step(BrokerStarted(), Now(0, 0))
    other = PackedRows(pa.schema([pa.field("name", pa.string(), nullable=False)]), [b"\x91\xa1x"])
    with pytest.raises(SchemaError) as caught:
        broker.step(PublishRequested(pubend=TRADES, token=1, rows=other), Now(5, 5_000))
    assert caught.value.code == "E111"
    fine = PackedRows(NETWORK.topics[TopicId("trades")].arrow(), [b"\x91\x05"])
    assert broker.step(PublishRequested(pubend=TRADES, token=2, rows=fine), Now(6, 6_000))


def test_an_ack_stamped_for_all_counts_only_for_its_own_cell() -> None:
    ostream = Ostream(CellId("S"), frozenset({BrokerId("s")}), runs_max=64)
    ostream.acked_by_cell(((50, ALWAYS),))
    [(stop, stamp)] = ostream.acked()
    assert stop == 50
    assert stamp.get(BrokerId("s")) == EPOCH_ALL
    assert stamp.get(BrokerId("t")) == EPOCH_NONE
