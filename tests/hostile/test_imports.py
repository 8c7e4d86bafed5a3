"""A node loads whatever it needs before it serves: a module that is loaded later may fail to load."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from gapless.model.ids import TopicId
from gapless.model.schema import Schema
from tests.hostile.raw import Raw, frame, hello, publish, publish_rows
from tests.hostile.victim import COLUMNS, TWO_TOPICS, Victim

EVERY_TYPE = {
    "n": "int?",
    "d": "decimal?",
    "t": "timestamp?",
    "b": "binary?",
    "x": "xml?",
    "o": "bool?",
    "s": "string?",
}
ARCHIVED = f"""{TWO_TOPICS}
topics.all = {{{", ".join(f'{name} = "{kind}"' for name, kind in EVERY_TYPE.items())}}}
pubends.all-1 = {{topic = "all", broker = "n1"}}
archive.mine = true
retention.mine = "200kB"
"""
#: Conditions of every kind, and mistakes in them.
CONDITIONS = [
    "n > 1 and s like 'a%' or d between 1.5 and 2 and not (o is null)",
    "t >= timestamp '2026-01-01 00:00:00' and s in ('a', 'b') and length(s) > 3",
    "xpath(x, '/a//b[@c = 1]')",
    "/a//b[@c = 1]",
    "n >",
    "nn = 1",
]


def test_nothing_is_loaded_while_a_node_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late = tmp_path / "late.json"
    monkeypatch.setenv("LOADED_LATE", str(late))
    victim = Victim(tmp_path, ARCHIVED, program=("-m", "tests.hostile.watched"))
    with victim, victim.dial() as raw:
        _exercise(victim, raw)
        assert victim.stop() == 0
    assert json.loads(late.read_text()) == []


def _exercise(victim: Victim, raw: Raw) -> None:
    """Everything that a client may ask of a node, but for bulk reads, which may fail to load."""
    for at, condition in enumerate(CONDITIONS):
        head = [10 + at, "all", condition, None, "publisher", "earliest", "guaranteed", None]
        raw.send(frame("SUBSCRIBE", head))
        assert raw.hear_kind("CONFIRMED", "REQUEST_REFUSED")
    for order, mode, name in (("total", "guaranteed", "kept"), ("publisher", "best-effort", None)):
        raw.send(frame("SUBSCRIBE", [1, "mine", "price > 1", name, order, "earliest", mode, 100]))
        confirmed = raw.hear_kind("CONFIRMED").head
        raw.send(frame("CHANGE_FILTER", [2, confirmed[1], "price > 2"]))
        assert raw.hear_kind("DONE", "CONFIRMED", "REQUEST_REFUSED")
        raw.send(frame("ACKNOWLEDGE", [confirmed[1], {"mine-1": 1}]))
    for at in range(20):
        raw.send(publish_rows("mine", COLUMNS, [[3.5, "x" * 2_000]] * 10, first=10 * at))
        raw.hear_kind("RECEIPT")
    schema = Schema.parse(TopicId("all"), EVERY_TYPE).arrow()
    row = {
        "n": 2,
        "d": Decimal("1.75"),
        "t": datetime(2026, 2, 3, tzinfo=UTC),
        "b": b"b",
        "x": b"<a><b c='1'/></a>",
        "o": True,
        "s": "abcd",
    }
    raw.send(publish("all", EVERY_TYPE, pa.RecordBatch.from_pylist([row], schema=schema)))
    raw.hear_kind("RECEIPT")
    raw.send(publish_rows("nowhere", COLUMNS, [[3.5, "x"]]))
    raw.hear_kind("PUBLISH_REFUSED")
    raw.send(frame("CREATE_TOPIC", [3, "made", {"a": "int", "d": "decimal"}, "newest(a)"]))
    raw.hear_kind("DONE")
    for asked in ([4], [5, ["mine-1", 1], None], [6, None, "kept"]):
        raw.send(frame("ASK_STATUS", asked))
        assert raw.hear_kind("STATUS_REPORT", "REQUEST_REFUSED")
    raw.send(frame("LIST_TOPICS", [7]))
    raw.hear_kind("TOPICS")
    for path in ("/metrics", "/status", "/healthz", "/readyz", "/nothing"):
        assert victim.page(path)[1]
    with Raw(victim.port) as stranger:
        stranger.send(b"garbage" * 10)
        assert stranger.hear_kind("REFUSE")
    with Raw(victim.port) as old:
        assert old.ask(hello(version_min=200, version_max=201))
    while not list(victim.folder.glob("data/n1/archive/mine/*.parquet")):
        assert victim.page("/metrics")[0] == 200
