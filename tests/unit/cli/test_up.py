"""`gapless up` checks everything before anything starts."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gapless.cli.main import app
from gapless.cli.up import alone, configured
from gapless.errors import GaplessError

NETWORK = """
cells = {p = ["p1"], s = ["s1"]}
links = ["p--s"]
edges = ["s1"]
topics.trades = {price = "float"}
pubends.trades-1 = {topic = "trades", broker = "p1"}
addresses = {p1 = "10.0.0.1", s1 = "10.0.0.2:7401"}
"""


def refusal(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["up", *arguments])
    assert isinstance(result.exception, GaplessError), result.output
    return str(result.exception)


def test_a_node_without_a_description_is_a_network_of_one() -> None:
    network = alone(["trades:sym=string,price=float?", "news:document=xml"])
    assert sorted(network.topics) == ["news", "trades"]
    assert [column.type for column in network.topics["trades"].columns] == ["string", "float"]  # type: ignore[index]


def test_a_node_of_a_network_has_its_own_folder_and_the_address_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "network.toml"
    file.write_text(NETWORK)
    config = configured(file, "s1", [], tmp_path, None)
    assert str(config.listen) == "10.0.0.2:7401"
    assert config.folder == tmp_path / "s1"
    assert str(configured(file, "p1", [], tmp_path, "localhost:9").listen) == "localhost:9"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (NETWORK.replace("s1 = ", "s9 = "), "E131 network.toml: addresses.s9: there is no such broker"),
        (NETWORK.replace(', s1 = "10.0.0.2:7401"', ""), "E131 network.toml: addresses: none is given for s1"),
        (
            NETWORK.replace("10.0.0.2:7401", "10.0.0.2:x"),
            "E131 network.toml: addresses.s1: '10.0.0.2:x' is not an address",
        ),
        ("cells = ", "E130 network.toml: not TOML"),
    ],
)
def test_a_file_that_cannot_be_run_is_refused_with_the_place(text: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "network.toml"
    file.write_text(text)
    assert refusal(str(file), "--broker", "s1").startswith(reason)


def test_mistakes_on_the_command_line_say_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "network.toml"
    file.write_text(NETWORK)
    assert refusal("--topic", "trades").startswith("E150 --topic takes NAME:COLUMN=TYPE")
    assert refusal("--topic", "a:x=int", "--topic", "a:y=int").startswith("E150 --topic names 'a' twice")
    assert refusal("--topic", "a:x=number").startswith("E110")
    assert refusal("--broker", "s1").startswith("E151 --broker needs a network description")
    assert refusal(str(file)) == "E151 say which broker this is: --broker p1 | s1"
    assert refusal(str(file), "--broker", "s2").startswith("E150 --broker: there is no 's2'")
    assert refusal(str(file), "--topic", "a:x=int").startswith("E151 --topic is for a node without")
    assert refusal(str(tmp_path / "nothing.toml")).startswith("E156")
