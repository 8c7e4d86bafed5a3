"""Who has created a topic is remembered as long as the topic exists."""

import tomllib
from collections.abc import Sequence

import pytest

from gapless.errors import StoreError, UsageError
from gapless.model.ids import BrokerId, TopicId
from gapless.model.ticks import Tick
from gapless.node.catalog import AddLogs, Catalog
from gapless.node.config import Limits
from gapless.protocol.network import Network, PubendPlace
from gapless.protocol.pubend import Recovered
from gapless.protocol.sessions.messages import CreateTopic
from tests.integration.nodes import ONE_NODE


def test_a_topic_that_was_created_at_the_second_attempt_counts_for_its_creator() -> None:
    failures = [StoreError("E302", "the disk is full", retry=True)]

    def open_logs(places: Sequence[PubendPlace], _: Network, __: Tick) -> AddLogs:
        if failures:
            raise failures.pop()
        return lambda: {place.pubend: Recovered() for place in places}

    catalog = Catalog(
        Network.parse(tomllib.loads(ONE_NODE)),
        BrokerId("n1"),
        None,
        addresses={},
        ends=lambda _: 0,
        open_logs=open_logs,
        feed=lambda _: None,
        clock=lambda: 1,
    )
    limits = Limits(principal_topics_max=1)
    one, two = (
        CreateTopic(request=1, topic=TopicId(name), columns={"x": "int"}, retention="") for name in "ab"
    )
    with pytest.raises(StoreError, match="E302"):
        catalog.create(one, "token ann", limits)
    catalog.create(one, "token ann", limits)
    with pytest.raises(UsageError, match="E106"):
        catalog.create(two, "token ann", limits)
    catalog.create(two, "token bob", limits)
