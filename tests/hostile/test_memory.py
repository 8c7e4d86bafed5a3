"""What one client makes a node remember is bounded: answers that it does not read, names, subscriptions."""

from pathlib import Path

from tests.hostile.raw import Raw, frame, hello, publish_rows
from tests.hostile.victim import COLUMNS, TWO_TOPICS, Victim

#: More than a node with little to do grows by itself, and much less than the answers to these attacks.
GROWTH_BYTES_MAX = 80 * 2**20
#: Long names make long answers.
WIDE = {f"{'column' * 40}{at}": "int" for at in range(100)}


def widened(raw: Raw, topics: int) -> int:
    """Create topics that make long lists; gives the bytes of a list."""
    for at in range(topics):
        raw.send(frame("CREATE_TOPIC", [at, f"wide-{at}", WIDE, ""]))
        assert raw.hear_kind("DONE", "REQUEST_REFUSED").kind == "DONE"
    heard = raw.ask(frame("LIST_TOPICS", [1, False]))
    assert heard is not None
    return len(str(heard.head))


def answered(raw: Raw) -> None:
    """Publish an event, and hear that it is stored."""
    raw.send(publish_rows("mine", COLUMNS, [[1.0, None]], publisher="bystander"))
    raw.hear_kind("RECEIPT")


def test_nothing_is_read_from_a_client_that_does_not_read_its_answers(tmp_path: Path) -> None:
    with Victim(tmp_path) as victim, victim.dial("bystander") as bystander, victim.dial() as mallory:
        each = widened(bystander, 10)
        before = victim.resident_bytes
        count = 400 * 2**20 // each
        requests = b"".join(frame("LIST_TOPICS", [at, False]) for at in range(count))
        mallory.socket.setblocking(False)
        sent = 0
        # All of it may be taken by the sockets on the way; the node takes as much as it has answers read.
        try:
            while sent < len(requests):
                sent += mallory.socket.send(requests[sent : sent + 2**16])
        except BlockingIOError:
            pass
        answered(bystander)
        assert victim.resident_bytes - before < GROWTH_BYTES_MAX
        mallory.socket.settimeout(30)
        complete = sent // (len(requests) // count)
        for at in range(min(complete, 30)):
            heard = mallory.hear()
            assert heard is not None
            assert (heard.kind, heard.head[0]) == ("TOPICS", at), "every request is answered, in order"
        assert victim.resident_bytes - before < GROWTH_BYTES_MAX


LIMITED = f"""
{TWO_TOPICS}
[limits]
principal_clients_max = 3
client_subscriptions_max = 4
principal_subscriptions_max = 6
principal_names_max = 2
principal_condition_bytes_max = 1000
principal_topics_max = 1
"""


def subscribed(raw: Raw, *, name: str | None = None, where: str = "") -> str:
    """What becomes of one more subscription."""
    raw.send(frame("SUBSCRIBE", [1, "mine", where, name, "publisher", "now", "guaranteed", None]))
    heard = raw.hear_kind("CONFIRMED", "REQUEST_REFUSED")
    return "confirmed" if heard.kind == "CONFIRMED" else str(heard.head[1])


def test_every_quota_has_a_code_and_ending_something_frees_it(tmp_path: Path) -> None:
    with Victim(tmp_path, LIMITED) as victim, victim.dial() as first, victim.dial() as second:
        assert [subscribed(first) for _ in range(5)] == ["confirmed"] * 4 + ["E106"]
        assert [subscribed(second, name=name) for name in "abc"] == ["confirmed"] * 2 + ["E106"]
        assert subscribed(second) == "E106", "six in all"
        with victim.dial() as third, Raw(victim.port) as fourth:
            assert subscribed(third) == "E106"
            fourth.send(hello())
            assert fourth.hear_kind("REFUSE").head["code"] == "E106"
            # Those of a connection that is lost are parked, and count.
            first.close()
            assert subscribed(third) == "E106"
            third.send(frame("SUBSCRIBE", [1, "mine", "", "a", "publisher", "now", "guaranteed", None]))
            number = third.hear_kind("CONFIRMED").head[1]
            third.send(frame("UNSUBSCRIBE", [2, number, True]))
            third.hear_kind("DONE")
            assert subscribed(third, where=f"price > 1{'0' * 1_000}") == "E106"
            assert subscribed(third) == "confirmed"
            third.send(frame("UNSUBSCRIBE", [2, number, True]))
            assert third.hear_kind("DONE", "REQUEST_REFUSED").head[1] == "E142"
        assert second.hear_kind("REQUEST_REFUSED").head[1] == "E137", "its name was taken over"
        second.send(frame("CREATE_TOPIC", [1, "one", {"x": "int"}, ""]))
        assert second.hear_kind("DONE", "REQUEST_REFUSED").kind == "DONE"
        second.send(frame("CREATE_TOPIC", [1, "two", {"x": "int"}, ""]))
        assert second.hear_kind("DONE", "REQUEST_REFUSED").head[1] == "E106"
        # Creating what is there is nothing.
        second.send(frame("CREATE_TOPIC", [1, "one", {"x": "int"}, ""]))
        assert second.hear_kind("DONE", "REQUEST_REFUSED").kind == "DONE"
        second.send(frame("CREATE_TOPIC", [1, "x" * 257, {"x": "int"}, ""]))
        assert second.hear_kind("REFUSE")
