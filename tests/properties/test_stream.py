"""KnowledgeStream against one stamp and one row per tick, and against the lattice of the papers."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gapless.model.batch import EventBatch
from gapless.model.epochs import ALWAYS, Epochs
from gapless.model.stream import KnowledgeStream, Run
from gapless.model.ticks import TICK_MAX, TICK_MIN
from tests.properties.lattices import Knowledge
from tests.properties.strategies import DOMAIN, EDGES, inside, spans, stamps, ticks

Rows = dict[int, str]

texts = st.sampled_from(["a", "b", "c"])
drawn_rows = st.dictionaries(ticks, texts, max_size=10)
drawn_runs = st.lists(st.tuples(spans, stamps), max_size=4)


def batch_of(rows: Rows) -> EventBatch | None:
    return EventBatch.of(sorted(rows), {"text": [rows[tick] for tick in sorted(rows)]}) if rows else None


def rows_of(batch: EventBatch | None) -> Rows:
    if batch is None:
        return {}
    return dict(zip(batch.ticks.tolist(), batch.columns.column("text").to_pylist(), strict=True))


def runs_of(drawn: list[tuple[tuple[int, int], Epochs]]) -> list[Run]:
    return [(start, stop, stamp) for (start, stop), stamp in drawn]


def says(runs: list[Run]) -> list[tuple[int, Epochs]]:
    """Every statement of the runs: this tick is known under that stamp."""
    return sorted(
        ((tick, stamp) for start, stop, stamp in runs for tick in range(start, stop)),
        key=lambda said: (said[0], str(said[1])),
    )


def held(stream: KnowledgeStream) -> tuple[dict[int, Epochs], Rows]:
    """The stream tick by tick."""
    stream.check()
    known = {tick: stamp for start, stop, stamp in stream.known for tick in range(start, stop)}
    rows: Rows = {}
    for batch in stream.rows.between(TICK_MIN, TICK_MAX):
        rows |= rows_of(batch)
    return known, rows


@dataclass
class Twin:
    """A stream as two dictionaries. A tick with a stamp is known, and with a row it is D."""

    stamp: dict[int, Epochs] = field(default_factory=dict)
    row: Rows = field(default_factory=dict)

    def join(self, tick: int, stamp: Epochs) -> None:
        self.stamp[tick] = self.stamp[tick].join(stamp) if tick in self.stamp else stamp

    def accumulate(self, runs: list[Run], rows: Rows) -> tuple[list[tuple[int, Epochs]], Rows]:
        news = [
            (tick, stamp)
            for tick, stamp in says(runs)
            if tick not in self.stamp or not self.stamp[tick].covers(stamp)
        ]
        for tick, stamp in news:
            self.join(tick, stamp)
            if tick in rows:
                self.row.setdefault(tick, rows[tick])
        return news, {tick: self.row[tick] for tick, _ in news if tick in self.row}

    def finalise(self, span: tuple[int, int], stamp: Epochs) -> None:
        data = [tick for tick in inside(span) if tick in self.row]
        for tick in inside(span):
            if data and data[0] <= tick <= data[-1]:
                self.stamp[tick] = stamp
            else:
                self.join(tick, stamp)
            self.row.pop(tick, None)

    def forget(self, span: tuple[int, int]) -> None:
        for tick in inside(span):
            self.stamp.pop(tick, None)
            self.row.pop(tick, None)


class StreamTwins(RuleBasedStateMachine):
    """The same calls on the stream and on its twin."""

    def __init__(self) -> None:
        super().__init__()
        self.stream = KnowledgeStream()
        self.twin = Twin()

    @rule(drawn=drawn_runs, rows=drawn_rows)
    def accumulate(self, drawn: list[tuple[tuple[int, int], Epochs]], rows: Rows) -> None:
        runs = runs_of(drawn)
        fresh, batch = self.stream.accumulate(runs, batch_of(rows))
        news, data = self.twin.accumulate(runs, rows)
        assert says(fresh) == news
        assert all(start < stop for start, stop, _ in fresh)
        assert rows_of(batch) == data
        assert batch is None or len(batch)
        if batch is not None:
            batch.check()

    @rule(span=spans, stamp=stamps)
    def finalise(self, span: tuple[int, int], stamp: Epochs) -> None:
        self.stream.finalise(*span, stamp)
        self.twin.finalise(span, stamp)

    @rule(span=spans)
    def forget(self, span: tuple[int, int]) -> None:
        self.stream.forget(*span)
        self.twin.forget(span)

    @rule(span=spans, need=stamps)
    def ask_what_is_resolved(self, span: tuple[int, int], need: Epochs) -> None:
        resolved = self.stream.resolved(*span, need)
        assert [tick for start, stop in resolved.pairs() for tick in range(start, stop)] == [
            tick for tick in inside(span) if tick in self.twin.stamp and self.twin.stamp[tick].covers(need)
        ]

    @invariant()
    def both_hold_the_same(self) -> None:
        assert held(self.stream) == (self.twin.stamp, self.twin.row)


TestStreamTwins = StreamTwins.TestCase
TestStreamTwins.settings = settings(stateful_step_count=20)


@st.composite
def true_messages(draw: st.DrawFn, one_stamp: bool) -> list[tuple[list[Run], Rows]]:
    """Messages that all speak of the same data, each of some runs, whole or in parts."""
    truth = draw(drawn_rows)
    stamp = draw(stamps)
    messages = []
    for drawn in draw(st.lists(drawn_runs, min_size=1, max_size=5)):
        runs = [(start, stop, stamp if one_stamp else own) for (start, stop), own in drawn]
        known = {tick for tick, _ in says(runs)}
        messages.append((runs, {tick: text for tick, text in truth.items() if tick in known}))
    return messages


def after(messages: list[tuple[list[Run], Rows]]) -> KnowledgeStream:
    stream = KnowledgeStream()
    for runs, rows in messages:
        stream.accumulate(runs, batch_of(rows))
    return stream


def shuffled_and_repeated(data: st.DataObject, messages: list) -> list:
    repeated = data.draw(st.lists(st.sampled_from(messages), max_size=4))
    return data.draw(st.permutations([*messages, *repeated]))


@given(true_messages(one_stamp=True), st.data())
def test_under_one_stamp_order_and_repetition_of_messages_do_not_matter(messages, data) -> None:
    assert held(after(shuffled_and_repeated(data, messages))) == held(after(messages))


@given(true_messages(one_stamp=False), st.data())
def test_under_any_stamps_order_and_repetition_of_true_messages_do_not_matter(messages, data) -> None:
    known, rows = held(after(shuffled_and_repeated(data, messages)))
    assert (known, rows) == held(after(messages))
    assert rows == {tick: text for _, own in messages for tick, text in own.items()}


@given(drawn_rows, st.data())
def test_data_that_only_younger_subscriptions_want_is_found_in_any_order(truth: Rows, data) -> None:
    """The filter rejects a row below the epoch that first wanted it; older silence must not hide it."""
    wanted_since = {tick: data.draw(st.integers(0, 3)) for tick in truth}
    messages = []
    for epoch, span in data.draw(st.lists(st.tuples(st.integers(0, 3), spans), min_size=1, max_size=6)):
        rows = {t: row for t, row in truth.items() if t in inside(span) and wanted_since[t] <= epoch}
        messages.append(([(*span, Epochs({EDGES[0]: epoch}))], rows))
    known, rows = held(after(shuffled_and_repeated(data, messages)))
    assert (known, rows) == held(after(messages))
    for tick, stamp in known.items():
        assert (tick in rows) == (tick in truth and wanted_since[tick] <= stamp.get(EDGES[0]))


@given(true_messages(one_stamp=False), true_messages(one_stamp=False), st.data())
def test_repeated_knowledge_is_not_news(messages, earlier, data) -> None:
    stream = after([*earlier, *messages])
    before = held(stream)
    runs, rows = data.draw(st.sampled_from(messages))
    assert stream.accumulate(runs, batch_of(rows)) == ([], None)
    assert held(stream) == before


@given(st.lists(st.tuples(drawn_runs, drawn_rows), max_size=5))
def test_passing_on_the_news_alone_keeps_another_stream_in_step(messages) -> None:
    above, below = KnowledgeStream(), KnowledgeStream()
    for drawn, rows in messages:
        fresh, news = above.accumulate(runs_of(drawn), batch_of(rows))
        below.accumulate(fresh, news)
        assert held(below) == held(above)


@given(drawn_runs, st.lists(st.tuples(drawn_runs, drawn_rows), max_size=3))
def test_an_empty_batch_says_as_much_as_none(drawn, earlier) -> None:
    with_empty, with_none = (after([(runs_of(runs), rows) for runs, rows in earlier]) for _ in range(2))
    empty = EventBatch.of([1], {"text": ["a"]}).slice(0, 0)
    assert with_empty.accumulate(runs_of(drawn), empty) == with_none.accumulate(runs_of(drawn), None)
    assert held(with_empty) == held(with_none)


@given(st.lists(st.tuples(drawn_runs, drawn_rows), max_size=4), st.data())
def test_only_forgetting_makes_a_tick_unknown_and_it_can_be_learned_again(messages, data) -> None:
    stream = after([(runs_of(drawn), rows) for drawn, rows in messages])
    known, rows = held(stream)
    start, stop = data.draw(spans)
    lost = {tick: row for tick, row in rows.items() if start <= tick < stop}
    relearned = [(tick, tick + 1, stamp) for tick, stamp in known.items() if start <= tick < stop]
    stream.forget(start, stop)
    assert held(stream)[0].keys() == known.keys() - set(range(start, stop))
    stream.accumulate(relearned, batch_of(lost))
    assert held(stream) == (known, rows)


@given(drawn_runs, drawn_rows)
def test_the_rows_of_a_message_outside_its_runs_are_not_believed(drawn, rows: Rows) -> None:
    stream = after([(runs_of(drawn), rows)])
    known, found = held(stream)
    assert found == {tick: row for tick, row in rows.items() if tick in known}


def test_a_covered_tick_ignores_a_new_row_and_an_uncovered_one_takes_it() -> None:
    old, new = Epochs({EDGES[0]: 1}), Epochs({EDGES[0]: 2})
    stream = KnowledgeStream()
    stream.accumulate([(0, 10, new)], None)
    assert stream.accumulate([(0, 20, old)], batch_of({5: "late", 15: "a"})) == (
        [(10, 20, old)],
        batch_of({15: "a"}),
    )
    assert stream.accumulate([(10, 20, new)], batch_of({12: "b"})) == (
        [(10, 20, new)],
        batch_of({12: "b", 15: "a"}),
    )
    assert held(stream) == (dict.fromkeys(range(20), new), {12: "b", 15: "a"})


def test_finalised_data_is_only_as_final_as_the_ack_and_silence_around_it_keeps_its_stamp() -> None:
    ack = Epochs({EDGES[0]: 3})
    stream = KnowledgeStream()
    stream.accumulate([(0, DOMAIN, ALWAYS)], batch_of({10: "a", 12: "b", 30: "c"}))
    stream.finalise(TICK_MIN, 20, ack)
    assert list(stream.known) == [(TICK_MIN, 0, ack), (0, 10, ALWAYS), (10, 13, ack), (13, DOMAIN, ALWAYS)]
    assert held_rows(stream) == {30: "c"}
    stream.finalise(TICK_MIN, 20, ack)
    stream.finalise(20, 5, ack)
    assert list(stream.known) == [(TICK_MIN, 0, ack), (0, 10, ALWAYS), (10, 13, ack), (13, DOMAIN, ALWAYS)]


def held_rows(stream: KnowledgeStream) -> Rows:
    rows: Rows = {}
    for batch in stream.rows.between(TICK_MIN, TICK_MAX):
        rows |= rows_of(batch)
    return rows


HELD = (Knowledge.UNKNOWN, Knowledge.DATA, Knowledge.FINAL)
STAMP = Epochs({EDGES[0]: 1})


def stream_that_learned(*values: Knowledge) -> KnowledgeStream:
    stream = KnowledgeStream()
    for value in values:
        if value is Knowledge.DATA:
            stream.accumulate([(7, 8, STAMP)], batch_of({7: "a"}))
        elif value is Knowledge.FINAL:
            stream.finalise(7, 8, STAMP)
    return stream


def knowledge_of(stream: KnowledgeStream) -> Knowledge:
    known, rows = held(stream)
    if 7 not in known:
        return Knowledge.UNKNOWN
    return Knowledge.DATA if 7 in rows else Knowledge.FINAL


@pytest.mark.parametrize("first", HELD)
@pytest.mark.parametrize("second", HELD)
@pytest.mark.parametrize("third", HELD)
def test_a_tick_of_a_stream_moves_through_the_lattice(
    first: Knowledge, second: Knowledge, third: Knowledge
) -> None:
    expected = first.accumulate(second).accumulate(third)
    assert knowledge_of(stream_that_learned(first, second, third)) is expected


def test_a_message_without_the_row_does_not_remove_data() -> None:
    """A filter made that silence, for whoever it speaks of; only an ack makes data final."""
    stream = stream_that_learned(Knowledge.DATA)
    stream.accumulate([(0, 10, STAMP)], None)
    stream.accumulate([(0, 10, Epochs({EDGES[0]: 2}))], None)
    assert knowledge_of(stream) is Knowledge.DATA


def test_check_notices_a_row_at_an_unknown_tick() -> None:
    stream = stream_that_learned(Knowledge.DATA)
    stream.known.clear(7, 8)
    with pytest.raises(AssertionError, match=r"rows in unknown ticks 7\.\.8"):
        stream.check()
