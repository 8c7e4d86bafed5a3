"""Section 5 of docs/protocol.md: where ticks come from, and which way messages go."""

import zlib

import pytest

from gapless.errors import NetworkDescriptionError
from gapless.model.epochs import ALWAYS
from gapless.model.ids import BrokerId, CellId, PubendId
from gapless.model.ticks import TICK_MIN, TickRange, TickSet
from gapless.protocol.effects import (
    AcceptPublish,
    AppendRecord,
    BatchRecord,
    Effect,
    RefusePublish,
    ReserveRecord,
    SendMessage,
    StartRecord,
)
from gapless.protocol.events import LinkDown, LinkUp, MessageReceived, Now, Order
from gapless.protocol.links import Links
from gapless.protocol.messages import (
    AckMessage,
    AdvertisementMessage,
    KnowledgeMessage,
    LinkStatusMessage,
    NackMessage,
    SidewaysMessage,
    StartRequestMessage,
)
from gapless.protocol.network import Network
from gapless.protocol.parameters import Parameters
from gapless.protocol.pubend import Pubend, Recovered
from tests.spec.hand import CHAIN, FIRST, PUBEND, Hand, messages, network, publish_at, rows

P, B1, B2, S = BrokerId("p"), BrokerId("b1"), BrokerId("b2"), BrokerId("s")
CELL_P, CELL_B, CELL_S = CellId("P"), CellId("B"), CellId("S")
START = Now(ms=0, clock=10_000)
NACK = NackMessage(pubend=PUBEND, ticks=TickRange(0, 10))
ACK = AckMessage(pubend=PUBEND, runs=((10, ALWAYS),))
START_REQUEST = StartRequestMessage(pubend=PUBEND, edge=S, epoch=1, wanted=None)


def two_routers(**parameters: object) -> Network:
    """p -- {b1, b2} -- s."""
    return network(parameters, cells={"P": ["p"], "B": ["b1", "b2"], "S": ["s"]})


def source(log: Recovered | None = None, now: Now = START, **parameters: object) -> Pubend:
    return Pubend.recover(PUBEND, Parameters.parse(parameters), log or Recovered(), now)


def appended(effects: list[Effect]) -> list[AppendRecord]:
    return [effect for effect in effects if isinstance(effect, AppendRecord)]


def published(pubend: Pubend, now: Now, count: int = 1) -> tuple[list[int], int]:
    """The ticks that a batch is given, and the token of its record."""
    (append,) = appended(publish_at(pubend, rows(*range(count)), 1, now))
    assert isinstance(append.record, BatchRecord)
    return append.record.batch.ticks.tolist(), append.token


def reserved(pubend: Pubend, now: Now) -> list[KnowledgeMessage]:
    """Wake an idle pubend, make its reservation durable, and return what it tells."""
    effects, told, _ = pubend.woken(now)
    for append in appended(effects):
        told += pubend.durable(append.token, now)[1]
    return told


def links(broker: BrokerId, *up: BrokerId) -> Links:
    made = Links(two_routers(), broker)
    for neighbour in up:
        made.up(neighbour, START)
    return made


def receivers(effects: list[Effect]) -> list[str]:
    return [effect.to for effect in effects if isinstance(effect, SendMessage)]


# ---- the network ----


@pytest.mark.parametrize(
    "change", [{"edges": ["s", "b1"]}, {"pubends": {"x": {"topic": "trades", "broker": "b1"}}}]
)
def test_hosts_of_pubends_and_subends_are_alone_in_their_cells(change: dict[str, object]) -> None:
    """Clause 5.1."""
    cells = {"P": ["p"], "B": ["b1", "b2"], "S": ["s"]}
    with pytest.raises(NetworkDescriptionError, match="must be alone in its cell"):
        Network.parse({**CHAIN, "cells": cells, **change})


def test_a_virtual_link_is_a_bundle_of_all_connections() -> None:
    """Clause 5.2."""
    assert two_routers().connections() == (
        ("b1", "b2"),
        ("b1", "p"),
        ("b1", "s"),
        ("b2", "p"),
        ("b2", "s"),
    )


