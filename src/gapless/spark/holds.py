"""Which names does the pipeline have at its edge, and who lets go of them? Each is written down first.

A stage keeps the log of its topics by durable subscriptions, which outlive the process, the view and the
version of the program for which they were made. One that nobody knows of any more would keep the log for
ever. So there is a topic of them, and whatever happens, it has at least those that there are:

    written down -> made by the source of Spark -> ... -> checkpoint deleted -> forgotten -> crossed out

A process that dies at any place leaves a name that is written down and may or may not be there. The next one
reads the topic, and forgets every name that no view needs; forgetting one that is not there is nothing. The
checkpoint goes first: without the log after it, it could not be used, and would be in the way of a new one.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

from gapless.client.sync import Client
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

#: The topic's home may be away: then a name is forgotten another time.
FORGET_SECONDS = 5.0


class Holds:
    """The names of the pipeline at the edge to which its client is connected."""

    def __init__(self, client: Client, checkpoints: Path) -> None:
        self._client = client
        self._checkpoints = checkpoints
        self._edge = ""
        #: What was written down and not crossed out.
        self._names: dict[str, TopicId] = {}

    def load(self) -> None:
        """Learn which there are."""
        report = self._client.status()
        self._edge = str(report["broker"])
        # Those that earlier versions did not write down; the node lists as many as it does.
        for each in report["subscriptions"].get("list", ()):
            if held_stage(each.get("name") or "") is not None:
                self._names[each["name"]] = TopicId(each["topic"])
        self._names |= read_book(self._client).at(self._edge)

    def write_down(self, names: Mapping[str, TopicId]) -> None:
        """Names that will be made. Raises GaplessError, and then they must not be."""
        fresh = {name: topic for name, topic in names.items() if name not in self._names}
        if fresh:
            self._client.publish_batch(HOLDS_TOPIC, hold_rows(self._edge, fresh, held=True))
            self._names |= fresh

    def forget_all_but(self, needed: Collection[str]) -> bool:
        """Let go of every other name; whether all of them are gone."""
        others = {name: topic for name, topic in self._names.items() if name not in needed}
        for name, topic in others.items():
            try:
                self._forget(name, topic)
            except (GaplessError, TimeoutError) as error:
                log.warning("'%s' holds topic '%s', and could not be forgotten yet: %s", name, topic, error)
                continue
            log.info("'%s' holds topic '%s' no more", name, topic)
            del self._names[name]
        return all(name in needed for name in self._names)

    def _forget(self, name: str, topic: TopicId) -> None:
        stage = held_stage(name)
        assert stage is not None, f"{name!r} is no hold"
        shutil.rmtree(self._checkpoints / stage, ignore_errors=True)
        if self._client.inquire(subscription=name)["subscription"] is not None:
            self._client.forget_hold(topic, name, timeout_s=FORGET_SECONDS)
        self._client.publish_batch(HOLDS_TOPIC, hold_rows(self._edge, {name: topic}, held=False))


def read_book(client: Client) -> HoldBook:
    """All names that pipelines have written down, at whatever edge."""
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
