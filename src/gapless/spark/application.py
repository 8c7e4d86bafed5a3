"""What is one run of the pipeline as a program? A client, a lease, a Spark session, and the views, in order.

Only one pipeline may publish to the relations of a network. It holds a subscription whose name is taken by
one client at a time: whoever comes while it is held is refused, and whoever loses it ends.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from gapless.client import sync
from gapless.client.options import Options
from gapless.client.tls import TlsFiles
from gapless.errors import GaplessError, PipelineError, UsageError
from gapless.spark import register
from gapless.spark.pipeline import Pipeline
from gapless.spark.running import Network, Runner
from gapless.spark.session import MASTER, check_installed, session
from gapless.views.registry import REGISTRY_COLUMNS, REGISTRY_RETENTION, REGISTRY_TOPIC

log = logging.getLogger("gapless.pipeline")

#: The name that one pipeline has at a time.
LEASE = "gapless.pipeline"
#: What a node says that keeps everything in memory.
_NO_FOLDER = "E136"


class Lease:
    """The right to compute the views of a network."""

    def __init__(self, client: sync.Client) -> None:
        """Raises PipelineError E504 when another has it."""
        client.create_topic(REGISTRY_TOPIC, REGISTRY_COLUMNS, retention=REGISTRY_RETENTION)
        for each in client.status()["subscriptions"].get("list", ()):
            if each.get("name") == LEASE and each.get("client"):
                raise _taken()
        self.lost = threading.Event()
        #: Whether the node can keep names; one without a folder cannot, and has no other pipeline after it.
        self.has_names = True
        rows = client.subscribe(REGISTRY_TOPIC, name=LEASE)
        try:
            rows.__enter__()
        except UsageError as error:
            if error.code != _NO_FOLDER:
                raise
            self.has_names = False
            return
        threading.Thread(target=self._hold, args=[rows], name="gapless lease", daemon=True).start()

    def _hold(self, rows: sync.Subscription) -> None:
        try:
            for _ in rows.batches():
                pass
        except (GaplessError, RuntimeError) as error:
            log.warning("%s", error)
        self.lost.set()


def _taken() -> PipelineError:
    return PipelineError("E504", "another pipeline computes the views of this network: stop it first")


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
) -> None:
    """Compute the views of a network until told to stop. Executors of a cluster have the files of `tls`, too.

    Raises UsageError E174 without PySpark or Java, LinkError without a node, PipelineError E504 when another
    pipeline is there.
    """
    check_installed()
    files = tls or TlsFiles()
    told = {"token": token, "ca": files.authority, "certificate": files.certificate, "key": files.key}
    options = {name: value for name, value in told.items() if value is not None}
    connecting = Options(connect_timeout_s=patience_s)
    with sync.connect(address, token=token, tls=tls, name=LEASE, options=connecting) as client:
        lease = Lease(client)
        spark = session(master)
        try:
            register(spark)
            log.info("Spark %s runs the views of %s", spark.version, address)
            network = Network(address, options, has_names=lease.has_names)
            made = Pipeline(client, Runner(spark, network, checkpoints, rows_max=rows_max))
            made.run(stop, lost=lease.lost)
        finally:
            spark.stop()
        if lease.lost.is_set():
            raise _taken()
