"""Conditions for tests, written as subscribers write them."""

from gapless.content.condition import Condition
from gapless.content.sql.parse import parse_sql
from gapless.model.ids import TopicId
from gapless.model.schema import Schema


def where(text: str, /, **columns: str) -> Condition:
    """A condition on these columns; on an integer `price` when none is named.

    >>> print(where("sym = 'IBM'", sym="string"))
    sym = 'IBM'
    """
    return parse_sql(text, Schema.parse(TopicId("trades"), columns or {"price": "int"}))
