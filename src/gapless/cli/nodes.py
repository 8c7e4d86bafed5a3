"""What do all commands that talk to a node share? Where it is, how to authenticate, and how they end.

A command that dials has one decorator and one parameter, and gets all options of that kind:

    @dials
    def status(*, node: Node, as_json: Json = False) -> None:
        async with node.client() as client:
            ...

`NodeOptions` is for one node and `NodesOptions` for several; `Credentials` alone is for commands that find
the address themselves, and `Pass` for those of Spark, which reads in bulk. The options are the fields of
these classes.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from gapless.cli.exits import EXIT_INTERRUPTED
from gapless.cli.loop import loop_factory
from gapless.cli.output.terminal import tame
from gapless.errors import UsageError

if TYPE_CHECKING:
    import ssl

    from gapless.client import Client
    from gapless.client.tls import TlsFiles

Found = TypeVar("Found")

#: The default address of a node.
ADDRESS = "gapless://127.0.0.1:7400"
#: The variable of the environment that says where.
ADDRESS_VARIABLE = "GAPLESS_TO"
#: A mistyped port must fail quickly.
CONNECT_SECONDS = 1.0

#: The order of the options in `--help`.
OPTIONS = ("to", "token", "tls", "ca", "certificate", "key")

To = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="ADDRESS",
        envvar=ADDRESS_VARIABLE,
        help="The address of the node, or several separated by commas: any will do.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """How to authenticate, for bulk reads as well."""

    token: Annotated[
        str | None,
        typer.Option("--token", metavar="TEXT", envvar="GAPLESS_TOKEN", help="The token that lets us in."),
    ] = None
    ca: Annotated[
        Path | None,
        typer.Option("--ca", metavar="FILE", help="Use TLS; this authority signed the node's certificate."),
    ] = None
    certificate: Annotated[
        Path | None,
        typer.Option("--certificate", metavar="FILE", help="Use TLS, and show this certificate."),
    ] = None
    key: Annotated[
        Path | None,
        typer.Option(
            "--key", metavar="FILE", help="The key of the certificate, if it is not in the same file."
        ),
    ] = None

    @property
    def speaks_tls(self) -> bool:
        """Whether any option says so."""
        return any(path is not None for path in (self.ca, self.certificate, self.key))

    def files(self) -> TlsFiles | None:
        """The same as the names of files, for other processes; None without TLS. Raises UsageError."""
        from gapless.client.tls import TlsFiles  # noqa: PLC0415

        if self.context() is None:
            return None
        paths = (self.ca, self.certificate, self.key)
        return TlsFiles(*(None if path is None else str(path.absolute()) for path in paths))

    def context(self) -> ssl.SSLContext | None:
        """What TLS needs; None without TLS. Raises UsageError for files that cannot be used."""
        if not self.speaks_tls:
            return None
        import ssl  # noqa: PLC0415

        if self.key is not None and self.certificate is None:
            raise UsageError("E151", "--key goes with --certificate: name both")
        for path in (self.ca, self.certificate, self.key):
            if path is not None and not path.is_file():
                raise UsageError("E156", f"{path}: cannot be read: no such file")
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except (ssl.SSLError, OSError) as error:
            if self.certificate is not None and self.key is None and not _has_key(self.certificate):
                raise UsageError(
                    "E151", f"{self.certificate} has no private key: name it with --key"
                ) from error
            files = " and ".join(str(path) for path in (self.ca, self.certificate, self.key) if path)
            raise UsageError("E156", f"{files}: no certificate or key: {error.strerror or error}") from error
        return context


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials(Pass):
    """How to authenticate, without an address."""

    tls: Annotated[
        bool,
        typer.Option("--tls", help="Use TLS; an authority of the system signed the node's certificate."),
    ] = False

    @property
    def speaks_tls(self) -> bool:
        """Whether any option says so."""
        return self.tls or any(path is not None for path in (self.ca, self.certificate, self.key))

    def client_at(self, address: str, *, patience_s: float = CONNECT_SECONDS) -> Client:
        """A client of the node at an address. Raises UsageError."""
        from gapless.client import Options, connect  # noqa: PLC0415  # most of a command's start is this

        options = Options(connect_timeout_s=patience_s)
        return connect(address, token=self.token, tls=self.context(), name=_name(), options=options)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions(Credentials):
    """Where a node is, and how to authenticate."""

    to: To = ADDRESS

    def client(self) -> Client:
        """A client of the node. Raises UsageError."""
        return self.client_at(self.to)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesOptions(Credentials):
    """The same of several nodes."""

    # A network file goes before the environment, which typer cannot know.
    to: Annotated[
        list[str] | None,
        typer.Option(
            "--to",
            metavar="ADDRESS",
            help=f"A node to ask; repeatable.  [env var: {ADDRESS_VARIABLE}; default: {ADDRESS}]",
        ),
    ] = None


def dials(command: Callable[..., None]) -> Callable[..., None]:
    """A command that dials: its parameter of one of the types above becomes the options of that type.

    >>> def ping(*, node: NodeOptions, as_json: bool = False) -> None: ...
    >>> list(inspect.signature(dials(ping)).parameters)
    ['to', 'token', 'tls', 'ca', 'certificate', 'key', 'as_json']
    """
    signature = inspect.signature(command)
    hints = get_type_hints(command, include_extras=True)
    [name] = [each for each, kind in hints.items() if isinstance(kind, type) and issubclass(kind, Pass)]
    asked: type[Pass] = hints[name]
    options = _options(asked)
    parameters: list[inspect.Parameter] = []
    for each in signature.parameters.values():
        parameters += options if each.name == name else [each.replace(annotation=hints[each.name])]

    @wraps(command)
    def dialling(**values: Any) -> None:
        chosen = {option.name: values.pop(option.name) for option in options}
        command(**values, **{name: asked(**chosen)})

    # What typer reads. The names are those of this module and of the command's, so they are types by now.
    vars(dialling)["__signature__"] = signature.replace(parameters=parameters)
    dialling.__annotations__ = {each.name: each.annotation for each in parameters}
    return dialling


def _options(asked: type[Pass]) -> list[inspect.Parameter]:
    kinds = get_type_hints(asked, include_extras=True)
    return [
        inspect.Parameter(
            each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=kinds[each.name]
        )
        for each in sorted(fields(asked), key=lambda each: OPTIONS.index(each.name))
    ]


def _name() -> str:
    """Our name in the status of a node."""
    import getpass  # noqa: PLC0415
    import os  # noqa: PLC0415

    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "somebody"
    return f"{user}-{os.getpid()}"


def run(story: Coroutine[Any, Any, Found]) -> Found:
    """Run a command to its end; Ctrl-C ends it without a traceback, always with status 130."""
    # Messages of the client, such as a lost connection, in the format of a command.
    handler = logging.StreamHandler()
    handler.setFormatter(_Notices())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    interrupts: list[int] = []

    async def watched() -> Found:
        # Python's own handler cancels the command, which may end normally.
        cancel = signal.getsignal(signal.SIGINT)
        if callable(cancel) and threading.current_thread() is threading.main_thread():

            def interrupted(number: int, frame: FrameType | None) -> None:
                interrupts.append(number)
                cancel(number, frame)

            signal.signal(signal.SIGINT, interrupted)
        return await story

    before = signal.getsignal(signal.SIGINT)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            found = runner.run(watched())
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    finally:
        if signal.getsignal(signal.SIGINT) is not before:
            signal.signal(signal.SIGINT, before)
    if interrupts:
        raise typer.Exit(EXIT_INTERRUPTED)
    return found


class _Notices(logging.Formatter):
    """A line for each record, which may quote what a node has said."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        return f"notice: {tame(record.getMessage())}"


def _has_key(file: Path) -> bool:
    try:
        return b"PRIVATE KEY-----" in file.read_bytes()
    except OSError:
        return False


def notice(text: str) -> None:
    """Tell a person something beside the output."""
    typer.echo(f"notice: {tame(text)}", err=True)
