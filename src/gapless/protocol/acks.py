"""What may be acked upstream? The acks of all ostreams and of the local subends, folded into one.

A tick is acked upstream only when nobody below needs it: the slowest decides. The parts speak of
different edges, so the folded stamp of a tick names the edges of all parts.

Implements docs/protocol.md, section 7.
"""

from __future__ import annotations

from collections.abc import Sequence

from gapless.model.epochs import Epochs
from gapless.model.ticks import TICK_MIN, Tick

AckRuns = tuple[tuple[Tick, Epochs], ...]


def folded(parts: Sequence[Sequence[tuple[Tick, Epochs]]]) -> AckRuns:
    """The prefix that all parts have acked, with the epochs of all of them.

    >>> from gapless.model.ids import BrokerId
    >>> one = [(10, Epochs({BrokerId("s1"): 4}))]
    >>> two = [(6, Epochs({BrokerId("s2"): 7})), (12, Epochs({BrokerId("s2"): 8}))]
    >>> [(stop, str(stamp)) for stop, stamp in folded([one, two])]
    [(6, 's1:0.4 s2:0.7'), (10, 's1:0.4 s2:0.8')]
    """
    if not parts or not all(parts):
        return ()
    limit = min(part[-1][0] for part in parts)
    stops = sorted({min(stop, limit) for part in parts for stop, _ in part})
    out: list[tuple[Tick, Epochs]] = []
    at = [0] * len(parts)
    previous = TICK_MIN
    for stop in stops:
        stamp: Epochs | None = None
        for i, part in enumerate(parts):
            while part[at[i]][0] <= previous:
                at[i] += 1
            here = part[at[i]][1]
            stamp = here if stamp is None else stamp.join(here)
        assert stamp is not None
        if out and out[-1][1] == stamp:
            out[-1] = (stop, stamp)
        else:
            out.append((stop, stamp))
        previous = stop
    return tuple(out)
