"""Which condition decides about which tick, when a filter was changed more than once."""

import numpy as np
import pyarrow as pa

from gapless.model.ids import PubendId, TopicId
from gapless.model.schema import Schema
from gapless.protocol.sessions.filters import Filters

PUBEND = PubendId("p")
SCHEMA = Schema.parse(TopicId("t"), {"a": "int"})


def wanted(filters: Filters, ticks: list[int], values: list[int]) -> list[int]:
    columns = pa.RecordBatch.from_pydict({"a": values}, schema=SCHEMA.arrow())
    mask = filters.mask(columns, np.array(ticks, dtype=np.int64), [PUBEND] * len(ticks), SCHEMA)
    return [tick for tick, is_wanted in zip(ticks, mask.tolist(), strict=True) if is_wanted]


def test_each_tick_has_the_condition_of_its_time() -> None:
    filters = Filters("a < 5")
    filters.switch("a > 8", {PUBEND: 100}, {PUBEND: 60})
    assert filters.resume({PUBEND: 60}, SCHEMA) == "(a <= 4 OR a >= 9)"
    assert wanted(filters, [60, 61, 99, 100, 101], [1, 9, 1, 1, 9]) == [60, 99, 101]


def test_a_later_change_that_takes_effect_earlier_decides_from_there_on() -> None:
    """The connection was lost before it was confirmed: it decides about all that has not come."""
    filters = Filters("a < 5")
    filters.switch("a > 8", {PUBEND: 100}, {PUBEND: 60})
    filters.switch("a = 6", {PUBEND: 70}, {PUBEND: 60})
    filters.resume({PUBEND: 60}, SCHEMA)
    assert wanted(filters, [60, 61, 70, 71, 99, 100, 110], [1, 6, 1, 6, 9, 9, 6]) == [60, 71, 110]
