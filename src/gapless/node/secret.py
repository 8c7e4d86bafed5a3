"""Where do the brokers of a network keep the secret that they share? In a file that only they can read.

The network file names it and never holds it: that one may be read by anybody. `gapless.wire.proof` says what
the secret is for.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from gapless.errors import NetworkDescriptionError, UsageError
from gapless.wire.proof import NetworkSecret

SECRET_PREFIX = "gapless_network_"  # noqa: S105  # what secrets begin with, so that people and scanners know one
#: Minimum length of a secret, so that it cannot be guessed.
SECRET_CHARACTERS_MIN, SECRET_CHARACTERS_MAX = 32, 1_024


def write_secret(path: Path) -> None:
    """Make a secret in a new file that only its owner may read. Raises UsageError."""
    text = f"{SECRET_PREFIX}{secrets.token_urlsafe(32)}\n"
    try:
        made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(made, "w", encoding="ascii") as file:
            file.write(text)
    except FileExistsError as error:
        raise UsageError("E154", f"{path} exists: name a new file, or remove it first") from error
    except OSError as error:
        raise UsageError("E154", f"{path} cannot be written: {error.strerror or error}") from error


def read_secret(path: Path) -> NetworkSecret:
    """The secret in a file. Raises NetworkDescriptionError."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(SECRET_CHARACTERS_MAX + 2).strip()
    except OSError as error:
        raise _unusable(path, f"cannot be read: {error.strerror or error}") from error
    if not SECRET_CHARACTERS_MIN <= len(text) <= SECRET_CHARACTERS_MAX:
        raise _unusable(path, f"holds no secret of at least {SECRET_CHARACTERS_MIN} characters")
    if mode & stat.S_IRWXO:
        raise _unusable(path, "may be read by every user of this machine", f"chmod 600 {path}")
    return NetworkSecret(text)


def _unusable(
    path: Path, reason: str, way_out: str = "make one with `gapless token --network-secret FILE`"
) -> NetworkDescriptionError:
    return NetworkDescriptionError("E123", f"secret.file: {path} {reason}: {way_out}")
