"""Who is connected to whom, and which way is up? The description of a network, validated as a whole.

Brokers form cells; cells are joined by virtual links, and a virtual link is a bundle of connections
between all brokers of the one and all brokers of the other cell. Brokers of one cell are connected
with each other too. Every cell that hosts pubends is the root of a spanning tree: knowledge flows
down from it, curiosity and subscriptions flow up.

Topics may be created while the network runs: `Network.extended` gives the larger network.

Implements docs/protocol.md, sections 5, 9 and 12.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from gapless.errors import GaplessError, NetworkDescriptionError
from gapless.model.ids import BrokerId, CellId, PubendId, TopicId
from gapless.model.schema import Schema
from gapless.protocol.creations import Creation, columns_text, digest, oldest
from gapless.protocol.parameters import Parameters


@dataclass(frozen=True, slots=True)
class PubendPlace:
    """Where a pubend lives and what it carries."""

    pubend: PubendId
    topic: TopicId
    broker: BrokerId


@dataclass(frozen=True, slots=True)
class Tree:
    """The spanning tree of one root: for each cell the way up and the ways down."""

    root: CellId
    parent: Mapping[CellId, CellId]
    children: Mapping[CellId, tuple[CellId, ...]]
    #: For each cell the edges (brokers with subends) in it and below it.
    edges: Mapping[CellId, frozenset[BrokerId]]

    def towards(self, cell: CellId, target: CellId) -> CellId | None:
        """The child of `cell` whose subtree holds `target`, None when it is not below."""
        at = target
        while at != self.root:
            above = self.parent[at]
            if above == cell:
                return at
            at = above
        return None


@dataclass(frozen=True)
class Network:
    """One network. Immutable; build it with `Network.parse` or `Network.load`, which check all of it."""

    cells: Mapping[CellId, tuple[BrokerId, ...]]
    links: tuple[tuple[CellId, CellId], ...]
    topics: Mapping[TopicId, Schema]
    pubends: Mapping[PubendId, PubendPlace]
    #: The brokers that may host subends.
    edges: frozenset[BrokerId]
    parameters: Parameters = field(default_factory=Parameters)
    #: The brokers that take the pubends of topics that are created while the network runs.
    repositories: frozenset[BrokerId] = frozenset()
    #: What was created since, as far as it is known; what contradicts the rest is not in use.
    created: frozenset[Creation] = frozenset()
    #: The network as it was described; None when nothing was created since.
    described: Network | None = None

    @staticmethod
    def load(text: str, name: str = "network") -> Network:
        """A network from the text of a TOML file called `name`.

        Raises NetworkDescriptionError, or SchemaError or ParameterError for those parts, naming the place.

        >>> network = Network.load('cells = {p = ["p1"], s = ["s1"]}\\nlinks = ["p--s"]')
        >>> network.neighbours(BrokerId("p1"))
        ('s1',)
        """
        try:
            description = tomllib.loads(text)
        # A number of thousands of digits is a plain ValueError, and so is TOMLDecodeError.
        except (ValueError, RecursionError) as error:
            raise NetworkDescriptionError("E130", f"{name}: not TOML: {error}") from error
        try:
            return Network.parse(description)
        except GaplessError as error:
            raise type(error)(error.code, f"{name}: {error.message}") from error

    @staticmethod
    def parse(description: Mapping[str, object]) -> Network:
        """A network from plain dictionaries. Raises as `load` does."""
        return _parsed(description)

    def extended(self, creations: Iterable[Creation]) -> Network:
        """This network with what was created since.

        Whatever is in use stays in use. Of the rest, older creations come first, and one that contradicts
        what is there already is set aside. So a network that is described and extended once by a whole set
        is the same everywhere; and if nothing is contradictory, so is one that grew step by step.
        """
        created = oldest(self.created.union(creations))
        if created == self.created:
            return self
        topics, pubends = dict(self.topics), dict(self.pubends)
        for each in sorted(created - self.created, key=lambda each: each.age):
            if self._objection(each, topics, pubends) is None:
                topics[each.topic] = each.schema
                pubends[each.pubend] = PubendPlace(each.pubend, each.topic, each.broker)
        return replace(
            self, topics=topics, pubends=pubends, created=created, described=self.described or self
        )

    def objection(self, creation: Creation) -> str | None:
        """Why a creation cannot be in use here; None when it can."""
        return self._objection(creation, self.topics, self.pubends)

    @property
    def set_aside(self) -> tuple[Creation, ...]:
        """The creations that contradict what is in use, oldest first."""
        found = [each for each in self.created if self.objection(each) is not None]
        return tuple(sorted(found, key=lambda each: each.age))

    @cached_property
    def created_digest(self) -> int:
        """The same number at all brokers that know the same creations."""
        return digest(self.created)

    @cached_property
    def created_topics(self) -> frozenset[TopicId]:
        """The topics that are not in the description."""
        return frozenset() if self.described is None else frozenset(self.topics) - set(self.described.topics)

    def _objection(
        self, creation: Creation, topics: Mapping[TopicId, Schema], pubends: Mapping[PubendId, PubendPlace]
    ) -> str | None:
        topic, broker = creation.topic, creation.broker
        cell = self.cell_of.get(broker)
        if cell is None:
            return f"there is no broker '{broker}'"
        if len(self.cells[cell]) > 1:
            return f"broker '{broker}' must be alone in its cell to host pubends"
        if len(_tree(self, cell).edges) < len(self.cells):
            return f"there are cells without a way to broker '{broker}'"
        schema = topics.get(topic, creation.schema)
        if schema != creation.schema:
            there, asked = columns_text(schema), columns_text(creation.schema)
            return f"topic '{topic}' has the columns {there} already, and not {asked}"
        place = pubends.get(creation.pubend)
        if place is not None and (place.topic, place.broker) != (topic, broker):
            return f"there is a pubend '{creation.pubend}' already, of topic '{place.topic}'"
        return None

    @cached_property
    def cell_of(self) -> Mapping[BrokerId, CellId]:
        """The cell of every broker."""
        return {broker: cell for cell, brokers in self.cells.items() for broker in brokers}

    @cached_property
    def trees(self) -> Mapping[CellId, Tree]:
        """The spanning tree of every cell that hosts a pubend."""
        roots = {self.cell_of[place.broker] for place in self.pubends.values()}
        return {root: _tree(self, root) for root in sorted(roots)}

    @cached_property
    def adjacent(self) -> Mapping[CellId, tuple[CellId, ...]]:
        """The cells that share a virtual link with each cell, sorted."""
        found: dict[CellId, set[CellId]] = {cell: set() for cell in self.cells}
        for one, other in self.links:
            found[one].add(other)
            found[other].add(one)
        return {cell: tuple(sorted(near)) for cell, near in found.items()}

    def root_of(self, pubend: PubendId) -> CellId:
        """The cell that a pubend's tree grows from."""
        return self.cell_of[self.pubends[pubend].broker]

    def tree_of(self, pubend: PubendId) -> Tree:
        """The spanning tree that a pubend's knowledge flows down."""
        return self.trees[self.root_of(pubend)]

    def pubends_of(self, topic: TopicId) -> tuple[PubendId, ...]:
        """The pubends that feed a topic, sorted."""
        return self._pubends_of.get(topic, ())

    @cached_property
    def _pubends_of(self) -> Mapping[TopicId, tuple[PubendId, ...]]:
        found: dict[TopicId, list[PubendId]] = {}
        for pubend, place in sorted(self.pubends.items()):
            found.setdefault(place.topic, []).append(pubend)
        return {topic: tuple(pubends) for topic, pubends in found.items()}

    def siblings(self, broker: BrokerId) -> tuple[BrokerId, ...]:
        """The other brokers of a broker's cell."""
        return tuple(b for b in self.cells[self.cell_of[broker]] if b != broker)

    def neighbours(self, broker: BrokerId) -> tuple[BrokerId, ...]:
        """All brokers that a broker has a connection to, sorted."""
        near = [b for cell in self.adjacent[self.cell_of[broker]] for b in self.cells[cell]]
        return tuple(sorted([*near, *self.siblings(broker)]))

    def connections(self) -> tuple[tuple[BrokerId, BrokerId], ...]:
        """Every connection once, as sorted pairs."""
        pairs = {tuple(sorted((b, n))) for b in self.cell_of for n in self.neighbours(b)}
        return tuple(sorted((one, other) for one, other in pairs))


