"""Which view does an SQL text describe?"""

from __future__ import annotations

from collections.abc import Mapping

from gapless.model.schema import Schema
from gapless.views.relation import Relation


def parse_view(text: str, topics: Mapping[str, Schema], views: Mapping[str, Relation]) -> Relation:
    """The relation that a SELECT over topics and other views describes, checked to be maintainable.

    Raises ViewError: E165 for what is no SQL, E166 for unknown names, E167 for types that do not go together,
    E168 for SQL that views do not have, E169 for what cannot be maintained.
    """
    raise NotImplementedError
