"""What does docs/protocol.md say? Its clauses and tables, read as text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PROTOCOL = ROOT / "docs" / "protocol.md"

_CLAUSE = re.compile(r"^\*\*(\d+\.\d+)\*\* ", re.MULTILINE)
_HEADING = re.compile(r"^#+ ", re.MULTILINE)
_SECTION = re.compile(r"^## (\d+) (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Clause:
    """One numbered clause with everything up to the next one, tables too."""

    number: str
    text: str

    @property
    def is_testable(self) -> bool:
        """Whether it says how brokers behave, and not only what words mean."""
        return "*(definition)*" not in self.text

    def table(self) -> list[list[str]]:
        """The rows of its table, without the header; code marks are taken off."""
        lines = [line for line in self.text.splitlines() if line.startswith("|")]
        assert len(lines) > 2, f"clause {self.number} has no table"
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def names(cell: str) -> list[str]:
    """The code words of a table cell.

    >>> names("`pubend`, `token`")
    ['pubend', 'token']
    """
    return re.findall(r"`([^`]+)`", cell)


@cache
def clauses() -> dict[str, Clause]:
    """Every clause by its number, in the order of the document."""
    text = PROTOCOL.read_text(encoding="utf-8")
    found = list(_CLAUSE.finditer(text))
    stops = sorted([m.start() for m in found] + [m.start() for m in _HEADING.finditer(text)] + [len(text)])
    out: dict[str, Clause] = {}
    for match in found:
        stop = next(at for at in stops if at > match.start())
        assert match[1] not in out, f"clause {match[1]} stands twice in the document"
        out[match[1]] = Clause(match[1], text[match.end() : stop])
    return out


@cache
def sections() -> dict[str, str]:
    """The numbered sections with their titles."""
    return dict(_SECTION.findall(PROTOCOL.read_text(encoding="utf-8")))
