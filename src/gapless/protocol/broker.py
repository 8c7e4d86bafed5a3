"""How do the machines of one node work together? One `step`: events in, effects out.

Interface only for the moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gapless.model.ids import BrokerId, PubendId
from gapless.model.ticks import Tick
from gapless.protocol.effects import Effect, StartRecord
from gapless.protocol.events import Event, Now
from gapless.protocol.network import Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What the log of one pubend still says after a restart. A new log: all defaults."""

    #: One past the highest tick of any event in the log.
    next_tick: Tick = 0
    #: The largest `before` of any ReserveRecord.
    reserved: Tick = 0
    #: Events below this tick were released by TrimLog.
    released: Tick = 0
    starts: tuple[StartRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """How much one broker holds, for bounds."""

    rows: int
    row_bytes: int
    runs: int


class Broker:
    """All machines of one node."""

    def __init__(
        self, network: Network, broker: BrokerId, incarnation: int, recovered: Mapping[PubendId, Recovered]
    ) -> None:
        raise NotImplementedError

    def step(self, event: Event, now: Now) -> list[Effect]:
        raise NotImplementedError

    def check(self) -> None:
        raise NotImplementedError

    def memory(self) -> Memory:
        raise NotImplementedError
