"""The verdict about an event and a subscription, from what the brokers on the way say."""

import base64
import copy
from typing import Any

import pytest

from gapless.cli.why.story import Question, Story, explain_event, typed_row
from gapless.model.ids import TopicId
from gapless.model.schema import Schema

SCHEMA = Schema.parse(TopicId("trades"), {"sym": "string", "price": "float"})
QUESTION = Question("nyse", 500, "audit")
CELLS = {"P": ["p"], "B": ["b1", "b2"], "S": ["s"]}
#: The epoch of the subscription in question.
BIRTH = 7


def way(cell: str, up: list[str]) -> dict[str, Any]:
    return {
        "cell": cell,
        "up": up,
        "route": up[0] if up else None,
        "conditions": ["price > 100.0"],
        "conditions_count": 1,
        "epochs": {"s": BIRTH},
        "accepts": None,
        "settled": None,
    }


def answer(broker: str, cell: str, ways: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "broker": broker,
        "cell": cell,
        "cells": CELLS,
        "event": {
            "pubend": "nyse",
            "tick": 500,
            "topic": "trades",
            "path": ["P", "B", "S"],
            "known": "unknown",
            "made_for": {},
            "frontier": 400,
            "final_before": 0,
            "asked": False,
            "row": None,
            "ways": ways,
            "source": None,
        },
        "subscription": None,
    }


@pytest.fixture
def answers() -> dict[str, Any]:
    """The event is at its pubend and wanted, and has come no further."""
    found: dict[str, Any] = {
        "p": answer("p", "P", [way("B", ["b1", "b2"])]),
        "b1": answer("b1", "B", [way("S", ["s"])]),
        "b2": answer("b2", "B", [way("S", ["s"])]),
        "s": answer("s", "S", []),
    }
    found["p"]["event"] |= {
        "known": "event",
        "row": {"sym": "IBM", "price": 120.5},
        "source": {"in_log": True, "durable": 600, "next_tick": 600, "released": 100, "oldest_tick": 50},
    }
    found["s"]["subscription"] = {
        "subscription": "@audit",
        "name": "audit",
        "client": "c1",
        "topic": "trades",
        "where": "price > 100",
        "order": "publisher",
        "mode": "guaranteed",
        "starts": {"nyse": 200},
        "pubends": ["nyse"],
        "acknowledged": {"nyse": 300},
        "stand": {
            "condition": "price > 100.0",
            "birth": BIRTH,
            "birth_text": "0.7",
            "granted": True,
            "handed": 400,
            "taken": 300,
            "lagging": False,
            "slow": False,
            "away": False,
            "resolved": 400,
        },
    }
    return found


def why(answers: dict[str, Any]) -> Story:
    return explain_event(QUESTION, answers, SCHEMA, "s")


def test_an_event_on_its_way_is_not_there_yet(answers: dict[str, Any]) -> None:
    story = why(answers)
    assert story.sentence == "NOT YET: the event is on its way: s does not know it yet."
    answers["s"]["event"]["asked"] = True
    assert why(answers).sentence.endswith("s does not know it yet and has been asked for.")


def test_what_was_acknowledged_was_got_and_what_was_handed_out_may_have_been(answers: dict[str, Any]) -> None:
    subscription = answers["s"]["subscription"]
    subscription["stand"]["handed"] = 501
    assert why(answers).sentence == "YES: the event was handed to 'audit', which has not acknowledged it yet."
    subscription["client"] = None
    assert "is away" in why(answers).sentence
    subscription["mode"] = "best-effort"
    assert "best effort" in why(answers).sentence
    subscription["acknowledged"]["nyse"] = 501
    assert why(answers).verdict == "delivered"


@pytest.mark.parametrize(
    ("tick_facts", "verdict"),
    [
        ({"durable": 500}, "not_published"),
        ({"oldest_tick": 501, "released": 501}, "forgotten"),
        ({}, "no_event"),
    ],
)
def test_without_an_event_no_subscriber_gets_one(
    answers: dict[str, Any], tick_facts: dict[str, int], verdict: str
) -> None:
    answers["p"]["event"]["row"] = None
    answers["p"]["event"]["source"] |= {"in_log": False, **tick_facts}
    assert why(answers).verdict == verdict


