"""Section 12 of docs/protocol.md: topics that are created while the network runs."""

import pytest

from gapless.content.language import parse_condition
from gapless.model.ids import BrokerId, CellId, PubendId, TopicId
from gapless.model.schema import Schema
from gapless.model.ticks import TickRange
from gapless.protocol.creations import CREATIONS_MAX, Creation, oldest
from gapless.protocol.effects import AppendRecord, RememberTopics
from gapless.protocol.events import MessageReceived, Order, TopicsLearned
from gapless.protocol.messages import (
    AckMessage,
    AdvertisementAckMessage,
    AdvertisementMessage,
    KnowledgeMessage,
    LinkStatusMessage,
    Message,
    NackMessage,
    TopicsMessage,
)
from tests.spec.hand import FIRST, Hand, batch, messages, network

BONDS = "bonds"


def creation(broker: str = "p", *, topic: str = BONDS, made: int = 5, column: str = "int") -> Creation:
    schema = Schema.parse(TopicId(topic), {"price": column})
    return Creation(
        schema=schema, pubend=PubendId(f"{topic}-{broker}"), broker=BrokerId(broker), made=made, retention=""
    )


def known(hand: Hand) -> list[set[Creation]]:
    return [set(broker.network.created) for broker in hand.brokers.values()]


def test_a_creation_is_written_down_before_it_is_used_or_told() -> None:
    """Clause 12.2."""
    hand = Hand.started(network())
    told = MessageReceived(sender=BrokerId("p"), message=TopicsMessage(creations=(creation(),)))
    effects = hand.step("b", told)
    assert [e.creations for e in effects if isinstance(e, RememberTopics)] == [(creation(),)]
    assert not messages(effects, TopicsMessage)
    assert not hand.brokers["b"].network.created
    effects = hand.step("b", TopicsLearned(creations=(creation(),), recovered={}))
    assert sorted(to for to, _ in messages(effects, TopicsMessage)) == ["p", "s"]
    assert PubendId("bonds-p") in hand.brokers["b"].network.pubends
    # What is known is neither written down nor told again.
    assert not [e for e in hand.step("b", told) if isinstance(e, RememberTopics)]


def test_created_topics_reach_every_broker_and_survive_a_restart() -> None:
    """Clauses 12.2 and 12.4."""
    hand = Hand.started(network())
    hand.subscribe("alice")
    hand.create("p", creation())
    assert known(hand) == [{creation()}] * 3
    hand.subscribe("bob", topic=BONDS)
    hand.publish(1, 2, pubend="bonds-p")
    hand.publish(3)
    assert [tick - FIRST for tick in hand.got("bob")] == [0, 1]
    assert [tick - FIRST for tick in hand.got("alice")] == [0]
    hand.crash("p")
    hand.start("p")
    hand.link_up("p", "b")
    hand.settle()
    hand.wait(1_000)
    hand.publish(4, pubend="bonds-p")
    assert len(hand.got("bob")) == 3


def test_a_new_root_gets_the_subscriptions_of_all_edges() -> None:
    """Clause 12.4."""
    # b is alone in its cell, and has hosted nothing so far.
    hand = Hand.started(network())
    hand.create("b", creation("b"))
    hand.subscribe("bob", topic=BONDS, order=Order.TOTAL)
    hand.publish(7, pubend="bonds-b")
    assert hand.events("bob") == [("bonds-b", FIRST)]
    assert {m.root for m in hand.sent(AdvertisementMessage, "s")} == {CellId("P"), CellId("B")}


def test_a_link_that_comes_up_brings_everything() -> None:
    """Clause 12.3."""
    hand = Hand.started(network())
    hand.loses = lambda sender, to, message: isinstance(message, TopicsMessage) and {sender, to} == {"b", "s"}
    hand.create("p", creation())
    hand.create("s", creation("s", topic="news"))
    assert known(hand) == [{creation()}, {creation()}, {creation("s", topic="news")}]
    hand.loses = lambda *_: False
    hand.link_up("b", "s")
    hand.settle()
    assert known(hand) == [{creation(), creation("s", topic="news")}] * 3


def test_a_link_status_with_another_digest_brings_everything() -> None:
    """Clause 12.3."""
    hand = Hand.started(network())
    hand.loses = lambda _sender, to, message: isinstance(message, TopicsMessage) and to == "s"
    hand.create("p", creation())
    assert not hand.brokers["s"].network.created
    hand.loses = lambda *_: False
    hand.wait(1_000)
    assert known(hand) == [{creation()}] * 3
    before = len(hand.sent(TopicsMessage))
    hand.wait(3_000)
    assert {m.topics for m in hand.sent(LinkStatusMessage)[-3:]} == {hand.brokers["p"].network.created_digest}
    assert len(hand.sent(TopicsMessage)) == before


