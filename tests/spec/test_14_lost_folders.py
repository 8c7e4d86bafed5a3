"""Section 13 of docs/protocol.md: logs that begin anew, and brokers that fall behind themselves."""

from dataclasses import replace

import pytest

from gapless.content.condition import EVERYTHING
from gapless.errors import SupersededError
from gapless.model.epochs import Epochs, first_epoch
from gapless.model.ids import BrokerId, PubendId, SubscriptionId, TopicId
from gapless.model.logs import LogLife
from gapless.model.schema import Schema
from gapless.model.ticks import TICK_MIN
from gapless.protocol.creations import Creation
from gapless.protocol.effects import BatchRecord, ConfirmSubscription, SendMessage
from gapless.protocol.events import (
    LinkUp,
    MessageReceived,
    Now,
    Order,
    SubscribeRequested,
    SubscriberSlow,
    SubscriptionsRestored,
)
from gapless.protocol.messages import (
    AckMessage,
    KnowledgeMessage,
    LogKnownMessage,
    StartGrantMessage,
    StartRequestMessage,
)
from gapless.protocol.path import untold
from gapless.protocol.pubend import Pubend, Recovered
from tests.spec.hand import FIRST, PUBEND, TOPIC, Hand, network, two_pubends

P, B, S = BrokerId("p"), BrokerId("b"), BrokerId("s")
OLD = ("old", 1)


def named(**parameters: int) -> Hand:
    """The chain p--b--s, whose log has an id."""
    return Hand.started(network(parameters), log_ids={PUBEND: OLD})


def begin_anew(hand: Hand, log_id: str = "new", *, broker: str = "p", pubend: str = PUBEND) -> int:
    """A repository comes back with an empty disk; gives the tick at which its log began."""
    hand.crash(broker)
    hand.lose_log(pubend, log_id)
    hand.start(broker)
    hand.link_up(broker, "b")
    hand.settle()
    return hand.log_ids[pubend][1]


def confirmations(hand: Hand, name: str, pubend: str = PUBEND) -> list[ConfirmSubscription]:
    return [c for _, c in hand.of(ConfirmSubscription) if (c.subscription, c.pubend) == (name, pubend)]


def knowledge(log: LogLife) -> MessageReceived:
    message = KnowledgeMessage(pubend=PUBEND, runs=(), batch=None, first_time=False, final_before=0, log=log)
    return MessageReceived(sender=B, message=message)


def test_knowledge_grants_and_acks_name_their_log() -> None:
    """Clause 14.2."""
    hand = named(ack_delay_ms=1)
    hand.subscribe("alice")
    hand.publish(1)
    hand.wait(100)
    for message in (*hand.sent(KnowledgeMessage, "b", "s"), *hand.sent(StartGrantMessage)):
        assert (message.log.id, message.log.life, message.log.began) == ("old", 1, 1)
    assert {ack.log for ack in hand.sent(AckMessage)} == {"old"}


def test_a_later_log_takes_the_place_of_the_one_that_is_known() -> None:
    """Clauses 14.3 and 14.9."""
    hand = named()
    hand.subscribe("alice")
    hand.publish(1)
    hand.wait(20)
    began = begin_anew(hand)
    hand.wait(1_000)
    hand.publish(2)
    # Of the old log nothing is known any more, and the events of the new one come.
    assert len(hand.got("alice")) == 2
    gap = confirmations(hand, "alice")[-1]
    assert gap.lost_from is not None
    assert gap.lost_from <= began <= gap.start
    assert (gap.log, gap.began) == ("new", began)


def test_a_broker_tells_which_logs_there_are_when_a_link_comes_up() -> None:
    """Clause 14.3."""
    hand = named()
    effects = hand.step("b", LinkUp(neighbour=S))
    told = [each.message for each in effects if isinstance(each, SendMessage) and each.to == S]
    assert [each.log.id for each in told if isinstance(each, KnowledgeMessage)] == ["old"]


def created_topic(hand: Hand) -> Creation:
    """A topic that was created at p, with a subscriber; its log is about to be lost."""
    schema = Schema.parse(TopicId("bonds"), {"price": "int"})
    bonds = Creation(schema=schema, pubend=PubendId("bonds-p"), broker=P, made=5, retention="")
    hand.log_ids["bonds-p"] = OLD
    hand.create("p", bonds)
    hand.subscribe("bob", topic="bonds")
    hand.publish(1, pubend="bonds-p")
    hand.wait(1_000)
    return bonds


