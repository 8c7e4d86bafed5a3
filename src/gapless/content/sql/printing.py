"""How is a set of values written in SQL, the way a person would write it?

The text parses to the same set. Of two equivalent forms, `x > 3.0` and `x >= 3.0000000000000004`, the shorter
one is taken.
"""

from __future__ import annotations

from gapless.content.domain import Domain, Interval
from gapless.content.sql.like import LikePattern, Wild
from gapless.content.values import KEYS, Key, literal, next_key, value_of


def print_domain(subject: str, domain: Domain) -> str:
    """The condition that `subject` lies in the domain, to be joined by AND.

    >>> print_domain("x", Domain.of("int", [(3, 6), (9, None)]))
    '(x BETWEEN 3 AND 5 OR x >= 9)'
    >>> print_domain("s", Domain.interval("string", "IB", "IC"))
    "s LIKE 'IB%'"
    """
    pieces = _pieces(subject, domain)
    if domain.null:
        pieces.append(f"{subject} IS NULL")
    if not pieces:
        return "FALSE"
    return pieces[0] if len(pieces) == 1 else f"({' OR '.join(pieces)})"


def prefix_interval(prefix: str) -> Interval:
    """The texts that begin with `prefix`.

    >>> prefix_interval("IB")
    ('IB', 'IC')
    """
    stem = prefix
    while stem:
        last = ord(stem[-1])
        if last < 0x10FFFF:
            # The code points in between are not characters, and no text has them.
            after = 0xE000 if last + 1 == 0xD800 else last + 1
            return prefix, stem[:-1] + chr(after)
        stem = stem[:-1]
    return prefix, None


def _pieces(subject: str, domain: Domain) -> list[str]:
    """Alternatives, to be joined by OR, that say which keys are allowed."""
    if not domain.intervals:
        return []
    if domain.is_whole:
        return [f"{subject} IS NOT NULL"]
    outside = domain.without_null_inverse()
    missing = outside.keys()
    if missing and len(missing) < len(domain.intervals):
        texts = [_text(domain.kind, key) for key in missing]
        if all(text is not None for text in texts):
            listed = ", ".join(text for text in texts if text is not None)
            return [f"{subject} <> {listed}" if len(texts) == 1 else f"{subject} NOT IN ({listed})"]
    points, pieces = [], []
    for interval in domain.intervals:
        start, stop = interval
        point = _text(domain.kind, start) if stop == next_key(start) else None
        if point is None:
            pieces.append(_print_interval(subject, domain.kind, interval))
        else:
            points.append(point)
    if points:
        listed = ", ".join(points)
        pieces.insert(0, f"{subject} = {listed}" if len(points) == 1 else f"{subject} IN ({listed})")
    return pieces


def _print_interval(subject: str, kind: str, interval: Interval) -> str:
    start, stop = interval
    if isinstance(start, str) and start and interval == prefix_interval(start):
        return f"{subject} LIKE {LikePattern((start, Wild.MANY))}"
    every = KEYS[kind]
    low = None if start == every.least else _low(kind, start)
    high = None if stop is None or stop == every.stop else _high(kind, stop)
    if low and high and low[0] == ">=" and high[0] == "<=":
        return f"{subject} BETWEEN {low[1]} AND {high[1]}"
    bounds = [f"{subject} {bound[0]} {bound[1]}" for bound in (low, high) if bound]
    return bounds[0] if len(bounds) == 1 else f"({' AND '.join(bounds)})"


def _low(kind: str, start: Key) -> tuple[str, str]:
    return _shorter((">=", _text(kind, start)), (">", _text(kind, _previous(start))))


def _high(kind: str, stop: Key) -> tuple[str, str]:
    return _shorter(("<=", _text(kind, _previous(stop))), ("<", _text(kind, stop)))


def _shorter(first: tuple[str, str | None], second: tuple[str, str | None]) -> tuple[str, str]:
    """The one that can be written; if both can, the shorter."""
    (sign, text), (other_sign, other) = first, second
    if text is not None and (other is None or len(text) <= len(other)):
        return sign, text
    assert other is not None, "no way to write a bound"
    return other_sign, other


def _previous(key: Key) -> Key | None:
    """The greatest key below; None for a text that does not end in a NUL, which has none."""
    if isinstance(key, int):
        return key - 1
    if isinstance(key, str):
        return key[:-1] if key.endswith("\0") else None
    return key[:-1] if key.endswith(b"\0") else None


def _text(kind: str, key: Key | None) -> str | None:
    """A key as a literal, None when it cannot be written: infinity, NaN, a time outside the calendar."""
    if key is None:
        return None
    try:
        value = value_of(kind, key)
    except OverflowError:
        return None
    if isinstance(value, float) and not -1.8e308 < value < 1.8e308:
        return None
    # A float column takes the nearest float of any number, so the plain form says the same.
    return repr(value) if isinstance(value, float) else literal(value)
