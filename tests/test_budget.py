"""What `make test` leaves out, `make test-long` runs; and no worker is left alone with the slow files."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import settings

from tests.budget import EXAMPLES_FULL, EXAMPLES_MIN, SEEDS_SHORT, beyond_first_seeds, examples, parts
from tests.scheduling import GROUPS, SPARK, SharedSpark, slow_first

ROOT = Path(__file__).parent.parent
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def item(test: str, *, slow: bool = False, **parameters: object) -> Any:
    return SimpleNamespace(
        nodeid=f"{test}[{parameters}]" if parameters else test,
        path=Path(test.partition("::")[0]),
        get_closest_marker=lambda name: name if slow else None,
        **({"callspec": SimpleNamespace(params=parameters)} if parameters else {}),
    )


def test_the_two_targets_run_everything_between_them() -> None:
    recipes = dict(re.findall(r"^(test[a-z-]*): .*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE))
    assert '-m "not long"' in recipes["test"]
    assert '-m "long or hypothesis" --hypothesis-profile=long' in recipes["test-long"]
    assert settings.get_profile("long").max_examples == EXAMPLES_FULL


def test_only_the_first_seeds_of_a_test_are_short() -> None:
    seeds = [item("a.py::one", seed=seed, way=way) for seed in range(9, 3, -1) for way in "xy"]
    others = [item("a.py::two", seed=3), item("a.py::three"), item("a.py::four", way="x")]
    left_out = list(beyond_first_seeds([*seeds, *others]))
    assert left_out == seeds[2 * SEEDS_SHORT :]


def test_a_seed_that_once_failed_is_never_left_out() -> None:
    assert list(beyond_first_seeds([item("a.py::once", seed=at, cause="it broke") for at in range(99)])) == []


def test_a_number_of_examples_is_scaled_with_the_profile() -> None:
    share = settings().max_examples / EXAMPLES_FULL
    assert examples(1_000).max_examples == 1_000 * share
    assert examples(3).max_examples == 3
    assert examples(5).max_examples >= EXAMPLES_MIN


def test_no_property_has_the_same_number_of_examples_in_both_runs() -> None:
    files = [path for path in ROOT.glob("tests/**/test_*.py") if path != Path(__file__)]
    assert [path.name for path in files if "max_examples=" in path.read_text(encoding="utf-8")] == []


def test_the_first_part_is_short_and_the_others_are_long() -> None:
    assert [[mark.name for mark in each.marks] for each in parts(3)] == [[], ["long"], ["long"]]


def test_files_with_spark_come_first_and_share_workers_in_groups() -> None:
    spark = [item(f"{SPARK}test_{name}.py::test", slow=True) for name in ("new", "sink", "source")]
    slow = [item("tests/z.py::one"), item("tests/z.py::two", slow=True)]
    quick = [item("tests/a.py::one"), item("tests/b.py::one")]
    items = [*quick, *spark, *slow]
    slow_first(items)
    assert items == [*spark, *slow, *quick]
    scope = SharedSpark._split_scope
    assert [scope(None, each.nodeid) for each in items] == [  # type: ignore[arg-type]
        *(f"{SPARK}test_new.py", f"{SPARK}events", f"{SPARK}events"),
        *("tests/z.py", "tests/z.py"),
        *("tests/a.py", "tests/b.py"),
    ]


def test_groups_name_files_that_exist() -> None:
    assert [file for file in GROUPS if not (ROOT / file).exists()] == []