def test_a_broker_that_hears_of_its_topic_again_tells_which_log_there_is() -> None:
    """Clause 14.3."""
    hand = named()
    created_topic(hand)
    # With its folder p has lost the news of the creation, too, and hears of it when the link is up.
    hand.created["p"].clear()
    began = begin_anew(hand, pubend="bonds-p")
    hand.wait(1_000)
    gap = confirmations(hand, "bob", "bonds-p")[-1]
    assert (gap.log, gap.began) == ("new", began)
    assert gap.lost_from is not None


def test_a_broker_that_hears_of_a_topic_asks_which_log_there_is() -> None:
    """Clause 14.3."""
    hand = named()
    bonds = created_topic(hand)
    for broker in ("p", "b"):
        hand.crash(broker)
    hand.lose_log("bonds-p", "new")
    hand.created["b"].clear()
    hand.start("p")
    hand.start("b")
    hand.link_up("b", "s")
    hand.link_up("p", "b")
    hand.settle()
    assert bonds in hand.brokers["b"].network.created
    hand.wait(1_000)
    gap = confirmations(hand, "bob", "bonds-p")[-1]
    assert gap.log == "new"
    assert gap.lost_from is not None


def test_an_ack_of_another_log_is_ignored() -> None:
    """Clause 14.4."""
    hand = named()
    hand.subscribe("alice")
    ack = AckMessage(pubend=PUBEND, runs=((FIRST + 5_000, Epochs({S: first_epoch(9)})),), log="other")
    effects = hand.step("b", MessageReceived(sender=S, message=ack))
    told = [each.message for each in effects if isinstance(each, SendMessage)]
    assert [each.log.id for each in told if isinstance(each, KnowledgeMessage)] == ["old"]
    assert not [each for each in told if isinstance(each, AckMessage)]


def test_what_an_earlier_life_says_is_not_used_and_upstream_is_told() -> None:
    """Clause 14.5."""
    hand = named(advertise_repeat_ms=100)
    hand.subscribe("alice")
    begin_anew(hand)
    earlier = LogLife("old", 1, 0, 0, 1)
    effects = hand.step("s", knowledge(earlier))
    [(to, known)] = [(each.to, each.message) for each in effects if isinstance(each, SendMessage)]
    assert isinstance(known, LogKnownMessage)
    assert (to, known.log.id, known.log.life) == (B, "new", 2)
    # Once is enough for a while.
    assert not [each for each in hand.step("s", knowledge(earlier)) if isinstance(each, SendMessage)]


def test_a_router_takes_up_a_later_log_that_it_hears_of_from_below() -> None:
    """Clause 14.5."""
    hand = named()
    known = LogKnownMessage(pubend=PUBEND, log=LogLife("later", 5, 0, 0, 3), known=7, events=7)
    effects = hand.step("b", MessageReceived(sender=S, message=known))
    sent = [(each.to, each.message) for each in effects if isinstance(each, SendMessage)]
    assert (P, known) in sent
    assert [m.log.id for to, m in sent if to == S and isinstance(m, KnowledgeMessage)] == ["later"]


def test_a_later_life_that_knows_less_is_an_older_copy() -> None:
    """Clause 14.6."""
    hand = named()
    hand.subscribe("alice")
    hand.publish(1)
    [tick] = hand.got("alice")
    for floor, events in ((tick, tick + 1), (tick + 9_999_999, tick)):
        copy = LogLife("old", 4, floor, events, 1)
        effects = hand.step("s", knowledge(copy))
        hand.ms += 1_000
        [known] = [
            m.message
            for m in effects
            if isinstance(m, SendMessage) and isinstance(m.message, LogKnownMessage)
        ]
        assert known.events == tick + 1
    assert not [
        m
        for m in hand.step("s", knowledge(LogLife("old", 4, tick + 9_999_999, tick + 1, 1)))
        if isinstance(m, SendMessage) and isinstance(m.message, LogKnownMessage)
    ]


