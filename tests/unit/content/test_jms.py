"""JMS 2.0 message selectors are read as they are; where we differ, a test here says how.

The claims follow Jakarta Messaging's section on message selectors: what it allows is accepted with the
same meaning, apart from the differences listed in docs/content.md, each of which has its test below.
"""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from gapless.content.condition import EVERYTHING, NOTHING
from gapless.content.evaluate import mask
from gapless.content.language import parse_condition
from gapless.content.rows import Rows
from gapless.content.sql.parse import parse_sql
from gapless.errors import ContentError
from gapless.model.ids import TopicId
from gapless.model.schema import Schema

SCHEMA = Schema.parse(
    TopicId("cars"),
    {
        "JMSType": "string?",
        "JMSPriority": "int?",
        "color": "string?",
        "weight": "int?",
        "phone": "string?",
        "underscored": "string?",
        "Country": "string?",
        "age": "int?",
        "rate": "float?",
        "sold": "bool?",
        "_a1": "int?",
    },
)


def accepted(selector: str, *rows: dict[str, object]) -> list[bool]:
    batch = pa.RecordBatch.from_pylist(list(rows), schema=SCHEMA.arrow())
    return [bool(each) for each in mask(parse_sql(selector, SCHEMA), Rows(batch))]


def same(selector: str, other: str) -> bool:
    return parse_sql(selector, SCHEMA) == parse_sql(other, SCHEMA)


def code_of(selector: str) -> str:
    with pytest.raises(ContentError) as caught:
        parse_sql(selector, SCHEMA)
    assert caught.value.pointer()
    return caught.value.code


def test_the_specifications_own_example() -> None:
    selector = "JMSType = 'car' AND color = 'blue' AND weight > 2500"
    car = {"JMSType": "car", "color": "blue", "weight": 2501}
    assert accepted(selector, car, {**car, "weight": 2500}, {**car, "color": None}) == [True, False, False]


def test_keywords_are_in_any_case_and_names_are_not() -> None:
    assert same("color is not null and not sold = true", "color IS NOT NULL AND NOT sold = TRUE")
    assert same("age bEtWeEn 1 aNd 2 Or color Like 'x' eScApE '!'", "age BETWEEN 1 AND 2 OR color = 'x'")
    assert code_of("COLOR = 'blue'") == "E161"


def test_white_space_is_free() -> None:
    assert same(" \t\f\r\nage\t=\n1 ", "age=1")


@pytest.mark.parametrize(
    ("literal", "plain"),
    [
        ("57", "57"),
        ("-957", "-957"),
        ("+62", "62"),
        ("57L", "57"),
        ("57l", "57"),
        ("0x1F", "31"),
        ("0X1fL", "31"),
        ("7e0", "7"),
        ("7.0", "7"),
        ("7.", "7"),
        (".5e1", "5"),
        ("7.0f", "7"),
        ("7F", "7"),
        ("7d", "7"),
        ("7.D", "7"),
        ("-95.7e1", "-957"),
    ],
)
def test_numbers_of_java_are_read(literal: str, plain: str) -> None:
    assert same(f"age = {literal}", f"age = {plain}")
    assert same(f"rate >= {literal}", f"rate >= {plain}")


def test_a_string_literal_doubles_its_quotes() -> None:
    assert accepted("color = 'literal''s'", {"color": "literal's"}, {"color": "literals"}) == [True, False]


def test_names_are_java_identifiers() -> None:
    assert same("_a1 = 1", '"_a1" = 1')


def test_between_in_and_like_as_in_the_specification() -> None:
    assert same("age BETWEEN 15 AND 19", "age >= 15 AND age <= 19")
    assert same("age NOT BETWEEN 15 AND 19", "age < 15 OR age > 19")
    assert same(
        "Country IN (' UK', 'US', 'France')", "(Country = ' UK') OR (Country = 'US') OR (Country = 'France')"
    )
    assert same("Country NOT IN ('UK', 'US')", "NOT ((Country = 'UK') OR (Country = 'US'))")
    phones = [{"phone": text} for text in ("123", "12993", "1234", None)]
    assert accepted("phone LIKE '12%3'", *phones) == [True, True, False, False]
    assert accepted("phone NOT LIKE '12%3'", *phones) == [False, False, True, False]
    words = [{"color": text} for text in ("lose", "loose")]
    assert accepted("color LIKE 'l_se'", *words) == [True, False]
    underscored = [{"underscored": text} for text in ("_foo", "bar")]
    assert accepted(r"underscored LIKE '\_%' ESCAPE '\'", *underscored) == [True, False]


