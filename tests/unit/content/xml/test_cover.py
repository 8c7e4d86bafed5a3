"""Covering of patterns: proofs, counterexamples, and honest doubt."""

import pytest

from gapless.content.covering.verdict import Cover
from gapless.content.xml import covers_pattern, parse_pattern
from gapless.content.xml.imply import Implication


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("/a", "/a/b", Cover.YES),
        ("/a/b", "/a", Cover.NO),
        ("//b", "/a/b[c]", Cover.YES),
        ("/a//c", "/a/b/c", Cover.YES),
        ("/a/b/c", "/a//c", Cover.NO),
        ("/*/b", "/a/b", Cover.YES),
        ("/a/b", "/*/b", Cover.NO),
        ("/a[b][c]", "/a[b/c][c/d]", Cover.YES),
        ("/a[.//c][.//d]", "/a/b[c][d]", Cover.YES),
        ("/a/b[c][d]", "/a[b/c][b/d]", Cover.NO),
        ("/*//b", "//a/b", Cover.YES),
        ("//*[b]", "//a//b", Cover.YES),
        # Values.
        ("/a[@p > 3]", "/a[@p > 5]", Cover.YES),
        ("/a[@p > 5]", "/a[@p > 3]", Cover.NO),
        ("/a[@p]", "/a[@p = 'x']", Cover.YES),
        ("/a[@*]", "/a[@p = 'x']", Cover.YES),
        ("/a[@* = 'x']", "/a[@p = 'x']", Cover.YES),
        ("/a[@p = 5]", "/a[@p >= 5][@p <= 5]", Cover.YES),
        ("/a[@p != 'x']", "/a[@p = 'y']", Cover.YES),
        ("/a[@p != 5]", "/a[@p = 'y']", Cover.YES),
        ("/a[not(@p = 'x')]", "/a[@p = 'y']", Cover.YES),
        ("/a[contains(@p, 'b')]", "/a[starts-with(@p, 'abc')]", Cover.YES),
        ("/a[starts-with(@p, 'b')]", "/a[contains(@p, 'b')]", Cover.NO),
        ("/a[starts-with(., 'a')]", "/a[starts-with(., 'ab')]", Cover.YES),
        ("/a[text() > 3]", "/a[text() > 5]", Cover.YES),
        ("/a[text() > 3 and text() < 9]", "/a[text()[. > 5 and . < 7]]", Cover.YES),
        # Several text nodes may share the work, so neither is an interval.
        ("/a[text()[. > 5 and . < 7]]", "/a[text() > 5][text() < 7]", Cover.UNKNOWN),
        ("/a[b > 5]", "/a[b > 7]", Cover.YES),
        # Or and not.
        ("/a[b or c]", "/a[c]", Cover.YES),
        ("/a/b", "/a[b[c] or b[d]]", Cover.YES),
        ("/a[b or c]", "/a[(b or c) and d]", Cover.YES),
        ("/a[x or y]", "/a[(b[x] or c) and (x or y)]", Cover.YES),
        ("/a/*/x", "/a[(b[x] or c[x]) and d]", Cover.YES),
        ("/a/*/x", "/a[(b[x] or c[y]) and d]", Cover.NO),
        ("/a[not(b[c])]", "/a[not(b)]", Cover.YES),
        ("/a[not(b)]", "/a[not(b[c])]", Cover.UNKNOWN),
        ("/a or /b", "/b/c", Cover.YES),
        ("/a", "/a or /b", Cover.NO),
        ("//b", "/a//b or /b", Cover.YES),
        ("/a", "/x[@p = '1'][@p = '2']", Cover.YES),
        ("/x[@p = '1'][@p = '2']", "/a", Cover.NO),
    ],
)
def test_covering(a: str, b: str, expected: Cover) -> None:
    assert covers_pattern(parse_pattern(a), parse_pattern(b)) is expected


def test_names_and_descendants_together_may_stay_open() -> None:
    # Both ways down to b pass an a that has another a above, but no single mapping shows it.
    a = parse_pattern("/a//*/e")
    b = parse_pattern("/a[.//*/e][b]")
    assert covers_pattern(a, b) is Cover.YES
    mixed = covers_pattern(parse_pattern("//a[*//b]"), parse_pattern("//a//*[b]"))
    assert mixed in {Cover.YES, Cover.UNKNOWN}


def test_the_work_is_bounded() -> None:
    implication = Implication(steps_max=3)
    a, b = parse_pattern("//a//b//c//d//e"), parse_pattern("/a/a/b/b/c/c/d/d/e/e")
    assert not implication.holds(b.need, a.need)
    assert implication.steps_left == 0
    assert Implication().holds(b.need, a.need)


def test_wide_patterns_do_not_explode() -> None:
    wide = parse_pattern("/a" + "".join(f"[.//b{each}[.//c//d]]" for each in range(40)))
    deep = parse_pattern("//a" * 40)
    assert covers_pattern(wide, wide) is Cover.YES
    assert covers_pattern(deep, parse_pattern("/a" * 45)) is Cover.YES
    assert covers_pattern(wide, deep) is Cover.NO