def test_what_only_acks_speak_of_makes_no_log_an_older_copy() -> None:
    """Clause 14.6. What went past a router may be of a life that it has not heard of."""
    hand = named()
    hand.subscribe("alice")
    hand.wait(1_000)
    heard = hand.brokers["b"].inspect().paths[PUBEND].istream.heard
    ack = AckMessage(pubend=PUBEND, runs=((heard + 50_000, Epochs({S: first_epoch(9)})),), log="old")
    hand.ms += 1_000
    hand.step("b", MessageReceived(sender=S, message=ack))
    assert hand.brokers["b"].inspect().paths[PUBEND].istream.frontier == heard + 50_000
    later = replace(knowledge(LogLife("old", 4, heard, heard, 1)), sender=P)
    told = [each.message for each in hand.step("b", later) if isinstance(each, SendMessage)]
    assert not [each for each in told if isinstance(each, LogKnownMessage)]
    assert [each.log.life for each in told if isinstance(each, KnowledgeMessage)] == [4]


@pytest.mark.parametrize(
    ("log", "known", "older_copy"),
    [
        (LogLife("old", 7, 0, 0, 1), 0, PUBEND),
        (LogLife("other", 7, 0, 0, 1), 0, None),
        (LogLife("other", 1, 0, 0, 1), 0, None),
        (LogLife("old", 0, 0, 0, 1), FIRST + 99_999_999, PUBEND),
    ],
)
def test_a_pubend_whose_log_is_contradicted_ends(log: LogLife, known: int, older_copy: str | None) -> None:
    """Clause 14.7."""
    hand = named()
    message = LogKnownMessage(pubend=PUBEND, log=log, known=known, events=TICK_MIN)
    with pytest.raises(SupersededError, match="E311") as caught:
        hand.brokers["p"].step(MessageReceived(sender=B, message=message), Now(ms=0, clock=FIRST))
    assert caught.value.older_copy == older_copy
    assert caught.value.incarnation == max(log.life, 1)


def last_event(hand: Hand) -> int:
    return max(each.batch.last for each in hand.logs[PUBEND] if isinstance(each, BatchRecord))


def roll_back(hand: Hand, clock_back: int) -> tuple[int, int]:
    """A repository comes back with an older copy of its log, which is contradicted, and its clock set back.

    Gives the tick of the event that the copy lacks, and where the log begins anew.
    """
    hand.clock += clock_back
    hand.publish(1)
    hand.wait(20)
    copy = list(hand.logs[PUBEND])
    hand.wait(2_000)
    hand.crash("s")
    hand.publish(2)
    lost = last_event(hand)
    hand.crash("p")
    hand.logs[PUBEND] = copy
    hand.clock -= clock_back
    hand.wait(500)
    hand.start("p")
    hand.link_up("p", "b")
    with pytest.raises(SupersededError) as caught:
        hand.settle()
    hand.coming.clear()
    hand.crash("p")
    hand.log_ids[PUBEND] = ("new", caught.value.began)
    hand.lost_before[PUBEND] = caught.value.lost_before
    for one, other in (("p", "b"), ("s", "b")):
        hand.start(one)
        hand.link_up(one, other)
    hand.settle()
    return lost, caught.value.began


@pytest.mark.parametrize("clock_back", [0, 60_000_000])
def test_the_gap_of_an_older_copy_holds_all_that_it_lacks(clock_back: int) -> None:
    """Clauses 14.7 and 14.8. How far a subscriber had come says nothing about what is lost above."""
    hand = named()
    hand.subscribe("alice")
    hand.publish(0)
    position = hand.got("alice")[-1] + 1
    lost, began = roll_back(hand, clock_back)
    assert position < began <= lost
    hand.feed("s", SubscriptionsRestored(requests=(returning({PUBEND: "old"}, {PUBEND: position}),)))
    hand.wait(1_000)
    gap = confirmations(hand, "alice")[-1]
    assert gap.lost_from == position
    assert lost < gap.start
    # Nothing that the new log has is in the gap.
    hand.publish(3)
    assert last_event(hand) >= gap.start


def test_a_position_among_what_an_older_copy_lacks_is_in_the_log_that_is_lost() -> None:
    """Clause 14.8. A program that kept its positions need not know their logs."""
    hand = named()
    hand.subscribe("alice")
    lost, began = roll_back(hand, 0)
    end = hand.lost_before[PUBEND]
    # What the copy has is there for whoever asks for it.
    asked = [("bob", began, began), ("carol", began + 1, end), ("dave", lost, end), ("erin", end, end)]
    for name, wanted, start in asked:
        hand.feed("s", returning({}, {PUBEND: wanted}, name=name))
        hand.wait(1_000)
        assert confirmations(hand, name)[-1].start == start


