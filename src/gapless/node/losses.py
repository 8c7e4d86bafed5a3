"""What has a named subscription lost, and its edge never heard of? What was released and not acked from here.

A pubend releases only what every edge has acked. So an edge that is granted a later start than it asked for
has acked everything in between that it needed, in its last life, and nothing is missing. There are two
exceptions, and the pubend tells of both:

- The folder of the edge is an older copy. Then the pubend has seen a later life than the folder knows of.
- The log of the pubend was cut short, and its operator has accepted that.

Then events may be gone that named subscriptions need, and their clients have to be told. A loss is kept until
the client has acknowledged something beyond it, so that no restart in between makes it silent.

Implements docs/protocol.md, section 9.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from gapless.model.epochs import LIFE_STEP, incarnation_of
from gapless.model.ids import PubendId
from gapless.model.ticks import TICK_MIN, Tick
from gapless.node.logs import event_log
from gapless.protocol.effects import ConfirmSubscription
from gapless.store.recovery import RecoveryDatabase

log = event_log("gapless.losses")

_LOST_KEY = "lost"
_lost = msgspec.msgpack.Decoder(dict[str, dict[str, tuple[int, int]]])


class Losses:
    """What the named subscriptions of an edge have lost, and have not been told of."""

    def __init__(self, database: RecoveryDatabase | None = None, life_before: int = 0) -> None:
        """`life_before` is the last incarnation that the folder knew of when the node started."""
        self._life_before = life_before
        #: By the name of a subscription and pubend, the ticks that it may have lost.
        self._lost: dict[str, dict[PubendId, tuple[Tick, Tick]]] = {}
        told = None if database is None else database.meta(_LOST_KEY)
        if told is not None:
            self._lost = {
                name: {PubendId(pubend): ticks for pubend, ticks in lost.items()}
                for name, lost in _lost.decode(told).items()
            }

    def granted(self, name: str, position: Tick, effect: ConfirmSubscription) -> bool:
        """A subscription of an earlier life goes on; says whether something is lost by that."""
        # A life with very many changes runs a little into the numbers of the next one.
        is_older_copy = incarnation_of(effect.seen) > self._life_before + LIFE_STEP // 2
        if effect.start <= position or not (is_older_copy or position < effect.lost_before):
            return False
        lost = self._lost.setdefault(name, {})
        first, _ = lost.get(effect.pubend, (position, effect.start))
        lost[effect.pubend] = (first, effect.start)
        reason = "the folder is an older copy" if is_older_copy else "the log of the pubend was cut short"
        log.warning(
            "ticks_lost", name=name, pubend=effect.pubend, start=first, stop=effect.start, reason=reason
        )
        return True

    def of(self, name: str, pubend: PubendId) -> tuple[Tick, Tick] | None:
        """The ticks that a subscription may have lost, and whose client has not come beyond them."""
        return self._lost.get(name, {}).get(pubend)

    def moved(self, name: str, positions: Mapping[PubendId, Tick]) -> bool:
        """A client has acknowledged so much; says whether it has come beyond a loss."""
        lost = self._lost.get(name)
        if lost is None:
            return False
        over = [pubend for pubend, (_, stop) in lost.items() if positions.get(pubend, TICK_MIN) > stop]
        for pubend in over:
            del lost[pubend]
        if not lost:
            del self._lost[name]
        return bool(over)

    def forget(self, name: str) -> None:
        """The subscription is over."""
        self._lost.pop(name, None)

    def write(self) -> Callable[[RecoveryDatabase], None]:
        """What puts all of this, as it is now, into a database."""
        lost = msgspec.msgpack.encode(self._lost)
        return lambda database: database.put_meta(_LOST_KEY, lost)
