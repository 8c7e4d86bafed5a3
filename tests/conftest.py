"""What all tests share: hypothesis profiles, the `--golden` option, and which tests are slow."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent

#: Everything below these folders is left out of `make check`.
SLOW_FOLDERS = (TESTS / "sim", TESTS / "integration", TESTS / "hostile", TESTS / "spark")

# The default draws the same examples on every machine and every run, so that a red test was red yesterday.
# To look for new failures: pytest --hypothesis-profile=explore
settings.register_profile(
    "ci",
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", deadline=None, max_examples=2_000, print_blob=True)
settings.load_profile("ci")


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


@pytest.fixture(scope="session")
def rewrite_golden(request: pytest.FixtureRequest) -> bool:
    """Whether expected outputs are to be rewritten: `make golden`."""
    return bool(request.config.getoption("--golden"))
