"""Section 6 of docs/protocol.md: what is passed on to whom, what is answered, and what is forgotten."""

from gapless.content.condition import EVERYTHING
from gapless.content.selection import Selection
from gapless.model.epochs import ALWAYS, Epochs
from gapless.model.ids import BrokerId, CellId
from gapless.model.stream import KnowledgeStream
from gapless.model.ticks import EMPTY, TICK_MAX, TICK_MIN, TickRange, TickSet
from gapless.protocol.curiosity import NackClock
from gapless.protocol.effects import ReadRecords
from gapless.protocol.events import MessageReceived, Now, RecordsRead
from gapless.protocol.istream import Istream
from gapless.protocol.messages import KnowledgeMessage, NackMessage
from gapless.protocol.network import Network
from gapless.protocol.ostream import CellFilter, Ostream
from gapless.protocol.parameters import Parameters
from gapless.protocol.pubend import Pubend, Recovered
from tests.conditions import where
from tests.spec.hand import FIRST, PUBEND, Hand, batch, messages, network

P, B, S = BrokerId("p"), BrokerId("b"), BrokerId("s")
OTHER = BrokerId("s'")
EPOCHS = Epochs({S: 5})
ALL = CellFilter(Selection([EVERYTHING]), EPOCHS)
SEVEN = CellFilter(Selection([where("price = 7")]), EPOCHS)


def ostream(runs_max: int = 100) -> Ostream:
    return Ostream(CellId("S"), frozenset({S}), runs_max)


def istream(**parameters: object) -> Istream:
    return Istream(PUBEND, Parameters.parse(parameters))


def clock(**parameters: object) -> NackClock:
    return NackClock(Parameters.parse(parameters))


def two_edges() -> Network:
    """p -- b, and below it s1 and s2."""
    cells = {"P": ["p"], "B": ["b"], "S1": ["s1"], "S2": ["s2"]}
    return network(cells=cells, links=["P--B", "B--S1", "B--S2"], edges=["s1", "s2"])


def data_to(hand: Hand, to: str) -> list[int]:
    """The ticks of all rows that were sent to a broker."""
    sent = [m.batch for m in hand.sent(KnowledgeMessage, to=to) if m.batch is not None]
    return [tick for each in sent for tick in each.ticks.tolist()]


def test_only_news_is_passed_on() -> None:
    """Clause 6.1."""
    hand = Hand.started(network())
    hand.subscribe("alice")
    hand.publish(1)
    again = hand.sent(KnowledgeMessage, "p", "b")[-1]
    effects = hand.step("b", MessageReceived(sender=P, message=again))
    assert not messages(effects, KnowledgeMessage)


def test_first_time_data_goes_where_the_filter_accepts_it() -> None:
    """Clause 6.2."""
    hand = Hand.started(two_edges())
    hand.subscribe("alice", where("price = 7"), edge="s1")
    hand.subscribe("bob", where("price = 8"), edge="s2")
    hand.publish(7)
    hand.publish(8, 9)
    assert data_to(hand, "b") == [FIRST, FIRST + 1]
    assert data_to(hand, "s1") == [FIRST]
    assert data_to(hand, "s2") == [FIRST + 1]


def test_first_time_silence_is_withheld_from_the_incurious() -> None:
    """Clause 6.3."""
    down = ostream()
    assert down.pass_on([(0, 10, ALWAYS)], None, ALL, first_time=True, route=S) == []


def test_first_time_silence_goes_whole_to_the_curious() -> None:
    """Clause 6.3."""
    down = ostream()
    down.answer(OTHER, TickRange(4, 6), KnowledgeStream(), ALL)
    (telling,) = down.pass_on([(0, 10, ALWAYS)], None, ALL, first_time=True, route=S)
    assert telling.runs == [(0, 10, ALWAYS)]
    assert telling.to == OTHER
    assert not down.curious


