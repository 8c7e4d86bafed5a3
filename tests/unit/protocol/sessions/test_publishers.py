"""Catenation numbers: what is stored already, what is on its way, and what has to come first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import pytest

from gapless.errors import UsageError
from gapless.model.ids import PubendId
from gapless.model.notes import NoteValue, PublisherPosition, PublisherState, encode_note
from gapless.model.ticks import Tick
from gapless.protocol.sessions.identities import ANONYMOUS, TEMPORARY_KEPT, PublisherIdentities
from gapless.protocol.sessions.publishers import HOLES_MAX, HoleError, Publishers

P = PubendId("p")
DAY: Tick = 24 * 3_600_000_000


class Notes:
    """A log of which only the notes are asked for."""

    def __init__(self, *notes: tuple[Tick, dict[str, NoteValue]]) -> None:
        self._notes = [(tick, encode_note(values)) for tick, values in notes]

    def notes(self, start: Tick) -> Iterator[tuple[Tick, bytes]]:
        return iter([each for each in self._notes if each[0] >= start])


def recovered(
    notes: Notes, positions: Iterable[PublisherPosition] = (), start: Tick = 0, gone: str = ""
) -> Publishers:
    identities = PublisherIdentities(is_gone=lambda principal: principal == gone)
    return Publishers.recover(P, notes, positions, start, identities)


def publish(publishers: Publishers, name: str, first: int, last: int, tick: Tick) -> NoteValue:
    """Events come that are stored."""
    value = publishers.accept(name, first, last)
    publishers.stored(name, last, tick)
    return value


def positions(publishers: Publishers) -> list[PublisherPosition]:
    """What is to be written down."""
    forgotten, changed = publishers.take(1_000)
    publishers.put_back(forgotten, changed)
    return changed


def code(caught: pytest.ExceptionInfo[UsageError]) -> str:
    return caught.value.code


# ---- numbers -----------------------------------------------------------------------------------------


def test_what_is_on_its_way_or_stored_is_known() -> None:
    publishers = Publishers(P)
    assert publishers.fresh("me", 0, 10) == 0
    publishers.accept("me", 0, 9)
    assert publishers.fresh("me", 0, 10) == 10
    assert publishers.fresh("me", 5, 10) == 5
    assert publishers.durable("me") == -1
    publishers.stored("me", 9, 1_000)
    assert publishers.durable("me") == 9
    assert positions(publishers)[0].catenation == 9
    assert publishers.known_tick == 1_000


def test_answers_of_one_flush_may_come_in_any_order() -> None:
    publishers = Publishers(P)
    publishers.accept("me", 0, 4)
    publishers.accept("me", 5, 9)
    publishers.stored("me", 9, 1_010)
    publishers.stored("me", 4, 1_005)
    assert publishers.durable("me") == 9
    [position] = positions(publishers)
    assert (position.catenation, position.tick) == (9, 1_010)


def test_nothing_is_stored_before_what_its_publisher_counts_on() -> None:
    publishers = Publishers(P)
    with pytest.raises(HoleError, match="from the first on") as caught:
        publishers.check_before("me", 9, 10, 19)
    assert (caught.value.had, caught.value.retry) == (-1, True)
    publishers.accept("me", 0, 9)
    publishers.check_before("me", 9, 10, 19)
    publishers.failed("me", 0)
    with pytest.raises(HoleError):
        publishers.check_before("me", 9, 10, 19)
    publish(publishers, "me", 0, 4, 1_000)
    with pytest.raises(HoleError, match="after event 4") as caught:
        publishers.check_before("me", 9, 10, 19)
    assert caught.value.had == 4
    # A repeat is answered whatever it counts on, and so is what begins anew.
    publishers.check_before("me", 9, 2, 4)
    publishers.check_before("me", 4, 10, 19)
    publishers.check_before("me", -1, 10, 19)


def test_a_client_that_names_no_number_before_does_not_pass_what_it_was_refused() -> None:
    publishers = Publishers(P)
    publishers.accept("me", 0, 9)
    publishers.failed("me", 4)
    with pytest.raises(HoleError):
        publishers.check_before("me", None, 7, 9)
    publishers.check_before("me", None, 4, 9)
    publishers.given_up("me", 3)
    with pytest.raises(HoleError):
        publishers.check_before("me", None, 7, 9)
    publishers.given_up("me", 6)
    publishers.check_before("me", None, 7, 9)
    publishers.given_up("somebody else", 6)


def test_what_was_given_up_is_remembered_as_not_stored_over_restarts_and_trims() -> None:
    publishers = Publishers(P)
    notes = [
        (tick, publish(publishers, "me", first, last, tick)) for tick, first, last in ((5, 0, 0), (9, 2, 3))
    ]
    expected = [(0, 0, True), (1, 1, False), (2, 3, True)]
    assert list(publishers.pieces("me", 0, 3)) == expected
    assert list(publishers.pieces("me", 1, 1)) == [(1, 1, False)]
    from_notes = recovered(Notes(*((tick, {"me": value}) for tick, value in notes)))
    assert list(from_notes.pieces("me", 0, 3)) == expected
    from_database = recovered(Notes(), positions(publishers), 9)
    assert list(from_database.pieces("me", 0, 3)) == expected
    # From there on, the number is all that a note says.
    assert publish(from_database, "me", 4, 4, 12) == 4
    both = recovered(Notes((9, {"me": notes[1][1]}), (12, {"me": 4})), positions(publishers), 9)
    assert list(both.pieces("me", 0, 4)) == [*expected[:2], (2, 4, True)]


def test_a_hole_below_events_that_failed_is_none() -> None:
    publishers = Publishers(P)
    publish(publishers, "me", 0, 0, 5)
    publishers.accept("me", 2, 3)
    publishers.accept("me", 6, 6)
    publishers.failed("me", 2)
    publishers.failed("me", 6)
    assert publishers.accepted("me") == 0
    assert list(publishers.pieces("me", 0, 0)) == [(0, 0, True)]
    publish(publishers, "me", 1, 3, 6)
    assert list(publishers.pieces("me", 0, 3)) == [(0, 3, True)]


def test_beyond_the_bound_the_oldest_holes_become_one_that_is_refused() -> None:
    publishers = Publishers(P)
    for number in range(0, 2 * HOLES_MAX + 4, 2):
        publish(publishers, "me", number, number, number + 1)
    last = 2 * HOLES_MAX + 2
    assert publishers.accepted("me") == last
    [position] = positions(publishers)
    assert len(position.holes) == HOLES_MAX
    assert position.holes[0] == (1, 3)
    assert list(publishers.pieces("me", 0, 4)) == [(0, 0, True), (1, 3, False), (4, 4, True)]


def test_notes_of_earlier_versions_are_read() -> None:
    old = recovered(Notes((7, {"me": 5, "you": 0})))
    assert old.durable("me") == 5
    assert list(old.pieces("me", 0, 5)) == [(0, 5, True)]
    # Nobody's, until somebody uses it.
    old.check_owner("me", "token feed")
    assert isinstance(old.accept("me", 6, 6, "token feed"), PublisherState)
    with pytest.raises(UsageError) as caught:
        old.check_owner("me", "token other")
    assert code(caught) == "E103"


def test_what_may_be_lost_gets_no_receipt_and_is_not_stored_a_second_time() -> None:
    publishers = recovered(Notes((5, {"me": 3}), (9, {"you": 3})))
    publishers.doubt(before=6)
    assert list(publishers.pieces("me", 2, 3)) == [(2, 3, False)]
    assert list(publishers.pieces("you", 2, 3)) == [(2, 3, True)]
    publish(publishers, "me", 4, 4, 11)
    again = recovered(Notes(), positions(publishers), 11)
    assert list(again.pieces("me", 3, 4)) == [(3, 3, False), (4, 4, True)]
    assert again.fresh("me", 2, 3) == 3


def test_a_note_is_no_larger_than_it_must_be() -> None:
    publishers = Publishers(P)
    publish(publishers, "me", 0, 0, 5)
    assert len(encode_note({"me": publish(publishers, "me", 1, 1, 6)})) == len(
        msgspec.msgpack.encode({"me": 1})
    )


# ---- owners ------------------------------------------------------------------------------------------


def test_an_identity_belongs_to_its_first_user_across_restarts() -> None:
    publishers = Publishers(P)
    publishers.check_owner("me", "token feed")
    value = publishers.accept("me", 0, 0, "token feed")
    publishers.stored("me", 0, 5)
    from_notes = recovered(Notes((5, {"me": value})))
    from_database = recovered(Notes(), positions(publishers), 5)
    for each in (publishers, from_notes, from_database):
        each.check_owner("me", "token feed")
        for principal in ("token other", ANONYMOUS):
            with pytest.raises(UsageError, match="belongs to another principal") as caught:
                each.check_owner("me", principal)
            assert (code(caught), caught.value.retry) == ("E103", False)


def test_the_identity_of_a_removed_principal_belongs_to_its_next_user() -> None:
    notes = Notes((5, {"me": PublisherState(0, ANONYMOUS, is_temporary=False, holes=())}))
    with pytest.raises(UsageError):
        recovered(notes).check_owner("me", "certificate ann")
    named = recovered(notes, gone=ANONYMOUS)
    named.check_owner("me", "token feed")
    named.accept("me", 1, 1, "token feed")
    with pytest.raises(UsageError):
        named.check_owner("me", "token other")


def test_a_released_identity_belongs_to_its_next_user() -> None:
    publishers = Publishers(P)
    publishers.accept("me", 0, 0, "token feed")
    publishers.stored("me", 0, 5)
    assert publishers.release("me")
    assert not publishers.release("nobody")
    again = recovered(Notes(), positions(publishers), 5)
    again.check_owner("me", "token other")
    again.accept("me", 1, 1, "token other")
    with pytest.raises(UsageError):
        again.check_owner("me", "token feed")
    # What it has stored stays known.
    assert again.fresh("me", 0, 1) == 1


# ---- quotas ------------------------------------------------------------------------------------------


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now: Tick = 1_000 * DAY


def limited(publishers_max: int = 3) -> Publishers:
    return Publishers(P, PublisherIdentities(publishers_max=publishers_max))


def test_invented_publishers_evict_no_publisher_that_may_resend() -> None:
    clock = Clock()
    publishers = limited()
    publishers.accept("real", 0, 0, "token feed", now=clock.now)
    publishers.stored("real", 0, clock.now)
    for number in range(2):
        publishers.accept(f"invented {number}", 0, 0, "token feed", now=clock.now)
    with pytest.raises(UsageError, match=r"raise limits\.principal_publishers_max") as caught:
        publishers.accept("invented 2", 0, 0, "token feed", now=clock.now)
    assert (code(caught), caught.value.retry) == ("E104", False)
    assert publishers.accepted("invented 2") == -1
    assert publishers.fresh("real", 0, 1) == 1
    # Those of others are their own business.
    publishers.accept("invented 2", 0, 0, "token other", now=clock.now)


def test_an_identity_that_was_silent_for_long_enough_makes_room() -> None:
    clock = Clock()
    publishers = limited()
    for number in range(3):
        publishers.accept(f"chosen {number}", 0, 0, now=clock.now)
        publishers.stored(f"chosen {number}", 0, clock.now)
    clock.now += 6 * DAY
    publishers.accept("chosen 0", 1, 1, now=clock.now)
    publishers.stored("chosen 0", 1, clock.now)
    with pytest.raises(UsageError):
        publishers.accept("new", 0, 0, now=clock.now)
    publishers.take(9)
    clock.now += 2 * DAY
    publishers.accept("new", 0, 0, now=clock.now)
    assert publishers.take(9)[0] == ["chosen 1"]
    assert publishers.fresh("chosen 0", 0, 2) == 2
    assert publishers.identities.count(ANONYMOUS) == 3


def test_temporary_identities_make_room_when_their_clients_send_nothing_again() -> None:
    clock = Clock()
    publishers = limited(publishers_max=10)
    publishers.accept("chosen", 0, 0, now=clock.now)
    publishers.stored("chosen", 0, clock.now)
    # Many programs, one after the other, that do not say goodbye.
    for number in range(1_000):
        clock.now += TEMPORARY_KEPT // 8
        publishers.accept(f"temporary {number}", 0, 0, is_temporary=True, now=clock.now)
        publishers.stored(f"temporary {number}", 0, clock.now)
    assert publishers.fresh("chosen", 0, 1) == 1
    assert publishers.identities.count(ANONYMOUS) == 10


def test_a_publisher_with_events_on_their_way_is_not_forgotten() -> None:
    clock = Clock()
    publishers = limited(publishers_max=1)
    publish(publishers, "me", 0, 0, clock.now)
    clock.now += 100 * DAY
    publishers.accept("me", 1, 1, now=clock.now)
    with pytest.raises(UsageError):
        publishers.accept("new", 0, 0, now=clock.now)


def test_one_quota_is_for_all_pubends_of_a_node() -> None:
    identities = PublisherIdentities(publishers_max=2)
    one, other = Publishers(P, identities), Publishers(PubendId("q"), identities)
    one.accept("me", 0, 0)
    other.accept("me", 0, 0)
    with pytest.raises(UsageError):
        other.accept("you", 0, 0)


def test_after_a_restart_those_silent_for_longest_are_still_the_first_to_go() -> None:
    clock = Clock()
    identities = PublisherIdentities(publishers_max=2)
    told = [
        PublisherPosition(publisher=name, pubend=P, catenation=0, tick=tick, owner=ANONYMOUS)
        for name, tick in (("a", clock.now), ("b", clock.now - 8 * DAY))
    ]
    publishers = Publishers.recover(P, Notes(), told, 0, identities)
    identities.sort()
    publishers.accept("new", 0, 0, now=clock.now)
    assert publishers.take(9)[0] == ["b"]


def test_what_is_written_in_parts_is_what_is_written_at_once() -> None:
    """Those who were forgotten and came anew in between included."""
    publishers = Publishers(PubendId("p"))
    for at in range(10):
        publishers.accept(f"p{at}", 0, at)
        publishers.stored(f"p{at}", at, at + 1)
    for name in ("p1", "p2", "p3"):
        publishers.forget(publishers._known[name])
    publishers.accept("p2", 0, 7)
    publishers.stored("p2", 7, 50)
    written = {f"p{at}": -5 for at in range(10)}
    while publishers.unwritten:
        forgotten, changed = publishers.take(2)
        assert len(changed) <= 2
        for name in forgotten:
            written.pop(name, None)
        written.update({each.publisher: each.catenation for each in changed})
    assert written == {"p0": 0, "p2": 7} | {f"p{at}": at for at in range(4, 10)}


def test_an_identity_without_anything_stored_does_not_stop_writing_in_parts() -> None:
    publishers = Publishers(PubendId("p"))
    publishers.accept("new", 0, 3)
    publishers.release("new")
    publishers.take(5)
    assert not publishers.unwritten


def test_a_forgotten_publisher_that_returned_is_removed_first_when_written_in_parts() -> None:
    """Were it forgotten in a later part, its new position would be lost with the old one."""
    names = [f"publisher {at}" for at in range(8)]
    for returning in names:
        publishers = Publishers(P)
        written: dict[str, int] = {}
        for at, name in enumerate(names):
            publish(publishers, name, 0, 0, at)
        write(publishers, written, 100)
        for name in names:
            publishers.forget(publishers._known[name])
        publish(publishers, returning, 5, 5, 100)
        while publishers.unwritten:
            write(publishers, written, 1)
        assert written == {returning: 5}


def write(publishers: Publishers, written: dict[str, int], most: int) -> None:
    """Write a part down, as the database does: first who was forgotten."""
    forgotten, changed = publishers.take(most)
    for name in forgotten:
        written.pop(name, None)
    written.update((each.publisher, each.catenation) for each in changed)
