"""What can a person do with Gapless from a terminal?

This file holds what all commands share: the entry point, the version, the help, and error reporting. Each
command is a function in its own file, imported on demand and listed in `COMMANDS`.
"""

import errno
import gc
import os
import sys
from importlib.abc import MetaPathFinder
from typing import Annotated, Any

import typer

from gapless import __version__
from gapless.cli.exits import EXIT_INTERRUPTED, EXIT_REFUSED
from gapless.cli.lazy import Entry, LazyGroup
from gapless.cli.output.terminal import tame, tame_lines
from gapless.errors import ContentError, GaplessError, UsageError

#: Every command, in the order that the help lists them.
COMMANDS: tuple[Entry, ...] = (
    Entry("up", "gapless.cli.up:up", "Start a node and serve until it is stopped."),
    Entry("pub", "gapless.cli.pub.command:pub", "Publish events and wait until they are durable."),
    Entry(
        "sub",
        "gapless.cli.sub.command:sub",
        "Print events as lines of JSON, each exactly once, until stopped.",
    ),
    Entry("topic", "gapless.cli.topic:app", "Create and list topics."),
    Entry("view", "gapless.cli.view.command:app", "Create and read live views of topics."),
    Entry("history", "gapless.cli.history:history", "Query the past: SQL over any time range of a topic."),
    Entry(
        "status",
        "gapless.cli.status:status",
        "Show the status of nodes: links, pubends, clients, subscriptions, topics.",
    ),
    Entry(
        "top",
        "gapless.cli.top.command:top",
        "Watch a whole network: rates, latency, horizons, gaps, nacks, links.",
    ),
    Entry(
        "why",
        "gapless.cli.why.command:why",
        "Explain why a subscriber got an event, or did not: path, filters, epochs, positions.",
    ),
    Entry(
        "token",
        "gapless.cli.token:token",
        "Create a token for a client, and its entry for the network file.",
    ),
    Entry("match", "gapless.cli.match:match", "Try a condition on files, and see why a row matches or not."),
    Entry(
        "pipeline",
        "gapless.cli.pipeline:pipeline",
        "Compute the views of a network with Spark until stopped.",
    ),
    Entry(
        "demo",
        "gapless.cli.demo:demo",
        "Watch a network of real processes lose a router, and no subscriber lose an event.",
    ),
    Entry(
        "bench",
        "gapless.cli.bench.command:bench",
        "Measure throughput and latency, of a new or a running node.",
    ),
    Entry("sim", "gapless.cli.sim.command:sim", "Simulate networks under faults, and check every promise."),
)

#: Errors of a file that cannot be written.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: Number of characters of a text shown before and after the position of an error.
POINTED_CHARACTERS_MAX = 60

HELP = """Publish/subscribe that never skips.

Subscribers say what content they want and get every matching event exactly once, in order, through crashes
of brokers, links and stores.
"""

EPILOG = """Each command explains itself: gapless COMMAND --help.

Exit status: 0 when the command did what was asked; 2 when it was refused, with the reason on one line of
standard error, such as "error: E101 ...". For a mistake in a condition, its position follows.
"""


class Commands(LazyGroup):
    """The commands of `gapless`."""

    entries = COMMANDS

    def invoke(self, ctx: Any) -> Any:
        """Run a command; a closed pipe is not an error."""
        try:
            found = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _let_go_of_output()
            return None
        except OSError as error:
            if error.errno not in _NO_ROOM or error.filename is not None:
                raise
            _let_go_of_output()
            reason = f"standard output cannot be written: {error.strerror}: make room, and retry"
            raise UsageError("E154", reason) from error
        return found


app = typer.Typer(
    name="gapless",
    cls=Commands,
    help=HELP,
    epilog=EPILOG,
    add_completion=True,
    no_args_is_help=True,
    rich_markup_mode=None,
    # A bug shows Python's own traceback, which is what a bug report needs.
    pretty_exceptions_enable=False,
)

#: What typer raises for an unreadable command line: the branch of its exceptions above BadParameter.
_CommandLineError: type[Exception] = typer.BadParameter.__mro__[1]


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


#: Thresholds of the garbage collector. Every thread waits while it runs: a millisecond for 2,500 objects.
#: Objects are examined a second time soon, while they are few, and then hardly ever: examining the million
#: of sixteen thousand subscribers at once would take half a second.
GC_THRESHOLDS = (2_500, 1, 10_000)


class _NoPandas(MetaPathFinder):
    """Pretends that pandas is not installed."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:  # noqa: ARG002
        if fullname == "pandas":
            raise ModuleNotFoundError("the command line does without pandas", name=fullname)


def program() -> None:
    """The entry point of `gapless`. The process is ours, so modules that it does not need are not loaded.

    pyarrow imports pandas, where that is installed, as soon as it makes its first array: 0.4 s and 40 MB.
    Collecting cyclic garbage after every 700 new objects takes a third of the time of a busy process; there
    are few cycles, and collecting rarely finds them, too.
    """
    sys.meta_path.insert(0, _NoPandas())
    gc.set_threshold(*GC_THRESHOLDS)
    main()


def main() -> None:
    """Run the command line; report a refusal as one line and exit status 2.

    For a mistake in a condition, the text and a caret follow.
    """
    try:
        status = app(prog_name="gapless", standalone_mode=False)
    except GaplessError as error:
        _refuse(error)
    except _CommandLineError as error:
        _refuse_line(error)
    except typer.Abort:
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(status if isinstance(status, int) else 0)


def _refuse(error: GaplessError) -> None:
    text = " ".join(str(error).splitlines())
    typer.echo(f"error: {tame(text)}", err=True)
    if isinstance(error, ContentError) and (place := _pointer(error)):
        typer.echo(tame_lines(place), err=True)
    sys.exit(EXIT_REFUSED)


def _refuse_line(error: Any) -> None:
    """A command line that cannot be read: what is wrong, and where the help is."""
    context = error.ctx
    text = " ".join(error.format_message().split()).rstrip(".").replace(". Did you", ": did you")
    text = text.replace(": Value error, ", ": ")
    if text.startswith("Usage:"):
        # Without a command, print the help.
        typer.echo(error.format_message(), err=True)
        sys.exit(EXIT_REFUSED)
    command = "gapless" if context is None else context.command_path
    _refuse(UsageError("E149", f"{text[:1].lower()}{text[1:]} (see {command} --help)"))


def _let_go_of_output() -> None:
    """Discard further output, so that not even the last flush fails."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _pointer(error: ContentError) -> str:
    """The position of a mistake in two lines; of a long text only the surroundings."""
    line, _, caret = error.pointer().partition("\n")
    start = max(0, len(caret) - 1 - POINTED_CHARACTERS_MAX)
    stop = len(caret) + POINTED_CHARACTERS_MAX
    return f"{line[start:stop]}\n{caret[start:]}" if line else ""
