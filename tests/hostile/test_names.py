"""A name belongs to whoever made it, and nobody acknowledges what was not delivered to it."""

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from tests.hostile.raw import Raw, delivered_rows, frame, publish_rows
from tests.hostile.victim import COLUMNS, TWO_TOPICS, Victim

SECRETS = {name: f"gapless_{name}" for name in ("owner", "thief", "boss", "heir")}
TOKENS = "\n".join(
    f'tokens.{name} = {{sha256 = "{hashlib.sha256(SECRETS[name].encode()).hexdigest()}", {rights}}}'
    for name, rights in {
        "owner": 'publish = ["*"], subscribe = ["*"]',
        "thief": 'subscribe = ["*"]',
        "boss": 'subscribe = ["*"], admin = true',
        "heir": 'subscribe = ["*"], adopt = ["desk-*"]',
    }.items()
)
GUARDED = f"{TWO_TOPICS}\n{TOKENS}"
#: What a Subscribe with a name says after its number.
DESK = ["mine", "", "desk-3", "publisher", "earliest", "guaranteed", None]


def subscribe(request: int, *rest: object) -> bytes:
    return frame("SUBSCRIBE", [request, *rest])


def desk(request: int, **changed: object) -> bytes:
    names = ("topic", "where", "name", "order", "start", "mode", "credit")
    return subscribe(request, *(dict(zip(names, DESK, strict=True)) | changed).values())


def rows(count: int, first: int) -> bytes:
    return publish_rows("mine", COLUMNS, [[float(first + at), None] for at in range(count)], first=first)


def confirmed(raw: Raw) -> int:
    """The number of a subscription that is confirmed."""
    heard = raw.hear_kind("CONFIRMED", "REQUEST_REFUSED")
    assert heard.kind == "CONFIRMED", heard
    return int(heard.head[1])


def refused(raw: Raw) -> tuple[str, bool]:
    heard = raw.hear_kind("CONFIRMED", "REQUEST_REFUSED", "DONE")
    assert heard.kind == "REQUEST_REFUSED", heard
    return heard.head[1], heard.head[3]


def prices(raw: Raw, count: int) -> list[float]:
    """The prices of the next events, which come one or a few at a time."""
    found: list[float] = []
    while len(found) < count:
        found += [values[0] for _, _, values in delivered_rows(raw.hear_kind("ROWS").head)]
    return found


def test_the_name_of_another_principal_is_refused_and_its_owner_notices_nothing(tmp_path: Path) -> None:
    with (
        Victim(tmp_path, GUARDED) as victim,
        victim.dial("owner", token=SECRETS["owner"]) as owner,
        victim.dial("thief", token=SECRETS["thief"]) as thief,
        victim.dial("boss", token=SECRETS["boss"]) as boss,
    ):
        owner.send(desk(1))
        number = confirmed(owner)
        for at, attack in enumerate(
            [
                desk(1),
                desk(2, where="price > 100"),
                desk(3, mode="holding"),
                desk(4, topic="theirs"),
                desk(5, start={"mine-1": 2**61}),
                desk(6, start={"mine-1": 2**61}, where="price > 100"),
                desk(7, order="total"),
            ]
        ):
            for attacker in (thief, boss):
                attacker.send(attack)
                assert refused(attacker) == ("E105", False), at
        # A number is of one connection: that of the owner means nothing here.
        thief.send(frame("CHANGE_FILTER", [8, number, "price > 100"]))
        assert refused(thief) == ("E142", False)
        thief.send(frame("UNSUBSCRIBE", [9, number, True]))
        assert refused(thief) == ("E142", False)
        thief.send(frame("ACKNOWLEDGE", [number, {"mine-1": 2**61}]))
        assert thief.hear_kind("REFUSE")
        owner.send(rows(3, 0))
        assert prices(owner, 3) == [0.0, 1.0, 2.0]


def test_an_acknowledgement_of_the_future_loses_nothing(tmp_path: Path) -> None:
    with Victim(tmp_path) as victim:
        with victim.dial() as raw:
            raw.send(desk(1))
            number = confirmed(raw)
            for positions in (
                {"mine-1": 2**61},
                {"mine-1": 2**62},
                {"nowhere": 2**61},
                {"mine-1": -(2**62)},
            ):
                raw.send(frame("ACKNOWLEDGE", [number, positions]))
            raw.send(rows(2, 0))
            assert prices(raw, 2) == [0.0, 1.0]
            raw.send(frame("ACKNOWLEDGE", [number, {"mine-1": 2**61}]))
            raw.send(rows(1, 2))
            assert prices(raw, 1) == [2.0]
        victim.stop()
        victim.start()
        with victim.dial("writer") as writer, victim.dial() as raw:
            writer.send(rows(2, 3))
            assert writer.hear_kind("RECEIPT")
            raw.send(desk(1))
            confirmed(raw)
            # The third was delivered and not acknowledged.
            assert prices(raw, 3) == [2.0, 3.0, 4.0]


def test_an_invalid_position_stops_no_node_and_its_name_keeps_its_owner(tmp_path: Path) -> None:
    with Victim(tmp_path, GUARDED) as victim:
        with victim.dial("owner", token=SECRETS["owner"]) as raw:
            raw.send(desk(1), desk(2, name="poisoned"))
            confirmed(raw)
            confirmed(raw)
        victim.stop()
        with closing(sqlite3.connect(next(tmp_path.rglob("node.sqlite")))) as database:
            poison = msgspec.msgpack.encode({"mine-1": 2**62})
            database.execute("update subscriptions set positions = ? where name = 'poisoned'", (poison,))
            database.commit()
        victim.start()
        assert '"event": "not_restored"' in victim.log.read_text()
        with (
            victim.dial("owner", token=SECRETS["owner"]) as owner,
            victim.dial("thief", token=SECRETS["thief"]) as thief,
        ):
            thief.send(desk(1, name="poisoned"))
            assert refused(thief) == ("E105", False)
            owner.send(desk(1))
            confirmed(owner)
            owner.send(rows(1, 0))
            assert prices(owner, 1) == [0.0]
            owner.send(desk(2, name="poisoned"))
            confirmed(owner)
            assert prices(owner, 1) == [0.0], "it is made anew"


