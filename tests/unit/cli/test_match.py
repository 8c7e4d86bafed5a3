"""`gapless match` as a person or a program meets it: every kind of file, explanations, JSON, refusals."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from typer.testing import CliRunner

from gapless.cli import match as match_command
from gapless.cli.files import formats
from gapless.cli.files.cells import cell, fitted, kind_of_arrow, row_text
from gapless.cli.main import app, main
from gapless.content.xml.document import DOCUMENT_BYTES_MAX
from gapless.model.schema import COLUMN_TYPES

TRADES = """\
{"sym": "IBM", "price": 120.5, "volume": 300, "sent": "2026-01-30T23:00:00Z"}
{"sym": "IBM",   "price": 99, "volume": 1200, "sent": "2026-01-31T01:00:00+02:00"}

{"sym": "SAP", "price": 130.0, "volume": null, "sent": "2026-01-31 00:00:00"}
{"sym": "Zürich", "price": 101.25}
"""
LINES = [line for line in TRADES.splitlines() if line]


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


Command = Callable[..., Answer]


@pytest.fixture
def gapless(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """`gapless match` with its entry point, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["gapless", "match", *arguments])
        with pytest.raises(SystemExit) as exit_:
            main()
        captured = capsys.readouterr()
        assert isinstance(exit_.value.code, int)
        return Answer(exit_.value.code, captured.out, captured.err)

    return run


@pytest.fixture
def trades(tmp_path: Path) -> str:
    (tmp_path / "trades.jsonl").write_text(TRADES, encoding="utf-8")
    return "trades.jsonl"


# ---- kinds of file -----------------------------------------------------------------------------------


def test_lines_of_json_are_printed_as_they_are(gapless: Command, trades: str) -> None:
    answer = gapless("--where", "price > 100 OR volume > 1000", trades)
    assert (answer.code, answer.out.splitlines()) == (0, LINES)
    answer = gapless("--where", "volume >= 1000", trades)
    assert answer.out == LINES[1] + "\n"
    assert answer.err == "1 of 4 rows match: volume > 999\n"


def test_nothing_found_is_a_success(gapless: Command, trades: str) -> None:
    answer = gapless("--where", "sym = 'DELL'", trades)
    assert answer == Answer(0, "", "0 of 4 rows match: sym = 'DELL'\n")


def test_ndjson_with_a_byte_order_mark_is_the_same(gapless: Command, tmp_path: Path) -> None:
    (tmp_path / "t.NDJSON").write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n{"a": 2}')
    assert gapless("--where", "a = 1", "t.NDJSON").out == '{"a": 1}\n'


