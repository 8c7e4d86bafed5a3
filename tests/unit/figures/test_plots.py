"""Without matplotlib everything works except drawing, and that says what to install."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gapless.cli.main import app
from gapless.errors import UsageError

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "line",
    ["bench --plot latency.svg", "demo", "sim --scenario b1-crash --out OUT"],
    ids=lambda line: line[:4],
)
def test_a_command_that_draws_names_the_missing_extra_before_it_begins(
    line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, line.split())
    assert isinstance(result.exception, UsageError)
    assert str(result.exception) == "E126 matplotlib is not installed: install gapless[plots]"
    assert not list(tmp_path.iterdir())


def test_commands_load_without_matplotlib() -> None:
    program = """
import sys
sys.modules["matplotlib"] = None
from gapless.cli.lazy import load
from gapless.cli.main import COMMANDS
for entry in COMMANDS:
    load(entry)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_matplotlib_is_an_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert not [each for each in project["dependencies"] if each.startswith("matplotlib")]
    assert [each for each in project["optional-dependencies"]["plots"] if each.startswith("matplotlib")]
    assert "matplotlib" not in (ROOT / "requirements" / "runtime.txt").read_text()
