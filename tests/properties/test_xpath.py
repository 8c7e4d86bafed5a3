"""XPath patterns against lxml, the index against the direct evaluator, covering against all small documents.

Cases are drawn from a seed; hypothesis chooses the seeds and prints the one that failed.
"""

import random
from collections.abc import Callable
from itertools import combinations, combinations_with_replacement, product
from typing import TypeVar

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from gapless.content.covering.verdict import Cover
from gapless.content.xml import (
    Pattern,
    PatternIndex,
    covers_pattern,
    evaluate,
    explain_pattern,
    parse_document,
    parse_pattern,
)
from gapless.errors import ContentError
from tests.budget import examples
from tests.properties.xml_cases import random_document, random_pattern

seeds = st.integers(0, 2**32)

#: Each seed stands for so many patterns, tried on so many documents.
PATTERNS, DOCUMENTS = 25, 8


T = TypeVar("T")
Input = TypeVar("Input")


def attempt(function: Callable[[Input], T], given: Input) -> T | ContentError:
    """What a function gives, or how it refuses; any other exception is a failure."""
    try:
        return function(given)
    except ContentError as error:
        return error


def some_patterns(rng: random.Random, count: int) -> list[tuple[str, Pattern]]:
    return [(text, parse_pattern(text)) for text in (random_pattern(rng) for _ in range(count))]


@given(seeds)
@examples(200)
def test_patterns_mean_what_lxml_says_before_and_after_the_normal_form(seed: int) -> None:
    rng = random.Random(seed)
    texts = [random_document(rng) for _ in range(DOCUMENTS)]
    cases = [(text, etree.fromstring(text), parse_document(text)) for text in texts]
    for text, pattern in some_patterns(rng, PATTERNS):
        assert parse_pattern(str(pattern)) == pattern, (seed, text)
        original, printed = etree.XPath(text), etree.XPath(str(pattern))
        for document_text, tree, document in cases:
            expected = bool(original(tree))
            assert bool(printed(tree)) == expected, (seed, text, str(pattern), document_text)
            assert evaluate(pattern, document) == expected, (seed, text, str(pattern), document_text)


@given(seeds)
@examples(60)
def test_the_index_agrees_with_the_evaluator_while_patterns_come_and_go(seed: int) -> None:
    rng = random.Random(seed)
    index = PatternIndex()
    live: dict[int, Pattern] = {}
    for _ in range(4):
        for _, pattern in some_patterns(rng, rng.randint(0, 40)):
            slot = rng.choice([rng.randint(-20, 20), rng.randint(0, 2**62)])
            if slot in live and rng.random() < 0.6:
                index.remove(slot)
                del live[slot]
            else:
                index.add(slot, pattern)
                live[slot] = pattern
        documents: list[str | None] = [random_document(rng) for _ in range(rng.randint(0, 6))]
        documents += [None, "<a"]
        rng.shuffle(documents)
        assert len(index) == len(live)
        found = index.match(documents if rng.random() < 0.5 else pa.array(documents, pa.string()))
        expected = [
            (row, slot)
            for row, document in enumerate(documents)
            if document is not None and document != "<a"
            for slot in sorted(live)
            if evaluate(live[slot], parse_document(document))
        ]
        assert list(zip(*[each.tolist() for each in found], strict=True)) == expected, seed
    assert index.refused == 4
    for slot in list(live):
        index.remove(slot)
    assert index.statistics()["conditions"] == 0, "something was not let go"


@given(seeds)
@examples(40)
def test_a_covering_pattern_accepts_whatever_the_covered_one_accepts(seed: int) -> None:
    rng = random.Random(seed)
    documents = [parse_document(random_document(rng)) for _ in range(20)]
    patterns = [pattern for _, pattern in some_patterns(rng, 12)]
    accepts = {each: [evaluate(each, document) for document in documents] for each in patterns}
    for a, b in product(patterns, patterns):
        verdict = covers_pattern(a, b)
        held = all(x or not y for x, y in zip(accepts[a], accepts[b], strict=True))
        assert verdict is not Cover.YES or held, (seed, str(a), str(b))
        if a == b:
            assert verdict is Cover.YES, (seed, str(a))


@given(seeds)
@examples(40)
def test_an_explanation_agrees_with_the_evaluator_and_blames_something(seed: int) -> None:
    rng = random.Random(seed)
    documents = [parse_document(random_document(rng)) for _ in range(4)]
    for (_, pattern), document in product(some_patterns(rng, 10), documents):
        explanation = explain_pattern(pattern, document)
        matched = evaluate(pattern, document)
        assert explanation.matched == matched, (seed, str(pattern))
        assert (explanation.failure() is None) == matched, (seed, str(pattern))
        assert str(explanation)


# ------------------------------------------------------------------------------- all small cases


def small_patterns(names: str, axes: list[str]) -> list[Pattern]:
    """All patterns of up to three nodes."""
    steps = [axis + name for axis, name in product(axes, names)]
    inside = [
        ("." if step.startswith("//") else "") + step.removeprefix("/" * (step[1] != "/")) for step in steps
    ]
    texts = (
        steps
        + [x + y for x, y in product(steps, steps)]
        + ["".join(each) for each in product(steps, repeat=3)]
    )
    texts += [f"{x}[{y}][{z}]" for x in steps for y, z in combinations_with_replacement(inside, 2)]
    return sorted({parse_pattern(text) for text in texts}, key=str)


