"""Section 9 of docs/protocol.md: how the condition of a subscription changes, and from which tick on."""

import pytest

from gapless.errors import UsageError
from gapless.model.epochs import first_epoch
from gapless.model.ids import BrokerId, PubendId, SubscriptionId
from gapless.protocol.edge import PHASES_MAX
from gapless.protocol.effects import Deliver
from gapless.protocol.events import (
    DeliveryTaken,
    MessageReceived,
    Order,
    SubscribeRequested,
    SubscriberSlow,
    UnsubscribeRequested,
)
from gapless.protocol.messages import (
    AdvertisementMessage,
    KnowledgeMessage,
    StartGrantMessage,
    StartRequestMessage,
)
from tests.conditions import where
from tests.spec.hand import FIRST, PUBEND, TOPIC, Hand, network, two_pubends, wanting

S = BrokerId("s")


def test_both_conditions_are_wanted_while_a_change_is_under_way() -> None:
    """Clause 9.19."""
    hand = Hand.started(network())
    hand.stalled = {"alice"}
    hand.subscribe("alice", where("price < 5"))
    hand.publish(1)
    hand.change("alice", where("price > 5"))
    told = hand.sent(AdvertisementMessage, "s")[-1]
    assert told.epochs.get(S) == first_epoch(1) + 2
    assert told.added == wanting(where("price > 5"))
    assert not told.removed
    (asked,) = hand.sent(StartRequestMessage, "s")[1:]
    assert (asked.epoch, asked.wanted) == (first_epoch(1) + 2, None)
    assert hand.got("alice") == [FIRST], "it keeps its slot, and gets nothing again"


def test_a_change_is_confirmed_with_the_tick_from_which_on_it_decides() -> None:
    """Clause 9.20."""
    hand = Hand.started(network())
    hand.subscribe("alice", where("price < 5"))
    hand.publish(1, 6)
    hand.change("alice", where("price > 5"))
    hand.publish(2, 7)
    assert hand.changes("alice") == [("nyse", FIRST + 2)]
    assert hand.got("alice") == [FIRST, FIRST + 3]


def test_in_total_order_a_change_has_one_tick_for_all_pubends() -> None:
    """Clause 9.20."""
    hand = Hand.started(two_pubends())
    hand.subscribe("alice", where("price < 5"), order=Order.TOTAL)
    hand.publish(1, 6, 1, 6, pubend="nyse")
    hand.publish(2, 7, 2, pubend="lse")
    hand.change("alice", where("price > 5"))
    assert hand.changes("alice") == [("lse", FIRST + 4), ("nyse", FIRST + 4)]
    hand.publish(2, 7, pubend="lse")
    hand.publish(3, 8, pubend="nyse")
    hand.wait(2_000)
    before = [("lse", FIRST), ("nyse", FIRST), ("lse", FIRST + 2), ("nyse", FIRST + 2)]
    assert hand.events("alice") == [*before, ("lse", FIRST + 5), ("nyse", FIRST + 5)]


def test_silence_of_the_old_filter_is_unknown_beyond_a_change() -> None:
    """Clause 9.20."""
    hand = Hand.started(network())
    hand.subscribe("alice", where("price < 5"))
    # The router never hears of the change: the silence that its filter makes says nothing of it.
    hand.loses = lambda sender, _to, message: sender == "s" and isinstance(message, AdvertisementMessage)
    grant = StartGrantMessage(
        pubend=PUBEND, edge=S, epoch=first_epoch(1) + 2, wanted=None, start=FIRST, until=FIRST
    )
    hand.change("alice", where("price > 5"))
    hand.feed("s", MessageReceived(sender=BrokerId("b"), message=grant))
    hand.publish(6, 1)
    (told,) = hand.sent(KnowledgeMessage, "b")
    assert told.runs[-1][2].get(S) == first_epoch(1) + 1
    assert hand.brokers["s"]._edge is not None
    assert hand.brokers["s"]._edge.positions(PUBEND)[0] == FIRST, "it waits for silence of the new epoch"


