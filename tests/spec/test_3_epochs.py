"""Section 3 of docs/protocol.md: stamps, and for whom silence is true."""

import pytest

from gapless.content.condition import EVERYTHING
from gapless.content.selection import Selection
from gapless.errors import PeerError, SupersededError
from gapless.model.epochs import (
    ALWAYS,
    EPOCH_ALL,
    EPOCH_NONE,
    LIFE_STEP,
    Epochs,
    clock_at,
    epoch_text,
    first_epoch,
    lives_max,
)
from gapless.model.ids import BrokerId, CellId
from gapless.model.stream import KnowledgeStream
from gapless.model.ticks import TICK_MIN, TickRange, TickSet
from gapless.protocol.curiosity import NackClock
from gapless.protocol.events import MessageReceived, Now
from gapless.protocol.istream import Istream
from gapless.protocol.lane import Lane
from gapless.protocol.messages import AdvertisementAckMessage, AdvertisementMessage, KnowledgeMessage
from gapless.protocol.ostream import CellFilter, Ostream
from gapless.protocol.parameters import Parameters
from tests.conditions import where
from tests.spec.hand import PUBEND, Hand, batch, network

S1, S2, S3 = BrokerId("s1"), BrokerId("s2"), BrokerId("s3")
BELOW = frozenset({S1, S2})


def ostream() -> Ostream:
    return Ostream(CellId("S"), BELOW, runs_max=100)


def lane() -> Lane:
    return Lane(PUBEND, S1, Istream(PUBEND, Parameters()), NackClock(Parameters()))


def test_every_change_and_every_life_has_a_higher_epoch() -> None:
    """Clause 3.1."""
    hand = Hand.started(network())
    hand.subscribe("alice")
    hand.subscribe("bob")
    first_life = [message.epochs.get(BrokerId("s")) for message in hand.sent(AdvertisementMessage, "s")]
    assert first_life == [first_epoch(1), first_epoch(1) + 1, first_epoch(1) + 2]
    assert first_epoch(2) > first_epoch(1) + 1_000_000
    assert epoch_text(first_epoch(2) + 5) == "2.5"


def test_silence_without_publishing_is_true_for_all_epochs() -> None:
    """Clause 3.4."""
    hand = Hand.started(network())
    hand.subscribe("alice", where("price = 7"))
    hand.publish(7)
    message = hand.sent(KnowledgeMessage, "b", "s")[-1]
    assert {stamp for _, _, stamp in message.runs} == {ALWAYS}
    assert ALWAYS.get(BrokerId("an edge of the future")) == EPOCH_ALL


def test_of_two_stamps_for_one_tick_the_larger_epochs_hold() -> None:
    """Clause 3.5."""
    stream = KnowledgeStream()
    stream.accumulate([(0, 10, Epochs({S1: 4, S2: 1}))], None)
    stream.accumulate([(0, 10, Epochs({S1: 3, S2: 8}))], None)
    assert list(stream.known) == [(0, 10, Epochs({S1: 4, S2: 8}))]
    assert Epochs({S1: 4}).join(ALWAYS) == ALWAYS


def test_of_two_stamps_for_several_ticks_the_smaller_epochs_hold() -> None:
    """Clause 3.6."""
    assert Epochs({S1: 4, S2: 1}).meet(Epochs({S1: 3, S2: 8})) == Epochs({S1: 3, S2: 1})
    assert Epochs({S1: 4}).meet(ALWAYS) == Epochs({S1: 4})
    assert Epochs({S1: 4}).meet(Epochs({S2: 4})) == Epochs({})


def test_silence_is_stamped_with_the_epochs_of_the_filter_that_made_it() -> None:
    """Clause 3.7."""
    wants = CellFilter(Selection([where("price = 7")]), Epochs({S1: 5, S2: 6}))
    down = ostream()
    down.pass_on([(0, 10, ALWAYS)], batch([4], [3]), wants, first_time=True, route=None)
    assert list(down.passed) == [(0, 10, Epochs({S1: 5, S2: 6}))]


