"""A mistake of ours in any thread or task stops the node and is told, and nothing is swallowed."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gapless.errors import UsageError
from gapless.node.guard import Guard
from gapless.node.node import Node
from gapless.node.worker import Worker, WorkThread
from gapless.wire import client_codec
from tests.hostile.raw import PATIENCE_SECONDS, publish_rows
from tests.hostile.victim import COLUMNS, TWO_TOPICS, Victim
from tests.integration.files import running

#: Runs the command line with one function of the product replaced.
RIGGED = """
import sys
from gapless.cli.main import main
{rig}
sys.argv = ["gapless", *sys.argv[1:]]
main()
"""


class Rigged(Victim):
    """A node with a mistake in it."""

    def __init__(self, folder: Path, rig: str) -> None:
        super().__init__(folder)
        self._rig = rig

    def start(self) -> None:
        command = [
            *(sys.executable, "-c", RIGGED.format(rig=self._rig), "up", str(self.file), "--broker", "n1"),
            *("--data", str(self.folder / "data"), "--log", "json"),
        ]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline(), self.log.read_text()[-2_000:]

    def ended(self) -> int:
        """Wait for its end, without asking for it."""
        assert self.process is not None
        return self.process.wait(PATIENCE_SECONDS)

    def events(self) -> list[str]:
        lines = self.log.read_text().splitlines()
        return [json.loads(line)["event"] for line in lines if line.startswith("{")]


FAILING_FLUSH = """
from gapless.protocol.effects import BatchRecord
from gapless.store.log import Log
old = Log.flush
def flush(self):
    if any(isinstance(each.record, BatchRecord) for each in self._waiting):
        raise {error}
    return old(self)
