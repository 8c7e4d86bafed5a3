"""Random SQL conditions on random rows: we accept just the rows that DuckDB's WHERE would keep.

Each run holds 12 x 50 conditions against 64 rows each, with products of disjunctions written out and kept
whole: 76,800 pairs of a condition and a row. A failure prints the seed, and
`GAPLESS_SQL_SEED=123 pytest tests/properties/test_sql_oracle.py` runs another.
"""

from __future__ import annotations

import os
import random

import duckdb
import pyarrow as pa
import pytest

from gapless.content import normal
from gapless.content.evaluate import mask
from gapless.content.rows import Rows
from gapless.content.sql.parse import parse_sql
from tests.properties.conditions import Generator, variant, write

SEED = int(os.environ.get("GAPLESS_SQL_SEED", "20260101"))
SCHEMAS = 12
CONDITIONS = 50
ROWS = 64


@pytest.fixture(params=[normal.TERMS_MAX, 3], ids=["written out", "kept whole"])
def terms_max(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything holds as well when nearly no product of disjunctions is written out."""
    monkeypatch.setattr(normal, "TERMS_MAX", request.param)


_DUCKDB_TYPES = {"decimal": "DECIMAL(38, 2)", "timestamp": "TIMESTAMP"}


def duckdb_accepts(generator: Generator, rows: pa.RecordBatch, conditions: list[str]) -> list[list[bool]]:
    """For each condition, which rows DuckDB keeps; all conditions in one scan."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("given", pa.Table.from_batches([rows]))
        columns = ", ".join(
            f'CAST("{column.name}" AS {_DUCKDB_TYPES[column.type]}) AS "{column.name}"'
            if column.type in _DUCKDB_TYPES
            else f'"{column.name}"'
            for column in generator.schema.columns
        )
        connection.execute(f"CREATE TABLE rows AS SELECT {columns} FROM given")
        asked = ", ".join(f"coalesce(CAST(({text}) AS BOOLEAN), FALSE)" for text in conditions)
        found = connection.execute(f"SELECT {asked} FROM rows").fetchall()
    return [list(column) for column in zip(*found, strict=True)]


@pytest.mark.parametrize("seed", range(SEED, SEED + SCHEMAS))
def test_random_conditions_accept_the_rows_that_duckdb_accepts(seed: int, terms_max: None) -> None:
    generator = Generator(seed)
    rows = generator.rows(ROWS)
    conditions = [generator.condition() for _ in range(CONDITIONS)]
    wanted = duckdb_accepts(generator, rows, [write(each, duckdb=True) for each in conditions])
    batch = Rows(rows)
    for condition, expected in zip(conditions, wanted, strict=True):
        text = write(condition)
        parsed = parse_sql(text, generator.schema)
        found = mask(parsed, batch).tolist()
        wrong = [at for at in range(ROWS) if found[at] != expected[at]]
        assert not wrong, (
            f"seed {seed}: {text}\nread as {parsed}\nsays {found[wrong[0]]}, DuckDB {expected[wrong[0]]} "
            f"of {rows.slice(wrong[0], 1).to_pylist()[0]}"
        )


@pytest.mark.parametrize("seed", range(SEED, SEED + SCHEMAS))
def test_a_printed_condition_is_read_as_the_same_condition(seed: int, terms_max: None) -> None:
    generator = Generator(seed)
    for _ in range(CONDITIONS):
        text = write(generator.condition())
        parsed = parse_sql(text, generator.schema)
        again = parse_sql(str(parsed), generator.schema)
        assert again == parsed, f"seed {seed}: {text}\nprints as {parsed}\nread as   {again}"
        assert str(again) == str(parsed), f"seed {seed}: {text}"
        assert hash(again) == hash(parsed), f"seed {seed}: {text}"


@pytest.mark.parametrize("seed", range(SEED, SEED + SCHEMAS))
def test_equivalent_forms_have_one_identity(seed: int) -> None:
    generator = Generator(seed)
    chance = random.Random(seed)
    for _ in range(CONDITIONS):
        node = generator.condition()
        text, other = write(node), write(variant(node, chance))
        first, second = parse_sql(text, generator.schema), parse_sql(other, generator.schema)
        assert first == second, f"seed {seed}:\n{text}\n{other}\nare read as\n{first}\n{second}"
        assert str(first) == str(second), f"seed {seed}:\n{text}\n{other}"
