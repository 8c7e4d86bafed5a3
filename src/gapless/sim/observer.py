"""What can an outsider see of a network? The moments that the world reports, as plain values.

Checkers, the workload and the recorder of the paper's experiments all listen here. They see what
really happened (flushed, taken, sent), never the inside of a broker.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gapless.model.ids import PubendId
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Advertised:
    """What a broker told the next cell towards a root: what is wanted at and below it, or a part of that."""

    broker: str
    root: str
    version: int
    #: The version that this is the difference to; None when it is whole.
    base: int | None
    #: Pairs of a topic and a condition, which is nothing but a name here.
    added: Collection[tuple[str, object]]
    removed: Collection[tuple[str, object]]
    #: How many pairs all parts name together; None when this is the only part.
    total: int | None


class Observer:
    """Listens to a world. Every method does nothing until a subclass says otherwise."""

    def stepped(self, broker: str) -> None:
        """Something is about to happen to a broker: what is reported until the next step is one moment."""

    def durable(self, pubend: str, ticks: Sequence[int], rows: Sequence[Row]) -> None:
        """These events are on the disk now, and survive whatever comes."""

    def accepted(self, pubend: str, ids: Sequence[int], ticks: Sequence[int]) -> None:
        """A publisher was told that its rows are published, with these ticks."""

    def numbered(self, program: str, identity: str, number: int, row_id: int) -> None:
        """A program publishes a row under this identity and number, and will not publish another under it."""

    def receipted(self, program: str, number: int, pubend: str, tick: int | None) -> None:
        """A program was told that its event is stored: at this tick, or at one that nobody knows any more."""

    def unpublished(self, program: str, number: int, code: str, *, retry: bool) -> None:
        """A program was told that its event is not stored. With `retry` it might have been, later."""

    def program_restarted(self, program: str, first: int) -> None:
        """A program died and publishes again what it had from this number on, refused or not."""

    def program_ended(self, program: str) -> None:
        """A program is gone for good, with all that it had not heard of."""

    def releasing(self, pubend: str, before: int) -> None:
        """The log was told that nobody needs the events below `before`; nobody else was yet."""

    def released(self, pubend: str, before: int) -> None:
        """The log of the pubend says durably that nobody needs the events below `before`."""

    def rows_sent(self, sender: str, receiver: str, cell: str, pubend: str, ticks: Sequence[int]) -> None:
        """Data rows were sent, on their way to `cell`: that of `receiver`, or one behind its back."""

    def nack_sent(self, sender: str, receiver: str, pubend: str, start: int, stop: int) -> None:
        """A broker asked for the ticks `start..stop`."""

    def silence_sent(
        self, sender: str, receiver: str, cell: str, pubend: str, spans: Sequence[tuple[int, int]]
    ) -> None:
        """Knowledge without a row was sent, on its way to `cell`; the last span is the final past."""

    def knowledge_heard(self, broker: str, pubend: str, spans: Sequence[tuple[int, int]]) -> None:
        """A broker was told about these ticks."""

    def ack_sent(self, sender: str, pubend: str, before: int) -> None:
        """A broker said that nobody below it needs the ticks below `before`."""

    def advertised(self, said: Advertised) -> None:
        """A broker told the next cell what is wanted."""

    def flushed(self, pubend: str, written: Sequence[str]) -> None:
        """Records of these kinds became durable."""

    def subscribed(self, wish: Wish) -> None:
        """A subscriber asks for something, and is alive from now on."""

    def confirmed(self, subscription: str, pubend: str, start: int, log: str = "") -> None:
        """The subscriber was told that it gets everything from `start` on."""

    def log_began(self, pubend: str, log: str) -> None:
        """From now on the pubend has this log."""

    def log_heard(self, broker: str, pubend: str, log: str, life: int) -> None:
        """A broker hears of this log of a pubend, as of a life of its host; it believes later lives only."""

    def log_lost(self, pubend: str, kept: Sequence[int], *, noticeable: bool) -> None:
        """The log of a pubend has lost all events but those with the ticks `kept`.

        It is `noticeable` when another log takes its place, and not when it became an older copy of itself:
        of that others may know no more than is left.
        """

    def reads(self, subscription: str, pubend: str, log: str) -> None:
        """The subscriber gets the events of this log from now on."""

    def gap(self, subscription: str, pubend: str, lost_from: int, start: int) -> None:
        """The subscriber was told that it gets nothing from `lost_from` on until `start`.

        That is released, or lost with a log in whose place another has begun.
        """

    def changing(self, subscription: str, condition: Condition) -> None:
        """A subscriber asks for other events from some tick on."""

    def asked(self, subscription: str, condition: Condition) -> None:
        """A subscriber asks an edge for all that any of its conditions needs which may still decide."""

    def changed(self, subscription: str, pubend: str, condition: Condition, since: int) -> None:
        """The subscriber was told that this condition decides of the events from `since` on."""

    def taken(self, subscription: str, pubend: str, tick: int, row_id: int) -> None:
        """The subscriber took an event from its queue."""

    def roamed(self, subscription: str, edge: str) -> None:
        """The subscriber has connected to an edge."""

    def held(self, subscription: str, holder: str, *, is_named: bool) -> None:
        """The subscriber was told by all pubends that its subscription stands, and an edge holds it."""

    def let_go(self, holder: str) -> None:
        """An edge has forgotten a subscription whose client was gone for too long, or has crashed."""

    def change_heard(self, holder: str) -> None:
        """An edge has heard of a change of a subscription; its client may never hear from when on."""

    def name_lost(self, subscription: str, *, is_gone: bool) -> None:
        """The folder of its edge is lost, and with it a named subscription, or it is an older copy."""

    def horizon(self, subscription: str, before: Mapping[PubendId, int]) -> None:
        """The subscriber was told that it has everything below these ticks."""

    def reborn(self, subscription: str, pubend: str, start: int) -> None:
        """A subscriber without a memory was told where its name goes on."""

    def credit(self, subscription: str, rows: int, *, is_new: bool) -> None:
        """The subscriber has room for so many rows on this connection, or for so many more."""

    def rows_arrived(self, subscription: str, rows: int) -> None:
        """Rows have come to the subscriber, repeated ones included."""

    def arrived(self, subscription: str, pubend: str, row_id: int) -> None:
        """A row has come to the subscriber that it did not have."""

    def finished(self, subscription: str, pubend: str, tick: int) -> None:
        """The program is done with an event."""

    def acknowledged(self, subscription: str, positions: Mapping[PubendId, int]) -> None:
        """The subscriber says that it needs nothing below these ticks."""

    def ended(self, subscription: str) -> None:
        """The subscriber went away, or its broker crashed."""

    def crashed(self, broker: str) -> None:
        """A broker lost all that was not on its disk."""

    def restarted(self, broker: str) -> None:
        """A broker runs again."""

    def weighed(self, broker: str, row_bytes: int, runs: int) -> None:
        """How much a broker holds, looked at now and then."""
