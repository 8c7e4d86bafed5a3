"""How is an XML document read without trusting it?

lxml parses, with everything disabled that reaches beyond the bytes: no network, no DTD, no entities but the
five of XML itself. A document type declaration is refused before the parser sees it, so that no entity is
ever declared, let alone expanded. Size, depth, number of nodes, number and length of attributes have limits.
Time and memory of the parser grow with the number of nodes, and with the square of the attributes of an
element, so these are counted beforehand, by searches that run once over the bytes. For that, the bytes must
mean what they look like: encodings that can write `<` or `=` in another way are refused. Every error is a
`ContentError`:

    E175  not well-formed
    E176  over a limit
    E177  a document type declaration, or an entity

`parse_root` gives lxml's element, which the index walks; `parse_document` gives a `Document`: the same, flat,
in document order, for the evaluator and for explanations. Comments and processing instructions are not part
of any value, but they separate text nodes, as in XPath.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from lxml import etree

from gapless.errors import ContentError
from gapless.model.budget import DOCUMENT_BYTES_MAX, NODES_MAX

__all__ = [
    "ATTRIBUTE_CHARS_MAX",
    "DEPTH_MAX",
    "DOCUMENT_BYTES_MAX",
    "NAMESPACE_CHARS_MAX",
    "NODES_MAX",
    "Document",
    "parse_document",
    "parse_root",
]

#: Maximum depth of elements: the limit of libxml2 itself, which enforces it while parsing.
DEPTH_MAX = 256
#: Maximum length of an attribute's value, and number of attributes of an element, namespace declarations
#: included.
ATTRIBUTE_CHARS_MAX = 65_536
ATTRIBUTES_MAX = 1_000
#: Maximum length of a namespace: it is part of the name of every element and attribute in it.
NAMESPACE_CHARS_MAX = 1_000

#: A document of at most this size cannot exceed a limit of nodes or attributes.
_SMALL_BYTES = 4 * ATTRIBUTES_MAX

#: What may precede a document type declaration: white space, comments, processing instructions.
_PROLOG = re.compile(rb"(?:\xef\xbb\xbf)?(?:[ \t\r\n]+|<\?.*?\?>|<!--.*?-->)*+", re.DOTALL)

#: A declared encoding, and the encodings in which markup characters are ASCII and nothing else looks like
#: them.
_ENCODING = re.compile(rb"""(?:\xef\xbb\xbf)?<\?xml[^>]*?[ \t\r\n]encoding\s*=\s*["']([^"'>]*)""")
_PLAIN_ENCODING = re.compile(
    rb"utf-?8|(us-)?ascii|iso-?8859-\d+|iso_8859-\d+|latin-?1|(windows-|cp)125\d|koi8-[ru]"
    rb"|shift_jis|euc-(jp|kr)|gb(k|2312|18030)|big5",
    re.IGNORECASE,
)
#: What may contain a `<` that is not markup: comments and instructions, which are nodes, and CDATA sections.
_OPAQUE = re.compile(rb"<(?:!--|\?|!\[CDATA\[)")
_OPAQUE_ENDS = {b"<!--": b"-->", b"<?": b"?>", b"<![CDATA[": b"]]>"}
#: All attributes of a tag, from its name on, and each of them.
_TAG = re.compile(rb"""(?:[^<>"']++|"[^<"]*+"|'[^<']*+')*+""")
_ATTRIBUTE = re.compile(rb"""=[ \t\r\n]*+(?:"[^"]*+"|'[^']*+')""")
#: A possible attribute value that may be too long; it has no more characters than bytes.
_LONG_VALUE = re.compile(
    rb"""=[ \t\r\n]*+(?:"[^"<]{%d}|'[^'<]{%d})""" % (ATTRIBUTE_CHARS_MAX + 1, ATTRIBUTE_CHARS_MAX + 1)
)
#: A possible namespace that may be too long.
_LONG_NAMESPACE = re.compile(
    rb"""xmlns(?::[^ \t\r\n:<>"'=]*+)?[ \t\r\n]*+=[ \t\r\n]*+(?:"[^"<]{%d}|'[^'<]{%d})"""
    % (NAMESPACE_CHARS_MAX + 1, NAMESPACE_CHARS_MAX + 1)
)

#: libxml2's codes for errors that we distinguish from a plain mistake.
_LIMIT_CODES = frozenset({etree.ErrorTypes.ERR_RESOURCE_LIMIT, etree.ErrorTypes.ERR_NAME_TOO_LONG})
_ENTITY_CODES = frozenset({etree.ErrorTypes.ERR_UNDECLARED_ENTITY, etree.ErrorTypes.ERR_ENTITY_LOOP})

_OPTIONS: dict[str, Any] = {
    "resolve_entities": False,
    "no_network": True,
    "load_dtd": False,
    "dtd_validation": False,
    "attribute_defaults": False,
    "huge_tree": False,
    "collect_ids": False,
}
#: For bytes, which may declare their encoding.
_BYTES_PARSER = etree.XMLParser(**_OPTIONS)
#: For text, whose declared encoding is ignored.
_TEXT_PARSER = etree.XMLParser(encoding="utf-8", **_OPTIONS)


def parse_root(data: bytes | str) -> etree._Element:
    """The root element of a document. Raises `ContentError` E175, E176 or E177."""
    parser = _BYTES_PARSER
    if isinstance(data, str):
        if len(data) > DOCUMENT_BYTES_MAX:
            raise _too_large(f"{len(data)} characters")
        try:
            data = data.encode()
        except UnicodeEncodeError as error:
            raise ContentError("E175", f"not well-formed: {error.reason}") from error
        parser = _TEXT_PARSER
    elif data[:2] in {b"\xff\xfe", b"\xfe\xff"} or b"\0" in data[:4]:
        return parse_root(_decoded(data))
    else:
        _refuse_odd_encoding(data)
    if len(data) > DOCUMENT_BYTES_MAX:
        raise _too_large(f"{len(data)} bytes")
    if b"<!DOCTYPE" in data:
        _refuse_doctype(data)
    if len(data) > _SMALL_BYTES:
        _refuse_crowds(data)
    try:
        root = etree.fromstring(data, parser)
    except etree.XMLSyntaxError as error:
        raise _translated(error) from None
    except (etree.LxmlError, ValueError, LookupError) as error:
        raise ContentError("E175", f"not well-formed: {error}") from error
    if len(data) > _SMALL_BYTES:
        _refuse_long(data, root)
    if root.getroottree().docinfo.internalDTD is not None:
        raise _doctype()
    return root


def _decoded(data: bytes) -> str:
    """UTF-16 as text, so that nothing hides in it."""
    if len(data) > DOCUMENT_BYTES_MAX:
        raise _too_large(f"{len(data)} bytes")
    little = data[:2] == b"\xff\xfe" or data[1:2] == b"\0"
    try:
        return data.decode("utf-16-le" if little else "utf-16-be").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ContentError("E175", f"not well-formed: neither UTF-8 nor UTF-16 ({error.reason})") from error


def _refuse_doctype(data: bytes) -> None:
    found = _PROLOG.match(data)
    if found is not None and data.startswith(b"<!DOCTYPE", found.end()):
        raise _doctype()


def _doctype() -> ContentError:
    return ContentError("E177", "document type declarations are refused, and entities with them: send none")


def _too_large(size: str) -> ContentError:
    return ContentError("E176", f"a document has at most {DOCUMENT_BYTES_MAX} bytes; this has {size}")


def _translated(error: etree.XMLSyntaxError) -> ContentError:
    """Our error for one of libxml2's."""
    text = str(error.msg or "empty document")
    code: Any = getattr(error, "code", None)
    if code in _LIMIT_CODES or "XML_PARSE_HUGE" in text:
        return ContentError("E176", f"over a limit: {text.replace(', use XML_PARSE_HUGE option', '')}")
    if code in _ENTITY_CODES:
        return ContentError("E177", f"entities are refused: {text}")
    return ContentError("E175", f"not well-formed: {text}")


def _refuse_odd_encoding(data: bytes) -> None:
    """Refuse encodings in which bytes do not mean what they look like, such as UTF-7."""
    declared = _ENCODING.match(data)
    if declared is not None and not _PLAIN_ENCODING.fullmatch(declared[1]):
        name = declared[1][:40].decode("ascii", "replace")
        raise ContentError("E175", f"not well-formed: encoding {name!r} is not read here: send UTF-8")


def _refuse_crowds(data: bytes) -> None:
    """Refuse too many nodes, and too many attributes of an element, in a few searches.

    The text is examined exactly as far as a parser would get: anything misread after a mistake is never
    parsed.
    """
    # Each `<` begins a node, unless it ends one or is not markup.
    many = data.count(b"<") - data.count(b"</") > NODES_MAX
    if not many and not _crowded(data):
        return
    markup = _markup(data)
    if markup.count(b"<") - markup.count(b"</") > NODES_MAX:
        raise ContentError("E176", f"a document has at most {NODES_MAX} nodes")
    for piece in _crowded(markup):
        tag = _TAG.match(piece) if piece[:1] not in {b"!", b"?", b"/"} else None
        if tag is not None and len(_ATTRIBUTE.findall(tag[0])) > ATTRIBUTES_MAX:
            raise ContentError("E176", f"an element has at most {ATTRIBUTES_MAX} attributes")


def _crowded(data: bytes) -> list[bytes]:
    """Text between two `<` with more equals signs than an element may have attributes."""
    if data.count(b"=") <= ATTRIBUTES_MAX:
        return []
    pieces = data.split(b"<")[1:]
    return [each for each in pieces if len(each) > ATTRIBUTES_MAX and each.count(b"=") > ATTRIBUTES_MAX]


def _markup(data: bytes) -> bytes:
    """The bytes without the contents of comments, processing instructions and CDATA sections."""
    pieces: list[bytes] = []
    start = 0
    while found := _OPAQUE.search(data, start):
        opening = found[0]
        # CDATA sections are not nodes.
        pieces += (data[start : found.start()], b"!" if opening == b"<![CDATA[" else b"<!")
        end = _OPAQUE_ENDS[opening]
        start = data.find(end, found.end())
        if start < 0:
            return b"".join(pieces)
        start += len(end)
    pieces.append(data[start:])
    return b"".join(pieces)


def _refuse_long(data: bytes, root: etree._Element) -> None:
    """Refuse long values of attributes and long names of namespaces, where the bytes may have one."""
    if len(data) > ATTRIBUTE_CHARS_MAX and _LONG_VALUE.search(data):
        _check_values(root)
    if b"xmlns" in data and _LONG_NAMESPACE.search(data):
        _check_names(root)


def _check_values(root: etree._Element) -> None:
    """The length of attributes."""
    for element in root.iter():
        values: list[Any] = list(element.values())
        if any(len(value) > ATTRIBUTE_CHARS_MAX for value in values):
            raise ContentError("E176", f"an attribute has at most {ATTRIBUTE_CHARS_MAX} characters")


def _check_names(root: etree._Element) -> None:
    """The length of the names of namespaces, where they are used."""
    for element in root.iter(etree.Element):
        names: list[Any] = [element.tag, *element.keys()]
        if any(name[0] == "{" and name.index("}") > NAMESPACE_CHARS_MAX + 1 for name in names):
            raise ContentError("E176", f"a namespace has at most {NAMESPACE_CHARS_MAX} characters")


@dataclass(frozen=True, slots=True)
class Document:
    """A document, flat: node 0 is the document itself, the elements follow in document order."""

    #: The name of each node as lxml spells it; the document's is empty.
    names: list[str]
    #: The parent of each node; that of the document is -1.
    parents: list[int]
    attributes: list[dict[str, str]]
    #: All text nodes in document order; `texts[start:stop]` together are the string-value of a node.
    texts: list[str]
    spans: list[tuple[int, int]]
    #: The texts directly in each node.
    own_texts: list[list[int]]

    def value(self, node: int) -> str:
        """The string-value of a node: all text below it."""
        start, stop = self.spans[node]
        return "".join(self.texts[start:stop])

    def values(self) -> tuple[str, list[tuple[int, int]]]:
        """The text of the whole document, and which part of it is the string-value of each node."""
        at = [0, *accumulate(map(len, self.texts))]
        return "".join(self.texts), [(at[start], at[stop]) for start, stop in self.spans]

    def path(self, node: int) -> str:
        """Where a node is, such as `/a/b[2]`: for people."""
        chain = [node] if node else []
        while chain and self.parents[chain[-1]]:
            chain.append(self.parents[chain[-1]])
        on_the_way = {self.parents[each]: each for each in chain}
        before, alike = dict.fromkeys(chain, 0), dict.fromkeys(chain, 0)
        for each, parent in enumerate(self.parents):
            step = on_the_way.get(parent)
            if step is not None and self.names[step] == self.names[each]:
                alike[step] += 1
                before[step] += each <= step
        parts = [
            self.names[each] if alike[each] == 1 else f"{self.names[each]}[{before[each]}]"
            for each in reversed(chain)
        ]
        return "/" + "/".join(parts)


def parse_document(data: bytes | str) -> Document:
    """Read a document. Raises `ContentError` E175, E176 or E177.

    >>> document = parse_document("<a>x<!-- no text --><b p='1'>y</b></a>")
    >>> document.names, document.value(1), document.attributes[2]
    (['', 'a', 'b'], 'xy', {'p': '1'})
    """
    return flatten(parse_root(data))


def flatten(root: etree._Element) -> Document:
    """The document of a root element."""
    document = Document([""], [-1], [{}], [], [(0, 0)], [[]])
    texts, own, spans = document.texts, document.own_texts, document.spans
    names, parents, attributes = document.names, document.parents, document.attributes
    #: The open nodes, with their elements and their number of remaining children.
    open_nodes: list[tuple[int, etree._Element]] = [(0, root)]
    missing = [1]
    for element in root.iter():
        ended, tag, count = element, element.tag, len(element)
        if isinstance(tag, str):
            node = len(names)
            names.append(tag)
            parents.append(open_nodes[-1][0])
            items: Any = element.items()
            attributes.append(dict(items))
            start, text = len(texts), element.text
            own.append([start] if text else [])
            if text:
                texts.append(text)
            spans.append((start, len(texts)))
            if count:
                open_nodes.append((node, element))
                missing.append(count)
                continue
        # It ends, together with all those whose last child it is.
        while True:
            missing[-1] -= 1
            tail = ended.tail
            above = open_nodes[-1][0]
            if tail and above:
                own[above].append(len(texts))
                texts.append(tail)
            if missing[-1] or not above:
                break
            missing.pop()
            closed, ended = open_nodes.pop()
            spans[closed] = (spans[closed][0], len(texts))
    spans[0] = (0, len(texts))
    return document
