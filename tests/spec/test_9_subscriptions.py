"""Section 9 of docs/protocol.md: how subscriptions travel, and what a start tick promises."""

import pytest

from gapless.content.condition import EVERYTHING
from gapless.errors import UsageError
from gapless.model.epochs import ALWAYS, Epochs, first_epoch
from gapless.model.ids import BrokerId, CellId, PubendId, SubscriptionId, TopicId
from gapless.model.ticks import TICK_MAX, TICK_MIN, Tick
from gapless.protocol.effects import (
    AppendRecord,
    ConfirmSubscription,
    Effect,
    ReleaseRecord,
    StartRecord,
)
from gapless.protocol.events import (
    LinkUp,
    MessageReceived,
    Now,
    Order,
    SubscribeRequested,
    SubscriberSlow,
    SubscriptionsRestored,
    TimerFired,
    UnsubscribeRequested,
)
from gapless.protocol.messages import (
    AdvertisementAckMessage,
    AdvertisementMessage,
    StartGrantMessage,
    StartRequestMessage,
    Want,
)
from gapless.protocol.network import Network
from gapless.protocol.parameters import Parameters
from gapless.protocol.pubend import Pubend, Recovered
from gapless.protocol.routing import CHANGES_MAX, Routing
from tests.conditions import where
from tests.spec.hand import (
    FIRST,
    PUBEND,
    TOPIC,
    Hand,
    batch,
    messages,
    network,
    publish_at,
    two_pubends,
    wanting,
)

P, B1, B2, S, S2 = BrokerId("p"), BrokerId("b1"), BrokerId("b2"), BrokerId("s"), BrokerId("s2")
ROOT, CELL_B = CellId("P"), CellId("B")
UP = frozenset({P, B1, B2, S})
NOW = Now(ms=0, clock=0)


def two_routers() -> Network:
    """p -- {b1, b2} -- s."""
    return network(cells={"P": ["p"], "B": ["b1", "b2"], "S": ["s"]})


def advertisement(
    origin: BrokerId,
    version: int,
    wants: frozenset[Want],
    *,
    base: int | None = None,
    epochs: Epochs | None = None,
) -> AdvertisementMessage:
    return AdvertisementMessage(
        root=ROOT,
        origin=origin,
        version=version,
        base=base,
        added=wants,
        removed=frozenset(),
        epochs=epochs or Epochs({S: version}),
    )


def sent(routing: Routing, now: Now = NOW, up: frozenset[BrokerId] = UP) -> list[AdvertisementMessage]:
    return [message for _, message in messages(routing.woken(up, now), AdvertisementMessage)]


def pubend(next_tick: Tick = 100, released: Tick = 20) -> Pubend:
    log = Recovered(next_tick=next_tick, released=released)
    return Pubend.recover(PUBEND, Parameters(), log, NOW)


def request(epoch: int = 1, wanted: Tick | None = None) -> StartRequestMessage:
    return StartRequestMessage(pubend=PUBEND, edge=S, epoch=epoch, wanted=wanted)


def granted(source: Pubend, effects: list[Effect]) -> list[tuple[Tick | None, Tick]]:
    """Make records durable; gives the (wanted, start) pairs that are granted then."""
    grants: list[StartGrantMessage] = []
    for effect in effects:
        if isinstance(effect, AppendRecord):
            grants += source.durable(effect.token, NOW)[2]
    return [(grant.wanted, grant.start) for grant in grants]


def test_a_subscription_begins_and_ends_with_a_new_epoch() -> None:
    """Clause 9.1."""
    hand = Hand.started(network())
    hand.subscribe("alice", where("price = 7"))
    hand.feed("s", UnsubscribeRequested(subscription=SubscriptionId("alice")))
    told = hand.sent(AdvertisementMessage, "s")
    assert [m.epochs.get(S) - first_epoch(1) for m in told] == [0, 1, 2]
    assert told[1].added == wanting(where("price = 7"))
    assert told[2].removed == wanting(where("price = 7"))


