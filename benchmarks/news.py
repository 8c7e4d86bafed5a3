"""What do news documents and subscriptions to them look like? A generator of both, from a seed.

The vocabulary is invented, and shaped like those of news agencies: a head with facts about the story, a
body of blocks with paragraphs, lists, tables and media, text with marked persons and places, and a few
elements that contain each other. Names are chosen by Zipf's law: of the elements that may stand inside
another, the first of the list is drawn twice as often as the second, and so on.

Patterns walk down the same table: up to `height` steps, of which some become `*`, some are reached by `//`,
and some get a second branch.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = ["ATTRIBUTES", "CHILDREN", "ROOT", "PatternShape", "documents", "patterns"]

ROOT = "news"
_INLINE = "em strong person organisation location a number money date quote event"
#: Which elements may stand inside which, the most common first.
CHILDREN: dict[str, tuple[str, ...]] = {
    element: tuple(inside.split())
    for element, inside in {
        "news": "body head trail",
        "head": "title docdata meta pubdata revision rights tobject",
        "title": "em alternative",
        "docdata": "date-issue doc-id urgency keywords copyright series evloc from-source expiry",
        "keywords": "keyword",
        "copyright": "holder year",
        "holder": "organisation person",
        "series": "part total",
        "evloc": "city region country",
        "from-source": "organisation person",
        "pubdata": "section edition position issue volume",
        "revision": "author comment-on date",
        "author": "person",
        "comment-on": "p",
        "rights": "owner start-date end-date agent geography",
        "owner": "organisation person",
        "agent": "organisation person",
        "geography": "country region city",
        "tobject": "property subject",
        "subject": "matter detail",
        "body": "content hedline byline dateline abstract distributor note",
        "hedline": "hl1 hl2",
        "hl1": _INLINE,
        "hl2": _INLINE,
        "byline": "person virtloc role",
        "dateline": "location date",
        "abstract": "p block",
        "distributor": "organisation",
        "note": "body-note p",
        "body-note": "p block list",
        "content": "block p media list table quote-block pre",
        "block": "p hedline media list table block quote-block dateline note datasource",
        "quote-block": "block p credit",
        "credit": "person organisation",
        "p": _INLINE + " image list",
        "media": "caption reference producer metadata image",
        "caption": "p hl2",
        "producer": "person organisation",
        "image": "alternative rights",
        "list": "item lead",
        "item": "p list block " + _INLINE,
        "lead": "p",
        "table": "row head-row table-caption",
        "head-row": "cell",
        "row": "cell",
        "cell": "p list number money " + _INLINE,
        "table-caption": "p",
        "trail": "tagline bibliography",
        "tagline": "p a",
        "bibliography": "item p",
        "em": "strong a person q",
        "strong": "em a person q",
        "a": "em q",
        "q": "em strong",
        "quote": "p q person",
        "person": "given-name family-name role function",
        "role": "organisation",
        "organisation": "org-name ticker location",
        "location": "city region country sublocation coordinates",
        "coordinates": "latitude longitude",
        "money": "amount currency",
        "event": "location date person",
        "date": "year month day",
    }.items()
}

#: The attributes of some elements, and the values that they have.
ATTRIBUTES: dict[str, tuple[str, tuple[str, ...]]] = {
    "block": ("class", ("lead", "story", "box", "tail")),
    "p": ("lang", ("en", "de", "fr")),
    "media": ("type", ("image", "video", "audio")),
    "doc-id": ("regsrc", ("agency", "desk", "stringer")),
    "urgency": ("level", tuple(str(each) for each in range(1, 9))),
    "money": ("value", tuple(str(5 * each) for each in range(1, 200))),
    "organisation": ("id", tuple(f"o{each}" for each in range(100))),
    "person": ("id", tuple(f"p{each}" for each in range(100))),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternShape:
    """How patterns are drawn."""

    #: The most steps from the root to a leaf.
    height: int = 10
    p_any: float = 0.1
    p_descendant: float = 0.05
    p_branch: float = 0.1
    #: How often a step that has an attribute asks for one of its values.
    p_value: float = 0.0
    zipf: float = 1.0


def _choose(rng: random.Random, names: tuple[str, ...], zipf: float) -> str:
    return rng.choices(names, [1 / (rank + 1) ** zipf for rank in range(len(names))])[0]


def documents(count: int, seed: int, *, elements: int = 22, height: int = 10, zipf: float = 1.0) -> list[str]:
    """Documents of so many elements each."""
    rng = random.Random(seed)
    return [_document(rng, elements, height, zipf) for _ in range(count)]


def _document(rng: random.Random, elements: int, height: int, zipf: float) -> str:
    names, children, depths = [ROOT], [[]], [1]
    open_nodes = [0]
    while len(names) < elements:
        parent = rng.choice(open_nodes)
        name = _choose(rng, CHILDREN[names[parent]], zipf)
        node = len(names)
        names.append(name)
        children.append([])
        children[parent].append(node)
        depths.append(depths[parent] + 1)
        if name in CHILDREN and depths[node] < height:
            open_nodes.append(node)

    def written(node: int) -> str:
        name = names[node]
        attribute, values = ATTRIBUTES.get(name, ("", ()))
        shown = f' {attribute}="{rng.choice(values)}"' if values else ""
        inside = "".join(written(child) for child in children[node]) or f"text {rng.randrange(1000)}"
        return f"<{name}{shown}>{inside}</{name}>"

    return written(0)


def patterns(count: int, seed: int, shape: PatternShape | None = None, *, distinct: bool = True) -> list[str]:
    """So many XPath patterns, no two with the same text unless asked for."""
    rng = random.Random(seed)
    shape = shape or PatternShape()
    made: list[str] = []
    seen: set[str] = set()
    while len(made) < count:
        height = rng.randint(1, shape.height)
        text = _axis(rng, shape, "/") + _step(rng, shape, ROOT, height)
        if not distinct or text not in seen:
            made.append(text)
            seen.add(text)
    return made


def _axis(rng: random.Random, shape: PatternShape, child: str) -> str:
    return "//" if rng.random() < shape.p_descendant else child


def _step(rng: random.Random, shape: PatternShape, name: str, height: int) -> str:
    text = "*" if rng.random() < shape.p_any else name
    attribute, values = ATTRIBUTES.get(name, ("", ()))
    if values and rng.random() < shape.p_value:
        text += f"[@{attribute} = '{rng.choice(values)}']"
    inside = CHILDREN.get(name)
    if height <= 1 or inside is None:
        return text
    if rng.random() < shape.p_branch:
        branch = _step(rng, shape, _choose(rng, inside, shape.zipf), height - 1)
        text += f"[{'.//' if rng.random() < shape.p_descendant else ''}{branch}]"
    return text + _axis(rng, shape, "/") + _step(rng, shape, _choose(rng, inside, shape.zipf), height - 1)
