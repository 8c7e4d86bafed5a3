"""How a pubend tells what one flush made durable: small batches together, large ones as they came."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa

from gapless.model.ids import PubendId
from gapless.protocol.effects import AppendRecord, Effect
from gapless.protocol.events import Now, PublishRequested
from gapless.protocol.parameters import Parameters
from gapless.protocol.pubend import TELL_ROWS_WORTH, Pubend

NOW = Now(1_000, 1_000_000)


def rows(count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"number": list(range(count))})


def published(pubend: Pubend, rows: pa.RecordBatch, encoded: memoryview | None = None) -> list[Effect]:
    event = PublishRequested(pubend=pubend.pubend, token=0, rows=rows, encoded=encoded)
    return pubend.publish(event, rows, NOW)


def told(*counts: int) -> list[int]:
    """How many events each message has after batches of these sizes became durable together."""
    pubend = Pubend(PubendId("p"), Parameters())
    token = -1
    for count in counts:
        (effect,) = published(pubend, rows(count))
        assert isinstance(effect, AppendRecord)
        token = effect.token
    _, knowledge, _ = pubend.durable(token, NOW)
    runs = [run for message in knowledge for run in message.runs]
    assert all(before[1] == after[0] for before, after in pairwise(runs)), "no gaps"
    assert pubend.told == runs[-1][1]
    return [len(message.batch) for message in knowledge if message.batch is not None]


def test_small_batches_are_told_together_and_large_ones_as_they_came() -> None:
    large = TELL_ROWS_WORTH
    assert told(3) == [3]
    assert told(1, 2, 3) == [6]
    assert told(1, large, 2, 3) == [1, large, 5]
    assert told(large, large + 1) == [large, large + 1]


def test_a_batch_keeps_the_message_that_it_came_in() -> None:
    pubend = Pubend(PubendId("p"), Parameters())
    columns = rows(TELL_ROWS_WORTH)
    encoded = memoryview(columns.serialize())
    for _ in range(2):
        (effect,) = published(pubend, columns, encoded)
    assert isinstance(effect, AppendRecord)
    _, knowledge, _ = pubend.durable(effect.token, NOW)
    assert [message.batch is not None and message.batch.encoded is encoded for message in knowledge] == [
        True,
        True,
    ]
