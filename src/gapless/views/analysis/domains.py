"""How may the value of a column change while events come in? Its monotonic domain, as SMILE calls it.

Every column of every row moves through a domain in one direction only, from less to more information:

- `key`: names the row, and never changes.
- `event`: final once it is known; so is every column of a topic, and `first` of a group.
- `counter`: a count, or a sum of values that are never negative; it only rises.
- `pair`: a signed sum, a difference, an average; its positive and negative parts are counters.
- `extremum`: a maximum only rises, a minimum only falls.
- `latest`: replaced by newer values; only its age is monotonic.

Time here is that of ticks: a `first` over several pubends is final as soon as all of them have passed its
tick, and until then an older event of a slower one may still replace it.

The value of a pair may still move in one direction only: `qty - total` only falls when qty is final and total
a counter. That is its `Motion`, from which `views.visibility` derives what can happen to a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import Enum
from typing import Literal as OneOf
from typing import TypeAlias

from gapless.views.expressions import Call, ColumnRef, Expression, Literal
from gapless.views.functions import NUMBERS
from gapless.views.logic import conjuncts
from gapless.views.relation import Aggregate

DomainName: TypeAlias = OneOf["key", "event", "counter", "pair", "extremum", "latest"]


class Motion(Enum):
    """Which way a known value may still move."""

    FIXED = "final"
    RISES = "rises"
    FALLS = "falls"
    ANY = "rises and falls"

    def __or__(self, other: Motion) -> Motion:
        """What moves like either: the sum of two values, say.

        >>> Motion.RISES | Motion.FIXED, Motion.RISES | Motion.FALLS
        (<Motion.RISES: 'rises'>, <Motion.ANY: 'rises and falls'>)
        """
        if self is other or other is Motion.FIXED:
            return self
        return other if self is Motion.FIXED else Motion.ANY

    def __neg__(self) -> Motion:
        match self:
            case Motion.RISES:
                return Motion.FALLS
            case Motion.FALLS:
                return Motion.RISES
            case _:
                return self


@dataclass(frozen=True, slots=True)
class MonotonicDomain:
    """How one column may change.

    >>> print(MonotonicDomain("counter", Motion.RISES)), print(MonotonicDomain("key", Motion.FIXED))
    counter (rises)
    key
    (None, None)
    """

    name: DomainName
    motion: Motion
    #: Whether it is known to be at least 0, at most 0.
    not_negative: bool = False
    not_positive: bool = False
    #: Whether it may be null at first and known later. A null of an event is final.
    arrives: bool = False

    @property
    def is_final(self) -> bool:
        """Whether it never changes once the row exists."""
        return self.motion is Motion.FIXED and not self.arrives

    def __str__(self) -> str:
        if self.name in ("key", "event"):
            return f"{self.name}, may come later" if self.arrives else self.name
        motion = "replaced" if self.name == "latest" else self.motion.value
        return f"{self.name} ({motion})"


Domains: TypeAlias = Mapping[str, MonotonicDomain]

_KEEPING_ORDER = frozenset({"round", "floor", "ceil"})
#: Null only when all operands are.
_SKIPPING_NULLS = frozenset({"coalesce", "greatest", "least"})


def constrained(columns: Domains, condition: Expression) -> Domains:
    """The domains of the rows for which a condition holds: `qty >= 0` makes a sum of qty a counter."""
    found = dict(columns)
    for each in conjuncts(condition):
        if not isinstance(each, Call) or each.function not in ("=", "<", "<=", ">", ">="):
            continue
        left, right = each.operands
        rising = each.function in (">", ">=", "=")
        falling = each.function in ("<", "<=", "=")
        if isinstance(left, Literal):
            left, right, rising, falling = right, left, falling, rising
        if not isinstance(left, ColumnRef) or left.kind not in NUMBERS or left.name not in found:
            continue
        bound = domain_of(right, columns)
        was = found[left.name]
        found[left.name] = replace(
            was,
            not_negative=was.not_negative or (rising and bound.not_negative),
            not_positive=was.not_positive or (falling and bound.not_positive),
        )
    return found


def domain_of(expression: Expression, columns: Domains) -> MonotonicDomain:
    """The domain of an expression over columns with these domains."""
    match expression:
        case ColumnRef():
            return columns[expression.name]
        case Literal():
            value = expression.value
            number = value if isinstance(value, int | float | Decimal) else None
            return MonotonicDomain(
                "event",
                Motion.FIXED,
                not_negative=number is not None and number >= 0,
                not_positive=number is not None and number <= 0,
            )
        case Call():
            return _call(expression, [domain_of(each, columns) for each in expression.operands])


def _call(call: Call, operands: list[MonotonicDomain]) -> MonotonicDomain:
    arrives = any(each.arrives for each in operands)
    not_negative, not_positive = _signs(call, operands)
    motion = _motion(call, operands)
    if call.function in _SKIPPING_NULLS:
        arrives = all(each.arrives for each in operands)
    return MonotonicDomain(_name(call, operands, motion), motion, not_negative, not_positive, arrives)


def _name(call: Call, operands: list[MonotonicDomain], motion: Motion) -> DomainName:
    changing = [each for each in operands if not each.is_final]
    if not changing:
        keys = all(each.name == "key" for each in operands if each.name != "event")
        return "key" if keys and any(each.name == "key" for each in operands) and _is_key(call) else "event"
    names = {each.name for each in changing if each.name != "event"}
    if names <= {"counter", "pair"} and call.kind in NUMBERS and call.function in _LINEAR:
        if not names:
            return "event" if motion is Motion.FIXED else "pair"
        return "counter" if names == {"counter"} and motion is Motion.RISES else "pair"
    if names == {"extremum"} and motion in (Motion.RISES, Motion.FALLS):
        return "extremum"
    return "event" if motion is Motion.FIXED else "latest"


_LINEAR = frozenset({"+", "-", "*", "/", "neg", "coalesce", "cast", "round", "floor", "ceil"})


def _is_key(call: Call) -> bool:
    """Whether a call still distinguishes the rows that its operands do: only a conversion does."""
    return call.function == "coalesce"


def _motion(call: Call, operands: list[MonotonicDomain]) -> Motion:
    if all(each.is_final for each in operands):
        return Motion.FIXED
    motions = [each.motion for each in operands]
    first = motions[0]
    match call.function:
        case "+":
            return _all(motions)
        case "greatest" | "least":
            # An operand that arrives can only lift the greatest, and lower the least.
            jump = Motion.RISES if call.function == "greatest" else Motion.FALLS
            return _all([*motions, *(jump for each in operands if each.arrives)])
        case name if name in _KEEPING_ORDER:
            return first
        case "-":
            return first | -motions[1]
        case "neg":
            return -first
        case "*" | "/":
            return _product(call, operands)
        case "abs":
            return first if operands[0].not_negative else Motion.ANY
        case "cast":
            keeps = call.kind in NUMBERS and call.operands[0].kind in NUMBERS
            return first if keeps or first is Motion.FIXED else Motion.ANY
        case "coalesce":
            return _coalesced(operands)
        case "case":
            conditions = operands[:-1:2]
            values = [*operands[1:-1:2], operands[-1]]
            return _all([each.motion for each in values]) if _all_final(conditions) else Motion.ANY
        case _:
            # Fixed operands that arrive later make a result that is fixed once all are known, unless the
            # function turns a null into something else.
            sees_null = call.function in ("is_null", "is_not_null", "and", "or", "nullif")
            return Motion.ANY if sees_null else _only_fixed(motions)


def _all(motions: list[Motion]) -> Motion:
    found = Motion.FIXED
    for each in motions:
        found = found | each
    return found


def _all_final(domains: list[MonotonicDomain]) -> bool:
    return all(each.is_final for each in domains)


def _only_fixed(motions: list[Motion]) -> Motion:
    return Motion.FIXED if all(each is Motion.FIXED for each in motions) else Motion.ANY


def _scaled(motion: Motion, factor: MonotonicDomain) -> Motion:
    if factor.not_negative:
        return motion
    return -motion if factor.not_positive else Motion.ANY


def _product(call: Call, operands: list[MonotonicDomain]) -> Motion:
    left, right = operands
    if call.function == "/" and not isinstance(call.operands[1], Literal):
        return Motion.ANY
    if right.is_final and (right.not_negative or right.not_positive):
        return _scaled(left.motion, right)
    if left.is_final and (left.not_negative or left.not_positive):
        return _scaled(right.motion, left)
    both = left.motion | right.motion
    if left.not_negative and right.not_negative and both in (Motion.RISES, Motion.FALLS):
        return both
    return Motion.FIXED if both is Motion.FIXED and call.kind in NUMBERS else Motion.ANY


def _coalesced(operands: list[MonotonicDomain]) -> Motion:
    """`COALESCE(total, 0)` jumps from 0 to the total when that arrives: upwards, if it is never negative."""
    *some, last = operands
    motion = _all([each.motion for each in operands])
    if not any(each.arrives for each in some):
        return motion
    if not last.is_final:
        return Motion.ANY
    if last.not_positive and all(each.not_negative for each in some) and motion is not Motion.FALLS:
        return Motion.RISES | motion
    if last.not_negative and all(each.not_positive for each in some) and motion is not Motion.RISES:
        return Motion.FALLS | motion
    return Motion.ANY


def _signs(call: Call, operands: list[MonotonicDomain]) -> tuple[bool, bool]:
    """Whether the result is known to be at least 0, at most 0."""
    if call.kind not in NUMBERS:
        return False, False
    up = [each.not_negative for each in operands]
    down = [each.not_positive for each in operands]
    match call.function:
        case "length" | "abs":
            return True, False
        case "+":
            return all(up), all(down)
        case "-":
            return up[0] and down[1], down[0] and up[1]
        case "neg":
            return down[0], up[0]
        case "*" | "/":
            return all(up) or all(down), (up[0] and down[1]) or (down[0] and up[1])
        case "%" | "cast" | "round" | "floor" | "ceil" | "nullif":
            return up[0], down[0]
        case "coalesce":
            return all(up), all(down)
        case "greatest":
            return any(up), all(down)
        case "least":
            return all(up), any(down)
        case "case":
            return all([*up[1:-1:2], up[-1]]), all([*down[1:-1:2], down[-1]])
        case _:
            return False, False


@dataclass(frozen=True, slots=True)
class AggregatedRows:
    """What is known about the aggregated rows."""

    #: Whether they are events, which never change.
    are_events: bool
    #: Whether a row may leave its group again.
    may_leave: bool


def aggregate_domain(aggregate: Aggregate, columns: Domains, rows: AggregatedRows) -> MonotonicDomain:
    """The domain of an aggregate over rows with these domains."""
    if aggregate.operand is None:
        operand = MonotonicDomain("event", Motion.FIXED, not_negative=True)
        arrives = False
    else:
        operand = domain_of(aggregate.operand, columns)
        arrives = aggregate.operand.nullable
    up = not rows.may_leave and operand.motion in (Motion.FIXED, Motion.RISES)
    down = not rows.may_leave and operand.motion in (Motion.FIXED, Motion.FALLS)
    match aggregate.function:
        case "count":
            comes_only = not rows.may_leave and (operand.motion is not Motion.ANY or not arrives)
            name: DomainName = "counter" if comes_only else "pair"
            return MonotonicDomain(name, Motion.RISES if comes_only else Motion.ANY, not_negative=True)
        case "sum":
            if operand.not_negative and up:
                return MonotonicDomain("counter", Motion.RISES, not_negative=True, arrives=arrives)
            if operand.not_positive and down:
                return MonotonicDomain("pair", Motion.FALLS, not_positive=True, arrives=arrives)
            return MonotonicDomain("pair", Motion.ANY, operand.not_negative, operand.not_positive, arrives)
        case "avg":
            return MonotonicDomain("pair", Motion.ANY, operand.not_negative, operand.not_positive, arrives)
        case "max":
            motion = Motion.RISES if up else Motion.ANY
            return MonotonicDomain("extremum", motion, operand.not_negative, operand.not_positive, arrives)
        case "min":
            motion = Motion.FALLS if down else Motion.ANY
            return MonotonicDomain("extremum", motion, operand.not_negative, operand.not_positive, arrives)
        case "first":
            return MonotonicDomain("event", Motion.FIXED, operand.not_negative, operand.not_positive)
        case "last":
            return MonotonicDomain("latest", Motion.ANY, operand.not_negative, operand.not_positive)
