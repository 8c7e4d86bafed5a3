"""What is for sale in the second act of the demo? The SMILE paper's tickets: their topics and the view.

Sellers offer tickets; buyers in the east and in the west buy some. The view merges the buys, sums them by
item, joins what was offered, extends each row by what is left, and selects the rows that have something
left: all six transforms of the paper's Figure 1.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

#: The same five brokers as in the first act.
DESCRIPTION = """\
cells = {p = ["p1"], b = ["b1", "b2"], s = ["s1"], t = ["s2"]}
links = ["p--b", "b--s", "b--t"]
edges = ["s1", "s2"]

[topics.sellers]
item = "string"
price = "float"
qty = "int"

[topics.buyers_east]
item = "string"
qty = "int"

[topics.buyers_west]
item = "string"
qty = "int"

[pubends]
sellers = {topic = "sellers", broker = "p1"}
east = {topic = "buyers_east", broker = "p1"}
west = {topic = "buyers_west", broker = "p1"}
"""

VIEW = "available"
#: The pubend of the view's relation: the network gives it this name.
VIEW_PUBEND = "view.available-p1"
SQL = """\
SELECT s.item, s.price, s.qty - coalesce(b.total, 0) AS avail
FROM (SELECT item, last(price) AS price, sum(qty) AS qty
      FROM sellers GROUP BY item) AS s
LEFT JOIN (SELECT item, sum(qty) AS total
           FROM (SELECT item, qty FROM buyers_east
                 UNION ALL
                 SELECT item, qty FROM buyers_west)
           GROUP BY item) AS b
ON s.item = b.item
WHERE s.qty - coalesce(b.total, 0) > 0"""

_SHOWS = ("Aida", "Carmen", "Chicago", "Don Giovanni", "Fidelio", "Giselle", "Hamlet", "Macbeth", "Tosca")
_CITIES = ("Athens", "Berlin", "Cairo", "Lima", "London", "Milan", "Osaka", "Oslo", "Paris", "Rome", "Vienna")
ITEMS = tuple(f"{show}, {city}" for show in _SHOWS for city in _CITIES)

#: How many tickets a seller offers at once, and a buyer buys: about as many are bought as are offered, so
#: that items sell out and come back all the time.
OFFER_MIN, OFFER_MAX = 5, 40
BUY_MAX = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TraderPlan:
    """Somebody who publishes offers or buys."""

    name: str
    topic: str
    pubend: str
    #: Which part of all events are theirs.
    share: float


SELLERS = TraderPlan(name="sellers", topic="sellers", pubend="sellers", share=0.1)
EAST = TraderPlan(name="buyers east", topic="buyers_east", pubend="east", share=0.5)
WEST = TraderPlan(name="buyers west", topic="buyers_west", pubend="west", share=0.4)
TRADERS = (SELLERS, EAST, WEST)


def trades_of(plan: TraderPlan, seed: int) -> Callable[[int], Mapping[str, Any]]:
    """A function that makes the event of a number; the numbers are asked for in order.

    The first offers are of each item once, so that there is something to buy.
    """
    rng = random.Random(f"{seed} {plan.name}")
    if plan is not SELLERS:
        return lambda _number: {"item": rng.choice(ITEMS), "qty": rng.randint(1, BUY_MAX)}
    return lambda number: {
        "item": ITEMS[number] if number < len(ITEMS) else rng.choice(ITEMS),
        "price": rng.randrange(1_000, 20_000) / 100,
        "qty": rng.randint(OFFER_MIN, OFFER_MAX),
    }