@pytest.mark.parametrize("ahead_ms", [3_000, 10**9])
def test_what_others_know_of_an_older_copy_is_lost_as_far_as_ticks_may_follow(ahead_ms: int) -> None:
    """Clause 14.7."""
    hand = named(ticks_ahead_ms=5_000)
    known = FIRST + ahead_ms * 1_000
    message = LogKnownMessage(pubend=PUBEND, log=LogLife("old", 0, 0, 0, 1), known=known, events=TICK_MIN)
    with pytest.raises(SupersededError) as caught:
        hand.step("p", MessageReceived(sender=B, message=message))
    assert caught.value.lost_before == min(known, FIRST + 5_000_000)


def test_the_next_life_seems_to_know_no_more_of_a_log_than_the_one_that_told_nothing() -> None:
    """Clause 14.7. Or what it reserved would hide that its other logs are older copies, too."""
    hand = named()
    paths = hand.brokers["p"].inspect().paths
    source = paths[PUBEND].pubend
    assert source is not None
    assert source.reserved > source.log.floor
    assert untold(paths) == {PUBEND: source.log.floor}
    log = Recovered(reserved=source.reserved, log_id="old", untold_from=source.log.floor)
    again = Pubend.recover(PUBEND, hand.network.parameters, log, Now(ms=0, clock=FIRST), 2)
    assert (again.log.floor, again.next_tick) == (source.log.floor, source.reserved)
    hand.subscribe("alice")
    hand.publish(1)
    assert hand.got("alice")
    assert untold(paths) == {}


def test_a_pubend_does_not_mind_who_knows_less_than_it_does() -> None:
    """Clause 14.7."""
    hand = named()
    for log in (LogLife("older", 0, 0, 0, 1), LogLife("old", 0, 0, 0, 1)):
        message = LogKnownMessage(pubend=PUBEND, log=log, known=TICK_MIN, events=TICK_MIN)
        hand.step("p", MessageReceived(sender=B, message=message))
    # One that knew more would end this life of the broker.
    hand.subscribe("alice")
    hand.publish(1)
    assert len(hand.got("alice")) == 1


def test_all_subscriptions_ask_a_new_log_for_a_start() -> None:
    """Clause 14.8."""
    hand = named()
    hand.subscribe("alice")
    hand.subscribe("bob", start=FIRST)
    asked = len(hand.sent(StartRequestMessage, "b", "p"))
    hand.wait(5)
    began = begin_anew(hand)
    hand.wait(1_000)
    assert len(hand.sent(StartRequestMessage, "b", "p")) > asked
    for name in ("alice", "bob"):
        first, again = confirmations(hand, name)
        assert first.lost_from is None
        assert again.start >= began
        assert again.lost_from is not None
        assert again.slot == first.slot


def test_a_restored_subscription_is_told_of_a_log_that_was_lost_while_it_was_away() -> None:
    """Clause 14.9."""
    for logs, is_told in (({PUBEND: "gone"}, True), ({PUBEND: "old"}, False), ({}, False)):
        hand = named()
        request = SubscribeRequested(
            subscription=SubscriptionId("alice"),
            topic=TOPIC,
            condition=EVERYTHING,
            start={PUBEND: FIRST},
            logs=logs,
        )
        hand.feed("s", SubscriptionsRestored(requests=(request,)))
        hand.wait(1_000)
        [confirmed] = confirmations(hand, "alice")
        assert (confirmed.lost_from is not None) == is_told


def test_total_order_goes_on_when_one_log_of_two_is_lost() -> None:
    """Clause 14.10."""
    hand = Hand.started(two_pubends(), log_ids={PUBEND: OLD, "lse": ("lse", 1)})
    hand.subscribe("alice", order=Order.TOTAL)
    hand.publish(1)
    hand.publish(2, pubend="lse")
    hand.wait(3_000)
    assert len(hand.got("alice")) == 2
    begin_anew(hand)
    hand.publish(3, pubend="lse")
    hand.wait(3_000)
    hand.publish(4)
    hand.wait(3_000)
    events = hand.events("alice")
    assert [pubend for pubend, _ in events].count("lse") == 2
    assert [pubend for pubend, _ in events].count(PUBEND) == 2
    assert [tick for _, tick in events] == sorted(tick for _, tick in events)
    assert [c.lost_from is None for c in confirmations(hand, "alice", "lse")] == [True, True]


