"""With which settings does Spark run the pipeline? One session, tuned for small, frequent batches.

The cost of a small micro-batch is Spark's overhead, so everything that is done per batch, per task or per
file is kept small: few shuffle partitions, no user interface, no batches without data, no second file with a
checksum beside each file of a checkpoint (a damaged checkpoint is noticed and rebuilt, see
`gapless.spark.checkpoints`).

Nothing here is needed by programs that only read and write topics: they bring their own session, and call
`gapless.spark.register`.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from gapless.errors import UsageError
from gapless.views.limits import ROWS_MAX, State

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: On this machine, with all of its cores.
MASTER = "local[*]"
LOOPBACK = "127.0.0.1"

#: The JVM may take a quarter of the machine's memory for groups, within these bounds.
HEAP_GIB = (1, 4)

_STREAMING = "spark.sql.streaming"
_STORES = "org.apache.spark.sql.execution.streaming.state"
_LOG = Path(__file__).with_name("log4j2.properties")
#: Makes Spark's Python processes start quickly: see `sitecustomize.py` there.
_WORKERS = Path(__file__).with_name("workers")

#: What the pipeline needs, and what makes its batches short.
SETTINGS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.session.timeZone": "UTC",
    # Conditions and columns are written to give null where ANSI mode would end the query.
    "spark.sql.ansi.enabled": "false",
    "spark.sql.decimalOperations.allowPrecisionLoss": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.adaptive.enabled": "false",
    # Inferring constraints from equal columns helps joins, of which stages have none; with the columns of
    # thirty views it takes longer than the batch.
    "spark.sql.constraintPropagation.enabled": "false",
    "spark.python.worker.reuse": "true",
    # A busy machine may take long to start a worker.
    "spark.python.authenticate.socketTimeout": "60s",
    f"{_STREAMING}.noDataMicroBatches.enabled": "false",
    f"{_STREAMING}.stopTimeout": "20s",
    f"{_STREAMING}.minBatchesToRetain": "4",
    f"{_STREAMING}.numRecentProgressUpdates": "4",
    f"{_STREAMING}.checkpoint.fileChecksum.enabled": "false",
    f"{_STREAMING}.stateStore.providerClass": f"{_STORES}.RocksDBStateStoreProvider",
    f"{_STREAMING}.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Counting rows would look each one up before writing it, and the count is not needed.
    f"{_STREAMING}.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    # The default one checks for links at every rename, for which Hadoop starts `readlink` on a local disk:
    # ten processes for each batch, a third of its time.
    f"{_STREAMING}.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.driver.extraJavaOptions": " ".join(
        (
            # Plans of streams with many columns are long, and printing them recurses.
            "-Xss8m",
            f"-Dlog4j2.configurationFile=file:{_LOG}",
            # Small heaps that fill slowly: concurrent collector threads cost more than they gain.
            "-XX:+UseSerialGC",
            # More than the default: fewer collections copy the data of a large batch.
            "-Xmn400m",
            # Hadoop starts `chmod` for each file that it creates on a local disk.
            "-Djdk.lang.Process.launchMechanism=VFORK",
        )
    ),
}


def check_installed() -> None:
    """Raises UsageError E174, saying what to install, when PySpark or Java is missing."""
    if find_spec("pyspark") is None:
        raise UsageError("E174", "PySpark is not installed: install gapless[spark]")
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and (home is None or not (Path(home) / "bin" / "java").exists()):
        raise UsageError(
            "E174", "Java is not installed: Spark needs Java 17 or newer, or JAVA_HOME set to it"
        )


def is_local(master: str) -> bool:
    """Whether Spark runs in this process.

    >>> is_local("local[2]"), is_local("spark://host:7077"), is_local("local-cluster[2,1,1024]")
    (True, False, False)
    """
    return master == "local" or master.startswith("local[")


def state_settings(state: State, master: str, rows_max: int) -> dict[str, str]:
    """Settings for where groups are kept.

    With groups in memory the executors of a busy stage take almost half less than with RocksDB (ADR 14); but
    a batch, however small, costs a little for every existing group. So `auto` is memory when Spark runs
    inside this process with at most the usual number of rows, and RocksDB otherwise.

    >>> state_settings("auto", "spark://host:7077", 1_000_000)
    {}
    >>> sorted(state_settings("auto", "local[*]", 1_000_000))
    ['spark.driver.memory', 'spark.sql.streaming.stateStore.providerClass']
    """
    small = is_local(master) and rows_max <= ROWS_MAX
    if state == "rocksdb" or (state == "auto" and not small):
        return {}
    found = {f"{_STREAMING}.stateStore.providerClass": f"{_STORES}.HDFSBackedStateStoreProvider"}
    return {**found, "spark.driver.memory": f"{_heap_gib()}g"} if is_local(master) else found


def _heap_gib() -> int:
    least, most = HEAP_GIB
    quarter = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**32
    return max(least, min(most, quarter))


def session(
    master: str = MASTER, *, name: str = "gapless pipeline", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """The session that runs views. `settings` override ours.

    Raises UsageError E174 when PySpark or Java is missing.
    """
    check_installed()
    from pyspark.sql import SparkSession  # noqa: PLC0415  # only now is it known to be installed

    # Executors of local mode are child processes of this program: they need the same libraries.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    paths = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    if str(_WORKERS) not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([*paths, str(_WORKERS)])
    builder = SparkSession.builder.appName(name).master(master)
    # In local mode its ports must not be reachable from outside.
    own = {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK} if is_local(master) else {}
    for key, value in {**SETTINGS, **own, **(settings or {})}.items():
        builder = builder.config(key, value)
    with no_java_left_behind():
        return builder.getOrCreate()


@contextmanager
def no_java_left_behind() -> Iterator[None]:
    """End the starting Java process if this one is interrupted.

    The folder through which it reports its start would be gone, and it would wait for ever. Python swallows
    a Ctrl-C that strikes inside a finaliser, so Java is ended by the handler: whoever waits for it notices.
    """
    before = _children()
    interrupts: list[int] = []

    def end_java() -> None:
        for child in _children() - before:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    def interrupted(number: int, _: FrameType | None) -> None:
        interrupts.append(number)
        end_java()
        raise KeyboardInterrupt

    # Not where Ctrl-C is ignored or has a meaning of its own.
    handler = signal.getsignal(signal.SIGINT)
    is_ours = handler is signal.default_int_handler and threading.current_thread() is threading.main_thread()
    if is_ours:
        signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    except BaseException as error:
        end_java()
        if interrupts and isinstance(error, Exception):
            raise KeyboardInterrupt from error
        raise
    finally:
        # A session that started has a handler of its own.
        if is_ours and signal.getsignal(signal.SIGINT) is interrupted:
            signal.signal(signal.SIGINT, handler)


def _children() -> set[int]:
    """The running child processes."""
    files = Path("/proc/self/task").glob("*/children")
    return {int(child) for file in files for child in file.read_text().split()}
