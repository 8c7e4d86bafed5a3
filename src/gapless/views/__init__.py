"""Subscriptions to continually updated relational views: what they mean, and how they are computed.

Pure like the rest of the core: SQL or the fluent algebra becomes a `Relation`, the relation is analysed,
rewritten and cut into stages. `gapless.spark` runs the stages; `gapless.node` hosts what comes out.
"""

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
from gapless.views.parse import parse_view

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
