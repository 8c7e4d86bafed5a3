"""Which XML documents are wanted? XPath patterns, and an index that matches a large number of them.

A subscription to XML is an XPath 1.0 pattern, and asks one question of each document: *is there at least one
node like this?*

    /news/body                       a body right inside the news
    //block[@class = 'lead']//p      a lead block anywhere, with a paragraph somewhere in it
    /news[head/urgency <= 3]         a value: of an element, an @attribute, text() or .
    //media[@type = 'video' or not(caption)]

`parse.py` says what is supported, and why the rest is not; positions such as `[1]` are the best known
example. `document.py` says which documents are accepted.

    parse_pattern(text)            a `Pattern`: immutable; equal ones are equal however they were written
    parse_document(text)           a `Document`; DTDs and entities are refused, sizes are limited
    evaluate(pattern, document)    the direct answer for one pair
    covers_pattern(a, b)           does `a` accept all that `b` accepts: YES, NO or UNKNOWN
    explain_pattern(pattern, doc)  which step or predicate failed, and on what
    PatternIndex                   add, remove, match(batch) -> (row, slot) pairs

>>> index = PatternIndex()
>>> index.add(1, parse_pattern("//block[@class = 'lead']//p"))
>>> index.add(2, parse_pattern("/news[head/urgency <= 3]"))
>>> rows, slots = index.match(["<news><head><urgency>2</urgency></head></news>"])
>>> rows.tolist(), slots.tolist()
([0], [2])

How the index works, in the order in which to read it: `pattern.py` (the tree of needs), `normal.py` (one
form for each meaning), `graph.py` (what patterns share), `shapes.py` (what documents share), `levels.py`
(both brought together with array operations), `index.py`.
"""

from gapless.content.xml.cover import covers_pattern
from gapless.content.xml.document import Document, parse_document
from gapless.content.xml.evaluate import evaluate
from gapless.content.xml.explain import PatternExplanation, explain_pattern
from gapless.content.xml.index.index import PatternIndex
from gapless.content.xml.parse import parse_pattern
from gapless.content.xml.pattern import Pattern

__all__ = [
    "Document",
    "Pattern",
    "PatternExplanation",
    "PatternIndex",
    "covers_pattern",
    "evaluate",
    "explain_pattern",
    "parse_document",
    "parse_pattern",
]
