"""What do the texts of the registry mean? The relation of each view, by its name.

Texts name other views, which are substituted where they are used. So a text can be read only after those that
it names: `Views` reads each on first use, and remembers the dependencies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gapless.errors import ViewError
from gapless.model.schema import Schema
from gapless.views.registry import REGISTRY_TOPIC, RELATION_PREFIX
from gapless.views.relation import Relation
from gapless.views.sql.parse import parse_view


def base_topics(topics: Mapping[str, Schema]) -> dict[str, Schema]:
    """The topics that views may use: all but those of views themselves."""
    own = (f"{REGISTRY_TOPIC}.", RELATION_PREFIX)
    return {
        name: schema for name, schema in topics.items() if name != REGISTRY_TOPIC and not name.startswith(own)
    }


class Views(Mapping[str, Relation]):
    """The relations of all views, by name. Raises ViewError when a requested text cannot be read."""

    def __init__(self, texts: Mapping[str, str], topics: Mapping[str, Schema]) -> None:
        """`topics` are those that the texts may name."""
        self._texts = dict(texts)
        self._topics = topics
        self._known: dict[str, Relation] = {}
        self._reading: list[str] = []
        #: For each view that was read, the other views that it names.
        self.uses: dict[str, set[str]] = {}

    def __getitem__(self, name: str) -> Relation:
        text = self._texts[name]
        if self._reading:
            self.uses[self._reading[-1]].add(name)
        if name not in self._known:
            if name in self._reading:
                raise ViewError("E169", f"view '{name}' is made of itself: {' of '.join(self._reading)}")
            self._reading.append(name)
            self.uses[name] = set()
            try:
                self._known[name] = parse_view(text, self._topics, self)
            finally:
                self._reading.pop()
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def users_of(self, name: str) -> list[str]:
        """The views that name this one. Those that cannot be read name nothing."""
        found = []
        for other in self._texts:
            try:
                self[other]
            except ViewError:
                continue
            if name in self.uses[other]:
                found.append(other)
        return sorted(found)
