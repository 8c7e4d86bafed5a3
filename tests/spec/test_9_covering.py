"""Section 9 of docs/protocol.md: what is advertised by covering, together, and in parts."""

import pytest

from gapless.content.condition import EVERYTHING
from gapless.errors import PeerError
from gapless.model.epochs import NEVER, Epochs, first_epoch
from gapless.model.ids import BrokerId, CellId, SubscriptionId
from gapless.protocol import routing as routing_module
from gapless.protocol.effects import Effect
from gapless.protocol.events import Event, Now, Order, SubscribeRequested, UnsubscribeRequested
from gapless.protocol.messages import AdvertisementAckMessage, AdvertisementMessage, Want
from gapless.protocol.network import Network
from gapless.protocol.routing import Routing
from tests.conditions import where
from tests.spec.hand import TOPIC, Hand, batch, messages, network, wanting

P, B1, B2, S = BrokerId("p"), BrokerId("b1"), BrokerId("b2"), BrokerId("s")
ROOT, CELL_B, CELL_S = CellId("P"), CellId("B"), CellId("S")
B = BrokerId("b")
NOW = Now(ms=0, clock=0)


def priced(*prices: int) -> frozenset[Want]:
    return wanting(*(where(f"price = {price}") for price in prices))


def in_parts(conditions_max: int = 2) -> Network:
    """p -- {b1, b2} -- s, with small advertisements."""
    cells = {"P": ["p"], "B": ["b1", "b2"], "S": ["s"]}
    return network({"message_conditions_max": conditions_max}, cells=cells)


def sent(
    routing: Routing, ms: int = 0, up: frozenset[BrokerId] = frozenset({B})
) -> list[AdvertisementMessage]:
    return [message for _, message in messages(routing.woken(up, Now(ms=ms, clock=0)), AdvertisementMessage)]


def part(
    version: int, number: int, total: int | None, *prices: int, **changes: object
) -> AdvertisementMessage:
    fields = {"base": None, "removed": frozenset(), "epochs": Epochs({S: version}), **changes}
    return AdvertisementMessage(
        root=ROOT, origin=S, version=version, added=priced(*prices), part=number, total=total, **fields
    )


def answer(effects: list[Effect]) -> AdvertisementAckMessage:
    ((_, ack),) = messages(effects, AdvertisementAckMessage)
    return ack


def test_what_another_condition_covers_is_not_advertised_but_its_epoch_is() -> None:
    """Clause 9.25."""
    hand = Hand.started(network())
    hand.subscribe("alice", where("price > 5"))
    hand.subscribe("bob", where("price = 7"))
    hand.subscribe("carol", where("price > 5"))
    for broker in ("s", "b"):
        wide, *covered = hand.sent(AdvertisementMessage, broker)[-3:]
        assert wide.added == wanting(where("price > 5"))
        assert [(m.added, m.removed) for m in covered] == [(frozenset(), frozenset())] * 2
        assert [m.epochs.get(S) - first_epoch(1) for m in covered] == [2, 3]
    assert set(hand.starts("bob")) == {"nyse"}


def test_what_is_advertised_accepts_just_what_is_wanted() -> None:
    """Clause 9.25."""
    hand = Hand.started(network())
    for name, text in (("a", "price = 3"), ("b", "price BETWEEN 2 AND 5"), ("c", "price = 9")):
        hand.subscribe(name, where(text))
    wants = hand.brokers["p"]._routing.wants(ROOT, CellId("B"), TOPIC)
    assert wants.accepts.conditions == {where("price BETWEEN 2 AND 5"), where("price = 9")}
    assert wants.accepts.mask(batch(range(10), range(10))).nonzero()[0].tolist() == [2, 3, 4, 5, 9]


def test_a_wider_condition_takes_the_place_of_those_that_it_covers() -> None:
    """Clause 9.25."""
    hand = Hand.started(network())
    hand.subscribe("alice", where("price = 7"))
    hand.subscribe("bob")
    told = hand.sent(AdvertisementMessage, "s")[-1]
    assert (told.added, told.removed) == (wanting(EVERYTHING), wanting(where("price = 7")))


