"""Explanations name what failed and the value that decided."""

import pyarrow as pa

from gapless.content.explain import explain
from gapless.content.language import parse_condition
from gapless.content.rows import Rows
from gapless.model.ids import TopicId
from gapless.model.schema import Schema

SCHEMA = Schema.parse(TopicId("t"), {"sym": "string?", "price": "float", "volume": "int", "doc": "xml?"})
ROWS = Rows(
    pa.RecordBatch.from_arrays(
        [
            pa.array(["IBM", None]),
            pa.array([90.0, 7.5]),
            pa.array([10, 20]),
            pa.array([b"<a><b/></a>", b"<oops"], pa.binary()),
        ],
        schema=SCHEMA.arrow(),
    )
)


def explained(text: str, row: int = 0) -> str:
    return str(explain(parse_condition(text, SCHEMA), ROWS, row))


def test_each_condition_of_a_conjunction_is_named_with_its_value() -> None:
    assert explained("sym = 'IBM' AND price > 100") == (
        "does not match: price > 100.0 AND sym = 'IBM'\n"
        "  NO   price > 100.0  price is 90.0\n"
        "  yes  sym = 'IBM'    sym is 'IBM'"
    )


def test_the_alternative_that_came_closest_is_first() -> None:
    text = explained("price > 100 AND volume > 50 OR sym = 'IBM' AND volume > 15")
    assert "alternative 1: fails" in text
    assert text.index("volume >= 16") < text.index("volume >= 51", text.index("alternative 1"))


def test_a_null_is_called_null() -> None:
    assert "sym is null" in explained("sym LIKE 'I%M'", row=1)


def test_arithmetic_shows_what_came_out() -> None:
    text = explained("price * 2 > volume * 100")
    assert text.startswith("does not match")
    assert "price is 90.0" in text
    assert "volume is 10" in text


def test_a_document_says_how_far_the_pattern_got() -> None:
    text = explained("XPATH(doc, '/a/c')")
    assert text.startswith("does not match")
    assert "c" in text.splitlines()[1]


def test_a_document_that_cannot_be_read_says_so() -> None:
    assert "cannot be read" in explained("XPATH(doc, '/a')", row=1)


def test_what_matches_says_so() -> None:
    assert explained("price < 100").startswith("matches: price < 100")
