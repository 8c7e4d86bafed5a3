"""Documents are read without trusting them: what is refused, and what the rest means."""

import pytest

from gapless.content.xml import PatternIndex, evaluate, parse_document, parse_pattern
from gapless.content.xml.document import (
    ATTRIBUTE_CHARS_MAX,
    ATTRIBUTES_MAX,
    DEPTH_MAX,
    DOCUMENT_BYTES_MAX,
    NODES_MAX,
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
def test_what_documents_mean(data: bytes | str, pattern: str) -> None:
    assert evaluate(parse_pattern(pattern), parse_document(data))
    index = PatternIndex()
    index.add(3, parse_pattern(pattern))
    assert index.match([data])[1].tolist() == [3]


def test_too_many_attributes_are_refused_however_short_they_are() -> None:
    attributes = " ".join(f'a{at}=""' for at in range(ATTRIBUTES_MAX + 1))
    with pytest.raises(ContentError, match="E176"):
        parse_document(f"<a {attributes}/>")
