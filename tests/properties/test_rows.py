"""Rows against a dictionary from tick to row."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gapless.model.batch import EventBatch
from gapless.model.stream import StreamRows
from gapless.model.ticks import TICK_MAX, TICK_MIN
from tests.properties.strategies import inside, spans, ticks


def batch_of(rows: dict[int, str]) -> EventBatch:
    return EventBatch.of(sorted(rows), {"text": [rows[tick] for tick in sorted(rows)]})


def rows_of(batches: list[EventBatch]) -> list[tuple[int, str]]:
    return [
        pair
        for batch in batches
        for pair in zip(batch.ticks.tolist(), batch.columns.column("text").to_pylist(), strict=True)
    ]


class RowsTwins(RuleBasedStateMachine):
    """The same calls on the rows and on a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = StreamRows()
        self.twin: dict[int, str] = {}

    @rule(drawn=st.dictionaries(ticks, st.sampled_from(["a", "b"]), max_size=8))
    def add(self, drawn: dict[int, str]) -> None:
        fresh = {tick: text for tick, text in drawn.items() if tick not in self.twin}
        self.rows.add(batch_of(fresh))
        self.twin |= fresh

    @rule(span=spans)
    def drop(self, span: tuple[int, int]) -> None:
        gone = [tick for tick in inside(span) if tick in self.twin]
        assert self.rows.drop(*span) == len(gone)
        for tick in gone:
            del self.twin[tick]

    @rule(span=spans)
    def ask_about_a_span(self, span: tuple[int, int]) -> None:
        held = [(tick, self.twin[tick]) for tick in inside(span) if tick in self.twin]
        found = self.rows.between(*span)
        assert all(len(batch) for batch in found)
        assert rows_of(found) == held
        expected = (held[0][0], held[-1][0] + 1) if held else (span[1], span[1])
        assert self.rows.span(*span) == expected
        assert self.rows.count(*span) == len(held)

    @rule(asked=st.sets(ticks, max_size=8))
    def ask_about_ticks(self, asked: set[int]) -> None:
        batch = batch_of(dict.fromkeys(asked, "?"))
        assert self.rows.has(batch).tolist() == [tick in self.twin for tick in sorted(asked)]

    @invariant()
    def both_hold_the_same(self) -> None:
        everything = self.rows.between(TICK_MIN, TICK_MAX)
        assert rows_of(everything) == sorted(self.twin.items())
        assert self.rows.rows == len(self.twin)
        assert self.rows.nbytes == sum(batch.nbytes for batch in everything)
        assert self.rows.first == min(self.twin, default=None)
        if self.twin:
            assert self.rows.lowest()[0] == min(self.twin)
            assert self.rows.highest()[1] == max(self.twin) + 1

    @invariant()
    def chunks_never_overlap(self) -> None:
        everything = self.rows.between(TICK_MIN, TICK_MAX)
        ends = [end for batch in everything for end in (batch.first, batch.last + 1)]
        assert ends == sorted(ends)


TestRowsTwins = RowsTwins.TestCase
TestRowsTwins.settings = settings(stateful_step_count=20)


def test_a_span_the_wrong_way_round_drops_nothing() -> None:
    rows = StreamRows()
    rows.add(batch_of(dict.fromkeys(range(10), "a")))
    assert rows.drop(7, 3) == 0
    assert rows_of(rows.between(0, 10)) == [(tick, "a") for tick in range(10)]