def test_a_hold_cannot_release_the_future(tmp_path: Path) -> None:
    with Victim(tmp_path) as victim, victim.dial() as raw:
        raw.send(desk(1, mode="holding"))
        number = confirmed(raw)
        raw.send(frame("ACKNOWLEDGE", [number, {"mine-1": 2**61}]))
        raw.send(frame("UNSUBSCRIBE", [2, number, False]))
        raw.hear_kind("DONE")
        raw.send(frame("ASK_STATUS", [3, None, "desk-3"]))
        report = msgspec.json.decode(raw.hear_kind("STATUS_REPORT").head[1])
        now_us = msgspec.json.decode(victim.page("/status")[1])["time_us"]
        assert report["subscription"]["acknowledged"]["mine-1"] < now_us + 120_000_000


@pytest.mark.parametrize("order", ["publisher", "total"])
def test_invalid_starts_do_not_affect_other_clients(order: str, tmp_path: Path) -> None:
    with Victim(tmp_path) as victim, victim.dial("reader") as reader, victim.dial() as mallory:
        reader.send(subscribe(1, "mine", "", None, order, "now", "guaranteed", None))
        confirmed(reader)
        starts: list[object] = [
            *(2**61, -(2**61), 0, -1, 2**62 - 1, -(2**62)),
            *({"mine-1": 2**61}, {"theirs-1": 2**61}, {"nowhere": -1}),
        ]
        for at, start in enumerate(starts):
            mallory.send(subscribe(at, "mine", "", None, order, start, "guaranteed", None))
            mallory.send(subscribe(100 + at, "mine", "", f"name-{at}", order, start, "guaranteed", None))
            mallory.hear_kind("CONFIRMED", "REQUEST_REFUSED")
            mallory.hear_kind("CONFIRMED", "REQUEST_REFUSED")
        reader.send(rows(3, 0))
        assert prices(reader, 3) == [0.0, 1.0, 2.0]
        mallory.close()
        reader.send(rows(3, 3))
        assert prices(reader, 3) == [3.0, 4.0, 5.0]
        assert victim.stop() == 0


def test_names_without_owners_are_adopted_by_the_tokens_that_may(tmp_path: Path) -> None:
    with Victim(tmp_path) as victim:
        with victim.dial() as raw:
            raw.send(desk(1), rows(2, 0))
            number = confirmed(raw)
            assert prices(raw, 2) == [0.0, 1.0]
            raw.send(frame("UNSUBSCRIBE", [2, number, False]))
            raw.hear_kind("DONE")
            raw.send(desk(3, name="other"))
            confirmed(raw)
        victim.stop()
        victim.file.write_text(f"{victim.file.read_text()}\n{TOKENS}")
        victim.start()
        with (
            victim.dial("thief", token=SECRETS["thief"]) as thief,
            victim.dial("heir", token=SECRETS["heir"]) as heir,
            victim.dial("boss", token=SECRETS["boss"]) as boss,
        ):
            thief.send(desk(1))
            assert refused(thief) == ("E105", False)
            heir.send(desk(1, name="other"))
            assert refused(heir) == ("E105", False)
            heir.send(desk(2))
            confirmed(heir)
            assert prices(heir, 2) == [0.0, 1.0], "nothing was lost on the way"
            # It is the heir's now, and the administrator's no more than anybody else's.
            boss.send(desk(1))
            assert refused(boss) == ("E105", False)
            boss.send(desk(2, name="other"))
            confirmed(boss)
        victim.stop()
        with closing(sqlite3.connect(next(tmp_path.rglob("node.sqlite")))) as database:
            owners = dict(database.execute("select name, owner from subscriptions").fetchall())
        assert owners == {"desk-3": "token heir", "other": "token boss"}


def test_repeated_requests_for_a_name_do_not_pile_up_while_a_pubend_is_away(
    tmp_path: Path,
) -> None:
    apart = """
cells = {p = ["p1"], s = ["s1"]}
links = ["p--s"]
edges = ["s1"]
topics.mine = {price = "float", note = "string?"}
pubends.mine-1 = {topic = "mine", broker = "p1"}
"""
    with Victim(tmp_path, apart, broker="s1", brokers=("p1", "s1")) as victim, victim.dial() as raw:
        for request in range(200):
            raw.send(desk(request, where=f"price > {request}", start={"mine-1": 5}))
        raw.send(frame("LIST_TOPICS", [999, False]))
        raw.hear_kind("TOPICS")
        status, page = victim.page("/status")
        assert status == 200
        assert msgspec.json.decode(page)["subscriptions"]["count"] <= 2


def test_a_client_named_like_a_subscription_cannot_touch_it(tmp_path: Path) -> None:
    with Victim(tmp_path, GUARDED) as victim, victim.dial("owner", token=SECRETS["owner"]) as owner:
        owner.send(desk(1, name="worker#3"))
        confirmed(owner)
        with victim.dial("named worker", token=SECRETS["thief"]) as thief:
            # Unnamed subscriptions are numbered after the name of their client.
            for request in range(1, 5):
                thief.send(desk(request, name=None))
                confirmed(thief)
        owner.send(rows(2, first=0))
        assert prices(owner, 2) == [0.0, 1.0]
