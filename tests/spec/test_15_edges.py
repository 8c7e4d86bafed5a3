"""Section 15 of docs/protocol.md: what an edge believes of a client, and how names end or are replaced."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from gapless.content.language import parse_condition
from gapless.errors import StoreError, UsageError
from gapless.model.batch import EventBatch
from gapless.protocol.effects import ConfirmSubscription, Deliver
from gapless.protocol.events import Order, SubscribeRequested, SubscriberSlow, UnsubscribeRequested
from gapless.protocol.sessions.messages import Subscribe
from gapless.protocol.sessions.subscriptions import (
    Confirm,
    DropName,
    EdgeSubscription,
    Finish,
    SubscriptionEffect,
    WriteName,
)
from tests.spec.test_15_subscribing import SCHEMA, TOPIC, EdgeDesk, Line, P, Q, rows_sent, told

FULL = StoreError("E302", "the disk is full", retry=True)


@pytest.mark.parametrize("unsent", [(12,), (12, 13)])
def test_what_was_not_sent_for_want_of_credit_cannot_be_acknowledged(unsent: tuple[int, ...]) -> None:
    """Clause 15.5. A client that claims more than it got would skip the rest."""
    desk, line = EdgeDesk(), Line()
    bob = desk.subscribe(line, credit_rows=1)
    assert rows_sent(desk.deliver(1, 11)) == 1
    assert rows_sent(desk.deliver(2, *unsent)) == rows_sent(desk.deliver(3, 14)) == 0
    desk.session.acknowledged(bob, {P: 2**61})
    assert desk.session.positions(bob) == {P: 12}
    slow = [*desk.deliveries.work()]
    assert told(slow) == [SubscriberSlow(subscription=bob.name, positions={P: 12})]
    desk.settle(slow)
    desk.session.acknowledged(bob, {P: 2**61})
    assert desk.session.positions(bob) == {P: 12}
    desk.deliver(4, *unsent, 14, laggard=True)
    assert bob.reader is not None
    assert rows_sent([*desk.deliveries.granted(bob.reader, 5)]) == len(unsent) + 1
    desk.session.acknowledged(bob, {P: 2**61})
    assert desk.session.positions(bob) == {P: 15}
    desk.deliveries.check()


def test_what_was_not_sent_of_several_pubends_cannot_be_acknowledged() -> None:
    """Clause 15.5. The same holds in total order."""
    desk, line = EdgeDesk((P, Q)), Line()
    bob = desk.subscribe(line, order=Order.TOTAL, credit_rows=2)
    desk.session.confirmed(ConfirmSubscription(subscription=bob.name, slot=0, pubend=Q, start=10))
    for serial, ticks, sources in ((1, (11, 12), (0, 1)), (2, (13, 14, 15), (1, 0, 1))):
        batch = EventBatch(np.array(ticks, dtype=np.int64), pa.RecordBatch.from_pydict({"price": ticks}))
        rows, slots = np.arange(len(ticks)), np.zeros(len(ticks), dtype=np.int64)
        source = np.array(sources, dtype=np.int64)
        effect = Deliver(serial=serial, batch=batch, rows=rows, slots=slots, pubends=(P, Q), source=source)
        list(desk.deliveries.deliver(effect))
    desk.session.acknowledged(bob, {P: 2**61, Q: 2**61})
    assert desk.session.positions(bob) == {P: 14, Q: 13}


def named(desk: EdgeDesk, line: Line) -> EdgeSubscription:
    """A subscription with a name that the disk has."""
    found = desk.subscribe(line, name="desk")
    desk.keep()
    return found


def forget(desk: EdgeDesk, bob: EdgeSubscription) -> DropName:
    [drop] = desk.session.leave(bob, 7, forget=True)
    assert isinstance(drop, DropName)
    return drop


def finished(effects: list[SubscriptionEffect]) -> list[tuple[int, str | None]]:
    """The requests that are answered, each with the code of its error."""
    answers = [each for each in effects if isinstance(each, Finish)]
    return [(each.request, None if each.error is None else each.error.code) for each in answers]


def test_a_name_holds_the_log_until_the_disk_has_forgotten_it() -> None:
    """Clause 15.7. After a crash in between it is there, and lacks nothing."""
    desk, line = EdgeDesk(), Line()
    bob = named(desk, line)
    drop = forget(desk, bob)
    assert desk.session.named("desk") is bob
    effects = desk.session.dropped(drop, None)
    assert told(effects) == [UnsubscribeRequested(subscription=bob.name)]
    assert finished(effects) == [(7, None)]
    assert desk.session.named("desk") is None
    assert not line.subscriptions


def test_a_name_that_the_disk_does_not_forget_stays_as_it_was() -> None:
    """Clause 15.7."""
    desk, line = EdgeDesk(), Line()
    bob = named(desk, line)
    effects = desk.session.dropped(forget(desk, bob), FULL)
    assert (told(effects), finished(effects)) == ([], [(7, "E302")])
    assert line.subscriptions[bob.number] is bob
    assert rows_sent(desk.deliver(1, 11)) == 1
    desk.session.acknowledged(bob, {P: 12})
    assert desk.session.moved() == {"desk": {P: 12}}
    assert finished(desk.session.dropped(forget(desk, bob), None)) == [(7, None)]


def test_what_is_written_of_a_name_while_it_is_being_forgotten_is_forgotten_with_it() -> None:
    """Clause 15.7. Otherwise the disk would have it again, and nothing would hold the log for it."""
    desk, line = EdgeDesk((P, Q)), Line()
    bob = named(desk, line)
    first, second = forget(desk, bob), forget(desk, bob)
    desk.said = desk.session.confirmed(ConfirmSubscription(subscription=bob.name, slot=0, pubend=Q, start=20))
    assert [each for each in desk.said if isinstance(each, WriteName)]
    [again] = desk.session.dropped(first, None)
    assert isinstance(again, DropName)
    [once_more] = desk.session.dropped(second, None)
    assert isinstance(once_more, DropName)
    desk.keep()
    assert told(desk.session.dropped(again, None)) == [UnsubscribeRequested(subscription=bob.name)]
    assert finished(desk.session.dropped(once_more, None)) == [(7, None)]


def test_a_name_that_is_being_forgotten_is_nobodys() -> None:
    """Clause 15.7."""
    desk, line = EdgeDesk(), Line()
    bob = named(desk, line)
    drop = forget(desk, bob)
    asked = Subscribe(request=5, topic=TOPIC, name="desk", where="price > 5")
    condition = parse_condition(asked.where, SCHEMA)
    assert desk.session.adjust(asked, condition) == []
    with pytest.raises(UsageError, match="E140") as refused:
        desk.session.subscribe(Line("other"), desk.owner, asked, condition)
    assert refused.value.retry
    assert bob.client is line
    desk.session.dropped(drop, None)
    [event] = told(desk.session.subscribe(Line("other"), desk.owner, asked, condition))
    assert isinstance(event, SubscribeRequested)
    assert event.start is None


def test_a_name_is_forgotten_though_its_client_has_gone() -> None:
    """Clause 15.7."""
    desk, line = EdgeDesk(), Line()
    bob = named(desk, line)
    drop = forget(desk, bob)
    desk.settle(desk.session.lost(line, bob))
    assert UnsubscribeRequested(subscription=bob.name) in told(desk.session.dropped(drop, None))
    assert desk.session.named("desk") is None


def test_a_name_that_begins_anew_holds_what_a_pubend_has_not_confirmed_to_it() -> None:
    """Clause 15.7. Only the one that it stands for has a promise of that pubend."""
    desk = EdgeDesk((P, Q))
    old = named(desk, Line("first"))
    desk.said = desk.session.confirmed(ConfirmSubscription(subscription=old.name, slot=0, pubend=Q, start=20))
    desk.keep()
    asked = Subscribe(request=5, topic=TOPIC, name="desk", where="price > 5", start={P: 10, Q: 20})
    effects = desk.session.subscribe(Line("second"), desk.owner, asked, parse_condition(asked.where, SCHEMA))
    [event] = [each for each in told(effects) if isinstance(each, SubscribeRequested)]
    gone = UnsubscribeRequested(subscription=old.name)
    for pubend, start in {P: 10, Q: 20}.items():
        confirm = ConfirmSubscription(subscription=event.subscription, slot=1, pubend=pubend, start=start)
        desk.said = desk.session.confirmed(confirm)
        kept = desk.keep()
        assert {each.pubend for each in kept if isinstance(each, Confirm)} >= {pubend}
        assert (gone in told(kept)) == (pubend == Q)
