"""What the pipeline remembers: rows by key against a dict, relations against their topic, and its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapless.errors import PipelineError, UsageError
from gapless.model.ids import TopicId
from gapless.model.schema import Column
from gapless.spark import session, state
from gapless.spark.checkpoints import Checkpoint
from gapless.spark.relations import Relation, covers, met
from gapless.spark.state import KeyedRows
from gapless.views.registry import AS_OF, GONE, KEY, KIND, MARKER, SHOWN, STAMP, stamp_of

SCHEMA = pa.schema([pa.field(KEY, pa.string()), pa.field("n", pa.int64()), pa.field("x", pa.float64())])
AS_OF_1, AS_OF_2 = {"t": {"p": 5}}, {"t": {"p": 9}}

_rows = st.dictionaries(
    st.sampled_from("abcdef"),
    st.tuples(st.none() | st.integers(0, 2), st.sampled_from([None, 0.5, float("nan")]), st.booleans()),
)


def table(rows: dict[str, tuple[Any, Any]]) -> pa.Table:
    columns = {KEY: list(rows), "n": [n for n, _ in rows.values()], "x": [x for _, x in rows.values()]}
    return pa.table(columns, schema=SCHEMA)


def texts(rows: pa.Table) -> dict[str, str]:
    return {row[KEY]: repr((row["n"], row["x"])) for row in rows.to_pylist()}


@given(st.lists(_rows, max_size=8), st.sampled_from([0, 2, 1_000]))
def test_rows_by_key_are_a_dict(batches: list[dict[str, tuple[Any, Any, bool]]], many_keys: int) -> None:
    kept, twin = KeyedRows(SCHEMA), dict[str, str]()
    dead_rows_min, state.DEAD_ROWS_MIN = state.DEAD_ROWS_MIN, 2
    many_before, state.MANY_KEYS = state.MANY_KEYS, many_keys
    try:
        for batch in batches:
            visible = np.array([shown for _, _, shown in batch.values()], np.bool_)
            delta = kept.apply(table({key: (n, x) for key, (n, x, _) in batch.items()}), visible)
            after = dict(twin)
            for key, (n, x, shown) in batch.items():
                after.pop(key, None)
                if shown:
                    after[key] = repr((n, x))
            changed = {key for key in {*twin, *after} if twin.get(key) != after.get(key)}
            assert texts(delta.old) == {key: twin[key] for key in changed if key in twin}
            assert texts(delta.new) == {key: after[key] for key in changed if key in after}
            assert set(delta.gone.to_pylist()) == {key for key in twin if key not in after}
            twin = after
            assert texts(kept.table()) == twin
            assert len(kept) == len(twin)
    finally:
        state.DEAD_ROWS_MIN, state.MANY_KEYS = dead_rows_min, many_before


class Topic:
    """Remembers what was published."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def publish_batch(self, data: Any, /) -> object:
        self.rows += data.to_pylist()
        return data


def relation(rows_max: int = 100) -> Relation:
    return Relation("v", (Column("n", "int"), Column("x", "float")), rows_max)


def every(count: int) -> np.ndarray[Any, Any]:
    return np.ones(count, np.bool_)


def test_a_relation_publishes_the_difference_and_a_marker_that_adds_up() -> None:
    topic, mine = Topic(), relation()
    mine.replace(table({"a": (1, 0.5), "b": (2, None)}), every(2))
    mine.publish(topic, AS_OF_1)
    mine.replace(table({"b": (2, None), "c": (3, 0.5)}), every(2))
    mine.publish(topic, AS_OF_2)
    assert [(row[KIND], row[KEY]) for row in topic.rows] == [
        (SHOWN, "a"),
        (SHOWN, "b"),
        (MARKER, None),
        (SHOWN, "c"),
        (GONE, "a"),
        (MARKER, None),
    ]
    stamps = {row[KEY]: row[STAMP] for row in topic.rows if row[KIND] == SHOWN}
    assert topic.rows[-1][STAMP] == stamp_of([stamps["b"], stamps["c"]])
    # Another process reads the topic and has nothing to say.
    other, said = relation(), Topic()
    other.restore(pa.Table.from_pylist(topic.rows, schema=other.topic_schema))
    assert other.as_of == AS_OF_2
    other.replace(table({"b": (2, None), "c": (3, 0.5)}), every(2))
    other.publish(said, AS_OF_2)
    assert [(row[KIND], row[STAMP]) for row in said.rows] == [(MARKER, topic.rows[-1][STAMP])]
    assert said.rows[0][AS_OF] == topic.rows[-1][AS_OF]


def test_a_view_that_shows_too_much_is_refused() -> None:
    with pytest.raises(PipelineError, match="E502 view 'v' shows 3 rows, at most 2"):
        relation(rows_max=2).apply(table({"a": (1, 1.0), "b": (1, 1.0), "c": (1, 1.0)}), every(3))


