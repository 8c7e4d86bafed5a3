"""What is sent to a node? Frames that are nearly right, so that they get far before anybody notices.

A source of inputs is a function of its seed alone. It has a store of sound pieces (Arrow messages, packed
rows, heads, documents, conditions) and changes one or two things of what it takes from there: numbers of
the metadata become others, fields of a head change their type, bounds or place, texts are cut and put
together anew. Nothing of this passes through our own encoder.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import Enum
from random import Random
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from tests.hostile.arrow import laid_out, message
from tests.hostile.payloads import COLUMNS, CONDITIONS, TOPIC, VALUES, Mutator, plain_of, random_rows
from tests.hostile.raw import KINDS, fingerprint, frame, frame_bytes, hello, padded

_pack = msgspec.msgpack.encode

#: The share of inputs that may end their connection.
HARMFUL = 1 / 100
#: The share of requests.
REQUESTS = 1 / 50

#: The kinds of events, each as often as its share of them: about a fifth of them are stored and matched.
EVENTS = [
    kind
    for kind, share in {
        "columns: values": 3, "columns: oversized": 2, "columns: damaged": 45, "rows: values": 4,
        "rows: damaged": 43, "documents": 3,
    }.items()
    for _ in range(share)
]  # fmt: skip

#: Numbers that stand for the subscriptions of a connection: whoever sends an input puts those in that the
#: node has given, which are as long.
SUBSCRIPTIONS = [2**32 - 1 - at for at in range(4)]

#: The topics of the node. Nobody attacks `calm`: there the witness publishes and reads.
FEW = {"a": "int", "b": "float?", "c": "string", "d": "bool", "e": "binary?"}
DOCUMENTS = {"x": "xml"}
TOPICS = {str(TOPIC): COLUMNS, "few": FEW, "documents": DOCUMENTS}
PUBENDS = {str(TOPIC): "every-1", "few": "few-1", "documents": "documents-1"}
FINGERPRINTS = {topic: fingerprint(columns) for topic, columns in TOPICS.items()}
#: Frames that only brokers or nodes may send, and those of the handshake.
_FOREIGN = [
    kind for kind, number in KINDS.items() if number < 0x20 or number >= 0x40 if kind not in ("PING", "PONG")
]
_ASKING = ["SUBSCRIBE", "CHANGE_FILTER", "UNSUBSCRIBE", "CREDIT", "ACKNOWLEDGE", "LIST_TOPICS",
           "CREATE_TOPIC", "ASK_STATUS", "PUBLISH", "PUBLISH_ROWS"]  # fmt: skip
_PIECES = [b"<a>", b"</a>", b"<a", b"/>", b">", b"<!--", b"-->", b"<![CDATA[", b"]]>", b"<?", b"?>", b"&lt;",
           b"&#0;", b"&#x10ffff;", b"&e;", b"<!DOCTYPE a [", b" x='1'", b" x='2'", b" xmlns:n='u'", b"n:",
           b"\xff", b"\0", b"="]  # fmt: skip
_WORDS = ["AND", "OR", "NOT", "IN", "LIKE", "BETWEEN", "IS", "NULL", "(", ")", ",", "=", "<>", "<", ">=", "+",
          "-", "*", "/", "'", "''", '"', "i", "f", "s", "d", "t", "x", "y", "zz", "1", "1e999", "9" * 30,
          "X'0'", "TIMESTAMP", "XPATH(x, '//a[b]')", "ESCAPE", "%", "\0", "\ud7ff", "--", ";",
          "TRUE"]  # fmt: skip
_ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2**31, 2**32 - 1, 2**32, 2**62, 2**62 + 1, 2**63 - 1, 2**64 - 1, -(2**62),
    -(2**63),
    0.5, float("nan"), "", "x", "x" * 256, "x" * 257, "\0", "\x1b[31m", "é", b"", b"\xff", [], [1], [[]],
    {}, {"a": 1},
    {"every-1": 5}, ["every-1", 5], ["nobody", 2**62], {"": 0}, {1: 1}, "now", "earliest", "total", "holding",
]  # fmt: skip
#: Eight bytes that mean something special as a number, a float or a time.
_BITS = [struct.pack("<q", number) for number in VALUES["i"] + VALUES["t"]]
_BITS += [struct.pack("<d", number) for number in VALUES["f"]]


def attacker(lane: int) -> str:
    """The token of a lane: each is a principal of its own, with quotas and a share of the node."""
    return f"attacker-{lane}"


class After(Enum):
    """What is expected of a connection after an input."""

    #: It goes on.
    OPEN = "open"
    #: It may be cut off, or not.
    EITHER = "either"
    #: The input ends it: nothing can follow.
    LAST = "last"


class Input(NamedTuple):
    """One input: what was done to it, its bytes, and what may follow."""

    kind: str
    data: bytes
    after: After


class Source:
    """An endless stream of inputs, the same for the same seed.

    A node answers most inputs and reads on, however damaged their rows are. One in 100 may end its
    connection, which costs as much as many others.
    """

    def __init__(self, seed: int, lane: int) -> None:
        self.random = random = Random(f"{seed}/{lane}")
        self._lane = lane
        self._mutator = Mutator(random)
        self._rows = [random_rows(random, random.choice([1, 1, 1, 2, 2, 3, 9])) for _ in range(60)]
        self._plain = [_with_places(rows) for rows in self._rows]
        self._loose = [self._mutator.loosened(random.choice(self._rows)) for _ in range(200)]
        self._broken = [self._mutator.columns(random.choice(self._rows)) for _ in range(300)]
        self._first = 0
        self._makers: dict[str, Callable[[], Input]] = {
            "columns: values": self._values,
            "columns: oversized": self._loose_columns,
            "columns: damaged": self._damaged_columns,
            "rows: values": self._rows_of_values,
            "rows: damaged": self._damaged_rows,
            "documents": self._document,
        }
        requests = [(self._condition, 2), (self._request, 10)]
        harmful = [
            (self._head, 30), (self._about_nothing, 8), (self._foreign, 5), (self._header, 5),
            (self._hello, 5),
        ]  # fmt: skip
        self._requests, self._harmful = (
            [maker for maker, weight in each for _ in range(weight)] for each in (requests, harmful)
        )

    def draw(self, count: int, event: str) -> list[Input]:
        """The next inputs. Their events are of this kind, so that a node stores and matches many at once."""
        random, make_event = self.random, self._makers[event]
        drawn: list[Input] = []
        for _ in range(count):
            chance = random.random()
            if chance < HARMFUL:
                drawn.append(random.choice(self._harmful)())
            elif chance < HARMFUL + REQUESTS:
                drawn.append(random.choice(self._requests)())
            else:
                drawn.append(make_event())
        return drawn

    def subscribed(self) -> bytes:
        """What a connection begins with: three subscriptions, one of them with a name."""
        random = self.random
        head: list[Any] = [
            1,
            str(TOPIC),
            random.choice(CONDITIONS),
            None,
            "publisher",
            "now",
            "best-effort",
            None,
        ]
        named = [
            2,
            "few",
            "",
            self._name("few"),
            "publisher",
            "now",
            "guaranteed",
            random.choice([None, 0, 5]),
        ]
        guaranteed = [
            3,
            "documents",
            "",
            None,
            "total",
            # Few read all that was ever published: the longer a run, the more work that is.
            random.choice(["now"] * 15 + ["earliest"]),
            "guaranteed",
            random.choice([None, 0, 5]),
        ]
        return b"".join(frame("SUBSCRIBE", each) for each in (head, named, guaranteed))

    # ---- events --------------------------------------------------------------------------------------

    def _values(self) -> Input:
        """Any bits where any bits may be: numbers, times, flags, bytes, documents."""
        random = self.random
        data, places = random.choice(self._plain)
        changed = bytearray(data)
        for _ in range(random.choice([1, 1, 2, 4]) if places else 0):
            start, length = random.choice(places)
            at = start + random.randrange(length)
            if random.random() < 0.5 or length < 8:
                changed[at] = random.randrange(256)
            else:
                at = start + (at - start) // 8 * 8
                if at + 8 <= start + length:
                    changed[at : at + 8] = random.choice(_BITS)
        return self._publish(str(TOPIC), "columns: values", [bytes(changed)])

    def _loose_columns(self) -> Input:
        """Buffers that are too long, or apart from each other."""
        random = self.random
        if random.random() < 0.1:
            at = random.randrange(len(self._loose))
            self._loose[at] = self._mutator.loosened(random.choice(self._rows))
        return self._publish(str(TOPIC), "columns: oversized", [random.choice(self._loose)])

    def _damaged_columns(self) -> Input:
        """Metadata that lie, and bytes that were damaged."""
        random = self.random
        at = random.randrange(len(self._broken))
        if random.random() < 0.25:
            self._broken[at] = self._mutator.columns(random.choice(self._rows))
            return self._publish(str(TOPIC), "columns: structure", [self._broken[at]])
        part = self._mutator.damaged(self._broken[at])
        return self._publish(str(TOPIC), "columns: bytes", [part])

    def _rows_of_values(self) -> Input:
        rows = [_pack(self._row()) for _ in range(self.random.choice([1, 1, 1, 2, 5]))]
        lengths = struct.pack(f"<{len(rows)}I", *map(len, rows))
        return self._publish("few", "rows: values", [lengths, b"".join(rows)])

    def _damaged_rows(self) -> Input:
        random = self.random
        rows = [_pack(self._row()) for _ in range(random.choice([1, 1, 1, 2, 5, 64]))]
        lengths = [len(row) for row in rows]
        match random.randrange(3):
            case 0:
                kind, row = "rows: types", self._row()
                row[random.randrange(len(row))] = random.choice(_ODD)
                rows[-1] = _pack(row)
                lengths[-1] = len(rows[-1])
            case 1:
                kind = "rows: bytes"
                rows[0] = self._mutator.damaged(rows[0])
                lengths[0] = len(rows[0])
            case _:
                kind = "rows: lengths"
                lengths[random.randrange(len(lengths))] = random.choice(
                    [0, 1, 2**31, 2**32 - 1, len(rows[0]) + 1]
                )
                lengths += [0] * random.choice([0, 0, 1, 70])
        told = struct.pack(f"<{len(lengths)}I", *lengths)
        return self._publish("few", kind, [told, b"".join(rows)])

    def _row(self) -> list[Any]:
        random = self.random
        return [
            random.choice(VALUES["j"]), random.choice([None, *VALUES["f"]]), random.choice(VALUES["s"]),
            random.random() < 0.5, random.choice([None, *VALUES["y"]]),
        ]  # fmt: skip

    def _document(self) -> Input:
        random = self.random
        document = random.choice(VALUES["x"])
        for _ in range(random.choice([0, 1, 2, 4])):
            at = random.randrange(len(document) + 1)
            document = (
                document[:at] + random.choice(_PIECES) * random.choice([1, 1, 1, 2, 30]) + document[at:]
            )
        if random.random() < 0.002:
            many = b" ".join(b"a%d='%d'" % (at, at) for at in range(random.choice([900, 1_100, 20_000])))
            document = b"<a " + many + b">" + document + b"</a>"
        part = message(laid_out(1, [[b"", struct.pack("<ii", 0, len(document)), document]]))
        return self._publish("documents", "documents", [part])

    def _publish(self, topic: str, kind: str, parts: list[bytes]) -> Input:
        self._first += 70
        pubend = self.random.choice([None, None, PUBENDS[topic]])
        head = [topic, pubend, f"mallory-{self._lane}", self._first, FINGERPRINTS[topic], None, None]
        name = "PUBLISH_ROWS" if len(parts) == 2 else "PUBLISH"
        return Input(kind, frame(name, head, parts), After.OPEN)

    def _publisher(self) -> str:
        """Who publishes over other connections: events that pass each other count as given up."""
        return f"mallory-{self._lane}-{self.random.randrange(100)}"

    # ---- requests ------------------------------------------------------------------------------------

    def _head(self) -> Input:
        """A head in which a field or two are of another type, out of bounds, or about something else."""
        random = self.random
        kind = random.choice(_ASKING)
        head, parts = self._sound(kind)
        for _ in range(random.choice([1, 1, 2])):
            match random.randrange(6):
                case 0 | 1 | 2:
                    head[random.randrange(len(head))] = random.choice(_ODD)
                case 3:
                    head.insert(random.randrange(len(head) + 1), random.choice(_ODD))
                case 4 if len(head) > 1:
                    del head[random.randrange(len(head))]
                case _:
                    parts = [*parts, b"more"] if random.random() < 0.5 else parts[:-1]
        data = _pack(head)
        if random.random() < 0.2:
            data = self._mutator.damaged(data)
        return Input("heads", frame_bytes(kind, data, parts), After.EITHER)

    def _request(self) -> Input:
        """Sound requests, also about subscriptions that are not there."""
        kinds = ["SUBSCRIBE", "CHANGE_FILTER", "UNSUBSCRIBE", "LIST_TOPICS", "CREATE_TOPIC", "ASK_STATUS"]
        kind = self.random.choices(kinds, [0.2, 3, 1, 1, 0.05, 0.02])[0]
        return Input("requests", frame(kind, *self._sound(kind)), After.OPEN)

    def _name(self, topic: str) -> str:
        """One of a few names."""
        return f"{topic}-{self._lane}-{self.random.randrange(6)}"

    def _about_nothing(self) -> Input:
        """What is said of a subscription and not answered."""
        kind = self.random.choice(["CREDIT", "ACKNOWLEDGE"])
        return Input("credit and acks", frame(kind, *self._sound(kind)), After.EITHER)

    def _condition(self) -> Input:
        """A condition with other words in it."""
        random = self.random
        words = random.choice(CONDITIONS).split(" ")
        for _ in range(random.choice([0, 1, 2, 3])):
            at = random.randrange(len(words) + 1)
            if random.random() < 0.5:
                words.insert(at, random.choice(_WORDS))
            elif words:
                del words[at % len(words)]
        where = " ".join(words)
        number = random.randrange(4)
        if random.random() < 0.3:
            return Input(
                "conditions",
                frame("CHANGE_FILTER", [number, random.choice(SUBSCRIPTIONS), where]),
                After.OPEN,
            )
        head = [number, str(TOPIC), where, None, "publisher", "now", "best-effort", 0]
        return Input("conditions", frame("SUBSCRIBE", head), After.OPEN)

    def _sound(self, kind: str) -> tuple[list[Any], list[bytes]]:
        """A head and parts that are in order."""
        random = self.random
        number = random.randrange(4)
        topic = random.choice([*TOPICS])
        ours = random.choice(SUBSCRIPTIONS)
        match kind:
            case "SUBSCRIBE":
                name = random.choice([None, None, self._name(topic)])
                start = random.choice(["now"] * 12 + ["earliest", 5, {PUBENDS[topic]: 7}])
                order, mode = (
                    random.choice(["publisher", "total"]),
                    random.choice(["guaranteed", "best-effort"]),
                )
                return [number, topic, "", name, order, start, mode, random.choice([None, 0, 1, 100])], []
            case "CHANGE_FILTER":
                return [number, ours, random.choice(CONDITIONS)], []
            case "UNSUBSCRIBE":
                return [number, ours, random.random() < 0.5], []
            case "CREDIT":
                return [ours, random.choice([0, 1, 100, 2**40])], []
            case "ACKNOWLEDGE":
                return [ours, {PUBENDS[topic]: random.choice([0, 1, 2**40, -(2**62), 2**62])}], []
            case "LIST_TOPICS":
                return [number, False], []
            case "CREATE_TOPIC":
                return [number, f"made-{random.randrange(8)}", {"a": "int"}, ""], []
            case "ASK_STATUS":
                return [number, random.choice([None, [PUBENDS[topic], 5]]), None], []
            case "PUBLISH":
                parts = [random.choice(self._rows).serialize().to_pybytes()]
                topic = str(TOPIC)
            case _:
                row = _pack(self._row())
                parts, topic = [struct.pack("<I", len(row)), row], "few"
        self._first += 70
        publisher = self._publisher()
        after = random.choice([None, [PUBENDS[topic], 3], ["every-1", 2**62 - 1]])
        return [topic, None, publisher, self._first, FINGERPRINTS[topic], after, None], parts

    # ---- frames --------------------------------------------------------------------------------------

    def _foreign(self) -> Input:
        """A frame that no client may send, or not now."""
        random = self.random
        kind = random.choice(_FOREIGN)
        head = [random.choice(_ODD) for _ in range(random.randrange(8))]
        return Input("foreign frames", frame(kind, head, [b"12345678"] * random.randrange(3)), After.LAST)

    def _header(self) -> Input:
        """A frame whose header is wrong, or that ends too early."""
        random = self.random
        data = bytearray(frame(random.choice(_ASKING), [1, 2, 3], [b"part"] * random.randrange(9)))
        at = random.randrange(16)
        match random.randrange(4):
            case 0:
                data[at] ^= 1 << random.randrange(8)
            case 1:
                data[at] = random.choice([0, 1, 0x7F, 0x80, 0xFF])
            case 2:
                struct.pack_into("<I", data, 16, random.choice([0, 2**31, 2**32 - 1, 7]))
            case _:
                del data[random.randrange(len(data)) :]
        return Input("headers", bytes(data), After.LAST)

    def _hello(self) -> Input:
        """A second HELLO; as the first frame of a connection it is an input of its own."""
        random = self.random
        fields: dict[str, Any] = {"token": attacker(self._lane)} | {
            random.choice(
                ["role", "name", "network", "software", "token", "version_min", "version_max"]
            ): random.choice(_ODD)
            for _ in range(random.choice([1, 2]))
        }
        data = hello(**fields)
        if random.random() < 0.3:
            data = padded(self._mutator.damaged(data))
        return Input("handshakes", data, After.LAST)


def _with_places(rows: pa.RecordBatch) -> tuple[bytes, list[tuple[int, int]]]:
    """An Arrow message, and where in it any bits may be."""
    plain = plain_of(rows)
    data = message(plain)
    body = len(data) - len(plain.body)
    # i, j and f, then s with three buffers, b and t, then d, y and x with their bytes in the last buffer.
    free = [plain.buffers[at] for at in (1, 3, 5, 10, 12, 17, 20)]
    return data, [(body + offset, length) for offset, length in free if length]
