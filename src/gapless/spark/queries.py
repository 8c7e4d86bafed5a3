"""May this query run? `gapless history --sql` answers questions about events; it does nothing else.

Spark's SQL can also read and write files (``text.`/etc/passwd` ``, INSERT OVERWRITE DIRECTORY), run programs
(TRANSFORM ... USING), call Java (`reflect`) and run text as a statement (EXECUTE IMMEDIATE). So a query is
checked twice against lists of what is allowed:

- as *parsed*, before Spark looks at anything that it names: each operator, each relation (the table of events
  or a name of the query's own WITH) and each function by name;
- as *analysed*, when Spark has found out what the names stand for: each leaf is the table of events, or rows
  that the query itself spells out, and no expression is code from outside Spark.

Anything not listed is refused, so additions of later Spark versions are refused until reviewed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gapless.errors import UsageError
from gapless.spark.query_functions import FUNCTIONS, TABLE_FUNCTIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CATALYST = "org.apache.spark.sql.catalyst"

_OPERATOR_NAMES = """
    Aggregate AsOfJoin CTERelationDef CTERelationRef Deduplicate Distinct Except Expand Filter Generate
    GlobalLimit Intersect Join LateralJoin LocalLimit LocalRelation Offset OneRowRelation PipeOperator
    Pivot Project Range RebalancePartitions Repartition RepartitionByExpression ResolvedHint Sample Sort
    SubqueryAlias Tail Union UnresolvedHaving UnresolvedHint UnresolvedInlineTable UnresolvedOrderBy
    UnresolvedPipeAggregateOrdinal UnresolvedRelation UnresolvedSubqueryColumnAliases
    UnresolvedTableValuedFunction UnresolvedTVFAliases UnresolvedWith Unpivot Window WithCTE
    WithWindowDefinition
"""
#: The operators of a query, by the names of their classes.
_OPERATORS = frozenset(_OPERATOR_NAMES.split())
#: Leaves of an analysed query besides the table of events: rows that the query itself spells out.
_LEAVES = frozenset({"CTERelationRef", "LocalRelation", "OneRowRelation", "Range"})
#: Expressions that run code from outside Spark, or resolve later what they call.
_FOREIGN = (
    f"{_CATALYST}.expressions.CallMethodViaReflection",
    f"{_CATALYST}.expressions.TryReflect",
    f"{_CATALYST}.expressions.UserDefinedExpression",
    f"{_CATALYST}.analysis.ExpressionWithUnresolvedIdentifier",
)


def answer(spark: SparkSession, sql: str, table: str) -> DataFrame:
    """The answer to a query over the temporary view `table`.

    Raises UsageError (E134) for a query that does anything but compute rows from that view, and Spark's
    errors for one that it cannot parse.
    """
    parsed = spark._jsparkSession.sessionState().sqlParser().parsePlan(sql)
    _Check(spark, table).parsed(parsed)
    frame = spark.sql(sql)
    _Check(spark, table).analysed(frame._jdf.queryExecution().analyzed())
    return frame


class _Check:
    """Walks the trees of one query, in Java."""

    def __init__(self, spark: SparkSession, table: str) -> None:
        java: Any = spark._jvm
        find = java.java.lang.Class.forName
        self._table = table
        self._node = find(f"{_CATALYST}.trees.TreeNode")
        self._plan = find(f"{_CATALYST}.plans.logical.LogicalPlan")
        self._foreign = [find(name) for name in _FOREIGN]
        self._product = find("scala.Product")
        self._iterable = find("scala.collection.Iterable")

    def parsed(self, plan: Any) -> None:
        """Check a query whose names have not been resolved."""
        nodes = list(self._within(plan))
        # A name of WITH hides the table of that name everywhere: what matters is that it is not a file.
        own = {self._table}
        for node in nodes:
            if _kind(node) == "UnresolvedWith":
                pairs = node.cteRelations()
                own |= {str(pairs.apply(at)._1()).lower() for at in range(pairs.size())}
        for node in nodes:
            self._check(node)
            match _kind(node):
                case "UnresolvedRelation":
                    parts = _texts(node.multipartIdentifier())
                    if len(parts) != 1 or parts[0].lower() not in own or not node.options().isEmpty():
                        raise _refused(f"it reads '{'.'.join(parts)}'", self._table)
                case "UnresolvedFunction":
                    self._check_function(_texts(node.nameParts()), FUNCTIONS)
                case "UnresolvedTableValuedFunction":
                    self._check_function(_texts(node.name()), TABLE_FUNCTIONS)

    def analysed(self, plan: Any) -> None:
        """Check a query whose names have been resolved."""
        for node in self._within(plan, through_view=False):
            if _kind(node) == "View":
                if not node.isTempViewStoringAnalyzedPlan() or _view_name(node) != self._table:
                    raise _refused(f"it reads '{_view_name(node)}'", self._table)
                continue
            self._check(node)
            if self._plan.isInstance(node) and node.children().isEmpty() and _kind(node) not in _LEAVES:
                raise _refused(f"it reads {_kind(node)}", self._table)

    def _check(self, node: Any) -> None:
        """An operator must be on the list, an expression one of Spark's own."""
        kind = _kind(node)
        if self._plan.isInstance(node):
            if kind not in _OPERATORS:
                raise _refused(f"it has {kind}", self._table)
        elif any(each.isInstance(node) for each in self._foreign):
            raise _refused(f"it calls {kind}", self._table)

    def _check_function(self, name: list[str], allowed: frozenset[str]) -> None:
        if len(name) != 1 or name[0].lower() not in allowed:
            raise _refused(f"it calls the function '{'.'.join(name)}'", self._table)

    def _within(self, tree: Any, *, through_view: bool = True) -> Iterator[Any]:
        """All nodes of a tree: plans, their expressions, the plans in those, and so on."""
        waiting = [tree]
        while waiting:
            each = waiting.pop()
            if self._node.isInstance(each):
                yield each
                if _kind(each) == "View" and not through_view:
                    continue
                # Every field of a node, so that nothing can hide in one.
                waiting.extend(_items(each.productIterator()))
            elif self._iterable.isInstance(each):
                waiting.extend(_items(each.iterator()))
            elif self._product.isInstance(each):
                waiting.extend(_items(each.productIterator()))


def _items(iterator: Any) -> Iterator[Any]:
    while iterator.hasNext():
        each = iterator.next()
        if hasattr(each, "getClass"):  # numbers and texts come as those of Python
            yield each


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName()).rstrip("$")


def _texts(names: Any) -> list[str]:
    return [str(names.apply(at)) for at in range(names.size())]


def _view_name(view: Any) -> str:
    return str(view.desc().identifier().table())


def _refused(what: str, table: str) -> UsageError:
    return UsageError(
        "E134",
        f"--sql takes a query that only computes rows from the table '{table}', but {what}",
    )
