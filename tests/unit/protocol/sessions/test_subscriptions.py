"""What a connection may still say about subscriptions that its node has ended."""

from __future__ import annotations

from typing import Any, cast

import pytest

from gapless.errors import UsageError
from gapless.protocol.sessions.subscriptions import ENDED_MAX, ClientSubscriptions, EdgeSubscription

SOME = cast(EdgeSubscription, object())


def made(*numbers: int) -> ClientSubscriptions:
    subscriptions = ClientSubscriptions()
    subscriptions.update(dict.fromkeys(numbers, SOME))
    return subscriptions


def test_what_the_node_ended_is_told_from_what_never_was() -> None:
    subscriptions = made(3, 5, 7)
    subscriptions.end(5)
    subscriptions.end(4)
    assert (subscriptions.find(3), subscriptions.find(5)) == (SOME, None)
    for never in (1, 4, 6, 8):
        with pytest.raises(UsageError, match=f"E142 this client has no subscription {never}"):
            subscriptions.find(never)


def test_a_connection_that_loses_very_many_subscriptions_is_forgiven_and_costs_little() -> None:
    numbers = range(10, 10 + 3 * ENDED_MAX)
    subscriptions: Any = made(2, *numbers)
    for number in numbers:
        subscriptions.end(number)
    assert [subscriptions.find(number) for number in numbers] == [None] * len(numbers)
    assert subscriptions.find(2) is SOME
    assert len(subscriptions._ended) == ENDED_MAX
    with pytest.raises(UsageError, match="E142"):
        subscriptions.find(numbers[-1] + 1)