def test_withheld_silence_travels_with_the_next_data() -> None:
    """Clause 6.4."""
    down = ostream()
    down.pass_on([(0, 10, ALWAYS)], None, ALL, first_time=True, route=S)
    down.pass_on([(10, 20, ALWAYS)], batch([15], [3]), SEVEN, first_time=True, route=S)
    (telling,) = down.pass_on([(20, 30, ALWAYS)], batch([25], [7]), SEVEN, first_time=True, route=S)
    assert telling.runs == [(0, 10, ALWAYS), (10, 20, EPOCHS), (20, 30, ALWAYS)]
    assert not down.withheld


def test_a_retransmission_is_cut_to_what_the_cell_is_curious_about() -> None:
    """Clause 6.5."""
    down = ostream()
    assert down.pass_on([(0, 30, ALWAYS)], batch([5, 15]), ALL, first_time=False, route=S) == []
    other = ostream()
    other.answer(OTHER, TickRange(10, 20), KnowledgeStream(), ALL)
    (telling,) = other.pass_on([(0, 30, ALWAYS)], batch([5, 15]), ALL, first_time=False, route=S)
    assert (telling.runs, telling.rows, telling.to) == ([(10, 20, ALWAYS)], [batch([15])], OTHER)


def test_first_time_data_among_known_ticks_is_a_retransmission() -> None:
    """Clause 6.6."""
    hand = Hand.started(network())
    hand.subscribe("alice")
    hand.publish(1)
    message = KnowledgeMessage(
        pubend=PUBEND,
        runs=((FIRST, FIRST + 10, ALWAYS),),
        batch=batch([FIRST]),
        first_time=True,
        final_before=TICK_MIN,
    )
    effects = hand.step("b", MessageReceived(sender=P, message=message))
    assert not messages(effects, KnowledgeMessage)


def test_what_the_filter_rejects_is_acked_on_the_spot() -> None:
    """Clause 6.7."""
    down = ostream()
    down.pass_on([(TICK_MIN, 10, ALWAYS)], batch([5], [3]), SEVEN, first_time=True, route=S)
    assert down.acked() == [(10, EPOCHS)]
    down.pass_on([(10, 20, ALWAYS)], batch([15], [7]), SEVEN, first_time=True, route=S)
    assert down.acked() == [(10, EPOCHS), (15, ALWAYS)]


def test_a_nack_is_answered_from_what_is_known() -> None:
    """Clause 6.8."""
    stream = KnowledgeStream()
    stream.accumulate([(0, 10, ALWAYS), (10, 20, EPOCHS), (20, 30, Epochs({S: 4}))], batch([5, 6], [7, 8]))
    down = ostream()
    telling, unknown = down.answer(OTHER, TickRange(3, 40), stream, SEVEN)
    assert telling is not None
    assert telling.runs == [(3, 10, EPOCHS), (10, 20, EPOCHS)]
    assert telling.rows == [batch([5], [7])]
    assert telling.to == OTHER
    assert unknown == TickSet.between(20, 40)
    assert list(down.curious) == [(20, 40, OTHER)]


def test_what_cannot_be_answered_is_asked_for_upstream() -> None:
    """Clause 6.8."""
    hand = Hand.started(network())
    hand.subscribe("alice")
    asked = TickRange(FIRST + 100, FIRST + 200)
    nack = NackMessage(pubend=PUBEND, ticks=asked)
    assert messages(hand.step("b", MessageReceived(sender=S, message=nack)), NackMessage) == [("p", nack)]


def test_two_who_lack_the_same_cost_one_question() -> None:
    """Clause 6.9."""
    hand = Hand.started(two_edges())

    def asked(edge: str, start: int, stop: int) -> list[TickRange]:
        nack = NackMessage(pubend=PUBEND, ticks=TickRange(start, stop))
        effects = hand.step("b", MessageReceived(sender=BrokerId(edge), message=nack))
        return [message.ticks for _, message in messages(effects, NackMessage)]

    assert asked("s1", 20_000, 20_010) == [TickRange(20_000, 20_010)]
    assert asked("s2", 20_005, 20_020) == [TickRange(20_010, 20_020)]
    hand.ms += 599
    assert asked("s1", 20_000, 20_020) == []
    hand.ms += 1
    assert asked("s1", 20_000, 20_020) == [TickRange(20_000, 20_020)]


