"""`gapless`, and in the end a list of the modules that were loaded after the node began to serve.

The list is written to the file that the environment names in `LOADED_LATE`.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from pathlib import Path

from gapless.cli import main, up


def watch() -> None:
    """Remember what is loaded when the node says that it listens."""
    echo = up.typer.echo
    ready: set[str] = set()

    def told(line: str) -> None:
        ready.update(sys.modules)
        echo(line)

    up.typer.echo = told  # type: ignore[assignment]
    # Whatever the interpreter itself loads to stop is loaded by then.
    atexit.register(
        lambda: Path(os.environ["LOADED_LATE"]).write_text(json.dumps(sorted(set(sys.modules) - ready)))
    )


if __name__ == "__main__":
    watch()
    main.program()
