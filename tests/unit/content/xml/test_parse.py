"""Patterns are read, brought into one form, or refused with the place and the reason."""

import pytest
from lxml import etree

from gapless.content.xml import Pattern, parse_pattern
from gapless.content.xml.parse import ALTERNATIVES_MAX, NESTING_MAX, PIECES_MAX, TEXT_CHARS_MAX
from gapless.errors import ContentError


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("/a/b[c]", "/a/b/c"),
        ("/a[b][c]", "/a[b][c]"),
        ("/a[c and b and c]", "/a[b][c]"),
        ("/a[./b/.]", "/a/b"),
        ("/a[b/c][b]", "/a/b/c"),
        ("/a[b[c][d]][b/c]", "/a/b[c][d]"),
        ("/a[.//c][b//c]", "/a/b//c"),
        ("//*/a", "/*//a"),
        ("/a//*//b", "/a/*//b"),
        ("/a//*", "/a/*"),
        ("//*//*", "/*/*"),
        ("/a[5 < @p]", "/a[@p > 5]"),
        ("/a[@p < '5.50']", "/a[@p < 5.5]"),
        ("/a[@p = '5.50']", "/a[@p = '5.50']"),
        ("/a[not(not(b))]", "/a/b"),
        ("/a[not(b or c)]", "/a[not(b)][not(c)]"),
        ("/a[not(. = 'x')]", "/a[. != 'x']"),
        ("/a[@p[. > 3 and not(. = 4)]]", "/a[@p != 4][@p > 3]"),
        ("/a[@p > 5][@p > 3][@p]", "/a[@p > 5]"),
        ("/a[b or b[c]]", "/a/b"),
        ("/a[b or not(b)]", "/a[true()]"),
        ("/a[.]", "/a[true()]"),
        ("/a[b = 'x']", "/a/b[. = 'x']"),
        ("/a[contains(@p, '')]", "/a[true()]"),
        ("/a/@p", "/a/@p"),
        ("/a/text()", "/a/text()"),
        ("//@p", "//*/@p"),
        ('/a[text() = "it\'s"]', '/a[text() = "it\'s"]'),
        ("/a[@p = -0]", "/a[@p = 0]"),
        ("/a[@p = --.5]", "/a[@p = 0.5]"),
        ("/Q{}a/Q{urn:x}b[@Q{u}c]", "/a/Q{urn:x}b/@Q{u}c"),
        (" / a [ b\n] ", "/a/b"),
        ("/and[or and and]/not", "/and[and][not][or]"),
        ("/b or /a", "/a or /b"),
        ("/a and not(//b)", "/a and not(//b)"),
        ("(/a or /b) and //c", "//c and (/a or /b)"),
        ("/a/@p > 5", "/a[@p > 5]"),
        # What cannot be.
        ("/a[@p = '1'][@p = '2']", "false()"),
        ("/a[b][not(b)]", "false()"),
        ("/a[b/c][not(b)]", "false()"),
        ("/a[@p < 'abc']", "false()"),
        ("/a[. > 3 and . < 2]", "false()"),
    ],
)
def test_the_normal_form(text: str, normal: str) -> None:
    pattern = parse_pattern(text)
    # An always true predicate vanishes; the table shows it where the eye expects one.
    assert str(pattern) == normal.replace("[true()]", "")
    assert parse_pattern(str(pattern)) == pattern
    if "Q{" not in normal:
        etree.XPath(str(pattern))


def test_equal_patterns_hash_alike_and_others_differ() -> None:
    assert {parse_pattern("/a[b][c]"), parse_pattern("/a[c]/b")} == {parse_pattern("/a[b and c]")}
    assert parse_pattern("/a/b") != parse_pattern("/a//b")
    assert parse_pattern("/a") != "/a"
    assert repr(parse_pattern("/a")) == "Pattern('/a')"
    assert isinstance(parse_pattern("/a"), Pattern)


