"""The names of logs: kept beside them, and changed when a log is not what others have read."""

from pathlib import Path

from gapless.model.ids import PubendId
from gapless.model.ticks import TICK_MIN
from gapless.node.lognames import log_name, rename_log, renamed_after_loss
from gapless.store.recovery import RecoveryDatabase

PUBEND = PubendId("trades-1")


def test_a_log_keeps_its_name_and_its_beginning(tmp_path: Path) -> None:
    database = RecoveryDatabase.open(tmp_path)
    first = log_name(database, PUBEND, "disk", has_events=False, now=100)
    assert (first.name, first.began) == ("disk", 100)
    assert log_name(database, PUBEND, "disk", has_events=True, now=900) == first
    database.close()
    again = RecoveryDatabase.open(tmp_path)
    assert log_name(again, PUBEND, "disk", has_events=True, now=900) == first
    again.close()


def test_another_log_in_its_place_has_another_name(tmp_path: Path) -> None:
    database = RecoveryDatabase.open(tmp_path)
    log_name(database, PUBEND, "disk", has_events=False, now=100)
    other = log_name(database, PUBEND, "empty", has_events=False, now=900)
    assert (other.name, other.began) == ("empty", 900)
    database.close()


def test_a_log_of_an_older_program_gets_a_name_and_keeps_it(tmp_path: Path) -> None:
    database = RecoveryDatabase.open(tmp_path)
    first = log_name(database, PUBEND, "", has_events=True, now=100)
    assert first.name
    assert first.began == TICK_MIN
    # Its next segment has an id: it is the same log.
    assert log_name(database, PUBEND, "disk", has_events=True, now=900) == first
    database.close()


def test_a_log_that_lost_something_gets_another_name(tmp_path: Path) -> None:
    database = RecoveryDatabase.open(tmp_path)
    first = log_name(database, PUBEND, "disk", has_events=False, now=100)
    rename_log(database, PUBEND, "disk", 500)
    second = log_name(database, PUBEND, "disk", has_events=True, now=900)
    renamed_after_loss(database, PUBEND, 700, 800)
    third = log_name(database, PUBEND, "disk", has_events=True, now=900)
    assert len({first.name, second.name, third.name}) == 3
    assert (second.began, third.began) == (500, 700)
    assert (second.lost_before, third.lost_before) == (TICK_MIN, 800)
    database.close()


def test_logs_in_memory_have_names_of_their_own() -> None:
    names = {log_name(None, PUBEND, "", has_events=False, now=1).name for _ in range(3)}
    assert len(names) == 3