def test_a_question_is_chopped_where_it_begins() -> None:
    """Clause 6.10."""
    hand = Hand.started(network({"nack_ticks_max": 1_000, "nack_parts_max": 4}))
    hand.subscribe("alice")
    hand.publish(1)
    hand.wait(2)
    hand.loses = lambda _sender, to, message: to == "s" and isinstance(message, KnowledgeMessage)
    hand.publish(2)
    hand.wait(8)
    hand.loses = lambda *_: False
    hand.publish(3)
    hand.wait(200)
    gap = TickSet.between(FIRST + 1, FIRST + 2_001)
    asked = [nack.ticks for nack in hand.sent(NackMessage, "s", "b")]
    assert TickSet.of(*asked) == gap
    assert [ticks.ticks for ticks in asked] == [1_000, 1_000]
    assert TickSet.between(0, 10_000).chopped(1_000, 4) == [
        TickRange(start, start + 2_500) for start in range(0, 10_000, 2_500)
    ]


def test_no_more_parts_are_asked_for_than_can_be_kept() -> None:
    """Clause 6.10."""
    one = clock(stream_runs_max=4, nack_ticks_max=100, nack_parts_max=16, nack_repeat_min_ms=600)
    assert one.update(EMPTY, TickSet.between(0, 16_000), now_ms=0) == TickSet.between(0, 1_000)
    assert one.update(EMPTY, TickSet.between(0, 16_000), now_ms=599) == EMPTY
    # No answer came: the others do not overtake it. Then it comes, and the next part is the lowest.
    assert one.update(EMPTY, TickSet.between(0, 16_000), now_ms=600) == TickSet.between(0, 1_000)
    assert one.update(EMPTY, TickSet.between(1_000, 17_000), now_ms=700) == TickSet.between(1_000, 2_000)
    roomy = clock(nack_ticks_max=100, nack_parts_max=16)
    assert roomy.update(EMPTY, TickSet.between(0, 16_000), now_ms=0) == TickSet.between(0, 16_000)


def test_what_laggards_ask_for_holds_nobody_else_back() -> None:
    """Clause 6.10."""
    one = clock(stream_runs_max=4, nack_ticks_max=100, nack_parts_max=16)
    past, missing = TickSet.between(0, 1_600), TickSet.between(2_000, 2_010)
    assert one.update(EMPTY, past, now_ms=0, position=2_000) == TickSet.between(0, 100)
    assert one.update(EMPTY, past | missing, now_ms=1, position=2_000) == missing


def test_a_nack_is_passed_on_as_it_came() -> None:
    """Clause 6.10."""
    hand = Hand.started(network({"nack_ticks_max": 1_000}))
    hand.subscribe("alice")
    nack = NackMessage(pubend=PUBEND, ticks=TickRange(50_000, 90_000))
    assert messages(hand.step("b", MessageReceived(sender=S, message=nack)), NackMessage) == [("p", nack)]


def test_many_rows_are_cut_into_messages_that_speak_for_themselves() -> None:
    """Clause 6.11."""
    hand = Hand.started(network({"message_rows_max": 2}))
    hand.subscribe("alice")
    hand.publish(1, 2, 3, 4, 5)
    cut = [m for m in hand.sent(KnowledgeMessage, "p", "b") if m.batch is not None]
    assert [m.batch.ticks.tolist() for m in cut if m.batch is not None] == [
        [FIRST, FIRST + 1],
        [FIRST + 2, FIRST + 3],
        [FIRST + 4],
    ]
    assert [[(start, stop) for start, stop, _ in m.runs][-1] for m in cut] == [
        (FIRST, FIRST + 2),
        (FIRST + 2, FIRST + 4),
        (FIRST + 4, FIRST + 5),
    ]
    assert hand.got("alice") == [FIRST + at for at in range(5)]


