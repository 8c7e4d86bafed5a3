"""What can an outsider see of a network? The moments that the world reports, as plain values.

Checkers, the workload and the recorder of the paper's experiments all listen here. They see what
really happened (flushed, taken, sent), never the inside of a broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gapless.sim.conditions import Condition, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a subscriber asked for."""

    subscription: str
    edge: str
    topic: str
    condition: Condition
    #: Total order over all pubends of the topic instead of the order of each.
    total: bool
    #: The earliest tick that is wanted, None for "from now on".
    wanted: int | None


class Observer:
    """Listens to a world. Every method does nothing until a subclass says otherwise."""

    def stepped(self, broker: str) -> None:
        """Something is about to happen to a broker: what is reported until the next step is one moment."""

    def durable(self, pubend: str, ticks: Sequence[int], rows: Sequence[Row]) -> None:
        """These events are on the disk now, and survive whatever comes."""

    def accepted(self, pubend: str, ids: Sequence[int], ticks: Sequence[int]) -> None:
        """A publisher was told that its rows are published, with these ticks."""

    def releasing(self, pubend: str, before: int) -> None:
        """The log was told that nobody needs the events below `before`; nobody else was yet."""

    def released(self, pubend: str, before: int) -> None:
        """The log of the pubend says durably that nobody needs the events below `before`."""

    def rows_sent(self, sender: str, receiver: str, cell: str, pubend: str, ticks: Sequence[int]) -> None:
        """Data rows were sent, on their way to `cell`: that of `receiver`, or one behind its back."""

    def nack_sent(self, sender: str, receiver: str, pubend: str, start: int, stop: int) -> None:
        """A broker asked for the ticks `start..stop`."""

    def subscribed(self, wish: Wish) -> None:
        """A subscriber asks for something, and is alive from now on."""

    def confirmed(self, subscription: str, pubend: str, start: int) -> None:
        """The subscriber was told that it gets everything from `start` on."""

    def changing(self, subscription: str, condition: Condition) -> None:
        """A subscriber asks for other events from some tick on."""

    def changed(self, subscription: str, pubend: str, condition: Condition, since: int) -> None:
        """The subscriber was told that this condition decides of the events from `since` on."""

    def taken(self, subscription: str, pubend: str, tick: int, row_id: int) -> None:
        """The subscriber took an event from its queue."""

    def ended(self, subscription: str) -> None:
        """The subscriber went away, or its broker crashed."""

    def crashed(self, broker: str) -> None:
        """A broker lost all that was not on its disk."""

    def restarted(self, broker: str) -> None:
        """A broker runs again."""

    def weighed(self, broker: str, row_bytes: int, runs: int) -> None:
        """How much a broker holds, looked at now and then."""
