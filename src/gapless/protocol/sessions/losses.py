"""What has a named subscription lost, and its edge never heard of? What was released and not acked from here.

A pubend releases only what every edge has acked. So an edge that is granted a later start than it asked for
has acked everything in between that it needed, in its last life, and nothing is missing. There are
three exceptions, and the pubend tells of all of them:

- The folder of the edge is an older copy. Then the pubend has seen a life that did not begin from it.
- The log of the pubend was cut short, and its operator has accepted that.
- The pubend has lost its log, and has begun another.

Then events may be gone that named subscriptions need, and their clients have to be told. A loss is kept until
the client has acknowledged something beyond it, so that no restart in between makes it silent. For the same
reason the disk says what each pubend was heard to say last: a life may end before it hears anything, and the
next one has to find the older copy all the same.

Implements docs/protocol.md, sections 9 and 14.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from gapless.model.epochs import LIFE_STEP
from gapless.model.ids import PubendId
from gapless.model.ticks import TICK_MIN, Tick
from gapless.protocol.effects import ConfirmSubscription
from gapless.protocol.messages import LIVES_TOLD_MAX

#: By the name of a subscription and pubend, the ticks that it may have lost.
Lost: TypeAlias = dict[str, dict[PubendId, tuple[Tick, Tick]]]
#: Lives of a folder that are remembered; beyond, the second oldest is forgotten, and may seem foreign.
OWN_LIVES_MAX = 256


def with_life(lives: Sequence[int], life: int) -> tuple[int, ...]:
    """The lives that began from a folder, oldest first, with one more."""
    first, *later = (*lives, life)
    return (first, *later[1 - OWN_LIVES_MAX :])


class LossBook:
    """What the named subscriptions of an edge have lost, and have not been told of."""

    def __init__(
        self,
        lost: Lost,
        logs: Mapping[PubendId, str],
        lives: Sequence[int] = (),
        heard: Mapping[PubendId, int] | None = None,
    ) -> None:
        """As the disk has it. `lives` are those that began from the folder, up to this one, oldest first."""
        self.lost = lost
        #: Per pubend the log that the positions of named subscriptions are in.
        self.logs = dict(logs)
        #: Per pubend the last life in which it confirmed all names: what it told then of others is noted.
        self.heard = dict(heard or {})
        self._lives = tuple(lives) or (0,)
        #: Per pubend and name the log that is read now.
        self._reading: dict[PubendId, dict[str, str]] = {}
        #: Per pubend the names of earlier lives that it has not confirmed in this one.
        self._unheard: dict[PubendId, set[str]] = {}

    def restored(self, name: str, pubends: Iterable[PubendId]) -> None:
        """A name of an earlier life goes on, and these pubends are going to confirm it."""
        for pubend in pubends:
            self._unheard.setdefault(pubend, set()).add(name)

    def confirmed(self, name: str, position: Tick | None, effect: ConfirmSubscription) -> bool:
        """A named subscription is confirmed; says whether the disk has to know.

        `position` is where an earlier life of this edge had it.
        """
        pubend = effect.pubend
        self._reading.setdefault(pubend, {})[name] = effect.log
        is_lost = effect.lost_from is not None or position is not None
        is_lost = is_lost and self.granted(name, effect.start if position is None else position, effect)
        self._hear(name, [pubend])
        is_news = pubend not in self._unheard and self.heard.get(pubend) != self._lives[-1]
        return is_lost or is_news or pubend not in self.logs

    def _hear(self, name: str, pubends: Iterable[PubendId]) -> None:
        for pubend in pubends:
            if pubend in self._unheard:
                self._unheard[pubend].discard(name)
                if not self._unheard[pubend]:
                    del self._unheard[pubend]

    def settle(self) -> None:
        """Before all of this is written down: which logs are the positions in, and who was heard?"""
        for pubend, by_name in self._reading.items():
            if pubend not in self._unheard:
                self.heard[pubend] = self._lives[-1]
            # While some have not been told, all of them seem to read the old log: those are told twice.
            if len(logs := set(by_name.values())) == 1:
                self.logs[pubend] = logs.pop()

    def granted(self, name: str, position: Tick, effect: ConfirmSubscription) -> bool:
        """A subscription of an earlier life goes on; says whether something is lost by that."""
        if effect.lost_from is not None:
            self._lose(name, effect, effect.lost_from, "the pubend has begun another log")
            return True
        is_older_copy = self._is_older_copy(effect)
        if effect.start <= position or not (is_older_copy or position < effect.lost_before):
            return False
        reason = "the folder is an older copy" if is_older_copy else "the log of the pubend was cut short"
        self._lose(name, effect, position, reason)
        return True

    def _is_older_copy(self, effect: ConfirmSubscription) -> bool:
        """Whether the pubend knows of a life that the folder does not, and that was not noted before."""
        heard = self.heard.get(effect.pubend, self._lives[0])
        since = [life for life in effect.lives if life > heard]
        # There may have been more of them than it tells.
        is_cut = len(since) >= LIVES_TOLD_MAX
        # A life with very many changes runs a little into the numbers of the next one.
        reach = LIFE_STEP // 2
        return is_cut or any(not any(own <= life <= own + reach for own in self._lives) for life in since)

    def _lose(self, name: str, effect: ConfirmSubscription, lost_from: Tick, reason: str) -> None:  # noqa: ARG002
        lost = self.lost.setdefault(name, {})
        first, _ = lost.get(effect.pubend, (lost_from, effect.start))
        lost[effect.pubend] = (min(first, lost_from), effect.start)

    def of(self, name: str, pubend: PubendId) -> tuple[Tick, Tick] | None:
        """The ticks that a subscription may have lost, and whose client has not come beyond them."""
        return self.lost.get(name, {}).get(pubend)

    def untold(self, name: str, pubend: PubendId, start: Tick, began: Tick) -> tuple[Tick, Tick | None]:
        """Where a client that wants to go on at `start` does so, and from where on it has lost something.

        The log began at the tick `began`. What the client was told it may have forgotten; if it has not, it
        knows which log it is in, and takes no notice.
        """
        lost = self.of(name, pubend)
        if lost is None or start == lost[1]:
            return start, None
        lost_from, stop = lost
        if lost_from > began:
            return (start, None) if start > stop else (stop, max(start, lost_from))
        # Of another log. Whoever read an older copy before anybody knew may have come beyond the loss.
        return max(start, stop), max(lost_from, min(start, began))

    def moved(self, name: str, positions: Mapping[PubendId, Tick]) -> bool:
        """A client has acknowledged so much; says whether it has come beyond a loss."""
        lost = self.lost.get(name)
        if lost is None:
            return False
        over = [pubend for pubend, (_, stop) in lost.items() if positions.get(pubend, TICK_MIN) > stop]
        for pubend in over:
            del lost[pubend]
        if not lost:
            del self.lost[name]
        return bool(over)

    def forget(self, name: str) -> bool:
        """The subscription is over; says whether the disk has to know."""
        is_known = self.lost.pop(name, None) is not None
        for by_name in self._reading.values():
            by_name.pop(name, None)
        self._hear(name, list(self._unheard))
        return is_known
