"""Where a subscription stands, when its topic got a second pubend meanwhile."""

from gapless.model.ids import PubendId, SubscriptionId
from gapless.protocol.events import Order
from gapless.protocol.inquiry import stand
from tests.spec.hand import Hand, network
from tests.spec.test_12_topics import BONDS, creation

FIRST, SECOND = PubendId("bonds-p"), PubendId("bonds-b")
EARLY, LATE = SubscriptionId("early"), SubscriptionId("late")


def test_a_subscription_older_than_a_pubend_stands_where_its_own_merge_does() -> None:
    hand = Hand.started(network())
    hand.create("p", creation())
    hand.subscribe(EARLY, topic=BONDS, order=Order.TOTAL)
    hand.create("b", creation("b"))
    hand.subscribe(LATE, topic=BONDS, order=Order.TOTAL)
    # Nothing of the second pubend arrives any more, so that the merge of both cannot advance.
    hand.loses = lambda _sender, _to, message: getattr(message, "pubend", None) == SECOND
    hand.publish(1, pubend=FIRST)
    hand.wait(3_000)
    [(_, tick)] = hand.events(EARLY)
    assert hand.events(LATE) == []
    edge = hand.brokers["s"]
    early, late = stand(edge, EARLY, FIRST, tick), stand(edge, LATE, FIRST, tick)
    assert early is not None
    assert late is not None
    assert early.handed > tick, "it was handed the event"
    assert late.handed <= tick, "it waits for the second pubend"
    assert stand(edge, EARLY, SECOND, tick) is None, "it does not read the second pubend"
    assert stand(edge, LATE, SECOND, tick) is not None
