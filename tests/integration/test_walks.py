"""The walks in docs/architecture.md are true: events and subscriptions pass through the files named there."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import gapless
from tests.integration.files import run, running

SOURCE = Path(gapless.__file__).parent
DOCUMENT = Path(__file__).parents[2] / "docs" / "architecture.md"
TWO_NODES = """
cells = {p = ["p1"], s = ["s1"]}
links = ["p--s"]
edges = ["s1"]
topics.trades = {sym = "string", price = "float"}
pubends.trades-1 = {topic = "trades", broker = "p1"}
"""
TRADE = {"sym": "IBM", "price": 121.5}


def walk(what: str) -> list[str]:
    """The files that the document names for the life of something."""
    text = DOCUMENT.read_text(encoding="utf-8")
    life = text.partition(f"## The life of {what}\n")[2].partition("\n## ")[0]
    table = "\n".join(line for line in life.splitlines() if line.startswith("|"))
    found = re.findall(r"`([a-z_/]+\.py)`", table)
    assert found, f"no files in the life of {what}"
    return found


class Trace:
    """Which files of the package run, in all threads that are started while it is there."""

    def __init__(self) -> None:
        self._files: set[str] | None = None

    @contextmanager
    def of_all_threads(self) -> Iterator[Trace]:
        threading.setprofile(self._called)
        sys.setprofile(self._called)
        try:
            yield self
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def begin(self) -> set[str]:
        self._files = set()
        return self._files

    def end(self) -> None:
        self._files = None

    def _called(self, frame: FrameType, event: str, _argument: Any) -> None:
        if self._files is not None and event == "call":
            self._files.add(frame.f_code.co_filename)


def unused(what: str, ran: set[str]) -> list[str]:
    return [name for name in walk(what) if str(SOURCE / name) not in ran]


@pytest.mark.parametrize("what", ["an event", "a subscription", "a view"])
def test_every_file_of_a_walk_is_there(what: str) -> None:
    assert [name for name in walk(what) if not (SOURCE / name).is_file()] == []


def test_an_event_and_a_subscription_pass_through_the_files_of_their_walks(tmp_path: Path) -> None:
    async def story(trace: Trace) -> None:
        async with (
            running(TWO_NODES, tmp_path, "p1", "s1") as network,
            gapless.connect(network.address("p1")) as publisher,
            gapless.connect(network.address("s1")) as subscriber,
        ):
            ran = trace.begin()
            async with subscriber.subscribe("trades", where="price > 100") as trades:
                trace.end()
                assert unused("a subscription", ran) == []
                # The first event also makes what later ones use.
                await publisher.publish("trades", TRADE)
                await anext(trades)
                ran = trace.begin()
                await publisher.publish("trades", TRADE)
                await anext(trades)
                trace.end()
                assert unused("an event", ran) == []

    with Trace().of_all_threads() as trace:
        run(story(trace))