def test_a_subscription_that_began_later_cannot_have_it_even_if_the_log_forgot(
    answers: dict[str, Any],
) -> None:
    answers["p"]["event"]["row"] = None
    answers["p"]["event"]["source"]["oldest_tick"] = 501
    answers["s"]["subscription"]["starts"]["nyse"] = 2_000_500
    story = why(answers)
    assert story.verdict == "before_start"
    assert story.sentence == "NO: 'audit' begins at tick 2000500, 2 s behind the event."


def test_a_pubend_that_does_not_answer_leaves_it_unclear(answers: dict[str, Any]) -> None:
    story = why({**answers, "p": None})
    assert story.verdict == "unclear"
    assert ("p", "does not answer") in story.evidence


def test_the_report_names_another_topic_and_a_missing_start(answers: dict[str, Any]) -> None:
    other = copy.deepcopy(answers)
    other["s"]["subscription"]["topic"] = "news"
    assert why(other).sentence == "NO: 'audit' reads topic 'news', and the event is one of 'trades'."
    answers["s"]["subscription"]["starts"] = {}
    assert why(answers).verdict == "unconfirmed"


def test_the_part_of_the_condition_that_fails_is_named(answers: dict[str, Any]) -> None:
    answers["p"]["event"]["row"]["price"] = 99.0
    story = why(answers)
    assert story.sentence == "NO: the condition of 'audit' rejects the event: price > 100.0 (price is 99.0)."
    assert "(1 condition) REJECTS it" in dict(story.evidence)["b1"]


def test_where_it_waits_is_found(answers: dict[str, Any]) -> None:
    cut = copy.deepcopy(answers)
    for router in ("b1", "b2"):
        cut[router]["event"]["ways"][0]["up"] = []
    assert "there is no link from cell B to cell S" in why(cut).sentence
    assert "NO link to cell S" in dict(why(cut).evidence)["b2"]
    unheard = copy.deepcopy(answers)
    unheard["p"]["event"]["ways"][0]["epochs"] = {"s": BIRTH - 1}
    assert "cell P has not heard of the subscription yet" in why(unheard).sentence
    assert "does NOT know the subscription yet" in dict(why(unheard).evidence)["p"]
    gone = {**answers, "b1": None, "b2": None}
    assert "no broker of cell B answers (b1, b2)" in why(gone).sentence


def test_an_event_at_the_edge_waits_for_a_gap_or_for_its_subscriber(answers: dict[str, Any]) -> None:
    answers["s"]["event"]["known"] = "event"
    stand = answers["s"]["subscription"]["stand"]
    assert why(answers).sentence == "NOT YET: the event is at s and waits for the gap at tick 400 before it."
    stand |= {"lagging": True, "slow": True}
    assert "'audit' does not take what it is handed, at 400" in why(answers).sentence
    stand["slow"] = False
    assert "'audit' is catching up, at 400" in why(answers).sentence
    stand["away"] = True
    assert why(answers).sentence == "NOT YET: 'audit' is away; the event is kept for it."


def test_a_row_comes_back_in_the_types_of_its_topic() -> None:
    kinds = {"n": "int", "f": "float", "d": "decimal", "t": "timestamp", "b": "binary", "x": "xml?"}
    schema = Schema.parse(TopicId("all"), kinds)
    raw = base64.b64encode(b"\x00\xff").decode()
    row = {"n": 3, "f": "nan", "d": "1.50", "t": "2026-01-31T00:00:00+00:00", "b": raw, "x": None}
    [found] = typed_row(row, schema).to_pylist()
    assert (found["n"], str(found["f"]), str(found["d"])) == (3, "nan", "1.500000000")
    assert (found["t"].year, found["b"], found["x"]) == (2026, b"\x00\xff", None)


def test_a_subscription_older_than_the_pubend_is_told_apart(answers: dict[str, Any]) -> None:
    answers["s"]["subscription"] |= {"pubends": ["lse"], "starts": {"lse": 200}, "stand": None}
    story = explain_event(QUESTION, answers, SCHEMA, "s")
    assert story.verdict == "unconfirmed"
    assert "'audit' is older than pubend 'nyse' of its topic" in story.sentence
