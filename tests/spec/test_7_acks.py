"""Section 7 of docs/protocol.md: what is acked, what the pubend believes, and what it releases."""

from itertools import pairwise

from gapless.content.condition import EVERYTHING
from gapless.content.selection import Selection
from gapless.model.epochs import ALWAYS, Epochs, first_epoch
from gapless.model.ids import BrokerId, CellId
from gapless.model.ticks import TICK_MIN, Tick
from gapless.protocol.acks import folded
from gapless.protocol.effects import AppendRecord, Effect, ReleaseRecord, StartRecord, TrimLog
from gapless.protocol.events import MessageReceived, Now, RecordFailed
from gapless.protocol.messages import (
    AckExpectedMessage,
    AckMessage,
    KnowledgeMessage,
    NackMessage,
    StartGrantMessage,
    StartRequestMessage,
)
from gapless.protocol.ostream import ACK_RUNS_MAX, CellFilter, Ostream
from gapless.protocol.parameters import Parameters
from gapless.protocol.pubend import Pubend, Recovered, Starts
from tests.spec.hand import FIRST, PUBEND, Hand, batch, messages, network, publish_at

P, B, S, S2 = BrokerId("p"), BrokerId("b"), BrokerId("s"), BrokerId("s2")
ALL = CellFilter(Selection([EVERYTHING]), Epochs({S: 9}))


def stamp(epoch: int) -> Epochs:
    return Epochs({S: epoch})


def ostream() -> Ostream:
    return Ostream(CellId("S"), frozenset({S}), runs_max=100)


def pubend(told: Tick, *starts: tuple[int, Tick], released: Tick = 0) -> Pubend:
    """A pubend that has told its past up to a tick and promised s these (epoch, start) pairs."""
    promises = tuple(StartRecord(edge=S, epoch=epoch, wanted=start, start=start) for epoch, start in starts)
    log = Recovered(next_tick=told, released=released, starts=promises)
    return Pubend.recover(PUBEND, Parameters(), log, Now(ms=0, clock=0))


def releases(effects: list[Effect]) -> list[Tick]:
    """What the effects ask the log to release."""
    records = [effect.record for effect in effects if isinstance(effect, AppendRecord)]
    return [record.before for record in records if isinstance(record, ReleaseRecord)]


def test_the_ack_of_an_ostream_ends_before_its_first_unacked_data() -> None:
    """Clause 7.1."""
    down = ostream()
    down.pass_on([(TICK_MIN, 10, ALWAYS), (10, 40, stamp(5))], batch([20, 30]), ALL, first_time=True, route=S)
    assert down.acked() == [(10, ALWAYS), (20, stamp(5))]
    down.acked_by_cell(((25, stamp(6)),))
    assert down.acked()[-1][0] == 30


def test_the_slowest_decides_and_all_edges_are_named() -> None:
    """Clause 7.2."""
    one = [(10, Epochs({S: 4})), (20, Epochs({S: 3}))]
    two = [(5, Epochs({S2: 7})), (15, Epochs({S2: 8}))]
    assert folded([one, two]) == (
        (5, Epochs({S: 4, S2: 7})),
        (10, Epochs({S: 4, S2: 8})),
        (15, Epochs({S: 3, S2: 8})),
    )
    assert folded([one, []]) == ()


def test_an_ack_has_at_most_eight_runs() -> None:
    """Clause 7.3."""
    down = ostream()
    down.passed.set_range(TICK_MIN, 0, stamp(100))
    for at in range(12):
        down.passed.set_range(at * 10, at * 10 + 10, stamp(50 - at))
    runs = down.acked()
    assert len(runs) == ACK_RUNS_MAX == 8
    assert runs[-1] == (120, stamp(50 - 11))


def test_an_older_ack_does_not_speak_for_data_of_a_newer_epoch() -> None:
    """Clause 7.4."""
    down = ostream()
    down.pass_on([(TICK_MIN, 40, stamp(9))], batch([20]), ALL, first_time=True, route=S)
    down.acked_by_cell(((40, stamp(8)),))
    assert down.acked() == [(20, stamp(9)), (40, stamp(8))]


def test_acked_rows_are_freed_on_the_way() -> None:
    """Clause 7.5."""
    hand = Hand.started(network())
    hand.subscribe("alice")
    hand.publish(1, 2, 3)
    assert [hand.brokers[name].memory().rows for name in "pb"] == [3, 3]
    hand.wait(200)
    assert [hand.brokers[name].memory().rows for name in "pbs"] == [0, 0, 0]


def test_acks_are_not_sent_too_often_nor_twice() -> None:
    """Clause 7.6."""
    hand = Hand.started(network({"ack_delay_ms": 50}))
    hand.subscribe("alice")
    hand.wait(50)
    before = len(hand.sent(AckMessage, "s"))
    for price in range(100):
        hand.publish(price)
        hand.wait(1)
    hand.wait(100)
    sent = hand.sent(AckMessage, "s")[before:]
    assert 2 <= len(sent) <= 4
    assert all(one != other for one, other in pairwise(sent))
    hand.wait(900)
    assert hand.sent(AckMessage, "s")[before:] == sent