def test_every_root_has_a_breadth_first_tree() -> None:
    """Clause 5.3."""
    ring = network(
        cells={"P": ["p"], "B": ["b"], "C": ["c"], "D": ["d"], "S": ["s"]},
        links=["P--B", "P--C", "B--D", "C--D", "D--S"],
    )
    tree = ring.tree_of(PUBEND)
    assert tree.root == "P"
    assert tree.parent == {"B": "P", "C": "P", "D": "B", "S": "D"}
    # No ostream leads to C, because no edge is in it or below it.
    assert tree.edges[CellId("C")] == frozenset()
    hand = Hand.started(ring)
    hand.subscribe("alice")
    hand.publish(1)
    assert hand.got("alice") == [FIRST]
    assert not hand.sent(KnowledgeMessage, to="c")


# ---- pubends ----


def test_ticks_ascend_whatever_the_clock_does() -> None:
    """Clause 5.4."""
    pubend = source()
    assert published(pubend, Now(ms=0, clock=10_000), 3)[0] == [10_000, 10_001, 10_002]
    assert published(pubend, Now(ms=0, clock=10_000))[0] == [10_003]
    assert published(pubend, Now(ms=1, clock=50_000))[0] == [50_000]
    assert published(pubend, Now(ms=1, clock=20_000))[0] == [50_001]
    # The clock was set back by 30 ms: ten milliseconds later the pubend's time has gone on by five.
    assert published(pubend, Now(ms=11, clock=30_000))[0] == [55_000]


def test_an_event_is_durable_before_it_is_visible() -> None:
    """Clause 5.5."""
    hand = Hand.started(network())
    hand.subscribe("alice")
    hand.flushing = False
    hand.publish(7)
    assert not hand.of(AcceptPublish)
    assert not [m for m in hand.sent(KnowledgeMessage) if m.batch is not None]
    hand.flush()
    assert len(hand.of(AcceptPublish)) == 1
    assert hand.got("alice") == [FIRST]


def test_rows_that_could_not_be_written_were_never_published() -> None:
    """Clause 5.6."""
    pubend = source()
    ticks, token = published(pubend, START)
    assert pubend.failed(token, "disk full") == [RefusePublish(pubend=PUBEND, token=1, reason="disk full")]
    later, token = published(pubend, Now(ms=1, clock=11_000))
    _, (message,), _ = pubend.durable(token, Now(ms=1, clock=11_000))
    assert message.batch is not None
    assert message.batch.ticks.tolist() == later
    assert any(start <= ticks[0] < stop for start, stop, _ in message.runs)


def test_telling_a_batch_makes_all_ticks_up_to_it_known() -> None:
    """Clause 5.7."""
    pubend = source()
    token = published(pubend, START, 2)[1]
    _, (message,), _ = pubend.durable(token, START)
    assert message.runs == ((0, 10_002, ALWAYS),)
    assert message.first_time
    token = published(pubend, Now(ms=5, clock=15_000))[1]
    _, (message,), _ = pubend.durable(token, Now(ms=5, clock=15_000))
    assert message.runs == ((10_002, 15_001, ALWAYS),)


def test_silence_is_told_below_a_durable_reservation_alone() -> None:
    """Clause 5.8."""
    pubend = source()
    effects, told, _ = pubend.woken(Now(ms=1, clock=11_000))
    (append,) = appended(effects)
    assert append.record == ReserveRecord(before=1_011_000)
    assert told == []
    _, (message,), _ = pubend.durable(append.token, Now(ms=1, clock=11_000))
    assert message.runs == ((0, 11_000, ALWAYS),)


def test_after_a_restart_no_event_falls_into_announced_silence() -> None:
    """Clause 5.8."""
    pubend = source(Recovered(next_tick=11, reserved=1_011_000), Now(ms=0, clock=20_000))
    assert published(pubend, Now(ms=0, clock=20_000))[0] == [1_011_000]


