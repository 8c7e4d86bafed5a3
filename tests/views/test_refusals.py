"""Every wrong view is refused in one line that says what, where, and the way out.

`refusals.txt` has a text, a caret below the place that is to blame, and the message. It is read like code:
whoever changes a message looks at what a user would see.
"""

from pathlib import Path

import pytest

from gapless.errors import ViewError
from gapless.views.relation import columns
from tests.views.language import read

GOLDEN = Path(__file__).parent / "refusals.txt"


def refusals() -> list[tuple[str, int, str]]:
    found = []
    for block in GOLDEN.read_text(encoding="utf-8").split("\n\n"):
        text, caret, message = block.strip("\n").split("\n")
        found.append((text, caret.index("^"), message))
    return found


@pytest.mark.parametrize(("text", "at", "message"), refusals(), ids=[text for text, _, _ in refusals()])
def test_a_wrong_view_is_refused_with_place_and_way_out(text: str, at: int, message: str) -> None:
    with pytest.raises(ViewError) as caught:
        read(text)
    assert str(caught.value) == message
    assert caught.value.at == at
    assert caught.value.pointer() == f"{text}\n{' ' * at}^"


def test_every_code_of_views_is_among_them() -> None:
    codes = {message.split(" ")[0] for _, _, message in refusals()}
    assert codes == {"E165", "E166", "E167", "E168", "E169"}
    assert len(refusals()) > 100


def test_what_is_too_large_is_refused() -> None:
    for text, part in [
        ("SELECT item FROM east WHERE " + "(" * 40 + "TRUE" + ")" * 40, "deep"),
        ("SELECT item FROM east WHERE " + "NOT " * 200 + "TRUE", "deep"),
        ("SELECT " + "+".join(["qty"] * 100) + " AS x FROM east", "operators deep"),
        ("SELECT item FROM east WHERE qty IN (" + ",".join(["1"] * 2_000) + ")", "at most 1000 values"),
        ("SELECT " + " " * 200_000, "characters"),
        ("SELECT " + "- " * 40 + "1 AS x FROM east", "deep"),
        ("SELECT " + "qty, " * 15_000 + "qty FROM east", "words and signs"),
        ("SELECT item FROM east" + " UNION ALL SELECT item FROM east" * 600, "operators"),
        ("SELECT " + ",".join(f"qty AS a{n}" for n in range(1_200)) + " FROM east", "columns"),
    ]:
        with pytest.raises(ViewError, match=part):
            read(text)


def test_a_view_that_is_used_too_often_is_refused_before_it_is_walked() -> None:
    steps = ["r0 AS (SELECT item, sum(qty) AS n FROM east GROUP BY item)"]
    for step in range(1, 40):
        steps.append(
            f"r{step} AS (SELECT a.item, a.n FROM r{step - 1} AS a JOIN r{step - 1} AS b ON a.item = b.item)"
        )
    with pytest.raises(ViewError, match=r"E165 .* at most 500 operators"):
        read(f"WITH {', '.join(steps)} SELECT * FROM r39")


def test_the_place_of_a_trouble_in_another_view_is_where_that_is_named() -> None:
    text = "SELECT item FROM\n  tops WHERE qty > 3"
    with pytest.raises(ViewError) as caught:
        read(text)
    assert caught.value.pointer() == "  tops WHERE qty > 3\n  ^"


def test_in_a_text_of_several_lines_the_place_is_a_line_and_a_column() -> None:
    with pytest.raises(ViewError) as caught:
        read("SELECT item\nFROM east\nWHERE qty > 3\n  AND itm = 'a'")
    assert str(caught.value) == "E166 at line 4 column 7: no column 'itm': did you mean 'item'?"
    assert caught.value.pointer() == "  AND itm = 'a'\n      ^"


def test_comments_may_stand_between_any_two_words() -> None:
    plain = "SELECT item, sum(qty) AS n FROM east WHERE item > 'a' GROUP BY item"
    words = plain.replace("sum(", "sum (").split(" ")
    for gap in ("/* * / */", "-- BY\n", "\n"):
        assert read(f" {gap} ".join(words)) == read(plain)


def test_a_word_that_views_do_not_have_may_be_the_name_of_a_column() -> None:
    relation = read("SELECT item, sum(qty) AS top, max(qty) AS into FROM east GROUP BY item HAVING into > 3")
    assert [column.name for column in columns(relation)] == ["item", "top", "into"]