def test_an_edge_acks_what_is_taken_and_not_for_those_who_wait_for_their_start() -> None:
    """Clause 7.7."""
    hand = Hand.started(network())
    hand.subscribe("alice")
    hand.loses = lambda _sender, to, message: to == "s" and isinstance(message, StartGrantMessage)
    hand.subscribe("bob")
    hand.stalled = {"alice"}
    hand.publish(1)
    hand.wait(100)
    assert hand.sent(AckMessage, "s")[-1].runs == ((FIRST, stamp(first_epoch(1) + 1)),)


def test_an_edge_without_readers_acks_all_it_has_heard_of() -> None:
    """Clause 7.7."""
    hand = Hand.started(network())
    message = KnowledgeMessage(
        pubend=PUBEND, runs=((0, 500, ALWAYS),), batch=None, first_time=True, final_before=TICK_MIN
    )
    effects = hand.step("s", MessageReceived(sender=B, message=message))
    assert [m.runs for _, m in messages(effects, AckMessage)] == [((500, stamp(first_epoch(1))),)]
    hand.ms += 100
    expected = AckExpectedMessage(pubend=PUBEND, before=800)
    effects = hand.step("s", MessageReceived(sender=B, message=expected))
    assert [m.runs for _, m in messages(effects, AckMessage)] == [((800, stamp(first_epoch(1))),)]


def test_an_ack_is_believed_up_to_the_start_of_a_newer_epoch() -> None:
    """Clause 7.8."""
    promised = ((1, 10), (2, 40), (3, 30))
    assert releases(pubend(100, *promised).acked(((60, stamp(1)),))) == [30]
    assert releases(pubend(100, *promised).acked(((60, stamp(2)),))) == [30]
    assert releases(pubend(100, *promised).acked(((60, stamp(3)),))) == [60]
    assert releases(pubend(100, *promised).acked(((20, stamp(3)), (60, stamp(1))))) == [30]
    assert releases(pubend(100, *promised).acked(((60, Epochs({S2: 9})),))) == [10]


def test_no_ack_is_believed_beyond_what_was_told() -> None:
    """Clause 7.8."""
    assert releases(pubend(100).acked(((400, ALWAYS),))) == [100]


def test_old_start_ticks_are_forgotten_and_so_are_the_acks_they_bounded() -> None:
    """Clause 7.9."""
    starts = Starts()
    for epoch, start in ((1, 10), (2, 40), (3, 60)):
        starts.add(epoch, start)
    starts.prune(50)
    assert starts.entries == [(2, 40), (3, 60)]
    assert starts.limit(1) == TICK_MIN
    assert starts.limit(2) == 60
    starts.prune(1_000)
    assert starts.entries == [(3, 60)]


def test_a_release_is_logged_before_anybody_is_told() -> None:
    """Clause 7.10."""
    hand = Hand.started(network())
    hand.subscribe("alice")
    hand.publish(1)
    hand.flushing = False
    hand.wait(200)
    waiting = [append.record for _, append in hand.unflushed]
    assert any(isinstance(record, ReleaseRecord) for record in waiting)
    assert not hand.of(TrimLog)
    assert all(m.final_before <= 0 for m in hand.sent(KnowledgeMessage))
    hand.flushing = True
    hand.flush()
    hand.wait(200)
    assert hand.of(TrimLog)[-1][1].before > FIRST


def test_one_release_is_under_way_at_a_time() -> None:
    """Clause 7.10."""
    source = pubend(100)
    (append,) = source.acked(((20, ALWAYS),))
    assert isinstance(append, AppendRecord)
    assert source.acked(((30, ALWAYS),)) == []
    assert source.acked(((50, ALWAYS),)) == []
    effects, (final,), _ = source.durable(append.token, Now(ms=1, clock=0))
    assert TrimLog(pubend=PUBEND, before=20) in effects
    assert final.final_before == 20
    assert releases(effects) == [50]


def test_silence_alone_is_not_released() -> None:
    """Clause 7.10."""
    hand = Hand.started(network())
    hand.subscribe("alice")
    hand.publish(1)
    hand.wait(500)
    before = len(hand.of(TrimLog))
    assert before
    hand.wait(10_000)
    assert len(hand.of(TrimLog)) == before
    hand.publish(2)
    hand.wait(500)
    assert hand.of(TrimLog)[-1][1].before > FIRST + 10_000_000


def test_a_release_that_failed_is_tried_again() -> None:
    """Clause 7.11."""
    source = pubend(100)
    (append,) = source.acked(((20, ALWAYS),))
    assert isinstance(append, AppendRecord)
    assert source.failed(append.token, "disk full") == []
    assert source.released == 0
    effects, _, _ = source.woken(Now(ms=2_000, clock=0))
    assert releases(effects) == [20]


