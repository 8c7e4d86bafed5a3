"""What rights let a client do, and what they let it know of."""

import pytest

from gapless.model.ids import TopicId
from gapless.node.security import EVERYTHING, Rights

BONDS, TRADES = TopicId("bonds"), TopicId("trades")


@pytest.mark.parametrize(
    ("rights", "seen"),
    [
        (Rights(), []),
        (Rights(publish=("trades",)), [TRADES]),
        (Rights(subscribe=("t*",)), [TRADES]),
        (Rights(publish=("bonds",), subscribe=("trades",)), [BONDS, TRADES]),
        (Rights(adopt=("*",)), []),
        (Rights(admin=True), [BONDS, TRADES]),
        (EVERYTHING, [BONDS, TRADES]),
    ],
)
def test_a_client_may_know_of_the_topics_that_it_may_use_or_administer(
    rights: Rights, seen: list[TopicId]
) -> None:
    topics = [BONDS, TRADES]
    assert [topic for topic in topics if rights.may_see(topic)] == seen
    told = rights.no_topic(TopicId("x"), topics).message
    assert told == f"there is no topic 'x': there is {', '.join(seen) or 'none'}"


def test_an_administrator_may_know_of_a_topic_and_not_use_it() -> None:
    rights = Rights(admin=True)
    assert rights.may_see(TRADES)
    assert not rights.may_publish(TRADES)
    assert not rights.may_subscribe(TRADES)
