"""Domains against sets of keys, one key at a time."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from gapless.content.domain import Domain
from gapless.content.values import Key

#: All integers that are tried, and all texts; the texts have next keys among them.
INTEGERS = list(range(-2, 12))
TEXTS = ["", "\0", "a", "a\0", "a\0\0", "ab", "b", "b\0", "ba"]

spans = st.tuples(st.none() | st.sampled_from(INTEGERS), st.none() | st.sampled_from(INTEGERS))
integer_domains = st.builds(
    lambda pieces, null: Domain.of("int", pieces, null=null), st.lists(spans), st.booleans()
)
text_spans = st.tuples(st.none() | st.sampled_from(TEXTS), st.none() | st.sampled_from(TEXTS))
text_domains = st.builds(
    lambda pieces, null: Domain.of("string", pieces, null=null), st.lists(text_spans), st.booleans()
)


def keys(domain: Domain, tried: Iterable[Key]) -> set[Key | None]:
    return {key for key in (None, *tried) if domain.admits(key)}


@given(integer_domains, integer_domains)
def test_integer_domains_are_sets(left: Domain, right: Domain) -> None:
    check(left, right, INTEGERS)


@given(text_domains, text_domains)
def test_text_domains_are_sets(left: Domain, right: Domain) -> None:
    check(left, right, TEXTS)


def check(left: Domain, right: Domain, tried: Iterable[Key]) -> None:
    first, second = keys(left, tried), keys(right, tried)
    assert keys(left | right, tried) == first | second
    assert keys(left & right, tried) == first & second
    assert keys(left.without_null_inverse(), tried) == set(tried) - first
    if left.includes(right):
        assert second <= first
    assert (left | right).includes(left)
    assert left.includes(left & right)
    assert (left & right) == (right & left)


@given(integer_domains)
def test_equal_sets_are_equal_domains(domain: Domain) -> None:
    assert domain | domain == domain
    assert domain & Domain.all("int", null=True) == domain
    twice = domain.without_null_inverse().without_null_inverse()
    assert twice == Domain("int", domain.intervals)


@given(st.lists(st.sampled_from(INTEGERS)))
def test_points_are_listed(points: list[int]) -> None:
    domain = Domain.points("int", points)
    listed = domain.keys()
    if listed is not None:
        assert set(listed) == set(points)
    assert keys(domain, INTEGERS) == set(points)
