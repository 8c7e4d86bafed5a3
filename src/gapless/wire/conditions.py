"""How does a condition travel between brokers? As sets of values, so that no text has to be parsed.

Reading a condition from its text takes hundreds of microseconds, and it is in normal form already: for each
conjunction the columns that it restricts, and of each column the intervals that are allowed. These are
written, and rebuilding the condition takes a few microseconds. Conditions with anything else in them (LIKE
with a wildcard inside, comparisons of two columns, calculations, XPath) travel as text.

A peer may send anything. Its bytes are accepted as a condition only if every column exists, every key has the
column's type, and intervals ascend and do not touch: comparing conditions relies on it.

Implements docs/wire.md, section 4. Measured by benchmarks/subscribing.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, TypeAlias

import msgspec

from gapless.content.condition import EVERYTHING, Condition, Conjunction
from gapless.content.domain import Domain
from gapless.content.language import parse_condition
from gapless.content.terms import ColumnTerm, Term
from gapless.content.values import KEYS, Key
from gapless.errors import ContentError
from gapless.model.schema import Schema

#: A condition on the wire: its sets, as a MessagePack array, or a zero byte followed by its text.
Packed: TypeAlias = bytes
_TEXT: Final = b"\0"

#: Recently encoded or decoded conditions: siblings send the same ones, and some come back.
CONDITIONS_KEPT: Final = 2**17

#: A column by its name, whether it may be null, and the bounds of its intervals, one after the other: keys
#: that ascend, None for no end, digits where 64 bits are too few.
_Within: TypeAlias = tuple[str, bool, tuple[Any, ...]]
_Conjunctions: TypeAlias = tuple[tuple[_Within, ...], ...]

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Conjunctions)
#: A key of a decimal has at most 38 digits, and the end of all of them has 39.
_DIGITS = re.compile(r"-?[0-9]{1,39}")
#: Maximum number of characters of a name in a message.
_SHOWN_MAX: Final = 40
#: The range of integers in MessagePack.
_INTEGERS = range(-(2**63), 2**64)


@lru_cache(maxsize=CONDITIONS_KEPT)
def pack(condition: Condition) -> Packed:
    """A condition as it travels."""
    conjunctions: list[list[_Within]] = []
    for conjunction in condition.terms:
        if conjunction.atoms or not all(isinstance(term, ColumnTerm) for term in conjunction.within):
            return _TEXT + str(condition).encode()
        conjunctions.append(
            [
                (term.name, domain.null, tuple(_packed(key) for pair in domain.intervals for key in pair))
                for term, domain in conjunction.within.items()
                if isinstance(term, ColumnTerm)
            ]
        )
    return _encoder.encode(conjunctions)


def _packed(key: Key | None) -> Key | None:
    return str(key) if isinstance(key, int) and key not in _INTEGERS else key


class Unpacker:
    """Reads the conditions on one topic.

    >>> schema = Schema.parse("trades", {"price": "int"})
    >>> condition = parse_condition("price > 3 AND price < 9", schema)
    >>> Unpacker(schema).unpack(pack(condition)) == condition
    True
    """

    __slots__ = ("_columns", "_schema", "unpack")

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._columns: Mapping[str, ColumnTerm] = {
            column.name: ColumnTerm(column.name, column.type, column.nullable) for column in schema.columns
        }
        #: The condition that was packed. Raises ContentError, whatever the bytes are.
        self.unpack = lru_cache(maxsize=CONDITIONS_KEPT)(self._unpack)

    def _unpack(self, packed: Packed) -> Condition:
        if packed[:1] == _TEXT:
            try:
                text = packed[1:].decode()
            except UnicodeDecodeError as error:
                raise _wrong(str(error)) from error
            return parse_condition(text, self._schema, is_written=True)
        try:
            conjunctions = _decoder.decode(packed)
        except (ValueError, RecursionError) as error:
            raise _wrong(str(error)) from error
        if conjunctions == ((),):
            return EVERYTHING
        return Condition([self._conjunction(withins) for withins in conjunctions])

    def _conjunction(self, withins: tuple[_Within, ...]) -> Conjunction:
        within: dict[Term, Domain] = {}
        for name, null, bounds in withins:
            column = self._columns.get(name)
            if column is None:
                raise _wrong(f"no column {name[:_SHOWN_MAX]!r}")
            if column in within:
                raise _wrong(f"column {column} is restricted twice")
            within[column] = self._domain(column, null, bounds)
        return Conjunction(within)

    def _domain(self, column: ColumnTerm, null: bool, bounds: tuple[Any, ...]) -> Domain:
        """The set of values; the bounds must be ascending keys of the type, possibly without a last one."""
        every = KEYS[column.kind]
        if len(bounds) % 2 or not (bounds or null):
            raise _wrong(f"{column} has half an interval, or none at all")
        endless = bool(bounds) and bounds[-1] is None and every.stop is None
        keys: list[Any] = [self._key(column, bound) for bound in (bounds[:-1] if endless else bounds)]
        if not all(low < high for low, high in pairwise(keys)):
            raise _wrong(f"the intervals of {column} do not ascend")
        if keys and (keys[0] < every.least or (every.stop is not None and keys[-1] > every.stop)):
            raise _wrong(f"the intervals of {column} reach beyond its values")
        if endless:
            keys.append(None)
        return Domain(column.kind, tuple(zip(keys[::2], keys[1::2], strict=True)), null)

    def _key(self, column: ColumnTerm, bound: object) -> Key:
        """The bound as a key of the column's type."""
        least = KEYS[column.kind].least
        if column.kind == "decimal" and isinstance(bound, str) and _DIGITS.fullmatch(bound):
            return int(bound)
        if isinstance(bound, int | str | bytes) and type(bound) is type(least):
            return bound
        raise _wrong(f"{column} has no such value")


def _wrong(reason: str) -> ContentError:
    return ContentError("E160", f"the packed condition is damaged: {reason}")
