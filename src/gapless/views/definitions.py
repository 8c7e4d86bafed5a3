"""How is a view written down, and read again? As SQL, or as the tree of a relation that a program has made.

The registry has one text for each view. A program that builds its view with the algebra has no SQL, so the
tree itself is written, as JSON; `relation_of` reads either. Texts name other views, which are put in where
they are used: `Views` gives the relation of each view by its name, and reads a text when it is asked for.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from datetime import datetime
from decimal import Decimal
from typing import Any

from gapless.errors import ViewError
from gapless.model.schema import COLUMN_TYPES, Column, Schema
from gapless.views import expressions, relation
from gapless.views.check import check
from gapless.views.parse import parse_view
from gapless.views.registry import REGISTRY_TOPIC, RELATION_PREFIX
from gapless.views.relation import Relation

#: What a tree is made of.
_NODES: dict[str, type] = {
    each.__name__: each
    for each in (
        expressions.ColumnRef,
        expressions.Literal,
        expressions.Call,
        relation.Scan,
        relation.Where,
        relation.Project,
        relation.Merge,
        relation.Aggregate,
        relation.GroupBy,
        relation.Join,
        relation.TopK,
        Column,
    )
}
_RELATIONS = (
    relation.Scan | relation.Where | relation.Project | relation.Merge | relation.GroupBy | relation.Join
) | relation.TopK


def base_topics(topics: Mapping[str, Schema]) -> dict[str, Schema]:
    """The topics that views are made of: all but those of views themselves."""
    own = (REGISTRY_TOPIC, f"{REGISTRY_TOPIC}.", RELATION_PREFIX)
    return {
        name: schema for name, schema in topics.items() if name != REGISTRY_TOPIC and not name.startswith(own)
    }


class Views(Mapping[str, Relation]):
    """The relations of all views, by name. Raises ViewError when a text that is asked for cannot be read."""

    def __init__(self, texts: Mapping[str, str], topics: Mapping[str, Schema]) -> None:
        """`topics` are those that the texts may name."""
        self._texts = dict(texts)
        self._topics = topics
        self._known: dict[str, Relation] = {}
        self._reading: list[str] = []
        #: Which other views each one that was read names.
        self.uses: dict[str, set[str]] = {}

    def __getitem__(self, name: str) -> Relation:
        text = self._texts[name]
        if self._reading:
            self.uses[self._reading[-1]].add(name)
        if name not in self._known:
            if name in self._reading:
                raise ViewError("E169", f"view '{name}' is made of itself: {' of '.join(self._reading)}")
            self._reading.append(name)
            self.uses[name] = set()
            try:
                self._known[name] = relation_of(text, self._topics, self)
            finally:
                self._reading.pop()
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def users_of(self, name: str) -> list[str]:
        """The views that name this one. Those that cannot be read name nothing."""
        found = []
        for other in self._texts:
            try:
                self[other]
            except ViewError:
                continue
            if name in self.uses[other]:
                found.append(other)
        return sorted(found)


def relation_of(text: str, topics: Mapping[str, Schema], views: Mapping[str, Relation]) -> Relation:
    """The relation that a text of the registry describes. Raises ViewError."""
    if not text.startswith("{"):
        return parse_view(text, topics, views)
    try:
        found = _decoded(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ViewError("E165", f"what was written down is no relation: {error}") from error
    if not isinstance(found, _RELATIONS):
        raise ViewError("E165", "what was written down is no relation")
    check(found)
    return found


def text_of(made: Relation) -> str:
    """A relation as it is written down.

    >>> trades = relation.Scan("trades", (Column("price", "float"),))
    >>> relation_of(text_of(trades), {}, {}) == trades
    True
    """
    return json.dumps(_encoded(made), separators=(",", ":"))


def _encoded(value: object) -> object:
    match value:
        case None | bool() | str() | int() | float():
            return value
        case tuple():
            return [_encoded(each) for each in value]
        case Decimal():
            return {"decimal": str(value)}
        case datetime():
            return {"timestamp": value.isoformat()}
        case bytes():
            return {"binary": base64.b64encode(value).decode()}
        case _:
            kind = type(value).__name__
            assert kind in _NODES, f"{kind} is no part of a relation"
            told = {
                each.name: _encoded(getattr(value, each.name))
                for each in fields(_NODES[kind])
                if each.compare
            }
            return {"node": kind, **told}


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_decoded(each) for each in value)
    if not isinstance(value, dict):
        return value
    match value:
        case {"decimal": str(text)}:
            return Decimal(text)
        case {"timestamp": str(text)}:
            return datetime.fromisoformat(text)
        case {"binary": str(text)}:
            return base64.b64decode(text, validate=True)
    node = _NODES[value["node"]]
    made = node(**{name: _decoded(each) for name, each in value.items() if name != "node"})
    if isinstance(made, Column) and made.type not in COLUMN_TYPES:
        raise ValueError(f"there is no type {made.type!r}")
    return made
