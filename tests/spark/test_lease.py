"""One pipeline for a network, at whatever edge the second one is tried."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from gapless.client import sync
from gapless.errors import LinkError, PipelineError, UsageError
from gapless.model.ids import TopicId
from gapless.spark import application
from gapless.spark.application import Lease, run
from gapless.spark.holds import read_book
from gapless.views.registry import HOLDS_TOPIC, LEASE, RUNNING, hold_rows
from tests.integration.files import run as run_story
from tests.integration.files import running
from tests.spark.nodes import NodeThread
from tests.spark.quiet import QuietRunner, status_when
from tests.spark.test_holds import NODE, TOTAL

NETWORK = """
cells = {p = ["p1"], s = ["s1"], t = ["t1"]}
links = ["p--s", "p--t"]
edges = ["s1", "t1"]
topics.sales = {item = "string", qty = "int"}
pubends.sales-1 = {topic = "sales", broker = "p1"}
"""
LOST_SECONDS = 30.0
ENDED_SECONDS = 20.0


def at_two_edges(folder: Path, story: Callable[[str, str], None]) -> None:
    """Run a story with the addresses of two edges, and a node for each broker."""

    async def hosted() -> None:
        async with running(NETWORK, folder, "p1", "s1", "t1") as network:
            await asyncio.to_thread(story, network.address("s1"), network.address("t1"))

    run_story(hosted())


def test_a_second_pipeline_is_refused_at_every_edge_until_the_first_gives_the_lease_back(
    tmp_path: Path,
) -> None:
    def story(one: str, other: str) -> None:
        with sync.connect(other) as there:
            with sync.connect(one) as here:
                first = Lease(here)
                assert first.has_names
                with pytest.raises(PipelineError, match=r"^E504 another pipeline .*: stop it first$"):
                    Lease(here)
                with pytest.raises(PipelineError, match=r"^E504 .* at edge 's1': stop it first, or"):
                    Lease(there)
                first.give_back()
            assert not first.lost.is_set(), "nobody has taken it"
            second = Lease(there)
            with sync.connect(one) as here, pytest.raises(PipelineError, match=r"^E504 .* at edge 't1'"):
                Lease(here)
            assert not second.lost.is_set()

    at_two_edges(tmp_path, story)


def test_one_that_was_killed_is_followed_at_its_edge_and_elsewhere_when_a_person_says_so(
    tmp_path: Path,
) -> None:
    def story(one: str, other: str) -> None:
        with sync.connect(one) as here:
            Lease(here)
        with sync.connect(other) as there:
            with sync.connect(one) as here:
                again = Lease(here)
                with pytest.raises(PipelineError, match="E504"):
                    Lease(there)
                taken = Lease(there, take_over=True)
                assert again.lost.wait(LOST_SECONDS), "it hears of it, and ends"
                # Whoever has lost the lease gives nothing back.
                again.give_back()
            with sync.connect(one) as here, pytest.raises(PipelineError, match=r"E504 .* at edge 't1'"):
                Lease(here)
            assert not taken.lost.is_set()

    at_two_edges(tmp_path, story)


def test_of_two_that_claim_it_at_once_the_first_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def story(one: str, other: str) -> None:
        write = Lease._write
        with sync.connect(one) as here, sync.connect(other) as there:
            assert not read_book(there).leases()

            def late(self: Lease, edge: str, *, held: bool) -> None:
                if held:
                    # Between what it has read and what it writes.
                    rows = hold_rows("t1", {LEASE: TopicId("gapless.views")}, held=True)
                    there.publish_batch(HOLDS_TOPIC, rows)
                write(self, edge, held=held)

            monkeypatch.setattr(Lease, "_write", late)
            with pytest.raises(PipelineError, match=r"E504 .* at edge 't1'"):
                Lease(here)
            monkeypatch.undo()
            # It has taken back what it wrote, and the other goes on.
            Lease(there)

    at_two_edges(tmp_path, story)


def test_a_pipeline_has_one_edge(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^E190 .* is more than one edge"):
        run("gapless://s1,t1", checkpoints=tmp_path, stop=threading.Event(), rows_max=1)


def test_a_pipeline_whose_node_is_gone_ends_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        application, "session", lambda *_, **__: SimpleNamespace(version="4", stop=lambda: None)
    )
    monkeypatch.setattr(application, "register", lambda _: None)
    monkeypatch.setattr(application, "Runner", QuietRunner)
    stop = threading.Event()
    ended: list[BaseException | None] = []

    def program() -> None:
        try:
            run(node.address, checkpoints=tmp_path / "checkpoints", stop=stop, rows_max=1)
        except LinkError as error:
            ended.append(error)
        else:
            ended.append(None)

    with NodeThread.running(NODE, tmp_path) as node:
        with sync.connect(node.address) as client:
            client.create_view("stock", TOTAL)
            thread = threading.Thread(target=program)
            thread.start()
            status_when(client, "stock", RUNNING)
        node.stop()
        stop.set()
        thread.join(ENDED_SECONDS)
        assert ended, "what it cannot say any more, it does not wait to say"
        node.start()