def test_whether_a_row_is_accepted_depends_on_that_row_alone() -> None:
    """Clause 9.1."""
    hand = Hand.started(network(topics={"trades": {"price": "int?"}}))
    large = 2**53 + 1
    hand.subscribe("alice", where(f"price = {large}", price="int?"))
    hand.subscribe("bob", where(f"NOT (price = {large} OR price < 0.5)", price="int?"))
    hand.publish(large - 1, large)
    hand.publish(large - 1, large, None, 0)
    assert hand.got("alice") == [FIRST + 1, FIRST + 3]
    assert hand.got("bob") == [FIRST, FIRST + 2]


def test_a_condition_that_does_not_fit_its_topic_is_refused() -> None:
    """Clause 9.1."""
    hand = Hand.started(network())
    with pytest.raises(UsageError, match=r"E146 .* topic 'trades' has no column 'cost': it has price"):
        hand.subscribe("alice", where("cost > 5", cost="int"))
    with pytest.raises(UsageError, match=r"E146 .* column 'price' of topic 'trades' is int, .* float"):
        hand.subscribe("alice", where("price > 5", price="float"))


def test_every_broker_of_the_next_cell_hears_what_its_root_can_offer() -> None:
    """Clause 9.2."""
    hand = Hand.started(
        network(
            cells={"P": ["p"], "Q": ["q"], "B": ["b1", "b2"], "S": ["s"]},
            links=["P--B", "Q--B", "B--S"],
            topics={"trades": {"price": "int"}, "bonds": {"price": "int"}},
            pubends={
                "nyse": {"topic": "trades", "broker": "p"},
                "fed": {"topic": "bonds", "broker": "q"},
            },
        )
    )
    hand.subscribe("alice")
    for to in ("b1", "b2"):
        last = {m.root: m for m in hand.sent(AdvertisementMessage, "s", to)}
        assert last[CellId("P")].added == wanting(EVERYTHING)
        assert last[CellId("Q")].added == frozenset()
        assert last[CellId("P")].epochs == last[CellId("Q")].epochs == Epochs({S: first_epoch(1) + 1})


def test_an_advertisement_that_is_not_newer_changes_nothing() -> None:
    """Clause 9.3."""
    routing = Routing(two_routers(), P, 0)
    routing.received(B1, advertisement(B1, 5, wanting(EVERYTHING)))
    for stale in (4, 5):
        effects = routing.received(B1, advertisement(B1, stale, frozenset()))
        assert [m.version for _, m in messages(effects, AdvertisementAckMessage)] == [5]
    assert routing.wants(ROOT, CELL_B, TOPIC).accepts.conditions == {EVERYTHING}


def test_a_change_travels_as_the_difference_to_what_was_acknowledged() -> None:
    """Clause 9.4."""
    routing = Routing(network(), S, 0)
    routing.wanted_here(wanting(where("price = 1")), [], Epochs({S: 1}))
    routing.link_up(BrokerId("b"))
    up = frozenset({BrokerId("b")})
    (whole,) = sent(routing, up=up)
    assert (whole.base, whole.added) == (None, wanting(where("price = 1")))
    ack = AdvertisementAckMessage(root=ROOT, origin=S, version=whole.version)
    routing.acknowledged(BrokerId("b"), ack)
    routing.wanted_here(wanting(where("price = 2")), [], Epochs({S: 2}))
    routing.wanted_here([], wanting(where("price = 1")), Epochs({S: 3}))
    (change,) = sent(routing, up=up)
    assert change.base == whole.version
    assert (change.added, change.removed) == (wanting(where("price = 2")), wanting(where("price = 1")))
    for price in range(3, 4 + CHANGES_MAX):
        gone = wanting(where(f"price = {price - 1}"))
        routing.wanted_here(wanting(where(f"price = {price}")), gone, Epochs({S: price + 1}))
        (far_behind,) = sent(routing, Now(ms=500 * price, clock=0), up)
    assert far_behind.base is None