def test_an_empty_file_has_no_rows_and_no_columns(gapless: Command, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").touch()
    assert gapless("--where", "TRUE", "t.jsonl") == Answer(0, "", "0 of 0 rows match: TRUE\n")


def test_a_condition_that_reads_no_column_sees_every_row(gapless: Command, trades: str) -> None:
    assert gapless("--where", "TRUE", "--count", trades).out == "4\n"
    assert gapless("--where", "", "--count", trades).out == "4\n"
    assert gapless("--where", "1 = 2", "--count", trades).out == "0\n"


def test_a_file_is_read_in_pieces_that_do_not_show(
    gapless: Command, trades: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "PIECE_ROWS_MAX", 1)
    # The type comes from the first piece alone, in which `volume` is a number.
    answer = gapless("--where", "volume IS NULL", trades)
    assert answer.out.splitlines() == LINES[2:]
    answer = gapless("--where", "price > 100", "--explain", "--row", "5", trades)
    assert answer.out.startswith("trades.jsonl line 5 matches: price > 100.0\n")


def test_columns_without_a_type_are_left_out_and_named(gapless: Command, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"a": 1, "b": [1], "c": null, "d": {}, "e": 1}\n{"a": 2, "e": "x"}\n')
    answer = gapless("--where", "a = 1", "t.jsonl")
    assert [line.split(":", 2)[2] for line in answer.err.splitlines()[:-1]] == [
        " column 'b' (array) is left out",
        " column 'c' (always null) is left out: say --column c=type to have it",
        " column 'd' (object) is left out",
        " column 'e' (int and string) is left out",
    ]
    assert gapless("--where", "c IS NULL", "--column", "c=int", "--count", "t.jsonl").out == "2\n"


def test_csv_rows_are_printed_as_json(gapless: Command, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("sym,price,day,ok\nIBM,1.5,2026-01-31,true\nSAP,2,,false\n")
    answer = gapless("--where", "day = TIMESTAMP '2026-01-31' AND ok", "t.csv")
    assert answer.out == '{"sym": "IBM", "price": 1.5, "day": "2026-01-31", "ok": true}\n'
    answer = gapless(
        "--where", "price = 2.0", "--column", "price=decimal", "--explain", "--row", "2", "t.csv"
    )
    assert "t.csv row 2 matches: price = 2" in answer.out


def test_parquet_rows_are_printed_as_json(gapless: Command, tmp_path: Path) -> None:
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    table = pa.table(
        {
            "i": pa.array([1, 2, None], pa.int16()),
            "f": pa.array([1.5, float("nan"), 2.5], pa.float32()),
            "s": pa.array(["a", "b", "a"]).dictionary_encode(),
            "l": pa.array(["a", "b", "a"], pa.large_string()),
            "b": pa.array([b"\n", b"", None], pa.binary(-1)),
            "t": pa.array([at, at.replace(hour=13), None], pa.timestamp("ns")),
            "d": pa.array([Decimal("1.25"), Decimal(3), None], pa.decimal128(5, 2)),
            "n": pa.array([[1], [], None]),
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    answer = gapless("--where", "i = 1 AND s = 'a' AND l = 'a' AND f < 2 AND b = X'0a'", "t.parquet")
    assert json.loads(answer.out) == {
        "i": 1, "f": 1.5, "s": "a", "l": "a", "b": "Cg==", "t": "2026-01-31T12:00:00", "d": "1.25", "n": [1]
    }  # fmt: skip
    assert "notice: t.parquet: column 'n' (list<" in answer.err
    assert gapless("--where", "d > 1.25", "--count", "t.parquet").out == "1\n"
    assert gapless("--where", "t >= '2026-01-31 13:00:00'", "--count", "t.parquet").out == "1\n"
    # NaN is the greatest number, and has no word in JSON.
    assert json.loads(gapless("--where", "f > 3", "t.parquet").out)["f"] == "nan"


def test_a_column_that_is_there_twice_is_left_out(gapless: Command, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b,a\n1,2,3\n")
    answer = gapless("--where", "b = 2", "t.csv")
    assert answer.err.splitlines()[0] == "notice: t.csv: column 'a' is there twice and left out"
    assert (answer.code, json.loads(answer.out)["b"]) == (0, 2)


def test_a_condition_about_a_column_that_was_left_out_is_told_why(gapless: Command, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"a": 1}\n{"a": "x"}\n')
    answer = gapless("--where", "a = 1", "t.jsonl")
    assert answer.code == 2
    assert answer.err.splitlines()[:2] == [
        "notice: t.jsonl: column 'a' (int and string) is left out",
        "error: E161 at 1: no column 'a': there are none",
    ]


def test_each_xml_file_is_a_document(
    gapless: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one.xml").write_text("<a><b p='9'/></a>")
    (tmp_path / "two.xml").write_bytes(
        '<?xml version="1.0" encoding="iso-8859-1"?><a>ü</a>'.encode("latin-1")
    )
    (tmp_path / "three.xml").write_text("<a><b p='1'/></a>")
    files = ("one.xml", "two.xml", "three.xml")
    answer = gapless("--where", "/a/b[@p > 5]", *files)
    assert answer == Answer(0, "one.xml\n", "1 of 3 rows match: XPATH(document, '/a/b[@p > 5]')\n")
    monkeypatch.setattr(formats, "PIECE_BYTES_MAX", 1)
    answer = gapless("--where", "NOT XPATH(document, '//b') AND XPATH(document, '/a[. = \"ü\"]')", *files)
    assert answer.out == "two.xml\n"


def test_a_document_that_cannot_be_read_is_named_and_matches_nothing(
    gapless: Command, tmp_path: Path
) -> None:
    (tmp_path / "good.xml").write_text("<a/>")
    (tmp_path / "bad.xml").write_text("<a>")
    (tmp_path / "bomb.xml").write_text("<!DOCTYPE a [<!ENTITY e 'x'>]><a>&e;</a>")
    (tmp_path / "huge.xml").write_bytes(b"<a>" + b" " * DOCUMENT_BYTES_MAX + b"</a>")
    files = ("good.xml", "bad.xml", "bomb.xml", "huge.xml")
    answer = gapless("--where", "/a", *files)
    assert (answer.code, answer.out) == (0, "good.xml\n")
    notices = answer.err.splitlines()
    assert [line.split()[1] for line in notices[:3]] == ["bad.xml:", "bomb.xml:", "huge.xml:"]
    assert [code in line for code, line in zip(("E175", "E177", "E176"), notices, strict=False)] == [True] * 3
    assert notices[3].startswith("1 of 4 rows match")
    # Not knowing what is in a document is no reason to say that something is not.
    assert gapless("--where", "NOT XPATH(document, '/b')", *files).out == "good.xml\n"


def test_of_many_unreadable_documents_only_some_are_named(
    gapless: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(match_command, "NAMED_MAX", 1)
    (tmp_path / "t.jsonl").write_text('{"x": "<a>"}\n{"x": "<b>"}\n{"x": null}\n{"x": "<a/>"}\n')
    answer = gapless("--where", "/a", "--column", "x=xml", "--json", "t.jsonl")
    assert json.loads(answer.out)["unreadable"] == 2
    assert [line.split(": ")[1] for line in answer.err.splitlines()] == [
        "t.jsonl line 1",
        "2 documents cannot be read; the first 1 are named",
    ]


def test_several_files_may_have_different_columns(gapless: Command, tmp_path: Path, trades: str) -> None:
    (tmp_path / "t.csv").write_text("sym,price\nIBM,101\n")
    answer = gapless("--where", "price > 100", "--count", trades, "t.csv")
    assert answer.out == "4\n"
    answer = gapless("--where", "price > 100", "t.csv", trades)
    assert answer.err == "4 of 5 rows match: price >= 101; price > 100.0\n"


# ---- types -------------------------------------------------------------------------------------------


def test_a_column_can_be_taken_for_another_type(gapless: Command, trades: str) -> None:
    where = ("--where", "sent < '2026-01-31'", "--column", "sent=timestamp")
    assert gapless(*where, trades).out.splitlines() == LINES[:2]
    exact = ("--where", "price = 101.25", "--column", "price=decimal", "--column", "volume=float")
    assert gapless(*exact, trades).err == "1 of 4 rows match: price = 101.25\n"


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("int", "12", 12),
        ("int", 3.0, 3),
        ("float", 3, 3.0),
        ("float", "1e3", 1000.0),
        ("decimal", 0.1, Decimal("0.1")),
        ("decimal", "1.5", Decimal("1.5")),
        ("bool", "TRUE", True),
        ("bool", False, False),
        ("timestamp", "2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
        ("string", "x", "x"),
        ("xml", "<ü/>", "<ü/>".encode()),
        ("binary", b"x", b"x"),
        ("binary", "AP8=", b"\x00\xff"),
        ("binary", "", b""),
        ("int", None, None),
    ],
)
def test_values_are_read_as_the_type_that_is_wanted(kind: str, value: object, expected: object) -> None:
    assert cell(value, kind) == expected


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", 3.5),
        ("int", True),
        ("int", 2**63),
        ("int", float("inf")),
        ("int", "three"),
        ("float", "x"),
        ("float", []),
        ("decimal", "1.0000000001"),
        ("decimal", 10**29),
        ("decimal", "x"),
        ("decimal", False),
        ("bool", "yes"),
        ("bool", 2),
        ("timestamp", "yesterday"),
        ("timestamp", 0),
        ("string", 7),
        ("xml", 7),
        ("binary", 7),
        ("binary", "hello"),
        ("binary", "AP8"),
        ("binary", "AP 8="),
        ("binary", "ü"),
    ],
)
def test_values_that_do_not_fit_are_refused(kind: str, value: object) -> None:
    with pytest.raises(ValueError, match="is not"):
        cell(value, kind)


def test_every_type_of_arrow_that_has_one_of_ours_fits_it() -> None:
    arrays = [
        pa.array([1], pa.uint8()),
        pa.array([1.0], pa.float16() if hasattr(pa, "float16") else pa.float32()).cast(pa.float32()),
        pa.array(["x"], pa.string_view()),
        pa.array([b"x"], pa.binary_view()),
        pa.array([b"x"], pa.binary(1)),
        pa.array([date(2026, 1, 31)], pa.date64()),
        pa.array([True]),
        pa.array([Decimal(1)], pa.decimal256(50, 2)),
    ]
    for array in arrays:
        kind = kind_of_arrow(array.type)
        assert kind is not None
        assert fitted(array, kind).type == COLUMN_TYPES[kind]
    assert kind_of_arrow(pa.time32("s")) is None


def test_what_json_has_no_word_for_is_text() -> None:
    row = {"d": date(2026, 1, 31), "n": [float("-inf"), {"x": b"\xff"}], "s": "ü"}
    assert row_text(row) == '{"d": "2026-01-31", "n": ["-inf", {"x": "/w=="}], "s": "ü"}'


# ---- what is asked for -------------------------------------------------------------------------------


def test_a_limit_ends_the_reading(gapless: Command, trades: str) -> None:
    answer = gapless("--where", "price > 100", "--limit", "1", trades)
    assert answer == Answer(0, LINES[0] + "\n", "1 of the first 1 rows match: price > 100.0\n")
    answer = gapless("--where", "price > 100", "--limit", "2", trades, trades)
    assert answer.err == "2 of the first 3 rows match: price > 100.0\n"
    assert gapless("--where", "price > 100", "--limit", "9", "--count", trades).out == "3\n"
    # Enough were found in the first file, and the second is not told of.
    answer = gapless("--where", "price > 100", "--limit", "3", trades, trades)
    assert answer.err == "3 of the first 4 rows match: price > 100.0\n"


def test_explain_tells_of_every_row_what_holds_and_what_does_not(gapless: Command, trades: str) -> None:
    answer = gapless("--where", "price > 100 AND volume IS NOT NULL", "--explain", trades)
    assert answer.out.splitlines()[:6] == [
        "trades.jsonl line 1 matches: price > 100.0 AND volume IS NOT NULL",
        "  yes  price > 100.0       price is 120.5",
        "  yes  volume IS NOT NULL  volume is 300",
        "trades.jsonl line 2 does not match: price > 100.0 AND volume IS NOT NULL",
        "  NO   price > 100.0       price is 99.0",
        "  yes  volume IS NOT NULL  volume is 1200",
    ]
    assert answer.err == "1 of 4 rows match: price > 100.0 AND volume IS NOT NULL\n"


def test_explain_stops_after_some_rows_and_says_so(gapless: Command, trades: str) -> None:
    answer = gapless("--where", "price > 100", "--explain", "--limit", "2", trades, trades)
    assert answer.out.count("trades.jsonl line") == 2
    assert answer.err.splitlines() == [
        "1 of the first 2 rows match: price > 100.0",
        "notice: there are more rows than the first 2: choose with --limit or --row",
    ]
    # Exactly as many as there are: nothing was left out.
    assert "notice" not in gapless("--where", "price > 100", "--explain", "--limit", "4", trades).err
    answer = gapless("--where", "price > 100", "--explain", "--limit", "4", trades, trades)
    assert answer.err.splitlines()[0] == "3 of the first 4 rows match: price > 100.0"


def test_one_row_can_be_explained_alone(gapless: Command, trades: str) -> None:
    answer = gapless("--where", "price > 100", "--explain", "--row", "4", trades)
    assert answer.out == "trades.jsonl line 4 matches: price > 100.0\n  yes  price > 100.0  price is 130.0\n"
    answer = gapless("--where", "price > 100", "--explain", "--row", "3", trades)
    assert answer.err == "error: E150 --row 3: no such row; the last one is 5\n"


def test_documents_are_explained_step_by_step(gapless: Command, tmp_path: Path) -> None:
    (tmp_path / "one.xml").write_text("<a><b p='1'/></a>")
    answer = gapless("--where", "/a/b[@p > 5]", "--explain", "one.xml")
    assert answer.out.startswith("one.xml does not match: XPATH(document, '/a/b[@p > 5]')\n")
    assert "@p is '1' at /a/b" in answer.out


def test_json_is_one_object_for_programs(gapless: Command, trades: str) -> None:
    answer = gapless("--where", "price > 100", "--json", trades)
    outcome = json.loads(answer.out)
    assert answer.err == ""
    assert outcome.pop("seconds") >= 0
    assert outcome == {
        "rows": 4,
        "matched": 3,
        "unreadable": 0,
        "stopped": False,
        "conditions": ["price > 100.0"],
    }
    told = json.loads(gapless("--where", "price > 100", "--json", "--explain", "--row", "2", trades).out)
    assert told["explanations"] == [
        {
            "place": "trades.jsonl line 2",
            "condition": "price > 100.0",
            "matched": False,
            "alternatives": [
                {"pieces": [{"text": "price > 100.0", "holds": False, "because": "price is 99.0"}]}
            ],
        }
    ]


def test_a_bar_is_drawn_on_a_terminal_that_shows_nothing_else(
    gapless: Command, trades: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def terminal(**options: bool) -> Console:
        return Console(**options, force_terminal=True, width=80)

    monkeypatch.setattr(match_command, "Console", terminal)
    answer = gapless("--where", "price > 100", "--count", trades)
    assert answer.out == "3\n"
    assert "matching" in answer.err


def test_help_teaches_by_example() -> None:
    result = CliRunner().invoke(app, ["match", "--help"])
    assert result.exit_code == 0
    assert result.stdout.count("  gapless match --where") == 3


# ---- refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "pointed"),
    [
        ("price > 3 AND prise < 9", "error: E161 at 15: no column 'prise': did you mean 'price'?\n"),
        ("sym > 3", "error: E162 at 7: "),
        ("price >", "error: E160 at 8: "),
        ("abs(price) > 3", "error: E163 at 1: "),
        ("/a/b", "error: E161 at 1: topic 'trades' has no xml column"),
    ],
)
def test_a_mistake_in_the_condition_is_pointed_at(
    gapless: Command, trades: str, where: str, pointed: str
) -> None:
    answer = gapless("--where", where, trades)
    first, text, caret = answer.err.splitlines()
    assert answer.code == 2
    assert f"{first}\n".startswith(pointed)
    assert text == where
    at = int(first.split()[3].rstrip(":"))
    assert caret == " " * (at - 1) + "^"


def test_of_a_long_condition_only_the_place_is_shown(gapless: Command, trades: str) -> None:
    where = " OR ".join(f"price = {each}" for each in range(100)) + " OR prise = 1" + " OR price = 7" * 100
    _, text, caret = gapless("--where", where, trades).err.splitlines()
    assert len(text) < 140
    assert text[caret.index("^") :].startswith("prise = 1")


def test_a_mistake_in_a_pattern_is_pointed_at(gapless: Command, tmp_path: Path) -> None:
    (tmp_path / "one.xml").write_text("<a/>")
    lines = gapless("--where", " /a[1]", "one.xml").err.splitlines()
    assert lines[0].startswith("error: E171 at 5: positions are not supported")
    assert lines[1:] == [" /a[1]", "    ^"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["missing.jsonl"], "E156 missing.jsonl: cannot be read: No such file or directory"),
        (["folder.xml"], "E156 folder.xml: cannot be read: Is a directory"),
        (["bad.parquet"], "E156 bad.parquet: not a Parquet file: "),
        (["empty.csv"], "E156 empty.csv: not readable as CSV: "),
        (["notes.txt"], "E157 notes.txt: what kind of file is this? Known are .jsonl, .ndjson, .csv, "),
        (["broken.jsonl"], "E158 broken.jsonl line 3: not JSON: "),
        (["list.jsonl"], 'E158 list.jsonl line 1: not an object: a row is written {"column": value}'),
        (["trades.jsonl", "--column", "sent"], "E159 --column takes name=type, got 'sent'"),
        (["trades.jsonl", "--column", "sent=date"], "E159 --column sent=date: there is no type 'date': use "),
        (["trades.jsonl", "--column", "sold=int"], "E159 --column sold: no such column: there are price, "),
        (
            ["trades.jsonl", "--column", "price=int", "--column", "price=float"],
            "E159 --column gives 'price' two types, int and float: choose one",
        ),
        (["one.xml", "--column", "document=string"], "E159 --column document=string: one.xml is an xml "),
        (["trades.jsonl", "--limit", "0"], "E150 --limit takes a whole number from 1 on, got '0'"),
        (["trades.jsonl", "--row", "1"], "E151 --row goes with --explain"),
        (["trades.jsonl", "--count", "--explain"], "E151 --count and --explain do not go together"),
        (["trades.jsonl", "--count", "--json"], "E151 --count and --json do not go together"),
    ],
)
def test_refusals_are_one_line(
    gapless: Command, tmp_path: Path, trades: str, arguments: list[str], error: str
) -> None:
    (tmp_path / "folder.xml").mkdir()
    (tmp_path / "bad.parquet").write_text("PAR")
    (tmp_path / "empty.csv").touch()
    (tmp_path / "notes.txt").touch()
    (tmp_path / "broken.jsonl").write_text('{"a": 1}\n\n{"a": \n')
    (tmp_path / "list.jsonl").write_text("[1]\n")
    (tmp_path / "one.xml").write_text("<a/>")
    answer = gapless("--where", "TRUE", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"error: {error}")
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            ["--where", "n > 1", "late.jsonl"],
            "E158 late.jsonl line 3: column 'n' is int, and 2.5 is not a whole number of 64 bits",
        ),
        (
            ["--where", "day > '2026-01-01'", "--column", "day=timestamp", "days.csv"],
            "E158 days.csv row 2: column 'day' (string) does not fit timestamp: \"soon\" is not a time such ",
        ),
        (["--where", "n > 1", "late.csv"], "E158 late.csv: cannot be read on: In CSV column #0: Row #"),
        (
            ["--where", "u > 1", "large.parquet"],
            "E158 large.parquet row 2: column 'u' (uint64) does not fit int",
        ),
        (["--where", "TRUE", "cut.parquet"], "E158 cut.parquet: cannot be read on: "),
        (["--where", "TRUE", "long.jsonl"], "E158 long.jsonl line 1: a line has at most 30 bytes"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(
    gapless: Command, tmp_path: Path, arguments: list[str], error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "PIECE_BYTES_MAX", 12)
    monkeypatch.setattr(formats, "LINE_BYTES_MAX", 30)
    (tmp_path / "late.jsonl").write_text('{"n": 1}\n{"n": 2}\n{"n": 2.5}\n')
    (tmp_path / "late.csv").write_text("n\n1\n2\n3\n4\n5\n6\n7\nx\n")
    (tmp_path / "days.csv").write_text("day\n2026-01-31\nsoon\n")
    (tmp_path / "long.jsonl").write_text('{"n": "' + "x" * 30 + '"}\n')
    pq.write_table(pa.table({"u": pa.array([1, 2**63], pa.uint64())}), tmp_path / "large.parquet")
    data = (tmp_path / "large.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(data[:4] + b"\xff" * 60 + data[64:])
    answer = gapless(*arguments)
    assert answer.code == 2
    assert answer.err.splitlines()[-1].startswith(f"error: {error}")
