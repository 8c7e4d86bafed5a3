"""Which worker runs which tests, and in what order? Only with several workers: `make test`.

The tests of one file share a worker, and so its fixtures. Files that use a Spark session share one in groups:
a session takes seconds to start, and its first queries are slow. Slow files come first, so that no worker is
left alone with one at the end.
"""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadScopeScheduling

SPARK = "tests/spark/"
#: Files with a Spark session that share a worker. Those of one group take about as long as those of another.
GROUPS = {
    f"{SPARK}{file}.py": f"{SPARK}{name}"
    for name, files in {
        "events": (
            "test_compile",
            "test_history",
            "test_queries",
            "test_register",
            "test_sink",
            "test_source",
        ),
        "views": ("test_certificates", "test_pipeline", "test_recovery", "test_views_oracle"),
    }.items()
    for file in files
}


class SharedSpark(LoadScopeScheduling):
    """Hands out files in the order in which they were collected, and those of a group as one."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return GROUPS.get(file, file)


def slow_first(items: list[pytest.Item]) -> None:
    """Spark first, then everything that is slow, then the rest; otherwise as they were."""
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: (not item.nodeid.startswith(SPARK), item.path not in slow))
