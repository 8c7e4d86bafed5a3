"""What becomes of an event that is too large to send? Its tick is final, and the operator is told why.

New events of that size are refused. An earlier version accepted them, and then crashed on each of them,
again after every start. They stay in the log, in the archive and in bulk reads, where they can be had; to
subscribers their ticks are final. Each is an error in the log of the node once, is counted, and is listed in
its status.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gapless.model.batch import EventBatch
from gapless.model.budget import EVENT_BYTES_MAX, event_sizes
from gapless.model.ids import PubendId
from gapless.model.ticks import Tick
from gapless.node.logs import event_log

log = event_log("gapless.quarantine")

#: Maximum number of listed events; further ones are reported each time they are met.
LISTED_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Quarantined:
    """One event that is withheld from subscribers."""

    pubend: PubendId
    tick: Tick
    event_bytes: int


class Quarantine:
    """The events of one node's pubends, or of its neighbours', that are too large to be told."""

    def __init__(self) -> None:
        #: How many were met, each counted once as long as they are listed.
        self.events = 0
        self._listed: dict[tuple[PubendId, Tick], Quarantined] = {}

    def listed(self) -> list[Quarantined]:
        """Those that were met since the node started, `LISTED_MAX` at most."""
        return list(self._listed.values())

    def without(self, pubend: PubendId, batch: EventBatch) -> EventBatch | None:
        """The batch without events that are too large; None when nothing is left."""
        if batch.weighs_at_most(EVENT_BYTES_MAX):
            return batch
        sizes = event_sizes(batch.columns)
        large = np.flatnonzero(sizes > EVENT_BYTES_MAX)
        if not len(large):
            return batch
        for tick, size in zip(batch.ticks[large].tolist(), sizes[large].tolist(), strict=True):
            self._tell(Quarantined(pubend, tick, size))
        rest = np.flatnonzero(sizes <= EVENT_BYTES_MAX)
        return batch.take(rest) if len(rest) else None

    def _tell(self, event: Quarantined) -> None:
        key = (event.pubend, event.tick)
        if key in self._listed:
            return
        self.events += 1
        if len(self._listed) < LISTED_MAX:
            self._listed[key] = event
        log.error(
            "event_quarantined",
            code="E307",
            pubend=event.pubend,
            tick=event.tick,
            event_bytes=event.event_bytes,
            reason=f"an event has at most {EVENT_BYTES_MAX} bytes: to subscribers its tick is final",
            way_out="read it in bulk (gapless history), and publish it again in parts",
        )
