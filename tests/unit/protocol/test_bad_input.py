"""A caller that breaks the contract gets one clear line, and nothing changes."""

from __future__ import annotations

import pyarrow as pa
import pytest

from gapless.content.condition import EVERYTHING, Condition
from gapless.content.selection import Selection
from gapless.errors import UsageError
from gapless.model.batch import EventBatch
from gapless.model.epochs import ALWAYS
from gapless.model.ids import BrokerId, CellId, PubendId, SubscriptionId, TopicId
from gapless.protocol.broker import Broker
from gapless.protocol.effects import AcceptPublish, AppendRecord, BatchRecord, Effect, RefusePublish
from gapless.protocol.events import BrokerStarted, Event, LinkUp, Now, PublishRequested, SubscribeRequested
from gapless.protocol.network import Network
from gapless.protocol.ostream import CellFilter, Ostream
from tests.conditions import where

NETWORK = Network.parse(
    {
        "cells": {"P": ["p"]},
        "topics": {"trades": {"price": "float", "symbol": "string"}},
        "pubends": {"trades": {"topic": "trades", "broker": "p"}},
    }
)


def broker() -> Broker:
    made = Broker(NETWORK, BrokerId("p"), 1, {})
    made.step(BrokerStarted(), Now(0, 0))
    return made


def subscribe(condition: Condition) -> SubscribeRequested:
    return SubscribeRequested(
        subscription=SubscriptionId("alice"), topic=TopicId("trades"), condition=condition
    )


@pytest.mark.parametrize(
    ("event", "code", "named"),
    [
        (subscribe(where("nope > 1", nope="int")), "E146", "'nope'"),
        (subscribe(where("symbol > 1", symbol="int")), "E146", "'symbol'"),
        (subscribe(where("price = 'a'", price="string")), "E146", "'price'"),
        (subscribe(where("symbol = 3", symbol="float")), "E146", "'symbol'"),
        (LinkUp(neighbour=BrokerId("zzz")), "E148", "'zzz'"),
    ],
)
def test_a_call_that_makes_no_sense_is_refused_before_anything_changes(
    event: Event, code: str, named: str
) -> None:
    made = broker()
    with pytest.raises(UsageError) as caught:
        made.step(event, Now(1, 1_000))
    assert caught.value.code == code
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)
    assert made._subends().changes() == ([], [])
    made.step(subscribe(EVERYTHING), Now(2, 2_000))
    made.check()


def test_a_broker_that_the_network_does_not_have_is_refused() -> None:
    with pytest.raises(UsageError, match=r"E147 .*'nope'"):
        Broker(NETWORK, BrokerId("nope"), 1, {})


def test_publishing_no_rows_is_accepted_at_once_and_logs_nothing() -> None:
    rows = NETWORK.topics[TopicId("trades")].arrow().empty_table().to_batches()
    none = rows[0] if rows else pa.RecordBatch.from_pydict({"price": [], "symbol": []})
    effects = broker().step(PublishRequested(pubend=PubendId("trades"), token=7, rows=none), Now(1, 1_000))
    accepted = [effect for effect in effects if isinstance(effect, AcceptPublish)]
    assert [(each.token, len(each.ticks)) for each in accepted] == [(7, 0)]
    assert not [effect for effect in effects if isinstance(effect, AppendRecord) and effect.token > 1]


def test_silence_that_was_withheld_and_forgotten_is_not_told_beside_the_same_ticks_again() -> None:
    ostream = Ostream(CellId("S"), frozenset({BrokerId("s")}), 64)
    rows = EventBatch.of([5], {"price": [1.0]})
    nothing, everything = CellFilter(), CellFilter(Selection([EVERYTHING]))
    assert ostream.pass_on([(0, 11, ALWAYS)], rows, nothing, first_time=True, route=None) == []
    told = ostream.pass_on([(0, 11, ALWAYS)], rows, everything, first_time=True, route=None)
    assert [telling.runs for telling in told] == [[(0, 11, ALWAYS)]]


def test_publishing_is_refused_while_the_log_is_too_far_behind() -> None:
    network = Network.parse(
        {
            "cells": {"P": ["p"]},
            "topics": {"trades": {"price": "float"}},
            "pubends": {"trades": {"topic": "trades", "broker": "p"}},
            "parameters": {"stream_bytes_max": 1_000},
        }
    )
    made = Broker(network, BrokerId("p"), 1, {})
    made.step(BrokerStarted(), Now(0, 0))
    rows = pa.RecordBatch.from_pydict({"price": [1.0] * 100})
    answers: list[Effect] = []
    for token in range(3):
        event = PublishRequested(pubend=PubendId("trades"), token=token, rows=rows)
        answers += made.step(event, Now(1, 1_000))
    assert [each.token for each in answers if isinstance(each, RefusePublish)] == [1, 2]
    logged = [each.record for each in answers if isinstance(each, AppendRecord)]
    assert len([record for record in logged if isinstance(record, BatchRecord)]) == 1
