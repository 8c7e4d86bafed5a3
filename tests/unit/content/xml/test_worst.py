"""The nastiest documents that a node takes: they are matched quickly, and match what they always did."""

import random

import pytest
from lxml import etree

from gapless.content.xml import PatternIndex, evaluate, parse_document, parse_pattern
from gapless.content.xml.document import NAMESPACE_CHARS_MAX
from gapless.content.xml.evaluate import value_passes
from gapless.content.xml.index.facts import Facet
from gapless.content.xml.pattern import Need, Not, Or, TextCompare
from gapless.content.xml.values import NUMBER_CHARS_MAX, number_of, numbers_of, passes, passing
from gapless.errors import ContentError

PARTS = 400
TEXT = "yx" * 1_000

DOCUMENTS = {
    "text at the bottom": "<a>" * 255 + f"<b>{TEXT}</b>" + "</a>" * 255,
    "text at every level": "<a>y" * 255 + f"<b>{TEXT}</b>" + "z</a>" * 255,
    "digits at every level": "<a>1" * 255 + "<b>1</b>" + "2</a>" * 255,
    "spaces": "<a> " * 255 + f"<b>{' ' * 9_000}7</b>" + " </a>" * 255,
    "chains": "<r>" + ("<a>1" * 100 + "<b>5</b>" + "</a>6" * 100) * (PARTS // 100) + "</r>",
    "distinct siblings": "<a>" + "".join(f"<n{at}/>" for at in range(PARTS)) + "<b/></a>",
    "sibling texts": "<a>" + "".join(f"<b>{at}</b>{at % 7}" for at in range(PARTS)) + "</a>",
    "attributes": "<r>"
    + "".join(
        "<a " + " ".join(f'a{name}="{at * 999 + name}"' for name in range(999)) + "/>" for at in range(5)
    )
    + "<b c='q'/></r>",
    "long attributes": "<r>" + f'<a p="{"yx" * 30_000}z"/>' * 4 + "</r>",
    "entities": "<a>" + "&lt;&amp;y&#122;" * PARTS + "</a>",
    "sections": "<a>" + "<![CDATA[<b>]]>y" * PARTS + "</a>",
    "comments": "<a>" * 100 + "x<!-- y -->" * PARTS + "<?y z?>z" + "</a>" * 100,
    "namespaces": "".join(
        "<a " + " ".join(f'xmlns:n{depth}_{at}="u{at}"' for at in range(9)) + ">" for depth in range(200)
    )
    + "<n0_0:b n0_1:c='7'/>" * PARTS
    + "</a>" * 200,
    "a tree": "<a><a>1<b>q</b></a>" * 200 + "<c>x<b/>y</c>" * PARTS + "</a>" * 200,
}
PATTERNS = [
    "//a//b[.//c]",
    "//a[not(.//z)]//b[. > 5]",
    "//b[contains(., 'y')]",
    "//*[. = 'q']",
    "//b[. != 'q']",
    "//*[contains(., 'yz')]",
    "//*[contains(., 'xyzzz')]",
    "//*[contains(., 'xy')][not(contains(., 'z'))]",
    "//*[. > 5]",
    "//*[. <= 5]",
    "//*[. != 7]",
    "//b[. = 7]",
    "//*[starts-with(., 'yyyyx')]",
    "//*[starts-with(., '12')]",
    "//*[text() = 'q']",
    "//*[text()[contains(., 'yx') and not(contains(., 'z'))]]",
    "//a/text()[. = 6]",
    "//*[@* = 'q']",
    "//*[@*[contains(., 'yxz')]]",
    "//*[@a7 > 990]/@a8[. < 1200]",
    "//*[not(@*)][not(*)]",
    "//*[*[*[*[. < 2]]]]",
    "/a/a[. >= 1]",
]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_index_evaluator_and_lxml_agree_on(name: str) -> None:
    document = DOCUMENTS[name]
    flat, tree = parse_document(document), etree.fromstring(document).getroottree()
    index = PatternIndex()
    for slot, text in enumerate(PATTERNS):
        index.add(slot, parse_pattern(text))
    found = set(index.match([document.encode(), None, document])[1].tolist())
    assert found == {slot for slot, text in enumerate(PATTERNS) if evaluate(parse_pattern(text), flat)}
    # To lxml, also what is longer than a number here is one.
    compared = [
        slot
        for slot, text in enumerate(PATTERNS)
        if name not in {"spaces", "digits at every level"} or "." not in text
    ]
    by_lxml = {slot for slot in compared if tree.xpath(f"boolean({PATTERNS[slot]})")}
    assert found & set(compared) == by_lxml


@pytest.mark.parametrize("seed", range(20))
def test_parts_of_a_text_pass_what_each_passes_by_itself(seed: int) -> None:
    chance = random.Random(seed)
    whole = "".join(chance.choices("ab1 ", k=chance.choice([0, 5, 300])))
    spans = sorted(
        tuple(sorted((chance.randint(0, len(whole)), chance.randint(0, len(whole))))) for _ in range(60)
    )
    parts = [whole[start:stop] for start, stop in spans]
    for operator in ("=", "!=", "contains", "starts-with"):
        for literal in ("a", "ab", "ba1", "", chance.choice(parts)):
            expected = [passes(part, operator, literal) for part in parts]
            assert passing(whole, spans, operator, literal) == expected, (operator, literal)


def some_tests(subject_is_element: bool, chance: random.Random) -> list[Need]:
    literals = ["a", "1", "b a", "ab" * 150, 1.0, 7.0, -3.5, 1e9]
    compared: list[Need] = [
        TextCompare(operator, literal)
        for literal in literals
        for operator in (
            ("=", "!=", "contains", "starts-with")
            if isinstance(literal, str)
            else ("=", "!=", "<", "<=", ">", ">=")
        )
    ]
    combined: list[Need] = [
        Or((TextCompare("=", "a"), TextCompare(">", 3.0))),
        Not(TextCompare("contains", "b")),
    ]
    return chance.sample(compared + ([] if subject_is_element else combined), chance.randint(1, 20))


@pytest.mark.parametrize("seed", range(30))
def test_many_values_have_the_facts_that_each_has_by_itself(seed: int) -> None:
    chance = random.Random(seed)
    for subject_is_element in (True, False):
        tests = some_tests(subject_is_element, chance)
        facet = Facet()
        for fact, test in enumerate(tests, 10):
            facet.add(test, fact)

        def facts(value: str, tests: list[Need] = tests) -> tuple[int, ...]:
            return tuple(fact for fact, test in enumerate(tests, 10) if value_passes(test, value))

        values = ["", "a", "7", " 7.0 ", "1e9", "-3.5", "ab" * 150, "1" * 256, "1" * 257]
        values += ["".join(chance.choices("ab17 .", k=chance.randint(0, 4))) for _ in range(200)]
        assert facet.facts_of(values) == [facts(value) for value in values]
        if subject_is_element:
            whole = "".join(values) + "ab" * 300
            ends = [chance.randint(0, len(whole)) for _ in range(300)]
            spans = sorted(
                (start, min(len(whole), start + chance.choice([0, 1, 3, 199, 300, 301, 900])))
                for start in ends
            )
            assert facet.facts_within(whole, spans) == [facts(whole[start:stop]) for start, stop in spans]


def test_a_text_that_is_too_long_is_not_a_number() -> None:
    longest = "0" * (NUMBER_CHARS_MAX - 1) + "7"
    assert number_of(longest) == 7
    assert number_of(" " + longest) != number_of(" " + longest), "it is NaN"
    texts = [longest, " " + longest, "7", "", "1e3", "1e", "-.5", "+1", " 7 ", "7 x"]
    assert [str(each) for each in numbers_of(texts)] == [str(number_of(each)) for each in texts]
    for document, matches in ((f"<a>{longest}</a>", True), (f"<a> <b>{longest}</b></a>", False)):
        index = PatternIndex()
        index.add(1, parse_pattern("/a[. = 7]"))
        assert bool(len(index.match([document])[0])) == matches
        assert evaluate(parse_pattern("/a[. = 7]"), parse_document(document)) == matches


@pytest.mark.parametrize(
    ("document", "fits"),
    [
        ("<a xmlns='{0}'><b/></a>", False),
        ('<n:a xmlns:n = "{0}"/>', False),
        ("<a xmlns:n='{0}'><b n:c='1'/></a>", False),
        # Declared, and used by nobody.
        ("<a xmlns:n='{0}'/>", True),
        ("<a><![CDATA[ xmlns='{0}' ]]>{0}</a>", True),
        ("<a b='{0}'/>", True),
    ],
)
def test_a_long_namespace_would_be_repeated_in_every_name_and_is_refused(document: str, fits: bool) -> None:
    # Long enough that it is looked for.
    padding = " " * 5_000
    longest = "u" * NAMESPACE_CHARS_MAX
    parse_document(document.format(longest) + padding)
    if fits:
        parse_document(document.format(longest + "u") + padding)
    else:
        with pytest.raises(ContentError, match="E176 a namespace has at most 1000 characters"):
            parse_document(document.format(longest + "u") + padding)
