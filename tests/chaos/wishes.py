"""What do the subscribers of a chaos run want? Conditions that a node reads as text and the judge as its own.

The judge must not ask `gapless.content` what matches, so a condition is one of the simulator's (evaluated row
by row on plain dictionaries), or a pattern that lxml's own XPath engine evaluates. The text for the node is
made from it, never the other way round.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lxml import etree

from gapless.sim import conditions
from gapless.sim.conditions import (
    Begins,
    Between,
    Both,
    Condition,
    Contains,
    Different,
    Either,
    Equal,
    Everything,
    Missing,
    Row,
)

SYMBOLS = ("IBM", "INTC", "ORCL", "SAP", "AMD", "ARM")
SECTIONS = ("sport", "markets", "weather")

#: The topics of a chaos run. Every event has an `id` that nobody else has.
TOPICS = """
topics.trades = {id = "int", sym = "string", price = "float", size = "int?"}
topics.news = {id = "int", doc = "xml"}
"""


@dataclass(frozen=True, slots=True)
class Pattern:
    """The document in the column `doc` has something at this path."""

    path: str

    def accepts(self, row: Row) -> bool:
        """Whether a subscriber with this condition wants the row."""
        return bool(_document(str(row["doc"])).xpath(self.path))

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True, eq=False)
class InTurn:
    """A condition that was changed: each decides from its ticks on. Rows say their pubend and tick."""

    #: The conditions, and per pubend the tick from which on each decides; the first always did.
    turns: tuple[tuple[Any, Mapping[str, int]], ...]

    def accepts(self, row: Row) -> bool:
        """Whether a subscriber with this condition wants the row."""
        decides = self.turns[0][0]
        for condition, ticks in self.turns[1:]:
            start = ticks.get(str(row["_pubend"]))
            if start is not None and int(row["_tick"] or 0) >= start:
                decides = condition
        return bool(decides.accepts(row))

    def __str__(self) -> str:
        return ", then ".join(str(condition) for condition, _ in self.turns)


@functools.lru_cache(maxsize=4_096)
def _document(text: str) -> Any:
    return etree.fromstring(text.encode())


def text_of(condition: Any) -> str:
    """The condition in the words of a node.

    >>> text_of(Both(Begins("sym", "I"), Between("price", 3, 9)))
    "(sym LIKE 'I%' AND (price >= 3 AND price < 9))"
    """
    match condition:
        case Pattern():
            return condition.path
        case Everything():
            return ""
        case Equal():
            return f"{condition.column} = {condition.value!r}"
        case Different():
            return f"{condition.column} <> {condition.value!r}"
        case Between():
            return f"({condition.column} >= {condition.low} AND {condition.column} < {condition.high})"
        case Begins():
            return f"{condition.column} LIKE '{condition.start}%'"
        case Contains():
            return f"{condition.column} LIKE '%{condition.part}%'"
        case Missing():
            return f"{condition.column} IS NULL"
        case Either():
            return f"({text_of(condition.one)} OR {text_of(condition.other)})"
        case Both():
            return f"({text_of(condition.one)} AND {text_of(condition.other)})"
        case _:
            raise AssertionError(f"no condition: {condition!r}")


def encode(condition: Any) -> list[Any]:
    """A condition as JSON, for a history that is judged again later."""
    values = [getattr(condition, field.name) for field in dataclasses.fields(condition)]
    return [
        type(condition).__name__,
        *(encode(value) if dataclasses.is_dataclass(value) else value for value in values),
    ]


def decode(told: Sequence[Any]) -> Any:
    """A condition from what `encode` made.

    >>> decode(encode(Either(Everything(), Equal("sym", "SAP"))))
    Either(one=Everything(), other=Equal(column='sym', value='SAP'))
    """
    kind = Pattern if told[0] == "Pattern" else getattr(conditions, told[0])
    return kind(*(decode(value) if isinstance(value, list) else value for value in told[1:]))


def some_condition(topic: str, chance: random.Random) -> Any:
    """What a subscriber to a topic might want."""
    if topic == "news":
        section = chance.choice(SECTIONS)
        return chance.choice(
            [
                Pattern("//headline"),
                Pattern(f"/item[@section='{section}']"),
                Pattern(f"/item[@section='{section}']//quote[@sym='{chance.choice(SYMBOLS)}']"),
                Pattern("/item[body/quote > 50]/headline"),
            ]
        )
    low = chance.randrange(0, 80, 10)
    simple: list[Condition] = [
        Everything(),
        Equal("sym", chance.choice(SYMBOLS)),
        Different("sym", chance.choice(SYMBOLS)),
        Between("price", low, low + chance.randrange(10, 60, 10)),
        Begins("sym", chance.choice("IA")),
        Contains("sym", chance.choice("MR")),
        Missing("size"),
        Between("size", 100, 700),
    ]
    one, other = chance.sample(simple[1:], 2)
    return chance.choice([*simple, Either(one, other), Both(one, other)])


def some_row(topic: str, row_id: int, chance: random.Random) -> dict[str, Any]:
    """An event of a topic."""
    if topic == "news":
        quotes = "".join(
            f'<quote sym="{chance.choice(SYMBOLS)}">{chance.randrange(100)}</quote>'
            for _ in range(chance.randrange(3))
        )
        headline = "<headline>News</headline>" if chance.random() < 0.7 else ""
        section = chance.choice(SECTIONS)
        return {"id": row_id, "doc": f'<item section="{section}">{headline}<body>{quotes}</body></item>'}
    return {
        "id": row_id,
        "sym": chance.choice(SYMBOLS),
        "price": chance.randrange(0, 400) / 4,
        "size": None if chance.random() < 0.2 else chance.randrange(1, 1_000),
    }