def test_a_cancellation_uncovers_in_the_same_advertisement() -> None:
    """Clause 9.26."""
    hand = Hand.started(network())
    hand.subscribe("alice", where("price > 5"))
    hand.subscribe("bob", where("price = 7"))
    hand.subscribe("carol", where("price BETWEEN 6 AND 8"))
    hand.feed("s", UnsubscribeRequested(subscription=SubscriptionId("alice")))
    for broker in ("s", "b"):
        told = hand.sent(AdvertisementMessage, broker)[-1]
        assert told.added == wanting(where("price BETWEEN 6 AND 8"))
        assert told.removed == wanting(where("price > 5"))
    hand.publish(7, 9)
    assert len(hand.got("bob")) == len(hand.got("carol")) == 1


def test_changes_travel_together_while_an_advertisement_waits() -> None:
    """Clause 9.27."""
    routing = Routing(network(), S, 0)
    routing.wanted_here(priced(0), [], Epochs({S: 1}))
    (first,) = sent(routing)
    for price in range(1, 100):
        routing.wanted_here(priced(price), priced(price - 1) if price % 2 else (), Epochs({S: price}))
        assert sent(routing, ms=price) == []
    routing.acknowledged(B, AdvertisementAckMessage(root=ROOT, origin=S, version=first.version))
    (second,) = sent(routing, ms=100)
    assert second.base == first.version
    assert second.added == priced(*range(1, 100, 2))
    assert second.removed == priced(0)
    assert second.epochs == Epochs({S: 99})


def test_a_large_advertisement_travels_in_parts_one_after_the_other() -> None:
    """Clause 9.28."""
    routing = Routing(network({"message_conditions_max": 2}), S, 0)
    routing.wanted_here(priced(*range(5)), [], Epochs({S: 1}))
    told = []
    for number in range(3):
        (message,) = sent(routing)
        assert (message.part, message.total, message.base) == (number, 5, None)
        assert sent(routing, ms=1) == []
        told.append(message)
        ack = AdvertisementAckMessage(
            root=ROOT, origin=S, version=None, staged=(message.version, message.part)
        )
        # An ack that comes twice is no ack of the next part.
        routing.acknowledged(B, ack)
        routing.acknowledged(B, ack)
    assert frozenset().union(*(message.added for message in told)) == priced(*range(5))
    (again,) = sent(routing)
    assert again == told[0], "the last part was acknowledged, and yet not all of them had come"
    routing.acknowledged(B, AdvertisementAckMessage(root=ROOT, origin=S, version=again.version))
    assert sent(routing, ms=1_000) == []