def test_a_difference_is_sent_as_long_as_it_is_smaller_than_the_whole() -> None:
    """Clause 9.4."""
    routing = Routing(network(), S, 0)
    routing.wanted_here(wanting(*(where(f"price = {price}") for price in range(300))), [], Epochs({S: 1}))
    up = frozenset({BrokerId("b")})
    (whole,) = sent(routing, up=up)
    routing.acknowledged(BrokerId("b"), AdvertisementAckMessage(root=ROOT, origin=S, version=whole.version))
    for price in range(300, 300 + 2 * CHANGES_MAX):
        routing.wanted_here(wanting(where(f"price = {price}")), [], Epochs({S: price}))
        (behind,) = sent(routing, Now(ms=500 * price, clock=0), up)
    assert (behind.base, len(behind.added)) == (whole.version, 2 * CHANGES_MAX)


def test_a_difference_without_its_base_is_not_applied() -> None:
    """Clause 9.4."""
    routing = Routing(two_routers(), P, 0)
    routing.received(B1, advertisement(B1, 5, wanting(EVERYTHING)))
    change = advertisement(B1, 9, wanting(where("price = 1")), base=8)
    (ack,) = [m for _, m in messages(routing.received(B1, change), AdvertisementAckMessage)]
    assert ack.version == 5
    assert routing.wants(ROOT, CELL_B, TOPIC).accepts.conditions == {EVERYTHING}
    change = advertisement(B2, 9, wanting(where("price = 1")), base=8)
    (ack,) = [m for _, m in messages(routing.received(B2, change), AdvertisementAckMessage)]
    assert ack.version is None


def test_a_sender_adapts_to_a_neighbour_that_holds_less_than_it_said() -> None:
    """Clause 9.4."""
    routing = Routing(network(), S, 0)
    b = BrokerId("b")
    for version in (1, 2):
        routing.wanted_here(wanting(where(f"price = {version}")), [], Epochs({S: version}))
        assert [message.version for message in sent(routing, up=frozenset({b}))] == [version]
        routing.acknowledged(b, AdvertisementAckMessage(root=ROOT, origin=S, version=version))
    assert sent(routing, up=frozenset({b})) == []
    # It was restarted, and an answer of its earlier life came late.
    routing.acknowledged(b, AdvertisementAckMessage(root=ROOT, origin=S, version=1))
    (again,) = sent(routing, up=frozenset({b}))
    assert (again.base, again.version, again.added) == (1, 2, wanting(where("price = 2")))


def test_an_advertisement_is_repeated_until_it_is_acknowledged() -> None:
    """Clause 9.5."""
    routing = Routing(network(), S, 0)
    routing.wanted_here(wanting(EVERYTHING), [], Epochs({S: 1}))
    up = frozenset({BrokerId("b")})
    said = [ms for ms in range(0, 2_000, 100) if sent(routing, Now(ms=ms, clock=0), up)]
    assert said == [0, 500, 1_000, 1_500]
    (again,) = sent(routing, Now(ms=2_000, clock=0), up)
    routing.acknowledged(BrokerId("b"), AdvertisementAckMessage(root=ROOT, origin=S, version=again.version))
    assert sent(routing, Now(ms=5_000, clock=0), up) == []


def test_a_neighbour_whose_link_comes_up_is_told_everything() -> None:
    """Clause 9.6."""
    hand = Hand.started(two_routers())
    hand.subscribe("alice")
    (again,) = messages(hand.step("s", LinkUp(neighbour=B1)), AdvertisementMessage)
    assert again[0] == "b1"
    assert (again[1].base, again[1].added) == (None, wanting(EVERYTHING))
    # A broker of the own cell is told what was heard from below.
    told = messages(hand.step("b1", LinkUp(neighbour=B2)), AdvertisementMessage)
    assert [(to, m.origin, m.base) for to, m in told] == [("b2", "s", None)]


