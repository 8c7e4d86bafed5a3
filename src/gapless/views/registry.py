"""Which views exist, and how do programs tell each other? Names and columns of the topics of views.

Four kinds of topics, all of them ordinary ones whose logs keep the newest row of each key:

- the *registry* `gapless.views` has one row per view: its text, or none once it was dropped;
- the *status* topic `gapless.views.status` has the state of each view, as reported by the pipeline;
- the topic of *holds* `gapless.views.holds` has the names that the pipeline has at an edge, so that it can
  forget each, whatever happened to its view;
- a *relation*, one for each view, has the rows that the view shows.

A relation's rows have a kind. The pipeline publishes the rows that changed, `SHOWN` or `GONE`, and then one
`MARKER`, which says how much of the base topics they account for. A reader applies rows when their marker
comes: it then shows the view exactly as of that *horizon*, never half of a change. (Of a topic that the view
reads more than once, the horizon is that of the reader that is furthest behind.)

A log returns only the newest rows, and a reader may already have an older marker (from a broker that still
had it) when it asks for the rows before. Then a row that was superseded since is missing from the state of
that marker. So each row may have a *stamp*, a number unique to this version of the row, such as a hash of its
key and its batch; the stamp of a marker is the sum of those of all visible rows. A reader whose own sum
differs waits for the next marker. Without stamps nothing is compared.

Everything here is pure: `gapless.client` and `gapless.spark` publish, read and wait.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType

import pyarrow as pa

from gapless.errors import UsageError
from gapless.model.ids import PubendId, TopicId
from gapless.model.schema import Column
from gapless.model.ticks import Tick

#: One row per view. A row without `sql` says that the view was dropped.
REGISTRY_TOPIC = TopicId("gapless.views")
REGISTRY_COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "name": "string",
        "sql": "string?",
        #: The topic that has the rows of the view. A recreated view gets a new one.
        "topic": "string?",
        "made": "timestamp?",
    }
)
REGISTRY_RETENTION = "newest(name)"

#: The state of each view, as reported by the pipeline.
STATUS_TOPIC = TopicId("gapless.views.status")
STATUS_COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "name": "string",
        #: Identifies the version of the view: its relation's topic.
        "topic": "string?",
        #: One of `STATES`.
        "state": "string",
        #: Why, in one line with its code, when it failed.
        "message": "string?",
        "rows": "int?",
        #: The horizon of the newest marker, as in markers.
        "as_of": "string?",
        #: How long the last batch took.
        "batch_ms": "float?",
        "at": "timestamp?",
    }
)
STATUS_RETENTION = "newest(name)"
STARTING, RUNNING, FAILED, STOPPED = STATES = ("starting", "running", "failed", "stopped")

#: The names that pipelines have at edges: durable subscriptions, which hold the log for the stages of views.
#: A name is recorded here before it is made, and deleted after it was forgotten.
HOLDS_TOPIC = TopicId("gapless.views.holds")
HOLDS_COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        #: The edge where it lives: names of different edges are unrelated.
        "edge": "string",
        "name": "string",
        #: The topic that it keeps.
        "topic": "string",
        #: Whether it may exist.
        "held": "bool",
    }
)
HOLDS_RETENTION = "newest(edge, name)"
#: The name that only one pipeline of a network has at a time.
LEASE = "gapless.pipeline"
#: The name of a hold: of which stage, and which of its topics.
_HOLD = re.compile(r"gapless\.views\.([0-9a-f]+)\.[0-9]+")

#: The columns that every relation has before those of its view.
KIND, AS_OF, KEY, STAMP = OWN_COLUMNS = ("gapless_kind", "gapless_as_of", "gapless_key", "gapless_stamp")
#: The kind of a row of a relation: its key is no longer shown, is shown, or it is only a marker.
GONE, SHOWN, MARKER = 0, 1, 2
RELATION_RETENTION = f"relation({KEY})"
RELATION_PREFIX = "view."

#: Maximum length of the name of a view: with the prefix and a number it must fit a topic's name.
NAME_LETTERS_MAX = 60
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def checked_name(name: str) -> str:
    """The name, if a view may have it. Raises UsageError E173.

    >>> checked_name("available")
    'available'
    """
    if _NAME.fullmatch(name) is None or len(name) > NAME_LETTERS_MAX:
        raise UsageError(
            "E173",
            f"{name!r:.80} is not a valid name for a view: use at most {NAME_LETTERS_MAX} letters, digits "
            "and '_', and begin with a letter",
        )
    return name


def fresh_topic(name: str, topics: Collection[str]) -> TopicId:
    """The topic for the rows of a new view: an unused one, because topics stay.

    >>> fresh_topic("available", []), fresh_topic("available", ["view.available"])
    ('view.available', 'view.available.2')
    """
    number = 1
    while (found := RELATION_PREFIX + (name if number == 1 else f"{name}.{number}")) in topics:
        number += 1
    return TopicId(found)


def relation_columns(columns: Iterable[Column]) -> dict[str, str]:
    """The columns of the topic of a view, as topics are created. All of the view's may be null.

    >>> relation_columns([Column("item", "string")])["item"]
    'string?'

    Raises UsageError E173 when the view has a column of our own name.
    """
    types = {KIND: "int", AS_OF: "string?", KEY: "string?", STAMP: "int?"}
    for column in columns:
        if column.name in OWN_COLUMNS:
            raise UsageError("E173", f"a view cannot have a column '{column.name}': give it another name")
        types[column.name] = f"{column.type}?"
    return types


#: How much of the base topics a state includes: every event below the tick of its pubend.
AsOf = Mapping[TopicId, Mapping[PubendId, Tick]]


def as_of_text(as_of: AsOf) -> str:
    """A horizon as written in a marker.

    >>> as_of_text({TopicId("buy"): {PubendId("buy-p1"): 17}})
    '{"buy": {"buy-p1": 17}}'
    """
    return json.dumps(as_of, sort_keys=True)


def parsed_as_of(text: str) -> dict[TopicId, dict[PubendId, Tick]]:
    """The horizon of a marker. Raises ValueError when it is invalid."""
    as_of = json.loads(text)
    if not isinstance(as_of, dict) or not all(
        isinstance(ticks, dict) and all(type(tick) is int for tick in ticks.values())
        for ticks in as_of.values()
    ):
        raise ValueError(f"not a horizon: {text!r:.80}")
    return {
        TopicId(topic): {PubendId(pubend): tick for pubend, tick in ticks.items()}
        for topic, ticks in as_of.items()
    }


@dataclass(frozen=True, slots=True)
class Definition:
    """One view: its name, its definition, and the topic that has its rows."""

    name: str
    sql: str
    topic: TopicId
    made: datetime | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """The state of one view, as reported by the pipeline."""

    name: str
    topic: TopicId
    state: str
    message: str = ""
    rows: int | None = None
    as_of: str | None = None
    batch_ms: float | None = None
    at: datetime | None = None


@dataclass(slots=True)
class Registry:
    """The existing views, from the rows of the registry's topic in any order."""

    definitions: dict[str, Definition] = field(default_factory=dict)
    #: Of each name, dropped or not, where its newest row stands.
    _newest: dict[str, tuple[Tick, PubendId]] = field(default_factory=dict)

    def apply(self, pubend: PubendId, ticks: Iterable[Tick], rows: pa.RecordBatch | pa.Table) -> set[str]:
        """Take rows of the registry; returns the names of the views that changed."""
        changed: set[str] = set()
        for tick, row in zip(ticks, rows.to_pylist(), strict=True):
            name, place = row["name"], (int(tick), pubend)
            if place <= self._newest.get(name, (-1, PubendId(""))):
                continue
            self._newest[name] = place
            before, now = self.definitions.get(name), None
            if row["sql"] is not None and row["topic"] is not None:
                now = Definition(name, row["sql"], TopicId(row["topic"]), row["made"])
            # Atomically: others may read concurrently.
            if now is not None:
                self.definitions[name] = now
            elif before is not None:
                del self.definitions[name]
            if now != before:
                changed.add(name)
        return changed

    def in_order(self) -> list[Definition]:
        """The views in the order in which they were created, which is the same for all readers.

        It is that of the log, not of `made`, which is by the creator's clock.
        """
        return sorted(self.definitions.copy().values(), key=lambda each: self._newest[each.name])

    def texts(self) -> dict[str, str]:
        """The text of each view, in the order in which they were created."""
        return {each.name: each.sql for each in self.in_order()}


