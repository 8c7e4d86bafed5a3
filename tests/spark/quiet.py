"""A pipeline whose queries compute nothing, and only hold the log as those of Spark do. Needs no session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from gapless.client import sync
from gapless.client.views import reached
from gapless.spark.compile import readers, state_columns
from gapless.spark.graph import Root
from gapless.spark.pipeline import Pipeline
from gapless.spark.running import NetworkAccess, Runner, Running, hold_name
from gapless.views.planning.stages import Events, Keyed
from gapless.views.registry import HOLDS_TOPIC, STATUS_TOPIC, HoldBook, Status, statuses_of
from tests.spark.threads import in_thread


class QuietQuery:
    """A query that waits for events."""

    isActive = True  # noqa: N815  # Spark's name
    status = {"message": "Waiting for data to arrive"}  # noqa: RUF012  # as Spark's is

    def stop(self) -> None:
        """Its holds stay as they are."""


class QuietRunning(Running):
    """Holds what its stage reads."""

    def _started(self) -> Any:
        network = self._runner.network
        (self.checkpoint.folder / "rows").mkdir(parents=True, exist_ok=True)
        with sync.connect(network.brokers) as client:
            for number, topic in enumerate(readers(self.root.stage)):
                with client.hold(topic, hold_name(self.name, number), {}):
                    pass
        return QuietQuery()


class QuietRunner(Runner):
    """Has no session."""

    def make_root(self, stage: Keyed | Events) -> Root:
        root = Root(stage, state_columns(stage))
        self.running[stage] = QuietRunning(root, self)
        return root


@contextmanager
def quiet_pipeline(address: str, folder: Path) -> Iterator[Pipeline]:
    """A pipeline in a thread of this process, and in the end stopped."""
    with (
        sync.connect(address) as client,
        in_thread(Pipeline(client, QuietRunner(cast(Any, None), NetworkAccess(address), folder))) as running,
    ):
        yield running


def book_when(client: sync.SyncClient, is_so: Callable[[HoldBook], bool]) -> HoldBook:
    """What is written down of holds, as soon as it is so."""
    book = HoldBook()
    with client.subscribe(HOLDS_TOPIC, start="earliest") as rows:
        # What was so long ago is no answer.
        ends = client.ends(HOLDS_TOPIC)
        for batch in rows.batches():
            for pubend, events in batch.by_pubend().items():
                book.apply(pubend, events.ticks.tolist(), events.columns)
            if reached(rows.positions, ends) and is_so(book):
                break
    return book


def status_when(client: sync.SyncClient, name: str, state: str) -> Status:
    """What is said of a view as soon as it is in that state."""
    with client.subscribe(STATUS_TOPIC, start="earliest") as rows:
        for batch in rows.batches():
            for each in statuses_of(batch.columns):
                if (each.name, each.state) == (name, state):
                    return each
    raise AssertionError("the subscription ended")
