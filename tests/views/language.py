"""The topics and views that the tests of the language read."""

from gapless.model.ids import TopicId
from gapless.model.schema import Schema
from gapless.views import parse_view
from gapless.views.relation import Relation

TOPICS = {
    name: Schema.parse(TopicId(name), described)
    for name, described in {
        "sellers": {"item": "string", "price": "decimal", "qty": "int"},
        "east": {"item": "string", "qty": "int"},
        "west": {"item": "string", "qty": "int"},
        "news": {
            "category": "string",
            "score": "float?",
            "at": "timestamp",
            "doc": "xml",
            "title": "string?",
            "flag": "bool",
        },
    }.items()
}
VIEWS = {
    "tops": parse_view("SELECT item, qty FROM east ORDER BY qty DESC LIMIT 3", TOPICS, {}),
    "sums": parse_view("SELECT item, sum(qty) AS total FROM east GROUP BY item", TOPICS, {}),
}

#: Figure 1 of the paper: what is for sale, what was bought in the east and in the west, what is left.
FIGURE_1 = """
    WITH buyers AS (SELECT * FROM east UNION ALL SELECT * FROM west),
         bought AS (SELECT item, sum(qty) AS total FROM buyers WHERE qty > 0 GROUP BY item),
         offered AS (SELECT item, first(price) AS price, first(qty) AS qty FROM sellers GROUP BY item),
         joined AS (SELECT item, price, qty - total AS avail FROM offered JOIN bought USING (item))
    SELECT item, price, avail FROM joined WHERE avail > 0
"""


def read(text: str) -> Relation:
    return parse_view(text, TOPICS, VIEWS)