def test_conditions_with_many_bytes_travel_in_several_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clause 9.28."""
    monkeypatch.setattr(routing_module, "PART_BYTES_MAX", 1_000)
    routing = Routing(network(), S, 0)
    long = [where(f"price IN ({', '.join(str(at * 2 + n) for n in range(0, 99, 3))})") for at in range(3)]
    routing.wanted_here(wanting(*long), [], Epochs({S: 1}))
    (message,) = sent(routing)
    assert (len(message.added), message.total) == (1, 3)


def test_parts_count_in_any_order_and_remove_only_when_all_are_there() -> None:
    """Clause 9.29."""
    routing = Routing(in_parts(), B1, 0)
    routing.received(S, part(1, 0, None, 1, 2))
    parts = [
        part(2, 0, 4, 3, base=1),
        part(2, 1, 4, 4, base=1),
        part(2, 2, 4, base=1, removed=priced(1, 2)),
    ]
    filtered = routing.wants(ROOT, CELL_S, TOPIC)
    ack = answer(routing.received(S, parts[2]))
    assert (ack.version, ack.staged) == (1, (2, 2))
    assert filtered.accepts.conditions == {where("price = 1"), where("price = 2")}
    answer(routing.received(S, parts[0]))
    answer(routing.received(S, parts[0]))
    assert filtered.accepts.conditions == {where(f"price = {price}") for price in (1, 2, 3)}
    assert (filtered.epochs, routing.epochs_known(ROOT)) == (Epochs({S: 1}), Epochs({S: 1}))
    ack = answer(routing.received(S, parts[1]))
    assert (ack.version, ack.staged) == (2, None)
    assert filtered.accepts.conditions == {where("price = 3"), where("price = 4")}
    assert (filtered.epochs, routing.epochs_known(ROOT)) == (Epochs({S: 2}), Epochs({S: 2}))


def test_a_whole_set_in_parts_takes_the_place_of_what_was_held() -> None:
    """Clause 9.29."""
    routing = Routing(in_parts(), B1, 0)
    routing.received(S, part(1, 0, None, 1, 2))
    routing.received(S, part(9, 0, 3, 2, 3))
    filtered = routing.wants(ROOT, CELL_S, TOPIC)
    assert filtered.accepts.conditions == {where(f"price = {price}") for price in (1, 2, 3)}
    routing.received(S, part(9, 1, 3, 4))
    assert filtered.accepts.conditions == {where(f"price = {price}") for price in (2, 3, 4)}


def test_parts_that_a_newer_version_overtakes_are_dropped() -> None:
    """Clause 9.29."""
    routing = Routing(in_parts(), B1, 0)
    filtered = routing.wants(ROOT, CELL_S, TOPIC)
    routing.received(S, part(1, 0, 3, 1, 2))
    # Of the version after next, the other broker of the cell has heard all.
    routing.received(B2, part(3, 0, None, 7))
    assert filtered.accepts.conditions == {where("price = 7")}
    ack = answer(routing.received(S, part(1, 1, 3, 3)))
    assert (ack.version, ack.staged) == (3, None)
    routing.received(S, part(4, 0, 2, 8, base=3))
    routing.received(S, part(5, 0, 2, 9, base=3))
    assert filtered.accepts.conditions == {where("price = 7"), where("price = 9")}
    routing.received(S, part(4, 1, 2, 5, base=3))
    assert filtered.accepts.conditions == {where("price = 7"), where("price = 9")}
    routing.received(B2, part(6, 0, None, base=3, removed=priced(7)))
    assert not filtered.accepts, "the base of the parts is gone"


def test_a_broker_that_is_told_in_parts_passes_them_on_at_once() -> None:
    """Clauses 9.28 and 9.29."""
    hand = Hand.started(in_parts())
    hand.loses = lambda sender, to, _message: (sender, to) == ("s", "b2")
    hand.coming.extend(("s", event) for event in subscriptions(7))
    hand.settle()
    hand.wait(2_000)
    wanted = priced(*range(7))
    # b2 never heard of it from s, and p has it of both.
    for broker, cell in (("b1", CELL_S), ("b2", CELL_S), ("p", CELL_B)):
        found = hand.brokers[broker]._routing.wants(ROOT, cell, TOPIC)
        assert wanting(*found.accepts.conditions) == wanted, broker
    assert max(len(m.added) + len(m.removed) for m in hand.sent(AdvertisementMessage)) == 2
    assert all(set(hand.starts(str(n))) == {"nyse"} for n in range(7))


def subscriptions(count: int) -> list[Event]:
    return [
        SubscribeRequested(
            subscription=SubscriptionId(str(n)),
            topic=TOPIC,
            condition=where(f"price = {n}"),
            order=Order.PUBLISHER,
            start=None,
        )
        for n in range(count)
    ]


def test_who_advertises_more_than_anybody_may_want_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clause 9.29."""
    monkeypatch.setattr(routing_module, "WANTS_MAX", 3)
    routing = Routing(in_parts(), B1, 0)
    routing.received(S, part(1, 0, 5, 1, 2))
    with pytest.raises(PeerError, match="E208 's' advertised more than 3 conditions"):
        routing.received(S, part(1, 1, 5, 3, 4))
    assert len(routing.wants(ROOT, CELL_S, TOPIC).accepts.conditions) == 2
    assert routing.wants(ROOT, CELL_S, TOPIC).epochs == NEVER


def test_conditions_that_there_is_no_work_for_are_advertised_and_compared_later() -> None:
    """Clause 9.33."""
    routing = Routing(network({"compare_work_max": 1}), S, 0)
    wide = wanting(where("price >= 0"))
    routing.wanted_here([*wide, *priced(1, 2)], [], Epochs({S: 1}))
    (first,) = sent(routing)
    held = set(first.added)
    assert held == wide | priced(1, 2), "nothing was compared, so all of it is advertised"
    at = 0
    for ended, epoch, wanted in ((frozenset(), 1, wide), (wide, 2, priced(1, 2))):
        routing.wanted_here([], ended, Epochs({S: epoch}))
        for _ in range(10):
            routing.acknowledged(B, AdvertisementAckMessage(root=ROOT, origin=S, version=first.version))
            at += routing_module.SETTLE_MS
            for first in sent(routing, ms=at):
                held = (held - first.removed) | first.added
                assert wide <= held or priced(1, 2) <= held, "what is wanted is advertised at all times"
        assert held == wanted
        assert routing.deadline_ms(frozenset({B})) is None, "there is nothing left to do"
