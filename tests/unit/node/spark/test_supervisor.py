"""A node wants its pipeline while there are views, and until nothing is held for those that there were."""

from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from gapless.model.ids import PubendId, TopicId
from gapless.node.spark.supervisor import _Demand, _reachable
from gapless.views.registry import LEASE, Definition, definition_rows, dropping_rows, hold_rows
from gapless.wire.address import Address

HOME = PubendId("p1")
STOCK = Definition("stock", "SELECT item FROM sales", TopicId("view.stock"))
HELD = {"gapless.views.0123456789ab.0": TopicId("sales")}


class Wishes:
    """A process that notes what is wanted."""

    is_wanted = False

    def want(self, wanted: bool) -> None:
        self.is_wanted = wanted


def test_the_pipeline_stays_until_it_has_let_go_of_the_log() -> None:
    process = Wishes()
    demand = _Demand(cast(Any, process), "n1")

    def views(tick: int, rows: dict[str, list[object]]) -> bool:
        demand.registry(HOME, [tick], pa.RecordBatch.from_pydict(rows))
        return process.is_wanted

    def holds(tick: int, edge: str, names: dict[str, TopicId], *, held: bool) -> bool:
        demand.holds(HOME, [tick], pa.RecordBatch.from_pydict(hold_rows(edge, names, held=held)))
        return process.is_wanted

    assert views(1, definition_rows(STOCK))
    assert holds(1, "n1", {LEASE: TopicId("gapless.views")}, held=True)
    assert holds(2, "n1", HELD, held=True)
    assert views(2, dropping_rows("stock"))
    assert not holds(3, "n1", HELD, held=False), "the lease alone keeps nothing"
    assert not holds(4, "n2", HELD, held=True), "nobody can let go of it from here"
    assert holds(5, "n1", HELD, held=True), "a process that died has left it"


@pytest.mark.parametrize(
    ("listens", "expected"),
    [
        ("127.0.0.1", "127.0.0.1:7400"),
        ("0.0.0.0", "127.0.0.1:7400"),
        ("::1", "[::1]:7400"),
        ("::", "[::1]:7400"),
        ("10.0.0.5", "10.0.0.5:7400"),
    ],
)
def test_the_pipeline_reaches_its_node_wherever_that_listens(listens: str, expected: str) -> None:
    assert _reachable(cast(Any, SimpleNamespace(address=Address(listens, 7400)))) == expected
