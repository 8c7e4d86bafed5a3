"""What may be in an event, and what may be done to it? Rows, conditions and changes, for all types.

Everything is drawn from a `Random`, so that a seed tells all.
"""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from random import Random
from typing import Any, Final

import pyarrow as pa

from gapless.model.ids import TopicId
from tests.hostile.arrow import LZ4, V4, ZSTD, Plain, message

TOPIC: Final = TopicId("every")
#: A column of each type, most of them with nulls.
COLUMNS: Final = {
    "i": "int?", "j": "int", "f": "float?", "s": "string?", "b": "bool?", "t": "timestamp?", "d": "decimal?",
    "y": "binary?", "x": "xml?",
}  # fmt: skip
_TYPES: dict[str, pa.DataType] = {
    "i": pa.int64(), "j": pa.int64(), "f": pa.float64(), "s": pa.string(), "b": pa.bool_(),
    "t": pa.timestamp("us", tz="UTC"), "d": pa.decimal128(38, 9), "y": pa.binary(), "x": pa.binary(),
}  # fmt: skip
SCHEMA: Final = pa.schema([pa.field(name, kind, nullable=name != "j") for name, kind in _TYPES.items()])

_INTEGERS = [0, 1, 2, 3, -1, 5, 10, 100, 2**53 + 1, -(2**63), 1 - 2**63, 2**63 - 1, 2**62, -(2**62), 2**31]
_TEXTS = [
    "",
    "a",
    "ab",
    "abc",
    "b",
    "IBM",
    "é",
    "a\0",
    "abcdefg",
    "abcdefgh",
    "abcdefghi",
    "\U0010ffff",
    "\x7f",
    "%_",
]
_DOCUMENTS = [
    b"<a><b/></a>", b"<a><c x='1'>t</c></a>", b"<b/>", b"no document", b"", b"<a" * 50,
    b"\xff\xfe<\0a\0/\0>\0",
    b"<!DOCTYPE a><a/>", b"<a>" * 300, b"<a x='&lt;' y=\"1e999\"><c>NaN</c><c>7</c></a>",
    b"<?xml version='1.0'?><a/>",
    b"<a xmlns='u'><b/></a>", b"\xef\xbb\xbf<a><![CDATA[<b/>]]></a>", b"<a>&e;</a>", b"<a>\xff</a>",
    b"<a " + b" ".join(b"p%d='%d'" % (at, at) for at in range(40)) + b"/>",
]  # fmt: skip
#: What each column may hold besides null. Times are microseconds since 1970, also beyond the calendar.
VALUES: Final[dict[str, list[Any]]] = {
    "i": _INTEGERS,
    "j": _INTEGERS,
    "f": [0.0, -0.0, 1.0, 1.5, -2.5, math.inf, -math.inf, math.nan, 3.0, 1e300, -1e308, 5e-324, 2.0**63],
    "s": _TEXTS,
    "b": [True, False],
    "t": [0, 1, -1, 2**63 - 1, -(2**63), 1 - 2**63, 253_402_300_800_000_000, -62_135_596_800_000_001, 10**15],
    "d": [Decimal(text) for text in (
        "0", "1", "1.5", "-2.000000001", "12345678901.5", f"-{10**20}", "9" * 29 + "." + "9" * 9,
        "-" + "9" * 29 + "." + "9" * 9, "9223372036.854775807", "-9223372036.854775808", "0.000000001",
    )],
    "y": [b"", b"a", b"\xff\xff", b"ab", bytes(20), b"\xff" * 9],
    "x": _DOCUMENTS,
}  # fmt: skip


