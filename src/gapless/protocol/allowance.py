"""How much may one step hand out? So many rows, counted once for each subscriber that gets them.

What a step costs depends on its rows and on how many subscribers want each of them. One client may have
thousands of subscriptions to everything, so a bound for the rows alone is no bound. What a step leaves is
handed out by the next ones: the broker asks to be woken at once, and the host serves others in between.

Implements docs/protocol.md, section 10.
"""

from __future__ import annotations

from dataclasses import dataclass

#: What it takes to hand anything to a laggard, or to find that there is nothing, in rows.
LAGGARD_ROWS = 2_048


@dataclass(slots=True)
class Allowance:
    """What is left of one step."""

    #: Rows for members, once for each that gets them.
    pairs: int
    #: Rows that laggards are asked whether they want, and `LAGGARD_ROWS` for each of these laggards.
    laggard_rows: int

    @staticmethod
    def of(pairs_max: int) -> Allowance:
        """A new step: neither members nor laggards live at the expense of the others."""
        return Allowance(pairs_max, pairs_max)