@pytest.mark.parametrize(
    ("broker", "sender", "message"),
    [
        ("b", "s", NackMessage(pubend=PubendId("bonds-p"), ticks=TickRange(1, 5))),
        ("b", "s", AckMessage(pubend=PubendId("bonds-p"), runs=())),
        (
            "b",
            "p",
            KnowledgeMessage(
                pubend=PubendId("bonds-p"), runs=(), batch=batch([1]), first_time=True, final_before=0
            ),
        ),
        ("b", "s", AdvertisementAckMessage(root=CellId("S"), origin=BrokerId("b"), version=3)),
    ],
)
def test_a_message_that_has_overtaken_the_news_is_ignored(broker: str, sender: str, message: Message) -> None:
    """Clause 12.5."""
    hand = Hand.started(network())
    hand.subscribe("alice")
    memory = hand.brokers[broker].memory()
    effects = hand.step(broker, MessageReceived(sender=BrokerId(sender), message=message))
    assert not [effect for effect in effects if isinstance(effect, AppendRecord)]
    assert not messages(effects, NackMessage)
    assert hand.brokers[broker].memory() == memory


def test_a_subscription_that_has_overtaken_the_news_is_confirmed_when_it_arrives() -> None:
    """Clause 12.5."""
    hand = Hand.started(network())
    hand.loses = lambda _sender, to, message: isinstance(message, TopicsMessage) and to == "b"
    hand.create("p", creation())
    hand.create("s", creation())
    hand.subscribe("bob", topic=BONDS)
    hand.subscribe("alice")
    # Nothing that s says of its new set is understood by b, so nothing of it is acknowledged.
    assert hand.starts("bob") == {}
    assert hand.starts("alice") == {}
    hand.loses = lambda *_: False
    hand.wait(2_000)
    assert set(hand.starts("bob")) == {"bonds-p"}
    assert set(hand.starts("alice")) == {"nyse"}
    hand.publish(1, pubend="bonds-p")
    assert len(hand.got("bob")) == 1


def test_equal_creations_are_one_topic_with_two_pubends() -> None:
    """Clause 12.6."""
    hand = Hand.started(network())
    hand.create("p", creation())
    hand.subscribe("early", topic=BONDS, order=Order.TOTAL)
    hand.create("b", creation("b"))
    hand.subscribe("late", topic=BONDS, order=Order.TOTAL)
    hand.publish(1, pubend="bonds-p")
    hand.publish(2, pubend="bonds-b")
    hand.wait(3_000)
    assert set(hand.starts("early")) == {"bonds-p"}
    assert [pubend for pubend, _ in hand.events("early")] == ["bonds-p"]
    assert set(hand.starts("late")) == {"bonds-b", "bonds-p"}
    assert sorted(pubend for pubend, _ in hand.events("late")) == ["bonds-b", "bonds-p"]


def test_of_two_contradicting_creations_the_older_wins() -> None:
    """Clause 12.7."""
    hand = Hand.started(network())
    apart = lambda sender, to, message: isinstance(message, TopicsMessage) and {sender, to} == {"p", "b"}  # noqa: E731
    hand.loses = apart
    older, younger = creation(made=5), creation("s", made=6, column="float")
    hand.create("p", older)
    hand.create("s", younger)
    hand.loses = lambda *_: False
    hand.wait(2_000)
    assert known(hand) == [{older, younger}] * 3
    in_use = {name: broker.network.topics[TopicId(BONDS)] for name, broker in hand.brokers.items()}
    assert in_use == {"p": older.schema, "b": younger.schema, "s": younger.schema}
    assert hand.brokers["b"].network.set_aside == (older,)
    for name in "bs":
        hand.crash(name)
        hand.start(name)
    for name in "ps":
        hand.link_up("b", name)
    hand.settle()
    hand.wait(1_000)
    assert {b.network.topics[TopicId(BONDS)] for b in hand.brokers.values()} == {older.schema}
    hand.subscribe("bob", topic=BONDS)
    hand.publish(1, pubend="bonds-p")
    assert len(hand.got("bob")) == 1


def test_a_condition_for_the_other_topic_of_that_name_is_left_out() -> None:
    """Clause 12.8."""
    hand = Hand.started(network())
    hand.loses = lambda _sender, _to, message: isinstance(message, TopicsMessage)
    texts = Schema.parse(TopicId(BONDS), {"price": "string"})
    hand.create("p", creation())
    hand.create("b", creation())
    hand.create("s", creation("s", column="string"))
    # s and p have a root each; what s wants of its own bonds does not concern b's.
    hand.create("s", Creation(schema=texts, pubend=PubendId("x"), broker=BrokerId("p"), made=9))
    hand.subscribe("bob", parse_condition("price LIKE 'x%'", texts), topic=BONDS)
    hand.subscribe("alice")
    hand.wait(1_000)
    assert set(hand.starts("alice")) == {"nyse"}
    hand.publish(3)
    assert len(hand.got("alice")) == 1


def test_the_oldest_creations_are_remembered() -> None:
    """Clause 12.2."""
    many = [creation(topic=f"t{at}", made=at) for at in range(CREATIONS_MAX + 3)]
    kept = oldest(many)
    assert kept == set(many[:-3])
    assert oldest(oldest(many[10:]) | set(many[:10])) == kept
