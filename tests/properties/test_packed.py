"""A condition survives its journey; and whatever a peer sends instead is refused, or is a sound condition."""

from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapless.content.condition import EVERYTHING, NOTHING, Condition
from gapless.content.covering.cover import surely_covers
from gapless.content.domain import Domain
from gapless.content.evaluate import mask
from gapless.content.rows import Rows
from gapless.content.size import size_of
from gapless.errors import ContentError
from gapless.model.ids import TopicId
from gapless.model.schema import Schema
from gapless.wire.conditions import Unpacker, pack
from tests.conditions import where
from tests.properties.drawn import KINDS, random_condition, random_rows

SCHEMA = Schema.parse(TopicId("trades"), {name: f"{kind}?" for name, kind in KINDS.items()})
ROWS = Rows(random_rows(Random(1), 20))

seeds = st.integers(0, 2**32)
#: What can stand where a bound or anything else is expected.
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
things = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4), max_leaves=12)
bounds = st.lists(
    st.integers(-3, 3) | st.sampled_from(["", "a", "b", b"", b"a", None, "17", "-1", 2**63]), max_size=6
)
conjunctions = st.lists(st.tuples(st.sampled_from([*KINDS, "z"]), st.booleans(), bounds), max_size=3)


def unpacked(packed: bytes) -> Condition:
    return Unpacker(SCHEMA).unpack(packed)


def sound(packed: bytes) -> None:
    """Refused, or a condition that everybody can work with."""
    try:
        condition = unpacked(packed)
    except ContentError:
        return
    assert condition.misfit(SCHEMA) is None
    assert surely_covers(condition, condition)
    assert len(mask(condition, ROWS)) == 20
    for conjunction in condition.terms:
        for domain in conjunction.within.values():
            assert domain == Domain.of(domain.kind, domain.intervals, null=domain.null)
            assert not domain.is_empty


@given(seeds)
def test_a_condition_is_read_as_it_was_written(seed: int) -> None:
    condition = random_condition(Random(seed), 3)
    packed = pack(condition)
    assert unpacked(packed) == condition
    assert str(unpacked(packed)) == str(condition)
    assert len(packed) <= size_of(condition), "parts are cut by a size that must not be too small"


@given(seeds, st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_bytes_are_refused_or_sound(seed: int, damages: list[tuple[int, int]]) -> None:
    packed = bytearray(pack(random_condition(Random(seed), 2)))
    for at, value in damages:
        packed[at % len(packed)] = value
    sound(bytes(packed))
    sound(bytes(packed[: damages[0][0] % len(packed)]))


@given(things)
def test_any_message_is_refused_or_sound(thing: object) -> None:
    sound(msgspec.msgpack.encode(thing))


@given(st.lists(conjunctions, max_size=3))
def test_mutated_conditions_are_refused_or_sound(drawn: list[object]) -> None:
    sound(msgspec.msgpack.encode(drawn))


@given(st.binary(max_size=40))
def test_any_text_is_refused_or_sound(text: bytes) -> None:
    sound(b"\0" + text)


@pytest.mark.parametrize(
    ("column", "null", "wrong"),
    [
        ("i", False, []),
        ("i", False, [1]),
        ("i", False, [1, 1]),
        ("i", False, [2, 1]),
        ("i", False, [1, 3, 3, 5]),
        ("i", False, [1, 5, 3, 9]),
        ("i", False, [1, None]),
        ("i", False, [None, 1]),
        ("i", False, [1, 2**63 + 1]),
        ("i", False, ["1", "2"]),
        ("i", False, [True, 5]),
        ("i", False, [1.0, 2.0]),
        ("b", False, [0, 3]),
        ("d", False, ["1e3", "9" * 30]),
        ("d", False, [0, "9" * 39]),
        ("s", False, [b"a", b"b"]),
        ("s", False, ["a", None, "b", None]),
        ("y", False, ["a", "b"]),
        ("z", False, [1, 2]),
    ],
)
def test_sets_that_are_none_are_refused(column: str, null: bool, wrong: list[object]) -> None:
    with pytest.raises(ContentError, match="E160 the packed condition is damaged"):
        unpacked(msgspec.msgpack.encode([[(column, null, wrong)]]))


def test_a_column_that_is_restricted_twice_is_refused() -> None:
    with pytest.raises(ContentError, match="column i is restricted twice"):
        unpacked(msgspec.msgpack.encode([[("i", False, [1, 2]), ("i", False, [5, 6])]]))


def test_lists_without_end_are_refused() -> None:
    for deep in (b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b"", b"\xc1"):
        with pytest.raises(ContentError):
            unpacked(deep)


def test_everything_and_nothing_travel() -> None:
    assert unpacked(pack(EVERYTHING)) is EVERYTHING
    assert unpacked(pack(NOTHING)) == NOTHING
    assert np.array_equal(mask(unpacked(pack(EVERYTHING)), ROWS), np.ones(20, np.bool_))


def test_sets_of_values_travel_packed_and_the_rest_as_text() -> None:
    plain = where("n IN (1, 5) AND s LIKE 'ab%'", n="int", s="string")
    assert len(pack(plain)) < len(str(plain))
    for text in ("s LIKE 'a%b'", "n + m = 3", "n < m"):
        rest = where(text, n="int", m="int", s="string")
        assert pack(rest) == b"\0" + str(rest).encode()