def test_unknown_values_follow_sql() -> None:
    rows: list[dict[str, object]] = [{"age": None, "sold": True}, {"age": None, "sold": False}]
    assert accepted("age > 1 OR sold", *rows) == [True, False]
    assert accepted("NOT (age > 1 AND sold)", *rows) == [False, True]
    assert accepted("age IS NULL", *rows) == [True, True]


def test_precedence_is_that_of_the_specification() -> None:
    assert same("sold OR age = 1 AND age = 1 + 2 * 3", "sold OR ((age = 1) AND (age = (1 + (2 * 3))))")
    assert same("NOT sold AND age = -1 * 2", "(NOT sold) AND age = ((-1) * 2)")
    assert same("age - 1 - 2 = 3", "(age - 1) - 2 = 3")


def test_an_empty_selector_accepts_everything() -> None:
    assert parse_condition("", SCHEMA) == EVERYTHING


# The differences.


def test_differs_a_property_that_is_not_a_column_is_an_error() -> None:
    """JMS takes an unknown property as null; here topics have schemas, and a typing error is found."""
    assert code_of("colour = 'blue'") == "E161"


def test_differs_types_that_do_not_go_together_are_an_error() -> None:
    """In JMS the comparison is false."""
    assert code_of("age = '1'") == "E162"
    assert code_of("color = TRUE") == "E162"
    assert code_of("color = 1 OR sold") == "E162"


def test_differs_texts_have_an_order_and_every_type_has_in_and_between() -> None:
    """JMS compares texts only with = and <>, and has IN for texts and BETWEEN for numbers alone."""
    assert accepted("color < 'c' AND age IN (1, 2)", {"color": "blue", "age": 2}) == [True]
    assert accepted("color BETWEEN 'a' AND 'c'", {"color": "blue"}) == [True]
    assert code_of("sold < TRUE") == "E162"


def test_differs_division_is_exact() -> None:
    """Java divides integers to integers."""
    assert accepted("age / 2 = 3", {"age": 7}, {"age": 6}) == [False, True]
    assert accepted("age / 2 = 3.5", {"age": 7}) == [True]


def test_differs_overflow_and_division_by_zero_are_unknown() -> None:
    """Java wraps around, and throws."""
    assert accepted("age + 1 < 0", {"age": 2**63 - 1}) == [False]
    assert accepted("1 / age = 1 OR NOT 1 / age = 1", {"age": 0}) == [False]


def test_differs_a_number_with_a_point_is_exact() -> None:
    """In JMS it is a double, and so is 0.1f, which Java would round to 32 bits."""
    assert parse_sql("0.1 + 0.2 = 0.3", SCHEMA) == EVERYTHING
    assert parse_sql("1e-1 + 2e-1 = 3e-1", SCHEMA) == NOTHING
    assert accepted("rate = 0.1f", {"rate": 0.1}) == [True]


def test_differs_octal_numbers_are_refused() -> None:
    """Java reads 010 as 8 and SQL as 10."""
    assert code_of("age = 010") == "E162"
    assert code_of("age = 017L") == "E162"
    assert same("age = 0", "age = 0L")


def test_differs_hexadecimal_numbers_have_63_bits() -> None:
    """Java reads 0xFFFFFFFFFFFFFFFFL as -1."""
    assert code_of("age = 0xFFFFFFFFFFFFFFFFL") == "E162"
    assert code_of("age = 9223372036854775808L") == "E162"
    assert code_of("rate = 1e3L") == "E162"
    assert code_of("rate = 1.5L") == "E162"
    assert same("age = -9223372036854775808L", "age = -9223372036854775808")


def test_differs_nan_is_equal_to_itself_and_above_all() -> None:
    assert accepted("rate = rate AND rate > 1e300", {"rate": math.nan}) == [True]


def test_differs_an_escape_character_stands_before_a_wildcard_or_itself() -> None:
    """JMS does not say what it means elsewhere."""
    assert code_of("color LIKE 'a!b' ESCAPE '!'") == "E162"


def test_differs_names_with_a_dollar_are_refused() -> None:
    """A column's name has letters, digits and _ alone."""
    assert code_of("$age = 1") == "E163"


def test_differs_headers_are_columns_like_others() -> None:
    assert accepted("JMSPriority >= 5", {"JMSPriority": 7}) == [True]
    assert code_of("JMSDeliveryMode = 'PERSISTENT'") == "E161"
