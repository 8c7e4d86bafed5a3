"""How fast are rows matched against very many SQL conditions, and against whom is that fast?

Workloads, each subscription matching about 0.1% of the events (Gryphon's):

- *equality*: `key = 17`
- *three*: an equality, a range and a comparison, such as
  `city = 'c017' AND price BETWEEN 210 AND 410 AND volume > 5000`
- *mixed*: equalities, ranges, prefixes, sets, disjunctions, NOT, IS NULL and LIKE in the middle

The peers see the same events in the same run: a loop that evaluates each compiled condition over the
batch with array operations, and DuckDB evaluating all conditions as columns of one query.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from random import Random

import duckdb
import numpy as np
import pyarrow as pa

from gapless.content.condition import Condition
from gapless.content.covering.forest import Forest
from gapless.content.evaluate import mask
from gapless.content.index.index import Index
from gapless.content.language import parse_condition
from gapless.content.rows import Rows
from gapless.model.ids import TopicId
from gapless.model.schema import Schema

SCHEMA = Schema.parse(
    TopicId("trades"),
    {
        "key": "int",
        "city": "string",
        "symbol": "string",
        "price": "float",
        "volume": "int",
        "note": "string?",
    },
)
WORDS = ("alpha", "bravo", "carol", "delta", "eagle", "flint", "grove", "heron", "ivory", "joker")
#: More conditions than this take DuckDB minutes to plan.
DUCKDB_CONDITIONS_MAX = 4_000
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def events(random: np.random.Generator, count: int) -> pa.RecordBatch:
    """Rows of trades."""
    letters = np.asarray(list(LETTERS))
    symbols = ["".join(row) for row in letters[random.integers(0, 26, (count, 4))]]
    notes = [" ".join(WORDS[at] for at in row) for row in random.integers(0, 10, (count, 3))]
    notes = [
        None if nothing else note for note, nothing in zip(notes, random.random(count) < 0.1, strict=True)
    ]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(random.integers(0, 1_000, count)),
            pa.array([f"c{at:03d}" for at in random.integers(0, 100, count)]),
            pa.array(symbols),
            pa.array(random.uniform(0, 1_000, count)),
            pa.array(random.integers(0, 10_000, count)),
            pa.array(notes),
        ],
        schema=SCHEMA.arrow(),
    )


def equality(random: Random) -> str:
    """One value of a thousand."""
    return f"key = {random.randrange(1_000)}"


def three(random: Random) -> str:
    """One value of a hundred, a fifth of a range, one half of another: 0.1% together."""
    low = round(random.uniform(0, 800), 2)
    side = random.choice("<>")
    return f"city = '{_city(random)}' AND price BETWEEN {low} AND {low + 200} AND volume {side} 5000"


def mixed(random: Random) -> str:
    """A bit of everything."""
    low = round(random.uniform(0, 999), 2)
    city, symbol = _city(random), "".join(random.choices(LETTERS, k=2))
    kinds: list[Callable[[], str]] = [
        lambda: three(random),
        lambda: three(random),
        lambda: three(random),
        lambda: equality(random),
        lambda: equality(random),
        lambda: f"symbol LIKE '{symbol}%' AND volume < 7000",
        lambda: f"symbol LIKE '{symbol}%' AND note LIKE '%{random.choice(WORDS)}%'",
        lambda: f"key IN ({', '.join(str(random.randrange(1_000)) for _ in range(3))}) AND price < {low}",
        lambda: f"price BETWEEN {low} AND {low + 1}",
        lambda: f"city = '{city}' AND (price < {low / 20:.2f} OR volume > {9_900 - low / 10:.0f})",
        lambda: f"city = '{city}' AND symbol <> 'AAAA' AND note IS NULL AND price > {low}",
        lambda: f"NOT (key <> {random.randrange(1_000)} OR price + 1 < {low})",
    ]
    return random.choice(kinds)()


def _city(random: Random) -> str:
    return f"c{random.randrange(100):03d}"


WORKLOADS: dict[str, Callable[[Random], str]] = {"equality": equality, "three": three, "mixed": mixed}


@dataclass(frozen=True)
class Figures:
    """One line of the table."""

    workload: str
    subscriptions: int
    matches_per_event: float
    index_per_s: float
    index_tens_per_s: float
    loop_per_s: float
    duckdb_per_s: float | None
    parse_us: float
    add_us: float
    bytes_per_subscription: float

    @property
    def ratio(self) -> float:
        """How many times the loop."""
        return self.index_per_s / self.loop_per_s


def measure_rows(counts: tuple[int, ...], *, seconds: float = 1.0, seed: int = 1) -> Iterator[Figures]:
    """Every workload at every number of subscriptions, one after the other."""
    for workload, generate in WORKLOADS.items():
        random = Random(seed)
        texts = [generate(random) for _ in range(max(counts))]
        for count in counts:
            yield _measured(workload, texts[:count], seconds, seed)


def _measured(workload: str, texts: list[str], seconds: float, seed: int) -> Figures:
    start = time.perf_counter()
    conditions = [parse_condition(text, SCHEMA) for text in texts]
    parse_us = (time.perf_counter() - start) / len(texts) * 1e6
    start = time.perf_counter()
    index = indexed(conditions)
    add_us = (time.perf_counter() - start) / len(texts) * 1e6
    random = np.random.default_rng(seed)
    thousands = [events(random, 1_000) for _ in range(10)]
    tens = [batch.slice(at, 10) for batch in thousands for at in range(0, 1_000, 100)]
    per_s, matches = match_rate(index, thousands, seconds)
    tens_per_s, _ = match_rate(index, tens, seconds)
    return Figures(
        workload,
        len(texts),
        matches,
        per_s,
        tens_per_s,
        loop_rate(conditions, thousands[0], seconds),
        duckdb_rate(texts, thousands[0]) if len(texts) <= DUCKDB_CONDITIONS_MAX else None,
        parse_us,
        add_us,
        bytes_per_subscription(conditions[:5_000]),
    )


def indexed(conditions: list[Condition]) -> Index:
    """An index of them all."""
    index = Index()
    for slot, condition in enumerate(conditions):
        index.add(slot, condition)
    return index


def match_rate(index: Index, batches: list[pa.RecordBatch], seconds: float) -> tuple[float, float]:
    """Events per second, and matches per event; the best of three, for the machine is not ours alone."""
    index.match(batches[0])
    rates, matched, seen = [], 0, 0
    for _ in range(3):
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds / 3:
            for batch in batches:
                rows, _ = index.match(batch)
                matched += len(rows)
                count += batch.num_rows
        seen += count
        rates.append(count / (time.perf_counter() - start))
    return max(rates), matched / seen


def loop_rate(conditions: list[Condition], batch: pa.RecordBatch, seconds: float) -> float:
    """Events per second when each condition is evaluated over the batch, one after the other."""
    rates = []
    for _ in range(2):
        rows = Rows(batch)
        done, start = 0, time.perf_counter()
        for condition in conditions:
            mask(condition, rows)
            done += 1
            if time.perf_counter() - start > 5 * seconds:
                break  # the rest costs as much per condition
        elapsed = (time.perf_counter() - start) * len(conditions) / done
        rates.append(batch.num_rows / elapsed)
    return max(rates)


def duckdb_rate(texts: list[str], batch: pa.RecordBatch) -> float:
    """Events per second when DuckDB counts what each condition accepts, on one thread.

    In statements of 500 conditions that are prepared before the clock starts.
    """
    connection = duckdb.connect(config={"threads": 1})
    connection.register("events", pa.Table.from_batches([batch]))
    names = []
    for at in range(0, len(texts), 500):
        columns = ", ".join(f"count(*) FILTER (WHERE {text})" for text in texts[at : at + 500])
        names.append(f"statement{at}")
        connection.execute(f"PREPARE {names[-1]} AS SELECT {columns} FROM events")
    start = time.perf_counter()
    for name in names:
        connection.execute(f"EXECUTE {name}").fetchall()
    return batch.num_rows / (time.perf_counter() - start)


def bytes_per_subscription(conditions: list[Condition]) -> float:
    """What the index holds for each; the condition itself, which its owner has anyway, not counted."""
    gc.collect()
    tracemalloc.start()
    index = indexed(conditions)
    index.match(events(np.random.default_rng(0), 10))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del index
    return held / len(conditions)


@dataclass(frozen=True)
class Churn:
    """Matching while subscriptions come and go."""

    subscriptions: int
    changes_per_s: float
    quiet_per_s: float
    busy_per_s: float
    #: What one addition or removal costs, without the text's parsing, and what parsing one text costs.
    change_us: float
    parse_us: float

    @property
    def kept(self) -> float:
        """The part of the quiet speed that matching has left."""
        return self.busy_per_s / self.quiet_per_s

    @property
    def throughput_per_s(self) -> float:
        """Events per second when the changes take their time from the same core."""
        return self._left(self.change_us)

    @property
    def parsing_per_s(self) -> float:
        """The same when the texts of the additions, every other change, are parsed there as well."""
        return self._left(self.change_us + self.parse_us / 2)

    def _left(self, each_us: float) -> float:
        return self.busy_per_s * max(0.0, 1 - self.changes_per_s * each_us / 1e6)


def measure_churn(
    count: int = 100_000, *, changes_per_s: int = 5_000, seconds: float = 4.0, seed: int = 1
) -> Churn:
    """Mixed subscriptions: after every batch so many are replaced that the rate is reached.

    The matching time of each batch is taken alone, so that what is compared is the matching; what the
    changes themselves cost is told beside it. Quiet and busy stretches alternate.
    """
    random = Random(seed)
    conditions = [parse_condition(mixed(random), SCHEMA) for _ in range(count)]
    texts = [mixed(random) for _ in range(20_000)]
    start = time.perf_counter()
    fresh = [parse_condition(text, SCHEMA) for text in texts]
    parse_us = (time.perf_counter() - start) / len(fresh) * 1e6
    index = indexed(conditions)
    batches = [events(np.random.default_rng(seed), 1_000) for _ in range(10)]
    for batch in batches:
        index.match(batch)
    matching = {True: 0.0, False: 0.0}
    matched = {True: 0, False: 0}
    changing, changes, wall_busy = 0.0, 0, 0.0
    stretch = 0
    while sum(matching.values()) < seconds:
        busy = stretch % 2 == 1
        stretch += 1
        for batch in batches:
            begin = time.perf_counter()
            if busy:
                # As many changes as arrive while one batch is matched at the rate asked for, at least.
                due = int(changes_per_s * wall_busy) - changes + changes_per_s // 20
                for _ in range(max(0, due + 1) // 2):
                    slot = random.randrange(count)
                    index.remove(slot)
                    index.add(slot, fresh[changes // 2 % len(fresh)])
                    changes += 2
                changing += time.perf_counter() - begin
            middle = time.perf_counter()
            index.match(batch)
            end = time.perf_counter()
            matching[busy] += end - middle
            matched[busy] += batch.num_rows
            if busy:
                wall_busy += end - begin
    return Churn(
        count,
        changes / wall_busy,
        matched[False] / matching[False],
        matched[True] / matching[True],
        changing / changes * 1e6,
        parse_us,
    )


def measure_forest(count: int, *, seed: int = 1) -> dict[str, float]:
    """What the covering forest costs: mixed subscriptions added one by one, then a part removed."""
    random = Random(seed)
    conditions = [parse_condition(mixed(random), SCHEMA) for _ in range(count)]
    forest = Forest()
    start = time.perf_counter()
    for condition in conditions:
        forest.add(condition)
    add_us = (time.perf_counter() - start) / count * 1e6
    maximal = len(forest.maximal)
    some = random.sample(conditions, min(count, 2_000))
    start = time.perf_counter()
    for condition in some:
        forest.remove(condition)
    remove_us = (time.perf_counter() - start) / len(some) * 1e6
    return {"subscriptions": count, "maximal": maximal, "add_us": add_us, "remove_us": remove_us}


def as_json(figures: Figures) -> dict[str, object]:
    """A line of the table for programs."""
    return {**asdict(figures), "ratio": figures.ratio}
