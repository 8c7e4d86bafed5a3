"""Attacks on what a node knows of publishers: false receipts, other people's identities, invented ones."""

from __future__ import annotations

from pathlib import Path

from gapless.node.security import token_hash
from tests.hostile.raw import Heard, Raw, publish_rows
from tests.hostile.victim import COLUMNS, TWO_TOPICS, Victim

FOREVER = 'retention.mine = "forever"\n'
TOKENS = f"""
[tokens]
owner = {{ sha256 = "{token_hash("owner's")}", publish = ["*"], subscribe = ["*"] }}
thief = {{ sha256 = "{token_hash("thief's")}", publish = ["*"] }}
"""


def sent(raw: Raw, first: int, *, publisher: str = "ann", count: int = 1, **more: int) -> Heard:
    """The answer to a PublishRows whose prices are its numbers."""
    end = [None, None, more["before"]] if "before" in more else [None, None]
    rows = [[float(first + place), None] for place in range(count)]
    raw.send(publish_rows("mine", COLUMNS, rows, first=first, publisher=publisher, more=end))
    return raw.hear_kind("RECEIPT", "PUBLISH_REFUSED")


def receipted(raw: Raw, first: int, **more: int) -> None:
    heard = sent(raw, first, **more)
    assert heard.kind == "RECEIPT", heard


def refused(heard: Heard, code: str, *, retry: bool) -> None:
    assert (heard.kind, heard.head[3], heard.head[5]) == ("PUBLISH_REFUSED", code, retry), heard


def test_a_hole_is_refused_and_a_number_that_was_given_up_never_gets_a_receipt(tmp_path: Path) -> None:
    with Victim(tmp_path, TWO_TOPICS + FOREVER) as victim:
        with victim.dial() as ann:
            receipted(ann, 0, before=-1)
            # 1 is to come before 2, and did not.
            hole = sent(ann, 2, before=1)
            refused(hole, "E182", retry=True)
            assert hole.head[6] == 0
            receipted(ann, 1, before=0)
            receipted(ann, 2, before=1)
            # 3 and 4 are given up.
            receipted(ann, 5, before=2)
        for _ in range(2):
            with victim.dial() as ann:
                for number in (3, 4):
                    refused(sent(ann, number, before=-1), "E102", retry=False)
                receipted(ann, 5, before=-1)
                # Of some that were stored and some that were not, each gets its own answer.
                ann.send(
                    publish_rows(
                        "mine", COLUMNS, [[1.0, None]] * 4, first=2, publisher="ann", more=[None, None, -1]
                    )
                )
                answers = [ann.hear_kind("RECEIPT", "PUBLISH_REFUSED") for _ in range(3)]
                assert [(each.kind, *each.head[1:3]) for each in answers] == [
                    ("RECEIPT", 2, 2),
                    ("PUBLISH_REFUSED", 3, 4),
                    ("RECEIPT", 5, 5),
                ]
            victim.kill()
            victim.start()


def test_a_previous_number_that_is_not_lower_ends_the_connection(tmp_path: Path) -> None:
    with Victim(tmp_path) as victim, victim.dial() as ann:
        ann.send(publish_rows("mine", COLUMNS, [[1.0, None]], first=3, more=[None, None, 3]))
        assert ann.hear_kind("REFUSE").head["code"] == "E215"


def test_publishing_under_a_foreign_identity_changes_nothing(tmp_path: Path) -> None:
    with Victim(tmp_path, TWO_TOPICS + FOREVER + TOKENS) as victim:
        for start in (0, 1):
            with victim.dial(token="owner's") as owner, victim.dial(token="thief's") as thief:
                receipted(owner, start, before=start - 1)
                for first, before in ((start + 1, start), (2**61, -1), (start, -1)):
                    refused(sent(thief, first, before=before), "E103", retry=False)
                receipted(owner, start, before=-1)
            victim.kill()
            victim.start()
        with victim.dial(token="owner's") as owner:
            receipted(owner, 2, before=1)


def test_invented_publishers_do_not_make_a_node_forget_a_real_one(tmp_path: Path) -> None:
    network = f"{TWO_TOPICS}limits.principal_publishers_max = 500\n{FOREVER}"
    with Victim(tmp_path, network) as victim, victim.dial() as ann, victim.dial() as mallory:
        first = sent(ann, 0, before=-1)
        assert first.head[4], "the tick of an event that is new"
        answers = [sent(mallory, 0, publisher=f"invented-{number}", before=-1) for number in range(600)]
        assert [each.kind for each in answers] == ["RECEIPT"] * 499 + ["PUBLISH_REFUSED"] * 101
        refused(answers[-1], "E104", retry=False)
        again = sent(ann, 0, before=-1)
        # A receipt without a tick: it was not stored a second time.
        assert (again.kind, again.head[4]) == ("RECEIPT", [])
        receipted(ann, 1, before=0)
