"""While one subscriber asks for the worst that it may, everybody else gets their events."""

from collections import Counter
from contextlib import ExitStack
from decimal import Decimal
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest

from tests.hostile.conditions import COLUMNS, REFUSED, SHAPES, worst
from tests.hostile.raw import Raw, frame, publish, publish_rows
from tests.hostile.victim import Victim

_TOPIC = "topics.{name} = {{{columns}}}\npubends.{name}-1 = {{topic = '{name}', broker = 'n1'}}\n"
_COLUMNS = ", ".join(f'{name} = "{kind}"' for name, kind in COLUMNS.items())
#: Without tokens everybody is one principal, whose conditions may cost 50 times as much as a token's.
ONE_NODE = 'cells = {all = ["n1"]}\nedges = ["n1"]\nlimits.principal_matching_cost_max = 400\n' + "".join(
    _TOPIC.format(name=name, columns=columns)
    for name, columns in (("hostile", _COLUMNS), ("quiet", 'price = "float"'))
)
#: The subscribers are at n2, whose broker compares what they want and tells n1.
TWO_NODES = ONE_NODE.replace(
    'cells = {all = ["n1"]}\nedges = ["n1"]',
    'cells = {P = ["n1"], S = ["n2"]}\nlinks = ["P--S"]\nedges = ["n2"]',
)
_TYPES = {
    "int": pa.int64(),
    "float": pa.float64(),
    "decimal": pa.decimal128(38, 9),
    "string": pa.string(),
    "xml?": pa.binary(),
}
_VALUES = {
    "int": 1,
    "float": 1.5,
    "decimal": Decimal(2),
    "string": "ab" * 50_000,
    "xml?": b"<a><b1 p='3'/></a>",
}
#: An event with a text of 100 kB.
LARGE = pa.RecordBatch.from_arrays(
    [pa.array([_VALUES[kind]], _TYPES[kind]) for kind in COLUMNS.values()],
    schema=pa.schema([pa.field(name, _TYPES[kind], nullable="?" in kind) for name, kind in COLUMNS.items()]),
)


def subscribe(number: int, topic: str, where: str) -> bytes:
    return frame("SUBSCRIBE", [number, topic, where, None, "publisher", "now", "guaranteed", None])


class Bystander:
    """Publishes to a topic of its own and waits for each event, one at a time."""

    def __init__(self, reader: Raw, writer: Raw) -> None:
        self._reader, self._writer = reader, writer
        self._sent = 0
        reader.send(subscribe(1, "quiet", "price > 0"))
        reader.hear_kind("CONFIRMED")

    def round_trip(self) -> None:
        row = publish_rows("quiet", {"price": "float"}, [[1.5]], publisher="bystander", first=self._sent)
        self._writer.send(row)
        self._sent += 1
        assert self._reader.hear_kind("ROW", "ROWS", "COLUMNS")


def asked() -> list[str]:
    """Five of the worst texts of each shape; many are too much together."""
    return [text for shape in SHAPES for text in islice(worst(shape), 5)] + list(REFUSED.values())


@pytest.mark.parametrize("nodes", ["one node", "two nodes"])
def test_a_subscriber_is_served_despite_expensive_conditions_of_another(nodes: str, tmp_path: Path) -> None:
    """The requests are sent at once; events go through between them, and every request has an answer."""
    texts = asked()
    is_one = nodes == "one node"
    with ExitStack() as stack:
        brokers = ["n1"] if is_one else ["n1", "n2"]
        publishing = stack.enter_context(Victim(tmp_path, ONE_NODE if is_one else TWO_NODES, brokers=brokers))
        subscribing = publishing if is_one else stack.enter_context(publishing.beside("n2"))
        mallory = stack.enter_context(subscribing.dial("mallory"))
        reader = stack.enter_context(subscribing.dial("bystander"))
        writer = stack.enter_context(publishing.dial("bystander"))
        bystander = Bystander(reader, writer)
        codes: Counter[str] = Counter()
        for first in range(0, len(texts), 10):
            some = texts[first : first + 10]
            mallory.send(*(subscribe(first + at, "hostile", text) for at, text in enumerate(some)))
            bystander.round_trip()
            for _ in some:
                heard = mallory.hear_kind("CONFIRMED", "REQUEST_REFUSED")
                codes["confirmed" if heard.kind == "CONFIRMED" else heard.head[1]] += 1
        assert codes.total() == len(texts)
        assert codes["confirmed"] > len(texts) // 4
        assert codes.keys() <= {"confirmed", "E106", "E124", "E125", "E164", "E172"}
        assert codes["E125"], "together they would make every event too expensive"
        # An event that all of it is about is matched, and the quiet topic goes on.
        writer.send(publish("hostile", COLUMNS, LARGE, publisher="wide"))
        assert writer.hear_kind("RECEIPT")
        bystander.round_trip()


def slow_texts(count: int) -> list[str]:
    """Lists as long as may be, all different; each takes long to be read, to be refused then (E161)."""
    values = ", ".join(f"'v{at:015}'" for at in range(9_900))
    return [f"note NOT IN ({values}) AND i9 = {number}" for number in range(count)]


def test_the_requests_of_one_client_are_answered_in_order_though_one_is_read_in_a_thread(
    tmp_path: Path,
) -> None:
    """A long condition, a short one, and one that makes no sense; none overtakes another."""
    with Victim(tmp_path, ONE_NODE) as node, node.dial("mallory") as mallory:
        many = ", ".join(map(str, range(9_000)))
        texts = [slow_texts(1)[0], "i0 = 1", f"i0 IN ({many})", f"i9 IN ({many})", "i0 = 2", "i9 = 2"]
        mallory.send(*(subscribe(at, "hostile", text) for at, text in enumerate(texts, 1)))
        # What a pubend grants comes later than what is refused at once; confirmations keep to their order.
        answers = [mallory.hear_kind("CONFIRMED", "REQUEST_REFUSED") for _ in texts]
        refused = [(each.head[0], each.head[1]) for each in answers if each.kind == "REQUEST_REFUSED"]
        assert refused == [(1, "E161"), (4, "E161"), (6, "E161")]
        assert [each.head[0] for each in answers if each.kind == "CONFIRMED"] == [2, 3, 5]
        mallory.send(frame("CHANGE_FILTER", [9, 1, slow_texts(2)[1]]))
        assert mallory.hear_kind("REQUEST_REFUSED").head[:2] == [9, "E161"]


def test_clients_that_leave_while_their_conditions_are_parsed_leak_nothing(tmp_path: Path) -> None:
    with Victim(tmp_path, ONE_NODE) as node:
        with node.dial("bystander") as reader, node.dial("bystander") as writer:
            bystander = Bystander(reader, writer)
            for text in slow_texts(10):
                with node.dial("mallory") as mallory:
                    mallory.send(subscribe(1, "hostile", text), subscribe(2, "hostile", "i0 = 1"))
                bystander.round_trip()
            with node.dial("mallory") as mallory:
                mallory.send(subscribe(1, "hostile", slow_texts(11)[10]))
                assert mallory.hear_kind("REQUEST_REFUSED").head[1] == "E161"
        assert node.page("/readyz")[0] == 200
        with node.dial("mallory") as mallory:
            mallory.send(*(subscribe(at, "hostile", text) for at, text in enumerate(slow_texts(20))))
            assert node.stop() == 0, "it does not wait for what was not read"
        node.start()
