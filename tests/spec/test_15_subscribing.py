"""Section 15 of docs/protocol.md: the two halves of a subscriber's session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest

from gapless.content.condition import EVERYTHING, Condition
from gapless.content.language import parse_condition
from gapless.errors import StoreError
from gapless.model.batch import EventBatch
from gapless.model.ids import PubendId, SubscriptionId, TopicId
from gapless.model.schema import Schema
from gapless.model.ticks import TICKS_PER_MS, Tick
from gapless.protocol.effects import ConfirmChange, ConfirmSubscription, Deliver, TellHorizon
from gapless.protocol.events import (
    DeliveryTaken,
    FilterChangeRequested,
    RoamersReached,
    SubscribeRequested,
    SubscriberSlow,
    UnsubscribeRequested,
)
from gapless.protocol.figures import AHEAD_MS_MAX
from gapless.protocol.messages import AckMessage
from gapless.protocol.sessions.arrivals import ArrivedRows
from gapless.protocol.sessions.delivering import Deliveries
from gapless.protocol.sessions.enrolment import (
    ClientEffect,
    GoLive,
    ReportGap,
    StartAckTimer,
    StartAwaitTimer,
    StopRetryTimer,
)
from gapless.protocol.sessions.gaps import Gap
from gapless.protocol.sessions.losses import LossBook
from gapless.protocol.sessions.messages import (
    Acknowledge,
    ChangeFilter,
    ClientMessage,
    Confirmed,
    Credit,
    Horizon,
    Start,
    Subscribe,
)
from gapless.protocol.sessions.readers import Reader, SendHorizon, SendRow, SendRows, TellBroker
from gapless.protocol.sessions.subscriber import ACK_SHARE_MIN, ClientSubscription, Interest
from gapless.protocol.sessions.subscribing import EdgeSubscribing
from gapless.protocol.sessions.subscriptions import (
    ClientSubscriptions,
    ConditionChange,
    Confirm,
    EdgeSubscription,
    EndLater,
    Finish,
    SubscriptionEffect,
    WriteLosses,
    WriteName,
    WriteNameLater,
)
from tests.spec.hand import PUBEND, Hand, network
from tests.spec.hand import TOPIC as HAND_TOPIC

P, Q, TOPIC = PubendId("p"), PubendId("q"), TopicId("t")
SCHEMA = Schema.parse(TOPIC, {"price": "int"})


# ---- the client's half -------------------------------------------------------------------------------


class Program:
    """A program with one subscription, driven by hand."""

    def __init__(
        self, *, ack: str = "auto", credit_rows: int = 10, roams: bool = False, **changes: object
    ) -> None:
        interest = Interest(topic=TOPIC, ack=ack, credit_rows=credit_rows, **changes)  # type: ignore[arg-type]
        self.machine: ClientSubscription[ArrivedRows] = ClientSubscription(interest, 3, roams=roams)
        self.numbers = count(1)

    def say(self) -> list[ClientMessage]:
        said, _ = self.machine.say("edge", self.numbers)
        return said

    def subscribe(self) -> Subscribe:
        [said] = self.say()
        assert isinstance(said, Subscribe)
        return said

    def confirm(
        self,
        start: Tick,
        pubend: PubendId = P,
        pubends: int = 1,
        **more: Any,
    ) -> list[ClientEffect]:
        assert self.machine.request is not None
        return [
            *self.machine.confirmed(
                Confirmed(
                    request=self.machine.request,
                    subscription=7,
                    source=0,
                    pubends=pubends,
                    pubend=pubend,
                    schema=SCHEMA,
                    start=start,
                    **more,
                )
            )
        ]

    def arrive(self, *ticks: Tick) -> list[Tick]:
        """Rows arrive together; returns those that are new."""
        fresh = [tick for tick in ticks if self.machine.expects(P, tick)]
        if fresh:
            self.machine.keep(ArrivedRows(np.array(fresh, dtype=np.int64), [P], None), len(ticks))
        return fresh

    def take(self, rows: int) -> ArrivedRows:
        taken: list[ArrivedRows] = []
        for _ in range(rows):
            self.machine.asks()
            found, _ = self.machine.next()
            assert found is not None
            self.machine.took(found, found.at, found.at + 1)
            taken.append(found)
        return taken[-1]

    def acknowledges(self) -> Mapping[PubendId, Tick]:
        self.machine.ack_at_once()
        return next((each.positions for each in self.say() if isinstance(each, Acknowledge)), {})

    @staticmethod
    def live(**changes: object) -> Program:
        program = Program(**changes)  # type: ignore[arg-type]
        program.subscribe()
        program.confirm(10)
        program.say()
        return program


def test_a_client_starts_over_until_all_pubends_have_confirmed() -> None:
    """Clause 15.1."""
    program = Program(start=5)
    assert program.subscribe().start == 5
    assert GoLive() not in program.confirm(10, P, 2)
    program.machine.unlinked()
    assert program.subscribe().start == 5
    assert GoLive() not in program.confirm(12, P, 2)
    assert GoLive() in program.confirm(15, Q, 2)


def test_a_client_drops_what_it_had_and_resumes_at_what_it_expects() -> None:
    """Clause 15.2."""
    program = Program.live()
    assert program.arrive(11, 12) == [11, 12]
    program.machine.unlinked()
    assert program.subscribe().start == {P: 13}
    assert not [each for each in program.confirm(13) if isinstance(each, ReportGap)]
    assert program.arrive(12, 13) == [13]
    program.machine.unlinked()
    program.subscribe()
    program.confirm(20)
    assert program.machine.gaps == [Gap(P, 14, 20)]


def test_a_client_acknowledges_again_when_it_is_sent_what_it_had() -> None:
    """Clause 15.4. The node did not count that before it had handed out the rows once more."""
    program = Program.live()
    program.arrive(11)
    program.take(1)
    program.machine.asks()
    assert program.acknowledges() == {P: 12}
    assert program.acknowledges() == {}
    assert program.arrive(11) == []
    assert StartAckTimer(share_min=ACK_SHARE_MIN) in program.machine.drop(1)
    assert program.acknowledges() == {P: 12}


def test_a_client_acknowledges_what_it_is_sent_below_the_end_of_a_gap() -> None:
    """Clause 15.4. Of another log it drops what lies in the gap, and the node waits for that, too."""
    program = Program.live()
    program.arrive(11)
    program.machine.unlinked()
    program.subscribe()
    program.confirm(12, log="another", began=18)
    assert program.machine.gaps == [Gap(P, 12, 18)]
    assert program.arrive(15) == []
    program.machine.drop(1)
    assert program.acknowledges() == {}  # The program has not had what came before the gap.
    program.take(1)
    program.machine.asks()
    assert program.acknowledges() == {P: 18}


def test_a_client_begins_with_the_pubends_that_are_there_and_asks_the_others_as_at_first() -> None:
    """Clause 15.1."""
    program = Program(start=5)
    program.subscribe()
    assert StartAwaitTimer() in program.confirm(5, P, 2, awaited=(Q,))
    assert GoLive() in program.machine.begin()
    assert program.machine.awaited == (Q,)
    assert program.arrive(11) == [11]
    program.machine.unlinked()
    assert program.subscribe().start == {P: 12, Q: 5}
    program.confirm(12, P, 2, awaited=(Q,))
    assert GoLive() not in program.confirm(5, Q, 2)
    assert not program.machine.gaps


def test_a_client_that_is_confirmed_in_another_log_reports_a_gap_and_expects_what_comes_after_it() -> None:
    """Clause 15.2."""
    program = Program(start=10)
    program.subscribe()
    program.confirm(10, log="first")
    assert program.arrive(11, 12) == [11, 12]
    effects = program.confirm(16, log="second", began=15, lost_from=13)
    assert [each.gap for each in effects if isinstance(each, ReportGap)] == [Gap(P, 13, 16)]
    assert program.arrive(14, 16) == [16]
    # Of a log whose ticks are lower, it takes nothing for new that it could have had of the old one.
    program.confirm(7, log="third", began=6)
    assert program.machine.gaps[-1] == Gap(P, 6, 18)
    assert program.arrive(9, 18) == [18]


def test_a_client_that_comes_back_says_which_logs_its_positions_are_in() -> None:
    """Clause 15.2."""
    program = Program(start=10)
    assert program.subscribe().logs == {}
    program.confirm(10, pubends=2, log="first")
    program.confirm(10, Q, 2)
    program.arrive(11)
    program.machine.unlinked()
    again = program.subscribe()
    # A pubend of an older program does not name its log.
    assert (again.start, again.logs) == ({P: 12, Q: 10}, {P: "first"})


def test_a_client_with_a_name_leaves_the_logs_to_its_edge() -> None:
    """Clause 15.7."""
    program = Program(name="desk")
    program.subscribe()
    program.confirm(10, log="first")
    program.machine.unlinked()
    assert program.subscribe().logs == {}


def test_a_client_grants_room_for_what_the_program_has_taken() -> None:
    """Clause 15.3."""
    program = Program.live(credit_rows=4)
    program.arrive(11)
    program.arrive(12, 13)
    program.take(2)
    assert Credit(subscription=7, rows=3) in program.say()
    program.arrive(14)
    program.machine.unlinked()
    assert program.subscribe().credit_rows == 3, "one row waits here"


@pytest.mark.parametrize("ack", ["auto", "manual"])
def test_only_what_the_program_is_done_with_is_acknowledged(ack: str) -> None:
    """Clause 15.4."""
    program = Program.live(ack=ack)
    program.arrive(11, 12, 13)
    rows = program.take(2)
    if ack == "manual":
        program.machine.acks(rows, 1, 2)
        assert program.acknowledges() == {}, "the first is not acknowledged"
        program.machine.acks(rows, 0, 1)
        assert program.acknowledges() == {P: 13}
    else:
        assert program.acknowledges() == {P: 12}, "it has not asked for more after the second"
        program.take(1)
        assert program.acknowledges() == {P: 13}


def test_a_client_resumes_at_the_horizon_that_it_was_told() -> None:
    """Clause 15.8."""
    program = Program.live(roams=True)
    program.arrive(11)
    program.machine.horizon(Horizon(subscription=7, before={P: 50}))
    assert program.acknowledges() == {}, "the program has not taken what came before"
    program.take(1)
    program.machine.asks()
    assert program.acknowledges() == {P: 50}
    assert program.machine.positions == {P: 50}
    program.machine.unlinked()
    asked = program.subscribe()
    assert (asked.start, asked.roams) == ({P: 50}, True)


def test_a_lost_connection_leaves_both_conditions_to_the_client() -> None:
    """Clause 15.10."""
    program = Program.live(where="price > 5")
    program.machine.begin_change("price < 3")
    [change] = program.say()
    assert isinstance(change, ChangeFilter)
    program.arrive(11)
    assert program.machine.unlinked() == [StopRetryTimer()], "nobody has said from when on it changes"
    asked = program.subscribe()
    assert (asked.where, asked.start) == ("price > 5", {P: 12}), "that is what the node has kept for it"
    program.confirm(12)
    [again] = [each for each in program.say() if isinstance(each, ChangeFilter)]
    assert again.where == "price < 3"
    confirmed = Confirmed(
        request=again.request,
        subscription=7,
        source=0,
        pubends=1,
        pubend=P,
        schema=SCHEMA,
        start=20,
    )
    program.machine.confirmed(confirmed)
    program.machine.unlinked()
    assert program.subscribe().where == "(price <= 2 OR price >= 6)"


# ---- the edge's half ---------------------------------------------------------------------------------


@dataclass(eq=False)
class Line:
    """The connection of a client."""

    name: str = "alice"
    is_open: bool = True
    is_congested: bool = False
    is_flooded: bool = False
    subscriptions: ClientSubscriptions = field(default_factory=ClientSubscriptions)

    @property
    def outlet(self) -> Line:
        return self


@dataclass
class Somebody:
    """Whose subscriptions are."""

    name: str = "somebody"
    subscriptions: int = 0
    names: int = 0
    condition_bytes: int = 0

    def match(self, matched: tuple[TopicId, Condition], sign: int) -> None:
        """Nobody counts."""


#: By the clock of the edge, and what anybody can have read by then.
NOW = 1_000
REACH = NOW + AHEAD_MS_MAX * TICKS_PER_MS


class EdgeDesk:
    """The subscriptions of one edge, driven by hand."""

    def __init__(self, pubends: tuple[PubendId, ...] = (P,)) -> None:
        self.deliveries = Deliveries(16)
        self.session = EdgeSubscribing(
            self.deliveries, LossBook({}, {}), lambda _: pubends, lambda _: REACH, has_folder=True
        )
        self.owner = Somebody()

    def subscribe(
        self,
        line: Line,
        start: Tick = 10,
        slot: int = 0,
        wanted: Start = "now",
        log: str = "",
        **asked: object,
    ) -> EdgeSubscription:
        """Subscribe and let the broker confirm it."""
        request = Subscribe(request=1, topic=TOPIC, start=wanted, **asked)  # type: ignore[arg-type]
        effects = self.session.subscribe(line, self.owner, request, parse_condition(request.where, SCHEMA))
        for event in told(effects):
            assert isinstance(event, SubscribeRequested)
            confirm = ConfirmSubscription(
                subscription=event.subscription, slot=slot, pubend=P, start=start, log=log
            )
            self.said = self.session.confirmed(confirm)
        return line.subscriptions[max(line.subscriptions)]

    def deliver(
        self, serial: int, *ticks: Tick, slot: int = 0, laggard: bool = False
    ) -> list[SubscriptionEffect]:
        batch = EventBatch(np.array(ticks, dtype=np.int64), pa.RecordBatch.from_pydict({"price": ticks}))
        slots = np.full(len(ticks), slot, dtype=np.int64)
        rows = np.arange(len(ticks))
        effect = Deliver(serial=serial, batch=batch, rows=rows, slots=slots, pubends=(P,), laggard=laggard)
        return [*self.deliveries.deliver(effect)]

    def keep(self, error: StoreError | None = None) -> list[SubscriptionEffect]:
        """The disk has what it was to write."""
        [write] = [each for each in self.said if isinstance(each, WriteName)]
        effects = self.session.written(write, error)
        self.settle(effects)
        return effects

    def settle(self, effects: list[SubscriptionEffect]) -> None:
        """The broker has heard what it is told."""
        for effect in effects:
            if isinstance(effect, TellBroker) and effect.reader is not None:
                self.deliveries.told(effect.reader)


def told(effects: list[SubscriptionEffect]) -> list[object]:
    return [each.event for each in effects if isinstance(each, TellBroker)]


def rows_sent(effects: list[SubscriptionEffect]) -> int:
    rows = sum(len(each.rows) for each in effects if isinstance(each, SendRows))
    return rows + sum(len(each.to) for each in effects if isinstance(each, SendRow))


def test_no_more_rows_are_sent_than_there_is_credit_for() -> None:
    """Clause 15.3."""
    desk, line = EdgeDesk(), Line()
    bob = desk.subscribe(line, credit_rows=2)
    assert rows_sent(desk.deliver(1, 11)) == 1
    assert rows_sent(desk.deliver(2, 12, 13)) == 0
    desk.session.acknowledged(bob, {P: 12})
    slow = told([*desk.deliveries.work()])
    assert slow == [SubscriberSlow(subscription=bob.name, positions={P: 12})]


@pytest.mark.parametrize("is_drained", [False, True])
def test_a_live_delivery_does_not_overtake_what_waits_for_a_congested_connection(is_drained: bool) -> None:
    """Clause 15.3. The client would take the rows that come later for repeats, and drop them."""
    desk, line = EdgeDesk(), Line(is_congested=True)
    bob = desk.subscribe(line, credit_rows=10)
    assert rows_sent(desk.deliver(1, 11, 12, laggard=True)) == 0
    if is_drained:
        line.is_congested = False
        desk.deliveries.drained(line)
    assert rows_sent(desk.deliver(2, 13)) == 0
    assert rows_sent(desk.deliver(3, 14, 15)) == 0
    works = [each for _ in range(2) if desk.deliveries.has_work for each in desk.deliveries.work()]
    assert SubscriberSlow(subscription=bob.name, positions={P: 10}) in told([*works])


def test_an_acknowledgement_counts_as_far_as_rows_were_handed_out() -> None:
    """Clause 15.5."""
    desk, line = EdgeDesk(), Line()
    bob = desk.subscribe(line)
    desk.deliver(1, 11, 12)
    desk.session.acknowledged(bob, {P: 12})
    assert DeliveryTaken(serial=1) not in told([*desk.deliveries.look()])
    desk.session.acknowledged(bob, {P: 500})
    assert desk.session.positions(bob) == {P: 13}
    assert DeliveryTaken(serial=1) in told([*desk.deliveries.look()])


@pytest.mark.parametrize("mode", ["guaranteed", "best-effort"])
def test_an_edge_keeps_what_a_lost_client_has_not_acknowledged(mode: str) -> None:
    """Clause 15.6."""
    desk, line = EdgeDesk(), Line()
    bob = desk.subscribe(line, mode=mode)
    desk.deliver(1, 11, 12)
    desk.session.acknowledged(bob, {P: 12})
    effects = desk.session.lost(line, bob)
    gone = UnsubscribeRequested(subscription=bob.name)
    if mode == "best-effort":
        assert gone in told(effects)
        return
    assert told(effects) == [SubscriberSlow(subscription=bob.name, positions={P: 12}, away=True)]
    assert EndLater(subscription=bob) in effects
    assert gone in told(desk.session.end(bob))


def test_a_name_is_confirmed_when_it_is_on_disk_and_can_be_resumed() -> None:
    """Clause 15.7."""
    desk, first, second = EdgeDesk(), Line("first"), Line("second")
    bob = desk.subscribe(first, name="desk")
    assert not [each for each in desk.said if isinstance(each, Confirm)]
    assert [each.start for each in desk.keep() if isinstance(each, Confirm)] == [10]
    desk.deliver(1, 11, 12)
    desk.session.acknowledged(bob, {P: 12})
    request = Subscribe(request=5, topic=TOPIC, name="desk")
    effects = desk.session.subscribe(second, desk.owner, request, parse_condition("", SCHEMA))
    [taken_over] = [each for each in effects if isinstance(each, Finish)]
    assert taken_over.client is first
    assert taken_over.error is not None
    assert taken_over.error.code == "E137"
    assert [each.start for each in effects if isinstance(each, Confirm)] == [12]
    aways = [each.away for each in told(effects) if isinstance(each, SubscriberSlow)]
    assert aways == [True, False], "it left, and is back, though the broker knows of neither yet"
    desk.settle(effects)
    assert rows_sent(desk.deliver(2, 13)) == 1


def test_an_edge_tells_the_broker_which_logs_the_positions_of_a_client_are_in() -> None:
    """Clause 15.2."""
    desk, logs = EdgeDesk((P, Q)), {P: "first", PubendId("other"): "first"}
    for wanted, name, expected in (
        ({P: 9, Q: 9}, None, {P: "first"}),
        ({Q: 9}, None, {}),
        ("now", None, {}),
        ({P: 9}, "desk", {}),
    ):
        asked = Subscribe(request=1, topic=TOPIC, name=name, start=wanted, logs=logs)
        [event] = told(desk.session.subscribe(Line(), desk.owner, asked, EVERYTHING))
        assert isinstance(event, SubscribeRequested)
        assert event.logs == expected


@pytest.mark.parametrize("is_told", [True, False])
def test_a_client_that_comes_back_after_a_log_was_lost_starts_where_the_next_one_has_kept_it(
    is_told: bool,
) -> None:
    """Clause 15.2. What it had before waits for it at the edge, but was not kept in the new log."""
    desk, line = EdgeDesk(), Line()
    first = desk.subscribe(line, wanted=5, start=9)
    assert [each.start for each in desk.said if isinstance(each, Confirm)] == [9]
    desk.session.lost(line, first)
    again = desk.subscribe(line, wanted=9, start=20, slot=1)
    assert [each.start for each in desk.said if isinstance(each, Confirm)] == [9], "it was held all the time"
    desk.session.lost(line, again)
    if is_told:
        for slot, each in enumerate((first, again)):
            lost = ConfirmSubscription(
                subscription=each.name, slot=slot, pubend=P, start=40, log="second", lost_from=9
            )
            desk.session.confirmed(lost)
    desk.subscribe(line, wanted=9, start=40, slot=2, log="second")
    assert [each.start for each in desk.said if isinstance(each, Confirm)] == [40]


@pytest.mark.parametrize(("wanted", "start"), [(24, 40), (25, 25)])
def test_what_was_kept_by_another_condition_was_not_kept_for_a_client_that_comes_back(
    wanted: Tick, start: Tick
) -> None:
    """Clause 15.2. Its condition had changed at 25."""
    desk, line = EdgeDesk(), Line()
    first = desk.subscribe(line, where="price > 5")
    change = ConditionChange(2, "price < 3", line)
    condition = parse_condition("price < 3", SCHEMA)
    [request] = told(desk.session.change(first, change, condition))
    assert isinstance(request, FilterChangeRequested)
    desk.session.changes(request)
    desk.session.changed(ConfirmChange(subscription=first.name, pubend=P, condition=condition, since=25))
    desk.session.lost(line, first)
    desk.subscribe(line, wanted=wanted, start=40, slot=1, where="price < 3")
    assert [each.start for each in desk.said if isinstance(each, Confirm)] == [start]


@pytest.mark.parametrize("start", ["now", 15])
def test_a_client_hears_where_its_name_begins_at_another_pubend_when_the_disk_has_it(
    start: Literal["now"] | int,
) -> None:
    """Clause 15.7."""
    desk, line = EdgeDesk((P, Q)), Line("first")
    bob = desk.subscribe(line, name="desk", wanted=start, credit_rows=3)
    asked = {} if start == "now" else {Q: start}
    [write] = [each for each in desk.said if isinstance(each, WriteName)]
    assert (write.record.positions, write.record.awaited) == ({P: 10, **asked}, (Q,))
    desk.keep()
    assert rows_sent(desk.deliver(1, 11)) == 1
    desk.session.acknowledged(bob, {P: 12})
    assert desk.session.moved() == {"desk": {P: 12, **asked}}, "what it asked for is not written over"
    later = ConfirmSubscription(subscription=bob.name, slot=0, pubend=Q, start=20)
    desk.said = desk.session.confirmed(later)
    assert not [each for each in desk.said if isinstance(each, Confirm)]
    [write] = [each for each in desk.said if isinstance(each, WriteName)]
    assert (write.record.positions, write.record.awaited) == ({P: 12, Q: 20}, ())
    desk.settle(desk.said)
    assert rows_sent(desk.deliver(2, 13)) == 0, "it would come before the client hears of the pubend"
    assert [each for each in desk.keep(StoreError("E302", "full")) if isinstance(each, WriteNameLater)]
    effects = desk.keep()
    assert {each.pubend: each.start for each in effects if isinstance(each, Confirm)} == {P: 12, Q: 20}
    assert bob.reader is not None
    assert bob.reader.credit == 2, "it has no more room than before"


def test_a_name_is_confirmed_when_the_disk_has_all_of_its_pubends_that_have_begun() -> None:
    """Clause 15.7."""
    desk, line = EdgeDesk((P, Q)), Line("first")
    bob = desk.subscribe(line, name="desk")
    first = desk.said
    desk.said = desk.session.confirmed(ConfirmSubscription(subscription=bob.name, slot=0, pubend=Q, start=20))
    second, desk.said = desk.said, first
    assert not [each for each in desk.keep() if isinstance(each, Confirm)], "the disk does not know of q"
    desk.said = second
    assert {each.pubend: each.start for each in desk.keep() if isinstance(each, Confirm)} == {P: 10, Q: 20}


def test_a_name_that_a_pubend_had_not_confirmed_begins_there_after_a_restart() -> None:
    """Clause 15.7. A pubend that was away promised nothing, and what was asked for may be gone."""
    desk, line = EdgeDesk((P, Q)), Line("first")
    desk.subscribe(line, name="desk", wanted=15)
    [write] = [each for each in desk.said if isinstance(each, WriteName)]
    again = EdgeDesk((P, Q))
    asked = Subscribe(request=0, topic=TOPIC, name="desk")
    [request] = again.session.restore([(write.record, asked, again.owner, [("", {}, EVERYTHING)])])
    assert request.start == {P: 10, Q: 15}
    again.session.confirmed(
        ConfirmSubscription(subscription=request.subscription, slot=0, pubend=P, start=12)
    )
    again.said = again.session.confirmed(
        ConfirmSubscription(subscription=request.subscription, slot=0, pubend=Q, start=30)
    )
    again.keep()
    bob = again.session.named("desk")
    assert bob is not None
    assert again.session.positions(bob) == {P: 10, Q: 30}, "what it had acknowledged stays its position"


def test_a_named_subscription_reports_a_lost_log_until_it_acknowledges_beyond_it() -> None:
    """Clause 15.7."""
    desk, line = EdgeDesk(), Line("first")
    bob = desk.subscribe(line, name="desk")
    desk.keep()
    desk.deliver(1, 11, 12)
    desk.session.acknowledged(bob, {P: 12})
    renewed = ConfirmSubscription(
        subscription=bob.name, slot=0, pubend=P, start=20, log="second", began=15, lost_from=13
    )
    for _ in range(2):
        effects = desk.session.confirmed(renewed)
        assert any(isinstance(each, WriteLosses) for each in effects)
        [told_client] = [each for each in effects if isinstance(each, Confirm)]
        assert (told_client.start, told_client.lost_from) == (20, 13)
        assert bob.logs[P] == ("second", 15)
        desk.settle(effects)
    assert rows_sent(desk.deliver(2, 25)) == 1
    desk.session.acknowledged(bob, {P: 26})
    request = Subscribe(request=5, topic=TOPIC, name="desk")
    effects = desk.session.subscribe(Line("second"), desk.owner, request, parse_condition("", SCHEMA))
    assert [(each.start, each.lost_from) for each in effects if isinstance(each, Confirm)] == [(26, None)]


def test_those_who_roam_are_told_their_horizon_behind_what_they_were_sent() -> None:
    """Clause 15.8."""
    desk, line = EdgeDesk(), Line()
    bob = desk.subscribe(line, roams=True, credit_rows=1)
    assert bob.reader is not None
    assert horizon_told(desk, 50) == [(bob.reader, {P: 50})]
    desk.session.acknowledged(bob, {P: 50})
    [reached] = told([*desk.deliveries.look()])
    assert reached == RoamersReached(pubend=P, before=50, roamers=1)
    desk.deliver(1, 60, 61)
    assert horizon_told(desk, 70) == [], "there was no credit for what lies below"


def horizon_told(desk: EdgeDesk, before: Tick) -> list[tuple[Reader, Mapping[PubendId, Tick]]]:
    desk.deliveries.horizon(P, before, frozenset())
    found = []
    while desk.deliveries.has_work:
        found += [
            (each.reader, each.before) for each in desk.deliveries.work() if isinstance(each, SendHorizon)
        ]
    return found


def test_an_edge_acks_nothing_that_a_roaming_subscriber_does_not_know_of() -> None:
    """Clauses 15.8 and 15.9."""
    hand = Hand.started(network({"horizon_ms": 100, "ack_delay_ms": 1, "idle_silence_ms": 10}))
    subscribe = SubscribeRequested(
        subscription=SubscriptionId("bob"), topic=HAND_TOPIC, condition=EVERYTHING, roams=True
    )
    hand.feed("s", subscribe)
    hand.wait(300)
    start = hand.starts("bob")[PUBEND]
    _, horizon = hand.of(TellHorizon)[-1]
    assert horizon.before >= start + 100 * TICKS_PER_MS
    assert max(_acked(hand), default=start) <= start
    hand.feed("s", RoamersReached(pubend=PUBEND, before=horizon.before, roamers=1))
    hand.wait(10)
    assert max(_acked(hand)) == horizon.before


def _acked(hand: Hand) -> list[Tick]:
    """Up to where the edge has acked so far."""
    return [stop for message in hand.sent(AckMessage, "s") for stop, _ in message.runs]