def test_brokers_of_a_cell_tell_each_other_what_they_hear_from_below() -> None:
    """Clause 9.7."""
    hand = Hand.started(two_routers())
    hand.loses = lambda sender, to, _message: (sender, to) == ("s", "b2")
    hand.subscribe("alice", where("price = 7"))
    assert [m.origin for m in hand.sent(AdvertisementMessage, "b1", "b2")][-1] == "s"
    # b2 advertises it further up, though it never heard it from s.
    assert hand.sent(AdvertisementMessage, "b2", "p")[-1].added == wanting(where("price = 7"))


def test_a_cell_wants_what_any_of_its_brokers_advertised() -> None:
    """Clause 9.8."""
    routing = Routing(two_routers(), P, 0)
    routing.received(B1, advertisement(B1, 5, wanting(where("price = 1")), epochs=Epochs({S: 5, S2: 1})))
    routing.received(B2, advertisement(B2, 3, wanting(where("price = 2")), epochs=Epochs({S: 3, S2: 2})))
    wants = routing.wants(ROOT, CELL_B, TOPIC)
    assert wants.accepts.mask(batch([1, 2, 3], [1, 2, 3])).tolist() == [True, True, False]
    assert wants.epochs == Epochs({S: 5, S2: 2})
    assert not routing.wants(ROOT, CELL_B, TopicId("bonds")).accepts


def test_a_start_request_is_repeated_until_it_is_granted() -> None:
    """Clause 9.9."""
    hand = Hand.started(network())
    hand.loses = lambda _sender, _to, message: isinstance(message, StartGrantMessage)
    hand.subscribe("alice")
    hand.wait(1_100)
    assert len(hand.sent(StartRequestMessage, "s")) == 3
    hand.loses = lambda *_: False
    hand.wait(500)
    assert hand.starts("alice") == {"nyse": FIRST}
    hand.wait(2_000)
    assert len(hand.sent(StartRequestMessage, "s")) == 4


def test_a_request_waits_for_the_advertisement_it_speaks_of() -> None:
    """Clause 9.10."""
    source = pubend()
    assert source.start_requested(request(epoch=4), known_epoch=3) == ([], [])
    assert source.advertised(Epochs({S: 3})) == ([], [])
    effects, _ = source.advertised(Epochs({S: 4}))
    assert granted(source, effects) == [(None, 100)]


def test_the_start_is_the_next_tick_or_the_wanted_one_that_is_left() -> None:
    """Clause 9.11."""
    for wanted, start in [(None, 100), (50, 50), (5, 20), (20, 20), (300, 300)]:
        source = pubend(next_tick=100, released=20)
        effects, _ = source.start_requested(request(wanted=wanted), known_epoch=1)
        assert granted(source, effects) == [(wanted, start)]


def test_a_start_that_is_not_a_tick_is_refused() -> None:
    """Clause 9.11."""
    hand = Hand.started(network())
    for start in (TICK_MIN - 1, TICK_MAX):
        with pytest.raises(UsageError, match="E145"):
            hand.subscribe("alice", start=start)


def test_a_release_that_is_under_way_is_not_promised_any_more() -> None:
    """Clause 9.11."""
    source = pubend(next_tick=100, released=20)
    (release,) = source.acked(((60, ALWAYS),))
    assert isinstance(release, AppendRecord)
    assert release.record == ReleaseRecord(before=60)
    effects, _ = source.start_requested(request(wanted=30), known_epoch=1)
    assert granted(source, effects) == [(30, 60)]