def test_a_new_log_goes_on_above_what_was_had_of_the_old_one() -> None:
    """Clause 14.11."""
    hand = named()
    hand.subscribe("alice")
    hand.clock += 60_000_000
    hand.publish(1)
    [tick] = hand.got("alice")
    # The clock is set right while the repository is down, without its disk.
    hand.clock -= 60_000_000
    began = begin_anew(hand)
    hand.wait(1_000)
    hand.publish(2)
    gap = confirmations(hand, "alice")[-1]
    assert gap.lost_from == began < tick
    assert hand.got("alice")[-1] > tick


def returning(
    logs: dict[str, str], start: dict[str, int], order: Order = Order.PUBLISHER, name: str = "alice"
) -> SubscribeRequested:
    """A client comes back with positions, and says which logs they are in."""
    return SubscribeRequested(
        subscription=SubscriptionId(name),
        topic=TOPIC,
        condition=EVERYTHING,
        order=order,
        start={PubendId(pubend): at for pubend, at in start.items()},
        logs={PubendId(pubend): log for pubend, log in logs.items()},
    )


def test_a_new_log_goes_on_above_what_a_client_had_that_comes_back() -> None:
    """Clause 14.11."""
    hand = named()
    hand.feed("s", returning({PUBEND: "gone"}, {PUBEND: FIRST + 300_000}))
    hand.publish(1)
    hand.wait(1_000)
    [confirmed] = confirmations(hand, "alice")
    assert (confirmed.lost_from, confirmed.start) == (1, FIRST + 300_001)
    assert [tick > FIRST + 300_000 for tick in hand.got("alice")] == [True]


def test_a_client_cannot_push_ticks_further_ahead_than_by_publishing() -> None:
    """Clause 14.11."""
    hand = named(publish_ahead_ms=1_000)
    hand.feed("s", returning({PUBEND: "gone"}, {PUBEND: FIRST + 3_600_000_000}, name="mallory"))
    hand.subscribe("alice")
    hand.publish(1)
    hand.wait(1_000)
    [tick] = hand.got("alice")
    assert tick <= FIRST + 1_000_001
    # It has said that it had all of this.
    assert hand.got("mallory") == []
    # An edge that knows the position itself is believed.
    known = returning({PUBEND: "gone"}, {PUBEND: FIRST + 60_000_000}, name="carol")
    hand.feed("s", SubscriptionsRestored(requests=(known,)))
    hand.publish(2)
    hand.wait(1_000)
    assert hand.sent(StartRequestMessage)[-1].beyond == FIRST + 60_000_000


def test_in_total_order_new_logs_go_on_above_what_was_had_of_any_old_one() -> None:
    """Clauses 14.8 and 14.11."""
    hand = Hand.started(two_pubends(), log_ids={PUBEND: OLD, "lse": ("lse", 1)})
    hand.publish(1)
    high = FIRST + 500_000
    logs = {PUBEND: "gone", "lse": "gone too"}
    hand.feed("s", returning(logs, {PUBEND: FIRST - 5, "lse": high}, Order.TOTAL))
    asked = {each.pubend: each.beyond for each in hand.sent(StartRequestMessage)}
    assert asked == {PUBEND: high, "lse": high}
    hand.publish(2)
    hand.publish(3, pubend="lse")
    hand.wait(3_000)
    # What was published before it came lies below what it had of the other pubend.
    assert [c.start >= high for p in (PUBEND, "lse") for c in confirmations(hand, "alice", p)] == [True] * 2
    events = hand.events("alice")
    assert {pubend for pubend, _ in events} == {PUBEND, "lse"}
    assert all(tick >= high for _, tick in events)


def test_a_gap_grows_when_events_of_the_old_log_are_thrown_away() -> None:
    """Clause 14.12."""
    hand = named()
    hand.stalled.add("alice")
    hand.subscribe("alice")
    hand.publish(1)
    [tick] = hand.got("alice")
    hand.wait(5)
    begin_anew(hand)
    hand.wait(1_000)
    before = confirmations(hand, "alice")[-1]
    assert before.lost_from is not None
    assert before.lost_from > tick
    slow = SubscriberSlow(subscription=SubscriptionId("alice"), positions={PubendId(PUBEND): tick})
    hand.feed("s", slow)
    after = confirmations(hand, "alice")[-1]
    assert after == replace(before, lost_from=tick)
