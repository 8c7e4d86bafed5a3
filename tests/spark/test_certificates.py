"""Spark at a node that wants certificates: source, sink, history and views show theirs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import gapless.spark
from gapless.cli.main import main
from gapless.client import sync
from gapless.client.tls import TlsFiles
from gapless.errors import UsageError
from gapless.spark.options import parse_options, parse_sink_options
from tests.integration.authority import Authority
from tests.integration.nodes import PATIENCE_SECONDS
from tests.spark.stories import published, state_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NETWORK = """
cells = {all = ["n1"]}
edges = ["n1"]
topics.trades = {sym = "string", size = "int"}
pubends.trades-1 = {topic = "trades", broker = "n1"}
addresses = {n1 = "127.0.0.1:0"}
tls = {certificate = "{broker}.pem", key = "{broker}.key", authority = "ca.pem", clients = "required"}
spark = {broker = "n1", master = "local[2]"}
"""


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    authority = Authority(tmp_path_factory.mktemp("files"))
    authority.issue("n1")
    own = authority.issue("desk")
    return TlsFiles(str(authority.path), str(own), str(own.with_suffix(".key")))


@pytest.fixture(scope="module")
def address(tls: TlsFiles) -> Iterator[str]:
    """A node as a process of its own, which starts Spark itself."""
    assert tls.authority is not None
    folder = Path(tls.authority).parent
    (folder / "network.toml").write_text(NETWORK)
    up = [sys.executable, "-m", "gapless", "up", str(folder / "network.toml"), "--data", str(folder / "data")]
    with (folder / "node.log").open("w") as log:
        node = subprocess.Popen(up, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert node.stdout is not None
        yield json.loads(node.stdout.readline())["listens"]
    finally:
        node.terminate()
        node.communicate(timeout=2 * PATIENCE_SECONDS)


def options(address: str, tls: TlsFiles) -> dict[str, str]:
    assert tls.authority is not None
    assert tls.certificate is not None
    assert tls.key is not None
    files = {"ca": tls.authority, "certificate": tls.certificate, "key": tls.key}
    return {"brokers": address, "topic": "trades", **files}


def test_rows_go_in_and_out_and_come_back_from_history(
    spark: SparkSession,
    address: str,
    tls: TlsFiles,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = spark.createDataFrame([("IBM", 1), ("HAL", 2)], "sym string, size long")
    told = options(address, tls)
    for publish in ("commit", "tasks"):
        rows.write.format("gapless").options(**told, publish=publish).mode("append").save()
    found = spark.read.format("gapless").options(**told).load()
    assert sorted((row.sym, row["size"]) for row in found.collect()) == 2 * [("HAL", 2)] + 2 * [("IBM", 1)]
    past = gapless.spark.history(
        spark, address, "trades", ca=tls.authority, certificate=tls.certificate, key=tls.key
    )
    assert past.count() == 4
    # The same from a terminal, with the session that is there.
    monkeypatch.setattr("gapless.spark.session.session", lambda *_, **__: spark)
    monkeypatch.setattr("pyspark.sql.SparkSession.stop", lambda _: None)
    command = ["gapless", "history", "trades", "--node", address, "--csv", "--ca", told["ca"]]
    shown = ["--certificate", told["certificate"], "--key", told["key"]]
    for files, status in ((shown, 0), ([], 2)):
        monkeypatch.setattr(sys, "argv", [*command, *files])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert ended.value.code == status, said.err
        if status:
            assert said.err.startswith("error: E196 this node requires a client certificate")
        else:
            assert said.out.count("IBM") == 2


@pytest.mark.long
def test_views_are_computed_by_a_program_that_shows_the_certificate_of_its_node(
    address: str, tls: TlsFiles
) -> None:
    with sync.connect(address, tls=tls) as client:
        client.create_view("sizes", "SELECT sym, max(size) AS most FROM trades GROUP BY sym")
        ticks = published(client, "trades", {"sym": ["DEC", "DEC"], "size": [5, 9]})
        assert ("DEC", 9) in state_at(client, "view.sizes", ticks)


@pytest.mark.parametrize("parse", [parse_options, parse_sink_options])
def test_a_key_goes_with_a_certificate(parse: object) -> None:
    assert callable(parse)
    with pytest.raises(UsageError, match=r"^E178 option 'key': goes with option 'certificate'"):
        parse({"brokers": "gapless+tls://b", "topic": "t", "key": "desk.key"})
    assert parse({"brokers": "gapless://b", "topic": "t"}).tls is None