def random_rows(random: Random, count: int) -> pa.RecordBatch:
    """Rows with about one null in ten."""
    arrays = []
    for name, kind in _TYPES.items():
        rate = 0.0 if name == "j" else random.choice([0.0, 0.1, 0.5, 1.0])
        values = [None if random.random() < rate else random.choice(VALUES[name]) for _ in range(count)]
        if name == "t":
            arrays.append(pa.array(values, pa.int64()).view(kind))
        else:
            arrays.append(pa.array(values, kind))
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _conditions() -> list[str]:
    """Conditions of every kind on every type, and hundreds of ranges, so that an index uses all its ways."""
    random = Random(99)
    found = [
        "", "i = 5", "i <> 3", "i IN (1, 2, 3, 100)", "i NOT IN (1, 2)", "i BETWEEN -5 AND 5", "i IS NULL",
        "i IS NOT NULL", "i + j > 5", "i * j = 4", "i - j < 0", "i / j > 0.5", "-i = 1", "i * i * i > 7",
        "i = j",
        "i < f", "i = d", "i >= -9223372036854775808", "i > 9223372036854775806", "i < 3.5", "i = 1e300",
        "f = 1.5", "f > 1e300", "f < -1e300", "f <> 0e0", "f = 0", "f IN (1e0, 3e0)", "f IS NULL",
        "f * 2 > 3",
        "f / f = 1", "f + 1e308 > 1e308", "f = i", "f <= j", "f BETWEEN -1 AND 1",
        "s = 'ab'", "s > 'a'", "s < 'b'", "s >= 'abcdefgh'", "s LIKE 'a%'", "s LIKE '%b'", "s LIKE 'a_c'",
        "s LIKE 'abcdefgh%'", "s NOT LIKE '%'", "s IN ('a', 'IBM', '')", "s NOT IN ('a', 'b')",
        "s IS NULL", "s <> ''",
        "s BETWEEN 'a' AND 'abc'", "s LIKE '%e!%%' ESCAPE '!'", "s LIKE '___'",
        "b", "NOT b", "b IS NULL", "b = TRUE", "b <> FALSE", "b IS NOT NULL",
        "t = TIMESTAMP '1970-01-01 00:00:00'", "t > TIMESTAMP '2026-01-01 00:00:00'",
        "t < TIMESTAMP '0001-01-01 00:00:01'", "t IS NULL", "t <> TIMESTAMP '9999-12-31 23:59:59'",
        "t BETWEEN TIMESTAMP '1969-01-01 00:00:00' AND TIMESTAMP '1971-01-01 00:00:00'",
        "t IN (TIMESTAMP '1970-01-01 00:00:00')", "t IS NOT NULL",
        "d = 1.5", "d > 0", "d < -100000000000000000000", "d <> 1", "d IN (1, 1.5, 0.000000001)", "d IS NULL",
        "d * d > 2", "d + i > 1", "d - f < 0", "d / 2 = 0.75", "d BETWEEN 0 AND 2", "d = i", "d < f",
        "d * d * d > d",
        "d > 9223372036.854775806", "d <= -9223372036.854775808", "d * 0.000000001 > 0", "d IS NOT NULL",
        "y = X'61'", "y > X'61'", "y IS NULL", "y IN (X'', X'ffff')", "y <> X''", "y < X'ff'", "y >= X'0000'",
        "x IS NULL", "x IS NOT NULL", "XPATH(x, '/a')", "XPATH(x, '/a/b')", "XPATH(x, '//c[@x = 1]')",
        "NOT XPATH(x, '/a')", "XPATH(x, '//c') AND XPATH(x, '/a[not(b)]')", "XPATH(x, '/a[@y > 5]')",
        "XPATH(x, '//*[. = \"t\"]')", "XPATH(x, '/a[c > 5]') AND i > 0", "XPATH(x, '//c') OR s = 'a'",
        "(i > 0 OR f > 0) AND (s > 'a' OR b) AND (d > 0 OR t IS NULL)", "i > 0 AND s = 'ab' AND d < 5",
        "s = 'a' AND i BETWEEN 0 AND 10", "NOT (i > 0 AND f < 1)", "s LIKE 'a%' AND y > X'00'",
    ]  # fmt: skip
    texts = [text for text in _TEXTS if "\0" not in text]
    for at in range(40):
        low, high = sorted(random.choices(texts, k=2))
        found.append(f"s >= '{low}{at}' AND s < '{high}{at}z'")
        found.append(f"d > {random.randint(-99, 99)}.{at} AND d < {random.randint(100, 999)}")
        found.append(f"i BETWEEN {at - 100} AND {at * at}")
        found.append(f"f > {at}.5 AND f <= {at + random.randint(1, 1000)}")
        found.append(f"y >= X'{at:04x}' AND y < X'{at + 300:04x}'")
        found.append(f"t > TIMESTAMP '{1900 + at}-01-01 00:00:00' AND j > {at}")
    return found


CONDITIONS: Final = _conditions()

_NUMBERS = [
    0,
    1,
    2,
    7,
    8,
    15,
    16,
    63,
    64,
    65,
    2**31 - 1,
    2**31,
    2**32,
    2**40,
    2**62,
    2**63 - 1,
    -1,
    -8,
    -(2**63),
]


def plain_of(rows: pa.RecordBatch) -> Plain:
    """The numbers and the body that Arrow would write for rows."""
    body, buffers = bytearray(), []
    for array in rows.columns:
        for at, buffer in enumerate(array.buffers()):
            data = b"" if buffer is None or (at == 0 and not array.null_count) else buffer.to_pybytes()
            buffers.append((len(body), len(data)))
            body += data + bytes(-len(data) % 8)
    return Plain(
        rows.num_rows, [(len(array), array.null_count) for array in rows.columns], buffers, bytes(body)
    )


