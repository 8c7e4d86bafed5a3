"""How does Spark read a value out of an XML document? With the same parser as the rest of Gapless.

Spark has functions for this, but they end the query at a document that is not well-formed, and they load
external references. So documents are read by `gapless.content`, a batch of them at a time in the Python
workers of Spark: a document that no condition would match has no values either.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # the usual name
from pyspark.sql.pandas.functions import arrow_udf

from gapless.content.xml.document import parse_root
from gapless.errors import ContentError


def _text(document: bytes, path: str) -> str | None:
    try:
        found = parse_root(document).getroottree().xpath(path)
    except ContentError:
        return None
    if not isinstance(found, list) or not found:
        return None
    first = found[0]
    return str(first) if isinstance(first, str) else str(first.xpath("string()"))  # type: ignore[union-attr]


def texts(documents: pa.Array, paths: pa.Array) -> pa.Array:
    """For each document, the text of the first node at the path; null without one."""
    pairs = zip(documents.to_pylist(), paths.to_pylist(), strict=True)
    found = [None if document is None else _text(document, path) for document, path in pairs]
    return pa.array(found, pa.string())


# Spark reads the annotations at run time: they must not be strings.
texts.__annotations__ = {"documents": pa.Array, "paths": pa.Array, "return": pa.Array}


def xml_text(document: Column, path: Column) -> Column:
    """The text of the first such node; null without one, and for documents that are not well-formed."""
    found: Column = arrow_udf(texts, "string")(document, path)  # type: ignore[call-overload]  # its stubs lack it
    return found


def xml_number(document: Column, path: Column) -> Column:
    """That text as a number; null if it is not one."""
    return F.trim(xml_text(document, path)).try_cast("double")