def test_a_promise_is_logged_before_it_is_made_and_binds_from_then_on() -> None:
    """Clause 9.12."""
    source = pubend(next_tick=100, released=20)
    (append,), grants = source.start_requested(request(epoch=2, wanted=40), known_epoch=2)
    assert isinstance(append, AppendRecord)
    assert append.record == StartRecord(edge=S, epoch=2, wanted=40, start=40)
    assert grants == []
    (release,) = source.acked(((90, Epochs({S: 1})),))
    assert isinstance(release, AppendRecord)
    assert release.record == ReleaseRecord(before=40)
    assert [grant.start for grant in source.durable(append.token, NOW)[2]] == [40]


def test_the_same_request_gets_the_same_answer() -> None:
    """Clause 9.13."""
    source = pubend()
    (append,), _ = source.start_requested(request(), known_epoch=1)
    assert isinstance(append, AppendRecord)
    assert source.start_requested(request(), known_epoch=1) == ([], [])
    source.durable(append.token, NOW)
    publish = publish_at(source, batch([0]).columns, 1, NOW)
    source.durable(max(e.token for e in publish if isinstance(e, AppendRecord)), NOW)
    effects, (grant,) = source.start_requested(request(), known_epoch=1)
    assert (effects, grant.start) == ([], 100)
    assert isinstance(append.record, StartRecord)
    restarted = Pubend.recover(PUBEND, Parameters(), Recovered(next_tick=500, starts=(append.record,)), NOW)
    effects, (grant,) = restarted.start_requested(request(), known_epoch=1)
    assert (effects, grant.start) == ([], 100)


def test_one_grant_is_for_all_who_wait_for_the_same() -> None:
    """Clause 9.14."""
    hand = Hand.started(network())
    hand.loses = lambda _sender, _to, message: isinstance(message, StartRequestMessage)
    for name in ("alice", "bob"):
        hand.subscribe(name)
    hand.subscribe("carol", start=5)
    grant = StartGrantMessage(
        pubend=PUBEND, edge=S, epoch=first_epoch(1) + 3, wanted=None, start=FIRST, until=FIRST
    )
    effects = hand.step("s", _received(grant))
    assert {e.subscription for e in effects if isinstance(e, ConfirmSubscription)} == {"alice", "bob"}
    older = StartGrantMessage(pubend=PUBEND, edge=S, epoch=first_epoch(1), wanted=5, start=5, until=FIRST)
    effects = hand.step("s", _received(older))
    assert not [e for e in effects if isinstance(e, ConfirmSubscription)]


def test_one_grant_is_for_all_who_begin_somewhere() -> None:
    """Clause 9.14."""
    hand = Hand.started(network())
    hand.subscribe("keeper")
    hand.stalled = {"keeper"}
    hand.publish(1, 2, 3, 4)
    hand.loses = lambda _sender, _to, message: isinstance(message, StartGrantMessage)
    hand.subscribe("first", start=FIRST + 3)
    for name, start in (("alice", FIRST + 2), ("bob", FIRST + 1), ("carol", FIRST - 5_000)):
        hand.subscribe(name, start=start)
    hand.loses = lambda *_: False
    hand.wait(2_000)
    asked = {message.wanted for message in hand.sent(StartRequestMessage, "s")}
    assert asked == {None, FIRST + 3, FIRST - 5_000}, "the first alone, and then the others together"
    assert hand.starts("alice") == {"nyse": FIRST + 2}
    assert hand.starts("bob") == {"nyse": FIRST + 1}
    assert hand.starts("carol")["nyse"] <= FIRST
    assert hand.got("alice") == [FIRST + 2, FIRST + 3]
    assert hand.got("bob") == [FIRST + 1, FIRST + 2, FIRST + 3]
    assert hand.got("carol") == [FIRST, FIRST + 1, FIRST + 2, FIRST + 3]


