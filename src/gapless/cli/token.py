"""`gapless token`: create a token for a client, and its entry for the network file.

With `--network-secret` it creates the secret that the brokers of a network share.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import typer

from gapless.errors import ParameterError
from gapless.node.secret import write_secret
from gapless.node.security import new_token, token_hash

#: Names that TOML accepts without quotes, and that look well in a status.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def token(
    name: Annotated[str | None, typer.Argument(help="Who it is for; shown in the status of nodes.")] = None,
    *,
    publish: Annotated[
        list[str] | None,
        typer.Option(
            "--publish", metavar="PATTERN", help="A topic to publish to, or a pattern such as 'news.*'."
        ),
    ] = None,
    subscribe: Annotated[
        list[str] | None,
        typer.Option("--subscribe", metavar="PATTERN", help="A topic to subscribe to, or a pattern."),
    ] = None,
    admin: Annotated[
        bool, typer.Option("--admin", help="See the status, create topics, release publishers, adopt names.")
    ] = False,
    network_secret: Annotated[
        Path | None,
        typer.Option(
            "--network-secret",
            metavar="FILE",
            help="Create a secret for the brokers of a network instead, in a new file.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Create a token for a client, and its entry for the network file.

    gapless token dashboard --subscribe 'trades*' --subscribe news

    The token is shown once; the network keeps only its hash. Give the token to the client (--token, or
    GAPLESS_TOKEN), add the line to the [tokens] of the network file, and send each node a SIGHUP.

    gapless token --network-secret network.secret

    The file is for the brokers alone: copy it to each of them, readable by the user that runs the node.
    """
    if network_secret is not None:
        if name is not None or publish or subscribe or admin:
            raise ParameterError("E151", "--network-secret goes alone: it is for brokers, not for a client")
        _make_secret(network_secret, as_json=as_json)
        return
    if name is None:
        raise ParameterError("E151", "say who the token is for: gapless token NAME")
    if _NAME.fullmatch(name) is None:
        raise ParameterError("E150", f"NAME takes 1 to 64 letters, digits, '-' and '_', got {name!r:.80}")
    if not (publish or subscribe or admin):
        raise ParameterError("E151", "a token needs rights: give --publish, --subscribe or --admin")
    for pattern in (*(publish or ()), *(subscribe or ())):
        if not pattern:
            raise ParameterError("E150", "a pattern is empty: write '*' for all topics")
    secret = new_token()
    line = entry(name, secret, publish or [], subscribe or [], admin=admin)
    if as_json:
        typer.echo(json.dumps({"token": secret, "entry": line}))
        return
    typer.echo(f"token  {secret}")
    typer.echo(f"entry  {line}")


def _make_secret(file: Path, *, as_json: bool) -> None:
    write_secret(file)
    # A separate table can be anywhere in the network file.
    lines = ["[secret]", f"file = {json.dumps(str(file))}"]
    if as_json:
        typer.echo(json.dumps({"file": str(file), "entry": "\n".join(lines)}))
        return
    typer.echo(f"file   {file}")
    typer.echo(f"entry  {lines[0]}\n       {lines[1]}")


def entry(name: str, secret: str, publish: list[str], subscribe: list[str], *, admin: bool) -> str:
    """The line of a token in the network file.

    >>> line = entry("desk", "gapless_example", ["trades"], [], admin=False)
    >>> print(line.replace(token_hash("gapless_example"), "..."))
    desk = { sha256 = "...", publish = ["trades"] }
    """
    parts = [f'sha256 = "{token_hash(secret)}"']
    for right, patterns in (("publish", publish), ("subscribe", subscribe)):
        if patterns:
            # JSON's quotes and escapes are those of TOML's basic strings.
            parts.append(f"{right} = {json.dumps(patterns)}")
    if admin:
        parts.append("admin = true")
    return f"{name} = {{ {', '.join(parts)} }}"
