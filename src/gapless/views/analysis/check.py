"""Can a view be maintained, event by event, with a state that does not grow with the history?

If not, it is refused when it is created, at the operator and with the reason:

- A join of events would have to keep every event for ever: any may find a partner later.
- A maximum over rows that may be taken back would have to keep all of them, to know the next one. So would a
  first or a last.
- Rows of a top-k come and go with every event; what is computed from them would, too.
- An outer join by other columns than the key needs to know that there is *no* partner, of any key.
"""

from __future__ import annotations

from typing import NoReturn

from gapless.errors import ViewError
from gapless.views.analysis.analyse import Analysis, Analyst, paired_keys, rows_of
from gapless.views.analysis.domains import Motion, aggregate_domain
from gapless.views.relation import GroupBy, Join, Merge, Relation, Scan, TopK, inputs


def check(relation: Relation, text: str = "") -> None:
    """Raise ViewError E169 unless the view can be maintained; `text` is for the positions."""
    _Check(text).operator(relation)


class _Check:
    def __init__(self, text: str) -> None:
        self._text = text
        self._analyst = Analyst()

    def operator(self, relation: Relation) -> None:
        """Check what is below, then the operator itself."""
        for each in inputs(relation):
            if isinstance(each, TopK):
                self._refuse(
                    "nothing can be computed from the rows of a top-k, which come and go with every event: "
                    "it comes last",
                    each.at,
                )
            self.operator(each)
        match relation:
            case Merge():
                self._merge(relation)
            case GroupBy():
                self._group(relation)
            case Join():
                self._join(relation)

    def _refuse(self, message: str, at: int | None) -> NoReturn:
        raise ViewError("E169", message, text=self._text, at=at)

    def _merge(self, relation: Merge) -> None:
        if any(self._analyst.analyse(each).shape != "events" for each in relation.inputs):
            message = (
                "UNION ALL of grouped rows cannot be maintained: unite the events first, then group them"
            )
            self._refuse(message, relation.at)

    def _group(self, relation: GroupBy) -> None:
        inner = self._analyst.analyse(relation.input)
        rows = rows_of(relation, inner)
        for each in relation.aggregates:
            if rows.are_events:
                continue
            if each.function in ("first", "last"):
                message = (
                    f"{each.function}() of rows that are not events cannot be maintained, because they have "
                    "no order: take it over the topic, or use max() of a time"
                )
                self._refuse(message, each.at)
            found = aggregate_domain(each, inner.domains, rows)
            if found.name == "extremum" and found.motion is Motion.ANY:
                self._refuse_extremum(each.function, rows.may_leave, each.at)

    def _refuse_extremum(self, function: str, may_leave: bool, at: int | None) -> NoReturn:
        why = "rows may be taken back" if may_leave else "the column may be taken back"
        goes = "rises" if function == "max" else "falls"
        message = (
            f"{function}() where {why} cannot be maintained, because the next one would have to be known: "
            f"take it over the events, or over a column that only {goes}"
        )
        self._refuse(message, at)

    def _join(self, relation: Join) -> None:
        left, right = self._analyst.analyse(relation.left), self._analyst.analyse(relation.right)
        for side, analysis in ((relation.left, left), (relation.right, right)):
            if analysis.shape == "events":
                names = " and ".join(sorted(f"'{name}'" for name in _topics(side)))
                message = (
                    f"the join keeps every event of {names} for ever, because any may find a partner later: "
                    "group it by the join key first"
                )
                self._refuse(message, relation.at)
        if relation.kind != "inner":
            self._outer(relation, left, right)

    def _outer(self, relation: Join, left: Analysis, right: Analysis) -> None:
        kind = relation.kind.upper()
        pairs = paired_keys(relation, left, right)
        if pairs is None:
            message = (
                f"a {kind} JOIN cannot be maintained unless both sides are grouped from topics and joined by "
                "all their keys: group both by the columns of the join, or use JOIN"
            )
            self._refuse(message, relation.at)
        if relation.kind == "full" and any(left.nulls[at] and right.nulls[pairs[at]] for at in pairs):
            names = " and ".join(one for one, _ in relation.on)
            message = (
                f"a FULL JOIN by {names} cannot be maintained, because it may be null on both sides, and "
                "nulls are equal to nothing: group by COALESCE(...)"
            )
            self._refuse(message, relation.at)


def _topics(relation: Relation) -> set[str]:
    if isinstance(relation, Scan):
        return {str(relation.topic)}
    return {name for each in inputs(relation) for name in _topics(each)}