@pytest.mark.parametrize(
    ("text", "code", "at", "words"),
    [
        ("", "E170", 0, "unexpected the end"),
        ("/a[", "E170", 3, "unexpected the end"),
        ("/a]", "E170", 2, "unexpected ']'"),
        ("/a['x]", "E170", 3, "no end"),
        ("/a[b c]", "E170", 5, "unexpected 'c'"),
        ("/a[#]", "E170", 3, "unexpected '#'"),
        ("/a/", "E170", 3, "unexpected the end"),
        ("/a[@]", "E170", 4, "after @"),
        ("/a[.[b]]", "E170", 4, "no predicate"),
        ("/a\0", "E170", 2, "U+0000"),
        ("a/b", "E171", 0, "begin with / or //"),
        ("/", "E171", 0, "write /*"),
        ("/a[1]", "E171", 3, "positions"),
        ("/a[-1]", "E171", 4, "positions"),
        ("/a[position() = 1]", "E171", 3, "positions"),
        ("/a[b = last()]", "E171", 7, "positions"),
        ("/a/..", "E171", 3, "parent"),
        ("/a/following::b", "E171", 3, "axis following::"),
        ("/a[count(b) > 3]", "E171", 3, "count()"),
        ("/a[comment()]", "E171", 3, "comment()"),
        ("/a/node()", "E171", 3, "node()"),
        ("/a[@p = $x]", "E171", 8, "variables"),
        ("/x:a", "E171", 1, "Q{uri}local"),
        ("/a[@x:p]", "E171", 4, "Q{uri}local"),
        ("/a[b | c]", "E171", 5, "'or'"),
        ("/a[b + 1 = 2]", "E171", 5, "arithmetic"),
        ("/a[b = c]", "E171", 5, "literal on the other"),
        ("/a[1 = 1]", "E171", 5, "path on one side"),
        ("/a['x']", "E171", 3, "string alone"),
        ("/a[-b]", "E171", 4, "minus"),
        ("/a[b = 1 = 2]", "E171", 9, "one comparison"),
        ("/a[/b]", "E171", 3, "inside a predicate"),
        ("/a[(b)/c]", "E171", 6, "after parentheses"),
        ("/a[(b)[c]]", "E171", 6, "after parentheses"),
        ("//.", "E171", 2, "after //"),
        ("/@p", "E171", 0, "begin with a name"),
        ("/a/@p/b", "E171", 5, "nothing lies below"),
        ("/a[@p[b]]", "E171", 6, "nothing lies below"),
        ("/a[contains(b, 'x')]", "E171", 12, "only at the first"),
        ("/a[contains(text(), 'x')]", "E171", 12, "only at the first"),
        ("/a[contains('x', b)]", "E171", 12, "a path and then a string"),
        ("/a[contains(., 5)]", "E171", 12, "a path and then a string"),
    ],
)
def test_what_is_refused_says_where_and_why(text: str, code: str, at: int, words: str) -> None:
    with pytest.raises(ContentError) as caught:
        parse_pattern(text)
    assert (caught.value.code, caught.value.at) == (code, at), str(caught.value)
    assert words in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        "/" + "a" * TEXT_CHARS_MAX,
        "/a" * (NESTING_MAX + 2),
        "/a" + "[a" * 1000 + "]" * 1000,
        "/a[" + "(" * 3000,
        "/a[" + "not(" * 1500,
        "/a[" + "-" * 5000 + "1 = @p]" + " " * 5000,
        "/a[" + " or ".join(["b"] * (PIECES_MAX + 1)) + "]",
        "/a[" + " and ".join(f"(b{each} or c{each})" for each in range(20)) + "]",
        # Within the limits as it is written, not so as it is printed.
        "/a" + "".join(f"[b{each}[.//@p]]" for each in range(80)),
    ],
)
def test_what_is_too_large_is_refused(text: str) -> None:
    with pytest.raises(ContentError) as caught:
        parse_pattern(text)
    assert caught.value.code == "E172"


def test_the_limits_themselves_are_allowed() -> None:
    parse_pattern("/a" * NESTING_MAX)
    parse_pattern("//a" + "[b" * (NESTING_MAX - 1) + "]" * (NESTING_MAX - 1))
    parse_pattern("/*[" + "-" * 5000 + "1 = @p]")
    parse_pattern("/a[" + " or ".join(f"b{each}" for each in range(ALTERNATIVES_MAX)) + "]")
    wide = parse_pattern("/a" + "".join(f"[.//b{each}]" for each in range(PIECES_MAX // 2 - 1)))
    assert parse_pattern(str(wide)) == wide


@pytest.mark.parametrize(
    "text",
    [
        "/a" + "".join(f"[b{each}[.//@p]]" for each in range(40)),
        "/a[" + "(b and (c or " * 15 + "d" + "))" * 15 + "]",
        "/a" + "".join(f"[.//a//a[a][.//a[@p={each}]]]" for each in range(28)),
        "/a[not(" + " or ".join(f"(b{each} and c{each})" for each in range(5)) + ")]",
    ],
)
def test_a_large_pattern_survives_being_printed(text: str) -> None:
    pattern = parse_pattern(text)
    assert parse_pattern(str(pattern)) == pattern


def test_numbers_are_printed_in_full() -> None:
    for number in ("0.000000000001", "123456789012345678901234567890", "0.1", "9" * 400):
        pattern = parse_pattern(f"/a[@p > {number}]")
        assert parse_pattern(str(pattern)) == pattern
        etree.XPath(str(pattern))
