"""Why did a subscriber get an event, or not? Asked of five real nodes, in every case that there is."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gapless.cli.nodes import Credentials
from gapless.cli.reports import Place, Watch
from gapless.cli.why.command import _answers_of_all, _everybody, parse_question
from gapless.cli.why.story import Story, explain_event
from gapless.client import Client, Options, connect
from gapless.errors import UsageError
from gapless.model.ids import BrokerId
from tests.integration.nodes import FIVE_NODES, PATIENCE_SECONDS, Cluster

PUBEND = "trades-1"


class Asker:
    """Asks all brokers of a cluster, beginning with one of them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def at(self, broker: str) -> str:
        return f"gapless://{self.cluster.addresses[BrokerId(broker)]}"

    def client(self, broker: str, name: str | None = None) -> Client:
        return connect(self.at(broker), name=name, options=Options(connect_timeout_s=5))

    async def why(self, tick: int, subscription: str, pubend: str = PUBEND) -> Story:
        question = parse_question(f"{pubend}:{tick}", subscription)
        async with Watch([Place(self.at("s1"))], Credentials()) as watch:
            places = await _everybody(watch, Credentials())
            assert sorted(places) == ["b1", "b2", "p1", "s1", "s2"], "every broker is found from one of them"
            answers = await _answers_of_all(watch, places, question)
            edge = next(name for name, each in answers.items() if each is not None and each["subscription"])
            topics = await (await watch.client(places[edge])).topics()
            return explain_event(question, answers, topics["trades"].schema, edge)

    async def until(self, verdict: str, *question: Any) -> Story:
        """The story once it has that verdict: acknowledgements are on their way for a while."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                story = await self.why(*question)
                if story.verdict == verdict:
                    return story


def test_every_verdict(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(FIVE_NODES, tmp_path) as cluster:
            asker = Asker(cluster)
            async with asker.client("p1") as publisher, asker.client("s1", "reader") as reader:
                early = await publisher.publish("trades", {"name": "early", "price": 500.0})
                async with reader.subscribe(
                    "trades", "price > 100 AND name LIKE 'I%'", ack="manual"
                ) as events:
                    await _told(asker, publisher, events, early.tick)

    asyncio.run(story())


async def _told(asker: Asker, publisher: Client, events: Any, early: int) -> None:
    wanted = await publisher.publish("trades", {"name": "IBM", "price": 120.5})
    cheap = await publisher.publish("trades", {"name": "IBM", "price": 99.0})
    last = await publisher.publish("trades", {"name": "INTC", "price": 101.0})
    assert wanted.tick is not None
    assert cheap.tick is not None
    assert last.tick is not None
    name = "client reader#1"
    rejected = await asker.why(cheap.tick, name)
    assert rejected.verdict == "rejected"
    assert rejected.sentence == (
        f"NO: the condition of '{name}' rejects the event: price > 100.0 (price is 99.0)."
    )
    assert "  NO   price > 100.0   price is 99.0\n" in str(rejected)
    before = await asker.why(early, name)
    assert before.verdict == "before_start"
    got = [await anext(events), await anext(events)]
    assert [event.tick for event in got] == [wanted.tick, last.tick]
    handed = await asker.until("handed", wanted.tick, name)
    assert handed.sentence.endswith("which has not acknowledged it yet.")
    await got[0].ack()
    delivered = await asker.until("delivered", wanted.tick, name)
    assert delivered.sentence == f"YES: '{name}' got the event and has acknowledged it."
    path = dict(delivered.evidence)
    assert path["path"] == "p -> b -> s"
    assert "the filter for b (1 condition) accepts it" in path["p1"]
    assert (await asker.why(last.tick, name)).verdict == "handed"
    silent = await asker.why(wanted.tick + 1, name)
    assert silent.verdict == "no_event", silent
    future = await asker.why(2**60, name)
    assert future.verdict == "not_published"
    with pytest.raises(UsageError, match="E143 there is no pubend 'other': there is trades-1"):
        await asker.why(5, name, "other")


def test_an_event_that_cannot_come_is_followed_to_where_it_waits(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(FIVE_NODES, tmp_path) as cluster:
            asker = Asker(cluster)
            async with (
                asker.client("p1") as publisher,
                asker.client("s1", "reader") as reader,
                reader.subscribe("trades", "price > 100"),
            ):
                for router in ("b1", "b2"):
                    await cluster.stop(router)
                receipt = await publisher.publish("trades", {"name": "IBM", "price": 120.5})
                assert receipt.tick is not None
                question = parse_question(f"{PUBEND}:{receipt.tick}", "client reader#1")
                places = [Place(asker.at(each), each) for each in cluster.addresses]
                async with Watch(places, Credentials()) as watch:
                    answers = await _answers_of_all(watch, await _everybody(watch, Credentials()), question)
                    topics = await reader.topics()
                found = explain_event(question, answers, topics["trades"].schema, "s1")
                assert found.verdict == "waiting"
                assert "no link from cell p to cell b" in found.sentence, found
                assert ("b1", "does not answer") in found.evidence
                for router in ("b1", "b2"):
                    await cluster.start(router)

    asyncio.run(story())
