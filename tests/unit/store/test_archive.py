"""The archive: whole Parquet files that other programs read as they are."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gapless.errors import StoreError
from gapless.model.ids import PubendId
from gapless.protocol.effects import ReleaseRecord
from gapless.store import archive as archive_module
from gapless.store.archive import Archive
from gapless.store.log import Log, LogOptions
from tests.contracts.events import PUBEND, SCHEMA, batch, events, ticks_in
from tests.contracts.faulty import FaultyFiles, failing


def log_with_history(folder: Path) -> Log:
    log = Log.open(
        folder / "log", PUBEND, SCHEMA, options=LogOptions(segment_bytes_max=2_000, free_bytes_min=0)
    )
    for token, tick in enumerate(range(0, 1_000, 10)):
        log.append(token, batch(tick, tick + 1))
        log.flush()
    return log


def test_duckdb_reads_trimmed_segments(tmp_path: Path) -> None:
    log = log_with_history(tmp_path)
    log.append(1_000, ReleaseRecord(before=900))
    log.flush()
    files = log.segments
    log.trim(900, now=0, archive=Archive(tmp_path / "history", PUBEND, SCHEMA))
    assert log.segments < files
    left = ticks_in(log, history=True)
    found = duckdb.sql(
        f"select tick, pubend, id, note from '{tmp_path}/history/*.parquet' order by tick"
    ).fetchall()
    assert [row[0] for row in found] + left == [
        tick for base in range(0, 1_000, 10) for tick in (base, base + 1)
    ]
    notes = events([row[0] for row in found]).columns.column("note").to_pylist()
    assert found == [(tick, PUBEND, tick, note) for (tick, *_), note in zip(found, notes, strict=True)]
    log.close()


def test_sealed_segments_can_be_archived_before_they_are_released(tmp_path: Path) -> None:
    log = log_with_history(tmp_path)
    archive = Archive(tmp_path / "history", PUBEND, SCHEMA)
    done = log.archive(archive)
    assert done == log.segments - 1
    names = sorted(path.name for path in (tmp_path / "history").iterdir())
    assert len(names) == done
    assert log.archive(archive, done) == done
    assert log.archive(archive) == done
    assert sorted(path.name for path in (tmp_path / "history").iterdir()) == names
    log.close()


def test_the_name_of_a_file_says_its_ticks(tmp_path: Path) -> None:
    archive = Archive(tmp_path, PubendId("a/b c@p1"), SCHEMA)
    path = archive.keep(7, iter([events([5, 6]), events([9])]))
    assert path == tmp_path / "a%2Fb%20c@p1.000000000007.5-10.parquet"
    assert archive.keep(7, iter([events([5, 6]), events([9])])) == path
    assert archive.keep(8, iter([])) is None
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_large_segments_become_several_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_module, "ROW_GROUP_BYTES", 1_000)
    path = Archive(tmp_path, PUBEND, SCHEMA).keep(1, (events(range(at, at + 20)) for at in range(0, 200, 20)))
    assert path is not None
    found = pq.ParquetFile(path)
    assert found.num_row_groups > 3
    assert found.read().column("tick").to_pylist() == list(range(200))


def test_columns_with_our_names_keep_their_values(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("tick", pa.string()), pa.field("x", pa.int64())])
    archive = Archive(tmp_path, PUBEND, schema)
    assert archive.schema.names == ["tick", "pubend", "tick_", "x"]


@pytest.mark.parametrize("call", ["create", "write", "sync", "rename"])
def test_a_file_that_cannot_be_written_stays_invisible(call: str) -> None:
    files = FaultyFiles()
    archive = Archive(Path("/history"), PUBEND, SCHEMA, files)
    files.hook = failing(call, times=1)
    with pytest.raises(StoreError, match=r"^E303 /history: injected: check the disk"):
        archive.keep(1, iter([events([5])]))
    assert files.list_folder(Path("/history")) == []
    assert archive.keep(1, iter([events([5])])) is not None
    assert len(files.list_folder(Path("/history"))) == 1


def test_only_archived_segments_are_deleted() -> None:
    files = FaultyFiles()
    options = LogOptions(segment_bytes_max=1, free_bytes_min=0)
    log = Log.open(Path("/log"), PUBEND, SCHEMA, options=options, files=files)
    for token, record in enumerate((batch(10), batch(20), ReleaseRecord(before=21), batch(30)), start=1):
        log.append(token, record)
        log.flush()
    archive = Archive(Path("/history"), PUBEND, SCHEMA, files)
    files.hook = failing("write", times=1)
    with pytest.raises(StoreError, match="E303"):
        log.trim(21, now=0, archive=archive)
    assert ticks_in(log, history=True) == [10, 20, 30]
    log.trim(21, now=0, archive=archive)
    assert ticks_in(log, history=True) == [30]
    assert len(files.list_folder(Path("/history"))) == 2
