"""Rows of a topic from lines and tables: everything before a mistake, and the place of it."""

import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapless.cli.files import formats
from gapless.cli.files.formats import format_of, line_blocks
from gapless.cli.pub.rows import RowReader
from gapless.errors import UsageError
from gapless.model.ids import TopicId
from gapless.model.schema import Schema

SCHEMA = Schema.parse(TopicId("t"), {"n": "int", "text": "string?", "price": "decimal?", "at": "timestamp?"})


def read(pieces: Any) -> tuple[list[dict[str, Any]], UsageError | None]:
    """The rows that come before a mistake, and the mistake."""
    rows: list[dict[str, Any]] = []
    try:
        for piece in pieces:
            rows += piece.rows.to_pylist()
    except UsageError as error:
        return rows, error
    return rows, None


def lines(file: str | io.BytesIO) -> tuple[list[dict[str, Any]], UsageError | None]:
    reader = RowReader(SCHEMA)
    opened = io.BytesIO(file.encode()) if isinstance(file, str) else file
    return read(piece for block in line_blocks(opened) for piece in reader.lines(block, "file.jsonl"))


def test_what_a_line_leaves_out_is_null_and_digits_are_kept() -> None:
    rows, error = lines('\ufeff{"n": 1, "price": 0.1}\n\n  {"n": 2, "price": "12.50", "text": "x"}')
    assert error is None
    assert [row["n"] for row in rows] == [1, 2]
    assert [row["price"] for row in rows] == [Decimal("0.1"), Decimal("12.5")]
    assert [row["text"] for row in rows] == [None, "x"]


@pytest.mark.parametrize(
    ("line", "code", "reason"),
    [
        ('{"n": "many"}', "E158", "column 'n' (int): \"many\" is not a whole number of 64 bits"),
        ('{"n": 1.5}', "E158", "column 'n' (int): \"1.5\" is not a whole number"),
        ('{"n": 9223372036854775808}', "E158", "column 'n' (int): 9223372036854775808 is not a whole number"),
        ('{"n": null}', "E112", "column 'n' is missing"),
        ("{}", "E112", "column 'n' is missing"),
        ('{"n": 1, "at": "monday"}', "E158", "column 'at' (timestamp): \"monday\" is not a time"),
        ('{"n": 1, "m": 2}', "E111", "topic 't' has no column 'm': it has n, text, price, at"),
        ('{"n": 1', "E158", "not JSON"),
        ("[1]", "E158", "not an object"),
        ("[" * 100_000, "E158", "not JSON"),
    ],
)
def test_a_bad_line_is_named_and_what_is_before_it_is_read(line: str, code: str, reason: str) -> None:
    rows, error = lines(f'{{"n": 1}}\n\n{{"n": 2}}\n{line}\n{{"n": 4}}\n')
    assert [row["n"] for row in rows] == [1, 2]
    assert error is not None
    assert error.code == code
    assert error.message.startswith("file.jsonl line 4")
    assert reason in error.message


def test_a_line_without_end_is_refused_without_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "LINE_BYTES_MAX", 100)
    file = io.BytesIO(b'{"n": 1}\n' + b"x" * 10_000_000)
    rows, error = lines(file)
    assert len(rows) == 1
    assert error is not None
    assert error.message == "file.jsonl line 2: a line has at most 100 bytes"
    assert file.tell() < 200


@given(st.lists(st.sampled_from(["good", "null", "blank", "misfit"]), max_size=12), st.integers(1, 4))
def test_pieces_of_any_size_read_the_same(kinds: list[str], rows_max: int) -> None:
    texts = {"good": '{"n": 7}', "null": '{"n": null}', "blank": "", "misfit": '{"n": "x"}'}
    wrong = next((at for at, kind in enumerate(kinds) if kind in ("null", "misfit")), None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats, "PIECE_ROWS_MAX", rows_max)
        rows, error = lines("".join(f"{texts[kind]}\n" for kind in kinds))
    assert len(rows) == kinds[:wrong].count("good")
    if wrong is None:
        assert error is None
    else:
        assert error is not None
        assert error.message.startswith(f"file.jsonl line {wrong + 1}:")


def test_records_are_read_as_the_topic_has_them() -> None:
    text = 'n,text,at\n1,,2026-01-31\n2,"",\n3,NA,2026-01-31T12:00:00+01:00\n'
    rows, error = read(RowReader(SCHEMA).csv(io.BytesIO(text.encode()), "stdin"))
    assert error is None
    assert [row["text"] for row in rows] == [None, "", "NA"]
    assert [str(row["at"]) for row in rows] == [
        "2026-01-31 00:00:00+00:00",
        "None",
        "2026-01-31 11:00:00+00:00",
    ]


@pytest.mark.parametrize(
    ("text", "count", "reason"),
    [
        ("n,m\n1,2\n", 0, "E111 stdin: topic 't' has no column 'm'"),
        ("text\nx\n", 0, "E112 stdin: column 'n' is missing"),
        ("n,n\n1,2\n", 0, "E111 stdin: column 'n' is there twice"),
        ("", 0, "E156 stdin: not readable as CSV"),
        ("n\n1\n2\nx\n4\n", 2, "E158 stdin row 3: column 'n' (int): \"x\" is not a whole number"),
        ("n,text\n1,a\n,b\n", 1, "E112 stdin row 2: column 'n' is missing"),
        ("n,text\n1,a\n2\n", 0, "E156 stdin: not readable as CSV: CSV parse error: Row #3"),
    ],
)
def test_a_bad_record_is_named(text: str, count: int, reason: str) -> None:
    rows, error = read(RowReader(SCHEMA).csv(io.BytesIO(text.encode()), "stdin"))
    assert len(rows) == count
    assert error is not None
    assert str(error).startswith(reason)


def test_a_parquet_file_is_read_up_to_a_value_that_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    table = pa.table({"n": pa.array([1.0, 2.0, 2.5, 3.0]), "text": pa.array(["a", None, "c", "d"])})
    pyarrow.parquet.write_table(table, path)
    rows, error = read(RowReader(SCHEMA).parquet(path))
    assert [(row["n"], row["text"]) for row in rows] == [(1, "a"), (2, None)]
    assert error is not None
    assert str(error).startswith(f"E158 {path} row 3: column 'n' (int): ")


def test_a_document_is_one_event(tmp_path: Path) -> None:
    path = tmp_path / "storm.xml"
    path.write_text("<news/>")
    schema = Schema.parse(TopicId("news"), {"doc": "xml", "note": "string?"})
    rows, error = read(RowReader(schema).document(path))
    assert (rows, error) == ([{"doc": b"<news/>", "note": None}], None)
    _, error = read(RowReader(SCHEMA).document(path))
    assert error is not None
    assert error.code == "E158"


def test_objects_of_the_command_line_are_all_read_before_any_is_published() -> None:
    reader = RowReader(SCHEMA)
    assert reader.objects(['{"n": 1}', '{"n": 2}']).num_rows == 2
    with pytest.raises(UsageError, match="E158 event 2: column 'n'"):
        reader.objects([json.dumps({"n": 1}), json.dumps({"n": "x"})])


def test_a_suffix_says_the_format() -> None:
    assert format_of(Path("a.NDJSON")) == "jsonl"
    with pytest.raises(UsageError, match="E157"):
        format_of(Path("a.txt"))
