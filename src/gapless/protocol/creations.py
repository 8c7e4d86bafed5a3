"""What was added to a network while it runs? Creations: a topic, with a pubend of its own at one broker.

The description of a network is a file, and all brokers have the same. What is created later is a set that
only grows: a broker that hears of a creation stores it and passes it on, so that in the end all brokers know
the same set, in whatever order and however often they heard of it.

Two brokers may create one topic without knowing of each other. If they mean the same columns it is one topic
with two pubends. If not, the older creation counts, and the younger is *set aside*: nobody uses it, and
nothing of it is deleted.

Implements docs/protocol.md, section 12.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from gapless.model.ids import BrokerId, PubendId, TopicId
from gapless.model.schema import Schema
from gapless.model.ticks import Tick

#: Maximum number of topics in a network: each costs every broker a stream.
TOPICS_MAX = 1_000
#: So many creations are remembered, the oldest ones: brokers that were apart may together exceed TOPICS_MAX.
CREATIONS_MAX = 4 * TOPICS_MAX
#: So many creations travel in one message.
MESSAGE_CREATIONS_MAX = 64
#: Bytes of the name of a topic that is created. With the broker's it becomes the name of a folder.
NAME_BYTES_MAX = 100

_NAME = re.compile(r"\w[\w.-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """One topic that was created, and the pubend that it got."""

    schema: Schema
    pubend: PubendId
    broker: BrokerId
    #: The clock of the broker that created it. Of two that contradict each other the older one counts.
    made: Tick
    #: How long released events are kept there, as people write it; empty for no longer than needed.
    retention: str = ""

    @property
    def topic(self) -> TopicId:
        """What was created."""
        return self.schema.topic

    @property
    def age(self) -> tuple[Tick, str, str, str, str, str]:
        """A total order of all creations, the oldest first."""
        return self.made, self.pubend, self.broker, self.topic, columns_text(self.schema), self.retention


def columns_text(schema: Schema) -> str:
    """The columns as people write them.

    >>> columns_text(Schema.parse(TopicId("trades"), {"sym": "string", "price": "float?"}))
    'sym=string price=float?'
    """
    return " ".join(f"{c.name}={c.type}{'?' if c.nullable else ''}" for c in schema.columns)


def oldest(creations: Iterable[Creation]) -> frozenset[Creation]:
    """As many as are remembered. Whichever way sets are joined and cut, the same ones remain."""
    found = frozenset(creations)
    if len(found) <= CREATIONS_MAX:
        return found
    return frozenset(sorted(found, key=lambda each: each.age)[:CREATIONS_MAX])


def digest(creations: Iterable[Creation]) -> int:
    """A number that two brokers compare to see whether they know the same creations; 0 for none.

    >>> digest(())
    0
    """
    ages = sorted(each.age for each in creations)
    if not ages:
        return 0
    told = hashlib.blake2b(repr(ages).encode(), digest_size=8).digest()
    return int.from_bytes(told, "big") >> 2 or 1


def is_topic_name(name: str) -> bool:
    """Whether a topic may be created with this name: it becomes part of the names of folders.

    >>> is_topic_name("trades.2026"), is_topic_name("../trades"), is_topic_name("")
    (True, False, False)
    """
    return len(name.encode()) <= NAME_BYTES_MAX and _NAME.fullmatch(name) is not None


def is_pubend_name(name: str) -> bool:
    """Whether this can be the name of a pubend that was created."""
    return len(name.encode()) <= 2 * NAME_BYTES_MAX and _NAME.fullmatch(name) is not None


def pubend_name(topic: TopicId, broker: BrokerId, taken: Iterable[str]) -> PubendId:
    """A name for a new pubend that nobody else has.

    >>> pubend_name(TopicId("trades"), BrokerId("p1"), ["trades-p1"])
    'trades-p1.2'
    """
    where = re.sub(r"[^\w.-]", "_", broker).encode()[: NAME_BYTES_MAX // 2].decode(errors="ignore")
    name, used = f"{topic}-{where}", set(taken)
    number = 1
    while (found := name if number == 1 else f"{name}.{number}") in used:
        number += 1
    return PubendId(found)
