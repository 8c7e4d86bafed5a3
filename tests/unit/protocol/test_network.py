"""Networks: the paper's Figure 3, and every way to describe a network wrongly."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from gapless.errors import GaplessError, NetworkDescriptionError, ParameterError, SchemaError
from gapless.protocol.network import Network, PubendPlace

#: One pubend hosting broker, two intermediate cells of two brokers, five subend hosting brokers.
FIGURE_3 = """
links = ["p1--IB1", "p1--IB2", "IB1--s1", "IB1--s2", "IB2--s3", "IB2--s4", "IB2--s5"]
edges = ["s1", "s2", "s3", "s4", "s5"]

[cells]
p1 = ["p1"]
IB1 = ["b1", "b2"]
IB2 = ["b4", "b3"]
s1 = ["s1"]
s2 = ["s2"]
s3 = ["s3"]
s4 = ["s4"]
s5 = ["s5"]

[topics.trades]
symbol = "string"
price = "float?"

[pubends]
P1 = {topic = "trades", broker = "p1"}
P2 = {topic = "trades", broker = "p1"}

[parameters]
gap_curiosity_ms = 250
"""


@pytest.fixture(scope="module")
def figure_3() -> Network:
    return Network.load(FIGURE_3)


def test_a_description_gives_cells_topics_pubends_edges_and_parameters(figure_3: Network) -> None:
    assert figure_3.cells["IB2"] == ("b3", "b4")
    assert figure_3.links[:2] == (("p1", "IB1"), ("p1", "IB2"))
    assert [column.name for column in figure_3.topics["trades"].columns] == ["symbol", "price"]
    assert figure_3.pubends["P2"] == PubendPlace("P2", "trades", "p1")
    assert figure_3.edges == {"s1", "s2", "s3", "s4", "s5"}
    assert figure_3.parameters.gap_curiosity_ms == 250
    assert figure_3.parameters.ack_expected_ms == 10_000


def test_every_broker_belongs_to_one_cell(figure_3: Network) -> None:
    assert figure_3.cell_of == {
        "p1": "p1",
        "b1": "IB1",
        "b2": "IB1",
        "b3": "IB2",
        "b4": "IB2",
        "s1": "s1",
        "s2": "s2",
        "s3": "s3",
        "s4": "s4",
        "s5": "s5",
    }


def test_a_virtual_link_connects_all_brokers_of_one_cell_with_all_of_the_other(figure_3: Network) -> None:
    assert figure_3.neighbours("p1") == ("b1", "b2", "b3", "b4")
    assert figure_3.neighbours("b1") == ("b2", "p1", "s1", "s2")
    assert figure_3.neighbours("b3") == ("b4", "p1", "s3", "s4", "s5")
    assert figure_3.neighbours("s2") == ("b1", "b2")
    assert figure_3.siblings("b1") == ("b2",)
    assert figure_3.siblings("p1") == ()


def test_every_connection_is_listed_once(figure_3: Network) -> None:
    bundles = [
        ("p1", "b1 b2 b3 b4"),
        ("b1", "s1 s2"),
        ("b2", "s1 s2"),
        ("b3", "s3 s4 s5"),
        ("b4", "s3 s4 s5"),
    ]
    expected = {tuple(sorted((one, other))) for one, others in bundles for other in others.split()}
    assert figure_3.connections() == tuple(sorted(expected | {("b1", "b2"), ("b3", "b4")}))


def test_the_tree_of_the_pubends_grows_from_their_cell(figure_3: Network) -> None:
    assert list(figure_3.trees) == ["p1"]
    tree = figure_3.tree_of("P1")
    assert tree.root == figure_3.root_of("P1") == "p1"
    assert tree.parent == {
        "IB1": "p1",
        "IB2": "p1",
        "s1": "IB1",
        "s2": "IB1",
        "s3": "IB2",
        "s4": "IB2",
        "s5": "IB2",
    }
    assert tree.children["p1"] == ("IB1", "IB2")
    assert tree.children["IB2"] == ("s3", "s4", "s5")
    assert tree.children["s1"] == ()
    assert tree.edges["p1"] == figure_3.edges
    assert tree.edges["IB1"] == {"s1", "s2"}
    assert tree.edges["s4"] == {"s4"}


@pytest.mark.parametrize(
    ("cell", "target", "child"),
    [
        ("p1", "s4", "IB2"),
        ("p1", "IB1", "IB1"),
        ("IB1", "s2", "s2"),
        ("IB1", "s4", None),
        ("s1", "p1", None),
        ("IB1", "IB1", None),
        ("p1", "p1", None),
    ],
)
def test_the_way_towards_a_cell_is_a_child_or_none(
    figure_3: Network, cell: str, target: str, child: str | None
) -> None:
    assert figure_3.tree_of("P1").towards(cell, target) == child


def test_the_pubends_of_a_topic_are_sorted(figure_3: Network) -> None:
    assert figure_3.pubends_of("trades") == ("P1", "P2")
    assert figure_3.pubends_of("unheard") == ()


def test_each_cell_with_pubends_has_its_own_tree_of_shortest_paths() -> None:
    network = Network.parse(
        {
            "cells": {"a": ["a1"], "b": ["b1"], "c": ["c1"], "d": ["d1"]},
            "links": ["a--b", "b--c", "c--d", "d--a"],
            "topics": {"t": {"x": "int"}},
            "pubends": {
                "A": {"topic": "t", "broker": "a1"},
                "C": {"topic": "t", "broker": "c1"},
            },
        }
    )
    assert list(network.trees) == ["a", "c"]
    assert network.tree_of("A").parent == {"b": "a", "d": "a", "c": "b"}
    assert network.tree_of("C").parent == {"b": "c", "d": "c", "a": "b"}
    assert network.tree_of("A").edges["b"] == {"b1", "c1"}


def test_the_brokers_alone_in_their_cells_are_the_edges_unless_said_otherwise() -> None:
    description = {"cells": {"a": ["a1"], "b": ["b1", "b2"]}, "links": ["a--b"]}
    assert Network.parse(description).edges == {"a1"}
    assert Network.parse(description | {"edges": []}).edges == frozenset()


def test_a_single_broker_is_a_network() -> None:
    network = Network.load('[cells]\nonly = ["one"]')
    assert network.neighbours("one") == ()
    assert network.connections() == ()
    assert network.trees == {}


GOOD: dict[str, Any] = {
    "cells": {"p": ["p1"], "m": ["m1", "m2"], "s": ["s1"]},
    "links": ["p--m", "m--s"],
    "topics": {"t": {"x": "int"}},
    "pubends": {"P": {"topic": "t", "broker": "p1"}},
    "edges": ["s1"],
    "parameters": {"ack_delay_ms": 10},
}


def put(*path_and_value: Any) -> Callable[[dict[str, Any]], None]:
    """A change that puts the last argument at the place that the others lead to."""
    *path, last, value = path_and_value

    def change(description: dict[str, Any]) -> None:
        at = description
        for key in path:
            at = at[key]
        at[last] = value

    return change


def without(section: str) -> Callable[[dict[str, Any]], None]:
    return lambda description: description.pop(section)


WRONG: list[tuple[Callable[[dict[str, Any]], None], str]] = [
    # Sections and their shape.
    (
        put("cell", {}),
        "'cell': unknown section: there are cells, links, topics, pubends, edges, repositories, parameters",
    ),
    (put("two\nlines", {}), r"'two\nlines': unknown section: "),
    (put("cells", ["p1"]), "cells: must be a table, got ['p1']"),
    (put("topics", "t"), "topics: must be a table, got 't'"),
    (put("pubends", 3), "pubends: must be a table, got 3"),
    (put("parameters", []), "parameters: must be a table, got []"),
    (put("links", {"p": "m"}), "links: must be a list of names, got {'p': 'm'}"),
    (put("links", "p--m"), "links: must be a list of names, got 'p--m'"),
    (put("edges", "s1"), "edges: must be a list of names, got 's1'"),
    # Cells and brokers.
    (without("cells"), "cells: a network needs at least one cell"),
    (put("cells", {}), "cells: a network needs at least one cell"),
    (put("cells", "p", []), "cells.p: a cell needs at least one broker"),
    (put("cells", "p", "p1"), "cells.p: must be a list of names, got 'p1'"),
    (put("cells", "p", [1]), "cells.p: must be a list of names, got [1]"),
    (put("cells", "p", list(range(1000))), "cells.p: must be a list of names, got [0, 1, 2, 3, "),
    (put("cells", "s", ["m1"]), "cells.s: broker 'm1' is already in cell 'm'"),
    (put("cells", "m", ["m1", "m1"]), "cells.m: broker 'm1' is already in cell 'm'"),
    (put("cells", "p", [""]), "cells.p: '' is not a name: use printable characters without blanks"),
    (put("cells", "p", ["p\n1"]), r"cells.p: 'p\n1' is not a name"),
    (put("cells", "a b", ["x"]), "cells: 'a b' is not a name"),
    (put("cells", "a--b", ["x"]), "cells.a--b: a cell's name cannot have '--' in it"),
    # Links.
    (put("links", 1, "m-s"), "links[1]: write it as 'cell--cell', got 'm-s'"),
    (put("links", 1, "m--x"), "links[1]: there is no cell 'x'"),
    (put("links", 1, "m -- s"), "links[1]: there is no cell 'm '"),
    (put("links", 1, "m--\n"), r"links[1]: there is no cell '\n'"),
    (put("links", 1, "m--m"), "links[1]: cell 'm' is linked to itself"),
    (put("links", ["p--m", "m--s", "m--p"]), "links[2]: cells 'm' and 'p' are linked already"),
    (put("links", ["p--m"]), "cells.s: there is no way from it to the pubends of cell 'p'"),
    # Topics.
    (put("topics", "t", "int"), "topics.t: must name columns and their types, got 'int'"),
    (put("topics", "t", {"x": 1}), "topics.t: must name columns and their types, got {'x': 1}"),
    (put("topics", "", {"x": "int"}), "topics: '' is not a name"),
    (put("topics", "t", {}), "topic 't' has no columns: name at least one"),
    (put("topics", "t", {"x": "integer"}), "topic 't': column 'x' has unknown type 'integer': use int, "),
    (put("topics", "t", {"x y": "int"}), "topic 't': 'x y' is not a column name: "),
    # Pubends.
    (put("pubends", "P", "p1"), "pubends.P: must give exactly 'topic' and 'broker', got 'p1'"),
    (put("pubends", "P", {"topic": "t"}), "pubends.P: must give exactly 'topic' and 'broker', got {'topic'"),
    (put("pubends", "P", "node", "p1"), "pubends.P: must give exactly 'topic' and 'broker', got {"),
    (put("pubends", "P", "topic", "u"), "pubends.P: there is no topic 'u'"),
    (put("pubends", "P", "topic", ["t"]), "pubends.P: 'topic' and 'broker' must be names, got {"),
    (put("pubends", "P", "broker", "x"), "pubends.P: there is no broker 'x'"),
    (put("pubends", "P", "broker", "m1"), "pubends.P: broker 'm1' must be alone in its cell to host pubends"),
    (put("pubends", "P\t", {"topic": "t", "broker": "p1"}), r"pubends: 'P\t' is not a name"),
    # Edges.
    (put("edges", ["x"]), "edges: there is no broker 'x'"),
    (put("edges", ["s1", "m2"]), "edges: broker 'm2' must be alone in its cell to host subends"),
    # Parameters.
    (put("parameters", "ack_delay", 1), "unknown parameter 'ack_delay': did you mean 'ack_delay_ms'?"),
    (put("parameters", "ack_delay_ms", 0), "parameter 'ack_delay_ms' must be from 1 to "),
    (put("parameters", "ack_delay_ms", "1s"), "parameter 'ack_delay_ms' must be a whole number, got '1s'"),
]


def test_the_description_that_is_broken_below_is_good() -> None:
    assert Network.parse(GOOD).edges == {"s1"}


@pytest.mark.parametrize(("change", "complaint"), WRONG, ids=[complaint[:40] for _, complaint in WRONG])
def test_a_wrong_description_is_refused_with_one_line_that_names_the_place(
    change: Callable[[dict[str, Any]], None], complaint: str
) -> None:
    description = copy.deepcopy(GOOD)
    change(description)
    given = copy.deepcopy(description)
    with pytest.raises(GaplessError) as caught:
        Network.parse(description)
    assert caught.value.message.startswith(complaint)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 300
    assert description == given, "the description was changed"
    if isinstance(caught.value, NetworkDescriptionError):
        assert caught.value.code == "E131"


@pytest.mark.parametrize(
    "text",
    [
        "cells = ",
        "[cells",
        "a = 1\na = 2",
        f"a = {'1' * 5000}",
        f"a = {'[' * 5000}",
        "a = 1979-13-01",
        "\x00",
    ],
    ids=["no value", "no bracket", "twice", "long number", "deep", "no such day", "no text"],
)
def test_what_is_not_toml_is_refused_with_one_line_that_names_the_file(text: str) -> None:
    with pytest.raises(NetworkDescriptionError) as caught:
        Network.load(text, "net.toml")
    assert caught.value.code == "E130"
    assert caught.value.message.startswith("net.toml: not TOML: ")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("more", "kind", "complaint"),
    [
        ("[pubends.P]", NetworkDescriptionError, "E131 net.toml: pubends.P: must give exactly "),
        ("[topics.t]\nx = 'money'", SchemaError, "E110 net.toml: topic 't': column 'x' has unknown type "),
        ("[parameters]\nack_delay_ms = 0", ParameterError, "E121 net.toml: parameter 'ack_delay_ms' must "),
    ],
)
def test_an_error_in_a_file_names_the_file(more: str, kind: type[GaplessError], complaint: str) -> None:
    with pytest.raises(kind) as caught:
        Network.load(f"[cells]\na = ['a1']\n{more}\n", "net.toml")
    assert str(caught.value).startswith(complaint)
