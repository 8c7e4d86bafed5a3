"""`gapless topic` against a network of real processes without a description."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from gapless.sync import connect
from tests.integration.said import Said

COMMAND = [sys.executable, "-m", "gapless"]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A node that nobody has told anything, and where it listens."""
    folder = str(tmp_path_factory.mktemp("data"))
    arguments = ["up", "--data", folder, "--listen", "127.0.0.1:0"]
    node = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, text=True)
    assert node.stdout is not None
    try:
        yield json.loads(node.stdout.readline())["listens"]
    finally:
        node.terminate()
        assert node.wait(timeout=60) == 0
        node.stdout.close()


def test_a_newcomer_needs_no_description(gapless: Callable[..., Said], address: str) -> None:
    empty = gapless("topic", "list", "--to", address)
    assert (empty.status, empty.out) == (0, "")
    assert "topic create" in empty.err
    made = gapless("topic", "create", "trades", "sym=string", "price=float?", "--to", address)
    assert made.out == "created trades (sym=string price=float?) at node\n"
    again = gapless("topic", "create", "trades", "sym=string", "price=float?", "--json", "--to", address)
    assert json.loads(again.out) == {
        "topic": "trades",
        "columns": {"sym": "string", "price": "float?"},
        "pubends": [{"pubend": "trades-node", "broker": "node"}],
        "created": False,
    }
    published = gapless("pub", "trades", '{"sym": "IBM", "price": 3.5}', "--to", address)
    assert published.status == 0, published.err
    listed = gapless("topic", "list", "--to", address).out.splitlines()
    assert [line.split() for line in listed] == [
        ["TOPIC", "AT", "COLUMNS"],
        ["trades", "node", "sym=string", "price=float?"],
    ]
    shown = json.loads(gapless("topic", "show", "trades", "--json", "--to", address).out)
    [pubend] = shown["pubends"]
    assert pubend["pubend"] == "trades-node"
    assert pubend["last_time"] > "2020"
    table = gapless("topic", "show", "trades", "--to", address).out
    assert "price   float?" in table
    assert "trades-node  node" in table


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("create", "bonds", "price"), "E150"),
        (("create", "bonds", "price=float", "price=int"), "E150"),
        (("create", "bonds", "price=money"), "E110"),
        (("create", "a/b", "price=float"), "E110"),
        (("create", "bonds", "price=float", "--retention", "often"), "E121"),
        (("create", "bonds"), "E149"),
        (("show", "nothing"), "E141"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    gapless: Callable[..., Said], address: str, arguments: tuple[str, ...], code: str
) -> None:
    refused = gapless("topic", *arguments, "--to", address)
    assert refused.status == 2
    assert refused.out == ""
    [line] = refused.err.splitlines()
    assert line.startswith(f"error: {code} ")
    assert "Traceback" not in refused.err


def test_another_topic_of_the_same_name_is_refused_with_both(
    gapless: Callable[..., Said], address: str
) -> None:
    gapless("topic", "create", "quotes", "bid=float", "--to", address)
    refused = gapless("topic", "create", "quotes", "bid=int", "--to", address)
    assert refused.status == 2
    assert "bid=float" in refused.err
    assert "bid=int" in refused.err


def test_a_publisher_identity_is_released(gapless: Callable[..., Said], address: str) -> None:
    with connect(address) as client:
        client.create_topic("released", {"n": "int"})
        client.publisher("released", identity="import-7").publish_batch({"n": [1]})
    done = gapless("topic", "release", "import-7", "--to", address)
    assert (done.status, done.out) == (0, "released import-7\n")
    unknown = gapless("topic", "release", "import-8", "--to", address)
    assert unknown.status == 2
    assert unknown.err.startswith("error: E103 publisher 'import-8' is not known here")
