"""What can a person do with Gapless from a terminal?

This file holds what all commands share: the entry point, the version, the help, and the one way in which a
mistake is reported. Each command is a function in a file of its own; `COMMANDS` is where it joins.
"""

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from gapless import __version__
from gapless.cli.match import match
from gapless.cli.pub import pub
from gapless.cli.sim import sim
from gapless.cli.status import status
from gapless.cli.sub import sub
from gapless.cli.up import up
from gapless.errors import ContentError, GaplessError

#: Every command, in the order that the help lists them: its name and the function that runs it.
#: The first line of the function's docstring is its line in `gapless --help`.
COMMANDS: tuple[tuple[str, Callable[..., None]], ...] = (
    ("up", up),
    ("pub", pub),
    ("sub", sub),
    ("status", status),
    ("match", match),
    ("sim", sim),
)

#: The exit status of a run that was refused. A bug ends in a traceback and status 1.
EXIT_REFUSED = 2
#: Of the text that an error points into, so many characters are shown before and behind the place.
POINTED_CHARACTERS_MAX = 60

HELP = """Publish/subscribe that never skips.

Subscribers say what content they want and get every matching event exactly once, in order, through crashes
of brokers, links and stores.
"""

EPILOG = """Each command explains itself: gapless COMMAND --help.

Exit status: 0 when the command did what was asked; 2 when it was refused, with the reason on one line of
standard error, such as "error: E101 ...". For a condition that cannot be read, the place follows.
"""

app = typer.Typer(
    name="gapless",
    help=HELP,
    epilog=EPILOG,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    # A bug shows Python's own traceback, which is what a bug report needs.
    pretty_exceptions_enable=False,
)
for _name, _command in COMMANDS:
    app.command(_name)(_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gapless {__version__}")
        raise typer.Exit


@app.callback()
def _shared_options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; report a refusal as one line and exit status 2.

    Below a mistake in a condition stands the place: the text, and a caret.
    """
    try:
        app()
    except GaplessError as error:
        text = " ".join(str(error).splitlines())
        typer.echo(f"error: {text}", err=True)
        if isinstance(error, ContentError) and (place := _pointer(error)):
            typer.echo(place, err=True)
        sys.exit(EXIT_REFUSED)


def _pointer(error: ContentError) -> str:
    """Where the mistake is, in two lines; of a long text only what is around it."""
    line, _, caret = error.pointer().partition("\n")
    start = max(0, len(caret) - 1 - POINTED_CHARACTERS_MAX)
    stop = len(caret) + POINTED_CHARACTERS_MAX
    return f"{line[start:stop]}\n{caret[start:]}" if line else ""
