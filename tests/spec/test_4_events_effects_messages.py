"""Section 4 of docs/protocol.md: the contract of a machine, and everything that it can hear and say."""

from dataclasses import fields
from types import UnionType
from typing import get_args

import pytest

from gapless.content.condition import EVERYTHING
from gapless.errors import PeerError, UsageError
from gapless.model.batch import EventBatch
from gapless.model.epochs import ALWAYS, Epochs
from gapless.model.ids import BrokerId, CellId, PubendId, SubscriptionId, TopicId
from gapless.model.ticks import TICK_MIN, TickRange
from gapless.protocol.effects import AcceptPublish, AppendRecord, Deliver, Effect, Record, StartTimer
from gapless.protocol.events import (
    DeliveryTaken,
    Event,
    MessageReceived,
    Now,
    PublishRequested,
    RecordDurable,
    SubscribeRequested,
    SubscriberReady,
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
    Message,
    NackMessage,
    SidewaysMessage,
    StartGrantMessage,
    StartRequestMessage,
    TopicsMessage,
)
from gapless.protocol.trace import describe, story
from tests.spec.document import clauses, names
from tests.spec.hand import FIRST, PUBEND, Hand, messages, network, rows


def listed(clause: str) -> dict[str, list[str]]:
    """The classes and fields that the table of a clause lists."""
    return {names(row[0])[0]: names(row[1]) for row in clauses()[clause].table()}


def declared(union: UnionType) -> dict[str, list[str]]:
    """The classes of a union with their fields, as they are in the code."""
    return {each.__name__: [field.name for field in fields(each)] for each in get_args(union)}


def busy(hand: Hand) -> Hand:
    """A little of everything."""
    hand.subscribe("alice")
    hand.publish(1, 2)
    hand.wait(300)
    hand.publish(3)
    hand.wait(2_000)
    return hand


def _subscribe(name: str, topic: str) -> SubscribeRequested:
    return SubscribeRequested(subscription=SubscriptionId(name), topic=TopicId(topic), condition=EVERYTHING)


def test_equal_histories_give_equal_effects() -> None:
    """Clause 4.1."""
    one, other = busy(Hand.started(network())), busy(Hand.started(network()))
    assert repr(one.effects) == repr(other.effects)
    assert len(one.effects) > 50


def test_an_early_timer_is_harmless() -> None:
    """Clause 4.4."""
    hand = Hand.started(network())
    hand.subscribe("alice")
    for broker in "pbs":
        assert all(isinstance(effect, StartTimer) for effect in hand.step(broker, TimerFired()))


def test_a_due_timer_is_served_by_any_other_event() -> None:
    """Clause 4.4."""
    hand = Hand.started(network())
    hand.subscribe("alice")
    hand.loses = lambda sender, _to, message: sender == "b" and isinstance(message, KnowledgeMessage)
    hand.publish(1)
    hand.loses = lambda *_: False
    hand.publish(2)
    hand.ms += 200
    flood = MessageReceived(sender=BrokerId("b"), message=LinkStatusMessage(reaches=frozenset()))
    assert messages(hand.step("s", flood), NackMessage)


def test_messages_that_come_twice_change_nothing_that_can_be_seen() -> None:
    """Clause 4.5."""
    once, twice = Hand.started(network()), Hand.started(network())

    def repeated(sender: str, to: str, message: Message) -> bool:
        twice.coming.append((to, MessageReceived(sender=BrokerId(sender), message=message)))
        return False

    twice.loses = repeated
    for hand in (once, twice):
        busy(hand)
    assert twice.got("alice") == once.got("alice") == [FIRST, FIRST + 1, FIRST + 300_000]
    assert twice.starts("alice") == once.starts("alice")
    assert repr(twice.of(AcceptPublish)) == repr(once.of(AcceptPublish))
    assert repr(twice.logs) == repr(once.logs)


def test_one_durable_record_stands_for_all_before_it() -> None:
    """Clause 4.6."""
    hand = Hand.started(network())
    appended: list[AppendRecord] = []
    for token in (1, 2):
        effects = hand.step("p", PublishRequested(pubend=PUBEND, token=token, rows=rows(token)))
        appended += [effect for effect in effects if isinstance(effect, AppendRecord)]
    assert appended[0].token < appended[1].token
    effects = hand.step("p", RecordDurable(pubend=PUBEND, token=appended[1].token))
    accepted = [effect.token for effect in effects if isinstance(effect, AcceptPublish)]
    assert accepted == [1, 2]


