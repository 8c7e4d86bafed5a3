"""How do we answer `--help` without loading everything? Commands are named first and imported when they run.

The libraries behind the commands take most of a second to load, and a person who asks for the version, or
mistypes an option, has no use for them. So the list of commands is a table of names, and only the command
that is asked for is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_command


class Entry(NamedTuple):
    """One command of the program."""

    name: str
    #: Where it is, as `module:attribute`: a function, or a `typer.Typer` with commands of its own.
    place: str
    #: Its line in `gapless --help`: the first line of its docstring.
    line: str


def load(entry: Entry) -> Any:
    """Import a command and make it ready to run."""
    module, _, attribute = entry.place.partition(":")
    found = getattr(import_module(module), attribute)
    if isinstance(found, typer.Typer):
        return get_command(found)
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(entry.name)(found)
    return get_command(app)


class LazyGroup(TyperGroup):
    """The commands of the program, each of which is imported when it is asked for."""

    entries: ClassVar[Sequence[Entry]] = ()

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # The names alone: enough to list them, and to suggest one for a misspelt command.
        self.commands = dict.fromkeys(entry.name for entry in self.entries)  # type: ignore[assignment]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  # the base class has it
        """A command by its name; None when there is none."""
        for entry in self.entries:
            if entry.name == cmd_name:
                return load(entry)
        return None

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002  # the base class has it
        """The list in the help, from the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(entry.name, entry.line) for entry in self.entries])
