"""What can happen to a row? Whether its condition is true or false, and whether that is final.

A condition of a row is *temporarily* or *permanently* true or false, and a null makes it unknown, which hides
the row like false. The motions of the columns determine which of these states it can be in and which can
follow which: `avail > 0`, when avail only falls, is temporarily true until it is permanently false.

The states of AND, OR and NOT are combined from those of the operands. That may allow more than can really
happen, when two operands depend on the same column; never less. (Overflow to null is ignored here, otherwise
nothing computed would ever be final.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from itertools import product

from gapless.views.analysis.domains import Domains, MonotonicDomain, Motion, domain_of
from gapless.views.expressions import Call, ColumnRef, Expression, Literal
from gapless.views.functions import NUMBERS


class ConditionState(Enum):
    """The state of a condition for a row: its truth (None is unknown), and whether that is final."""

    UNKNOWN = (None, False)
    FALSE = (False, False)
    TRUE = (True, False)
    UNKNOWN_FOR_EVER = (None, True)
    FALSE_FOR_EVER = (False, True)
    TRUE_FOR_EVER = (True, True)

    @property
    def truth(self) -> bool | None:
        """True, false or unknown."""
        truth: bool | None = self.value[0]
        return truth

    @property
    def is_final(self) -> bool:
        """Whether it is final."""
        is_final: bool = self.value[1]
        return is_final

    def __str__(self) -> str:
        return f"{'permanently' if self.is_final else 'temporarily'} {'true' if self.truth else 'false'}"


Moves = frozenset[tuple[ConditionState, ConditionState]]
_U, _F, _T = ConditionState.UNKNOWN, ConditionState.FALSE, ConditionState.TRUE
_UF, _FF, _TF = ConditionState.UNKNOWN_FOR_EVER, ConditionState.FALSE_FOR_EVER, ConditionState.TRUE_FOR_EVER


@dataclass(frozen=True, slots=True)
class Visibility:
    """The states that a row can be in, and which can follow which.

    >>> print(ONCE)
    temporarily false -> permanently true
    """

    states: frozenset[ConditionState]
    moves: Moves = frozenset()

    @property
    def may_leave(self) -> bool:
        """Whether a visible row may disappear."""
        shown = self.shown()
        return any(before.truth and not after.truth for before, after in shown.moves)

    def shown(self) -> Visibility:
        """As seen from outside: unknown counts as false, and what never becomes true is permanently false."""
        meaning = {state: self._seen(state) for state in self.states}
        moves = {(meaning[before], meaning[after]) for before, after in self.moves}
        return Visibility(
            frozenset(meaning.values()),
            frozenset((before, after) for before, after in moves if before != after),
        )

    def _seen(self, state: ConditionState) -> ConditionState:
        reached, waiting = {state}, [state]
        while waiting:
            here = waiting.pop()
            more = {after for before, after in self.moves if before == here} - reached
            reached |= more
            waiting += more
        truths = {bool(each.truth) for each in reached}
        if len(truths) == 1:
            return _TF if truths == {True} else _FF
        return _T if state.truth else _F

    def __str__(self) -> str:
        shown = self.shown()
        passing = [state for state in (_F, _T) if state in shown.states]
        final = [str(state) for state in (_TF, _FF) if state in shown.states]
        between = " -> "
        if (_F, _T) in shown.moves and (_T, _F) in shown.moves:
            between = " <-> "
        elif (_T, _F) in shown.moves:
            passing.reverse()
        elif len(passing) == 2 and (_F, _T) not in shown.moves:
            between = " or "
        parts = [between.join(map(str, passing)), " or ".join(final)]
        return " -> ".join(part for part in parts if part)


def _made(states: Iterable[ConditionState], *moves: tuple[ConditionState, ConditionState]) -> Visibility:
    return Visibility(frozenset(states), frozenset(moves))


#: An event, once it is known; a group, once it has one.
ONCE = _made([_F, _TF], (_F, _TF))
ALWAYS = _made([_TF])
NEVER = _made([_FF])
FINAL = _made([_TF, _FF])
ANY = _made([_F, _T], (_F, _T), (_T, _F))

_BECOMES_TRUE = _made([_F, _TF], (_F, _TF))
_BECOMES_FALSE = _made([_T, _FF], (_T, _FF))
_TRUE_FOR_A_WHILE = _made([_F, _T, _FF], (_F, _T), (_T, _FF), (_F, _FF))
_FALSE_FOR_A_WHILE = _made([_T, _F, _TF], (_T, _F), (_F, _TF), (_T, _TF))


def all_of(first: Visibility, second: Visibility) -> Visibility:
    """Both must hold."""
    return _together(first, second, decisive=False)


def any_of(first: Visibility, second: Visibility) -> Visibility:
    """One must hold."""
    return _together(first, second, decisive=True)


def opposite(visibility: Visibility) -> Visibility:
    """NOT; the opposite of unknown is unknown."""
    meaning = {_F: _T, _T: _F, _FF: _TF, _TF: _FF, _U: _U, _UF: _UF}
    return Visibility(
        frozenset(meaning[state] for state in visibility.states),
        frozenset((meaning[before], meaning[after]) for before, after in visibility.moves),
    )


def one_of(first: Visibility, second: Visibility) -> Visibility:
    """Rows of two kinds."""
    return Visibility(first.states | second.states, first.moves | second.moves)


def visibility_of(condition: Expression, columns: Domains) -> Visibility:
    """What can happen to a row for which a condition over these columns must hold."""
    if isinstance(condition, Literal):
        return _made([{True: _TF, False: _FF}.get(condition.value is True, _FF)])
    if isinstance(condition, Call):
        match condition.function:
            case "and" | "or":
                found, *others = (visibility_of(each, columns) for each in condition.operands)
                for each in others:
                    found = all_of(found, each) if condition.function == "and" else any_of(found, each)
                return found
            case "not":
                return opposite(visibility_of(condition.operands[0], columns))
            case "is_null":
                return _null(condition.operands[0], columns)
            case "is_not_null":
                return opposite(_null(condition.operands[0], columns))
            case "=" | "<>" | "<" | "<=" | ">" | ">=":
                return _compared(condition, columns)
            case "coalesce" if condition.operands[1:] == (Literal(False, "bool"),):
                return _known(visibility_of(condition.operands[0], columns))
    domain = domain_of(condition, columns)
    return _with_nulls(FINAL if domain.motion is Motion.FIXED else ANY, condition, domain)


def _together(first: Visibility, second: Visibility, *, decisive: bool) -> Visibility:
    """AND, which false decides, or OR, which true does."""

    def put(one: ConditionState, other: ConditionState) -> ConditionState:
        truths = (one.truth, other.truth)
        truth = decisive if decisive in truths else (None if None in truths else not decisive)
        decided = any(each.truth is decisive and each.is_final for each in (one, other))
        return ConditionState((truth, decided or (one.is_final and other.is_final)))

    states = {put(one, other) for one, other in product(first.states, second.states)}
    moves = {
        (put(one, other), put(then, after))
        for one, then in (*first.moves, *((each, each) for each in first.states))
        for other, after in (*second.moves, *((each, each) for each in second.states))
    }
    return Visibility(frozenset(states), frozenset(move for move in moves if move[0] != move[1]))


def _known(visibility: Visibility) -> Visibility:
    """IS TRUE: unknown becomes false, which is known."""
    meaning = {_U: _F, _UF: _FF}
    moves = {(meaning.get(before, before), meaning.get(after, after)) for before, after in visibility.moves}
    return Visibility(
        frozenset(meaning.get(state, state) for state in visibility.states),
        frozenset(move for move in moves if move[0] != move[1]),
    )


def _compared(call: Call, columns: Domains) -> Visibility:
    left, right = (domain_of(each, columns) for each in call.operands)
    motion = left.motion | -right.motion
    ordered = call.operands[0].kind in NUMBERS or call.operands[0].kind in ("string", "timestamp", "binary")
    if motion is Motion.FIXED:
        found = FINAL
    elif motion is Motion.ANY or not ordered:
        found = ANY
    elif call.function == "=":
        found = _TRUE_FOR_A_WHILE
    elif call.function == "<>":
        found = _FALSE_FOR_A_WHILE
    else:
        rising = call.function in (">", ">=")
        found = _BECOMES_TRUE if (motion is Motion.RISES) is rising else _BECOMES_FALSE
    both = MonotonicDomain("event", motion, arrives=left.arrives or right.arrives)
    return _with_nulls(found, call, both)


def _with_nulls(visibility: Visibility, expression: Expression, domain: MonotonicDomain) -> Visibility:
    """The same, if the value may be missing: at first, always, or now and then."""
    states = visibility.states
    if domain.arrives:
        later = {(_U, state) for state in states}
        return Visibility(states | {_U}, visibility.moves | later)
    if not expression.nullable:
        return visibility
    if domain.motion is not Motion.ANY:
        return Visibility(states | {_UF}, visibility.moves)
    now_and_then = {(_U, state) for state in states} | {(state, _U) for state in states if not state.is_final}
    return Visibility(states | {_U}, visibility.moves | now_and_then)


def _null(operand: Expression, columns: Domains) -> Visibility:
    domain = domain_of(operand, columns)
    if not operand.nullable and not domain.arrives:
        return NEVER
    if domain.is_final:
        return FINAL
    if domain.arrives and domain.motion is not Motion.ANY:
        return _BECOMES_FALSE
    return ANY if isinstance(operand, ColumnRef | Call) else FINAL