def test_an_idle_pubend_tells_silence_and_reserves_ahead() -> None:
    """Clause 5.9."""
    pubend = source(idle_silence_ms=1_000, reserve_ms=400)
    reserved(pubend, Now(ms=1, clock=11_000))
    token = published(pubend, Now(ms=2, clock=12_000))[1]
    pubend.durable(token, Now(ms=2, clock=12_000))
    assert reserved(pubend, Now(ms=1_001, clock=1_011_000)) == []
    effects, (silence,), _ = pubend.woken(Now(ms=1_002, clock=1_012_000))
    assert silence.runs == ((12_001, 411_000, ALWAYS),)
    assert silence.batch is None
    assert [a.record for a in appended(effects)] == [ReserveRecord(before=1_412_000)]


def test_reservations_grow_while_nothing_is_published() -> None:
    """Clause 5.9."""
    pubend = source(idle_silence_ms=1_000, reserve_ms=1_000)

    def reservations(start_ms: int, stop_ms: int) -> list[int]:
        """How many seconds each reservation covers that is made while the pubend is woken every second."""
        found = []
        for ms in range(start_ms, stop_ms, 1_000):
            now = Now(ms=ms, clock=ms * 1_000)
            for append in appended(pubend.woken(now)[0]):
                assert isinstance(append.record, ReserveRecord)
                found.append((append.record.before - now.clock) // 1_000_000)
                pubend.durable(append.token, now)
        return found

    assert reservations(1_000, 60_000) == [1, 2, 4, 8, 10, 10, 10, 10, 10]
    now = Now(ms=60_000, clock=60_000_000)
    pubend.durable(published(pubend, now)[1], now)
    assert reservations(61_000, 80_000)[:2] == [1, 2]


def test_silence_does_not_overtake_an_event_on_its_way_to_the_disk() -> None:
    """Clause 5.10."""
    pubend = source()
    reserved(pubend, Now(ms=1, clock=11_000))
    published(pubend, Now(ms=2, clock=12_000))
    _, (silence,) = pubend.asked(TickSet.between(0, 900_000), Now(ms=3, clock=500_000))
    assert silence.runs == ((11_000, 12_000, ALWAYS),)


def test_a_pubend_goes_on_above_all_it_ever_said() -> None:
    """Clause 5.11."""
    given = StartRecord(edge=S, epoch=1, wanted=None, start=90)
    wished = StartRecord(edge=S, epoch=2, wanted=5_000, start=5_000)
    for log, expected in [
        (Recovered(next_tick=50), 50),
        (Recovered(next_tick=50, reserved=70), 70),
        (Recovered(next_tick=50, reserved=70, released=80), 80),
        (Recovered(next_tick=50, reserved=70, released=80, starts=(given, wished)), 90),
        (Recovered(next_tick=50, log_id="log", began=95), 95),
    ]:
        pubend = source(log, Now(ms=0, clock=0))
        assert published(pubend, Now(ms=0, clock=0))[0] == [expected]
        assert pubend.final().final_before == log.released


def test_a_pubend_that_starts_tells_the_silence_up_to_now() -> None:
    """Clause 5.11."""
    hand = Hand.started(network())
    hand.subscribe("alice")
    assert hand.starts("alice") == {"nyse": FIRST}


def test_silence_above_the_last_event_is_told_again_after_a_restart() -> None:
    """Clause 5.11."""
    now = Now(ms=0, clock=9_000)
    for lost_before, begins in [(TICK_MIN, 50), (70, 70)]:
        # Of what was lost nobody can say that it was silence.
        pubend = source(Recovered(next_tick=50, reserved=8_000, lost_before=lost_before), now)
        _, (message,), _ = pubend.durable(published(pubend, now)[1], now)
        assert message.runs == ((begins, 9_001, ALWAYS),)


def test_curiosity_about_the_present_is_answered_with_silence() -> None:
    """Clause 5.12."""
    pubend = source()
    reserved(pubend, Now(ms=1, clock=11_000))
    _, (silence,) = pubend.asked(TickSet.between(11_000, 11_500), Now(ms=2, clock=12_000))
    assert silence.runs == ((11_000, 12_000, ALWAYS),)
    # Beyond the reservation the answer waits for a new one.
    late = Now(ms=2_000, clock=2_010_000)
    effects, (silence,) = pubend.asked(TickSet.between(12_000, 2_010_000), late)
    assert silence.runs[-1][1] == 1_011_000
    (append,) = appended(effects)
    _, (silence,), _ = pubend.durable(append.token, late)
    assert silence.runs == ((1_011_000, 2_010_000, ALWAYS),)


# ---- ticks ahead of the clock ----

DAY = 86_400_000_000
HOUR = 3_600_000_000


def told_up_to(pubend: Pubend, tick: int, now: Now) -> int:
    """Ask for ticks up to this one, let the disk flush, and see up to where all is told."""
    effects, _ = pubend.asked(TickSet.between(pubend.told, tick), now)
    for append in appended(effects):
        pubend.durable(append.token, now)
    return pubend.told


def test_publishing_more_than_one_event_a_tick_is_refused_when_it_ran_ahead() -> None:
    """Clause 5.21."""
    pubend = source(publish_ahead_ms=5)
    first, token = published(pubend, START, 5_500)
    assert first[0] == START.clock
    assert published(pubend, START, 1)[0] == [START.clock + 5_500]
    published(pubend, START, 1_000)
    before = pubend.next_tick
    (refused,) = publish_at(pubend, rows(1), 9, START)
    assert isinstance(refused, RefusePublish)
    assert "6 ms ahead" in refused.reason
    assert pubend.next_tick == before
    # Time goes on, and with it publishing.
    assert published(pubend, Now(ms=1, clock=START.clock + 1_000))[0] == [before]
    pubend.durable(token, START)


def test_a_clock_that_is_behind_refuses_nothing() -> None:
    """Clause 5.21."""
    pubend = source(publish_ahead_ms=5)
    published(pubend, Now(ms=1, clock=HOUR))
    assert published(pubend, Now(ms=2, clock=11_000))[0] == [HOUR + 500]


def test_curiosity_about_ticks_ahead_is_answered_by_following_them() -> None:
    """Clause 5.22."""
    pubend = source()
    assert told_up_to(pubend, HOUR, START) == HOUR
    # New events come after the silence, and after a restart, too.
    ticks, _ = published(pubend, START)
    assert ticks[0] >= HOUR
    again = source(Recovered(reserved=pubend.reserved), START)
    assert published(again, START)[0][0] >= HOUR


def test_silence_ahead_of_the_clock_is_reserved_before_it_is_told() -> None:
    """Clause 5.22."""
    pubend = source()
    effects, told = pubend.asked(TickSet.between(0, HOUR), START)
    assert told == []
    (append,) = appended(effects)
    assert isinstance(append.record, ReserveRecord)
    assert append.record.before > HOUR
    _, (silence,), _ = pubend.durable(append.token, START)
    assert silence.runs == ((0, HOUR, ALWAYS),)


def test_a_pubend_that_followed_waits_for_its_clock_at_half_pace() -> None:
    """Clause 5.22."""
    pubend = source()
    told_up_to(pubend, HOUR, START)
    assert published(pubend, Now(ms=1_000, clock=1_010_000))[0] == [HOUR + 500_000]
    assert published(pubend, Now(ms=7_200_000, clock=2 * HOUR + 10_000))[0] == [2 * HOUR + 10_000]


def test_no_number_of_questions_leads_a_pubend_further_ahead_than_the_bound() -> None:
    """Clause 5.22."""
    pubend = source()
    assert told_up_to(pubend, START.clock + DAY, START) == START.clock + DAY
    for tick in (START.clock + DAY + 1, START.clock + 2 * DAY, 2**62):
        assert told_up_to(pubend, tick, START) == START.clock + DAY
        assert pubend.asked_beyond == tick
    again = source(Recovered(reserved=pubend.reserved), START)
    before = again.told
    assert told_up_to(again, before + HOUR, START) == before


def test_a_leap_that_is_believed_does_not_hold_back_total_order() -> None:
    """Clause 5.22."""
    both = {
        "nyse": {"topic": "trades", "broker": "p"},
        "lse": {"topic": "trades", "broker": "s"},
    }
    hand = Hand.started(network(pubends=both))
    hand.subscribe("alice", order=Order.TOTAL)
    hand.clock += HOUR
    hand.publish(1, pubend="nyse")
    hand.clock -= HOUR
    hand.publish(2, pubend="lse")
    hand.publish(3, pubend="nyse")
    hand.wait(1_000)
    assert [pubend for pubend, _ in hand.events("alice")] == ["lse", "nyse", "nyse"]
    hand.publish(4, pubend="lse")
    hand.wait(1_000)
    assert [pubend for pubend, _ in hand.events("alice")] == ["lse", "nyse", "nyse", "lse"]


# ---- links ----


def test_a_pubend_is_hashed_onto_the_brokers_that_are_up() -> None:
    """Clause 5.13."""
    both = links(P, B1, B2)
    for name in ("nyse", "lse", "tse", "hkex"):
        chosen = [B1, B2][zlib.crc32(name.encode()) % 2]
        assert both.route(PubendId(name), CELL_B, (CELL_S,)) == chosen
    one = links(P, B1)
    assert one.route(PUBEND, CELL_B, (CELL_S,)) == B1
    assert links(P).route(PUBEND, CELL_B, (CELL_S,)) is None


def test_a_broker_that_lost_its_way_down_is_avoided() -> None:
    """Clause 5.13."""
    both = links(P, B1, B2)
    usual = both.route(PUBEND, CELL_B, (CELL_S,))
    assert usual is not None
    other = B2 if usual == B1 else B1
    both.status(usual, LinkStatusMessage(reaches=frozenset({CELL_P})))
    assert both.route(PUBEND, CELL_B, (CELL_S,)) == other
    both.status(other, LinkStatusMessage(reaches=frozenset({CELL_P})))
    assert both.route(PUBEND, CELL_B, (CELL_S,)) == usual


@pytest.mark.parametrize("message", [ACK, NACK, START_REQUEST], ids=["ack", "nack", "start-request"])
def test_upstream_goes_to_the_last_sender_and_else_to_all(
    message: AckMessage | NackMessage | StartRequestMessage,
) -> None:
    """Clause 5.14."""
    both = links(S, B1, B2)
    assert receivers(both.send_up(PUBEND, CELL_B, B2, message)) == ["b2"]
    assert receivers(both.send_up(PUBEND, CELL_B, None, message)) == ["b1", "b2"]
    both.down(B2, START)
    assert receivers(both.send_up(PUBEND, CELL_B, B2, message)) == ["b1"]


def test_the_last_sender_is_the_broker_that_sent_knowledge_last() -> None:
    """Clause 5.14."""
    hand = Hand.started(two_routers())
    hand.subscribe("alice")
    hand.publish(1)
    hand.wait(100)
    (sender,) = [broker for broker in ("b1", "b2") if hand.sent(KnowledgeMessage, broker, "s")]
    before = len(hand.sent(AckMessage, "s"))
    hand.publish(2)
    hand.wait(100)
    later = hand.sent(AckMessage, "s")[before:]
    assert later
    assert hand.sent(AckMessage, "s", sender)[-len(later) :] == later


def test_a_repeated_nack_goes_to_the_whole_cell() -> None:
    """Clause 5.15."""
    hand = Hand.started(two_routers())
    hand.subscribe("alice")
    hand.publish(1)
    hand.loses = lambda _sender, to, message: to == "s" and isinstance(message, KnowledgeMessage)
    hand.publish(2)
    hand.loses = lambda sender, _to, message: sender == "s" and isinstance(message, NackMessage)
    hand.publish(3)
    (last_sender,) = [broker for broker in ("b1", "b2") if hand.sent(KnowledgeMessage, broker, "s")]
    hand.wait(300)
    assert len(hand.sent(NackMessage, "s")) == len(hand.sent(NackMessage, "s", last_sender)) == 1
    hand.wait(600)
    assert len(hand.sent(NackMessage, "s", last_sender)) == 2
    assert len(hand.sent(NackMessage, "s")) == 3


def test_a_message_goes_sideways_once_when_no_link_leads_down() -> None:
    """Clause 5.16."""
    lonely = links(B1, P, B2)
    lonely.status(B2, LinkStatusMessage(reaches=frozenset({CELL_P, CELL_S})))
    knowledge = KnowledgeMessage(pubend=PUBEND, runs=(), batch=None, first_time=True, final_before=TICK_MIN)
    wrapped = SidewaysMessage(cell=CELL_S, message=knowledge)
    assert lonely.send_down(PUBEND, CELL_S, (), knowledge) == [SendMessage(to=B2, message=wrapped)]
    assert links(B2, P, B1, S).pass_on(PUBEND, wrapped) == [SendMessage(to=S, message=knowledge)]
    also_lonely = links(B2, P, B1)
    also_lonely.status(B1, LinkStatusMessage(reaches=frozenset({CELL_S})))
    assert also_lonely.pass_on(PUBEND, wrapped) == []


def test_acks_may_go_sideways_and_nacks_may_not() -> None:
    """Clause 5.16."""
    lonely = links(B1, B2, S)
    lonely.status(B2, LinkStatusMessage(reaches=frozenset({CELL_P})))
    assert receivers(lonely.send_up(PUBEND, CELL_P, None, ACK)) == ["b2"]
    assert lonely.send_up(PUBEND, CELL_P, None, NACK, sideways=False) == []
    hand = Hand.started(two_routers())
    hand.subscribe("alice")
    hand.feed("b1", LinkDown(neighbour=P))
    nack = NackMessage(pubend=PUBEND, ticks=TickRange(20_000, 20_010))
    assert not messages(hand.step("b1", MessageReceived(sender=S, message=nack)), SidewaysMessage)


def test_the_answer_goes_to_the_broker_that_asked() -> None:
    """Clause 5.17."""
    hand = Hand.started(two_routers())
    hand.subscribe("alice")
    hand.publish(1)
    for asker in (B1, B2):
        nack = NackMessage(pubend=PUBEND, ticks=TickRange(FIRST, FIRST + 1))
        effects = hand.step("p", MessageReceived(sender=asker, message=nack))
        assert [to for to, _ in messages(effects, KnowledgeMessage)] == [asker]


def test_neighbours_hear_which_cells_are_reached() -> None:
    """Clause 5.18."""
    one = links(B1, P, B2)
    status = LinkStatusMessage(reaches=frozenset({CELL_P}))
    assert messages(one.woken(START), LinkStatusMessage) == [("b2", status), ("p", status)]
    assert one.woken(Now(ms=1, clock=0)) == []
    one.up(S, Now(ms=2, clock=0))
    status = LinkStatusMessage(reaches=frozenset({CELL_P, CELL_S}))
    assert messages(one.woken(Now(ms=2, clock=0)), LinkStatusMessage)[0] == ("b2", status)
    assert receivers(one.woken(Now(ms=1_002, clock=0))) == ["b2", "p", "s"]


def test_a_neighbour_that_says_nothing_is_taken_for_dead() -> None:
    """Clause 5.19."""
    one = links(P, B1, B2)
    one.heard(B1, Now(ms=4_000, clock=0))
    one.woken(Now(ms=5_001, clock=0))
    assert one.is_up(B1)
    assert not one.is_up(B2)
    one.heard(B2, Now(ms=5_002, clock=0))
    assert one.is_up(B2)


def test_a_new_link_forgets_what_the_neighbour_had_said() -> None:
    """Clause 5.20."""
    both = links(P, B1, B2)
    usual = both.route(PUBEND, CELL_B, (CELL_S,))
    assert usual is not None
    both.status(usual, LinkStatusMessage(reaches=frozenset()))
    both.up(usual, START)
    assert both.route(PUBEND, CELL_B, (CELL_S,)) == usual
    hand = Hand.started(network())
    hand.subscribe("alice")
    effects = hand.step("s", LinkUp(neighbour=BrokerId("b")))
    assert [m.base for _, m in messages(effects, AdvertisementMessage)] == [None]


def test_a_pubend_without_subscribers_rests_until_one_comes() -> None:
    """Clause 5.9."""
    hand = Hand.started(network({"idle_silence_ms": 100, "reserve_ms": 100}))

    def reserved() -> int:
        return sum(isinstance(effect.record, ReserveRecord) for _, effect in hand.of(AppendRecord))

    hand.wait(1_000)
    before = reserved()
    hand.wait(5_000)
    assert reserved() == before
    hand.subscribe("alice")
    hand.wait(2_000)
    assert reserved() > before
    hand.publish(1)
    assert len(hand.got("alice")) == 1
