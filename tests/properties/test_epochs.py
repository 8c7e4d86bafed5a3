"""Epochs against a dictionary with the epoch of every edge, named or not."""

from hypothesis import given
from hypothesis import strategies as st

from gapless.model import epochs
from gapless.model.epochs import (
    ALWAYS,
    EPOCH_ALL,
    EPOCH_NONE,
    NEVER,
    Epochs,
    epoch_text,
    first_epoch,
)
from gapless.model.ids import BrokerId
from tests.properties.strategies import EDGES, stamps

#: An edge that no stamp names: it stands for all those that are not heard of yet.
STRANGER = BrokerId("stranger")
edge_sets = st.frozensets(st.sampled_from([*EDGES, STRANGER]))


def twin(stamp: Epochs) -> dict[BrokerId, int]:
    return {edge: stamp.get(edge) for edge in [*EDGES, STRANGER]}


def above(one: dict[BrokerId, int], other: dict[BrokerId, int]) -> bool:
    return all(one[edge] >= other[edge] for edge in one)


@given(stamps, stamps)
def test_joining_and_meeting_take_the_larger_and_the_smaller_epoch_of_each_edge(a: Epochs, b: Epochs) -> None:
    assert twin(a.join(b)) == {edge: max(a.get(edge), b.get(edge)) for edge in twin(a)}
    assert twin(a.meet(b)) == {edge: min(a.get(edge), b.get(edge)) for edge in twin(a)}


@given(stamps, stamps)
def test_covering_means_to_say_as_much_about_every_edge(a: Epochs, b: Epochs) -> None:
    assert a.covers(b) == above(twin(a), twin(b))
    assert a.covers(b) == (a.join(b) == a) == (a.meet(b) == b)


@given(stamps, stamps)
def test_stamps_are_equal_exactly_when_they_say_the_same(a: Epochs, b: Epochs) -> None:
    assert (a == b) == (twin(a) == twin(b)) == (a.covers(b) and b.covers(a))
    assert (str(a) == str(b)) == (a == b)
    if a == b:
        assert hash(a) == hash(b)


@given(stamps, stamps, stamps)
def test_stamps_form_a_lattice(a: Epochs, b: Epochs, c: Epochs) -> None:
    assert a.join(a) == a == a.meet(a)
    assert a.join(b) == b.join(a)
    assert a.meet(b) == b.meet(a)
    assert a.join(b).join(c) == a.join(b.join(c))
    assert a.meet(b).meet(c) == a.meet(b.meet(c))
    assert a.join(a.meet(b)) == a == a.meet(a.join(b))
    assert a.join(b.meet(c)) == a.join(b).meet(a.join(c))


@given(stamps)
def test_every_stamp_lies_between_never_and_always(a: Epochs) -> None:
    assert ALWAYS.covers(a)
    assert a.covers(NEVER)
    assert a.join(NEVER) == a == a.meet(ALWAYS)
    assert a.join(ALWAYS) == ALWAYS
    assert a.meet(NEVER) == NEVER


@given(stamps, edge_sets)
def test_restricting_keeps_the_named_edges_and_says_nothing_of_others(a: Epochs, edges) -> None:
    restricted = a.restrict(edges)
    assert a.covers(restricted)
    assert restricted.restrict(edges) == restricted
    if a.default == EPOCH_ALL:
        assert restricted == a
    else:
        expected = {edge: epoch if edge in edges else EPOCH_NONE for edge, epoch in twin(a).items()}
        assert twin(restricted) == expected


@given(stamps)
def test_items_are_sorted_and_never_the_default(a: Epochs) -> None:
    named = [edge for edge, _ in a.items()]
    assert named == sorted(named)
    assert all(epoch != a.default for _, epoch in a.items())
    assert Epochs(dict(a.items()), a.default) == a


@given(stamps, stamps, edge_sets)
def test_the_caches_remember_the_truth(a: Epochs, b: Epochs, edges) -> None:
    def answers() -> tuple[object, ...]:
        return a.join(b), a.meet(b), a.covers(b), a.restrict(edges)

    warm = answers()
    before = (twin(a), twin(b))
    for cached in (epochs._joined, epochs._met, epochs._covers, epochs._restricted):
        cached.cache_clear()
    assert answers() == warm
    assert answers() == warm
    assert (twin(a), twin(b)) == before


def test_a_stamp_does_not_follow_the_mapping_it_was_made_of() -> None:
    given_epochs = {EDGES[0]: 1}
    stamp = Epochs(given_epochs)
    given_epochs[EDGES[0]] = 2
    assert stamp.get(EDGES[0]) == 1


@given(st.integers(0, 1000), st.integers(0, 2**24 - 1))
def test_a_new_incarnation_is_above_all_epochs_of_the_one_before(incarnation: int, number: int) -> None:
    epoch = first_epoch(incarnation) + number
    assert EPOCH_NONE < epoch < first_epoch(incarnation + 1) < EPOCH_ALL
    assert epoch_text(epoch) == f"{incarnation}.{number}"


def test_stamps_are_printed_for_people() -> None:
    assert str(ALWAYS) == "always"
    assert str(NEVER) == "never"
    assert str(Epochs({EDGES[1]: first_epoch(2) + 5, EDGES[0]: EPOCH_ALL})) == "s1:all s2:2.5"
    assert repr(Epochs({EDGES[0]: EPOCH_NONE}, 7)) == "Epochs(s1:none others:0.7)"


def test_a_stamp_is_not_equal_to_other_types() -> None:
    assert Epochs({EDGES[0]: 1}) != {EDGES[0]: 1}
