"""What a node knows of its other lives is in its folder, also in that of an earlier program."""

import time
from pathlib import Path

import pytest

from gapless.model.epochs import LIFE_STEP, LIVES_MAX, life_at, lives_max
from gapless.model.ids import BrokerId, PubendId, SubscriptionId
from gapless.node.folder import Folder
from gapless.node.losses import Losses
from gapless.protocol.effects import ConfirmSubscription
from gapless.store.recovery import RecoveryDatabase

P = PubendId("p")


def begin(path: Path, database: RecoveryDatabase, at_least: int = 0) -> Losses:
    """A node starts from this folder."""
    folder = Folder(path, BrokerId("n"), ())
    folder.begin(database, at_least)
    return Losses(database, folder.lives)


def confirm(*lives: int) -> ConfirmSubscription:
    return ConfirmSubscription(
        subscription=SubscriptionId("named desk"), slot=0, pubend=P, start=9, lives=lives, log="log"
    )


def test_what_was_heard_of_other_lives_is_kept(tmp_path: Path) -> None:
    with RecoveryDatabase.open(tmp_path) as database:
        losses = begin(tmp_path, database, 1_000)
        losses.confirmed("desk", None, confirm())
        losses.settle()
        losses.write()(database)
        assert begin(tmp_path, database).heard == {P: 1_000}
        # It ends without hearing anything, and so does another life, of which this folder knows nothing.
        last = begin(tmp_path, database, 3_000)
        last.confirmed("desk", 5, confirm(1_000 + LIFE_STEP, 1_000))
        assert last.of("desk", P) is None
        last.confirmed("desk", 5, confirm(2_000, 1_000 + LIFE_STEP, 1_000))
        assert last.of("desk", P) == (5, 9)


@pytest.mark.parametrize(("other", "is_lost"), [(500, False), (2_000, True)])
def test_the_folder_of_a_program_that_did_not_list_its_lives_knows_the_last(
    tmp_path: Path, other: int, is_lost: bool
) -> None:
    with RecoveryDatabase.open(tmp_path) as database:
        database.begin_incarnation(1_000)
        database.put_meta("starts", b"7")
        begin(tmp_path, database, 3_000)
        # The first life of this program ended before it heard anything.
        losses = begin(tmp_path, database)
        losses.confirmed("desk", 5, confirm(3_000, other))
        assert (losses.of("desk", P) is not None) == is_lost


def test_lives_are_not_compared_with_those_of_programs_that_did_not_count_them(tmp_path: Path) -> None:
    with RecoveryDatabase.open(tmp_path) as database:
        database.begin_incarnation(1_000)
        losses = begin(tmp_path, database, 3_000)
        losses.confirmed("desk", 5, confirm(2_000))
        assert losses.of("desk", P) is None


def test_a_folder_goes_on_above_a_life_of_a_clock_that_was_a_century_ahead(tmp_path: Path) -> None:
    now = time.time_ns() // 1_000
    ahead = life_at(now + 100 * 31_557_600 * 1_000_000)
    with RecoveryDatabase.open(tmp_path) as database:
        begin(tmp_path, database, ahead)
        folder = Folder(tmp_path, BrokerId("n"), ())
        assert folder.begin(database, life_at(now)) == ahead + LIFE_STEP <= lives_max(now)
        assert folder.lives == (ahead, ahead + LIFE_STEP)
        # What neighbours believe a moment later is gone on from as well.
        told = lives_max(now)
        assert Folder(tmp_path, BrokerId("n"), ()).begin(database, told + LIFE_STEP) == told + LIFE_STEP
        assert Folder(tmp_path, BrokerId("n"), ()).begin(database, 0) == told + 2 * LIFE_STEP


@pytest.mark.parametrize("life", [LIVES_MAX, 2**60])
def test_a_folder_goes_back_below_a_life_that_nobody_can_have_believed(tmp_path: Path, life: int) -> None:
    with RecoveryDatabase.open(tmp_path) as database:
        begin(tmp_path, database, 1_000)
        begin(tmp_path, database, life)
        folder = Folder(tmp_path, BrokerId("n"), ())
        assert folder.begin(database, 0) == 1_000 + LIFE_STEP
        assert folder.lives == (1_000, 1_000 + LIFE_STEP)
        # That is written down: the next life is above it.
        assert Folder(tmp_path, BrokerId("n"), ()).begin(database, 0) == 1_000 + 2 * LIFE_STEP
