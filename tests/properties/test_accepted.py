"""Whatever a node takes from a client can be matched: by an index as by evaluating each condition alone.

Arrow messages are written by hand, with every kind of number in them changed, and the topic has a column of
every type. What is accepted goes into an index with hundreds of conditions. Neither may fail, and they must
agree.
"""

from __future__ import annotations

import struct
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from gapless.content.condition import Condition
from gapless.content.evaluate import mask
from gapless.content.index.index import Index
from gapless.content.language import parse_condition
from gapless.content.rows import Rows
from gapless.errors import PeerError
from gapless.model.schema import Schema
from gapless.wire.codec import ColumnsFormat, decode_batch
from gapless.wire.rows import RowFormat
from tests.hostile.payloads import COLUMNS, CONDITIONS, TOPIC, Mutator, random_rows

SCHEMA = Schema.parse(TOPIC, COLUMNS)
FORM = ColumnsFormat(SCHEMA)


def filled(conditions: dict[int, Condition]) -> Index:
    index = Index()
    for slot, condition in conditions.items():
        index.add(slot, condition)
    return index


EVERY = {slot: parse_condition(text, SCHEMA) for slot, text in enumerate(CONDITIONS)}
INDEX = filled(EVERY)


def agree(batch: pa.RecordBatch) -> None:
    """The index finds what each condition alone accepts, and every value can be delivered."""
    rows, slots = INDEX.match(batch)
    expected = np.zeros((batch.num_rows, len(EVERY)), np.bool_)
    for slot, condition in EVERY.items():
        expected[:, slot] = mask(condition, Rows(batch))
    found = np.zeros_like(expected)
    found[rows, slots] = True
    wrong = [CONDITIONS[slot] for slot in np.flatnonzero((found != expected).any(axis=0)).tolist()]
    assert not wrong
    RowFormat(SCHEMA).encode(batch)


def test_rows_with_extreme_values_are_matched_as_one_condition_alone_would() -> None:
    random = Random(1)
    for count in (1, 3, 64, 65, 300):
        agree(random_rows(random, count))


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_accepted_of_mutated_columns_can_be_matched(seed: int) -> None:
    random = Random(seed)
    mutator = Mutator(random)
    accepted = 0
    for _ in range(60):
        part = mutator.columns(random_rows(random, random.choice([1, 2, 9, 70])))
        try:
            batch = FORM.decode(memoryview(part))
        except PeerError:
            continue
        agree(batch)
        accepted += 1
        # What we write of it is read again as it is, and is exactly as long.
        again = batch.serialize().to_pybytes()
        whole = decode_batch(
            memoryview(struct.pack(f"<{len(batch)}q", *range(len(batch)))), memoryview(again), FORM
        )
        assert whole.columns.serialize().to_pybytes() == again
    assert accepted, "nothing of 60 was accepted"
