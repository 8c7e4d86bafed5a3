"""A news feed in XML, and the ten most read stories of each category: a live view, computed by Spark.

    python examples/news_top10.py                                  # starts a node of its own
    python examples/news_top10.py --to gapless://localhost:7400    # uses one that runs: gapless up

Readers' clicks come in as XML documents. The view takes them apart, adds them up by story, and keeps the top
ten of each category. The table on the terminal changes as they come. Needs PySpark and Java.
"""

import argparse
import asyncio
import contextlib
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from xml.sax.saxutils import escape

from rich.columns import Columns
from rich.console import Console
from rich.live import Live
from rich.table import Table

from gapless.client import Client, Receipt, connect
from gapless.client.view import View

TOP10 = """
SELECT category, title, sum(clicks) AS clicks
FROM (SELECT xml_text(document, '/story/@category') AS category,
             xml_text(document, '/story/title') AS title,
             CAST(xml_number(document, '/story/clicks') AS int) AS clicks
      FROM news)
GROUP BY category, title
QUALIFY ROW_NUMBER() OVER (PARTITION BY category ORDER BY clicks DESC, title) <= 10
"""

CATEGORIES = ("business", "science", "sport")
WHO = ("Bank", "City", "Club", "Lab", "Minister", "Team", "Union", "University")
WHAT = ("asks for more", "buys a rival", "celebrates", "finds water", "loses again", "says no & leaves")


def documents(count: int, seed: int = 7) -> Iterator[str]:
    """What the feed says: some readers have clicked on a story."""
    chance = random.Random(seed)
    for _ in range(count):
        title = escape(f"{chance.choice(WHO)} {chance.choice(WHAT)}")
        clicks = chance.randint(1, 9)
        category = chance.choice(CATEGORIES)
        yield f'<story category="{category}"><title>{title}</title><clicks>{clicks}</clicks></story>'


async def publish(client: Client, feed: Iterable[str], rate: float) -> Receipt:
    """Publish the feed at a steady rate; the receipt of its last document."""
    for document in feed:
        receipt = await client.publish("news", {"document": document})
        await asyncio.sleep(1 / rate)
    return receipt


async def watch(view: View, live: Live) -> None:
    """Draw the table whenever it changes."""
    async for _ in view.changes():
        live.update(drawn(view.rows()), refresh=True)


def drawn(rows: list[dict[str, object]]) -> Columns:
    """One table for each category."""
    tables = []
    for category in CATEGORIES:
        table = Table("story", title=category)
        table.add_column("clicks", justify="right")
        for row in rows:
            if row["category"] == category:
                table.add_row(str(row["title"]), str(row["clicks"]))
        tables.append(table)
    return Columns(tables)


async def main(to: str, count: int, rate: float, as_json: bool) -> None:
    """Create the view, publish, and show it until everything is in it."""
    async with connect(to) as client:
        await client.create_topic("news", {"document": "xml"})
        await client.create_view("top10", TOP10)
        feed = documents(count)
        async with client.view("top10") as view:
            print("Spark takes a while to start ...", file=sys.stderr)
            await view.wait_until(await client.publish("news", {"document": next(feed)}))
            with Live(console=Console(stderr=as_json), auto_refresh=False) as live:
                watching = asyncio.create_task(watch(view, live))
                # A view that includes the last document includes all.
                await view.wait_until(await publish(client, feed, rate))
                live.update(drawn(view.rows()), refresh=True)
                watching.cancel()
            if as_json:
                print(json.dumps(view.rows()))
        await client.drop_view("top10")


@contextlib.contextmanager
def own_node() -> Iterator[str]:
    """A node of our own; it starts Spark by itself when there is a view."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "gapless", "up", "--data", folder, "--listen", "127.0.0.1:0"]
        node = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            assert node.stdout is not None
            yield json.loads(node.stdout.readline())["listens"]
        finally:
            node.terminate()
            node.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", help="the address of a node; without it one is started")
    parser.add_argument("--documents", type=int, default=2_000)
    parser.add_argument("--rate", type=float, default=100.0, help="documents a second")
    parser.add_argument("--json", action="store_true", help="print the last table as JSON")
    given = parser.parse_args()
    with contextlib.nullcontext(given.to) if given.to else own_node() as address:
        asyncio.run(main(address, given.documents, given.rate, given.json))
