"""What do the checkers know of a network beforehand? Plain names, and which edges are behind a link."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the checkers know of a network beforehand, as plain names and numbers."""

    #: The topic of each pubend.
    topic_of: Mapping[str, str]
    #: The cell that each pubend lives in.
    root_of: Mapping[str, str]
    cell_of: Mapping[str, str]
    #: Pairs of linked cells, which form a tree.
    links: Sequence[tuple[str, str]]
    edges: frozenset[str]
    #: How many bytes of rows, and how many runs, each broker may hold.
    row_bytes_max: Mapping[str, int]
    runs_max: Mapping[str, int]


class Below:
    """Which edges are behind a link, seen from a root? In a tree: all that cannot be reached without it."""

    def __init__(self, plan: Plan) -> None:
        self._near: dict[str, list[str]] = {cell: [] for cell in plan.cell_of.values()}
        for one, other in plan.links:
            self._near[one].append(other)
            self._near[other].append(one)
        self._edges: dict[str, list[str]] = {}
        for edge in sorted(plan.edges):
            self._edges.setdefault(plan.cell_of[edge], []).append(edge)
        self._known: dict[tuple[str, str, str], frozenset[str] | None] = {}

    def edges(self, root: str, here: str, there: str) -> frozenset[str] | None:
        """The edges at and behind the neighbour cell `there`; None when it is not below `here`."""
        key = (root, here, there)
        if key not in self._known:
            self._known[key] = self._found(root, here, there)
        return self._known[key]

    def _found(self, root: str, here: str, there: str) -> frozenset[str] | None:
        if there not in self._near[here]:
            return None
        behind = [there]
        for cell in behind:  # grows while we walk it
            behind += [near for near in self._near[cell] if near != here and near not in behind]
        if root in behind:
            return None
        return frozenset(self._edges_of(behind))

    def _edges_of(self, cells: Iterable[str]) -> Iterable[str]:
        for cell in cells:
            yield from self._edges.get(cell, ())
