"""What is one run of the pipeline? A client, a lease, a Spark session, and the views, in this order.

Only one pipeline may publish to the relations of a network. At an edge, it holds a subscription whose name
belongs to one client at a time: another pipeline is refused while it is held, and a pipeline that loses it
ends. Edges do not know each other's names, so the lease is also recorded in the topic of holds, with its
edge. It stays there when a pipeline is killed, and the next one at that edge continues with it. At any other
edge a pipeline is refused while the record exists: from a distance a dead pipeline cannot be told from an
unreachable one, which would come back and publish. An operator can tell, and says `take_over`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from gapless.client import sync
from gapless.client.options import Options
from gapless.client.tls import TlsFiles
from gapless.client.views import reached
from gapless.errors import GaplessError, PipelineError, UsageError
from gapless.spark import register
from gapless.spark.holds import read_book
from gapless.spark.pipeline import Pipeline
from gapless.spark.running import NetworkAccess, Runner
from gapless.spark.session import MASTER, check_installed, session, state_settings
from gapless.views.limits import State
from gapless.views.registry import (
    HOLDS_TOPIC,
    LEASE,
    REGISTRY_COLUMNS,
    REGISTRY_RETENTION,
    REGISTRY_TOPIC,
    HoldBook,
    hold_rows,
)
from gapless.wire.address import parse_addresses

log = logging.getLogger("gapless.pipeline")

#: How long a pipeline that ends tries to return the lease, and then waits for missing receipts. If its node
#: is gone there will be none, and the next pipeline finds out by itself.
GIVE_BACK_SECONDS, CLOSE_SECONDS = 2.0, 1.0
#: The answer of a node that keeps everything in memory.
_NO_FOLDER = "E136"


class Lease:
    """The right to compute the views of a network."""

    def __init__(self, client: sync.SyncClient, *, take_over: bool = False) -> None:
        """Raises PipelineError E504 when another has it; `take_over` says that other edges have none."""
        client.create_topic(REGISTRY_TOPIC, REGISTRY_COLUMNS, retention=REGISTRY_RETENTION)
        answer = client.inquire(subscription=LEASE)
        self._client = client
        self._edge = str(answer["broker"])
        if (answer["subscription"] or {}).get("client"):
            raise PipelineError("E504", "another pipeline computes the views of this network: stop it first")
        self.lost = threading.Event()
        self._is_given_back = False
        #: Whether the node can keep names; without a folder it cannot, and no other pipeline follows.
        self.has_names = True
        self._claim(take_over=take_over)
        rows = client.subscribe(REGISTRY_TOPIC, name=LEASE)
        try:
            rows.__enter__()
        except GaplessError as error:
            if error.code != _NO_FOLDER:
                self.give_back()
                raise
            self.has_names = False
        else:
            self._until_lost(lambda: _last(rows))
        self._until_lost(self._watch)

    def _claim(self, *, take_over: bool) -> None:
        """Record the lease, and check whether another pipeline was faster."""
        book = read_book(self._client)
        others = [edge for edge in book.leases() if edge != self._edge]
        if others and not take_over:
            raise _taken(others[0])
        for edge in others:
            self._write(edge, held=False)
        if self._edge not in book.leases():
            self._write(self._edge, held=True)
        first, *_ = read_book(self._client).leases()
        if first != self._edge:
            self._write(self._edge, held=False)
            raise _taken(first)

    def _write(self, edge: str, *, held: bool) -> None:
        self._client.publish_batch(HOLDS_TOPIC, hold_rows(edge, {LEASE: REGISTRY_TOPIC}, held=held))

    def _until_lost(self, wait: Callable[[], None]) -> None:
        """Wait, in a separate thread, for something that ends with the lease."""

        def waiting() -> None:
            try:
                wait()
            except (GaplessError, RuntimeError) as error:
                log.warning("%s", error)
            if not self._is_given_back:
                self.lost.set()

        threading.Thread(target=waiting, name="gapless lease", daemon=True).start()

    def _watch(self) -> None:
        """Return when a pipeline at another edge has taken the lease."""
        book = HoldBook()
        # An older row may come before the newest one, but not after everything that existed at the start.
        rows = self._client.subscribe(HOLDS_TOPIC, start="earliest").__enter__()
        ends = self._client.ends(HOLDS_TOPIC)
        for batch in rows.batches():
            for pubend, events in batch.by_pubend().items():
                book.apply(pubend, events.ticks.tolist(), events.columns)
            if reached(rows.positions, ends) and self._edge not in book.leases():
                return

    def give_back(self) -> None:
        """Release the lease for a pipeline at any edge. If the node is away, this does not wait."""
        if not self.lost.is_set():
            self._is_given_back = True
            last = threading.Thread(target=self._give_back, daemon=True)
            last.start()
            last.join(GIVE_BACK_SECONDS)

    def _give_back(self) -> None:
        try:
            self._write(self._edge, held=False)
        except GaplessError as error:
            log.warning("%s", error)


def _last(rows: sync.SyncSubscription) -> None:
    for _ in rows.batches():
        pass


def _taken(edge: str) -> PipelineError:
    return PipelineError(
        "E504",
        f"another pipeline computes the views of this network, at edge '{edge}': stop it first, or if it is "
        "gone for good, start this one once with --take-over",
    )


def run(
    address: str,
    *,
    checkpoints: Path,
    stop: threading.Event,
    rows_max: int,
    master: str = MASTER,
    token: str | None = None,
    tls: TlsFiles | None = None,
    patience_s: float = 10.0,
    take_over: bool = False,
    state: State = "auto",
) -> None:
    """Compute the views of a network until told to stop. Executors of a cluster have the files of `tls`, too.

    Raises UsageError E190 for several addresses, E174 without PySpark or Java, LinkError without a node,
    PipelineError E504 when another pipeline runs, or has taken over.
    """
    check_installed()
    if len(parse_addresses(address)) > 1:
        raise UsageError(
            "E190", f"{address!r} is more than one edge, and the pipeline's names live at one: give only that"
        )
    files = tls or TlsFiles()
    given = {"token": token, "ca": files.authority, "certificate": files.certificate, "key": files.key}
    options = {name: value for name, value in given.items() if value is not None}
    connecting = Options(connect_timeout_s=patience_s, close_timeout_s=CLOSE_SECONDS)
    with sync.connect(address, token=token, tls=tls, name=LEASE, options=connecting) as client:
        lease = Lease(client, take_over=take_over)
        try:
            spark = session(master, settings=state_settings(state, master, rows_max))
            try:
                register(spark)
                log.info("Spark %s runs the views of %s", spark.version, address)
                network = NetworkAccess(address, options, has_names=lease.has_names)
                made = Pipeline(client, Runner(spark, network, checkpoints, rows_max=rows_max))
                made.run(stop, lost=lease.lost)
            finally:
                spark.stop()
        finally:
            lease.give_back()
        if lease.lost.is_set():
            raise PipelineError("E504", "another pipeline has taken over the views of this network")
