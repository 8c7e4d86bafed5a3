"""How many documents per second does the index of XPath patterns match, and what do changes cost?

    .venv/bin/python -m benchmarks.content_xml [--counts 1000,5000,20000,50000] [--seconds 3] [--values]

Documents of 22 elements and patterns as in Table 2 of the XNET paper (height up to 10, `*` with probability
0.1, `//` 0.05, branches 0.1, names by Zipf's law) over an invented news vocabulary, see `news.py`. All
patterns differ, but for one run in which many are alike, as they are drawn.

- *index*: the batch goes in as XML text and comes out as (row, slot) pairs; parsing is included.
- *loop*: lxml evaluates every compiled XPath on a tree that is parsed already; parsing is not included.
- *churn*: the same matching while patterns are added and removed between the batches, 5,000 a second of
  matching or as asked for. Matching is timed alone, so that the question is whether the structure suffers;
  the time of the changes is given beside it.
"""

from __future__ import annotations

import argparse
import gc
import resource
import time
import tracemalloc
from collections.abc import Sequence
from statistics import median
from typing import Any

from lxml import etree
from rich.console import Console
from rich.table import Table

from benchmarks.news import PatternShape, documents, patterns
from gapless.content.xml import Pattern, PatternIndex, parse_pattern

COUNTS = (1_000, 5_000, 20_000, 50_000)
BATCH = 100
DOCUMENTS = 2_000
PATTERN_SEED, DOCUMENT_SEED, CHURN_SEED = 11, 22, 33
#: The loop is slow: this many evaluations are enough to time it.
LOOP_EVALUATIONS = 150_000
#: Counting every allocation is slow: memory per pattern is taken from the first so many.
MEMORY_PATTERNS = 5_000


def measure_xml(
    counts: Sequence[int] = COUNTS, seconds: float = 3.0, *, batch: int = BATCH, p_value: float = 0.0
) -> list[dict[str, Any]]:
    """One row for each number of patterns: documents per second, matches, memory, and the loop beside it."""
    texts = patterns(max(counts), PATTERN_SEED, PatternShape(p_value=p_value))
    inputs = documents(DOCUMENTS, DOCUMENT_SEED)
    return [_measure(texts[:count], inputs, seconds, batch) for count in counts]


def measure_xml_duplicates(count: int = 50_000, seconds: float = 3.0) -> dict[str, Any]:
    """The same with patterns as they are drawn: many are alike, and short ones match most documents."""
    texts = patterns(count, PATTERN_SEED, distinct=False)
    return _measure(texts, documents(DOCUMENTS, DOCUMENT_SEED), seconds, BATCH)


def _measure(texts: list[str], inputs: list[str], seconds: float, batch: int) -> dict[str, Any]:
    parsed = [parse_pattern(text) for text in texts]
    memory, counted = _memory(texts[:MEMORY_PATTERNS])
    index = PatternIndex()
    started = time.process_time()
    for slot, pattern in enumerate(parsed):
        index.add(slot, pattern)
    add_seconds = time.process_time() - started
    rate, matches = _rate(index, inputs, seconds, batch)
    single = _single(index, inputs)
    loop, loop_matches, index_matches = _loop(texts, index, inputs)
    assert loop_matches == index_matches, f"lxml found {loop_matches} matches, the index {index_matches}"
    return {
        "patterns": len(texts),
        "distinct": len(set(parsed)),
        "documents_per_s": rate,
        "loop_documents_per_s": loop,
        "ratio": rate / loop,
        "matches_per_document": matches,
        "single_ms": single * 1e3,
        "add_us": add_seconds / len(texts) * 1e6,
        "bytes_per_pattern": memory / counted,
        **{key: value for key, value in index.statistics().items() if key in {"conditions", "array_bytes"}},
    }


def _rate(index: PatternIndex, inputs: list[str], seconds: float, batch: int) -> tuple[float, float]:
    """Documents per second (the median over passes), and matches per document."""
    index.match(inputs[:batch])
    rates, matches = [], 0
    deadline = time.process_time() + seconds
    while not rates or time.process_time() < deadline:
        matches = 0
        started = time.process_time()
        for at in range(0, len(inputs), batch):
            matches += len(index.match(inputs[at : at + batch])[0])
        rates.append(len(inputs) / (time.process_time() - started))
    return median(rates), matches / len(inputs)


