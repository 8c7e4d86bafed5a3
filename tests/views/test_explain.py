"""What `gapless view explain` prints, and the drawing of the transform graph."""

import xml.etree.ElementTree as ET
from itertools import combinations
from pathlib import Path

import pytest

from gapless.views.planning.drawing import draw
from gapless.views.planning.explain import explain
from gapless.views.planning.graph import TransformGraph
from tests.views.test_plan import AVAILABLE, PAIRED, PRICES, parsed

GOLDEN = Path(__file__).parent / "golden" / "explain"

VIEWS = {
    "available": AVAILABLE,
    "cheapest": f"SELECT * FROM ({AVAILABLE}) AS a WHERE item < 100 ORDER BY price LIMIT 3",
    "summary": f"SELECT COUNT(*) AS items, AVG(price) AS average FROM ({AVAILABLE}) AS a",
    "rated": PAIRED,
    "dear": "SELECT item, qty * 2 AS twice FROM sellers WHERE price > 3 AND LENGTH(CAST(qty AS string)) = 2",
    "one_price": f"{PRICES} HAVING item = 7",
}


def graph_of(views: dict[str, str]) -> TransformGraph:
    graph = TransformGraph()
    for name, sql in views.items():
        graph = graph.with_view(name, parsed(sql))
    return graph


@pytest.mark.parametrize("name", sorted(VIEWS))
def test_a_view_is_explained_as_the_golden_file_shows(name: str, rewrite_golden: bool) -> None:
    path = GOLDEN / f"{name}.txt"
    found = explain(name, parsed(VIEWS[name]), graph_of(VIEWS))
    if rewrite_golden:
        path.write_text(found, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == found


def test_a_view_that_is_new_is_explained_without_a_graph() -> None:
    text = explain("dear", parsed(VIEWS["dear"]))
    assert "brokers select price > 3\n" in text
    assert "used by this view alone" in text


def test_many_other_views_are_counted() -> None:
    views = {f"v{at}": f"{PRICES} HAVING LAST(price) > {at}" for at in range(9)}
    text = explain("v0", parsed(views["v0"]), graph_of(views))
    assert "shared with v1, v2, v3, v4, v5 and 3 more" in text


def test_the_drawing_shows_every_topic_and_view_and_what_brokers_select() -> None:
    texts = {
        each.text for each in ET.fromstring(draw(graph_of(VIEWS))).iter("{http://www.w3.org/2000/svg}text")
    }
    assert {*VIEWS, "sellers", "buyers_east", "buyers_west", "ratings", "price > 3"} <= texts


def test_boxes_of_the_drawing_do_not_overlap() -> None:
    views = VIEWS | {f"v{at}": f"{PRICES} HAVING LAST(price) > {at}" for at in range(20)}
    root = ET.fromstring(draw(graph_of(views)))
    boxes = [
        tuple(float(each.attrib[name]) for name in ("x", "y", "width", "height"))
        for each in root.iter("{http://www.w3.org/2000/svg}rect")
        if "stroke" in each.attrib
    ]
    assert len(boxes) > 10
    for (x, y, width, height), (other_x, other_y, other_width, other_height) in combinations(boxes, 2):
        apart_across = x + width <= other_x or other_x + other_width <= x
        apart_down = y + height <= other_y or other_y + other_height <= y
        assert apart_across or apart_down
        assert max(x + width, other_x + other_width) <= float(root.attrib["width"])
        assert max(y + height, other_y + other_height) <= float(root.attrib["height"])


def test_no_views_make_an_empty_drawing() -> None:
    assert "<text" not in draw(TransformGraph())
