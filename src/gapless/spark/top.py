"""Which rows are the first k of their group? Sorted as columns, never row by row.

Nulls come last in every order. Ties are broken by all other columns ascending, and finally by the key, so
that the answer is unique (see `views.relation.TopK`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gapless.spark.state import Delta, Mask, codes, combined, same_values
from gapless.views.planning.stages import Top
from gapless.views.registry import KEY


def first_rows(rows: pa.Table, top: Top) -> pa.Table:
    """The visible rows among all rows.

    >>> rows = pa.table({"gapless_key": ["1", "2", "3"], "a": [7, None, 9]})
    >>> first_rows(rows, Top(2, (("a", True),))).column("a").to_pylist()
    [9, 7]
    """
    ordered = {name for name, _ in top.order}
    others = [name for name in rows.schema.names if name not in (*ordered, *top.per, KEY)]
    keys = [
        *((name, False) for name in top.per),
        *((name, down) for name, down in top.order if name not in top.per),
        *((name, False) for name in (*others, KEY)),
    ]
    in_order = rows.take(_order(rows, keys))
    if not top.per:
        return in_order.slice(0, top.k)
    return in_order.filter(pa.array(_ranks(in_order, top.per) < top.k))


def _order(rows: pa.Table, keys: list[tuple[str, bool]]) -> pa.Array:
    """The positions of the rows in an order: columns, each with whether it descends."""
    columns: dict[str, pa.Array] = {}
    sort_keys = []
    for name, down in keys:
        direction = "descending" if down else "ascending"
        values = combined(rows.column(name))
        if pa.types.is_floating(values.type):
            # NaN is above all numbers, as in SQL; otherwise it would be among the nulls.
            columns[f"nan {name}"] = pc.is_nan(values)
            sort_keys.append((f"nan {name}", direction, "at_end"))
        columns[name] = values
        sort_keys.append((name, direction, "at_end"))
    return pc.sort_indices(pa.table(columns), sort_keys=sort_keys)


def touched(rows: pa.Table, delta: Delta, per: tuple[str, ...]) -> Mask:
    """For each row, whether something in its group has changed."""
    if not per:
        return np.ones(rows.num_rows, np.bool_)
    groups = pa.concat_tables([delta.old.select(per), delta.new.select(per)])
    own, changed = codes(rows.select(per), groups)
    mask: Mask = np.isin(own, changed)
    return mask


def _ranks(rows: pa.Table, per: tuple[str, ...]) -> np.ndarray:
    """The position of each row in its group; rows of one group are adjacent."""
    if not rows.num_rows:
        return np.empty(0, np.int64)
    begins = np.zeros(rows.num_rows, np.bool_)
    begins[0] = True
    for name in per:
        column = rows.column(name).combine_chunks()
        begins[1:] |= ~same_values(column.slice(1), column.slice(0, len(column) - 1))
    starts = np.flatnonzero(begins)
    return np.arange(rows.num_rows) - np.repeat(starts, np.diff([*starts, rows.num_rows]))
