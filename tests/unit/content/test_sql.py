"""SQL conditions: what each construct means, and how each mistake is pointed at."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from sqlglot.errors import ParseError, SqlglotError

from gapless.content.condition import EVERYTHING, NOTHING
from gapless.content.cost import matching_cost
from gapless.content.evaluate import mask
from gapless.content.rows import Rows
from gapless.content.sql import parse as sql
from gapless.content.sql.parse import LIST_VALUES_MAX, TERM_DEPTH_MAX, parse_sql
from gapless.content.sql.tokens import DEPTH_MAX, TEXT_CHARACTERS_MAX, TOKENS_MAX
from gapless.errors import ContentError
from gapless.model.ids import TopicId
from gapless.model.schema import Schema

SCHEMA = Schema.parse(
    TopicId("trades"),
    {
        "loc": "string?",
        "price": "float?",
        "volume": "int?",
        "cost": "decimal?",
        "open": "bool?",
        "sent": "timestamp?",
        "raw": "binary?",
        "news": "xml?",
        "number": "int",
        "date": "string?",
        "timestamp": "timestamp?",
        "Price": "int?",
        "is": "bool?",
    },
)


def read(text: str) -> str:
    """The normal form, which must read back as the same condition."""
    condition = parse_sql(text, SCHEMA)
    assert parse_sql(str(condition), SCHEMA) == condition
    return str(condition)


def accepted(text: str, **columns: list[object]) -> list[bool]:
    """Which of the rows are accepted; columns that are not named are null."""
    count = len(next(iter(columns.values())))
    arrow = SCHEMA.arrow()
    arrays = [
        pa.array(columns.get(field.name, [None if field.nullable else 0] * count), field.type)
        for field in arrow
    ]
    found = mask(parse_sql(text, SCHEMA), Rows(pa.RecordBatch.from_arrays(arrays, schema=arrow)))
    return [bool(each) for each in found]


def refused(text: str, schema: Schema = SCHEMA) -> tuple[str, str, str]:
    """The code, what is under the caret and behind it, and the message of the error, which is one line."""
    with pytest.raises(ContentError) as caught:
        parse_sql(text, schema)
    error = caught.value
    assert error.at is not None
    assert error.text == text
    assert "\n" not in error.message
    assert len(error.message) < 250
    if text:
        line, caret = error.pointer().split("\n")
        assert caret == " " * (len(caret) - 1) + "^"
        assert line in text.replace("\t", " ")
    return error.code, text[error.at :], error.message.split(": ", 1)[1]


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("volume = 3", "volume = 3"),
        ("3 = volume", "volume = 3"),
        ("volume <> 3", "volume <> 3"),
        ("volume != 3", "volume <> 3"),
        ("volume > 3.5", "volume >= 4"),
        ("volume = 3.5", "FALSE"),
        ("volume <> 3.5", "volume IS NOT NULL"),
        ("volume < 1e3", "volume <= 999"),
        ("price > 3", "price > 3.0"),
        ("cost <= 3.10", "cost <= 3.1"),
        ("cost = 1e-1", "cost = 0.1"),
        ("loc = 'it''s'", "loc = 'it''s'"),
        ("loc >= ''", "loc IS NOT NULL"),
        ("raw = X'0aFF'", "raw = X'0aff'"),
        ("raw > x''", "raw > X''"),
        ("open = TRUE", "open = TRUE"),
        ("open <> true", "open = FALSE"),
        ("open", "open = TRUE"),
        ("NOT open", "open = FALSE"),
        ("(open) AND (NOT (open))", "FALSE"),
        ("open IS TRUE", "open = TRUE"),
        ("open IS NOT TRUE", "(open = FALSE OR open IS NULL)"),
        ("open IS FALSE", "open = FALSE"),
        ("NOT open IS FALSE", "(open = TRUE OR open IS NULL)"),
        ("number IS NULL", "FALSE"),
        ("number IS NOT NULL", "TRUE"),
        ("volume IS NULL", "volume IS NULL"),
        ("NOT volume IS NOT NULL", "volume IS NULL"),
        ("news IS NOT NULL", "news IS NOT NULL"),
        ("volume BETWEEN 3 AND 9", "volume BETWEEN 3 AND 9"),
        ("volume BETWEEN 9 AND 3", "FALSE"),
        ("volume NOT BETWEEN 3 AND 9", "(volume <= 2 OR volume > 9)"),
        ("NOT volume NOT BETWEEN 3 AND 9", "volume BETWEEN 3 AND 9"),
        ("3 BETWEEN volume AND 9", "volume <= 3"),
        ("volume BETWEEN number AND number + 3", "number <= volume AND volume <= number + 3"),
        ("volume BETWEEN NULL AND 3", "FALSE"),
        ("volume NOT BETWEEN NULL AND 3", "volume >= 4"),
        ("volume IN (3, 5, 5)", "volume IN (3, 5)"),
        ("volume IN (3, -3, 2 + 2)", "(volume = -3 OR volume BETWEEN 3 AND 4)"),
        ("volume IN (3, NULL)", "volume = 3"),
        ("volume NOT IN (3, 5)", "volume NOT IN (3, 5)"),
        ("volume IN (number, 3)", "number = volume OR volume = 3"),
        ("3 IN (volume, 3)", "TRUE"),
        ("sent IN ('2026-01-01', '2026-01-02')", None),
        ("loc LIKE 'IB%'", "loc LIKE 'IB%'"),
        ("loc LIKE 'IB'", "loc = 'IB'"),
        ("loc LIKE '%'", "loc IS NOT NULL"),
        ("loc NOT LIKE 'IB'", "loc <> 'IB'"),
        ("loc LIKE '50!%%' ESCAPE '!'", r"loc LIKE '50\%%' ESCAPE '\'"),
        ("NOT loc NOT LIKE '%x' ESCAPE '!'", "loc LIKE '%x'"),
        ("'abc' LIKE 'a%'", "TRUE"),
        ("'abc' NOT LIKE 'a%'", "FALSE"),
        ("NULL LIKE 'a%' OR loc LIKE NULL", "FALSE"),
        ("sent > '2026-01-31'", "sent > TIMESTAMP '2026-01-31 00:00:00'"),
        ("'2026-01-31T12:00' <= sent", "sent >= TIMESTAMP '2026-01-31 12:00:00'"),
        ("sent = TIMESTAMP '2026-01-31 12:00:00.5+02:00'", None),
        ("volume + number > 3", "number + volume >= 4"),
        ("-volume < 3", "-volume <= 2"),
        ("+volume < 3", "volume <= 2"),
        ("volume - -3 = 2 * 3", "volume - (-3) = 6"),
        ("volume / 2 = 1.5", "volume / 2 = 1.5"),
        ("cost * 2 > 3.00", "3 < cost * 2"),
        ("volume = number", "number = volume"),
        ("number >= volume", "volume <= number"),
        ("loc < date", "loc < date"),
        ("volume = volume", "volume IS NOT NULL"),
        ("volume <> volume", "FALSE"),
        ("volume + number IS NULL", "number + volume IS NULL"),
        ("cost * volume + 1.5 IS NULL", "cost IS NULL OR volume IS NULL"),
        ("cost * volume IS NOT NULL", "cost IS NOT NULL AND volume IS NOT NULL"),
        ("1 + 1 = 2.0", "TRUE"),
        ("0.1 + 0.2 = 0.3", "TRUE"),
        ("1e-1 + 2e-1 = 3e-1", "FALSE"),
        ("'a' < 'b' AND X'00' < X'0001' AND TRUE <> FALSE", "TRUE"),
        ("1 / 0 = 1 OR NOT 1 / 0 = 1", "FALSE"),
        ("1 / 0 IS NULL", "TRUE"),
        ("TRUE", "TRUE"),
        ("NOT TRUE", "FALSE"),
        ("NULL", "FALSE"),
        ("NOT NULL", "FALSE"),
        ("NULL IS NULL AND NULL IS NOT TRUE AND NOT 3 IS NULL", "TRUE"),
        ("volume = NULL", "FALSE"),
        ("NOT volume = NULL", "FALSE"),
        ("volume + NULL < 3", "FALSE"),
        ("NOT NOT NOT volume = 3", "volume <> 3"),
        ("NOT (volume = 3 AND open)", "open = FALSE OR volume <> 3"),
        ("volume = 1 OR volume = 2 AND open", "(open = TRUE AND volume = 2) OR volume = 1"),
        ('"Price" = Price', "Price IS NOT NULL"),
        ("date = 'x' AND timestamp > sent AND \"is\"", None),
        ("volume\n=\t3", "volume = 3"),
        ("XPATH(news, '/nitf//hl1')", "XPATH(news, '/nitf//hl1')"),
        ("NOT xpath ( news , '/a' ) AND open", "open = TRUE AND NOT XPATH(news, '/a')"),
    ],
)
def test_a_condition_has_this_normal_form(text: str, normal: str | None) -> None:
    found = read(text)
    if normal is not None:
        assert found == normal


def test_not_in_with_null_is_never_true() -> None:
    assert parse_sql("volume NOT IN (1, NULL)", SCHEMA) == NOTHING
    assert parse_sql("NOT volume IN (1, NULL)", SCHEMA) == NOTHING
    assert parse_sql("cost + 1 NOT IN (1, NULL)", SCHEMA) == NOTHING


def test_names_are_matched_as_written() -> None:
    assert accepted("price = 1", price=[1.0, 2.0], Price=[2, 1]) == [True, False]
    assert accepted("Price = 1", price=[1.0, 2.0], Price=[2, 1]) == [False, True]


def test_unknown_is_not_accepted_and_its_opposite_neither() -> None:
    for text in (
        "volume > 3",
        "NOT volume > 3",
        "volume + 1 = volume",
        "loc LIKE '%x%'",
        "loc NOT LIKE '%x%'",
    ):
        assert accepted(text, volume=[None], loc=[None]) == [False]


def test_nan_is_above_all_numbers_and_equal_to_itself() -> None:
    price = [1.0, math.inf, math.nan]
    assert accepted("price > 1.7e308", price=price) == [False, True, True]
    assert accepted("NOT price < 2", price=price) == [False, True, True]
    assert accepted("price = price", price=price) == [True, True, True]


def test_what_overflows_is_unknown() -> None:
    volume = [2**63 - 1, -(2**63), 5]
    assert accepted("volume + 1 > 0", volume=volume) == [False, False, True]
    assert accepted("NOT volume + 1 > 0", volume=volume) == [False, True, False]
    assert accepted("volume + 1 IS NULL", volume=volume) == [True, False, False]
    assert accepted("-volume IS NULL", volume=volume) == [False, True, False]
    assert accepted("volume * 2 = volume * 2", volume=volume) == [False, False, True]
    assert parse_sql("9223372036854775807 + 1 > 0", SCHEMA) == NOTHING


def test_division_is_exact_and_by_zero_unknown() -> None:
    assert accepted("1 / volume = 0.5", volume=[2, 0, None]) == [True, False, False]
    assert accepted("1 / volume IS NULL", volume=[2, 0, None]) == [False, True, True]
    assert accepted("1 / price IS NULL", price=[2.0, -0.0, math.nan]) == [False, True, False]


def test_the_ends_of_the_integers_can_be_written() -> None:
    volume = [2**63 - 1, -(2**63), 5]
    assert accepted("volume = -9223372036854775808", volume=volume) == [False, True, False]
    assert accepted("volume >= 9223372036854775807", volume=volume) == [True, False, False]
    assert accepted("volume < 9223372036854775808", volume=volume) == [True, True, True]
    assert read("volume > 9223372036854775806") == "volume = 9223372036854775807"


def test_decimals_are_exact() -> None:
    cost = [Decimal("0.1"), Decimal("0.100000001"), Decimal(10) ** 28]
    assert accepted("cost = 0.1", cost=cost) == [True, False, False]
    assert accepted("cost * 10 = 1", cost=cost) == [True, False, False]
    assert accepted("cost * cost > 99999999999999999999999999999999999999", cost=cost) == [False, False, True]
    assert accepted("cost < 0.1000000005", cost=cost) == [True, False, False]


def test_a_time_without_an_offset_is_in_utc() -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    for text in (
        "2026-01-31 12:00:00",
        "2026-01-31T12:00Z",
        "2026-01-31 14:00:00.000000+02:00",
        "2026-01-31 07:00 -05",
    ):
        assert accepted(f"sent = TIMESTAMP '{text}'", sent=[noon, None]) == [True, False], text
        assert accepted(f"sent = '{text}'", sent=[noon, None]) == [True, False], text


def test_columns_may_be_named_like_words_of_sql() -> None:
    assert accepted("date = 'x' AND timestamp IS NULL", date=["x", "y"]) == [True, False]
    assert accepted('"is" AND "date" = \'x\'', date=["x"], **{"is": [True]}) == [True]


def test_like_reads_line_breaks_and_any_character() -> None:
    loc = ["a\nb", "a\U0001f600b", "ab", "a.b", "A.b"]
    assert accepted("loc LIKE 'a_b'", loc=loc) == [True, True, False, True, False]
    assert accepted("loc LIKE 'a%.%b'", loc=loc) == [False, False, False, True, False]


def test_a_long_chain_is_read_without_recursion() -> None:
    chain = " AND ".join(f"volume <> {number}" for number in range(10_000))
    (conjunction,) = parse_sql(chain, SCHEMA).terms
    (domain,) = conjunction.within.values()
    assert not domain.admits(9_999)
    assert domain.admits(10_000)
    assert parse_sql(" OR ".join(["volume = 1"] * 10_000), SCHEMA) == parse_sql("volume = 1", SCHEMA)


def test_a_deep_text_is_read_up_to_the_limit() -> None:
    assert parse_sql("(" * DEPTH_MAX + "open" + ")" * DEPTH_MAX, SCHEMA) == parse_sql("open", SCHEMA)
    assert parse_sql("NOT " * DEPTH_MAX + "open", SCHEMA) == parse_sql("open", SCHEMA)
    terms = " + ".join(["volume"] * (TERM_DEPTH_MAX + 1))
    assert parse_sql(f"{terms} = 3", SCHEMA).terms
    # Depth is not length: what is closed again does not count.
    assert parse_sql(" OR ".join(["NOT (- volume = (3))"] * 80), SCHEMA).terms


@pytest.mark.parametrize(
    ("text", "code", "rest", "says"),
    [
        # E160: no SQL.
        ("", "E160", "", "write TRUE"),
        ("  ", "E160", "  ", "write TRUE"),
        ("volume >", "E160", "", "missing after '>'"),
        ("volume = 3 AND", "E160", "", "missing after 'AND'"),
        ("volume number", "E160", "number", "expected AND, OR or a comparison"),
        ("volume BETWEEN 3 9", "E160", "9", "expected AND, OR or a comparison"),
        ("volume BETWEEN 3 OR open", "E160", "OR open", "BETWEEN needs AND"),
        ("volume BETWEEN 3", "E160", "3", "BETWEEN needs AND"),
        ("volume IN 3", "E160", "3", "expected a parenthesis and then the values"),
        ("volume IN ()", "E160", ")", "expected a condition"),
        ("volume IN (1,,2)", "E160", ",2)", "expected a column or a value"),
        ("(volume = 3", "E160", "(volume = 3", "never closed"),
        ("volume = 3)", "E160", ")", "closes nothing"),
        ("loc = 'NY", "E160", "'NY", "never closed"),
        ('"loc = 3', "E160", '"loc = 3', "never closed"),
        ("volume IS 3", "E160", "3", "IS takes NULL, TRUE or FALSE"),
        ("volume IS = 3", "E160", "= 3", "expected NULL, TRUE or FALSE"),
        ("volume NOT = 3", "E160", "= 3", "expected IN, LIKE or BETWEEN"),
        ("volume NOT NULL", "E160", "NULL", "expected IN, LIKE or BETWEEN"),
        ("open = NOT open", "E160", "NOT open", "expected a column or a value"),
        ("loc = 'a' ESCAPE '!'", "E160", "ESCAPE '!'", "ESCAPE belongs after the pattern"),
        ("XPATH(news)", "E160", "news)", "a column and a pattern"),
        ("volume == 3", "E160", "= 3", "expected a column or a value"),
        ("volume = 3 \x00", "E160", "\x00", "no meaning"),
        ("volume ^ 3", "E160", "^ 3", "no meaning"),
        ("loc = '\ud800'", "E160", "\ud800'", "UTF-8"),
        # E161: no such column.
        ("prise > 3", "E161", "prise > 3", "did you mean 'price'?"),
        ("volume > 3 AND VOLUME < 9", "E161", "VOLUME < 9", "did you mean 'volume'?"),
        ("zzz = 3", "E161", "zzz = 3", "there are loc, price"),
        ('loc = "NY"', "E161", '"NY"', "single quotes"),
        # E162: types and literals.
        ("price = '3'", "E162", "'3'", "column price (float) and a string value"),
        ("price = '3'", "E162", "'3'", "leave out the quotes"),
        ("loc = 3", "E162", "3", "put the value in quotes"),
        ("loc IN ('a', 3)", "E162", "3)", "put the value in quotes"),
        ("open = 1", "E162", "1", "use TRUE or FALSE"),
        ("sent > 3", "E162", "3", "write TIMESTAMP"),
        ("raw = 'abc'", "E162", "'abc'", "X'0aff'"),
        ("volume = TRUE", "E162", "TRUE", "write a number"),
        ("volume = loc", "E162", "loc", "compare numbers with numbers"),
        ("loc = sent", "E162", "sent", "compare numbers with numbers"),
        ("open < TRUE", "E162", "open < TRUE", "no order"),
        ("open BETWEEN FALSE AND TRUE", "E162", "open BETWEEN FALSE AND TRUE", "no order"),
        ("news = 'x'", "E162", "news = 'x'", "XPATH(news, '/a/b')"),
        ("news LIKE 'x'", "E162", "news LIKE 'x'", "string column"),
        ("news IN (news)", "E162", "news IN (news)", "XPATH"),
        ("volume LIKE '3'", "E162", "volume LIKE '3'", "string column"),
        ("loc + 1 = 3", "E162", "loc + 1 = 3", "is not a number"),
        ("volume * '2' = 3", "E162", "'2' = 3", "is not a number"),
        ("-loc = 3", "E162", "loc = 3", "is not a number"),
        ("volume", "E162", "volume", "not a condition"),
        ("open AND 3", "E162", "3", "not a condition"),
        ("volume IS TRUE", "E162", "volume IS TRUE", "neither true nor false"),
        ("loc LIKE 'a!b' ESCAPE '!'", "E162", "'a!b' ESCAPE '!'", "must stand before"),
        ("loc LIKE 'a' ESCAPE '!!'", "E162", "'!!'", "one character"),
        ("loc LIKE 'a' ESCAPE NULL", "E162", "NULL", "one character"),
        ("volume = 12abc", "E162", "12abc", "not a number"),
        ("volume = 1.2.3", "E162", "1.2.3", "not a number"),
        ("volume = 1_000", "E162", "1_000", "not a number"),
        ("price < 1e999", "E162", "1e999", "not a float"),
        ("volume < " + "9" * 101, "E162", "9" * 101, "at most 100 characters"),
        ("raw = X'abc'", "E162", "X'abc'", "pairs of hexadecimal digits"),
        ("sent = 'yesterday'", "E162", "'yesterday'", "not a time"),
        ("sent = TIMESTAMP '2026-02-30 00:00:00'", "E162", "TIMESTAMP '2026-02-30 00:00:00'", "not a time"),
        ("sent = '0001-01-01 00:00:00+14:00'", "E162", "'0001-01-01 00:00:00+14:00'", "not a time"),
        ("sent = '2026-01-01 00:00:00.1234567'", "E162", "'2026-01-01 00:00:00.1234567'", "not a time"),
        ("XPATH(loc, '/a')", "E162", "loc, '/a')", "xml column"),
        # E163: SQL that is not supported.
        ("lower(loc) = 'ny'", "E163", "lower(loc) = 'ny'", "the function lower() is not supported"),
        ("CAST(volume AS string) = '3'", "E163", "CAST(volume AS string) = '3'", "CAST"),
        ("CASE WHEN open THEN 1 END = 1", "E163", "CASE WHEN open THEN 1 END = 1", "AND and OR"),
        ("volume IN (SELECT 1)", "E163", "SELECT 1)", "WHERE"),
        ("EXISTS (SELECT 1)", "E163", "EXISTS (SELECT 1)", "one event"),
        ("WHERE volume = 3", "E163", "WHERE volume = 3", "only the condition"),
        ("loc ILIKE 'x'", "E163", "ILIKE 'x'", "use LIKE"),
        ("loc LIKE date", "E163", "date", "literal"),
        ("loc LIKE (date)", "E160", "(date)", "expected"),
        ("volume::float = 3", "E163", "::float = 3", "casts"),
        ("volume = :limit", "E163", ":limit", "parameters"),
        ("volume = ?", "E163", "?", "parameters"),
        ("volume = 3; DROP TABLE trades", "E163", "; DROP TABLE trades", "without ';'"),
        ("volume = 3 -- all", "E163", "-- all", "comments"),
        ("volume /* all */ = 3", "E163", "/* all */ = 3", "comments"),
        ("volume % 2 = 0", "E163", "% 2 = 0", "'%'"),
        ("loc || date = 'x'", "E163", "|| date = 'x'", "joining"),
        ("trades.volume = 3", "E163", ".volume = 3", "no prefix"),
        ("`volume` = 3", "E163", "`volume` = 3", "names are quoted"),
        ("volume = 1 = 2", "E163", "volume = 1 = 2", "a condition is not a value"),
        ("open = (volume = 1)", "E163", "volume = 1)", "a condition is not a value"),
        ("(volume = 1) IS TRUE", "E163", "volume = 1) IS TRUE", "a condition is not a value"),
        ("(volume, number) = (1, 2)", "E163", "volume, number) = (1, 2)", "lists are allowed only after IN"),
        ("volume + 1", "E163", "volume + 1", "a condition is needed"),
        ("(1, 2)", "E163", "1, 2)", "a condition is needed"),
        ("XPATH(news, loc)", "E163", "loc)", "literal"),
        ("sent > DATE '2026-01-01'", "E163", "DATE '2026-01-01'", "TIMESTAMP"),
        # E164: too large.
        ("(" * (DEPTH_MAX + 1) + "open", "E164", "(open", "deep"),
        ("NOT " * (DEPTH_MAX + 1) + "open", "E164", "NOT open", "deep"),
        ("volume = " + "- " * (DEPTH_MAX + 1) + "3", "E164", "- 3", "deep"),
        ("volume = " + "+".join(["volume"] * 60), "E164", None, "operators in a row"),
        ("loc LIKE '" + "%a" * 600 + "'", "E164", None, "at most 1000 characters"),
        ("cost = 1" + " * 1.0000000001" * 20, "E164", None, "more than 100 digits"),
        (f"cost = {'9' * 100} * {'9' * 100}", "E164", None, "more than 100 digits"),
    ],
)
def test_a_mistake_is_pointed_at(text: str, code: str, rest: str | None, says: str) -> None:
    found_code, found_rest, message = refused(text)
    assert found_code == code, message
    if rest is not None:
        assert found_rest == rest
    assert says in message


def test_a_mistake_inside_an_xpath_is_pointed_at_inside_the_sql() -> None:
    with pytest.raises(ContentError) as caught:
        parse_sql("open AND XPATH(news, '/a[b = ''x'' and 3]')", SCHEMA)
    assert caught.value.code.startswith("E17")
    assert caught.value.at is not None
    assert caught.value.text[caught.value.at :].startswith("3]')")


def test_what_is_too_long_is_refused_before_it_is_read() -> None:
    assert refused("open OR loc = '" + "x" * TEXT_CHARACTERS_MAX + "'")[0] == "E164"
    assert refused("open" + " OR open" * (TOKENS_MAX // 2))[0] == "E164"
    code, rest, _ = refused(f"volume IN ({', '.join(['7'] * LIST_VALUES_MAX)}, 8)")
    assert (code, rest) == ("E164", "8)")


def test_the_pointer_stands_under_the_mistake() -> None:
    with pytest.raises(ContentError) as caught:
        parse_sql("volume > 3\n  AND prise < 9", SCHEMA)
    assert str(caught.value) == "E161 at line 2 column 7: no column 'prise': did you mean 'price'?"
    assert caught.value.pointer() == "  AND prise < 9\n      ^"


@pytest.mark.parametrize(
    ("outcome", "code"),
    [(RecursionError(), "E164"), (SqlglotError("?"), "E160"), (ParseError("?"), "E160"), ([], "E160")],
)
def test_whatever_the_parser_does_is_our_own_error(
    outcome: object, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stub:
        def __init__(self, **options: object) -> None: ...

        def parse_into(self, *arguments: object) -> object:
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

    monkeypatch.setattr(sql, "Parser", Stub)
    assert refused("open")[0] == code


def test_equal_conditions_are_one() -> None:
    same = [
        "volume = 4",
        "3 < volume AND volume < 5",
        "volume IN (4)",
        "NOT (volume <> 4)",
        "volume BETWEEN 4 AND 4.5",
    ]
    assert len({parse_sql(text, SCHEMA) for text in same}) == 1
    assert (
        len({parse_sql(text, SCHEMA) for text in ["cost + 1 > 3", "cost + 1.0 > 3.00", "3 < 1 + cost"]}) == 2
    )
    assert parse_sql("open OR NOT open OR open IS NULL", SCHEMA) == EVERYTHING


def test_a_condition_with_far_too_many_patterns_is_refused_before_all_of_it_is_read() -> None:
    letters = "%".join("xy" * 200)
    many = " OR ".join(f"loc LIKE '%{at}{letters}'" for at in range(100))
    with pytest.raises(ContentError, match="E124"):
        parse_sql(f"({many}) AND FALSE", SCHEMA)
    # What is needless costs nothing, if it is not far too much; nor does what occurs twice.
    few = " OR ".join(f"loc LIKE '%{at}_'" for at in range(100))
    assert parse_sql(f"({few}) AND FALSE", SCHEMA) == NOTHING
    same = " OR ".join(f"number = {at} AND price > {at} AND loc LIKE '%{letters}'" for at in range(20))
    assert matching_cost(parse_sql(same, SCHEMA)) == matching_cost(
        parse_sql(f"loc LIKE '%{letters}'", SCHEMA)
    )


@pytest.mark.parametrize(
    ("text", "cost"),
    [
        ("loc LIKE '%late%'", 250),
        (f"loc LIKE '%{'x' * 500}%'", 250),
        (f"loc LIKE '%{'x' * 28}_z%'", 250),
        (f"loc LIKE '%{'x' * 128}_z%'", 1_250),
        (f"loc LIKE '{'_%' * 100}z'", 250 + 10 * (102 - 32)),
    ],
)
def test_a_pattern_that_takes_a_large_automaton_costs_more(text: str, cost: int) -> None:
    assert matching_cost(parse_sql(text, SCHEMA)) == cost
