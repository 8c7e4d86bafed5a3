"""Messages of knowledge that came together, taken as one."""

from collections.abc import Sequence

import pytest

from gapless.model.batch import EventBatch
from gapless.model.epochs import ALWAYS, Epochs
from gapless.model.ids import BrokerId, PubendId
from gapless.model.stream import KnowledgeStream
from gapless.model.ticks import TICK_MIN, Tick
from gapless.protocol.joining import joined
from gapless.protocol.messages import KnowledgeMessage

LATER = Epochs({BrokerId("s"): 7})
ROWS_MAX = 100


def told(
    start: Tick,
    stop: Tick,
    ticks: Sequence[Tick],
    *,
    stamp: Epochs = ALWAYS,
    first_time: bool = True,
    final: Tick = TICK_MIN,
    pubend: str = "nyse",
) -> KnowledgeMessage:
    """Knowledge of one run."""
    batch = EventBatch.of(ticks, {"price": list(ticks)}) if ticks else None
    return KnowledgeMessage(
        pubend=PubendId(pubend),
        runs=((start, stop, stamp),),
        batch=batch,
        first_time=first_time,
        final_before=final,
    )


def known(messages: Sequence[KnowledgeMessage]) -> tuple[list[object], list[Tick]]:
    """What a stream knows that has heard these."""
    stream = KnowledgeStream()
    for message in messages:
        stream.accumulate(list(message.runs), message.batch)
    return list(stream.known), [tick for each in stream.rows.between(TICK_MIN, 2**62) for tick in each.ticks]


def test_what_follows_is_one_message_that_says_the_same() -> None:
    messages = [
        told(0, 10, [4, 9], final=1),
        told(10, 20, [11], final=3),
        told(20, 30, [25], stamp=LATER),
        told(33, 40, [35], stamp=LATER),
    ]
    (one,) = joined(messages, ROWS_MAX, lambda _: True)
    assert one.runs == ((0, 20, ALWAYS), (20, 30, LATER), (33, 40, LATER))
    assert one.batch is not None
    assert one.batch.ticks.tolist() == one.batch.columns.column("price").to_pylist() == [4, 9, 11, 25, 35]
    assert (one.first_time, one.final_before) == (True, 3)
    assert known([one]) == known(messages)


@pytest.mark.parametrize(
    "second",
    [
        told(10, 20, [11], first_time=False),
        told(10, 20, [11], pubend="nasdaq"),
        told(10, 20, []),
        told(5, 20, [11]),
        told(10, 20, [9]),
    ],
    ids=["a retransmission", "of another pubend", "silence", "that overlaps", "with a row that came before"],
)
def test_what_does_not_follow_stays_apart(second: KnowledgeMessage) -> None:
    messages = [told(0, 10, [4, 9]), second]
    assert joined(messages, ROWS_MAX, lambda _: True) == messages


def test_what_was_known_before_is_no_reason_to_call_the_rest_a_retransmission() -> None:
    messages = [told(0, 10, [4]), told(10, 20, [11]), told(20, 30, [21]), told(30, 40, [31])]
    news = joined(messages, ROWS_MAX, lambda message: message.runs[0][0] != 10)
    assert [message.runs for message in news] == [
        ((0, 10, ALWAYS),),
        ((10, 20, ALWAYS),),
        ((20, 40, ALWAYS),),
    ]


def test_a_message_has_no_more_rows_than_may_be() -> None:
    messages = [told(at, at + 10, [at, at + 1]) for at in range(0, 50, 10)]
    found = joined(messages, 5, lambda _: True)
    assert [0 if each.batch is None else len(each.batch) for each in found] == [4, 4, 2]
    assert known(found) == known(messages)


def test_rows_of_other_columns_stay_apart() -> None:
    other = told(10, 20, [])
    other = KnowledgeMessage(
        pubend=other.pubend,
        runs=other.runs,
        batch=EventBatch.of([11], {"size": [1]}),
        first_time=True,
        final_before=TICK_MIN,
    )
    assert len(joined([told(0, 10, [4]), other], ROWS_MAX, lambda _: True)) == 2