@dataclass(slots=True)
class HoldBook:
    """The names that pipelines have, from the rows of the topic of holds in any order."""

    #: The topic of each name that may be there, by its edge and itself.
    held: dict[tuple[str, str], TopicId] = field(default_factory=dict)
    #: Of each name, held or not, where its newest row stands.
    _newest: dict[tuple[str, str], tuple[Tick, PubendId]] = field(default_factory=dict)

    def apply(self, pubend: PubendId, ticks: Iterable[Tick], rows: pa.RecordBatch | pa.Table) -> None:
        """Take rows of the topic."""
        for tick, row in zip(ticks, rows.to_pylist(), strict=True):
            key, place = (row["edge"], row["name"]), (int(tick), pubend)
            if place <= self._newest.get(key, (-1, PubendId(""))):
                continue
            self._newest[key] = place
            if row["held"]:
                self.held[key] = TopicId(row["topic"])
            else:
                self.held.pop(key, None)

    def at(self, edge: str) -> dict[str, TopicId]:
        """The holds of stages at one edge, each with its topic. Other names are not ours to forget."""
        return {name: topic for (at, name), topic in self.held.items() if at == edge and held_stage(name)}

    def leases(self) -> list[str]:
        """The edges at which a pipeline may run, in order of arrival."""
        found = [key for key in self.held if key[1] == LEASE]
        return [edge for edge, _ in sorted(found, key=lambda key: self._newest[key])]


