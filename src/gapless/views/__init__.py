"""Subscriptions to continually updated relational views: what they mean, and how they are computed.

Pure like the rest of the core: SQL or the fluent algebra becomes a `Relation`, the relation is analysed,
rewritten and cut into stages. `gapless.spark` runs the stages; `gapless.node` hosts what comes out.

Every node and every client needs the `registry`, and few ever parse a view. So the names below are loaded on
demand: the parser would take a third of a client's start-up time.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gapless.views.fluent import (
        Table,
        Term,
        avg_,
        call,
        col,
        count_,
        first_,
        last_,
        lit,
        max_,
        min_,
        sum_,
        table,
        topic,
    )
    from gapless.views.sql.parse import parse_view

__all__ = [
    "Table",
    "Term",
    "avg_",
    "call",
    "col",
    "count_",
    "first_",
    "last_",
    "lit",
    "max_",
    "min_",
    "parse_view",
    "sum_",
    "table",
    "topic",
]


def __getattr__(name: str) -> Any:
    """Names that are loaded on demand."""
    if name not in __all__:
        raise AttributeError(f"module 'gapless.views' has no attribute {name!r}")
    return getattr(import_module(f"gapless.views.{'sql.parse' if name == 'parse_view' else 'fluent'}"), name)
