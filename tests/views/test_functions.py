"""The table of functions: complete in the guide, and the same whoever asks."""

from decimal import Decimal
from pathlib import Path

import pytest

from gapless.errors import ViewError
from gapless.views.expressions import Call, ColumnRef, Literal
from gapless.views.functions import AGGREGATES, CASTS, FUNCTIONS, NULL, cast_to, common_kind, typed
from tests.views.language import read

#: In a cell of a table a bar is written with a backslash.
GUIDE = (Path(__file__).parents[2] / "docs" / "views.md").read_text(encoding="utf-8").replace("\\|", "|")
A, D, S = (
    ColumnRef(name, kind, nullable=False) for name, kind in [("a", "int"), ("d", "decimal"), ("s", "string")]
)


@pytest.mark.parametrize("form", [each.form for each in FUNCTIONS.values()])
def test_every_function_is_in_the_guide(form: str) -> None:
    assert f"`{form}`" in GUIDE


@pytest.mark.parametrize("name", AGGREGATES)
def test_every_aggregate_is_in_the_guide(name: str) -> None:
    assert f"`{name}(x)`" in GUIDE


def test_values_that_must_have_one_type_are_cast_to_it() -> None:
    call = typed("coalesce", (D, A, Literal(1, "int"), Literal(None, NULL)))
    assert isinstance(call, Call)
    assert [each.kind for each in call.operands] == ["decimal"] * 4
    assert call.operands[1:3] == (
        Call("cast", (A,), "decimal", nullable=False),
        Literal(Decimal(1), "decimal"),
    )


def test_comparisons_and_arithmetic_leave_numbers_as_they_are() -> None:
    for function in ("=", "<", "+"):
        call = typed(function, (A, D))
        assert isinstance(call, Call)
        assert call.operands == (A, D)


def test_a_bare_null_takes_the_type_of_its_neighbour() -> None:
    call = typed("=", (S, Literal(None, NULL)))
    assert isinstance(call, Call)
    assert call.operands[1] == Literal(None, "string")
    assert common_kind([NULL, NULL]) == NULL


@pytest.mark.parametrize("source", CASTS)
@pytest.mark.parametrize("target", CASTS)
def test_a_cast_is_made_or_refused(source: str, target: str) -> None:
    column = ColumnRef("c", source)
    if source == target:
        assert cast_to(column, target) is column
    elif target in CASTS[source]:
        assert cast_to(column, target) == Call("cast", (column,), target)
    else:
        with pytest.raises(ViewError, match=f"E167 no cast from {source} to {target}: "):
            cast_to(column, target)


def test_the_least_integer_can_be_written() -> None:
    relation = read("SELECT -9223372036854775808 AS least, -(-9223372036854775808) AS none FROM east")
    assert [each for _, each in relation.outputs] == [Literal(-(2**63), "int"), Literal(None, "int")]  # type: ignore[union-attr]