def test_total_order_is_confirmed_when_all_pubends_have_granted() -> None:
    """Clause 9.15."""
    places = {name: {"topic": "trades", "broker": "p"} for name in ("lse", "nyse")}
    hand = Hand.started(network(pubends=places))

    def of_nyse(_sender: str, _to: str, message: object) -> bool:
        return isinstance(message, StartGrantMessage) and message.pubend == "nyse"

    hand.loses = of_nyse
    hand.subscribe("alice")
    hand.subscribe("bob", order=Order.TOTAL)
    assert set(hand.starts("alice")) == {"lse"}
    assert hand.starts("bob") == {}
    hand.loses = lambda *_: False
    hand.wait(600)
    assert set(hand.starts("alice")) == set(hand.starts("bob")) == {"lse", "nyse"}


def test_a_confirmed_subscription_gets_everything_from_its_start() -> None:
    """Clause 9.15."""
    hand = Hand.started(network())
    hand.publish(1, 2, 3)
    hand.subscribe("alice", start=FIRST + 1)
    hand.publish(4)
    hand.wait(1_000)
    assert hand.starts("alice") == {"nyse": FIRST + 1}
    assert hand.got("alice") == [FIRST + 1, FIRST + 2, FIRST + 3]


def test_from_now_on_begins_where_the_others_are() -> None:
    """Clause 9.16."""
    hand = Hand.started(network())
    hand.subscribe("alice")
    grants: list[StartGrantMessage] = []

    def keep(_sender: str, to: str, message: object) -> bool:
        if to == "s" and isinstance(message, StartGrantMessage):
            grants.append(message)
            return True
        return False

    hand.loses = keep
    hand.subscribe("bob")
    hand.publish(1, 2)
    hand.feed("s", _received(grants[-1]))
    assert grants[-1].start == FIRST
    assert hand.starts("bob") == {"nyse": FIRST + 2}


def _received(message: StartGrantMessage) -> MessageReceived:
    return MessageReceived(sender=BrokerId("b"), message=message)


@pytest.mark.parametrize("order", Order)
def test_a_start_is_granted_to_each_pubend_apart(order: Order) -> None:
    """Clause 9.18."""
    hand = Hand.started(two_pubends())
    hand.stalled = {"keeper"}
    hand.subscribe("keeper")
    hand.publish(1, 2, 3, pubend="nyse")
    hand.publish(4, 5, 6, pubend="lse")
    hand.subscribe("alice", order=order, start={PubendId("nyse"): FIRST + 2, PubendId("lse"): FIRST + 1})
    hand.wait(700)
    assert hand.starts("alice") == {"nyse": FIRST + 2, "lse": FIRST + 1}
    assert sorted(hand.events("alice")) == [("lse", FIRST + 1), ("lse", FIRST + 2), ("nyse", FIRST + 2)]


def test_a_pubend_that_is_not_named_starts_from_now_on() -> None:
    """Clause 9.18."""
    hand = Hand.started(two_pubends())
    hand.stalled = {"keeper"}
    hand.subscribe("keeper")
    hand.publish(1, 2, pubend="nyse")
    hand.publish(4, 5, pubend="lse")
    hand.subscribe("alice", start={PubendId("nyse"): FIRST + 1})
    assert hand.starts("alice") == {"nyse": FIRST + 1, "lse": FIRST + 2}
    with pytest.raises(UsageError, match="E145"):
        hand.subscribe("bob", start={PubendId("nyse"): TICK_MAX})