def test_a_filter_that_rejects_nothing_leaves_the_stamps_alone() -> None:
    """Clause 3.7."""
    wants = CellFilter(Selection([EVERYTHING]), Epochs({S1: 5, S2: 6}))
    down = ostream()
    (telling,) = down.pass_on([(0, 10, ALWAYS)], batch([4]), wants, first_time=True, route=None)
    assert telling.runs == [(0, 10, ALWAYS)]


def test_a_stamp_for_a_cell_speaks_of_the_edges_below_it_alone() -> None:
    """Clause 3.8."""
    whole = Epochs({S1: 5, S3: 9})
    assert whole.restrict(BELOW) == Epochs({S1: 5})
    assert ALWAYS.restrict(BELOW) == ALWAYS
    down = ostream()
    down.pass_on([(0, 10, whole)], None, CellFilter(), first_time=True, route=None)
    assert list(down.passed) == [(0, 10, Epochs({S1: 5}))]


def test_silence_made_before_a_subscription_was_born_is_unknown_to_it() -> None:
    """Clause 3.9."""
    one = lane()
    one.istream.accumulate(((0, 30, Epochs({S1: 4})),), None, TICK_MIN)
    one.require(10, epoch=5)
    assert one.resolved(0) == 10
    assert one.gaps(0, 30) == TickSet.between(10, 30)
    assert one.resolved_under(0, need=4) == 30


def test_data_in_a_run_with_too_old_a_stamp_waits_with_the_run() -> None:
    """Clause 3.9."""
    one = lane()
    one.istream.accumulate(((0, 30, Epochs({S1: 4})),), batch([15]), TICK_MIN)
    one.require(10, epoch=5)
    assert one.resolved(0) == 10
    assert one.istream.accumulate(((10, 30, Epochs({S1: 5})),), None, TICK_MIN)[1] == batch([15])
    assert one.resolved(0) == 30


def test_without_a_filter_for_an_edge_silence_says_nothing_of_it() -> None:
    """Clause 3.10."""
    heard_of_s1_only = CellFilter(Selection(), Epochs({S1: 5}))
    down = ostream()
    down.pass_on([(0, 10, ALWAYS)], batch([4]), heard_of_s1_only, first_time=True, route=None)
    ((_, _, stamp),) = list(down.passed)
    assert stamp.get(S2) == EPOCH_NONE


def test_a_cell_with_an_unknown_edge_is_answered_only_what_is_always_true() -> None:
    """Clause 3.10."""
    stream = KnowledgeStream()
    stream.accumulate([(0, 10, ALWAYS), (10, 20, Epochs({S1: 5, S2: 5}))], None)
    heard_of_s1_only = CellFilter(Selection(), Epochs({S1: 5}))
    telling, unknown = ostream().answer(S1, TickRange(0, 20), stream, heard_of_s1_only)
    assert telling is not None
    assert telling.runs == [(0, 10, ALWAYS)]
    assert unknown == TickSet.between(10, 20)


def test_a_broker_that_was_told_of_the_last_life_that_is_believed_goes_on_above_it() -> None:
    """Clause 3.11."""
    hand = Hand.started(network(), clock=clock_at(1_000_000_000))
    last = lives_max(hand.clock)
    now = Now(ms=hand.ms, clock=hand.clock)

    def told(life: int) -> MessageReceived:
        ack = AdvertisementAckMessage(root=CellId("P"), origin=BrokerId("s"), version=first_epoch(life))
        return MessageReceived(sender=BrokerId("b"), message=ack)

    with pytest.raises(PeerError, match=r"E204 'b' tells of life .* of 's', as if that had begun in 2160"):
        hand.brokers["s"].step(told(last + 1), now)
    with pytest.raises(SupersededError) as caught:
        hand.brokers["s"].step(told(last), now)
    hand.crash("s")
    # By all clocks it is a moment later when it has started.
    hand.clock += 250_000
    hand.incarnations["s"] = caught.value.incarnation + LIFE_STEP - 1
    hand.start("s")
    hand.link_up("b", "s")
    hand.subscribe("alice")
    hand.publish(7)
    assert len(hand.got("alice")) == 1
    assert hand.sent(AdvertisementMessage, "s")[-1].version > first_epoch(last + 1)
