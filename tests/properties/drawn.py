"""Random rows and random conditions over every type of column, few values each, so that things meet.

Conditions are put together with the makers of `gapless.content.normal`, without a text in between.
"""

import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random

import pyarrow as pa

from gapless.content.condition import Condition
from gapless.content.domain import Domain
from gapless.content.normal import both, compare, comparison_domain, either, like, matches, within
from gapless.content.sql.like import parse_like
from gapless.content.terms import ColumnTerm, Constant, arithmetic
from gapless.content.values import key_of
from gapless.content.xml.parse import parse_pattern
from gapless.model.schema import COLUMN_TYPES

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
INTEGERS = [0, 1, 2, 3, -1, 5, 10, 100, 2**53 + 1, -(2**63), 2**63 - 1, 2**62]
TEXTS = ["", "a", "ab", "abc", "b", "IBM", "IBX", "I", "é", "a\0", "abcdefg", "abcdefgh", "abcdefghi"]
TEXTS += ["https://example.com/a", "https://example.com/b"]
DOCUMENTS = [b"<a><b/></a>", b"<a><c x='1'>t</c></a>", b"<b/>", b"no document", b"<a><b><c/></b></a>"]
PATTERNS = ["/a", "/a/b", "//c", "/a[b][c]", "//c[@x='1']", "/a[not(c)]", "/*/b/c"]
LIKES = ["a%", "%b", "a_c", "I_%", "https://example.com/%", "%", "_", "abc", "abcdefgh%", "%x%", "abcdefghi%"]

#: What each column may hold, besides null; the name's first letter says the type.
VALUES: dict[str, list[object]] = {
    "i": [*INTEGERS],
    "j": [*INTEGERS],
    "f": [0.0, -0.0, 1.0, 1.5, -2.5, math.inf, -math.inf, math.nan, 3.0, 1e300, 5e-324],
    "s": [*TEXTS],
    "u": [*TEXTS],
    "b": [True, False],
    "d": [Decimal(text) for text in ("0", "1", "1.5", "-2.000000001", "12345678901.5", f"-{10**20}")],
    "t": [
        NEW_YEAR,
        NEW_YEAR + timedelta(seconds=1),
        NEW_YEAR - timedelta(400),
        NEW_YEAR + timedelta.resolution,
    ],
    "y": [b"", b"a", b"\xff\xff", b"ab"],
    "x": [*DOCUMENTS],
}
KINDS = {"i": "int", "j": "int", "f": "float", "s": "string", "u": "string", "b": "bool", "d": "decimal"}
KINDS |= {"t": "timestamp", "y": "binary", "x": "xml"}
COLUMNS = {name: ColumnTerm(name, kind) for name, kind in KINDS.items()}


def random_rows(random: Random, count: int) -> pa.RecordBatch:
    """Rows with about one null in ten."""
    return pa.record_batch(
        {
            name: pa.array(
                [None if random.random() < 0.1 else random.choice(values) for _ in range(count)],
                COLUMN_TYPES[KINDS[name]],
            )
            for name, values in VALUES.items()
        }
    )


def random_condition(random: Random, depth: int, columns: str = "ijfsubdtyx") -> Condition:
    """A condition nested up to `depth` times."""
    if depth == 0 or random.random() < 0.3:
        return random_comparison(random, random.choice(columns))
    make = random.choice([both, either])
    return make([random_condition(random, depth - 1, columns) for _ in range(random.randint(2, 3))])


def random_domain(random: Random, name: str) -> Domain:
    """A set of values such as a few comparisons ask for."""
    kind = KINDS[name]
    written = [value for value in VALUES[name] if not isinstance(value, float) or math.isfinite(value)]

    def compared(operator: str) -> Domain:
        return comparison_domain(kind, operator, random.choice(written))  # type: ignore[arg-type]

    def points() -> Domain:
        some = random.sample(written, min(random.randint(1, 5), len(written)))
        return Domain.points(kind, [key_of(kind, value) for value in some])  # type: ignore[arg-type]

    match random.randrange(10):
        case 0 | 1 | 2:
            return compared("=")
        case 3 | 4:
            return compared(random.choice(["<", "<=", ">", ">="]))
        case 5:
            return compared(">=") & compared("<=")
        case 6:
            return compared("<>")
        case 7:
            return points()
        case 8:
            return points().without_null_inverse()
        case _:
            return random.choice(
                [Domain.all(kind), Domain.none(kind, null=True), compared("<") | compared("=")]
            )


def random_comparison(random: Random, name: str) -> Condition:
    """One comparison, mostly of the column `name` with constants."""
    column = COLUMNS[name]
    chance = random.random()
    if name == "x":
        if chance < 0.1:
            return within(column, random.choice([Domain.all("xml"), Domain.none("xml", null=True)]))
        return matches(column, parse_pattern(random.choice(PATTERNS)), negated=random.random() < 0.2)
    if chance < 0.8:
        return within(column, random_domain(random, name))
    if chance < 0.9 or name not in "ijfd":
        text = COLUMNS[random.choice("su")]
        return like(text, parse_like(random.choice(LIKES)), negated=random.random() < 0.3)
    other = COLUMNS[random.choice("ijfd")]
    if chance < 0.95:
        term = arithmetic(random.choice("+-*/"), column, other)  # type: ignore[arg-type]
        assert term is not None
        return compare(term, random.choice(["<", "=", ">"]), Constant(random.choice([0, 1, 5]), "int"))
    return compare(column, random.choice(["<", "=", "<>", ">="]), other)
