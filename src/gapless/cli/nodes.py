"""What do all commands share that talk to a node? Where it is, how to be let in, and how they end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from gapless.cli.loop import loop_factory
from gapless.errors import UsageError

if TYPE_CHECKING:
    import ssl

    from gapless.client import Client
    from gapless.client.tls import TlsFiles

Found = TypeVar("Found")

#: Where a node listens unless it is told otherwise.
ADDRESS = "gapless://127.0.0.1:7400"
#: The variable of the environment that says where.
ADDRESS_VARIABLE = "GAPLESS_TO"
#: What shells report for a command that Ctrl-C has ended.
EXIT_INTERRUPTED = 130
#: A person who mistyped a port shall not wait long for the answer.
CONNECT_SECONDS = 1.0

To = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="ADDRESS",
        envvar=ADDRESS_VARIABLE,
        help="Where the node is, or several with commas: any will do.",
    ),
]
#: Of commands that ask several nodes. A network file goes before the environment, which typer cannot know.
ToEach = Annotated[
    list[str] | None,
    typer.Option(
        "--to",
        metavar="ADDRESS",
        help=f"A node to ask; repeatable.  [env var: {ADDRESS_VARIABLE}; default: {ADDRESS}]",
    ),
]
Token = Annotated[
    str | None,
    typer.Option("--token", metavar="TEXT", envvar="GAPLESS_TOKEN", help="The token that lets us in."),
]
Tls = Annotated[
    bool, typer.Option("--tls", help="Speak TLS; the node's certificate is by an authority of the system.")
]
Ca = Annotated[
    Path | None,
    typer.Option("--ca", metavar="FILE", help="Speak TLS; the node's certificate is by this authority."),
]
Certificate = Annotated[
    Path | None, typer.Option("--certificate", metavar="FILE", help="Speak TLS, and show this certificate.")
]
Key = Annotated[
    Path | None,
    typer.Option("--key", metavar="FILE", help="The key of the certificate, if it is not in the same file."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


@dataclass(frozen=True, slots=True)
class Door:
    """How to be let in, whatever the address."""

    token: str | None = None
    tls: bool = False
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def client(self, address: str, *, patience_s: float = CONNECT_SECONDS) -> Client:
        """A client of the node at an address. Raises UsageError."""
        from gapless.client import Options, connect  # noqa: PLC0415  # most of a command's start is this

        options = Options(connect_timeout_s=patience_s)
        return connect(address, token=self.token, tls=self.context(), name=_name(), options=options)

    def files(self) -> TlsFiles | None:
        """The same as the names of files, for other processes; None without TLS. Raises UsageError."""
        from gapless.client.tls import TlsFiles  # noqa: PLC0415

        if self.context() is None:
            return None
        paths = (self.ca, self.certificate, self.key)
        return TlsFiles(*(None if path is None else str(path.absolute()) for path in paths))

    def context(self) -> ssl.SSLContext | None:
        """What TLS needs; None without TLS. Raises UsageError for files that cannot be used."""
        if not (self.tls or self.ca or self.certificate or self.key):
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
            files = " and ".join(str(path) for path in (self.ca, self.certificate, self.key) if path)
            raise UsageError("E156", f"{files}: no certificate or key: {error.strerror or error}") from error
        return context


def _name() -> str:
    """How we are called in the status of a node."""
    import getpass  # noqa: PLC0415
    import os  # noqa: PLC0415

    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "somebody"
    return f"{user}-{os.getpid()}"


def run(story: Coroutine[Any, Any, Found]) -> Found:
    """Run a command to its end; Ctrl-C ends it without a traceback."""
    # What the client has to say, such as that a connection was lost, in the words of a command.
    logging.basicConfig(format="notice: %(message)s", level=logging.WARNING)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(story)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


def notice(text: str) -> None:
    """Tell a person something beside the output."""
    typer.echo(f"notice: {text}", err=True)
