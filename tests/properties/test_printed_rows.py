"""What `gapless sub` prints, `gapless pub` reads: the same rows, whatever is in them."""

from __future__ import annotations

import contextlib
import io
from datetime import UTC
from decimal import Decimal

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from gapless.cli.files.formats import LineBlock
from gapless.cli.pub.rows import RowReader
from gapless.cli.sub.command import line_printer
from gapless.cli.sub.history import PastRows
from gapless.model.ids import TopicId
from gapless.model.schema import Schema

SCHEMA = Schema.parse(
    TopicId("all"),
    {
        "a": "int?",
        "b": "float?",
        "c": "string?",
        "d": "bool?",
        "e": "timestamp?",
        "f": "decimal?",
        "g": "binary?",
        "h": "xml?",
    },
)
rows = st.fixed_dictionaries(
    {
        "a": st.none() | st.integers(-(2**63), 2**63 - 1),
        "b": st.none() | st.floats(allow_nan=False),
        "c": st.none() | st.text(max_size=20),
        "d": st.none() | st.booleans(),
        "e": st.none() | st.datetimes(timezones=st.just(UTC)),
        "f": st.none() | st.decimals(Decimal(-(10**28)), Decimal(10**28), places=9),
        "g": st.none() | st.binary(max_size=20) | st.just(b"<a/>"),
        "h": st.none() | st.just("<ü/>".encode()),
    }
)


@given(st.lists(rows, min_size=1, max_size=5))
def test_printed_rows_are_read_back_unchanged(drawn: list[dict[str, object]]) -> None:
    batch = pa.RecordBatch.from_pylist(drawn, schema=SCHEMA.arrow())
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        line_printer(SCHEMA, names=False)(PastRows(batch, [], []), len(drawn))  # type: ignore[arg-type]
    lines = [line.encode() for line in printed.getvalue().splitlines(keepends=True)]
    [piece] = RowReader(SCHEMA).lines(LineBlock.of(lines, 1), "stdin")
    assert piece.rows.equals(batch)
