"""Which language a text is in, and what it means when it stands alone."""

from __future__ import annotations

import pytest

from gapless.content.condition import EVERYTHING
from gapless.content.language import parse_condition
from gapless.errors import ContentError
from gapless.model.ids import TopicId
from gapless.model.schema import Schema

ONE = Schema.parse(TopicId("news"), {"price": "float", "story": "xml?"})
NONE = Schema.parse(TopicId("trades"), {"price": "float"})
TWO = Schema.parse(TopicId("mail"), {"head": "xml", "body": "xml"})


def refused(text: str, schema: Schema) -> ContentError:
    with pytest.raises(ContentError) as caught:
        parse_condition(text, schema)
    return caught.value


@pytest.mark.parametrize("text", ["", " ", "\n\t"])
def test_an_empty_text_accepts_everything(text: str) -> None:
    assert parse_condition(text, NONE) == EVERYTHING


def test_a_slash_begins_an_xpath_on_the_only_xml_column() -> None:
    assert parse_condition(" /nitf//hl1 ", ONE) == parse_condition("XPATH(story, '/nitf//hl1')", ONE)


def test_anything_else_is_sql() -> None:
    assert str(parse_condition("NOT price > 3", ONE)) == "price <= 3.0"
    assert refused("prise > 3", ONE).code == "E161"


def test_an_xpath_without_its_column_says_the_way_out() -> None:
    error = refused("/a/b", NONE)
    assert (error.code, error.at) == ("E161", 0)
    assert "no xml column" in error.message
    error = refused("  /a/b", TWO)
    assert (error.code, error.at) == ("E161", 2)
    assert "head, body" in error.message
    assert "XPATH(column, '/a/b')" in error.message


def test_a_mistake_in_an_xpath_is_pointed_at_in_the_text_as_given() -> None:
    error = refused("  /a[3]", ONE)
    assert error.code.startswith("E17")
    assert error.at == 5
    assert error.pointer() == "  /a[3]\n     ^"
    assert error.message.startswith("at 6: ")
    assert "at 4" not in error.message


def test_a_pattern_that_is_too_long_is_refused() -> None:
    assert refused("/a" * 200_000, ONE).code == "E172"
