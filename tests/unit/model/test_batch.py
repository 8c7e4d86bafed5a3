"""What a batch computes is shared by all who look at it soon, and takes up memory for no longer."""

import gc

import pyarrow as pa

from gapless.model.batch import KEPT_BATCHES_MAX, KEPT_ROWS_MAX, EventBatch, LastJoined, gathered
from tests.unit.model.test_packed import batch


class Computed:
    """Stands for anything that somebody computes from columns."""

    alive = 0

    def __init__(self, columns: pa.RecordBatch) -> None:
        self.columns = columns
        Computed.alive += 1

    def __del__(self) -> None:
        Computed.alive -= 1


def test_recent_results_of_a_batch_are_shared() -> None:
    looked_at = [EventBatch.of([tick], {"a": [tick]}) for tick in range(KEPT_BATCHES_MAX)]
    made = [each.derived(Computed) for each in looked_at]
    assert [each.derived(Computed) for each in looked_at] == made


def test_old_batches_drop_their_cached_results() -> None:
    held = [EventBatch.of([tick], {"a": [tick]}) for tick in range(10 * KEPT_BATCHES_MAX)]
    for each in held:
        each.derived(Computed)
        each.array("a")
    gc.collect()
    assert Computed.alive <= KEPT_BATCHES_MAX
    assert sum(bool(each._arrays) for each in held) <= KEPT_BATCHES_MAX


def test_fewer_large_batches_keep_their_cached_results() -> None:
    ticks = [*range(KEPT_ROWS_MAX // 2)]
    for each in [EventBatch.of(ticks, {"a": ticks}) for _ in range(4)]:
        each.derived(Computed)
    gc.collect()
    assert Computed.alive <= 2


def test_old_packed_rows_drop_their_columns() -> None:
    held = [batch(number) for number in range(3 * KEPT_BATCHES_MAX)]
    for each in held:
        assert each.columns.num_rows == 1
    assert sum(each._columns is not None for each in held) <= KEPT_BATCHES_MAX
    assert held[0].columns.column("a").to_pylist() == [0]


def test_the_number_of_joined_batches_is_bounded() -> None:
    small = [EventBatch.of([tick], {"a": [tick]}) for tick in range(5)]
    assert [len(each) for each in gathered(small, 100, 10_000, parts_max=2)] == [2, 2, 1]


def test_joining_the_same_batches_again_gives_the_same_batch() -> None:
    last = LastJoined()
    small = [EventBatch.of([tick], {"a": [tick]}) for tick in range(4)]
    first = last.joined(small[:2])
    assert last.joined(small[:2]) is first
    assert last.joined(small[1:3]).ticks.tolist() == [1, 2]
    assert last.joined(small[:3]).ticks.tolist() == [0, 1, 2]
    last.forget()
    assert last.joined(small[:3]).ticks.tolist() == [0, 1, 2]
    assert last.joined(small[3:]) is small[3]
