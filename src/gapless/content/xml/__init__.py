"""XPath patterns over XML documents."""

from gapless.content.xml.document import Document, parse_document
from gapless.content.xml.evaluate import evaluate
from gapless.content.xml.index import PatternIndex
from gapless.content.xml.parse import parse_pattern
from gapless.content.xml.pattern import Pattern

__all__ = ["Document", "Pattern", "PatternIndex", "evaluate", "parse_document", "parse_pattern"]
