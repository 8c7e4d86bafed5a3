"""What does a subscription not get? Ticks that are no longer kept, or that went with a log that was lost.

Implements docs/protocol.md, sections 14 and 15.
"""

from __future__ import annotations

from typing import NamedTuple

from gapless.model.ids import PubendId
from gapless.model.ticks import TICK_MIN, Tick
from gapless.protocol.sessions.messages import Confirmed


class Gap(NamedTuple):
    """Ticks that the network no longer keeps. If there were events among them, they are not delivered."""

    pubend: PubendId
    start: Tick
    stop: Tick


def gap_before(confirmed: Confirmed, asked: Tick | None, log: str | None) -> tuple[Gap, str] | None:
    """The gap before a start, and what became of its ticks; None if there is none.

    `asked` is the position of the subscription, and `log` the log that it is in, if that is known.
    """
    pubend, start, began = confirmed.pubend, confirmed.start, confirmed.began
    if asked is not None and log not in (None, confirmed.log):
        # An event below what arrived of the old log would be taken for one of those.
        lost_from = asked if began == TICK_MIN else min(asked, began)
        return Gap(pubend, lost_from, max(start, began, asked + 1)), "began another log and has lost"
    if asked is None:
        return None
    # A client that does not know which log its position is in has perhaps come past what is lost.
    lost_from = asked if log is not None or confirmed.lost_from is None else min(asked, confirmed.lost_from)
    return None if start <= lost_from else (Gap(pubend, lost_from, start), "no longer keeps")
