"""How many connections can a node afford? As many as it may open files, less what it needs itself.

A socket is an open file, and so is a log, the database, a link. A process that has as many as it may can open
no segment and load no module, so connections must never get the last ones: some are kept back for the
node, a bounded number is for those that have not said who they are, and the rest is for clients.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import dataclass

from gapless.errors import UsageError

#: What a process needs in any case: standard streams, the event loop, the database, libraries,
#: files that are open for a moment, and connections that are being closed.
OWN = 96
#: The lock of a log and its newest segment; a link, and the one that takes its place.
PER_LOG, PER_LINK = 2, 2
#: For the HTTP endpoint, and for bulk reads.
FOR_HTTP, FOR_BULK = 40, 32
#: Maximum number of connections that have not identified themselves, and a quarter of what is left.
STRANGERS_MAX = 1_024
STRANGERS_SHARE = 4
#: A node with room for fewer connections does not start.
CONNECTIONS_MIN = 16
#: Without a limit, as many as this.
UNLIMITED = 2**20


def raise_limit() -> int:
    """Raise the soft limit of open files to the hard one; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return limit()


def limit() -> int:
    """How many files this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptors:
    """What one node may spend. Its logs may become more while it runs."""

    limit: int
    links: int
    logs: Callable[[], int]
    has_http: bool

    @property
    def free(self) -> int:
        """For connections of all kinds but links."""
        own = OWN + PER_LINK * self.links + PER_LOG * self.logs() + FOR_BULK
        return self.limit - own - (FOR_HTTP if self.has_http else 0)

    @property
    def strangers_max(self) -> int:
        """Maximum number of connections that have not identified themselves."""
        return max(1, min(STRANGERS_MAX, self.free // STRANGERS_SHARE))

    def clients_max(self, wanted: int) -> int:
        """How many clients may be connected, where `wanted` are wanted."""
        return max(0, min(wanted, self.free - self.strangers_max))

    def check(self) -> None:
        """Raise UsageError when there are too few to serve anybody."""
        if self.free < CONNECTIONS_MIN:
            raise UsageError(
                "E183",
                f"this process may open {self.limit} files, and the node needs "
                f"{self.limit - self.free + CONNECTIONS_MIN}: raise the limit, as with `ulimit -n 65536`",
            )
