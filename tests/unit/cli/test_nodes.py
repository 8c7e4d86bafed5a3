"""Commands that dial: all have the same options, and what these say arrives."""

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from gapless.cli.lazy import load
from gapless.cli.main import COMMANDS
from gapless.cli.nodes import OPTIONS, Credentials, NodeOptions, NodesOptions, Pass, dials

#: Commands of Spark read in bulk, which knows no client certificates; `--to` of `history` is a time.
BULK = {"pipeline": ["token", "ca"], "history": ["token", "ca"]}


def commands() -> dict[str, Any]:
    """Every command by its whole name."""
    found: dict[str, Any] = {}
    for entry in COMMANDS:
        command = load(entry)
        inner = getattr(command, "commands", None)
        named = {entry.name: command} if inner is None else {f"{entry.name} {k}": v for k, v in inner.items()}
        found.update(named)
    return found


def test_commands_that_take_a_token_have_the_same_connection_options_in_the_same_order() -> None:
    dialling = 0
    for name, command in commands().items():
        options = [each.name for each in command.params if each.name in OPTIONS]
        if "token" in options:
            wanted = BULK.get(name, list(OPTIONS[1:]))
            assert [each for each in options if each in wanted] == wanted, name
            dialling += 1
    assert dialling == len([*BULK, "pub", "sub", "status", "top", "why", "bench"]) + 4 + 6


@pytest.mark.parametrize(
    ("kind", "line", "expected"),
    [
        (NodeOptions, "", NodeOptions()),
        (
            NodeOptions,
            "--to gapless://a:1 --token t --tls",
            NodeOptions(to="gapless://a:1", token="t", tls=True),
        ),
        (NodesOptions, "--to gapless://a:1 --to b", NodesOptions(to=["gapless://a:1", "b"])),
        (Credentials, "--certificate c --key k", Credentials(certificate=Path("c"), key=Path("k"))),
        (Pass, "--ca a", Pass(ca=Path("a"))),
    ],
)
def test_what_the_options_say_arrives(kind: type[Pass], line: str, expected: Pass) -> None:
    got: list[tuple[Pass, str]] = []

    def command(name: str, *, at: kind) -> None:  # type: ignore[valid-type]
        got.append((at, name))

    app = typer.Typer()
    app.command()(dials(command))
    result = CliRunner().invoke(app, ["me", *line.split()], env={"GAPLESS_TO": None, "GAPLESS_TOKEN": None})
    assert result.exit_code == 0, result.output
    assert got == [(expected, "me")]
