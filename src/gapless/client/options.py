"""How long does a client wait, and how much does it buffer? Timeouts, bounds, and the words options take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Literal, TypeAlias

from gapless.errors import ParameterError
from gapless.model.ids import PubendId
from gapless.model.ticks import Tick

#: Order of delivery: that of each publisher, or one total order for all subscribers.
DeliveryOrder: TypeAlias = Literal["publisher", "total"]
#: Whether what a subscriber misses is sent again.
DeliveryMode: TypeAlias = Literal["guaranteed", "best-effort"]
#: Who acknowledges an event: the library when the next one is asked for, or the program.
AckMode: TypeAlias = Literal["auto", "manual"]
#: What happens when the network no longer keeps what was asked for.
GapMode: TypeAlias = Literal["report", "raise"]
#: Where a subscription starts: with new events, with the oldest kept, at the stored position of its name,
#: at a time, at a tick, or at the `positions` of an earlier subscription.
StartAt: TypeAlias = (
    Literal["now", "earliest", "stored"] | datetime | Tick | Mapping[PubendId, Tick] | Mapping[str, Tick]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Timeouts and bounds that few programs need to change. All must be greater than zero."""

    #: How long entering a client may take before it raises E401.
    connect_timeout_s: float = 10.0
    #: How long one address may take to answer, including the handshake.
    dial_timeout_s: float = 5.0
    #: How long to redial after a lost connection before everything outstanding fails; None for ever.
    give_up_s: float | None = None
    #: Pause after no address answered; doubles from the minimum to the maximum.
    backoff_min_s: float = 0.02
    backoff_max_s: float = 2.0
    #: A node silent for this long is pinged; after as long again the connection is dropped.
    ping_s: float = 5.0
    #: Maximum number of retries of an event or request that the node refused for now.
    retries_max: int = 8
    #: Maximum number and bytes of events without a receipt, per publisher. `ready` waits above a quarter.
    outstanding_rows_max: int = 2**20
    outstanding_bytes_max: int = 256 * 2**20
    #: Maximum number of rows buffered per subscription.
    credit_rows: int = 131_072
    #: How long a taken event may stay unacknowledged. Nobody waits for it but the log. A program that dies
    #: gets this much again under the name of its subscription.
    ack_s: float = 10.0
    ack_named_s: float = 1.0
    #: How long leaving a client waits for outstanding receipts.
    close_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "give_up_s" and value is None:
                continue
            wanted: type | tuple[type, ...] = (int, float) if field.name.endswith("_s") else int
            least = 0 if field.name == "retries_max" else 1
            good = isinstance(value, wanted) and not isinstance(value, bool)
            if not good or (value <= 0 if field.name.endswith("_s") else value < least):
                raise ParameterError("E191", f"option '{field.name}' must be above zero, got {value!r}")


DEFAULTS = Options()
