"""What a client leaves behind is freed at once: reference cycles would wait for a full garbage collection.

A full collection examines every object of a node, which takes long, so there is hardly ever one. Objects that
outlive two short collections and then form a cycle stay in memory until then.
"""

import asyncio
import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.hostile.raw import frame, hello, publish_rows
from tests.integration.files import run, running

NODE = """
cells = {all = ["n1"]}
topics.trades = {name = "string", price = "float"}
topics.documents = {x = "xml"}
pubends.trades-1 = {topic = "trades", broker = "n1"}
pubends.documents-1 = {topic = "documents", broker = "n1"}
"""
COLUMNS = {"name": "string", "price": "float"}


def asking(topic: str, where: str) -> bytes:
    """A request for a subscription."""
    return frame("SUBSCRIBE", [1, topic, where, None, "publisher", "now", "guaranteed", None])


SOUND = publish_rows("trades", COLUMNS, [["a", 1.0]])
#: What comes on a connection, and by name what is wrong with it.
SAID = {
    "nothing": b"",
    "sound rows": SOUND,
    "damaged rows": publish_rows("trades", COLUMNS, [["a", "not a number"]]) * 3,
    "rows of no topic": publish_rows("nothing", COLUMNS, [["a", 1.0]]),
    "a frame that only nodes send": frame("WELCOME", [1]),
    "an unknown kind of bytes": b"GET / HTTP/1.1\r\n\r\n" + bytes(32),
    "half of a frame": SOUND[:-4],
    "a subscription": asking("trades", "price > 3"),
    "a condition with a mistake": asking("trades", "price > > 3"),
    "a condition for no column": asking("trades", "prize > 3"),
    "a pattern": asking("documents", "XPATH(x, '//a[b > 3]')"),
    "a request for nothing": frame("UNSUBSCRIBE", [1, 77, False]),
    "an acknowledgement of nothing": frame("ACKNOWLEDGE", [77, {"trades-1": 5}]),
}


@contextmanager
def unfreed() -> Iterator[Counter[str]]:
    """The types of all objects that only the collector can free, at the end of the block."""
    found: Counter[str] = Counter()
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found.update(type(each).__name__ for each in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.parametrize("said", SAID)
def test_a_client_that_left_is_freed_without_the_garbage_collector(tmp_path: Path, said: str) -> None:
    async def attack() -> None:
        async with running(NODE, tmp_path, "n1") as network:
            port = network.nodes["n1"].address.port

            async def come_and_go() -> None:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(hello("mallory"))
                await reader.read(16)
                writer.write(SAID[said] + frame("PING", 1))
                await reader.read(16)
                writer.write_eof()
                await reader.read()
                writer.close()
                await writer.wait_closed()
                for _ in range(100):
                    # What the node does about it takes some turns of the loop.
                    await asyncio.sleep(0)

            await come_and_go()
            with unfreed() as found:
                await come_and_go()
            kinds = ("Connection", "Session", "FrameReader", "Frame", "PeerError", "frame", "_Stranger")
            assert {kind: found[kind] for kind in kinds if found[kind]} == {}, found

    run(attack())
