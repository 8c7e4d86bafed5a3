"""Which rows are the first k of their group? Sorted as columns, never row by row.

Nulls come last in every order. Ties are broken by all other columns ascending, and at last by the key, so
that there is one answer (see `views.relation.TopK`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gapless.spark.state import Delta, Mask, same_values
from gapless.views.registry import KEY
from gapless.views.stages import Top


def first_rows(rows: pa.Table, top: Top) -> pa.Table:
    """The rows that are shown, of all that there are.

    >>> rows = pa.table({"gapless_key": ["1", "2", "3"], "a": [7, None, 9]})
    >>> first_rows(rows, Top(2, (("a", True),))).column("a").to_pylist()
    [9, 7]
    """
    ordered = {name for name, _ in top.order}
    others = [name for name in rows.schema.names if name not in (*ordered, *top.per, KEY)]
    keys = [
        *((name, "ascending", "at_end") for name in top.per),
        *(
            (name, "descending" if down else "ascending", "at_end")
            for name, down in top.order
            if name not in top.per
        ),
        *((name, "ascending", "at_end") for name in (*others, KEY)),
    ]
    in_order = rows.take(pc.sort_indices(rows, sort_keys=keys))
    if not top.per:
        return in_order.slice(0, top.k)
    return in_order.filter(pa.array(_ranks(in_order, top.per) < top.k))


def touched(rows: pa.Table, delta: Delta, per: tuple[str, ...]) -> Mask:
    """Of each row, whether it is in a group in which something has changed."""
    if not per:
        return np.ones(rows.num_rows, np.bool_)
    groups = pa.concat_tables([delta.old.select(per), delta.new.select(per)])
    own, changed = _codes(rows.select(per), groups)
    mask: Mask = np.isin(own, changed)
    return mask


def _ranks(rows: pa.Table, per: tuple[str, ...]) -> np.ndarray:
    """The place of each row in its group; rows of one group stand together."""
    if not rows.num_rows:
        return np.empty(0, np.int64)
    begins = np.zeros(rows.num_rows, np.bool_)
    begins[0] = True
    for name in per:
        column = rows.column(name).combine_chunks()
        begins[1:] |= ~same_values(column.slice(1), column.slice(0, len(column) - 1))
    starts = np.flatnonzero(begins)
    return np.arange(rows.num_rows) - np.repeat(starts, np.diff([*starts, rows.num_rows]))


def _codes(*tables: pa.Table) -> list[np.ndarray]:
    """One number per row, equal where the rows of any of the tables are."""
    whole = pa.concat_tables(tables)
    codes = np.zeros(whole.num_rows, np.int64)
    for name in whole.schema.names:
        column = whole.column(name).combine_chunks()
        encoded = pc.dictionary_encode(column, null_encoding="encode")
        codes = codes * (len(encoded.dictionary) + 1) + encoded.indices.to_numpy(zero_copy_only=False)
        # Kept small, so that any number of columns fits.
        codes = np.unique(codes, return_inverse=True)[1].astype(np.int64)
    edges = np.cumsum([table.num_rows for table in tables])[:-1]
    return np.split(codes, edges)
