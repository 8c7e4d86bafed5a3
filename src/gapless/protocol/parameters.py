"""Which numbers steer the protocol? Every parameter, with its unit, default and bounds.

The names of the paper stand in the comments. Durations are in milliseconds; 0 never means
"infinite": where a duration may be infinite, it may be None, written "infinite" in a description.

Implements docs/protocol.md, section 11.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields

from gapless.errors import ParameterError

#: The parameters that may be None, which is written "infinite".
_MAY_BE_INFINITE = frozenset({"delay_curiosity_ms"})
#: No parameter is higher.
VALUE_MAX = 2**40


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """The liveness parameters and the bounds of one network."""

    #: GCT: how long a subend waits for a gap to close by itself before it asks.
    gap_curiosity_ms: int = 200
    #: The least time between two nacks for one tick, and the first guess of NRT.
    nack_repeat_min_ms: int = 600
    #: Maximum of NRT after backing off.
    nack_repeat_max_ms: int = 20_000
    #: DCT: how far a doubt horizon may trail the clock before the subend asks. None: for ever.
    delay_curiosity_ms: int | None = None
    #: AET: how old an unacked tick may be before the pubend asks for its ack.
    ack_expected_ms: int = 10_000
    #: How long a pubend may publish nothing before it turns the time since into silence.
    idle_silence_ms: int = 1_000
    #: How many milliseconds of ticks a pubend reserves in its log ahead of its silence.
    reserve_ms: int = 1_000
    #: How far publishing may run ahead of time, at more than one event per tick, before it is refused.
    publish_ahead_ms: int = 1_000
    #: How far beyond its clock a pubend follows the ticks of others; no longer leap of a clock is believed.
    ticks_ahead_ms: int = 86_400_000
    #: Minimum time between two acks of one pubend.
    ack_delay_ms: int = 50
    #: How often subscribers that roam are told how far they are, when they do not know it from their events.
    horizon_ms: int = 5_000
    #: How often brokers tell their neighbours which cells they reach.
    link_status_ms: int = 1_000
    #: How long a neighbour may be silent before it is considered dead.
    link_silent_ms: int = 5_000
    #: How long an advertisement or a start request waits for its answer before it is repeated.
    advertise_repeat_ms: int = 500
    #: Approximate maximum number of ticks in one nack; longer ranges are split.
    nack_ticks_max: int = 500_000
    #: Approximate maximum number of nacks into which a range is split.
    nack_parts_max: int = 16
    #: Maximum number of rows in one message, one read of the log or one delivery.
    message_rows_max: int = 16_384
    #: Maximum number of rows handed out in one step, counted once per subscriber; one event may exceed it.
    step_pairs_max: int = 131_072
    #: Maximum number of conditions in one advertisement; more travel in parts.
    message_conditions_max: int = 512
    #: Maximum work per step for comparing conditions, in units of about a microsecond.
    compare_work_max: int = 10_000
    #: Maximum work per step for beginning granted subscriptions, in the same units.
    place_work_max: int = 3_000
    #: Maximum bytes of data rows that one stream keeps; beyond, it forgets.
    stream_bytes_max: int = 64 * 2**20
    #: Maximum bytes of data rows that all streams of a broker keep together; beyond, the largest forgets.
    broker_bytes_max: int = 128 * 2**20
    #: Maximum number of runs that one stream keeps; beyond, it forgets.
    stream_runs_max: int = 4_096
    #: Maximum number of untaken deliveries of one group, or of one laggard; then no more is handed out.
    deliveries_waiting_max: int = 65_536

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is None and each.name in _MAY_BE_INFINITE:
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise ParameterError("E120", f"parameter '{each.name}' must be a whole number, got {value!r}")
            if not 1 <= value <= VALUE_MAX:
                raise ParameterError(
                    "E121", f"parameter '{each.name}' must be from 1 to {VALUE_MAX}, got {value}"
                )
        if self.nack_repeat_max_ms < self.nack_repeat_min_ms:
            raise ParameterError(
                "E121",
                f"parameter 'nack_repeat_max_ms' ({self.nack_repeat_max_ms}) is below "
                f"'nack_repeat_min_ms' ({self.nack_repeat_min_ms})",
            )

    @property
    def questions_open_max(self) -> int:
        """How many parts an edge asks for at a time, for laggards and for the others each.

        Answers may come in any order, and each may be a run of its own besides what is known already.
        """
        return max(1, self.stream_runs_max // 4)

    @property
    def question_parts_max(self) -> int:
        """Into how many parts about it splits what it asks for at once."""
        return min(self.nack_parts_max, self.questions_open_max)

    @staticmethod
    def parse(values: Mapping[str, object]) -> Parameters:
        """Parameters from names and values; those not named keep their defaults.

        Raises ParameterError naming the parameter.
        """
        known = {each.name for each in fields(Parameters)}
        for name in values:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f": did you mean '{close[0]}'?" if close else f": there are {', '.join(sorted(known))}"
                raise ParameterError("E122", f"unknown parameter {name!r}{hint}")
        given = {
            name: None if value == "infinite" and name in _MAY_BE_INFINITE else value
            for name, value in values.items()
        }
        return Parameters(**given)  # type: ignore[arg-type]  # __post_init__ checks the types