def test_a_pubend_reads_its_log_piece_by_piece_from_below() -> None:
    """Clause 6.12."""
    now = Now(ms=0, clock=0)
    pubend = Pubend.recover(
        PUBEND, Parameters(message_rows_max=2), Recovered(next_tick=100, released=20), now
    )
    effects, _ = pubend.asked(TickSet.of(TickRange(20, 40), TickRange(60, 70)), now)
    assert effects == [ReadRecords(pubend=PUBEND, ticks=TickRange(20, 40), rows_max=2)]
    assert pubend.asked(TickSet.between(30, 50), now) == ([], [])
    answer = RecordsRead(pubend=PUBEND, ticks=TickRange(20, 26), batch=batch([22, 25]))
    effects, (message,) = pubend.read(answer)
    assert (message.runs, message.batch, message.first_time) == (
        ((20, 26, ALWAYS),),
        batch([22, 25]),
        False,
    )
    assert effects == [ReadRecords(pubend=PUBEND, ticks=TickRange(26, 50), rows_max=2)]


def test_curiosity_about_the_released_past_is_answered_with_silence() -> None:
    """Clause 6.12."""
    hand = Hand.started(network())
    hand.subscribe("alice")
    hand.publish(1)
    hand.wait(200)
    nack = NackMessage(pubend=PUBEND, ticks=TickRange(FIRST, FIRST + 1))
    effects = hand.step("p", MessageReceived(sender=B, message=nack))
    ((to, answer),) = messages(effects, KnowledgeMessage)
    assert (to, answer.batch) == ("b", None)
    assert answer.final_before == FIRST + 1
    assert not [effect for effect in effects if isinstance(effect, ReadRecords)]


def test_what_is_final_is_final_for_all_and_needs_no_runs() -> None:
    """Clause 6.13."""
    one = istream()
    one.accumulate(((0, 20, EPOCHS),), batch([5, 15]), 10)
    assert one.final_before == 10
    assert list(one.stream.known) == [(TICK_MIN, 10, ALWAYS), (10, 20, EPOCHS)]
    one.accumulate((), None, 3)
    assert one.final_before == 10
    hand = Hand.started(network())
    hand.subscribe("alice")
    hand.publish(1)
    hand.wait(200)
    hand.publish(2)
    last = hand.sent(KnowledgeMessage, "b", "s")[-1]
    assert last.final_before > FIRST
    assert all(start >= last.final_before for start, _, _ in last.runs)


def test_a_full_stream_forgets_the_past_first_and_then_the_far_future() -> None:
    """Clause 6.14."""
    one = istream(stream_bytes_max=3 * batch([1]).nbytes)
    for start in range(0, 50, 10):
        one.accumulate(((start, start + 10, ALWAYS),), batch([start + 5]), TICK_MIN)
    assert one.forget_to_bounds(position=20) == [(5, 6), (15, 16)]
    one.accumulate(((50, 70, ALWAYS),), batch([55, 65]), TICK_MIN)
    assert one.forget_to_bounds(position=20) == [(55, TICK_MAX)]
    assert [part.ticks.tolist() for part in one.stream.rows.between(TICK_MIN, TICK_MAX)] == [[25], [35], [45]]


def test_a_full_stream_forgets_last_what_a_laggard_needs_next() -> None:
    """Clause 6.14."""
    one = istream(stream_bytes_max=2 * batch([1]).nbytes)
    for start in range(0, 60, 10):
        one.accumulate(((start, start + 10, ALWAYS),), batch([start + 5]), TICK_MIN)
    assert one.forget_to_bounds(position=50, behind=20) == [(5, 6), (15, 16), (45, 46), (35, 36)]
    one.accumulate(((60, 70, ALWAYS),), batch([65]), TICK_MIN)
    assert one.forget_to_bounds(position=50, behind=20) == [(65, TICK_MAX)]
    assert [part.ticks.tolist() for part in one.stream.rows.between(TICK_MIN, TICK_MAX)] == [[25], [55]]


