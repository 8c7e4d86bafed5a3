"""`gapless view` against a node, with rows that the test publishes in the place of the pipeline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import gapless.sync
from gapless.views.registry import STATUS_TOPIC, Status, status_rows
from tests.integration.relations import STOCK
from tests.integration.said import Said

COMMAND = [sys.executable, "-m", "gapless"]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A node with a topic, and where it listens."""
    folder = tmp_path_factory.mktemp("data")
    network = folder / "network.toml"
    network.write_text(
        'cells = {all = ["node"]}\nedges = ["node"]\nrepositories = ["node"]\n'
        'topics.sales = {item = "string", qty = "int"}\n'
        'pubends.sales-node = {topic = "sales", broker = "node"}\n'
    )
    arguments = ["up", str(network), "--broker", "node", "--data", str(folder / "data")]
    arguments += ["--listen", "127.0.0.1:0"]
    node = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, text=True)
    assert node.stdout is not None
    try:
        yield json.loads(node.stdout.readline())["listens"]
    finally:
        node.terminate()
        assert node.wait(timeout=60) == 0
        node.stdout.close()


@pytest.fixture
def gapless_view(gapless: Callable[..., Said]) -> Callable[..., Said]:
    """Runs `gapless view`."""
    return lambda *arguments, stdin="": gapless("view", *arguments, stdin=stdin)


def test_a_view_from_its_creation_to_its_end(
    gapless_view: Callable[..., Said], address: str, tmp_path: Path
) -> None:
    there = ("--to", address)
    empty = gapless_view("list", *there)
    assert (empty.status, empty.out) == (0, "")
    assert "gapless view create" in empty.err
    made = gapless_view("create", "stock", "--file", "-", "--no-wait", *there, stdin=STOCK)
    assert (made.status, made.out) == (0, "created stock\n"), made.err
    again = json.loads(gapless_view("create", "stock", STOCK, "--no-wait", "--json", *there).out)
    assert (again["created"], again["topic"]) == (False, "view.stock")
    assert gapless_view("list", *there).out.splitlines() == [
        "VIEW   STATE    SQL",
        f"stock  waiting  {STOCK}",
    ]
    with gapless.sync.connect(address) as client:
        rows = [
            {"gapless_kind": 1, "gapless_key": '["b"]', "item": "b", "total": 2},
            {"gapless_kind": 1, "gapless_key": '["a"]', "item": "a", "total": 1},
            {"gapless_kind": 2, "gapless_as_of": '{"sales": {"sales-node": 1769860800000000}}'},
        ]
        client.publish_batch("view.stock", rows)
        said = Status("stock", again["topic"], "running", rows=2, as_of='{"sales": {"sales-node": 5}}')
        client.publish_batch(STATUS_TOPIC, status_rows([said]))
    waited = gapless_view("create", "stock", STOCK, *there)
    assert (waited.status, waited.out) == (0, "was there already: stock, running, 2 rows\n")
    [listed] = json.loads(gapless_view("list", "--json", *there).out)
    assert (listed["state"], listed["rows"], listed["as_of"]) == ("running", 2, {"sales": {"sales-node": 5}})
    shown = gapless_view("show", "stock", *there)
    assert [line.split() for line in shown.out.splitlines() if line.strip(" ─")] == [
        ["item", "total"],
        ["a", "1"],
        ["b", "2"],
    ]
    assert shown.err == "2 of 2 rows, as of 2026-01-31 12:00:00.000\n"
    low = gapless_view("show", "stock", "--where", "total < 2", "--json", *there)
    assert [json.loads(line) for line in low.out.splitlines()] == [{"item": "a", "total": 1}]
    watched = gapless_view("watch", "stock", "--json", "--limit", "1", *there)
    assert [json.loads(line) for line in watched.out.splitlines()] == [
        {"weight": 1, "row": {"item": "b", "total": 2}},
        {"weight": 1, "row": {"item": "a", "total": 1}},
        {"as_of": {"sales": {"sales-node": 1769860800000000}}},
    ]
    picture = tmp_path / "stock.svg"
    explained = gapless_view("explain", "stock", "--svg", str(picture), *there)
    assert explained.out.startswith("view stock\n"), explained.err
    assert picture.read_text().lstrip().startswith("<svg")
    assert gapless_view("drop", "stock", *there).out == "dropped stock\n"
    assert gapless_view("list", "--json", *there).out == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["show", "nothing"], "error: E173 there is no view 'nothing'"),
        (["create", "a b", "SELECT item FROM sales"], "error: E173 'a b' is not a valid name for a view"),
        (["create", "v", "SELECT thing FROM sales"], "error: E166 at 8: "),
        (["create", "v", "SELEC item"], "error: E165 at 1: "),
        (["create", "v"], "error: E151 give either the text of the view or --file"),
        (["explain"], "error: E151 name a view, or give its text"),
        (["explain", "--sql", "SELECT item FROM sale"], "error: E166 at 18: "),
        (["create", "v", "--file", "/no/such/file"], "error: E156 /no/such/file: cannot be read"),
        (["drop", "nothing"], "error: E173 there is no view 'nothing'"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_an_error_is_one_line_and_status_2(
    gapless_view: Callable[..., Said], address: str, arguments: list[str], line: str
) -> None:
    done = gapless_view(*arguments, "--to", address)
    assert done.status == 2
    assert done.out == ""
    assert done.err.startswith(line), done.err
    assert "Traceback" not in done.err


def test_waiting_for_a_view_without_a_pipeline_times_out(
    gapless_view: Callable[..., Said], address: str
) -> None:
    done = gapless_view("create", "idle", STOCK, "--wait", "0.5", "--to", address)
    assert done.status == 2
    assert done.err.startswith("error: E505 view 'idle' was created but does not run after 0.5 seconds")


def test_a_view_that_fails_says_why(gapless_view: Callable[..., Said], address: str) -> None:
    made = json.loads(gapless_view("create", "bad", STOCK, "--no-wait", "--json", "--to", address).out)
    with gapless.sync.connect(address) as client:
        said = Status("bad", made["topic"], "failed", message="E502 view 'bad' shows 3 rows, at most 2")
        client.publish_batch(STATUS_TOPIC, status_rows([said]))
    done = gapless_view("create", "bad", STOCK, "--to", address)
    assert done.status == 2
    assert done.err == (
        "error: E505 view 'bad' was created but failed: E502 view 'bad' shows 3 rows, at most 2\n"
    )


def test_without_java_at_the_node_creating_a_view_says_so_at_once(
    gapless_view: Callable[..., Said], tmp_path: Path
) -> None:
    arguments = ["up", "--topic", "sales:item=string,qty=int", "--listen", "127.0.0.1:0"]
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    with subprocess.Popen(
        [*COMMAND, *arguments, "--data", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**environment, "PATH": str(tmp_path)},
        text=True,
    ) as node:
        assert node.stdout is not None
        there = ("--to", json.loads(node.stdout.readline())["listens"], "--wait", "3600")
        for name in ("stock", "again"):
            made = gapless_view("create", name, STOCK, *there)
            assert (made.status, made.out) == (2, "")
            assert made.err == (
                f"error: E174 view '{name}' was created but waits for Spark: at the node, Java is not "
                "installed: Spark needs Java 17 or newer, or JAVA_HOME set to it\n"
            )
        node.terminate()
