"""Who is in the demo, and who wants what? The network, its publishers and its subscribers.

Each subscriber has its condition twice: as the text that the network gets, and as a judge that shares
nothing with the brokers. For SQL the judge is a Python function, for XPath it is lxml's own evaluator. The
account of the demo is settled by the judges alone.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lxml import etree

if TYPE_CHECKING:
    from gapless.client.options import DeliveryOrder

#: One event as it was published: a value for each column.
Row = Mapping[str, Any]

#: `publisher` and `number` are there for the verification: they name an event as its publisher does.
DESCRIPTION = """\
cells = {p = ["p1"], b = ["b1", "b2"], s = ["s1"], t = ["s2"]}
links = ["p--b", "b--s", "b--t"]
edges = ["s1", "s2"]

[topics.trades]
sym = "string"
price = "float"
volume = "int"
venue = "string?"
publisher = "string"
number = "int"

[topics.news]
document = "xml"
publisher = "string"
number = "int"

[pubends]
tokyo = {topic = "trades", broker = "p1"}
london = {topic = "trades", broker = "p1"}
news = {topic = "news", broker = "p1"}
"""

REPOSITORY = "p1"
ROUTERS = ("b1", "b2")
EDGES = ("s1", "s2")
VICTIM = "b1"

SYMBOLS = ("AAPL", "BP", "IBM", "INTC", "MSFT", "SONY", "TSLA", "VOD")
#: Where a trade was made; None for one outside any exchange.
VENUES = {"tokyo": ("TSE", "OSE", None), "london": ("LSE", "AIM", None)}
MEDIA = ("image", "video", "audio")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherPlan:
    """A publisher."""

    name: str
    topic: str
    pubend: str
    #: Which part of all events are theirs.
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberPlan:
    """A subscriber, and how to compute what it should get without asking a broker."""

    name: str
    edge: str
    topic: str
    where: str
    wants: Callable[[Row], bool]
    order: DeliveryOrder = "publisher"


PUBLISHERS = (
    PublisherPlan(name="akiko", topic="trades", pubend="tokyo", share=0.4),
    PublisherPlan(name="ben", topic="trades", pubend="london", share=0.4),
    PublisherPlan(name="cleo", topic="trades", pubend="tokyo", share=0.1),
    PublisherPlan(name="dora", topic="news", pubend="news", share=0.1),
)


def lxml_judge(pattern: str) -> Callable[[Row], bool]:
    """Whether lxml finds something in the document of a row.

    >>> lxml_judge("/news//media")({"document": "<news><body><media/></body></news>"})
    True
    """
    find = etree.XPath(pattern)

    def wants(row: Row) -> bool:
        return bool(find(etree.fromstring(row["document"])))

    return wants


def _news(name: str, edge: str, pattern: str) -> SubscriberPlan:
    return SubscriberPlan(name=name, edge=edge, topic="news", where=pattern, wants=lxml_judge(pattern))


def _trades(
    name: str, edge: str, where: str, wants: Callable[[Row], bool], order: DeliveryOrder = "publisher"
) -> SubscriberPlan:
    return SubscriberPlan(name=name, edge=edge, topic="trades", where=where, wants=wants, order=order)


SUBSCRIBERS = (
    _trades("middle", "s1", "price BETWEEN 20 AND 40", lambda row: 20 <= row["price"] <= 40),
    _trades(
        "tech",
        "s1",
        "sym IN ('AAPL', 'IBM', 'MSFT') AND volume >= 500",
        lambda row: row["sym"] in {"AAPL", "IBM", "MSFT"} and row["volume"] >= 500,
    ),
    _trades(
        "ledger",
        "s1",
        "venue = 'LSE' OR price > 50",
        lambda row: row["venue"] == "LSE" or row["price"] > 50,
        order="total",
    ),
    _news("urgent", "s1", "/news[head/urgency <= 3]//media"),
    _trades("letter-i", "s2", "sym LIKE 'I%'", lambda row: row["sym"].startswith("I")),
    _trades(
        "extremes",
        "s2",
        "(price < 10 OR price > 90) AND venue <> 'OSE'",
        # Nothing can be said of a venue that is not known: such a trade is not wanted.
        lambda row: (row["price"] < 10 or row["price"] > 90) and row["venue"] not in {None, "OSE"},
    ),
    _trades("audit", "s2", "", lambda _: True, order="total"),
    _news("video", "s2", "//media[@type = 'video']"),
)


def events_of(plan: PublisherPlan, seed: int) -> Callable[[int], dict[str, object]]:
    """A function that makes the event of a number; the numbers are asked for in order."""
    rng = random.Random(f"{seed} {plan.name}")
    if plan.topic == "news":
        return lambda number: {"document": _document(rng, number), "publisher": plan.name, "number": number}
    venues = VENUES[plan.pubend]
    return lambda number: {
        "sym": rng.choice(SYMBOLS),
        "price": rng.randrange(100, 10_000) / 100,
        "volume": rng.randrange(1, 1_000),
        "venue": rng.choice(venues),
        "publisher": plan.name,
        "number": number,
    }


def _document(rng: random.Random, number: int) -> str:
    media = "".join(
        f'<media type="{rng.choice(MEDIA)}"><caption>Picture {at}</caption></media>'
        for at in range(rng.randrange(3))
    )
    return (
        f'<news id="n{number}"><head><title>Story {number}</title>'
        f"<urgency>{rng.randrange(1, 9)}</urgency></head>"
        f"<body><block><p>Something has happened again.</p>{media}</block></body></news>"
    )


def router_of(pubend: str, alive: Sequence[str] = ROUTERS) -> str:
    """Which router carries the events of a pubend (docs/protocol.md, section 5).

    >>> router_of("tokyo"), router_of("london"), router_of("tokyo", ["b2"])
    ('b1', 'b2', 'b2')
    """
    return alive[zlib.crc32(pubend.encode()) % len(alive)]