def test_of_too_many_runs_what_a_laggard_needs_next_is_not_forgotten() -> None:
    """Clause 6.15."""
    one = istream(stream_runs_max=4)
    one.accumulate(((TICK_MIN, 10, ALWAYS),), None, TICK_MIN)
    for start in range(20, 80, 10):
        one.accumulate(((start, start + 5, ALWAYS),), None, TICK_MIN)
    assert one.forget_to_bounds(position=60, behind=30) == [(10, 30), (40, 55)]
    assert [start for start, _, _ in one.stream.known] == [TICK_MIN, 30, 60, 70]
    for start in (80, 90, 100):
        one.accumulate(((start, start + 5, ALWAYS),), None, TICK_MIN)
    assert one.forget_to_bounds(position=60, behind=30) == [(70, TICK_MAX)]


def test_the_largest_streams_forget_when_all_together_are_too_large() -> None:
    """Clause 6.14."""
    row = batch([1]).nbytes
    hand = Hand.started(network({"broker_bytes_max": 8 * row}))
    hand.subscribe("alice")
    hand.stalled = {"alice"}
    for price in range(20):
        hand.publish(price)
    hand.wait(1_000)
    for broker in hand.brokers.values():
        assert broker.memory().row_bytes <= 8 * row
    hand.subscribe("bob", start=FIRST)
    hand.wait(2_000)
    assert hand.got("bob") == [FIRST + at for at in range(20)], "curiosity brings back what was forgotten"


def test_too_many_runs_are_forgotten_but_not_the_settled_past() -> None:
    """Clause 6.15."""
    one = istream(stream_runs_max=4)
    one.accumulate(((TICK_MIN, 10, ALWAYS),), None, TICK_MIN)
    for start in range(20, 70, 10):
        one.accumulate(((start, start + 5, ALWAYS),), None, TICK_MIN)
    assert one.forget_to_bounds(position=TICK_MAX) == [(10, 40)]
    assert [start for start, _, _ in one.stream.known] == [TICK_MIN, 40, 50, 60]


def test_too_many_curious_runs_and_questions_are_held_back() -> None:
    """Clause 6.15."""
    down = ostream(runs_max=3)
    for start in range(0, 40, 10):
        down.answer(S, TickRange(start, start + 5), KnowledgeStream(), ALL)
    assert [start for start, _, _ in down.curious] == [0], "what comes first is needed first"
    one = istream(stream_runs_max=3)
    ticks = TickSet.of(*(TickRange(start, start + 5) for start in range(0, 50, 10)))
    fresh, _ = one.ask(ticks, now_ms=0)
    assert [part.start for part in fresh] == [0, 10, 20]


def test_what_was_forgotten_is_not_acked_until_it_is_known_again() -> None:
    """Clause 6.16."""
    down = ostream()
    down.pass_on([(TICK_MIN, 30, ALWAYS)], batch([15]), ALL, first_time=True, route=S)
    down.forget(10, 20)
    assert down.acked() == [(10, ALWAYS)]
    down.pass_on([(10, 20, ALWAYS)], batch([15]), ALL, first_time=False, route=S)
    assert down.acked() == [(15, ALWAYS)]


def test_curiosity_brings_back_what_was_forgotten() -> None:
    """Clause 6.16."""
    hand = Hand.started(network({"stream_bytes_max": 50}))
    hand.subscribe("alice")
    hand.stalled = {"alice"}
    for price in range(5):
        hand.publish(price)
    hand.subscribe("bob", start=FIRST)
    hand.wait(1_000)
    assert hand.brokers["b"].memory().rows < 5
    assert hand.got("bob") == [FIRST + at for at in range(5)]