def test_horizons_cover_and_meet() -> None:
    assert covers(AS_OF_2, AS_OF_1)
    assert not covers(AS_OF_1, AS_OF_2)
    assert met([AS_OF_1, AS_OF_2, {"u": {"q": 1}}]) == {"t": {"p": 5}, "u": {"q": 1}}


def checkpoint(folder: Path, committed: int | None) -> Checkpoint:
    made = Checkpoint(folder, SCHEMA)
    for number in range(-1 if committed is None else committed + 1):
        for name, told in {"offsets": '{"batchWatermarkMs":0}\n{"p": 5}', "commits": "{}"}.items():
            (folder / "spark" / name).mkdir(parents=True, exist_ok=True)
            (folder / "spark" / name / str(number)).write_text(f"v1\n{told}")
    return made


def test_state_rows_come_back_as_they_were(tmp_path: Path) -> None:
    assert checkpoint(tmp_path, None).restore() is None
    mine = checkpoint(tmp_path, 2)
    mine.write(0, table({"a": (1, 0.5)}), AS_OF_1, 1)
    mine.write(1, table({"b": (1, 0.5)}), AS_OF_1, 2)
    mine.write_whole(1, table({"a": (1, 0.5), "b": (1, 0.5)}), AS_OF_1)
    mine.write(2, table({"a": (2, None)}), AS_OF_2, 2)
    restored = checkpoint(tmp_path, 2).restore()
    assert restored is not None
    assert [texts(rows) for rows in restored.rows] == [
        texts(table({"a": (1, 0.5), "b": (1, 0.5)})),
        texts(table({"a": (2, None)})),
    ]
    assert restored.as_of == AS_OF_2
    # Spark repeats the batch that it has not committed.
    (tmp_path / "spark" / "commits" / "2").unlink()
    assert Checkpoint(tmp_path, SCHEMA).restore() is not None


@pytest.mark.parametrize(
    "harm",
    [
        *("missing", "cut", "behind", "ahead", "other columns", "no commits"),
        *("offsets lost", "offsets cut", "commit cut", "commit empty", "checksum cut", "checksum wrong"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_noticed(tmp_path: Path, harm: str) -> None:  # noqa: PLR0912
    mine = checkpoint(tmp_path, 3)
    for batch in range(4):
        mine.write(batch, table({"a": (batch, 0.5)}), AS_OF_1, 1)
    newest = tmp_path / "rows" / "3.arrow"
    offsets, commits = tmp_path / "spark" / "offsets", tmp_path / "spark" / "commits"
    match harm:
        case "missing":
            (tmp_path / "rows" / "1.arrow").unlink()
        case "cut":
            newest.write_bytes(newest.read_bytes()[:-9])
        case "behind":
            newest.unlink()
        case "ahead":
            (commits / "3").unlink()
            (commits / "2").unlink()
        case "other columns":
            mine = Checkpoint(tmp_path, pa.schema([SCHEMA.field(KEY)]))
        case "no commits":
            for each in commits.iterdir():
                each.unlink()
        case "offsets lost":
            # Spark would repeat the batch before, and the view would go back.
            (offsets / "3").unlink()
        case "offsets cut":
            (offsets / "3").write_text((offsets / "3").read_text()[:-3])
        case "commit cut":
            (commits / "3").write_text("v1\n{")
        case "commit empty":
            (commits / "3").write_text("")
        case "checksum cut":
            # Spark would refuse to read the file beside it, at every start.
            (offsets / ".3.crc").write_bytes(b"crc\0\0\0\2\0ab")
        case "checksum wrong":
            (offsets / ".3.crc").write_bytes(b"crc\0\0\0\2\0abcd")
    with pytest.raises(PipelineError, match="E503"):
        mine.restore()


def test_the_horizon_of_a_batch_is_what_all_readers_of_a_topic_have(tmp_path: Path) -> None:
    offsets = tmp_path / "spark" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "7").write_text('v1\n{"batchWatermarkMs":0}\n{"p": 5, "q": 2}\n{"p": 4, "q": 3}\n{"r": 1}\n-')
    mine = Checkpoint(tmp_path, SCHEMA)
    topics = [TopicId(name) for name in ("t", "t", "u", "u")]
    assert mine.as_of(7, topics) == {"t": {"p": 4, "q": 2}, "u": {}}


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"E174 PySpark is not installed: install gapless\[spark\]"):
        session.check_installed()
    monkeypatch.setattr(session, "find_spec", lambda name: name)
    monkeypatch.setattr(session.shutil, "which", lambda name: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(UsageError, match="E174 Java is not installed"):
        session.check_installed()