def test_nothing_that_a_full_disk_could_not_release_is_called_final() -> None:
    """Clause 7.11."""
    hand = Hand.started(network())
    hand.subscribe("alice")
    hand.publish(1)
    hand.flushing = False
    hand.wait(200)
    failed, hand.unflushed = hand.unflushed, []
    for broker, append in failed:
        hand.feed(broker, RecordFailed(pubend=PUBEND, token=append.token, reason="disk full"))
    assert not hand.of(TrimLog)
    hand.flushing = True
    hand.wait(2_000)
    assert hand.of(TrimLog)[-1][1].before > FIRST


def test_a_pubend_asks_for_acks_of_old_events_until_it_has_them() -> None:
    """Clause 7.12."""
    aet = 10_000
    source = Pubend.recover(PUBEND, Parameters(ack_expected_ms=aet), Recovered(), Now(ms=0, clock=0))
    (append,) = publish_at(source, batch([0]).columns, 1, Now(ms=100, clock=100_000))
    assert isinstance(append, AppendRecord)
    source.durable(append.token, Now(ms=100, clock=100_000))
    expected = {ms: source.woken(Now(ms=ms, clock=ms * 1_000))[2] for ms in range(0, 30_000, 500)}
    said = [ms for ms, tick in expected.items() if tick == 100_001]
    assert {tick for tick in expected.values() if tick is not None} == {100_001}
    assert aet <= said[0] <= aet + aet // 4 + 500
    assert said == list(range(said[0], 30_000, aet // 4))
    source.acked(((100_001, ALWAYS),))
    assert all(source.woken(Now(ms=ms, clock=ms * 1_000))[2] is None for ms in range(30_000, 60_000, 500))


def test_a_pubend_that_has_restarted_asks_for_acks_at_once() -> None:
    """Clause 7.12."""
    assert pubend(100).woken(Now(ms=0, clock=0))[2] == 100
    assert pubend(100, released=100).woken(Now(ms=0, clock=0))[2] is None


def test_ack_expected_goes_only_where_acks_are_missing() -> None:
    """Clause 7.13."""
    cells = {"P": ["p"], "B": ["b"], "S1": ["s1"], "S2": ["s2"]}
    hand = Hand.started(network(cells=cells, links=["P--B", "B--S1", "B--S2"], edges=["s1", "s2"]))
    hand.subscribe("alice", edge="s1")
    hand.subscribe("bob", edge="s2")
    hand.wait(100)
    hand.loses = lambda _sender, to, message: to == "s2" and isinstance(message, KnowledgeMessage)
    hand.publish(1)
    hand.wait(100)
    hand.loses = lambda *_: False
    hand.wait(13_000)
    assert hand.sent(AckExpectedMessage, "b", "s2")
    assert not hand.sent(AckExpectedMessage, "b", "s1")
    assert hand.got("bob") == [FIRST + 100_000]


def test_ack_expected_is_answered_with_the_ack_and_with_questions() -> None:
    """Clause 7.14."""
    hand = Hand.started(network())
    hand.subscribe("alice")
    hand.publish(1)
    hand.wait(200)
    last = hand.sent(AckMessage, "s")[-1]
    expected = AckExpectedMessage(pubend=PUBEND, before=FIRST + 500)
    effects = hand.step("s", MessageReceived(sender=B, message=expected))
    assert messages(effects, AckMessage) == [("b", last)]
    asked = [nack.ticks for _, nack in messages(effects, NackMessage)]
    assert [(ticks.start, ticks.stop) for ticks in asked] == [(FIRST + 1, FIRST + 500)]


def test_what_the_host_keeps_is_acked_and_not_released() -> None:
    """Clause 7.15."""
    log = Recovered(next_tick=100, released=10, kept_from=40)
    source = Pubend.recover(PUBEND, Parameters(), log, Now(ms=0, clock=0))
    assert releases(source.acked(((100, stamp(1)),))) == [40]
    source.durable(source.token, Now(ms=1, clock=1))
    assert (source.released, source.releasable) == (40, 100)
    # Everybody has acked everything, so no ack is expected; and a start at 50 is still to be had.
    assert source.woken(Now(ms=10**6, clock=1))[2] is None
    effects, _ = source.start_requested(
        StartRequestMessage(pubend=PUBEND, edge=S, epoch=2, wanted=50), known_epoch=2
    )
    [append] = [effect for effect in effects if isinstance(effect, AppendRecord)]
    assert append.record == StartRecord(edge=S, epoch=2, wanted=50, start=50)
    source.durable(source.token, Now(ms=2, clock=2))
    # What is kept no longer is released up to what was promised since.
    assert releases(source.retention_moved(80)) == [50]
    source.check()
