"""Creations are a set: whatever the order, the repetitions and the pieces in which brokers hear of them."""

from hypothesis import given
from hypothesis import strategies as st

from gapless.model.ids import BrokerId, PubendId, TopicId
from gapless.model.schema import Schema
from gapless.protocol.broker import Broker
from gapless.protocol.creations import Creation, digest
from gapless.protocol.effects import RememberTopics
from gapless.protocol.events import BrokerStarted, LinkUp, MessageReceived, Now, TopicsLearned
from gapless.protocol.messages import TopicsMessage
from gapless.protocol.network import Network

DESCRIBED = Network.parse(
    {
        "cells": {"P": ["p"], "B": ["b", "c"], "S": ["s"]},
        "links": ["P--B", "B--S"],
        "topics": {"trades": {"price": "int"}},
        "pubends": {"nyse": {"topic": "trades", "broker": "p"}},
        "edges": ["s"],
    }
)
#: Topics that are there or not, columns that agree or not, and brokers that can host pubends or not.
creations = st.builds(
    lambda topic, column, pubend, broker, made: Creation(
        schema=Schema.parse(TopicId(topic), {"price": column}),
        pubend=PubendId(pubend),
        broker=BrokerId(broker),
        made=made,
    ),
    st.sampled_from(["trades", "bonds", "news"]),
    st.sampled_from(["int", "float"]),
    st.sampled_from(["nyse", "x", "y", "z"]),
    st.sampled_from(["p", "s", "b", "gone"]),
    st.integers(0, 3),
)
heard = st.lists(st.lists(creations, min_size=1, max_size=3), max_size=6)


def grown(told: list[list[Creation]]) -> Network:
    network = DESCRIBED
    for each in told:
        network = network.extended(each)
    return network


def plainly(told: list[list[Creation]]) -> tuple[dict[str, Schema], dict[str, tuple[str, str]]]:
    """What is in use, the slow way: the description, then one creation after the other, by age."""
    topics = {str(name): schema for name, schema in DESCRIBED.topics.items()}
    pubends = {str(name): (str(place.topic), str(place.broker)) for name, place in DESCRIBED.pubends.items()}
    for each in sorted({one for some in told for one in some}, key=lambda one: one.age):
        place = (str(each.topic), str(each.broker))
        fits = topics.get(each.topic, each.schema) == each.schema
        if each.broker in ("p", "s") and fits and pubends.get(each.pubend, place) == place:
            topics[each.topic], pubends[each.pubend] = each.schema, place
    return topics, pubends


def in_use(network: Network) -> tuple[dict[str, Schema], dict[str, tuple[str, str]]]:
    places = {str(name): (str(place.topic), str(place.broker)) for name, place in network.pubends.items()}
    return {str(name): schema for name, schema in network.topics.items()}, places


@given(heard, st.randoms(use_true_random=False))
def test_any_order_gives_the_same_set_and_after_a_restart_the_same_network(
    told: list[list[Creation]], chance: object
) -> None:
    other = [*told, *told[:2]]
    chance.shuffle(other)  # type: ignore[attr-defined]
    one, another = grown(told), grown(other)
    assert one.created == another.created
    assert one.created_digest == another.created_digest == digest(one.created)
    assert in_use(DESCRIBED.extended(one.created)) == in_use(DESCRIBED.extended(another.created))
    assert in_use(DESCRIBED.extended(one.created)) == plainly(told)
    if not DESCRIBED.extended(one.created).set_aside:
        assert in_use(one) == in_use(another) == plainly(told)


@given(heard)
def test_what_is_in_use_stays_in_use(told: list[list[Creation]]) -> None:
    network = DESCRIBED
    for each in told:
        topics, pubends = in_use(network)
        network = network.extended(each)
        wider_topics, wider_pubends = in_use(network)
        assert topics.items() <= wider_topics.items()
        assert pubends.items() <= wider_pubends.items()
        assert set(network.set_aside) == {c for c in network.created if not used(c, network)}


def used(creation: Creation, network: Network) -> bool:
    place = network.pubends.get(creation.pubend)
    return (
        place is not None
        and (place.topic, place.broker) == (creation.topic, creation.broker)
        and network.topics[creation.topic] == creation.schema
    )


@given(heard)
def test_brokers_that_hear_in_different_orders_agree_and_go_on(told: list[list[Creation]]) -> None:
    networks = []
    for order in (told, told[::-1]):
        broker = Broker(DESCRIBED, BrokerId("s"), 1, {})
        broker.step(BrokerStarted(), Now(0, 0))
        broker.step(LinkUp(neighbour=BrokerId("b")), Now(0, 0))
        for each in order:
            message = MessageReceived(sender=BrokerId("b"), message=TopicsMessage(creations=tuple(each)))
            for effect in broker.step(message, Now(1, 1_000)):
                if isinstance(effect, RememberTopics):
                    broker.step(TopicsLearned(creations=effect.creations, recovered={}), Now(2, 2_000))
                    broker.check()
        networks.append(broker.network)
    assert networks[0].created == networks[1].created
