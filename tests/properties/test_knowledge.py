"""The Knowledge and Curiosity lattices, exhaustively."""

from itertools import product

import pytest

from tests.properties.lattices import Curiosity, Knowledge

Q, D, F = Knowledge.UNKNOWN, Knowledge.DATA, Knowledge.FINAL
DELIVERED, S, E = Knowledge.DELIVERED, Knowledge.SILENCE, Knowledge.ERROR
#: What a stream may hold.
HELD = (Q, D, F)

#: The lines of the picture in the docstring of Knowledge, lower end first.
LINES = {(Q, D), (Q, F), (D, DELIVERED), (F, DELIVERED), (F, S), (DELIVERED, E), (S, E)}


PAIRS = list(product(Knowledge, repeat=2))


def is_below(lower: Knowledge, upper: Knowledge) -> bool:
    return lower is upper or any(is_below(b, upper) for a, b in LINES if a is lower)


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_the_order_is_that_of_the_picture(a: Knowledge, b: Knowledge) -> None:
    assert (a <= b) == is_below(a, b)


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_a_join_is_the_least_value_above_both(a: Knowledge, b: Knowledge) -> None:
    joined = a.join(b)
    above_both = [value for value in Knowledge if is_below(a, value) and is_below(b, value)]
    assert joined in above_both
    assert all(is_below(joined, value) for value in above_both)


def test_joining_is_idempotent_commutative_and_associative() -> None:
    for a, b, c in product(Knowledge, repeat=3):
        assert a.join(a) is a
        assert a.join(b) is b.join(a)
        assert a.join(b).join(c) is a.join(b.join(c))
        assert (a <= b) == (a.join(b) is b)


def test_only_silence_and_delivered_are_lowered_and_only_to_final() -> None:
    assert {value: value.lowered() for value in Knowledge} == {Q: Q, D: D, F: F, DELIVERED: F, S: F, E: E}


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_accumulating_joins_and_lowers_or_raises_on_a_contradiction(a: Knowledge, b: Knowledge) -> None:
    if a.join(b) is E:
        with pytest.raises(AssertionError, match="cannot be both"):
            a.accumulate(b)
    else:
        assert a.accumulate(b) is a.join(b).lowered()


def test_what_a_stream_holds_accumulates_without_contradiction_in_any_order() -> None:
    for a, b, c in product(HELD, repeat=3):
        assert a.accumulate(b) in HELD
        assert a.accumulate(a) is a
        assert a.accumulate(b) is b.accumulate(a)
        assert a.accumulate(b).accumulate(c) is a.accumulate(b.accumulate(c))


def test_silence_is_accumulated_as_final_unless_there_was_data() -> None:
    assert Q.accumulate(S) is F
    assert F.accumulate(S) is F
    with pytest.raises(AssertionError, match="cannot be both D and S"):
        D.accumulate(S)


@pytest.mark.parametrize("value", list(Knowledge))
def test_nothing_is_left_after_forgetting(value: Knowledge) -> None:
    assert value.forgotten() is Q


@pytest.mark.parametrize(("a", "b"), list(product(Curiosity, repeat=2)))
def test_curiosity_joins_to_the_later_of_neutral_curious_acked(a: Curiosity, b: Curiosity) -> None:
    order = [Curiosity.NEUTRAL, Curiosity.CURIOUS, Curiosity.ACKED]
    assert a.join(b) is order[max(order.index(a), order.index(b))]


@pytest.mark.parametrize(("a", "b", "c"), list(product(Curiosity, repeat=3)))
def test_folded_curiosity_asks_if_any_asks_and_acks_if_all_do(
    a: Curiosity, b: Curiosity, c: Curiosity
) -> None:
    wants = {a, b, c}
    if Curiosity.CURIOUS in wants:
        expected = Curiosity.CURIOUS
    else:
        expected = Curiosity.ACKED if wants == {Curiosity.ACKED} else Curiosity.NEUTRAL
    assert a.folded(b).folded(c) is expected
    assert c.folded(a.folded(b)) is expected


def test_joining_curiosity_is_idempotent_commutative_and_associative() -> None:
    for a, b, c in product(Curiosity, repeat=3):
        assert a.join(a) is a
        assert a.join(b) is b.join(a)
        assert a.join(b).join(c) is a.join(b.join(c))
