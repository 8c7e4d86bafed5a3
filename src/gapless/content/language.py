"""In which language is a condition written? XPath begins with a slash; everything else is SQL.

SQL conditions are what may follow WHERE, over the columns of a topic: `=`, `<>`, `<`, `<=`, `>`, `>=`,
BETWEEN, IN, LIKE with ESCAPE, IS NULL, `+ - * /`, AND, OR, NOT. Texts are in single quotes, times are
`TIMESTAMP '2026-01-31 12:00:00'`, bytes `X'0aff'`. A comparison with NULL is unknown, and a condition accepts
an event only if it is true. JMS selectors are accepted as well.

>>> from gapless.model.ids import TopicId
>>> trades = Schema.parse(TopicId("trades"), {"loc": "string", "price": "float", "news": "xml?"})
>>> print(parse_condition("price > 3 AND NOT price >= 9 OR loc LIKE 'N%'", trades))
(price > 3.0 AND price < 9.0) OR loc LIKE 'N%'

XPath patterns are about documents: `/` one step, `//` any number of steps, `*` any name, and predicates
in brackets. A pattern stands alone when the topic has one xml column, or inside SQL.

>>> print(parse_condition("/nitf//hl1/@class", trades))
XPATH(news, '/nitf//hl1/@class')
>>> print(parse_condition("price < 9 AND XPATH(news, '/nitf/body')", trades))
price < 9.0 AND XPATH(news, '/nitf/body')

The empty text accepts every event, as an empty JMS selector does.

Implements docs/content.md, section 1.
"""

from __future__ import annotations

from gapless.content.condition import EVERYTHING, Condition
from gapless.content.normal import matches
from gapless.content.terms import ColumnTerm
from gapless.content.xml.parse import parse_pattern
from gapless.errors import ContentError
from gapless.model.schema import Schema

#: Maximum length of a condition. An IN list of 10,000 texts of 20 characters fits.
TEXT_CHARACTERS_MAX = 250_000
#: The same between brokers: a condition in normal form may be longer than its original text.
WRITTEN_CHARACTERS_MAX = 1_000_000


def parse_condition(text: str, schema: Schema, *, is_written: bool = False) -> Condition:
    """Read a condition in either language; `is_written` means that the text was printed from a condition.

    >>> from gapless.model.ids import TopicId
    >>> parse_condition(" ", Schema.parse(TopicId("trades"), {"price": "float"})) == EVERYTHING
    True

    Raises ContentError, which says where in the text the problem is and what to write instead.
    """
    begin = len(text) - len(text.lstrip())
    if begin == len(text):
        return EVERYTHING
    if text[begin] != "/":
        # Imported on demand: otherwise the parser would be half of what a client has to load.
        from gapless.content.sql.parse import parse_sql  # noqa: PLC0415

        return parse_sql(text, schema, is_written=is_written)
    documents = [column for column in schema.columns if column.type == "xml"]
    if len(documents) != 1:
        names = ", ".join(column.name for column in documents)
        reason = f"several xml columns: {names}" if documents else "no xml column"
        message = f"topic '{schema.topic}' has {reason}: write XPATH(column, '/a/b') to name one"
        raise ContentError("E161", message, text=text, at=begin)
    (column,) = documents
    try:
        pattern = parse_pattern(text.strip())
    except ContentError as error:
        if error.at is None:
            raise
        reason = error.message.removeprefix(f"at {error.at + 1}: ")
        raise ContentError(error.code, reason, text=text, at=error.at + begin) from error
    return matches(ColumnTerm(column.name, column.type, column.nullable), pattern)
