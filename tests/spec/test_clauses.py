"""The clauses of docs/protocol.md and the tests of this folder name each other."""

import ast
import re
from pathlib import Path

from tests.spec.document import ROOT, clauses, sections

SPEC = Path(__file__).parent
SOURCE = ROOT / "src" / "gapless"

_NAMED = re.compile(r"^Clauses? (\d+\.\d+(?:(?:, | and )\d+\.\d+)*)\.")
_NUMBER = re.compile(r"\d+\.\d+")
_REFERENCE = re.compile(r"docs/protocol\.md,\s+sections?\s+(\d+(?:(?:,\s+|\s+and\s+|\s+to\s+)\d+)*)")


def spec_tests() -> dict[str, str]:
    """Every test of this folder, except those of this file, with its docstring."""
    found: dict[str, str] = {}
    for path in sorted(SPEC.glob("test_*.py")):
        if path == Path(__file__):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found[f"{path.name}::{node.name}"] = ast.get_docstring(node) or ""
    return found


def named_by_tests() -> dict[str, list[str]]:
    """Per clause number, the tests that name it."""
    found: dict[str, list[str]] = {}
    for test, text in spec_tests().items():
        match = _NAMED.match(text)
        assert match, f"{test} must begin its docstring with the clause that it is about: 'Clause 1.2.'"
        for number in _NUMBER.findall(match[1]):
            found.setdefault(number, []).append(test)
    return found


def test_clauses_are_numbered_without_gaps() -> None:
    counts: dict[str, int] = {}
    for number in clauses():
        section, at = number.split(".")
        counts[section] = counts.get(section, 0) + 1
        assert int(at) == counts[section], f"clause {number} should be {section}.{counts[section]}"
    assert list(counts) == list(sections()) == [str(n) for n in range(1, len(counts) + 1)]


def test_every_clause_that_a_test_names_exists() -> None:
    missing = {number: tests for number, tests in named_by_tests().items() if number not in clauses()}
    assert not missing


def test_a_test_stands_in_the_file_of_its_section() -> None:
    for number, tests in named_by_tests().items():
        for test in tests:
            assert test.startswith(f"test_{number.split('.')[0]}_"), f"{test} is about clause {number}"


def test_every_testable_clause_has_a_test() -> None:
    named = named_by_tests()
    missing = [number for number, each in clauses().items() if each.is_testable and number not in named]
    assert not missing, f"no test names {missing}"


def test_clauses_mention_only_clauses_and_sections_that_exist() -> None:
    for number, each in clauses().items():
        for other in _NUMBER.findall(" ".join(re.findall(r"clauses? [\d. and,]+", each.text))):
            assert other in clauses(), f"clause {number} mentions clause {other}"
        for section in re.findall(r"section (\d+)", each.text):
            assert section in sections(), f"clause {number} mentions section {section}"


def test_docstrings_refer_to_sections_that_exist() -> None:
    found = 0
    for path in sorted(SOURCE.rglob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        for listed in _REFERENCE.findall(text):
            found += 1
            for section in re.findall(r"\d+", listed):
                assert section in sections(), f"{path.name} implements section {section}"
    assert found > 20