def small_documents() -> list[str]:
    """All trees of three names, three levels and two different children; also below a root `z`; chains."""
    names = "abz"
    trees: list[str] = []
    for _ in range(3):
        bodies = ["", *trees, *("".join(pair) for pair in combinations(trees, 2))]
        trees = [f"<{name}>{body}</{name}>" for name in names for body in bodies]
    chains = [
        "".join(f"<{n}>" for n in each) + "".join(f"</{n}>" for n in each[::-1])
        for each in product(names, repeat=5)
    ]
    return trees + [f"<z>{each}</z>" for each in trees] + chains


@pytest.mark.parametrize(("names", "axes"), [("ab", ["/", "//"]), ("ab*", ["/"])])
def test_no_covering_pair_is_missed_where_homomorphism_is_complete(names: str, axes: list[str]) -> None:
    documents = [etree.fromstring(each) for each in small_documents()]
    accepts = {}
    for pattern in small_patterns(names, axes):
        compiled = etree.XPath(str(pattern))
        accepts[pattern] = sum(1 << at for at, each in enumerate(documents) if compiled(each))
    missed = []
    for a, b in product(accepts, accepts):
        expected = Cover.NO if accepts[b] & ~accepts[a] else Cover.YES
        if covers_pattern(a, b) is not expected:
            missed.append(f"{a} covers {b}: {expected}")
    assert not missed, missed[:10]


def test_equal_meanings_have_one_identity_where_homomorphism_is_complete() -> None:
    documents = [etree.fromstring(each) for each in small_documents()]
    seen: dict[int, Pattern] = {}
    for pattern in small_patterns("ab", ["/", "//"]):
        compiled = etree.XPath(str(pattern))
        key = sum(1 << at for at, each in enumerate(documents) if compiled(each))
        assert key not in seen, f"{pattern} means the same as {seen[key]}"
        seen[key] = pattern


def test_no_implication_between_comparisons_of_numbers_is_missed() -> None:
    values = ["", "x", "1", "1.5", "2", "2.5", "3", "3.5", "4", "0"]
    tests = [
        f"@p {operator} {number}" for operator in ("=", "!=", "<", "<=", ">", ">=") for number in (1, 2, 3)
    ]
    texts = tests + [f"{x} and {y}" for x, y in combinations(tests, 2)]
    patterns = {parse_pattern(f"/a[{text}]") for text in texts}
    documents = [parse_document("<a/>"), *(parse_document(f'<a p="{each}"/>') for each in values)]
    accepts = {each: [evaluate(each, document) for document in documents] for each in patterns}
    for a, b in product(patterns, patterns):
        expected = all(x or not y for x, y in zip(accepts[a], accepts[b], strict=True))
        assert (covers_pattern(a, b) is Cover.YES) == expected, (str(a), str(b))


# ---------------------------------------------------------------------------------------- fuzzing

PIECES = [
    "/",
    "//",
    "a",
    "*",
    "[",
    "]",
    "(",
    ")",
    "@",
    "p",
    "=",
    "!=",
    "<",
    "'x'",
    '"',
    "5",
    ".",
    "..",
    "::",
    ":",
    "$",
]
PIECES += [
    "and",
    "or",
    "not(",
    "text()",
    "contains(",
    ",",
    "Q{",
    "}",
    "-",
    " ",
    "|",
    "position()",
    "\0",
    "é",
    "\ud800",
]


@given(st.one_of(st.text(max_size=60), st.lists(st.sampled_from(PIECES), max_size=25).map("".join)))
@examples(1_500)
def test_any_text_is_a_pattern_or_a_content_error(text: str) -> None:
    pattern = attempt(parse_pattern, text)
    if isinstance(pattern, ContentError):
        assert pattern.code in {"E170", "E171", "E172"}
        assert pattern.at is None or 0 <= pattern.at <= len(text)
        assert pattern.pointer() or pattern.at is None or not text
        return
    assert parse_pattern(str(pattern)) == pattern
    if "Q{" not in str(pattern):
        etree.XPath(str(pattern))


MARKUP = [
    b"<a>",
    b"</a>",
    b"<b p='1'/>",
    b"<!--",
    b"-->",
    b"<?x",
    b"?>",
    b"<![CDATA[",
    b"]]>",
    b"&lt;",
    b"&x;",
    b"x",
]
MARKUP += [
    b"<!DOCTYPE a>",
    b"<!DOCTYPE a [<!ENTITY x 'y'>]>",
    b"<?xml version='1.0' encoding='utf-7'?>",
    b"\xff\xfe",
]
MARKUP += [
    b"\0",
    b"\xef\xbb\xbf",
    b" ",
    b"<",
    b"&#0;",
    b"<x:a>",
    b" xmlns:x='u'",
    b"\xe9",
    b"<a p='1' p='2'/>",
]


@given(st.one_of(st.binary(max_size=60), st.lists(st.sampled_from(MARKUP), max_size=15).map(b"".join)))
@examples(1_500)
def test_any_bytes_are_a_document_or_a_content_error(data: bytes) -> None:
    index = PatternIndex()
    index.add(1, parse_pattern("//*"))
    document = attempt(parse_document, data)
    if isinstance(document, ContentError):
        assert document.code in {"E175", "E176", "E177"}
        assert index.match([data])[0].tolist() == []
        assert index.refused == 1
        return
    assert len(document.names) > 1
    assert index.match([data])[1].tolist() == [1]


@given(st.text(max_size=40).map(lambda text: f"<a p='{text}'>{text}</a>"))
@examples(300)
def test_any_text_is_a_document_or_a_content_error(text: str) -> None:
    document = attempt(parse_document, text)
    assert not isinstance(document, ContentError) or document.code in {"E175", "E176", "E177"}
