"""Whatever the text, reading a view gives a relation or a ViewError, and never anything else."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gapless.errors import ViewError
from gapless.views.relation import Relation
from gapless.views.sql.text import view_sql
from tests.budget import examples
from tests.views.language import FIGURE_1, read

_WRITTEN = """
    SELECT FROM WHERE GROUP BY ORDER LIMIT HAVING QUALIFY JOIN LEFT RIGHT FULL OUTER CROSS NATURAL ON USING
    UNION ALL DISTINCT WITH AS AND OR NOT IN IS LIKE ESCAPE BETWEEN CASE WHEN THEN ELSE END EXISTS OVER
    PARTITION ROW_NUMBER() NULLS FIRST LAST DESC OFFSET INTERSECT EXCEPT RECURSIVE NULL TRUE FALSE CAST(
    sum( count( max( first( count(*) abs( coalesce( date_trunc( xml_text( now() LATERAL VALUES INTERVAL DATE
    item qty total news east west sums tops sellers doc at flag e x int string timestamp TIMESTAMP e.item x.*
    ( ) ( ) , . , * = <> < <= > >= + - / % || ; -- /* */ :: ? [ 'a' '/a/b' 'hour' "item" ' " 0 1 3 2.5 1e3
"""
WORDS = _WRITTEN.split()
SEEDS = [
    FIGURE_1,
    "SELECT item, qty FROM east QUALIFY ROW_NUMBER() OVER (PARTITION BY item ORDER BY qty DESC) <= 3",
    "SELECT item FROM (SELECT *, ROW_NUMBER() OVER (ORDER BY qty) AS rn FROM east) WHERE rn <= 3 AND qty > 1",
    "SELECT e.item, count(*) AS n FROM sums e FULL JOIN sums s ON e.item = s.item GROUP BY 1 HAVING n > 3",
    "SELECT CASE qty WHEN 1 THEN 'a' ELSE item END AS x FROM east WHERE qty BETWEEN 1 AND 3 OR item IN ('a')",
    "SELECT date_trunc('hour', at) AS h, max(score) AS m FROM news GROUP BY h ORDER BY m DESC LIMIT 3",
    "SELECT CAST(qty AS string) || 'a' AS t FROM east UNION ALL SELECT item FROM west",
]


def attempt(text: str) -> None:
    """Read a text; what every error and every relation promises holds."""
    found: Relation | ViewError
    try:
        found = read(text)
    except ViewError as error:
        found = error
    if not isinstance(found, ViewError):
        assert read(view_sql(found)) == found
        return
    assert found.code in ("E165", "E166", "E167", "E168", "E169")
    assert "\n" not in found.message
    assert found.at is not None
    assert 0 <= found.at <= len(text)
    assert not text or found.pointer().endswith("^")


@given(st.text(max_size=60))
@settings(deadline=None)
def test_any_text_is_a_view_or_a_view_error(text: str) -> None:
    attempt(text)


@given(st.lists(st.sampled_from(WORDS), max_size=25))
@examples(300)
def test_any_words_are_a_view_or_a_view_error(words: list[str]) -> None:
    attempt("SELECT " + " ".join(words))


@pytest.mark.parametrize("seed", range(20))
def test_a_view_with_words_changed_is_a_view_or_a_view_error(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(60):
        words = chance.choice(SEEDS).replace("(", " ( ").replace(",", " , ").replace(")", " ) ").split()
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(words))
            match chance.randint(0, 3):
                case 0:
                    del words[at]
                case 1:
                    words.insert(at, chance.choice(WORDS))
                case 2:
                    words[at] = chance.choice(WORDS)
                case _:
                    other = chance.randrange(len(words))
                    words[at], words[other] = words[other], words[at]
        attempt(" ".join(words))


@pytest.mark.parametrize("text", SEEDS)
def test_every_beginning_of_a_view_is_a_view_or_a_view_error(text: str) -> None:
    for stop in range(len(text)):
        attempt(text[:stop])


@pytest.mark.parametrize(
    "text",
    [
        "SELECT " + "(" * 32 + "qty" + ")" * 32 + " AS x FROM east",
        "SELECT * FROM " + "(SELECT * FROM " * 31 + "east" + ")" * 31,
        "SELECT item FROM east WHERE " + " AND ".join(["qty > 1"] * 3_000),
        "SELECT item FROM east WHERE " + "qty = " * 60 + "1",
        "SELECT " + "CASE WHEN flag THEN " * 30 + "1" + " END" * 30 + " AS x FROM news",
        "SELECT a1.item FROM sums a1 " + " ".join(f"JOIN sums a{n} USING (item)" for n in range(2, 60)),
        "SELECT item FROM east" + " UNION ALL SELECT item FROM east" * 200,
        "WITH " + ", ".join(f"r{n} AS (SELECT * FROM east)" for n in range(500)) + " SELECT * FROM r7",
    ],
    ids=range(8),
)
def test_a_large_view_is_a_view_or_a_view_error(text: str) -> None:
    attempt(text)
