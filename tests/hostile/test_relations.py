"""Every message of a client that names two things has their relation checked at the door.

docs/wire.md, section 10, lists them all; `tests/test_docs.py` sees that the tests named there exist.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pytest

from tests.hostile.raw import Heard, Raw, delivered_rows, frame, publish, publish_rows
from tests.hostile.victim import COLUMNS, TWO_TOPICS, Victim

SCHEMA = pa.schema([pa.field("price", pa.float64(), nullable=False), pa.field("note", pa.string())])
ROWS = pa.RecordBatch.from_pylist([{"price": 1.5, "note": "x"}], schema=SCHEMA)
TOKEN = {name: f"{name}-secret-of-a-good-length" for name in ("root", "mallory", "nosy")}
#: `mallory` may use one topic alone, `root` everything. A third topic has other columns.
RIGHTS = {
    "root": 'publish = ["*"], subscribe = ["*"], admin = true',
    "mallory": 'publish = ["mine"], subscribe = ["mine"]',
    "nosy": 'publish = ["mine"], subscribe = ["mine", "theirs"]',
}
NETWORK = TWO_TOPICS + "\n".join(
    [
        'topics.other = {name = "string"}',
        'pubends.other-1 = {topic = "other", broker = "n1"}',
        *(
            f'tokens.{name} = {{sha256 = "{sha256(TOKEN[name].encode()).hexdigest()}", {rights}}}'
            for name, rights in RIGHTS.items()
        ),
    ]
)


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    with Victim(tmp_path_factory.mktemp("relations"), NETWORK) as running:
        yield running
        assert running.page("/readyz") == (200, "ready\n")
        assert running.stop() == 0, "no attack here may hurt the node"


def dial(victim: Victim, who: str = "mallory") -> Raw:
    return victim.dial(who, token=TOKEN[who])


def subscribe(
    raw: Raw,
    topic: str = "mine",
    name: str | None = None,
    start: object = "now",
    where: str = "",
    *,
    logs: object = None,
) -> Heard:
    more = [] if logs is None else [False, logs]
    raw.send(frame("SUBSCRIBE", [1, topic, where, name, "publisher", start, "guaranteed", None, *more]))
    return raw.hear_kind("CONFIRMED", "REQUEST_REFUSED")


def still_serves(victim: Victim, publisher: str) -> None:
    with dial(victim) as honest:
        honest.send(publish_rows("mine", COLUMNS, [[1.0, "x"]], publisher=publisher))
        assert honest.hear_kind("RECEIPT", "PUBLISH_REFUSED").kind == "RECEIPT"


@pytest.mark.parametrize("form", ["columns", "rows"])
@pytest.mark.parametrize(("who", "code"), [("mallory", "E143"), ("nosy", "E115"), ("root", "E115")])
@pytest.mark.parametrize("pubend", ["theirs-1", "other-1"])
def test_a_publish_into_another_topics_pubend_is_refused(
    victim: Victim, form: str, who: str, code: str, pubend: str
) -> None:
    if who == "nosy" and pubend == "other-1":
        code = "E143"
    name = f"{form}-{who}-{pubend}"
    with dial(victim, "root") as reader, dial(victim, who) as writer:
        assert subscribe(reader, "theirs").kind == "CONFIRMED"
        if form == "columns":
            writer.send(publish("mine", COLUMNS, ROWS, pubend=pubend, publisher=name))
        else:
            writer.send(publish_rows("mine", COLUMNS, [[1.5, "x"]], pubend=pubend, publisher=name))
        refused = writer.hear_kind("RECEIPT", "PUBLISH_REFUSED")
        assert refused.kind == "PUBLISH_REFUSED"
        assert refused.head[3] == code
        assert refused.head[5] is False
        if code == "E143":
            assert "theirs'" not in refused.head[4], "nobody hears of a topic that it may not see"
        # What comes next to the topic comes from its owner.
        reader.send(publish("theirs", COLUMNS, ROWS, publisher=f"owner-{name}"))
        kinds = {reader.hear_kind("RECEIPT", "ROWS", "PUBLISH_REFUSED").kind for _ in range(2)}
        assert kinds == {"RECEIPT", "ROWS"}
    still_serves(victim, f"after-{name}")


def test_a_publish_to_a_topic_without_the_right_is_refused(victim: Victim) -> None:
    with dial(victim) as writer:
        writer.send(publish("theirs", COLUMNS, ROWS))
        assert writer.hear_kind("RECEIPT", "PUBLISH_REFUSED").head[3] == "E184"


def test_a_publish_for_another_schema_is_refused(victim: Victim) -> None:
    with dial(victim) as writer:
        writer.send(publish("mine", {"price": "int"}, ROWS))
        assert writer.hear_kind("RECEIPT", "PUBLISH_REFUSED").head[3] == "E111"


def test_a_publish_to_a_pubend_that_lives_nowhere_is_refused(victim: Victim) -> None:
    with dial(victim) as writer:
        writer.send(publish("mine", COLUMNS, ROWS, pubend="nowhere"))
        assert writer.hear_kind("RECEIPT", "PUBLISH_REFUSED").head[3] == "E143"


def test_a_subscription_without_the_right_is_refused(victim: Victim) -> None:
    with dial(victim) as reader:
        assert subscribe(reader, "theirs").head[1] == "E184"


def test_a_condition_of_another_topic_is_refused(victim: Victim) -> None:
    with dial(victim, "root") as reader:
        assert subscribe(reader, "mine", where="name = 'x'").head[1] == "E161"
        number = subscribe(reader, "mine").head[1]
        reader.send(frame("CHANGE_FILTER", [2, number, "name = 'x'"]))
        assert reader.hear_kind("CONFIRMED", "REQUEST_REFUSED").head[:2] == [2, "E161"]


def test_a_start_at_another_topics_pubend_is_refused(victim: Victim) -> None:
    with dial(victim, "root") as reader:
        _, code, message, *_ = subscribe(reader, "mine", start={"theirs-1": 5}).head
        assert code == "E115"
        assert message.endswith("and not of 'mine': start at pubends of 'mine' only")
        assert subscribe(reader, "mine", start={"mine-1": 5, "unheard-of": 5}).kind == "CONFIRMED"


@pytest.mark.parametrize("start", ["now", {"mine-1": 5}])
def test_the_log_of_another_topics_pubend_is_refused(victim: Victim, start: object) -> None:
    with dial(victim, "root") as reader:
        assert subscribe(reader, "mine", start=start, logs={"theirs-1": "x"}).head[1] == "E115"
        logs = {"mine-1": "no such log", "unheard-of": "x"}
        assert subscribe(reader, "mine", start=start, logs=logs).kind == "CONFIRMED"


def test_a_name_of_another_topic_is_refused(victim: Victim) -> None:
    with dial(victim, "root") as reader:
        assert subscribe(reader, "mine", name="desk").kind == "CONFIRMED"
        assert subscribe(reader, "theirs", name="desk").head[1] == "E138"


def _about(number: int) -> dict[str, list[object]]:
    """Each message that names a subscription."""
    return {
        "CHANGE_FILTER": [2, number, "price > 5"],
        "UNSUBSCRIBE": [2, number, True],
        "CREDIT": [number, 5],
        "ACKNOWLEDGE": [number, {"mine-1": 2**61}],
    }


@pytest.mark.parametrize("kind", ["CHANGE_FILTER", "UNSUBSCRIBE", "CREDIT", "ACKNOWLEDGE"])
def test_a_subscription_of_another_session_cannot_be_used(victim: Victim, kind: str) -> None:
    with dial(victim) as owner, dial(victim) as thief:
        number = subscribe(owner).head[1]
        thief.send(frame(kind, _about(number)[kind]))
        heard = thief.hear()
        assert heard is not None
        if kind in ("CHANGE_FILTER", "UNSUBSCRIBE"):
            assert (heard.kind, heard.head[1]) == ("REQUEST_REFUSED", "E142")
        else:
            assert (heard.kind, heard.head["code"]) == ("REFUSE", "E224")
        # The owner has it as it was.
        owner.send(publish_rows("mine", COLUMNS, [[1.0, "x"]], publisher=f"owner-{kind}"))
        assert {owner.hear_kind("RECEIPT", "ROWS").kind for _ in range(2)} == {"RECEIPT", "ROWS"}


@pytest.mark.parametrize("kind", ["CHANGE_FILTER", "UNSUBSCRIBE", "CREDIT", "ACKNOWLEDGE"])
@pytest.mark.parametrize("by", ["another connection", "the same connection"])
def test_what_crosses_the_end_of_a_subscription_breaks_nothing(victim: Victim, kind: str, by: str) -> None:
    """Another client takes a name over while its holder, which cannot know of it yet, talks about it."""
    name = f"crossing-{kind}-{by}"
    with dial(victim) as holder, dial(victim) as other:
        number = subscribe(holder, name=name).head[1]
        kept = subscribe(holder).head[1]
        taker = other if by == "another connection" else holder
        taker.send(frame("SUBSCRIBE", [5, "mine", "", name, "publisher", "now", "guaranteed", None]))
        assert taker.hear_kind("CONFIRMED").head[0] == 5
        holder.send(frame(kind, _about(number)[kind]))
        if kind in ("CHANGE_FILTER", "UNSUBSCRIBE"):
            while (refused := holder.hear_kind("REQUEST_REFUSED").head)[0] != 2:
                assert refused[:2] == [1, "E137"]
            assert refused[1] == "E142"
        # Its other subscription goes on.
        holder.send(publish_rows("mine", COLUMNS, [[1.0, "x"]], publisher=name))
        while kept not in [to for to, *_ in delivered_rows(holder.hear_kind("ROWS").head)]:
            pass


def test_an_acknowledgement_of_another_topics_pubend_ends_the_connection(victim: Victim) -> None:
    with dial(victim, "root") as reader:
        number = subscribe(reader).head[1]
        reader.send(frame("ACKNOWLEDGE", [number, {"theirs-1": 5}]))
        assert reader.hear_kind("REFUSE").head["code"] == "E224"


def test_only_an_admin_creates_topics_and_asks_for_the_status(victim: Victim) -> None:
    with dial(victim) as other:
        other.send(frame("CREATE_TOPIC", [1, "new", {"a": "int"}, ""]))
        assert other.hear_kind("DONE", "REQUEST_REFUSED").head[:2] == [1, "E184"]
        other.send(frame("ASK_STATUS", [2, ["theirs-1", 5], None]))
        assert other.hear_kind("STATUS_REPORT", "REQUEST_REFUSED").head[:2] == [2, "E184"]


def test_a_topic_with_other_columns_or_a_retention_that_does_not_fit_is_refused(victim: Victim) -> None:
    with dial(victim, "root") as admin:
        admin.send(frame("CREATE_TOPIC", [1, "mine", {"a": "int"}, ""]))
        assert admin.hear_kind("DONE", "REQUEST_REFUSED").head[:2] == [1, "E187"]
        admin.send(frame("CREATE_TOPIC", [2, "fresh", {"a": "int"}, "newest per b"]))
        assert admin.hear_kind("DONE", "REQUEST_REFUSED").kind == "REQUEST_REFUSED"


def test_a_question_about_different_topics_has_no_stand(
    victim: Victim,
) -> None:
    with dial(victim, "root") as admin:
        assert subscribe(admin, "mine", name="asked").kind == "CONFIRMED"
        admin.send(frame("ASK_STATUS", [2, ["theirs-1", 5], "asked"]))
        report = json.loads(admin.hear_kind("STATUS_REPORT").head[1])
        assert report["subscription"]["topic"] == "mine"
        assert report["subscription"]["stand"] is None
        admin.send(frame("ASK_STATUS", [3, ["nowhere", 5], "asked"]))
        assert admin.hear_kind("REQUEST_REFUSED").head[:2] == [3, "E143"]


def test_topics_that_a_client_may_not_see_are_not_listed(victim: Victim) -> None:
    with dial(victim) as other:
        other.send(frame("LIST_TOPICS", [1, False]))
        told = other.hear_kind("TOPICS").head
        assert [topic for topic, _, _ in told[1]] == ["mine"]
        assert set(told[2]) == {"mine-1"}


def test_a_bulk_read_of_another_topics_pubend_is_refused(victim: Victim) -> None:
    flight = pytest.importorskip("pyarrow.flight")
    with dial(victim, "nosy") as other:
        other.send(frame("LIST_TOPICS", [1, True]))
        where = other.hear_kind("TOPICS").head[5]

    def code(ticket: dict[str, object], *, action: str = "") -> str:
        options = flight.FlightCallOptions(
            headers=[(b"authorization", f"Bearer {TOKEN['mallory']}".encode())]
        )
        data = json.dumps(ticket).encode()
        with flight.connect(where) as door:

            def ask() -> None:
                if action:
                    list(door.do_action(flight.Action(action, data), options))
                else:
                    door.do_get(flight.Ticket(data), options).read_all()

            with pytest.raises(flight.FlightError) as caught:
                ask()
        return json.loads(caught.value.extra_info)["code"]

    for topic, pubend, expected in (
        ("mine", "theirs-1", "E143"),
        ("theirs", "theirs-1", "E184"),
        ("theirs", "mine-1", "E184"),
    ):
        ticket: dict[str, object] = {"topic": topic, "pubend": pubend, "start": 0}
        assert code(ticket) == expected
        assert code({**ticket, "stop": 5, "rows": 5}, action="plan") == expected
    assert code({"topic": "theirs"}, action="horizons") == "E184"
    assert code({"topic": "theirs"}, action="describe") == "E184"
    ahead = {"topic": "mine", "pubend": "mine-1", "start": 0, "stop": 2**61}
    assert code(ahead) == "E198"
    assert code({"topic": "mine", "pubend": "mine-1", "start": 0, "columns": ["name"]}) == "E198"


def test_the_node_does_not_stop(tmp_path: Path) -> None:
    """The whole attack of issue 12 at once: the frame that wedged a node, and then an honest client."""
    network = TWO_TOPICS.replace("topics.theirs = {price", "topics.theirs = {sum")
    with Victim(tmp_path, network) as victim, victim.dial() as writer:
        writer.send(publish_rows("mine", COLUMNS, [[1.5, "x"]], pubend="theirs-1"))
        assert writer.hear_kind("RECEIPT", "PUBLISH_REFUSED").head[3] == "E115"
        writer.send(publish_rows("theirs", {"sum": "float", "note": "string?"}, [[1.5, "x"]]))
        assert writer.hear_kind("RECEIPT", "PUBLISH_REFUSED").kind == "RECEIPT"
        assert victim.stop() == 0
