"""Every rewrite rule preserves the meaning of a view, and does to texts what the golden files show."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given

from gapless.views.planning.rewrite import KEEPING_STAGES, RULES, Rule, rewrite
from gapless.views.planning.rewrite.everywhere import everywhere
from gapless.views.printing import relation_text
from gapless.views.relation import Merge, Project, Relation, columns
from gapless.views.sql.parse import parse_view
from tests.budget import examples
from tests.views.drawn import SCHEMAS, column, histories, scan, views
from tests.views.evaluate import Event, evaluate
from tests.views.rows import bag

GOLDEN = Path(__file__).parent / "golden" / "rewrites"
#: What the parser would not make, but other rules or the fluent algebra do.
HAND_MADE = {
    "a merge of a merge": Merge((Merge((scan("orders"), scan("returns"))), scan("orders"))),
    "every column as it is": Project(
        scan("orders"),
        tuple((each.name, column(scan("orders"), each.name)) for each in scan("orders").columns),
    ),
}
NAMED = {rule.__name__: rule for rule in RULES}


@examples(150)
@given(views(), histories())
def test_rules_preserve_meaning(relation: Relation, events: Mapping[str, Sequence[Event]]) -> None:
    expected = bag(evaluate(relation, events))
    names = [column.name for column in columns(relation)]
    for rule in RULES:
        changed = everywhere(rule, relation)
        assert [column.name for column in columns(changed)] == names
        assert bag(evaluate(changed, events)) == expected, f"{rule.__name__}\n{relation_text(changed)}"
    for rules in (RULES, KEEPING_STAGES):
        changed = rewrite(relation, rules)
        assert [column.name for column in columns(changed)] == names
        assert bag(evaluate(changed, events)) == expected, relation_text(changed)
        assert rewrite(changed, rules) == changed


def test_every_rule_has_a_golden_file() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == {*NAMED, "all_rules"}


@pytest.mark.parametrize("name", sorted([*NAMED, "all_rules"]))
def test_a_rule_rewrites_as_the_golden_file_shows(name: str, rewrite_golden: bool) -> None:
    path = GOLDEN / f"{name}.txt"
    sections = path.read_text(encoding="utf-8").split("\n====\n")
    found = "\n====\n".join(_shown(section, NAMED.get(name)) for section in sections)
    if rewrite_golden:
        path.write_text(found, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == found


def _shown(section: str, rule: Rule | None) -> str:
    """A section is a view in SQL; below it what it was read as, and what the rule makes of that."""
    sql = section.split("\n----\n", maxsplit=1)[0].strip("\n")
    before = HAND_MADE[sql] if sql in HAND_MADE else parse_view(sql, SCHEMAS, {})
    after = rewrite(before) if rule is None else _until_it_rests(rule, before)
    if rule is not None:
        assert after != before, f"{rule.__name__} does nothing to {sql}"
    return f"{sql}\n----\n{relation_text(before)}\n----\n{relation_text(after)}\n"


def _until_it_rests(rule: Rule, relation: Relation) -> Relation:
    while (changed := everywhere(rule, relation)) != relation:
        relation = changed
    return relation
