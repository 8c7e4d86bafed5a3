"""What all tests share: hypothesis profiles, the `--golden` option, and which tests are slow or long."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.budget import EXAMPLES_FULL, EXAMPLES_SHORT, beyond_first_seeds

# Java would compile everything a second time, better, for programs that run for hours. Tests never do.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")

TESTS = Path(__file__).parent

#: Everything below these folders is left out of `make check`.
SLOW_FOLDERS = (TESTS / "sim", TESTS / "integration", TESTS / "hostile", TESTS / "spark")

# Both draw the same examples on every machine and every run, so that a red test was red yesterday: `short` is
# the default and what `make test` uses, `long` is what `make test-long` uses.
# To look for new failures: pytest --hypothesis-profile=explore
for _name, _examples in {"short": EXAMPLES_SHORT, "long": EXAMPLES_FULL}.items():
    settings.register_profile(
        _name,
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=_examples,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.register_profile("explore", deadline=None, max_examples=20 * EXAMPLES_FULL, print_blob=True)
settings.load_profile("short")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--golden",
        action="store_true",
        help="rewrite the expected outputs instead of comparing with them",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "cluster" not in (config.getoption("markexpr") or ""):
        named = [item for item in items if item.get_closest_marker("cluster") is not None]
        config.hook.pytest_deselected(items=named)
        items[:] = [item for item in items if item not in named]
    for item in items:
        if any(item.path.is_relative_to(folder) for folder in SLOW_FOLDERS):
            item.add_marker(pytest.mark.slow)
    for item in beyond_first_seeds(items):
        item.add_marker(pytest.mark.long)
    if hasattr(config, "workerinput"):
        from tests.scheduling import slow_first

        slow_first(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from tests.scheduling import SharedSpark

    return SharedSpark(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def rewrite_golden(request: pytest.FixtureRequest) -> bool:
    """Whether expected outputs are to be rewritten: `make golden`."""
    return bool(request.config.getoption("--golden"))