def test_the_old_condition_goes_when_all_before_the_change_is_taken() -> None:
    """Clause 9.21."""
    hand = Hand.started(two_pubends())
    hand.stalled = {"alice"}
    hand.subscribe("alice", where("price < 5"))
    hand.publish(1, pubend="nyse")
    hand.wait(2)
    hand.change("alice", where("price > 5"))
    hand.wait(2_000)
    assert not [m for m in hand.sent(AdvertisementMessage, "s") if m.removed], "it has not taken the first"
    ((_, deliver),) = hand.of(Deliver)
    hand.feed("s", DeliveryTaken(serial=deliver.serial))
    hand.wait(10)
    told = hand.sent(AdvertisementMessage, "s")[-1]
    assert told.removed == wanting(where("price < 5")), "although no pubend had an event since"
    assert told.epochs.get(S) == first_epoch(1) + 3


def test_a_laggard_with_nothing_to_take_releases_its_old_condition() -> None:
    """Clause 9.21."""
    hand = Hand.started(two_pubends())
    hand.publish(1, 1, 1, pubend="nyse")
    hand.subscribe("alice", where("price < 5"), order=Order.TOTAL)
    starts = hand.starts("alice")
    assert starts["nyse"] > starts["lse"], "so she chases the horizon of her group"
    hand.change("alice", where("price > 5"))
    hand.wait(10)
    told = hand.sent(AdvertisementMessage, "s")[-1]
    assert told.removed == wanting(where("price < 5")), "although no pubend had an event since"
    hand.publish(2, 7, pubend="lse")
    hand.wait(2_000)
    assert [pubend for pubend, _ in hand.events("alice")] == ["lse"]


def test_changes_are_confirmed_in_order_and_bounded() -> None:
    """Clause 9.22."""
    hand = Hand.started(network())
    hand.stalled = {"alice"}
    hand.subscribe("alice", where("price < 5"))
    hand.publish(1)
    for price in range(1, PHASES_MAX):
        hand.change("alice", where(f"price = {price}"))
        hand.publish(price, price + 1)
    assert hand.changes("alice") == [("nyse", FIRST + 1 + 2 * at) for at in range(PHASES_MAX - 1)]
    assert hand.got("alice") == [FIRST, *(FIRST + 1 + 2 * at for at in range(PHASES_MAX - 1))]
    with pytest.raises(UsageError, match=r"E139 .* 7 changes of its condition under way: try again when"):
        hand.change("alice", where("price = 9"))
    with pytest.raises(UsageError, match="E146"):
        hand.change("alice", where("cost > 5", cost="int"))
    with pytest.raises(UsageError, match="E142"):
        hand.change("nobody", where("price = 9"))


def test_a_change_of_what_is_not_confirmed_yet_waits_its_turn() -> None:
    """Clause 9.22."""
    hand = Hand.started(network())
    hand.loses = lambda _sender, _to, message: isinstance(message, StartGrantMessage)
    hand.subscribe("alice", where("price < 5"))
    hand.change("alice", where("price > 5"))
    hand.loses = lambda *_: False
    hand.wait(1_000)
    start = hand.starts("alice")["nyse"]
    assert hand.changes("alice") == [("nyse", start)], "one request was enough for both"
    hand.publish(1, 6)
    ((_, deliver),) = hand.of(Deliver)
    assert deliver.batch.array("price")[deliver.rows].tolist() == [6]


def test_after_it_has_ended_no_change_is_confirmed() -> None:
    """Clause 9.22."""
    hand = Hand.started(network())
    hand.subscribe("alice", where("price < 5"))
    hand.loses = lambda _sender, _to, message: isinstance(message, StartGrantMessage)
    hand.change("alice", where("price > 5"))
    hand.feed("s", UnsubscribeRequested(subscription=SubscriptionId("alice")))
    hand.loses = lambda *_: False
    hand.publish(1, 6)
    hand.wait(1_000)
    assert hand.changes("alice") == []
    assert hand.got("alice") == []
    both = wanting(where("price < 5"), where("price > 5"))
    assert hand.sent(AdvertisementMessage, "s")[-1].removed == both


