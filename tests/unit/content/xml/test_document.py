"""Documents are read without trusting them: what is refused, and what the rest means."""

import pytest
from lxml import etree

from gapless.content.xml import PatternIndex, evaluate, parse_document, parse_pattern
from gapless.content.xml.document import (
    ATTRIBUTE_CHARS_MAX,
    ATTRIBUTES_MAX,
    DEPTH_MAX,
    DOCUMENT_BYTES_MAX,
    NODES_MAX,
    parse_root,
)
from gapless.errors import ContentError

LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
BILLION_LAUGHS = f'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY l0 "lol">{LAUGHS}]><a>&l9;</a>'
QUADRATIC = f'<!DOCTYPE a [<!ENTITY x "{"x" * 50_000}">]><a p="{"&x;" * 5_000}"/>'


@pytest.mark.parametrize(
    "data",
    [
        BILLION_LAUGHS,
        BILLION_LAUGHS.encode(),
        BILLION_LAUGHS.encode("utf-16"),
        BILLION_LAUGHS.encode("utf-16-be"),
        QUADRATIC,
        "<!DOCTYPE a><a/>",
        "<!-- a comment --><?pi?>\n<!DOCTYPE a SYSTEM 'file:///etc/passwd'><a/>",
        "<!DOCTYPE a [<!ENTITY x SYSTEM 'file:///etc/passwd'>]><a>&x;</a>",
        "<a>&undeclared;</a>",
        b"<?xml version='1.0' encoding='utf-7'?>+ADwAIQ-DOCTYPE a+AD4-<a/>",
    ],
)
def test_declarations_and_entities_are_refused(data: bytes | str) -> None:
    with pytest.raises(ContentError) as caught:
        parse_document(data)
    assert caught.value.code in {"E177", "E175"}


@pytest.mark.parametrize(
    "data", [BILLION_LAUGHS, BILLION_LAUGHS.encode("utf-16"), QUADRATIC, "<!DOCTYPE a><a/>"]
)
def test_a_declaration_is_named(data: bytes | str) -> None:
    with pytest.raises(ContentError) as caught:
        parse_document(data)
    assert caught.value.code == "E177"


