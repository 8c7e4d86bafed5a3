"""How patient is a client, and how much does it hold? Times, bounds, and their allowed values."""

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
#: Where a subscription starts: with new events, with the oldest kept, at a time, at a tick, or at the
#: `positions` of an earlier subscription.
StartAt: TypeAlias = (
    Literal["now", "earliest"] | datetime | Tick | Mapping[PubendId, Tick] | Mapping[str, Tick]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What few programs need to change. Every duration and every bound is more than zero."""

    #: How long entering a client may take before it says that no address answers.
    connect_timeout_s: float = 10.0
    #: How long one address may take to answer, the handshake included.
    dial_timeout_s: float = 5.0
    #: How long a lost connection is dialled again before everything outstanding fails; None: for ever.
    give_up_s: float | None = None
    #: The pause after a round of dialling all addresses in vain doubles from the one to the other.
    backoff_min_s: float = 0.02
    backoff_max_s: float = 2.0
    #: A node that was silent for so long is asked whether it is there; after as long again it is left.
    ping_s: float = 5.0
    #: How often an event or request is sent again that the node refused for the time being.
    retries_max: int = 8
    #: Events without a receipt, and their bytes, of one publisher. `ready` waits from a quarter of it on.
    outstanding_rows_max: int = 2**20
    outstanding_bytes_max: int = 256 * 2**20
    #: How many rows of a subscription may wait here for the program.
    credit_rows: int = 131_072
    #: How long a taken event may stay unacknowledged. Nothing waits for it: the log keeps the event longer,
    #: and of a subscription with a name, this is what a program that dies gets again.
    ack_s: float = 10.0
    ack_named_s: float = 1.0
    #: How long leaving a client waits for the receipts that are missing.
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
                raise ParameterError("E191", f"option '{field.name}' must be more than zero, got {value!r}")


DEFAULTS = Options()
