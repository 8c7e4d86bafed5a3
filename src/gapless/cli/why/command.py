"""`gapless why`: why did this subscriber get, or not get, this event?"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gapless.cli.nodes import Credentials, Json, NodesOptions, dials, run
from gapless.cli.output.terminal import tame_lines
from gapless.cli.readers import tick
from gapless.errors import GaplessError, ParameterError, UsageError

if TYPE_CHECKING:
    from gapless.cli.reports import Place, Watch
    from gapless.cli.why.story import Question


@dials
def why(
    event: Annotated[
        str,
        typer.Argument(metavar="PUBEND:TICK", help="The event, as `pub --json` or `sub --names` name it."),
    ],
    subscription: Annotated[
        str, typer.Argument(metavar="SUBSCRIPTION", help="Its name, or client#number as `status` lists it.")
    ],
    *,
    network: Annotated[
        Path | None,
        typer.Option("--network", metavar="NETWORK.toml", help="The network: all its brokers are asked."),
    ] = None,
    nodes: NodesOptions,
    as_json: Json = False,
) -> None:
    """Explain why a subscriber got an event, or did not: path, filters, epochs, positions.

    \b
    Examples:
      gapless why trades-node:1769860800000000 audit
      gapless why nyse-1:1769860800000000 client-3f2a#7 --network network.toml
      gapless why nyse-1:1769860800000000 audit --to gapless://edge-1:7400 --json

    The first line is the verdict: YES, NO, NOT YET or UNCLEAR, and why. The evidence follows: the event, the
    subscription's start and position, how its condition judges the event, and each broker on the way with its
    links and its filter.
    """
    question = parse_question(event, subscription)
    run(_answered(question, network, nodes, as_json=as_json))


def parse_question(event: str, subscription: str) -> Question:
    """An event and a subscription. Raises ParameterError."""
    from gapless.cli.why.story import Question  # noqa: PLC0415

    pubend, _, text = event.rpartition(":")
    found = tick(text)
    if not pubend or found is None:
        raise ParameterError(
            "E150", f"an event is written PUBEND:TICK, such as trades-node:1769860800000000, got {event!r}"
        )
    return Question(pubend, found, subscription)


async def _answered(question: Question, network: Path | None, nodes: NodesOptions, *, as_json: bool) -> None:
    from gapless.cli.reports import Watch, places_of  # noqa: PLC0415
    from gapless.cli.why.story import explain_event  # noqa: PLC0415

    async with Watch(places_of(network, nodes), nodes) as watch:
        places = await _everybody(watch, nodes)
        answers = await _answers_of_all(watch, places, question)
        edges = _edges_in(answers)
        if not edges and "#" in question.subscription:
            # `status` lists it with the word before it.
            listed = replace(question, subscription=f"client {question.subscription}")
            answers = await _answers_of_all(watch, places, listed)
            edges = _edges_in(answers)
            question = listed if edges else question
        if not edges:
            raise _nobody(question, answers)
        edge = edges[0]
        here = answers[edge]
        assert here is not None
        topics = await (await watch.client(places[edge])).topics()
        story = explain_event(question, answers, topics[here["event"]["topic"]].schema, edge)
    if as_json:
        report = {"verdict": story.verdict, "sentence": story.sentence, "edge": edge, "brokers": answers}
        typer.echo(json.dumps(report))
    else:
        typer.echo(tame_lines(str(story)))


def _edges_in(answers: dict[str, dict[str, Any] | None]) -> list[str]:
    """The brokers that have the subscription."""
    return [name for name, each in answers.items() if each is not None and each["subscription"]]


async def _everybody(watch: Watch, door: Credentials) -> dict[str, Place]:
    """Where each broker is: the given ones, and all neighbours that they know."""
    from gapless.cli.reports import NODES_MAX, Place, Watch, check_answered  # noqa: PLC0415

    answers = await watch.ask()
    check_answered(answers)
    places = {answer.name: answer.place for answer in answers}
    fresh = [answer.report for answer in answers if answer.report is not None]
    while fresh and len(places) < NODES_MAX:
        scheme = fresh[0]["listens"].partition("://")[0]
        addresses = {link["broker"]: link["address"] for report in fresh for link in report["links"]}
        new = [Place(f"{scheme}://{where}", name) for name, where in addresses.items() if name not in places]
        async with Watch(new, door) as others:
            found = await others.ask()
        places.update((answer.place.broker or answer.name, answer.place) for answer in found)
        fresh = [answer.report for answer in found if answer.report is not None]
    return places


async def _answers_of_all(
    watch: Watch, places: dict[str, Place], question: Question
) -> dict[str, dict[str, Any] | None]:
    """What each broker knows; None for those that are down. Raises UsageError for a wrong question."""
    from gapless.cli.reports import ANSWER_SECONDS_MAX  # noqa: PLC0415

    async def ask(place: Place) -> dict[str, Any] | None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                client = await watch.client(place)
                return await client.inquire((question.pubend, question.tick), question.subscription)
        except UsageError:
            raise
        except (GaplessError, TimeoutError):
            return None

    return dict(zip(places, await asyncio.gather(*map(ask, places.values())), strict=True))


def _nobody(question: Question, answers: dict[str, dict[str, Any] | None]) -> UsageError:
    asked = ", ".join(name for name, each in answers.items() if each is not None)
    down = ", ".join(name for name, each in answers.items() if each is None)
    silent = f"; {down} did not answer" if down else ""
    return UsageError(
        "E142", f"there is no subscription '{question.subscription}' at {asked}{silent}: see gapless status"
    )
