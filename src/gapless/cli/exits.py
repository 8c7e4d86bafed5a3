"""How do commands end? The exit statuses that scripts may rely on; 0 is for what was asked, done."""

from __future__ import annotations

from typing import Final

#: A run that was refused. A bug ends in a traceback and status 1.
EXIT_REFUSED: Final = 2
#: The exit code of every command that Ctrl-C has ended: the one that shells report.
EXIT_INTERRUPTED: Final = 130
