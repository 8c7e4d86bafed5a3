"""TickRange and TickSet against plain sets of ticks."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gapless.model.ticks import EMPTY, TICK_MAX, TICK_MIN, TickRange, TickSet
from tests.properties.strategies import DOMAIN, inside, spans, tick_sets, ticks

ranges = spans.map(lambda span: TickRange(*span))


def twin(ticks: TickSet) -> set[int]:
    return {tick for start, stop in ticks.pairs() for tick in range(start, stop)}


def assert_normal(ticks: TickSet) -> None:
    pairs = list(ticks.pairs())
    assert all(start < stop for start, stop in pairs), f"{ticks} has an empty range"
    assert all(a[1] < b[0] for a, b in pairwise(pairs)), f"{ticks} has ranges that touch"


@given(ranges, ranges)
def test_ranges_agree_with_sets(one: TickRange, other: TickRange) -> None:
    a, b = set(range(one.start, one.stop)), set(range(other.start, other.stop))
    assert (bool(one), one.ticks) == (bool(a), len(a))
    assert set(range((one & other).start, (one & other).stop)) == a & b
    assert [tick for tick in range(-1, DOMAIN + 1) if tick in one] == sorted(a)


@given(st.lists(spans, max_size=8))
def test_a_set_holds_the_ticks_of_its_ranges_in_normal_form(pairs: list[tuple[int, int]]) -> None:
    expected = {tick for span in pairs for tick in inside(span)}
    for made in (TickSet.from_pairs(pairs), TickSet.of(*(TickRange(*span) for span in pairs))):
        assert_normal(made)
        assert twin(made) == expected
        assert (bool(made), made.ticks) == (bool(expected), len(expected))
        assert len(made) == len(list(made)) == len(list(made.pairs()))


@given(st.lists(st.integers(0, DOMAIN), unique=True, max_size=12).map(sorted), st.booleans())
def test_ranges_that_ascend_and_may_touch_are_merged(ends: list[int], touching: bool) -> None:
    pairs = list(pairwise(ends)) if touching else list(zip(ends[::2], ends[1::2], strict=False))
    made = TickSet.from_sorted(pairs)
    assert_normal(made)
    assert made == TickSet.from_pairs(pairs)


@given(st.lists(spans, max_size=8), st.randoms())
def test_sets_of_the_same_ticks_are_equal_however_they_were_made(pairs, random) -> None:
    one_by_one = EMPTY
    shuffled = list(pairs)
    random.shuffle(shuffled)
    for start, stop in shuffled:
        one_by_one |= TickSet.between(start, stop)
    at_once = TickSet.from_pairs(pairs)
    assert one_by_one == at_once
    assert hash(one_by_one) == hash(at_once)
    assert str(one_by_one) == str(at_once)


@given(tick_sets, tick_sets)
def test_sets_are_equal_exactly_when_their_ticks_are(one: TickSet, other: TickSet) -> None:
    assert (one == other) == (twin(one) == twin(other))


@given(tick_sets, tick_sets)
def test_the_algebra_agrees_with_sets(one: TickSet, other: TickSet) -> None:
    a, b = twin(one), twin(other)
    for made, expected in ((one | other, a | b), (one & other, a & b), (one - other, a - b)):
        assert_normal(made)
        assert twin(made) == expected
    assert (twin(one), twin(other)) == (a, b), "an operand was changed"


@given(tick_sets, spans)
def test_questions_about_a_span_agree_with_sets(ticks: TickSet, span: tuple[int, int]) -> None:
    expected = twin(ticks) & set(inside(span))
    clipped = ticks.clip(*span)
    assert_normal(clipped)
    assert twin(clipped) == expected
    assert ticks.covers(*span) == (expected == set(inside(span)))
    assert twin(TickSet.between(*span)) == set(inside(span))


@given(tick_sets, ticks)
def test_membership_agrees_with_sets(ticks: TickSet, tick: int) -> None:
    expected = twin(ticks)
    assert (tick in ticks) == (tick in expected)
    assert -1 not in ticks
    if ticks:
        assert (ticks.start, ticks.stop) == (min(expected), max(expected) + 1)
        assert ticks.stop not in ticks


@given(tick_sets, st.integers(0, 50), st.integers(0, 8))
def test_chopping_keeps_every_tick_and_its_bounds(ticks: TickSet, ticks_max: int, parts_max: int) -> None:
    parts = ticks.chopped(ticks_max, parts_max)
    assert [tick for part in parts for tick in range(part.start, part.stop)] == sorted(twin(ticks))
    assert all(parts)
    assert len(parts) - len(ticks) <= max(1, parts_max), "more cuts than allowed"
    least_size = -(-ticks.ticks // max(1, parts_max))
    assert all(part.ticks <= max(1, ticks_max, least_size) for part in parts)


@given(tick_sets)
def test_all_of_time_behaves_like_any_other_range(ticks: TickSet) -> None:
    everything = TickSet.between(TICK_MIN, TICK_MAX)
    assert everything & ticks == ticks
    assert everything | ticks == everything
    assert ticks - everything == EMPTY
    rest = everything - ticks
    assert rest.ticks == everything.ticks - ticks.ticks
    assert rest | ticks == everything
    assert rest.clip(TICK_MIN, TICK_MAX) == rest
    assert len(rest.chopped(1_000, 16)) <= 16 + len(rest)


def test_a_range_without_an_end_is_printed_without_one() -> None:
    assert str(TickRange(TICK_MIN, 5)) == "..5"
    assert str(TickRange(5, TICK_MAX)) == "5.."
    assert str(TickSet.of(TickRange(7, 9), TickRange(1, 2))) == "1..2 7..9"
    assert str(EMPTY) == "nothing"
    assert repr(TickSet.between(1, 2)) == "TickSet(1..2)"


def test_a_set_is_not_equal_to_other_types() -> None:
    assert TickSet.between(1, 2) != TickRange(1, 2)


wide_pairs = st.tuples(st.integers(0, 1_000), st.integers(0, 12)).map(lambda pair: (pair[0], sum(pair)))


@given(st.lists(wide_pairs, min_size=20, max_size=80), st.lists(wide_pairs, max_size=4))
def test_a_union_with_a_few_ranges_agrees_with_sets(
    many: list[tuple[int, int]], few: list[tuple[int, int]]
) -> None:
    one, other = TickSet.from_pairs(many), TickSet.from_pairs(few)
    for union in (one | other, other | one):
        assert_normal(union)
        assert twin(union) == twin(one) | twin(other)