def test_a_change_survives_a_restart_of_the_edge_at_the_same_tick() -> None:
    """Clause 9.24."""
    hand = Hand.started(two_pubends())
    hand.stalled = {"alice"}
    hand.subscribe("alice", where("price < 5"))
    hand.publish(1, 6, pubend="nyse")
    hand.publish(1, 6, pubend="lse")
    hand.change("alice", where("price > 5"))
    hand.publish(2, 7, pubend="nyse")
    since = dict(hand.changes("alice"))
    hand.crash("s")
    hand.effects.clear()
    hand.stalled.clear()
    hand.start("s")
    hand.link_up("b", "s")
    again = SubscribeRequested(
        subscription=SubscriptionId("alice"),
        topic=TOPIC,
        condition=where("price < 5"),
        start={PubendId("nyse"): FIRST, PubendId("lse"): FIRST},
        # Of nyse it was confirmed; of lse nobody had heard.
        changes=((where("price > 5"), {PubendId("nyse"): since["nyse"]}),),
    )
    hand.feed("s", again)
    hand.wait(1_000)
    assert [pubend for pubend, _ in hand.changes("alice")] == ["lse"]
    assert sorted(hand.events("alice")) == [("lse", FIRST), ("nyse", FIRST), ("nyse", FIRST + 3)]


def test_a_condition_that_is_over_never_decides_again_however_far_back_the_last_event_is() -> None:
    """Clause 9.21."""
    hand = Hand.started(network())
    hand.subscribe("alice", where("price < 5"))
    hand.publish(1)
    hand.wait(10)
    hand.publish(7)
    hand.wait(10)
    hand.change("alice", where("price > 5"))
    hand.wait(10)
    ((_, tick),) = hand.events("alice")
    # Her host knows of the last event that she has acknowledged, and of no silence since.
    slow = SubscriberSlow(subscription=SubscriptionId("alice"), positions={PUBEND: tick + 1})
    hand.feed("s", slow)
    hand.publish(8)
    hand.wait(2_000)
    assert len(hand.events("alice")) == 2, "7 came while she wanted less than 5"


def test_a_condition_that_is_over_at_one_pubend_never_decides_there_again() -> None:
    """Clause 9.21."""
    hand = Hand.started(two_pubends())
    hand.subscribe("alice", where("price < 5"))
    hand.publish(1, pubend="nyse")
    hand.wait(10)
    # Bob holds the log of nyse.
    hand.subscribe("bob", where("price = 7"), order=Order.TOTAL)
    hand.stalled = {"alice", "bob"}
    hand.publish(7, pubend="nyse")
    hand.publish(2, pubend="lse")
    hand.wait(10)
    hand.change("alice", where("price > 5"))
    hand.wait(2_000)
    (_, first), (_, waiting) = hand.events("alice")
    positions = {PubendId("nyse"): first + 1, PubendId("lse"): waiting}
    hand.stalled = {"bob"}
    # She has everything below the change at nyse, and takes the rest at lse before nyse is known here again.
    hand.brokers["s"].inspect().paths[PUBEND].istream.stream.forget(first + 1, FIRST + 1_000_000)
    hand.loses = lambda _, to, m: to == "s" and isinstance(m, KnowledgeMessage) and m.pubend == "nyse"
    hand.feed("s", SubscriberSlow(subscription=SubscriptionId("alice"), positions=positions))
    hand.wait(2_000)
    assert hand.sent(AdvertisementMessage, "s")[-1].removed == wanting(where("price < 5"))
    hand.loses = lambda *_: False
    hand.wait(60_000)
    hand.publish(8, pubend="nyse")
    hand.wait(1_000)
    assert [pubend for pubend, _ in hand.events("alice")] == ["nyse", "lse", "lse", "nyse"]
    assert hand.events("alice")[-1][1] > first + 60_000_000, "7 came while she wanted less than 5"
