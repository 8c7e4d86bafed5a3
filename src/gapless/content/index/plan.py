"""How is one conjunction found, and what is checked when it was? Its plan.

A conjunction is turned into *bounds*, each an interval of a feature, and *residuals*, the things that no
interval of int64 can say. What would take several intervals (`x < 3 OR x > 9`, IN) is split into several
plans, which exclude each other. Then one or two of the bounds become the *access*, by which the
conjunction is found without looking at the others: an equality and, behind it, a range.

Only a heuristic is at work here: whichever access is chosen, the check decides what matches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import TypeAlias

from gapless.content.condition import Atom, Conjunction, Matches
from gapless.content.domain import Domain, Interval
from gapless.content.index.features import (
    ORDER_BYTES,
    Feature,
    TermView,
    feature_of,
    is_text,
    position,
    text_code,
)
from gapless.content.rows import CODE_MAX, CODE_MIN
from gapless.content.sql.printing import prefix_interval
from gapless.content.terms import ColumnTerm, Term, columns_of
from gapless.content.values import KEYS, Key

#: Maximum number of plans into which a conjunction is split; beyond, disjunctions are residuals.
PLANS_MAX = 64
#: Maximum number of values that are looked up one by one.
POINTS_MAX = 1_000
#: Maximum number of terms of a plan that are checked as bounds; more become residuals.
BOUNDS_MAX = 8
#: Maximum number of residuals of a plan that are checked one after another; more are combined into the last.
RESIDUALS_MAX = 4
#: The lengths of beginnings that are looked up; a longer one is looked up by the next shorter length.
BEGINNINGS = (8, 12, 16, 24, 32, 48, 64, 96, 128)


@dataclass(frozen=True, slots=True)
class Within:
    """A term lies in a domain: what is left to check where bounds are not exact."""

    term: Term
    domain: Domain

    @property
    def columns(self) -> frozenset[ColumnTerm]:
        """The columns that are read."""
        return columns_of(self.term)


@dataclass(frozen=True, slots=True)
class AllOf:
    """Several residuals as one, where a conjunction has very many."""

    residuals: tuple[Residual, ...]

    @property
    def columns(self) -> frozenset[ColumnTerm]:
        """The columns that are read."""
        return frozenset[ColumnTerm]().union(*(each.columns for each in self.residuals))


Residual: TypeAlias = Atom | Within | AllOf


@dataclass(frozen=True, slots=True)
class FeatureBound:
    """A feature lies in `low <= code <= high`, or `outside` of it; null does neither.

    For an identity the codes are not known yet: `key` is the value.
    """

    feature: Feature
    low: int
    high: int
    outside: bool = False
    key: Key | None = None

    @property
    def breadth(self) -> float:
        """A guess of how much the bound lets through: below 1 for a narrow interval, 3 for an open one."""
        if self.low == CODE_MIN or self.high == CODE_MAX:
            return 3.0
        low, high = position(self.feature, self.low), position(self.feature, self.high)
        return min(2.0, (high - low) / max(abs(low), abs(high), 1.0))


@dataclass(frozen=True, slots=True)
class FeatureEquality:
    """The equality by which a plan is found: the feature has one of these values."""

    feature: Feature
    keys: tuple[Key, ...]


@dataclass(slots=True)
class MatchPlan:
    """How one conjunction, or one of the parts that it was split into, is found and checked."""

    equal: FeatureEquality | None = None
    #: The bound by which it is found as well; the first of `bounds`.
    range: FeatureBound | None = None
    #: The pattern by which it is found, instead of the two above.
    pattern: Matches | None = None
    bounds: list[FeatureBound] = field(default_factory=list)
    residuals: list[Residual] = field(default_factory=list)


@dataclass(slots=True)
class _Piece:
    """One term of the conjunction."""

    within: Within
    #: Of these at most one can hold; together they say what the domain says.
    bounds: list[FeatureBound]
    #: Whether they say no more than the domain.
    exact: bool
    equal: FeatureEquality | None = None


def plans(conjunction: Conjunction, asked: Callable[[Feature, Key], int]) -> list[MatchPlan]:
    """The plans of a conjunction. `asked` tells how many others ask for the same value."""
    pieces = [_piece(term, domain) for term, domain in conjunction.within.items()]
    residuals: list[Residual] = sorted(conjunction.atoms, key=str)
    pattern = next((atom for atom in residuals if isinstance(atom, Matches) and not atom.negated), None)
    if pattern is not None:
        residuals.remove(pattern)
    best = None if pattern else _rarest(pieces, asked)
    split: list[list[FeatureBound]] = []
    count = 1
    for piece in pieces:
        if piece is best:
            if not _is_exact_equal(piece):
                residuals.append(piece.within)
        elif not piece.bounds or count * len(piece.bounds) > PLANS_MAX or len(split) == BOUNDS_MAX:
            residuals.append(piece.within)
        else:
            count *= len(piece.bounds)
            split.append(piece.bounds)
            if not piece.exact:
                residuals.append(piece.within)
    if len(residuals) > RESIDUALS_MAX:
        residuals = [*residuals[: RESIDUALS_MAX - 1], AllOf(tuple(residuals[RESIDUALS_MAX - 1 :]))]
    equal = best.equal if best else None
    return [_plan(equal, pattern, list(bounds), residuals) for bounds in product(*split)]


def _plan(
    equal: FeatureEquality | None,
    pattern: Matches | None,
    bounds: list[FeatureBound],
    residuals: list[Residual],
) -> MatchPlan:
    found = None
    if pattern is None:
        ranges = [bound for bound in bounds if not bound.outside and bound.key is None]
        found = min(ranges, key=lambda bound: bound.breadth, default=None)
        bounds.sort(key=lambda bound: bound is not found)
    return MatchPlan(equal, found, pattern, bounds, list(residuals))


def _rarest(pieces: list[_Piece], asked: Callable[[Feature, Key], int]) -> _Piece | None:
    """The equality that the fewest others are found by."""
    best, least = None, 0
    for piece in pieces:
        if piece.equal is not None:
            others = sum(asked(piece.equal.feature, key) for key in piece.equal.keys) + len(piece.equal.keys)
            if best is None or others < least:
                best, least = piece, others
    return best


def _is_exact_equal(piece: _Piece) -> bool:
    """Whether being found by the equality is all that the domain asks for."""
    equal = piece.equal
    assert equal is not None
    if equal.feature.view is TermView.IDENTITY:
        return True
    (start, _), *_ = piece.within.domain.intervals
    return equal.keys == (start,)


def _piece(term: Term, domain: Domain) -> _Piece:
    text = is_text(term)
    keys = domain.keys() if len(domain.intervals) <= POINTS_MAX else None
    if keys is not None and not text and not all(_is_inside(key) for key in keys):
        keys = None
    piece = _Piece(Within(term, domain), [], exact=True)
    if domain.null:
        piece.bounds.append(FeatureBound(feature_of(term, TermView.NULL), 1, 1))
    elif keys:
        piece.equal = FeatureEquality(feature_of(term, TermView.IDENTITY), keys)
    hole = domain.hole()
    if hole is not None and not text and all(_is_inside(key) for key in hole):
        low, high = hole
        assert isinstance(low, int)
        assert isinstance(high, int)
        piece.bounds.append(FeatureBound(feature_of(term, TermView.ORDER), low, high - 1, outside=True))
    elif hole is not None and text and Domain(domain.kind, (hole,)).keys():
        piece.bounds.append(
            FeatureBound(feature_of(term, TermView.IDENTITY), 0, 0, outside=True, key=hole[0])
        )
    elif len(domain.intervals) > PLANS_MAX:
        piece.bounds = []  # too many to be checked one by one: all of them are, at once
    elif keys and text:
        piece.bounds += [FeatureBound(feature_of(term, TermView.IDENTITY), 0, 0, key=key) for key in keys]
    else:
        for interval in domain.intervals:
            bound, exact = _text_bound(term, interval) if text else _bound(term, interval)
            piece.bounds.append(bound)
            piece.exact = piece.exact and exact
        if text and not domain.null:
            piece.equal = _beginning(term, domain)
    return piece


def _bound(term: Term, interval: Interval) -> tuple[FeatureBound, bool]:
    """An interval of keys as an interval of codes, and whether it says no more."""
    start, stop = interval
    assert isinstance(start, int)
    assert isinstance(stop, int)
    every = KEYS[term.kind]
    low = CODE_MIN if start == every.least else _clipped(start)
    high = CODE_MAX if stop == every.stop else _clipped(stop - 1)
    exact = (start == every.least or _is_inside(start)) and (stop == every.stop or _is_inside(stop - 1))
    return FeatureBound(feature_of(term, TermView.ORDER), low, high), exact


def _text_bound(term: Term, interval: Interval) -> tuple[FeatureBound, bool]:
    start, stop = interval
    low = CODE_MIN if not start else text_code(start)
    if stop is None:
        return FeatureBound(feature_of(term, TermView.ORDER), low, CODE_MAX), _is_short(start)
    exact = _is_short(stop)
    high = text_code(stop) - (1 if exact else 0)
    return FeatureBound(feature_of(term, TermView.ORDER), low, max(low, high)), exact and _is_short(
        start
    ) and low <= high


def _beginning(term: Term, domain: Domain) -> FeatureEquality | None:
    """A long LIKE 'prefix%' is found by its first characters, which the order code would cut off."""
    if len(domain.intervals) != 1:
        return None
    start, _ = domain.intervals[0]
    if not isinstance(start, str) or domain.intervals[0] != prefix_interval(start):
        return None
    length = max((each for each in BEGINNINGS if each <= len(start)), default=0)
    return (
        FeatureEquality(feature_of(term, TermView.BEGINNING, length), (start[:length],)) if length else None
    )


def _is_short(text: Key) -> bool:
    """Whether the code of a text tells it apart from all texts that are not below it."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    assert isinstance(data, bytes)
    return len(data) < ORDER_BYTES and not data.endswith(b"\0")


def _is_inside(key: Key | None) -> bool:
    """Whether the code of a number belongs to it alone."""
    return isinstance(key, int) and CODE_MIN < key < CODE_MAX


def _clipped(key: int) -> int:
    return min(max(key, CODE_MIN), CODE_MAX)
