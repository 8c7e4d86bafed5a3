"""`gapless token` makes a secret, and an entry that the network file takes."""

import json
import stat
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gapless.cli.main import app
from gapless.errors import GaplessError, UsageError
from gapless.model.ids import TopicId
from gapless.node.config import load_network

NETWORK = """
cells = {all = ["n1"]}
topics.trades = {price = "float"}
pubends.trades-1 = {topic = "trades", broker = "n1"}
[tokens]
"""


def made(*arguments: str) -> tuple[str, str]:
    result = CliRunner().invoke(app, ["token", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    return found["token"], found["entry"]


def test_the_entry_is_for_the_token_and_not_the_token_itself() -> None:
    secret, entry = made("desk-1", "--publish", "trades", "--subscribe", "news.*", "--subscribe", 'a"b')
    assert secret not in entry
    assert tomllib.loads(entry)["desk-1"]["subscribe"] == ["news.*", 'a"b']
    tokens = load_network(NETWORK + entry, "network.toml").tokens
    assert tokens is not None
    rights = tokens.rights(secret)
    assert rights.name == "desk-1"
    assert rights.may_publish(TopicId("trades"))
    assert not rights.may_publish(TopicId("news.sport"))
    assert rights.may_subscribe(TopicId("news.sport"))
    assert not rights.may_subscribe(TopicId("trades"))
    assert not rights.admin
    for wrong in (None, secret + "x", ""):
        with pytest.raises(UsageError, match=r"^E185 "):
            tokens.rights(wrong)


def test_two_tokens_are_never_the_same() -> None:
    assert made("a", "--admin")[0] != made("a", "--admin")[0]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["desk"], "E151 a token needs rights"),
        (["a b", "--admin"], "E150 NAME takes"),
        (["desk", "--publish", ""], "E150 a pattern is empty"),
    ],
)
def test_a_token_that_makes_no_sense_is_refused(arguments: list[str], reason: str) -> None:
    result = CliRunner().invoke(app, ["token", *arguments])
    assert isinstance(result.exception, GaplessError)
    assert str(result.exception).startswith(reason)


def test_the_network_secret_is_written_to_its_own_file(tmp_path: Path) -> None:
    file = tmp_path / "network.secret"
    result = CliRunner().invoke(app, ["token", "--network-secret", str(file)])
    assert result.exit_code == 0, result.output
    secret = file.read_text().strip()
    assert secret not in result.output
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    entry = result.output.partition("entry  ")[2]
    found = load_network(f"{NETWORK.partition('[tokens]')[0]}{entry}", "network.toml").secret
    assert found is not None
    assert found.key == secret.encode()
    # One that is in use is not written over.
    again = CliRunner().invoke(app, ["token", "--network-secret", str(file)])
    assert str(again.exception).startswith("E154 ")
    assert file.read_text().strip() == secret
    both = CliRunner().invoke(app, ["token", "desk", "--network-secret", str(file)])
    assert str(both.exception).startswith("E151 ")
    assert str(CliRunner().invoke(app, ["token", "--admin"]).exception).startswith("E151 say who")
