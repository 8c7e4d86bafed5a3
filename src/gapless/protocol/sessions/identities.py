"""Whose is a publisher identity, and when may it be forgotten? Owners and quotas, for all pubends of a node.

An identity belongs to the principal that first published under it at a pubend. When nobody can be that
principal any more, it goes to the first who uses it. Forgetting an identity risks storing a resent event
twice. So one is forgotten only when its principal has used up its quota, only the least recently active, and
only after the time within which clients resend. If there is none like that, new identities are refused.

A client that was given no identity makes one, for as long as it runs: such a *temporary* identity may be
forgotten sooner than one that a program has chosen and may come back to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gapless.errors import UsageError
from gapless.model.notes import Hole
from gapless.model.ticks import Tick
from gapless.protocol.sessions.messages import RESEND_HOURS_MAX

if TYPE_CHECKING:
    from gapless.protocol.sessions.publishers import Publishers

_HOUR: Tick = 3_600_000_000
#: A temporary identity is kept for so long after its last event: clients stop resending an hour earlier.
TEMPORARY_KEPT: Tick = (RESEND_HOURS_MAX + 1) * _HOUR
#: The default of `limits.principal_publishers_max` and `limits.publisher_days_min`.
PUBLISHERS_MAX = 200_000
PUBLISHER_DAYS_MIN = 7

#: The principal of everybody who shows neither a token nor a certificate.
ANONYMOUS = "anonymous"


@dataclass(slots=True, eq=False)
class Identity:
    """What is known of one publisher at one pubend. Changed by `Publishers` only."""

    name: str
    #: Where it belongs.
    pubend: Publishers
    #: The principal whose it is; None when nobody's, until somebody uses it.
    owner: str | None
    is_temporary: bool
    #: The tick of its last durable event; before there is one, the time when it came.
    tick: Tick = 0
    #: The number of the last event that was accepted, durable or on its way.
    accepted: int = -1
    #: The number of the last event that is durable.
    durable: int = -1
    #: Numbers up to `accepted` that are not known to be stored, ascending: they are refused for good.
    holes: tuple[Hole, ...] = ()
    #: Until an event with this number is durable, notes tell everything and not just a number.
    changed: int = 0
    #: The number that was refused for the time being and must come before any later one, unless the
    #: publisher names the number before; None when there is none.
    awaited: int | None = None


@dataclass(slots=True)
class _Owned:
    """The identities of one principal, those silent for longest first."""

    temporary: dict[Identity, None] = field(default_factory=dict)
    chosen: dict[Identity, None] = field(default_factory=dict)

    def of(self, identity: Identity) -> dict[Identity, None]:
        return self.temporary if identity.is_temporary else self.chosen


class PublisherIdentities:
    """All identities that a node knows, by their owners."""

    def __init__(
        self,
        *,
        publishers_max: int = PUBLISHERS_MAX,
        publisher_days_min: int = PUBLISHER_DAYS_MIN,
        is_gone: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """`is_gone` says of a principal whether nobody can be it any more, as the network is now."""
        self._publishers_max = publishers_max
        self._chosen_kept = max(publisher_days_min * 24 * _HOUR, TEMPORARY_KEPT)
        self._is_gone = is_gone
        self._owned: dict[str | None, _Owned] = {}

    def check_owner(self, identity: Identity, principal: str) -> None:
        """Raise UsageError when it belongs to somebody else."""
        if identity.owner != principal and not self._is_free(identity):
            raise UsageError(
                "E103",
                f"publisher '{identity.name}' belongs to another principal: use an identity of your own, "
                "or have an operator release it",
            )

    def make(
        self, pubend: Publishers, name: str, principal: str, now: Tick, *, is_temporary: bool
    ) -> Identity:
        """A new identity. Raises UsageError when the principal may have no more."""
        self._make_room(principal, now)
        made = Identity(name, pubend, principal, is_temporary, tick=now)
        self.add(made)
        return made

    def adopt(self, identity: Identity, principal: str, now: Tick) -> None:
        """An identity that is nobody's belongs to this principal now. Raises UsageError for one too many."""
        assert self._is_free(identity), f"'{identity.name}' of {identity.owner} is taken by {principal}"
        self._make_room(principal, now)
        self.give(identity, principal)

    def give(self, identity: Identity, principal: str | None) -> None:
        """It belongs to this principal now; with None it is nobody's, until somebody uses it."""
        del self._owned[identity.owner].of(identity)[identity]
        identity.owner = principal
        self.add(identity)

    def add(self, identity: Identity) -> None:
        """One that was remembered."""
        self._owned.setdefault(identity.owner, _Owned()).of(identity)[identity] = None

    def heard(self, identity: Identity) -> None:
        """It published: it is the most recently active one now."""
        kept = self._owned[identity.owner].of(identity)
        del kept[identity]
        kept[identity] = None

    def sort(self) -> None:
        """All that was remembered is there."""
        for owned in self._owned.values():
            owned.temporary = dict.fromkeys(sorted(owned.temporary, key=_tick))
            owned.chosen = dict.fromkeys(sorted(owned.chosen, key=_tick))

    def count(self, principal: str | None) -> int:
        """How many identities a principal has."""
        owned = self._owned.get(principal)
        return 0 if owned is None else len(owned.temporary) + len(owned.chosen)

    def _is_free(self, identity: Identity) -> bool:
        # Where everybody has a token, those who had none will never come back for what they made.
        return identity.owner is None or self._is_gone(identity.owner)

    def _make_room(self, principal: str, now: Tick) -> None:
        """Forget one identity if the principal has as many as it may. Raises UsageError when none can go."""
        if self.count(principal) < self._publishers_max:
            return
        owned = self._owned[principal]
        for kept, kept_for in ((owned.temporary, TEMPORARY_KEPT), (owned.chosen, self._chosen_kept)):
            oldest = next(iter(kept), None)
            # What has events on its way to the disk is not silent.
            if oldest is not None and oldest.accepted <= oldest.durable and oldest.tick < now - kept_for:
                del kept[oldest]
                oldest.pubend.forget(oldest)
                return
        raise UsageError(
            "E104",
            f"{self._publishers_max} publisher identities are in use, and none was silent for long enough: "
            "use those again, or raise limits.principal_publishers_max",
        )


def _tick(identity: Identity) -> Tick:
    return identity.tick