@pytest.mark.parametrize(
    ("broker", "event", "code"),
    [
        ("s", _subscribe("a", "trades"), "E140"),
        ("s", _subscribe("b", "bonds"), "E141"),
        ("s", UnsubscribeRequested(subscription=SubscriptionId("nobody")), "E142"),
        ("b", PublishRequested(pubend=PUBEND, token=1, rows=rows(1)), "E143"),
        ("b", DeliveryTaken(serial=1), "E144"),
        ("b", SubscriberReady(subscription=SubscriptionId("a")), "E144"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.startswith("E") else "",
)
def test_a_broken_contract_is_refused_before_anything_changes(broker: str, event: Event, code: str) -> None:
    """Clause 4.7."""
    hand = Hand.started(network())
    hand.subscribe("a")
    with pytest.raises(UsageError) as refused:
        hand.step(broker, event)
    assert refused.value.code == code
    # No epoch was spent, and nothing is sent on account of it.
    hand.subscribe("bob")
    last = hand.sent(AdvertisementMessage, "s")[-1]
    assert str(last.epochs) == "s:1.2"
    assert not [e for e in hand.step(broker, TimerFired()) if not isinstance(e, StartTimer)]


def _knowledge(pubend: str = PUBEND, start: int = 0, stop: int = 10) -> KnowledgeMessage:
    runs = ((start, stop, ALWAYS),)
    return KnowledgeMessage(
        pubend=PubendId(pubend), runs=runs, batch=None, first_time=True, final_before=TICK_MIN
    )


def _request(edge: str) -> StartRequestMessage:
    return StartRequestMessage(pubend=PUBEND, edge=BrokerId(edge), epoch=1, wanted=None)


def _grant(edge: str) -> StartGrantMessage:
    return StartGrantMessage(pubend=PUBEND, edge=BrokerId(edge), epoch=1, wanted=None, start=0, until=0)


def _nack(start: int, stop: int) -> NackMessage:
    return NackMessage(pubend=PUBEND, ticks=TickRange(start, stop))


def _advertisement(root: str, origin: str) -> AdvertisementMessage:
    return AdvertisementMessage(
        root=CellId(root),
        origin=BrokerId(origin),
        version=2**60,
        base=None,
        added=frozenset({(TopicId("trades"), EVERYTHING)}),
        removed=frozenset(),
        epochs=Epochs({}),
    )


def _sideways(cell: str) -> SidewaysMessage:
    return SidewaysMessage(cell=CellId(cell), message=_knowledge())


@pytest.mark.parametrize(
    ("code", "broker", "sender", "message"),
    [
        ("E201", "b", "s", _knowledge()),
        ("E201", "p", "b", AckExpectedMessage(pubend=PUBEND, before=10)),
        ("E201", "b", "s", _grant("s")),
        ("E202", "b", "p", AckMessage(pubend=PUBEND, runs=((10, ALWAYS),))),
        ("E202", "b", "p", _nack(0, 1)),
        ("E202", "s", "b", _request("s")),
        ("E203", "p", "s", LinkStatusMessage(reaches=frozenset())),
        ("E205", "b", "p", _knowledge(start=5, stop=5)),
        ("E205", "b", "s", AckMessage(pubend=PUBEND, runs=((10, ALWAYS), (5, ALWAYS)))),
        ("E205", "b", "s", _nack(5, 5)),
        ("E205", "b", "s", _request("p")),
        ("E205", "b", "p", _grant("p")),
        ("E206", "b", "p", _sideways("S")),
        ("E207", "b", "p", _advertisement("P", "p")),
        ("E207", "b", "s", _advertisement("P", "b")),
        ("E207", "b", "s", _advertisement("NOWHERE", "s")),
        ("E207", "b", "s", AdvertisementAckMessage(root=CellId("P"), origin=BrokerId("b"), version=1)),
        ("E209", "b", "s", TopicsMessage(creations=())),
    ],
)
def test_a_message_that_its_senders_place_does_not_allow_changes_nothing(
    code: str, broker: str, sender: str, message: Message
) -> None:
    """Clause 4.8."""
    hand = Hand.started(network())
    hand.subscribe("alice")
    memory = hand.brokers[broker].memory()
    with pytest.raises(PeerError) as broken:
        hand.step(broker, MessageReceived(sender=BrokerId(sender), message=message))
    assert broken.value.code == code
    assert hand.brokers[broker].memory() == memory


def test_the_events_are_those_of_the_table() -> None:
    """Clause 4.9."""
    assert listed("4.9") == declared(Event)


def test_the_effects_are_those_of_the_table() -> None:
    """Clause 4.10."""
    assert listed("4.10") == declared(Effect)


def test_the_records_are_those_of_the_table() -> None:
    """Clause 4.11."""
    assert listed("4.11") == declared(Record)


def test_the_messages_are_those_of_the_table() -> None:
    """Clause 4.12."""
    assert listed("4.12") == declared(Message)


def test_the_story_of_a_tick_has_every_line_about_it() -> None:
    """Clause 4.14."""
    assert describe(NackMessage(pubend=PUBEND, ticks=TickRange(10, 12))) == "nack nyse 10..12"
    hand = Hand.started(network())
    hand.subscribe("alice")
    hand.publish(1)
    entries = [(0, BrokerId(broker), effect) for broker, effect in hand.effects]
    told = story(entries, PubendId("nyse"), FIRST).splitlines()
    assert [line.split("  ")[-1] for line in told] == [
        "append nyse #3 data 10000",
        "accept nyse #1 as 10000",
        "knowledge nyse 10000..10001 data 10000 first-time final ..0",
        "knowledge nyse 10000..10001 data 10000 first-time final ..0",
        "deliver nyse 10000 -> alice",
    ]


def test_knowledge_that_comes_together_is_taken_as_one() -> None:
    """Clause 4.15."""
    hand = Hand.started(network())
    hand.subscribe("alice")
    hand.loses = lambda sender, *_: sender == "b"
    for count in (1, 2, 3):
        hand.publish(count)
    first, *also = hand.sent(KnowledgeMessage, sender="b", to="s")[-3:]
    event = MessageReceived(sender=BrokerId("b"), message=first, also=tuple(also))
    (deliver,) = [each for each in hand.step("s", event) if isinstance(each, Deliver)]
    assert len(deliver.batch) == len(deliver.rows) == 3
    assert deliver.batch == EventBatch.joined([each.batch for each in (first, *also) if each.batch])
    assert not [each for each in hand.step("s", event) if isinstance(each, Deliver)]


def test_the_time_is_an_argument() -> None:
    """Clause 4.1."""
    hand = Hand.started(network())
    late = Now(ms=5_000, clock=7_000_000)
    effects = hand.brokers["p"].step(PublishRequested(pubend=PUBEND, token=1, rows=rows(1)), late)
    (record,) = [e.record for e in effects if isinstance(e, AppendRecord) and hasattr(e.record, "batch")]
    assert record.batch.first == 7_000_000
