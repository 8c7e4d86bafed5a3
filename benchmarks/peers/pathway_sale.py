"""The ticket sale in Pathway: events made in its own process, without a broker and without a disk.

    PYTHON -m benchmarks.peers.pathway_sale RATE SECONDS WARM_SECONDS ITEMS

Runs in an environment of its own, which has nothing of ours: `python -m venv build/pathway` and
`build/pathway/bin/pip install pathway`. Generous to it: a user would have a broker in front of it.
"""

import json
import random
import sys
import time

import pathway as pw

PACE_S = 0.02
SEATS = 1_000_000_000
RATE, SECONDS, WARM_S, ITEMS = float(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])


class Buy(pw.Schema):
    """A buy, and when it was made."""

    item: int
    qty: int
    sent: float


class Offer(pw.Schema):
    """What a seller has."""

    item: int = pw.column_definition(primary_key=True)
    price: float
    qty: int


class Buyers(pw.io.python.ConnectorSubject):
    """Buys at a steady pace."""

    made = 0.0

    def run(self) -> None:
        """Make them."""
        generator = random.Random(1)
        rows = max(1, round(RATE * PACE_S))
        began, number = time.time(), 0
        while time.time() - began < SECONDS + WARM_S:
            sent = time.time()
            for _ in range(rows):
                self.next(item=generator.randrange(ITEMS), qty=1, sent=sent)
            number += 1
            time.sleep(max(0.0, began + number * rows / RATE - time.time()))
        self.made = number * rows / (time.time() - began)


class Sellers(pw.io.python.ConnectorSubject):
    """Every item once."""

    def run(self) -> None:
        """Offer them."""
        for item in range(ITEMS):
            self.next(item=item, price=99.5, qty=SEATS)


buyers = Buyers()
buys = pw.io.python.read(buyers, schema=Buy, autocommit_duration_ms=100)
offers = pw.io.python.read(Sellers(), schema=Offer, autocommit_duration_ms=100)
totals = buys.groupby(pw.this.item).reduce(
    pw.this.item, total=pw.reducers.sum(pw.this.qty), sent=pw.reducers.max(pw.this.sent)
)
available = (
    offers.join(totals, offers.item == totals.item)
    .select(offers.item, offers.price, avail=offers.qty - totals.total, sent=totals.sent)
    .filter(pw.this.avail > 0)
)
stale: list[float] = []
began = time.time()


def shown(row: dict[str, float], is_addition: bool, **_: object) -> None:
    """A row of the view has changed."""
    if is_addition and row["sent"] > began + WARM_S:
        stale.append(time.time() - row["sent"])


pw.io.subscribe(available, on_change=lambda key, row, time, is_addition: shown(row, is_addition))  # noqa: ARG005
pw.run(monitoring_level=pw.MonitoringLevel.NONE)
stale.sort()
print(
    json.dumps(
        {
            "rate_made": buyers.made,
            "p50_ms": stale[len(stale) // 2] * 1e3,
            "p99_ms": stale[int(len(stale) * 0.99)] * 1e3,
            "cpu_s": time.process_time(),
        }
    ),
    flush=True,
)