def _single(index: PatternIndex, inputs: list[str]) -> float:
    """Seconds for a batch of one document."""
    times = []
    for document in inputs[:200]:
        started = time.process_time()
        index.match([document])
        times.append(time.process_time() - started)
    return median(times)


def _loop(texts: list[str], index: PatternIndex, inputs: list[str]) -> tuple[float, int, int]:
    """Documents per second of lxml, and the matches that it and the index find in them."""
    compiled = [etree.XPath(text) for text in texts]
    count = max(2, min(50, LOOP_EVALUATIONS // len(texts)))
    trees = [etree.fromstring(document) for document in inputs[:count]]
    started = time.process_time()
    matches = sum(bool(xpath(tree)) for tree in trees for xpath in compiled)
    elapsed = time.process_time() - started
    return count / elapsed, matches, len(index.match(inputs[:count])[0])


def _memory(texts: list[str]) -> tuple[int, int]:
    """The bytes that an index takes with the patterns in it, arrays and Python objects together; how many."""
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    index = PatternIndex()
    for slot, text in enumerate(texts):
        index.add(slot, parse_pattern(text))
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return taken, len(texts)


def measure_xml_churn(
    count: int = 50_000, *, changes_per_s: float = 5_000, seconds: float = 5.0, batch: int = BATCH
) -> dict[str, Any]:
    """Matching alone, and matching while patterns come and go."""
    texts = patterns(2 * count, PATTERN_SEED)
    live: list[Pattern] = [parse_pattern(text) for text in texts[:count]]
    waiting = [parse_pattern(text) for text in texts[count:]]
    inputs = documents(DOCUMENTS, DOCUMENT_SEED)
    index = PatternIndex()
    for slot, pattern in enumerate(live):
        index.add(slot, pattern)
    quiet, _ = _rate(index, inputs, seconds / 2, batch)
    matching = changing = 0.0
    done = changes = slot = at = 0
    deadline = time.process_time() + seconds
    while time.process_time() < deadline:
        started = time.process_time()
        index.match(inputs[at : at + batch])
        middle = time.process_time()
        matching += middle - started
        at = (at + batch) % len(inputs)
        done += batch
        # A removal and an addition at a time, so that the number of patterns stays.
        while changes < changes_per_s * (matching + changing):
            index.remove(slot)
            index.add(slot, waiting[slot])
            waiting[slot], live[slot] = live[slot], waiting[slot]
            slot = (slot + 1) % count
            changes += 2
            changing += time.process_time() - middle
            middle = time.process_time()
    again, _ = _rate(index, inputs, seconds / 2, batch)
    return {
        "patterns": count,
        "quiet_documents_per_s": quiet,
        "churn_matching_documents_per_s": done / matching,
        "churn_documents_per_s": done / (matching + changing),
        "after_documents_per_s": again,
        "changes_per_s": changes / (matching + changing),
        "change_us": changing / max(1, changes) * 1e6,
        "changes_per_s_alone": changes / changing if changing else 0.0,
    }


def _print(rows: list[dict[str, Any]], churn: dict[str, Any]) -> None:
    console = Console()
    table = Table(title="XPath patterns against documents of 22 elements, one core")
    for row in rows[:1]:
        for key in row:
            table.add_column(key.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(
            *(f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" for value in row.values())
        )
    console.print(table)
    console.print({key: round(value, 1) for key, value in churn.items()})
    console.print(
        f"peak memory of the process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MB"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--counts", default=",".join(str(each) for each in COUNTS))
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--values", action="store_true", help="patterns also compare attributes")
    options = parser.parse_args()
    chosen = [int(each) for each in options.counts.split(",")]
    measured = measure_xml(chosen, options.seconds, p_value=0.3 if options.values else 0.0)
    _print(measured, measure_xml_churn(max(chosen), seconds=options.seconds))
