"""What named subscriptions have lost is found however often their edge is started."""

import pytest

from gapless.model.epochs import LIFE_STEP
from gapless.model.ids import PubendId, SubscriptionId, TopicId
from gapless.model.schema import Schema
from gapless.protocol.effects import ConfirmSubscription
from gapless.protocol.messages import LIVES_TOLD_MAX
from gapless.protocol.sessions.gaps import Gap, gap_before
from gapless.protocol.sessions.losses import OWN_LIVES_MAX, LossBook, with_life
from gapless.protocol.sessions.messages import Confirmed

P, Q = PubendId("p"), PubendId("q")
POSITION, START = 100, 500


def confirm(*lives: int, pubend: PubendId = P) -> ConfirmSubscription:
    """A pubend begins later than it was asked to, and knows of these other lives."""
    return ConfirmSubscription(
        subscription=SubscriptionId("named desk"), slot=0, pubend=pubend, start=START, lives=lives, log="log"
    )


class Edge:
    """An edge with one folder, which is started again and again."""

    def __init__(self, life: int) -> None:
        self.lives: tuple[int, ...] = ()
        self.heard: dict[PubendId, int] = {}
        self.start(life)
        assert self.book.confirmed("desk", None, confirm())
        self.write()

    def start(self, life: int, *names: str) -> None:
        self.lives = with_life(self.lives, life)
        self.book = LossBook({}, {P: "log"}, self.lives, self.heard)
        for name in names:
            self.book.restored(name, [P])

    def write(self) -> None:
        self.book.settle()
        self.heard = dict(self.book.heard)

    def loses(self, *lives: int, name: str = "desk") -> bool:
        """Whether something is lost when a pubend that knows these lives confirms a name."""
        self.book.confirmed(name, POSITION, confirm(*lives))
        return self.book.of(name, P) == (POSITION, START)


def test_a_later_start_is_no_loss_when_all_lives_began_from_the_folder() -> None:
    edge = Edge(16)
    edge.start(32, "desk")
    assert not edge.loses(16)
    # Nothing was written in that life, which the pubend has heard of.
    edge.start(48, "desk")
    assert not edge.loses(32, 16)


def test_a_later_start_is_a_loss_when_a_life_did_not_begin_from_the_folder() -> None:
    edge = Edge(16)
    edge.start(48, "desk")
    assert edge.loses(32, 16)


def test_an_older_copy_is_found_by_the_first_life_that_hears_of_it() -> None:
    edge = Edge(16)
    # The pubend heard of it, and it ended before the answer came.
    edge.start(48, "desk")
    edge.start(64, "desk")
    assert edge.loses(48, 32, 16)


def test_an_older_copy_is_found_once() -> None:
    edge = Edge(16)
    edge.start(48, "desk")
    assert edge.loses(32, 16)
    edge.write()
    edge.start(64, "desk")
    assert not edge.loses(48, 32, 16)


def test_an_older_copy_is_found_until_all_names_were_confirmed() -> None:
    edge = Edge(16)
    edge.start(48, "desk", "floor")
    assert edge.loses(32, 16)
    edge.write()
    edge.start(64, "desk", "floor")
    assert edge.loses(48, 32, 16, name="floor")
    edge.book.forget("desk")
    edge.write()
    edge.start(80, "floor")
    assert not edge.loses(64, 48, 32, 16, name="floor")


def test_the_disk_has_to_know_when_the_last_name_is_confirmed() -> None:
    edge = Edge(16)
    edge.start(32, "desk", "floor")
    assert not edge.book.confirmed("desk", START, confirm(16))
    assert edge.book.confirmed("floor", START, confirm(16))
    edge.write()
    assert not edge.book.confirmed("other", None, confirm(16))


def test_each_pubend_is_heard_by_itself() -> None:
    edge = Edge(16)
    edge.start(48, "desk")
    edge.book.restored("desk", [Q])
    assert edge.loses(32, 16)
    edge.write()
    edge.start(64)
    edge.book.confirmed("desk", POSITION, confirm(32, 16, pubend=Q))
    assert edge.book.of("desk", Q) == (POSITION, START)


def test_a_life_with_very_many_changes_is_still_the_same_life() -> None:
    edge = Edge(16)
    edge.start(32, "desk")
    edge.start(48, "desk")
    assert not edge.loses(32 + LIFE_STEP // 2, 16)


def test_a_pubend_that_tells_of_too_many_lives_may_have_seen_others() -> None:
    edge = Edge(16)
    lives = [32 + 16 * number for number in range(LIVES_TOLD_MAX + 1)]
    for life in lives:
        edge.start(life, "desk")
    assert edge.loses(*reversed(lives[:-1]))


def test_the_lives_of_a_folder_are_bounded_and_the_first_stays() -> None:
    lives: tuple[int, ...] = ()
    for life in range(OWN_LIVES_MAX + 10):
        lives = with_life(lives, life)
    assert len(lives) == OWN_LIVES_MAX
    assert (lives[0], lives[1], lives[-1]) == (0, 11, OWN_LIVES_MAX + 9)


def lost_with_its_log() -> LossBook:
    """What is lost lies in 100..500, and the log that came after it began at 300."""
    return LossBook({"desk": {P: (POSITION, START)}}, {P: "old"})


@pytest.mark.parametrize(
    ("start", "told"),
    [
        (POSITION, (START, POSITION)),
        (200, (START, 200)),
        # It may have read the older copy, which had nothing of the rest.
        (400, (START, 300)),
        (600, (600, 300)),
        # That it is here says that it was told.
        (START, (START, None)),
    ],
)
def test_a_client_is_told_of_a_lost_log_wherever_it_is(start: int, told: tuple[int, int | None]) -> None:
    assert lost_with_its_log().untold("desk", P, start, began=300) == told


@pytest.mark.parametrize(
    ("start", "told"),
    [(50, (START, POSITION)), (200, (START, 200)), (START, (START, None)), (600, (600, None))],
)
def test_a_client_beyond_what_was_released_has_lost_nothing(start: int, told: tuple[int, int | None]) -> None:
    assert lost_with_its_log().untold("desk", P, start, began=10) == told
    assert lost_with_its_log().untold("desk", Q, start, began=10) == (start, None)


@pytest.mark.parametrize(
    ("asked", "log", "gap"),
    [
        (600, None, Gap(P, 300, 600)),
        (400, None, Gap(P, 300, 600)),
        (300, None, Gap(P, 300, 600)),
        (600, "new", None),
        (400, "new", Gap(P, 400, 600)),
        (600, "old", Gap(P, 200, 601)),
    ],
)
def test_a_client_that_does_not_know_its_log_believes_where_the_loss_begins(
    asked: int, log: str | None, gap: Gap | None
) -> None:
    schema = Schema.parse(TopicId("trades"), {"price": "int"})
    confirmed = Confirmed(
        request=1,
        subscription=1,
        source=0,
        pubends=1,
        pubend=P,
        schema=schema,
        start=600,
        lost_from=300,
        log="new",
        began=200,
    )
    found = gap_before(confirmed, asked, log)
    assert (found and found[0]) == gap
