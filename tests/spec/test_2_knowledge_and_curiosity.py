"""Section 2 of docs/protocol.md: the lattices, and streams as runs with rows beside them."""

from itertools import product

import pytest

from gapless.model.epochs import ALWAYS, Epochs
from gapless.model.ids import BrokerId
from gapless.model.stream import KnowledgeStream
from gapless.model.ticks import TICK_MAX, TICK_MIN, Tick, TickSet
from gapless.protocol.istream import Istream
from gapless.protocol.parameters import Parameters
from tests.properties.lattices import Curiosity, Knowledge
from tests.spec.hand import PUBEND, batch

OLD = Epochs({BrokerId("s"): 1})
NEW = Epochs({BrokerId("s"): 2})


def value_at(stream: KnowledgeStream, tick: Tick) -> str:
    """What the stream knows of one tick, as the letter of the lattice."""
    if stream.known.get(tick) is None:
        return "Q"
    return "D" if stream.rows.between(tick, tick + 1) else "F"


def test_the_lattice_is_ordered_as_drawn() -> None:
    """Clause 2.1."""
    below = {(a.value, b.value) for a, b in product(Knowledge, repeat=2) if a <= b and a is not b}
    assert below == {
        *(("Q", above) for above in ("D", "F", "D*", "S", "E")),
        *(("D", above) for above in ("D*", "E")),
        *(("F", above) for above in ("D*", "S", "E")),
        ("D*", "E"),
        ("S", "E"),
    }


def test_joining_does_not_care_for_order_or_repetition() -> None:
    """Clause 2.2."""
    for a, b, c in product(Knowledge, repeat=3):
        assert a.join(b) is b.join(a)
        assert a.join(b).join(c) is a.join(b.join(c))
        assert a.join(a) is a
        assert a <= a.join(b)


def test_silence_and_delivered_data_are_kept_as_final() -> None:
    """Clause 2.3."""
    assert Knowledge.UNKNOWN.accumulate(Knowledge.SILENCE) is Knowledge.FINAL
    assert Knowledge.DATA.accumulate(Knowledge.FINAL) is Knowledge.FINAL


def test_data_where_there_was_silence_is_an_error_of_ours() -> None:
    """Clause 2.4."""
    with pytest.raises(AssertionError, match="cannot be both D and S"):
        Knowledge.DATA.accumulate(Knowledge.SILENCE)


def test_forgetting_lowers_to_unknown() -> None:
    """Clause 2.5."""
    assert all(value.forgotten() is Knowledge.UNKNOWN for value in Knowledge)
    stream = KnowledgeStream()
    stream.accumulate([(0, 10, ALWAYS)], batch([4]))
    stream.forget(3, 6)
    assert [value_at(stream, tick) for tick in (2, 3, 4, 5, 6)] == ["F", "Q", "Q", "Q", "F"]


def test_acked_is_above_curious_and_curious_above_neutral() -> None:
    """Clause 2.6."""
    assert Curiosity.NEUTRAL.join(Curiosity.CURIOUS) is Curiosity.CURIOUS
    assert Curiosity.ACKED.join(Curiosity.CURIOUS) is Curiosity.ACKED


def test_one_curious_stream_or_one_missing_ack_is_enough() -> None:
    """Clause 2.7."""
    neutral, curious, acked = Curiosity.NEUTRAL, Curiosity.CURIOUS, Curiosity.ACKED
    assert acked.folded(acked) is acked
    assert acked.folded(neutral) is neutral
    assert acked.folded(curious) is curious
    assert neutral.folded(curious) is curious


def test_what_is_settled_is_no_longer_asked_for() -> None:
    """Clause 2.8."""
    istream = Istream(PUBEND, Parameters())
    istream.ask(TickSet.between(0, 30), now_ms=0)
    istream.accumulate(((0, 10, ALWAYS),), None, TICK_MIN)
    istream.settle(((5, ALWAYS),))
    assert istream.asked.ticks(TICK_MIN, TICK_MAX) == TickSet.between(10, 30)
    istream.settle(((20, ALWAYS),))
    assert istream.asked.ticks(TICK_MIN, TICK_MAX) == TickSet.between(20, 30)


def test_known_with_a_row_is_data_and_without_is_final() -> None:
    """Clause 2.9."""
    stream = KnowledgeStream()
    stream.accumulate([(10, 13, ALWAYS)], batch([11]))
    assert [value_at(stream, tick) for tick in range(9, 14)] == ["Q", "F", "D", "F", "Q"]


def test_only_news_comes_back_and_a_better_stamp_brings_all_its_rows() -> None:
    """Clause 2.10."""
    stream = KnowledgeStream()
    assert stream.accumulate([(0, 10, OLD)], batch([4])) == ([(0, 10, OLD)], batch([4]))
    assert stream.accumulate([(0, 10, OLD)], batch([4])) == ([], None)
    assert stream.accumulate([(8, 12, OLD)], None) == ([(10, 12, OLD)], None)
    assert stream.accumulate([(3, 6, NEW)], None) == ([(3, 6, NEW)], batch([4]))


def test_a_long_history_is_one_run() -> None:
    """Clause 2.11."""
    stream = KnowledgeStream()
    for start in range(0, 1_000, 10):
        stream.accumulate([(start, start + 10, ALWAYS)], batch([start + 5]))
    stream.finalise(TICK_MIN, 1_000, ALWAYS)
    assert list(stream.known) == [(TICK_MIN, 1_000, ALWAYS)]
    assert stream.rows.rows == 0


def test_finalised_data_has_the_new_stamp_and_no_other() -> None:
    """Clause 2.12."""
    stream = KnowledgeStream()
    stream.accumulate([(0, 20, NEW)], batch([8, 11]))
    stream.finalise(0, 20, OLD)
    assert list(stream.known) == [(0, 8, NEW), (8, 12, OLD), (12, 20, NEW)]
    assert stream.rows.rows == 0
