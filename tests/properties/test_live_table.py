"""A live table holds what a dictionary would, however its rows are cut into batches."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from gapless.client.table import RelationState, between
from gapless.content.language import parse_condition
from gapless.model.ids import TopicId
from gapless.model.schema import Schema
from gapless.views.registry import AS_OF, GONE, KEY, KIND, MARKER, SHOWN, STAMP, as_of_text, stamp_of

SCHEMA = Schema.parse(
    TopicId("view.v"),
    {KIND: "int", AS_OF: "string?", KEY: "string?", STAMP: "int?", "item": "string?", "total": "int?"},
)
OWN = Schema(SCHEMA.topic, SCHEMA.columns[4:])

changes = st.lists(st.tuples(st.integers(0, 7), st.one_of(st.none(), st.integers(0, 20))), max_size=8)
stories = st.lists(changes, max_size=8)


def told(stories: list[list[tuple[int, int | None]]]) -> tuple[list[dict[str, Any]], list[dict[int, int]]]:
    """The rows of a relation, and what is shown after each marker."""
    rows: list[dict[str, Any]] = []
    shown: dict[int, tuple[int, int]] = {}
    states: list[dict[int, int]] = []
    for number, story in enumerate(stories, start=1):
        for key, total in story:
            stamp = len(rows) * 2**61 + 7
            stamp = stamp_of([stamp])
            if total is None:
                shown.pop(key, None)
                rows.append({KIND: GONE, KEY: f"[{key}]"})
            else:
                shown[key] = (total, stamp)
                rows.append({KIND: SHOWN, KEY: f"[{key}]", STAMP: stamp, "item": f"i{key}", "total": total})
        marker = {TopicId("sales"): {"p": number}}
        rows.append({KIND: MARKER, AS_OF: as_of_text(marker), STAMP: stamp_of(s for _, s in shown.values())})  # type: ignore[arg-type]
        states.append({key: total for key, (total, _) in shown.items()})
    return rows, states


def batches(rows: list[dict[str, Any]], cuts: list[int]) -> list[pa.RecordBatch]:
    whole = pa.RecordBatch.from_pylist(rows, schema=SCHEMA.arrow())
    places = sorted({0, len(rows), *(cut % (len(rows) + 1) for cut in cuts)})
    return [whole.slice(low, high - low) for low, high in pairwise(places)]


def rows_of(table: pa.Table) -> list[tuple[str, int]]:
    return sorted((row["item"], row["total"]) for row in table.to_pylist())


@given(stories, st.lists(st.integers(0, 100), max_size=6))
@settings(deadline=None)
def test_a_table_is_a_dictionary(story: list[list[tuple[int, int | None]]], cuts: list[int]) -> None:
    rows, states = told(story)
    table = RelationState(SCHEMA)
    seen = table.shown
    held: list[tuple[str, int]] = []
    for batch in batches(rows, cuts):
        before = table.shown.number
        assert table.take(batch) == (table.shown.number > before)
        change = between(seen, table.shown)
        for row in rows_of(change.removed):
            held.remove(row)
        held = sorted(held + rows_of(change.added))
        seen = table.shown
        assert held == rows_of(seen.to_arrow())
        if seen.number:
            wanted = states[seen.number - 1]
            assert held == sorted((f"i{key}", total) for key, total in wanted.items())
            assert seen.horizons == {"p": seen.number}
    assert seen.number == len(states)


@given(stories, st.integers(0, 20))
@settings(deadline=None)
def test_a_part_of_a_table_is_what_the_condition_accepts(
    story: list[list[tuple[int, int | None]]], bound: int
) -> None:
    rows, states = told(story)
    table = RelationState(SCHEMA, parse_condition(f"total < {bound}", OWN))
    for batch in batches(rows, []):
        table.take(batch)
    wanted = states[-1] if states else {}
    assert rows_of(table.shown.to_arrow()) == sorted(
        (f"i{key}", total) for key, total in wanted.items() if total < bound
    )


@given(stories, st.sets(st.integers(0, 60), min_size=1, max_size=4))
@settings(deadline=None)
def test_a_table_that_was_not_given_every_row_never_shows_another_state(
    story: list[list[tuple[int, int | None]]], lost: set[int]
) -> None:
    rows, states = told(story)
    left = [row for at, row in enumerate(rows) if row[KIND] == MARKER or at not in lost]
    table = RelationState(SCHEMA)
    for batch in batches(left, list(range(len(left)))):
        table.take(batch)
        if table.shown.number:
            [tick] = table.shown.horizons.values()
            wanted = states[tick - 1]
            assert rows_of(table.shown.to_arrow()) == sorted((f"i{k}", total) for k, total in wanted.items())
