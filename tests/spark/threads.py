"""A pipeline in a thread of this process, as tests of all kinds need it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from gapless.spark.pipeline import Pipeline


@contextmanager
def in_thread(made: Pipeline) -> Iterator[Pipeline]:
    """It runs, and in the end is stopped; whatever ended it before fails the test."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            made.run(stop)
        except BaseException as error:
            errors.append(error)
            raise

    thread = threading.Thread(target=run, name="pipeline")
    thread.start()
    try:
        yield made
    finally:
        stop.set()
        thread.join()
    assert not errors, errors