class Mutator:
    """Changes that a stranger may make. Most keep what they do not touch sound, so that they get far."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def columns(self, rows: pa.RecordBatch) -> bytes:
        """Rows as an Arrow message in which something may be wrong."""
        random = self.random
        chance = random.random()
        if chance < 0.15:
            return self.damaged(rows.serialize().to_pybytes())
        plain = plain_of(rows)
        options: dict[str, Any] = {}
        if chance < 0.25:
            options = random.choice([
                {"version": random.choice([0, 1, 2, V4, 5, -1])},
                {"kind": random.choice([0, 1, 2, 4, 5, 255])},
                {"custom": {"ARROW:experimental_compression": random.choice(["zstd", "lz4", "LZ4_FRAME",
                "x"])}},
                {"version": V4, "custom": {"ARROW:experimental_compression": "zstd"}},
                {"compression": random.choice([LZ4, ZSTD, 2])},
                {"variadic": [random.choice(_NUMBERS)]},
                {"variadic": []},
                {"body_bytes": random.choice(_NUMBERS)},
            ])  # fmt: skip
        for _ in range(random.choice([0, 1, 1, 2, 3])):
            plain = random.choice([self._longer, self._shifted, self._values, self._told, self._shared])(
                plain
            )
        return message(plain, **options)

    def loosened(self, rows: pa.RecordBatch) -> bytes:
        """Rows as an Arrow message whose buffers are too long or apart from each other: sound otherwise."""
        plain = plain_of(rows)
        for _ in range(self.random.choice([1, 1, 2, 3])):
            plain = self.random.choice([self._longer, self._shifted])(plain)
        return message(plain)

    def damaged(self, data: bytes) -> bytes:
        """A few bytes or words changed, or the end cut off."""
        random = self.random
        changed = bytearray(data)
        for _ in range(random.choice([1, 1, 2, 5])):
            at = random.randrange(len(changed))
            match random.randrange(5):
                case 0:
                    changed[at] ^= 1 << random.randrange(8)
                case 1:
                    changed[at] = random.choice([0, 1, 0x7F, 0x80, 0xFF])
                case 2 | 3:
                    changed[at & ~7 : (at & ~7) + 8] = struct.pack("<q", random.choice(_NUMBERS))
                case _:
                    del changed[max(1, at) :]
        return bytes(changed)

    def _longer(self, plain: Plain) -> Plain:
        """A buffer that is longer than its rows need."""
        at = self.random.randrange(len(plain.buffers))
        more = self.random.choice([1, 2, 3, 4, 7, 8, 15, 16, 63, 64, 100])
        offset, length = plain.buffers[at]
        end = offset + length
        added = self.random.randbytes(more)
        body = plain.body[:end] + added + bytes(-(end + more) % 8) + plain.body[(end + 7) & ~7 :]
        shift = ((end + more + 7) & ~7) - ((end + 7) & ~7)
        buffers = [(o + shift if number > at else o, n) for number, (o, n) in enumerate(plain.buffers)]
        buffers[at] = (offset, length + more)
        return plain._replace(buffers=buffers, body=body)

    def _shifted(self, plain: Plain) -> Plain:
        """A gap before some buffer."""
        at = self.random.randrange(len(plain.buffers))
        gap = 8 * self.random.choice([1, 2, 9])
        offset = plain.buffers[at][0]
        buffers = [(o + gap if number >= at else o, n) for number, (o, n) in enumerate(plain.buffers)]
        return plain._replace(
            buffers=buffers, body=plain.body[:offset] + self.random.randbytes(gap) + plain.body[offset:]
        )

    def _values(self, plain: Plain) -> Plain:
        """Other bytes in the body: numbers, offsets, texts, bitmaps."""
        body = bytearray(plain.body)
        if body:
            for _ in range(self.random.choice([1, 1, 4])):
                at = self.random.randrange(len(body))
                if self.random.random() < 0.5:
                    body[at] = self.random.randrange(256)
                else:
                    start = at & ~3
                    number = self.random.choice(_NUMBERS) & 0xFFFFFFFF
                    body[start : start + 4] = struct.pack("<I", number)
        return plain._replace(body=bytes(body[: len(plain.body)]))

    def _told(self, plain: Plain) -> Plain:
        """Another number in the metadata."""
        random = self.random
        nodes, buffers = [*plain.nodes], [*plain.buffers]
        number = random.choice(_NUMBERS)
        match random.randrange(4):
            case 0:
                return plain._replace(rows=random.choice([number, plain.rows + 1, plain.rows - 1]))
            case 1:
                at = random.randrange(len(nodes))
                nodes[at] = random.choice([(number, nodes[at][1]), (nodes[at][0], number), (number, number)])
            case 2:
                at = random.randrange(len(buffers))
                buffers[at] = random.choice([(number, buffers[at][1]), (buffers[at][0], number)])
            case _:
                at = random.randrange(len(buffers))
                buffers[at] = (buffers[at][0], max(0, buffers[at][1] + random.choice([-8, -1, 1, 8])))
        return plain._replace(nodes=nodes, buffers=buffers)

    def _shared(self, plain: Plain) -> Plain:
        """Several buffers at one place."""
        buffers = [*plain.buffers]
        source = self.random.choice(buffers)
        for _ in range(self.random.choice([1, 3])):
            buffers[self.random.randrange(len(buffers))] = source
        return plain._replace(buffers=buffers)
