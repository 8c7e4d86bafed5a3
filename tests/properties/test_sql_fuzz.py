"""Whatever the text, reading SQL gives a condition or a ContentError, soon, and never anything else."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapless.content.condition import Condition
from gapless.content.language import parse_condition
from gapless.errors import ContentError
from gapless.model.ids import TopicId
from gapless.model.schema import Schema
from tests.budget import examples
from tests.properties.conditions import Generator, write

SCHEMA = Schema.parse(
    TopicId("fuzz"),
    {
        "s": "string?",
        "f": "float?",
        "i": "int?",
        "d": "decimal?",
        "b": "bool?",
        "t": "timestamp?",
        "x": "binary?",
        "doc": "xml?",
        "n": "int",
    },
)

NAMES = "s f i d b t x doc n unknown TIMESTAMP XPATH"
KEYWORDS = "AND OR NOT IN LIKE BETWEEN IS ESCAPE NULL TRUE FALSE CASE SELECT CAST INTERVAL DISTINCT"
SIGNS = "( ) ( ) , = <> != < <= > >= + - * / ; -- /* */ . : ? % | ' \" X' ``"
NUMBERS = "0 1 2.5 1e3 57L 0x1F 7d 010 1e400 99999999999999999999 .5 5. 1.2.3"
TEXTS = "'a' '' '%' '!' 'it''s' '2026-01-01' '/a/b' X'00' \"s\" \" \x00 \u00e9"
WORDS = [*NAMES.split(), *KEYWORDS.split(), *SIGNS.split(), *NUMBERS.split(), *TEXTS.split(), "\n"]


def read(text: str) -> Condition | None:
    """The condition, which prints and reads back as itself; None for a proper refusal."""
    found = attempt(text, SCHEMA)
    if isinstance(found, ContentError):
        return None
    assert parse_condition(str(found), SCHEMA) == found
    return found


def attempt(text: str, schema: Schema) -> Condition | ContentError:
    """The condition, or the error after a look at what every error promises."""
    found: Condition | ContentError
    try:
        found = parse_condition(text, schema)
    except ContentError as error:
        found = error
    if isinstance(found, ContentError):
        assert "\n" not in found.message
        assert found.at is None or 0 <= found.at <= len(text)
        assert found.at is None or not text or found.pointer().endswith("^")
    return found


@examples(400)
@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    read(text)


@examples(1000)
@given(st.lists(st.sampled_from(WORDS), max_size=14), st.sampled_from(["", " "]))
def test_any_words_are_read_or_refused(words: list[str], between: str) -> None:
    read(between.join(words))


operands = st.recursive(
    st.sampled_from(
        ["s", "f", "i", "d", "b", "t", "x", "doc", "n", "NULL", "TRUE", "1", "-2.5", "1e3", "'a'", "X'00'"]
    ),
    lambda inner: (
        st.builds("({} {} {})".format, inner, st.sampled_from("+-*/"), inner) | st.builds("-{}".format, inner)
    ),
    max_leaves=4,
)
leaves = (
    st.builds("{} {} {}".format, operands, st.sampled_from(["=", "<>", "<", ">="]), operands)
    | st.builds("{} {}BETWEEN {} AND {}".format, operands, st.sampled_from(["", "NOT "]), operands, operands)
    | st.builds("{} {}IN ({}, {})".format, operands, st.sampled_from(["", "NOT "]), operands, operands)
    | st.builds("{} IS {}NULL".format, operands, st.sampled_from(["", "NOT "]))
    | st.builds("{} LIKE '{}' ESCAPE '!'".format, operands, st.text("a%_!'", max_size=5))
    | operands
)
grammar = st.recursive(
    leaves,
    lambda inner: (
        st.builds("({} {} {})".format, inner, st.sampled_from(["AND", "OR"]), inner)
        | st.builds("NOT {}".format, inner)
    ),
    max_leaves=8,
)


@examples(500)
@given(grammar)
def test_well_formed_texts_of_any_types_are_read_or_refused(text: str) -> None:
    read(text)


def mutated(text: str, chance: random.Random) -> str:
    """The text with one word replaced by another of its words, or some characters by others."""
    if chance.random() < 0.5:
        words = text.split(" ")
        words[chance.randrange(len(words))] = chance.choice(words)
        return " ".join(words)
    start = chance.randrange(len(text) + 1)
    stop = min(len(text), start + chance.choice([0, 0, 1, 1, 2, 8]))
    other = chance.choice([*WORDS, "", text[start : start + 10], chr(chance.randrange(0x250))])
    return text[:start] + other + text[stop:]


@pytest.mark.parametrize("seed", range(8))
def test_mutated_conditions_are_read_or_refused(seed: int) -> None:
    generator, chance = Generator(seed), random.Random(seed)
    found = 0
    for _ in range(100):
        text = write(generator.condition(1))
        for _ in range(chance.choice([1, 1, 2, 3])):
            text = mutated(text, chance)
        condition = attempt(text, generator.schema)
        if isinstance(condition, Condition):
            assert parse_condition(str(condition), generator.schema) == condition, f"seed {seed}: {text}"
            found += 1
    assert found > 5, "hardly a mutation left a condition that can be read: nothing was tried"


def _nested(value: int, depth: int) -> str:
    """Disjunctions inside conjunctions inside disjunctions, too many to be written out."""
    text = f"i + {value} = 1"
    for level in range(depth):
        pads = " AND ".join(f"(n + {at} > 3 OR d + {at} > 4)" for at in range(7))
        text = f"{pads} AND (s LIKE '%{level}%' OR ({text}))"
    return text


HOSTILE = {
    "parentheses": "(" * 100_000 + "b" + ")" * 100_000,
    "unclosed parentheses": "(" * 400_000,
    "NOTs": "NOT " * 200_000 + "b",
    "signs": "i = " + "- " * 200_000 + "1",
    "a long text": "s = '" + "a" * 990_000 + "'",
    "a longer text": "s = '" + "a" * 1_100_000 + "'",
    "a long name": "a" * 900_000 + " = 3",
    "a long number": "i = " + "9" * 900_000,
    "quotes": "s = " + "'" * 900_000,
    "an open quote": "s = '" + "''" * 400_000,
    "white space": " " * 900_000 + "b",
    "commas": "i IN (" + "," * 100_000,
    "100,000 values": f"i IN ({', '.join(map(str, range(100_000)))})",
    "10,000 values": f"i NOT IN ({', '.join(map(str, range(0, 20_000, 2)))})",
    "5,000 columns in a list": f"i IN ({', '.join(['n', 'd'] * 2_500)})",
    "10,000 ANDs": " AND ".join(f"i <> {at * 2}" for at in range(10_000)),
    "10,000 ORs": " OR ".join(f"i = {at * 2}" for at in range(10_000)),
    "3,000 terms": " OR ".join(f"i + {at} > 3" for at in range(3_000)),
    "3,000 pairs": " OR ".join(f"(i = {at} AND n = {at})" for at in range(3_000)),
    "stairs": " OR ".join(
        f"({first} BETWEEN 0 AND {at} AND {second} = {at})"
        for at in range(900)
        for first, second in [("in"[at % 2], "ni"[at % 2])]
    ),
    "two wide conjunctions": " OR ".join(
        "(" + " AND ".join(f"i + {at} > {limit}" for at in range(2_000)) + ")" for limit in (3, 4)
    ),
    "products": " AND ".join(f"(i = {at} OR n = {at} OR s LIKE '%{at}%')" for at in range(1_000)),
    "nested products": f"({_nested(1, 30)}) OR ({_nested(2, 30)})",
    "a chain of comparisons": "i = " * 30_000 + "1",
    "a chain of sums": "i = " + " + ".join(["i"] * 30_000),
    "a chain of IS NULL": "i" + " IS NULL" * 30_000,
    "a chain of BETWEENs": "i" + " BETWEEN 1 AND 2" * 10_000,
    "a growing constant": "i = 1" + " * 1.23456789" * 45,
    "an exponent": "d = 1e300 AND i < 1e308 AND f > 1e-400",
    "a LIKE of wildcards": "s LIKE '" + "%_" * 490 + "'",
    "a LIKE of many parts": "s LIKE '" + "%a" * 490 + "%'",
    "a LIKE that is too long": "s LIKE '" + "%a" * 400_000 + "'",
    "many LIKEs": " OR ".join(f"s LIKE '%{at}%a%'" for at in range(2_000)),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_texts_are_refused_or_read(text: str) -> None:
    read(text)