def test_restored_subscriptions_ask_once_and_lose_nothing() -> None:
    """Clause 9.23."""
    hand = Hand.started(network())
    hand.subscribe("alice")
    hand.subscribe("bob")
    hand.stalled = {"alice", "bob"}
    hand.publish(1, 2, 3)
    hand.crash("s")
    hand.stalled.clear()
    hand.publish(4)
    hand.effects.clear()
    hand.start("s")
    requests = tuple(
        SubscribeRequested(
            subscription=SubscriptionId(name), topic=TOPIC, condition=EVERYTHING, start={PUBEND: start}
        )
        for name, start in (("alice", FIRST + 2), ("bob", FIRST + 1))
    )
    # The requests get lost for a while: whatever the edge says meanwhile, it does not ack what they need.
    hand.loses = lambda sender, _to, message: sender == "s" and isinstance(message, StartRequestMessage)
    hand.feed("s", SubscriptionsRestored(requests=requests))
    hand.link_up("b", "s")
    hand.publish(5)
    hand.wait(15_000)
    assert not hand.starts("alice")
    hand.loses = lambda *_: False
    hand.wait(1_000)
    assert {m.wanted for m in hand.sent(StartRequestMessage, "s")} == {FIRST + 1}
    assert hand.starts("alice") == {"nyse": FIRST + 2}
    assert hand.starts("bob") == {"nyse": FIRST + 1}
    assert hand.got("alice") == [], "it is away"
    for name in ("alice", "bob"):
        hand.feed("s", SubscriberSlow(subscription=SubscriptionId(name), positions={}))
    assert hand.got("bob")[:3] == [FIRST + 1, FIRST + 2, FIRST + 3]
    assert hand.got("alice") == hand.got("bob")[1:]
    assert len(hand.got("bob")) == 4


def test_a_restored_subscription_that_ends_holds_nothing() -> None:
    """Clause 9.23."""
    hand = Hand.started(network())
    hand.subscribe("alice")
    hand.stalled = {"alice"}
    hand.publish(1)
    hand.crash("s")
    hand.start("s")
    request = SubscribeRequested(
        subscription=SubscriptionId("alice"), topic=TOPIC, condition=EVERYTHING, start={PUBEND: FIRST}
    )
    hand.feed("s", SubscriptionsRestored(requests=(request,)))
    hand.feed("s", UnsubscribeRequested(subscription=SubscriptionId("alice")))
    hand.link_up("b", "s")
    hand.wait(15_000)
    assert hand.recovered("nyse").released > FIRST


def test_granted_subscriptions_begin_a_few_in_each_step() -> None:
    """Clause 9.34."""
    hand = Hand.started(network({"place_work_max": 1}))
    hand.loses = lambda _sender, _to, message: isinstance(message, StartGrantMessage)
    names = ["alice", "bob", "carol"]
    for name in names:
        hand.subscribe(name)
    hand.loses = lambda *_: False
    hand.ms += Parameters().advertise_repeat_ms
    hand.feed("s", TimerFired())
    asked = len(hand.sent(StartRequestMessage, "s"))
    for count in (1, 2, 3):
        assert [c.subscription for _, c in hand.of(ConfirmSubscription)] == names[:count]
        hand.wait(1)
    assert len(hand.sent(StartRequestMessage, "s")) == asked
    hand.publish(1)
    assert hand.got("alice") == hand.got("bob") == hand.got("carol")
    assert len(hand.got("alice")) == 1


def test_a_granted_subscription_that_has_not_begun_holds_what_it_needs_and_may_end() -> None:
    """Clause 9.34."""
    hand = Hand.started(network({"place_work_max": 1}))
    hand.loses = lambda _sender, _to, message: isinstance(message, StartGrantMessage)
    for name in ("alice", "bob", "carol"):
        hand.subscribe(name)
    hand.loses = lambda *_: False
    hand.ms += Parameters().advertise_repeat_ms
    hand.feed("s", TimerFired())
    [first] = [c.subscription for _, c in hand.of(ConfirmSubscription)]
    assert first == "alice", "the timer has not fired again yet"
    hand.publish(1)
    hand.feed("s", UnsubscribeRequested(subscription=SubscriptionId("bob")))
    hand.wait(10)
    assert {c.subscription for _, c in hand.of(ConfirmSubscription)} == {"alice", "carol"}
    hand.publish(2)
    assert hand.got("alice") == [*hand.got("alice")[:1], *hand.got("carol")[-1:]]
    assert hand.starts("carol")["nyse"] <= hand.got("carol")[-1]
    assert hand.got("bob") == []
