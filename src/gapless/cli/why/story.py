"""Why did a subscriber get an event, or not? The verdict, drawn from what all brokers on the way say.

The answers are facts: is there an event at that tick, from which tick on does the subscription get events,
does its condition accept this one, and how far has it come? The first of these that says no decides. An
event that should arrive and has not is followed from broker to broker to the place where it waits.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from gapless.content.explain import Explanation
from gapless.model.schema import Schema

#: What a broker said, by its name; None for one that is down.
Answers = Mapping[str, dict[str, Any] | None]


@dataclass(slots=True)
class Story:
    """What came of the question."""

    #: For programs: `delivered`, `handed`, `rejected`, `before_start`, `no_event`, `not_published`,
    #: `forgotten`, `other_topic`, `unconfirmed`, `waiting`, `unclear`.
    verdict: str
    #: For people, in one sentence.
    sentence: str
    #: What it rests on: a word for what it is about, and a text, perhaps of several lines.
    evidence: list[tuple[str, str]] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [self.sentence]
        for about, text in self.evidence:
            first, *more = text.splitlines() or [""]
            lines.append(f"  {about:<13}{first}")
            lines += [f"  {'':<13}{line}" for line in more]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Question:
    """An event and a subscription."""

    pubend: str
    tick: int
    subscription: str

    @property
    def event(self) -> str:
        """How the event is called."""
        return f"{self.pubend}:{self.tick}"


def typed_row(row: Mapping[str, Any], schema: Schema) -> Any:
    """A row as a node tells it, in the types of its topic."""
    import pyarrow as pa  # noqa: PLC0415

    from gapless.cli.files.cells import cells  # noqa: PLC0415

    arrays = []
    for column in schema.columns:
        value = row.get(column.name)
        if column.type in ("binary", "xml") and value is not None:
            value = base64.b64decode(value)
        arrays.append(cells([value], column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema.arrow())


def explain_event(question: Question, answers: Answers, schema: Schema, edge: str) -> Story:
    """The whole story. `edge` is the broker that has the subscription."""
    here = answers[edge]
    assert here is not None, f"{edge} has answered"
    subscription, event = here["subscription"], here["event"]
    row = next((a["event"]["row"] for a in answers.values() if a is not None and a["event"]["row"]), None)
    source = next((a for a in answers.values() if a is not None and a["event"]["source"]), None)
    explanation = _explained(row, schema, subscription)
    story = _verdict(question, answers, edge, row=row, source=source, explanation=explanation)
    story.evidence += _evidence(question, answers, edge, row=row, source=source)
    if explanation is not None:
        story.evidence.append(("condition", str(explanation)))
    story.evidence += [("path", " -> ".join(event["path"]))] if len(event["path"]) > 1 else []
    story.evidence += _hops(answers, edge, row, schema)
    story.evidence += [("down", f"{name} does not answer") for name, each in answers.items() if each is None]
    return story


def _explained(
    row: Mapping[str, Any] | None, schema: Schema, subscription: dict[str, Any]
) -> Explanation | None:
    if row is None or subscription["topic"] != schema.topic:
        return None
    from gapless.content.explain import explain  # noqa: PLC0415
    from gapless.content.language import parse_condition  # noqa: PLC0415
    from gapless.content.rows import Rows  # noqa: PLC0415

    stand = subscription["stand"]
    text = subscription["where"] if stand is None else stand["condition"]
    return explain(parse_condition(text, schema), Rows(typed_row(row, schema)), 0)


def _failing(explanation: Explanation) -> str:
    """What failed, in a few words: of the alternative that came closest."""
    pieces = explanation.alternatives[0].pieces if explanation.alternatives else ()
    failed = [piece for piece in pieces if not piece.holds]
    listed = [f"{piece.text} ({(piece.because.splitlines() or [''])[0]})" for piece in failed[:2]]
    return " and ".join(listed) or "nothing is wanted"


def _verdict(
    question: Question,
    answers: Answers,
    edge: str,
    *,
    row: Mapping[str, Any] | None,
    source: dict[str, Any] | None,
    explanation: Explanation | None,
) -> Story:
    here = answers[edge]
    assert here is not None
    subscription, event = here["subscription"], here["event"]
    name, tick = question.subscription, question.tick
    if subscription["topic"] != event["topic"]:
        text = f"reads topic '{subscription['topic']}', and the event is one of '{event['topic']}'"
        return Story("other_topic", f"NO: '{name}' {text}.")
    missing = _missing(question, row, source)
    start = subscription["starts"].get(question.pubend)
    if missing is not None and missing.verdict != "forgotten":
        return missing
    if question.pubend not in subscription["pubends"]:
        text = (
            f"is older than pubend '{question.pubend}' of its topic, and reads it when its client reconnects"
        )
        return Story("unconfirmed", f"NOT YET: '{name}' {text}.")
    if start is None:
        return Story("unconfirmed", f"NOT YET: '{name}' waits for its start tick at {question.pubend}.")
    if tick < start:
        text = f"begins at tick {start}, {_span(start - tick)} behind the event"
        return Story("before_start", f"NO: '{name}' {text}.")
    if explanation is not None and not explanation.matched:
        text = f"the condition of '{name}' rejects the event: {_failing(explanation)}"
        return Story("rejected", f"NO: {text}.")
    stand = subscription["stand"]
    acknowledged = (subscription.get("acknowledged") or {}).get(question.pubend)
    if missing is not None:
        return missing
    if acknowledged is not None and tick < acknowledged:
        return Story("delivered", f"YES: '{name}' got the event and has acknowledged it.")
    if stand is not None and tick < stand["handed"]:
        return _handed(name, subscription, stand)
    return _waiting(question, answers, edge)


def _missing(
    question: Question, row: Mapping[str, Any] | None, source: dict[str, Any] | None
) -> Story | None:
    """The verdict when there is no such event, as far as anybody knows."""
    if row is not None:
        return None
    if source is None:
        text = f"the broker of pubend '{question.pubend}' does not answer, and nobody else has the event"
        return Story("unclear", f"UNCLEAR: {text}.")
    facts = source["event"]["source"]
    if question.tick >= facts["durable"]:
        text = f"is durable up to tick {facts['durable']}, and has published nothing there yet"
        return Story("not_published", f"NO: pubend '{question.pubend}' {text}.")
    oldest = facts["oldest_tick"]
    if oldest is not None and question.tick < oldest:
        text = f"no longer keeps what is below tick {oldest}"
        return Story("forgotten", f"UNCLEAR: pubend '{question.pubend}' {text}.")
    return Story("no_event", f"NO: there is no event at {question.event}; that tick is silent.")


def _handed(name: str, subscription: dict[str, Any], stand: dict[str, Any]) -> Story:
    if subscription["mode"] == "best-effort":
        return Story("handed", f"YES: the event was sent to '{name}', which takes what it can (best effort).")
    if stand["away"] or subscription["client"] is None:
        text = f"is owed the event and is away: it gets it, or gets it again, when it comes back as '{name}'"
        return Story("handed", f"YES: '{name}' {text}.")
    return Story("handed", f"YES: the event was handed to '{name}', which has not acknowledged it yet.")


def _waiting(question: Question, answers: Answers, edge: str) -> Story:
    """Where an event waits that is wanted, and has not been handed out."""
    here = answers[edge]
    assert here is not None
    stand, event, name = here["subscription"]["stand"], here["event"], question.subscription
    if stand is None:
        return Story("unconfirmed", f"NOT YET: '{name}' is not in place at {edge} yet.")
    if stand["away"]:
        return Story("waiting", f"NOT YET: '{name}' is away; the event is kept for it.")
    if stand["resolved"] > question.tick or (event["known"] == "event" and stand["lagging"]):
        why = "does not take what it is handed" if stand["slow"] else "is catching up"
        return Story("waiting", f"NOT YET: the event is at {edge}, and '{name}' {why}, at {stand['handed']}.")
    if event["known"] == "event":
        gap = stand["resolved"]
        return Story(
            "waiting", f"NOT YET: the event is at {edge} and waits for the gap at tick {gap} before it."
        )
    return Story("waiting", f"NOT YET: {_place(answers, event['path'], edge, stand)}.")


def _place(answers: Answers, path: Sequence[str], edge: str, stand: dict[str, Any]) -> str:
    """The first place on the way where the event cannot go on."""
    here = answers[edge]
    assert here is not None
    cells = here["cells"]
    for above, below in pairwise(path):
        said = {name: answers[name] for name in cells[above] if answers.get(name) is not None}
        if not said:
            brokers = ", ".join(cells[above])
            return f"no broker of cell {above} answers ({brokers}), and the event comes through it"
        ways = [
            way for each in said.values() if each for way in each["event"]["ways"] if way["cell"] == below
        ]
        if not any(way["up"] for way in ways):
            return f"there is no link from cell {above} to cell {below}, and the event comes that way"
        if all(way["epochs"].get(edge, -1) < stand["birth"] for way in ways):
            return f"cell {above} has not heard of the subscription yet, and filters without it"
    asked = " and has been asked for" if here["event"]["asked"] else ""
    return f"the event is on its way: {edge} does not know it yet{asked}"


def _span(ticks: int) -> str:
    return f"{ticks / 1_000_000:,.6f}".rstrip("0").rstrip(".") + " s"


def _evidence(
    question: Question,
    answers: Answers,
    edge: str,
    *,
    row: Mapping[str, Any] | None,
    source: dict[str, Any] | None,
) -> list[tuple[str, str]]:
    import json  # noqa: PLC0415

    here = answers[edge]
    assert here is not None
    subscription = here["subscription"]
    stand = subscription["stand"]
    found = []
    if row is not None:
        text = json.dumps(row, ensure_ascii=False)
        found.append(("event", text if len(text) < 1_000 else f"{text[:997]}..."))
    if source is not None:
        facts = source["event"]["source"]
        log = (
            f"in the log of {source['broker']}"
            if facts["in_log"]
            else f"not in the log of {source['broker']}"
        )
        found.append(
            ("pubend", f"{log}; durable below {facts['durable']}, released below {facts['released']}")
        )
    who = f"at {edge}, {'client ' + subscription['client'] if subscription['client'] else 'away'}"
    found.append(("subscriber", f"{who}, {subscription['mode']}, in {subscription['order']} order"))
    start = subscription["starts"].get(question.pubend)
    found.append(("start", "not confirmed" if start is None else f"tick {start}"))
    if stand is not None:
        acknowledged = (subscription.get("acknowledged") or {}).get(question.pubend)
        states = [word for word in ("lagging", "slow", "away") if stand[word]] or ["live"]
        progress = f"handed out below {stand['handed']}, acknowledged below {acknowledged}"
        found.append(
            ("position", f"{progress}; {', '.join(states)}; its condition is of epoch {stand['birth_text']}")
        )
    return found


def _hops(
    answers: Answers, edge: str, row: Mapping[str, Any] | None, schema: Schema
) -> list[tuple[str, str]]:
    """One line for each broker on the way: what it knows, its links down, and its filter."""
    here = answers[edge]
    assert here is not None
    found = []
    path, subscription = here["event"]["path"], here["subscription"]
    birth = -1 if subscription["stand"] is None else subscription["stand"]["birth"]
    for at, cell in enumerate(path):
        below = path[at + 1] if at + 1 < len(path) else None
        for name in here["cells"][cell]:
            answer = answers.get(name)
            if answer is None:
                found.append((name, "does not answer" if name in answers else "was not asked"))
                continue
            event = answer["event"]
            text = f"{_knowledge_text(event)}"
            for way in event["ways"]:
                if way["cell"] == below:
                    text += f"; {_way(way, row, schema, edge, birth)}"
            found.append((name, text))
    return found


def _knowledge_text(event: dict[str, Any]) -> str:
    if event["known"] == "event":
        return "has the event"
    if event["known"] == "unknown":
        return "knows nothing of that tick" + (", and has asked for it" if event["asked"] else "")
    if event["final_before"] > event["tick"]:
        return "is done with that tick: all below have what they want of it"
    if event["source"] is not None and event["source"]["in_log"]:
        return "has the event in its log, and in memory no more"
    made = ", ".join(f"{edge} {epoch}" for edge, epoch in event["made_for"].items())
    return "holds no row there any more, or never did" + (f"; as filtered for {made}" if made else "")


def _way(way: dict[str, Any], row: Mapping[str, Any] | None, schema: Schema, edge: str, birth: int) -> str:
    link = f"links to {', '.join(way['up'])} are up" if way["up"] else f"NO link to cell {way['cell']}"
    accepts = way["accepts"]
    if accepts is None and row is not None and way["conditions_count"] <= len(way["conditions"]):
        accepts = _accepted(way["conditions"], row, schema)
    verdict = {True: "accepts it", False: "REJECTS it", None: "cannot be tried"}[accepts]
    heard = "" if way["epochs"].get(edge, -1) >= birth else ", and does NOT know the subscription yet"
    count = f"{way['conditions_count']:,} condition{'' if way['conditions_count'] == 1 else 's'}"
    return f"{link}; the filter for {way['cell']} ({count}) {verdict}{heard}"


def _accepted(conditions: Sequence[str], row: Mapping[str, Any], schema: Schema) -> bool:
    from gapless.content.evaluate import mask  # noqa: PLC0415
    from gapless.content.language import parse_condition  # noqa: PLC0415
    from gapless.content.rows import Rows  # noqa: PLC0415

    rows = Rows(typed_row(row, schema))
    return any(bool(mask(parse_condition(text, schema), rows)[0]) for text in conditions)
