"""Which names does the pipeline have at its edge, and who forgets them? Each is recorded first.

A stage holds the log of its topics with durable subscriptions, which outlive the process, the view and the
version of the program that made them. A forgotten one would hold the log for ever. So they are recorded in a
topic, which always lists at least those that exist:

    recorded -> made by the Spark source -> ... -> checkpoint deleted -> forgotten -> record deleted

A process that dies at any point leaves a recorded name that may or may not exist. The next one reads the
topic, and forgets every name that no view needs; forgetting a name that does not exist is harmless. The
checkpoint is deleted first: without the log after it, it could not be used, and would be in the way of a new
one.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

from gapless.client.sync import SyncClient
from gapless.client.views import reached
from gapless.errors import GaplessError
from gapless.model.ids import TopicId
from gapless.views.registry import (
    HOLDS_COLUMNS,
    HOLDS_RETENTION,
    HOLDS_TOPIC,
    HoldBook,
    held_stage,
    hold_rows,
)

log = logging.getLogger("gapless.pipeline")

#: If the topic's repository is away, a name is forgotten another time.
FORGET_SECONDS = 5.0


class Holds:
    """The names of the pipeline at the edge to which its client is connected."""

    def __init__(self, client: SyncClient, checkpoints: Path) -> None:
        self._client = client
        self._checkpoints = checkpoints
        self._edge = ""
        #: Names that are recorded.
        self._names: dict[str, TopicId] = {}

    def load(self) -> None:
        """Read the recorded names."""
        report = self._client.status()
        self._edge = str(report["broker"])
        # Names that earlier versions did not record; the node lists only some.
        for each in report["subscriptions"].get("list", ()):
            if held_stage(each.get("name") or "") is not None:
                self._names[each["name"]] = TopicId(each["topic"])
        self._names |= read_book(self._client).at(self._edge)

    def write_down(self, names: Mapping[str, TopicId]) -> None:
        """Record names that will be made. Raises GaplessError, and then they must not be."""
        fresh = {name: topic for name, topic in names.items() if name not in self._names}
        if fresh:
            self._client.publish_batch(HOLDS_TOPIC, hold_rows(self._edge, fresh, held=True))
            self._names |= fresh

    def forget_all_but(self, needed: Collection[str]) -> bool:
        """Forget every other name; returns whether all of them are gone."""
        others = {name: topic for name, topic in self._names.items() if name not in needed}
        for name, topic in others.items():
            try:
                self._forget(name, topic)
            except (GaplessError, TimeoutError) as error:
                log.warning("'%s' holds topic '%s', and could not be forgotten yet: %s", name, topic, error)
                continue
            log.info("'%s' no longer holds topic '%s'", name, topic)
            del self._names[name]
        return all(name in needed for name in self._names)

    def _forget(self, name: str, topic: TopicId) -> None:
        stage = held_stage(name)
        assert stage is not None, f"{name!r} is not a hold"
        shutil.rmtree(self._checkpoints / stage, ignore_errors=True)
        if self._client.inquire(subscription=name)["subscription"] is not None:
            self._client.forget_hold(topic, name, timeout_s=FORGET_SECONDS)
        self._client.publish_batch(HOLDS_TOPIC, hold_rows(self._edge, {name: topic}, held=False))


def read_book(client: SyncClient) -> HoldBook:
    """All names that pipelines have recorded, at any edge."""
    client.create_topic(HOLDS_TOPIC, HOLDS_COLUMNS, retention=HOLDS_RETENTION)
    book = HoldBook()
    with client.subscribe(HOLDS_TOPIC, start="earliest") as rows:
        ends = client.ends(HOLDS_TOPIC)
        if not reached(rows.positions, ends):
            for batch in rows.batches():
                for pubend, events in batch.by_pubend().items():
                    book.apply(pubend, events.ticks.tolist(), events.columns)
                if reached(rows.positions, ends):
                    break
    return book