def _tree(network: Network, root: CellId) -> Tree:
    parent: dict[CellId, CellId] = {}
    order = [root]
    for cell in order:  # breadth first: `order` grows while we walk it
        for near in network.adjacent[cell]:
            if near != root and near not in parent:
                parent[near] = cell
                order.append(near)
    children: dict[CellId, list[CellId]] = {cell: [] for cell in order}
    for cell, above in parent.items():
        children[above].append(cell)
    edges: dict[CellId, frozenset[BrokerId]] = {}
    for cell in reversed(order):
        own = frozenset(b for b in network.cells[cell] if b in network.edges)
        edges[cell] = own.union(*(edges[child] for child in children[cell]))
    return Tree(root, parent, {cell: tuple(sorted(below)) for cell, below in children.items()}, edges)


_SECTIONS = ("cells", "links", "topics", "pubends", "edges", "repositories", "parameters")


#: How much of a wrong value an error shows.
_SHOWN_CHARACTERS_MAX = 80


def _wrong(place: str, text: str) -> NetworkDescriptionError:
    return NetworkDescriptionError("E131", f"{place}: {text}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else f"{text[:_SHOWN_CHARACTERS_MAX]}..."


def is_name(value: str) -> bool:
    """Whether this can be a name: names stand in errors, in traces of one line and between blanks."""
    return bool(value) and value.isprintable() and " " not in value


def _name(value: str, place: str) -> str:
    if not is_name(value):
        raise _wrong(place, f"{_shown(value)} is not a name: use printable characters without blanks")
    return value


def _table(description: Mapping[str, object], place: str) -> Mapping[str, object]:
    value = description.get(place, {})
    if not isinstance(value, Mapping):
        raise _wrong(place, f"must be a table, got {_shown(value)}")
    return value


def _named(description: Mapping[str, object], place: str) -> Mapping[str, object]:
    table = _table(description, place)
    for name in table:
        _name(name, place)
    return table


def _strings(value: object, place: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise _wrong(place, f"must be a list of names, got {_shown(value)}")
    return tuple(value)


def _parsed(description: Mapping[str, object]) -> Network:
    for section in description:
        if section not in _SECTIONS:
            raise _wrong(_shown(section), f"unknown section: there are {', '.join(_SECTIONS)}")
    cells = _cells(_named(description, "cells"))
    brokers = {broker: cell for cell, members in cells.items() for broker in members}
    links = _links(_strings(description.get("links", []), "links"), cells)
    topics = {
        TopicId(name): Schema.parse(TopicId(name), _columns(name, columns))
        for name, columns in _named(description, "topics").items()
    }
    pubends = {
        PubendId(name): _pubend(name, place, topics, brokers)
        for name, place in _named(description, "pubends").items()
    }
    edges = _edges(description, cells, brokers)
    network = Network(
        cells=cells,
        links=links,
        topics=topics,
        pubends=pubends,
        edges=edges,
        parameters=Parameters.parse(_table(description, "parameters")),
        repositories=_repositories(description, cells, brokers, pubends),
    )
    _check_shape(network)
    return network


def _cells(table: Mapping[str, object]) -> dict[CellId, tuple[BrokerId, ...]]:
    if not table:
        raise _wrong("cells", "a network needs at least one cell")
    cells: dict[CellId, tuple[BrokerId, ...]] = {}
    seen: dict[str, str] = {}
    for name, members in table.items():
        if "--" in name:
            raise _wrong(
                f"cells.{name}", "a cell's name cannot have '--' in it: that is how links are written"
            )
        brokers = _strings(members, f"cells.{name}")
        if not brokers:
            raise _wrong(f"cells.{name}", "a cell needs at least one broker")
        for broker in brokers:
            _name(broker, f"cells.{name}")
            if broker in seen:
                raise _wrong(f"cells.{name}", f"broker '{broker}' is already in cell '{seen[broker]}'")
            seen[broker] = name
        cells[CellId(name)] = tuple(BrokerId(broker) for broker in sorted(brokers))
    return cells


def _links(
    texts: tuple[str, ...], cells: Mapping[CellId, tuple[BrokerId, ...]]
) -> tuple[tuple[CellId, CellId], ...]:
    links: list[tuple[CellId, CellId]] = []
    seen: set[frozenset[str]] = set()
    for at, text in enumerate(texts):
        one, dash, other = text.partition("--")
        if not dash:
            raise _wrong(f"links[{at}]", f"write it as 'cell--cell', got {_shown(text)}")
        for cell in (one, other):
            if CellId(cell) not in cells:
                raise _wrong(f"links[{at}]", f"there is no cell {_shown(cell)}")
        if one == other:
            raise _wrong(f"links[{at}]", f"cell '{one}' is linked to itself")
        if frozenset((one, other)) in seen:
            raise _wrong(f"links[{at}]", f"cells '{one}' and '{other}' are linked already")
        seen.add(frozenset((one, other)))
        links.append((CellId(one), CellId(other)))
    return tuple(links)


def _columns(topic: str, value: object) -> Mapping[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(kind, str) for kind in value.values()):
        raise _wrong(f"topics.{topic}", f"must name columns and their types, got {_shown(value)}")
    return value


def _pubend(
    name: str, value: object, topics: Mapping[TopicId, Schema], brokers: Mapping[BrokerId, CellId]
) -> PubendPlace:
    place = f"pubends.{name}"
    if not isinstance(value, Mapping) or set(value) != {"topic", "broker"}:
        raise _wrong(place, f"must give exactly 'topic' and 'broker', got {_shown(value)}")
    topic, broker = value["topic"], value["broker"]
    if not isinstance(topic, str) or not isinstance(broker, str):
        raise _wrong(place, f"'topic' and 'broker' must be names, got {_shown(value)}")
    if TopicId(topic) not in topics:
        raise _wrong(place, f"there is no topic {_shown(topic)}")
    if BrokerId(broker) not in brokers:
        raise _wrong(place, f"there is no broker {_shown(broker)}")
    return PubendPlace(PubendId(name), TopicId(topic), BrokerId(broker))


def _edges(
    description: Mapping[str, object],
    cells: Mapping[CellId, tuple[BrokerId, ...]],
    brokers: Mapping[BrokerId, CellId],
) -> frozenset[BrokerId]:
    if "edges" not in description:
        return frozenset(members[0] for members in cells.values() if len(members) == 1)
    edges = frozenset(BrokerId(name) for name in _strings(description["edges"], "edges"))
    for broker in sorted(edges):
        if broker not in brokers:
            raise _wrong("edges", f"there is no broker {_shown(broker)}")
    return edges


def _repositories(
    description: Mapping[str, object],
    cells: Mapping[CellId, tuple[BrokerId, ...]],
    brokers: Mapping[BrokerId, CellId],
    pubends: Mapping[PubendId, PubendPlace],
) -> frozenset[BrokerId]:
    """Who takes new topics: whom the description names, else who hosts pubends, else who could."""
    alone = frozenset(members[0] for members in cells.values() if len(members) == 1)
    if "repositories" not in description:
        return frozenset(place.broker for place in pubends.values()) or alone
    named = frozenset(map(BrokerId, _strings(description["repositories"], "repositories")))
    for broker in sorted(named):
        if broker not in brokers:
            raise _wrong("repositories", f"there is no broker {_shown(broker)}")
        if broker not in alone:
            raise _wrong("repositories", f"broker '{broker}' must be alone in its cell to host pubends")
    return named


def _check_shape(network: Network) -> None:
    for place in network.pubends.values():
        if len(network.cells[network.cell_of[place.broker]]) > 1:
            where = f"pubends.{place.pubend}"
            raise _wrong(where, f"broker '{place.broker}' must be alone in its cell to host pubends")
    for edge in sorted(network.edges):
        if len(network.cells[network.cell_of[edge]]) > 1:
            raise _wrong("edges", f"broker '{edge}' must be alone in its cell to host subends")
    for root, tree in network.trees.items():
        for cell in network.cells:
            if cell not in tree.edges:
                raise _wrong(f"cells.{cell}", f"there is no way from it to the pubends of cell '{root}'")