Log.flush = flush
"""


@pytest.mark.parametrize("error", ["AssertionError('rigged')", "MemoryError()", "SystemExit(0)"])
def test_a_flush_that_fails_in_an_unknown_way_stops_the_node(error: str, tmp_path: Path) -> None:
    with Rigged(tmp_path, FAILING_FLUSH.format(error=error)) as victim:
        with victim.dial() as writer:
            writer.send(publish_rows("mine", COLUMNS, [[1.0, "x"]]))
            assert victim.ended() != 0
            heard = []
            while (frame := writer.hear()) is not None:
                heard.append(frame.kind)
            assert "RECEIPT" not in heard
        assert victim.events().count("mistake") == 1


@pytest.mark.parametrize(
    "rig",
    [
        (
            "from gapless.node.links import BrokerConnections\n"
            "async def watch(self): raise ValueError('rigged')\n"
            "BrokerConnections._watch = watch"
        ),
        (
            "from gapless.node.storage import Storage\nticks = []\n"
            "def tick(self, now):\n    ticks.append(now)\n    assert len(ticks) < 2, 'rigged'\n"
            "Storage.tick = tick"
        ),
        (
            "from gapless.node.subscriptions import Subscriptions\n"
            "import asyncio\nold = Subscriptions.__init__\n"
            "def made(self, *a, **k):\n    old(self, *a, **k)\n"
            "    asyncio.get_running_loop().call_soon(lambda: 1 / 0)\n"
            "Subscriptions.__init__ = made"
        ),
        (
            "import threading\nfrom gapless.node.node import Node\nold = Node._tick\n"
            "def tick(self):\n    old(self)\n    threading.Thread(target=lambda: 1 / 0).start()\n"
            "Node._tick = tick"
        ),
    ],
    ids=["task", "timer", "callback", "thread"],
)
def test_a_bug_anywhere_stops_the_node_loudly(rig: str, tmp_path: Path) -> None:
    with Rigged(tmp_path, rig) as victim:
        assert victim.ended() != 0
        assert victim.events().count("mistake") == 1


def test_a_worker_that_dies_makes_the_node_unready_and_stops_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(TWO_TOPICS, tmp_path, "n1") as network:
            node = network.nodes["n1"]
            assert node.waiting_for() == []
            node.storage._writer._queue.put(None)
            await asyncio.get_running_loop().run_in_executor(None, node.storage._writer._thread.join)
            assert node.waiting_for() == ["thread gapless-flush, which has ended"]
            with pytest.raises(AssertionError, match="has ended"):
                await asyncio.wait_for(node.run(), PATIENCE_SECONDS)
            [reason] = node.waiting_for()
            assert "has ended" in reason

    asyncio.run(story())


def test_a_task_of_the_links_that_ends_makes_the_node_unready(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(TWO_TOPICS, tmp_path, "n1") as network:
            node = network.nodes["n1"]
            node.links._tasks[-1].cancel()
            await asyncio.wait([node.links._tasks[-1]])
            assert node.waiting_for() == ["task watch of the links"]

    asyncio.run(story())


def test_a_stuck_thread_is_reported_until_it_recovers() -> None:
    async def story() -> None:
        go, began = threading.Event(), threading.Event()
        done = asyncio.Event()
        worker, desk = Worker("one", patience_s=0), WorkThread("two", patience_s=0)

        def work() -> None:
            began.set()
            assert go.wait(PATIENCE_SECONDS)

        worker.do(work, lambda _, __: done.set())
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, began.wait)
        assert "thread one, which has been busy" in (worker.trouble() or "")
        began.clear()
        waiting = desk.do(work)
        await loop.run_in_executor(None, began.wait)
        assert "thread two, which has been busy" in (desk.trouble() or "")
        go.set()
        await done.wait()
        await waiting
        assert (worker.trouble(), desk.trouble()) == (None, None)
        await worker.close()
        await desk.close()
        assert worker.trouble() is None, "an end that was asked for is none to worry about"

    asyncio.run(story())


def test_errors_of_guarded_callbacks_and_tasks_are_reported() -> None:
    async def story() -> None:
        told: list[BaseException] = []
        guard = Guard(told.append)

        def bad(text: str) -> None:
            raise ValueError(text)

        async def worse() -> None:
            raise KeyError("worse")

        asyncio.get_running_loop().call_soon(guard.call(bad), "bad")
        task = guard.task(worse(), "worse")
        await asyncio.wait([task])
        cancelled = guard.task(asyncio.Event().wait(), "never")  # type: ignore[arg-type]
        cancelled.cancel()
        await asyncio.wait([cancelled])
        assert [type(each) for each in told] == [ValueError, KeyError]

    asyncio.run(story())


def test_the_exception_handler_stops_for_bugs_and_not_for_broken_connections(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        told: list[BaseException] = []
        loop = asyncio.get_running_loop()
        before = threading.excepthook
        try:
            Guard(told.append).last_net(loop)
            loop.call_exception_handler({"message": "gone", "exception": ConnectionResetError("gone")})
            loop.call_exception_handler({"message": "no", "exception": UsageError("E181", "no")})
            loop.call_exception_handler({"message": "pending"})
            assert (told, len(caplog.records)) == ([], 3)
            loop.call_exception_handler({"message": "bad", "exception": ZeroDivisionError()})
            assert [type(each) for each in told] == [ZeroDivisionError]
        finally:
            threading.excepthook = before

    asyncio.run(story())


def test_a_frame_that_we_fail_to_read_is_answered_and_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with running(TWO_TOPICS, tmp_path, "n1") as network:
            node: Node = network.nodes["n1"]
            loop = asyncio.get_running_loop()

            def attack() -> str:
                with Victim.dial(at(node)) as raw:  # type: ignore[arg-type]
                    raw.send(publish_rows("mine", COLUMNS, [[1.0, "x"]]))
                    return str(raw.hear_kind("REFUSE").head["code"])

            with monkeypatch.context() as rigged:
                rigged.setattr(client_codec.ClientDecoder, "_publish", lambda *_: 1 / 0)
                assert await loop.run_in_executor(None, attack) == "E215"
            assert node.failure is None

            def honest() -> str:
                with Victim.dial(at(node)) as raw:  # type: ignore[arg-type]
                    raw.send(publish_rows("mine", COLUMNS, [[1.0, "x"]]))
                    return raw.hear_kind("RECEIPT", "REFUSE").kind

            assert await loop.run_in_executor(None, honest) == "RECEIPT"

    asyncio.run(story())


def test_a_request_that_fails_in_the_middle_stops_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with running(TWO_TOPICS, tmp_path, "n1") as network:
            node: Node = network.nodes["n1"]
            monkeypatch.setattr(node.sessions.publishing.session, "_take", lambda *_, **__: 1 / 0)

            def attack() -> str:
                with Victim.dial(at(node)) as raw:  # type: ignore[arg-type]
                    raw.send(publish_rows("mine", COLUMNS, [[1.0, "x"]]))
                    return str(raw.hear_kind("REFUSE").head["code"])

            assert await asyncio.get_running_loop().run_in_executor(None, attack) == "E181"
            with pytest.raises(ZeroDivisionError):
                await asyncio.wait_for(node.run(), PATIENCE_SECONDS)

    asyncio.run(story())


class at:  # noqa: N801  # reads as a word above
    """What `Victim.dial` wants of a node."""

    def __init__(self, node: Node) -> None:
        self.port = node.address.port


def test_a_page_that_fails_is_an_error_of_that_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Victim(tmp_path) as victim:
        assert victim.page("/status")[0] == 200
    rig = "from gapless.node.node import Node\nNode.report = lambda self: 1 / 0"
    other = tmp_path / "rigged"
    other.mkdir()
    with Rigged(other, rig) as victim:
        assert victim.page("/status")[0] == 500
        assert victim.page("/readyz")[0] == 200
        assert victim.events().count("request_failed") == 1
