"""Commands are loaded when they are asked for, and the table of them tells the truth."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from gapless.cli.lazy import Entry, load
from gapless.cli.main import COMMANDS, app, main

#: What takes most of a second to load, and what the command line itself has no use for.
HEAVY = ("pyarrow", "numpy", "rich", "asyncio", "sqlglot", "lxml")


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda entry: entry.name)
def test_the_help_says_of_each_command_what_it_says_itself(entry: Entry) -> None:
    command = load(entry)
    assert command.help.splitlines()[0] == entry.line
    assert command.name == entry.name


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda entry: entry.name)
def test_the_help_of_each_command_has_an_example(entry: Entry) -> None:
    answer = CliRunner().invoke(app, [entry.name, "--help"])
    assert answer.exit_code == 0
    assert f"gapless {entry.name} " in answer.output.split("Options:")[0].split("\n", 2)[2], answer.output


@pytest.mark.parametrize(
    ("module", "spared"),
    [
        ("gapless.client", ["sqlglot", "gapless.views.sql.parse", "gapless.views.fluent", "pandas"]),
        ("gapless.cli.up", ["gapless.client", "gapless.views.sql.parse", "gapless.views.fluent", "pandas"]),
    ],
)
def test_who_reads_no_view_does_not_load_the_parser_of_views(module: str, spared: list[str]) -> None:
    program = f"import sys, {module}; print([name for name in {spared!r} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"


def test_the_list_of_commands_loads_none_of_them() -> None:
    program = (
        "import sys; sys.argv = ['gapless', '--help']\n"
        "from gapless.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stderr == "[]\n"
    assert all(f"  {entry.name} " in answer.stdout for entry in COMMANDS)


def test_a_mistyped_command_or_option_is_one_line_with_a_suggestion() -> None:
    wrong = {
        "pubb": "error: E149 no such command 'pubb': did you mean 'pub'? (see gapless --help)\n",
        "match --wher x": "error: E149 no such option: --wher (Possible options: --help, --where)"
        " (see gapless match --help)\n",
    }
    for line, reason in wrong.items():
        command = [sys.executable, "-m", "gapless", *line.split()]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (answer.returncode, answer.stdout, answer.stderr) == (2, "", reason)


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda entry: entry.name)
def test_every_command_refuses_what_it_does_not_know_in_one_line(
    entry: Entry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gapless", entry.name, "--nonsense"])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (2, "")
    assert said.err.startswith("error: E149 ")
    assert said.err.endswith(f"(see gapless {entry.name} --help)\n")
    assert len(said.err.splitlines()) == 1