def held_stage(name: str) -> str | None:
    """The stage for which a name holds the log; None when it is not such a name.

    >>> held_stage("gapless.views.36f7880d5b94.0"), held_stage("desk-3")
    ('36f7880d5b94', None)
    """
    found = _HOLD.fullmatch(name)
    return None if found is None else found[1]


def hold_rows(edge: str, names: Mapping[str, TopicId], *, held: bool) -> dict[str, list[object]]:
    """The rows that record whether names may exist."""
    return {
        "edge": [edge] * len(names),
        "name": list(names),
        "topic": list(names.values()),
        "held": [held] * len(names),
    }


def definition_rows(definition: Definition) -> dict[str, list[object]]:
    """The row that creates a view, as it is published to the registry."""
    return {
        "name": [definition.name],
        "sql": [definition.sql],
        "topic": [definition.topic],
        "made": [definition.made],
    }


def dropping_rows(name: str) -> dict[str, list[object]]:
    """The row that drops a view, as it is published to the registry."""
    return {"name": [name], "sql": [None], "topic": [None], "made": [None]}


def status_rows(statuses: Iterable[Status]) -> dict[str, list[object]]:
    """What the pipeline publishes to the status topic."""
    columns: dict[str, list[object]] = {column: [] for column in STATUS_COLUMNS}
    for each in statuses:
        assert each.state in STATES, f"view '{each.name}' is {each.state!r}"
        for column in STATUS_COLUMNS:
            columns[column].append(getattr(each, column))
    return columns


def statuses_of(rows: pa.RecordBatch | pa.Table) -> list[Status]:
    """The states in rows of the status topic, in their order."""
    return [
        Status(**{**row, "topic": TopicId(row["topic"] or ""), "message": row["message"] or ""})
        for row in rows.select(list(STATUS_COLUMNS)).to_pylist()
    ]


def stamp_of(stamps: Iterable[int]) -> int:
    """The stamp of a state: the sum of the stamps of its rows, wrapping at 64 bits.

    >>> stamp_of([2**63 - 1, 1]) == -(2**63)
    True
    """
    return (sum(stamps) + 2**63) % 2**64 - 2**63