@pytest.mark.parametrize(
    "data",
    [
        b"<a>" * 10_000 + b"</a>" * 10_000,
        b"<a>" * (DEPTH_MAX + 1) + b"</a>" * (DEPTH_MAX + 1),
        b"<a p='" + b"x" * 10_000_000 + b"'/>",
        "<a p='" + "x" * (ATTRIBUTE_CHARS_MAX + 1) + "'/>",
        "<a " + " ".join(f"attribute{each}='{'x' * 60}'" for each in range(ATTRIBUTES_MAX + 1)) + "/>",
        b"<a>" + b"<b/>" * NODES_MAX + b"</a>",
        "<a>" + "x" * DOCUMENT_BYTES_MAX + "</a>",
        "<a>".encode("utf-16") + b"x\0" * DOCUMENT_BYTES_MAX,
        "<a>" + "é" * (DOCUMENT_BYTES_MAX // 2) + "</a>",
    ],
)
def test_what_is_over_a_limit_is_refused(data: bytes | str) -> None:
    with pytest.raises(ContentError) as caught:
        parse_document(data)
    assert caught.value.code == "E176"


def test_the_limits_themselves_are_allowed() -> None:
    deep = parse_document(b"<a>" * DEPTH_MAX + b"</a>" * DEPTH_MAX)
    assert len(deep.names) == DEPTH_MAX + 1
    assert evaluate(parse_pattern("//a" * 40), deep)
    parse_document("<a p='" + "x" * ATTRIBUTE_CHARS_MAX + "'/>")
    index = PatternIndex()
    index.add(1, parse_pattern("/a/b"))
    assert index.match([b"<a>" + b"<b/>" * (NODES_MAX - 1) + b"</a>"])[1].tolist() == [1]


@pytest.mark.parametrize(
    "data",
    [
        *(
            "",
            b"",
            " ",
            "<a>",
            "<a></b>",
            "<a/><b/>",
            "<a p=1/>",
            "<a p='1' p='2'/>",
            "x",
            "<x:a/>",
            "<a>\x00</a>",
        ),
        *("\ud800", b"\xff\xfe<", b"\xff\xfe\0", b"<a>\xff</a>", b"\0\0\0<"),
        b"<?xml version='1.0' encoding='nonsense'?><a/>",
    ],
)
def test_what_is_not_well_formed_is_refused(data: bytes | str) -> None:
    with pytest.raises(ContentError) as caught:
        parse_document(data)
    assert caught.value.code == "E175"
    assert "not well-formed" in str(caught.value)


@pytest.mark.parametrize(
    ("data", "pattern"),
    [
        ("<a>x<!-- y -->z</a>", "/a[. = 'xz'][text() = 'x'][text() = 'z']"),
        ("<a>x<?y y?>z<b>w</b></a>", "/a[. = 'xzw'][text() = 'z']"),
        ("<a>x<![CDATA[<b/>]]>z</a>", "/a[text() = 'x<b/>z'][not(b)]"),
        ("<a>1&#48;<b>0</b></a>", "/a[. = 100]"),
        ("<!-- <!DOCTYPE a> --><a>&lt;!DOCTYPE</a>", "/a[. = '<!DOCTYPE']"),
        ("<a><![CDATA[<!DOCTYPE a>]]></a>", "/a[contains(., 'DOCTYPE')]"),
        ("<a xmlns='u'/>", "/Q{u}a"),
        ("<a xmlns='u'/>", "not(/a)"),
        ("<x:a xmlns:x='u' x:p='1'/>", "/Q{u}a[@Q{u}p = 1][not(@p)][@*]"),
        ("<a xml:lang='en'/>", "/a[@Q{http://www.w3.org/XML/1998/namespace}lang = 'en']"),
        ("<?xml version='1.0' encoding='latin-1'?><é/>", "/é"),
        ("<?xml version='1.0' encoding='iso-8859-1'?><é/>".encode("latin-1"), "/é"),
        ("<é/>".encode("utf-16"), "/é"),
        ("<é/>".encode("utf-16-be"), "/é"),
        (b"\xef\xbb\xbf<a/>", "/a"),
    ],
)
def test_the_meaning_of_documents(data: bytes | str, pattern: str) -> None:
    assert evaluate(parse_pattern(pattern), parse_document(data))
    index = PatternIndex()
    index.add(3, parse_pattern(pattern))
    assert index.match([data])[1].tolist() == [3]


def test_too_many_attributes_are_refused_however_short_they_are() -> None:
    attributes = " ".join(f'a{at}=""' for at in range(ATTRIBUTES_MAX + 1))
    with pytest.raises(ContentError, match="E176"):
        parse_document(f"<a {attributes}/>")


@pytest.fixture
def parser_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes the parser was given, each time."""
    calls: list[int] = []
    parse = etree.fromstring

    def counted(data: bytes, parser: etree.XMLParser) -> etree._Element:
        calls.append(len(data))
        return parse(data, parser)

    monkeypatch.setattr("gapless.content.xml.document.etree.fromstring", counted)
    return calls


def attributes(count: int, name: str = "a") -> bytes:
    return b" ".join(b"%s%d='%d'" % (name.encode(), at, at) for at in range(count))


@pytest.mark.parametrize(
    "document",
    [
        b"<a " + attributes(80_000) + b"/>",
        b"<a " + attributes(80_000),
        b"<a " + attributes(2_000, "xmlns:n") + b"/>",
        b"<r>" + b"<!-- < -->" * 2_000 + b"<b\n" + attributes(1_001).replace(b"=", b" = ") + b"></b></r>",
        b"<r x='>'><![CDATA[<!--]]><b c='>>>' " + attributes(1_000) + b"/></r>",
        ("<a " + attributes(80_000).decode() + "/>").encode("utf-16"),
        b"<a>" + b"<b/>" * NODES_MAX + b"</a>",
        b"<a><!--" + b"<![CDATA[" * 99_999 + b"-->" + b"<b/>" * NODES_MAX + b"</a>",
        b"<a>" + b"<!---->" * NODES_MAX + b"</a>",
        b"<a>" + b"<?p?>" * NODES_MAX + b"</a>",
    ],
    ids=[
        "attributes",
        "open tag",
        "namespaces",
        "later",
        "signs",
        "utf-16",
        "nodes",
        "hidden",
        "comments",
        "pis",
    ],
)
def test_oversized_documents_never_reach_the_parser(document: bytes, parser_calls: list[int]) -> None:
    with pytest.raises(ContentError, match="E176"):
        parse_root(document)
    assert not parser_calls


@pytest.mark.parametrize(
    "document",
    [
        b"<a " + attributes(1_000) + b"/>",
        b"<a>" + b"x='y' " * 5_000 + b"</a>",
        b"<a b='" + b"=" * 5_000 + b"'>" + b"=" * 5_000 + b"</a>",
        b"<a><![CDATA[<b " + attributes(5_000) + b"/>]]></a>",
        b"<a><!-- <b " + attributes(5_000) + b"/> --></a>",
        b"<a>" + b"<![CDATA[<]]>" * (NODES_MAX + 1) + b"</a>",
        b"<a><!--" + b"<b/>" * NODES_MAX + b"--></a>",
        b"<?xml version='1.0' encoding='ISO-8859-1'?><a>\xe9</a>",
        b"<?xml version='1.0' encoding=\"utf-8\"?><a>\xc3\xa9</a>",
    ],
)
def test_documents_that_only_look_too_large_are_read(document: bytes) -> None:
    assert parse_root(document).tag == "a"


@pytest.mark.parametrize("name", ["utf-7", "UTF-7", "utf-16", "UCS-4", "hz", "iso-2022-jp", "IBM037"])
def test_encodings_in_which_markup_can_hide_are_refused(name: str) -> None:
    document = f"<?xml version='1.0' encoding='{name}'?><a>+ADw-b/+AD4-</a>".encode()
    with pytest.raises(ContentError, match=r"E175.*encoding"):
        parse_root(document)


@pytest.mark.parametrize(
    "piece", [b"<!--", b"<?", b"<![CDATA[", b"='", b"<a =\"'", b"<a ='", b'="', b"<a b='", b"]]>", b"<a\t"]
)
def test_many_repetitions_of_a_piece_are_refused_quickly(piece: bytes) -> None:
    """A search that began anew at each of these would run for hours, until the suite's limit of time."""
    for document in (piece * 200_000, b"<r>" + piece * 200_000 + b"<r>"):
        with pytest.raises(ContentError, match=r"E17[567]"):
            parse_root(document)
