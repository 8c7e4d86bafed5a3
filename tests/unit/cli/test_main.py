"""The command line as a person meets it: help, version, refusals."""

import os
import subprocess
import sys

import pytest

from gapless import __version__
from gapless.cli import main as cli
from gapless.errors import ParameterError


def gapless(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gapless", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_version_is_one_line() -> None:
    result = gapless("--version")
    assert (result.returncode, result.stdout) == (0, f"gapless {__version__}\n")


def test_help_says_what_it_is_for_and_where_to_go_next() -> None:
    result = gapless("--help")
    assert result.returncode == 0
    assert "Publish/subscribe that never skips." in result.stdout
    assert "gapless COMMAND --help" in result.stdout


def test_an_unknown_command_is_refused() -> None:
    result = gapless("publsh")
    assert result.returncode == cli.EXIT_REFUSED
    assert "publsh" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_domain_error_is_one_line_and_exit_status_two(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(**_: object) -> None:
        raise ParameterError("E130", "seed -1 is negative:\nuse 0 or more")

    monkeypatch.setattr(cli, "app", refuse)
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    assert exit_.value.code == cli.EXIT_REFUSED
    assert capsys.readouterr().err == "error: E130 seed -1 is negative: use 0 or more\n"


def test_a_bug_is_not_taken_for_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise AssertionError("known and curious overlap")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(AssertionError, match="overlap"):
        cli.main()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("gapless vi", ["view"]),
        ("gapless view cr", ["create"]),
        ("gapless sub --fr", ["--from"]),
        ("gapless sub trades --or", ["--order"]),
    ],
)
def test_a_shell_completes_commands_and_options(words: str, expected: list[str]) -> None:
    settings = {
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
        "_GAPLESS_COMPLETE": "complete_bash",
    }
    program = "import sys; sys.argv = ['gapless']; from gapless.cli.main import program; program()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.split() == expected
