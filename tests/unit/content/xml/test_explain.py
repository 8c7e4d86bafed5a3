"""Explanations: how far a pattern got, and what was missing there."""

import pytest

from gapless.content.xml import explain_pattern, parse_document, parse_pattern

DOCUMENT = """<news><head><urgency>5</urgency></head>
<body><block class='box'><p>one</p></block><block class='lead'><media type='audio'/></block></body></news>"""


@pytest.mark.parametrize(
    ("pattern", "piece", "detail"),
    [
        ("/paper", "/paper", "the document has not a paper directly below, but news"),
        ("/news/tail", "/tail", "/news has not a tail directly below, but head, body"),
        ("/news[head/urgency <= 3]", ". <= 3", "the text is '5' at /news/head/urgency"),
        ("//block[@class = 'lead']/p/q", "/p", "/news/body/block[2] has not a p directly below, but media"),
        ("//media[@type = 'video']", "@type = 'video'", "@type is 'audio' at /news/body/block[2]/media"),
        ("//media[@size > 5]", "@size > 5", "no @size at /news/body/block[2]/media"),
        ("//block/p[text() = 'two']", "text() = 'two'", "text() is 'one' at /news/body/block[1]/p"),
        ("//block/media/caption", "/caption", "has nothing below"),
        ("//p[@*]", "@*", "@* is nothing at"),
        ("/news[not(head)]", "not(head)", "without the not: found at /news/head"),
        ("//block[@class = 'x' or q]", "@class = 'x'", "@class is"),
        ("/news[@p < 'x']", "false()", "contradicts itself"),
        (
            "//Q{u}x",
            "//Q{u}x",
            "the document has not a Q{u}x below, but news, head, urgency, body, block, ...",
        ),
        ("/news and //zzz", "//zzz", "has not a zzz below"),
    ],
)
def test_the_innermost_failure_is_named(pattern: str, piece: str, detail: str) -> None:
    explanation = explain_pattern(parse_pattern(pattern), parse_document(DOCUMENT))
    assert not explanation.matched
    failure = explanation.failure()
    assert failure is not None
    assert failure.text == piece
    assert detail in failure.detail
    assert f"{failure.text}: {failure.detail}" in str(explanation)


def test_a_match_says_where() -> None:
    explanation = explain_pattern(
        parse_pattern("/news[head/urgency = 5]//block[media]/p"), parse_document(DOCUMENT)
    )
    assert explanation.failure() is not None
    explanation = explain_pattern(parse_pattern("//block[media][@class]"), parse_document(DOCUMENT))
    assert explanation.failure() is None
    assert str(explanation).splitlines() == [
        "yes //block: found at /news/body/block[2]",
        "yes   @class: @class is 'lead' at /news/body/block[2]",
        "yes   media: found at /news/body/block[2]/media",
    ]


def test_long_values_are_cut() -> None:
    document = parse_document(f"<a>{'x' * 100}</a>")
    explanation = explain_pattern(parse_pattern("/a[. = 'y']"), document)
    assert "xxx..." in str(explanation)
    assert len(str(explanation)) < 200


def test_many_ways_down_are_not_tried_one_by_one() -> None:
    document = parse_document("<a>" * 200 + "</a>" * 200)
    explanation = explain_pattern(parse_pattern("//a" * 40 + "/b"), document)
    failure = explanation.failure()
    assert failure is not None
    assert failure.text == "/b"
