"""A log that an older program wrote: it is read as it was, appended to, and damage in it is still found.

`log_v1.zip` was made by the program that wrote version 1: events with and without gaps and notes,
a batch that was summed up, promises of every kind, and two segments that were rewritten as one.
"""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import pytest

from gapless.errors import StoreError
from gapless.protocol.effects import ReserveRecord
from gapless.store.log import Log, LogOptions
from tests.contracts.events import PUBEND, SCHEMA, batch, start, ticks_in

ZIP = Path(__file__).with_name("log_v1.zip")
TICKS = [5, 6, 7, 10, 20, 30, *range(200, 240), *range(300, 340), *range(1_000, 3_000), 4_000, 4_002]
OPTIONS = LogOptions(free_bytes_min=0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with ZipFile(ZIP) as archive:
        archive.extractall(tmp_path)
    return tmp_path


def opened(folder: Path) -> Log:
    return Log.open(folder, PUBEND, SCHEMA, options=OPTIONS)


def test_a_log_of_version_1_is_read_as_it_was_written(folder: Path) -> None:
    log = opened(folder)
    assert ticks_in(log, history=True) == TICKS
    # Two segments were rewritten, and their notes went with that.
    assert list(log.notes(0)) == [(7, b"one"), (30, b"two"), (239, b"three")]
    found = log.recover()
    assert (found.next_tick, found.reserved, found.released) == (4_003, 100, 8)
    assert found.starts == (start("e1", 7, 31), start("e2", 9, 12, wanted=12))
    assert log.repair is None
    log.close()


def test_appending_to_an_old_log_begins_a_new_segment(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.glob("*.segment")}
    log = opened(folder)
    log.append(1, batch(5_000, 5_001), b"four")
    log.append(2, ReserveRecord(before=9_000))
    assert log.flush().token == 2
    log.close()
    for name, content in before.items():
        assert (folder / name).read_bytes() == content
    (made,) = (path for path in folder.glob("*.segment") if path.name not in before)
    assert made.read_bytes()[:8] == b"GAPLESS\2"
    log = opened(folder)
    assert ticks_in(log, history=True) == [*TICKS, 5_000, 5_001]
    assert list(log.notes(0))[-1] == (5_001, b"four")
    assert log.recover().reserved == 9_000
    log.close()


def test_damage_in_a_log_of_version_1_is_found(folder: Path) -> None:
    path = folder / "000000000001.segment"
    data = bytearray(path.read_bytes())
    data[-60] ^= 4
    path.write_bytes(data)
    log = opened(folder)
    with pytest.raises(StoreError, match="E301"):
        ticks_in(log, history=True)
    log.close()


def test_a_segment_of_a_newer_version_is_refused(folder: Path) -> None:
    path = folder / "000000000004.segment"
    path.write_bytes(b"GAPLESS\3" + path.read_bytes()[8:])
    with pytest.raises(StoreError, match=r"E305 .* has version 3, this program reads 1 to 2"):
        opened(folder)
