"""Rows as tests compare them: as a bag, with floats up to their last digits."""

from collections import Counter
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any


def bag(rows: Iterable[Mapping[str, Any]]) -> Counter[tuple[tuple[str, str], ...]]:
    """How often each row is there. Values are compared as texts, so that NaN equals NaN."""
    return Counter(tuple((name, _text(value)) for name, value in row.items()) for row in rows)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value + 0.0:.9g}"
    if isinstance(value, Decimal):
        return f"{value.normalize():f}" if value else "0"
    return repr(value)
