"""What people see of a view in a terminal, and programs on a pipe."""

from __future__ import annotations

import asyncio
import io
import json

import pyarrow as pa
import pytest
from rich.console import Console

from gapless.cli.view import watch as view_watch
from gapless.embedding import embedded
from tests.integration.relations import SALES, STOCK, Shown


def test_a_table_moves_and_what_has_changed_is_bright() -> None:
    seen = io.StringIO()
    console = Console(file=seen, force_terminal=True, width=60, height=20, color_system="standard")

    async def story() -> None:
        async with embedded(spark=False) as client:
            await client.create_topic("sales", SALES)
            shown = Shown(client, await client.create_view("stock", STOCK))
            await shown.show([{"item": "ticket", "total": 3}], {"sales": {"sales-node": 1769860800000000}})
            async with client.view("stock") as table:
                drawing = asyncio.create_task(view_watch._drawn(table, console, limit=2))
                await anext(table.changes())
                await asyncio.sleep(0)
                await shown.show(
                    [{"item": "ticket", "total": 5}], {"sales": {"sales-node": 1769860801000000}}
                )
                await drawing

    asyncio.run(story())
    text = seen.getvalue()
    assert "stock: 1 rows" in text
    assert "as of 2026-01-31 12:00:01.000" in text
    last = text[text.rindex("total") :]
    assert "\x1b[1;32m" in last, "the row has just changed"
    assert "5" in last


def test_rows_are_lines_of_json_whatever_they_hold(capsys: pytest.CaptureFixture[str]) -> None:
    table = pa.table({"n": [1, None], "text": ["a", "ü"], "raw": [b"x", None]})
    lines = [view_watch.row_text(row) for row in table.to_pylist()]
    assert [json.loads(line) for line in lines] == [
        {"n": 1, "text": "a", "raw": "eA=="},
        {"n": None, "text": "ü", "raw": None},
    ]
    view_watch.print_rows(table)
    assert [line.split() for line in capsys.readouterr().out.splitlines() if line.strip(" ─")] == [
        ["n", "text", "raw"],
        ["1", "a", "x"],
        ["ü"],
    ]
