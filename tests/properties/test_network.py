"""Spanning trees of random networks against distances found the slow way."""

from itertools import combinations, product

from hypothesis import given
from hypothesis import strategies as st

from gapless.protocol.network import Network


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """A connected network of single brokers, any of which may host pubends."""
    size = draw(st.integers(1, 7))
    cells = [f"c{n}" for n in range(size)]
    links = {(draw(st.integers(0, n - 1)), n) for n in range(1, size)}
    if size > 2:
        links |= draw(st.sets(st.sampled_from(list(combinations(range(size), 2))), max_size=5))
    hosts = draw(st.sets(st.sampled_from(cells), min_size=1))
    return Network.parse(
        {
            "cells": {cell: [cell.upper()] for cell in cells},
            "links": [f"{cells[one]}--{cells[other]}" for one, other in sorted(links)],
            "topics": {"t": {"x": "int"}},
            "pubends": {f"P{cell}": {"topic": "t", "broker": cell.upper()} for cell in sorted(hosts)},
            "edges": sorted(draw(st.sets(st.sampled_from([cell.upper() for cell in cells])))),
        }
    )


def distances(network: Network) -> dict[tuple[str, str], int]:
    far = len(network.cells)
    found = {(a, b): 0 if a == b else far for a, b in product(network.cells, repeat=2)}
    for one, other in network.links:
        found[one, other] = found[other, one] = 1
    for via, a, b in product(network.cells, repeat=3):
        found[a, b] = min(found[a, b], found[a, via] + found[via, b])
    return found


@given(networks())
def test_every_tree_leads_each_cell_one_link_nearer_to_its_root(network: Network) -> None:
    steps = distances(network)
    for root, tree in network.trees.items():
        assert tree.parent.keys() == network.cells.keys() - {root}
        for cell, above in tree.parent.items():
            assert above in network.adjacent[cell]
            assert steps[above, root] == steps[cell, root] - 1
            assert cell in tree.children[above]
        assert sum(len(below) for below in tree.children.values()) == len(tree.parent)


@given(networks())
def test_the_edges_below_a_cell_and_the_ways_to_them_agree(network: Network) -> None:
    for tree in network.trees.values():

        def below(cell: str, tree=tree) -> set[str]:
            return {cell}.union(*(below(child) for child in tree.children[cell]))

        for cell in network.cells:
            assert tree.edges[cell] == {c.upper() for c in below(cell)} & network.edges
            for target in network.cells:
                ways = [child for child in tree.children[cell] if target in below(child)]
                assert tree.towards(cell, target) == (ways[0] if ways else None)


@given(networks())
def test_neighbours_and_connections_agree(network: Network) -> None:
    pairs = network.connections()
    assert len(set(pairs)) == len(pairs) == len(network.links)
    for one, other in pairs:
        assert one < other
        assert other in network.neighbours(one)
        assert one in network.neighbours(other)
    assert sum(len(network.neighbours(broker)) for broker in network.cell_of) == 2 * len(pairs)
