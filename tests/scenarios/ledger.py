"""Did subscribers get what they were promised? An outside judge that shares no code with the machines.

It knows what is durable in the logs and what each subscriber took, and objects at the first event that
comes twice, out of order, without matching, without being durable, or while an earlier one is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Row = Mapping[str, int]


@dataclass(slots=True)
class Account:
    """What one subscription was promised and what it took."""

    accepts: Callable[[Row], bool]
    total: bool
    #: What it asked for instead, in this order; and per pubend the ticks from which on each decides.
    changes: list[Callable[[Row], bool]] = field(default_factory=list)
    changed: dict[str, list[int]] = field(default_factory=dict)
    #: Per pubend the confirmed start.
    starts: dict[str, int] = field(default_factory=dict)
    taken: list[tuple[str, int]] = field(default_factory=list)

    def wants(self, pubend: str, tick: int, row: Row) -> bool:
        """Whether the condition that decides of the tick accepts the row."""
        passed = [since for since in self.changed.get(pubend, []) if since <= tick]
        return (self.changes[len(passed) - 1] if passed else self.accepts)(row)


@dataclass(slots=True)
class Ledger:
    """All events that are durable, and all accounts."""

    #: Per pubend the durable events. Never trimmed: what is released was still published.
    published: dict[str, dict[int, Row]] = field(default_factory=dict)
    accounts: dict[str, Account] = field(default_factory=dict)

    def durable(self, pubend: str, tick: int, row: Row) -> None:
        """The event has reached the disk."""
        rows = self.published.setdefault(pubend, {})
        assert tick not in rows, f"{pubend} {tick} was given to two events"
        assert all(other < tick for other in rows), f"{pubend} {tick} was published after a later tick"
        rows[tick] = row

    def take(self, subscription: str, pubend: str, tick: int) -> None:
        """A subscriber took an event; raise if it should not have got it, or not now."""
        account = self.accounts[subscription]
        name = f"{subscription} took {pubend} {tick}"
        rows = self.published.get(pubend, {})
        assert tick in rows, f"{name}, which is not durable"
        assert account.wants(pubend, tick, rows[tick]), f"{name}, which does not match"
        assert pubend in account.starts, f"{name} before it was confirmed"
        start = account.starts[pubend]
        assert tick >= start, f"{name}, before its start {start}"
        before = [t for p, t in account.taken if p == pubend]
        assert not before or before[-1] < tick, f"{name} after {before[-1]}"
        missing = [
            (p, t)
            for p, t in self.missing(subscription)
            if (p == pubend and t < tick) or (account.total and (t, p) < (tick, pubend))
        ]
        assert not missing, f"{name} but never {missing}"
        if account.total and account.taken:
            last_pubend, last_tick = account.taken[-1]
            assert (last_tick, last_pubend) < (tick, pubend), f"{name} after {last_pubend} {last_tick}"
        account.taken.append((pubend, tick))

    def missing(self, subscription: str) -> list[tuple[str, int]]:
        """The matching events that a subscriber has still not taken."""
        account = self.accounts[subscription]
        return [
            (pubend, tick)
            for pubend, start in sorted(account.starts.items())
            for tick, row in self.published.get(pubend, {}).items()
            if tick >= start and account.wants(pubend, tick, row) and (pubend, tick) not in account.taken
        ]
